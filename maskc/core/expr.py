"""Integer and boolean formulas over queries, keys and lengths: the one expression language.

The tracer builds them, isl reads them, the printers write them as C, CUDA and Python, and the
layout evaluates them. Build them with the functions below, never with the classes: the functions
keep every formula in one normal form (sums flattened and sorted, comparisons against zero,
conjunctions without duplicates), so equal text means equal formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, product
from math import gcd, prod
from operator import is_
from typing import Any as Anything
from typing import TypeVar, cast


@dataclass(frozen=True)
class Term:
    """A part of a formula, here or in core/score. Subclasses are frozen dataclasses; equality is
    structural."""

    def __init_subclass__(cls) -> None:
        """Keep this hash: that of a dataclass visits the whole formula at every call."""
        super().__init_subclass__()
        cls.__hash__ = Term.__hash__  # type: ignore[method-assign]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    def __getstate__(self) -> dict[str, Anything]:
        """Return the fields alone: hashes differ in every process."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def key(self) -> str:
        """Text that orders formulas; it is the same in every process."""
        return repr(self)

    @cached_property
    def parts(self) -> tuple[Anything, ...]:
        """The direct subformulas, in the order of the fields."""
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        flat = chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in values)
        return tuple(x for x in flat if isinstance(x, Term))

    @cached_property
    def named(self) -> tuple[Anything, ...]:
        """The variables, parameters and elements of arrays in it, each once, outermost first."""
        inner = dict.fromkeys(chain.from_iterable(part.named for part in self.parts))
        return (self, *inner) if isinstance(self, (Sym, Param, Load)) else tuple(inner)

    def over(self, change: Callable[[Anything], Anything]) -> Term:
        """A node of this kind over changed subformulas."""
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return type(self)(*(_changed(value, change) for value in values))


def _changed(value: Anything, change: Callable[[Anything], Anything]) -> Anything:
    if isinstance(value, tuple):
        return tuple(_changed(item, change) for item in value)
    return change(value) if isinstance(value, Term) else value


T = TypeVar("T", bound=Term)


class Expr(Term):
    """An integer or a condition."""


# ------------------------------------------------------------------ integers


@dataclass(frozen=True)
class Sum(Expr):
    """const + sum of coefficient * term; no term is a Sum, no coefficient is 0."""

    const: int
    terms: tuple[tuple[int, Expr], ...]

    @cached_property
    def parts(self) -> tuple[Expr, ...]:
        """The terms without their coefficients."""
        return tuple(term for _, term in self.terms)


@dataclass(frozen=True)
class Sym(Expr):
    """A variable: q, k, h (head), n_q, n_kv, ti, tj (tile row and column), or a kernel argument."""

    name: str

    @cached_property
    def key(self) -> str:
        """A sort key that puts queries first, then keys, then everything else."""
        return f"Sym({'qk'.find(self.name) % 3}{self.name})"


@dataclass(frozen=True)
class Param(Expr):
    """An integer the caller may change at every call."""

    name: str
    default: int


@dataclass(frozen=True)
class FloorDiv(Expr):
    """floor(num / den), den >= 2."""

    num: Expr
    den: int


@dataclass(frozen=True)
class Mod(Expr):
    """num - den * floor(num / den), so in 0..den-1; den >= 2."""

    num: Expr
    den: int


@dataclass(frozen=True)
class Min(Expr):
    """The least of its arguments."""

    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Max(Expr):
    """The greatest of its arguments."""

    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Load(Expr):
    """An element of an integer array: `doc.k[k]`, `table[q // 64, k // 64]`."""

    array: str
    index: tuple[Expr, ...]


@dataclass(frozen=True)
class Pick(Expr):
    """The integer `then` where the condition holds, `other` elsewhere.

    In masks it exists only during tracing: every comparison with it becomes two, one for each side.
    """

    condition: Anything
    """An Expr, or in score formulas a Test of theirs."""
    then: Expr
    other: Expr


