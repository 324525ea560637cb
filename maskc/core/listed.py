"""Lists of single tokens that a mask treats differently from their neighbours: global tokens,
flagged keys.

A part of a mask over such tokens runs over packed copies of their rows. Its formulas read the token
of a row from an array, TOKEN_Q or TOKEN_K.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.expr import Expr

TOKEN_Q, TOKEN_K = "token:q", "token:k"
"""Names of the arrays that tell a part's formulas which tokens its rows are. Arrays of a call have
no colon in their names."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The tokens whose rows a part has."""

    side: str
    """"q" for queries, "k" for keys."""
    among: Expr
    """Holds for the tokens of the list; over q or k, lengths, parameters and flags."""

    @property
    def array(self) -> str:
        """The name of the array of tokens."""
        return TOKEN_Q if self.side == "q" else TOKEN_K
