"""Messages of one layer: keys and values to the ranks that need them, gradients back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskc.core.errors import RankLost
from maskc.distributed.pieces import FEW

if TYPE_CHECKING:
    from maskc.distributed.groups import Ranks
    from maskc.distributed.pieces import Joined, Pieces
    from maskc.distributed.work import RankWork


@dataclass(frozen=True)
class ExchangedRows:
    """Layout of the keys and values of a token: [tokens, batch * heads * (D + Dv)]."""

    batch: int
    heads: int
    dim: int
    dim_v: int

    @property
    def width(self) -> int:
        """Elements of a token."""
        return self.batch * self.heads * (self.dim + self.dim_v)

    def keys(self, rows: Any) -> Any:
        """A view [B, Hkv, tokens, D] of the keys."""
        columns = rows[:, : self.batch * self.heads * self.dim]
        return columns.unflatten(1, (self.batch, self.heads, self.dim)).permute(1, 2, 0, 3)

    def values(self, rows: Any) -> Any:
        """A view [B, Hkv, tokens, Dv] of the values."""
        columns = rows[:, self.batch * self.heads * self.dim :]
        return columns.unflatten(1, (self.batch, self.heads, self.dim_v)).permute(1, 2, 0, 3)


class Exchange:
    """Messages under way. Tensors stay alive until `wait`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._ops: list[Any] = []
        self._peers: list[int] = []
        """Who each message goes to or comes from."""
        self._work: list[Any] = []
        self._scattered: list[tuple[Any, Pieces, Any]] = []

    def send(self, rows: Any, peer: int) -> None:
        """Add a message: contiguous rows [tokens, width] go to a rank of the group."""
        self._add("isend", rows, peer)

    def receive(self, rows: Any, peer: int) -> None:
        """Add a message: contiguous rows [tokens, width] come from a rank of the group."""
        self._add("irecv", rows, peer)

    def spread_later(self, buffer: Any, pieces: Pieces, rows: Any) -> None:
        """Let `wait` put rows [tokens, width] into a buffer [size, width], at the places of
        `pieces`."""
        self._scattered.append((buffer, pieces, rows))

    def _add(self, name: str, rows: Any, peer: int) -> None:
        import torch.distributed as dist

        op, ranks = getattr(dist, name), self._ranks
        self._ops.append(dist.P2POp(op, rows, ranks.world[peer], ranks.group))
        self._peers.append(peer)

    def start(self, patient: bool = True) -> None:
        """Start all messages.

        Args:
            patient: whether kernels that follow leave them time to begin.

        Raises:
            RankLost: a rank is already known to be gone (MC705).
        """
        import torch
        import torch.distributed as dist

        if not self._ops:
            return
        try:
            self._work = dist.batch_isend_irecv(self._ops)
        except RuntimeError as error:
            raise self._lost(0, False, error) from error
        device = self._ops[0].tensor.device
        if device.type == "cuda" and patient:
            # Messages are kernels of another stream, and take some microseconds to begin. A kernel
            # of ours that fills the GPU meanwhile would keep them waiting until its last block has
            # begun, and with them the ranks that receive them.
            with torch.cuda.device(device):
                torch.cuda._sleep(_HELD_BACK)

    def _lost(self, number: int, known: bool, error: RuntimeError) -> RankLost:
        """Return the error for a failed message; if it is unknown which one failed, it names
        all."""
        peers = [self._peers[number]] if known else sorted(set(self._peers))
        named = " or ".join(map(str, peers))
        why = str(error).split("\n")[0]
        return RankLost(named, number, len(self._peers), why, at="group")

    def wait(self) -> None:
        """Wait until all messages have arrived; on a GPU only the stream waits.

        Raises:
            RankLost: a message failed, or torch's timeout expired (MC705).
        """
        for number, work in enumerate(self._work):
            try:
                work.wait()
            except RuntimeError as error:
                known = len(self._work) == len(self._peers)
                raise self._lost(number, known, error) from error
        for buffer, pieces, rows in self._scattered:
            spread(buffer, pieces, rows)
        self._work, self._ops, self._peers, self._scattered = [], [], [], []


_HELD_BACK = 20_000
"""Cycles of a GPU, about 10 us, that messages get to begin in."""


def _wide(x: Any) -> Any:
    """View the same bytes in elements of eight, which are looked up and copied several times as
    fast; x itself where rows do not divide into them."""
    import torch

    wide = 8 // x.element_size()
    steps = x.shape[-1], x.storage_offset(), *x.stride()[:-1]
    if x.stride(-1) != 1 or wide < 1 or any(step % wide for step in steps):
        return x
    return x.view(torch.int64)


def spread(buffer: Any, pieces: Pieces, rows: Any) -> None:
    """Put rows [tokens, width] into a buffer [size, width], at the places of `pieces`."""
    if len(pieces) > FEW:
        _wide(buffer).index_copy_(0, pieces.index(rows.device), _wide(rows))
        return
    for part, place in pieces.slices():
        buffer[place] = rows[part]


