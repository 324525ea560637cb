"""The stages of both passes of a rank: what is sent, what runs meanwhile, what is put together.

A pass is a tuple of stages, made from the rank's work before there is any tensor. Stages print
themselves, `print(*forward_stages(plan.work(0)), sep="\\n")`, and run on what a pass holds, see
maskc.distributed.passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maskc.distributed.exchange import bring, give_back, unpacked

if TYPE_CHECKING:
    from maskc.distributed.passes import Backward, Forward, Pass
    from maskc.distributed.work import Call, Copy, Pieces, Work


@dataclass(frozen=True, eq=False)
class Stage(ABC):
    """One step of a pass on one rank."""

    beside: bool = field(default=False, kw_only=True)
    """Whether it runs on the second stream, beside what the present one has to do."""

    def __str__(self) -> str:
        return self.says + (", on the second stream" if self.beside else "")

    @property
    @abstractmethod
    def says(self) -> str:
        """What it does, in words."""

    @abstractmethod
    def run(self, on: Any) -> None:
        """Enqueue its messages, kernels or copies, on what a pass holds."""


# ---------------------------------------------------------------- stages of both passes


@dataclass(frozen=True, eq=False)
class SendRows(Stage):
    """Rows that leave go to the ranks that hold their keys, and rows of guests come."""

    work: Work

    @property
    def says(self) -> str:
        guests = [f"{x.rows} of rank {x.home}" for x in self.work.guests]
        hosts = self.work.hosts
        sent = f"{self.work.leaving.tokens} to {_ranks(hosts)}" if hosts else "none"
        return f"send rows: {sent}; receive {', '.join(guests) or 'none'}"

    def run(self, on: Pass) -> None:
        import torch

        given, slices = on.sent_rows(), list(self.work.leaving.slices())
        batch, heads = given[0].shape[:2]
        parts = [torch.cat([x[:, :, at] for _, at in slices] or [x[:, :, :0]], 2) for x in given]
        rows = torch.cat(parts, 3).permute(2, 0, 1, 3).contiguous()
        on.widths = [x.shape[3] for x in given]
        for guest in self.work.guests:
            into = rows
            if guest.home != on.rank:
                into = rows.new_empty((guest.rows, batch, heads, rows.shape[3]))
                on.messages.receive(into, guest.home)
            on.brought.append(into)
        for host in self.work.hosts:
            on.messages.send(rows, host)


@dataclass(frozen=True, eq=False)
class Start(Stage):
    """Messages begin."""

    patient: bool = True
    """Whether kernels that follow leave them time to begin."""

    @property
    def says(self) -> str:
        return "start messages" + (" and give them time to begin" if self.patient else "")

    def run(self, on: Pass) -> None:
        on.messages.start(self.patient)


@dataclass(frozen=True, eq=False)
class Arrive(Stage):
    """All messages have come; on a GPU only its stream waits."""

    @property
    def says(self) -> str:
        return "wait for messages"

    def run(self, on: Pass) -> None:
        on.messages.wait()


@dataclass(frozen=True, eq=False)
class Meet(Stage):
    """The present stream waits for the second one."""

    @property
    def says(self) -> str:
        return "wait for the second stream"

    def run(self, on: Pass) -> None:
        on.streams.meet()


@dataclass(frozen=True, eq=False)
class Attend(Stage):
    """One call of attention: results of some rows forward, gradients backward."""

    call: Call

    @property
    def says(self) -> str:
        call = self.call
        rows = f"rows {call.row}-{call.row + call.rows - 1}"
        whose = "own keys" if call.own else "keys of the buffer"
        keys = f"{whose} {call.key}-{call.key + call.keys - 1}" if call.keys else "no keys"
        return f"attend {rows} to {keys}"

    def run(self, on: Pass) -> None:
        on.attend(self.call)


@dataclass(frozen=True, eq=False)
class HostRows(Stage):
    """Rows of guests attend to the rank's keys; results go home, those of rows that left come."""

    work: Work

    @property
    def says(self) -> str:
        guests = ", ".join(f"{x.rows} rows of rank {x.home}" for x in self.work.guests)
        return f"attend {guests or 'no guests'} to own keys; answers travel"

    def run(self, on: Pass) -> None:
        import torch

        work = self.work
        results = [
            on.hosted(guest, [x.permute(1, 2, 0, 3).contiguous() for x in rows.split(on.widths, 3)])
            for guest, rows in zip(work.guests, on.brought, strict=True)
        ]
        ranks = sorted({*work.hosts, *(x.home for x in work.guests if x.home == on.rank)})
        shape = *on.q.shape[:2], work.leaving.tokens, on.answer_width
        on.answers = on.q.new_empty((len(ranks), *shape), dtype=torch.float32)
        for guest, result in zip(work.guests, results, strict=True):
            if guest.home == on.rank:
                on.answers[ranks.index(guest.home)] = result
            else:
                on.messages.send(result.contiguous(), guest.home)
        for host in work.hosts:
            on.messages.receive(on.answers[ranks.index(host)], host)