# ------------------------------------------------------------------ booleans


@dataclass(frozen=True)
class Truth(Expr):
    """Always or never."""

    value: bool


@dataclass(frozen=True)
class Cmp(Expr):
    """`lhs op 0`, op one of >=, ==, !=."""

    op: str
    lhs: Expr


@dataclass(frozen=True)
class Member(Expr):
    """Whether `value` lies in one of the closed ranges, which ascend and do not touch."""

    value: Expr
    ranges: tuple[tuple[int, int], ...]
    inside: bool = True


@dataclass(frozen=True)
class All(Expr):
    """Conjunction of two or more terms, sorted, none of them an All."""

    terms: tuple[Expr, ...]


@dataclass(frozen=True)
class Any(Expr):
    """Disjunction of two or more terms, sorted, none of them an Any."""

    terms: tuple[Expr, ...]


def is_condition(expr: Expr) -> bool:
    """Whether the formula is true or false, not an integer."""
    return isinstance(expr, (Truth, Cmp, Member, All, Any))


ZERO = Sum(0, ())
ALWAYS = Truth(True)
NEVER = Truth(False)
Q, K, H, N_Q, N_KV = (Sym(name) for name in ("q", "k", "h", "n_q", "n_kv"))


# ------------------------------------------------------------------ building integers


def const(value: int) -> Expr:
    """A literal."""
    return Sum(int(value), ())


def as_const(expr: Expr) -> int | None:
    """The value of a literal, None for anything else."""
    return expr.const if isinstance(expr, Sum) and not expr.terms else None


def split_linear(expr: Expr) -> tuple[int, tuple[tuple[int, Expr], ...]]:
    """(constant, terms) of any integer formula."""
    return (expr.const, expr.terms) if isinstance(expr, Sum) else (0, ((1, expr),))


def linear(constant: int, terms: Iterable[tuple[int, Expr]]) -> Expr:
    """The constant plus the sum of coefficient * term, in normal form."""
    total: dict[Expr, int] = {}
    for factor, term in terms:
        inner_const, inner = split_linear(term)
        constant += factor * inner_const
        for coefficient, atom in inner:
            total[atom] = total.get(atom, 0) + factor * coefficient
    kept = [(c, t) for t, c in total.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda pair: pair[1].key)
    elif constant == 0 and kept and kept[0][0] == 1:
        return kept[0][1]
    return Sum(constant, tuple(kept))


def add(*terms: Expr) -> Expr:
    """The sum."""
    return linear(0, ((1, term) for term in terms))


def sub(left: Expr, right: Expr) -> Expr:
    """left - right."""
    return linear(0, ((1, left), (-1, right)))


def scale(factor: int, expr: Expr) -> Expr:
    """factor * expr."""
    return linear(0, ((factor, expr),))


