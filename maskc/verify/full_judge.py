"""Check every query and key of every head of a call against fp64, with all that changes scores.

The allowed errors are derived from rounding, not chosen.

A row of a part (out, dq, dk, dv) is a vector of D numbers. Its size is its norm, or the root mean
square of its head's rows if that is larger. Results in fp32 may be off by 1e-5 of the size, or by
the first-order bound of `stepwise` if that is larger. In half precision they may be off by the sum
of:

- twice the error of PyTorch's operators, the largest of any row relative to sizes;
- one rounding of the row, for cases so small that PyTorch is exact by chance;
- 2e-6 of the row's terms.

The gradients of sink logits and slopes are one number for each head, added up over all rows. Their
errors are relative to the number, or to the root mean square of all heads if that is larger. Half
precision may be off by twice the error of PyTorch's operators, and by four standard deviations of
the rounded terms (see `stepwise`).

`stepwise` computes masked attention step by step. In fp64 it gives the right answer. In half
precision it gives the results of PyTorch's operators, the measure of a kernel's allowed error.

**How far off fp32 is.** Let u = 2^-24. Bounds are to first order in u. A sum of n products is off
by r(n) u times the sum of their absolute values, with r(n) = sqrt(n). Rounding errors go up as
often as down, and add up like a random walk (Higham and Mary, SIAM J. Sci. Comput. 41, 2019). The
worst case is n. A query has scores s and weights p = exp(s - lse). Its out is p v, dp = dout v^T,
delta = dout . out, ds = p (dp - delta), dq = ds k, dk = ds^T q and dv = p^T dout.

- A score is off by r(D) S u, with S = scale |q| |k|^T. Later steps (scaling for exp2, soft-cap,
  ALiBi, subtracting the maximum) add a few roundings of s and of the row's largest |s|.
- A weight has the relative error **a** u: a = r(D) S + 2 (|s| + largest) + 4. The sum of weights
  has the mean of a under p, and r(keys). So p has b = a + mean a + r(keys).
- A weight or an entry of ds below 2^-126 may be 0.
- out is off by p (b + r(keys)) |v|, and dp by r(Dv) |dout| |v|^T. delta is off by
  r(Dv) |dout| |out|, and by |dout| times the error of out.
- ds is off by p (b |dp - delta| + the errors of dp and delta + 2 (|dp| + |delta|)). With soft-cap
  this is multiplied by its slope 1 - t^2, t = tanh(s / cap), which is off by
  2 |t| r(D) S / cap + 8.
- dq is off by the error of ds times |k|, and by r(keys) |ds| |k|. The same holds for dk, over all
  rows of all heads that share the key. Last, dv is off by p b |dout| and r(rows) p |dout|.
- dsink is -sum of p_sink delta over the rows of a head and all sequences, with
  p_sink = exp(sink - lse). It is off by p_sink (b_sink |delta| + the error of delta), and by
  r(rows) p_sink |delta|.
- dalibi is -sum of p (dp - delta) d over rows and keys, with d = |p - k|. It is off by d times the
  error of ds before soft-cap and scale, and by r(rows keys) |ds| d.

**How far off half precision is if one number is a sum over all rows** (dsink, dalibi). out is
rounded, so delta of a row is off by the roundings of its terms dout out. They are independent,
evenly spread, and at most `step`, half a unit in the last place each. Their standard deviation is
step / sqrt(3). Rounded weights and dp add as much for every pair. `spread` is the root of the sum
of squares of all these terms, and four standard deviations are allowed.

Large scores and rows of many keys therefore have a larger bound, and nothing else has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify.judge import SINGLE, Results, lse_error, rounding

_UNIT = 2.0**-24
"""The rounding unit of fp32: half the distance from 1 to the next number."""
_FLUSHED = 2.0**-126 / _UNIT
"""Values below the least normal number may become 0; in units of `_UNIT`."""


@dataclass(frozen=True, eq=False)
class Steps(Results):
    """Results with what their errors are measured by, of each row [B, H, rows] of a part."""

    terms: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Norms of the sums of absolute values for each row. If a softmax is nearly one-hot, the terms
    of a gradient cancel, and the remainder is only as precise as the terms."""
    single: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Bound on the error of an fp32 computation, as a norm; for fp64 results only."""
    dsink: np.ndarray | None = None
    """[Hq], with sink logits."""
    dalibi: np.ndarray | None = None
    """[Hq], with slopes."""
    spread: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Root of the sum of squares of the rounding errors of dsink and dalibi [Hq]."""


