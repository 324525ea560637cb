"""Doors of other libraries: torch's ParallelStyle and load balancers, models of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from maskc.core.errors import LayerUnknown, ModelArgument, ModelNotServed, NotShared, not_imported
from maskc.distributed.attending import attention
from maskc.distributed.groups import ranks_of
from maskc.dsl.combinators import causal, chunked, window
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import structure

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan

NAME = "maskc_shared"
"""The attention implementation of models that `ContextParallel` was applied to."""
_SHARED = "maskc_shared_plan"
"""The attribute of an attention module: (plan, layer, group)."""


@cache
def context_parallel() -> Any:
    """Return the class ContextParallel, defined on first use because it needs torch."""
    from torch.distributed.tensor.parallel import ParallelStyle

    class ContextParallel(ParallelStyle):
        """Attention of a module over a sequence that a mesh's ranks share, by a plan.

        Apply it with `parallelize_module(module, mesh, ContextParallel(plan))` to `mc.nn.Attention`
        with the plan's mask; calls take its options, scores and tables. The forward of another
        module that takes (q, k, v) of shape [B, H, tokens, D] is replaced by
        `maskc.distributed.attention`. A transformers model works too: its layers take the masks
        that the plan names after their types, see `model_masks`.
        Everything else in a model works token by token: give it the rank's tokens and their
        positions, `model_inputs`.
        """

        def __init__(self, plan: Plan, layer: str | None = None) -> None:
            super().__init__()
            self.plan, self.layer = plan, layer

        def _apply(self, module: Any, device_mesh: Any) -> Any:
            if hasattr(module, "set_attn_implementation"):
                return _adapted(module, self.plan, device_mesh)
            _check_module(module, self.plan.layer(self.layer).mask)

            def forward(q: Any, k: Any, v: Any, **given: Any) -> Any:
                options = {**_options_of(module), **given}
                return attention(q, k, v, self.plan, layer=self.layer, group=device_mesh, **options)

            module.forward = forward
            return module

    return ContextParallel


def _check_module(module: Any, mask: Mask) -> None:
    """Check that `attention` over shards computes what a module computes.

    Raises:
        NotShared: the module has another mask than the plan, chooses keys by itself, or its forward
            takes other arguments than q, k and v (MC707).
    """
    name, module_mask = type(module).__name__, getattr(module, "mask", None)
    if isinstance(module_mask, Mask):
        if structure(module_mask) != structure(mask) and module_mask.equals(mask) is not True:
            why = f"its mask is {module_mask}, and the plan's is {mask}"
            raise NotShared(name, why, "make the plan with module.mask", at="module")
        return
    names = list(signature(module.forward).parameters)[:3]
    chooses = any(kind.__module__ == "maskc.nn" for kind in type(module).mro())  # SplashAttention
    if chooses or names != ["q", "k", "v"]:
        why = f"its forward takes {', '.join(names)}"
        if chooses:
            why = "it chooses keys, which the plan does not"
        hint = "use mc.nn.Attention, or call mc.distributed.attention in the forward of your module"
        raise NotShared(name, why, hint, at="module")


def _options_of(module: Any) -> dict[str, Any]:
    """Return the options of `mc.nn.Attention` other than q, k and v; nothing for other modules."""
    if not isinstance(getattr(module, "mask", None), Mask):
        return {}
    names = ("scale", "softcap", "normalizer", "alpha", "nan_safe", "deterministic", "score")
    options = {name: getattr(module, name) for name in (*names, *module._tables)}
    for name in ("alibi_slopes", "sink_logits"):
        given = getattr(module, name)
        options[name] = None if given is None else given.float()
    options["dropout_p"] = module.dropout if module.training else 0.0
    return options


def load_balancer(plan: Plan) -> Any:
    """Return the plan's layout as a load balancer of torch's own context parallelism.

    Args:
        plan: a plan that gives every rank the same number of tokens, because torch cuts sequences
            evenly.

    Returns:
        An object for `load_balancer=` of the functions in torch.distributed.tensor.experimental.

    Raises:
        NotShared: ranks hold different numbers of tokens (MC707).
    """
    if len(set(plan.layout.tokens.tolist())) > 1:
        why = f"ranks hold {min(plan.layout.tokens)} to {max(plan.layout.tokens)} tokens"
        raise NotShared("torch's context parallelism", why, "pad the sequence", at="plan")
    return _balancer()(plan)


@cache
def _balancer() -> Any:
    import torch

    try:
        from torch.distributed.tensor.experimental._context_parallel import _load_balancer as known

        base: Any = known._LoadBalancer
    except (ImportError, AttributeError):  # the base class is not part of torch's promises
        base = object

    class PlannedLoadBalancer(base):
        """Rearranges tokens into the order of a plan's ranks."""

        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        def _generate_indices(self, restore: bool = False) -> Any:
            """int64 [1, n]: the order of the ranks' tokens, or the way back."""
            order = torch.from_numpy(self.plan.layout.order)
            return (torch.argsort(order) if restore else order)[None]

        def generate_permutation(self, restore: bool = False) -> Any:
            """Return `_generate_indices(restore)`, by the name that trainers ask for."""
            return self._generate_indices(restore)

    return PlannedLoadBalancer


# ------------------------------------------------------------------ transformers


def model_masks(config: Any) -> dict[str, Mask]:
    """Return the masks of a transformers decoder by layer type, as `plan` takes them.

    Args:
        config: the model's configuration, or the model.

    Returns:
        Masks by the name of the layer type.

    Raises:
        ModelNotServed: the model has a type of layer with an unknown mask, or one that mixes tokens
            without attention (MC605).
    """
    config = getattr(config, "config", config)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return {kind: _mask_of(config, kind) for kind in dict.fromkeys(_types(config))}


