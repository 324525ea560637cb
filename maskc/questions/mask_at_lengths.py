"""Questions about one mask at given lengths: every head, every sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from maskc.analysis.counts import count_pairs
from maskc.core.bundle import LayoutRecipe
from maskc.core.errors import (
    BadOption,
    DataRange,
    DataShape,
    HeadsUnknown,
    NoSuchHead,
    OneOfSeveral,
)
from maskc.core.expr import Expr
from maskc.core.layout import MAX_LENGTH, BlockLayout
from maskc.core.leading import leading
from maskc.core.problem import TileShape
from maskc.core.selection import RANKING
from maskc.core.widths import plain_integer
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import selects
from maskc.dsl.slots import at_lengths, with_captured
from maskc.ir.heads import heads_of
from maskc.ir.lowered import lowered, on_all_heads
from maskc.ir.types import MaskIR
from maskc.layout import (
    Chosen,
    bind_ranked,
    build,
    check_lengths,
    extents,
    sequence_arrays,
    tile_shape,
)
from maskc.layout import count as count_by_tiles
from maskc.plan.recipe import layout_recipe
from maskc.reference.dense import axes_given

_ANY_TILE = TileShape(128, 128)


@dataclass(frozen=True, eq=False)
class MaskAtLengths:
    """A mask at given lengths, with everything it reads."""

    n_q: int
    n_kv: int
    irs: tuple[MaskIR, ...]
    """The masks, one for each head; a single one where heads differ in nothing except their
    tables."""
    params: Mapping[str, int]
    """A value for every parameter."""
    arrays: Mapping[str, np.ndarray]
    """Everything that formulas read, of all sequences and heads."""

    @property
    def sequences(self) -> int:
        """The number of sequences that the data distinguish; 1 if all share theirs."""
        return max(self.extents(ir)[0] for ir in self.irs)

    @property
    def heads(self) -> int:
        """The number of heads that differ, by their masks or tables; 1 if all are the same."""
        return max(len(self.irs), *(self.extents(ir)[1] for ir in self.irs))

    def ir(self, head: int) -> MaskIR:
        """The mask of a head."""
        return self.irs[head if len(self.irs) > 1 else 0]

    def own(self, head: int, batch: int) -> dict[str, np.ndarray]:
        """The int32 arrays that the mask of one head reads in one sequence, by name, as `build`
        takes them."""
        return sequence_arrays(recipe_of(self.ir(head)), self.arrays, batch, head)

    def extents(self, ir: MaskIR) -> tuple[int, int]:
        """Return the numbers of sequences and heads that differ in the arrays of one mask."""
        return extents(recipe_of(ir), self.arrays)

    def sets(
        self, heads: Iterable[int], sequences: Iterable[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (head, sequence, number of pairs of both with the same set)."""
        groups: dict[object, tuple[int, int, int]] = {}
        for batch, head in product(sequences, heads):
            mark = self.mark(head, batch)
            first_head, first_batch, equal = groups.get(mark, (head, batch, 0))
            groups[mark] = (first_head, first_batch, equal + 1)
        yield from groups.values()

    def mark(self, head: int, batch: int) -> tuple[Expr, int, int]:
        """Return a key that is equal for heads and sequences that read the same data."""
        ir = self.ir(head)
        sequences, heads = self.extents(ir)
        return ir.keep, batch if sequences > 1 else 0, head if heads > 1 else 0

    def pairs(self, head: int, batch: int) -> int:
        """Live pairs of one head of one sequence."""
        owned = self.own(head, batch)
        return pairs_of(self.ir(head).keep, self.n_q, self.n_kv, self.params, owned)

    def alike(self, batch: int) -> list[tuple[int, ...]]:
        """The heads that differ, those with the same set in this sequence together."""
        groups: dict[object, list[int]] = {}
        for head in range(self.heads):
            ir = self.ir(head)
            differ = self.extents(ir)[1] > 1
            marks = self.own(head, batch).items() if differ else ()
            tables = tuple((name, _content(array)) for name, array in marks)
            groups.setdefault((ir.keep, tables), []).append(head)
        return list(map(tuple, groups.values()))


def _content(table: np.ndarray | Chosen) -> bytes:
    return (table.lists if isinstance(table, Chosen) else table).tobytes()


def recipe_of(ir: MaskIR) -> LayoutRecipe:
    """Return a recipe that only lists the arrays of the mask."""
    return LayoutRecipe(_ANY_TILE, ir.keep, None)


def ask(
    mask: Mask, n_q: int, n_kv: int | None, data: Mapping[str, object],
    n_heads: int | None = None, head: int | None = None,
) -> MaskAtLengths:  # fmt: skip
    """The mask of all heads, or of one, and what it reads.

    Raises:
        WrongHeads, HeadsUnknown, NoSuchHead: of the number of heads.
        BadLength, and MC3xx for data.
    """
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    n_heads = heads_of(mask, n_heads)
    if head is not None:
        head = _index("head", head, n_heads)
    mask, data = with_captured(mask, data, n_heads, n_q, n_kv)
    irs = on_all_heads(mask, n_heads) if head is None else [lowered(mask, head, n_heads)]
    if selects(mask):
        data = {**data, "n_heads": n_heads}
        if not any(ir.selections for ir in irs):  # other heads alone choose
            data = {name: value for name, value in data.items() if name not in RANKING}
    answers = bound(irs, n_q, n_kv, data)
    if answers.heads > 1:
        _check_heads(answers, n_heads if head is None else None)
        if head is not None:
            _index("head", head, answers.heads)
    return answers