def gathered(buffer: Any, pieces: Pieces) -> Any:
    """Copy the rows of some pieces out of a buffer [size, width]: [tokens, width], side by side."""
    if len(pieces) > FEW:
        return _wide(buffer).index_select(0, pieces.index(buffer.device)).view(buffer.dtype)
    made = buffer.new_empty((pieces.tokens, buffer.shape[1]))
    for part, place in pieces.slices():
        made[part] = buffer[place]
    return made


def packed(rows: ExchangedRows, k: Any, v: Any, pieces: Pieces, first: int = 0) -> Any:
    """Copy some tokens' keys and values side by side.

    Args:
        k, v: [B, Hkv, N, D] and [B, Hkv, N, Dv], which begin at token `first`.

    Returns:
        Contiguous rows [tokens of the pieces, width].
    """
    made = k.new_empty((pieces.tokens, rows.width))
    if len(pieces) > FEW:
        index = pieces.index(k.device, first)
        for part, x in ((rows.keys(made), k), (rows.values(made), v)):
            _wide(part).copy_(_wide(x).index_select(2, index))
        return made
    for part, place in pieces.slices(first):
        rows.keys(made[part]).copy_(k[:, :, place])
        rows.values(made[part]).copy_(v[:, :, place])
    return made


def unpacked(rows: ExchangedRows, came: Any, pieces: Pieces, dk: Any, dv: Any) -> None:
    """Add gradients that came back to those of some tokens.

    Args:
        came: [tokens of the pieces, width].
        dk, dv: [B, Hkv, N, D] and [B, Hkv, N, Dv], changed in place.
    """
    keys, values = rows.keys(came), rows.values(came)
    if len(pieces) > FEW:
        index = pieces.index(came.device)
        dk.index_add_(2, index, keys)
        dv.index_add_(2, index, values)
        return
    for part, place in pieces.slices():
        dk[:, :, place] += keys[:, :, part]
        dv[:, :, place] += values[:, :, part]


def _packed(
    rows: ExchangedRows,
    k: Any,
    v: Any,
    messages: Iterable[tuple[int, Pieces]],
    many: Joined,
    first: int = 0,
) -> dict[Pieces, Any]:
    """Pack the contents of messages; rows that several messages carry are packed once, and many
    stretches together."""
    together: Any = packed(rows, k, v, many.all, first) if many.parts else None
    packed_once = {pieces: together[place] for pieces, place in many.parts}
    for _, pieces in messages:
        if pieces not in packed_once:
            packed_once[pieces] = packed(rows, k, v, pieces, first)
    return packed_once


def bring(
    work: RankWork, exchange: Exchange, rows: ExchangedRows, k: Any, v: Any, buffer: Any
) -> None:
    """Add messages: others get what they need of this rank's keys and values, and this rank what it
    needs into its buffer.

    A single stretch comes to its place at once.

    Args:
        k, v: the rank's own, [B, Hkv, tokens, D] and [B, Hkv, tokens, Dv].
        buffer: [size, width]; None if the rank receives nothing.
    """
    many = work.many_came
    scattered_rows: Any = buffer.new_empty((many.all.tokens, rows.width)) if many.parts else None
    places = dict(many.parts)
    if many.parts:
        exchange.spread_later(buffer, many.all, scattered_rows)
    for peer, pieces in work.incoming:
        if pieces in places:
            exchange.receive(scattered_rows[places[pieces]], peer)
        elif len(pieces) == 1:
            ((place, count),) = pieces.stretches
            exchange.receive(buffer[place : place + count], peer)
        else:
            received = buffer.new_empty((pieces.tokens, rows.width))
            exchange.spread_later(buffer, pieces, received)
            exchange.receive(received, peer)
    made = _packed(rows, k, v, work.outgoing, work.many_sent)
    for peer, pieces in work.outgoing:
        exchange.send(made[pieces], peer)


def give_back(
    work: RankWork, exchange: Exchange, rows: ExchangedRows, dk: Any, dv: Any, first: int
) -> list[tuple[Pieces, Any]]:
    """Add messages: the gradients of what came return.

    Args:
        dk, dv: gradients [B, Hkv, N, D] and [B, Hkv, N, Dv] of the buffer's keys and values, from
            token `first` of it on.

    Returns:
        (own tokens, rows [tokens, width] that will have come back for them) in the order of the
        ranks.
    """
    back = []
    for peer, pieces in work.outgoing:
        back.append((pieces, dk.new_empty((pieces.tokens, rows.width))))
        exchange.receive(back[-1][1], peer)
    made = _packed(rows, dk, dv, work.incoming, work.many_came, first)
    for peer, pieces in work.incoming:
        exchange.send(made[pieces], peer)
    return back
