"""Pieces whose pairs stay inside residue classes, as plainer masks over the tokens of a class.

Let p = q + n_kv - n_q be a query's position. If every distance p - k is a multiple of s, and
decides alone which pairs are kept, tokens regrouped by residue of their position modulo s meet
their own class only: with p = s * u + c and k = s * t + c, the pairs of class c are those of one
mask over u - t. A class is a strided view, and its last query meets its last key again: the mask
over u - t is an ordinary one of the class's own lengths.

Where all queries see some of the keys of a few residues (landmarks, Sparse Transformer's columns),
the keys of one residue, a strided view too, are a part with all queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd

import islpy as isl

from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL
from maskc.core.errors import DecompositionBroken
from maskc.core.expr import Expr
from maskc.ir.decompose import decompose
from maskc.ir.id_lists import veiled
from maskc.ir.pieces_data import simplified
from maskc.ir.pieces_lattice import T_K, T_Q, C, J
from maskc.ir.pieces_read import PieceReader, Unreadable, whole
from maskc.ir.sampled_rows import move_along, sampled_rows
from maskc.ir.sets import LOCK, TooHard, Universe, budget, domain, isl_names
from maskc.ir.types import Band, Lattice, MaskIR, MaskPart, Origin, Piece, PieceKind

_FEWEST_SLASHES = 4
"""Slashes from which on they are regrouped because they are a band together."""
_MAX_LANES = 8
"""Residues of keys that become parts of their own: each reads and writes the results once more."""

_N_KV_OF_ALL = E.Param(N_KV_OF_ALL, 4096)

_D = E.Sym("d")
_DISTANCE = E.linear(0, ((1, E.Q), (1, E.N_KV), (-1, E.N_Q), (-1, E.K)))
_TEXT = "q + n_kv - n_q - k"


# ------------------------------------------------------------------ parts


Extents = Mapping[int, int | None]
"""For each stride (1 for terms that are not regrouped), the smallest and the largest distance in
strides, at the parameters' defaults; None if unbounded."""
Choose = Callable[[Extents], Mapping[int, int]]
"""Says with which stride pieces of each stride run: their own, or one that divides it."""


def alone(extents: Extents) -> Mapping[int, int]:
    """Every stride is a part of its own."""
    return {stride: stride for stride in extents}


def parts(ir: MaskIR, choose: Choose = alone) -> tuple[MaskPart[MaskIR], ...]:
    """The parts of a decomposed mask, which are disjoint and whose union is the mask.

    They come in ascending order of their stride, and those over the keys of one residue come last.
    A piece is regrouped by the largest stride that divides all its distances, if it provably
    depends on distances only. Pieces that read data are never regrouped. If a mask uses q - k
    instead of distances, the stride must divide the difference of the lengths. A mask without such
    pieces is one part, `ir` itself.

    Args:
        ir: the mask.
        choose: puts parts together; a part's pieces then keep multiples of a multiple of its
            stride.

    Raises:
        DecompositionBroken: an inner mask differs from what was proved.
    """
    with LOCK:
        groups = sorted(_regrouped(ir.pieces, choose), key=lambda group: group.stride)
        moved = {piece for group in groups for piece in group.pieces}
        lanes = _lanes([piece for piece in ir.pieces if piece not in moved])
    if not groups and len(lanes) == len(ir.pieces):  # the first part is to write all results
        lanes = {}
    moved |= lanes.keys()
    if not moved:
        return (MaskPart(1, ir),)
    rest = tuple(piece for piece in ir.pieces if piece not in moved)
    made = [MaskPart(1, _remaining(ir, rest))] if rest else []
    made += [MaskPart(group.stride, _inner(ir, group), group.aligned) for group in groups]
    for stride, masks in lanes.values():
        for residue, keep in masks.items():
            inner = decompose(MaskIR(keep, (), (), ir.declared))
            made.append(MaskPart(stride, inner, keys=residue))
    return tuple(made)


