"""Stretches of tokens that are sent, copied and added together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskc.distributed.token_ranges import PlacedTokens

FEW = 4
"""Up to this many stretches are copied one by one; more are gathered by index."""
MANY = 16
"""Copies of own keys that are made one by one, likewise: each is read and written in place."""


class Pieces:
    """Stretches of tokens, in order; derived values are computed once."""

    def __init__(self, stretches: Iterable[tuple[int, int]]) -> None:
        """`stretches`: (first token, how many) of each."""
        self.stretches = tuple(stretches)
        self.tokens = sum(count for _, count in self.stretches)
        self._indices: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.stretches)

    def slices(self, first: int = 0) -> Iterator[tuple[slice, slice]]:
        """(where a stretch is among all of them, its tokens, counted from `first`)."""
        at = 0
        for place, count in self.stretches:
            yield slice(at, at + count), slice(place - first, place - first + count)
            at += count

    def index(self, device: Any, first: int = 0) -> Any:
        """int64 tensor [tokens]: the tokens, counted from `first`; made once."""
        import torch

        if (device, first) not in self._indices:
            parts = [torch.arange(x - first, x - first + count) for x, count in self.stretches]
            self._indices[device, first] = torch.cat(parts).to(device)
        return self._indices[device, first]


class Lookup:
    """Places of tokens, looked up on any device."""

    def __init__(self, placed: PlacedTokens) -> None:
        self._placed = placed
        self._tables: dict[Any, Any] = {}

    def places(self, tokens: Any, n: int) -> Any:
        """Find where tokens lie.

        Args:
            tokens: an integer tensor of any shape; -1 stands for none.
            n: tokens of the sequence; greater numbers remain, as mistakes.

        Returns:
            int32, in the shape of `tokens`: -1 for tokens that lie nowhere.
        """
        import torch

        table = self._tables.get((tokens.device, n))
        if table is None:
            held, at = map(torch.from_numpy, self._placed.pairs)
            table = torch.full((n + 1,), -1, dtype=torch.int32)
            table[held] = at.to(torch.int32)
            table = self._tables[tokens.device, n] = table.to(tokens.device)
        places = table[tokens.clamp(-1, n).long()]  # -1 reads the entry behind the last token
        return torch.where(tokens >= n, tokens.to(torch.int32), places)


@dataclass(frozen=True, eq=False)
class Joined:
    """Several pieces side by side, so that they are copied together."""

    all: Pieces
    parts: tuple[tuple[Pieces, slice], ...]
    """Each of them, once, and where it is among all tokens."""

    @classmethod
    def of(cls, messages: Iterable[tuple[int, Pieces]]) -> Joined:
        """Join the messages of more than FEW stretches."""
        packed = dict.fromkeys(pieces for _, pieces in messages if len(pieces) > FEW)
        parts, at = [], 0
        for pieces in packed:
            parts.append((pieces, slice(at, at + pieces.tokens)))
            at += pieces.tokens
        return cls(Pieces(x for pieces in packed for x in pieces.stretches), tuple(parts))
