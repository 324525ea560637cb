"""Parts of generated modules: plans back to bundles, and kernels by device."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from maskc.core.bundle import (
    Grid,
    Launch,
    LayoutRecipe,
    Mode,
    SourceUnit,
    TensorMap,
    TileLoop,
    WorkList,
)
from maskc.core.coefficients import priced
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import BadLength, BadPlan, DataMissing, NoSuchHead, WrongDevice
from maskc.core.expr_text import parse_expr
from maskc.core.problem import Direction, Feature, TileShape
from maskc.dispatch.tables import check_layout
from maskc.emit.module import module_files
from maskc.runtime import GeneratedMask, device
from tests.support.bundles import FORMULAS, bundle, cpu_unit, pairs


def imported(folder, made):
    """The generated module of a bundle."""
    for name, text in module_files(made, "a mask " * 40, "Title.").items():
        (folder / name).write_text(text)
        assert name.endswith(".json") or max(map(len, text.splitlines())) <= 100, name
    spec = importlib.util.spec_from_file_location("by_hand", folder / "by_hand.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("names", [("band",), ("documents",), ("band", "table", "gaps")])
def test_a_bundle_survives_being_written_down(names, tmp_path):
    made = bundle(*names, head_variant=(0, 2, 1, 1) if len(names) > 1 else ())
    made = replace(made, unread=("spare",))
    again = imported(tmp_path, made)._MASK.bundle
    assert again == made
    assert again.report == made.report


def hopper_units():
    """A pass each, with everything a launch can have."""
    forward = Launch("attention_forward", Grid.items, 384, 200 * 1024)
    streamed = Mode((replace(forward, grid=Grid.stream),), "PERSISTENT")
    passes = tuple(
        Launch(f"attention_{name}", grid, 128, per_block=64)
        for name, grid in (("queries", Grid.queries), ("items", Grid.items), ("keys", Grid.keys))
    )
    once = Launch("attention_once", Grid.queries, 32, feature=Feature.entmax)
    base = SourceUnit("sm_90a", "// forward\n", TileShape(128, 176), True)
    return (
        replace(
            base, modes=(("default", Mode((forward,))), ("persistent", streamed)),
            maps=(TensorMap("q", 128), TensorMap("k", 176), TensorMap("q", 64)),
            work=WorkList(1 << 17, 12),
        ),
        replace(
            base, text="// backward\n", tile=TileShape(64, 128), ranges=False,
            directions=(Direction.backward,),
            modes=(
                ("default", Mode((*passes, once))),
                ("deterministic", Mode(passes[:2], "DETERMINISTIC")),
            ),
            maps=tuple(TensorMap(name, 64) for name in ("q", "k", "v", "dout", "dq", "dk", "dv")),
            work=WorkList(1 << 16, 512), row_floats=130, key_floats=256,
        ),
        replace(base, target="sm_80", modes=(("default", Mode((replace(forward, threads=8),))),)),
    )  # fmt: skip


def test_launches_survive_being_written_down(tmp_path):
    half = {"dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64}
    made = priced(bundle("band", units=(cpu_unit("bfloat16", 64, 64), *hopper_units()), **half))
    again = imported(tmp_path, made)._MASK.bundle
    assert sorted(path.name for path in tmp_path.glob("by_hand.*")) == [
        "by_hand.cpu.c", "by_hand.plan.json", "by_hand.py", "by_hand.sm_80.cu",
        "by_hand.sm_90a.cu", "by_hand.sm_90a_backward.cu",
    ]  # fmt: skip
    assert again == made
    assert again.unit("sm_90a", Direction.backward).text == "// backward\n"


def test_values_and_loops_survive_being_written_down(tmp_path):
    """Constants of a formula, captured arrays, closed forms of tiles."""
    values = np.arange(200, dtype="<i4").tobytes()
    decl = DataDecl("ids", DataKind.constant, ("ids",), 1, (1,), values, (200,))
    made = bundle("band")
    (variant,) = made.variants
    loop = TileLoop(*map(parse_expr, ("ti >= 2", "max(0, ti - 4)", "ti")), 2, False)
    recipe = LayoutRecipe(TileShape(64, 32), variant.keep, (loop,), (("w", 3),), True)
    args = tuple(parse_expr(f"n_q + n_kv + {i}") for i in range(12))
    variant = replace(variant, args=args, recipes=(recipe,))
    made = replace(made, data=(decl,), variants=(variant,))
    assert imported(tmp_path, made)._MASK.bundle == made


def test_what_belongs_together_is_there_or_said_to_be_missing(tmp_path):
    imported(tmp_path, bundle("band"))
    plan = tmp_path / "by_hand.plan.json"
    text = plan.read_text()
    for broken in ("{", "[]", text.replace("bundle.Bundle", "bundle.Launch"), '{"os.system": {}}'):
        plan.write_text(broken)
        with pytest.raises(BadPlan, match=r"cannot read by_hand\.plan\.json"):
            GeneratedMask.of_module(str(tmp_path / "by_hand.py"))
    plan.write_text(text)
    next(tmp_path.glob("*.c")).unlink()
    with pytest.raises(BadPlan, match="No such file"):
        GeneratedMask.of_module(str(tmp_path / "by_hand.py"))


def test_signatures_name_the_mask_s_data_and_parameters(tmp_path):
    module = imported(tmp_path, replace(bundle("documents"), unread=("spare",)))
    for function in (module.attention, module.backward, module.dense, module.layout):
        words = signature(function).parameters
        assert words["doc"].default is words["doc"].empty
        assert words["doc"].kind is words["doc"].KEYWORD_ONLY
        assert words["spare"].default is None
    assert "scale" in signature(module.attention).parameters
    module = imported(tmp_path, bundle("band"))
    assert signature(module.attention).parameters["w"].default == dict(bundle("band").params)["w"]
    with pytest.raises(TypeError, match="widht"):
        module.attention(1, 2, 3, widht=3)


def test_a_module_computes(tmp_path):
    made = imported(tmp_path, bundle("band"))._MASK
    rng = np.random.default_rng(0)
    shapes = ((1, 2, 90, 32), (1, 2, 90, 32), (1, 2, 90, 48))
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    out, lse = made.attention(q, k, v, return_lse=True, w=9)
    assert out.shape == (1, 2, 90, 48)
    assert len(made.backward(q, k, v, out, lse, out, w=9)) == 3
    assert made.on(q) is made.on(k)
    assert made.explain() == "by hand"


def test_the_sources_of_a_module_are_the_files_beside_it(tmp_path):
    module = imported(tmp_path, bundle("band"))
    assert {"cpu": next(tmp_path.glob("*.c")).read_text()} == module.SOURCE
    assert copy.copy(module._MASK).source == module.SOURCE
    assert pickle.loads(pickle.dumps(module._MASK)).source == module.SOURCE
    with pytest.raises(TypeError):
        module.SOURCE["cpu"] = ""


def test_all_files_of_a_target_are_among_its_sources():
    from generated import longformer

    folder = Path(longformer.__file__).parent
    files = [file.read_text() for file in folder.glob("longformer.sm_90a*.cu")]
    assert len(files) > 1
    assert all(text in longformer.SOURCE["sm_90a"] for text in files)
    assert set(longformer.SOURCE) == {"cpu", "sm_90a", "sm_80"}


def test_no_target_for_a_device(monkeypatch):
    unit = replace(cpu_unit("bfloat16", 64, 64), target="sm_80")
    made = GeneratedMask(
        bundle("band", dtype="bfloat16", head_dim=64, head_dim_v=64, units=(unit,))
    )
    with pytest.raises(WrongDevice, match="q is on cpu:0, but this module runs on sm_80"):
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
    dense_mask = made.dense(40, doc=doc)
    assert dense_mask.shape == (2, 3, 40, 40)
    for b in range(2):
        each = (pairs("band", 40, 40), pairs("documents", 40, 40, doc=(doc[b], doc[b])))
        for head, index in enumerate(of_head):
            np.testing.assert_array_equal(dense_mask[b, head], each[index])
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
    with pytest.raises(NoSuchHead, match="refers to head 2, but there are 2 heads"):
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
