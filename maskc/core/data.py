"""What a mask reads at call time: declarations of data atoms and parameters."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from enum import Enum

from maskc.core.errors import ReservedName
from maskc.core.source import SourceLoc

RESERVED = frozenset({
    "q", "k", "v", "h", "b", "out", "lse", "dout", "scale", "softcap", "alibi_slopes",
    "sink_logits", "return_lse", "deterministic", "n_q", "n_kv", "n_heads", "head", "block", "mask",
    "normalizer", "alpha", "nan_safe", "batch", "min", "max", "abs", "param", "member",
    "scores", "index_q", "index_k", "index_w",
})  # fmt: skip
"""Keywords of the calls and words of the formula language."""


class DataKind(Enum):
    """The declared shapes of data; N may carry a leading batch dimension."""

    documents = "documents"
    """ids, integer [N]; or (ids of queries, ids of keys); or mc.cu_seqlens(x)."""
    flags = "flags"
    """booleans [n_kv]; on queries [n_q], or [n_kv] of which each query reads its position's."""
    intervals = "intervals"
    """(lo, hi), integers [n_q], or [n_kv] of which each query reads its position's: query q sees
    keys lo[q] .. hi[q] - 1."""
    tree = "tree"
    """(tin, tout), integers [N]: entry and exit times of a depth-first walk; or mc.parents(x)."""
    table = "table"
    """booleans [query blocks, key blocks], or [heads, query blocks, key blocks]."""
    random = "random"
    """computed: the block columns a seeded draw gives each block row."""
    constant = "constant"
    """an integer array captured by the pattern, known at compile time."""
    selection = "selection"
    """computed: the blocks that a run-time selection chose."""
    scoring = "scoring"
    """a floating-point tensor that a run-time selection ranks by; no formula reads it."""


_COMPUTED = (DataKind.random, DataKind.constant, DataKind.selection)


@dataclass(frozen=True)
class DataDecl:
    """One data atom of a mask."""

    name: str
    """The caller's keyword; for computed and captured arrays a derived identifier."""
    kind: DataKind
    arrays: tuple[str, ...]
    """Names by which formulas read it: `doc.q`, `doc.k`; `span.lo`, `span.hi`; ..."""
    block: int = 1
    """Tokens per entry of a table; keys per block of a selection."""
    options: tuple[int, ...] = ()
    """random: (per_row, seed, 1 when positions are aligned at the end, 0 at the start);
    flags: (1,) when indexed by queries; selection: (queries per block,); a further 1 where an array
    of documents, flags, intervals or a tree has an entry per token and the first query is the
    first token, instead of the last query the last one."""
    values: bytes = b""
    """constant and compile-time tables: int32, little endian, C order."""
    shape: tuple[int, ...] = ()
    """Shape of `values`."""

    @property
    def rank(self) -> int:
        """Indices a formula gives: 2 for tables, 1 for vectors."""
        if self.kind is DataKind.constant:
            return len(self.shape)
        return 2 if self.kind in (DataKind.table, DataKind.random, DataKind.selection) else 1

    @property
    def on_queries(self) -> bool:
        """Whether flags are indexed by queries."""
        return self.kind is DataKind.flags and self.options[:1] == (1,)

    @property
    def from_start(self) -> bool:
        """Whether query q is token q, in arrays with an entry per token; else the last query is
        the last token."""
        return bool(self.options[int(self.kind is DataKind.flags) :])

    @property
    def from_caller(self) -> bool:
        """Whether a call must pass it."""
        return self.kind not in _COMPUTED and not self.values


@dataclass(frozen=True)
class Parents:
    """A parent array given where a tree is expected: -1 marks a root. See mc.parents."""

    array: object


@dataclass(frozen=True)
class CuSeqlens:
    """Cumulative lengths given where documents are expected. See mc.cu_seqlens."""

    array: object
    max_seqlen: object = None
    """Most tokens of a document; an integer, or None where nothing is promised."""


def check_name(name: object, at: SourceLoc | None) -> str:
    """The name itself, or an error when it cannot be a keyword of a call."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ReservedName(name, "it is not a Python identifier", at=at)
    if name in RESERVED or name.startswith("_"):
        raise ReservedName(name, "it is a word of the language or a keyword of the call", at=at)
    return name
