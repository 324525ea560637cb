"""FlashAttention 4, the CuTe kernels of the package flash-attn-4, for masks it has a name for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from benchmarks.forms import Form, form_of
from maskc.verify.case import Case
from maskc.verify.rivals import Contender, Missing, tokens_first
from maskc.verify.tensors import Tensors

MISSING = "the package flash-attn-4 is not installed"


def installed() -> bool:
    """Whether flash_attn.cute can be found; nothing of it is imported."""
    try:
        return find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


def options(form: Form) -> dict[str, Any] | None:
    """How flash_attn_func is asked for a mask; None where it has no words for it."""
    if form.name == "full":
        return {}
    if form.name == "causal":
        return {"causal": True}
    if form.name == "window":
        causal = {"causal": True} if form.right == 0 else {}
        return causal | {"window_size": (form.left, form.right)}
    return None


def fa4_contender(case: Case, tensors: Tensors, backward: bool) -> Contender | None:
    """flash_attn_func on tensors of its own order, [B, N, H, D]; None for other masks.

    Raises:
        Missing: the package is not installed.
    """
    asked = options(form_of(case))
    if asked is None:
        return None
    if not installed():
        raise Missing(MISSING)
    from flash_attn.cute.interface import flash_attn_func

    def attend(*inputs: Any) -> Any:
        found = flash_attn_func(*inputs, softmax_scale=case.scale, **asked)
        return found[0] if isinstance(found, tuple) else found

    return tokens_first("fa4", attend, tensors, backward)