def _lanes(pieces: list[Piece]) -> dict[Piece, tuple[int, dict[int, Expr]]]:
    """For pieces of a few residues of keys: the stride, and what queries see of the keys of each
    residue."""
    by_piece = {}
    for piece in pieces:
        match piece.detail:
            case Lattice(stride, None, int() as phase, None, width, band=band) if (
                width <= _MAX_LANES and phase + width <= stride and not E.arrays(band)
            ):
                lanes = {
                    phase + lane: E.substitute(band, {C: E.ZERO, J: E.const(lane)})
                    for lane in range(width)
                }
                if _are_lanes(piece, stride, lanes):
                    inside: dict[Expr, Expr] = {T_Q: E.Q, T_K: E.K, E.N_KV: _N_KV_OF_ALL}
                    masks = {r: E.substitute(lane, inside) for r, lane in lanes.items()}
                    by_piece[piece] = stride, masks
    return by_piece


def _are_lanes(piece: Piece, stride: int, lanes: Mapping[int, Expr]) -> bool:
    """Whether masks over t_q and t_k, one per residue of the key, are proved to be the piece."""
    lane_formula = E.disj(*(
        E.conj(
            E.eq(E.mod(E.K, stride), E.const(residue)),
            E.substitute(keep, {T_Q: E.Q, T_K: E.floordiv(E.K, stride)}),
        )
        for residue, keep in lanes.items()
    ))  # fmt: skip
    names = tuple(E.params(E.disj(piece.keep, lane_formula)))
    pairs = Universe(("q", "k", "n_q", "n_kv"), isl_names(names), names)
    try:
        with budget():
            every = domain(pairs)
            sides = (pairs.set(keep).intersect(every) for keep in (piece.keep, lane_formula))
            left, right = sides
            return left.is_equal(right)
    except TooHard:
        return False


def _remaining(ir: MaskIR, rest: tuple[Piece, ...]) -> MaskIR:
    """The mask of some of its pieces."""
    keep = simplified(E.disj(*(piece.keep for piece in rest)))
    return MaskIR(keep, ir.data_of(keep), _spoken_of(keep, ir.origins), ir.declared, rest)


def _inner(ir: MaskIR, group: _Group) -> MaskIR:
    """The pairs that pieces keep inside a class, as a mask of its own."""
    keep = E.substitute(group.near, {_D: _DISTANCE})
    longer: dict[Expr, Expr] = {
        name: E.scale(group.stride, name) for name in (E.Q, E.K, E.N_Q, E.N_KV)
    }
    scaled = ((E.substitute(atom, longer), origin) for atom, origin in ir.origins)
    return decompose(MaskIR(keep, (), _spoken_of(keep, scaled), ir.declared))


_Noted = tuple[Expr, Origin]


def _spoken_of(keep: Expr, origins: Iterable[_Noted]) -> tuple[_Noted, ...]:
    """The terms whose comparison `keep` has, as it is or negated."""
    live = set(E.walk(keep))
    spoken: dict[Expr, Origin] = {}
    for atom, origin in origins:
        if not isinstance(atom, E.Truth) and (atom in live or E.negate(atom) in live):
            spoken.setdefault(atom, origin)
    return tuple(spoken.items())


# ------------------------------------------------------------------ proofs


@dataclass(frozen=True)
class _Group:
    """Pieces that keep the pairs whose distance is stride * d, for d where `near` holds."""

    pieces: tuple[Piece, ...]
    stride: int
    near: Expr
    """Over d and parameters."""
    aligned: bool
    """Whether the pairs are these only where the stride divides n_kv - n_q."""


@dataclass(frozen=True)
class _Found:
    """A piece and the [d] of its distances stride * d."""

    piece: Piece
    stride: int
    near: isl.Set
    aligned: bool
    """Whether the distances hold only where the stride divides n_kv - n_q."""


