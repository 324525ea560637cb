"""Is a result right? fp64 masked attention on sampled query rows decides, for every head.

Gradients are checked with an output gradient that is zero outside the sampled rows: then dq of
those rows and all of dk and dv follow from those rows alone, exactly.

An error is the largest, over rows, of |found - expected| / max(|expected|, root mean square of
|expected| over the head's rows). Where all of these vanish (a softmax over one key has no
gradient) it is |found| / sqrt(D), the size of an input's row. Allowed: fp32 1e-5; bf16 and fp16
twice the error of the same computation done step by step in that dtype, as unfused PyTorch does
it, and at least what fp32 is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.bench.case import Case
from maskc.bench.tensors import Tensors, host, numpy_dtype, only_rows
from maskc.core.dtypes import DType

SINGLE = 1e-5
"""Allowed in fp32, and for the log-sum-exp, which is fp32 everywhere."""

_VANISHING = 1e-9
"""What fp64 leaves of a gradient that is zero."""

Keep = Callable[[int, int], np.ndarray]
"""(batch, head) -> bool [rows, n_kv]."""


@dataclass(frozen=True, eq=False)
class Results:
    """Everything attention gives for some query rows; None where it was not asked for."""

    out: np.ndarray
    """[B, Hq, rows, Dv]."""
    lse: np.ndarray | None = None
    """[B, Hq, rows]."""
    dq: np.ndarray | None = None
    """[B, Hq, rows, D]."""
    dk: np.ndarray | None = None
    """[B, Hkv, Nkv, D]."""
    dv: np.ndarray | None = None
    """[B, Hkv, Nkv, Dv]."""


@dataclass(frozen=True)
class Verdict:
    """The largest error of a result and whether every part of it is allowed."""

    error: float
    ok: bool


def sample_rows(n_q: int, n_kv: int) -> np.ndarray:
    """Query rows to check, ascending: all of a short call, else ends, tile ends and random ones."""
    most = int(np.clip((1 << 23) // max(n_kv, 1), 64, 256))
    if n_q <= most:
        return np.arange(n_q)
    edges = [0, 1, 63, 64, 127, 128, n_q // 2, n_q - 129, n_q - 128, n_q - 2, n_q - 1]
    random = np.random.default_rng(n_q).choice(n_q, most - len(edges), replace=False)
    return np.unique(np.concatenate([edges, random]))


# ------------------------------------------------------------------ attention, step by step


def _attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray, dout: np.ndarray | None,
    scale: float, store: Callable[[np.ndarray], np.ndarray],
) -> list[np.ndarray]:  # fmt: skip
    """[out, lse] of one head, and [dq, dk, dv] given dout; `store` rounds every intermediate."""
    s = np.where(keep, store(store(q @ k.T) * scale), -np.inf)
    top = s.max(axis=1, initial=-np.inf)
    base = np.where(np.isneginf(top), 0, top)[:, None]
    e = np.exp(s - base)
    total = e.sum(axis=1, keepdims=True)
    p = store(e / np.where(total == 0, 1, total))
    with np.errstate(divide="ignore"):
        found = [store(p @ v), (base + np.log(total))[:, 0]]
    if dout is not None:
        dp = store(dout @ v.T)
        ds = store(p * (dp - (p * dp).sum(axis=1, keepdims=True)))
        ds = store(ds * scale)
        found += [store(ds @ k), ds.T @ q, p.T @ dout]
    return found


def attend(
    case: Case, tensors: Tensors, rows: np.ndarray, keep: Keep, backward: bool, dtype: DType | None
) -> Results:
    """Attention of the sampled rows, head by head.

    Args:
        dtype: None computes in fp64; else every intermediate is rounded to this storage type, with
            fp32 inside a product or a softmax.
    """
    wide, store = (np.float64, _unchanged) if dtype is None else (np.float32, rounding(dtype))
    index = rows.tolist()
    q, dout = (host(x[:, :, index]).astype(wide) for x in (tensors.q, tensors.dout))
    shape = (case.batch, case.heads, len(rows), case.head_dim)
    out, dq, lse = np.zeros(shape, wide), np.zeros(shape, wide), np.zeros(shape[:3], wide)
    columns = (case.batch, case.kv_heads, case.n_kv, case.head_dim) if backward else (0,)
    dk, dv = np.zeros(columns, wide), np.zeros(columns, wide)
    for b, shared in np.ndindex(case.batch, case.kv_heads):
        k, v = (host(x[b, shared]).astype(wide) for x in (tensors.k, tensors.v))
        for h in range(shared * case.group, (shared + 1) * case.group):
            given = dout[b, h] if backward else None
            parts = _attend(q[b, h], k, v, keep(b, h), given, case.scale, store)
            out[b, h], lse[b, h] = parts[:2]
            if backward:
                dq[b, h] = parts[2]
                dk[b, shared] += parts[3]
                dv[b, shared] += parts[4]
    if not backward:
        return Results(out, lse)
    return Results(out, lse, dq, store(dk), store(dv))


def _unchanged(values: np.ndarray) -> np.ndarray:
    return values


def rounding(dtype: DType) -> Callable[[np.ndarray], np.ndarray]:
    """fp32 values to the nearest of a storage type, still as fp32."""
    if dtype is DType.float32:
        return _unchanged
    stored = numpy_dtype(dtype.value)
    return lambda values: values.astype(np.float32).astype(stored).astype(np.float32)


# ------------------------------------------------------------------ errors


def row_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest error of a row of [B, H, N, D]; NaN where anything is NaN."""
    if expected.size == 0:
        return 0.0
    size = np.linalg.norm(expected, axis=-1)
    usual = np.sqrt((size**2).mean(axis=-1, keepdims=True))
    usual = np.where(usual < _VANISHING, expected.shape[-1] ** 0.5, usual)
    distance = np.linalg.norm(found - expected, axis=-1)
    return float((distance / np.maximum(size, usual)).max())


