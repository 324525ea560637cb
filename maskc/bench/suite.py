"""Lists of cases that belong together, run one after another; a failing case stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from time import monotonic
from typing import Any

from maskc.bench import correctness
from maskc.bench.anchors import ANCHORS, CPU, SM80, Anchor
from maskc.bench.environment import environment
from maskc.bench.report import reason
from maskc.bench.rivals import IMPLS
from maskc.bench.run import Measured, Progress, bench_case, device_of
from maskc.core.dtypes import DType
from maskc.core.errors import NoDevice, UsageMistake
from maskc.core.target import Target
from maskc.runtime.device import default_target

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


SUITES = {
    "cpu": Suite(CPU, "cpu", DType.float32, tuple(IMPLS)),
    "sm80": Suite(SM80, "sm_80", DType.bfloat16, ("maskc", "fa2", "cudnn", "flex")),
    "anchors": Suite(ANCHORS, None, DType.bfloat16, ("maskc", "dense", "flex", "fa2", "cudnn")),
}
"""Timed suites by name; `correctness` is the other one."""


def run_suite(
    name: str,
    *,
    only: Iterable[str] = (),
    repeats: int = 20,
    progress: Progress = lambda text: None,
    target: str | None = None,
    each: Callable[[Report], None] = lambda report: None,
    resume: Report | None = None,
    deadline: float | None = None,
) -> Report:
    """Run one suite: `cpu`, `sm80`, `anchors` or `correctness`.

    Args:
        only: shell patterns of case names (of pattern names for `correctness`); none is all.
        repeats: rounds of the timing.
        progress: told what happens next.
        target: instead of the suite's own.
        each: given the report so far before and after every case; before, its environment names
            the case under "running".
        resume: a report that `each` was given: its cases are not run again, and the one that was
            running counts as failed.
        deadline: a value of time.monotonic(); cases due later are left out, with a note.

    Returns:
        As `bench_pattern`; correctness rows have no times.

    Raises:
        UsageMistake: an unknown suite, or patterns for no case.
        NoDevice: the GPU does not answer any more; the report lies with `each`.
    """
    only = tuple(only)
    suite = SUITES.get(name)
    if suite is None and name != "correctness":
        known = ", ".join((*SUITES, "correctness"))
        raise UsageMistake(f"there is no suite {name!r}", f"the suites are {known}")
    wanted = target or (suite.target if suite else None) or default_target()
    chosen = Target.named(wanted)
    if suite:
        units = _timed(suite, only, chosen, repeats, progress)
    else:
        units = correctness.units(chosen, only, progress)
    about = environment(device_of(chosen)) | {"suite": name, "target": chosen.name}
    about |= {"repeats": repeats} if suite else {}
    report = _started(about, resume)
    each(report)
    count = 0
    for unit in units:
        count += 1
        _run_unit(unit, report, chosen, each, deadline)
    if not count:
        raise UsageMistake(f"no case of {name} matches {', '.join(only)}", "shell patterns match")
    each(report)
    return report


def _timed(
    suite: Suite, only: tuple[str, ...], target: Target, repeats: int, progress: Progress
) -> Iterator[Unit]:
    for anchor in suite.anchors:
        if not only or any(fnmatchcase(anchor.name, shape) for shape in only):
            yield anchor.name, partial(_bench, suite, anchor, target, repeats, progress)


def _bench(
    suite: Suite, anchor: Anchor, target: Target, repeats: int, progress: Progress
) -> Measured:
    case = anchor.case(suite.dtype)
    return bench_case(case, target, ("fwd", "bwd"), repeats, suite.impls, progress)


# ------------------------------------------------------------------ one unit after another


def _started(about: dict[str, object], resume: Report | None) -> Report:
    report: Report = {"environment": about | {"cases": {}, "notes": []}, "rows": []}
    if resume is None:
        return report
    before = resume["environment"]
    report["rows"] += resume["rows"]
    report["environment"]["cases"] |= before["cases"]
    report["environment"]["notes"] += before["notes"]
    if "running" in before:
        _failed(report, before["running"], "the process that ran it ended")
    return report


def _failed(report: Report, name: str, why: str) -> None:
    """A unit that gave nothing: a row that says so."""
    report["environment"]["cases"][name] = {}
    report["environment"]["notes"].append(f"{name}: {why}")
    report["rows"].append({
        "case": name, "impl": "maskc", "direction": "fwd", "ms": None, "live_tflops": None,
        "error": None, "ok": False,
    })  # fmt: skip


def _run_unit(
    unit: Unit, report: Report, target: Target, each: Callable[[Report], None],
    deadline: float | None,
) -> None:  # fmt: skip
    name, measure = unit
    about = report["environment"]
    if name in about["cases"]:
        return
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
        about["notes"] += measured.notes
        about["cases"][name] = measured.about
    del about["running"]
    each(report)
    if device_of(target) == "cuda" and not _answers():
        raise NoDevice(target.name, f"it does not answer any more after {name}")


def _answers() -> bool:
    """Whether the GPU still works: after a fault every call of this process fails."""
    import torch

    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):  # the latter from a PyTorch without CUDA
        return False
    return True
