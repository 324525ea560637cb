"""The keys and values that decoding must keep: some first ones, and a ring of the newest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maskc.analysis.retention import Unbounded, retention
from maskc.core import expr as E
from maskc.core.errors import (
    BadLength,
    CacheCall,
    CacheNotRagged,
    CacheReadsData,
    CacheUnbounded,
    CacheUndecided,
    DataShape,
)
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.layout import MAX_LENGTH
from maskc.dsl.combinators import prefix
from maskc.dsl.data_atoms import block_table, flags
from maskc.dsl.mask import Mask
from maskc.dsl.parameters import param
from maskc.dsl.slots import emptied
from maskc.ir.heads import heads_of
from maskc.ir.lowered import on_all_heads
from maskc.ir.sets import OPERATIONS, TooHard
from maskc.layout import check_lengths
from maskc.questions.mask_at_lengths import bound

_WRITTEN, _SEEN = "written", "seen"
Lengths = int | Sequence[int] | np.ndarray
"""Tokens so far: of all sequences, or of each, [B]."""


@dataclass(frozen=True)
class KVCache:
    """Slots for all keys that later queries may see, for sequences of any length.

    It holds no tensors. `slot` returns the slot of a new key and value. Compile `mask`, the mask
    over slots, for decoding. `given` returns the data that it needs at a length.
    """

    queries: int
    """The most new tokens of a call."""
    fixed: tuple[tuple[int, int], ...]
    """(first, last) of the runs of keys that have slots of their own, from slot 0 on."""
    ring: int
    """Slots of the ring after them, for the newest of the other keys."""
    all_seen: bool
    """Whether a new query sees every slot that was written, so that `mask` needs no table."""
    keeps: tuple[Expr, ...] = field(repr=False)
    """Formulas of the mask over q, k, n_q and n_kv: one for each head, or a single one."""
    ragged: bool = False
    """Whether sequences of a batch may have different lengths, so that `mask` reads of each which
    slots were written."""

    @property
    def slots(self) -> int:
        """All slots: the memory of one sequence and head, in keys."""
        return self.first_of_ring + self.ring

    @property
    def first_of_ring(self) -> int:
        """The first slot of the ring: the number of keys with permanent slots."""
        return sum(last - first + 1 for first, last in self.fixed)

    @property
    def mask(self) -> Mask:
        """The mask over slots in place of keys; it reads what `given` returns."""
        if not self.all_seen:
            return block_table(_SEEN, 1)
        return flags(_SEEN) if self.ragged else prefix(param(_WRITTEN, self.slots))

    def slot(self, k: object) -> np.ndarray:
        """Return the slots of keys; a new key replaces one that no later query sees.

        Args:
            k: integers of any shape: positions of keys from 0.

        Returns:
            int64, shaped like `k`.

        Raises:
            BadLength: a position is not an integer (MC306).
        """
        keys = np.asarray(k)
        if keys.size and keys.dtype.kind not in "iu":
            raise BadLength("k", MAX_LENGTH, keys.tolist(), at="k")
        keys = keys.astype(np.int64)
        start = self.first_of_ring
        slots = start + (keys - start) % self.ring
        before = 0
        for first, last in self.fixed:
            slots = np.where((keys >= first) & (keys <= last), before + keys - first, slots)
            before += last - first + 1
        return slots

    def positions(self, n: Lengths) -> np.ndarray:
        """Return the key in each slot after the first n keys were written.

        Returns:
            int64 [slots], or [B, slots] for one length per sequence; -1 for slots without a visible
            key.
        """
        if np.ndim(n):
            rows = [self.positions(length) for length in _checked(n)]
            return np.array(rows, np.int64).reshape(-1, self.slots)
        n = check_lengths(n, n)[0]
        start = self.first_of_ring
        runs = [np.arange(first, last + 1) for first, last in self.fixed]
        newest = n - 1 - (n - 1 - start - np.arange(self.ring)) % self.ring
        held = np.concatenate([*runs, newest])
        free = (held >= 0) & (held < n)
        return np.where(free & (self.slot(held) == np.arange(self.slots)), held, -1)

    def seen(self, n: Lengths, n_q: int = 1) -> np.ndarray:
        """Return which slots the last n_q of n tokens see.

        Args:
            n: tokens so far, the new ones included; their keys are in their slots. One length for
                all sequences, or integers [B], one for each.
            n_q: new tokens, which are the queries.

        Returns:
            bool [n_q, slots]; [heads, n_q, slots] where heads differ. With one length per sequence:
            [B, heads or 1, n_q, slots].

        Raises:
            CacheCall: n_q exceeds the `queries` of the cache, or n (MC643).
            BadLength: a length is not an integer, or out of range (MC306).
        """
        if np.ndim(n):
            rows = [self.seen(length, n_q) for length in _checked(n)]
            return np.array(rows, bool).reshape(len(rows), -1, n_q, self.slots)
        n_q, n = check_lengths(n_q, n)
        if not 1 <= n_q <= min(n, self.queries):
            raise CacheCall(self.queries, n_q, n, at="n_q")
        keys = self.positions(n)
        at = {"q": np.arange(n_q)[:, None], "k": keys, "n_q": n_q, "n_kv": n}
        masks = [
            np.broadcast_to(evaluate(keep, at) & (keys >= 0), (n_q, self.slots))
            for keep in self.keeps
        ]
        return masks[0] if len(masks) == 1 else np.stack(masks)

    def given(self, n: Lengths, n_q: int = 1) -> Mapping[str, object]:
        """Return the data of `mask` for a call, by name. Arguments and errors are those of `seen`.

        Raises:
            CacheNotRagged: lengths differ, and the cache was made for equal ones (MC433).
        """
        if not self.all_seen:
            return {_SEEN: self.seen(n, n_q)}
        lengths = _checked(n) if np.ndim(n) else [check_lengths(n_q, n)[1]]
        if check_lengths(n_q, 0)[0] != 1 or min(lengths, default=1) < 1:
            raise CacheCall(self.queries, n_q, min(lengths), at="n_q")
        if self.ragged:
            return {_SEEN: self.positions(n) >= 0}
        if len(set(lengths)) > 1:
            raise CacheNotRagged(min(lengths), max(lengths), at="n")
        return {_WRITTEN: min(lengths[0] if lengths else 0, self.slots)}

    def __str__(self) -> str:
        """Describe the number of slots, the slot of each key, and why."""
        start, new = self.first_of_ring, "token" if self.queries == 1 else "tokens"
        runs = ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in self.fixed)
        lines = [f"{self.slots} slots at any length, for calls of at most {self.queries} new {new}"]
        if runs:
            lines.append(
                f"fixed   slots 0..{start - 1}: keys {runs}, which any later query may see"
            )
        where = f"{start} + (k - {start}) % {self.ring}" if start else f"k % {self.ring}"
        which = "other keys k" if runs else "key k"
        lines.append(f"ring    slots {start}..{self.slots - 1}: {which}, in slot {where}")
        other = f"{'is fixed or ' * bool(runs)}has k >= n - {self.ring}"
        lines.append(f"proof   a key that is seen at n tokens or later {other}, at all lengths")
        if self.all_seen:
            lines.append("seen    every slot that was written, so no slot is tested alone")
        else:
            kept = "; ".join(map(to_people, dict.fromkeys(self.keeps)))
            lines.append(f"seen    slots whose keys' positions satisfy {kept}")
        return "\n".join(lines)


def _checked(lengths: Lengths) -> list[int]:
    """The lengths of all sequences.

    Raises:
        BadLength: a length is not an integer, or out of range (MC306).
        DataShape: there are rows of lengths (MC303).
    """
    if np.ndim(lengths) > 1:
        raise DataShape("n", np.shape(lengths), "one length, or [sequences]", at="n")
    values: Any = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    return [check_lengths(length, 0)[0] for length in values]


def cache(
    mask: Mask, *, queries: int = 1, n_heads: int | None = None, ragged: bool = False,
    **params: object,
) -> KVCache:  # fmt: skip
    """See Mask.cache.

    Raises:
        CacheUnbounded: later queries may see more keys than any number of slots holds (MC640).
        CacheReadsData: what they see depends on data of later calls (MC641).
        CacheUndecided: no bound was proved, nor that there is none (MC642).
        CacheCall: a call may not have so many tokens (MC643).
    """
    queries = check_lengths(queries, 0)[0]
    at = getattr(mask, "loc", None)
    if queries < 1:
        raise CacheCall("any number of", queries, "n", at="queries")
    irs = on_all_heads(emptied(mask)[0], heads_of(mask, n_heads))
    if chosen := next((one.name for ir in irs for one in ir.selections), None):
        raise CacheReadsData(f"what {chosen} chooses", at=at)
    if data := sorted({decl.name for ir in irs for decl in ir.data}):
        raise CacheReadsData(f"the data {', '.join(data)}", at=at)
    values = bound(irs, 0, 0, params).params
    keeps = tuple(E.with_values(ir.keep, values) for ir in irs)
    try:
        kept = retention(tuple(dict.fromkeys(keeps)), queries)
    except TooHard:
        raise CacheUndecided(f"{OPERATIONS:,}", at=at) from None
    if isinstance(kept, Unbounded):
        raise CacheUnbounded(kept.reason, at=at)
    in_order = all(first == 0 for first, _ in kept.forever)  # then key k goes to slot k at first
    distinct = keeps if len(set(keeps)) > 1 else keeps[:1]
    all_seen = kept.all_seen and in_order
    return KVCache(queries, kept.forever, kept.newest, all_seen, distinct, ragged)
