"""FlashAttention 4, the CuTe kernels of the package flash-attn-4, for masks it has a name for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.combinators import causal, full
from maskc.lab.rivals import Contender, Missing, tokens_first
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors


@dataclass(frozen=True)
class Form:
    """A mask that libraries know by name."""

    name: str
    """`full`, `causal`, `window`, or `other`."""
    left: int | None = None
    right: int | None = None
    """These are the reaches of a window; None is unbounded."""


def form_of(case: Case) -> Form:
    """How a library without a mask language could be asked for this mask."""
    mask, square = case.mask, case.n_q == case.n_kv
    if mask.equals(full()) is True:
        return Form("full")
    if square and mask.equals(causal()) is True:
        return Form("causal")
    if square and isinstance(mask, N.Window):
        sides = [side if side is None else E.as_const(side) for side in (mask.left, mask.right)]
        known = [
            s is None or c is not None for s, c in zip((mask.left, mask.right), sides, strict=True)
        ]
        if all(known):
            return Form("window", *sides)
    return Form("other")


# ------------------------------------------------------------------ masks by name


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


def fa4_contender(case: Case, tensors: CaseTensors, backward: bool) -> Contender | None:
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
