"""Attention over a sequence that ranks share: local shards in, local shards out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any

from maskc.core.attention_call import DEFAULTS, CallOptions
from maskc.core.dropout import SQUARE
from maskc.core.errors import (
    BadShape,
    DataMissing,
    DataRange,
    DataType,
    DataUnknown,
    MaskcError,
    MixedLibraries,
    NoGradient,
    NotShared,
)
from maskc.core.selection import SHAPES
from maskc.core.tensors import contiguous
from maskc.distributed.groups import Accord, GroupPass, number_of, ranks_of, wrong_length
from maskc.distributed.passes import PassStep
from maskc.dsl.score_tracer import Score, as_score

if TYPE_CHECKING:
    from maskc.distributed.groups import Ranks
    from maskc.distributed.planning import LayerPlan, Plan


_NUMBERS = ("scale", "softcap", "alpha", "normalizer", "nan_safe")
"""Options that must be equal on all ranks."""
_MAX_READ = 1 << 16
"""Elements up to which the host compares an array between ranks."""


def attention(
    q: Any, k: Any, v: Any, plan: Plan, *, layer: str | None = None, group: Any = None,
    scale: float | None = None, return_lse: bool = False, softcap: float | None = None,
    alibi_slopes: Any = None, sink_logits: Any = None, normalizer: str = "softmax",
    alpha: float | None = None, nan_safe: bool = False, deterministic: bool = False,
    dropout_p: float = 0.0, dropout_seed: Any = None, score: Score | None = None, **tables: Any,
) -> Any:  # fmt: skip
    """Compute attention of this rank's queries over all keys that they see. All ranks must call it.

    A rank receives only the keys that its queries see. Tiles that need only the rank's own keys run
    while other keys arrive. The result is differentiable in q, k, v, alibi_slopes, sink_logits and
    the score's tables. Gradients of k and v are sent back to the ranks that hold them. Gradients of
    slopes, sinks and tables are this rank's share; sum them over ranks like gradients of weights.

    Args:
        q: this rank's queries [B, Hq, tokens, D], a torch tensor; k: [B, Hkv, tokens, D];
            v: [B, Hkv, tokens, Dv]. They may be DTensors sharded along tokens.
        plan: from `mc.distributed.plan`, the same on every rank; masks with data need
            `plan.given(...)`.
        layer: name of the mask, if the plan has several.
        group: a ProcessGroup or a DeviceMesh of one dimension; None is the default group.
        scale, return_lse, softcap, alibi_slopes, sink_logits: as in `mc.attention`.
        normalizer, alpha, nan_safe: as in `mc.attention`.
        deterministic: as in `mc.attention`; gradients from several ranks are then added in the
            order of the ranks.
        dropout_p: as in `mc.attention`.
        dropout_seed: required with dropout_p, and the same on every rank. The dropped weights are
            then those that one GPU would drop.
        score: as in `mc.attention`; its q and k are positions in the whole sequence.
        tables: tables and parameters of the score formula, complete on every rank. Tensors that
            choose keys (index_q, index_k and index_w of selections, lists of `mc.key_lists`) have
            this rank's tokens only. Lists are integers [tokens, K], [H, tokens, K] or [B, H or 1,
            tokens, K]; they number keys in the whole sequence, -1 for none.

    Returns:
        out [B, Hq, tokens, Dv], or (out, lse) with lse fp32 [B, Hq, tokens].

    Raises:
        RanksDisagree: ranks have different plans, shapes or options (MC703); raised on all ranks.
            On GPUs, repeated calls of one kind are compared less often, at least every 1024th time.
        ShardLength: a tensor has another number of tokens than the rank (MC704).
        RankLost: a message from another rank did not arrive (MC705).
        RankRefused: the call raised an error on another rank (MC709); raised on all ranks. On GPUs
            this holds for the first call of a kind only, because later calls never wait for the
            device.
        WrongGroup: the group does not fit the plan (MC706).
        PlanData: the mask reads data that were not passed to the plan (MC702).
        NotShared: ALiBi, if a rank's queries and keys end at different tokens; dropout, if chunks
            of tokens are not multiples of 16; or a score formula that hides pairs (MC707).
        DropoutSeed: dropout_p is set without a seed (MC431).
        MaskcError: as `mc.attention`.
    """
    import torch

    # Compilers do not trace into the call: they break the graph here.
    run = torch.compiler.disable(_shared) if torch.compiler.is_compiling() else _shared
    options = CallOptions(
        scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha, nan_safe,
        deterministic, dropout_p, dropout_seed,
    )  # fmt: skip
    given = _Given(q, k, v, options, tables, score)
    out, lse = run(given, plan, layer, group)
    return (out, lse) if return_lse else out


@dataclass(eq=False)
class _Given:
    """The keywords of a call."""

    q: Any
    k: Any
    v: Any
    options: CallOptions
    tables: dict[str, Any]
    """Inputs of the score formula, and inputs that selections rank by."""
    score: Score | None
    dropout: dict[str, Any] = field(default_factory=dict)
    """Rate and seed as kernels take them; empty without."""

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        """q, k and v."""
        return self.q, self.k, self.v


def _shared(given: _Given, plan: Plan, layer: str | None, group: Any) -> tuple[Any, Any]:
    """out, lse; messages start and end inside it, and all ranks end it together."""
    accord = None
    try:
        mesh = _mesh_of(given)
        if mesh is not None:
            given.q, given.k, given.v = (x.to_local() for x in given.qkv)
            group = mesh if group is None else group
        layer_plan = plan.layer(layer)
        checked = given.options.dropout_p, given.tables, layer_plan.choosing
        if any(checked) or given.score is not None:
            _check(given, layer_plan)
        plan = plan.now()
        ranks = ranks_of(plan, group)
        accord = _accord(given, plan, ranks, layer)
        step = _step(given, plan, accord, layer)
    except Exception as error:
        _tell(given.q, plan, group, accord, error)
        raise
    accord.begin()
    step.gather_index_keys()
    tensors = (step.tables[name] for name in step.tensors)
    heads = given.options.alibi_slopes, given.options.sink_logits
    results = _function().apply(step, given.q, given.k, given.v, *heads, *tensors)
    out, lse = results if mesh is None else (_sharded(x, mesh, plan.n) for x in results)
    return out, lse


def _check(given: _Given, layer: LayerPlan) -> None:
    """Check the keywords of a call, and add the arrays that the formula captured.

    Raises:
        DropoutRate, DropoutSeed, NotAScore, NotShared, and as `_check_names`.
    """
    from maskc.integrations.torch import captured_by
    from maskc.runtime.dropout import asked

    if given.options.dropout_p:
        options = given.options
        given.dropout = asked(None, options.dropout_p, options.dropout_seed)
        given.options = options.undropped()
    if given.score is not None:
        given.score = _checked(as_score(given.score))
        given.tables = {**captured_by(given.score), **given.tables}
    _check_names(given.tables, layer, given.score)


def _accord(given: _Given, plan: Plan, ranks: Ranks, layer: str | None) -> Accord:
    """Return the numbers that ranks compare for this call.

    Raises:
        BadShape: q, k or v has not four dimensions (MC401).
    """
    for name, x in zip("qkv", given.qkv, strict=True):
        if x.dim() != 4:
            raise BadShape(name, tuple(x.shape), "four dimensions", at=name)
    formula = None if given.score is None else given.score.inputs.text
    options = given.options
    named = tuple(name for name in _NUMBERS if not _is_default(options, name))
    heads = options.alibi_slopes is None, options.sink_logits is None
    own_values = *named, bool(given.dropout), *heads
    alike = layer, formula, own_values, tuple(given.tables), options.return_lse
    return Accord.of(plan, ranks, given.qkv, alike, _values(given, plan.layer(layer)))


def _is_default(options: CallOptions, name: str) -> bool:
    value = getattr(options, name)
    return not hasattr(value, "shape") and value == getattr(DEFAULTS, name)


def _values(given: _Given, layer: LayerPlan) -> tuple[float, ...]:
    """Return the values of options and tables that the host can read; 0 for all others."""
    options = given.options
    numbers = options.scale, options.softcap, options.alpha, *given.dropout.values()
    alike = (x for name, x in given.tables.items() if name not in layer.choosing)
    return tuple(map(_on_host, (*numbers, options.alibi_slopes, options.sink_logits, *alike)))


def _on_host(value: Any) -> float:
    if isinstance(value, (int, float)):
        return value
    if getattr(getattr(value, "device", None), "type", None) != "cpu":
        return 0
    if (count := math.prod(value.shape)) == 1:
        return value.item()  # type: ignore[no-any-return]
    if count > _MAX_READ:
        return 0
    return number_of(repr(value.detach().double().numpy().tobytes()))


def _tell(q: Any, plan: Plan, group: Any, accord: Accord | None, error: Exception) -> None:
    """Tell waiting ranks that the call of this rank raises an error."""
    import torch

    with suppress(MaskcError, RuntimeError):
        if accord is None:
            place = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
            accord = Accord(plan, ranks_of(plan, group), place)
        accord.begin(failure=error)


def _step(given: _Given, plan: Plan, accord: Accord, layer: str | None) -> PassStep:
    """Run this rank's part of the call. All checks happen here, before any message."""
    dropout, score, tables, options = given.dropout, given.score, given.tables, given.options
    # distances count from a call's last key, and only parts of a softmax can be put together
    at_home = options.alibi_slopes is not None or options.normalizer != "softmax"
    tabled = plan.layer(layer).by_tables
    one_stretch = bool(dropout) or (score is not None and not tabled)
    work = plan.work(accord.ranks.rank, layer, one_stretch, at_home)
    # Every rank checks all ranks: a rank that continued alone would wait for the others forever.
    if options.alibi_slopes is not None and not plan.ends_alike(layer, one_stretch, at_home):
        why = "distances count from where a rank's keys end, which is not where its rows do"
        raise NotShared("alibi_slopes", why, "use a causal mask in a contiguous layout",
                        at="alibi_slopes")  # fmt: skip
    sides = plan.layout, plan.key_layout
    if dropout and gcd(plan.block, *(side.multiple for side in sides)) % SQUARE:
        why = f"pairs are drawn in squares of {SQUARE} tokens, which its chunks cut"
        hint = f"make the plan with block={SQUARE} or a multiple"
        if any(side.multiple % SQUARE for side in sides):
            hint += f", and its layout of chunks that begin at multiples of {SQUARE}"
        raise NotShared("dropout_p", why, hint, at="dropout_p")
    if score is not None and one_stretch and tabled:
        why = "with dropout its kernels are made for few stretches of tokens, and a rank has many"
        raise NotShared("score", why, "use a layout with at most 8 stretches for each rank",
                        at="score")  # fmt: skip
    known: dict[object, Any] = plan.once(("kernels",), dict)
    tensors = tuple(name for name, x in tables.items() if hasattr(x, "requires_grad"))
    step_options = options._replace(alibi_slopes=None, sink_logits=None)
    step = PassStep(plan, work, accord, step_options, dropout, known, score, tables, tensors,
                plan.layer(layer).choosing)  # fmt: skip
    _check_shards(step)
    if accord.ranks.size > 1:
        step.build(given.q, given.v)
    return step


