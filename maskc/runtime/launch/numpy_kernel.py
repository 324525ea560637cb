"""Kernels in NumPy over the same tiles, for machines without a C compiler: exact, and much slower.

It reads the argument block of a compiled kernel, so the rest of the package cannot tell the
difference. The row of a masked key never affects a query, even if it is not finite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.abi import MAX_ARRAYS, Numbers, Pointers
from maskc.core.bundle import Bundle, Variant
from maskc.core.dtypes import DType
from maskc.core.evaluator import evaluate
from maskc.core.listed import TOKEN_K, TOKEN_Q
from maskc.core.problem import Direction, Feature, Features, TileShape
from maskc.dispatch.tables import Tables
from maskc.layout import best, sequence_arrays
from maskc.runtime.arrays.memory import CODES, at, load, store
from maskc.runtime.launch.numpy_entmax import log_sum, weigh
from maskc.runtime.launch.prepared import HostKernel, PreparedLaunch, Sent, filled

_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10}
"""Relative rounding error of storage precision, with respect to the terms of a sum; see
`_delta`."""

_WHOLE = 2.0**-12
"""Total weight that a row may lack without changing delta by more than the rounding of `out`."""


class FallbackWarning(UserWarning):
    """A mask runs in NumPy because no C compiler works; results are the same."""


# ------------------------------------------------------------------ arithmetic


def _product(weights: np.ndarray, seen: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """weights @ rows, where an unseen row contributes nothing even if it is not finite.

    Args:
        weights: fp32 [n, m], 0 where not seen.
        seen: bool [n, m].
        rows: fp32 [m, d].
    """
    wild = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    tame = rows
    if len(wild):
        tame = rows.copy()
        tame[wild] = 0
    total: np.ndarray = weights @ tame
    for index in wild:
        total += np.where(seen[:, index, None], weights[:, index, None] * rows[index], 0)
    return total


def _delta(
    of_out: np.ndarray, of_keys: np.ndarray, weights: np.ndarray, dtype: DType
) -> np.ndarray:
    """Return delta of a row: summed over its keys if `out` comes from these keys only and agrees
    within rounding, otherwise summed over `out`.

    Args:
        of_out: fp32 [n, dv], dout * out.
        of_keys: fp32 [n, m], p * (dout . v).
        weights: fp32 [n], total weight of all keys and the sink; 1 if there are no other keys.
    """
    rounded, exact = of_out.sum(axis=1), of_keys.sum(axis=1)
    most = _ROUNDING.get(dtype.name, 0.0) * np.abs(of_out).sum(axis=1)
    whole = np.abs(weights - 1) <= _WHOLE
    delta: np.ndarray = np.where(whole & (np.abs(exact - rounded) <= most), exact, rounded)
    return delta


@dataclass(frozen=True, eq=False)
class _RowTile:
    """One tile row of one head: the keys of its live tiles, and which pairs are kept."""

    queries: slice
    keys: np.ndarray
    """int [m], ascending."""
    seen: np.ndarray
    """bool [queries, m]."""
    distance: np.ndarray
    """fp32 [queries, m], |p - k|."""


@dataclass(frozen=True, eq=False)
class _Scores:
    """Scores of a row tile and what the backward needs of them."""

    s: np.ndarray
    """fp32 [queries, keys], -inf where not seen."""
    slope: np.ndarray | float
    """Derivative of the soft-cap at each score."""
    distance: np.ndarray
    """|p - k|."""


class NumPyKernel(HostKernel):
    """Stands in for CpuKernel."""

    name = "NumPy"

    def __init__(self, bundle: Bundle, tile: TileShape, features: Features) -> None:
        self._bundle, self._tile, self._features = bundle, tile, features

    best = staticmethod(best)

    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Run one pass over the memory the pointers name."""
        block = filled(sent, pointers, numbers)
        forward = plan.direction is Direction.forward
        run: Callable[[_Pass], None] = _backward
        if forward:
            run = _entmax if Feature.entmax in self._features else _forward
        with np.errstate(all="ignore"):
            run(_Pass(self._bundle, self._tile, self._features, block, plan.tables, plan.params))


