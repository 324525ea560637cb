"""Tiles and stages that a user names: what each target has, that it runs right, and what is said
of the rest."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.core.dtypes import DType
from maskc.core.errors import BadOption, BadTile, TileUnsupported
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.lab.bench import bench_tiles
from maskc.testing.emulator import machine
from maskc.verify.case import Case
from maskc.verify.judge import CaseVerdict
from tests.support.cli import maskc, maskc_json
from tests.support.exact_attention import live_pairs, tensors
from tests.support.exact_entmax import check as check_entmax
from tests.support.hopper import check
from tests.support.thorough import more

BAND = mc.causal() & (mc.sinks(5) | mc.window(70))


def planned(target, tile=None, stages=None, dim=128):
    problem = driver.problem(dim, None, None, "float16", None, tile, stages)
    return driver.plan_kernel(BAND, problem, TARGETS[target])


def found_ways(target, dim, tile=None, stages=None):
    problem = driver.problem(dim, None, None, "float16", None, tile, stages)
    choices = driver.tile_choices(problem, TARGETS[target])
    return [(choice.tile.q, choice.tile.k, choice.stages) for choice in choices]


# ------------------------------------------------------------------ what there is


def test_the_tiles_of_each_target():
    assert found_ways("simt", 64) == [(64, 64, None)]
    sides = (16, 32, 64, 128)
    assert found_ways("cpu", 64) == [(q, k, None) for q, k in product(sides, sides)]
    assert found_ways("sm_80", 80) == [(64, 32, None), (64, 64, None), (128, 32, None),
                                       (128, 64, None)]  # fmt: skip
    assert found_ways("sm_80", 192) == [(64, 32, None), (64, 64, None)]
    hopper = found_ways("sm_90a", 128)
    assert {each[:2] for each in hopper} == {(128, 64), (128, 96), (128, 128), (192, 64)}
    assert max(stages for q, k, stages in hopper if (q, k) == (128, 128)) == 3
    assert found_ways("sm_90a", 128, tile=(128, 96)) == [(128, 96, 2), (128, 96, 3), (128, 96, 4)]
    assert {each[:2] for each in found_ways("sm_90a", 256)} == {(128, 64)}
    assert all(stages == 4 for *_, stages in found_ways("sm_90a", 64, stages=4))


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_what_the_planner_chooses_is_among_them(target):
    for dim in TARGETS[target].head_dims or (64, 128):
        tile = planned(target, dim=dim).tile
        assert (tile.q, tile.k) in {found_way[:2] for found_way in found_ways(target, dim)}


def test_a_named_tile_is_the_only_forward_source():
    plan = planned("sm_90a", (128, 96), 3)
    forward = [each for each in (plan, *plan.alternatives)
               if each.target is plan.target and each.direction is Direction.forward]  # fmt: skip
    assert [(each.tile.q, each.tile.k, each.schedule.stages) for each in forward] == [(128, 96, 3)]
    usual = planned("sm_90a")
    backward = [[each.tile for each in (x, *x.alternatives) if each.direction is Direction.backward]
                for x in (plan, usual)]  # fmt: skip
    assert backward[0] == backward[1]
    assert any("tile=(128, 96), stages=3 as the caller set it" in reason for reason in plan.reasons)
    assert planned("sm_90a", stages=2).schedule.stages == 2


def test_grids_have_no_boxes_beside_it():
    mask = mc.patterns.natten_2d(width=16, kernel=(5, 5))
    usual = mask.compile(64, target="sm_90a").bundle
    assert any(unit.boxes for unit in usual.units)
    plan = mask.compile(64, target="sm_90a", tile=(128, 64)).bundle
    assert all(unit.boxes is None for unit in plan.units if Direction.forward in unit.directions)


def test_the_planners_choice_is_the_same_source():
    for target in ("sm_80", "sm_90a"):
        usual = BAND.compile(128, target=target).bundle.units[0]
        tile = usual.tile.q, usual.tile.k
        assert BAND.compile(128, target=target, tile=tile).bundle.units[0].text == usual.text


def test_it_outlives_pickling_and_planning_anew():
    attn = BAND.compile(64, target="cpu", tile=(32, 128))
    assert pickle.loads(pickle.dumps(attn)).bundle.units[0].tile == attn.bundle.units[0].tile
    assert attn.bundle.problem.tile is not None


# ------------------------------------------------------------------ what there is not


@pytest.mark.parametrize(
    ("target", "dim", "named", "why", "hint"),
    [
        ("sm_90a", 128, {"tile": (64, 64)}, "no tiles of 64 queries", "q 128 or 192 and k 64, 96"),
        ("sm_90a", 128, {"tile": (192, 128)}, "192 registers and has 160", "stages 2 to 8"),
        ("sm_90a", 128, {"stages": 4}, "4 stages need 289 KiB", "stages 2 to 8"),
        ("sm_90a", 256, {"tile": (128, 96)}, "of 227 that there are", "stages 2 to 8"),
        ("sm_90a", 128, {"stages": 9}, "9 stages", "stages 2 to 8"),
        ("sm_80", 128, {"tile": (128, 128)}, "no tiles of 128 keys", "k 32 or 64"),
        ("sm_80", 128, {"stages": 2}, "no pipeline stages", "sm_80 takes tile=(q, k)"),
        ("sm_80", 256, {"tile": (128, 64)}, "no tiles of 128 queries", "q 64 and k 32 or 64"),
        ("simt", 64, {"tile": (32, 64)}, "no tiles of 32 queries", "q 64 and k 64"),
        ("cpu", 64, {"tile": (48, 64)}, "no tiles of 48 queries", "q 16, 32, 64 or 128"),
    ],
)
def test_outside_of_the_limits(target, dim, named, why, hint):
    with pytest.raises(TileUnsupported) as caught:
        BAND.compile(dim, target=target, **named)
    assert why in caught.value.finding
    assert hint in str(caught.value)
    assert str(caught.value).startswith(f"MC490 {'tile' if 'tile' in named else 'stages'}")


@pytest.mark.parametrize(
    "tile", ["64x64", (64,), (64, 64, 64), (0, 64), (64.0, 64), 64, (True, 64)]
)
def test_what_is_no_tile(tile):
    with pytest.raises(BadTile, match="MC491 tile"):
        BAND.compile(64, target="cpu", tile=tile)


@pytest.mark.parametrize("name", ["head_dim", "head_dim_v", "n_heads"])
@pytest.mark.parametrize("given", ["64", 64.0, True])
def test_what_is_no_integer(name, given):
    with pytest.raises(BadOption, match=f"MC407 {name}  {name} must be an integer, found"):
        BAND.compile(**{"head_dim": 64, "target": "cpu", name: given})


@pytest.mark.parametrize("stages", [0, -1, 2.0, "2", True])
def test_what_is_no_number_of_stages(stages):
    with pytest.raises(BadTile, match="stages must be a positive integer"):
        BAND.compile(64, target="sm_90a", stages=stages)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_runtime_selections_have_tiles_of_their_own(target):
    mask = mc.topk(4, of=mc.causal(), score="qk", block=16)
    with pytest.raises(TileUnsupported, match="choose keys at run time"):
        mask.compile(64, target=target, tile=(64, 64))


# ------------------------------------------------------------------ that it runs right


BITS = mc.window(5, 5) | mc.dilated(5, stride=3) | mc.dilated(5, stride=9)
TESTED = mc.causal() & (mc.strided(7) | mc.window(20)) - mc.global_tokens([60]).rows


def given(dim, n_q=200, n_kv=270):
    return tensors(n_q, n_kv, dim, torch.float16, batch=1, heads=2, kv_heads=1)


@pytest.mark.parametrize("tile", [(16, 128), (128, 16), more((32, 64)), more((128, 128))], ids=str)
def test_both_passes_on_the_cpu(tile):
    for n_q, n_kv in ((130, 200), (33, 17)):
        made = tensors(n_q, n_kv, 24, torch.float32)
        attn = BAND.compile(24, dtype="float32", target="cpu", tile=tile)
        check(attn, made, live_pairs(BAND, n_q, n_kv))
    mask, ids = mc.documents("doc") & mc.causal(), np.sort(np.arange(150, dtype=np.int32) % 4)
    attn = mask.compile(24, dtype="float32", target="cpu", tile=tile)
    check(attn, tensors(150, 150, 24, torch.float32), live_pairs(mask, 150, 150, {"doc": ids}),
          {"doc": ids})  # fmt: skip


@pytest.mark.parametrize(
    ("target", "tile", "stages", "dim"),
    [
        ("sm_80", (64, 32), None, 40),
        more("sm_80", (128, 32), None, 128),
        ("sm_80", (64, 32), None, 256),
        more("sm_90a", (128, 64), None, 64),
        more("sm_90a", (128, 96), 3, 80),
        more("sm_90a", (192, 64), None, 128),
        ("sm_90a", (192, 96), 2, 64),
        ("sm_90a", (128, 64), 5, 128),
        more("sm_90a", (128, 64), None, 192),
    ],
    ids=str,
)
def test_gpu_tiles_in_the_emulator(monkeypatch, target, tile, stages, dim):
    machine.install(monkeypatch)
    made, named = given(dim), {"target": target, "tile": tile, "stages": stages}
    for mask in (
        (BAND, TESTED, BITS) if (target, dim) in (("sm_80", 40), ("sm_90a", 80)) else (BAND,)
    ):
        attn = mask.compile(dim, dtype="float16", **named)
        check(attn, made, live_pairs(mask, 200, 270))
    if dim in (80, 128):
        attn = mc.causal().compile(dim, dtype="float16", **named)
        check_entmax(attn, made, live_pairs(mc.causal(), 200, 270), 1.5)


# ------------------------------------------------------------------ the command line


SMALL = ("--n", 70, "--heads", 2, "--head-dim", 16, "--dtype", "float32", "--target", "cpu")


def made_up(order):
    """A stand-in for the clock: the planner's choice takes 1 ms, then each way more, or less."""

    def turns(calls, rounds, device):
        assert (rounds, device) == (7, "cpu")
        return {way: 1.0 + order * i / 10 for i, way in enumerate(calls)}

    return turns


