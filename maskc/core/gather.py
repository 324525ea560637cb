"""Single keys that heads choose together: recipes of gathering, and the arguments of its lists.

A tile's rows are then the query heads of one query that share its keys, and its columns these keys,
wherever they lie: a list per query tells which.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.abi import Field
from maskc.core.expr import Expr

GATHER, WIDE, LISTS = "gather", "gather_wide", "gather_lists"
"""Forms of the sources: tiles of 64 heads, of 128, and what makes the lists."""

E4M3 = "float8_e4m3fn"
"""A dtype of an indexer's queries and keys: 4 bits of exponent, 3 of mantissa, no infinity
(Micikevicius et al., 2022)."""
SLAB_BYTES = 128
"""The bytes of a row that one step of products reads."""


@dataclass(frozen=True, slots=True)
class Indexing:
    """A way to compute an indexer's scores, by the dtype of its queries and keys."""

    mode: str
    """The mode of the source that makes lists."""
    dim: int
    """The most elements of a row."""
    in_e4m3: bool = False
    """Whether elements are E4M3, and not of the dtype of q."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return 1 if self.in_e4m3 else 2

    @property
    def slabs(self) -> int:
        """The slabs of a row."""
        return self.dim * self.itemsize // SLAB_BYTES

    @property
    def macro(self) -> str:
        """The macro by which the source knows the mode."""
        return f"INDEXED_{'E4M3_' if self.in_e4m3 else ''}{self.dim}"


INDEXINGS = (
    Indexing("indexed_64", 64),
    Indexing("usual", 128),
    Indexing("indexed_256", 256),
    Indexing("indexed_e4m3_128", 128, in_e4m3=True),
    Indexing("indexed_e4m3_256", 256, in_e4m3=True),
)
"""The modes for each dtype, by ascending dimension."""

ROWS, WIDE_ROWS = 64, 128
"""Heads of a tile."""
KEYS = 64
"""Keys of a tile."""
MOST_CONSTANTS = 48
"""The most constants of a mask's formulas."""
SCORE_QUERIES = 64
"""The queries for which a block computes an indexer's scores."""
MOST_HEADS = 1024
"""The most heads of an indexer."""
SCORE_BYTES = 1 << 27
"""The bytes of scores that are kept at a time; of longer rows, one row."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive keys of a query, which formulas call `ti`: those from `first` to before `last`,
    where `guard` holds."""

    guard: Expr
    first: Expr
    last: Expr


@dataclass(frozen=True, slots=True)
class Gather:
    """The recipe of lists of single keys, for when lengths are known."""

    constants: tuple[Expr, ...]
    """The constants of the kernel's formulas, over n_q, n_kv and parameters."""
    beside: tuple[Span, ...]
    """What a query may see without its being chosen; the union holds all of it."""
    rests: tuple[Expr | None, ...] = ()
    """For each constant, a bound on what it is added to, as in `Variant`."""


GATHERED_FIELDS: tuple[Field, ...] = (
    Field("index_q", "const void *", "[batch, index heads, n_q, INDEX_DIM]"),
    Field("index_k", "const void *", "[batch, n_kv, INDEX_DIM]"),
    Field("index_w", "const void *", "[batch, index heads, n_q]"),
    Field("given", "const void *", "scores [batch, heads, n_q, n_kv]"),
    Field("factors", "const void *", "of the keys of index_k, [batch, n_kv], or null"),
    Field("scores", "float *", "workspace [rows][pitch], of the rows at hand"),
    Field("lists", "i32 *", "[all rows][room]: the keys of a query, ascending"),
    Field("counts", "i32 *", "[all rows]: how many they are"),
    Field("index_q_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("index_k_stride", "i64", "elements between batches, tokens", 2),
    Field("index_w_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("given_stride", "i64", "elements between batches, heads, queries", 3),
    Field("factor_stride", "i64", "elements between batches, tokens", 2),
    Field("pitch", "i64", "elements from one row of scores to the next"),
    Field("first", "i64", "of the rows at hand: (sequence * groups + group) * n_q + query"),
    Field("rows", "i32", "at hand"),
    Field("groups", "i32", "of heads of a sequence that have lists of their own"),
    Field("n_q", "i32", "queries"),
    Field("n_kv", "i32", "keys"),
    Field("wanted", "i32", "keys that are chosen, at most n_kv"),
    Field("room", "i32", "keys for which a list has room"),
    Field("heads", "i32", "of the indexer, or whose given scores are averaged"),
    Field("index_dim", "i32", "elements of a row of index_q and index_k"),
    Field("weight_code", "i32", "of an element of index_w: 0 fp32, 1 bf16, 2 fp16"),
    Field("given_code", "i32", "likewise of the scores"),
    Field("factor_code", "i32", "likewise of the factors"),
    Field("constants", "i32", "of the mask's formulas", MOST_CONSTANTS),
)  # fmt: skip
"""The arguments of kernels that score keys and list the best."""
