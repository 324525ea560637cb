"""Attention over a sequence that ranks share: local shards in, local shards out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from maskc.core import expr as E
from maskc.core.dropout import FIRST, SQUARE
from maskc.core.errors import DataUnknown, MixedLibraries, NotShared
from maskc.core.score import rebuilt
from maskc.core.tensors import out_strides
from maskc.distributed.exchange import Exchange, Rows, bring, gathered, give_back, spread, unpacked
from maskc.distributed.groups import Ranks, agree, ranks_of
from maskc.distributed.visiting import Parts, Visits, join
from maskc.dsl.score_tracer import Score, as_score

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan
    from maskc.distributed.work import Call, Work

_BESIDE = True
"""Whether rows that read the buffer may run beside the others."""
_FEW = 4
"""Gaps of a buffer that are cleared one by one."""


def attention(
    q: Any, k: Any, v: Any, plan: Plan, *, layer: str | None = None, group: Any = None,
    scale: float | None = None, return_lse: bool = False, softcap: float | None = None,
    alibi_slopes: Any = None, sink_logits: Any = None, normalizer: str = "softmax",
    alpha: float | None = None, nan_safe: bool = False, deterministic: bool = False,
    dropout_p: float = 0.0, dropout_seed: Any = None, score: Score | None = None, **tables: Any,
) -> Any:  # fmt: skip
    """Attention of this rank's queries over all keys that they see; all ranks must call it.

    Keys that no query of a rank sees do not travel to it. Tiles that need only the rank's own keys
    run while the others come. The result is differentiable in q, k, v, alibi_slopes and
    sink_logits: gradients of keys return to their ranks; those of slopes and sinks are this rank's
    share, to be summed over ranks like those of every weight; so are those of a score's tables.

    Args:
        q: this rank's queries [B, Hq, tokens, D], torch tensors; k: [B, Hkv, tokens, D];
            v: [B, Hkv, tokens, Dv]. DTensors that are sharded along tokens are taken too.
        plan: from `mc.distributed.plan`, the same on every rank; masks with data need
            `plan.given(...)`.
        layer: which mask of a plan for several.
        group: a ProcessGroup or a DeviceMesh of one dimension; None is the default group.
        scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha, nan_safe,
            deterministic: as in `mc.attention`. In a deterministic pass gradients from several
            ranks are added in the order of the ranks.
        dropout_p: as in `mc.attention`.
        dropout_seed: likewise, and the same on every rank: then what is dropped is what one GPU
            drops. It must be given.
        score: as in `mc.attention`; its q and k are places in the whole sequence.
        tables: tables and parameters of the formula, whole on every rank.

    Returns:
        out [B, Hq, tokens, Dv], or (out, lse) with lse fp32 [B, Hq, tokens].

    Raises:
        RanksDisagree: ranks have different plans or shapes (MC703), on all of them.
        ShardLength: a tensor has another number of tokens than the rank (MC704).
        RankLost: a message did not come (MC705).
        WrongGroup: the group does not fit the plan (MC706).
        PlanData: the mask reads data that the plan was not given (MC702).
        NotShared: ALiBi where a rank's rows do not end where its keys do; dropout where chunks of
            tokens are no multiples of 16; a formula of the score that hides pairs (MC707).
        DropoutSeed: there is no seed (MC431).
        MaskcError: as `mc.attention`.
    """
    import torch

    from maskc.runtime.dropout import asked

    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise MixedLibraries("mc.distributed.attention", "torch.Tensor", name,
                                 type(x).__name__, at=name)  # fmt: skip
    meshes = [x for x in (q, k, v) if hasattr(x, "device_mesh")]
    if meshes:
        return _with_dtensors(
            q, k, v, plan, layer=layer, group=group, scale=scale, return_lse=return_lse,
            softcap=softcap, alibi_slopes=alibi_slopes, sink_logits=sink_logits,
            normalizer=normalizer, alpha=alpha, nan_safe=nan_safe, deterministic=deterministic,
            dropout_p=dropout_p, dropout_seed=dropout_seed, score=score, **tables,
        )  # fmt: skip
    formula = None if score is None else _checked(as_score(score))
    if formula is None and tables:
        raise DataUnknown(next(iter(tables)), "none", "data of the mask go to plan.given()",
                          at=next(iter(tables)))  # fmt: skip
    dropout = asked(None, dropout_p, dropout_seed) if dropout_p else {}
    options = {
        name: value for name, value in (
            ("scale", scale), ("softcap", softcap), ("alpha", alpha),
            ("normalizer", None if normalizer == "softmax" else normalizer),
            ("nan_safe", nan_safe or None),
        ) if value is not None
    }  # fmt: skip
    # Compilers leave the call alone: what they make of the code around it, they make in two parts.
    run = torch.compiler.disable(_attend) if torch.compiler.is_compiling() else _attend
    out, lse = run(q, k, v, alibi_slopes, sink_logits, plan, layer, group, options, deterministic,
                   dropout, formula, tables, return_lse)  # fmt: skip
    return (out, lse) if return_lse else out


def _attend(
    q: Any, k: Any, v: Any, slopes: Any, sinks: Any, plan: Plan, layer: str | None, group: Any,
    options: dict[str, Any], deterministic: bool, dropout: dict[str, Any], score: Score | None,
    tables: dict[str, Any], return_lse: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """out and lse; messages start and end inside it."""
    ranks = ranks_of(plan, group)
    agree(plan, ranks, q, k, v, layer)
    # distances count from a call's last key, and only parts of a softmax can be put together
    at_home = slopes is not None or "normalizer" in options
    one_stretch = bool(dropout) or score is not None
    work = plan.work(ranks.rank, layer, one_stretch, at_home)
    # All ranks ask about all of them: one that went on alone would wait for the others.
    if slopes is not None and not plan.ends_alike(layer, one_stretch, at_home):
        why = "distances count from where a rank's keys end, which is not where its rows do"
        raise NotShared("alibi_slopes", why, "use a causal mask in a contiguous layout",
                        at="alibi_slopes")  # fmt: skip
    if dropout and plan.block % SQUARE:
        why = f"pairs are drawn in squares of {SQUARE} tokens, which its chunks cut"
        raise NotShared("dropout_p", why, f"make the plan with block={SQUARE} or a multiple",
                        at="dropout_p")  # fmt: skip
    known = plan.__dict__.setdefault("_kernels", {})
    tensors = {name: x for name, x in tables.items() if hasattr(x, "requires_grad")}
    step = Step(work, ranks, options, deterministic, dropout, known, plan.n, score, tables,
                tuple(tensors), return_lse)  # fmt: skip
    found: tuple[Any, Any] = _function().apply(step, q, k, v, slopes, sinks, *tensors.values())
    return found


def _checked(score: Score) -> Score:
    """A formula that shares its pairs with the mask.

    Raises:
        NotShared: it hides some, whose keys the plan does not know.
    """
    if score.mask is not None:
        hint = "give the plan the mask & the pairs that it leaves, and a formula without them"
        raise NotShared("score", "it hides pairs that the mask has", hint, at="score")
    return score


def _with_dtensors(q: Any, k: Any, v: Any, plan: Plan, **options: Any) -> Any:
    """The call with DTensors: shards along tokens in, shards along tokens out.

    Raises:
        NotShared: a DTensor is placed otherwise.
    """
    import torch
    from torch.distributed.tensor import DTensor, Shard

    mesh = next(x.device_mesh for x in (q, k, v) if isinstance(x, DTensor))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor) or x.device_mesh != mesh or x.placements != (Shard(2),):
            where = getattr(x, "placements", "no DTensor")
            raise NotShared(name, f"it is placed {where}", "place q, k and v as Shard(2)", at=name)
    if options["group"] is None:
        options["group"] = mesh
    of_q, of_k, of_v = (x.to_local() for x in (q, k, v))
    found = attention(of_q, of_k, of_v, plan, **options)

    def whole(x: Any) -> Any:
        shape = list(x.shape)
        shape[2] = plan.n
        stride = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            stride[axis] = stride[axis + 1] * shape[axis + 1]
        return DTensor.from_local(
            x.contiguous(), mesh, [Shard(2)], run_check=False, shape=torch.Size(shape),
            stride=tuple(stride),
        )  # fmt: skip

    return tuple(map(whole, found)) if isinstance(found, tuple) else whole(found)


@dataclass(frozen=True, eq=False)
class Step:
    """One call of attention on one rank."""

    work: Work
    ranks: Ranks
    options: dict[str, Any]
    deterministic: bool
    dropout: dict[str, Any]
    """What calls say of it besides their places; empty without."""
    kernels: dict[object, Any]
    """Compiled masks by call and problem."""
    n: int
    """Tokens of the sequence."""
    score: Score | None
    tables: dict[str, Any]
    """What the formula of the score reads."""
    tensors: tuple[str, ...]
    """Those of them that may require grad."""
    return_lse: bool = False
    """Whether results may depend on lse."""

    def kernel(self, call: Call, q: Any, v: Any, plain: bool = False) -> Any:
        """The compiled mask of a call; a `plain` one drops nothing."""
        drops = bool(self.dropout) and not plain
        key = id(call), q.shape[3], v.shape[3], q.shape[1], q.dtype, q.device, drops, self.score
        found = self.kernels.get(key)
        if found is None:
            from maskc.api import _compiled

            place = q.device.type, q.device.index or 0
            rest = q.shape[3], v.shape[3], q.shape[1], q.dtype, place
            score = None if self.score is None else _moved(self.score, call.first or (0, 0), self.n)
            found = _compiled(call.local.mask, *rest, score=score)
            found = self.kernels[key] = found.dropping if drops else found
        return found

    def data(self, call: Call, plain: bool = False) -> dict[str, Any]:
        """What a call gives beside q, k and v."""
        given = {**call.local.data, **self.tables}
        if not self.dropout or plain:
            return given
        given |= self.dropout
        if call.first is not None:
            given[FIRST] = tuple(x // SQUARE for x in call.first)
        return given

    # -------------------------------------------------------------- forward

    def of_graph(self, tensors: Sequence[Any]) -> Step:
        """The same with these tables, as a graph has them."""
        return replace(
            self, tables={**self.tables, **dict(zip(self.tensors, tensors, strict=True))}
        )

    def forward(self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> tuple[Any, ...]:
        """(out, lse, buffer); the buffer is None where all keys are the rank's own."""
        work = self.work
        rows = Rows(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        buffer = self._room(rows, k) if work.size else None
        visits, messages = self._visits, Exchange(self.ranks)
        several = len(work.calls) > 1 or visits is not None
        beside = _Beside(q.device, q.is_cuda and several and _BESIDE, visits is not None)
        if visits is not None:
            visits.ask(messages, (q,))
        bring(work, messages, rows, k, v, buffer)
        heads = {"alibi_slopes": slopes, "sink_logits": sinks}
        results = _Results(q, v, len(work.calls))
        if buffer is not None:  # while messages get their time to begin
            with beside():
                self._fill(rows, k, v, buffer)
        later = [call for call in reversed(work.calls) if not call.own]  # the last rows see most
        for call in work.calls:
            if call.own:
                self._run(call, q, k, v, heads, results)
        with beside():
            messages.wait()
            if visits is not None:
                self._host(visits, messages, q, k, v)
        beside.wait()
        if buffer is not None:
            keys, values = rows.keys(buffer), rows.values(buffer)
            for number, call in enumerate(later):
                with beside(number % 2 == 0):
                    self._run(call, q, keys, values, heads, results)
        beside.wait()
        if visits is not None:
            messages.wait()
            self._home(visits, q, sinks, results)
        return results.out, results.lse, buffer

    @property
    def _visits(self) -> Visits | None:
        """The visits of a pass; None where this rank has no part in any."""
        some = self.work.guests or self.work.hosts
        return Visits(self.work, self.ranks) if some else None

    def _host(self, visits: Visits, messages: Exchange, q: Any, k: Any, v: Any) -> None:
        """Guests' rows over this rank's keys."""
        results = []
        for guest, (queries,) in visits.guests():
            parts = Parts(q, guest.rows, v.shape[3])
            for call in guest.calls:
                self._run(call, queries, k, v, {}, parts)
            results.append(parts.joined)
        visits.answer(messages, results, q, v.shape[3] + 1)
        messages.start(False)

    def _home(self, visits: Visits, q: Any, sinks: Any, results: _Results) -> None:
        """The rows that left, from what their hosts found; sinks are a part without values."""
        if not self.work.leaving.tokens:
            return
        total = join(visits.answers, sinks)
        for part, place in self.work.leaving.slices():
            own = total[:, :, part]
            results.put(place, own[..., :-1].to(q.dtype), own[..., -1], False)

    def _room(self, rows: Rows, k: Any) -> Any:
        """A buffer; of many gaps, all are cleared at once."""
        make = k.new_zeros if len(self.work.gaps) > _FEW else k.new_empty
        return make((self.work.size, rows.width))

    def kept(self, buffer: Any) -> Any:
        """What of a buffer stays until the backward pass: all, or what came from others."""
        if buffer is None or not self.work.mostly_copies:
            return buffer
        return gathered(buffer, self.work.came)

    def _again(self, rows: Rows, k: Any, v: Any, kept: Any) -> Any:
        """The buffer of the forward pass."""
        if kept is None or not self.work.mostly_copies:
            return kept
        buffer = self._room(rows, k)
        spread(buffer, self.work.came, kept)
        self._fill(rows, k, v, buffer)
        return buffer

    def _fill(self, rows: Rows, k: Any, v: Any, buffer: Any) -> None:
        """What of the buffer is the rank's own, and zeros where nobody looks."""
        for each in self.work.copies:
            part = buffer[each.place : each.place + each.count]
            own = slice(each.source, each.source + each.count)
            rows.keys(part).copy_(k[:, :, own])
            rows.values(part).copy_(v[:, :, own])
        for start, stop in self.work.gaps if len(self.work.gaps) <= _FEW else ():
            buffer[start:stop].zero_()

    def _run(
        self, call: Call, q: Any, k: Any, v: Any, heads: dict[str, Any], results: _Results | Parts
    ) -> None:
        """One call, whose rows of the results it writes."""
        own, keys = _part(call)
        attn, queries = self.kernel(call, q, v), q[:, :, own]
        into = results.place(queries, own)
        out, lse = attn.launch(
            queries, k[:, :, keys], v[:, :, keys], return_lse=True, data=self.data(call),
            into=into, **heads, **self.options,
        )  # fmt: skip
        results.put(own, out, lse, into is not None)

    # -------------------------------------------------------------- backward

    def backward(
        self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, out: Any, lse: Any, kept: Any,
        dout: Any, dlse: Any, wanted: Sequence[str] = (),
    ) -> tuple[Any, ...]:  # fmt: skip
        """(dq, dk, dv, dslopes, dsinks), then those of the `wanted` tables: rows that read the
        buffer first, so that what goes back travels under the others."""
        import torch

        if dout is None and dlse is None:
            return (None,) * (5 + len(wanted))
        work = self.work
        rows = Rows(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        summed = (slopes, sinks, *(self.tables[name] for name in wanted))
        heads: list[Any] = [None if x is None else torch.zeros_like(x) for x in summed]
        learnt = {"wanted": wanted} if self.score is not None else {}
        saved = q, out, lse, dout, dlse, slopes, sinks
        dq = torch.empty_like(q)
        visits, messages = self._visits, Exchange(self.ranks)
        if visits is not None:
            visits.ask(messages, self._asked_back(saved))
            messages.start()
        of_buffer, of_own = _Sums(work.size), _Sums(work.tokens)
        buffer = self._again(rows, k, v, kept)
        if buffer is not None:
            keys, values = rows.keys(buffer), rows.values(buffer)
            for call in work.calls:
                if not call.own:
                    self._run_back(call, keys, values, saved, dq, of_buffer, heads, learnt)
        if visits is not None:
            messages.wait()
            self._host_back(visits, messages, q, k, v, of_own, heads, learnt)
        parts = (k[:, :, :0], v[:, :, :0]) if of_buffer.dk is None else of_buffer.parts
        back = give_back(work, messages, rows, *parts, of_buffer.first)
        for call in work.calls:
            if call.own:
                self._run_back(call, k, v, saved, dq, of_own, heads, learnt)
        dk, dv = of_own.whole(k, v)
        for each in work.copies:
            own = slice(each.source, each.source + each.count)
            part = slice(each.place - of_buffer.first, each.place - of_buffer.first + each.count)
            for total, more in zip((dk, dv), of_buffer.parts, strict=True):
                total[:, :, own] += more[:, :, part]
        messages.wait()
        for pieces, came in back:  # in the order of the ranks
            unpacked(rows, came, pieces, dk, dv)
        if visits is not None:
            self._home_back(visits, saved, dq, heads)
        return dq, dk, dv, *heads

    def _asked_back(self, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a visit of a backward pass needs: q, out, dout, lse and, where the call gave lse,
        its gradient."""
        q, out, lse, dout, dlse, *_ = saved
        scalars = [lse] if not self.return_lse else [lse, 0 * lse if dlse is None else dlse]
        given = q, out, 0 * out if dout is None else dout
        return *given, *(x.float()[..., None] for x in scalars)

    def _host_back(
        self, visits: Visits, messages: Exchange, like: Any, k: Any, v: Any, of_own: _Sums,
        heads: list[Any], learnt: dict[str, Any],
    ) -> None:  # fmt: skip
        """The gradients of guests' rows over this rank's keys."""
        import torch

        results = []
        for guest, brought in visits.guests():
            q, out, dout = (x.to(k.dtype) for x in brought[:3])
            lse, *dlse = (x.squeeze(3) for x in brought[3:])
            saved = q, out, lse, dout, dlse[0] if dlse else None, None, None
            total = torch.zeros_like(q, dtype=torch.float32)
            for call in guest.calls:
                dq, (own, _) = torch.empty_like(q), _part(call)
                self._run_back(call, k, v, saved, dq, of_own, heads, learnt)
                total[:, :, own] += dq[:, :, own]
            results.append(total)
        visits.answer(messages, results, like, k.shape[3])

    def _home_back(self, visits: Visits, saved: tuple[Any, ...], dq: Any, heads: list[Any]) -> None:
        """The gradients of the rows that left, and their share of those of the sinks."""
        import torch

        _, out, lse, dout, dlse, _, sinks = saved
        total = visits.answers.sum(0)
        for part, place in self.work.leaving.slices():
            dq[:, :, place] = total[:, :, part]
            if sinks is not None:
                slope = torch.zeros_like(lse[:, :, place])
                if dout is not None:
                    slope -= (dout[:, :, place].float() * out[:, :, place].float()).sum(-1)
                if dlse is not None:
                    slope += dlse[:, :, place]
                share = torch.exp(sinks.float()[:, None] - lse[:, :, place])
                heads[1] += (share * slope).sum((0, 2))

    def _run_back(
        self, call: Call, k: Any, v: Any, saved: tuple[Any, ...], dq: Any, sums: _Sums,
        heads: list[Any], learnt: dict[str, Any],
    ) -> None:  # fmt: skip
        """The gradients of one call, added to those of its rows and keys."""
        import torch

        from maskc.integrations.torch.gradients import gradients, rows

        q, out, lse, dout, dlse, slopes, sinks = saved
        own, keys = _part(call)
        exact = self.deterministic or torch.are_deterministic_algorithms_enabled()
        of_q, of_k, of_lse = q[:, :, own], k[:, :, keys], lse[:, :, own].contiguous()
        of_dq = dq[:, :, own]
        into = of_dq if dlse is None and _lies(of_dq, of_q) else None

        def run(v: Any, out: Any, dout: Any, plain: bool = False) -> Any:
            return self.kernel(call, q, v, plain).launch_backward(
                of_q, of_k, v, out, of_lse, rows(dout), alibi_slopes=slopes, sink_logits=sinks,
                deterministic=exact, data=self.data(call, plain), into=into, **learnt,
                **self.options,
            )  # fmt: skip

        parts = (None if x is None else x[:, :, own] for x in (dout, dlse))
        found = gradients(run, v[:, :, keys], out[:, :, own], of_lse, slopes, sinks, *parts)
        if into is None:
            of_dq.copy_(found[0])
        sums.add(call.key, found[1], found[2])
        for number, more in enumerate(found[3:]):
            if more is not None:
                heads[number] += more


class _Beside:
    """A second stream, behind what the present one has by now; without `wanted` the present one.

    What is enqueued in one finds the multiprocessors that the last blocks of the other one's
    kernels leave.
    """

    def __init__(self, device: Any, wanted: bool, first: bool = False) -> None:
        """`first`: whether its blocks come before those of other streams."""
        self._device = device
        self._there = _stream(device, -first) if wanted else None
        if self._there is not None:
            self._there.wait_stream(self._here)

    @property
    def _here(self) -> Any:
        import torch

        return torch.cuda.current_stream(self._device)

    def __call__(self, wanted: bool = True) -> Any:
        """A context in which the second stream is the present one."""
        import torch

        alone = self._there is None or not wanted
        return nullcontext() if alone else torch.cuda.stream(self._there)

    def wait(self) -> None:
        """The present stream waits for what the second one has by now."""
        if self._there is not None:
            self._here.wait_stream(self._there)


@cache
def _stream(device: Any, priority: int) -> Any:
    import torch

    return torch.cuda.Stream(device, priority)


class _Results:
    """out and lse of a rank's rows: those of one call, or put together."""

    def __init__(self, q: Any, v: Any, calls: int) -> None:
        self._q, self._v = q, v
        self.tokens = q.shape[2]
        self._made = _empty(q, v) if calls > 1 else None

    @property
    def _all(self) -> tuple[Any, Any]:
        if self._made is None:
            self._made = _empty(self._q, self._v)
        return self._made

    @property
    def out(self) -> Any:
        """[B, Hq, tokens, Dv]."""
        return self._all[0]

    @property
    def lse(self) -> Any:
        """fp32 [B, Hq, tokens]."""
        return self._all[1]

    def _whole(self, own: slice) -> bool:
        return (own.start, own.stop) == (0, self.tokens)

    def place(self, queries: Any, own: slice) -> Any:
        """Where some rows of out may be written at once; None where they lie otherwise."""
        part = None if self._whole(own) else self.out[:, :, own]
        return part if part is not None and _lies(part, queries) else None

    def put(self, own: slice, out: Any, lse: Any, written: bool) -> None:
        """Take some rows."""
        if self._whole(own):
            self._made = out, lse
            return
        if not written:
            self.out[:, :, own] = out
        self.lse[:, :, own] = lse


class _Sums:
    """Gradients of keys and values, from calls that see some of them."""

    def __init__(self, size: int) -> None:
        self.size, self.first = size, 0
        self.dk: Any = None
        self.dv: Any = None

    @property
    def parts(self) -> tuple[Any, Any]:
        """Gradients of the tokens from `first` on."""
        return self.dk, self.dv

    def add(self, key: int, dk: Any, dv: Any) -> None:
        """Add those of the tokens from `key` on; what has more tokens keeps its place."""
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
            self.dk, self.dv = (_zeros(x, self.size) for x in (dk, dv))
            self._add(*before)
        self._add(*more)

    def _add(self, key: int, dk: Any, dv: Any) -> None:
        part = slice(key - self.first, key - self.first + dk.shape[2])
        self.dk[:, :, part] += dk
        self.dv[:, :, part] += dv

    def whole(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Gradients of all tokens; zero where no call saw them."""
        import torch

        if self.dk is None:
            return torch.zeros_like(k), torch.zeros_like(v)
        if self.dk.shape[2] != self.size:
            self.add(0, *(_zeros(x, self.size) for x in (k, v)))
        return self.dk, self.dv


def _moved(score: Score, first: tuple[int, int], n: int) -> Score:
    """The formula over a call's own queries and keys, of which these are the first ones."""
    places: dict[Any, Any] = {
        E.Q: E.add(E.Q, E.const(first[0])), E.K: E.add(E.K, E.const(first[1])),
        E.N_Q: E.const(n), E.N_KV: E.const(n),
    }  # fmt: skip

    def change(part: Any) -> Any:
        return places.get(part) if isinstance(part, E.Sym) else None

    formula = score.inputs.formula
    moved = replace(formula, logit=rebuilt(formula.logit, change))
    return replace(score, inputs=replace(score.inputs, formula=moved))


def _zeros(x: Any, tokens: int) -> Any:
    """Zeros for so many tokens, in the order of x [B, H, N, D]."""
    batch, heads, _, dim = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_zeros((batch, tokens, heads, dim)).transpose(1, 2)
    return x.new_zeros((batch, heads, tokens, dim))


def _lies(part: Any, like: Any) -> bool:
    """Whether rows of a result lie as a result of their own would, that goes with `like`."""
    _, heads, tokens, _ = like.shape
    swapped = heads > 1 and tokens > 1 and like.stride(1) < like.stride(2)
    wanted = out_strides(tuple(part.shape), swapped)
    steps = zip(part.shape, part.stride(), wanted, strict=True)
    return all(size == 1 or step == want for size, step, want in steps)


def _part(call: Call) -> tuple[slice, slice]:
    return slice(call.row, call.row + call.rows), slice(call.key, call.key + call.keys)


def _empty(q: Any, v: Any) -> tuple[Any, Any]:
    """out and lse of all of the rank's rows; out in the order of q."""
    import torch

    batch, heads, tokens, _ = q.shape
    shape = batch, heads, tokens, v.shape[3]
    if heads > 1 and tokens > 1 and q.stride(1) < q.stride(2):
        out = q.new_empty((batch, tokens, heads, v.shape[3])).transpose(1, 2)
    else:
        out = q.new_empty(shape)
    return out, torch.empty(shape[:3], dtype=torch.float32, device=q.device)


@cache
def _function() -> Any:
    """The torch.autograd.Function; made on first use, as torch is."""
    import torch

    from maskc.integrations.torch.gradients import once

    class SharedAttention(torch.autograd.Function):
        """out, lse of a rank; the backward pass sends the gradients of keys to their ranks."""

        @staticmethod
        def forward(
            ctx: Any, step: Step, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, *tables: Any
        ) -> Any:
            out, lse, buffer = step.of_graph(tables).forward(q, k, v, slopes, sinks)
            ctx.set_materialize_grads(False)
            ctx.step = step
            if step.options.get("normalizer"):
                ctx.mark_non_differentiable(lse)
            kept = step.kept(buffer) if any(ctx.needs_input_grad) else None
            ctx.save_for_backward(q, k, v, slopes, sinks, out, lse, kept, *tables)
            return out, lse

        @staticmethod
        @once
        def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
            kept = ctx.saved_tensors  # once: checkpointing unpacks them
            saved, tables = kept[:8], kept[8:]
            asked = ctx.needs_input_grad[6:]
            wanted = [name for name, own in zip(ctx.step.tensors, asked, strict=True) if own]
            found = ctx.step.of_graph(tables).backward(*saved, dout, dlse, wanted)
            rest = iter(found[5:])
            return None, *found[:5], *(next(rest) if own else None for own in asked)

    return SharedAttention
