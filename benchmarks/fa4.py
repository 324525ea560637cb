"""FlashAttention 4, the CuTe kernels of the package flash-attn-4, for masks it has a name for, and
for packed documents."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import documents
from maskc.lab.rivals import Contender, Missing, Unavailable, tokens_first
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors


@dataclass(frozen=True)
class Form:
    """A mask that libraries know by name."""

    name: str
    """`full`, `causal`, `window`, `documents`, or `other`."""
    left: int | None = None
    right: int | None = None
    """These are the reaches of a window, or inside of documents; None is unbounded."""


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
    if square and [type(ids) for ids in case.data.values()] == [np.ndarray]:
        together = documents(*case.data)
        for reach, packed in ((None, together), (0, together & causal())):
            if mask.equals(packed) is True:
                return Form("documents", right=reach)
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
    if form.name == "documents":
        return {"causal": form.right == 0}
    return None


# ------------------------------------------------------------------ packed documents


def ends_of(ids: np.ndarray) -> np.ndarray:
    """Cumulative lengths of documents, int32 [sequences, documents + 1]; the last documents of some
    sequences may be empty.

    Args:
        ids: ascending, [tokens] or [sequences, tokens].
    """
    n = ids.shape[-1]
    ends = [np.append(0, np.flatnonzero(np.diff(one, append=one[-1:] + 1)) + 1)
            for one in np.atleast_2d(ids)]  # fmt: skip
    most = max(map(len, ends))
    return np.stack([np.pad(one, (0, most - len(one)), constant_values=n) for one in ends]).astype(
        np.int32
    )


def _of_documents(
    case: Case, tensors: CaseTensors, backward: bool, asked: dict[str, Any]
) -> Contender:
    """flash_attn_varlen_func on the tokens of all sequences, one after another, with the longest
    length.

    Raises:
        Unavailable: documents are not in order.
    """
    import torch
    from flash_attn.cute.interface import flash_attn_varlen_func

    (ids,) = case.data.values()
    if (np.diff(ids) < 0).any():
        raise Unavailable("its documents are not in order")
    starts = case.n_kv * np.arange(case.batch)[:, None]
    ends = np.unique(ends_of(ids) + starts)  # without empty documents
    longest = int(np.diff(ends).max())
    lengths = torch.tensor(ends, dtype=torch.int32, device=tensors.device)
    packed = {
        "cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": longest,
        "max_seqlen_k": longest, "softmax_scale": case.scale, **asked,
    }  # fmt: skip

    def attend(*inputs: Any) -> Any:
        found = flash_attn_varlen_func(*(x.flatten(0, 1) for x in inputs), **packed)
        out = found[0] if isinstance(found, tuple) else found
        return out.unflatten(0, (case.batch, case.n_q))

    return tokens_first("fa4", attend, tensors, backward)


def fa4_contender(case: Case, tensors: CaseTensors, backward: bool) -> Contender | None:
    """flash_attn_func on tensors of its own order, [B, N, H, D]; None for other masks.

    Raises:
        Missing: the package is not installed.
    """
    form = form_of(case)
    asked = options(form)
    if asked is None:
        return None
    if not installed():
        raise Missing(MISSING)
    if form.name == "documents":
        return _of_documents(case, tensors, backward, asked)
    from flash_attn.cute.interface import flash_attn_func

    def attend(*inputs: Any) -> Any:
        found = flash_attn_func(*inputs, softmax_scale=case.scale, **asked)
        return found[0] if isinstance(found, tuple) else found

    return tokens_first("fa4", attend, tensors, backward)
