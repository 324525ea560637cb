"""The data that a mask reads at call time: declarations of data atoms and parameters."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from maskc.core.attention_call import CallOptions
from maskc.core.captured import Captured
from maskc.core.errors import DataRange, ReservedName, with_article
from maskc.core.source import SourceLoc

SELECTING = ("return_selection", "indexer_loss")
"""Keywords of a call that ask about its selections."""
CALL = tuple(name for name in CallOptions._fields if name not in SELECTING)
"""Keywords of a call."""
CONVENTIONS = (
    "is_causal", "window_size", "enable_gqa", "layout", "cu_seqlens_q", "cu_seqlens_k",
    "cu_seqlens_q_padded", "cu_seqlens_k_padded",
    "max_seqlen",
)  # fmt: skip
"""Keywords of mc.attention that other libraries have too."""
BROUGHT = "cu_seqlens_q_and_k"
"""The internal name of the data from two arrays of cumulative lengths; calls do not pass it."""
QUESTION = ("n_q", "n_kv", "n_heads", "block", "head", "batch")
"""Keywords of questions about a mask: dense, count, layout."""

RESERVED = frozenset({
    "q", "k", "v", "h", "b", "out", "lse", "dout", *CALL, *SELECTING, *CONVENTIONS, *QUESTION,
    "heads_kv", "mask", "self", "min", "max", "abs", "param", "member", "score", "scores",
    "index_q", "index_k", "index_w", "ti", "tj",
})  # fmt: skip
"""Keywords of the calls and of questions, and words of the formula language, rows and columns of
tiles among them."""


class DataKind(Enum):
    """The declared shapes of data; N may carry a leading batch dimension."""

    documents = "documents"
    """ids, integer [N]; or (ids of queries, ids of keys); or mc.cu_seqlens(x)."""
    flags = "flags"
    """Booleans [n_kv]; on queries [n_q], or [n_kv], where each query reads the entry of its
    position."""
    intervals = "intervals"
    """(lo, hi), integers [n_q], or [n_kv], where each query reads the entry of its position. Query
    q sees keys lo[q] .. hi[q] - 1."""
    positions = "positions"
    """integers [n_q] of queries, or [n_kv] of keys: their positions."""
    tree = "tree"
    """(tin, tout), integers [N]: entry and exit times of a depth-first walk; or mc.parents(x)."""
    table = "table"
    """booleans [query blocks, key blocks], or [heads, query blocks, key blocks]."""
    key_lists = "key_lists"
    """integers [n_q, K], or [heads, n_q, K]: the keys of each query, -1 behind the last one."""
    random = "random"
    """computed: the block columns a seeded draw gives each block row."""
    constant = "constant"
    """an integer array captured by a formula; in a generated module known at compile time."""
    selection = "selection"
    """computed: the blocks that a run-time selection chose."""
    tokens = "tokens"
    """computed: the tokens whose rows a part of the mask has, see core/listed."""
    scoring = "scoring"
    """a floating-point tensor that a run-time selection ranks by; no formula reads it."""


_BY_SIDE = (DataKind.flags, DataKind.positions)
"""Kinds whose arrays are of queries or of keys."""
_SIDES = {DataKind.documents: "qk", DataKind.intervals: "qq", DataKind.tree: "kkq"}
"""By kind, the side of each array in `DataDecl.arrays`."""
BY_PAIR = (DataKind.table, DataKind.random, DataKind.selection, DataKind.key_lists)
"""Kinds that formulas read as a table of queries and keys, or of blocks of them."""
LISTED = (DataKind.selection, DataKind.key_lists)
"""Kinds with tables that list the ones of each row."""
_COMPUTED = (DataKind.random, DataKind.constant, DataKind.selection, DataKind.tokens)


@dataclass(frozen=True)
class DataDecl:
    """The declaration of one data atom of a mask."""

    name: str
    """The caller's keyword; for computed and captured arrays a derived identifier."""
    kind: DataKind
    arrays: tuple[str, ...]
    """Names by which formulas read it: `doc.q`, `doc.k`; `span.lo`, `span.hi`; ..."""
    block: int = 1
    """Tokens per entry of a table; keys per block of a selection."""
    options: tuple[int, ...] = ()
    """Options by kind. random: (per_row, seed, 1 when positions are aligned at the end, 0 at the
    start). flags: (1,) when indexed by queries, (2,) when by both. positions: (1,) for queries.
    selection: (queries per block,). documents, flags, intervals, tree: a further 1 if an array
    has an entry per token and the first query is the first token, instead of the last one the
    last. key_lists: (1,), as for a selection. constant: the number of indices, if `shape` does
    not tell."""
    values: bytes | Captured = b""
    """constant and compile-time tables: int32, little endian, C order; or the captured content of a
    formula. Empty if calls provide it, see `Held`."""
    shape: tuple[int, ...] = ()
    """Shape of `values`, where these are bytes."""
    most: int | None = None
    """flags: the most tokens of a sequence that are flagged, as the mask promises; None if it
    promises nothing."""
    held_as: tuple[str, ...] = ()
    """The captured array that provides each of `arrays`, by its name in `Held`; calls of other
    masks pass such arrays."""

    @property
    def rank(self) -> int:
        """The number of indices in a formula: 2 for tables, 1 for vectors."""
        if self.kind is DataKind.constant:
            return self.options[0] if self.options else len(self.shape)
        return 2 if self.kind in BY_PAIR else 1

    @property
    def on_queries(self) -> bool:
        """Whether flags, or positions, are indexed by queries."""
        return self.kind in _BY_SIDE and self.options[:1] == (1,)

    @property
    def from_start(self) -> bool:
        """Whether query q is token q, in arrays with an entry per token; else the last query is
        the last token."""
        return bool(self.options[int(self.kind in _BY_SIDE) :])

    @property
    def from_caller(self) -> bool:
        """Whether a call must pass it."""
        return self.kind not in _COMPUTED and not self.values and not self.held_as

    @property
    def held(self) -> bool:
        """Whether the mask brings it to every call, see `maskc.core.captured.Held`."""
        return bool(self.held_as) or (self.kind is DataKind.constant and not self.values)

    @property
    def sides(self) -> str:
        """Whether queries (q) or keys (k) index each of the arrays; empty for tables."""
        if self.kind in _BY_SIDE:
            return "q" if self.on_queries else "k"
        return _SIDES.get(self.kind, "")

    @property
    def array(self) -> np.ndarray:
        """The values as int32 of the declaration's shape, where it holds them."""
        if isinstance(self.values, Captured):
            return self.values.array
        return np.frombuffer(self.values, dtype="<i4").reshape(self.shape)