def _regrouped(pieces: tuple[Piece, ...], choose: Choose) -> Iterator[_Group]:
    """The pieces that are regrouped, one group for each stride."""
    candidates = [piece for piece in pieces if _may_shift(piece)]
    if not candidates:
        return
    line = _Line(E.params(E.disj(*(piece.keep for piece in candidates))))
    asked = {piece: line.distances(piece) for piece in candidates}
    slashes = {piece: of.distance for piece, of in asked.items() if of.distance is not None}
    strides = {
        piece: of.stride for piece, of in asked.items()
        if piece not in slashes and piece.kind is not PieceKind.band and of.stride > 1
    }  # fmt: skip
    classes = [line.inside(piece, stride) for piece, stride in strides.items()]
    proved = {one.stride for one in classes if one}
    classes += [line.inside(p, stride) for p, stride in _going_along(slashes, proved)]
    by_stride: dict[int, list[_Found]] = {}
    for one in sorted(filter(None, classes), key=lambda one: one.stride):
        by_stride.setdefault(one.stride, []).append(one)
    by_stride = {stride: ones for stride, ones in by_stride.items() if line.joined(ones, stride)}
    extents = {stride: line.extent(ones) for stride, ones in by_stride.items()}
    if sum(map(len, by_stride.values())) < len(pieces):
        extents = {1: None, **extents}
    chosen = choose(extents)
    for base in sorted(set(chosen.values()) - {1}):
        mine = [stride for stride in by_stride if chosen[stride] == base]
        group = line.joined([one for stride in mine for one in by_stride[stride]], base)
        single_groups = (line.joined(by_stride[stride], stride) for stride in mine)
        yield from filter(None, [group] if group else single_groups)


def _may_shift(piece: Piece) -> bool:
    """Whether a quick test does not rule out that a piece depends on distances only."""
    match piece.detail:
        case Lattice(difference=difference):
            return difference is not None
        case Band(shifts=shifts):
            return shifts
    keep = veiled(piece.keep)
    return (
        piece.kind is PieceKind.set
        and not E.arrays(keep)
        and all(move_along(rows, after) for _, rows, after in sampled_rows(keep, E.params(keep)))
    )


def _going_along(slashes: dict[Piece, int], strides: set[int]) -> Iterator[tuple[Piece, int]]:
    """The stride of slashes: their own where there are several and together they are a band of
    their classes, else the largest of `strides` that divides their distance."""
    common, distances = gcd(*slashes.values()), sorted(slashes.values())
    if (
        len(distances) >= _FEWEST_SLASHES
        and common > 1
        and distances[-1] - distances[0] == common * (len(distances) - 1)
    ):
        yield from ((piece, common) for piece in slashes)
        return
    for piece, distance in slashes.items():
        dividing = [stride for stride in strides if distance % stride == 0]
        if dividing:
            yield piece, max(dividing)


@dataclass(frozen=True)
class _Distances:
    """Answers questions about the distances of a piece."""

    stride: int
    """The largest that divides all of them; 1 where that is too hard."""
    distance: int | None
    """The only one, if it is."""


