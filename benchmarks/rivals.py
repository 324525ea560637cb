"""The implementations that are timed side by side: maskc and what PyTorch offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from benchmarks import fa4
from benchmarks.fa4 import Form, form_of
from maskc.driver import selects
from maskc.lab.case_pairs import CasePairs
from maskc.lab.rivals import (
    Contender,
    Missing,
    Unavailable,
    boolean_mask,
    cudnn_flex,
    flex,
    gradient_of,
)
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, data_on_device

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

IMPLS = {
    "maskc": "the compiled mask",
    "dense": "SDPA without the mask",
    "sdpa_causal": "SDPA with is_causal, for masks that are causal",
    "sdpa_masked": "SDPA with the mask as booleans",
    "flex": "compiled FlexAttention",
    "flex_flash": "compiled FlexAttention with the kernels of FlashAttention 4",
    "fa2": "SDPA's flash backend; with its window arguments for a plain window",
    "cudnn": "SDPA's cuDNN backend",
    "cudnn_flex": "flex attention of cuDNN's frontend, for masks of few intervals of keys a query",
    "math": "SDPA's math backend, unfused, on GPUs; masks as booleans where it has no argument",
    "efficient": "SDPA's memory-efficient backend, on GPUs; likewise",
    "fa4": "FlashAttention 4, for full, causal and window masks",
    "topk": "PyTorch's operators, unfused, ranking in fp32: scores, topk, a mask, softmax or "
    "entmax, for masks that choose at run time",
    "flex_table": "PyTorch's operators choose blocks, compiled FlexAttention reads a table of them",
}
GPU_ONLY = ("fa2", "cudnn", "cudnn_flex", "fa4", "flex_flash", "flex_table")
_MASK_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}
"""Largest boolean mask handed to SDPA."""


def named(sources: Iterable[str]) -> tuple[str, ...]:
    """Names of what ran, those that ran several times once."""
    return tuple(name if n == 1 else f"{n} x {name}" for name, n in Counter(sources).items())


def maskc_contenders(
    case: Case, tensors: CaseTensors, attn: CompiledMask, backward: bool
) -> list[Contender]:
    """The compiled mask, always with its log-sum-exp; on a GPU its deterministic backward too."""
    inputs, data = tensors.qkv, data_on_device(case, tensors)
    softmax = partial(attn, *inputs, return_lse=True, **data)
    if case.alpha > 1:
        data |= {"normalizer": "entmax", "alpha": case.alpha}

    def forward() -> Any:
        return attn(*inputs, return_lse=True, **data)

    kept = cache(forward)

    def gradient(dout: Any) -> tuple[Any, ...]:
        return attn.backward(*inputs, *kept(), dout, **data)

    def repeatable(dout: Any) -> tuple[Any, ...]:
        return attn.backward(*inputs, *kept(), dout, deterministic=True, **data)

    def sources() -> tuple[str, ...]:
        return named(attn.last_sources)

    found = [Contender("maskc", forward, gradient if backward else None, sources=sources)]
    if backward and tensors.device == "cuda":
        found.append(Contender(
            "maskc", None, repeatable, variant="deterministic", sources=sources, attended=kept
        ))  # fmt: skip
    if case.alpha > 1:
        found.append(Contender("maskc", softmax, None, variant="softmax", alpha=1.0))
    return found


def make_rival(
    impl: str, case: Case, tensors: CaseTensors, pairs: CasePairs, backward: bool
) -> Contender | None:
    """One of IMPLS other than maskc, on the same tensors; None where it is for other masks.

    Raises:
        Unavailable: it could be asked for this case, but cannot run it here.
    """
    if impl == "topk":
        return _topk(case, tensors, backward)
    if impl == "flex_table":
        from benchmarks.flex_table import flex_table_contender

        return flex_table_contender(case, tensors)
    if (selects(case.mask) or case.alpha > 1) and impl != "dense":
        return None
    form = form_of(case)
    if impl in ("flex", "flex_flash"):
        if impl == "flex_flash" and not fa4.installed():
            raise Missing(fa4.MISSING)
        return flex(case, tensors, pairs, backward, flash=impl == "flex_flash")
    if impl == "cudnn_flex":
        return cudnn_flex(case, tensors, pairs, backward)
    if impl == "fa4":
        return fa4.fa4_contender(case, tensors, backward)
    sdpa = partial(_sdpa, case, tensors, backward, impl)
    if impl == "dense":  # softmax is no other normalizer's price
        return sdpa(keeps_all=True) if case.alpha == 1 else None
    if impl == "sdpa_masked":
        return sdpa(attn_mask=_boolean_mask(case, tensors, pairs))
    if impl == "sdpa_causal":
        return sdpa(is_causal=True) if form.name == "causal" else None
    if impl in ("math", "efficient"):
        if tensors.device == "cpu":
            return None
        known = {"full": {}, "causal": {"is_causal": True}}.get(form.name)
        if known is None:
            known = {"attn_mask": _boolean_mask(case, tensors, pairs)}
        return sdpa(backend=impl, **known)
    if impl == "fa2" and form.name == "window":
        return _flash_window(case, tensors, backward, form)
    if form.name not in ("full", "causal"):
        return None
    return sdpa(is_causal=form.name == "causal", backend=impl)


def _topk(case: Case, tensors: CaseTensors, backward: bool) -> Contender | None:
    from benchmarks.unfused import chosen_by_torch, exact_products

    call = chosen_by_torch(case, tensors) if selects(case.mask) else None
    if call is None:
        return None
    gradient = gradient_of(call, tensors) if backward else None
    return Contender("topk", partial(call, *tensors.qkv), gradient, scope=exact_products)


# ------------------------------------------------------------------ SDPA


def _sdpa(
    case: Case, tensors: CaseTensors, backward: bool, impl: str, *, keeps_all: bool = False,
    backend: str = "", **options: Any,
) -> Contender:  # fmt: skip
    from torch.nn.functional import scaled_dot_product_attention

    if case.group > 1:
        options["enable_gqa"] = True
    call = partial(scaled_dot_product_attention, **options)
    scope = partial(_backend, backend) if backend else nullcontext
    gradient = gradient_of(call, tensors) if backward else None
    return Contender(impl, partial(call, *tensors.qkv), gradient, keeps_all, scope, alpha=1.0)


def _backend(name: str) -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {
        "fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }  # fmt: skip
    return sdpa_kernel(chosen[name])


def _boolean_mask(case: Case, tensors: CaseTensors, pairs: CasePairs) -> Any:
    """The mask as SDPA takes it.

    Raises:
        Unavailable: it would be too large.
    """
    most = _MASK_BYTES[tensors.device]
    if (mask := boolean_mask(case, tensors, pairs, most)) is None:
        raise Unavailable(f"its boolean mask would have more than {most:.3g} elements")
    return mask


# ------------------------------------------------------------------ flash with a window


def _flash_window(case: Case, tensors: CaseTensors, backward: bool, form: Form) -> Contender:
    """FlashAttention's own window, which SDPA does not reach: the operator below its backend."""
    import torch

    ops = torch.ops.aten
    q, k, v = (x.transpose(1, 2) for x in tensors.qkv)  # it takes [B, N, H, D]
    sizes = (None, None, case.n_q, case.n_kv, 0.0, False)
    window = {
        "scale": case.scale, "window_size_left": form.left, "window_size_right": form.right
    }  # fmt: skip

    def run() -> tuple[Any, ...]:
        return ops._flash_attention_forward(q, k, v, *sizes, False, **window)

    def forward() -> Any:
        return run()[0].transpose(1, 2)

    kept = cache(run)

    def gradient(dout: Any) -> tuple[Any, ...]:
        out, lse, state, unused, _ = kept()
        found = ops._flash_attention_backward(
            dout.transpose(1, 2), q, k, v, out, lse, *sizes, state, unused, **window
        )
        return tuple(x.transpose(1, 2) for x in found)

    return Contender("fa2", forward, gradient if backward else None)
