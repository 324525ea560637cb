"""Compiling ahead: every kernel of a suite in many processes, so that timing finds them in caches.

What maskc builds lies in its own cache afterwards, FlexAttention's kernels in PyTorch's, those of
FlashAttention 4 in its. Failures are silent here: they come again, and are told, when timed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from multiprocessing.pool import IMapUnorderedIterator
from time import monotonic, perf_counter

from benchmarks.contest import Progress
from maskc.lab.environment import cores

_WORKERS = 12
_SILENCE = 60.0
"""Seconds without a finished job after which the rest is left to be compiled when needed."""
_ORDER = ("cudnn_flex", "flex_flash", "fa4", "flex", "maskc")
"""What is compiled, slowest first; the others have nothing to compile."""
Job = tuple[str, str, str, tuple[str, ...], str]
"""Suite, case, implementation, directions, target of maskc."""


def use_caches() -> None:
    """Let PyTorch, FlashAttention 4 and cuDNN keep compiled kernels on disk; before any is
    imported."""
    for name in (
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
        "FLEX_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    ):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a kernel or two at a time


def jobs(
    suite: str, cases: Iterable[str], impls: Iterable[str], directions: tuple[str, ...],
    target: str,
) -> list[Job]:  # fmt: skip
    """What there is to compile, slowest first."""
    names, wanted = list(cases), set(impls)
    some = [impl for impl in _ORDER if impl in wanted]
    return [(suite, case, impl, directions, target) for impl in some for case in names]


def prepare(work: list[Job], seconds: float, progress: Progress) -> dict[str, float]:
    """Compile in parallel, for at most so many seconds.

    Returns:
        Milliseconds that maskc took by case, from the mask to a loaded kernel.
    """
    workers = min(cores() - 2, _WORKERS, len(work))
    if workers < 2:
        return {}
    progress(f"compiling {len(work)} things ahead in {workers} processes")
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _start) as pool:  # leaving it ends the workers
        return _collected(pool.imap_unordered(_done, work), len(work), seconds, progress)


def _collected(
    results: IMapUnorderedIterator, count: int, seconds: float, progress: Progress
) -> dict[str, float]:
    found: dict[str, float] = {}
    ends, quiet = monotonic() + seconds, monotonic() + _SILENCE
    finished = 0
    while finished < count and monotonic() < min(ends, quiet):
        try:
            case, impl, ms = results.next(timeout=5)
        except multiprocessing.TimeoutError:
            progress(f"compiling ahead: {finished} of {count}")
            continue
        finished += 1
        quiet = monotonic() + _SILENCE
        progress(f"compiling ahead: {finished} of {count}, {impl} of {case}")
        if impl == "maskc" and ms is not None:
            found[case] = ms
    return found


def _start() -> None:
    """Starts a worker: one thread each."""
    os.environ["OMP_NUM_THREADS"] = "1"


def _done(job: Job) -> tuple[str, str, float | None]:
    """(case, implementation, milliseconds; None where it failed)."""
    _, case, impl, *_ = job
    try:
        return case, impl, _compile(*job)
    except Exception:  # told when it is timed
        return case, impl, None


def _compile(
    suite: str, name: str, impl: str, directions: tuple[str, ...], target: str
) -> float:  # fmt: skip
    from benchmarks.suite import SUITES

    found = SUITES[suite]
    case = next(anchor for anchor in found.anchors if anchor.name == name).case(found.dtype)
    start = perf_counter()
    if impl == "maskc":
        case.warm(target)
        return (perf_counter() - start) * 1e3
    import torch

    from benchmarks.rivals import make_rival
    from maskc.lab.case_pairs import CasePairs
    from maskc.lab.rivals import start_anew
    from maskc.verify.case_tensors import make_tensors

    start_anew()
    tensors = make_tensors(case, "cuda")
    rival = make_rival(impl, case, tensors, CasePairs(case), "bwd" in directions)
    if rival is not None:
        with rival.scope():
            if "fwd" in directions:
                rival.forward()
            if "bwd" in directions and rival.backward is not None:
                rival.backward(tensors.dout)
        torch.cuda.synchronize()
    del rival, tensors
    torch.cuda.empty_cache()
    return (perf_counter() - start) * 1e3