def floordiv(num: Expr, den: int) -> Expr:
    """The formula floor(num / den) for a literal den != 0; multiples of den leave the fraction."""
    if den < 0:
        num, den = scale(-1, num), -den
    constant, terms = split_linear(num)
    if den == 1:
        return num
    whole = [(c // den, t) for c, t in terms if c % den == 0]
    rest = linear(constant % den, ((c, t) for c, t in terms if c % den))
    inner = const(0) if as_const(rest) is not None else FloorDiv(rest, den)
    return linear(constant // den, [*whole, (1, inner)])


def mod(num: Expr, den: int) -> Expr:
    """The formula num mod den for a literal den != 0, with Python's sign.

    Coefficients are those of the smallest magnitude, so that equal residues have equal text and
    need no wide products.
    """
    if den < 0:
        return scale(-1, mod(scale(-1, num), -den))
    constant, terms = split_linear(num)
    rest = linear(constant % den, ((_least(c, den), t) for c, t in terms))
    value = as_const(rest)
    return const(value % den) if value is not None else Mod(rest, den)


def _least(factor: int, den: int) -> int:
    """The number of the smallest magnitude that equals the factor modulo den.

    For den / 2 the factor's sign decides.
    """
    rest = factor % den
    return rest - den if 2 * rest > den - (factor < 0) else rest


def minimum(*args: Expr) -> Expr:
    """The least of them."""
    return _extreme(Min, min, args)


def maximum(*args: Expr) -> Expr:
    """The greatest of them."""
    return _extreme(Max, max, args)


def _extreme(
    node: type[Min] | type[Max], pick: Callable[[Iterable[int]], int], args: tuple[Expr, ...]
) -> Expr:
    flat = chain.from_iterable(arg.args if isinstance(arg, node) else (arg,) for arg in args)
    by_shape: dict[tuple[tuple[int, Expr], ...], list[int]] = {}
    for arg in flat:
        constant, terms = split_linear(arg)
        by_shape.setdefault(terms, []).append(constant)
    best = [linear(pick(values), terms) for terms, values in by_shape.items()]
    return best[0] if len(best) == 1 else node(tuple(sorted(best, key=lambda arg: arg.key)))


def absolute(expr: Expr) -> Expr:
    """|expr|."""
    value = as_const(expr)
    return const(abs(value)) if value is not None else maximum(expr, scale(-1, expr))


# ------------------------------------------------------------------ building conditions


def at_least_zero(expr: Expr) -> Expr:
    """The condition expr >= 0, divided by the gcd of its coefficients."""
    constant, terms = split_linear(expr)
    if not terms:
        return Truth(constant >= 0)
    common = gcd(*(c for c, _ in terms))
    return Cmp(">=", linear(constant // common, ((c // common, t) for c, t in terms)))


def equals_zero(expr: Expr) -> Expr:
    """The condition expr == 0, with residues of one sign and common factors removed."""
    constant, terms = split_linear(expr)
    if not terms:
        return Truth(constant == 0)
    if len(terms) == 1 and abs(terms[0][0]) == 1 and isinstance(terms[0][1], Mod):
        return _residue(terms[0][1], -constant * terms[0][0])
    common = gcd(*(c for c, _ in terms))
    if constant % common:
        return NEVER
    sign = -common if terms[0][0] < 0 else common
    return Cmp("==", linear(constant // sign, ((c // sign, t) for c, t in terms)))


def _residue(node: Mod, value: int) -> Expr:
    """The condition num mod den == value, as (num - value) mod den == 0 with one sign of num."""
    if not 0 <= value < node.den:
        return NEVER
    constant, terms = split_linear(node.num)
    sign = -1 if terms and terms[0][0] < 0 else 1
    moved = mod(linear(sign * (constant - value), ((sign * c, t) for c, t in terms)), node.den)
    known = as_const(moved)
    return Cmp("==", moved) if known is None else Truth(known == 0)


def ge(left: Expr, right: Expr) -> Expr:
    """left >= right."""
    return at_least_zero(sub(left, right))


def le(left: Expr, right: Expr) -> Expr:
    """left <= right."""
    return at_least_zero(sub(right, left))


def gt(left: Expr, right: Expr) -> Expr:
    """left > right."""
    return at_least_zero(linear(-1, ((1, left), (-1, right))))


def lt(left: Expr, right: Expr) -> Expr:
    """left < right."""
    return gt(right, left)


def eq(left: Expr, right: Expr) -> Expr:
    """left == right."""
    return equals_zero(sub(left, right))


def ne(left: Expr, right: Expr) -> Expr:
    """left != right."""
    return negate(eq(left, right))


def member(value: Expr, ids: Iterable[int]) -> Expr:
    """Whether value is one of the ids."""
    ranges: list[tuple[int, int]] = []
    for item in sorted(set(map(int, ids))):
        if ranges and item == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], item)
        else:
            ranges.append((item, item))
    if not ranges:
        return NEVER
    if len(ranges) == 1:
        low, high = ranges[0]
        return (
            eq(value, const(low))
            if low == high
            else conj(ge(value, const(low)), le(value, const(high)))
        )
    constant, terms = split_linear(value)
    if constant:
        ranges = [(low - constant, high - constant) for low, high in ranges]
    if terms and terms[0][0] < 0:
        terms = tuple((-c, t) for c, t in terms)
        ranges = [(-high, -low) for low, high in reversed(ranges)]
    return Member(linear(0, terms), tuple(ranges))


def conj(*terms: Expr) -> Expr:
    """The conjunction of all terms, normalised."""
    return _join(All, NEVER, ALWAYS, terms)


def disj(*terms: Expr) -> Expr:
    """The disjunction of all terms, normalised."""
    return _join(Any, ALWAYS, NEVER, terms)


def xor(left: Expr, right: Expr) -> Expr:
    """Return the condition that exactly one of two conditions holds."""
    return disj(conj(left, negate(right)), conj(negate(left), right))


def _join(
    node: type[All] | type[Any], absorbing: Truth, unit: Truth, terms: tuple[Expr, ...]
) -> Expr:
    flat = set(chain.from_iterable(t.terms if isinstance(t, node) else (t,) for t in terms))
    flat.discard(unit)
    if absorbing in flat or any(negate(term) in flat for term in flat):
        return absorbing
    dual = Any if node is All else All
    kept = [t for t in flat if not (isinstance(t, dual) and any(part in flat for part in t.terms))]
    if not kept:
        return unit
    return kept[0] if len(kept) == 1 else node(tuple(sorted(kept, key=lambda term: term.key)))


@lru_cache(maxsize=1 << 14)  # joining needs the negation of every term, at every level
def negate(expr: Expr) -> Expr:
    """The logical negation, pushed down to the comparisons."""
    match expr:
        case Truth(value):
            return Truth(not value)
        case Cmp(">=", lhs):
            return at_least_zero(linear(-1, ((-1, lhs),)))
        case Cmp(op, lhs):
            return Cmp("!=" if op == "==" else "==", lhs)
        case Member(value, ranges, inside):
            return Member(value, ranges, not inside)
        case All(terms):
            return disj(*map(negate, terms))
        case Any(terms):
            return conj(*map(negate, terms))
    raise TypeError(f"not a boolean formula: {expr!r}")


def alternatives(node: Expr, most: int) -> list[Expr] | None:
    """The formula as an `or` of at most `most` formulas without one; None if there are more."""
    if not isinstance(node, (All, Any)):
        return [node]
    of_terms: list[list[Expr]] = []
    for term in node.terms:
        of_term = alternatives(term, most)
        if of_term is None:
            return None
        of_terms.append(of_term)
    counts = map(len, of_terms)
    if (sum(counts) if isinstance(node, Any) else prod(counts)) > most:
        return None
    if isinstance(node, Any):
        return list(chain.from_iterable(of_terms))
    return [conj(*chosen) for chosen in product(*of_terms)]


# ------------------------------------------------------------------ looking in, rebuilding


def walk(term: T) -> Iterator[T]:
    """The formula and all its subformulas, outermost first."""
    yield term
    for part in term.parts:
        yield from walk(part)


def operations(expr: Expr) -> int:
    """Count the operations of a formula; equal ones count once.

    Sums, conjunctions and disjunctions are left out: they are folded into comparisons.
    """
    return sum(
        bool(node.parts) and not isinstance(node, Sum | All | Any) for node in set(walk(expr))
    )


def symbols(expr: Expr) -> frozenset[str]:
    """The names of the variables in a formula."""
    return frozenset(node.name for node in expr.named if isinstance(node, Sym))


def params(expr: Expr) -> dict[str, int]:
    """The names and defaults of a formula's parameters, sorted by name."""
    defaults = {node.name: node.default for node in expr.named if isinstance(node, Param)}
    return dict(sorted(defaults.items()))


def arrays(expr: Expr) -> tuple[str, ...]:
    """The names of the arrays that a formula reads, sorted."""
    return tuple(sorted({node.array for node in expr.named if isinstance(node, Load)}))


def loads(expr: Expr) -> list[Load]:
    """The elements that a formula reads, each once, sorted by their text."""
    return sorted((node for node in expr.named if isinstance(node, Load)), key=lambda x: x.key)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """Return the conditions that must all hold: the terms of an `and`, or the formula itself."""
    return expr.terms if isinstance(expr, All) else (expr,)


def transform(term: T, leaf: Callable[[Anything], Term | None]) -> T:
    """Rebuild the formula bottom-up through the normalising functions.

    `leaf` sees every node first; if it returns a formula, that replaces the whole node.
    """
    changed = leaf(term)
    if changed is None and isinstance(term, _NORMAL):
        inner = [transform(part, leaf) for part in term.parts]
        if all(map(is_, inner, term.parts)):
            return term
        replaced = iter(inner)
        changed = _rebuilt(term, lambda part: next(replaced))
    elif changed is None:
        changed = _rebuilt(term, lambda part: transform(part, leaf))
    return cast(T, changed)


_NORMAL = (Sum, FloorDiv, Mod, Min, Max, Cmp, Member, All, Any)
"""Kinds that the functions above build, which leave a normal form as it is."""


def _rebuilt(term: Term, inner: Callable[[Anything], Anything]) -> Anything:
    match term:
        case Sum(constant, terms):
            return linear(constant, ((c, inner(t)) for c, t in terms))
        case FloorDiv(num, den):
            return floordiv(inner(num), den)
        case Mod(num, den):
            return mod(inner(num), den)
        case Min(args):
            return minimum(*map(inner, args))
        case Max(args):
            return maximum(*map(inner, args))
        case Cmp(op, lhs):
            compared = inner(lhs)
            if op == ">=":
                return at_least_zero(compared)
            equal = equals_zero(compared)
            return equal if op == "==" else negate(equal)
        case Member(value, ranges, inside):
            moved = inner(value)
            known = as_const(moved)
            if known is None:
                return Member(moved, ranges, inside)
            return Truth(any(low <= known <= high for low, high in ranges) == inside)
        case All(terms):
            return conj(*map(inner, terms))
        case Any(terms):
            return disj(*map(inner, terms))
    return term.over(inner) if term.parts else term


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Replace whole subformulas (usually symbols and parameters)."""
    if not all(isinstance(key, (Sym, Param)) for key in values):
        return transform(expr, values.get)

    def replaced(node: Expr) -> Expr | None:
        return values.get(node) or (None if any(map(values.__contains__, node.named)) else node)

    return transform(expr, replaced)


def with_values(expr: Expr, values: Mapping[str, int]) -> Expr:
    """The formula with numbers for the symbols and parameters of these names."""

    def number(node: Expr) -> Expr | None:
        if isinstance(node, (Sym, Param)) and node.name in values:
            return const(values[node.name])
        known = any(getattr(each, "name", None) in values for each in node.named)
        return None if known else node

    return transform(expr, number)


def assume(expr: Expr, atom: Expr, holds: bool) -> Expr:
    """Return the formula under the assumption that a comparison holds, or does not."""
    return substitute(expr, {atom: Truth(holds), negate(atom): Truth(not holds)})


def assume_reads(expr: Expr, hold: bool, names: Collection[str] | None = None) -> Expr:
    """Return the formula under the assumption that all comparisons that read an array hold, or none
    do.

    Args:
        names: of the arrays, if not all of them.
    """

    def known(node: Expr) -> Expr | None:
        read = arrays(node) if isinstance(node, (Cmp, Member)) else ()
        counts = read if names is None else set(read).intersection(names)
        return Truth(hold) if counts else None

    return transform(expr, known)


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The formula with other names for the arrays it reads."""
    if all(old == new for old, new in names.items()):
        return expr

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        index = tuple(renamed(part, names) for part in node.index)
        return Load(names.get(node.array, node.array), index)

    return transform(expr, load)
