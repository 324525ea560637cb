"""Attention over a sequence that ranks share: local shards in, local shards out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from maskc.core.errors import MixedLibraries, NotShared
from maskc.distributed.exchange import Rows, bring, give_back
from maskc.distributed.groups import Ranks, agree, ranks_of

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan
    from maskc.distributed.work import Call, Work


def attention(
    q: Any, k: Any, v: Any, plan: Plan, *, layer: str | None = None, group: Any = None,
    scale: float | None = None, return_lse: bool = False, softcap: float | None = None,
    alibi_slopes: Any = None, sink_logits: Any = None, normalizer: str = "softmax",
    alpha: float | None = None, nan_safe: bool = False, deterministic: bool = False,
) -> Any:  # fmt: skip
    """Attention of this rank's queries over all keys that they see; all ranks must call it.

    Keys that no query of a rank sees do not travel to it. Tiles that need only the rank's own keys
    run while the others come. The result is differentiable in q, k, v, alibi_slopes and
    sink_logits: gradients of keys return to their ranks; those of slopes and sinks are this rank's
    share, to be summed over ranks like those of every weight.

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

    Returns:
        out [B, Hq, tokens, Dv], or (out, lse) with lse fp32 [B, Hq, tokens].

    Raises:
        RanksDisagree: ranks have different plans or shapes (MC703), on all of them.
        ShardLength: a tensor has another number of tokens than the rank (MC704).
        RankLost: a message did not come (MC705).
        WrongGroup: the group does not fit the plan (MC706).
        PlanData: the mask reads data that the plan was not given (MC702).
        NotShared: ALiBi where a rank's rows do not end where its keys do (MC707).
        MaskcError: as `mc.attention`.
    """
    import torch

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
        )  # fmt: skip
    options = {
        name: value for name, value in (
            ("scale", scale), ("softcap", softcap), ("alpha", alpha),
            ("normalizer", None if normalizer == "softmax" else normalizer),
            ("nan_safe", nan_safe or None),
        ) if value is not None
    }  # fmt: skip
    run = _compiled_out()
    out, lse = run(q, k, v, alibi_slopes, sink_logits, plan, layer, group, options, deterministic)
    return (out, lse) if return_lse else out


@cache
def _compiled_out() -> Callable[..., tuple[Any, Any]]:
    """The call as compilers leave it alone: messages start and end inside it."""
    import torch

    def run(
        q: Any, k: Any, v: Any, slopes: Any, sinks: Any, plan: Plan, layer: str | None,
        group: Any, options: dict[str, Any], deterministic: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        ranks = ranks_of(plan, group)
        agree(plan, ranks, q, k, v, layer)
        work = plan.work(ranks.rank, layer)
        if slopes is not None and not all(call.positions for call in work.calls):
            why = "distances count from where a rank's keys end, which is not where its rows do"
            raise NotShared("alibi_slopes", why, "use a causal mask in a contiguous layout",
                            at="alibi_slopes")  # fmt: skip
        step = Step(work, ranks, options, deterministic, plan.__dict__.setdefault("_kernels", {}))
        found: tuple[Any, Any] = _function().apply(step, q, k, v, slopes, sinks)
        return found

    disabled: Callable[..., tuple[Any, Any]] = torch.compiler.disable(run)
    return disabled


def _with_dtensors(q: Any, k: Any, v: Any, plan: Plan, **options: Any) -> Any:
    """The call with DTensors: shards along tokens in, shards along tokens out.

    Raises:
        NotShared: a DTensor is placed otherwise.
    """
    from torch.distributed.tensor import DTensor, Shard

    mesh = next(x.device_mesh for x in (q, k, v) if isinstance(x, DTensor))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor) or x.device_mesh != mesh or x.placements != (Shard(2),):
            where = getattr(x, "placements", "no DTensor")
            raise NotShared(name, f"it is placed {where}", "place q, k and v as Shard(2)", at=name)
    if options["group"] is None:
        options["group"] = mesh
    found = attention(*(x.to_local() for x in (q, k, v)), plan, **options)

    def whole(x: Any) -> Any:
        shape = list(x.shape)
        shape[2] = plan.n
        stride = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            stride[axis] = stride[axis + 1] * shape[axis + 1]
        return DTensor.from_local(
            x.contiguous(), mesh, [Shard(2)], run_check=False, shape=tuple(shape),
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
    kernels: dict[object, Any]
    """Compiled masks by call and problem."""

    def kernel(self, call: Call, q: Any, v: Any) -> Any:
        """The compiled mask of a call."""
        key = id(call), q.shape[3], v.shape[3], q.shape[1], q.dtype, q.device
        found = self.kernels.get(key)
        if found is None:
            from maskc.api import _compiled

            place = q.device.type, q.device.index or 0
            rest = q.shape[3], v.shape[3], q.shape[1], q.dtype, place
            found = self.kernels[key] = _compiled(call.local.mask, *rest)
        return found

    @property
    def travels(self) -> bool:
        """Whether this rank sends or receives anything."""
        return bool(self.work.sends or self.work.receives)

    # -------------------------------------------------------------- forward

    def forward(self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> tuple[Any, ...]:
        """(out, lse, buffer); the buffer is None where all keys are the rank's own."""
        work = self.work
        rows = Rows(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        buffer = k.new_empty((work.size, rows.width)) if work.size else None
        messages = bring(work, self.ranks, rows, k, v, buffer) if self.travels else None
        out, lse = _empty(q, v)
        heads = {"alibi_slopes": slopes, "sink_logits": sinks}
        for call in work.calls:
            if call.own:
                self._run(call, q, k, v, heads, out, lse)
        if buffer is not None:
            self._fill(rows, k, v, buffer)
        if messages is not None:
            messages.wait()
        if buffer is not None:
            keys, values = rows.keys(buffer), rows.values(buffer)
            for call in work.calls:
                if not call.own:
                    self._run(call, q, keys, values, heads, out, lse)
        return out, lse, buffer

    def _fill(self, rows: Rows, k: Any, v: Any, buffer: Any) -> None:
        """What of the buffer is the rank's own, and zeros where nobody looks."""
        for each in self.work.copies:
            part = buffer[each.place : each.place + each.count]
            own = slice(each.source, each.source + each.count)
            rows.keys(part).copy_(k[:, :, own])
            rows.values(part).copy_(v[:, :, own])
        for start, stop in self.work.gaps:
            buffer[start:stop].zero_()

    def _run(
        self, call: Call, q: Any, k: Any, v: Any, heads: dict[str, Any], out: Any, lse: Any
    ) -> None:
        """One call, whose rows of the results it writes."""
        own, keys = _part(call)
        attn = self.kernel(call, q, v)
        part = attn.launch(
            q[:, :, own], k[:, :, keys], v[:, :, keys], return_lse=True, data=call.local.data,
            **heads, **self.options,
        )  # fmt: skip
        out[:, :, own] = part[0]
        lse[:, :, own] = part[1]

    # -------------------------------------------------------------- backward

    def backward(
        self, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, out: Any, lse: Any, buffer: Any,
        dout: Any, dlse: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(dq, dk, dv, dslopes, dsinks): rows that read the buffer first, so that what goes back
        travels under the others."""
        import torch

        work = self.work
        rows = Rows(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        heads: list[Any] = [None if x is None else torch.zeros_like(x) for x in (slopes, sinks)]
        saved = q, out, lse, dout, dlse, slopes, sinks
        messages, back = None, []
        if buffer is not None:
            returned = torch.zeros_like(buffer)
            to_keys, to_values = rows.keys(returned), rows.values(returned)
            keys, values = rows.keys(buffer), rows.values(buffer)
            for call in work.calls:
                if not call.own:
                    self._run_back(call, keys, values, saved, dq, to_keys, to_values, heads)
        if self.travels:
            source = returned if buffer is not None else k.new_empty((0, rows.width))
            messages, back = give_back(work, self.ranks, rows, source)
        for call in work.calls:
            if call.own:
                self._run_back(call, k, v, saved, dq, dk, dv, heads)
        for each in work.copies:
            part, own = slice(each.place, each.place + each.count), slice(
                each.source, each.source + each.count)  # fmt: skip
            dk[:, :, own] += to_keys[:, :, part]
            dv[:, :, own] += to_values[:, :, part]
        if messages is not None:
            messages.wait()
        for sent, came in zip(work.sends, back, strict=True):  # in the order of the ranks
            own = slice(sent.place, sent.place + sent.count)
            dk[:, :, own] += rows.keys(came)
            dv[:, :, own] += rows.values(came)
        return dq, dk, dv, *heads

    def _run_back(
        self, call: Call, k: Any, v: Any, saved: tuple[Any, ...], dq: Any, dk: Any, dv: Any,
        heads: list[Any],
    ) -> None:  # fmt: skip
        """The gradients of one call, added to those of its rows and keys."""
        import torch

        from maskc.integrations.torch.gradients import gradients, rows

        q, out, lse, dout, dlse, slopes, sinks = saved
        own, keys = _part(call)
        attn = self.kernel(call, q, v)
        exact = self.deterministic or torch.are_deterministic_algorithms_enabled()
        of_q, of_k, of_lse = q[:, :, own], k[:, :, keys], lse[:, :, own].contiguous()

        def run(v: Any, out: Any, dout: Any) -> Any:
            return attn.backward(
                of_q, of_k, v, out, of_lse, rows(dout), alibi_slopes=slopes, sink_logits=sinks,
                deterministic=exact, **self.options, **call.local.data,
            )  # fmt: skip

        parts = (None if x is None else x[:, :, own] for x in (dout, dlse))
        found = gradients(run, v[:, :, keys], out[:, :, own], of_lse, slopes, sinks, *parts)
        if found[0] is None:
            return
        dq[:, :, own] = found[0]
        dk[:, :, keys] += found[1]
        dv[:, :, keys] += found[2]
        for number, more in enumerate(found[3:]):
            if more is not None:
                heads[number] += more


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

    class SharedAttention(torch.autograd.Function):
        """out, lse of a rank; the backward pass sends the gradients of keys to their ranks."""

        @staticmethod
        def forward(ctx: Any, step: Step, q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> Any:
            out, lse, buffer = step.forward(q, k, v, slopes, sinks)
            ctx.set_materialize_grads(False)
            ctx.step = step
            if step.options.get("normalizer"):
                ctx.mark_non_differentiable(lse)
            ctx.save_for_backward(q, k, v, slopes, sinks, out, lse, buffer)
            return out, lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
            return None, *ctx.step.backward(*ctx.saved_tensors, dout, dlse)

    return SharedAttention
