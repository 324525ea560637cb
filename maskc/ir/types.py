"""What a mask is once the combinators are gone: one formula, and pieces that add up to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from maskc.core.data import DataDecl
from maskc.core.expr import Expr, params
from maskc.core.source import SourceLoc


@dataclass(frozen=True, slots=True)
class Origin:
    """Which term of the pattern a comparison came from."""

    loc: SourceLoc | None
    term: str
    """The term as maskc prints it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a mask that shares no pair with the other parts."""

    keep: Expr
    kind: str = "set"
    """Which way of running it would suit; `set` while pieces are not told apart by kind."""


@dataclass(frozen=True)
class MaskIR:
    """The mask of one head, lengths symbolic."""

    keep: Expr
    """Over q, k, n_q, n_kv, parameters and data arrays; comparisons in normal form."""
    data: tuple[DataDecl, ...]
    """The arrays it reads, by name."""
    origins: tuple[tuple[Expr, Origin], ...] = field(compare=False)
    """For comparisons of `keep`, the user's term (the first where several agree)."""
    declared: frozenset[str] = frozenset()
    """Keywords the mask as written accepts; some may no longer be read."""
    pieces: tuple[Piece, ...] = ()
    """Disjoint, their union is `keep`; empty before decompose."""

    @property
    def params(self) -> dict[str, int]:
        """Names and defaults of the parameters the mask reads."""
        return params(self.keep)
