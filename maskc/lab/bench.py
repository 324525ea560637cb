"""Time one mask against dense and masked attention of PyTorch, and check every result.

Comparisons with more libraries, suites of masks and the cost model's fit are in the folder
`benchmarks/` of a checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc import driver
from maskc.core.errors import UsageMistake
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.lab.case_pairs import CasePairs
from maskc.lab.rivals import RIVALS, Contender, Unavailable, boolean_mask, make_rival
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, device_of, has_torch, make_tensors
from maskc.verify.judge import (
    CaseVerdict,
    Judge,
    judged_backward,
    judged_forward,
    make_judge,
    sample_rows,
)
from maskc.verify.samples import true_mask
from maskc.verify.timing import Timed, peak_bytes, take_turns

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_RANKED_PAIRS = 1 << 28
"""Pairs up to which the reference ranks keys that are chosen at run time."""

Row = dict[str, Any]
Keep = Callable[[int, int, np.ndarray], np.ndarray]
"""(batch, head, rows) -> bool [rows, n_kv]."""


def bench_mask(
    case: Case, target: Target, directions: tuple[str, ...] = ("fwd", "bwd"), repeats: int = 20,
    progress: Callable[[str], object] = lambda text: None, *, nvtx: bool = False,
    without: Collection[str] = (),
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """Time a mask and check it.

    Args:
        case: mask, sizes, dtype and data.
        target: what the mask is compiled for; it decides where everything runs.
        directions: among "fwd" and "bwd"; a direction that the target lacks is left out.
        repeats: rounds of the timing; 0 checks the mask and times nothing. Then ms, live_tflops,
            tokens_per_s and peak_bytes are None, and rivals are left out.
        progress: told, in a few words, what happens next.
        nvtx: mark the calls of each implementation as ranges for profilers, where PyTorch has CUDA.
        without: rivals to leave out.

    Returns:
        (rows, notes). A row has case, impl, direction, n_q, n_kv, pairs (live ones of the whole
        call) and ms [ms per call]. It also has live_tflops (live pairs, for every implementation),
        tokens_per_s (queries of all sequences) and peak_bytes (see `peak_bytes`; None if unknown).
        error is the largest of sampled rows against fp64, and ok the verdict. Notes say what was
        left out, and why.

    Raises:
        MaskcError: the mask, its data or the sizes are refused.
    """
    notes: list[str] = []
    progress(f"{case.name}: compiling for {target.name}")
    attn = case.warm(target.name)
    tensors, rows = make_tensors(case, device_of(target)), sample_rows(case.n_q, case.n_kv)
    progress(f"{case.name}: counting pairs")
    pairs = None if driver.selects(case.mask) else CasePairs(case)
    keep, live = keep_and_live(case, tensors, pairs)
    table: list[Row] = []
    if "bwd" in directions and Direction.backward not in target.directions:
        notes.append(f"{case.name} bwd: target {target.name} has no such kernels")
        directions = tuple(direction for direction in directions if direction != "bwd")
    runners = [_maskc(case, tensors, attn, "bwd" in directions)]
    if repeats:
        runners += _rivals(case, tensors, pairs, "bwd" in directions, notes, frozenset(without))
    if nvtx and (why := _no_ranges()):
        nvtx = False
        notes.append(f"{case.name}, nvtx: {why}")
    everything = np.ones((len(rows), case.n_kv), dtype=bool)

    @cache
    def judge(keeps_all: bool) -> Judge:
        seen = (lambda b, h: everything) if keeps_all else (lambda b, h: keep(b, h, rows))
        return make_judge(case, tensors, rows, seen, "bwd" in directions)

    for direction in directions:
        progress(f"{case.name}: checking and timing {direction}")
        checked = {}
        for runner in runners:
            if not runner.runs(direction):
                notes.append(f"{case.name}, {runner.impl}: it has no backward here")
                continue
            try:
                verdict = _judged(judge(runner.keeps_all), tensors, rows, runner, direction)
            except Exception as error:  # whatever a rival raises is its own failure
                if runner.impl == "maskc":
                    raise
                notes.append(f"{case.name}, {runner.impl}: {direction} raised {_reason(error)}")
                continue
            checked[runner.impl] = runner, verdict
        timed = {}
        for name, (runner, _) in checked.items() if repeats else ():
            scope = partial(_range, case, runner, direction) if nvtx else runner.scope
            timed[name] = Timed(runner.call(direction, tensors.dout), scope)
        peaks = {name: peak_bytes(rival.run, tensors.device) for name, rival in timed.items()}
        times = take_turns(timed, repeats, tensors.device) if repeats else {}
        for name, (_, verdict) in checked.items():
            finite = bool(np.isfinite(verdict.error))
            table.append({
                "case": case.name, "impl": name, "direction": direction, "n_q": case.n_q,
                "n_kv": case.n_kv, "pairs": live,
                **_speeds(case, direction, live, times.get(name)), "peak_bytes": peaks.get(name),
                "error": short(verdict.error) if finite else None, "ok": verdict.ok,
            })  # fmt: skip
    return table, notes


def _speeds(case: Case, direction: str, live: int, ms: float | None) -> Row:
    """Return the speed columns for milliseconds per call; None stands for an untimed call."""
    if ms is None:
        return {"ms": None, "live_tflops": None, "tokens_per_s": None}
    return {
        "ms": short(ms), "live_tflops": short(case.flops(live, direction) / ms / 1e9),
        "tokens_per_s": short(case.batch * case.n_q / ms * 1e3),
    }  # fmt: skip


def keep_and_live(
    case: Case, tensors: CaseTensors, pairs: CasePairs | None = None
) -> tuple[Keep, int]:
    """Which pairs the mask keeps, row by row, and how many of the whole call.

    Raises:
        UsageMistake: ranking keys in the reference would take minutes.
    """
    if driver.selects(case.mask):
        return _chosen(case, tensors)
    pairs = pairs or CasePairs(case)
    return pairs.rows, pairs.live()


def short(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _chosen(case: Case, tensors: CaseTensors) -> tuple[Keep, int]:
    """The mask of keys that are chosen at run time, by the reference, and its pairs.

    Raises:
        UsageMistake: ranking in the reference would take minutes.
    """
    pairs = case.batch * case.heads * case.n_q * case.n_kv
    if pairs > _RANKED_PAIRS:
        hint = "give a smaller --n, --heads or --batch"
        raise UsageMistake(f"a choice among {pairs} pairs takes too long to check", hint, at="--n")
    kept = true_mask(case, tensors).reshape(-1, case.heads, case.n_q, case.n_kv)
    whole = np.broadcast_to(kept, (case.batch, *kept.shape[1:]))
    return lambda b, h, rows: whole[b, h][rows], int(np.count_nonzero(whole))


def _judged(
    judge: Judge, tensors: CaseTensors, rows: np.ndarray, runner: Contender, direction: str
) -> CaseVerdict:
    with runner.scope():
        result = runner.call("fwd", None)()
        if direction == "fwd" or runner.backward is None:
            return judged_forward(judge, rows, result)
        out = result[0] if isinstance(result, tuple) else result
        return judged_backward(judge, rows, tensors, runner.backward, out)


def _no_ranges() -> str:
    """Why no NVTX range can be marked; nothing where it can."""
    if not has_torch():
        return "PyTorch, which marks ranges, is not installed"
    import torch

    return "" if torch.cuda.is_available() else "PyTorch has no GPU here, so no range is marked"


@contextmanager
def _range(case: Case, runner: Contender, direction: str) -> Iterator[None]:
    """A range around the calls of one implementation, as profilers show it."""
    import torch

    text = f"{case.name} {case.n_q}x{case.n_kv} {direction} {runner.impl}"
    with runner.scope(), torch.cuda.nvtx.range(text):
        yield


# ------------------------------------------------------------------ what runs


def _maskc(case: Case, tensors: CaseTensors, attn: CompiledMask, backward: bool) -> Contender:
    data: dict[str, Any] = dict(case.data)
    call = partial(attn, *tensors.qkv, return_lse=True, **data)
    kept = cache(call)

    def gradient(dout: Any) -> tuple[Any, ...]:
        out, lse = kept()
        gradients: tuple[Any, ...] = attn.backward(*tensors.qkv, out, lse, dout, **data)
        return gradients

    return Contender("maskc", call, gradient if backward else None)


def _rivals(
    case: Case, tensors: CaseTensors, pairs: CasePairs | None, backward: bool, notes: list[str],
    without: Collection[str],
) -> Iterator[Contender]:  # fmt: skip
    """The RIVALS that can run the case; the others become notes."""
    if not has_torch():
        notes.append(f"{case.name}, rivals: PyTorch is not installed")
        return
    known = RIVALS if pairs is not None else ("dense",)
    table = None if pairs is None else boolean_mask(case, tensors, pairs)
    for name in known:
        if name in without:
            continue
        try:
            yield make_rival(name, case, tensors, pairs, table, backward)
        except Unavailable as why:
            notes.append(f"{case.name}, {name}: {why}")
        except Exception as error:  # its compiler may be missing, or refuse
            notes.append(f"{case.name}, {name}: {_reason(error)}")
    if pairs is None:
        notes.append(f"{case.name}, rivals but dense: keys are chosen at run time")


# ------------------------------------------------------------------ every tile of a target


@dataclass(frozen=True)
class Way:
    """A tile and a number of stages, or what the planner chooses."""

    tile: tuple[int, int]
    stages: int | None
    planned: bool = False
    """Whether it is the planner's choice, with all the sources that a call chooses between."""

    @property
    def text(self) -> str:
        """The arguments of `compile`."""
        if self.planned:
            return "as planned"
        stages = "" if self.stages is None else f", stages={self.stages}"
        return f"tile=({self.tile[0]}, {self.tile[1]}){stages}"


