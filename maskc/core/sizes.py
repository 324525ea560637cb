"""The dimensions of a call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions of a call."""

    batch: int
    heads_q: int
    heads_kv: int
    n_q: int
    n_kv: int
