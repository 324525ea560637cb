"""Position ids of packed sequences that a mask does not separate.

transformers makes a mask of packed sequences only without a cache and without a 2-D mask.
Otherwise it silently lets tokens see other sequences. Some models show their position ids where
masks are made, others where attention is called, so both places are checked.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from maskc.core.errors import PackingLost

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