def rows_of(order, **named):
    case = Case("band", BAND, 1, 2, 1, 70, 90, 16, DType.float32, **named)
    return bench_tiles(case, TARGETS["cpu"], 7, turns=made_up(order))


def test_bench_tiles_times_and_checks_each():
    rows = rows_of(-1, tile=(32, 64))
    assert [(row["arguments"], row["ms"], row["planned"]) for row in rows] == [
        ("tile=(32, 64)", 0.9, False), ("as planned", 1.0, True),
    ]  # fmt: skip
    assert rows[1]["tile"] == [64, 64]
    assert rows[0]["relative"] == 0.9
    assert all(row["ok"] and row["error"] < 1e-5 and row["stages"] is None for row in rows)


def test_bench_tiles_puts_what_is_wrong_last(monkeypatch):
    from maskc.lab import bench as module

    whole = module.judged_forward
    seen = []

    def judged(*given):
        seen.append(whole(*given))
        return seen[-1] if len(seen) == 1 else CaseVerdict(1.0, False)

    monkeypatch.setattr(module, "judged_forward", judged)
    rows = rows_of(-1, tile=(32, 64))
    assert [(row["planned"], row["ok"]) for row in rows] == [(True, True), (False, False)]


def test_the_command_line_compiles_and_explains_named_tiles():
    text = maskc("explain", "--expr", "causal()", "--target", "sm_90a", "--tile", "128x96",
                 "--stages", 3).stdout  # fmt: skip
    assert all(said in text for said in ("tiles of 128 x 96", "3 stages", "as the caller set it"))
    answer = maskc_json("compile", "--expr", "causal()", *SMALL, "--tile", "32x128")
    assert answer["patterns"][0]["tile"] == [32, 128]


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--tile", "64"), "'64' is not a tile, such as 128x64", 2),
        (("--tile", "48x64"), "MC490 tile  cpu has no forward kernel", 1),
        (("--stages", "3"), "MC490 stages  cpu has no forward kernel", 1),
    ],
)
def test_the_command_line_refuses(words, said, code):
    assert said in maskc("explain", "--expr", "causal()", *SMALL, *words, code=code).stderr


def test_bench_tiles_prints_a_table():
    text = maskc("bench", "--expr", "causal()", *SMALL, "--repeats", 1, "--tiles", "--tile",
                 "32x64").stdout  # fmt: skip
    assert all(said in text for said in ("64 x 64, as planned", "32 x 64"))
    answer = maskc_json("bench", "--expr", "causal()", *SMALL, "--repeats", 1, "--tiles", "--tile",
                       "32x64")  # fmt: skip
    assert {tuple(row["tile"]) for row in answer["rows"]} == {(32, 64), (64, 64)}
    assert all(row["ok"] for row in answer["rows"])
