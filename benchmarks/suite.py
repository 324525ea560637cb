"""Lists of cases that belong together, run one after another; a failing case stops no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from time import monotonic
from typing import Any

from benchmarks import correctness
from benchmarks.anchors import (
    ANCHORS,
    CPU,
    DECODING,
    DOCUMENTS,
    ENTMAX,
    GLOBALS,
    HEADS,
    SELECTIONS,
    SIMT,
    SM80,
    SPLASH,
    WIDE,
    Anchor,
)
from benchmarks.contest import Ask, Measured, Progress
from benchmarks.grids import GRIDS
from benchmarks.prepare import jobs, prepare, use_caches
from benchmarks.report import reason
from benchmarks.rivals import IMPLS
from benchmarks.run import bench_case
from maskc.core.dtypes import DType
from maskc.core.errors import NoDevice, UsageMistake
from maskc.core.target import Target
from maskc.lab.environment import environment
from maskc.runtime.device import default_target
from maskc.verify.case_tensors import device_of
from maskc.verify.timing import SECONDS

_AHEAD = 0.4
"""Share of the time that compiling ahead may take."""
Report = dict[str, Any]
Unit = tuple[str, Callable[[], Measured]]
"""A name, and what measures it."""


@dataclass(frozen=True)
class Suite:
    """Anchors timed in one run."""

    anchors: tuple[Anchor, ...]
    target: str | None
    """None: this machine's."""
    dtype: DType
    impls: tuple[str, ...]
    whole: bool = False
    """Whether rivals are timed where maskc cannot."""
    directions: tuple[str, ...] = ("fwd", "bwd")


_ALL_GPU = ("maskc", "cudnn", "cudnn_flex", "fa2", "flex", "flex_flash", "fa4")
SUITES = {
    "cpu": Suite(CPU, "cpu", DType.float32, tuple(IMPLS)),
    "sm80": Suite(SM80, "sm_80", DType.bfloat16, ("maskc", "fa2", "cudnn", "flex")),
    "simt": Suite(
        SIMT, "simt", DType.float32, ("maskc", "math", "efficient", "dense", "sdpa_masked", "flex")
    ),
    "anchors": Suite(ANCHORS, None, DType.bfloat16, _ALL_GPU, True),
    "decoding": Suite(DECODING, None, DType.bfloat16, _ALL_GPU, directions=("fwd",)),
    "documents": Suite(DOCUMENTS, "sm_90a", DType.bfloat16, ("maskc",)),
    "globals": Suite(GLOBALS, "sm_90a", DType.bfloat16, ("maskc", "flex", "flex_flash")),
    "selections": Suite(
        (*SELECTIONS, *ENTMAX),
        "sm_90a",
        DType.bfloat16,
        ("maskc", "topk", "flex_table", "dense"),
        directions=("fwd",),
    ),
    "splash": Suite(SPLASH, "sm_90a", DType.bfloat16, ("maskc", "topk", "dense")),
    "heads": Suite(HEADS, "sm_90a", DType.bfloat16, ("maskc", "cudnn", "fa2", "fa4", "flex")),
    "wide": Suite(WIDE, "sm_80", DType.bfloat16, ("maskc", "efficient", "math", "flex")),
    "grids": Suite(GRIDS, "sm_90a", DType.bfloat16, ("maskc", "flex", "flex_flash")),
}
"""Timed suites by name; the other one is `correctness`."""


@dataclass(frozen=True)
class Limits:
    """Which part of a timed suite runs, and for how long."""

    only: tuple[str, ...] = ()
    """Shell patterns of case names (of pattern names for `correctness`); none is all."""
    impls: tuple[str, ...] = ()
    """None is all of the suite."""
    directions: tuple[str, ...] = ("fwd", "bwd")
    repeats: int = 20
    """Rounds of the timing."""
    seconds: float = SECONDS
    """What one rival may spend in all rounds of a direction."""
    deadline: float | None = None
    """A value of time.monotonic(); cases due later are left out, with a note."""

    def takes(self, name: str) -> bool:
        """Whether a case runs."""
        return not self.only or any(fnmatchcase(name, shape) for shape in self.only)