def renamed(decl: DataDecl, name: str) -> DataDecl:
    """The declaration under another name."""
    return decl if decl.name == name else replace(decl, name=name, arrays=(name,))


def constant(name: str, rank: int, values: Captured | bytes = b"") -> DataDecl:
    """The declaration of an array that a formula captured, without its content where a call brings
    that."""
    return DataDecl(name, DataKind.constant, (name,), options=(rank,), values=values)


def positions_of_queries(name: str) -> DataDecl:
    """The declaration of an integer of each query."""
    return DataDecl(name, DataKind.positions, (name,), options=(1,))


def positions_of_keys(name: str) -> DataDecl:
    """The declaration of an integer of each key."""
    return DataDecl(name, DataKind.positions, (name,), options=(0,))


@dataclass(frozen=True)
class Parents:
    """A parent array, passed in place of a tree: -1 marks a root. See mc.parents."""

    array: object


@dataclass(frozen=True)
class CuSeqlens:
    """Cumulative lengths, passed in place of document ids. See mc.cu_seqlens."""

    array: object
    max_seqlen: object = None
    """The most tokens of a document, an integer; None if nothing is promised."""


def check_ends(name: str, ends: np.ndarray, length: int) -> None:
    """Check cumulative lengths of `length` tokens.

    Args:
        ends: integers, one at least.

    Raises:
        DataRange: they do not start at 0, end after the last token, or decrease.
    """
    if ends[0] == 0 and ends[-1] <= length and (ends[1:] >= ends[:-1]).all():
        return
    if ends[0] != 0:
        mistake = f"cumulative lengths start at {ends[0]}, not 0"
    elif ends[-1] > length:
        mistake = f"cumulative lengths end at {ends[-1]}, behind the {length} tokens"
    elif (outside := (ends < 0) | (ends > length)).any():
        at = int(np.argmax(outside))
        mistake = f"a cumulative length, {ends[at]} at position {at}, is not in 0..{length}"
    else:
        at = int(np.argmax(ends[1:] < ends[:-1]))
        mistake = f"cumulative lengths fall from {ends[at]} to {ends[at + 1]} at position {at + 1}"
    hint = "cumulative lengths are 0, then the end of each document; tokens may follow the last"
    raise DataRange(name, mistake, hint, at=name)


def check_truths(name: str, array: np.ndarray) -> None:
    """Check booleans, or integers in their place, where only 0 is false.

    Integers without a positive one, but with negative ones, are a bias of 0 and -10000, or ~x of
    other integers. Both mean the opposite.

    Raises:
        DataRange: they are such integers.
    """
    if array.dtype.kind == "i" and array.size and (least := array.min()) < 0 >= array.max():
        finding = f"its values reach from {least} to {array.max()}, and all except 0 are true"
        hint = "compare first: x == 0 for 0 and -10000, x != 1 in place of ~x"
        raise DataRange(name, finding, hint, at=name)


def check_name(name: object, at: SourceLoc | None) -> str:
    """The name itself, or an error when it cannot be a keyword of a call."""
    if not isinstance(name, str):
        hint = "name the array here, as in mc.documents('doc_ids'); calls pass it: doc_ids=array"
        raise ReservedName(with_article(type(name).__name__), "names are strings", hint, at=at)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ReservedName(repr(name), "it is not a Python identifier", at=at)
    if name in RESERVED or name.startswith("_"):
        finding = "it is a word of the language or a keyword of the call"
        raise ReservedName(repr(name), finding, at=at)
    return name
