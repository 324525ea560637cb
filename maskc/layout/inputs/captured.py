"""Captured arrays at given lengths: long enough for every index, and no decisive index outside.

A formula may read outside an array if another condition excludes the pair, as `(q >= 1) & (doc[q -
1] == doc[k])`. Kernels evaluate every term, so arrays are extended to the largest index. The added
entries are never decisive: pairs for which they would be are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.captured import Computed, Held, Reading
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import DataRange
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.layout import MAX_LENGTH, BlockLayout
from maskc.core.problem import TileShape
from maskc.core.sizes import Sizes
from maskc.core.source import SourceLoc
from maskc.core.tile_bounds import Span
from maskc.layout.inputs.call_data import small_ids
from maskc.layout.tiles.bounds import Analyst, PairBoxes, whole_box
from maskc.layout.tiles.build import build
from maskc.layout.tiles.lists import sequence_arrays
from maskc.layout.tiles.ranges import Extremes

Arrays = dict[str, np.ndarray]

_MAX = 1 << 28
"""Elements of an array that is made longer."""
_TILE = TileShape(64, 64)


def held_arrays(held: Held, params: Mapping[str, int], n_q: int, n_kv: int) -> Arrays:
    """Every captured array as kernels read it, int32, by name.

    Args:
        held: for the sequences and heads of the call, see `Held.of_call`.
        params: a value for every parameter.

    Raises:
        DataRange: a formula reads an array outside and that decides whether a pair counts.
        DataShape: a formula was made for other lengths.
    """
    for reading in held.readings:
        reading.check(n_q, n_kv)
    tables = {name: values.array for name, _, values in held.tables}
    ranks = {name: rank for name, rank, _ in held.tables}
    arrays = {name: _flat(array, ranks[name]) for name, array in tables.items()}
    if not n_q or not n_kv:
        return {name: _longer(array, (1,) * ranks[name]) for name, array in arrays.items()}
    for reading in held.readings:
        numbers = {**E.params(reading.raw), **params, "n_q": n_q, "n_kv": n_kv}
        box = _Domain(tables, ranks, n_q, n_kv, held.heads)
        shapes = {name: tables[name].shape[-ranks[name] :] for name in E.arrays(reading.raw)}
        raw = E.with_values(reading.raw, numbers)
        if box.inside(raw, shapes):
            continue
        _refuse_decisive(reading, raw, shapes, tables, ranks, n_q, n_kv, held)
        read = E.with_values(reading.read, numbers)
        needed = _Domain(arrays, ranks, n_q, n_kv, held.heads).needed(read)
        for name, sizes in needed.items():
            if prod(sizes) > _MAX:
                finding = f"its indices reach {tuple(n - 1 for n in sizes)}, of {shapes[name]}"
                raise DataRange("a captured array", finding, _HINT, at=reading.at)
            arrays[name] = _longer(arrays[name], sizes)
    return arrays


def atom_arrays(
    decls: tuple[DataDecl, ...], tables: Mapping[str, np.ndarray], n_q: int, n_kv: int
) -> Arrays:
    """Return the int32 arrays of data atoms that captured arrays replace, by the names in formulas.

    Args:
        decls: data of a mask.
        tables: its captured arrays, as `held_arrays` gives them.
    """
    made: Arrays = {}
    for decl in decls:
        if decl.held_as:
            whole = [tables[name] for name in decl.held_as]
            if decl.sides:
                lengths = [n_q if side == "q" else n_kv for side in decl.sides]
                cut = [x[..., :length] for x, length in zip(whole, lengths, strict=True)]
            else:
                cut = [x[..., : -(-n_q // decl.block), : -(-n_kv // decl.block)] for x in whole]
            made |= zip(decl.arrays, _as_read(decl, cut, n_kv), strict=True)
    return {name: np.ascontiguousarray(array, np.int32) for name, array in made.items()}


def _as_read(decl: DataDecl, arrays: list[np.ndarray], n_kv: int) -> Sequence[np.ndarray]:
    """Values that mean the same, as the readers of data of calls make them."""
    match decl.kind:
        case DataKind.documents:
            return small_ids(decl.name, *arrays)
        case DataKind.intervals:
            return [np.clip(array, 0, n_kv) for array in arrays]
        case DataKind.flags | DataKind.table:
            return [array != 0 for array in arrays]
    return arrays


def reads_inside(
    held: Held, params: Mapping[str, int], sizes: Sizes, shapes: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether all reads of captured arrays stay in range, for any content of the arrays.

    Args:
        params: those that a call gives.
        sizes: of the call.
        shapes: rows (1 of a vector) and entries of a row, by name.
    """
    box = _Domain({}, {}, sizes.n_q, sizes.n_kv, sizes.heads_q)
    for reading in held.readings:
        numbers = {**E.params(reading.raw), **params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
        raw = E.with_values(reading.raw, numbers)
        loads = E.loads(raw)
        if any(E.arrays(index) for load in loads for index in load.index):
            return False
        extents = {load.array: shapes[load.array][2 - len(load.index) :] for load in loads}
        reading.check(sizes.n_q, sizes.n_kv)
        if not box.inside(raw, extents):
            return False
    return True


def with_content(decl: DataDecl, held: Held) -> DataDecl:
    """Return the declaration of a captured array with its content; any other declaration
    unchanged."""
    table = {name: (rank, values) for name, rank, values in held.tables}.get(decl.name)
    if table is None or not decl.held or isinstance(table[1], Computed):
        return decl
    array = _flat(table[1].array, table[0])
    options = decl.options if array.ndim > decl.rank else ()
    content = np.ascontiguousarray(array, dtype="<i4").tobytes()
    return replace(decl, options=options, values=content, shape=array.shape)


_HINT = (
    "rule such pairs out in the same formula, as (q >= 1) & (doc[q - 1] == doc[k]) does, clamp the "
    "index with min and max, or capture a longer array"
)


def _flat(array: np.ndarray, rank: int) -> np.ndarray:
    """Indices before the last one as one."""
    if rank <= 2:
        return array
    front = array.shape[: array.ndim - rank]
    return array.reshape(*front, prod(array.shape[len(front) : -1]), array.shape[-1])


def _longer(array: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Extend an array to `extents` in its last dimensions by repeating the last elements."""
    front = array.ndim - len(sizes)
    more = [max(0, size - had) for size, had in zip(sizes, array.shape[front:], strict=True)]
    if not any(more):
        return array
    widths = [(0, 0)] * front + [(0, n) for n in more]
    return np.pad(array, widths, mode="edge" if array.size else "constant")


class _Domain(Analyst):
    """Bounds of indices over all pairs and heads; arrays count with all their values."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], ranks: Mapping[str, int], n_q: int, n_kv: int,
        heads: int,
    ) -> None:  # fmt: skip
        super().__init__(arrays)
        self._box = whole_box(n_q, n_kv)
        self._heads = heads

    def symbol(self, name: str, boxes: PairBoxes) -> Span:
        if name == "h":
            return Span(np.asarray(0, np.int64), np.asarray(max(self._heads, 1) - 1, np.int64))
        return super().symbol(name, boxes)

    def values(self, name: str) -> Extremes:
        array = self.arrays[name]
        ends = (array.min(), array.max()) if array.size else (0, 0)
        low, high = (np.asarray(end, np.int64) for end in ends)
        return lambda index: (low, high)

    def _indices(self, formula: Expr) -> dict[E.Load, list[tuple[int, int]]]:
        return {
            load: [
                (self.least(index), int(self.bounds(index, self._box)[1])) for index in load.index
            ]
            for load in E.loads(formula)
        }

    def least(self, index: Expr) -> int:
        """The least value of an index."""
        return int(self.bounds(index, self._box)[0])

    def inside(self, formula: Expr, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether every index certainly is inside its array."""
        return all(
            low >= 0 and high < size
            for load, bounds in self._indices(formula).items()
            for (low, high), size in zip(bounds, shapes[load.array], strict=True)
        )

    def needed(self, formula: Expr) -> dict[str, tuple[int, ...]]:
        """Elements in each dimension so that every index is inside."""
        needed_sizes: dict[str, tuple[int, ...]] = {}
        for load, bounds in self._indices(formula).items():
            sizes = tuple(high + 1 for _, high in bounds)
            known = needed_sizes.get(load.array, sizes)
            needed_sizes[load.array] = tuple(map(max, known, sizes))
        return needed_sizes


# ------------------------------------------------------------------ what an index outside decides


def below_0(held: Held) -> list[tuple[Reading, Expr]]:
    """The formulas, each with the pairs for which an index below 0 may decide, at any lengths."""
    tables = {name: values.array for name, _, values in held.tables}
    ranks = {name: rank for name, rank, _ in held.tables}
    box = _Domain(tables, ranks, MAX_LENGTH, MAX_LENGTH, MAX_LENGTH)

    def sure(index: Expr) -> bool:
        numbers = {**E.params(index), "n_q": 0, "n_kv": 0}
        known = not E.params(index) and not E.symbols(index) & {"n_q", "n_kv"}
        return known and box.least(E.with_values(index, numbers)) >= 0

    return [(reading, decisive(reading.raw, None, sure)) for reading in held.readings]


def decisive(
    raw: Expr,
    shapes: Mapping[str, tuple[int, ...]] | None,
    sure: Callable[[Expr], bool] = lambda index: False,
) -> Expr:
    """Return the pairs for which an out-of-range element would determine the result.

    Args:
        raw: the formula as the user wrote it.
        shapes: of the arrays, without sequences and heads; None: only indices below 0 count.
        sure: whether an index is known never to be below 0.

    A comparison with such an element is neither true nor false. The formula is determined if it
    gives the same result with all such comparisons true and with all of them false. Formulas have
    no `not` above a comparison, so these two are its bounds.
    """

    def safe(formula: Expr) -> Expr:
        def load(node: Expr) -> Expr | None:
            if not isinstance(node, E.Load):
                return None
            return E.Load(node.array, tuple(E.maximum(part, E.ZERO) for part in ends(node)))

        return E.transform(formula, load)

    def ends(load: E.Load) -> list[Expr]:
        if shapes is None:
            return list(map(safe, load.index))
        sizes = zip(load.index, shapes[load.array], strict=True)
        return [E.minimum(safe(part), E.const(max(size - 1, 0))) for part, size in sizes]

    def inside(atom: Expr) -> Expr:
        conditions = []
        for load in E.loads(atom):
            conditions += [E.ge(safe(part), E.ZERO) for part in load.index if not sure(part)]
            if shapes is not None:
                sizes = zip(load.index, shapes[load.array], strict=True)
                conditions += [E.lt(safe(part), E.const(size)) for part, size in sizes]
        return E.conj(*conditions)

    def most(node: Expr) -> Expr | None:
        atom = isinstance(node, (E.Cmp, E.Member))
        return E.disj(safe(node), E.negate(inside(node))) if atom else None

    def least(node: Expr) -> Expr | None:
        atom = isinstance(node, (E.Cmp, E.Member))
        return E.conj(safe(node), inside(node)) if atom else None

    return E.conj(E.transform(raw, most), E.negate(E.transform(raw, least)))


def _refuse_decisive(
    reading: Reading, raw: Expr, shapes: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, np.ndarray], ranks: Mapping[str, int], n_q: int, n_kv: int, held: Held,
) -> None:  # fmt: skip
    pairs = decisive(raw, shapes)
    arrays = {n: _flat(_longer(a, (1,) * ranks[n]), ranks[n]) for n, a in tables.items()}
    flat = {name: shape for name, shape in shapes.items() if len(shape) > 2}
    pairs = _flattened(pairs, flat)
    batch, heads = Held(tuple(t for t in held.tables if t[0] in shapes), ()).extents
    if "h" in E.symbols(pairs):
        heads = max(heads, held.heads)
    for head in range(heads):
        formula = E.substitute(pairs, {E.H: E.const(head)})
        if formula == E.NEVER:
            continue
        recipe = LayoutRecipe(_TILE, formula, None)
        for sequence in range(batch):
            here = sequence_arrays(recipe, arrays, sequence, head)
            layout = build(recipe, n_q, n_kv, {}, here)
            if layout.nnz:
                pair = _first(layout, formula, here, n_q, n_kv)
                finding = _said(raw, pair, head, tables, shapes, ranks, sequence)
                at = _place_of(raw, held) or reading.at
                raise DataRange("a captured array", finding, _HINT, at=at)


def _flattened(formula: Expr, shapes: Mapping[str, tuple[int, ...]]) -> Expr:
    """Loads of three and more indices, all of them inside, as loads of two."""

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, E.Load) or node.array not in shapes:
            return None
        shape = shapes[node.array]
        row: Expr = E.ZERO
        for axis, part in enumerate(node.index[:-1]):
            row = E.add(row, E.scale(prod(shape[axis + 1 : -1]), _flattened(part, shapes)))
        return E.Load(node.array, (row, _flattened(node.index[-1], shapes)))

    return E.transform(formula, load)


def _first(
    layout: BlockLayout, formula: Expr, arrays: Mapping[str, np.ndarray], n_q: int, n_kv: int
) -> tuple[int, int]:
    """The first pair of the first live tile."""
    row = int(np.argmax(np.diff(layout.row_ptr) > 0))
    column = int(layout.col[layout.row_ptr[row]])
    q = np.arange(row * _TILE.q, min(n_q, (row + 1) * _TILE.q))[:, None]
    k = np.arange(column * _TILE.k, min(n_kv, (column + 1) * _TILE.k))[None]
    live = np.broadcast_to(evaluate(formula, {**arrays, "q": q, "k": k}), (q.size, k.size))
    i, j = np.argwhere(live)[0]
    return int(q[i, 0]), int(k[0, j])


def _said(
    raw: Expr, pair: tuple[int, int], head: int, tables: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]], ranks: Mapping[str, int], sequence: int,
) -> str:  # fmt: skip
    """Which element the pair reads."""
    q, k = pair
    for load in sorted(E.loads(raw), key=lambda load: len(load.key)):
        if any(map(E.arrays, load.index)):
            continue
        env = {"q": q, "k": k, "h": head}
        index = [int(evaluate(part, env)) for part in load.index]
        if any(not 0 <= i < size for i, size in zip(index, shapes[load.array], strict=True)):
            what = ", ".join(map(to_people, load.index))
            shape = tables[load.array].shape
            return f"at q = {q}, k = {k} the index [{what}] is {index}, the array's shape {shape}"
    return f"at q = {q}, k = {k} an index is outside"


def _place_of(raw: Expr, held: Held) -> SourceLoc | None:
    """The place where the formula reads the first array that an index may miss."""
    names = E.arrays(raw)
    return next((v.at for name, _, v in held.tables if name in names and v.at), None)
