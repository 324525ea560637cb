"""Decompose a mask into disjoint pieces by kind.

Pieces depend on the set alone, within isl's budget. The conjunctions of the set are made as wide as
the mask allows, sorted by kind, and each loses the pairs of earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from itertools import combinations

import islpy as isl

from maskc.core import expr as E
from maskc.core.errors import DecompositionBroken
from maskc.core.expr import Expr
from maskc.ir.id_lists import unveiled, veiled
from maskc.ir.nested import nested
from maskc.ir.pieces_data import data_pieces, simplified
from maskc.ir.pieces_kind import band, joined, kind_of
from maskc.ir.pieces_read import Unreadable, points_of
from maskc.ir.pieces_space import Space
from maskc.ir.sets import LOCK, TooHard, budget, domain, token_universe
from maskc.ir.simplify import simplify
from maskc.ir.types import Band, Detail, Lattice, MaskIR, Piece, PieceKind

_OPERATIONS = 150_000
"""isl's budget for one of the few long questions."""

_MAX = 48
"""Limit on the conjunctions of a mask for making them disjoint."""

_MAX_FLOORS = 6
"""The most of these conjunctions that may contain blocks or residues."""

_FEW = 8
"""Limit on the conjunctions of a mask for testing whether the whole mask is of one kind."""


def decompose(ir: MaskIR) -> MaskIR:
    """Fill in `pieces`."""
    return ir if ir.pieces else replace(ir, pieces=pieces_of(ir))


@lru_cache(maxsize=1 << 8)
def pieces_of(ir: MaskIR) -> tuple[Piece, ...]:
    """The pieces of a mask, which are disjoint and whose union is the mask.

    isl proves that, or arithmetic where `nested` decomposes the mask.
    """
    if ir.pieces:
        return ir.pieces
    without_veil = replace(ir, keep=veiled(ir.keep))
    certain = _certain(without_veil.keep)
    union = nested(certain)
    if union is not None:
        pieces = union.pieces()
    else:
        pieces = _exact(certain)
        _check(certain, pieces)
    if certain != without_veil.keep:
        pieces += data_pieces(without_veil, [piece.keep for piece in pieces])
        pieces = [replace(piece, keep=unveiled(piece.keep)) for piece in pieces]
    return tuple(sorted(pieces, key=_place))


_Place = tuple[int, int, bool, str]


def _place(piece: Piece) -> _Place:
    return _rank(piece.kind, piece.detail, piece.keep)


def _rank(kind: PieceKind, detail: Detail | None, keep: Expr) -> _Place:
    """Sort by kind, then lattices by stride, then bands that shift first, then by text.

    Numbers in the text compare as numbers.
    """
    stride = detail.stride if isinstance(detail, Lattice) else 0
    stays = isinstance(detail, Band) and not detail.shifts
    text = re.sub(r"\d+", lambda number: number[0].zfill(20), keep.key)
    return kind.rank, stride, stays, text


def _certain(keep: Expr) -> Expr:
    """Return the part of a mask that it keeps for all data."""
    return simplify(E.assume_reads(keep, False)) if E.arrays(keep) else keep


# ------------------------------------------------------------------ without data


@dataclass(frozen=True)
class _Part:
    """A conjunction of the mask, inside the lengths."""

    pairs: isl.Set
    formula: Expr
    kind: PieceKind
    detail: Detail | None

    @property
    def place(self) -> _Place:
        return _rank(self.kind, self.detail, self.formula)


def _exact(keep: Expr) -> list[Piece]:
    """Return the pieces of a mask without data; a single one of kind `set` if isl's budget is too
    small."""
    if keep == E.NEVER:
        return []
    try:
        with LOCK:
            raw = _Decomposer(keep).run()
    except (TooHard, Unreadable, isl.Error):
        return [Piece(keep)]
    return [replace(piece, keep=simplified(piece.keep)) for piece in raw]