class _Line:
    """Makes sets of pairs [q, k, n_q, n_kv] and of distances [d], over the same parameters."""

    def __init__(self, defaults: dict[str, int]) -> None:
        names, self.defaults = tuple(defaults), defaults
        self.pairs = Universe(("q", "k", "n_q", "n_kv"), isl_names(names), names)
        self.line = Universe(("d",), isl_names(names), names)
        self.reader = PieceReader(("d",), defaults)
        self.counts = self.line.set(E.conj(*(E.ge(E.Param(n, 0), E.ZERO) for n in names)))

    def _kept(self, keep: Expr) -> isl.Set:
        """Return the distances that the formula keeps, assuming that it depends on nothing else:
        evaluated for the first key or query, at the smallest lengths with that distance."""
        beyond, before = E.add(_D, E.const(1)), E.sub(E.const(1), _D)
        ahead: dict[Expr, Expr] = {E.Q: _D, E.K: E.ZERO, E.N_Q: beyond, E.N_KV: beyond}
        behind: dict[Expr, Expr] = {
            E.Q: E.ZERO, E.K: E.scale(-1, _D), E.N_Q: before, E.N_KV: before,
        }  # fmt: skip
        formula = E.disj(
            E.conj(E.ge(_D, E.ZERO), E.substitute(keep, ahead)),
            E.conj(E.lt(_D, E.ZERO), E.substitute(keep, behind)),
        )
        return self.line.set(formula).intersect(self.counts).coalesce()

    def distances(self, piece: Piece) -> _Distances:
        """Return the common property of the distances at any parameters."""
        try:
            with budget():
                far = self._kept(piece.keep)
                values = far.project_out(isl.dim_type.param, 0, far.dim(isl.dim_type.param))
                one = _value(values.sample_point()) if values.is_singleton() else None
                return _Distances(_common_divisor(values), one)
        except TooHard:
            return _Distances(1, None)

    def inside(self, piece: Piece, stride: int) -> _Found | None:
        """Return the piece inside residue classes, if that is proved; None if not, or if the proof
        is too hard."""
        try:
            with budget():
                shrink = self.line.map(f"{{ [d] -> [x] : d = {stride}*x }}")
                near = self._kept(piece.keep).apply(shrink).coalesce()
                back = self.line.map(f"{{ [x] -> [q, k, n_q, n_kv] : {_TEXT} = {stride}*x }}")
                kept, moved = self.pairs.set(piece.keep), near.apply(back)
                every = domain(self.pairs)
                multiple = f"exists e : n_kv - n_q = {stride}*e"
                even = isl.Set(f"{self.line.prefix}{{ [q, k, n_q, n_kv] : {multiple} }}")
                for aligned, lengths in ((False, every), (True, every.intersect(even))):
                    if kept.intersect(lengths).is_equal(moved.intersect(lengths)):
                        return _Found(piece, stride, near, aligned)
        except TooHard:
            pass
        return None

    def joined(self, classes: list[_Found], stride: int) -> _Group | None:
        """Disjoint pieces as one group of a stride that divides all theirs.

        The result is None if their distances cannot be read as a formula, or where one piece
        holds at aligned lengths of a larger stride only.
        """
        if any(one.aligned and one.stride != stride for one in classes):
            return None
        try:
            with budget():
                near = self._united(classes, stride)
                formula = self.reader.condition(near.gist(self.counts).coalesce())
                same = self.line.set(formula).intersect(self.counts).is_equal(near)
        except (TooHard, Unreadable):
            return None
        if not same:
            raise DecompositionBroken("a residue class differs")
        pieces, aligned = tuple(one.piece for one in classes), any(one.aligned for one in classes)
        return _Group(pieces, stride, formula, aligned)

    def _united(self, pieces: list[_Found], stride: int) -> isl.Set:
        """The [d] of all distances stride * d."""
        ratios = {one: one.stride // stride for one in pieces}
        wider = (
            one.near.apply(self.line.map(f"{{ [d] -> [x] : x = {ratio}*d }}"))
            for one, ratio in ratios.items()
        )
        return reduce(isl.Set.union, wider).coalesce()

    def extent(self, pieces: list[_Found]) -> int | None:
        """The smallest and the largest d of pieces of one stride, at the parameters' defaults.

        The result is None if there is no largest one.
        """
        near = self._united(pieces, pieces[0].stride)
        for name, value in self.defaults.items():
            near = near.intersect(self.line.set(E.eq(E.Param(name, value), E.const(value))))
        near = near.project_out(isl.dim_type.param, 0, near.dim(isl.dim_type.param))
        if near.is_empty() or not near.is_bounded():
            return None
        return _value(near.lexmax().sample_point()) - _value(near.lexmin().sample_point())


def _common_divisor(left: isl.Set) -> int:
    """The greatest common divisor of all [d] of a set without parameters; 0 of none but 0."""
    divisor = 0
    while divisor != 1:
        multiple = f"d = {divisor}*m" if divisor else "d = 0"
        left = left.subtract(isl.Set(f"{{ [d] : exists m : {multiple} }}"))
        if left.is_empty():
            break
        divisor = gcd(divisor, _value(left.sample_point()))
    return divisor


def _value(point: isl.Point) -> int:
    return whole(point.get_coordinate_val(isl.dim_type.set, 0))
