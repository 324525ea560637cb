"""Score formulas by their names, each with its paper, and the functions to write others.

Pass a formula to `mask.compile(score=...)` or `mc.attention(score=...)`. Calls then pass its tables
by name, and torch tensors that require grad get their gradient. Distances are p - k with the
position p = q + n_kv - n_q, so the last query is aligned with the last key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec

import numpy as np

from maskc.core.data import check_name
from maskc.core.errors import NotAboveZero, NotPositive
from maskc.core.source import caller
from maskc.dsl.parameters import n_kv, n_q
from maskc.dsl.score_tracer import Score, score, table
from maskc.dsl.score_values import apply, choose, maximum, minimum

__all__ = [
    "alibi", "bias", "cos", "cosine", "distance_decay", "erf", "exp", "forget_gate", "gated_bias",
    "gelu", "kerple", "log", "maximum", "minimum", "relative", "sigmoid", "sin", "soft_cap", "sqrt",
    "swin", "t5", "tanh", "tanh_clip", "where",
]  # fmt: skip

# ------------------------------------------------------------------ functions


def where(condition: Any, then: Any, other: Any) -> Any:
    """Return `then` where the condition holds, and `other` elsewhere."""
    return choose(condition, then, other)


def exp(x: Any) -> Any:
    """Return e^x."""
    return apply("exp", x)


def log(x: Any) -> Any:
    """Return the natural logarithm of x. A score in x must be certainly positive."""
    return apply("log", x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of x."""
    return apply("tanh", x)


def sqrt(x: Any) -> Any:
    """Return the square root of x. A score in x must be certainly positive."""
    return apply("sqrt", x)


def sigmoid(x: Any) -> Any:
    """Return the logistic function 1 / (1 + e^-x)."""
    return apply("sigmoid", x)


def erf(x: Any) -> Any:
    """Return the error function of x."""
    return apply("erf", x)


def gelu(x: Any) -> Any:
    """Return x times the share of a normal distribution below x (Hendrycks and Gimpel, 2016)."""
    return apply("gelu", x)


def sin(x: Any) -> Any:
    """Return the sine of x, an angle in radians."""
    return apply("sin", x)


def cos(x: Any) -> Any:
    """Return the cosine of x, an angle in radians."""
    return apply("cos", x)


# ------------------------------------------------------------------ formulas


_P = ParamSpec("_P")
_PLAIN = {str, int, float, type(None)}


def _once(make: Callable[_P, Score]) -> Callable[_P, Score]:
    """Trace a formula once for each line of a program that calls `make`, as in a loop."""

    @lru_cache(maxsize=64)
    def kept(place: object, kinds: object, args: Any, kwargs: tuple[tuple[str, Any], ...]) -> Score:
        return make(*args, **dict(kwargs))

    @wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> Score:
        kinds = *map(type, args), *map(type, kwargs.values())
        if not _PLAIN.issuperset(kinds):
            return make(*args, **kwargs)
        return kept(caller(), kinds, args, tuple(kwargs.items()))

    return made


def _behind(q: Any, k: Any) -> Any:
    """Return the distance from a query back to a key, in tokens."""
    return q + (n_kv - n_q) - k


def _positive(what: str, name: str, value: Any) -> None:
    if not value > 0:
        raise NotPositive(what, name, value, at=caller())


def _above_zero(what: str, name: str, value: Any) -> None:
    if not value > 0:
        raise NotAboveZero(what, name, value, at=caller())


@_once
def soft_cap(cap: Any) -> Score:
    """cap * tanh(s / cap): scores stay within -cap .. cap (Gemma 2, Gemma Team, 2024).

    Args:
        cap: a positive number, or `mc.param("cap", 30.0)`.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotAboveZero: a number that is not above 0 (MC136).
    """
    if isinstance(cap, (int, float)):
        _above_zero("soft_cap", "cap", cap)
    return score(lambda s: cap * tanh(s / cap))


