"""Whole heads, checked: every query and every key of a few heads, with the gradient that is timed.

Sampled rows see every head but not every tile; here nothing inside a head is left out. Only for
GPUs: fp64 attention to 131072 keys is seconds there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.errors import CheckFailed
from maskc.lab.case_pairs import CasePairs
from maskc.lab.mask_mod import formula_of
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, like
from maskc.verify.judge import CaseVerdict, Judge, attend, worst

_CHUNK = 1 << 26
"""Pairs whose scores are held at once."""
_LARGE = 1 << 31
"""Pairs of a head above which one head has to do."""

KeepRows = Callable[[int, int, np.ndarray], Any]
"""(batch, head, rows) -> bool [rows, n_kv] on the device."""


class HeadRows:
    """The rows of a head's mask, of which each slice is computed when it is asked for."""

    def __init__(self, keep: KeepRows, batch: int, head: int, rows: np.ndarray) -> None:
        self._of, self._rows = (keep, batch, head), rows

    def __getitem__(self, part: slice) -> Any:
        keep, batch, head = self._of
        return keep(batch, head, self._rows[part])


class HeadJudge:
    """Knows everything about one key/value head and the query heads that share it."""

    def __init__(
        self, case: Case, tensors: CaseTensors, keep: KeepRows, batch: int, shared: int,
        backward: bool = True,
    ) -> None:  # fmt: skip
        self.batch, self.shared = batch, shared
        self.heads = slice(shared * case.group, (shared + 1) * case.group)
        own = replace(case, batch=1, heads=case.group, kv_heads=1)
        keys = slice(shared, shared + 1)
        mine = replace(
            tensors, q=self._rows(tensors.q), dout=self._rows(tensors.dout),
            k=tensors.k[batch : batch + 1, keys], v=tensors.v[batch : batch + 1, keys],
        )  # fmt: skip
        every = np.arange(case.n_q)

        def kept(_: int, head: int) -> HeadRows:
            return HeadRows(keep, batch, self.heads.start + head, every)

        step = max(_CHUNK // max(case.n_kv, 1), 1)
        half = case.dtype is not DType.float32
        expected = attend(own, mine, every, kept, backward, None, step)
        stepwise = attend(own, mine, every, kept, backward, case.dtype, step) if half else None
        self.judge = Judge(expected, stepwise, mine.dout if backward else None)

    def forward(self, result: Any) -> CaseVerdict:
        """Judge out, or (out, lse)."""
        out, lse = result if isinstance(result, tuple) else (result, None)
        parts = {"out": self._rows(out)} | ({} if lse is None else {"lse": self._rows(lse)})
        return self.judge.verdict(**parts)

    def backward(self, gradients: tuple[Any, ...], out: Any = None) -> CaseVerdict:
        """Judge (dq, dk, dv) [B, H, N, D] for the tensors' own dout.

        Args:
            out: what the pass read, [B, Hq, n_q, Dv]; None: the exact one.
        """
        dq, dk, dv = gradients
        keys = slice(self.shared, self.shared + 1)
        dk, dv = (x[self.batch : self.batch + 1, keys] for x in (dk, dv))
        read = None if out is None else self._rows(out)
        return self.judge.verdict(read, dq=self._rows(dq), dk=dk, dv=dv)

    def _rows(self, x: Any) -> Any:
        return x[self.batch : self.batch + 1, self.heads]


class HeadJudges:
    """The first and the last head; of very long sequences the last one."""

    def __init__(
        self, case: Case, tensors: CaseTensors, pairs: CasePairs, backward: bool = True
    ) -> None:
        """
        Raises:
            CheckFailed: the mask on the device is not the one that rows and counts are of.
        """
        keep = device_rows(case, pairs, tensors)
        places = [(0, 0), (case.batch - 1, case.kv_heads - 1)]
        if case.n_q * case.n_kv > _LARGE or places[0] == places[1]:
            places = places[1:]
        self.number = len(places) * case.group
        self._judges = [HeadJudge(case, tensors, keep, *place, backward) for place in places]

    def forward(self, result: Any) -> CaseVerdict:
        """Judge out, or (out, lse), of all heads."""
        return worst([judge.forward(result) for judge in self._judges])

    def backward(self, gradients: tuple[Any, ...], out: Any = None) -> CaseVerdict:
        """Judge (dq, dk, dv) of all heads; arguments are those of HeadJudge.backward."""
        return worst([judge.backward(gradients, out) for judge in self._judges])


def chunks(n_q: int, n_kv: int) -> Iterator[np.ndarray]:
    """Yield all query rows, int64 [rows], as many at a time as fit."""
    size = max(_CHUNK // max(n_kv, 1), 1)
    for start in range(0, n_q, size):
        yield np.arange(start, min(start + size, n_q))


def device_rows(case: Case, pairs: CasePairs, tensors: CaseTensors) -> KeepRows:
    """Rows of the mask, computed on the tensors' device by the formula of `mask_mod.formula_of`."""
    import torch

    formula = formula_of(case, pairs, tensors.device)
    columns = torch.arange(case.n_kv, dtype=torch.int32, device=tensors.device)[None]

    def keep(batch: int, head: int, rows: np.ndarray) -> Any:
        places = (torch.tensor(x, dtype=torch.int32, device=tensors.device) for x in (batch, head))
        queries = torch.tensor(rows, dtype=torch.int32, device=tensors.device)[:, None]
        return formula(*places, queries, columns).expand(len(rows), case.n_kv)

    return keep


def confirm(
    case: Case, tensors: CaseTensors, pairs: CasePairs, rows: np.ndarray, live: int
) -> None:
    """Compare the mask on the device with sampled rows, int64 [rows], and the number of its live
    pairs.

    Raises:
        CheckFailed: they differ.
    """
    keep = device_rows(case, pairs, tensors)
    last = case.batch - 1, case.heads - 1
    if not bool((like(keep(*last, rows), pairs.rows(*last, rows)) == keep(*last, rows)).all()):
        raise CheckFailed(f"{case.name}: the mask on the device differs from its definition")
    if pairs.batched or pairs.by_head:
        return
    counted = sum(int(keep(0, 0, some).sum()) for some in chunks(case.n_q, case.n_kv))
    if counted * case.batch * case.heads != live:
        raise CheckFailed(f"{case.name}: {live} live pairs, but a head has {counted}")
