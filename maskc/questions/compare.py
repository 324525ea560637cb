"""Whether two masks are the same set, and a pair that shows it where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from maskc.analysis.witness import CandidatePair, Question, candidates, proved
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.captured import Held
from maskc.core.data import DataDecl, DataKind
from maskc.core.difference import Difference
from maskc.core.errors import (
    BadLength,
    CheckFailed,
    DataShape,
    MaskcError,
    Undecided,
    WrongHeads,
)
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import MAX_LENGTH
from maskc.core.problem import TileShape
from maskc.core.selection import RANKING
from maskc.core.source import SourceLoc, caller
from maskc.core.unknown import unknown_keyword
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import selects, walk
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.slots import emptied_together, with_held
from maskc.ir import set_comparison as compare
from maskc.ir.heads import fixed_heads, head_count, heads_of
from maskc.ir.lower import computes_with_head, differs_by_head
from maskc.ir.lowered import lowered
from maskc.ir.names import declared_names
from maskc.ir.types import MaskIR
from maskc.layout import build, check_lengths
from maskc.layout.inputs.captured import with_content
from maskc.questions.drawn import data_of, draws, lengths
from maskc.questions.lengths import ANY_LENGTH, lengths_of
from maskc.questions.mask_at_lengths import MaskAtLengths, bound, pairs_of
from maskc.reference.dense import row

_TRIED_HEADS = 8
"""Heads that are looked at where formulas compute with the head."""
_LONGEST_ROW = 1 << 22
"""Keys up to which a found point is tried out."""
_MAX_PAIRS = 1 << 22
"""Pairs of lengths at which random data are tried, and at which differences are counted."""
_TILE = TileShape(128, 128)
_NOTHING: Mapping[str, object] = MappingProxyType({})


def equals(left: Mask, right: Mask) -> bool | None:
    """See Mask.equals."""
    return _answer(left, right, False)


def subset_of(left: Mask, right: Mask) -> bool | None:
    """See Mask.subset_of."""
    return _answer(left, right, True)


def _answer(left: Mask, right: Mask, one_way: bool) -> bool | None:
    try:
        both = Both.of(left, right, None, one_way)
    except WrongHeads:  # no number of heads suits both
        return False
    if not all(both.lengths):  # no lengths suit both
        return left == right
    answers = [both.at_all_lengths(head) for head in range(len(both.irs))]
    if False in answers and both.lengths == (ANY_LENGTH, ANY_LENGTH):
        return False
    open_heads = both.unproved()
    if not open_heads:
        return True if both.complete else None
    if (sizes := both.whole) is not None:
        return False if both.at(*sizes, {}) is not None else True if both.complete else None
    return None if both.search(open_heads) is None else False


def diff(
    a: Mask, b: Mask, n: int | None, n_kv: int | None, n_heads: int | None,
    data: Mapping[str, object],
) -> Difference | None:  # fmt: skip
    """See maskc.api.diff.

    Raises:
        BadLength: a length is out of range (MC306).
        Undecided: neither a difference nor its absence was found (MC126).
    """
    for mask in (a, b):
        if not isinstance(mask, Mask):
            raise not_a_mask("mc.diff", mask, caller() or "mask")
    both = Both.of(a, b, n_heads, False)
    known = sorted({*both.params, *both.names})
    for name in data:
        if name not in known:
            raise unknown_keyword(name, known, ("n", "n_q", "n_kv", "n_heads"))
    arrays = [name for name in data if name not in both.params]
    if n is None and (arrays or n_kv is not None):
        raise BadLength("n", MAX_LENGTH, "None", at="n")
    sizes = None if n is None else check_lengths(n, n if n_kv is None else n_kv)
    both.check(sizes)
    if sizes is not None and (arrays or not both.reads_data):
        return both.at(*sizes, data)
    open_heads = both.unproved(sizes, data)
    if sizes is None and both.whole is not None:
        difference, open_heads = both.at(*both.whole, {}), []
    else:
        difference = both.search(open_heads, sizes, data)
    if difference is None and (open_heads or not both.complete):
        raise Undecided("" if sizes is None else f" at {sizes[0]} x {sizes[1]}")
    return difference


@dataclass(frozen=True, eq=False)
class Both:
    """Two masks that are compared, head by head."""

    masks: tuple[Mask, Mask]
    irs: tuple[tuple[MaskIR, MaskIR], ...]
    """One pair for each head; a single one where heads do not differ."""
    n_heads: int | None
    """The number of query heads, where they differ."""
    complete: bool
    """Whether these are all heads that there may be."""
    one_way: bool
    """Whether only pairs count that the second mask lacks."""
    held: Held | None = None
    """The arrays that formulas of either mask captured."""

    @staticmethod
    def of(left: Mask, right: Mask, n_heads: int | None, one_way: bool) -> Both:
        """The masks by head.

        Raises:
            WrongHeads: they are written for numbers of heads that do not agree.
        """
        masks = left, right
        written = [fixed_heads(mask) for mask in masks]
        if None not in written and written[0] != written[1]:
            raise WrongHeads(written[0], f"the other mask for {written[1]}", at=_place(right))
        computed = any(map(computes_with_head, masks))
        inner, held = emptied_together(left, right)
        of_left, of_right = inner
        heads = 1 if held is None or held.computed else held.extents[1]
        captured = heads if heads > 1 else None
        differ = captured is not None or any(map(differs_by_head, masks))
        asked = next((n for n in (n_heads, *written, captured) if n is not None), None)
        for mask in masks:
            heads_of(mask, asked)
        least = _TRIED_HEADS if computed else 1
        count = asked or max(least, *map(head_count, masks))
        pairs = (
            (_filled(lowered(of_left, head, count), held, head),
             _filled(lowered(of_right, head, count), held, head))
            for head in range(count if differ else 1)
        )  # fmt: skip
        complete = asked is not None or not computed or left == right
        return Both(masks, tuple(pairs), count if differ else None, complete, one_way, held)

    @cached_property
    def decls(self) -> tuple[DataDecl, ...]:
        """Every array that either mask names, on any head, whether its formula reads it or not."""
        every = [decl for pair in self.irs for ir in pair for decl in ir.data]
        every += [d for mask in self.masks for node in walk(mask) for d in node.decls]
        first = {decl.name: decl for decl in reversed(every)}
        return tuple(first[name] for name in sorted(first))

    @property
    def params(self) -> dict[str, int]:
        """Names and defaults of parameters."""
        return {name: x for pair in self.irs for ir in pair for name, x in ir.params.items()}

    @property
    def names(self) -> set[str]:
        """All keywords by which data or parameters may be given to either mask."""
        every = set().union(*map(declared_names, self.masks))
        return every.union(RANKING if self.ranks else ())

    @property
    def ranks(self) -> bool:
        """Whether run-time selections are among them."""
        return any(map(selects, self.masks))

    @property
    def reads_data(self) -> bool:
        """Whether arrays must be given."""
        every = (decl for pair in self.irs for ir in pair for decl in ir.data)
        return self.ranks or any(decl.from_caller for decl in every)

    # -------------------------------------------------------------- lengths

    @cached_property
    def lengths(self) -> tuple[range, range]:
        """The queries and keys that both masks hold for."""
        return lengths_of(*self.masks)

    @property
    def whole(self) -> tuple[int, int] | None:
        """The lengths at which one look at all pairs answers every question; None if other
        lengths, parameters or data are possible."""
        queries, keys = self.lengths
        if len(queries) == len(keys) == 1 and not self.reads_data and not self.params:
            return queries[0], keys[0]
        return None

    def check(self, sizes: tuple[int, int] | None) -> None:
        """Raise an error for lengths at which one of the masks is not valid; None: any valid
        lengths.
        """
        first, second = map(lengths_of, self.masks)
        if sizes is None and not all(self.lengths):
            raise DataShape("the mask", _spelled(second), _spelled(first), at=_place(self.masks[1]))
        exact = [range(n, n + 1) for n in sizes or ()]
        for mask, fitting in zip(self.masks, (first, second), strict=True):
            if sizes and not all(n in inside for n, inside in zip(sizes, fitting, strict=True)):
                raise DataShape("the mask", _spelled(fitting), _spelled(exact), at=_place(mask))

    # -------------------------------------------------------------- what isl is asked

    def at_all_lengths(self, head: int) -> bool | None:
        """Return the proof for one head at all lengths, even lengths at which the masks fail."""
        one, other = self.irs[head]
        test = compare.subset if self.one_way else compare.equals
        return test(one.keep, _apart(one, other)[0])

    def unproved(
        self, sizes: tuple[int, int] | None = None, params: Mapping[str, Any] = _NOTHING
    ) -> list[int]:
        """The heads without a proof that the masks are equal."""
        return [
            head for head in range(len(self.irs))
            if not self.at_all_lengths(head) and not proved(self.question(head, sizes, params))
        ]  # fmt: skip

    def question(
        self, head: int, sizes: tuple[int, int] | None = None,
        params: Mapping[str, Any] = _NOTHING,
    ) -> Question:  # fmt: skip
        """The difference on one head, at all lengths or at these."""
        left, right = self.irs[head]
        right_keep, right_decls = _apart(left, right)
        decls = {decl.arrays: decl for decl in (*left.data, *right_decls)}
        n_q, n_kv = sizes or (None, None)
        given = tuple((name, int(x)) for name, x in params.items() if name in self.params)
        inside = [None if fitting == ANY_LENGTH else fitting for fitting in self.lengths]
        return Question(
            left.keep, right_keep, tuple(decls.values()), self.one_way, n_q, n_kv,
            (inside[0], inside[1]), given,
        )  # fmt: skip

    # -------------------------------------------------------------- searching

    def search(
        self, heads: Sequence[int], sizes: tuple[int, int] | None = None,
        params: Mapping[str, object] = _NOTHING,
    ) -> Difference | None:  # fmt: skip
        """Search a difference on one of the heads: with isl, then with random data."""
        for head in heads:
            asked = self.question(head, sizes, params)
            for candidate in candidates(asked):
                if (confirmed := self._confirmed(candidate, head)) is not None:
                    return confirmed
        keeps = [ir.keep for head in heads for ir in self.irs[head]]
        tried = lengths(keeps, self.decls, self.lengths) if sizes is None else [sizes]
        for n_q, n_kv in tried if heads else ():
            for data in draws(self.decls, sorted(self.params), self.ranks, n_q, n_kv):
                if n_q * n_kv <= _MAX_PAIRS:
                    confirmed = self._tried(n_q, n_kv, {**data, **params})
                    if confirmed is not None:
                        return confirmed
        return None

    def _confirmed(self, candidate: CandidatePair, head: int) -> Difference | None:
        """The difference at a point by the dense definition; None if the masks agree there."""
        n_q, n_kv = candidate.n_q, candidate.n_kv
        if n_kv > _LONGEST_ROW or (self.ranks and n_q * n_kv > _MAX_PAIRS):
            return None
        data = data_of(candidate, self.decls)
        difference = Difference(
            candidate.q, candidate.k, n_q, n_kv, "a", head, 0, self.n_heads, data
        )
        try:
            kept = self._kept(difference)
            if kept[0] == kept[1] or (self.one_way and kept[1]):
                return None
            counted = self.at(n_q, n_kv, data) if n_q * n_kv <= _MAX_PAIRS else None
        except CheckFailed:
            raise
        except MaskcError:  # data that no call may give
            return None
        pairs = difference.pairs if counted is None else counted.pairs
        return replace(difference, kept_by="a" if kept[0] else "b", pairs=pairs)

    def _kept(self, difference: Difference) -> tuple[bool, bool]:
        """Whether each mask keeps a pair, by the definition."""
        one, other = (
            bool(row(
                mask, difference.q, difference.n_q, difference.n_kv,
                head=difference.head, batch=difference.batch,
                n_heads=self.n_heads, **_own(mask, difference.data),
            )[difference.k])
            for mask in self.masks
        )  # fmt: skip
        return one, other

    def _tried(self, n_q: int, n_kv: int, data: Mapping[str, object]) -> Difference | None:
        """The difference with these data; None if there is none, or a mask refuses the data."""
        try:
            return self.at(n_q, n_kv, data)
        except CheckFailed:
            raise
        except MaskcError:
            return None

    # -------------------------------------------------------------- given data

    def at(self, n_q: int, n_kv: int, data: Mapping[str, object]) -> Difference | None:
        """The first difference at these lengths with these data, of the first sequence and head
        that have one, and how many there are in all.

        Raises:
            CheckFailed: the dense definition disagrees, a defect of maskc. MC3xx for data.
        """
        left, right = (self._bound(side, n_q, n_kv, data) for side in (0, 1))
        heads, sequences = max(left.heads, right.heads), max(left.sequences, right.sequences)
        first, total = None, 0
        known: dict[object, tuple[int, tuple[int, int] | None]] = {}
        for batch, head in product(range(sequences), range(heads)):
            sides = [(side, side.ir(head), side.own(head, batch)) for side in (left, right)]
            marks = left.mark(head, batch), right.mark(head, batch)
            if marks not in known:
                keep, arrays = _difference(sides, self.one_way)
                count = pairs_of(keep, n_q, n_kv, {}, arrays) if n_q and n_kv else 0
                place = _first_pair(keep, n_q, n_kv, arrays) if count else None
                known[marks] = count, place
            count, place = known[marks]
            total += count
            if first is None and place is not None:
                first = (*place, head, batch)
        if first is None:
            return None
        q, k, head, batch = first
        many = heads if heads > 1 else None
        unread = [decl for decl in self.decls if decl.name not in data]
        filled = {**data, **data_of(CandidatePair(n_q, n_kv, q, k, {}, {}, False), unread)}
        difference = Difference(q, k, n_q, n_kv, "a", head, batch, many, filled, total)
        kept = self._kept(difference)
        if kept[0] == kept[1]:
            raise CheckFailed(f"query {q}, key {k}: formulas of two masks differ, the masks do not")
        return replace(difference, kept_by="a" if kept[0] else "b")

    def _bound(self, side: int, n_q: int, n_kv: int, data: Mapping[str, object]) -> MaskAtLengths:
        irs = [pair[side] for pair in self.irs]
        held = with_held(_own(self.masks[side], data), self.held, self.n_heads, n_q, n_kv)
        if any(ir.selections for ir in irs):
            held["n_heads"] = self.n_heads
        else:
            held = {name: value for name, value in held.items() if name not in RANKING}
        return bound(irs, n_q, n_kv, held)


def _filled(ir: MaskIR, held: Held | None, head: int) -> MaskIR:
    """The mask of a head with the content of its captured arrays, where sequences share it."""
    if held is None:
        return ir
    filled = [(decl, _of_head(with_content(decl, held), head)) for decl in ir.data]
    return replace(ir, data=tuple(x if len(x.shape) == decl.rank else decl for decl, x in filled))


def _of_head(decl: DataDecl, head: int) -> DataDecl:
    """A captured array of one sequence as this head reads it; any other one as it is."""
    heads = decl.shape[-3] if decl.rank > 1 and len(decl.shape) > 2 else 1
    if heads == 1 or prod(decl.shape[:-3]) > 1:
        return decl
    table = decl.array.reshape(heads, *decl.shape[-2:])[head]
    return replace(decl, options=(), values=table.tobytes(), shape=table.shape)


def _spelled(lengths: Sequence[range]) -> str:
    """Lengths as an error names them."""
    sides = [
        "any" if n == ANY_LENGTH else str(n.start) if len(n) == 1 else f"{n.start}..{n.stop - 1}"
        for n in lengths
    ]
    return f"({', '.join(sides)}), queries and keys"


def _place(mask: Mask) -> SourceLoc | None:
    place: SourceLoc | None = getattr(mask, "loc", None)
    return place


def _own(mask: Mask, data: Mapping[str, object]) -> dict[str, object]:
    """The part of the data that one of the masks reads."""
    names = declared_names(mask).union(RANKING if selects(mask) else ())
    return {name: value for name, value in data.items() if name in names}


def _apart(left: MaskIR, right: MaskIR) -> tuple[Expr, tuple[DataDecl, ...]]:
    """Return the second formula and its declarations, with new names for arrays that the first one
    reads in another way."""
    known = {decl.name: set[DataDecl]() for decl in left.data}
    for decl in left.data:
        known[decl.name].add(_unpromised(decl))
    clash = {decl for decl in right.data if not _goes_with(decl, known.get(decl.name, set()))}
    renamed = {name: f"{name}'" for decl in clash for name in decl.arrays}
    decls = tuple(
        replace(decl, name=f"{decl.name}'", arrays=tuple(renamed[name] for name in decl.arrays))
        if decl in clash else decl
        for decl in right.data
    )  # fmt: skip
    return E.renamed(right.keep, renamed), decls


def _unpromised(decl: DataDecl) -> DataDecl:
    return replace(decl, most=None)


def _goes_with(decl: DataDecl, known: set[DataDecl]) -> bool:
    """Whether two declarations of one name may share an array: flags may be read on both sides."""
    flags = {decl_of.kind for decl_of in (decl, *known)} == {DataKind.flags}
    others = {decl_of for decl_of in known if not flags or decl_of.arrays == decl.arrays}
    return others <= {_unpromised(decl)}


def _difference(
    sides: Sequence[tuple[MaskAtLengths, MaskIR, Mapping[str, np.ndarray]]], one_way: bool
) -> tuple[Expr, dict[str, np.ndarray]]:
    """The pairs that one mask keeps and the other does not, over lengths and arrays alone."""
    (first, one, arrays), (second, other, others) = sides
    right, _ = _apart(one, other)
    names = {
        old.array: new.array for old, new in zip(_loads(other.keep), _loads(right), strict=True)
    }
    left, right = (
        E.with_values(keep, asked.params) for keep, asked in ((one.keep, first), (right, second))
    )
    keep = E.conj(left, E.negate(right)) if one_way else E.xor(left, right)
    return keep, {**arrays, **{names.get(name, name): array for name, array in others.items()}}


def _loads(keep: Expr) -> list[E.Load]:
    return [node for node in E.walk(keep) if isinstance(node, E.Load)]


def _first_pair(
    keep: Expr, n_q: int, n_kv: int, arrays: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """The first query of a live pair, and its first key."""
    layout = build(LayoutRecipe(_TILE, keep, None), n_q, n_kv, {}, arrays)
    at = int(np.argmax(np.diff(layout.row_ptr) > 0))
    best, last = None, min((at + 1) * _TILE.q, n_q)
    for column in layout.col[layout.row_ptr[at] : layout.row_ptr[at + 1]].tolist():
        q = np.arange(at * _TILE.q, last)[:, None]
        k = np.arange(column * _TILE.k, min((column + 1) * _TILE.k, n_kv))[None, :]
        env = {**arrays, "q": q, "k": k, "n_q": n_q, "n_kv": n_kv}
        live = np.argwhere(np.broadcast_to(evaluate(keep, env), (q.size, k.size)))
        if live.size:
            row_at, key = live[0].tolist()
            pair = int(q[row_at, 0]), int(k[0, key])
            if best is None or pair < best:
                best, last = pair, pair[0]
            if last == at * _TILE.q:
                break
    if best is None:
        raise CheckFailed("a tile is live and no pair of it is")
    return best
