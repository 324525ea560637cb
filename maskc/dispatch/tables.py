"""Everything integer that a kernel reads, for one set of lengths: formula constants, tile lists,
data arrays. Host memory only; launching decides where it goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from maskc.core import expr as E
from maskc.core.abi import WORK_FIELDS
from maskc.core.boxes import Boxes, axis_relations
from maskc.core.bundle import Bundle, LayoutRecipe, SourceUnit, Variant, WorkList
from maskc.core.cost import Tally
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import DataShape
from maskc.core.expr import Expr, Param, Sym, const, transform
from maskc.core.layout import BlockLayout
from maskc.core.leading import leading
from maskc.core.listed import TOKEN_K, TOKEN_Q
from maskc.core.problem import Direction, Feature, Features
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import Device
from maskc.core.widths import INT32
from maskc.dispatch.constants import constants, extremes_of
from maskc.layout import (
    Chosen,
    Spans,
    Work,
    backward_work,
    build,
    check_loads,
    distance_words,
    forward_work,
    heads_together,
    in_turn,
    kernel_lists,
    list_spans,
    longest_chain,
    multiprocessors_needed,
    ordered_work,
    packed_work,
    range_spans,
    sequence_arrays,
    stack_spans,
)
from maskc.layout.tiles.coverage_check import check_layout, check_spans
from maskc.layout.tiles.document_tiles import lists_on_host
from maskc.layout.tiles.grid_tiles import box_layout, box_words
from maskc.layout.work.tile_counts import (
    Adders,
    adders_of,
    adders_of_spans,
    tally_of,
    tally_of_spans,
)

_PAD = 4
"""int32 entries to which every part is rounded up: 16 bytes."""
CAPTURED = 1023
"""Most launches captured in CUDA graphs that find their own counters next to the tables."""
_COUNTERS, _MAX_COUNTERS = 2, 1 << 15
"""Counters of a launch that merges nothing itself, see maskc/core/abi.py, and of all captured
launches."""


@dataclass(frozen=True, eq=False)
class Slot:
    """A data array of the mask, as the kernel indexes it."""

    values: np.ndarray
    """int32 [batch or 1, heads or 1, N] or [batch or 1, heads or 1, rows, cols]; lists of chosen
    blocks are a table of their own."""

    @property
    def batch(self) -> int:
        """Elements from one sequence to the next, 0 if shared."""
        return self.values[0].size if self.values.shape[0] > 1 else 0

    @property
    def head(self) -> int:
        """Elements from one head to the next, 0 if shared."""
        return self.values[0, 0].size if self.values.shape[1] > 1 else 0

    @property
    def row(self) -> int:
        """Elements from one row of a table to the next."""
        return self.values.shape[-1] if self.values.ndim == 4 else 0


def _padded(values: np.ndarray) -> int:
    """Elements that a part has in a copy."""
    return -(-max(values.size, 1) // _PAD) * _PAD


@dataclass(frozen=True, eq=False)
class Tables:
    """The integers of a call, ready to be copied in one piece."""

    parts: tuple[tuple[str, np.ndarray], ...]
    """(member of struct Attention, int32 values)."""
    slots: tuple[Slot, ...]
    """Data arrays in the order of the kernel's `array` member."""
    list_batch: int
    """Lists from one sequence to the next, 0 if all share theirs."""
    arrays: Mapping[str, np.ndarray]
    """The data as formulas name them, batch and heads in front."""

    work: Work | None = None
    """The work list, where the kernel reads one: members `work` and `counter`."""
    tally: Tally | None = None
    """Counts of the distinct lists; None if the source has no coefficients, or tiles begin with
    documents."""
    adders: Adders | None = None
    """Who adds to tiles of dq in a backward pass; None if that is not known."""
    wide: bool = False
    """Whether the mask's formulas need 64 bits."""
    rows: int = 0
    """Tile rows, where they begin with documents; 0: those of tiles one after another."""
    copies: dict[tuple[Device, object], tuple[object, int, Callable[[], int | None]]] = field(
        default_factory=dict
    )
    """The owner of the copy for a device and stream, the start of the copy, and its counters."""

    def features(self, asked: Features) -> Features:
        """Return the features that a kernel needs in order to read them."""
        return asked | {Feature.wide} if self.wide else asked

    @property
    def chain(self) -> int:
        """The largest number of ordered additions to one tile of dq; 0 if rows have no lists."""
        return longest_chain(dict(self.parts))

    @cached_property
    def multiprocessors(self) -> int:
        """Multiprocessors that a stream must be able to use; 0: any number."""
        return multiprocessors_needed(dict(self.parts))

    @property
    def further(self) -> int:
        """The most tiles of dq that a head has in addition to one for each tile row."""
        sums = dict(self.parts).get("row_sums")
        return 0 if sums is None else int(sums[:, -1].max(initial=0))

    @cached_property
    def counters(self) -> tuple[int, int]:
        """(captured launches with separate counters, integers of each); empty if there are no
        counters."""
        copies, count = next((x.shape for name, x in self.parts if name == "counter"), (1, 0))
        return copies - 1, count

    @property
    def size(self) -> int:
        """Bytes of one copy."""
        return 4 * sum(map(_padded, (values for _, values in self._named)))

    @property
    def _named(self) -> list[tuple[str, np.ndarray]]:
        """All values by name; data arrays are called `array0`, `array1`, ..."""
        return [*self.parts, *((f"array{i}", slot.values) for i, slot in enumerate(self.slots))]

    @cached_property
    def packed(self) -> tuple[np.ndarray, dict[str, int]]:
        """All values in one int32 array, and where each part starts, in bytes."""
        offsets, total = {}, 0
        for name, values in self._named:
            offsets[name] = 4 * total
            total += _padded(values)
        packed = np.zeros(total, dtype=np.int32)
        for name, values in self._named:
            start = offsets[name] // 4
            packed[start : start + values.size] = values.ravel()
        return packed, offsets


