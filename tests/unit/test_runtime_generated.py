"""What generated modules are made of: literals back to bundles, and kernels by device."""

from __future__ import annotations

import importlib.util
from base64 import b85encode
from dataclasses import replace

import numpy as np
import pytest

from maskc.core.bundle import Grid, Launch, Mode, SourceUnit, TensorMap, WorkList
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import BadLength, DataMissing, NoSuchHead, WrongDevice
from maskc.core.expr_text import parse_expr, to_python
from maskc.core.problem import Direction, Feature, TileShape
from maskc.emit.module import module_files
from maskc.runtime import GeneratedMask, device, generated
from maskc.runtime.tables import check_layout
from tests.support.bundles import FORMULAS, bundle, cpu_unit, pairs
from tests.support.caches import binaries  # noqa: F401

pytestmark = pytest.mark.usefixtures("binaries")


def rebuilt(made):
    """The bundle again, through the words a generated module uses."""
    masks = tuple(
        generated.mask(
            to_python(variant.keep),
            *(generated.tiles(r.tile.q, r.tile.k, numeric=True) for r in variant.recipes),
            shape=variant.shape,
            args=tuple(map(to_python, variant.args)),
        )
        for variant in made.variants
    )
    problem, (unit,) = made.problem, made.units
    return generated.bundle(
        made.name, head_dim=problem.head_dim, head_dim_v=problem.head_dim_v,
        dtype=problem.dtype.value, n_heads=problem.n_heads, masks=masks,
        of_head=made.head_variant, arrays=made.arrays,
        data=tuple(
            generated.data(d.name, d.kind.name, d.arrays, block=d.block) for d in made.data
        ),
        params=made.params,
        kernels=(
            generated.kernel(
                unit.target, unit.text, tile=(unit.tile.q, unit.tile.k), ranges=unit.ranges,
                passes=("forward", "backward"),
            ),
        ),
        unread=made.unread,
        report=made.report,
    )  # fmt: skip


@pytest.mark.parametrize("names", [("band",), ("documents",), ("band", "table", "gaps")])
def test_a_bundle_survives_being_written_down(names):
    made = bundle(*names, head_variant=(0, 2, 1, 1) if len(names) > 1 else ())
    made = replace(made, unread=("spare",))
    again = rebuilt(made)
    assert again == made
    assert again.report == made.report