@np.errstate(divide="ignore", invalid="ignore")
def stepwise(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keep: np.ndarray,
    dout: np.ndarray | None,
    dtype: DType | None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: np.ndarray | None = None,
    sink_logits: np.ndarray | None = None,
) -> Steps:
    """Attention and, given dout, its gradients.

    Args:
        dtype: every intermediate is rounded to it, and sums inside a product or a softmax are fp32;
            None computes all in fp64.
        q: fp32 [B, Hq, Nq, D]; k: [B, Hkv, Nkv, D]; v: [B, Hkv, Nkv, Dv]; dout: [B, Hq, Nq, Dv];
            values of the dtype.
        keep: bool [B, Hq, Nq, Nkv].
        scale, softcap, alibi_slopes [Hq], sink_logits [Hq]: as for a CompiledMask.
    """
    store, group = rounding(dtype), q.shape[1] // k.shape[1]
    real = np.dtype(np.float64 if dtype is None else np.float32).type
    n_q, n_kv = keep.shape[-2:]
    factor = real(q.shape[-1] ** -0.5 if scale is None else scale)
    r_d, r_v, r_rows = sqrt(q.shape[-1]), sqrt(v.shape[-1]), sqrt(n_q * group)
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), real), np.zeros(q.shape[:3], real)
    dq, dk, dv = (np.zeros(x.shape, real) for x in (q, k, v))
    sizes = {"out": lse.shape, "dq": lse.shape, "dk": k.shape[:3], "dv": k.shape[:3]}
    terms, single = ({part: np.zeros(shape) for part, shape in sizes.items()} for _ in range(2))
    by_head = _ByHead(q.shape[1], alibi_slopes is not None, sink_logits is not None)
    for b, shared in np.ndindex(k.shape[:2]):
        sums = {part: np.zeros((n_kv, x.shape[3])) for part, x in (("dk", k), ("dv", v))}
        errors = {part: np.zeros_like(x) for part, x in sums.items()}
        for h in range(shared * group, (shared + 1) * group):
            # What nobody sees, and who sees nothing, costs nothing: a long call has much of both.
            rows, keys = np.flatnonzero(keep[b, h].any(1)), np.flatnonzero(keep[b, h].any(0))
            sink = real(-np.inf if sink_logits is None else sink_logits[h])
            lse[b, h] = sink
            of_q = q[b, h, rows].astype(real)
            of_k, of_v = (x[b, shared, keys].astype(real) for x in (k, v))
            s = store(store(of_q @ of_k.T) * factor)
            bent: np.ndarray | None = None
            if softcap is not None:
                bent = store(np.tanh(store(s / real(softcap))))
                s = store(bent * real(softcap))
            if alibi_slopes is not None:
                distance = abs(rows[:, None] + n_kv - n_q - keys).astype(real)
                s = store(s - store(real(alibi_slopes[h]) * distance))
            s = np.where(keep[b, h][np.ix_(rows, keys)], s, real(-np.inf))
            base = np.maximum(s.max(1, initial=-np.inf), sink)[:, None]
            weights = np.exp(s - base)
            total = weights.sum(1) + np.exp(sink - base[:, 0])
            lse[b, h, rows] = base[:, 0] + np.log(total)
            p = store(weights / total[:, None])
            out_stored = store(p @ of_v)
            out[b, h, rows] = out_stored
            terms["out"][b, h, rows] = norms(p @ abs(of_v))
            off = None
            if dtype is None:
                spread = abs(factor) * (abs(of_q) @ abs(of_k).T)
                off = _Off(p, s, spread, base[:, 0], r_d)
                of_out = (off.weight + off.keys * p) @ abs(of_v)
                single["out"][b, h, rows] = _UNIT * norms(of_out)
            if dout is None:
                continue
            given = dout[b, h, rows].astype(real)
            dp = store(given @ of_v.T)
            delta = (given * out_stored).sum(1)[:, None]
            bend = real(1) if bent is None else 1 - bent**2
            raw = store(p * (dp - delta))
            ds = store(store(raw * bend) * factor)
            dq[b, h, rows] = store(ds @ of_k)
            dk[b, shared, keys] += ds.T @ of_q
            dv[b, shared, keys] += p.T @ given
            change = p * (abs(dp) + abs(delta)) * bend * abs(factor)
            terms["dq"][b, h, rows] = norms(change @ abs(of_k))
            rounded = np.sqrt(((given * out_stored) ** 2).sum(1))  # of delta
            at_sink = np.exp(sink - base[:, 0]) / total
            if sink_logits is not None:
                by_head.add("dsink", h, -at_sink * delta[:, 0], at_sink * rounded)
            if alibi_slopes is not None:
                whole = p * (abs(dp) + abs(delta)) * distance
                far = np.concatenate([whole.ravel(), (p * distance).sum(1) * rounded])
                by_head.add("dalibi", h, -raw * distance, far)
            sums["dk"][keys] += change.T @ abs(of_q)
            sums["dv"][keys] += p.T @ abs(given)
            if off is None:
                continue
            of_delta = (abs(given) * (r_v * abs(out_stored) + of_out)).sum(1)[:, None]
            of_dp = r_v * (abs(given) @ abs(of_v).T)
            of_ds = p * (of_dp + of_delta + 2 * (abs(dp) + abs(delta)))
            of_raw = of_ds + off.weight * abs(dp - delta)
            if sink_logits is not None:
                of_sink = at_sink * (off.sink(sink) * abs(delta[:, 0]) + of_delta[:, 0])
                by_head.single("dsink", h, of_sink)
            if alibi_slopes is not None:
                by_head.single("dalibi", h, (of_raw + _FLUSHED) * distance)
            of_ds = of_raw * bend + _FLUSHED
            if bent is not None and softcap is not None:
                slope = 2 * abs(bent) * r_d * off.spread / softcap + 8
                of_ds = of_ds + p * abs(dp - delta) * slope
            of_ds = of_ds * abs(factor)
            single["dq"][b, h, rows] = _UNIT * norms((of_ds + off.keys * abs(ds)) @ abs(of_k))
            errors["dk"][keys] += (of_ds + r_rows * abs(ds)).T @ abs(of_q)
            errors["dv"][keys] += (off.weight + r_rows * p).T @ abs(given)
        for part in ("dk", "dv"):
            terms[part][b, shared] = norms(sums[part])
            single[part][b, shared] = _UNIT * norms(errors[part])
    if dout is None:
        return Steps(out, lse, terms=terms, single=single)
    return Steps(
        out, lse, dq, store(dk), store(dv), terms=terms, single=single | by_head.errors(),
        dsink=by_head.found.get("dsink"), dalibi=by_head.found.get("dalibi"),
        spread=by_head.spreads(),
    )  # fmt: skip