def bound(irs: Sequence[MaskIR], n_q: int, n_kv: int, data: Mapping[str, object]) -> MaskAtLengths:
    """The mask of several heads, with all that it reads; selections rank by `scores`, as in
    `Mask.dense`.

    Raises:
        BadLength, and MC3xx for data.
    """
    decls = dict.fromkeys(decl for ir in irs for decl in ir.data)
    names = [decl.name for decl in decls]
    defaults = {name: default for ir in irs for name, default in ir.params.items()}
    selections = {selection.name: selection for ir in irs for selection in ir.selections}
    unread = {name for ir in irs for name in ir.declared}.difference(("scores",), names, defaults)
    params, arrays = bind_ranked(
        tuple(decls), tuple(defaults.items()), tuple(selections.values()),
        sorted(unread), data, n_q, n_kv,
    )  # fmt: skip
    return MaskAtLengths(n_q, n_kv, tuple(irs), params, arrays)


def _check_heads(asked: MaskAtLengths, n_heads: int | None) -> None:
    """Check that all arrays with a dimension of heads have the same number of heads.

    Raises:
        DataShape: an array has another number of heads.
    """
    wanted = n_heads or (len(asked.irs) if len(asked.irs) > 1 else asked.heads)
    for decl in (decl for ir in asked.irs for decl in ir.data):
        for name in filter(asked.arrays.__contains__, decl.arrays):
            heads = leading(asked.arrays[name].shape, decl.rank)[1]
            if heads not in (1, wanted):
                raise DataShape(name, f"{heads} heads", f"{wanted} heads", at=name)


def _index(name: str, value: Any, count: int | None) -> int:
    """An index of a head or a sequence.

    Raises:
        BadOption: not an integer.
        NoSuchHead, DataRange: there is none.
    """
    last = MAX_LENGTH if count is None else count - 1
    number = plain_integer(value)
    if number is None:
        raise BadOption(name, "an integer", repr(value), at=name)
    if 0 <= number <= last:
        return number
    if name == "head":
        raise NoSuchHead(number, "fewer" if count is None else count, at=name)
    raise DataRange(name, f"no sequence {number} among {count}", "sequences count from 0", at=name)


# ------------------------------------------------------------------ count, layout


def count(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None,
    head: int | None = None, batch: int | None = None, **data: object,
) -> int:  # fmt: skip
    """See Mask.count."""
    asked = ask(mask, n_q, n_kv, data, n_heads, head)
    axes = axes_given(at_lengths(mask, n_q, n_q if n_kv is None else n_kv, n_heads), data)
    told = max(asked.heads, axes[1])
    shown = range((n_heads or told) if told > 1 else 1)
    heads = shown if head is None else (head,)
    all_sequences = range(max(asked.sequences, axes[0]))
    sequences = all_sequences if batch is None else (_sequence(asked, batch),)
    return sum(equal * asked.pairs(head, of) for head, of, equal in asked.sets(heads, sequences))


def _sequence(asked: MaskAtLengths, batch: int) -> int:
    return _index("batch", batch, asked.sequences if asked.sequences > 1 else None)


def pairs_of(
    keep: Expr, n_q: int, n_kv: int, params: Mapping[str, int], arrays: Mapping[str, np.ndarray]
) -> int:
    """Count the pairs for which a formula holds.

    Args:
        params: values of its parameters.
        arrays: int32 arrays [elements] of one sequence and head, by name.
    """
    count = count_pairs(keep, n_q, n_kv, params)
    if count is not None:
        return count
    return int(count_by_tiles(LayoutRecipe(_ANY_TILE, keep, None), n_q, n_kv, params, arrays))


def layout(
    mask: Mask, n_q: int, n_kv: int | None = None, *, block: tuple[int, int] = (128, 128),
    n_heads: int | None = None, head: int | None = None, batch: int | None = None, **data: object,
) -> BlockLayout:  # fmt: skip
    """See Mask.layout.

    Raises:
        OneOfSeveral: heads or sequences differ, and the caller does not say which is meant (MC310).
    """
    tile = tile_shape(block)
    try:
        asked = ask(mask, n_q, n_kv, data, n_heads, head)
    except HeadsUnknown:
        raise OneOfSeveral("heads", "head=", at="head") from None
    if head is None:
        differ = len({ir.keep for ir in asked.irs}) > 1
        if differ or asked.extents(asked.irs[0])[1] > 1:
            raise OneOfSeveral(f"{asked.heads} heads", "head=", at="head")
        head = 0
    if batch is None:
        sequences = asked.extents(asked.ir(head))[0]
        if sequences > 1:
            raise OneOfSeveral(f"{sequences} sequences", "batch=", at="batch")
        batch = 0
    recipe = layout_recipe(asked.ir(head).keep, tile)
    variant = asked.own(head, _sequence(asked, batch))
    return build(recipe, asked.n_q, asked.n_kv, asked.params, variant)
