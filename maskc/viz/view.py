"""A view of a mask: some queries, some keys, one head, with everything bound except q and k.

The view has its own coordinates, so a range of a million-token mask is a small mask with q + q0 for
q and k + k0 for k in its formula. All questions about it are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core import expr as E
from maskc.core.errors import DataRange
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.dsl.mask import Mask
from maskc.dsl.slots import with_captured
from maskc.ir.lowered import on_all_heads
from maskc.ir.selecting import hull
from maskc.layout import build
from maskc.questions.mask_at_lengths import MaskAtLengths, bound, pairs_of


@dataclass(frozen=True, slots=True)
class ViewSpan:
    """The queries q0 .. q1 - 1 and the keys k0 .. k1 - 1."""

    q0: int
    q1: int
    k0: int
    k1: int

    def __str__(self) -> str:
        return f"{self.q0}:{self.q1},{self.k0}:{self.k1}"

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.q1 - self.q0, self.k1 - self.k0

    def check(self, n_q: int, n_kv: int) -> ViewSpan:
        """Check the range and return it.

        Raises:
            DataRange: it is not a part of n_q queries and n_kv keys.
        """
        inside = 0 <= self.q0 <= self.q1 <= n_q and 0 <= self.k0 <= self.k1 <= n_kv
        if not inside:
            hint = "a range is Q0:Q1,K0:K1 with ends not included, for example 0:256,768:1024"
            fault = f"{self} is not inside {n_q} queries and {n_kv} keys"
            raise DataRange("range", fault, hint, at="range")
        return self


@dataclass(frozen=True, eq=False)
class View:
    """One head's mask in one window."""

    keep: Expr
    """Over q and k, counted from the window's corner, and arrays."""
    arrays: Mapping[str, np.ndarray]
    """int32: one sequence's and one head's."""
    n_q: int
    n_kv: int
    """Queries and keys of the window."""

    def elements(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """bool [queries, n_kv]: True where the query sees the key.

        Args:
            start, stop: the queries; all of them by default.
        """
        stop = self.n_q if stop is None else stop
        env = {
            **self.arrays,
            "q": np.arange(start, stop, dtype=np.int64)[:, None],
            "k": np.arange(self.n_kv, dtype=np.int64)[None, :],
        }
        kept = evaluate(self.keep, env) if stop > start and self.n_kv else False
        return np.broadcast_to(np.asarray(kept, dtype=bool), (stop - start, self.n_kv))

    def layout(self, tile: TileShape) -> BlockLayout:
        """The window's tiles, exact."""
        from maskc.plan.recipe import layout_recipe

        return build(layout_recipe(self.keep, tile), self.n_q, self.n_kv, {}, self.arrays)

    def count(self) -> int:
        """The window's live pairs, exact."""
        if not self.n_q or not self.n_kv:
            return 0
        return pairs_of(self.keep, self.n_q, self.n_kv, {}, self.arrays)


@dataclass(frozen=True, eq=False)
class Views:
    """The distinct sets of all heads of one sequence."""

    by_heads: Mapping[tuple[int, ...], View]
    """The view of each set of heads; the key is () where all heads share one."""
    sequence: int | None
    """The index of the sequence among `sequences`; None if all share their sets."""
    sequences: int


def views(
    mask: Mask,
    n_q: int,
    n_kv: int,
    span: ViewSpan,
    *,
    n_heads: int | None = None,
    batch: int = 0,
    data: Mapping[str, object],
) -> Views:
    """The distinct sets of all heads.

    Args:
        mask: any mask; of run-time selections the hull, all pairs that some choice keeps, unless
            `data` holds the `scores` to choose by.
        n_q, n_kv: lengths of the whole mask.
        span: the window.
        n_heads: needed where heads differ and the mask does not say how many there are.
        batch: the sequence that is shown, where they differ.
        data: the arrays and parameters the mask names.

    Raises:
        MaskcError: as Mask.layout.
    """
    asked = hull_asked(mask, n_q, n_kv, n_heads, data)
    sequences = asked.sequences
    if not 0 <= batch < max(sequences, batch + 1 if sequences == 1 else 0):
        there = f"no sequence {batch} among {sequences}"
        raise DataRange("batch", there, "sequences count from 0", at="batch")
    values = {"n_q": n_q, "n_kv": n_kv, **asked.params}
    sets = asked.alike(batch)
    by_heads = {}
    for heads in sets:
        keep = _moved(asked.ir(heads[0]).keep, values, span)
        view = View(keep, asked.own(heads[0], batch), *span.shape)
        by_heads[heads if len(sets) > 1 else ()] = view
    return Views(by_heads, batch if sequences > 1 else None, sequences)


def hull_asked(
    mask: Mask, n_q: int, n_kv: int, n_heads: int | None, data: Mapping[str, object]
) -> MaskAtLengths:
    """Return the mask of all heads with its data; arguments and errors are those of `views`."""
    mask, data = with_captured(mask, data, n_heads, n_q, n_kv)
    irs = on_all_heads(mask, n_heads)
    if "scores" not in data:
        irs = [hull(ir) if ir.selections else ir for ir in irs]
    return bound(irs, n_q, n_kv, data)


def _moved(keep: Expr, values: Mapping[str, int], span: ViewSpan) -> Expr:
    """The formula in the window's coordinates, with numbers for lengths and parameters."""
    corner = {"q": E.add(E.Q, E.const(span.q0)), "k": E.add(E.K, E.const(span.k0))}

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, E.Sym) and node.name in corner:
            return corner[node.name]
        if isinstance(node, (E.Sym, E.Param)) and node.name in values:
            return E.const(values[node.name])
        return None

    return E.transform(keep, leaf)
