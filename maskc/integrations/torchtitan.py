"""Inner attention for models of torchtitan 0.3, with any mask.

Tested on the CPU with torchtitan 0.3.0: a Llama of two layers with packed documents gives the same
logits as with FlexAttention. Nobody has trained with it on a card.
"""

# ruff: noqa: N803 - torchtitan's sharding finds arguments by their names

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maskc.api import attention
from maskc.core.errors import LibraryTooOld, NotServed
from maskc.dsl.mask import Mask

try:
    from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata
except ImportError as error:
    if not (error.name or "").startswith("torchtitan."):
        raise  # torchtitan or one of its dependencies is missing
    import torchtitan

    installed = getattr(torchtitan, "__version__", "another one")
    raise LibraryTooOld("torchtitan", "0.3", installed) from error


class InnerAttention(VarlenAttention):
    """Attention of a layer of torchtitan. Give its Config to a layer as `inner_attention`.

    A pair must satisfy the documents of packed rows, the window of the Config and the mask. The
    class derives from VarlenAttention, so that torchtitan passes the documents.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        """The options of a layer: VarlenAttention's `window_size`, and a mask."""

        mask: Mask | None = None
        """Your own mask, without data. In packed rows it counts positions in the packed row."""

    def __init__(self, config: Any) -> None:
        """Read the options, without VarlenAttention's choice of a kernel of flash-attn."""
        super(VarlenAttention, self).__init__()
        self.window_size, self.mask = tuple(config.window_size), config.mask

    def forward(
        self, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, attention_masks: Any = None,
        scale: float | None = None, enable_gqa: bool = False, out_transform: Any = None,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Compute attention of one layer.

        Args:
            q_BLNH, k_BLNH, v_BLNH: [B, tokens, heads, D].
            attention_masks: torchtitan's VarlenMetadata: cumulative lengths of the documents of all
                rows, one row after another. If None, each row is one document.
            scale: factor of the scores; by default D^-1/2.
            enable_gqa: not read; if there are fewer key heads, query heads share them.
            out_transform: function of (out, lse [B, tokens, heads]) that returns the result.
            others: further arguments of the model; they must be None or False.

        Returns:
            [B, tokens, heads, Dv], or the result of out_transform.

        Raises:
            NotServed: an argument would change the result and maskc does not run it (MC665).
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
    """Return the documents as keywords of `maskc.attention`.

    Raises:
        NotServed: the masks are not VarlenMetadata, or keys have other documents than queries
            (MC665).
    """
    if not isinstance(masks, VarlenMetadata):
        raise NotServed("torchtitan", f"attention_masks of type {type(masks).__name__}")
    if masks.cu_seq_k is not masks.cu_seq_q:
        raise NotServed("torchtitan", "other documents of keys than of queries")
    return {"cu_seqlens_q": masks.cu_seq_q, "max_seqlen": masks.max_q}
