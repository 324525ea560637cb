"""Which keys each query sees, at any length, and how many pairs that makes.

Up to 2^25 elements the dense oracle answers. Beyond, its matrix would not fit: there the same
definitions are evaluated on the rows asked for. The compiler's formula, which the count of pairs
comes from, is compared with them on the way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc import driver
from maskc.analysis.counts import count_pairs
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.captured import HELD, Held
from maskc.core.errors import CheckFailed
from maskc.core.evaluate import evaluate
from maskc.core.problem import TileShape
from maskc.dsl.slots import with_captured
from maskc.ir.types import MaskIR
from maskc.layout import bind_arrays, extents, held_arrays, sequence_arrays, split_call_data
from maskc.layout import count as count_by_tiles
from maskc.reference import given
from maskc.reference.dense import declarations, walk
from maskc.reference.pairs import Place, keep
from maskc.verify.case import Case

_DENSE_ELEMENTS = 1 << 25
_SHORT = 384


class Pairs:
    """The live pairs of a case, by batch and head."""

    def __init__(self, case: Case) -> None:
        """Lower the mask and bind its data.

        Raises:
            MaskcError: the mask or its data are refused.
            CheckFailed: the formula and the oracle disagree at a short length.
        """
        self.case = case
        known = driver.analyse_heads(case.mask, case.heads)
        self.masks: tuple[MaskIR, ...] = known.masks
        self.of_head: tuple[int, ...] = known.of_head
        _, self._data = with_captured(case.mask, case.data, case.heads)
        self._bound = [_Formula(ir, case.n_q, case.n_kv, self._data) for ir in self.masks]
        self.batched = any(formula.batch > 1 for formula in self._bound)
        """Whether sequences see different keys."""
        self.by_head = bool(self.of_head) or any(f.heads > 1 for f in self._bound)
        """Whether heads do."""
        self._dense: np.ndarray | None = None
        self._known: dict[tuple[int, int, bytes], np.ndarray] = {}
        self.source = "the dense oracle"
        """The source of the rows."""
        sets = (case.batch if self.batched else 1) * (case.heads if self.by_head else 1)
        if sets * case.n_q * case.n_kv <= _DENSE_ELEMENTS:
            self._dense = self._oracle()
        else:
            self.source = "the mask's definition"
            self._compare_short()

    def rows(self, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
        """bool [len(rows), n_kv]: what these queries of one head see.

        Raises:
            CheckFailed: the compiler's formula says otherwise.
        """
        b = batch if self.batched else 0
        h = head if self.by_head else 0
        if self._dense is not None:
            of_rows: np.ndarray = self._dense[b, h][rows]
            return of_rows
        if (b, h, rows.tobytes()) not in self._known:
            found = defined_rows(self.case, b, h, rows)
            if not np.array_equal(found, self._bound[self._variant(h)].rows(b, h, rows)):
                raise CheckFailed(f"{self.case.name}: the lowered formula differs from the oracle")
            self._known = {(b, h, rows.tobytes()): found}
        return self._known[b, h, rows.tobytes()]

    def live(self) -> int:
        """Live pairs of the whole call, all sequences and heads."""
        case, total = self.case, 0
        heads = range(case.heads) if self.by_head else range(1)
        counted: dict[tuple[int, int, int], int] = {}
        for batch in range(case.batch if self.batched else 1):
            for head in heads:
                variant = self._variant(head)
                formula = self._bound[variant]
                place = (variant, *formula.place(batch, head))
                if place not in counted:
                    counted[place] = formula.count(batch, head)
                total += counted[place]
        repeated = 1 if self.batched else case.batch
        return int(total) * repeated * (1 if self.by_head else case.heads)

    def bound_arrays(self, variant: int) -> tuple[Mapping[str, int], Mapping[str, np.ndarray]]:
        """The parameters of a distinct mask, and its int32 arrays [batch, heads, elements]."""
        formula = self._bound[variant]
        return formula.params, formula.arrays

    def _variant(self, head: int) -> int:
        return self.of_head[head] if self.of_head else 0

    def _oracle(self) -> np.ndarray:
        """bool [batch or 1, heads or 1, n_q, n_kv]."""
        case = self.case
        found = driver.dense(case.mask, case.n_q, case.n_kv, n_heads=case.heads, **case.data)
        sequences = case.batch if self.batched else 1
        by_text = found.reshape(sequences, -1, case.n_q, case.n_kv)
        return by_text if self.by_head else by_text[:, :1]  # heads may differ in text alone

    def _compare_short(self) -> None:
        case = self.case
        if any(formula.arrays for formula in self._bound):
            return
        n_q, n_kv = min(case.n_q, _SHORT), min(case.n_kv, _SHORT)
        dense = driver.dense(case.mask, n_q, n_kv, n_heads=case.heads, **case.data)
        for head in range(case.heads if self.by_head else 1):
            formula = _Formula(self.masks[self._variant(head)], n_q, n_kv, self._data)
            wanted = dense[head] if dense.ndim == 3 else dense
            if not np.array_equal(formula.rows(0, head, np.arange(n_q)), wanted):
                raise CheckFailed(f"{case.name}: the lowered formula differs from the oracle")


def defined_rows(case: Case, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
    """bool [len(rows), n_kv]: some rows of what the reference calls the mask.

    Args:
        batch: which sequence of data that have a batch; ignored where they have none.
    """
    declared = {decl.name: decl for node in walk(case.mask) for decl in declarations(node)}
    wanted = {name: decl for name, decl in declared.items() if decl.from_caller}
    mine = {
        name: given.for_sequence(decl, given.read(decl, case.data[name]), batch)
        for name, decl in wanted.items()
    }
    numbers = {name: case.data[name] for name in case.data if name not in wanted}
    numbers |= {"n_q": case.n_q, "n_kv": case.n_kv}
    scope = {name: np.asarray(np.int64(value)) for name, value in numbers.items()}
    scope["q"] = np.asarray(rows, dtype=np.int64)[:, None]
    scope["k"] = np.arange(case.n_kv)[None]
    place = Place(case.n_q, case.n_kv, head, case.heads, case.kv_heads, mine, scope, {}, batch)
    return keep(case.mask, place)


class _Formula:
    """One distinct mask with its lengths, parameters and arrays."""

    def __init__(self, ir: MaskIR, n_q: int, n_kv: int, data: Mapping[str, object]) -> None:
        mine = {decl.name for decl in ir.data if decl.from_caller} | set(ir.params)
        self.params, given = split_call_data(
            ir.data, tuple(ir.params.items()), {k: v for k, v in data.items() if k in mine}
        )
        self.arrays = bind_arrays(ir.data, given, n_q, n_kv)
        held = data.get(HELD)
        if isinstance(held, Held):
            self.arrays |= held_arrays(held, self.params, n_q, n_kv)
        self.n_q, self.n_kv = n_q, n_kv
        self.recipe = LayoutRecipe(TileShape(128, 128), ir.keep, None)
        self.batch, self.heads = extents(self.recipe, self.arrays)

    def place(self, batch: int, head: int) -> tuple[int, int]:
        """Equal places, equal pairs."""
        return batch if self.batch > 1 else 0, head if self.heads > 1 else 0

    def rows(self, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
        env = {
            **self.params, **sequence_arrays(self.recipe, self.arrays, batch, head),
            "n_q": self.n_q, "n_kv": self.n_kv, "q": rows[:, None], "k": np.arange(self.n_kv),
        }  # fmt: skip
        return np.broadcast_to(evaluate(self.recipe.keep, env), (len(rows), self.n_kv))

    def count(self, batch: int, head: int) -> int:
        formula, found = self.recipe.keep, None
        if not E.arrays(formula):
            found = count_pairs(formula, self.n_q, self.n_kv, self.params)
        if found is not None:
            return found
        arrays = sequence_arrays(self.recipe, self.arrays, batch, head)
        return count_by_tiles(self.recipe, self.n_q, self.n_kv, self.params, arrays)
