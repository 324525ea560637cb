"""Pieces whose pairs stay inside residue classes, as plainer masks over the tokens of a class.

Let p = q + n_kv - n_q be a query's position. Where every distance p - k is a multiple of s, and
decides alone which pairs are kept, tokens regrouped by residue of their position modulo s meet
their own class only: with p = s * u + c and k = s * t + c, the pairs of class c are those of one
mask over u - t. A class is a strided view, and its last query meets its last key again: the mask
over u - t is an ordinary one of the class's own lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import gcd

import islpy as isl

from maskc.core import expr as E
from maskc.core.errors import DecompositionBroken
from maskc.core.expr import Expr
from maskc.ir.decompose import decompose
from maskc.ir.pieces_data import simplified
from maskc.ir.pieces_read import Reader, Unreadable, whole
from maskc.ir.sets import LOCK, TooHard, Universe, budget, domain
from maskc.ir.types import Band, Lattice, MaskIR, Origin, Piece, PieceKind

_FEWEST_SLASHES = 4
"""Slashes that are a band of their classes only together; fewer stay where they are."""

_D = E.Sym("d")
_DISTANCE = E.linear(0, ((1, E.Q), (1, E.N_KV), (-1, E.N_Q), (-1, E.K)))
_TEXT = "q + n_kv - n_q - k"


@dataclass(frozen=True)
class Part:
    """Pieces of a mask that run together."""

    stride: int
    """1: over the tokens as they are; s >= 2: over the tokens of each residue class modulo s."""
    ir: MaskIR
    """The mask that runs, in pieces: of the tokens, or of every class with its own lengths."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Consecutive residue classes of equal sizes.

    Class i of them, 0 <= i < count, has keys first + i, first + i + stride, ... and queries
    first_query + i, first_query + i + stride, ...: all tokens whose position is first + i modulo
    stride.
    """

    first: int
    """The first class's residue of positions: its first key, where it has keys."""
    count: int
    """How many classes."""
    first_query: int
    """The first class's first query; 0 where these classes have none."""
    n_q: int
    """Queries of each class."""
    n_kv: int
    """Keys of each class."""


# ------------------------------------------------------------------ parts


def parts(ir: MaskIR) -> tuple[Part, ...]:
    """The parts of a decomposed mask: ascending stride, disjoint, their union the mask.

    A piece is regrouped by the largest stride that divides all its distances, if it is proved
    that nothing else decides; pieces that read data never are. A mask without such pieces is one
    part, `ir` itself.

    Raises:
        DecompositionBroken: an inner mask reads otherwise than what was proved.
    """
    with LOCK:
        found = list(_regrouped(ir.pieces))
    moved = {piece for group in found for piece in group.pieces}
    if not moved:
        return (Part(1, ir),)
    rest = tuple(piece for piece in ir.pieces if piece not in moved)
    made = [Part(1, _remaining(ir, rest))] if rest else []
    return *made, *(Part(group.stride, _inner(ir, group)) for group in found)


def _remaining(ir: MaskIR, rest: tuple[Piece, ...]) -> MaskIR:
    """The mask of some of its pieces."""
    keep = simplified(E.disj(*(piece.keep for piece in rest)))
    read = set(E.arrays(keep))
    data = tuple(decl for decl in ir.data if read.intersection(decl.arrays))
    return MaskIR(keep, data, _spoken_of(keep, ir.origins), ir.declared, rest)


def _inner(ir: MaskIR, group: _Group) -> MaskIR:
    """What pieces keep inside a class, as a mask of its own."""
    keep = E.substitute(group.near, {_D: _DISTANCE})
    longer = {name: E.scale(group.stride, name) for name in (E.Q, E.K, E.N_Q, E.N_KV)}
    scaled = ((E.substitute(atom, longer), origin) for atom, origin in ir.origins)
    return decompose(MaskIR(keep, (), _spoken_of(keep, scaled), ir.declared))


_Noted = tuple[Expr, Origin]


def _spoken_of(keep: Expr, origins: Iterable[_Noted]) -> tuple[_Noted, ...]:
    """Those whose comparison `keep` has, as it is or negated."""
    live = set(E.walk(keep))
    found: dict[Expr, Origin] = {}
    for atom, origin in origins:
        if not isinstance(atom, E.Truth) and (atom in live or E.negate(atom) in live):
            found.setdefault(atom, origin)
    return tuple(found.items())


# ------------------------------------------------------------------ proofs


@dataclass(frozen=True)
class _Group:
    """Pieces that keep the pairs whose distance is stride * d, for d where `near` holds."""

    pieces: tuple[Piece, ...]
    stride: int
    near: Expr
    """Over d and parameters."""


@dataclass(frozen=True)
class _Found:
    """Pieces of one stride; `near` is a set of [d]."""

    pieces: tuple[Piece, ...]
    stride: int
    near: isl.Set


def _regrouped(pieces: tuple[Piece, ...]) -> Iterator[_Group]:
    """What can be regrouped, one group a stride, ascending."""
    candidates = [piece for piece in pieces if _may_shift(piece)]
    if not candidates:
        return
    line = _Line(E.params(E.disj(*(piece.keep for piece in candidates))))
    bands = [piece for piece in candidates if piece.kind is PieceKind.band]
    slashes = tuple(piece for piece in bands if line.is_slash(piece))
    made = [line.regrouped((piece,)) for piece in candidates if piece not in bands]
    if len(slashes) >= _FEWEST_SLASHES:
        made.append(line.regrouped(slashes, as_band=True))
    found = [one for one in made if one]
    for stride in sorted({one.stride for one in found}):
        group = line.joined([one for one in found if one.stride == stride])
        if group:
            yield group


