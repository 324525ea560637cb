"""Host time of a repeated call, launch included and without: `python -m tests.support.host_time`.

Times are CPU time of this thread, the least of several rounds. Tensors are tiny, so that the CPU
kernel itself takes about as long as a CUDA launch would.
"""

from __future__ import annotations

import os
import timeit
from dataclasses import replace
from time import thread_time

import numpy as np

from maskc.runtime import CompiledMask
from tests.support.bundles import bundle


class Exported:
    """An array known by DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Nothing:
    """A kernel that does nothing."""

    def launch(self, *_):
        """Return at once."""


def measure(mask: CompiledMask, tensors: tuple, number: int = 500, **data) -> float:
    """Microseconds per call."""
    rounds = timeit.repeat(lambda: mask(*tensors, **data), thread_time, number=number, repeat=7)
    return min(rounds) / number * 1e6


def report(title: str, mask: CompiledMask, tensors: tuple, **data) -> None:
    """One line: with the kernel, and without."""
    whole = measure(mask, tensors, **data)
    plans = mask._plans._values
    key = list(plans)[-1]
    kept, plans[key] = plans[key], replace(plans[key], kernel=Nothing())
    alone = measure(mask, tensors, **data)
    plans[key] = kept
    print(f"{title:28s} {alone:6.1f} us without the kernel, {whole:6.1f} us with it")


def main() -> None:
    """Print what a call costs for every kind of array."""
    os.environ["OMP_NUM_THREADS"] = "1"
    arrays = tuple(np.ones((1, 1, 4, dim), np.float32) for dim in (32, 32, 48))
    mask = CompiledMask(bundle("band"), "cpu")
    report("NumPy", mask, arrays)
    report("DLPack (of NumPy)", mask, tuple(map(Exported, arrays)))
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        tensors = tuple(map(torch.from_numpy, arrays))
        report("torch", mask, tensors)
        report("torch, a parameter", mask, tensors, w=3)
        report("DLPack (of torch)", mask, tuple(map(Exported, tensors)))
    documents = CompiledMask(bundle("documents"), "cpu")
    for n in (4, 4096):
        longer = tuple(np.ones((1, 1, n, dim), np.float32) for dim in (32, 32, 48))
        doc = np.zeros(n, np.int32)
        report(f"NumPy, documents of {n}", documents, longer, doc=doc)


if __name__ == "__main__":
    main()
