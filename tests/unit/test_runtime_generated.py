"""What generated modules are made of: literals back to bundles, and kernels by device."""

from __future__ import annotations

from base64 import b85encode
from dataclasses import replace

import numpy as np
import pytest

from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import BadLength, DataMissing, NoSuchHead, WrongDevice
from maskc.core.expr_text import to_python
from maskc.core.problem import TileShape
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