def _check_names(tables: Mapping[str, Any], layer: LayerPlan, score: Score | None) -> None:
    """Check that the call passes the tables of the formula and the ranking tensors, and nothing
    else.

    Raises:
        DataUnknown, DataMissing: a keyword is unknown or missing.
        NoGradient: what selections rank by requires grad.
    """
    inputs = None if score is None else score.inputs
    read = () if inputs is None else inputs.names
    for name in tables:
        if name not in read and name not in layer.choosing:
            listed = ", ".join((*read, *layer.choosing)) or "none"
            raise DataUnknown(name, listed, "data of the mask go to plan.given()", at=name)
    for name in layer.choosing:
        if tables.get(name) is None:
            shape = SHAPES.get(name, "integers [n_q, K], the keys of each query, -1 for none")
            raise DataMissing(name, f"this rank's tokens of {shape}", at=name)
        if getattr(tables[name], "requires_grad", False):
            raise NoGradient(name, at=name)
    known = () if inputs is None else (*inputs.defaults, *inputs.captured, *tables)
    for name in read:
        if inputs is not None and name not in known:
            raise DataMissing(name, f"the score formula reads {inputs.text}", at=name)


def _check_shards(step: PassStep) -> None:
    """See that tensors that choose keys have this rank's tokens, and lists no key beyond the last.

    Raises:
        DataType: lists are no tensor of integers (MC304).
        DataRange: a list on a CPU names a key beyond the last (MC305).
        ShardLength: other tokens (MC704).
    """
    rank, plan = step.accord.ranks.rank, step.plan
    for name, dim in step.choosing.items():
        layout = plan.key_layout if name == "index_k" else plan.layout
        given = step.tables[name]
        for x in given if isinstance(given, tuple) else (given,):
            tokens = x.shape[dim] if x.ndim >= 2 else x.numel()
            if tokens != layout.tokens[rank] and name != "scores":
                raise wrong_length(layout, name, tokens, rank)
            if name in SHAPES:
                continue
            if x.is_floating_point() or x.is_complex():
                raise DataType(name, x.dtype, "integers", at=name)
            if x.device.type == "cpu" and x.numel() and int(x.max()) >= plan.n_kv:
                hint = f"keys count from 0 to {plan.n_kv - 1}, and -1 stands for none"
                fault = f"a list names key {int(x.max())} of {plan.n_kv}"
                raise DataRange(name, fault, hint, at=name)


