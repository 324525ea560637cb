"""Single keys that heads choose together: which masks, what is built, what calls refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import errors
from maskc.core.bundle import Bundle, Launch, SourceUnit
from maskc.core.evaluator import evaluate
from maskc.core.forms import GATHER, LISTS, WIDE
from maskc.core.plain import from_text, to_text
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.layout.topk import indexer as G
from maskc.plan.forms.gathered_keys import gathering
from maskc.plan.types import Gathering
from maskc.runtime.device_lists.gathered import _max_alongside, room_for
from maskc.runtime.device_lists.indexer_inputs import Ranking
from tests.support import sass
from tests.support.ledger import build

CAUSAL, TARGET = mc.causal(), TARGETS["sm_90a"]
GIVEN = {"score": "given", "share": "all"}
UNION = mc.topk(9, CAUSAL - mc.sinks(3), **GIVEN) | (mc.sinks(3) & CAUSAL) | mc.window(5)
INDEXED = mc.topk(9, CAUSAL, score="indexer", share="all")


@cache
def bundle(
    mask: mc.Mask, dim: int = 128, dtype: str = "bfloat16", target: str = "sm_90a"
) -> Bundle:
    problem = driver.problem(dim, None, None, dtype)
    return driver.emit_bundle(driver.plan_kernel(mask, problem, TARGETS[target]))


def unit(
    mask: mc.Mask, form: str, dim: int = 128, dtype: str = "bfloat16", backward: bool = False,
    target: str = "sm_90a",
) -> SourceUnit:  # fmt: skip
    passes = (Direction.backward,) if backward else (Direction.forward,)
    return next(
        each for each in bundle(mask, dim, dtype, target).units
        if each.form == form and each.directions in ((), passes)
    )  # fmt: skip


# ------------------------------------------------------------------ which masks

MASKS = {
    "alone": mc.topk(9, CAUSAL, **GIVEN),
    "union": UNION,
    "without": CAUSAL - mc.topk(9, CAUSAL, **GIVEN),
    "xor": mc.window(30) ^ mc.topk(9, mc.full(), **GIVEN),
    "parameter": mc.topk(9, CAUSAL, **GIVEN) | mc.window(mc.param("w", 7)),
}


def made(mask: mc.Mask) -> Gathering:
    found = gathering((driver.lowered(mask, 0),))
    assert isinstance(found, Gathering), found
    return found


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [(12, 12), (5, 20), (20, 7)])
def test_parts_are_the_mask(name, size):
    """Return what is kept of the chosen pairs and of the others, whatever is chosen."""
    mask, (n_q, n_kv) = MASKS[name], size
    scores = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    parts = made(mask)
    constants = {
        f"c{i}": int(evaluate(x, {"n_q": n_q, "n_kv": n_kv})) for i, x in enumerate(parts.constants)
    }
    env = {**constants, "n_q": n_q, "n_kv": n_kv, "q": np.arange(n_q)[:, None],
           "k": np.arange(n_kv)[None]}  # fmt: skip
    allowed, chosen, beside = (
        np.broadcast_to(evaluate(part.lifted.shape, env), size) for part in parts.formulas
    )
    best = np.zeros(size, bool)
    for row in range(n_q):
        order = sorted(np.flatnonzero(allowed[row]), key=lambda k: (-scores[row, k], k))
        best[row, order[:9]] = True
    assert (np.where(best, chosen, beside) == mask.dense(n_q, n_kv, scores=scores)).all()


@pytest.mark.parametrize("name", MASKS)
def test_lists_have_room(name):
    recipe = made(MASKS[name]).recipe
    for n_q, n_kv in [(1, 1), (12, 40), (40, 12), (5, 0)]:
        sizes = Sizes(1, 2, 1, n_q, n_kv)
        beside = _max_alongside(recipe, sizes, {})
        ranking = Ranking({"scores": None}, 1, 1, 1)
        room = room_for(min(9, n_kv), recipe, ranking, sizes, {})
        for seed in range(3):
            scores = np.random.default_rng(seed).standard_normal((n_q, n_kv)).astype(np.float32)
            most = int(MASKS[name].dense(n_q, n_kv, scores=scores).sum(1).max(initial=0))
            assert most <= min(n_kv, 9 + beside) <= room.room


def test_scores_are_kept_for_whole_tiles_of_queries():
    recipe, ranking = made(INDEXED).recipe, Ranking({"index_q": None}, 2, 1, 64)
    for n_kv in (1 << 10, 1 << 17, 1 << 26):
        room = room_for(9, recipe, ranking, Sizes(2, 8, 1, 100_000, n_kv), {})
        assert room.rows == 200_000
        assert room.at_once == 1 or room.at_once * room.pitch * 4 <= G.SCORE_BYTES
        assert room.at_once < 64 or room.at_once % 64 == 0
    assert room_for(9, recipe, ranking, Sizes(2, 8, 1, 70, 128), {}).at_once == 70


REFUSED = {
    "by block_mean": mc.topk(9, CAUSAL, score="block_mean", share="all"),
    "by scores of each head": mc.topk(9, CAUSAL, score="given"),
    "for several queries together": mc.topk(9, CAUSAL, q_block=2, **GIVEN),
    r"that reads data \(doc": mc.topk(9, CAUSAL & mc.documents("doc"), **GIVEN),
    "by several selections": mc.topk(9, CAUSAL, **GIVEN) | INDEXED,
    "not a few intervals": mc.topk(9, CAUSAL, **GIVEN) | (mc.strided(3) & CAUSAL),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("found", REFUSED)
def test_refusals_say_why(found, target):
    with pytest.raises(errors.SelectionNotCompiled, match=f"single keys,? ?.*{found}"):
        REFUSED[found].compile(64, target=target)


@pytest.mark.parametrize("first", [0, 1])
def test_masks_that_differ_by_head(first):
    masks = [mc.topk(9, CAUSAL, **GIVEN), CAUSAL]
    mask = mc.per_head([masks[first], masks[1 - first]])
    with pytest.raises(errors.SelectionNotCompiled, match="differ by head"):
        mask.compile(64, n_heads=2, target="sm_90a")


def test_an_indexer_chooses_for_all_heads_whoever_shares():
    for share in ("head", "group", "all"):
        mask = mc.topk(9, CAUSAL, score="indexer", share=share)
        assert mask.compile(64, target="sm_90a").unit.form == GATHER


def test_the_report_speaks_of_padding():
    text = INDEXED.compile(64, target="sm_90a").explain()
    assert "padding" in text
    assert "64-bit integers" in text


def test_bundles_survive_being_written():
    for mask in (UNION, INDEXED, MASKS["parameter"]):
        for target in ("sm_80", "sm_90a"):
            made_of = bundle(mask, target=target)
            assert from_text(to_text(made_of)) == made_of


# ------------------------------------------------------------------ what is built

NONE = frozenset()
SINGLE = [frozenset({f}) for f in (Feature.softcap, Feature.alibi, Feature.sinks)]
ALL = frozenset().union(*SINGLE)
DIMS = {128: [NONE, *SINGLE, ALL], 64: [NONE, ALL], 96: [NONE], 192: [NONE], 256: [NONE, ALL]}


WITH_PRODUCTS = ("attention_forward", "attention_backward", "gather_scores")


def gate(source: SourceUnit, features=NONE, mode: str = "default") -> None:
    """No spills, no remark, threads that fit, and products that do not wait for each other."""
    binary = build(source, features, source.directions, mode=mode)
    report, launches = binary.report, source.mode(mode).launches
    assert "C75" not in report.log
    assert not report.spills()
    kernels = {kernel.name: kernel for kernel in report.kernels}
    for launch in launches:
        kernel = kernels[launch.entry]
        assert launch.resident * kernel.registers * launch.threads <= 65536
        shared = launch.resident * (kernel.shared + launch.shared_bytes + 1024) - 1024
        assert shared <= TARGET.shared_memory
    if sass.disassembler() is None:
        return
    assert not binary.count("LDL") + binary.count("STL")
    for entry in kernels:
        products = binary.count("[HQ]GMMA", entry)  # of two bytes, of one
        assert (products > 0) == (entry in WITH_PRODUCTS)
        assert 2 * binary.count(r"WARPGROUP\.ARRIVE", entry) <= products


@pytest.mark.parametrize("form", [GATHER, WIDE])
@pytest.mark.parametrize("dim", DIMS)
def test_forward_passes_compile(form, dim):
    for features in DIMS[dim]:
        gate(unit(INDEXED, form, dim, "float16" if dim == 192 else "bfloat16"), features)


@pytest.mark.parametrize("dim", DIMS)
def test_backward_passes_compile(dim):
    source = unit(INDEXED, GATHER, dim, "float16" if dim == 192 else "bfloat16", backward=True)
    for features in DIMS[dim]:
        wanted = features - {Feature.alibi} if dim == 256 else features
        for mode, _ in source.modes if features in (NONE, ALL) else source.modes[:1]:
            gate(source, wanted, mode)


@pytest.mark.xfail(strict=True, reason="spills 68 bytes")
def test_alibi_in_a_backward_pass_at_256():
    gate(unit(INDEXED, GATHER, 256, backward=True), frozenset({Feature.alibi}))


@pytest.mark.parametrize("mask", [UNION, INDEXED], ids=["given", "indexed"])
def test_what_makes_lists_compiles(mask):
    source = unit(mask, LISTS)
    for mode, _ in source.modes:
        gate(source, mode=mode)


def gate_below_hopper(
    source: SourceUnit, arch: str, features=NONE, mode: str = "default", spilled: int = 0
) -> None:
    """No spills but of so many bytes, threads that fit, and shared memory that every card has."""
    kernels = {
        kernel.name: kernel
        for kernel in build(source, features, source.directions, arch, mode).report.kernels
    }
    for launch in source.mode(mode).launches:
        kernel = kernels[launch.entry]
        assert kernel.spill_stores <= spilled
        assert spilled or not kernel.stack
        assert launch.resident * kernel.registers * launch.threads <= 65536
        assert kernel.shared + launch.shared_bytes <= TARGETS["sm_80"].shared_memory


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dim", [32, *DIMS])
def test_sources_below_hopper_compile(dim, arch):
    kind = "float16" if dim in (32, 192) else "bfloat16"
    source = unit(INDEXED, GATHER, dim, kind, target="sm_80")
    for features in (NONE, *SINGLE, ALL, ALL | {Feature.nan_safe}):
        gate_below_hopper(source, arch, features)
    source = unit(INDEXED, GATHER, dim, kind, target="sm_80", backward=True)
    for features in (NONE, *SINGLE, ALL):
        # Distances of keys that lie anywhere need registers that are not there, and at 256 little
        # else fits: 108 bytes at most, and 8 more in one case.
        spilled = 108 if Feature.alibi in features else 8 if dim == 256 else 0
        if (dim, arch, features) == (128, "sm_90", ALL):
            spilled = 116
        for mode, _ in source.modes:
            gate_below_hopper(source, arch, features, mode, spilled)
    if dim == 64:
        for mask in (UNION, INDEXED):
            lists = unit(mask, LISTS, dim, target="sm_80")
            for mode, _ in lists.modes:
                gate_below_hopper(lists, arch, mode=mode)


def _has_size(launch: Launch) -> str:
    name = "Choice" if launch.entry == "gather_lists" else "Shared"
    size, limit = f"sizeof(struct {name})", launch.shared_bytes
    return (
        f'static_assert({size} <= {limit}, "too small");\n'
        f'static_assert({size} > {limit} - 2048, "too large");\n'
    )


@pytest.mark.parametrize(
    ("form", "backward"), [(GATHER, False), (WIDE, False), (LISTS, False), (GATHER, True)]
)
def test_planned_shared_memory_is_what_the_source_uses(form, backward):
    targets = {"sm_90a": "compute_90a"} | ({} if form == WIDE else {"sm_80": "compute_80"})
    for dim, (target, arch) in product((64, 96, 256), targets.items()):
        source = unit(INDEXED, form, dim, backward=backward, target=target)
        for mode, how in source.modes:
            asked = "".join(_has_size(launch) for launch in how.launches if launch.shared_bytes)
            extended = replace(source, text=source.source + asked)
            build(extended, NONE, source.directions, arch=arch, mode=mode)


def test_heads_of_a_query_decide_nothing_of_a_mask():
    """Masks that differ in constants share all sources."""
    other = mc.topk(700, CAUSAL - mc.sinks(4), **GIVEN) | (mc.sinks(4) & CAUSAL) | mc.window(99)
    left, right = bundle(UNION), bundle(other)
    assert [u.digest for u in left.units] == [u.digest for u in right.units]
