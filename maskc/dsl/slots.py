"""Take captured arrays out of a mask, so that it is planned without their content.

Masks that differ only in the content of captured arrays become the same mask here, so they share
a plan and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from math import prod

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, HELD, Captured, Held, Reading
from maskc.core.data import DataDecl, constant
from maskc.core.expr import Expr
from maskc.core.expr_text import nonnegative
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


def emptied(mask: Mask) -> tuple[Mask, Held | None]:
    """The mask over arrays without content, and the content; None if it captures nothing."""
    if not getattr(mask, "captures", False):
        return mask, None
    known = vars(mask).get("_emptied")
    if known is None:
        (inner,), held = emptied_together(mask)
        known = vars(mask)["_emptied"] = inner, held
    return known


def emptied_together(*masks: Mask) -> tuple[tuple[Mask, ...], Held | None]:
    """Take arrays out of several masks at once; equal arrays have one name in all of them."""
    slots = _Slots(masks)
    inner = tuple(map(slots.mask, masks))
    held = Held(tuple(slots.tables), tuple(slots.readings)) if slots.tables else None
    return inner, held


def with_captured(
    mask: Mask, data: Mapping[str, object], n_heads: int | None, n_q: int, n_kv: int
) -> tuple[Mask, dict[str, object]]:
    """Return the mask over arrays without content, and the data with that content added."""
    inner, held = emptied(mask)
    return inner, with_held(data, held, n_heads, n_q, n_kv)


def with_held(
    data: Mapping[str, object], held: Held | None, n_heads: int | None, n_q: int, n_kv: int
) -> dict[str, object]:
    """Return data with the content of captured arrays added."""
    if held is None:
        return dict(data)
    return {**data, HELD: held.of_question(n_heads, n_q, n_kv)}


def at_lengths(mask: Mask, n_q: int, n_kv: int, n_heads: int | None) -> Mask:
    """Return the mask with its length-dependent arrays evaluated at these lengths."""
    _, held = emptied(mask)
    if held is None or not held.computed:
        return mask
    heads = n_heads or held.extents[1]
    return _computed(mask, (held.sequences, heads, n_q, n_kv))


def _computed(mask: Mask, call: tuple[int, int, int, int]) -> Mask:
    def change(node: N.Where) -> Mask:
        tables = tuple(
            replace(decl, values=decl.values.of_call(*call))
            if isinstance(decl.values, Captured) else decl
            for decl in node.tables
        )  # fmt: skip
        return replace(node, tables=tables, lengths=call[2:])

    return _changed(mask, change)


def _changed(mask: Mask, change: Callable[[N.Where], Mask]) -> Mask:
    """The mask with other formulas."""
    if not (isinstance(mask, N.Node) and mask.captures):
        return mask
    if isinstance(mask, N.Where):
        return change(mask)
    return mask.over(lambda child: _changed(child, change))


class _Slots:
    def __init__(self, masks: tuple[Mask, ...]) -> None:
        self._taken = {name for mask in masks for name in _names(mask)}
        self.tables: list[tuple[str, int, Captured]] = []
        self.readings: list[Reading] = []

    def mask(self, mask: Mask) -> Mask:
        """The mask over arrays without content."""
        return _changed(mask, self._where)

    def _where(self, mask: N.Where) -> N.Where:
        names = {decl.name: self._name(decl) for decl in mask.tables}
        shapes = {names[d.name]: _shape(d)[-d.rank :] for d in mask.tables}
        raw = E.renamed(mask.formula, names)
        read = as_read(raw, shapes)
        self.readings.append(Reading(raw, read, mask.loc, mask.lengths))
        used = set(E.arrays(read))
        ranks = {name: min(len(shape), 2) for name, shape in shapes.items() if name in used}
        tables = tuple(constant(name, rank) for name, rank in sorted(ranks.items()))
        return replace(mask, formula=read, tables=tables, lengths=ANY_LENGTHS)

    def _name(self, decl: DataDecl) -> str:
        values = decl.values
        if not isinstance(values, Captured):
            values = Captured.of(decl.array)
        for name, rank, known in self.tables:
            if rank == decl.rank and known.is_always(values):
                return name
        number = len(self.tables)
        name = next(candidate for candidate in _candidates(number) if candidate not in self._taken)
        self._taken.add(name)
        self.tables.append((name, decl.rank, values))
        return name


def _candidates(number: int) -> Iterator[str]:
    yield f"table{number}"
    while True:
        number += 1
        yield f"table_{number}"


def _names(mask: Mask) -> Iterator[str]:
    """Return names of arguments of a call, and names that another part of the mask uses."""
    for node in N.walk(mask):
        if not isinstance(node, N.Where):
            for decl in node.decls:
                yield from (decl.name, *decl.arrays)
        for formula in node.formulas:
            yield from E.params(formula)


# ------------------------------------------------------------------ indices


def as_read(raw: Expr, shapes: dict[str, tuple[int, ...]]) -> Expr:
    """Return the formula in the form that kernels read: at most two indices, none below 0.

    Args:
        shapes: of the arrays, without sequences and heads.
    """

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, E.Load):
            return None
        shape = shapes[node.array]
        index = [at_least_0(as_read(part, shapes)) for part in node.index]
        if len(index) > 2:
            *outer, last = index
            inner = [within(part, size) for part, size in zip(outer[1:], shape[1:-1], strict=True)]
            steps = [prod(shape[axis + 1 : -1]) for axis in range(len(outer))]
            scaled = (E.scale(s, part) for s, part in zip(steps, [outer[0], *inner], strict=True))
            index = [reduce(E.add, scaled), within(last, shape[-1])]
        return E.Load(node.array, tuple(index))

    return E.transform(raw, load)


def at_least_0(index: Expr) -> Expr:
    """The index, or 0 where it is below."""
    return index if nonnegative(index) else E.maximum(index, E.ZERO)


def within(index: Expr, size: int) -> Expr:
    """The index, or the last one where it is beyond."""
    number = E.as_const(index)
    if (number is not None and number < size) or (isinstance(index, E.Mod) and index.den <= size):
        return index
    return E.minimum(index, E.const(max(size - 1, 0)))


def _shape(decl: DataDecl) -> tuple[int, ...]:
    """Return the shape of a captured array without evaluating it."""
    values = decl.values
    return values.shape if isinstance(values, Captured) else decl.array.shape