def lse_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest |found - expected| / max(1, |expected|); equal infinities agree."""
    with np.errstate(invalid="ignore"):
        ratio = np.abs(found - expected) / np.maximum(1, np.abs(expected))
    return float(np.where(found == expected, 0.0, ratio).max(initial=0.0))


class Judge:
    """Knows the right answer of a case and how far off a result may be."""

    def __init__(self, expected: Results, stepwise: Results | None) -> None:
        """
        Args:
            expected: in fp64.
            stepwise: the same computed in the case's dtype; None for fp32.
        """
        self.expected = expected
        self.allowed = {"lse": SINGLE}
        """Largest error by part."""
        for part in ("out", "dq", "dk", "dv"):
            right = getattr(expected, part)
            if right is not None:
                near = 0.0 if stepwise is None else row_error(getattr(stepwise, part), right)
                self.allowed[part] = max(SINGLE, 2 * near)

    def verdict(self, **found: np.ndarray) -> Verdict:
        """Judge parts of a result by name: out, lse, dq, dk, dv."""
        errors = {
            part: (lse_error if part == "lse" else row_error)(values, getattr(self.expected, part))
            for part, values in found.items()
        }
        ok = all(error <= self.allowed[part] for part, error in errors.items())
        return Verdict(float(np.max(list(errors.values()))), ok)


def make_judge(case: Case, tensors: Tensors, rows: np.ndarray, keep: Keep, backward: bool) -> Judge:
    """The judge of sampled rows."""
    expected = attend(case, tensors, rows, keep, backward, None)
    half = case.dtype is not DType.float32
    stepwise = attend(case, tensors, rows, keep, backward, case.dtype) if half else None
    return Judge(expected, stepwise)


def judged_forward(judge: Judge, rows: np.ndarray, result: Any) -> Verdict:
    """Judge what a forward returned: out, or (out, lse), of all rows."""
    out, lse = result if isinstance(result, tuple) else (result, None)
    index = rows.tolist()
    parts = {"out": host(out[:, :, index])}
    if lse is not None:
        parts["lse"] = host(lse[:, :, index])
    return judge.verdict(**parts)


def judged_backward(
    judge: Judge, rows: np.ndarray, tensors: Tensors, backward: Callable[[Any], tuple[Any, ...]]
) -> Verdict:
    """Run a backward on the sampled rows' gradient and judge it."""
    dq, dk, dv = backward(only_rows(tensors.dout, rows))
    return judge.verdict(dq=host(dq[:, :, rows.tolist()]), dk=host(dk), dv=host(dv))