def _types(config: Any) -> list[str]:
    """The type of each layer."""
    types = getattr(config, "layer_types", None)
    if types:
        return list(types)
    slides = getattr(config, "sliding_window", None) is not None
    slides = slides and getattr(config, "use_sliding_window", True) is not False
    return ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers


def _mask_of(config: Any, kind: str) -> Mask:
    if kind == "full_attention":
        return causal()
    if kind == "sliding_attention" and config.sliding_window:
        return causal() & window.hf(config.sliding_window)
    if kind == "chunked_attention" and config.attention_chunk_size:
        return chunked(config.attention_chunk_size)
    why = f"its layers of type {kind!r} are not attention under a mask that is known"
    raise ModelNotServed(getattr(config, "model_type", "the model"), why)


def model_inputs(
    plan: Plan, input_ids: Any, labels: Any = None, group: Any = None
) -> dict[str, Any]:
    """Return this rank's keyword arguments for the forward pass of a causal language model.

    Args:
        plan: from `plan(model_masks(config), n, ranks)`.
        input_ids: int64 [B, n], the same on all ranks; without padding.
        labels: int64 [B, n] as in transformers: the label at i is token i, or -100 for none.
        group: a ProcessGroup or a DeviceMesh; None is the default group.

    Returns:
        input_ids and position_ids of the rank's tokens. With labels, also shift_labels and
        num_items_in_batch. The latter counts the whole sequence, so that the sum of losses over
        ranks is the loss of one process. Sum the gradients of weights over ranks, too.
    """
    import torch

    ranks_of(plan, group)
    shard = plan.shard(input_ids, 1, group)
    position = plan.position_ids(group, input_ids.device)
    keywords = {
        "input_ids": shard, "position_ids": position[None].expand(shard.shape[0], -1),
        "use_cache": False,
    }  # fmt: skip
    if labels is not None:
        following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        keywords["shift_labels"] = plan.shard(following, 1, group).contiguous()
        keywords["labels"] = keywords["shift_labels"]
        keywords["num_items_in_batch"] = (following != -100).sum()
    return keywords


def _adapted(model: Any, plan: Plan, group: Any) -> Any:
    """Adapt a transformers model, so that its attention runs over all ranks.

    Raises:
        ModelNotServed: the model computes its attention by itself, or has layers of a type that
            the plan has no mask for.
    """
    from maskc.integrations.transformers.carried import NEVER_ASKS, can_be_set
    from maskc.integrations.transformers.model_checks import attention_modules

    if not can_be_set(type(model)):
        raise ModelNotServed(type(model).__name__, NEVER_ASKS)
    _register()
    config = model.config.get_text_config()
    types = _types(config)
    model_masks(config)  # refuses layers that mix tokens otherwise
    for number, modules in attention_modules(model).items():
        layer = types[number]
        if len(plan.layers) == 1 and layer not in plan.layers:
            raise LayerUnknown(layer, ", ".join(plan.layers), at="plan")
        plan.layer(layer)
        for module in modules:
            module.__dict__[_SHARED] = plan, layer, group
    model.set_attn_implementation(NAME)
    return model


def _register() -> None:
    """Make the implementation known to transformers.

    Raises:
        ExtraMissing: transformers is not installed (MC507).
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise not_imported(error, "maskc.distributed", "transformers", "transformers") from error
    if NAME not in AttentionMaskInterface._global_mapping:
        AttentionMaskInterface.register(NAME, _no_mask)
        AttentionInterface.register(NAME, _run)


def _no_mask(*_: Any, attention_mask: Any = None, **__: Any) -> None:
    """Return no mask, because the plan has the masks; raise an error for padding.

    Raises:
        NotShared: some tokens are padding (MC707).
    """
    if attention_mask is not None and not bool(attention_mask.bool().all()):
        hint = "pack sequences instead of padding them, with a plan for documents"
        raise NotShared("a padded batch", "the plan has no padding", hint, at="attention_mask")


def _run(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, **others: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Run attention over the ranks, with the signature of AttentionInterface.

    Raises:
        ModelArgument: an argument would change the result and is not computed (MC606).
    """
    from maskc.integrations.transformers.attention import HARMLESS

    shared = module.__dict__.get(_SHARED)
    name = type(module).__name__
    if shared is None:
        raise ModelNotServed(name, "ContextParallel was applied to another model")
    known = HARMLESS | {"is_causal", "position_ids", "shift_labels"}
    asked = [x for x, given in others.items() if given is not None and given is not False]
    wrong = [x for x in asked if x not in known]
    if dropout or wrong:
        what = wrong[0] if wrong else f"dropout={dropout}"
        raise ModelArgument(name, what, "run it without, or on one rank")
    plan, layer, group = shared
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    sinks = None if s_aux is None else s_aux.reshape(-1).float()
    out = attention(
        query, key, value, plan, layer=layer, group=group, scale=scaling, softcap=softcap,
        sink_logits=sinks,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def sum_gradients(model: Any, group: Any = None) -> Mapping[str, Any]:
    """Sum the gradients of a model's weights over ranks, in place, and return them by name.

    DDP and FSDP do this themselves, but as a mean: multiply the loss by the number of ranks.

    Args:
        model: a torch module.
        group: a ProcessGroup or a DeviceMesh; None is the default group.

    Returns:
        The summed gradients by the name of the weight, for weights that have one.
    """
    import torch.distributed as dist

    given = group.get_group() if hasattr(group, "get_group") else group
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad, group=given)
            gradients[name] = weight.grad
    return gradients
