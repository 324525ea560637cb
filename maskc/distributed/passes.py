"""State of the stages of a pass: a rank's tensors, pending messages, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.dropout import FIRST, SQUARE
from maskc.core.errors import RankLost
from maskc.core.score import Entry, Slot
from maskc.core.selection import TOKENS
from maskc.core.tensors import order_of, out_strides
from maskc.distributed.exchange import (
    Exchange,
    ExchangedRows,
    bring,
    gathered,
    give_back,
    packed,
    spread,
    unpacked,
)
from maskc.distributed.pieces import FEW, MANY
from maskc.distributed.shards import whole_of
from maskc.distributed.stages import Stage
from maskc.dsl.score_tracer import Score

if TYPE_CHECKING:
    from maskc.distributed.groups import Accord
    from maskc.distributed.pieces import Pieces
    from maskc.distributed.planning import Plan
    from maskc.distributed.work import Guest, RankCall, RankWork

TWO_STREAMS = True
"""Whether rows that read the buffer may run concurrently with the others."""


@dataclass(frozen=True, eq=False)
class PassStep:
    """One call of attention on one rank."""

    plan: Plan
    work: RankWork
    accord: Accord
    options: CallOptions
    """Options of the call, without vectors per head."""
    dropout: dict[str, Any]
    """Dropout options of calls without their positions; empty without dropout."""
    kernels: dict[object, Any]
    """Compiled masks by call and problem."""
    score: Score | None
    tables: dict[str, Any]
    """Inputs of the score formula, and inputs that selections rank by."""
    tensors: tuple[str, ...]
    """The names of tensors among them, which a graph keeps."""
    choosing: Mapping[str, int] = field(default_factory=dict)
    """The tensors that choose keys, and the dimensions of their tokens."""

    def kernel(self, call: RankCall, q: Any, v: Any, plain: bool = False) -> Any:
        """Find or compile the kernel of a call; a `plain` one drops nothing.

        Args:
            q, v: [B, H, tokens, D or Dv]; only their sizes, dtype and device are read.
        """
        drops = bool(self.dropout) and not plain
        key = id(call), q.shape[3], v.shape[3], q.shape[1], q.dtype, q.device, drops, self.score
        compiled = self.kernels.get(key)
        if compiled is None:
            from maskc.api import _compiled

            place = q.device.type, q.device.index or 0
            rest = q.shape[3], v.shape[3], q.shape[1], q.dtype, place
            lengths = self.plan.n, self.plan.n_kv
            score = None if self.score is None else _moved(self.score, call, lengths)
            # both passes read what captured tensors held when the plan looked at them
            compiled = _compiled(call.local.mask, *rest, score=score).settled()
            compiled = self.kernels[key] = compiled.dropping if drops else compiled
        return compiled

    def data(self, call: RankCall, plain: bool = False) -> dict[str, Any]:
        """Return the arrays and numbers that a call passes in addition to q, k and v, by name."""
        given = {**call.local.data, **self.tables}
        for name in self.choosing:
            given[name] = _chosen_by(name, given[name], call, self.plan.n_kv)
        if not self.dropout or plain:
            return given
        given |= self.dropout
        if call.first is not None:
            given[FIRST] = tuple(x // SQUARE for x in call.first)
        return given

    def build(self, q: Any, v: Any) -> None:
        """Build the kernels of all calls before any message, so that build errors are raised
        here."""
        sizes = q.shape[3], v.shape[3], q.shape[1], q.dtype, q.device
        kind = id(self.work), sizes, bool(self.dropout), self.score
        if kind not in self.kernels:
            for call in (*self.work.calls, *(x for guest in self.work.guests for x in guest.calls)):
                self.kernel(call, q, v)
            self.kernels[kind] = True

    def gather_index_keys(self) -> None:
        """Gather the index keys of all candidates on every rank."""
        if "index_k" in self.choosing and self.accord.ranks.size > 1:
            keys = self.tables["index_k"]
            parts = keys if isinstance(keys, tuple) else (keys,)
            layout = self.plan.key_layout
            whole = tuple(whole_of(x, layout, self.accord.ranks, 1) for x in parts)
            self.tables["index_k"] = whole if isinstance(keys, tuple) else whole[0]

    def of_graph(self, tensors: Sequence[Any]) -> PassStep:
        """Replace the tables by those of a graph, in the order of `tensors`."""
        return replace(
            self, tables={**self.tables, **dict(zip(self.tensors, tensors, strict=True))}
        )

    def kept(self, buffer: Any) -> Any:
        """Keep until the backward pass all of a buffer [size, width], or the rows that came."""
        if buffer is None or not self.work.mostly_copies:
            return buffer
        return gathered(buffer, self.work.came)

    def forward(self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> tuple[Any, ...]:
        """Run the forward pass.

        Args:
            q, k, v: the rank's tensors [B, H, tokens, D or Dv], of one dtype.
            slopes, sinks: fp32 [Hq], or None.

        Returns:
            out [B, Hq, tokens, Dv], lse fp32 [B, Hq, tokens], and the buffer [size, width], None
            if all keys are the rank's own.

        Raises:
            RankLost: a message did not come (MC705).
            MaskcError: as `maskc.attention`.
        """
        on = Forward(self, q, k, v, slopes, sinks)
        on.run(self.work.forward)
        return *on.results.all, on.buffer

    def backward(
        self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, out: Any, lse: Any, kept: Any,
        dout: Any, dlse: Any, wanted: Sequence[str] = (),
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run the backward pass.

        Args:
            q, k, v, slopes, sinks: as for `forward`; out, lse: what it gave; kept: of its buffer.
            dout, dlse: the gradients of out and lse, in their shapes; None if nothing depends on
                one.
            wanted: the tables that need gradients.

        Returns:
            dq, dk, dv, dslopes, dsinks in the shapes of their inputs, then those of the `wanted`
            tables. All are None if neither out nor lse has a gradient.

        Raises:
            RankLost: a message did not come (MC705).
            MaskcError: as `maskc.attention`.
        """
        if dout is None and dlse is None:
            return (None,) * (5 + len(wanted))
        on = Backward(self, k, v, Saved(q, out, lse, dout, dlse, slopes, sinks), kept, wanted)
        on.run(self.work.backward)
        return on.dq, on.dk, on.dv, *on.heads


