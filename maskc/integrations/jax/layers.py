"""The door for attention layers of Flax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import maskc as mc
from maskc.dsl.mask import Mask
from maskc.integrations.jax.jax_attention import attention, check_mask
from maskc.integrations.jax.jax_keywords import bad_option

_OF_THE_LAYER = {
    "layout": "left out: Flax has [.., N, H, D]",
    "return_lse": "left out: a layer takes out alone",
    "dropout_p": "left out: dropout_rate= of the layer decides",
    "dropout_seed": "left out: the layer has its own key",
}
"""Options that are no options of a layer's attention."""


_PADDING = (
    "call the layer without mask= and with decode=False; padding is data: attention_fn(mask & "
    "mc.flags('keep'), keep=array)"
)
_BIAS = "attention_fn(mask, score=mc.scores.bias(), bias=array)"


def attention_fn(mask: Mask, **options: Any) -> Callable[..., Any]:
    """Return a function for `attention_fn=` of MultiHeadAttention in flax.linen and flax.nnx.

        nn.MultiHeadAttention(num_heads=8, attention_fn=attention_fn(mc.causal()))

    The dropout rate of the layer applies to attention weights, drawn for each pair.
    broadcast_dropout, which draws once for all sequences and heads, has no effect. The layer's
    `precision` has none either: kernels accumulate in fp32.

    Args:
        mask: any mask; the layer is called without one.
        **options: options of `maskc.integrations.jax.attention`: softcap, alibi_slopes, data, ...

    Raises:
        NotAMask: `mask` is something else (MC106).
        BadOption: an option that the layer decides, such as layout; raised by the function, if the
            layer passes a mask or a bias, or requests weights (MC407).
    """
    check_mask(mask)
    for name in sorted(_OF_THE_LAYER.keys() & options.keys()):
        raise bad_option(name, _OF_THE_LAYER[name], repr(options[name]))

    def run(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None,
        broadcast_dropout: bool = True, dropout_rng: Any = None, dropout_rate: float = 0.0,
        deterministic: bool = False, dtype: Any = None, precision: Any = None, module: Any = None,
        is_causal: bool = False,
    ) -> Any:  # fmt: skip
        for name, x, expected, hint in (
            ("mask", mask, "left out: attention_fn was given the mask", _PADDING),
            ("bias", bias, "left out: a layer adds none to scores", _BIAS),
            ("sow_weights", module, "False: weights are never stored", "leave sow_weights out"),
        ):
            if x is not None:
                raise bad_option(name, expected, f"type {type(x).__name__}", hint)
        query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
        call_mask = kept & mc.causal(align="start") if is_causal else kept
        drops = {}
        if dropout_rate and not deterministic:
            drops = {"dropout_p": dropout_rate, "dropout_seed": dropout_rng}
        front = query.shape[:-3]
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        out = attention(q, k, v, call_mask, layout="bnhd", **{**options, **drops})
        return out.reshape(*front, *out.shape[1:])

    kept = mask
    return run
