"""Frozen nodes of formulas. Build them with the functions of the package, never directly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


class Expr:
    """A formula. Subclasses are frozen values; equality is structural."""

    @cached_property
    def key(self) -> str:
        """Text that orders formulas; it is the same in every process."""
        return repr(self)

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The direct subformulas."""
        return ()


# ------------------------------------------------------------------ integers


@dataclass(frozen=True)
class Sum(Expr):
    """const + sum of coefficient * term; no term is a Sum, no coefficient is 0."""

    const: int
    terms: tuple[tuple[int, Expr], ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return tuple(term for _, term in self.terms)


@dataclass(frozen=True)
class Sym(Expr):
    """A variable: q, k, h (head), n_q, n_kv, ti, tj (tile row and column), or a kernel argument."""

    name: str

    @cached_property
    def key(self) -> str:
        """A key that puts queries before keys before everything else, as people write them."""
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

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.num,)


@dataclass(frozen=True)
class Mod(Expr):
    """num - den * floor(num / den), so in 0..den-1; den >= 2."""

    num: Expr
    den: int

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.num,)


@dataclass(frozen=True)
class Min(Expr):
    """The least of its arguments."""

    args: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True)
class Max(Expr):
    """The greatest of its arguments."""

    args: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True)
class Load(Expr):
    """An element of an integer array: `doc.k[k]`, `table[q // 64, k // 64]`."""

    array: str
    index: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.index


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

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.lhs,)


@dataclass(frozen=True)
class Member(Expr):
    """Whether `value` lies in one of the closed ranges, which ascend and do not touch."""

    value: Expr
    ranges: tuple[tuple[int, int], ...]
    inside: bool = True

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True)
class All(Expr):
    """Conjunction of two or more terms, sorted, none of them an All."""

    terms: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.terms


@dataclass(frozen=True)
class Any(Expr):
    """Disjunction of two or more terms, sorted, none of them an Any."""

    terms: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.terms


def is_condition(expr: Expr) -> bool:
    """Whether the formula is true or false, not an integer."""
    return isinstance(expr, (Truth, Cmp, Member, All, Any))


ZERO = Sum(0, ())
ALWAYS = Truth(True)
NEVER = Truth(False)
Q, K, H, N_Q, N_KV = (Sym(name) for name in ("q", "k", "h", "n_q", "n_kv"))
