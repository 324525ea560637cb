"""One mask on one machine: maskc and its rivals, checked and timed in the same run."""

from __future__ import annotations

import gc
from dataclasses import replace
from time import perf_counter
from typing import Any

from benchmarks.chosen import ChosenPairs
from benchmarks.contest import Ask, Contest, Measured
from benchmarks.report import reason
from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.errors import MaskcError
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.lab.bench import short
from maskc.lab.case_pairs import CasePairs
from maskc.plan.cost import layout_at
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan, PlannedMask
from maskc.runtime.compiled import CompiledMask
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, device_of, has_torch, make_tensors
from maskc.verify.judge import sample_rows

DIRECTIONS = {"fwd": Direction.forward, "bwd": Direction.backward}


# ------------------------------------------------------------------ one case


def bench_case(case: Case, ask: Ask) -> Measured:
    """Measure one case; implementations that cannot run it become notes or rows that say so.

    Raises:
        MaskcError: maskc itself refuses the case, unless rivals are wanted anyway.
    """
    result, device = Measured(), device_of(ask.target)
    ask.progress(f"{case.name}: compiling for {ask.target.name}")
    attn, compile_ms, refused = None, None, None
    try:
        attn, compile_ms = _compiled(case, ask)
    except Exception as error:
        if not ask.rivals_anyway:
            raise
        refused = error
    if not ask.rivals_anyway:
        ask = replace(ask, directions=_offered(case, ask, result))
    ask.progress(f"{case.name}: counting and checking")
    _fresh(ask)
    rows = sample_rows(case.n_q, case.n_kv)
    tensors = make_tensors(case, device)
    contest = Contest(case, ask, tensors, pairs_of(case, tensors), rows, result)
    contest.of_maskc |= {} if compile_ms is None else {"compile_ms": short(compile_ms)}
    contest.of_maskc |= _tile_pairs(attn, contest)
    if attn is not None and case.alpha == 1:
        contest.predicted = predicted_ms(case, attn, ask.target)
    result.about |= _about(contest)
    if refused is not None and "maskc" in ask.impls:
        for direction in ask.directions:
            contest.broke(("maskc", ""), direction, reason(refused))
    contenders = contest.contenders(attn)
    contest.check(contenders)
    allowed = contest.judge().allowed
    result.about["allowed"] = {part: short(x) for part, x in allowed.items()}
    contest.time(contenders)
    del contenders, contest
    _free(device)
    return result


def pairs_of(case: Case, tensors: CaseTensors) -> CasePairs | ChosenPairs:
    """The live pairs of a case; tensors decide them where the mask chooses at run time."""
    return ChosenPairs(case, tensors) if driver.selects(case.mask) else CasePairs(case)


def _compiled(case: Case, ask: Ask) -> tuple[CompiledMask, float]:
    """The mask, built and loaded, and the milliseconds it took (or took where it was built)."""
    start = perf_counter()
    attn = case.warm(ask.target.name)
    here = (perf_counter() - start) * 1e3
    return attn, here if ask.compile_ms is None else ask.compile_ms


def _offered(case: Case, ask: Ask, result: Measured) -> tuple[str, ...]:
    """The directions that the target has kernels for."""
    found = tuple(d for d in ask.directions if DIRECTIONS[d] in ask.target.directions)
    for left_out in sorted(set(ask.directions) - set(found)):
        text = f"{case.name} {left_out}: target {ask.target.name} has no such kernels"
        result.notes.append(text)
    return found


def _tile_pairs(attn: CompiledMask | None, contest: Contest) -> dict[str, Any]:
    """Pairs in the tiles the kernel visits, where all heads and sequences visit the same."""
    case, pairs = contest.case, contest.pairs
    if attn is None or pairs.batched or pairs.by_head:
        return {}
    try:
        tiles = attn.layout(case.n_q, case.n_kv, **case.data)
    except MaskcError as error:
        contest.note("maskc", f"its tiles were not counted: {reason(error)}")
        return {}
    each = int(tiles.nnz) * int(tiles.tile.q) * int(tiles.tile.k)
    return {"tile_pairs": each * case.batch * case.heads}


def _about(contest: Contest) -> dict[str, Any]:
    case, live = contest.case, contest.live
    everything = case.batch * case.heads * case.n_q * case.n_kv
    checked = (
        f"{len(contest.rows)} of {case.n_q} query rows on every head against fp64, gradients from "
        f"those rows; live keys from {contest.pairs.source}"
    )
    if (heads := contest.heads()) is not None:
        checked += f"; everything on {heads.number} whole heads"
    found = {
        "mask": str(case.mask), "batch": case.batch, "heads": case.heads,
        "kv_heads": case.kv_heads, "n_q": case.n_q, "n_kv": case.n_kv, "head_dim": case.head_dim,
        "head_dim_v": case.width_v,
        "dtype": case.dtype.value, "live_pairs": live,
        "live_share": short(live / everything) if everything else 0.0, "checked": checked,
    }  # fmt: skip
    found |= {"alpha": case.alpha} if case.alpha > 1 else {}
    tiles = contest.of_maskc.get("tile_pairs")
    return found | ({} if tiles is None else {"tile_pairs": tiles})


def _fresh(ask: Ask) -> None:
    """FlexAttention compiles a function per case and would stop after a few."""
    if has_torch() and any(impl.startswith("flex") for impl in ask.impls):
        from maskc.lab.rivals import start_anew

        start_anew()


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


# ------------------------------------------------------------------ predictions


def predicted_ms(case: Case, attn: CompiledMask, target: Target) -> dict[str, float]:
    """Milliseconds by direction, of the card that coefficients are of; none where there are none,
    or the mask chooses at run time.

    Data count as those of the first sequence.
    """
    if card_of(target.name) is None or driver.selects(case.mask):
        return {}

    def tiles(plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int) -> BlockLayout:
        if not case.data:
            return layout_at(plan, mask, n_q, n_kv)
        number = next(i for i, each in enumerate(plan.masks) if each is mask)
        head = plan.of_head.index(number) if plan.of_head else 0
        block = (plan.tile.q, plan.tile.k)
        return attn.layout(n_q, n_kv, block=block, head=head, batch=0, **case.data)

    owners = case.batch * case.heads
    try:
        plan = driver.plan_kernel(case.mask, attn.bundle.problem, target)
        found = {
            name: milliseconds(plan, direction, case.n_q, case.n_kv, owners, tiles)
            for name, direction in DIRECTIONS.items()
        }
    except MaskcError:  # tables too large to count: nothing is predicted
        return {}
    return {name: ms for name, ms in found.items() if ms is not None}
