"""The `calibration` suite: each source of a target in each of its modes, on masks whose tiles tell
its coefficients apart; see benchmarks/fitting.py for what is made of the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

from benchmarks.contest import Ask, Contest, Measured
from maskc.build.toolchain import gpus
from maskc.core.bundle import APART, SourceUnit
from maskc.core.coefficients import card_of, source_name
from maskc.core.cost import Cost
from maskc.core.dtypes import DType
from maskc.core.errors import UsageMistake
from maskc.core.forms import TINY
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.dsl.combinators import block_diagonal, causal, full, sinks, window
from maskc.dsl.mask import Mask
from maskc.lab.pairs import Pairs
from maskc.lab.rivals import Contender
from maskc.layout import build
from maskc.layout.work.tile_counts import tally_of
from maskc.plan.predict import launches_of
from maskc.runtime.compiled import CompiledMask
from maskc.verify.case import Case
from maskc.verify.judge import sample_rows
from maskc.verify.tensors import Tensors, make_tensors

_MODES = ("usual", "stream", APART)
"""Modes whose coefficients are fitted."""


@dataclass(frozen=True)
class Probe:
    """A mask at a length, with enough heads to keep a card busy."""

    name: str
    mask: Callable[[], Mask]
    heads: int
    n: int
    tiny: bool = False
    """Whether rows see so few keys that only tiny tiles are of interest."""


PROBES = (
    *(Probe(f"window{w}_16k", lambda w=w: window.hf(w), 8, 16384) for w in (128, 256, 512, 1024)),
    Probe("streaming_64_512_16k", lambda: causal() & (sinks(64) | window.hf(512)), 8, 16384),
    Probe("causal_1k", causal, 128, 1024),
    Probe("causal_4k", causal, 32, 4096),
    Probe("full_1k", full, 128, 1024),
    Probe("full_4k", full, 16, 4096),
    *(Probe(f"blocks{b}_16k", lambda b=b: block_diagonal(b), 16, 16384, True) for b in (8, 16, 32)),
    *(Probe(f"blocks{b}_2k", lambda b=b: block_diagonal(b), 16, 2048, True) for b in (8, 32)),
    *(Probe(f"window{w}_16k", lambda w=w: window.hf(w), 16, 16384, True) for w in (8, 17, 40)),
)
"""Rows of few tiles and of many, tiles that are mostly masked and tiles that never are; and rows of
a few keys."""


def units(
    target: Target, only: tuple[str, ...], ask: Ask
) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """(name, what measures it) for each probe at each head dimension.

    Args:
        only: shell patterns of names; empty is all.

    Raises:
        UsageMistake: the target has no coefficients.
    """
    if card_of(target.name) is None:
        found = f"target {target.name} has no cost model"
        raise UsageMistake(found, "run this where a Hopper GPU is: sm_90a has one", at="--target")
    for dim in target.head_dims:
        for probe in PROBES:
            name = f"{probe.name}_d{dim}"
            if not only or any(fnmatchcase(name, shape) for shape in only):
                case = Case(
                    name, probe.mask(), 1, probe.heads, probe.heads, probe.n, probe.n, dim,
                    DType.bfloat16,
                )  # fmt: skip
                yield name, partial(_measured, case, ask, probe.tiny)


def _measured(case: Case, ask: Ask, tiny: bool) -> Measured:
    """Rows of a case, one per source and mode, each with its work."""
    import torch

    result = Measured()
    attn = case.compile(ask.target.name)
    tensors = make_tensors(case, "cuda")
    rows = sample_rows(case.n_q, case.n_kv)
    contest = Contest(case, ask, tensors, Pairs(case), rows, result)
    forced = list(sources(attn.bundle.units, ask.target.name, tiny))
    contenders = [_contender(attn, unit, mode, tensors) for unit, mode in forced]
    contest.check(contenders)
    contest.time(contenders)
    works = {variant(unit, mode): work_of(case, attn, unit, mode) for unit, mode in forced}
    for row in result.rows:
        row["work"] = works[row["variant"]]
    result.about = {
        "mask": str(case.mask),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "bytes_per_cycle": round(gpus()[0].bytes_per_cycle, 1),
    }  # fmt: skip
    return result


def sources(
    found: tuple[SourceUnit, ...], target: str, tiny: bool = False
) -> Iterator[tuple[SourceUnit, str]]:  # fmt: skip
    """(source, mode) of all whose coefficients are fitted, in tiny tiles or in others."""
    for unit in found:
        fitted = unit.directions and unit.boxes is None and (unit.form == TINY) == tiny
        if unit.target == target and fitted:
            for mode, _ in unit.modes:
                if mode in _MODES:
                    yield unit, mode


def variant(unit: SourceUnit, mode: str) -> str:
    """`large stream`, `small usual`, `backward usual`, ..."""
    return f"{source_name(unit.directions[0], unit.form)} {mode}"


def forced(attn: CompiledMask, unit: SourceUnit, mode: str) -> CompiledMask:
    """The mask made to run one source in one mode, rows whole."""
    main = attn.bundle.units[0] if Direction.backward in unit.directions else unit
    only = replace(unit, costs=(Cost(mode, 1, 0, 0),))
    if only.work is not None:
        only = replace(only, work=replace(only.work, uneven_tiles=0))
    kept = (only,) if main is unit else (main, only)
    bundle = replace(attn.bundle, units=kept, parts=())
    return CompiledMask(bundle, unit.target, held=attn.held)


def _contender(attn: CompiledMask, unit: SourceUnit, mode: str, tensors: Tensors) -> Contender:
    made, inputs = forced(attn, unit, mode), tensors.qkv

    def forward() -> Any:
        return made(*inputs, return_lse=True)

    kept = cache(forward)

    def gradient(dout: Any) -> tuple[Any, ...]:
        return made.backward(*inputs, *kept(), dout)

    backward = Direction.backward in unit.directions
    return Contender(
        "maskc", None if backward else forward, gradient if backward else None,
        variant=variant(unit, mode), sources=lambda: made.last_sources, attended=kept,
    )  # fmt: skip


def work_of(case: Case, attn: CompiledMask, unit: SourceUnit, mode: str) -> dict[str, Any]:
    """What a pass does: tile rows, tiles and masked tiles of all heads, and launches."""
    layout = build(attn.bundle.variants[0].recipe(unit.tile), case.n_q, case.n_kv, {}, {})
    tally = tally_of([layout], unit.directions[0])
    owners = case.batch * case.heads
    return {
        "source": source_name(unit.directions[0], unit.form), "head_dim": case.head_dim,
        "mode": mode,
        "rows": owners * tally.rows, "tiles": owners * tally.tiles,
        "masked": owners * tally.masked, "launches": launches_of(unit.mode(mode)),
    }  # fmt: skip
