"""One table of cases that the emulator and a card run.

The emulator runs few and small ones, whose sources NVRTC reads as well; a card runs all, at more
lengths. What a card finds wrong then has a name in the emulator. Tests draw names from a table and
look up the rest, so that a test id says the same for each engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import maskc as mc
from maskc import Mask

EMULATOR, CARD = "emulator", "card"


class Case(NamedTuple):
    """A mask, what draws its data by keyword, and who runs it."""

    mask: Mask
    makers: Mapping[str, Callable[[np.random.Generator], Any]]
    engines: tuple[str, ...] = (EMULATOR, CARD)

    def drawn(self, seed: int) -> tuple[Mask, dict[str, Any]]:
        """The mask and its data."""
        rng = np.random.default_rng(seed)
        return self.mask, {name: maker(rng) for name, maker in self.makers.items()}


def case(mask: Mask, **makers: Callable[[np.random.Generator], Any]) -> Case:
    """A case that both engines run."""
    return Case(mask, makers)


def plain(both: dict[str, Mask], emulator: dict[str, Mask], card: dict[str, Mask]) -> dict:
    """A table of masks without data, by who runs them."""
    tables = ((both, (EMULATOR, CARD)), (emulator, (EMULATOR,)), (card, (CARD,)))
    return {name: Case(mask, {}, who) for table, who in tables for name, mask in table.items()}


def masks(table: Mapping[str, Case], engine: str) -> dict[str, Mask]:
    """The masks that an engine runs, by name."""
    return {name: one.mask for name, one in table.items() if engine in one.engines}


CAUSAL = mc.causal()
RANGES = [mc.full(), CAUSAL, mc.window(100, 20), mc.prefix(77)]
"""Masks whose tiles are ranges."""

FEATURES = {
    "softcap": ((), {"softcap": 2.5}),
    "alibi": (("alibi_slopes",), {}),
    "sinks": (("sink_logits",), {}),
    "all": (("alibi_slopes", "sink_logits"), {"softcap": 2.5}),
    "negative scale": (("sink_logits",), {"scale": -0.3}),
    "zero scale": ((), {"scale": 0.0}),
    "small scale": ((), {"scale": 1e-6}),
    "negative scale, all": (("alibi_slopes", "sink_logits"), {"softcap": 2.5, "scale": -0.3}),
    "zero scale, all": (("alibi_slopes", "sink_logits"), {"softcap": 2.5, "scale": 0.0}),
}
"""Inputs per head, and options, of calls."""

# ------------------------------------------------------------------ lists of tiles from data

N = 300
"""Tokens of the data below, of two sequences."""


def lengths(rng, batch=2, n=N):
    return rng.integers(n // 8, n + 1, (batch, 1))


def padding(rng):
    return np.arange(N) < lengths(rng)


def ends(rng):
    return np.zeros((2, N), int), np.broadcast_to(lengths(rng), (2, N)).copy()


def ids(rng, mean=40):
    return np.stack([np.repeat(np.arange(60), rng.integers(1, 2 * mean, 60))[:N] for _ in range(2)])


def spans(rng):
    """Where each token's image ends, or the token itself."""
    out = np.stack([np.arange(N)] * 2)
    for row in out:
        for first in range(10, N - 40, 70):
            row[first : first + 30] = first + 29
    return np.zeros_like(out), out + 1


def walk(rng):
    return tuple(np.stack(x) for x in zip(*(times(rng) for _ in range(2)), strict=True))


def times(rng):
    last = np.arange(N)
    path: list[int] = []
    for i in range(N):
        while path and rng.random() < 0.1:
            last[path.pop()] = i - 1
        path.append(i)
    last[path] = N - 1
    return np.arange(N), last + 1


def places(rng):
    """Where tokens stand, in no order."""
    return rng.permuted(np.tile(np.arange(N), (2, 1)), axis=1)


def tables(rng):
    """The first head's last rows are dead, and one column of the others in the second sequence."""
    kept = rng.random((2, 4, 5, 5)) < 0.4
    kept[:, 0, 3:], kept[1, 1:, :, 1] = False, False
    return kept


_POOL = mc.positions(q="at", k="position")
_FAR = [-280, -211, -140, -73, -5, 64, 139, 201, 283]
_TABLE, _DOCUMENTS = mc.block_table("x", 64) & CAUSAL, mc.documents("x") & CAUSAL
_PADDED = mc.flags("x") & CAUSAL
LISTS = {
    "pages of a pool": case(
        mc.documents("x") & mc.causal(at=_POOL), x=ids, at=places, position=places),
    "distances off the grid, or flagged keys": case(
        mc.offsets(_FAR) | mc.flags("x") & mc.window(20), x=lambda rng: rng.random((2, N)) < 0.05),
    "a window of positions": case(mc.window(40, at=_POOL), at=places, position=places),
    "padding flags": case(_PADDED, x=padding),
    "padding of both sides": case(mc.flags("x") & mc.flags("x", on="q") & CAUSAL, x=padding),
    "padding intervals": case(mc.intervals("x") & CAUSAL, x=ends),
    "prefix": case(mc.intervals("x") | CAUSAL, x=ends),
    "padding, documents and a window": case(
        mc.flags("pad") & mc.documents("doc") & mc.window(100), pad=padding, doc=ids),
    "images in a window": case(mc.window(100) | mc.intervals("x") & mc.window(100, 100), x=spans),
    "tree": case(mc.tree("x"), x=walk),
    "block table": case(_TABLE, x=lambda rng: rng.random((2, 1, 5, 5)) < 0.4),
    "flagged keys and a window": case(
        CAUSAL & (mc.window(50) | mc.flags("x")), x=lambda rng: rng.random((2, N)) < 0.01),
}  # fmt: skip
LISTS_OF_TARGETS = LISTS | {
    "documents": case(_DOCUMENTS, x=ids),
    "lengths of documents": case(
        _DOCUMENTS, x=lambda _: mc.cu_seqlens(np.array([0, 70, 90, N], np.int32))),
}  # fmt: skip
"""Lists that every target makes in one way."""
_PAD = mc.flags("pad") & CAUSAL
_MASKS = [_PAD, mc.flags("pad") & mc.window(70), mc.intervals("x") | CAUSAL, mc.window(40)]
LISTS_BY_HEAD = {
    "tables": case(_TABLE, x=tables),
    "tables of all sequences": case(_TABLE, x=lambda rng: rng.random((4, 5, 5)) < 0.4),
    "masks": case(mc.per_head(_MASKS), pad=padding, x=ends),
    "two masks": case(
        mc.per_head([_PAD] * 2 + [mc.documents("x") & mc.window(90)] * 2), pad=padding, x=ids),
}  # fmt: skip
"""Heads with lists of their own."""

