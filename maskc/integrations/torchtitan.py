"""Inner attention for models of torchtitan, with any mask.

Written from the interface of torchtitan 0.3.0 (`torchtitan.models.common.attention`). It was not
run inside of torchtitan.
"""

# ruff: noqa: N803 - torchtitan's sharding finds arguments by their names

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata

from maskc.api import attention
from maskc.core.errors import NotServed
from maskc.dsl.mask import Mask


class InnerAttention(VarlenAttention):
    """Attention of a layer of torchtitan; give its Config to a layer as `inner_attention`.

    torchtitan hands over the documents of packed rows, because this is a VarlenAttention. A pair
    must satisfy the documents, the configuration's window and the mask.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        """The configuration of a layer."""

        mask: Mask | None = None
        """A mask of one's own, without data. Its positions count in the packed row."""

    def __init__(self, config: Any) -> None:
        """Make the module; `VarlenAttention` would choose a kernel of flash-attn here."""
        super(VarlenAttention, self).__init__()
        self.window_size, self.mask = tuple(config.window_size), config.mask

    def forward(
        self, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, attention_masks: Any = None,
        scale: float | None = None, enable_gqa: bool = False, out_transform: Any = None,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Attention of one layer.

        Args:
            q_BLNH, k_BLNH, v_BLNH: [B, tokens, heads, D].
            attention_masks: torchtitan's VarlenMetadata, with cumulative lengths of all rows one
                after another; None: each row is one document.
            scale: factor of scores; D^-1/2 when None.
            enable_gqa: not read; query heads share key heads where these are fewer.
            out_transform: a function of (out, lse [B, tokens, heads]) that makes the result.

        Returns:
            [B, tokens, heads, Dv], or what out_transform returns.

        Raises:
            NotServed: an argument would change the result and is not computed (MC665).
        """
        unknown = sorted(name for name, x in others.items() if x is not None and x is not False)
        if unknown:
            raise NotServed("torchtitan", f"the arguments {unknown} of a layer")
        options: dict[str, Any] = {
            "scale": scale, "window_size": self.window_size,
            "return_lse": out_transform is not None,
        }  # fmt: skip
        if attention_masks is None:
            results = attention(q_BLNH, k_BLNH, v_BLNH, self.mask, layout="bshd", **options)
        else:
            lengths = _documents(attention_masks)
            q, k, v = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
            results = attention(q, k, v, self.mask, **lengths, **options)
        shape = q_BLNH.shape[:2]
        if out_transform is None:
            return results.unflatten(0, shape) if results.dim() == 3 else results
        out, lse = results
        if out.dim() == 3:
            out, lse = out.unflatten(0, shape), lse.unflatten(1, shape).movedim(0, 1)
        return out_transform(out, lse.transpose(1, 2))


def _documents(masks: Any) -> dict[str, Any]:
    """Return the keywords of packed documents.

    Raises:
        NotServed: masks of another kind, or queries that have other documents than keys (MC665).
    """
    if not isinstance(masks, VarlenMetadata):
        raise NotServed("torchtitan", f"attention_masks of type {type(masks).__name__}")
    if masks.cu_seq_k is not masks.cu_seq_q:
        raise NotServed("torchtitan", "other documents of keys than of queries")
    return {"cu_seqlens_q": masks.cu_seq_q, "max_seqlen": masks.max_q}
