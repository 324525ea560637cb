"""Data for masks: completed from a given point, and random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from maskc.analysis.witness import CandidatePair
from maskc.core import expr as E
from maskc.core.captured import Captured
from maskc.core.data import DataDecl, DataKind, Parents
from maskc.core.expr import Expr
from maskc.layout import kept_promise


def data_of(pair: CandidatePair, decls: Sequence[DataDecl]) -> dict[str, object]:
    """Arrays that have the elements of a candidate, and zeros elsewhere; its parameters."""
    named = [d for d in decls if d.from_caller and d.kind is not DataKind.scoring]
    arrays = {decl.name: _with_cells(decl, pair) for decl in named}
    return {**pair.params, **arrays}


def _with_cells(decl: DataDecl, pair: CandidatePair) -> object:
    n_q, n_kv = pair.n_q, pair.n_kv
    cells = [pair.cells.get(name, {}) for name in decl.arrays]
    match decl.kind:
        case DataKind.documents:
            return _documents(decl, pair)
        case DataKind.intervals:
            return tuple(_filled((n_q,), cell) for cell in cells)
        case DataKind.tree:
            return _tree(decl, pair)
        case DataKind.positions:
            return _filled((n_q if decl.on_queries else n_kv,), *cells)
        case DataKind.table:
            shape = (-(-n_q // decl.block), -(-n_kv // decl.block))
            return _filled(shape, *cells) != 0
        case DataKind.key_lists:
            return _lists(_filled((n_q, n_kv), *cells) != 0)
    return _filled((n_q if decl.on_queries else n_kv,), *cells) != 0


def _lists(table: np.ndarray) -> np.ndarray:
    """The columns that hold in each row, int64 [rows, most], -1 behind the last one."""
    lists = np.full((len(table), int(table.sum(axis=1).max(initial=0))), -1)
    for keys, row in zip(lists, table, strict=True):
        columns = np.flatnonzero(row)
        keys[: len(columns)] = columns
    return lists


def _filled(shape: tuple[int, ...], *cells: Mapping[tuple[int, ...], int]) -> np.ndarray:
    array = np.zeros(shape, dtype=np.int64)
    for cell in cells:
        for place, value in cell.items():
            array[place] = value
    return array


def _tokens(decl: DataDecl, pair: CandidatePair) -> tuple[int, int, int]:
    """Return the number of tokens, and the tokens of query 0 and key 0."""
    count = max(pair.n_q, pair.n_kv)
    first = (0, 0) if decl.from_start else (count - pair.n_q, count - pair.n_kv)
    return count, *first


def _documents(decl: DataDecl, pair: CandidatePair) -> object:
    """Ids from 1 on where a query or a key reads them, and 0 elsewhere."""
    of_q, of_k = (pair.cells.get(name, {}) for name in decl.arrays)
    number = {value: 1 + i for i, value in enumerate(sorted({*of_q.values(), *of_k.values()}))}
    of_q, of_k = ({at: number[x] for at, x in tokens.items()} for tokens in (of_q, of_k))
    if pair.paired:
        return _filled((pair.n_q,), of_q), _filled((pair.n_kv,), of_k)
    count, *first = _tokens(decl, pair)
    moved: list[dict[tuple[int, ...], int]] = [
        {(at + start,): value for (at,), value in tokens.items()}
        for tokens, start in zip((of_q, of_k), first, strict=True)
    ]
    return _filled((count,), *moved)


def _tree(decl: DataDecl, pair: CandidatePair) -> Parents:
    """A tree of roots, except that the query's token is the child of a key above it."""
    count, first_q, first_k = _tokens(decl, pair)
    parents = np.full(count, -1)
    tin, tout, of_q = (list(pair.cells.get(name, {}).values()) for name in decl.arrays)
    query, key = pair.q + first_q, pair.k + first_k
    above = all(low <= entered for low in tin for entered in of_q)
    above &= all(entered < high for high in tout for entered in of_q)
    if above and query != key:
        parents[query] = key
    return Parents(parents)


# ------------------------------------------------------------------ random ones