class _ByHead:
    """Gradients of numbers that all rows of a head share, and what their errors are measured by."""

    def __init__(self, heads: int, alibi: bool, sinks: bool) -> None:
        names = ["dalibi"] * alibi + ["dsink"] * sinks
        self.found = {name: np.zeros(heads) for name in names}
        self._sizes, self._single, self._squares = (
            {name: np.zeros(heads) for name in names} for _ in range(3)
        )
        self._terms = dict.fromkeys(names, 0)

    def add(self, name: str, head: int, terms: np.ndarray, rounded: np.ndarray) -> None:
        """Add terms of the sum, and the sizes of intermediate rounded values."""
        self.found[name][head] += terms.sum(dtype=np.float64)
        self._sizes[name][head] += abs(terms).sum(dtype=np.float64)
        self._squares[name][head] += (rounded.astype(np.float64) ** 2).sum()
        self._terms[name] += terms.size

    def single(self, name: str, head: int, errors: np.ndarray) -> None:
        """Add the errors of terms in fp32, in units of `_UNIT`."""
        self._single[name][head] += errors.sum()

    def errors(self) -> dict[str, np.ndarray]:
        """Return bounds on the errors of an fp32 computation."""
        return {
            name: _UNIT * (self._single[name] + sqrt(self._terms[name]) * self._sizes[name])
            for name in self.found
        }

    def spreads(self) -> dict[str, np.ndarray]:
        """Return the root of the sum of squares of the rounding errors."""
        return {name: np.sqrt(squares) for name, squares in self._squares.items()}


def norms(x: np.ndarray) -> np.ndarray:
    """The norms of rows [..., D], in fp64."""
    norms_of_rows: np.ndarray = np.sqrt(np.einsum("...d,...d->...", x, x, dtype=np.float64))
    return norms_of_rows