class _Pass:
    """The arrays of one call and its walk over heads and tile rows."""

    def __init__(
        self, bundle: Bundle, tile: TileShape, features: Features, block: ctypes.Structure,
        tables: Tables, params: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.bundle, self.tile, self.features = bundle, tile, features
        self.block, self.tables, self.params = block, tables, params
        self.dtype = bundle.problem.dtype
        self.parts = dict(tables.parts)
        self.group = block.heads_q // max(block.heads_kv, 1)

    def tensor(self, name: str) -> np.ndarray:
        """q, k, v, out, dout, dq, dk or dv as stored: [batch, heads, tokens, dim]."""
        block, problem = self.block, self.bundle.problem
        of_keys = name in ("k", "v", "dk", "dv")
        wide = problem.head_dim_v if name in ("v", "dv", "out", "dout") else problem.head_dim
        heads, tokens = (block.heads_kv, block.n_kv) if of_keys else (block.heads_q, block.n_q)
        strides = (*getattr(block, f"{name}_stride"), 1)
        shape = (block.batch, heads, tokens, wide)
        return at(getattr(block, name), shape, strides, CODES[self.dtype])

    def single(self, name: str) -> np.ndarray:
        """lse [batch, heads, queries], or a vector [heads]; fp32."""
        block = self.block
        if name == "lse":
            shape = (block.batch, block.heads_q, block.n_q)
            return at(block.lse, shape, tuple(block.lse_stride), "f4")
        return at(getattr(block, name), (block.heads_q,), (1,), "f4")

    def keep(self, gradient: np.ndarray, into: np.ndarray) -> None:
        """Write a gradient, or add it to that of other keys."""
        store(
            gradient + load(into, self.dtype) if self.block.accumulates else gradient,
            into,
            self.dtype,
        )

    def heads(self) -> Iterator[tuple[int, int]]:
        yield from np.ndindex(self.block.batch, self.block.heads_q)

    def row_tiles(self, batch: int, head: int) -> Iterator[_RowTile]:
        """The tile rows of a head, in order."""
        block, tile = self.block, self.tile
        of_head = self.parts.get("head_variant")
        case = int(of_head[head]) if of_head is not None else 0
        variant = self._variant(case, head)
        pointers, entries = self.parts["row_ptr"].reshape(-1), self.parts["row_tiles"]
        first = (batch * block.list_batch + case) * (block.tile_rows + 1)
        env = {**self.params, "n_q": block.n_q, "n_kv": block.n_kv}
        env |= sequence_arrays(variant.recipe(self.tile), self.tables.arrays, batch, head)
        for row in range(block.tile_rows):
            listed = entries[pointers[first + row] : pointers[first + row + 1]]
            queries = np.arange(row * tile.q, min((row + 1) * tile.q, block.n_q))
            keys = (listed[:, None] // 2 * tile.k + np.arange(tile.k)).ravel()
            full = np.repeat(listed % 2 == 1, tile.k)[keys < block.n_kv]
            keys = keys[keys < block.n_kv]
            seen = np.ones((len(queries), len(keys)), dtype=bool)
            if not full.all():
                kept = evaluate(
                    variant.keep, {**env, "q": queries[:, None], "k": keys[None, ~full]}
                )
                seen[:, ~full] = kept
            rows = slice(row * tile.q, row * tile.q + len(queries))
            yield _RowTile(rows, keys, seen, self._distance(batch, queries, keys))

    def _distance(self, batch: int, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """|p - k| of rows and columns, which may be those of listed tokens."""
        block, behind = self.block, len(self.bundle.arrays)
        shift = block.n_kv - block.n_q
        if behind < MAX_ARRAYS and block.array_batch[behind]:  # a part of a mask
            shift = block.array_row[behind]
            keys = block.array_head[behind] + block.array_batch[behind] * keys
        for name in {TOKEN_Q, TOKEN_K}.intersection(self.bundle.arrays):
            tokens = np.atleast_2d(self.tables.arrays[name])
            of_sequence = tokens[batch if len(tokens) > 1 else 0]
            queries, keys = (
                (of_sequence[queries], keys) if name == TOKEN_Q else (queries, of_sequence[keys])
            )
        distance: np.ndarray = np.abs(queries[:, None] + shift - keys) * np.float32(block.spacing)
        return distance

    def _variant(self, case: int, head: int) -> Variant:
        """The mask of a head; where tables differ by head every head is a case of its own."""
        of_head = self.bundle.head_variant
        if any(slot.head for slot in self.tables.slots):
            case = of_head[head] if of_head else 0
        return self.bundle.variants[case]

    def scores(self, tile: _RowTile, q: np.ndarray, k: np.ndarray, head: int) -> _Scores:
        """Scores of fp32 rows q [n, d] against k [m, d]: scale, soft-cap, ALiBi, mask."""
        block = self.block
        s = np.float32(block.scale) * (q @ k.T)
        slope: np.ndarray | float = 1.0
        if Feature.softcap in self.features:
            capped = np.tanh(s / np.float32(block.softcap))
            s, slope = np.float32(block.softcap) * capped, 1 - capped * capped
        if Feature.alibi in self.features:
            s = s - self.single("alibi_slopes")[head] * tile.distance
        return _Scores(np.where(tile.seen, s, np.float32(-np.inf)), slope, tile.distance)


def _entmax(call: _Pass) -> None:
    q, k, v, out = (call.tensor(name) for name in ("q", "k", "v", "out"))
    lse, a = call.single("lse"), call.block.alpha_minus_1
    for batch, head in call.heads():
        kv = head // call.group
        for tile in call.row_tiles(batch, head):
            here = (batch, head, tile.queries)
            keys = load(k[batch, kv, tile.keys], call.dtype)
            s = call.scores(tile, load(q[here], call.dtype), keys, head).s.astype(np.float64)
            log_sums = log_sum(s, a).astype(np.float32)
            p = weigh(s, log_sums, a)[0].astype(np.float32)
            total = p.sum(axis=1)
            mixed = _product(p, p != 0, load(v[batch, kv, tile.keys], call.dtype))
            store(mixed / np.where(total == 0, 1, total)[:, None], out[here], call.dtype)
            lse[here] = np.where(total == 0, -np.inf, log_sums)


def _forward(call: _Pass) -> None:
    q, k, v, out = (call.tensor(name) for name in ("q", "k", "v", "out"))
    lse, sinks = call.single("lse"), call.single("sink_logits")
    with_sinks = Feature.sinks in call.features
    for batch, head in call.heads():
        kv = head // call.group
        for tile in call.row_tiles(batch, head):
            rows = load(q[batch, head, tile.queries], call.dtype)
            s = call.scores(tile, rows, load(k[batch, kv, tile.keys], call.dtype), head).s
            top = s.max(axis=1, initial=-np.inf)
            if with_sinks:
                top = np.maximum(top, sinks[head])
            base = np.where(np.isneginf(top), 0, top).astype(np.float32)
            weights = np.exp(s - base[:, None])
            total = weights.sum(axis=1)
            if with_sinks:
                total = total + np.exp(sinks[head] - base)
            mixed = _product(weights, tile.seen, load(v[batch, kv, tile.keys], call.dtype))
            here = (batch, head, tile.queries)
            if call.block.accumulates:  # what other keys gave counts as one key more
                before = np.where(np.isneginf(lse[here]), base, lse[here])
                logit = np.where(total == 0, before, np.maximum(base, before))
                shrink, share = np.exp(base - logit), np.exp(lse[here] - logit)
                base, total = logit, total * shrink + share
                mixed = mixed * shrink[:, None] + load(out[here], call.dtype) * share[:, None]
            mixed = mixed / np.where(total == 0, 1, total)[:, None]
            store(mixed, out[here], call.dtype)
            lse[here] = base + np.log(total)


def _backward(call: _Pass) -> None:
    names = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
    q, k, v, out, dout, dq, dk, dv = (call.tensor(name) for name in names)
    lse, dsink, dslopes = (call.single(name) for name in ("lse", "dsink", "dslopes"))
    sinks = call.single("sink_logits")
    sum_k = np.zeros(dk.shape, dtype=np.float32)
    sum_v = np.zeros(dv.shape, dtype=np.float32)
    for batch, head in call.heads():
        kv = head // call.group
        for tile in call.row_tiles(batch, head):
            here = (batch, head, tile.queries)
            rows, grads = load(q[here], call.dtype), load(dout[here], call.dtype)
            keys = load(k[batch, kv, tile.keys], call.dtype)
            values = load(v[batch, kv, tile.keys], call.dtype)
            scores = call.scores(tile, rows, keys, head)
            base = np.where(np.isneginf(lse[here]), np.inf, lse[here])  # weights are then 0
            dp = grads @ values.T
            if Feature.entmax in call.features:
                p, u = weigh(scores.s, base, call.block.alpha_minus_1)
                live = tile.seen & (u != 0)
                p, u = np.where(live, p, 0), np.where(live, u, 0)
                mass = u.sum(axis=1)
                delta = np.where(live, u * dp, 0).sum(axis=1) / np.where(mass == 0, 1, mass)
            else:
                live = tile.seen
                p = u = np.where(live, np.exp(scores.s - base[:, None]), 0)
                weights = p.sum(axis=1)
                if Feature.sinks in call.features:
                    weights = weights + np.exp(sinks[head] - base)
                of_out = load(out[here], call.dtype) * grads
                delta = _delta(of_out, np.where(live, p * dp, 0), weights, call.dtype)
            ds = np.where(live, u * (dp - delta[:, None]), 0)
            through = np.where(live, ds * scores.slope, 0) * np.float32(call.block.scale)
            call.keep(_product(through, live, keys), dq[here])
            sum_k[batch, kv, tile.keys] += _product(through.T, live.T, rows)
            sum_v[batch, kv, tile.keys] += _product(p.T, live.T, grads)
            if call.block.dslopes:
                dslopes[head] -= np.where(live, ds * scores.distance, 0).sum()
            if call.block.dsink:
                share = np.where(np.isneginf(lse[here]), 0, np.exp(sinks[head] - base))
                dsink[head] -= (share * delta).sum()
    call.keep(sum_k, dk)
    call.keep(sum_v, dv)
