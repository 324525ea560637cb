"""The stages of both passes of a rank: what is sent, what runs meanwhile, what is put together.

They are made from the rank's work before there is any tensor: `print(*plan.work(0).forward)`. What
they do is written down in maskc.distributed.passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskc.distributed.pieces import Pieces
    from maskc.distributed.work import RankCall, RankWork


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a pass on one rank."""

    text: str
    run: Callable[[Any], Any]
    """Enqueues its messages, kernels or copies, given the pass."""
    alongside: bool = False
    """Whether it runs on the second stream, concurrently with the current one."""
    travels: bool = False
    """Whether it has to do with messages: other ranks wait for it."""

    def __str__(self) -> str:
        return self.text + (", on the second stream" if self.alongside else "")


def forward(work: RankWork) -> tuple[Stage, ...]:
    """Return the forward pass: rows that see only own keys run while keys are sent.

    Rows that read the buffer alternate between both streams, rows with most keys first.
    """
    later = [call for call in reversed(work.calls) if not call.own_keys]
    keys = f"send keys: {_to(work.outgoing)}; receive {_from(work.incoming)}"
    copied = f"copy {_copied(work)} own keys into the buffer of {work.size}"
    return (
        *([_send_rows(work)] if work.moves else []),
        Stage(keys, lambda on: on.send_keys(), travels=True),
        _start(),
        *([Stage(copied, lambda on: on.fill(), alongside=True)] if work.size else []),
        *(_attend(call) for call in work.calls if call.own_keys),
        _arrive(alongside=True),
        *([_host_rows(work, True), _start(patient=False, alongside=True)] if work.moves else []),
        _meet(),
        *(_attend(call, alongside=at % 2 == 0) for at, call in enumerate(later)),
        *([_meet()] if later else []),
        *([_arrive()] if work.moves else []),
        *([_join_rows(work)] if work.moves and work.leaving.tokens else []),
    )


def backward(work: RankWork) -> tuple[Stage, ...]:
    """Return the backward pass: rows that read the buffer run first, so that their gradients are
    sent while other rows run."""
    buffer = f"{'remake' if work.mostly_copies else 'take'} the buffer of {work.size} keys"
    keys = f"send gradients of keys: {_to(work.incoming)}; receive {_from(work.outgoing)}"
    return (
        *([_send_rows(work), _start()] if work.moves else []),
        *([Stage(buffer, lambda on: on.remake())] if work.size else []),
        *(_attend(call) for call in work.calls if not call.own_keys),
        *([_arrive(), _host_rows(work)] if work.moves else []),
        Stage(keys, lambda on: on.send_gradients(), travels=True),
        _start(),
        *(_attend(call) for call in work.calls if call.own_keys),
        Stage(f"add gradients of {_copied(work)} copies of keys", lambda on: on.add_copies()),
        _arrive(),
        Stage("add gradients that came back", lambda on: on.add_returned()),
        *([_join_rows(work)] if work.moves and work.leaving.tokens else []),
    )


# ---------------------------------------------------------------- stages of both passes


def _start(patient: bool = True, alongside: bool = False) -> Stage:
    text = "start messages" + (" and wait until they begin" if patient else "")
    return Stage(text, lambda on: on.messages.start(patient), alongside, travels=True)


def _arrive(alongside: bool = False) -> Stage:
    return Stage("wait for messages", lambda on: on.messages.wait(), alongside, travels=True)


def _meet() -> Stage:
    return Stage("wait for the second stream", lambda on: on.streams.meet())


def _attend(call: RankCall, alongside: bool = False) -> Stage:
    whose = "own keys" if call.own_keys else "keys of the buffer"
    keys = f"{whose} {call.key}-{call.key + call.keys - 1}" if call.keys else "no keys"
    text = f"attend rows {call.row}-{call.row + call.rows - 1} to {keys}"
    return Stage(text, lambda on: on.attend(call), alongside)


def _send_rows(work: RankWork) -> Stage:
    hosts = ", ".join(map(str, work.hosts))
    sent = f"{work.leaving.tokens} each to {hosts}" if hosts else "none"
    text = f"send rows: {sent}; receive {_guests(work)}"
    return Stage(text, lambda on: on.send_rows(), travels=True)


def _host_rows(work: RankWork, alongside: bool = False) -> Stage:
    text = f"attend rows of other ranks to own keys: {_guests(work)}; send the results back"
    return Stage(text, lambda on: on.host_rows(), alongside, travels=True)


def _join_rows(work: RankWork) -> Stage:
    return Stage(f"assemble {work.leaving.tokens} moved rows", lambda on: on.join_rows())


def _guests(work: RankWork) -> str:
    return ", ".join(f"{guest.rows} from {guest.home}" for guest in work.guests) or "none"


def _copied(work: RankWork) -> int:
    return work.copied[0].tokens


def _to(messages: Iterable[tuple[int, Pieces]]) -> str:
    return ", ".join(f"{pieces.tokens} to {peer}" for peer, pieces in messages) or "none"


def _from(messages: Iterable[tuple[int, Pieces]]) -> str:
    return ", ".join(f"{pieces.tokens} from {peer}" for peer, pieces in messages) or "none"
