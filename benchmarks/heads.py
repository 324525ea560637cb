"""Whole heads, checked: every query and every key of a few heads, with the gradient that is timed.

Sampled rows see every head but not every tile; here nothing inside a head is left out. Only for
GPUs: fp64 attention to 131072 keys is seconds there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.errors import CheckFailed
from maskc.verify.case import Case
from maskc.verify.judge import Judge, Results, Verdict, attend_head, rounding, weights, worst
from maskc.verify.mask_mod import formula_of
from maskc.verify.pairs import Pairs
from maskc.verify.tensors import Tensors, library, like, wide

_CHUNK = 1 << 26
"""Pairs whose scores are held at once."""
_LARGE = 1 << 31
"""Pairs of a head above which one head has to do."""

KeepRows = Callable[[int, int, np.ndarray], Any]
"""(batch, head, rows) -> bool [rows, n_kv] on the device."""


class HeadJudge:
    """Knows everything about one key/value head and the query heads that share it."""

    def __init__(
        self, case: Case, tensors: Tensors, keep: KeepRows, batch: int, shared: int,
        backward: bool = True,
    ) -> None:  # fmt: skip
        self.batch, self.shared = batch, shared
        self.heads = slice(shared * case.group, (shared + 1) * case.group)
        half = case.dtype is not DType.float32
        expected = _whole(case, tensors, keep, batch, shared, backward, None)
        stepwise = (
            _whole(case, tensors, keep, batch, shared, backward, case.dtype) if half else None
        )
        dout = tensors.dout[batch : batch + 1, self.heads] if backward else None
        self.judge = Judge(expected, stepwise, dout)

    def forward(self, result: Any) -> Verdict:
        """Judge out, or (out, lse)."""
        out, lse = result if isinstance(result, tuple) else (result, None)
        parts = {"out": self._rows(out)} | ({} if lse is None else {"lse": self._rows(lse)})
        return self.judge.verdict(**parts)

    def backward(self, gradients: tuple[Any, ...], out: Any = None) -> Verdict:
        """Judge (dq, dk, dv) of the tensors' own dout, from this out; None: the exact one."""
        dq, dk, dv = gradients
        keys = slice(self.shared, self.shared + 1)
        dk, dv = (x[self.batch : self.batch + 1, keys] for x in (dk, dv))
        read = None if out is None else self._rows(out)
        return self.judge.verdict(read, dq=self._rows(dq), dk=dk, dv=dv)

    def _rows(self, x: Any) -> Any:
        return x[self.batch : self.batch + 1, self.heads]


class HeadJudges:
    """The first and the last head; of very long sequences the last one."""

    def __init__(self, case: Case, tensors: Tensors, pairs: Pairs, backward: bool = True) -> None:
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

    def forward(self, result: Any) -> Verdict:
        """Judge out, or (out, lse), of all heads."""
        return worst([judge.forward(result) for judge in self._judges])

    def backward(self, gradients: tuple[Any, ...], out: Any = None) -> Verdict:
        """Judge (dq, dk, dv) of all heads, from this out; None: the exact one."""
        return worst([judge.backward(gradients, out) for judge in self._judges])


def chunks(n_q: int, n_kv: int) -> Iterator[np.ndarray]:
    """All query rows, as many at a time as fit."""
    size = max(_CHUNK // max(n_kv, 1), 1)
    for start in range(0, n_q, size):
        yield np.arange(start, min(start + size, n_q))


def device_rows(case: Case, pairs: Pairs, tensors: Tensors) -> KeepRows:
    """Rows of the mask, computed on the tensors' device by the formula of `mask_mod.formula_of`."""
    import torch

    formula = formula_of(case, pairs, tensors.device)
    columns = torch.arange(case.n_kv, dtype=torch.int32, device=tensors.device)[None]

    def keep(batch: int, head: int, rows: np.ndarray) -> Any:
        places = (torch.tensor(x, dtype=torch.int32, device=tensors.device) for x in (batch, head))
        queries = torch.tensor(rows, dtype=torch.int32, device=tensors.device)[:, None]
        return formula(*places, queries, columns).expand(len(rows), case.n_kv)

    return keep


def confirm(case: Case, tensors: Tensors, pairs: Pairs, rows: np.ndarray, live: int) -> None:
    """Compare the mask on the device with the sampled rows, and the number of its pairs.

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


def _whole(
    case: Case, tensors: Tensors, keep: KeepRows, batch: int, shared: int, backward: bool,
    dtype: DType | None,
) -> Results:  # fmt: skip
    """Attention and gradients of the heads that share a key/value head, in chunks of rows."""
    xp, store = library(tensors.q), rounding(dtype)
    k, v = (wide(x[batch, shared], dtype) for x in (tensors.k, tensors.v))
    rows: list[list[Any]] = [[], [], [], []]
    dk: Any = 0
    dv: Any = 0
    for head in range(shared * case.group, (shared + 1) * case.group):
        parts: list[list[Any]] = [[], [], [], []]
        for some in chunks(case.n_q, case.n_kv):
            span = slice(int(some[0]), int(some[-1]) + 1)
            q, dout = (wide(x[batch, head, span], dtype) for x in (tensors.q, tensors.dout))
            given = dout if backward else None
            seen = keep(batch, head, some)
            found = attend_head(q, k, v, seen, given, case.scale, store, case.alpha)
            for values, part in zip(parts, found, strict=False):
                values.append(part)
            if backward:
                dk, dv = dk + found[4], dv + found[5]
        for values, pieces in zip(rows, parts, strict=True):
            values += [xp.concatenate(pieces)] if pieces else []
    out, lse, *more = (xp.stack(values)[None] for values in rows if values)
    if not backward:
        return Results(out, lse)
    dq, slide = more

    def slide_keys(off: Any) -> Any:
        lost: Any = 0
        for i, head in enumerate(range(shared * case.group, (shared + 1) * case.group)):
            for some in chunks(case.n_q, case.n_kv):
                span = slice(int(some[0]), int(some[-1]) + 1)
                q = wide(tensors.q[batch, head, span], dtype)
                p, _ = weights(q, k, keep(batch, head, some), case.scale, rounding(None))
                lost = lost + p.T @ (off[0, i, span][:, None] * q) * case.scale
        return lost[None, None]

    dk, dv = (store(x)[None, None] for x in (dk, dv))
    return Results(out, lse, dq, dk, dv, slide, slide_keys if case.alpha == 1 else None)
