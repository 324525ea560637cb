"""Is a result right? fp64 masked attention decides: on sampled query rows of every head, and on
all rows and keys of whole heads (`benchmarks.heads`). It runs where the tensors are.

Gradients of all heads are checked with an output gradient that is zero outside the sampled rows:
then dq of those rows and all of dk and dv follow from those rows alone, exactly.

An error is the largest, over rows, of |found - expected| / max(|expected|, root mean square of
|expected| over the head's rows). If all of these vanish (a softmax over one key has no
gradient) it is |found| / sqrt(D), the size of an input's row. Allowed: fp32 1e-5; bf16 and fp16
twice the error of the same computation done step by step in that dtype, as unfused PyTorch does
it; and at least what fp32 is allowed.

Every fused backward takes dout . out for the sum over p dp, from the out it is given, which is
rounded. What that rounding does to dq and dk is no error of a backward: they are compared with what
follows from the out that was found, and so are the stepwise ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify import sparse
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, library, like, numpy_dtype, only_rows, wide

SINGLE = 1e-5
"""Allowed in fp32, and for the log-sum-exp, which is fp32 everywhere."""

_VANISHING = 1e-9
"""Tolerance of fp64 for a gradient that is zero."""

Keep = Callable[[int, int], Any]
"""(batch, head) -> bool [rows, n_kv], in NumPy or where the tensors are."""
Array = Any
"""An array of NumPy, or of torch where the tensors are torch's."""


@dataclass(frozen=True, eq=False)
class Results:
    """Results of attention for some query rows; None for results that were not requested."""

    out: Array
    """[B, Hq, rows, Dv]."""
    lse: Array | None = None
    """[B, Hq, rows]."""
    dq: Array | None = None
    """[B, Hq, rows, D]."""
    dk: Array | None = None
    """[B, Hkv, Nkv, D]."""
    dv: Array | None = None
    """[B, Hkv, Nkv, Dv]."""
    slide: Array | None = None
    """[B, Hq, rows, D]: decrease of dq if dout . out grows by 1."""
    slide_keys: Callable[[Array], Array] | None = None
    """Change of dk [B, Hkv, Nkv, D] if dout . out grows by this much [B, Hq, rows]."""


@dataclass(frozen=True)
class CaseVerdict:
    """The largest error of a result and whether every part of it is allowed."""

    error: float
    ok: bool