class _Off:
    """Errors of the weights of some rows, [rows, keys], in units of `_UNIT`."""

    def __init__(
        self, p: np.ndarray, s: np.ndarray, spread: np.ndarray, base: np.ndarray, products: float
    ) -> None:
        """
        Args:
            p, s, spread: weights, scores and scale |q| |k|^T, [rows, keys].
            base: the largest score of each row, [rows].
            products: r(D).
        """
        seen = p > 0
        self.spread = spread
        self.keys = sqrt(max(p.shape[1], 1))
        sizes = np.where(seen, abs(np.where(seen, s, 0)), 0)
        largest = np.maximum(sizes.max(1, initial=0), abs(base))[:, None]
        bound = products * spread + 2 * (sizes + largest) + 4
        self._largest, self._mean = largest[:, 0], (p * bound).sum(1)
        self.weight = p * (bound + self._mean[:, None] + self.keys) + _FLUSHED

    def sink(self, logit: float) -> np.ndarray:
        """Relative errors [rows] of the weight of a sink's logit, which no product made."""
        bound = 2 * (abs(logit) + self._largest) + 4
        errors: np.ndarray = bound + self._mean + self.keys
        return errors


# ------------------------------------------------------------------ the judge


_SUMS = 2e-6
"""The share of its terms by which a sum in fp32 may be off, in half precision."""
_EPSILON = {DType.float16: 2**-11, DType.bfloat16: 2**-8}
_SMALLEST = {DType.float16: 2**-24, DType.bfloat16: 2**-133}
"""The least value above 0; what is nearer to 0 is rounded to a multiple of it."""


class FullJudge:
    """Knows the right answer of a call and how far off each row may be."""

    def __init__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray,
        dout: np.ndarray | None, dtype: DType, **options: Any,
    ) -> None:  # fmt: skip
        """Compute what is right.

        Args:
            q, k, v, keep, dout: [B, H, N, D] and bool [B, H, n_q, n_kv], as for `stepwise`; dout is
                None if there is no backward.
            dtype: what the kernel stores.
            options: scale, softcap, alibi_slopes, sink_logits.
        """
        self._dtype = dtype
        self.expected = stepwise(q, k, v, keep, dout, None, **options)
        self._near: Steps | None = None
        if dtype is not DType.float32:
            self._near = stepwise(q, k, v, keep, dout, dtype, **options)

    def error(self, part: str, actual: np.ndarray) -> tuple[float, float]:
        """Measure the worst row of a result against the right answer, relative to its size.

        Args:
            part: `out`, `lse`, `dq`, `dk`, `dv`, `dsink` or `dalibi`.
            actual: the whole result, in the shape that it has in `Steps`.

        Returns:
            The error and the allowance of the row with the largest ratio of both. The error is NaN
            if anything in the part is.
        """
        right = getattr(self.expected, part)
        if part == "lse":
            return lse_error(actual, right), SINGLE
        if 0 in right.shape:
            return 0.0, SINGLE
        by_head = part in ("dsink", "dalibi")
        norm = np.abs if by_head else norms
        size_of_rows = norm(right)
        size = np.maximum(size_of_rows, np.sqrt((size_of_rows**2).mean(-1))[..., None])
        # Rows that are 0 up to rounding, such as gradients of a single key, are measured by it.
        size = np.maximum(size, np.maximum(self.expected.single[part], np.finfo(np.float64).tiny))
        allowed = np.maximum(SINGLE, self.expected.single[part] / size)
        if self._near is not None:
            epsilon = _EPSILON[self._dtype]
            theirs = 2 * float((norm(getattr(self._near, part) - right) / size).max())
            if by_head:
                deviation = epsilon / 3**0.5 * self.expected.spread[part]
                allowed = np.maximum(allowed, theirs + 4 * deviation / size)
            else:
                near_0 = _SMALLEST[self._dtype] / 2 * right.shape[-1] ** 0.5  # not relative there
                rounded = np.maximum(epsilon * size_of_rows, near_0)
                allowed = theirs + (rounded + _SUMS * self.expected.terms[part]) / size
        off = norm(np.asarray(actual, np.float64) - right) / size
        if not np.isfinite(off).all():
            return float("nan"), float(allowed.max())
        worst = (off / allowed).argmax()
        return float(off.flat[worst]), float(allowed.flat[worst])
