"""Rows that see keys of many ranks: their queries go to the keys, and partial results come back.

Every rank that holds some of the keys computes these rows over its own ones. With the log-sum-exp
of each part the rows' own rank puts the parts together. In the backward pass the gradient of out,
and what is needed beside it, go the same way: gradients of keys are where they belong at once, and
those of queries are summed in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from maskc.distributed.exchange import Exchange
from maskc.runtime.merge import merge

if TYPE_CHECKING:
    from maskc.distributed.groups import Ranks
    from maskc.distributed.work import Guest, Work


class Partial:
    """out and lse of some rows, put together from parts over disjoint keys."""

    def __init__(self, q: Any, rows: int, dim_v: int) -> None:
        """No keys yet; the batch and the heads of q [B, Hq, tokens, D]."""
        import torch

        shape = q.shape[0], q.shape[1], rows
        self.out = q.new_zeros((*shape, dim_v), dtype=torch.float32)
        self.lse = q.new_full(shape, -torch.inf, dtype=torch.float32)

    def place(self, queries: Any, own: slice) -> Any:
        """Where a part may be written at once: nowhere."""
        return None

    def put(self, own: slice, out: Any, lse: Any, written: bool = False) -> None:
        """Take a part of some rows."""
        outs, lses = [self.out[:, :, own], out.float()], [self.lse[:, :, own], lse]
        self.out[:, :, own], self.lse[:, :, own] = merge(outs, lses)

    @property
    def joined(self) -> Any:
        """fp32 [B, Hq, rows, Dv + 1]: out, and lse behind it."""
        import torch

        return torch.cat([self.out, self.lse[..., None]], 3)


class Visits:
    """The visits of one pass: what a rank asks of others, and they of it."""

    def __init__(self, work: Work, ranks: Ranks) -> None:
        """Nothing is sent yet."""
        self._work, self._ranks = work, ranks
        self._asked: list[Any] = []
        self._widths: list[int] = []
        self._answers: dict[int, Any] = {}

    def ask(self, exchange: Exchange, given: Sequence[Any]) -> None:
        """Add messages: what belongs to the rows that leave goes to their hosts, and what guests
        bring comes, which is as wide; each is [B, Hq, tokens, columns]."""
        import torch

        work, (batch, heads) = self._work, given[0].shape[:2]
        parts = [
            torch.cat([x[:, :, place] for _, place in work.leaving.slices()] or [x[:, :, :0]], 2)
            for x in given
        ]
        rows = torch.cat(parts, 3).permute(2, 0, 1, 3).contiguous()
        self._widths = [x.shape[3] for x in given]
        for guest in work.guests:
            into = rows
            if guest.home != self._ranks.rank:
                into = rows.new_empty((guest.rows, batch, heads, rows.shape[3]))
                exchange.receive(into, guest.home)
            self._asked.append(into)
        for host in work.hosts:
            exchange.send(rows, host)

    def guests(self) -> Iterator[tuple[Guest, list[Any]]]:
        """What guests have brought, when it has come."""
        for guest, rows in zip(self._work.guests, self._asked, strict=True):
            yield guest, [x.permute(1, 2, 0, 3).contiguous() for x in rows.split(self._widths, 3)]

    def answer(self, exchange: Exchange, results: Sequence[Any], like: Any, columns: int) -> None:
        """Add messages: results for guests go home, and those of the rows that left come; each is
        fp32 [B, Hq, rows, columns], with the batch and heads of `like`."""
        import torch

        work = self._work
        shape = like.shape[0], like.shape[1], work.leaving.tokens, columns
        for guest, result in zip(work.guests, results, strict=True):
            if guest.home == self._ranks.rank:
                self._answers[guest.home] = result
            else:
                exchange.send(result.contiguous(), guest.home)
        for host in work.hosts:
            self._answers[host] = like.new_empty(shape, dtype=torch.float32)
            exchange.receive(self._answers[host], host)

    def answers(self) -> list[Any]:
        """The results of the rows that left, by rank, when they have come."""
        return [self._answers[rank] for rank in sorted(self._answers)]
