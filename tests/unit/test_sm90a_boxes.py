"""Sources for Hopper whose tiles are boxes of a grid: what they hide, copy and serve."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.boxes import Boxes, axis_relations
from maskc.core.bundle import TensorMap
from maskc.core.dtypes import DType
from maskc.core.errors import NotAddressable
from maskc.core.forms import GRID
from maskc.core.plain import from_text, to_text
from maskc.core.problem import Direction, Feature, Problem
from maskc.core.sizes import Sizes
from maskc.dispatch.tensor_maps import tensor
from maskc.emit.module import module_files
from maskc.layout.tiles.grid_tiles import box_layout
from maskc.plan.cost import costs_of
from maskc.plan.explain import explain
from maskc.plan.families.sm90a import grid_schedules
from maskc.plan.forms.grid_boxes import boxes_for, grid_masks
from tests.support.host_bits import HostBits
from tests.support.ledger import build
from tests.support.sm90a_plans import HEADS, emitted, planned
from tests.support.thorough import more, pairwise

FOLDER = Path(__file__).parents[2] / "patterns"


def pattern(name: str):
    return mc.load(FOLDER / f"{name}.py")[name]


FLAT, SOLID = pattern("natten_2d"), pattern("natten_3d")
MASKS = {
    "image": (FLAT(width=20, kernel=(5, 7)), (20, 260)),
    "groups": (FLAT(width=24, kernel=(8, 12), stride=(4, 8)), (24, 408)),
    "whole rows": (FLAT(width=64, kernel=(3, 31)), (320,)),
    "dilated": (FLAT(width=20, kernel=(4, 3), dilation=(1, 2), causal=True), (340,)),
    "windows": (pattern("swin")(width=20, window=6, shift=2), (20, 300)),
    "video": (SOLID(height=9, width=10, kernel=(3, 4, 5)), (90, 450)),
    "groups of a video": (SOLID(height=6, width=10, kernel=(4, 4, 4), stride=(2, 2, 4)), (300,)),
    "heads": (
        mc.per_head([FLAT(width=20, kernel=(5, 7)), FLAT(width=20, kernel=(2, 9), stride=(2, 4))]),
        (260,),
    ),
}


def in_boxes(bundle, direction: Direction):
    found = [unit for unit in bundle.choice("sm_90a", direction) if unit.boxes]
    assert len(found) == 1
    return found[0]


# ------------------------------------------------------------------ sources


@pytest.mark.parametrize(
    ("name", "dim", "direction"),
    pairwise(
        list(MASKS),
        [64, 128, 192],
        list(Direction),
        tried=[
            ("image", 64, Direction.forward),
            ("groups", 128, Direction.backward),
            ("dilated", 192, Direction.forward),
            ("whole rows", 128, Direction.backward),
            ("windows", 192, Direction.backward),
            ("video", 128, Direction.forward),
            ("heads", 64, Direction.backward),
        ],
    ),
)
def test_bits_are_the_mask(name, dim, direction):
    mask, lengths = MASKS[name]
    bundle = emitted(mask, dim)
    bits = HostBits(bundle, in_boxes(bundle, direction))
    for n in lengths:
        want = np.broadcast_to(mask.dense(n, n_heads=HEADS), (HEADS, n, n))
        np.testing.assert_array_equal(bits.live(n, n, HEADS), want, str(n))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["image", "video"])
def test_sources_compile_without_spills(name, dim):
    bundle = emitted(MASKS[name][0], dim)
    for direction in Direction:
        without_spills(in_boxes(bundle, direction))


def without_spills(unit):
    for mode, _ in unit.modes:
        for features in (frozenset[Feature](), frozenset({Feature.softcap, Feature.sinks})):
            report = build(unit, features, unit.directions, "sm_90a", mode).report
            assert "C75" not in report.log
            assert not report.spills()


IMAGE, VIDEO = FLAT(width=256, kernel=(80, 80)), SOLID(height=48, width=80, kernel=(18, 24, 24))


@pytest.mark.parametrize(
    ("mask", "dim", "keys"),
    [
        (IMAGE, 128, 128),
        (IMAGE, 192, 64),
        more(VIDEO, 64, 96),
        (VIDEO, 128, 96),
        more(VIDEO, 192, 96),
    ],
)
def test_tiles_have_as_many_keys_as_suit_the_windows(mask, dim, keys):
    """Fewer where more of the pairs that run are live, by enough to pay for the steps."""
    plan = planned(mask, dim)
    unit = in_boxes(driver.emit_bundle(plan), Direction.forward)
    assert unit.tile.k == keys == prod(unit.boxes.k) == unit.boxes.seen
    (chosen,) = (each for each in plan.alternatives if each.form == GRID and each.tile == unit.tile)
    usual, *fewer = grid_schedules(plan.problem)
    assert [each.tile.k for each in fewer] == [k for k in (96, 64) if k < usual.tile.k]
    axes = grid_masks(tuple(each.ir for each in chosen.masks))
    wide = boxes_for(axes, (usual.tile,), Direction.forward)
    grid = (96, *chosen.boxes.extents)
    relations = axis_relations(chosen.masks[0].axes, grid, {})
    area = {}
    for tile, q, k in ((unit.tile, unit.boxes.q, unit.boxes.k), wide):
        boxes = Boxes(chosen.boxes.extents, q, k, tile.k)
        area[tile.k] = box_layout(boxes, relations).nnz * tile.q * tile.k
    assert area[keys] == min(area.values())
    for cost in costs_of(chosen):
        (own,) = (each for each in costs_of(planned(mask, dim)) if each.mode == cost.mode)
        assert cost.row == own.row
        assert cost.tile * (usual.tile.k + 12) == pytest.approx(own.tile * (keys + 12), rel=1e-3)


@pytest.mark.parametrize(("mask", "dim"), [(VIDEO, 64), (VIDEO, 128), (VIDEO, 192), (IMAGE, 256)])
def test_tiles_with_fewer_keys_compile_without_spills(mask, dim):
    without_spills(in_boxes(emitted(mask, dim), Direction.forward))


@pytest.mark.parametrize("name", ["axial", "natten_1d", "full", more("sta"), "longformer"])
def test_others_have_no_boxes(name):
    """STA's tiles are of 384 tokens in a row: tiles of these are never partial."""
    assert not any(alternative.boxes for alternative in planned(pattern(name)()).alternatives)


