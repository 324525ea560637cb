"""Messages of one layer: keys and values to those who need them, their gradients back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maskc.core.errors import RankLost

if TYPE_CHECKING:
    from maskc.distributed.groups import Ranks
    from maskc.distributed.work import Message, Work


@dataclass(frozen=True)
class Rows:
    """How keys and values of a token lie side by side: [tokens, batch * heads * (D + Dv)]."""

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
        own = rows[:, : self.batch * self.heads * self.dim]
        return own.unflatten(1, (self.batch, self.heads, self.dim)).permute(1, 2, 0, 3)

    def values(self, rows: Any) -> Any:
        """A view [B, Hkv, tokens, Dv] of the values."""
        own = rows[:, self.batch * self.heads * self.dim :]
        return own.unflatten(1, (self.batch, self.heads, self.dim_v)).permute(1, 2, 0, 3)


class Exchange:
    """Messages under way. Tensors stay alive until `wait`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._ops: list[Any] = []
        self._peers: list[int] = []
        self._work: list[Any] = []
        self._kept: list[Any] = []

    def send(self, rows: Any, peer: int) -> None:
        """Send contiguous rows to a rank of the group."""
        self._add("isend", rows, peer)

    def receive(self, rows: Any, peer: int) -> None:
        """Receive into contiguous rows."""
        self._add("irecv", rows, peer)

    def _add(self, name: str, rows: Any, peer: int) -> None:
        import torch.distributed as dist

        op = getattr(dist, name)
        self._ops.append(dist.P2POp(op, rows, self._ranks.world[peer], self._ranks.group))
        self._peers.append(peer)
        self._kept.append(rows)

    def start(self) -> None:
        """Start all messages."""
        import torch.distributed as dist

        if self._ops:
            self._work = dist.batch_isend_irecv(self._ops)

    def wait(self) -> None:
        """See that all of them have come; on a GPU only its stream waits.

        Raises:
            RankLost: a message failed, as torch's timeout says (MC705).
        """
        for number, work in enumerate(self._work):
            try:
                work.wait()
            except RuntimeError as error:
                count, why = len(self._work), str(error).split("\n")[0]
                peer = self._peers[number] if count == len(self._peers) else "others"
                raise RankLost(peer, number, count, why, at="group") from error
        self._work, self._ops, self._kept = [], [], []


def packed(rows: Rows, k: Any, v: Any, message: Message) -> Any:
    """Some tokens' keys and values, side by side and contiguous."""
    made = k.new_empty((message.count, rows.width))
    part = slice(message.place, message.place + message.count)
    rows.keys(made).copy_(k[:, :, part])
    rows.values(made).copy_(v[:, :, part])
    return made


def bring(work: Work, ranks: Ranks, rows: Rows, k: Any, v: Any, buffer: Any) -> Exchange:
    """Start to send what others need, and to receive what this rank needs into its buffer."""
    found = Exchange(ranks)
    for each in work.receives:
        found.receive(buffer[each.place : each.place + each.count], each.peer)
    for each in work.sends:
        found.send(packed(rows, k, v, each), each.peer)
    found.start()
    return found


def give_back(
    work: Work, ranks: Ranks, rows: Rows, dk: Any, dv: Any, first: int
) -> tuple[Exchange, list[Any]]:
    """Start to return the gradients of what came; (messages, what comes back for each sent one).

    Args:
        dk, dv: gradients of the buffer's keys and values, from token `first` of it on.
    """
    found = Exchange(ranks)
    back = []
    for each in work.sends:
        back.append(dk.new_empty((each.count, rows.width)))
        found.receive(back[-1], each.peer)
    for each in work.receives:
        found.send(packed(rows, dk, dv, replace(each, place=each.place - first)), each.peer)
    found.start()
    return found, back
