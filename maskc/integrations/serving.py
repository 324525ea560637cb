"""Attention of inference engines over their paged caches: code that the backends share.

The backends are `vllm` and `sglang` in this folder.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

from maskc.core.errors import BadServingMask, MaskcError, NotServed
from maskc.dsl.combinators import causal, window
from maskc.dsl.mask import Mask
from maskc.dsl.parser import parse
from maskc.paging import PagedAttention, PagedPlan, paged

VARIABLE = "MASKC_SERVING_MASK"
"""The environment variable that narrows the attention of all layers. Engines run their workers in
processes of their own, which inherit it."""
VLLM_NAME = "MASKC"
"""The name of the backend in vLLM."""


def register_vllm() -> None:
    """Make the attention backend "MASKC" known to vLLM, which calls this as its plug-in.

    vLLM imports the backend later, when a model uses it.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if VLLM_NAME not in AttentionBackendEnum.__members__:
        register_backend(VLLM_NAME, "maskc.integrations.vllm.VllmBackend")


class ServedLayer(NamedTuple):
    """Everything about a layer and its pages that its kernels depend on."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    layout: str
    """The layout of pools: "NHD" or "HND"."""
    before: int | None
    """Keys before its own that a query sees; None: all."""
    in_e4m3: bool
    on_cpu: bool

    def attention(self) -> PagedAttention:
        """Compile the layer's mask; equal layers share one result.

        Raises:
            BadServingMask: the mask of the environment cannot be used (MC666).
        """
        return _compiled(self, os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=64)
def _compiled(layer: ServedLayer, text: str) -> PagedAttention:
    mask = causal() if layer.before is None else window(layer.before)
    mask = mask & _mask_of(text) if text else mask
    try:
        attn = paged(
            mask, page_size=layer.page_size, head_dim=layer.head_dim, n_heads=layer.heads,
            n_kv_heads=layer.kv_heads, head_dim_v=layer.head_dim_v, layout=layer.layout,
            target="cpu" if layer.on_cpu else None,
            pool_dtype="float8_e4m3fn" if layer.in_e4m3 else None,
        )  # fmt: skip
    except MaskcError as error:
        if not text:
            raise
        raise BadServingMask(text, f"cannot run: {error.finding}", at=VARIABLE) from error
    names = sorted({array.decl.name for array in attn.placed.arrays})
    if names:
        finding = f"reads {', '.join(names)}, which engines do not have"
        raise BadServingMask(text, finding, at=VARIABLE)
    return attn


def _mask_of(text: str) -> Mask:
    try:
        return parse(text)
    except MaskcError as error:
        raise BadServingMask(text, f"is not a mask: {error.finding}", at=VARIABLE) from error


def own_mask() -> bool:
    """Whether the environment narrows the attention of all layers."""
    return bool(os.environ.get(VARIABLE))


class StepTables(NamedTuple):
    """The tables of a step, as `PagedAttention.plan` takes them."""

    page_table: Any
    lens_q: Any
    """Queries of each sequence as an integer or an array, or None with cu_seqlens."""
    lens_kv: Any
    cu_seqlens: Any
    tokens: int
    max_q: int
    max_kv: int

    @classmethod
    def of_decode(cls, page_table: Any, lens_kv: Any, max_kv: int) -> StepTables:
        """One query of each sequence."""
        return cls(page_table, 1, lens_kv, None, int(lens_kv.shape[0]), 1, max_kv)


class ServedStep:
    """The plans of one step: one for each kind of layer, made when its first layer runs.

    CUDA graphs reuse a step; `update` writes the tables of the next step in place.
    """

    def __init__(self, tables: StepTables) -> None:
        """Take the tables of a step."""
        self.tables = tables
        self._plans: dict[PagedAttention, PagedPlan] = {}

    def plan(self, attn: PagedAttention) -> PagedPlan:
        """Return the plan of a kind of layers."""
        if attn not in self._plans:
            t = self.tables
            self._plans[attn] = attn.plan(
                t.page_table, t.lens_q, t.lens_kv, cu_seqlens_q=t.cu_seqlens, total_q=t.tokens,
                max_seqlen_q=t.max_q, max_seqlen_kv=t.max_kv,
            )  # fmt: skip
        return self._plans[attn]

    def update(self, tables: StepTables) -> None:
        """Give all plans the tables of another step, in one launch each.

        Raises:
            BadPages: an array has another shape than before (MC464).
        """
        self.tables = tables
        for plan in self._plans.values():
            plan.update(
                tables.page_table, tables.lens_q, tables.lens_kv, cu_seqlens_q=tables.cu_seqlens
            )


def rounded_keys(longest: int, most: int) -> int:
    """Round the longest sequence of a step up, so that many steps share launches.

    Args:
        longest: keys of the longest sequence.
        most: keys for which the page table has room.

    Returns:
        A power of two, or `most`.
    """
    return min(most, 1 << max(0, longest - 1).bit_length())


def refuse(engine: str, reasons: dict[str, Any]) -> None:
    """Raise NotServed for the first reason that holds.

    Raises:
        NotServed: with the text of the reason (MC665).
    """
    for reason, holds in reasons.items():
        if holds:
            raise NotServed(engine, reason)