@dataclass(frozen=True, eq=False)
class JoinRows(Stage):
    """The rows that left, from what their hosts found."""

    leaving: Pieces

    @property
    def says(self) -> str:
        return f"put {self.leaving.tokens} rows that left together"

    def run(self, on: Pass) -> None:
        on.join(self.leaving)


# ---------------------------------------------------------------- stages of the forward pass


@dataclass(frozen=True, eq=False)
class SendKeys(Stage):
    """Keys and values go to those who need them, and come into the buffer."""

    work: Work

    @property
    def says(self) -> str:
        sent, came = _peers(self.work.outgoing, "to"), _peers(self.work.incoming, "from")
        return f"send keys: {sent}; receive {came}"

    def run(self, on: Forward) -> None:
        bring(self.work, on.messages, on.rows, on.k, on.v, on.buffer)


@dataclass(frozen=True, eq=False)
class FillBuffer(Stage):
    """What of the buffer is the rank's own, and zeros where nobody looks."""

    work: Work

    @property
    def says(self) -> str:
        copied = sum(each.count for each in self.work.copies)
        return f"copy {copied} own keys into the buffer of {self.work.size}"

    def run(self, on: Forward) -> None:
        on.fill(on.buffer)


# ---------------------------------------------------------------- stages of the backward pass


@dataclass(frozen=True, eq=False)
class RemakeBuffer(Stage):
    """The buffer of the forward pass, from what was kept of it."""

    work: Work

    @property
    def says(self) -> str:
        again = "remake" if self.work.mostly_copies else "take"
        return f"{again} the buffer of {self.work.size} keys"

    def run(self, on: Backward) -> None:
        on.remake()


@dataclass(frozen=True, eq=False)
class SendGradients(Stage):
    """Gradients of keys that came return to their ranks."""

    work: Work

    @property
    def says(self) -> str:
        sent, came = _peers(self.work.incoming, "to"), _peers(self.work.outgoing, "from")
        return f"send gradients of keys: {sent}; receive {came}"

    def run(self, on: Backward) -> None:
        sums = on.of_buffer
        parts = (on.k[:, :, :0], on.v[:, :, :0]) if sums.dk is None else sums.parts
        on.returned = give_back(self.work, on.messages, on.rows, *parts, sums.first)


@dataclass(frozen=True, eq=False)
class AddCopies(Stage):
    """Gradients of own keys: of calls over them, and of their copies in the buffer."""

    copies: tuple[Copy, ...]

    @property
    def says(self) -> str:
        return f"add gradients of {sum(each.count for each in self.copies)} keys of the buffer"

    def run(self, on: Backward) -> None:
        on.dk, on.dv = on.of_own.whole(on.k, on.v)
        for each in self.copies:
            own = slice(each.source, each.source + each.count)
            place = each.place - on.of_buffer.first
            for total, more in zip((on.dk, on.dv), on.of_buffer.parts, strict=True):
                total[:, :, own] += more[:, :, place : place + each.count]


@dataclass(frozen=True, eq=False)
class AddReturned(Stage):
    """Gradients that came back, in the order of the ranks."""

    @property
    def says(self) -> str:
        return "add gradients that came back"

    def run(self, on: Backward) -> None:
        for pieces, came in on.returned:
            unpacked(on.rows, came, pieces, on.dk, on.dv)


# ---------------------------------------------------------------- both passes


def forward_stages(work: Work) -> tuple[Stage, ...]:
    """The forward pass: rows that need only own keys run while keys travel.

    Rows that read the buffer run on both streams in turns, those that see most first.
    """
    moves = _moves(work)
    later = [call for call in reversed(work.calls) if not call.own]
    return (
        *([SendRows(work)] if moves else []),
        SendKeys(work),
        Start(),
        *([FillBuffer(work, beside=True)] if work.size else []),
        *(Attend(call) for call in work.calls if call.own),
        Arrive(beside=True),
        *([HostRows(work, beside=True), Start(patient=False, beside=True)] if moves else []),
        Meet(),
        *(Attend(call, beside=at % 2 == 0) for at, call in enumerate(later)),
        *([Meet()] if later else []),
        *([Arrive()] if moves else []),
        *([JoinRows(work.leaving)] if moves and work.leaving.tokens else []),
    )


def backward_stages(work: Work) -> tuple[Stage, ...]:
    """The backward pass: rows that read the buffer come first, so that what goes back travels
    under the others."""
    moves = _moves(work)
    return (
        *([SendRows(work), Start()] if moves else []),
        *([RemakeBuffer(work)] if work.size else []),
        *(Attend(call) for call in work.calls if not call.own),
        *([Arrive(), HostRows(work)] if moves else []),
        SendGradients(work),
        Start(),
        *(Attend(call) for call in work.calls if call.own),
        AddCopies(work.copies),
        Arrive(),
        AddReturned(),
        *([JoinRows(work.leaving)] if moves and work.leaving.tokens else []),
    )


def _moves(work: Work) -> bool:
    """Whether this rank has a part in rows that go to their keys."""
    return bool(work.guests or work.hosts)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _peers(messages: Iterable[tuple[int, Pieces]], which: str) -> str:
    """How many tokens go to, or come from, each rank."""
    return ", ".join(f"{pieces.tokens} {which} {peer}" for peer, pieces in messages) or "none"
