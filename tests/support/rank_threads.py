"""Ranks as threads of one process: messages are queues, so that many ranks cost little."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from maskc.distributed import attending, groups
from maskc.distributed.groups import Ranks

_here = threading.local()


class _Received:
    def __init__(self, into: torch.Tensor, box: queue.Queue[torch.Tensor]) -> None:
        self.into, self.box = into, box

    def wait(self) -> None:
        self.into.copy_(self.box.get(timeout=120))


class _Op(NamedTuple):
    op: Any
    tensor: torch.Tensor
    peer: int
    group: Any


class _Sent:
    def wait(self) -> None:
        pass


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of this process's threads talks through queues."""
    boxes: dict[tuple[int, int], queue.Queue[torch.Tensor]] = defaultdict(queue.Queue)

    def start(ops: list[_Op]) -> list[Any]:
        me, found = _here.rank, []
        for op, tensor, peer, _ in ops:
            assert tensor.is_contiguous()
            if op is torch.distributed.isend:
                boxes[me, peer].put(tensor.clone())
                found.append(_Sent())
            else:
                found.append(_Received(tensor, boxes[peer, me]))
        return found

    monkeypatch.setattr(torch.distributed, "P2POp", _Op)
    monkeypatch.setattr(torch.distributed, "batch_isend_irecv", start)
    alone = Ranks(None, 0, 1, (0,))
    monkeypatch.setattr(attending, "ranks_of", lambda plan, group: getattr(_here, "ranks", alone))
    monkeypatch.setattr(groups, "exchanged", lambda ranks, device, own: [own] * ranks.size)


def run(size: int, job: Callable[[int], Any]) -> list[Any]:
    """`job(rank)` of every rank, at the same time."""
    found: list[Any] = [None] * size

    def each(rank: int) -> None:
        _here.rank, _here.ranks = rank, Ranks(object(), rank, size, tuple(range(size)))
        try:
            found[rank] = job(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=each, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in found:
        if isinstance(error, BaseException):
            raise error
    return found
