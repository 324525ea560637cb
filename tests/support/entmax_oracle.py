"""alpha-entmax in fp64 by sorting, and how far fp32 may be from it, or from softmax (alpha 1).

The gradients of entmax are not continuous where a key enters the support: u = p^(2 - alpha) has an
infinite slope there for alpha above 1.5, and jumps from 0 to 1 for alpha 2. The gradient of a slope
of ALiBi sums terms that may cancel to a thousandth of them. What rounding of the scores can do to
these is therefore worked out pair by pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.reference.attention import attention, gradients

ROUNDING = {2: 2.0**-8, 4: 0.0}
"""Relative error of a stored result by bytes of an element: bfloat16's, which is float16's too."""


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """The projection of scores [n] onto the simplex (Martins and Astudillo, 2016, algorithm 1)."""
    falling = np.sort(scores)[::-1]
    count = np.arange(1, len(scores) + 1)
    size = count[1 + count * falling > np.cumsum(falling)][-1]
    return np.maximum(0, scores - (falling[:size].sum() - 1) / size)


def entmax15(scores: np.ndarray) -> np.ndarray:
    """Entmax with alpha 1.5 of scores [n] (Peters, Niculae and Martins, 2019, algorithm 2)."""
    falling = np.sort(scores / 2)[::-1]
    count = np.arange(1, len(scores) + 1)
    mean = np.cumsum(falling) / count
    spread = np.cumsum(falling**2) - count * mean**2
    tau = mean - np.sqrt(np.maximum(0, (1 - spread) / count))
    return np.maximum(0, scores / 2 - tau[np.flatnonzero(tau <= falling)[-1]]) ** 2


@dataclass
class Problem:
    """Tensors [B, H, N, D] and options of one call, as the reference takes them."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    seen: np.ndarray
    """bool, broadcasts to [B, Hq, Nq, Nkv]."""
    dout: np.ndarray
    alpha: float
    options: dict[str, object]

    def check_forward(self, out: np.ndarray, lse: np.ndarray, bound: float = 1e-5) -> None:
        """out and lse against the reference."""
        wanted, wanted_lse = attention(
            self.q, self.k, self.v, self.seen, alpha=self.alpha, **self.options
        )
        empty = np.isneginf(wanted_lse)
        np.testing.assert_array_equal(np.isneginf(lse), empty)
        largest = np.maximum(1, np.abs(wanted_lse[~empty]))
        assert (np.abs(lse[~empty] - wanted_lse[~empty]) <= 2e-6 * largest).all()
        assert not out[empty].any()
        self._check("out", out, wanted, bound, 0)

    def check_backward(self, found: dict[str, np.ndarray], bound: float = 1e-5) -> None:
        """Gradients by name against the reference."""
        wanted = gradients(
            self.q, self.k, self.v, self.seen, self.dout, alpha=self.alpha, **self.options
        )
        slack = self.slack()
        if self.alpha <= 1.5:
            slack = {"dalibi": slack["dalibi"]}
        for name, gradient in found.items():
            self._check(name, gradient, wanted[name], bound, slack.get(name, 0))

    def _check(self, name, found, wanted, bound, slack) -> None:
        largest = max(np.abs(wanted).max(initial=0), 1e-2)
        limit = bound * largest + ROUNDING[found.dtype.itemsize] * np.abs(wanted) + slack
        error = np.abs(found.astype(np.float64) - wanted)
        assert (error <= limit).all(), (name, (error - limit).max())

    def slack(self, rounding: float = 1e-6) -> dict[str, np.ndarray]:
        """Bound what scores off by `rounding` of the largest add to errors of dq, dk and dalibi.

        The last is a sum over all pairs times their distance. Errors of a row may all have one
        sign, as its lse's does; those of rows do not know of each other, nor do pairs of what
        rounding dout . v to fp32 adds.
        """
        q, k, v, dout = (x.astype(np.float64) for x in (self.q, self.k, self.v, self.dout))
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, 1), v.repeat(group, 1)
        scale = self.options.get("scale") or q.shape[3] ** -0.5
        distance = abs(np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
                       - np.arange(k.shape[2]))  # fmt: skip
        scores, bend = self._bent(scale * q @ k.swapaxes(2, 3), distance)
        scores = np.where(self.seen, scores, -np.inf)
        _, lse = attention(self.q, self.k, self.v, self.seen, alpha=self.alpha, **self.options)
        with np.errstate(invalid="ignore"):
            x = np.where(np.isinf(lse)[..., None], -np.inf, scores - lse[..., None])
        off = rounding * max(1, np.abs(scores[np.isfinite(scores)]).max(initial=0))
        low, u, high = self._slopes(x, off)
        error = np.maximum(high - u, u - low)
        size = np.abs(dout @ v.swapaxes(2, 3))
        mass = np.maximum(u.sum(-1, keepdims=True), 1e-300)
        size = size + (u * size).sum(-1, keepdims=True) / mass
        error = error * size + u * (error * size).sum(-1, keepdims=True) / mass
        rounded = 2.0**-24 * u * (np.abs(dout) @ np.abs(v).swapaxes(2, 3))
        off_by = (error * distance).sum(3) ** 2 + ((rounded * distance) ** 2).sum(3)
        dalibi = np.sqrt(off_by.sum((0, 2)))
        error *= scale * bend
        dk = error.swapaxes(2, 3) @ np.abs(q)
        dk = dk.reshape(dk.shape[0], self.k.shape[1], group, *dk.shape[2:]).sum(2)
        return {"dq": error @ np.abs(k), "dk": dk, "dalibi": dalibi}

    def _slopes(self, x: np.ndarray, off: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """p^(2 - alpha) of scores less their lse, and of those scores off by so much either way."""
        a = self.alpha - 1
        if a == 0:
            return tuple(np.exp(x + by) for by in (-off, 0, off))
        off *= min(1, 2 * a)
        return tuple(_power(1 + a * x + by, 1 / a - 1) for by in (-off, 0, off))

    def _bent(self, scores: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores with soft-cap and ALiBi, and the soft-cap's derivative at each."""
        bend = np.ones_like(scores)
        if cap := self.options.get("softcap"):
            bent = np.tanh(scores / cap)
            scores, bend = cap * bent, 1 - bent**2
        if (slopes := self.options.get("alibi_slopes")) is not None:
            scores = scores - slopes.astype(np.float64)[:, None, None] * distance
        return scores, bend


def _power(x: np.ndarray, exponent: float) -> np.ndarray:
    """x ** exponent above 0, else 0; also where the exponent is 0."""
    return np.where(x > 0, np.maximum(x, 1e-300) ** exponent, 0)
