"""Find the keys of each query at any length, and count pairs.

Up to 2^25 elements the dense oracle answers. Beyond that its matrix does not fit into memory: the
same definitions are evaluated for the requested rows only. The compiler's formula, from which pairs
are counted, is compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc import driver
from maskc.core import expr as E
from maskc.core.errors import CheckFailed
from maskc.core.evaluator import evaluate
from maskc.dsl.nodes import walk
from maskc.dsl.slots import with_captured
from maskc.ir.types import MaskIR
from maskc.questions.mask_at_lengths import MaskAtLengths, bound
from maskc.reference import given
from maskc.reference.pairs import PairPlace, keep
from maskc.verify.case import Case

_DENSE_ELEMENTS = 1 << 25
_SHORT = 384


class CasePairs:
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
        self._asked = self._bound(case.n_q, case.n_kv)
        self.batched = self._asked.sequences > 1
        """Whether sequences see different keys."""
        self.by_head = self._asked.heads > 1
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
            defined = defined_rows(self.case, b, h, rows)
            if not np.array_equal(defined, _rows(self._asked, b, h, rows)):
                raise CheckFailed(f"{self.case.name}: the lowered formula differs from the oracle")
            self._known = {(b, h, rows.tobytes()): defined}
        return self._known[b, h, rows.tobytes()]

    def live(self) -> int:
        """Live pairs of the whole call, all sequences and heads."""
        heads, sequences = range(self.case.heads), range(self.case.batch)
        return sum(
            equal * self._asked.pairs(head, batch)
            for head, batch, equal in self._asked.sets(heads, sequences)
        )

    def bound_arrays(self, variant: int) -> tuple[Mapping[str, int], Mapping[str, np.ndarray]]:
        """The parameters of a distinct mask, and its int32 arrays [batch, heads, elements]."""
        ir, asked = self.masks[variant], self._asked
        params = {name: asked.params[name] for name in ir.params}
        return params, {name: asked.arrays[name] for name in E.arrays(ir.keep)}

    def _bound(self, n_q: int, n_kv: int) -> MaskAtLengths:
        _, data = with_captured(self.case.mask, self.case.data, self.case.heads, n_q, n_kv)
        return bound([self.masks[i] for i in self.of_head or (0,)], n_q, n_kv, data)

    def _oracle(self) -> np.ndarray:
        """bool [batch or 1, heads or 1, n_q, n_kv]."""
        case = self.case
        pairs = driver.dense(case.mask, case.n_q, case.n_kv, n_heads=case.heads, **case.data)
        sequences = case.batch if self.batched else 1
        by_text = pairs.reshape(sequences, -1, case.n_q, case.n_kv)
        return by_text if self.by_head else by_text[:, :1]  # heads may differ in text alone

    def _compare_short(self) -> None:
        case = self.case
        if self._asked.arrays:
            return
        n_q, n_kv = min(case.n_q, _SHORT), min(case.n_kv, _SHORT)
        dense = driver.dense(case.mask, n_q, n_kv, n_heads=case.heads, **case.data)
        short = self._bound(n_q, n_kv)
        for head in range(case.heads if self.by_head else 1):
            wanted = dense[head] if dense.ndim == 3 else dense
            if not np.array_equal(_rows(short, 0, head, np.arange(n_q)), wanted):
                raise CheckFailed(f"{case.name}: the lowered formula differs from the oracle")


def defined_rows(case: Case, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
    """bool [len(rows), n_kv]: some rows of what the reference calls the mask.

    Args:
        batch: which sequence of data that have a batch; ignored where they have none.
    """
    declared = {decl.name: decl for node in walk(case.mask) for decl in node.decls}
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
    place = PairPlace(case.n_q, case.n_kv, head, case.heads, case.kv_heads, mine, scope, {}, batch)
    return keep(case.mask, place)


def _rows(asked: MaskAtLengths, batch: int, head: int, rows: np.ndarray) -> np.ndarray:
    """bool [len(rows), n_kv]: some rows by the compiler's formula."""
    env = {
        **asked.params, **asked.own(head, batch), "n_q": asked.n_q, "n_kv": asked.n_kv,
        "q": rows[:, None], "k": np.arange(asked.n_kv),
    }  # fmt: skip
    return np.broadcast_to(evaluate(asked.ir(head).keep, env), (len(rows), asked.n_kv))
