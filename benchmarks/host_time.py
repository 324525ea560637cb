"""`python -m benchmarks.host_time`: what Python spends on a repeated call, before and after the
kernel.

The call is tiny (one query tile), so a GPU is done before the next launch arrives and nothing
waits for it; on a CPU the kernel itself, in one thread, is part of the number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.contest import Progress
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.dsl.combinators import window
from maskc.lab.environment import environment
from maskc.reference.attention import attention
from maskc.runtime.device import default_target
from maskc.verify.case_tensors import device_of, has_torch, host, numpy_dtype

ALLOWED = {"torch": 15.0, "cupy": 15.0, "numpy": 15.0, "dlpack": 30.0}
"""Microseconds per call, by what the arrays are."""
_TOKENS, _HEAD_DIM = 4, 64
_TOLERANCE = 1e-2
"""The result is checked too: relative, in fp16 or fp32."""


class _Exported:
    """An array that offers DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def host_time(
    target: str | None = None, *, calls: int = 300, rounds: int = 15,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:  # fmt: skip
    """Median host time of a repeated forward call, per array library.

    Args:
        target: None is this machine's.
        calls: per round; nothing waits for the device inside a round.
        rounds: medians are over these.

    Returns:
        As `run_suite`: one row per library, `ms` the host's milliseconds per call, `ok`
        whether the result was right and the time within ALLOWED.
    """
    chosen = Target.named(target or default_target())
    device = device_of(chosen)
    dtype = DType.float32 if DType.float32 in chosen.dtypes else DType.float16
    attn = window(7).compile(_HEAD_DIM, dtype=dtype, target=chosen.name)
    rng = np.random.default_rng(0)
    shape = (1, 1, _TOKENS, _HEAD_DIM)
    arrays = [rng.standard_normal(shape).astype(numpy_dtype(dtype.value)) for _ in range(3)]
    expected, _ = attention(*arrays, window(7).dense(_TOKENS))
    about = environment(device) | {"target": chosen.name, "calls": calls, "rounds": rounds}
    about |= {"allowed_us": ALLOWED, "tokens": _TOKENS, "dtype": dtype.value, "notes": []}
    rows = []
    for library, inputs, wait in _inputs(arrays, device, about["notes"]):
        progress(f"host time of calls on {library} arrays")
        with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # starting others is not the host's time
            ms = per_call(lambda given=inputs: attn(*given), wait, calls, rounds)
        error = np.abs(_values(attn(*inputs)) - expected).max() / np.abs(expected).max()
        ok = bool(error < _TOLERANCE and ms * 1e3 <= ALLOWED[library])
        rows.append({
            "case": "repeated call", "impl": library, "direction": "fwd",
            "ms": float(f"{ms:.3g}"), "live_tflops": None, "error": float(f"{error:.2g}"),
            "ok": ok,
        })  # fmt: skip
    return {"environment": about, "rows": rows}


def host_table(report: Mapping[str, Any]) -> str:
    """Plain text: microseconds per call by library, beside what is allowed."""
    allowed = report["environment"]["allowed_us"]
    lines = [
        f"{row['impl']:<8}{row['ms'] * 1e3:8.1f} us a call, allowed {allowed[row['impl']]:g}"
        + ("" if row["ok"] else "  FAILED")
        for row in report["rows"]
    ]
    return "\n".join(lines + [f"note: {note}" for note in report["environment"]["notes"]]) + "\n"


def per_call(call: Callable[[], Any], wait: Callable[[], None], calls: int, rounds: int) -> float:
    """Median milliseconds of the host; the first round only warms up."""
    times = []
    for _ in range(rounds + 1):
        wait()
        start = perf_counter()
        for _ in range(calls):
            call()
        times.append((perf_counter() - start) / calls * 1e3)
    wait()
    return median(times[1:])


def _inputs(
    arrays: list[np.ndarray], device: str, notes: list[str]
) -> Iterator[tuple[str, list[Any], Callable[[], None]]]:
    """(library, q k v, wait for the device) for each library that is here."""
    if device == "cpu":
        yield "numpy", arrays, _nothing
        yield "dlpack", [_Exported(x) for x in arrays], _nothing
    if has_torch():
        import torch

        made = [torch.from_numpy(x).to(device) for x in arrays]
        yield "torch", made, torch.cuda.synchronize if device == "cuda" else _nothing
    else:
        notes.append("torch: not installed")
    if device == "cuda":
        from maskc.runtime.arrays.known import cupy_send

        sent = [cupy_send(0, x.ravel())[0][0].reshape(x.shape) for x in arrays]
        yield "cupy", sent, sent[0].device.synchronize
        yield "dlpack", [_Exported(x) for x in sent], sent[0].device.synchronize


def _nothing() -> None:
    return None


def _values(result: Any) -> np.ndarray:
    return host(result.get() if hasattr(result, "get") else result)


if __name__ == "__main__":
    print(host_table(host_time(progress=print)), end="")
