"""The predicate in GLSL: compiled as C it is the dense mask, and nothing in it wraps unseen."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.widths import INT32
from maskc.emit.glsl_printer import WIDEST, GlslPrinter, shader
from maskc.ir.selecting import hull
from maskc.questions.mask_at_lengths import bound
from maskc.reference.dense import dense
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support import glsl
from tests.support.patterns import FOLDER
from tests.support.thorough import examples

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 7, 64, 4096, 1 << 20])


def values_of(ir, n_q, n_kv, data):
    """Magnitudes of all that a bound reads."""
    asked = bound([ir], n_q, n_kv, data)
    extremes = {name: int(np.abs(array).max(initial=0)) for name, array in asked.arrays.items()}
    lengths = {"n_q": n_q, "n_kv": n_kv, "q": max(n_q - 1, 0), "k": max(n_kv - 1, 0)}
    return asked, {**lengths, **asked.params, **extremes}


def test_every_pattern_equals_dense(tmp_path: Path):
    """On one head of each; at lengths that no tile divides, and more keys than queries."""
    shaders, cases, wanted = [], [], []
    for file in sorted(FOLDER.glob("*.py")):
        mask = mc.load(file)[file.stem]()
        if driver.selects(mask):
            continue  # what a selection chooses is not in its formula
        heads = driver.heads_of(mask, None) if hasattr(driver, "heads_of") else None
        for n_q, n_kv in lengths_of(file.stem):
            data = sample_data(mask, n_q, n_kv)
            ir = driver.lowered(mask, 0, heads or 8)
            asked, values = values_of(ir, n_q, n_kv, data)
            found = shader(ir.keep)
            assert found is not None
            assert found.exact(values), file.stem
            shaders.append(found)
            cases.append((n_q, n_kv, {**asked.params, **asked.own(0, 0)}))
            shown = dense(mask, n_q, n_kv, n_heads=heads or 8, **data)
            wanted.append((file.stem, shown[0] if shown.ndim == 3 else shown))
    for (name, expected), found in zip(wanted, glsl.run(shaders, cases, tmp_path), strict=True):
        assert (found == expected).all(), name


def lengths_of(name: str) -> list[tuple[int, int]]:
    if name in ("natten_2d", "natten_3d", "swin", "sta", "axial"):
        return [(4096, 4096)] if name == "sta" else [(1024, 1024)]
    return [(150, 150), (70, 333)] if name != "flamingo" else [(150, 150)]


@settings(max_examples=examples(12))
@given(st.lists(masks(with_data=False), min_size=20, max_size=20))
def test_random_masks_equal_dense(tmp_path_factory, many):
    """Twenty at a time: the compiler starts once for all of them."""
    shaders, cases, wanted = [], [], []
    for mask in many:
        ir = driver.lowered(mask)
        if E.arrays(ir.keep) and any(decl.held for decl in ir.data):
            continue  # of captured arrays, see the patterns
        asked, values = values_of(ir, 19, 23, {})
        text = shader(ir.keep)
        assert text is not None
        assert text.exact(values)
        shaders.append(text)
        cases.append((19, 23, {**asked.params, **asked.own(0, 0)}))
        wanted.append(dense(mask, 19, 23))
    if shaders:
        for expected, shown in zip(
            wanted, glsl.run(shaders, cases, tmp_path_factory.mktemp("glsl")), strict=True
        ):
            assert (shown == expected).all()


def test_the_widest_numbers_do_not_wrap(tmp_path: Path):
    """At the bound itself the text is exact; `-ftrapv` would end the process."""
    keep = E.conj(E.ge(E.scale(3, E.Q), E.add(E.K, E.Param("w", 5))), E.ne(E.K, E.const(2)))
    text = shader(keep)
    assert text is not None
    room = {"n_q": 9, "n_kv": 9, "q": 8, "k": 8}
    most = WIDEST - 3 * 8
    assert text.exact({**room, "w": most})
    assert not text.exact({**room, "w": most + 1})
    env = {"q": np.arange(9)[:, None], "k": np.arange(9)[None, :], "w": most}
    shown = glsl.run([text], [(9, 9, {"w": most})], tmp_path)[0]
    assert (shown == evaluate(keep, env)).all()


def test_constants_beyond_32_bits_have_no_shader():
    assert shader(E.ge(E.scale(1 << 31, E.Q), E.K)) is None
    assert shader(E.le(E.K, E.add(E.Q, E.const(INT32 + 1)))) is None
    wide = shader(E.le(E.K, E.scale(1 << 12, E.Q)))
    assert wide is not None
    lengths = {"n_q": 1 << 20, "n_kv": 1 << 20, "q": (1 << 20) - 1, "k": (1 << 20) - 1}
    assert not wide.exact(lengths)
    assert wide.exact({name: value >> 4 for name, value in lengths.items()})


def test_no_name_of_a_user_reaches_the_text():
    hostile = mc.documents("gl_FragColor") & mc.window(mc.param("discard", 3), 0)
    text = shader(driver.lowered(hostile).keep)
    assert text is not None
    assert "gl_FragColor" not in text.text
    assert "discard" not in text.text
    assert text.params == ("discard",)


def test_long_lists_are_looked_up_and_short_ones_compared():
    ids = [2 * i * i for i in range(20)]  # equal steps would be a window
    long = shader(driver.lowered(mc.offsets(ids)).keep)
    short = shader(driver.lowered(mc.offsets(ids[:4])).keep)
    assert long is not None
    assert short is not None
    assert "in0(" in long.text
    assert len(long.lists[0]) == 20
    assert not short.lists
    assert short.text.count("==") == 4


def test_division_rounds_down():
    printer = GlslPrinter((), ())
    assert printer(E.floordiv(E.Q, 3)) == "q / 3"
    assert printer(E.floordiv(E.sub(E.Q, E.K), 3)).startswith("floor_div(")
    assert printer(E.mod(E.sub(E.Q, E.K), 3)).startswith("floor_mod(")


def test_hull_of_selections_has_a_shader():
    ir = hull(driver.lowered(mc.load(FOLDER / "topk_attention.py")["topk_attention"]()))
    assert shader(ir.keep) is not None
