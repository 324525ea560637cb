"""isl's sets read back as formulas: isl objects do not leave the rooms that call this."""

from __future__ import annotations

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.sets import TooHard, param_of


class Unreadable(Exception):
    """A set has no formula of ours: a variable of isl's own has no definition."""


def whole(value: isl.Val) -> int:
    """An integer of isl's.

    Raises:
        TooHard: the budget ended while it was printed, which isl does not tell.
    """
    text = value.to_str()
    if text is None:
        raise TooHard("a number")
    return int(text)


class PieceReader:
    """Reads sets over named dimensions."""

    def __init__(self, dims: tuple[str, ...], defaults: dict[str, int]) -> None:
        self.dims = tuple(map(E.Sym, dims))
        self.defaults = defaults

    def parts(self, points: isl.Set) -> list[isl.BasicSet]:
        """The conjunctions a set is a union of, in no particular order."""
        return points.compute_divs().coalesce().remove_redundancies().get_basic_sets()

    def condition(self, points: isl.Set) -> Expr:
        """The set as a formula.

        Raises:
            Unreadable: isl says `exists` where no floor is meant.
        """
        return E.disj(*map(self.conjunction, self.parts(points)))

    def conjunction(self, part: isl.BasicSet, inside: isl.Set | None = None) -> Expr:
        """A set of one conjunction as a formula, its comparisons as tight as residues allow.

        Args:
            inside: where it will be read; what holds there is left out.
        """
        within = isl.Set.from_basic_set(part) if part.dim(isl.dim_type.div) else None
        told = part.get_constraints()
        if inside is not None:
            told = [c for c in told if not inside.is_subset(points_of(c))]
        return E.conj(*(self.constraint(c, within) for c in told))

    def constraint(self, constraint: isl.Constraint, within: isl.Set | None = None) -> Expr:
        """One equality or inequality as a constraint.

        It leaves out the amount by which the formula exceeds zero everywhere in `within`.
        """
        value = constraint.get_aff()
        if constraint.is_equality():
            return E.equals_zero(self.integer(value))
        if within is not None:
            least = within.min_val(value)
            if least.is_int():
                value = value.add_constant_val(least.neg())
        return _bounded(self.integer(value))

    def integer(self, value: isl.Aff) -> Expr:
        """An affine value with floors.

        Raises:
            Unreadable: it is a fraction, or a floor has no definition.
        """
        if whole(value.get_denominator_val()) != 1:
            raise Unreadable("a fraction")
        return _with_residues(self._numerator(value))

    def _numerator(self, value: isl.Aff) -> Expr:
        den = value.get_denominator_val()

        def scaled(number: isl.Val) -> int:
            return whole(number.mul(den))

        names = [self._named(value, i) for i in range(value.dim(isl.dim_type.param))]
        terms = [
            (scaled(value.get_coefficient_val(kind, i)), atom)
            for kind, atoms in ((isl.dim_type.param, names), (isl.dim_type.in_, self.dims))
            for i, atom in enumerate(atoms)
        ]
        for i in range(value.dim(isl.dim_type.div)):
            coefficient = scaled(value.get_coefficient_val(isl.dim_type.div, i))
            if coefficient:
                terms.append((coefficient, self._floor(value.get_div(i))))
        return E.linear(scaled(value.get_constant_val()), terms)

    def _named(self, value: isl.Aff, index: int) -> Expr:
        name = value.get_dim_name(isl.dim_type.param, index) or ""
        param = param_of(name)
        return E.Sym(name) if param is None else E.Param(param, self.defaults[param])

    def _floor(self, value: isl.Aff) -> Expr:
        if value.is_nan():
            raise Unreadable("an undefined floor")
        den = whole(value.get_denominator_val())
        constant, terms = E.split_linear(self._numerator(value))
        backward = {E.K, E.N_Q} if any(t == E.Q for _, t in terms) else set()
        least = [(_nearest(c, den, t in backward), t) for c, t in terms]
        moved = [((c - r) // den, t) for (c, t), (r, _) in zip(terms, least, strict=True)]
        return E.linear(0, [(1, E.floordiv(E.linear(constant, least), den)), *moved])


def points_of(constraint: isl.Constraint) -> isl.Set:
    """The set of points where one equality or inequality holds."""
    return isl.Set.from_basic_set(isl.BasicSet.from_constraint(constraint))


def pieces_of(value: isl.PwAff) -> list[tuple[isl.Set, isl.Aff]]:
    """(the condition, the formula) of every case of a value."""
    pieces: list[tuple[isl.Set, isl.Aff]] = []
    value.foreach_piece(lambda where, what: pieces.append((where, what)))
    return pieces


def _nearest(coefficient: int, den: int, negative: bool) -> int:
    """The representative modulo den nearest to 0; of two, the negative one if that is asked."""
    rest = coefficient % den
    return rest - den if 2 * rest > den or (2 * rest == den and negative) else rest


def _with_residues(value: Expr) -> Expr:
    """Write den * floor(x / den) as x - x mod den wherever that makes the sum shorter."""
    constant, terms = E.split_linear(value)
    for coefficient, term in terms:
        if isinstance(term, E.FloorDiv) and coefficient % term.den == 0:
            times = coefficient // term.den
            rest = E.mod(term.num, term.den)
            made = E.linear(
                constant, [*terms, (-coefficient, term), (times, term.num), (-times, rest)]
            )
            if len(E.split_linear(made)[1]) < len(terms):
                return _with_residues(made)
    return value


def _bounded(value: Expr) -> Expr:
    """The condition value >= 0, or true where a residue's range proves it."""
    constant, terms = E.split_linear(value)
    residues = [(c, term) for c, term in terms if isinstance(term, E.Mod)]
    if terms and len(residues) == len(terms):
        least = constant + sum(c * (term.den - 1) for c, term in residues if c < 0)
        if least >= 0:
            return E.ALWAYS
    return E.at_least_zero(value)