class Saved(NamedTuple):
    """Inputs for the gradients of some rows: q, out, dout [B, Hq, rows, D or Dv], lse, dlse [B, Hq,
    rows], slopes and sinks [Hq]. None if a call lacks one."""

    q: Any
    out: Any
    lse: Any
    dout: Any
    dlse: Any
    slopes: Any = None
    sinks: Any = None


class RankPass(ABC):
    """Inputs of the stages of both directions.

    Rows that leave for their keys are computed by every rank that holds some of these. With the
    log-sum-exp of each part their own rank puts the parts together. In the backward pass, the
    gradient of out and other inputs take the same way. Gradients of keys are then in the right
    place, and gradients of queries are summed in the order of the ranks.
    """

    answer_width: int
    """Columns of what a host answers, for each row and head."""

    def __init__(self, step: PassStep, q: Any, k: Any, v: Any) -> None:
        self.step, self.work, self.rank = step, step.work, step.accord.ranks.rank
        self.failure: Exception | None = None
        """The error of a failed stage; messages of other ranks are still exchanged."""
        self.q, self.k, self.v = q, k, v
        self.rows = ExchangedRows(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        self.messages = Exchange(step.accord.ranks)
        self.streams = Streams(q.device)
        self.buffer: Any = None
        """[size, width]: keys and values that came, and copies of own ones."""
        self.brought: list[Any] = []
        """[rows, B, Hq, columns] of each guest, when it has come."""
        self.widths: list[int] = []
        """Columns of each tensor in the received rows."""
        self.answers: Any = None
        """fp32 [hosts, B, Hq, rows, columns] of the rows that left, by rank, when all have come."""

    def run(self, stages: Sequence[Stage]) -> None:
        """Run stages, each on its stream.

        If one raises, stages with messages still run and send NaN for missing results: no other
        rank waits for this one, and no message remains for a later call.

        Raises:
            Exception: what a stage raised, when all messages have gone and come.
        """
        for stage in stages:
            if self.failure is not None and not stage.travels:
                continue
            try:
                with self.streams.of(stage.alongside):
                    stage.run(self)
            except RankLost:
                raise
            except Exception as error:
                if self.failure is not None:
                    raise
                self.failure = error
        if self.failure is not None:
            raise self.failure

    @abstractmethod
    def attend(self, call: RankCall) -> None:
        """One call for own rows."""

    @abstractmethod
    def join_rows(self) -> None:
        """Take the answers for the rows that left."""

    @abstractmethod
    def sent(self) -> Sequence[Any]:
        """Return the tensors that travel with leaving rows, each [B, Hq, tokens, columns]."""

    @abstractmethod
    def hosted(self, guest: Guest, brought: list[Any]) -> Any:
        """fp32 [B, Hq, rows, columns]: the answer for a guest's rows."""

    def send_rows(self) -> None:
        """Rows that leave go to the ranks that hold their keys, and rows of guests come."""
        import torch

        given, slices = self.sent(), list(self.work.leaving.slices())
        batch, heads = given[0].shape[:2]
        parts = [torch.cat([x[:, :, at] for _, at in slices] or [x[:, :, :0]], 2) for x in given]
        rows = torch.cat(parts, 3).permute(2, 0, 1, 3).contiguous()
        self.widths = [x.shape[3] for x in given]
        for guest in self.work.guests:
            into = rows
            if guest.home != self.rank:
                into = rows.new_empty((guest.rows, batch, heads, rows.shape[3]))
                self.messages.receive(into, guest.home)
            self.brought.append(into)
        for host in self.work.hosts:
            self.messages.send(rows, host)

    def host_rows(self) -> None:
        """Compute rows of other ranks over own keys, send the results back, and receive results of
        own moved rows."""
        import torch

        work = self.work
        results = [
            self._answer(guest, rows) for guest, rows in zip(work.guests, self.brought, strict=True)
        ]
        ranks = sorted({*work.hosts, *(x.home for x in work.guests if x.home == self.rank)})
        shape = *self.q.shape[:2], work.leaving.tokens, self.answer_width
        self.answers = self.q.new_empty((len(ranks), *shape), dtype=torch.float32)
        for guest, result in zip(work.guests, results, strict=True):
            if guest.home == self.rank:
                self.answers[ranks.index(guest.home)] = result
            else:
                self.messages.send(result.contiguous(), guest.home)
        for host in work.hosts:
            self.messages.receive(self.answers[ranks.index(host)], host)

    def _answer(self, guest: Guest, rows: Any) -> Any:
        """fp32 [B, Hq, rows, columns] for a guest's rows; NaN behind a failure."""
        import torch

        if self.failure is None:
            parts = rows.split(self.widths, 3)
            try:
                return self.hosted(guest, [x.permute(1, 2, 0, 3).contiguous() for x in parts])
            except Exception as error:
                self.failure = error

        shape = *self.q.shape[:2], guest.rows, self.answer_width
        return self.q.new_full(shape, torch.nan, dtype=torch.float32)

    def room(self) -> Any:
        """Make an empty buffer [size, width]; with many gaps, all are cleared at once."""
        make = self.k.new_zeros if len(self.work.gaps) > FEW else self.k.new_empty
        return make((self.work.size, self.rows.width))

    def fill(self) -> None:
        """Copy own keys into the buffer, and zeros where no key is needed."""
        buffer, copies = self.buffer, self.work.copies
        if len(copies) > MANY:
            sources, places = self.work.copied
            spread(buffer, places, packed(self.rows, self.k, self.v, sources))
        for copy in copies if len(copies) <= MANY else ():
            part = buffer[copy.place : copy.place + copy.count]
            source = slice(copy.start, copy.start + copy.count)
            self.rows.keys(part).copy_(self.k[:, :, source])
            self.rows.values(part).copy_(self.v[:, :, source])
        for start, stop in self.work.gaps if len(self.work.gaps) <= FEW else ():
            buffer[start:stop].zero_()

    def keys_of(self, call: RankCall) -> tuple[Any, Any]:
        """k and v [B, Hkv, N, D or Dv] that hold a call's keys: the rank's own, or the buffer's."""
        if call.own_keys:
            return self.k, self.v
        return self.rows.keys(self.buffer), self.rows.values(self.buffer)


class Forward(RankPass):
    """out and lse."""

    def __init__(self, step: PassStep, q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> None:
        super().__init__(step, q, k, v)
        self.per_head = slopes, sinks
        if self.work.size:
            self.buffer = self.room()
        moves = self.work.moves
        if q.is_cuda and TWO_STREAMS and (len(self.work.calls) > 1 or moves):
            self.streams = Streams(q.device, 2, first=moves)
        self.results = RankOutput(q, v, len(self.work.calls))
        self.answer_width = v.shape[3] + 1

    def sent(self) -> Sequence[Any]:
        """Queries."""
        return (self.q,)

    def send_keys(self) -> None:
        """Send keys and values to the ranks that need them, and receive them into the buffer."""
        bring(self.work, self.messages, self.rows, self.k, self.v, self.buffer)

    def attend(self, call: RankCall) -> None:
        """One call, whose rows of the results it writes."""
        self.launch(call, self.q, *self.keys_of(call), self.results, *self.per_head)

    def launch(
        self, call: RankCall, q: Any, k: Any, v: Any, results: RankOutput | PassParts,
        slopes: Any = None, sinks: Any = None,
    ) -> None:  # fmt: skip
        """One call over some of q, k and v [B, H, tokens, D], whose results are taken."""
        attn, queries = self.step.kernel(call, q, v), q[:, :, call.queries]
        into = results.place(queries, call.queries)
        out, lse = attn.run(AttentionCall(
            queries, k[:, :, call.places], v[:, :, call.places],
            self.step.options.with_heads(slopes, sinks), self.step.data(call), into,
        ))  # fmt: skip
        results.put(call.queries, out, lse, into is not None)

    def hosted(self, guest: Guest, brought: list[Any]) -> Any:
        """out, and lse behind it, over own keys."""
        (queries,) = brought
        parts = PassParts(self.q, guest.rows, self.v.shape[3])
        for call in guest.calls:
            self.launch(call, queries, self.k, self.v, parts)
        return parts.joined

    def join_rows(self) -> None:
        """Attention over all keys; sinks are a part without values."""
        total = join(self.answers, self.per_head[1])
        for part, place in self.work.leaving.slices():
            part_total = total[:, :, part]
            self.results.put(place, part_total[..., :-1].to(self.q.dtype), part_total[..., -1])


class Backward(RankPass):
    """Gradients of q, k, v, and of what all rows share."""

    def __init__(
        self, step: PassStep, k: Any, v: Any, saved: Saved, kept: Any, wanted: Sequence[str]
    ) -> None:
        import torch

        super().__init__(step, saved.q, k, v)
        self.saved, self.kept = saved, kept
        self.wanted = tuple(wanted) if step.score is not None else ()
        self.options = step.options
        if torch.are_deterministic_algorithms_enabled():
            self.options = self.options._replace(deterministic=True)
        self.dq = torch.empty_like(saved.q)
        self.dk: Any = None
        self.dv: Any = None
        shared = saved.slopes, saved.sinks, *(step.tables[name] for name in wanted)
        self.heads: list[Any] = [None if x is None else torch.zeros_like(x) for x in shared]
        """Gradients of slopes, sinks and tables."""
        self.of_buffer, self.of_own = KeyGradients(self.work.size), KeyGradients(self.work.keys)
        self.returned: list[tuple[Pieces, Any]] = []
        """(own tokens, gradients received for them) in the order of the ranks."""
        self.answer_width = k.shape[3]

    def remake(self) -> None:
        """Take or make again the buffer of the forward pass."""
        self.buffer = self.kept
        if self.kept is not None and self.work.mostly_copies:
            self.buffer = self.room()
            spread(self.buffer, self.work.came, self.kept)
            self.fill()

    def sent(self) -> Sequence[Any]:
        """q, out, dout, lse and, where the call gave lse, its gradient."""
        q, out, lse, dout, dlse, *_ = self.saved
        scalars = [lse]
        if self.step.options.return_lse:
            scalars.append(0 * lse if dlse is None else dlse)
        given = q, out, 0 * out if dout is None else dout
        return *given, *(x.float()[..., None] for x in scalars)

    def send_gradients(self) -> None:
        """Gradients of keys that came return to their ranks."""
        sums = self.of_buffer
        parts = (self.k[:, :, :0], self.v[:, :, :0]) if sums.dk is None else (sums.dk, sums.dv)
        if self.failure is not None:
            nothing = float("nan")
            parts = tuple(empty_like(x, self.work.size).fill_(nothing) for x in (self.k, self.v))
            sums = KeyGradients(self.work.size)
        self.returned = give_back(self.work, self.messages, self.rows, *parts, sums.first)

    def add_copies(self) -> None:
        """Gradients of own keys: of calls over them, and of their copies in the buffer."""
        self.dk, self.dv = self.of_own.whole(self.k, self.v)
        copies = self.work.copies
        if len(copies) > MANY:
            sources, places = (x.index(self.k.device) for x in self.work.copied)
            for total, x in ((self.dk, self.of_buffer.dk), (self.dv, self.of_buffer.dv)):
                total.index_add_(2, sources, x.index_select(2, places - self.of_buffer.first))
        for copy in copies if len(copies) <= MANY else ():
            source = slice(copy.start, copy.start + copy.count)
            place = copy.place - self.of_buffer.first
            part = slice(place, place + copy.count)
            self.dk[:, :, source] += self.of_buffer.dk[:, :, part]
            self.dv[:, :, source] += self.of_buffer.dv[:, :, part]

    def add_returned(self) -> None:
        """Gradients that came back are added in the order of the ranks."""
        for pieces, came in self.returned:
            unpacked(self.rows, came, pieces, self.dk, self.dv)

    def attend(self, call: RankCall) -> None:
        """The gradients of one call, added to those of its rows and keys."""
        sums = self.of_own if call.own_keys else self.of_buffer
        self.launch(call, *self.keys_of(call), self.saved, self.dq, sums)

    def launch(
        self, call: RankCall, k: Any, v: Any, saved: Saved, dq: Any, sums: KeyGradients
    ) -> None:
        """The gradients of one call over some of k and v [B, Hkv, tokens, D]: those of rows go into
        dq [B, Hq, rows, D], those of keys are added to sums."""
        from maskc.integrations.torch.gradients import gradients, rows

        queries, keys = call.queries, call.places
        of_q, of_k, of_lse = (
            saved.q[:, :, queries],
            k[:, :, keys],
            saved.lse[:, :, queries].contiguous(),
        )
        of_dq = dq[:, :, queries]
        into = of_dq if saved.dlse is None and _lies(of_dq, of_q) else None

        def run(v: Any, out: Any, dout: Any, plain: bool = False) -> Any:
            options = self.options.with_heads(saved.slopes, saved.sinks)
            return self.step.kernel(call, saved.q, v, plain).differentiate(AttentionCall(
                of_q, of_k, v, options, self.step.data(call, plain), into, out, of_lse,
                rows(dout), self.wanted,
            ))  # fmt: skip

        parts = (None if x is None else x[:, :, queries] for x in (saved.dout, saved.dlse))
        results = gradients(
            run, v[:, :, keys], saved.out[:, :, queries], of_lse, saved.slopes, saved.sinks, *parts
        )
        if into is None:
            of_dq.copy_(results[0])
        sums.add(call.key, results[1], results[2])
        for number, more in enumerate(results[3:]):
            if more is not None:
                self.heads[number] += more

    def hosted(self, guest: Guest, brought: list[Any]) -> Any:
        """dq over own keys, whose gradients are added to the rank's."""
        import torch

        q, out, dout = (x.to(self.k.dtype) for x in brought[:3])
        lse, *dlse = (x.squeeze(3) for x in brought[3:])
        saved = Saved(q, out, lse, dout, dlse[0] if dlse else None)
        total = torch.zeros_like(q, dtype=torch.float32)
        for call in guest.calls:
            dq = torch.empty_like(q)
            self.launch(call, self.k, self.v, saved, dq, self.of_own)
            total[:, :, call.queries] += dq[:, :, call.queries]
        return total

    def join_rows(self) -> None:
        """dq of all keys, and these rows' share of the gradients of sinks."""
        import torch

        _, out, lse, dout, dlse, _, sinks = self.saved
        total = self.answers.sum(0)
        for part, place in self.work.leaving.slices():
            self.dq[:, :, place] = total[:, :, part]
            if sinks is not None:
                slope = torch.zeros_like(lse[:, :, place])
                if dout is not None:
                    slope -= (dout[:, :, place].float() * out[:, :, place].float()).sum(-1)
                if dlse is not None:
                    slope += dlse[:, :, place]
                share = torch.exp(sinks.float()[:, None] - lse[:, :, place])
                self.heads[1] += (share * slope).sum((0, 2))


class Streams:
    """The current stream of a device, and optionally a second one that waits for its work so far.

    Work on one stream uses the multiprocessors that become idle while the last blocks of the other
    stream's kernels finish.
    """

    def __init__(self, device: Any, count: int = 1, first: bool = False) -> None:
        """`first`: whether the second stream has high priority."""
        self._device = device
        self._there = _stream(device, -first) if count > 1 else None
        if self._there is not None:
            self._there.wait_stream(self._here)

    @property
    def _here(self) -> Any:
        import torch

        return torch.cuda.current_stream(self._device)

    def of(self, alongside: bool) -> Any:
        """Return a context in which the second stream is current, if it exists and is requested."""
        import torch

        alone = self._there is None or not alongside
        return nullcontext() if alone else torch.cuda.stream(self._there)

    def meet(self) -> None:
        """Let the current stream wait for the work of the second one so far."""
        if self._there is not None:
            self._here.wait_stream(self._there)


@cache
def _stream(device: Any, priority: int) -> Any:
    import torch

    return torch.cuda.Stream(device, priority)


class RankOutput:
    """out and lse of a rank's rows, from one call or assembled from several."""

    def __init__(self, q: Any, v: Any, calls: int) -> None:
        self._like, self._dim = q, v.shape[3]
        self._made = self._room() if calls > 1 else None

    def _room(self) -> tuple[Any, Any]:
        import torch

        q = self._like
        return empty_like(q, q.shape[2], self._dim), q.new_empty(q.shape[:3], dtype=torch.float32)

    @property
    def all(self) -> tuple[Any, Any]:
        """out [B, Hq, tokens, Dv] in the order of q, and lse fp32 [B, Hq, tokens]."""
        if self._made is None:
            self._made = self._room()
        return self._made

    def _whole(self, rows: slice) -> bool:
        return (rows.start, rows.stop) == (0, self._like.shape[2])

    def place(self, queries: Any, rows: slice) -> Any:
        """Find where rows of out may be written at once.

        Args:
            queries: [B, Hq, rows, D]: the rows' q.
            rows: where they are among the rank's.

        Returns:
            A view [B, Hq, rows, Dv], or None if the rows lie otherwise.
        """
        if self._whole(rows):
            return None
        part = self.all[0][:, :, rows]
        return part if _lies(part, queries) else None

    def put(self, rows: slice, out: Any, lse: Any, written: bool = False) -> None:
        """Take out [B, Hq, rows, Dv] and lse [B, Hq, rows] of some rows.

        Args:
            rows: where the rows are among the rank's.
            written: whether out lies there already.
        """
        if self._whole(rows):
            self._made = out, lse
            return
        into, lses = self.all
        if not written:
            into[:, :, rows] = out
        lses[:, :, rows] = lse


class PassParts:
    """fp32 [B, Hq, rows, Dv + 1] of each call over some of the keys: out, and lse behind it."""

    def __init__(self, q: Any, rows: int, dim_v: int) -> None:
        """Begin without any; the batch and the heads are those of q [B, Hq, tokens, D]."""
        self._like, self._shape = q, (*q.shape[:2], rows, dim_v + 1)
        self._all: list[Any] = []

    def place(self, queries: Any, rows: slice) -> Any:
        """Find where a part may be written at once: nowhere."""
        return None

    def put(self, rows: slice, out: Any, lse: Any, written: bool = False) -> None:
        """Take a part: out [B, Hq, rows, Dv] and lse [B, Hq, rows] of `rows`."""
        import torch

        part = self._like.new_zeros(self._shape, dtype=torch.float32)
        part[..., -1] = -torch.inf
        part[:, :, rows, :-1], part[:, :, rows, -1] = out, lse
        self._all.append(part)

    @property
    def joined(self) -> Any:
        """The attention over all parts, fp32 [B, Hq, rows, Dv + 1]."""
        import torch

        return self._all[0] if len(self._all) == 1 else join(torch.stack(self._all))


def join(parts: Any, sinks: Any = None) -> Any:
    """Merge parts [parts, B, Hq, rows, Dv + 1] (out, then lse) into attention over all keys.

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


class KeyGradients:
    """Gradients of keys and values, from calls that see some of them."""

    def __init__(self, size: int) -> None:
        self.size, self.first = size, 0
        self.dk: Any = None
        """[B, Hkv, tokens, D] of the tokens from `first` on; None before there are any."""
        self.dv: Any = None
        """[B, Hkv, tokens, Dv], likewise."""

    def add(self, key: int, dk: Any, dv: Any) -> None:
        """Add gradients [B, Hkv, tokens, D] and [B, Hkv, tokens, Dv] of the tokens from `key` on.

        What has more tokens keeps its place.
        """
        if self.dk is None:
            self.first, self.dk, self.dv = key, dk, dv
            return
        more = key, dk, dv
        if key <= self.first and key + dk.shape[2] >= self.first + self.dk.shape[2]:
            more = self.first, self.dk, self.dv
            self.first, self.dk, self.dv = key, dk, dv
        elif key < self.first or key + dk.shape[2] > self.first + self.dk.shape[2]:
            before = self.first, self.dk, self.dv  # room for all tokens
            self.first = 0
            self.dk, self.dv = (empty_like(x, self.size).zero_() for x in (dk, dv))
            self._add(*before)
        self._add(*more)

    def _add(self, key: int, dk: Any, dv: Any) -> None:
        part = slice(key - self.first, key - self.first + dk.shape[2])
        self.dk[:, :, part] += dk
        self.dv[:, :, part] += dv

    def whole(self, k: Any, v: Any) -> tuple[Any, Any]:
        """The gradients of all tokens, in the shapes of k and v; zero where no call saw them."""
        import torch

        if self.dk is None:
            return torch.zeros_like(k), torch.zeros_like(v)
        if self.dk.shape[2] != self.size:
            self.add(0, *(empty_like(x, self.size).zero_() for x in (k, v)))
        return self.dk, self.dv


def _chosen_by(name: str, x: Any, call: RankCall, n_kv: int) -> Any:
    """The part of a tensor that chooses keys for a call: of its queries, or index_k of its keys.

    Args:
        x: index_k, or each of a pair, has all keys along dimension 1. Others have the rank's
            queries: index_q, index_w and scores along dimension 2, lists of keys along the last
            but one.
        n_kv: keys of the sequence.
    """
    if isinstance(x, tuple):
        return tuple(_chosen_by(name, part, call, n_kv) for part in x)
    if name == "index_k":
        _, first = call.first or (0, 0)
        return x[:, first : first + call.keys]
    if name in TOKENS or name == "scores":
        return x[:, :, call.queries]
    return call.place_of_key.places(x[..., call.queries, :], n_kv)


def _moved(score: Score, call: RankCall, lengths: tuple[int, int]) -> Score:
    """Return the formula over a call's own queries and keys.

    Args:
        score: the formula of the sequence.
        call: a call with one stretch of keys, or with tables of the tokens.
        lengths: queries and keys of the sequence.
    """
    inputs, tables = score.inputs, dict[str, np.ndarray]()
    slots = list(inputs.formula.slots)
    n_q, n_kv = map(E.const, lengths)
    places: dict[Any, Any] = {E.N_Q: n_q, E.N_KV: n_kv}
    if call.queries_of is None:
        first_q, first_k = call.first or (0, 0)
        places |= {E.Q: E.add(E.Q, E.const(first_q)), E.K: E.add(E.K, E.const(first_k))}
    else:
        for token, name, tokens in (
            (E.Q, "query of a row", call.queries_of), (E.K, "key of a place", call.seen.sequence)
        ):  # fmt: skip
            places[token] = Entry(f"table{len(slots)}", (token,))
            slots.append(Slot(places[token].slot, 1, integer=True))
            tables[name] = tokens.astype(np.int32)

    def change(part: Any) -> Any:
        return places.get(part) if isinstance(part, E.Sym) else None

    formula = replace(
        inputs.formula, logit=E.transform(inputs.formula.logit, change), slots=tuple(slots)
    )
    inputs = replace(
        inputs, formula=formula, names=(*inputs.names, *tables),
        captured={**inputs.captured, **tables},
    )  # fmt: skip
    return replace(score, inputs=inputs)


def empty_like(x: Any, tokens: int, dim: int | None = None) -> Any:
    """An empty [B, H, tokens, dim], in the order of x [B, H, N, D]; of its dimension where that is
    None."""
    shape = *x.shape[:2], tokens, x.shape[3] if dim is None else dim
    return x.new_empty_strided(shape, out_strides(shape, order_of(x.shape, x.stride())))


def _lies(part: Any, like: Any) -> bool:
    """Whether rows of a result have the strides of a separate result with the layout of `like`."""
    wanted = out_strides(tuple(part.shape), order_of(like.shape, like.stride()))
    steps = zip(part.shape, part.stride(), wanted, strict=True)
    return all(size == 1 or step == want for size, step, want in steps)