def _may_shift(piece: Piece) -> bool:
    """Whether nothing says at once that a piece knows more than distances."""
    match piece.detail:
        case Lattice(difference=difference):
            return difference is not None
        case Band(shifts=shifts):
            return shifts
    return piece.kind is PieceKind.set and not E.arrays(piece.keep)


class _Line:
    """Sets of pairs [q, k, n_q, n_kv] and of their distances [d], over the same parameters."""

    def __init__(self, defaults: dict[str, int]) -> None:
        names = tuple(defaults)
        self.pairs = Universe(("q", "k", "n_q", "n_kv"), names, names)
        self.line = Universe(("d",), names, names)
        self.reader = Reader(("d",), defaults)
        self.counts = self.line.set(E.conj(*(E.ge(E.Param(n, 0), E.ZERO) for n in names)))
        self.prefix = f"[{', '.join(names)}] -> "

    def map(self, text: str) -> isl.Map:
        return isl.Map(self.prefix + text)

    def distances(self, keep: Expr) -> isl.Set:
        """The distances that the formula keeps, if nothing but they decide: what it says of the
        first key or the first query, at the least lengths that have the distance."""
        beyond, before = E.add(_D, E.const(1)), E.sub(E.const(1), _D)
        ahead = {E.Q: _D, E.K: E.ZERO, E.N_Q: beyond, E.N_KV: beyond}
        behind = {E.Q: E.ZERO, E.K: E.scale(-1, _D), E.N_Q: before, E.N_KV: before}
        found = E.disj(
            E.conj(E.ge(_D, E.ZERO), E.substitute(keep, ahead)),
            E.conj(E.lt(_D, E.ZERO), E.substitute(keep, behind)),
        )
        return self.line.set(found).intersect(self.counts).coalesce()

    def regrouped(self, pieces: tuple[Piece, ...], as_band: bool = False) -> _Found | None:
        """The pieces inside residue classes, if that is proved; a question too hard is a no.

        Args:
            as_band: only if a query's keys in its class are consecutive.
        """
        keep = E.disj(*(piece.keep for piece in pieces))
        try:
            with budget():
                far = self.distances(keep)
                stride = _common_divisor(far)
                if stride < 2 or _values(far).is_singleton():
                    return None
                near = far.apply(self.map(f"{{ [d] -> [x] : d = {stride}*x }}")).coalesce()
                back = self.map(f"{{ [x] -> [q, k, n_q, n_kv] : {_TEXT} = {stride}*x }}")
                inside = domain(self.pairs)
                kept = self.pairs.set(keep).intersect(inside)
                proved = kept.is_equal(near.apply(back).intersect(inside))
                if not proved or (as_band and not self._consecutive(near)):
                    return None
        except TooHard:
            return None
        return _Found(pieces, stride, near)

    def is_slash(self, piece: Piece) -> bool:
        """Whether a piece that shifts keeps one distance, whatever the parameters."""
        try:
            with budget():
                return _values(self.distances(piece.keep)).is_singleton()
        except TooHard:
            return False

    def _consecutive(self, points: isl.Set) -> bool:
        up, down = (self.map(f"{{ [x] -> [y] : y {op} x }}") for op in (">=", "<="))
        return points.apply(up).intersect(points.apply(down)).is_subset(points)

    def joined(self, found: list[_Found]) -> _Group | None:
        """Disjoint pieces of one stride as one group, their distances read as a formula."""
        pieces = tuple(piece for one in found for piece in one.pieces)
        try:
            with budget():
                near = reduce(isl.Set.union, (one.near for one in found)).coalesce()
                formula = self.reader.condition(near.gist(self.counts).coalesce())
                same = self.line.set(formula).intersect(self.counts).is_equal(near)
        except (TooHard, Unreadable):
            return None
        if not same:
            raise DecompositionBroken("a residue class differs")
        return _Group(pieces, found[0].stride, formula)


def _values(points: isl.Set) -> isl.Set:
    """The [d] of a set, at any parameters."""
    return points.project_out(isl.dim_type.param, 0, points.dim(isl.dim_type.param))


def _common_divisor(points: isl.Set) -> int:
    """The greatest common divisor of all [d] of a set, at any parameters; 0 where all are 0."""
    left, divisor = _values(points), 0
    while divisor != 1:
        multiple = f"d = {divisor}*m" if divisor else "d = 0"
        left = left.subtract(isl.Set(f"{{ [d] : exists m : {multiple} }}"))
        if left.is_empty():
            break
        point = left.sample_point()
        divisor = gcd(divisor, whole(point.get_coordinate_val(isl.dim_type.set, 0)))
    return divisor


# ------------------------------------------------------------------ classes


def classes(stride: int, n_q: int, n_kv: int) -> tuple[Classes, ...]:
    """The residue classes modulo stride >= 1 that have tokens, ascending: at most three runs.

    Every query and every key is in exactly one class; classes may have queries and no keys, or
    keys and no queries. With queries, n_kv - n_q of a class is the quotient of its first query's
    position by the stride: the class is aligned at its end, as the whole is.
    """
    offset = n_kv - n_q
    starts = sorted({0, offset % stride, n_kv % stride})  # where first_query wraps, n_kv shrinks
    found: list[Classes] = []
    for first, end in zip(starts, [*starts[1:], stride], strict=True):
        first_query = (first - offset) % stride
        queries, keys = (
            max(0, -((least - length) // stride))
            for least, length in ((first_query, n_q), (first, n_kv))
        )
        run = Classes(first, end - first, first_query if queries else 0, queries, keys)
        last = found[-1] if found else None
        if last and not queries and (last.n_q, last.n_kv) == (0, keys):
            found[-1] = Classes(last.first, last.count + run.count, 0, 0, keys)
        elif queries or keys:
            found.append(run)
    return tuple(found)
