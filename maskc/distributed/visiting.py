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

if TYPE_CHECKING:
    from maskc.distributed.groups import Ranks
    from maskc.distributed.work import Guest, Work


def join(parts: Any, sinks: Any = None) -> Any:
    """Attention over all keys from parts [parts, B, Hq, rows, Dv + 1], out and lse behind it.

    Sinks [Hq], where there are any, are a part without values. Rows without keys give 0 and -inf.
    """
    import torch

    lses = parts[..., -1]
    every = lses
    if sinks is not None:
        of_sinks = sinks.detach().to(lses.dtype)[None, :, None].expand_as(lses[0])
        every = torch.cat([lses, of_sinks[None]])
    lse = every.logsumexp(0)
    weights = torch.exp(lses - lse.masked_fill(lse == -torch.inf, 0))
    out = (parts[..., :-1] * weights[..., None]).sum(0)
    return torch.cat([out, lse[..., None]], -1)


class Parts:
    """fp32 [B, Hq, rows, Dv + 1] of each call over some of the keys: out, and lse behind it."""

    def __init__(self, q: Any, rows: int, dim_v: int) -> None:
        """None yet; the batch and the heads are those of q [B, Hq, tokens, D]."""
        self._empty = q, (q.shape[0], q.shape[1], rows, dim_v + 1)
        self._all: list[Any] = []

    def place(self, queries: Any, own: slice) -> Any:
        """Where a part may be written at once: nowhere."""
        return None

    def put(self, own: slice, out: Any, lse: Any, written: bool = False) -> None:
        """Take a part of some rows."""
        import torch

        like, shape = self._empty
        part = like.new_zeros(shape, dtype=torch.float32)
        part[..., -1] = -torch.inf
        part[:, :, own, :-1], part[:, :, own, -1] = out, lse
        self._all.append(part)

    @property
    def joined(self) -> Any:
        """All of them as one."""
        import torch

        return self._all[0] if len(self._all) == 1 else join(torch.stack(self._all))


class Visits:
    """The visits of one pass: what a rank asks of others, and they of it."""

    def __init__(self, work: Work, ranks: Ranks) -> None:
        """Nothing is sent yet."""
        self._work, self._ranks = work, ranks
        self._asked: list[Any] = []
        self._widths: list[int] = []
        self._answers: Any = None

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
        ranks = sorted({*work.hosts, *(x.home for x in work.guests if x.home == self._ranks.rank)})
        self._answers = like.new_empty((len(ranks), *shape), dtype=torch.float32)
        for guest, result in zip(work.guests, results, strict=True):
            if guest.home == self._ranks.rank:
                self._answers[ranks.index(guest.home)] = result
            else:
                exchange.send(result.contiguous(), guest.home)
        for host in work.hosts:
            exchange.receive(self._answers[ranks.index(host)], host)

    @property
    def answers(self) -> Any:
        """fp32 [hosts, B, Hq, rows, columns] of the rows that left, by rank, when all have come."""
        return self._answers
