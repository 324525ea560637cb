"""Code that the attention backends for vLLM and SGLang share: masks, plans of a step, refusals.

The backends are in `vllm.py` and `sglang.py` in this folder.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

from maskc.core.errors import BadServingMask, LibraryTooOld, MaskcError, NotServed
from maskc.dsl.combinators import causal, window
from maskc.dsl.mask import Mask
from maskc.dsl.parser import parse
from maskc.paging import PagedAttention, PagedPlan, paged

VARIABLE = "MASKC_SERVING_MASK"
"""The environment variable with a mask for all layers. Engines start their workers as processes,
and these inherit the variable."""
VLLM_NAME = "MASKC"
"""The name of the backend in vLLM."""
VLLM_OLDEST = "0.32"
"""The oldest version of vLLM. Earlier ones cannot register a backend under a new name."""


def register_vllm() -> None:
    """Add the attention backend "MASKC" to vLLM. Calling it again does nothing.

    vLLM calls this function whenever it starts, also for models that use another backend. So an
    older vLLM gets a warning (MC613) instead of an error, and runs without the backend.
    """
    import vllm

    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:
        add_name = None
    else:
        add_name = getattr(AttentionBackendEnum, "register", None)
    if add_name is None:
        old = LibraryTooOld("vllm", VLLM_OLDEST, getattr(vllm, "__version__", "another one"))
        warnings.warn(str(old), stacklevel=2)
    elif VLLM_NAME not in AttentionBackendEnum.__members__:
        register_backend(VLLM_NAME, "maskc.integrations.vllm.VllmBackend")


class ServedLayer(NamedTuple):
    """The properties of a layer and of its pages that its kernels depend on."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    layout: str
    """The layout of pools: "NHD" or "HND"."""
    before: int | None
    """Number of keys before its own position that a query sees; None: all of them."""
    in_e4m3: bool
    on_cpu: bool

    def attention(self) -> PagedAttention:
        """Return the kernels of the layer. Layers with equal properties share them.

        Raises:
            BadServingMask: the mask in MASKC_SERVING_MASK cannot be used (MC666).
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
    """Whether MASKC_SERVING_MASK has a mask."""
    return bool(os.environ.get(VARIABLE))


class StepTables(NamedTuple):
    """The page table and the lengths of one step, as `PagedAttention.plan` takes them."""

    page_table: Any
    lens_q: Any
    """Queries of each sequence: an integer, an array, or None if `cu_seqlens` has them."""
    lens_kv: Any
    cu_seqlens: Any
    tokens: int
    max_q: int
    max_kv: int

    @classmethod
    def of_decode(cls, page_table: Any, lens_kv: Any, max_kv: int) -> StepTables:
        """Return the tables of a step with one query per sequence."""
        return cls(page_table, 1, lens_kv, None, int(lens_kv.shape[0]), 1, max_kv)


class ServedStep:
    """The plans of one step. Each kind of layer gets a plan when its first layer runs.

    A CUDA graph keeps its step: `update` writes the tables of the next step into the same arrays.
    """

    def __init__(self, tables: StepTables) -> None:
        """Keep the tables; plans are made later."""
        self.tables = tables
        self._plans: dict[PagedAttention, PagedPlan] = {}

    def plan(self, attn: PagedAttention) -> PagedPlan:
        """Return the plan for layers with these kernels."""
        if attn not in self._plans:
            t = self.tables
            self._plans[attn] = attn.plan(
                t.page_table, t.lens_q, t.lens_kv, cu_seqlens_q=t.cu_seqlens, total_q=t.tokens,
                max_seqlen_q=t.max_q, max_seqlen_kv=t.max_kv,
            )  # fmt: skip
        return self._plans[attn]

    def update(self, tables: StepTables) -> None:
        """Write the tables of another step into all plans, with one launch per plan.

        Raises:
            BadPages: an array has another shape than before (MC464).
        """
        self.tables = tables
        for plan in self._plans.values():
            plan.update(
                tables.page_table, tables.lens_q, tables.lens_kv, cu_seqlens_q=tables.cu_seqlens
            )


def rounded_keys(longest: int, most: int) -> int:
    """Round the length of the longest sequence up, so that many steps have equal launches.

    Args:
        longest: number of keys of the longest sequence.
        most: number of keys that the page table has room for.

    Returns:
        The next power of two, at most `most`.
    """
    return min(most, 1 << max(0, longest - 1).bit_length())


def refuse(engine: str, reasons: dict[str, Any]) -> None:
    """Raise an error for the first reason that holds.

    Args:
        engine: name of the engine in the message.
        reasons: conditions by the text of the reason.

    Raises:
        NotServed: a condition holds (MC665).
    """
    for reason, holds in reasons.items():
        if holds:
            raise NotServed(engine, reason)