@pytest.mark.parametrize(
    ("mask", "n", "live"),
    [
        (FLAT(width=256, kernel=(80, 80), stride=(16, 16)), 1 << 16, 6400),
        more(SOLID(height=48, width=80, kernel=(18, 24, 24), stride=(16, 8, 8)), 115200, 10368),
    ],
)
def test_boxes_follow_the_windows(mask, n, live):
    """Where groups of queries share their window, no pair of a tile is wasted."""
    for plan in planned(mask).alternatives:
        if plan.boxes:
            grid = plan.boxes.grid(n)
            layout = box_layout(plan.boxes, axis_relations(plan.masks[0].axes, grid, {}))
            assert layout.nnz * plan.tile.q * plan.tile.k == n * live
            assert (layout.kind == 2).all()


@pytest.mark.parametrize("kernel", [(7, 7), (9, 63)])
def test_whole_rows_are_boxes_where_others_would_test_pairs(kernel):
    plan = planned(FLAT(width=64, kernel=kernel))
    assert plan.tests == 12
    for direction in Direction:
        assert in_boxes(driver.emit_bundle(plan), direction).boxes.q[-1] == 64


def test_where_bits_tell_whole_rows_are_no_boxes():
    """Windows as wide as the image: consecutive tokens are as good."""
    assert not any(alternative.boxes for alternative in planned(mc.block_diagonal(64)).alternatives)


# ------------------------------------------------------------------ calls


def test_what_a_source_with_boxes_serves():
    unit = in_boxes(driver.emit_bundle(planned(MASKS["image"][0])), Direction.forward)
    none = frozenset[Feature]()
    assert unit.serves(none, 260, 260)
    assert unit.serves(frozenset({Feature.softcap, Feature.sinks}), 260, 260)
    assert not unit.serves(frozenset({Feature.alibi}), 260, 260)
    assert not unit.serves(none, 261, 261)
    assert not unit.serves(none, 260, 520)
    assert unit.key == "sm_90a_grid"


PROBLEM = Problem(128, 128, DType.bfloat16)


def test_maps_of_an_image():
    boxes = Boxes((20,), (16, 8), (8, 16), 128)
    sizes, strides = Sizes(3, 4, 2, 260, 260), (4 * 260 * 128, 260 * 128, 128)
    wanted = TensorMap("q", 128, (16, 8))
    encoded = tensor(wanted, strides, sizes, PROBLEM, "sm_90a", boxes)
    assert encoded.dims == (128, 20, 13, 4, 3)
    assert encoded.strides == tuple(2 * step for step in (128, 20 * 128, 260 * 128, 4 * 260 * 128))
    assert encoded.box == (64, 8, 16, 1, 1)


def test_maps_of_a_video():
    boxes = Boxes((6, 10), (2, 8, 8), (2, 8, 8), 128)
    sizes, strides = Sizes(1, 4, 2, 180, 180), (0, 128, 2 * 128)  # tokens before heads
    wanted = TensorMap("k", 128, (2, 8, 8))
    encoded = tensor(wanted, strides, sizes, PROBLEM, "sm_90a", boxes)
    assert encoded.dims == (128, 10, 6, 3, 2)
    assert encoded.strides == tuple(2 * step for step in (256, 2560, 15360, 128))
    assert encoded.box == (64, 8, 8, 2, 1)
    with pytest.raises(NotAddressable, match="its tokens are 8 bytes apart"):
        tensor(wanted, (0, 128, 4), sizes, PROBLEM, "sm_90a", boxes)


def test_explain_names_the_boxes():
    plan = planned(FLAT(width=256, kernel=(80, 80), stride=(16, 16)))
    words = " ".join(explain(plan, 1 << 16, 1 << 16).split())
    q, k = next((" x ".join(map(str, side)) for side in (alternative.boxes.q, alternative.boxes.k))
                for alternative in plan.alternatives if alternative.boxes)  # fmt: skip
    assert f"or boxes of a grid, {q} queries x {k} keys of N x 256" in words
    assert "choice 65536 x 65536: boxes of 128 x 128; cycles of one head by program:" in words


def test_a_generated_module_has_the_boxes(tmp_path, monkeypatch):
    bundle = replace(driver.emit_bundle(planned(MASKS["video"][0]), "some_video"), report="")
    for name, text in module_files(bundle, "mask", "title").items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import some_video  # type: ignore[import-not-found]

    again = next(value for value in vars(some_video).values() if hasattr(value, "bundle")).bundle
    assert again.variants == bundle.variants
    assert [unit.boxes for unit in again.units] == [unit.boxes for unit in bundle.units]
    assert [unit.maps for unit in again.units] == [unit.maps for unit in bundle.units]
    assert prod(again.units[1].boxes.q) == 128
    assert from_text(to_text(bundle)) == bundle
    assert again.unit("sm_90a", Direction.backward).boxes is None