NOTHING = Tables((), (), 0, {})
"""The tables of calls that launch nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One distinct mask of a call: a variant, for one head where tables differ by head."""

    variant: Variant
    head: int


def make_tables(
    bundle: Bundle,
    unit: SourceUnit,
    sizes: Sizes,
    params: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    direction: Direction,
    lists: bool,
) -> Tables:
    """Bind a mask to lengths, parameters and data.

    Args:
        bundle, unit: what was compiled.
        sizes: of the call.
        params: a value for every parameter.
        arrays: int32, by the names formulas use, as `bind_arrays` gives them.
        direction: the pass whose lists are wanted.
        lists: whether the kernel reads tile lists at all.

    Raises:
        DataShape: a batch or head dimension of data that does not fit the call.
        DataRange: the formula computes something beyond 64 bits.
    """
    as_bits = Target.named(unit.target).language == "cuda"
    slots = tuple(
        make_slot(name, arrays[name], bundle.data, sizes, as_bits) for name in bundle.arrays
    )
    cases, of_head = _cases(bundle, slots, sizes)
    values = {**params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
    large = any(slot.values[0, 0].size > INT32 for slot in slots)  # places in them need 64 bits
    variants = [case.variant for case in cases]
    made = constants(bundle, unit, variants, values, extremes_of(arrays), large)
    parts, wide = [("mask_args", made.words)], made.wide
    if of_head is not None:
        parts.append(("head_variant", of_head))
    if unit.boxes is not None and unit.work is not None:
        of_boxes = _box_tables(
            unit.work, unit.boxes, parts, cases, of_head, sizes, params, direction
        )
        return replace(of_boxes, wide=wide)
    if unit.distances:
        bits = [distance_words(case.variant.keep, sizes.n_q, sizes.n_kv, params) for case in cases]
        parts.append(("distances", np.concatenate(bits)))
    told = _telling(bundle)
    batched = any(
        slot.batch for name, slot in zip(bundle.arrays, slots, strict=True) if name in told
    )
    seen = _seen(cases, unit, arrays, sizes.batch if batched else 1)
    backward, tally, adders = direction is Direction.backward, None, None
    if lists and unit.by_documents:
        by_head = any(slot.head for slot in slots)
        ptr, words, stops = lists_on_host(bundle, unit.tile, sizes, params, seen, by_head)
        parts += [("row_ptr", ptr), ("row_tiles", words)]
        slots = (*slots, Slot(stops))
    elif lists:
        layouts = [_layout(recipe, sizes, params, of_layout) for recipe, of_layout in seen]
        parts += _lists(layouts, backward)
        parts = in_turn(parts, sizes.n_q, sizes.heads_q // sizes.heads_kv, unit.work)
    elif slots and sizes.n_kv:
        for recipe, data in seen:
            check_loads(with_values(recipe.keep, values), sizes.n_q, sizes.n_kv, data)
    work = None
    if unit.work is not None or unit.costs:
        ranges = [] if lists else [_spans(*one, sizes, params, backward) for one in seen]
        spans = stack_spans(ranges) if ranges else list_spans(_ptr(parts, backward))
        if unit.work is not None:
            work = _work(unit.work, spans, of_head, len(cases), sizes, backward, parts)
            if unit.by_documents:
                work = _with_rows(work, unit.tile.q, sizes.n_q * max(unit.work.heads, 1))
            parts += _work_parts(work, unit.work)
        adders = (adders_of(layouts) if lists else adders_of_spans(spans)) if backward else None
        if unit.costs and not unit.by_documents:
            queries = unit.tiles(sizes.n_q, sizes.n_kv)[0] if backward else 0
            tally = tally_of(layouts, direction) if lists else tally_of_spans(spans, queries)
    lists_of = len(cases) if batched else 0
    return Tables(tuple(parts), slots, lists_of, arrays, work, tally, adders, wide=wide)


def _seen(
    cases: tuple[Case, ...], unit: SourceUnit, arrays: Mapping[str, np.ndarray], sequences: int
) -> list[tuple[LayoutRecipe, Mapping[str, np.ndarray]]]:
    """The masks of a call with their data, by sequence and case."""
    recipes = [(case.variant.recipe(unit.tile), case.head) for case in cases]
    return [
        (recipe, sequence_arrays(recipe, arrays, sequence, head))
        for sequence in range(sequences)
        for recipe, head in recipes
    ]


def _box_tables(
    rule: WorkList, boxes: Boxes, parts: list[tuple[str, np.ndarray]], cases: tuple[Case, ...],
    of_head: np.ndarray | None, sizes: Sizes, params: Mapping[str, int], direction: Direction,
) -> Tables:  # fmt: skip
    """The rest for tiles that are boxes; masks with data have none."""
    backward = direction is Direction.backward
    grid = boxes.grid(sizes.n_q)
    relations = [axis_relations(case.variant.axes, grid, params) for case in cases]
    words = [box_words(boxes, relation, keys=backward) for relation in relations]
    layouts = [box_layout(boxes, relation) for relation in relations]
    if os.environ.get("MASKC_CHECK") == "1":
        for case, layout in zip(cases, layouts, strict=True):
            env = {**params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
            check_layout(layout, case.variant.keep, env, (boxes, grid))
    parts = [*parts, ("distances", np.concatenate(words)), *_lists(layouts, backward)]
    parts = in_turn(parts, sizes.n_q, sizes.heads_q // sizes.heads_kv, rule)
    spans = list_spans(_ptr(parts, backward))
    work = _work(rule, spans, of_head, len(cases), sizes, backward, parts)
    parts += _work_parts(work, rule)
    return Tables(tuple(parts), (), 0, {}, work, tally_of(layouts, direction))


def _work_parts(work: Work, rule: WorkList) -> list[tuple[str, np.ndarray]]:
    items = np.concatenate([work.items, work.merges])
    counters = _COUNTERS + (len(work.merges) if rule.heads else 0)
    copies = 1 + min(CAPTURED, _MAX_COUNTERS // counters)
    return [("work", items), ("counter", np.zeros((copies, counters), np.int32))]


def per_sequence(bundle: Bundle, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether data have a dimension for sequences, be it of length one: vectors [batch, N] or
    [batch, heads, N], tables [batch, heads, rows, cols]."""
    ranks = {name: decl.rank for decl in bundle.data for name in decl.arrays}
    return any(arrays[name].ndim >= 2 * ranks[name] for name in _telling(bundle))


def per_head(arrays: Mapping[str, np.ndarray], decls: Iterable[DataDecl]) -> bool:
    """Whether some of these data have a dimension for heads; missing data count as having none."""
    return any(
        leading(arrays[name].shape, decl.rank)[1] > 1
        for decl in decls
        for name in decl.arrays
        if name in arrays
    )


def _telling(bundle: Bundle) -> set[str]:
    """Return the arrays that determine pairs, without arrays that only logits read."""
    return set(bundle.arrays) - {TOKEN_Q, TOKEN_K} | {
        name for variant in bundle.variants for name in E.arrays(variant.keep)
    }


def _lists(layouts: list[BlockLayout], columns: bool) -> Iterator[tuple[str, np.ndarray]]:
    """The lists of tile rows, and where these are asked for of columns."""
    yield from zip(("row_ptr", "row_tiles"), kernel_lists(layouts), strict=True)
    if columns:
        transposed = [layout.transpose() for layout in layouts]
        yield from zip(("col_ptr", "col_tiles"), kernel_lists(transposed), strict=True)


def _work(
    rule: WorkList, spans: Spans, of_head: np.ndarray | None, cases: int, sizes: Sizes,
    backward: bool, parts: list[tuple[str, np.ndarray]],
) -> Work:  # fmt: skip
    """The work list of a call; lists are numbered by sequence, where these differ, and mask."""
    case = np.zeros(sizes.heads_q, np.int64) if of_head is None else of_head.astype(np.int64)
    step = cases if len(spans.count) > cases else 0
    lists = step * np.arange(sizes.batch)[:, None] + case
    if rule.ordered:
        chain = longest_chain(dict(parts)) or spans.count.shape[1]
        together = heads_together(spans.count, chain, sizes.n_q, rule)
        return ordered_work(spans, lists, sizes.heads_kv, together, rule)
    if backward:
        return backward_work(spans, lists, sizes.heads_kv, sizes.n_q, rule)
    if rule.heads:
        return packed_work(spans, lists, sizes.n_q, rule)
    return forward_work(spans, lists, sizes.heads_kv, sizes.n_q, sizes.n_kv, rule)


def _with_rows(work: Work, size: int, rows: int) -> Work:
    """The work of tile rows of `size` of so many rows, with items that name their rows."""
    tile, first, last = map(
        [name for name, _ in WORK_FIELDS].index, ("tile", "full_first", "full_last")
    )
    items = work.items.copy()
    items[:, first] = items[:, tile] * size
    items[:, last] = np.minimum(items[:, first] + size, rows)
    return replace(work, items=items)


def make_slot(
    name: str, values: np.ndarray, decls: tuple[DataDecl, ...], sizes: Sizes, as_bits: bool = False
) -> Slot:
    """Put batch and heads in front, see `maskc.core.leading`.

    Args:
        as_bits: whether the kernel reads chosen blocks as bits, not as lists.
    """
    decl = next(decl for decl in decls if name in decl.arrays)
    batch, heads = leading(values.shape, decl.rank)
    for actual, wanted, what in (
        (heads, sizes.heads_q, "heads of q"),
        (batch, sizes.batch, "sequences of q"),
    ):
        if actual not in (1, wanted):
            shape = values.shape
            if isinstance(values, Chosen) and decl.kind is DataKind.key_lists:
                shape = values.lists.shape  # as the caller gave them
            or_one = " or 1" if wanted > 1 else ""
            expected = f"{wanted} (the {what}){or_one} in place of {actual}"
            raise DataShape(decl.name, shape, expected, at=decl.name)
    if isinstance(values, Chosen):
        values = values.bits() if as_bits else values.lists
    return Slot(values.reshape(batch, heads, *values.shape[values.ndim - decl.rank :]))


def _cases(
    bundle: Bundle, slots: tuple[Slot, ...], sizes: Sizes
) -> tuple[tuple[Case, ...], np.ndarray | None]:
    """The distinct masks of the heads, and for each head which one it has (None: all the first)."""
    of_head = bundle.head_variant or (0,) * sizes.heads_q
    if any(slot.head for slot in slots):
        cases = tuple(Case(bundle.variants[v], head) for head, v in enumerate(of_head))
        return cases, np.arange(len(cases), dtype=np.int32)
    cases = tuple(Case(variant, 0) for variant in bundle.variants)
    return cases, np.array(of_head, dtype=np.int32) if bundle.head_variant else None


def with_values(keep: Expr, values: Mapping[str, int]) -> Expr:
    """The formula over q, k and arrays alone; parameters without a value keep their defaults."""

    def number(node: Expr) -> Expr | None:
        if isinstance(node, Param):
            return const(values.get(node.name, node.default))
        return const(values[node.name]) if isinstance(node, Sym) and node.name in values else None

    return transform(keep, number)


def _layout(
    recipe: LayoutRecipe, sizes: Sizes, params: Mapping[str, int], arrays: Mapping[str, np.ndarray]
) -> BlockLayout:
    exact = not any(isinstance(array, Chosen) for array in arrays.values())
    layout = build(recipe, sizes.n_q, sizes.n_kv, params, arrays, exact)
    if os.environ.get("MASKC_CHECK") == "1":
        env = {**params, **arrays, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
        check_layout(layout, recipe.keep, env)
    return layout


def _ptr(parts: list[tuple[str, np.ndarray]], backward: bool) -> np.ndarray:
    """The address at which the lists that a pass goes through start."""
    return dict(parts)["col_ptr" if backward else "row_ptr"]


def _spans(
    recipe: LayoutRecipe, arrays: Mapping[str, np.ndarray], sizes: Sizes, params: Mapping[str, int],
    columns: bool,
) -> Spans:  # fmt: skip
    spans = range_spans(recipe, sizes.n_q, sizes.n_kv, params, arrays, columns)
    if os.environ.get("MASKC_CHECK") == "1":
        layout = _layout(recipe, sizes, params, arrays)
        check_spans(spans, layout.transpose() if columns else layout)
    return spans
