"""Attention over a sequence that ranks share: local shards in, local shards out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from maskc.core.dropout import SQUARE
from maskc.core.errors import DataUnknown, MixedLibraries, NotShared
from maskc.core.tensors import contiguous
from maskc.distributed.groups import agree, ranks_of
from maskc.distributed.passes import Step
from maskc.dsl.score_tracer import Score, as_score

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan


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
    mesh = _mesh_of(q, k, v)
    if mesh is not None:
        q, k, v = (x.to_local() for x in (q, k, v))
        group = mesh if group is None else group
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
    found = run(q, k, v, alibi_slopes, sink_logits, plan, layer, group, options, deterministic,
                dropout, formula, tables, return_lse)  # fmt: skip
    out, lse = found if mesh is None else (_sharded(x, mesh, plan.n) for x in found)
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
    known: dict[object, Any] = plan.once(("kernels",), dict)
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


def _mesh_of(q: Any, k: Any, v: Any) -> Any:
    """The mesh of DTensors that are sharded along tokens; None where there are none.

    Raises:
        NotShared: a DTensor is placed otherwise.
    """
    if not any(hasattr(x, "device_mesh") for x in (q, k, v)):
        return None
    from torch.distributed.tensor import DTensor, Shard

    mesh = next(x.device_mesh for x in (q, k, v) if isinstance(x, DTensor))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor) or x.device_mesh != mesh or x.placements != (Shard(2),):
            where = getattr(x, "placements", "no DTensor")
            raise NotShared(name, f"it is placed {where}", "place q, k and v as Shard(2)", at=name)
    return mesh


def _sharded(x: Any, mesh: Any, n: int) -> Any:
    """A DTensor of n tokens along dimension 2, from this rank's shard."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    shape = *x.shape[:2], n, *x.shape[3:]
    return DTensor.from_local(
        x.contiguous(), mesh, [Shard(2)], run_check=False, shape=torch.Size(shape),
        stride=contiguous(shape),
    )  # fmt: skip


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
        def backward(ctx: Any, kept: Any, dout: Any, dlse: Any) -> Any:
            saved, tables = kept[:8], kept[8:]
            asked = ctx.needs_input_grad[6:]
            wanted = [name for name, own in zip(ctx.step.tensors, asked, strict=True) if own]
            found = ctx.step.of_graph(tables).backward(*saved, dout, dlse, wanted)
            rest = iter(found[5:])
            return None, *found[:5], *(next(rest) if own else None for own in asked)

    return SharedAttention