@_once
def tanh_clip(clip: Any = 10.0) -> Score:
    """clip * tanh(s): logits within -clip .. clip (Bello et al., Neural Combinatorial Optimization,
    2016).

    Args:
        clip: a positive number, or `mc.param("clip", 10.0)`.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotAboveZero: a number that is not above 0 (MC136).
    """
    if isinstance(clip, (int, float)):
        _above_zero("tanh_clip", "clip", clip)
    return score(lambda s: clip * tanh(s))


@_once
def alibi(slopes: str = "slopes", *, n_heads: int | None = None) -> Score:
    """s - slope[h] * |p - k| (Press, Smith and Lewis, Train Short, Test Long, 2022).

    Args:
        slopes: the keyword under which calls pass slopes [Hq].
        n_heads: query heads; then slopes are the paper's, 2 ** (-8 * (h + 1) / n_heads), and calls
            pass none.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotPositive: `n_heads` is not above 0 (MC102).
    """
    if n_heads is None:
        given = table(slopes)
        return score(lambda s, q, k, h: s - given[h] * abs(_behind(q, k)))
    _positive("alibi", "n_heads", n_heads)
    return score(
        lambda s, q, k, h: s - exp((h + 1) * (-8 * math.log(2) / n_heads)) * abs(_behind(q, k))
    )


@_once
def bias(name: str = "bias") -> Score:
    """s + bias[b, h, q, k], for a tensor [B, Hq, Nq, Nkv] that broadcasts.

    Args:
        name: the keyword under which calls pass the tensor. Dimensions of size 1, and missing
            leading dimensions, broadcast.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.
    """
    given = table(check_name(name, caller()))
    return score(lambda s, q, k, h, b: s + given[b, h, q, k])


@_once
def relative(name: str = "bias", *, furthest: int) -> Score:
    """s + bias[h, clip(p - k, -furthest, furthest) + furthest] (Shaw, Uszkoreit and Vaswani, 2018,
    with a number in place of a vector).

    Args:
        name: the keyword under which calls pass the table [Hq, 2 * furthest + 1].
        furthest: the distance from which on all share an entry.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotPositive: `furthest` is not above 0 (MC102).
    """
    _positive("relative", "furthest", furthest)
    given = table(name)
    return score(
        lambda s, q, k, h: (
            s + given[h, minimum(maximum(_behind(q, k), -furthest), furthest) + furthest]
        )
    )


def _t5_starts(buckets: int, furthest: int) -> list[int]:
    """The distance with which every bucket but the first begins, rounded as T5's own code rounds:
    in fp32, towards zero."""
    exact = buckets // 2
    distance = np.arange(furthest + 1)
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    large = exact + (ratio / np.float32(math.log(furthest / exact)) * (buckets - exact)).astype(int)
    bucket_of = np.where(distance < exact, distance, np.minimum(large, buckets - 1))
    return [int(np.argmax(bucket_of >= bucket)) for bucket in range(1, int(bucket_of[-1]) + 1)]


