"""Random masks, lengths, tiles and their data, for every property test.

A mask is drawn from all combinators, traced formulas and the set algebra, with small constants so
that small lengths meet every case. Data atoms have fixed names (one name means one array): `doc`,
`seen` (flags on keys), `awake` (flags on queries), `span`, `walk` and `grid1`, `grid3`, ... (tables
by block size). `late`, `early`, `reach` and `roots` are aligned at the start. Parameters are those
of PARAMS. Masks that differ by head are for HEADS query heads.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

import maskc as mc
from maskc.core.data import DataDecl, DataKind
from maskc.dsl import nodes as N

HEADS = 3
PARAMS = {"w": 3, "n": 2}
VECTOR = np.array([2, 0, 1, 1, 3, 0, 2], dtype=np.int64)
BITS = np.array([[True, False, True], [False, False, True]])
NAMESPACE = {"mc": mc, "VECTOR": VECTOR, "BITS": BITS}

_ALIGN = st.sampled_from(["end", "end", "start"])


def lengths(largest: int = 40) -> st.SearchStrategy[tuple[int, int]]:
    """(n_q, n_kv): equal, or more of either, 0 and 1 included."""
    one = st.integers(0, largest)
    return one.map(lambda n: (n, n)) | st.tuples(one, one)


def tiles() -> st.SearchStrategy[tuple[int, int]]:
    """(queries, keys) of a tile, odd ones included."""
    side = st.sampled_from([1, 2, 3, 4, 5, 8, 16])
    return side.map(lambda n: (n, n)) | st.tuples(side, side)


# ------------------------------------------------------------------ formulas

_VARYING = re.compile(r"\b(q|k|h|mc|VECTOR)\b")


@cache
def integer_texts(depth: int = 2, with_heads: bool = False) -> st.SearchStrategy[str]:
    """Python text of an integer over q, k, the lengths, h and captured arrays."""
    names = ["q", "q", "k", "k", "mc.n_q", "mc.n_kv"] + (["h"] if with_heads else [])
    leaf = st.sampled_from(names) | st.integers(-6, 9).map(str)
    if depth == 0:
        return leaf
    part = integer_texts(depth - 1, with_heads)
    divisor = st.sampled_from([1, 2, 3, 4, 5, 8, -3])
    return st.one_of(
        leaf,
        st.tuples(part, st.sampled_from("+-"), part).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.integers(-3, 4), part).map(lambda t: f"({t[0]} * {t[1]})"),
        st.tuples(part, divisor).map(lambda t: f"({t[0]} // {t[1]})"),
        st.tuples(part, divisor).map(lambda t: f"({t[0]} % {t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), part, part).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        st.tuples(st.sampled_from(["-{}", "abs({})"]), part).map(lambda t: t[0].format(t[1])),
        part.map(lambda text: f"VECTOR[{text} % {len(VECTOR)}]"),
    )


@cache
def condition_texts(depth: int = 2, with_heads: bool = False) -> st.SearchStrategy[str]:
    """Python text of a condition; its value on plain integers is what it means."""
    number = integer_texts(max(depth, 1), with_heads)
    symbol = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    compare = st.tuples(number, symbol, number).map(_comparison)
    if depth == 0:
        return compare
    part = condition_texts(depth - 1, with_heads)
    operator = st.sampled_from(["&", "|", "^", "==", "!="])
    return st.one_of(
        compare,
        part.map(lambda text: f"(~{text})"),
        st.tuples(part, operator, part).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(number, number).map(lambda t: f"BITS[{t[0]} % 2, {t[1]} % 3]"),
    )


def _comparison(parts: tuple[str, str, str]) -> str:
    left, symbol, right = parts
    if not _VARYING.search(left + right):  # Python itself would compare, and ~False is -1
        left = "q"
    return f"({left} {symbol} {right})"


@cache
def wheres(depth: int = 2, with_heads: bool = False) -> st.SearchStrategy[mc.Mask]:
    """A traced formula."""
    names = st.sampled_from(["h, q, k", "b, h, q, k"] if with_heads else ["q, k"])
    texts = condition_texts(depth, with_heads)
    return st.tuples(names, texts).map(
        lambda t: mc.where(eval(f"lambda {t[0]}: {t[1]}", dict(NAMESPACE)))
    )


# ------------------------------------------------------------------ combinators


@cache
def _counts(largest: int = 9) -> st.SearchStrategy[object]:
    params = [mc.param(name, default) for name, default in PARAMS.items()]
    formulas = [mc.n_q // 2, mc.n_kv - mc.n_q // 3, mc.param("n", PARAMS["n"]) + 1]
    return st.integers(0, largest) | st.sampled_from(params + formulas)


def _ids(least: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, 12), max_size=5)


_SIZE = st.integers(1, 7)


@cache
def plain_atoms() -> st.SearchStrategy[mc.Mask]:
    """Every combinator that needs neither data nor heads."""
    return st.one_of(
        st.just(mc.full()),
        st.builds(lambda a: mc.causal(align=a), _ALIGN),
        st.builds(
            lambda left, right, a: mc.window(left, right, align=a),
            st.none() | _counts(), st.none() | _counts(), _ALIGN,
        ),
        st.builds(
            lambda left, right, s, a: mc.dilated(left, right, stride=s, align=a),
            _counts(4), _counts(4), _SIZE, _ALIGN,
        ),
        st.builds(lambda ids, a: mc.offsets(ids, align=a), _ids(-6), _ALIGN),
        _SIZE.flatmap(lambda s: st.integers(0, s - 1).map(lambda phase: mc.strided(s, phase))),
        st.builds(mc.sinks, _counts()),
        st.builds(mc.prefix, _counts()),
        st.builds(
            lambda ids, a, side: (lambda g: getattr(g, side) if side else g)(
                mc.global_tokens(ids, align=a)
            ),
            _ids(0) | _counts(), _ALIGN, st.sampled_from(["", "rows", "columns"]),
        ),
        st.builds(lambda s, a: mc.block_diagonal(s, align=a), _SIZE, _ALIGN),
        st.builds(lambda s, a: mc.chunked(s, align=a), _SIZE, _ALIGN),
        st.builds(
            lambda b, r, s, a: mc.random_blocks(b, r, s, align=a),
            _SIZE, st.integers(0, 4), st.integers(0, 3), _ALIGN,
        ),
    )  # fmt: skip


@cache
def data_atoms() -> st.SearchStrategy[mc.Mask]:
    """Every combinator over arrays given at call time."""
    at = mc.positions(q="stands", k="lies")
    return st.sampled_from([
        mc.documents("doc"), mc.flags("seen"), mc.flags("awake", on="q"), mc.intervals("span"),
        mc.tree("walk"), mc.block_table("grid1", 1), mc.block_table("grid3", 3),
        mc.block_table("grid4", 4), mc.key_lists("listed"),
        mc.causal(at=at), mc.window(3, 1, at=at),
        mc.dilated(2, 1, stride=3, at=at), mc.chunked(4, at=at),
    ]) | st.sampled_from([
        mc.documents("doc"), mc.tree("walk"), mc.documents("late", align="start"),
        mc.flags("early", on="q", align="start"), mc.intervals("reach", align="start"),
        mc.tree("roots", align="start"),
    ])  # fmt: skip


@cache
def masks(
    max_depth: int = 3,
    with_data: bool = True,
    with_heads: bool = False,
    with_topk: bool = False,
) -> st.SearchStrategy[mc.Mask]:
    """A mask of nesting at most `max_depth`; by head it is for HEADS heads."""
    atoms = [plain_atoms()] * 5 + [wheres(1, with_heads)] + [data_atoms()] * 2 * with_data
    if with_heads:
        subsets = st.sets(st.integers(0, HEADS - 1))
        atoms.append(subsets.map(lambda ids: mc.heads(*ids)))
    atom = _one_of_equally(atoms)
    if max_depth == 0:
        return atom
    part = masks(max_depth - 1, with_data, with_heads, with_topk)
    joined = st.builds(N.Algebra, st.sampled_from(["&", "&", "|", "|", "-", "^"]), part, part)
    kinds = [atom, wheres(2, with_heads), joined, joined, joined, part.map(lambda of: ~of)]
    if with_heads:
        kinds.append(st.lists(part, min_size=HEADS, max_size=HEADS).map(mc.per_head))
    if with_topk:
        share = st.sampled_from(["head", "group", "all"])
        score = st.sampled_from(["qk", "given"])
        size = st.integers(1, 3)
        kinds.append(st.builds(mc.topk, st.integers(0, 4), part, score, size, size, share))
    return _one_of_equally(kinds)


def _one_of_equally(kinds: list[st.SearchStrategy[mc.Mask]]) -> st.SearchStrategy[mc.Mask]:
    """st.one_of would flatten unions, and the larger ones would win."""
    return st.sampled_from(range(len(kinds))).flatmap(kinds.__getitem__)


# ------------------------------------------------------------------ data


@st.composite
def data_for(
    draw: st.DrawFn, mask: mc.Mask, n_q: int, n_kv: int, batch: int | None = None
) -> dict[str, object]:
    """Draw the keywords of a call: every array the mask names, and values for some parameters.

    With `batch`, some of the arrays have a leading batch dimension.
    """
    given: dict[str, object] = {}
    for name, default in N.default_parameters(mask).items():
        if draw(st.booleans()):
            given[name] = draw(st.integers(0, 2 * default + 3))
    for name, decl in {decl.name: decl for decl in N.data_of_calls(mask)}.items():
        if batch is None or draw(st.booleans()):
            given[name] = draw(_array_for(decl, n_q, n_kv))
            continue
        one: list[Any] = [draw(_array_for(decl, n_q, n_kv, plain=True)) for _ in range(batch)]
        if decl.kind in (DataKind.table, DataKind.key_lists):
            given[name] = np.stack(one)[:, None]
        elif isinstance(one[0], tuple):
            given[name] = tuple(np.stack(part) for part in zip(*one, strict=True))
        else:
            given[name] = np.stack(one)
    return given


_LISTED = 3
"""Keys that a query lists."""


def _vector(low: int, high: int, length: int) -> st.SearchStrategy[np.ndarray]:
    items = st.lists(st.integers(low, high), min_size=length, max_size=length)
    return items.map(lambda values: np.array(values, dtype=np.int32))


@st.composite
def _array_for(draw: st.DrawFn, decl: DataDecl, n_q: int, n_kv: int, plain: bool = False) -> object:
    """One array, or a pair; `plain` leaves out cu_seqlens, parents and entries of all tokens."""
    match decl.kind:
        case DataKind.documents:
            return draw(_documents(n_q, n_kv, plain))
        case DataKind.flags:
            length = per_query(n_q, n_kv, draw(st.booleans()) and not plain)
            return draw(_vector(0, 1, length if decl.on_queries else n_kv)) != 0
        case DataKind.intervals:
            length = per_query(n_q, n_kv, draw(st.booleans()) and not plain)
            return draw(_vector(-2, n_kv + 2, length)), draw(_vector(-2, n_kv + 2, length))
        case DataKind.positions:
            return draw(_vector(-2, max(n_q, n_kv) + 2, n_q if decl.on_queries else n_kv))
        case DataKind.tree:
            parents = draw(_parents(max(n_q, n_kv)))
            return walk_times(parents) if plain or draw(st.booleans()) else mc.parents(parents)
        case DataKind.key_lists:
            return draw(_vector(-1, n_kv - 1, n_q * _LISTED)).reshape(n_q, _LISTED)
    rows, columns = -(-n_q // decl.block), -(-n_kv // decl.block)
    return draw(_vector(0, 1, rows * columns)).reshape(rows, columns) != 0


def per_query(n_q: int, n_kv: int, of_tokens: bool) -> int:
    """Entries of an array that queries read: one for each, or one for every token."""
    return n_kv if of_tokens and n_q < n_kv else n_q


@st.composite
def _documents(draw: st.DrawFn, n_q: int, n_kv: int, plain: bool) -> object:
    def one(length: int) -> object:
        ids = draw(_vector(-1, 3, length))
        kind = draw(st.sampled_from(["any", "sorted", "cu_seqlens"]))
        if kind == "cu_seqlens" and not plain:
            ends = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
            last = [length] if draw(st.booleans()) else []  # or tokens follow
            return mc.cu_seqlens(np.array([0, *ends, *last], dtype=np.int32))
        return np.sort(ids) if kind == "sorted" else ids

    if not plain and draw(st.booleans()):
        return one(max(n_q, n_kv))
    return one(n_q), one(n_kv)


@st.composite
def _parents(draw: st.DrawFn, length: int) -> np.ndarray:
    """A forest: the parent of each token is an earlier one, -1 for roots; sometimes shuffled."""
    parents = [draw(st.integers(-1, token - 1)) for token in range(length)]
    names = draw(st.permutations(range(length))) if draw(st.booleans()) else range(length)
    shuffled = np.empty(length, dtype=np.int64)
    for token, parent in enumerate(parents):
        shuffled[names[token]] = parent if parent == -1 else names[parent]
    return shuffled


def walk_times(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times (tin, tout), int64 [tokens] each, of a depth-first walk over a forest.

    Args:
        parents: int64 [tokens]: the parent of each token, -1 for roots.
    """
    tin, tout = np.zeros(len(parents), dtype=np.int64), np.zeros(len(parents), dtype=np.int64)
    clock = 0

    def enter(token: int) -> None:
        nonlocal clock
        tin[token] = clock
        clock += 1
        for child in np.flatnonzero(parents == token):
            enter(int(child))
        tout[token] = clock

    for root in np.flatnonzero(parents == -1):
        enter(int(root))
    return tin, tout