def imported(folder, files):
    """The bundle of a generated module."""
    for name, text in files.items():
        (folder / name).write_text(text)
        assert max(map(len, text.splitlines())) <= 100, name
    spec = importlib.util.spec_from_file_location("by_hand", folder / "by_hand.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._MASK.bundle, module.SOURCE


def hopper_units():
    """A pass each, with everything a launch can have."""
    forward = Launch("attention_forward", Grid.items, 384, 200 * 1024)
    streamed = Mode((replace(forward, grid=Grid.stream),), "STREAM")
    passes = tuple(
        Launch(f"attention_{name}", grid, 128, per_block=64)
        for name, grid in (("queries", Grid.queries), ("items", Grid.items), ("keys", Grid.keys))
    )
    once = Launch("attention_once", Grid.queries, 32, feature=Feature.entmax)
    base = SourceUnit("sm_90a", "// forward\n", TileShape(128, 176), True)
    return (
        replace(
            base, modes=(("usual", Mode((forward,))), ("stream", streamed)),
            maps=(TensorMap("q", 128), TensorMap("k", 176), TensorMap("q", 64)),
            work=WorkList(1 << 17, stream_below=12),
        ),
        replace(
            base, text="// backward\n", tile=TileShape(64, 128), ranges=False,
            directions=(Direction.backward,),
            modes=(
                ("usual", Mode((*passes, once))),
                ("deterministic", Mode(passes[:2], "DETERMINISTIC")),
            ),
            maps=tuple(TensorMap(name, 64) for name in ("q", "k", "v", "dout", "dq", "dk", "dv")),
            work=WorkList(1 << 16, 512), row_floats=130, key_floats=256,
        ),
        replace(base, target="sm_80", modes=(("usual", Mode((replace(forward, threads=8),))),)),
    )  # fmt: skip


def test_launches_survive_being_written_down(tmp_path):
    half = {"dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64}
    made = bundle("band", units=(cpu_unit("bfloat16", 64, 64), *hopper_units()), **half)
    files = module_files(made, "a mask " * 40, "Title.")
    assert sorted(files) == [
        "by_hand.cpu.c", "by_hand.py", "by_hand.sm_80.cu", "by_hand.sm_90a.cu",
        "by_hand.sm_90a_backward.cu",
    ]  # fmt: skip
    again, source = imported(tmp_path, files)
    assert again == made
    assert list(source) == ["cpu", "sm_90a", "sm_90a_backward", "sm_80"]
    assert source["sm_90a_backward"] == "// backward\n"
    text = files["by_hand.py"]
    assert """
                launch("attention_forward", "items", threads=384, shared=204800),
                launch(
                    "attention_forward",
                    "stream",
                    threads=384,
                    shared=204800,
                    mode="stream",
                    macro="STREAM",
                ),
                tile=(128, 176),
                ranges=True,
                maps=(("q", 128), ("k", 176), ("q", 64)),
                work={"group_tokens": 131072, "stream_below": 12},
            ),
""" in text  # fmt: skip


def test_long_literals_are_wrapped(tmp_path):
    """Constants of a formula, captured values, and the mask's own text."""
    values = np.arange(200, dtype="<i4").tobytes()
    decl = DataDecl("ids", DataKind.constant, ("ids",), 1, (1,), values, (200,))
    made = bundle("band")
    args = tuple(parse_expr(f"n_q + n_kv + {i}") for i in range(12))
    made = replace(
        made, data=(decl,), variants=(replace(made.variants[0], args=args),)
    )  # fmt: skip
    again, _ = imported(tmp_path, module_files(made, "causal() & " * 30 + "full()", "Title."))
    assert again == made


def test_tile_loops_and_captured_values():
    values = np.arange(6, dtype="<i4").tobytes()
    text = b85encode(values).decode()
    decl = generated.data("ids", "constant", ("ids",), values=text, shape=(6,), options=(1,))
    assert decl == DataDecl("ids", DataKind.constant, ("ids",), 1, (1,), values, (6,))
    loop = generated.loop("max(0, ti - 4)", "ti", full=False, where="ti >= 2", step=2)
    recipe = generated.tiles(64, 32, loop, fixed=(("w", 3),), square=True)
    variant = generated.mask("k <= q", recipe, shape=0, args=())
    (own,) = variant.recipes
    assert (own.tile, own.loops, own.fixed, own.square) == (
        TileShape(64, 32), (loop,), (("w", 3),), True,
    )  # fmt: skip
    assert own.keep == variant.keep
    assert to_python(loop.guard) == "ti >= 2"


def test_a_module_computes():
    made = GeneratedMask(rebuilt(bundle("band")))
    rng = np.random.default_rng(0)
    shapes = ((1, 2, 90, 32), (1, 2, 90, 32), (1, 2, 90, 48))
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    out, lse = made.attention(q, k, v, return_lse=True, w=9)
    assert out.shape == (1, 2, 90, 48)
    assert len(made.backward(q, k, v, out, lse, out, w=9)) == 3
    assert made.on(q) is made.on(k)
    assert made.explain() == "by hand"


def test_no_target_for_a_device(monkeypatch):
    unit = replace(cpu_unit("bfloat16", 64, 64), target="sm_80")
    made = GeneratedMask(
        bundle("band", dtype="bfloat16", head_dim=64, head_dim_v=64, units=(unit,))
    )
    with pytest.raises(WrongDevice, match="q lives on cpu:0, but this module runs on sm_80"):
        made.attention(*[np.zeros((1, 1, 4, 64), np.float32)] * 3)


def test_the_kernel_follows_the_device(monkeypatch):
    from types import SimpleNamespace

    base = cpu_unit("bfloat16", 64, 64)
    units = tuple(replace(base, target=name) for name in ("cpu", "sm_80"))
    made = GeneratedMask(bundle("band", dtype="bfloat16", head_dim=64, head_dim_v=64, units=units))
    monkeypatch.setattr(device, "gpus", lambda: [SimpleNamespace(capability=89)])
    assert made._on(("cpu", 0)).target.name == "cpu"
    assert made._on(("cuda", 0)).target.name == "sm_80"
    with pytest.raises(WrongDevice, match="cuda:1"):
        made._on(("cuda", 1))


def test_dense():
    made = GeneratedMask(bundle("band"))
    np.testing.assert_array_equal(made.dense(40, 55, w=4), pairs("band", 40, 55, w=4))
    np.testing.assert_array_equal(made.dense(30), pairs("band", 30, 30))
    assert made.dense(0, 3).shape == (0, 3)
    with pytest.raises(BadLength):
        made.dense(-1)


def test_dense_with_data_and_heads():
    of_head = (0, 1, 1)
    made = GeneratedMask(bundle("band", "documents", head_variant=of_head))
    rng = np.random.default_rng(0)
    doc = rng.integers(0, 3, (2, 40))
    found = made.dense(40, doc=doc)
    assert found.shape == (2, 3, 40, 40)
    for b in range(2):
        each = (pairs("band", 40, 40), pairs("documents", 40, 40, doc=(doc[b], doc[b])))
        for head, index in enumerate(of_head):
            np.testing.assert_array_equal(found[b, head], each[index])
    with pytest.raises(DataMissing):
        made.dense(40)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("block", [None, (16, 48), (128, 128)])
def test_layouts_cover_the_mask_exactly(name, block):
    made = GeneratedMask(bundle(name))
    rng = np.random.default_rng(0)
    data = {}
    if name in ("documents", "table"):
        data["doc"] = (rng.integers(0, 3, 100), rng.integers(0, 3, 150))
    if name == "table":
        data["blocks"] = rng.random((7, 10)) < 0.3
    layout = made.layout(100, 150, block=block, **data)
    assert layout.block == (block or (64, 64))
    keep = pairs(name, 100, 150, **data)
    rows, columns = layout.shape
    kinds = layout.to_dense()
    for i in range(rows):
        for j in range(columns):
            part = keep[
                i * layout.tile.q : (i + 1) * layout.tile.q,
                j * layout.tile.k : (j + 1) * layout.tile.k,
            ]
            assert kinds[i, j] == (2 if part.all() else 1 if part.any() else 0)


def test_the_layout_of_a_head_and_of_a_sequence():
    made = GeneratedMask(bundle("band", "documents", head_variant=(0, 1)))
    doc = np.stack([np.zeros(130, int), np.arange(130) // 64])
    assert made.layout(130, head=1, batch=0, doc=doc).nnz == 9
    assert made.layout(130, head=1, batch=1, doc=doc).nnz == 3
    assert made.layout(130, head=0, doc=doc).nnz < 9
    with pytest.raises(NoSuchHead, match="speaks of head 2, but there are 2 heads"):
        made.layout(130, head=2, doc=doc)


def test_a_wrong_layout_is_caught():
    from maskc.core.errors import CheckFailed

    made = GeneratedMask(bundle("band"))
    right = made.layout(130)
    keep = made.bundle.variants[0].keep
    env = {"w": 20, "n_q": 130, "n_kv": 130}
    check_layout(right, keep, env)
    full = replace(right, kind=np.full_like(right.kind, 2))
    with pytest.raises(CheckFailed, match="full, which it is not"):
        check_layout(full, keep, env)
    other = made.layout(130, w=0)
    with pytest.raises(CheckFailed, match="empty, which it is not"):
        check_layout(replace(other), keep, {**env, "w": 129})
