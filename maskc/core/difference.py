"""A pair that distinguishes two masks, with the data for which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from maskc.core.data import CuSeqlens, Parents

_WHOLE = 16
"""Arrays of at most so many elements are printed element by element."""
_RUNS = 6
"""The number of runs of equal elements that are printed of longer arrays."""


@dataclass(frozen=True, eq=False)
class Difference:
    """Query `q` sees key `k` in only one of two masks; `mc.diff(a, b)` found it.

    `a.dense(d.n_q, d.n_kv, **d.data)` and the same for b differ at [d.q, d.k], after the indices of
    sequence and head if there are such dimensions.
    """

    q: int
    k: int
    n_q: int
    n_kv: int
    kept_by: str
    """The mask that keeps the pair: "a" or "b"."""
    head: int = 0
    batch: int = 0
    """The query head and the sequence."""
    n_heads: int | None = None
    """The number of query heads; None if heads do not differ."""
    data: Mapping[str, object] = field(default_factory=dict)
    """The arrays and parameters, by name, as calls take them."""
    pairs: int | None = None
    """The number of pairs that differ in all, over heads and sequences; None if nobody
    counted."""

    def __str__(self) -> str:
        lengths = f"n = {self.n_q}" if self.n_q == self.n_kv else f"{self.n_q} x {self.n_kv}"
        head = f" on head {self.head} of {self.n_heads}" if self.n_heads is not None else ""
        batch = f" of sequence {self.batch}" if self.batch else ""
        many = "pair differs" if self.pairs == 1 else "pairs differ"
        count = f"; {self.pairs} {many}" if self.pairs is not None else ""
        first = f"query {self.q} sees key {self.k}{head}{batch} only in {self.kept_by}"
        return "\n".join([f"{first}, at {lengths}{count}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for name, value in self.data.items():
            yield f"    {name} = {_text(value)}"

    def __repr__(self) -> str:
        return f"<Difference: {self}>"


def _text(value: object) -> str:
    """The value as text, short enough to read."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Parents):
        return f"mc.parents({_text(value.array)})"
    if isinstance(value, CuSeqlens):
        return f"mc.cu_seqlens({_text(value.array)})"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return f"<{type(value).__name__}>"
    if array.dtype == object:
        return f"<{type(value).__name__}>"
    if array.dtype == bool:
        array = array.astype(int)
    if array.ndim != 1 or array.size <= _WHOLE:
        whole = array.size <= _WHOLE * _WHOLE
        return str(array.tolist()) if whole else f"<{array.dtype} {list(array.shape)}>"
    runs = [(item, len(list(run))) for item, run in groupby(array.tolist())]
    shown = " + ".join(f"{count} * [{item}]" for item, count in runs[:_RUNS])
    return shown if len(runs) <= _RUNS else f"{shown} + ..."