# ------------------------------------------------------------------ documents

_DOC = mc.documents("doc")
DOCUMENTS = plain(
    {"full": _DOC, "causal": _DOC & CAUSAL},
    {"short sinks": _DOC & CAUSAL & (mc.window(20) | mc.sinks(5))},
    {
        "window": _DOC & mc.window(100, 30),
        "sinks": _DOC & (mc.window(200) | mc.sinks(5)) & CAUSAL,
        "few": _DOC & mc.prefix(150),
        "nothing": _DOC - mc.prefix(1 << 20),
    },
)

# ------------------------------------------------------------------ E4M3

_BLIND = mc.where(lambda q, k: q % 3 > 0)
"""Every third query has no key, in tiles that are live."""
FP8 = plain(
    {
        "full": mc.full(),
        "blind": CAUSAL & (mc.window(30) | mc.sinks(2)) & _BLIND,
        "dilated": CAUSAL & mc.dilated(100, stride=3),
        "pairs": mc.where(lambda q, k: (q * 7 + k * 3) % 5 < 2),
        "heads": mc.per_head([CAUSAL & mc.window(50), CAUSAL, mc.full(), CAUSAL & mc.sinks(8)]),
    },
    {
        "sinks": CAUSAL & (mc.sinks(4) | mc.window(40)),
        "blocks": mc.random_blocks(64, 1, 1) | mc.window(20),
        "documents": CAUSAL & _DOC,
    },
    {
        "causal": CAUSAL,
        "prefix": CAUSAL | mc.prefix(300),
        "strided": CAUSAL & (mc.window(63) | mc.strided(64)),
        "chunked": mc.chunked(192),
        "bigbird": mc.random_blocks(64, 3, 1) | mc.window(64) | mc.global_tokens(64),
    },
)

# ------------------------------------------------------------------ blocks chosen by q and k

_OF_HEADS = [
    mc.topk(1, CAUSAL, score="block_mean", block=64), CAUSAL, mc.topk(3, mc.full(), block=16),
    mc.window(9) ^ mc.topk(1, mc.full(), block=128),
]  # fmt: skip
SELECTIONS = plain(
    {
        "moba": mc.chunked(32) | mc.topk(2, CAUSAL, score="block_mean", block=32),
        "without": CAUSAL - mc.topk(1, CAUSAL, score="given", block=64),
        "heads": mc.per_head(_OF_HEADS),
    },
    {
        "union": mc.topk(1, CAUSAL, block=64) | mc.window(40) | mc.sinks(3),
        "xor": mc.window(9) ^ mc.topk(1, mc.full(), block=128, q_block=16, share="group"),
        "two": mc.topk(1, CAUSAL, block=16) & mc.topk(2, CAUSAL, score="given", block=64),
    },
    {
        "given": mc.topk(3, CAUSAL, score="given", block=64, q_block=64) | mc.window(40),
        "group": mc.topk(2, mc.full(), score="given", block=16, q_block=8, share="group"),
        "indexer": mc.topk(2, CAUSAL, score="indexer", block=32, share="all") | mc.sinks(1),
        "products": mc.topk(2, mc.window(90), block=16, q_block=2),
    },
)

# ------------------------------------------------------------------ tiles of 16 x 16

_BLOCKS, _SOME = mc.block_diagonal(16), mc.where(lambda q, k: (q // 16 % 2 == 0) & (q % 5 > 0))
TINY_ALONE = plain(
    {
        "blocks of 16": _BLOCKS,
        "blocks of 4": mc.block_diagonal(4),
        "gaps": mc.block_diagonal(8) & mc.where(lambda q, k: (q + k) % 3 > 0),
        "empty rows": _BLOCKS & _SOME,
    }, {}, {},
)  # fmt: skip
"""Each tile of queries and each of keys has one tile at most: both passes take these kernels."""
TINY = TINY_ALONE | plain(
    {
        "both sides": mc.window(20, 9),
        "blocks of 32": mc.block_diagonal(32),
        "blocks across tiles": mc.block_diagonal(12),
    },
    {"three keys": mc.window(3)},
    {"window": mc.window(15)},
)