def sample_rows(n_q: int, n_kv: int) -> np.ndarray:
    """Draw int64 [rows], ascending query rows to check: all rows of a short call, otherwise ends,
    tile boundaries and random rows."""
    most = int(np.clip((1 << 23) // max(n_kv, 1), 64, 256))
    if n_q <= most:
        return np.arange(n_q)
    edges = [0, 1, 63, 64, 127, 128, n_q // 2, n_q - 129, n_q - 128, n_q - 2, n_q - 1]
    random = np.random.default_rng(n_q).choice(n_q, most - len(edges), replace=False)
    return np.unique(np.concatenate([edges, random]))


# ------------------------------------------------------------------ attention, step by step


def attend_head(
    q: Array, k: Array, v: Array, keep: Array, dout: Array | None, scale: float,
    store: Callable[[Array], Array], alpha: float = 1.0,
) -> list[Array]:  # fmt: skip
    """[out, lse] of one head, and [dq, slide, dk, dv] given dout; `store` rounds every
    intermediate.

    Args:
        q, dout: [rows, D]; k, v: [keys, D]; all fp64 or all fp32.
        keep: bool [rows, keys].
        alpha: of entmax; 1 is softmax.
    """
    p, lse = weights(q, k, keep, scale, store, alpha)
    results = [store(p @ v), lse]
    if dout is not None:
        dp = store(dout @ v.T)
        slopes, slide = p, p @ k * scale
        mean = (dout * results[0]).sum(1)
        if alpha > 1:  # whose gradient does not read out
            slopes, slide = sparse.slopes(p, alpha), q * 0
            total = slopes.sum(1)
            mean = (slopes * dp).sum(1) / library(q).where(total == 0, 1.0, total)
        ds = store(slopes * (dp - mean[:, None]))
        ds = store(ds * scale)
        results += [store(ds @ k), slide, ds.T @ q, p.T @ dout]
    return results


def weights(
    q: Array, k: Array, keep: Array, scale: float, store: Callable[[Array], Array],
    alpha: float = 1.0,
) -> tuple[Array, Array]:  # fmt: skip
    """(softmax [rows, keys], its log-sum-exp [rows]) of one head, or those of entmax."""
    xp = library(q)
    s = xp.where(keep, store(store(q @ k.T) * scale), -np.inf)
    if alpha > 1:
        p, lse = sparse.weights(s, alpha)
        return store(p), lse
    top = xp.amax(s, 1)
    base = xp.where(xp.isneginf(top), 0.0, top)[:, None]
    e = xp.exp(s - base)
    total = e.sum(1)[:, None]
    with np.errstate(divide="ignore"):
        lse = (base + xp.log(total))[:, 0]
    return store(e / xp.where(total == 0, 1.0, total)), lse


def attend(
    case: Case,
    tensors: CaseTensors,
    rows: np.ndarray,
    keep: Keep,
    backward: bool,
    dtype: DType | None,
    step: int | None = None,
) -> Results:
    """Compute attention of the sampled rows, int64 [rows], head by head.

    Args:
        dtype: None computes in fp64; else every intermediate is rounded to this storage type, with
            fp32 inside a product or a softmax.
        step: rows of a head whose scores are held at once; None: all.
    """
    store, xp, index = rounding(dtype), library(tensors.q), rows.tolist()
    q, dout = (wide(x[:, :, index], dtype) for x in (tensors.q, tensors.dout))
    starts = range(0, max(len(rows), 1), step or max(len(rows), 1))
    parts = [slice(start, start + starts.step) for start in starts]
    of_rows: list[list[Array]] = [[], [], [], []]
    columns: list[list[Array]] = [[], []]
    for b, shared in np.ndindex(case.batch, case.kv_heads):
        k, v = (wide(x[b, shared], dtype) for x in (tensors.k, tensors.v))
        sums: list[Any] = [0, 0]
        for h in range(shared * case.group, (shared + 1) * case.group):
            of_head: list[list[Array]] = [[], [], [], []]
            for part in parts:
                given = dout[b, h, part] if backward else None
                seen = like(k, keep(b, h)[part])
                results = attend_head(
                    q[b, h, part], k, v, seen, given, case.scale, store, case.alpha
                )
                for values, part_of_head in zip(of_head, results, strict=False):
                    values.append(part_of_head)
                sums = [total + share for total, share in zip(sums, results[4:], strict=False)]
            for values, pieces in zip(of_rows, of_head, strict=True):
                values += [xp.concatenate(pieces)] if pieces else []
        for values, total in zip(columns, sums if backward else (), strict=False):
            values.append(total)

    def joined(values: list[Array], heads: int) -> Array:
        whole = xp.stack(values)
        return whole.reshape((case.batch, heads, *whole.shape[1:]))

    out, lse = (joined(values, case.heads) for values in of_rows[:2])
    if not backward:
        return Results(out, lse)
    dk, dv = (store(joined(values, case.kv_heads)) for values in columns)
    dq, slide = (joined(values, case.heads) for values in of_rows[2:])

    def slide_keys(off: Array) -> Array:
        lost = []
        for b, shared in np.ndindex(case.batch, case.kv_heads):
            k = wide(tensors.k[b, shared], dtype)
            lost.append(sum(
                weights(q[b, h, part], k, like(k, keep(b, h)[part]), case.scale, _unchanged)[0].T
                @ (off[b, h, part][:, None] * q[b, h, part]) * case.scale
                for h in range(shared * case.group, (shared + 1) * case.group)
                for part in parts
            ))  # fmt: skip
        return joined(lost, case.kv_heads)

    return Results(out, lse, dq, dk, dv, slide, slide_keys if case.alpha == 1 else None)


def _unchanged(values: Array) -> Array:
    return values


def rounding(dtype: DType | None) -> Callable[[Array], Array]:
    """fp32 values to the nearest of a storage type, still as fp32; None leaves fp64 alone."""
    if dtype in (None, DType.float32):
        return _unchanged

    def stored(values: Array) -> Array:
        xp = library(values)
        if xp is np:
            return values.astype(np.float32).astype(numpy_dtype(dtype.value)).astype(np.float32)
        return values.to(getattr(xp, dtype.value)).to(xp.float32)

    return stored


# ------------------------------------------------------------------ errors


def row_error(actual: Array, expected: Array) -> float:
    """Largest error of a row of [B, H, N, D]; NaN where anything is NaN."""
    xp = library(expected)
    actual = wide(like(expected, actual), None)
    if 0 in expected.shape:
        return 0.0
    size = _norm(expected)
    typical = xp.sqrt((size**2).mean(-1))[..., None]
    typical = xp.where(typical < _VANISHING, expected.shape[-1] ** 0.5, typical)
    return float((_norm(actual - expected) / xp.maximum(size, typical)).max())


def _norm(x: Array) -> Array:
    return library(x).sqrt((x * x).sum(-1))


def lse_error(actual: Array, expected: Array) -> float:
    """The largest |found - expected| / max(1, |expected|) of arrays [B, H, rows]; equal infinities
    agree."""
    xp = library(expected)
    actual = wide(like(expected, actual), None)
    if 0 in expected.shape:
        return 0.0
    with np.errstate(invalid="ignore"):
        ratio = abs(actual - expected) / abs(expected).clip(1)
    return float(xp.where(actual == expected, 0.0, ratio).max())


class Judge:
    """Knows the right answer of a case and how far off a result may be."""

    def __init__(
        self, expected: Results, stepwise: Results | None, dout: Array | None = None
    ) -> None:
        """Args:
        expected: in fp64.
        stepwise: PyTorch's result in the case's dtype; None for fp32.
        dout: [B, Hq, rows, Dv], if dq must be judged by the out of the kernel."""
        self.expected, self._dout = expected, dout
        self.allowed = {"lse": SINGLE}
        """Largest error by part."""
        for part in ("out", "dq", "dk", "dv"):
            right = getattr(expected, part)
            if right is None:
                continue
            near = 0.0
            if stepwise is not None:
                near = row_error(getattr(stepwise, part), self._right(part, stepwise.out))
            self.allowed[part] = max(SINGLE, 2 * near)

    def _right(self, part: str, out: Array | None) -> Array:
        """Return the expected value of a part; for dq and dk, given this out."""
        right, slide = getattr(self.expected, part), self.expected.slide
        if part not in ("dq", "dk") or out is None or slide is None or self._dout is None:
            return right
        off = wide(like(right, out), None) - self.expected.out
        more = (wide(like(right, self._dout), None) * off).sum(-1)
        if part == "dq":
            return right - more[..., None] * slide
        return right if self.expected.slide_keys is None else right - self.expected.slide_keys(more)

    def verdict(self, out_read: Array | None = None, **actual: Array) -> CaseVerdict:
        """Judge parts of a result by name: out, lse, dq, dk, dv.

        Args:
            out_read: the out that a backward read, [B, Hq, rows, Dv].
        """
        errors = {
            part: lse_error(values, self.expected.lse) if part == "lse"
            else row_error(values, self._right(part, out_read))
            for part, values in actual.items()
        }  # fmt: skip
        ok = all(error <= self.allowed[part] for part, error in errors.items())
        return CaseVerdict(float(np.max(list(errors.values()))), ok)


def make_judge(
    case: Case, tensors: CaseTensors, rows: np.ndarray, keep: Keep, backward: bool
) -> Judge:
    """Make the judge of sampled rows.

    Args:
        rows: int64 [rows], ascending.
        keep: which keys they see, by batch and head: bool [rows, n_kv].
        backward: whether it judges gradients too.
    """
    expected = attend(case, tensors, rows, keep, backward, None)
    half = case.dtype is not DType.float32
    stepwise = attend(case, tensors, rows, keep, backward, case.dtype) if half else None
    return Judge(expected, stepwise, tensors.dout[:, :, rows.tolist()] if backward else None)


def judged_forward(judge: Judge, rows: np.ndarray, result: Any) -> CaseVerdict:
    """Judge what a forward pass returned: out [B, H, n_q, Dv], or (out, lse [B, H, n_q]).

    Args:
        rows: int64 [rows]: the queries that the judge knows.
    """
    out, lse = result if isinstance(result, tuple) else (result, None)
    index = rows.tolist()
    parts = {"out": out[:, :, index]}
    if lse is not None:
        parts["lse"] = lse[:, :, index]
    return judge.verdict(**parts)


def judged_backward(
    judge: Judge,
    rows: np.ndarray,
    tensors: CaseTensors,
    backward: Callable[[Any], tuple[Any, ...]],
    out: Any = None,
) -> CaseVerdict:
    """Run a backward on the sampled rows' gradient and judge it.

    Args:
        out: what it reads, [B, Hq, Nq, Dv]; None: the exact one.
    """
    dq, dk, dv = backward(only_rows(tensors.dout, rows))
    index = rows.tolist()
    read = None if out is None else out[:, :, index]
    return judge.verdict(read, dq=dq[:, :, index], dk=dk, dv=dv)


def worst(verdicts: list[CaseVerdict]) -> CaseVerdict:
    """The verdict on all of them."""
    errors = [verdict.error for verdict in verdicts]
    return CaseVerdict(float(np.max(errors)), all(verdict.ok for verdict in verdicts))