def bench_tiles(
    case: Case, target: Target, repeats: int = 20,
    progress: Callable[[str], object] = lambda text: None,
    turns: Callable[..., dict[Way, float]] = take_turns,
) -> list[Row]:  # fmt: skip
    """Time a mask's forward pass in all tiles, alternately, and check each.

    Args:
        case: mask, sizes, dtype and data; a tile or stages in it leave only ways that have these.
        target: what the mask is compiled for; it decides where everything runs.
        repeats: rounds of the timing, at least 1.
        progress: told, in a few words, what happens next.
        turns: what times them, see `take_turns`.

    Returns:
        Rows, the fastest correct one first. A row has its case, tile (queries and keys) and stages
            (None if the kernels have none). `planned` marks the planner's choice, and `arguments`
            are those of `compile`. `ms` is the time of a call, `relative` its ratio to the
            planner's choice. `error` is the largest of sampled rows against fp64, `ok` the verdict.

    Raises:
        MaskcError: the mask, its data or the sizes are refused.
    """
    planned = replace(case, tile=None, stages=None)
    first = planned.compile(target.name)
    tile = first.bundle.units[0].tile
    named = case.head_dim, case.head_dim_v, None, case.dtype, None, case.tile, case.stages
    choices = driver.tile_choices(driver.problem(*named), first.target)
    made = {Way((tile.q, tile.k), None, planned=True): first}
    for way in (Way((x.tile.q, x.tile.k), x.stages) for x in choices if x.tile):
        progress(f"{case.name}: building {way.text}")
        made[way] = replace(case, tile=way.tile, stages=way.stages).warm(target.name)
    tensors, rows = make_tensors(case, device_of(target)), sample_rows(case.n_q, case.n_kv)
    progress(f"{case.name}: counting pairs")
    keep, _ = keep_and_live(case, tensors)
    judge = make_judge(case, tensors, rows, lambda b, h: keep(b, h, rows), False)
    calls = {
        way: partial(attn, *tensors.qkv, return_lse=True, **case.data) for way, attn in made.items()
    }
    verdicts = {way: judged_forward(judge, rows, call()) for way, call in calls.items()}
    progress(f"{case.name}: timing {len(calls)} tiles")
    times = turns({way: Timed(call) for way, call in calls.items()}, repeats, tensors.device)
    planned_ms = next(ms for way, ms in times.items() if way.planned)
    table = [
        {
            "case": case.name, "tile": list(way.tile), "stages": way.stages,
            "planned": way.planned, "arguments": way.text, "ms": short(ms),
            "relative": short(ms / planned_ms), "error": short(verdicts[way].error),
            "ok": verdicts[way].ok,
        }
        for way, ms in times.items()
    ]  # fmt: skip
    return sorted(table, key=lambda row: (not row["ok"], row["ms"]))
