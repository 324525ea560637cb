"""Position ids of packed sequences that a mask does not separate.

transformers makes a mask of packed sequences only without a cache and without a 2-D mask.
Otherwise it silently lets tokens see other sequences. Some models show their position ids where
masks are made, others where attention is called, so both places are checked.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from maskc.core.errors import PackingLost, StateCrossesSequences
from maskc.integrations.transformers.carried import modeling

_LOST = PackingLost.message.format("a model", "some", "some") + "; " + PackingLost.hint
_PREPARES = "_preprocess_mask_arguments"
"""The function of `transformers.masking_utils` that all makers of masks call first."""


def check_packing(owner: str, position_ids: Any, n_q: int, padding: Any, starts: Any) -> None:
    """Refuse position ids that start anew between two tokens that are not padding.

    Args:
        owner: names the model in the error.
        position_ids: of the first tokens of a cache; ignored unless [B, n_q].
        n_q: queries.
        padding: bool [B, tokens], False where a token is padding; or None.
        starts: int [segments + 1], where segments begin that the call separates; or None.

    Raises:
        PackingLost: see there. In a graph of torch.compile, the graph raises RuntimeError when it
            runs.
    """
    import torch

    if position_ids.ndim != 2 or position_ids.shape[1] != n_q or n_q == 1:
        return
    restarts = position_ids[:, 1:] <= position_ids[:, :-1]
    if padding is not None:
        tokens = padding[:, -n_q:] if padding.shape[1] < n_q else padding[:, :n_q]
        if tokens.shape[1] == n_q:
            restarts = restarts & tokens[:, 1:] & tokens[:, :-1]
    if starts is not None:
        inside = torch.ones(n_q + 1, dtype=torch.bool, device=restarts.device)
        inside[starts.to(restarts.device, torch.long).clamp(0, n_q)] = False
        restarts = restarts & inside[1:-1]
    if torch.compiler.is_compiling():  # a graph cannot wait for the answer
        torch._assert_async(~restarts.any(), f"MC608  {_LOST}")
    elif bool(restarts.any()):
        sequence, token = restarts.nonzero()[0].tolist()
        raise PackingLost(owner, token + 1, sequence)


_STATES = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
"""Types of layers with a state, as `layer_types` of a configuration names them."""

_ONE_BY_ONE = "pass one sequence per row, with an attention_mask for padding"
_COLLATOR = "DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True)"
"""The collator that makes all keywords of packed sequences."""


def check_states(owner: str, config: Any, ids: Any, passed: dict[str, Any]) -> None:
    """Refuse packed sequences in a model with layers that would carry a state across them.

    Args:
        owner: names the module in the error.
        config: of the module; None where it has none.
        ids: int [B, N], the sequence of each token, equal for all tokens of a row that is not
            packed; or None.
        passed: the keywords of the call that say where sequences begin.

    Raises:
        StateCrossesSequences: the layers read a keyword that is missing, or none at all (MC615).
            In a graph of torch.compile, the graph raises RuntimeError when it runs.
    """
    import torch

    kinds = _STATES.intersection(getattr(config, "layer_types", None) or ())
    if not kinds or ids is None:
        return
    kind: Any = type(config)
    read = _separators(kind, kinds == {"conv"})
    if read and all(passed.get(name) is not None for name in read):
        return
    hint = _ONE_BY_ONE
    if read:
        hint = f"pass {' and '.join(read)}, as {_COLLATOR} does; or {_ONE_BY_ONE}"
    error = StateCrossesSequences(owner, ", ".join(sorted(kinds)), hint)
    if torch.compiler.is_compiling():  # a graph cannot wait for the answer
        torch._assert_async((ids == ids[:, :1]).all(), str(error))
    elif not torch.equal(ids, ids[:, :1].expand_as(ids)):
        raise error


@cache
def _separators(config: type, is_convolution: bool) -> tuple[str, ...]:
    """Return the keywords by which layers with a state learn where packed sequences begin.

    The delta rule of Qwen3-Next reads cumulative lengths, its convolution and Mamba 2 the index of
    each sequence. Mamba 1 and lightning attention read neither. Models outside of transformers are
    expected to read both.

    Args:
        config: the class of a configuration.
        is_convolution: whether the only layers with a state are short convolutions.

    Returns:
        The keywords; empty if its layers read none.
    """
    import inspect

    both = "seq_idx", "cu_seq_lens_q"
    if (module := modeling(config)) is None:
        return both
    source = inspect.getsource(module)
    if '"cu_seq_lens_q"' in source:
        return both
    reads_index = "mamba_chunk_scan_combined" in source or is_convolution
    return both[:1] if reads_index and "causal_conv1d_fn" in source else ()


# What torch.compiler.assume_constant_result sets, without importing torch here.
setattr(_separators, "_dynamo_marked_constant", True)  # noqa: B010


def check_where_masks_are_made(name: str) -> None:
    """Check position ids that models with an attention implementation give to makers of masks.

    Args:
        name: of the implementation; masks of all others are made as before.
    """
    from transformers import masking_utils

    prepare: Any = getattr(masking_utils, _PREPARES, None)
    if prepare is None or hasattr(prepare, "__wrapped__"):
        return

    @wraps(prepare)
    def prepared(
        config: Any, inputs_embeds: Any, attention_mask: Any, cache: Any, position_ids: Any,
        *others: Any, **named: Any,
    ) -> Any:  # fmt: skip
        result = prepare(
            config, inputs_embeds, attention_mask, cache, position_ids, *others, **named
        )
        # Without a cache and a mask, transformers has looked for packed sequences itself.
        if position_ids is None or (attention_mask is None and cache is None) or result[0]:
            return result
        if str(config._attn_implementation).startswith(name):
            _, padding, _, n_q, _, q_offset, kv_offset = result
            if n_q > 1 and _is_first(q_offset, kv_offset):
                owner = getattr(config, "model_type", "") or type(config).__name__
                check_packing(owner, position_ids, n_q, padding, None)
        return result

    setattr(masking_utils, _PREPARES, prepared)


def _is_first(q_offset: Any, kv_offset: Any) -> bool:
    """Whether the queries are the first tokens; a graph does not read the length of a cache."""
    import torch

    if isinstance(q_offset, torch.Tensor) and torch.compiler.is_compiling():
        return False
    return bool(q_offset == kv_offset)
