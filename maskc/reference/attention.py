"""Attention over a set of pairs, and its gradients, row by row in float64.

A query q is at position p = q + n_kv - n_q. For the keys k that it sees, in this order:

- `s_k = scale * q . k`
- With a score formula (see `scores`): `s_k = formula(s_k, q, k, h, b)`
- With softcap: `s_k = softcap * tanh(s_k / softcap)`
- With ALiBi: `s_k = s_k - slope[h] * |p - k|`
- `lse = log(exp(sink[h]) + sum exp(s_k))`, the sink only with sink logits
- `out = sum exp(s_k - lse) * v_k`, with dropout each weight times its factor

With alpha above 1, weights and lse are those of alpha-entmax (see `entmax`).

A query that sees no key has out 0, lse -inf (the sink's logit with sinks) and gradient 0. Keys and
values a query does not see never touch it, whatever they hold; nor do, with entmax, values of
weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from maskc.reference.entmax import entmax
from maskc.reference.scores import ScoreOf, ScoreShare


@dataclass(frozen=True)
class _Options:
    scale: float
    alpha: float
    softcap: float | None
    slopes: np.ndarray | None
    sinks: np.ndarray | None
    score: ScoreOf | None


@dataclass(frozen=True)
class _Row:
    """One query on one head with the keys it sees; with entmax, the keys that have a weight."""

    at: tuple[int, int, int]
    """Batch, query head, query."""
    kv: tuple[int, int]
    """Batch, key/value head."""
    keys: np.ndarray
    """int64 [seen]."""
    weights: np.ndarray
    """float64 [seen]: their share of v."""
    slopes: np.ndarray
    """float64 [seen]: d weight / d score where lse stays."""
    pull: np.ndarray
    """float64 [seen]: d lse / d score."""
    lse: float
    of_sink: float
    """The weight of the sink."""
    slope_of_cap: np.ndarray | float
    """d softcap(x) / dx at each score, or of the formula."""
    distance: np.ndarray
    """int64 [seen]: |p - k|."""
    shares: tuple[ScoreShare, ...] = ()
    """The formula's table entries and their derivatives, [seen] each."""


@np.errstate(invalid="ignore", over="ignore")
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: np.ndarray | None = None,
    sink_logits: np.ndarray | None = None,
    alpha: float = 1.0,
    score: ScoreOf | None = None,
    dropout: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """softmax, or entmax, of (scale * q k^T restricted to the set), times v.

    Args:
        q: [B, Hq, Nq, D]; k: [B, Hkv, Nkv, D]; v: [B, Hkv, Nkv, Dv]; Hq a multiple of Hkv; any
            float dtype.
        mask: bool [Nq, Nkv], [Hq, Nq, Nkv] or anything 4-D that broadcasts to [B, Hq, Nq, Nkv].
        scale: D ** -0.5 when None.
        softcap: None or 0 is none.
        alibi_slopes, sink_logits: [Hq]; sinks with softmax only.
        alpha: 1 is softmax; up to 2, alpha-entmax.
        score: a score formula with its data.
        dropout: factors of the weights, [B, Hq, Nq, Nkv]; see `dropout.factors`.

    Returns:
        out float64 [B, Hq, Nq, Dv] and lse float64 [B, Hq, Nq].
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    options = _options(q, scale, alpha, softcap, alibi_slopes, sink_logits, score)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full(q.shape[:3], -np.inf)
    for row in _rows(q, k, mask, options):
        out[row.at] = (row.weights * _factors(dropout, row)) @ v[row.kv][row.keys]
        lse[row.at] = row.lse
    return out, lse


@np.errstate(invalid="ignore", over="ignore")
def gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    dout: np.ndarray,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: np.ndarray | None = None,
    sink_logits: np.ndarray | None = None,
    alpha: float = 1.0,
    score: ScoreOf | None = None,
    dropout: np.ndarray | None = None,
    dlse: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The gradients of sum(out * dout), and of sum(lse * dlse).

    Args:
        dout: [B, Hq, Nq, Dv]; dlse: [B, Hq, Nq]; the others as for `attention`.

    Returns:
        "dq", "dk", "dv" with the shapes of q, k, v; "dsink" [Hq] with sink logits and "dalibi"
        [Hq] with slopes; all float64. With a formula also the gradients of the real tables that it
        reads, by "d " and their names.
    """
    q, k, v, dout = (np.asarray(x).astype(np.float64) for x in (q, k, v, dout))
    options = _options(q, scale, alpha, softcap, alibi_slopes, sink_logits, score)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dsink, dalibi = np.zeros(q.shape[1]), np.zeros(q.shape[1])
    tables: dict[str, np.ndarray] = {}
    for row in _rows(q, k, mask, options):
        head = row.at[1]
        factors = _factors(dropout, row)
        dweights = factors * (v[row.kv][row.keys] @ dout[row.at])
        delta = row.pull @ dweights
        through_lse = 0.0 if dlse is None else dlse[row.at]
        dscores = row.slopes * (dweights - delta) + row.pull * through_lse
        dsink[head] += row.of_sink * (through_lse - delta)
        dalibi[head] -= dscores @ row.distance
        for share in row.shares:
            shape = score.shape(share.name) if score is not None else ()
            into = tables.setdefault(share.name, np.zeros(shape))
            shares = dscores * share.slope
            np.add.at(into, share.index, shares if share.index else shares.sum())
        dproducts = options.scale * dscores * row.slope_of_cap
        dq[row.at] = dproducts @ k[row.kv][row.keys]
        dk[row.kv][row.keys] += np.outer(dproducts, q[row.at])
        dv[row.kv][row.keys] += np.outer(row.weights * factors, dout[row.at])
    results: dict[str, np.ndarray] = {"dq": dq, "dk": dk, "dv": dv}
    if sink_logits is not None:
        results["dsink"] = dsink
    if alibi_slopes is not None:
        results["dalibi"] = dalibi
    return results | {f"d {name}": gradient for name, gradient in tables.items()}


