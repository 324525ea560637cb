"""Is all that a call gives right, every query and key of every head? fp64 decides, with all that
changes the scores; what rounding may do is derived, not chosen.

A row of a part is a vector of D numbers; its size is its norm, or the root mean square of its
head's rows where that is more. Allowed in fp32: 1e-5 of the size, or the first-order bound of
`maskc.verify.stepwise` where that is more. In half precision: twice what PyTorch's operators are
off (the most of any row, relative to sizes), one rounding of the row, for cases so small that these
are exact by chance, and 2e-6 of its terms.

The gradients of sink logits and slopes are one number for each head, added up over all rows: they
are relative to the number, or to the root mean square of all heads where that is more. In half
precision they may be off by twice what PyTorch's operators are, and by four standard deviations of
what is rounded (see `stepwise`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify.judge import SINGLE, lse_error
from maskc.verify.stepwise import Steps, norms, stepwise

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
                None where there is no backward.
            dtype: what the kernel stores.
            options: scale, softcap, alibi_slopes, sink_logits.
        """
        self._dtype = dtype
        self.expected = stepwise(q, k, v, keep, dout, None, **options)
        self._near: Steps | None = None
        if dtype is not DType.float32:
            self._near = stepwise(q, k, v, keep, dout, dtype, **options)

    def error(self, part: str, found: np.ndarray) -> tuple[float, float]:
        """Measure a result against what is right, relative to its size, by its worst row.

        Args:
            part: `out`, `lse`, `dq`, `dk`, `dv`, `dsink` or `dalibi`.
            found: all of it, in the shape that it has in `Steps`.

        Returns:
            The error and what is allowed, of the row that has most of what it may have; the error
            is NaN where anything in the part is.
        """
        right = getattr(self.expected, part)
        if part == "lse":
            return lse_error(found, right), SINGLE
        if 0 in right.shape:
            return 0.0, SINGLE
        if part in ("dsink", "dalibi"):
            return self._of_heads(part, np.asarray(found, np.float64), right)
        own = norms(right)
        size = np.maximum(own, np.sqrt((own**2).mean(-1))[..., None])
        size = np.maximum(size, np.finfo(np.float64).tiny)
        if self._near is None:
            allowed = np.maximum(SINGLE, self.expected.single[part] / size)
        else:
            theirs = float((norms(getattr(self._near, part) - right) / size).max())
            near_0 = _SMALLEST[self._dtype] / 2 * right.shape[-1] ** 0.5  # no longer relative there
            rounded = np.maximum(_EPSILON[self._dtype] * own, near_0)
            allowed = 2 * theirs + (rounded + _SUMS * self.expected.terms[part]) / size
        off = norms(found - right) / size
        if not np.isfinite(off).all():
            return float("nan"), float(allowed.max())
        worst = (off / allowed).argmax()
        return float(off.flat[worst]), float(allowed.flat[worst])

    def _of_heads(self, part: str, found: np.ndarray, right: np.ndarray) -> tuple[float, float]:
        """The worst error of a number for each head, and what is allowed."""
        size = np.maximum(abs(right), np.sqrt((right**2).mean()))
        size = np.maximum(size, np.finfo(np.float64).tiny)
        allowed = np.maximum(SINGLE, self.expected.single[part] / size)
        if self._near is not None:
            theirs = float((abs(getattr(self._near, part) - right) / size).max())
            deviation = _EPSILON[self._dtype] / 3**0.5 * self.expected.spread[part]
            allowed = np.maximum(allowed, 2 * theirs + 4 * deviation / size)
        off = abs(found - right) / size
        if not np.isfinite(off).all():
            return float("nan"), float(allowed.max())
        worst = (off / allowed).argmax()
        return float(off[worst]), float(allowed[worst])