def _checked(score: Score) -> Score:
    """A formula that shares its pairs with the mask.

    Raises:
        NotShared: it hides pairs, which the plan does not know.
    """
    if score.inputs.placed is not None:
        hint = "give its values by a table that all ranks hold: mc.table, or a captured tensor"
        raise NotShared("score", "a part of it is evaluated for lengths", hint, at="score")
    if score.mask is not None:
        hint = "give the plan the mask & the pairs that it leaves, and a formula without them"
        raise NotShared("score", "it hides pairs that the mask has", hint, at="score")
    return score


def _mesh_of(given: _Given) -> Any:
    """The mesh of DTensors that are sharded along tokens; None if there are none.

    Raises:
        MixedLibraries: q, k or v is not a torch tensor.
        NotShared: a DTensor is placed otherwise.
    """
    import torch

    for name, x in zip("qkv", given.qkv, strict=True):
        if not isinstance(x, torch.Tensor):
            raise MixedLibraries("mc.distributed.attention", "torch.Tensor", name,
                                 type(x).__name__, at=name)  # fmt: skip
    if not any(hasattr(x, "device_mesh") for x in given.qkv):
        return None
    from torch.distributed.tensor import DTensor, Shard

    mesh = next(x.device_mesh for x in given.qkv if isinstance(x, DTensor))
    for name, x in zip("qkv", given.qkv, strict=True):
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
            ctx: Any, step: PassStep, q: Any, k: Any, v: Any, slopes: Any, sinks: Any, *tables: Any
        ) -> Any:
            graph_step = step.of_graph(tables)
            out, lse, buffer = step.accord.run(lambda: graph_step.forward(q, k, v, slopes, sinks))
            ctx.set_materialize_grads(False)
            ctx.step = step
            if step.options.normalizer != "softmax":
                ctx.mark_non_differentiable(lse)
            kept = step.kept(buffer) if any(ctx.needs_input_grad) else None
            ctx.save_for_backward(q, k, v, slopes, sinks, out, lse, kept, *tables)
            return out, lse

        @staticmethod
        @once
        def backward(ctx: Any, kept: Any, dout: Any, dlse: Any) -> Any:
            saved, tables = kept[:8], kept[8:]
            asked = ctx.needs_input_grad[6:]
            wanted = [
                name for name, is_asked in zip(ctx.step.tensors, asked, strict=True) if is_asked
            ]
            graph_step, accord = ctx.step.of_graph(tables), ctx.step.accord
            accord.begin(GroupPass.backward)
            gradients = accord.run(lambda: graph_step.backward(*saved, dout, dlse, wanted))
            rest = iter(gradients[5:])
            return None, *gradients[:5], *(next(rest) if is_asked else None for is_asked in asked)

    return SharedAttention