def _factors(dropout: np.ndarray | None, row: _Row) -> np.ndarray | float:
    return 1.0 if dropout is None else dropout[row.at][row.keys]


def _options(
    q: np.ndarray, scale: float | None, alpha: float, softcap: float | None,
    slopes: np.ndarray | None, sinks: np.ndarray | None, score: ScoreOf | None,
) -> _Options:  # fmt: skip
    slopes, sinks = (
        None if x is None else np.asarray(x).astype(np.float64) for x in (slopes, sinks)
    )
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    return _Options(scale, alpha, softcap or None, slopes, sinks, score)


def _rows(q: np.ndarray, k: np.ndarray, mask: np.ndarray, options: _Options) -> Iterator[_Row]:
    batch, heads, n_q, _ = q.shape
    n_kv = k.shape[2]
    group = heads // k.shape[1]
    seen = np.broadcast_to(np.asarray(mask, dtype=bool), (batch, heads, n_q, n_kv))
    for b, h, i in np.ndindex(batch, heads, n_q):
        keys = np.flatnonzero(seen[b, h, i])
        distance = abs(i + n_kv - n_q - keys)
        scores = options.scale * (k[b, h // group][keys] @ q[b, h, i])
        slope_of_cap: np.ndarray | float = 1.0
        shares: tuple[ScoreShare, ...] = ()
        if options.score is not None:
            made = options.score(scores, i, keys, h, b)
            scores, slope_of_cap, shares = made.value, made.slope, made.shares
        if options.softcap is not None:
            bent = np.tanh(scores / options.softcap)
            scores, slope_of_cap = options.softcap * bent, 1.0 - bent**2
        if options.slopes is not None:
            scores = scores - options.slopes[h] * distance
        row = _row((b, h, i), (b, h // group), keys, scores, slope_of_cap, distance, options)
        yield replace(row, shares=_of_keys(shares, keys, row.keys)) if shares else row


def _of_keys(
    shares: tuple[ScoreShare, ...], keys: np.ndarray, kept: np.ndarray
) -> tuple[ScoreShare, ...]:
    """The shares of the keys that have a weight."""
    used = np.isin(keys, kept)
    return tuple(
        replace(x, index=tuple(place[used] for place in x.index), slope=x.slope[used])
        for x in shares
    )


def _row(
    at: tuple[int, int, int], kv: tuple[int, int], keys: np.ndarray, scores: np.ndarray,
    slope_of_cap: np.ndarray | float, distance: np.ndarray, options: _Options,
) -> _Row:  # fmt: skip
    """The weights of a row, from its scores."""
    if options.alpha > 1:
        weights, slopes, lse = entmax(scores, options.alpha)
        used = weights != 0
        weights, slopes, keys, distance = (x[used] for x in (weights, slopes, keys, distance))
        bent = np.broadcast_to(slope_of_cap, used.shape)[used]
        return _Row(at, kv, keys, weights, slopes, slopes / slopes.sum(), lse, 0.0, bent, distance)
    sink = -np.inf if options.sinks is None else options.sinks[at[1]]
    with_sink = np.append(scores, sink)
    shares, lse = _softmax(with_sink), log_sum_exp(with_sink)
    weights, of_sink = shares[:-1], float(shares[-1])
    return _Row(at, kv, keys, weights, weights, weights, lse, of_sink, slope_of_cap, distance)


def _softmax(scores: np.ndarray) -> np.ndarray:
    """The weights of scores, float64 [count]; all 0 where all scores are -inf.

    They are not computed from the log-sum-exp, in which scores far from 0 leave no digits for the
    sum.
    """
    top = np.max(scores)
    weights = np.zeros(len(scores)) if top == -np.inf else np.exp(scores - top)
    total = np.sum(weights)
    return weights if total == 0 else weights / total


def log_sum_exp(values: np.ndarray) -> float:
    """log(sum(exp(values))) of float64 [count]; -inf where there are none or all are -inf, NaN
    where one is."""
    top = np.max(values, initial=-np.inf)
    if top == -np.inf or np.isnan(top):
        return float(top)
    return float(top + np.log(np.sum(np.exp(values - top))))


# ------------------------------------------------------------------ parts of the keys


def merge(outs: Sequence[np.ndarray], lses: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Attention over the union of disjoint pieces, from the pieces' own results.

    Args:
        outs: float [..., N, Dv] each; lses: float [..., N] each.

    Returns:
        out float64 [..., N, Dv] and lse float64 [..., N]; where every piece is empty 0 and -inf.
    """
    out = np.zeros(outs[0].shape)
    lse = np.full(lses[0].shape, -np.inf)
    for row in np.ndindex(lse.shape):
        parts = np.array([float(piece[row]) for piece in lses])
        lse[row] = total = log_sum_exp(parts)
        for piece, part in zip(outs, parts, strict=True):
            if part > -np.inf or np.isnan(part):
                out[row] += np.exp(part - total) * piece[row].astype(np.float64)
    return out, lse
