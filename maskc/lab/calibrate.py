"""`maskc calibrate`: the cost model's coefficients, measured on the card of this machine.

Every kernel of a few masks is timed in every mode. The masks have rows of few tiles and of many,
tiles that are mostly masked and tiles that never are, so that their times tell the coefficients
apart; see maskc/lab/fitting.py for the fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from maskc.core.bundle import (
    DEFAULT,
    EXCLUSIVE_DQ,
    INTERLEAVED,
    PACK_GQA,
    SEPARATE_DQ,
    SourceUnit,
)
from maskc.core.coefficients import Gpu, Tables, card_of, source_name
from maskc.core.cost import Cost, Items, Tally, stretch_of
from maskc.core.errors import NoDevice, not_imported
from maskc.core.forms import TINY
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.dsl.combinators import (
    block_diagonal,
    causal,
    full,
    global_tokens,
    sinks,
    window,
)
from maskc.dsl.mask import Mask
from maskc.dsl.tracer import where
from maskc.lab.fitting import GHZ, Fit, Sample, fits
from maskc.layout import build, load_of
from maskc.layout.work.tile_counts import Adders, adders_of, tally_of
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.device import first_card, runs
from maskc.verify.timing import Timed, take_turns

TARGET = "sm_90a"
"""The target that has several programs for a pass, so that a cost model chooses."""
HEAD_DIMS = (32, 64, 96, 128)
"""Head dimensions with more than one source; others have no choice to make."""
_ROUNDS, _SECONDS = 10, 0.04
"""Rounds of the timing, and seconds for one program in all rounds."""


@dataclass(frozen=True)
class CalibrationProbe:
    """A mask at sizes that keep a card busy."""

    name: str
    mask: Callable[[], Mask]
    heads: int
    n_q: int
    n_kv: int
    batch: int = 1


_IMAGE = where(lambda q, k: (abs(q // 64 - k // 64) <= 6) & (abs(q % 64 - k % 64) <= 6))
"""Windows of 13 x 13 on an image of 64 columns: partial tiles test every pair."""

PROBES = (
    CalibrationProbe("causal_512", causal, 16, 512, 512, batch=32),
    CalibrationProbe("causal_4k", causal, 16, 4096, 4096, batch=2),
    CalibrationProbe("full_384", full, 8, 384, 384, batch=64),
    CalibrationProbe("full_4k", full, 16, 4096, 4096),
    CalibrationProbe("cross_4k_77", full, 10, 4096, 77, batch=8),
    CalibrationProbe("cross_1k_256", full, 16, 1024, 256, batch=16),
    *(
        CalibrationProbe(f"window{w}", partial(window.hf, w), 8, 16384, 16384)
        for w in (64, 256, 1024)
    ),
    CalibrationProbe("streaming", lambda: causal() & (sinks(16) | window.hf(256)), 16, 8192, 8192),
    CalibrationProbe("longformer", lambda: window(128, 128) | global_tokens(64), 12, 16384, 16384),
    *(
        CalibrationProbe(f"blocks{b}", partial(block_diagonal, b), 16, 16384, 16384)
        for b in (64, 512)
    ),
    CalibrationProbe("image_13", lambda: _IMAGE, 32, 4096, 4096),
)


@dataclass(frozen=True)
class Calibration:
    """Coefficients of one card."""

    gpu: Gpu
    tables: Tables
    """Numbers by source, head dimension and mode, and the card, in the form of cost.toml."""
    fits: tuple[Fit, ...]


def calibrate(
    target: str = TARGET, head_dims: Iterable[int] = HEAD_DIMS,
    progress: Callable[[str], object] = lambda text: None,
) -> Calibration:  # fmt: skip
    """Measure the coefficients of the cost model on the first visible GPU.

    It takes about a minute with eight CPU cores, most of it for compiling kernels. Nothing else
    should use the GPU meanwhile.

    Args:
        target: the target of the kernels.
        head_dims: the head dimensions to measure.
        progress: receives a line before each step.

    Returns:
        The fitted coefficients; `maskc.runtime.calibrated.remember` stores them.

    Raises:
        NoDevice: there is no GPU that runs the target (MC509).
        ExtraMissing: PyTorch, which times the calls, is not installed (MC507).
    """
    gpu = first_card()
    chosen = Target.named(target)
    if gpu is None:
        raise NoDevice(f"target {target}", "this machine has none")
    if card_of(target) is None or not runs(chosen, 0):
        fault = f"{gpu.name} has one kernel for each pass: no cost model chooses there"
        raise NoDevice(f"target {TARGET}", fault)
    try:
        import torch
    except ImportError as error:
        raise not_imported(error, "maskc calibrate", "torch", "torch") from error

    names = [(probe, dim) for dim in head_dims for probe in PROBES]
    progress(f"compiling the kernels of {len(names)} masks")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        masks = list(pool.map(partial(_compiled, target=target), *zip(*names, strict=True)))
    samples: list[Sample] = []
    for (probe, dim), attn in zip(names, masks, strict=True):
        progress(f"timing {probe.name}, head dimension {dim}")
        samples += _timed(probe, dim, attn)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    fitted = fits(samples, processors)
    return Calibration(gpu, tables_of(fitted, gpu, processors), tuple(fitted))


def _compiled(probe: CalibrationProbe, dim: int, target: str) -> CompiledMask:
    attn = probe.mask().compile(dim, dtype="bfloat16", n_heads=probe.heads, target=target)
    attn.warmup()
    return attn


def _timed(probe: CalibrationProbe, dim: int, attn: CompiledMask) -> Iterator[Sample]:
    """Time every program of a probe, forward and backward."""
    import torch

    shapes = [(probe.heads, probe.n_q), (probe.heads, probe.n_kv), (probe.heads, probe.n_kv)]
    q, k, v = (
        torch.randn(probe.batch, heads, n, dim, device="cuda", dtype=torch.bfloat16)
        for heads, n in shapes
    )
    out, lse = attn(q, k, v, return_lse=True)

    def call(made: CompiledMask, direction: Direction) -> Callable[[], Any]:
        if direction is Direction.forward:
            return lambda: made(q, k, v, return_lse=True)
        return lambda: made.backward(q, k, v, out, lse, out)

    works: dict[str, Sample] = {}
    timed: dict[str, Timed] = {}
    for unit, mode in programs(attn.bundle.units, attn.target.name):
        made = forced(attn, unit, mode)
        run = call(made, unit.directions[0])
        run()
        if made.last_sources[-1] != f"{unit.key} {mode}":
            continue  # this program cannot run this call
        name = f"{unit.key} {mode}"
        works[name] = work_of_probe(probe, attn, unit, mode, dim)
        timed[name] = Timed(run)
    torch.cuda.synchronize()
    times = take_turns(timed, _ROUNDS, "cuda", _SECONDS)
    return (replace(works[name], ms=ms) for name, ms in times.items())


def work_of_probe(
    probe: CalibrationProbe, attn: CompiledMask, unit: SourceUnit, mode: str, dim: int
) -> Sample:
    """Return the work of a program of a probe as a sample without a time."""
    (direction,) = unit.directions
    layout = build(attn.bundle.variants[0].recipe(unit.tile), probe.n_q, probe.n_kv, {}, {})
    heads, stretch = probe.batch * probe.heads, 1.0
    if direction is Direction.backward and unit.work is not None:
        columns = load_of([layout], direction, unit.work, heads, probe.n_q, probe.n_kv)
        stretch = stretch_of_program(unit, mode, columns, adders_of([layout]), heads)
    return work_of(unit, mode, dim, tally_of([layout], direction), heads, stretch)


def stretch_of_program(
    unit: SourceUnit, mode: str, columns: Items | None, adders: Adders | None, heads: float
) -> float:
    """Return the stretch of a backward pass, see `Sample`.

    Args:
        unit, mode: the program.
        columns: its items; None where nobody counted them.
        adders: its tile rows, where items are counted.
        heads: of all sequences, for each list.
    """
    if columns is None or adders is None:
        return 1.0
    rows = adders.items(columns, heads) if mode == SEPARATE_DQ else None
    launches = unit.mode(mode).usual_launches
    resident = max((launch.resident for launch in launches), default=1)
    return stretch_of(unit.costs[0].launch, resident, columns, rows)


def programs(units: Sequence[SourceUnit], target: str) -> Iterator[tuple[SourceUnit, str]]:
    """List (source, mode) of every program that the cost model has coefficients for."""
    for unit in units:
        if unit.target == target and unit.directions and unit.boxes is None and unit.form != TINY:
            for mode, _ in unit.modes:
                if mode in {cost.mode for cost in unit.costs} - {PACK_GQA, EXCLUSIVE_DQ}:
                    yield unit, mode


def forced(attn: CompiledMask, unit: SourceUnit, mode: str) -> CompiledMask:
    """Return the mask made to run one source in one mode, whole."""
    (direction,) = unit.directions
    others = {EXCLUSIVE_DQ, PACK_GQA, INTERLEAVED} - {mode}
    modes = tuple(item for item in unit.modes if item[0] not in others)
    only = replace(unit, modes=modes, costs=(Cost(mode, 1, 0, 0),))
    units: list[SourceUnit] = []
    for other in attn.bundle.units:
        if other.target != unit.target or direction not in other.directions:
            units.append(other)
        elif not any(one is only for one in units):
            units.append(only)
    bundle = replace(attn.bundle, units=tuple(units), parts=())
    return CompiledMask(bundle, unit.target, held=attn.held)


def work_of(
    unit: SourceUnit, mode: str, head_dim: int, tally: Tally, owners: float, stretch: float = 1.0
) -> Sample:
    """Return the work of a program as a sample without a time.

    Args:
        unit, mode: the program.
        head_dim: of the kernel.
        tally: the tiles of one head.
        owners: heads of all sequences.
        stretch: see `Sample`.
    """
    return Sample(
        source_name(unit.directions[0], unit.form), head_dim, mode,
        round(owners * tally.rows), round(owners * tally.tiles), round(owners * tally.masked),
        len(unit.mode(mode).usual_launches), 0.0, round(owners * tally.lone),
        round(owners * tally.queries), round(owners * tally.masked * unit.tests), stretch,
    )  # fmt: skip


_ONCE = 0.28
"""Cost of a tile row of dq that is stored, relative to one that is cleared, added to and rounded
(H200, D 64 and 128: 0.276 to 0.286)."""


def tables_of(fitted: Sequence[Fit], gpu: Gpu, multiprocessors: int) -> dict[str, Any]:
    """Return fitted coefficients in the form of cost.toml.

    The mode EXCLUSIVE_DQ is not fitted: it does the work of the default mode, but stores dq.

    Args:
        fitted: the fits.
        gpu: the card.
        multiprocessors: of the card.
    """
    tables: dict[str, Any] = {
        "card": {
            "name": gpu.name, "multiprocessors": multiprocessors, "ghz": GHZ,
            "launch_us": fitted[0].launch_us, "bytes_per_cycle": round(gpu.bytes_per_cycle, 1),
        }
    }  # fmt: skip
    for fit in fitted:
        modes = tables.setdefault(fit.source, {}).setdefault(str(fit.head_dim), {})
        modes[fit.cost.mode] = _numbers(fit)
        if fit.cost.mode == DEFAULT and fit.source in _BACKWARD:
            stored = replace(fit.cost, query=round(_ONCE * fit.cost.query))
            modes[EXCLUSIVE_DQ] = _numbers(replace(fit, cost=stored))
    return tables


_BACKWARD = ("backward", "small_backward")


def _numbers(fit: Fit) -> dict[str, int]:
    terms = ("row", "tile", "masked", "lone", "query")
    numbers = {term: getattr(fit.cost, term) for term in terms}
    return numbers if fit.test is None else numbers | {"test": fit.test}