@_once
def t5(
    name: str = "bias", *, buckets: int = 32, furthest: int = 128, bidirectional: bool = False
) -> Score:
    """s + bias[bucket(k - p), h]: T5's relative position buckets (Raffel et al., 2020).

    T5 does not scale its scores: calls pass scale=1.

    Args:
        name: the keyword under which calls pass the table [buckets, Hq], T5's
            `relative_attention_bias.weight`.
        buckets: number of buckets. Half of them hold one distance each; the others hold ranges that
            grow up to `furthest`.
        furthest: the distance from which on all share the last bucket.
        bidirectional: whether keys after the query have their own buckets, as in the encoder;
            otherwise they share the first bucket.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotPositive: `buckets` below 4, or `furthest` not above half of them (MC102).
    """
    one_side = buckets // 2 if bidirectional else buckets
    _positive("t5", "buckets // 4" if bidirectional else "buckets // 2", one_side // 2)
    _positive("t5", f"furthest - {one_side // 2}", furthest - one_side // 2)
    given, exact = table(name), one_side // 2
    starts = _t5_starts(one_side, furthest)[exact:]  # of buckets before these each is a distance

    def formula(s: Any, q: Any, k: Any, h: Any) -> Any:
        behind = _behind(q, k)
        distance = abs(behind) if bidirectional else maximum(behind, 0)
        bucket = minimum(distance, exact) + ((behind < 0) * one_side if bidirectional else 0)
        for start in starts:
            bucket = bucket + (distance >= start) * 1
        return s + given[bucket, h]

    return score(formula)


@_once
def distance_decay(name: str = "decay") -> Score:
    """s + |p - k| * log(decay[h]): weights fall by a factor per token, as in retention (Sun et al.,
    Retentive Network, 2023).

    Args:
        name: the keyword under which calls pass the factors [Hq], above 0 and at most 1.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.
    """
    given = table(name)
    return score(lambda s, q, k, h: s + abs(_behind(q, k)) * log(given[h]))


@_once
def kerple(strength: str = "strength", rate: str = "rate") -> Score:
    """s - strength[h] * log(1 + rate[h] * |p - k|) (Chi et al., KERPLE, 2022).

    Args:
        strength, rate: the keywords under which calls pass both [Hq], above 0.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.
    """
    first, second = table(strength), table(rate)
    return score(lambda s, q, k, h: s - first[h] * log(1 + second[h] * abs(_behind(q, k))))


@_once
def swin(window: tuple[int, int], name: str = "bias") -> Score:
    """s + bias[place of k relative to q, h] inside a window (Liu et al., Swin Transformer, 2021).

    Tokens are those of one window, row by row: sequences have height * width tokens.

    Args:
        window: (height, width).
        name: the keyword under which calls pass the table
            [(2 * height - 1) * (2 * width - 1), Hq], Swin's `relative_position_bias_table`.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotPositive: a side that is not above 0 (MC102).
    """
    height, width = window
    _positive("swin", "height", height)
    _positive("swin", "width", width)
    given = table(name)
    return score(
        lambda s, q, k, h: (
            s
            + given[
                (q // width - k // width + height - 1) * (2 * width - 1)
                + (q % width - k % width + width - 1),
                h,
            ]
        )
    )


@_once
def cosine(name: str = "logit_scale", *, most: float = 100.0) -> Score:
    """s * min(exp(logit_scale[h]), most): cosine attention's temperature (Liu et al., Swin
    Transformer V2, 2022).

    Calls must pass normalised q and k, of length 1, and scale=1.

    Args:
        name: the keyword under which calls pass the logarithms [Hq].
        most: the largest factor.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotAboveZero: `most` is not above 0 (MC136).
    """
    _above_zero("cosine", "most", most)
    given = table(name)
    return score(lambda s, q, k, h: s * exp(minimum(given[h], math.log(most))))


@_once
def gated_bias(name: str = "bias", gate: str = "gate", *, furthest: int) -> Score:
    """s + sigmoid(gate[b, h, q]) * bias[h, clipped p - k]: a position bias that every query gates
    (Chi et al., XLM-E, 2022).

    Args:
        name: the keyword under which calls pass the table [Hq, 2 * furthest + 1].
        gate: the keyword of the gates before the sigmoid [B, Hq, Nq].
        furthest: the distance from which on all share an entry.

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.

    Raises:
        NotPositive: `furthest` is not above 0 (MC102).
    """
    _positive("gated_bias", "furthest", furthest)
    given, gates = table(name), table(gate)
    return score(
        lambda s, q, k, h, b: (
            s
            + sigmoid(gates[b, h, q])
            * given[h, minimum(maximum(_behind(q, k), -furthest), furthest) + furthest]
        )
    )


@_once
def forget_gate(name: str = "log_forget") -> Score:
    """s + c[b, h, q] - c[b, h, k] with c the running sum of log(sigmoid(f)): earlier keys are
    forgotten at a rate that depends on data (Lin et al., Forgetting Transformer, 2025).

    Queries and keys must be the same tokens, and the mask causal.

    Args:
        name: the keyword under which calls pass c [B, Hq, N].

    Returns:
        The score formula, for `score=` of `Mask.compile` and `attention`.
    """
    given = table(name)
    return score(lambda s, q, k, h, b: s + given[b, h, q] - given[b, h, k])