_LENGTHS = (
    (1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (4, 7), (7, 4), (13, 13), (33, 33), (64, 64), (40, 97),
    (97, 40), (130, 130),
)  # fmt: skip
_LONGEST = 1500
_REACHES = 6
"""Constants of the masks past which lengths are tried."""
_ROUNDS = 4
"""Draws of the same lengths."""


def lengths(
    formulas: Sequence[Expr], decls: Sequence[DataDecl], inside: tuple[range, range]
) -> list[tuple[int, int]]:
    """Return lengths to try: small ones, lengths that fit captured tables, and some beyond all
    constants.

    Args:
        inside: the queries and keys that the masks hold for.
    """
    lengths_tried = list(_LENGTHS)
    for decl in decls:
        if decl.values and (shape := _shape(decl)):
            lengths_tried += [(shape[0] * decl.block, shape[-1] * decl.block)]
    constants = {
        abs(node.const) for keep in formulas for node in E.walk(keep) if isinstance(node, E.Sum)
    }
    constants |= {
        node.den for keep in formulas for node in E.walk(keep)
        if isinstance(node, (E.FloorDiv, E.Mod))
    }  # fmt: skip
    for reach in sorted(constants, reverse=True)[:_REACHES]:
        lengths_tried += [
            (reach + 1, reach + 1),
            (2 * reach + 3, 2 * reach + 3),
            (reach, 2 * reach + 1),
        ]
    fitting = [tuple(map(_nearest, sizes, inside)) for sizes in lengths_tried]
    usable = [
        (n_q, n_kv) for n_q, n_kv in fitting if min(n_q, n_kv) > 0 and max(n_q, n_kv) <= _LONGEST
    ]
    return sorted(dict.fromkeys(usable), key=lambda sizes: (max(sizes), sizes[0] != sizes[1]))


def _nearest(length: int, inside: range) -> int:
    return min(max(length, inside.start), inside.stop - 1)


def _shape(decl: DataDecl) -> tuple[int, ...]:
    """The shape of a captured array, which is not read for it."""
    return decl.values.shape if isinstance(decl.values, Captured) else decl.shape


def draws(
    decls: Sequence[DataDecl], params: Sequence[str], ranks: bool, n_q: int, n_kv: int
) -> Iterator[dict[str, object]]:
    """Random data, the same ones each time; a single draw where nothing is given.

    Args:
        params: names of parameters; the first draw leaves them at their defaults.
        ranks: whether run-time selections need `scores`.
    """
    named = [decl for decl in decls if decl.from_caller and decl.kind is not DataKind.scoring]
    for seed in range(_ROUNDS if named or ranks or params else 1):
        rng = np.random.default_rng([n_q, n_kv, seed])
        data = {decl.name: _drawn(decl, n_q, n_kv, rng) for decl in named}
        if seed:
            data |= {name: int(rng.integers(0, max(n_q, n_kv) + 1)) for name in params}
        if ranks:
            data["scores"] = rng.permutation(n_q * n_kv).reshape(n_q, n_kv).astype(np.float32)
        yield data


def _drawn(decl: DataDecl, n_q: int, n_kv: int, rng: np.random.Generator) -> object:
    tokens = max(n_q, n_kv)
    match decl.kind:
        case DataKind.documents:
            ids = rng.integers(0, rng.integers(1, 6), tokens)
            return np.sort(ids) if rng.random() < 0.5 else ids
        case DataKind.intervals:
            low = rng.integers(0, n_kv + 1, n_q)
            return low, low + rng.integers(0, n_kv + 1, n_q)
        case DataKind.tree:
            return Parents(np.array([rng.integers(-1, t) if t else -1 for t in range(tokens)]))
        case DataKind.positions:
            count = n_q if decl.on_queries else n_kv
            return rng.integers(-2, tokens + 2, count)
        case DataKind.table:
            return rng.random((-(-n_q // decl.block), -(-n_kv // decl.block))) < 0.5
        case DataKind.key_lists:
            return rng.integers(-1, n_kv, (n_q, rng.integers(0, 2 * n_kv + 1)))
    return kept_promise(decl, rng.random(n_q if decl.on_queries else n_kv) < rng.random())