def _joined(parts: Iterable[_Part], join: Callable[[_Part, _Part], _Part | None]) -> list[_Part]:
    """The parts, each joined with the first before it that it can be joined with."""
    kept: list[_Part] = []
    for part in parts:
        for index, other in enumerate(kept):
            made = join(other, part)
            if made is not None:
                kept[index] = made
                break
        else:
            kept.append(part)
    return kept


class _Decomposer:
    """One mask.

    Raises:
        TooHard: isl's patience ended. Unreadable: a set has no formula.
    """

    def __init__(self, keep: Expr) -> None:
        self.keep = keep
        self.space = Space(keep)
        with budget(_OPERATIONS):
            inside = self.space.inside
            self.whole = self.space.universe.set(keep).intersect(inside).coalesce()
            self.hull = isl.Set.from_basic_set(self.whole.simple_hull())

    def run(self) -> list[Piece]:
        if self.whole.is_empty():
            return []
        with budget(_OPERATIONS):
            pieces = self._conjunctions()
        if 1 < len(pieces) <= _FEW:
            kind, detail = kind_of(self.whole, self.space, whole=True)
            if kind is not PieceKind.set:
                return [Piece(E.disj(*(f for _, f in pieces)), kind, detail)]
        parts = [_Part(pairs, f, *kind_of(pairs, self.space)) for pairs, f in pieces]
        return self._apart(self._bands_joined(sorted(parts, key=lambda part: part.place)))

    # ------------------------------------------------------------ as wide as the mask allows

    def _conjunctions(self) -> list[tuple[isl.Set, Expr]]:
        """Conjunctions whose union is the mask.

        None of them lies in another, and none has a comparison that the mask does not need.
        """
        sets: dict[Expr, isl.Set] = {}
        parts = self.space.reader.parts(self.whole)
        floors = sum(part.dim(isl.dim_type.div) > 0 for part in parts)
        if floors > _MAX_FLOORS or len(parts) > _MAX:
            raise TooHard("too many conjunctions")
        for part in parts:
            pairs, formula = self._widened(part)
            sets.setdefault(formula, pairs)
        ordered = sorted(sets.items(), key=lambda item: item[0].key)
        kept: list[tuple[isl.Set, Expr]] = []
        for index, (formula, pairs) in enumerate(ordered):
            others = [p for p, _ in kept] + [p for _, p in ordered[index + 1 :]]
            if not any(pairs.is_subset(other) for other in others):
                kept.append((pairs, formula))
        return kept

    def _widened(self, part: isl.BasicSet) -> tuple[isl.Set, Expr]:
        """A conjunction less every comparison without which it stays in the mask."""
        bounds: dict[Expr, tuple[isl.Constraint, isl.Set]] = {}
        for constraint in part.get_constraints():
            points = points_of(constraint)
            if not self.space.inside.is_subset(points):
                formula = self.space.reader.constraint(constraint)
                bounds.setdefault(formula, (constraint, points))
        needed = dict(sorted(bounds.items(), key=lambda item: item[0].key))
        for formula in list(needed):
            rest = self._all(points for f, (_, points) in needed.items() if f != formula)
            if rest.is_subset(self.hull) and rest.is_subset(self.whole):
                del needed[formula]
        pairs = self._all(points for _, points in needed.values()).coalesce()
        within = pairs if part.dim(isl.dim_type.div) else None
        read = self.space.reader.constraint
        return pairs, E.conj(*(read(constraint, within) for constraint, _ in needed.values()))

    def _all(self, conditions: Iterable[isl.Set]) -> isl.Set:
        return reduce(isl.Set.intersect, conditions, self.space.inside)

    # ------------------------------------------------------------ without what others own

    def _bands_joined(self, parts: list[_Part]) -> list[_Part]:
        """Join bands that overlap or touch in every row they share."""
        return _joined(parts, lambda *two: self.space.ask(partial(self._one_band, *two), None))

    def _one_band(self, left: _Part, right: _Part) -> _Part | None:
        if not left.kind is right.kind is PieceKind.band:
            return None
        rows = [part.pairs.project_out(isl.dim_type.set, 1, 1) for part in (left, right)]
        both = left.pairs.union(right.pairs).coalesce()
        if rows[0].is_disjoint(rows[1]) or not self.space.universe.consecutive(both):
            return None
        formula = E.disj(left.formula, right.formula)
        return _Part(both, formula, PieceKind.band, band(both, self.space))

    def _apart(self, parts: list[_Part]) -> list[Piece]:
        owners: list[_Part] = []
        pieces: list[_Part] = []
        for part in parts:
            pieces += self._divided(part, owners)
            owners.append(part)
        return [Piece(p.formula, p.kind, p.detail) for p in self._gathered(pieces)]

    def _divided(self, part: _Part, owners: list[_Part]) -> list[_Part]:
        """The rest of a part: one piece if it is of some kind, otherwise one per conjunction."""
        with budget(_OPERATIONS):
            before = [other for other in owners if not other.pairs.is_disjoint(part.pairs)]
            rest = reduce(isl.Set.subtract, (o.pairs for o in before), part.pairs).coalesce()
            if not before or rest.is_empty():
                return [] if before else [part]
            single = self.space.single(rest)
            if single is not None:
                rest = isl.Set.from_basic_set(single)
                formula = self.space.reader.conjunction(single, self.space.inside)
            else:
                formula = E.conj(part.formula, *(E.negate(other.formula) for other in before))
        kind, detail = kind_of(rest, self.space, (part.kind, part.pairs))
        if kind is not PieceKind.set or single is not None:
            return [_Part(rest, formula, kind, detail)]
        with budget(_OPERATIONS):
            conjunctions = self.space.reader.parts(rest)
            if not _disjoint(conjunctions):
                conjunctions = self.space.reader.parts(rest.make_disjoint())
            inside, read = self.space.inside, self.space.reader.conjunction
            conjuncts = [(isl.Set.from_basic_set(c), read(c, inside)) for c in conjunctions]
        return [_Part(pairs, f, *kind_of(pairs, self.space)) for pairs, f in conjuncts]

    def _gathered(self, parts: list[_Part]) -> list[_Part]:
        """Join columns of the same queries, rows of the same keys, and pieces without a kind."""
        return _joined(sorted(parts, key=lambda part: part.place), self._both)

    def _both(self, left: _Part, right: _Part) -> _Part | None:
        if left.kind is not right.kind:
            return None
        made = self.space.ask(lambda: joined(left.detail, right.detail, self.space), None)
        if made is None and left.kind is not PieceKind.set:
            return None
        formula = E.disj(left.formula, right.formula)
        return _Part(left.pairs.union(right.pairs), formula, left.kind, made)


def _disjoint(parts: list[isl.BasicSet]) -> bool:
    sets = [isl.Set.from_basic_set(part) for part in parts]
    return all(a.is_disjoint(b) for a, b in combinations(sets, 2))


# ------------------------------------------------------------------ proof


def _check(keep: Expr, pieces: list[Piece]) -> None:
    """Check that pieces are disjoint and complete, where isl's budget suffices.

    Pieces with data are disjoint by construction: each is an alternative without the earlier ones.

    Raises:
        DecompositionBroken: the pieces overlap, or their union is not the mask.
    """
    if pieces == [Piece(keep)]:
        return
    try:
        with budget():
            universe = token_universe(keep)
            inside = domain(universe)
            whole = universe.set(keep).intersect(inside)
            union = whole.subtract(whole)
            for piece in pieces:
                part = universe.set(piece.keep).intersect(inside)
                if not union.is_disjoint(part):
                    raise DecompositionBroken("two of them overlap")
                union = union.union(part)
            if not union.is_equal(whole):
                raise DecompositionBroken("their union differs")
    except TooHard:
        return