def run_suite(
    name: str,
    limits: Limits = Limits(),
    *,
    progress: Progress = lambda text: None,
    target: str | None = None,
    each: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run one suite: one of SUITES, or `correctness`.

    Args:
        limits: which part of it, and for how long.
        progress: told what happens next.
        target: instead of the suite's own.
        each: given the report so far before and after every case; before, its environment names
            the case under "running".

    Returns:
        {"environment": {...}, "rows": [{"case", "impl", "direction", "ms", "live_tflops", "error",
        "ok"}]}. `live_tflops` counts live pairs only, for every implementation. A row that failed
        its check, or could not run, has ok False; environment["notes"] says why. Rows of
        `correctness` have no times.

    Raises:
        UsageMistake: an unknown suite or implementation, or patterns for no case.
        NoDevice: the GPU does not answer any more; the report lies with `each`.
    """
    suite = SUITES.get(name)
    if suite is None and name != "correctness":
        known = ", ".join((*SUITES, "correctness"))
        raise UsageMistake(f"there is no suite {name!r}", f"the suites are {known}")
    strange = [impl for impl in limits.impls if impl not in IMPLS]
    if strange:
        hint = f"there are {', '.join(IMPLS)}"
        raise UsageMistake(f"nothing here is called {strange[0]!r}", hint, at="--impl")
    chosen = Target.named(target or (suite.target if suite else None) or default_target())
    about = environment(device_of(chosen)) | {"suite": name, "target": chosen.name}
    about |= {} if name == "correctness" else {"repeats": limits.repeats}
    report: Report = {"environment": about | {"cases": {}, "notes": []}, "rows": []}
    each(report)
    if suite:
        units = _timed(name, limits, chosen, progress)
    else:
        units = correctness.units(chosen, limits.only, progress)
    count = 0
    for unit in units:
        count += 1
        _run_unit(unit, report, chosen, each, limits.deadline)
    if not count:
        shapes = ", ".join(limits.only)
        raise UsageMistake(f"no case of {name} matches {shapes}", "shell patterns match")
    each(report)
    return report


def _timed(name: str, limits: Limits, target: Target, progress: Progress) -> list[Unit]:
    suite = SUITES[name]
    anchors = [anchor for anchor in suite.anchors if limits.takes(anchor.name)]
    impls = tuple(impl for impl in suite.impls if not limits.impls or impl in limits.impls)
    directions = tuple(each for each in suite.directions if each in limits.directions)
    ask = Ask(target, directions, impls, limits.repeats, limits.seconds, progress, suite.whole)
    compiled: dict[str, float] = {}
    if device_of(target) == "cuda":
        use_caches()
        names = [anchor.name for anchor in anchors]
        left = 600.0 if limits.deadline is None else limits.deadline - monotonic()
        work = jobs(name, names, impls, limits.directions, target.name)
        compiled = prepare(work, _AHEAD * left, progress)
    return [
        (anchor.name, partial(_bench, suite, anchor, ask, compiled.get(anchor.name)))
        for anchor in anchors
    ]


def _bench(suite: Suite, anchor: Anchor, ask: Ask, compile_ms: float | None) -> Measured:
    return bench_case(anchor.case(suite.dtype), replace(ask, compile_ms=compile_ms))


# ------------------------------------------------------------------ one unit after another


def _failed(report: Report, name: str, why: str) -> None:
    """A unit that gave nothing: a row that says why."""
    report["environment"]["cases"][name] = {}
    report["environment"]["notes"].append(f"{name}: {why}")
    report["rows"].append({
        "case": name, "impl": "maskc", "direction": "fwd", "ms": None, "live_tflops": None,
        "error": None, "ok": False, "raised": why,
    })  # fmt: skip


def _run_unit(
    unit: Unit, report: Report, target: Target, each: Callable[[Report], None],
    deadline: float | None,
) -> None:  # fmt: skip
    name, measure = unit
    about = report["environment"]
    if deadline is not None and monotonic() > deadline:
        about["notes"].append(f"{name}: left out, the time was up")
        return
    about["running"] = name
    each(report)
    try:
        measured = measure()
    except Exception as error:  # also a defect of maskc is a result here
        _failed(report, name, reason(error))
    else:
        report["rows"] += measured.rows
        about["notes"] += [note for note in measured.notes if note not in about["notes"]]
        about["cases"][name] = measured.about
    del about["running"]
    each(report)
    if device_of(target) == "cuda" and not _answers():
        raise NoDevice(f"target {target.name}", f"it does not answer any more after {name}")


def _answers() -> bool:
    """Whether the GPU still works: after a fault every call of this process fails."""
    import torch

    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):  # the latter from a PyTorch without CUDA
        return False
    return True
