"""Calls that compile by themselves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from maskc.core.errors import BadShape
from maskc.core.source import caller
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.slots import emptied

if TYPE_CHECKING:
    from maskc.core.difference import Difference
    from maskc.core.tensors import Array
    from maskc.runtime.compiled import CompiledMask


def attention(
    q: Any, k: Any, v: Any, mask: Mask, *, deterministic: bool = False, **options: Any
) -> Any:
    """Attention restricted to a mask, compiled on first use and remembered.

    On torch tensors it is differentiable once in q, k, v, alibi_slopes and sink_logits, through
    out and through lse. It works inside torch.compile(fullgraph=True) with a mask made outside,
    and under autocast, which casts q, k and v as it does for scaled_dot_product_attention.

    Args:
        q: queries [B, Hq, Nq, D] in bf16, fp16 or fp32; where they live decides the target.
        k: keys [B, Hkv, Nkv, D] in q's dtype; Hq is a multiple of Hkv.
        v: values [B, Hkv, Nkv, Dv] in q's dtype.
        mask: which query sees which key.
        deterministic: torch gradients have the same bits on every run; also whenever
            torch.use_deterministic_algorithms(True) is in force.
        options: as of a CompiledMask: scale, return_lse, softcap, alibi_slopes, sink_logits,
            normalizer, alpha, nan_safe, and the mask's data and parameters by name.

    Returns:
        out [B, Hq, Nq, Dv] in q's dtype, or (out, lse) with return_lse=True, where lse is the
        natural log-sum-exp of every row, fp32 [B, Hq, Nq].

    Raises:
        NotAMask: `mask` is something else, such as a matrix or a function; the hint says what to
            write (MC106).
        TargetNotBuilt: a gradient is wanted and the target has no backward kernels (MC503).
        MaskcError: a mistake in data (MC3xx), tensors or options (MC4xx), or a build (MC5xx).
    """
    if not isinstance(mask, Mask):
        raise not_a_mask("mc.attention", mask, caller() or "mask")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        from maskc.integrations import torch as with_torch

        return with_torch.attention(_compiled, q, k, v, mask, options, deterministic)
    of_q, of_v = (_tensor(x, name) for x, name in ((q, "q"), (v, "v")))
    sizes = of_q.shape[-1], of_v.shape[-1], of_q.shape[1]
    return _compiled(mask, *sizes, of_q.dtype, of_q.device)(q, k, v, **options)


def _tensor(x: Any, name: str) -> Array:
    """Shape, dtype and device of a tensor, which must have four dimensions."""
    from maskc.runtime.arrays.find import library
    from maskc.runtime.arrays.known import LIBRARIES

    known = library(x, name)
    found = LIBRARIES[type(known)].view(known, name)
    if len(found.shape) != 4:
        raise BadShape(name, found.shape, "four dimensions", at=name)
    return found


def _compiled(mask: Mask, *kernel: Any) -> CompiledMask:
    """The compiled mask for head_dim, head_dim_v, heads, dtype and device, made once.

    It is a function of its own because torch.compile accepts no cached function as an argument.
    """
    *sizes, (place, _) = kernel
    inner, held = emptied(mask)
    return _remembered(inner, *sizes, "cpu" if place == "cpu" else None).holding(held)


@lru_cache(maxsize=256)
def _remembered(
    mask: Mask, head_dim: int, head_dim_v: int, heads: int, dtype: object, target: str | None
) -> CompiledMask:
    from maskc import driver
    from maskc.ir.heads import differs_by_head

    n_heads = heads if differs_by_head(mask) else None
    return driver.compile(
        mask, head_dim=head_dim, head_dim_v=head_dim_v, n_heads=n_heads, dtype=dtype, target=target
    )


def diff(
    a: Mask, b: Mask, /, *, n: int | None = None, n_q: int | None = None,
    n_kv: int | None = None, n_heads: int | None = None, **data: Any,
) -> Difference | None:  # fmt: skip
    """Find a pair that tells two masks apart, and the data that make it differ.

    With `n` and all data that the masks name, the answer is exact for these, and the pair is the
    first one. Without data, arrays are found as well: all but a few elements are 0. Without `n`,
    lengths are found, the smallest that isl finds. The result is checked by the masks' dense
    definition before it is returned.

    Args:
        a: the first mask.
        b: the second mask; it may name the same data as the first.
        n: queries; without it the question is about all lengths.
        n_q: the same as n; when both are given, n is a parameter of the masks.
        n_kv: keys; n when None.
        n_heads: query heads, where heads differ and the masks do not say how many there are.
        data: arrays and parameters that the masks name. Parameters may come without arrays; of
            arrays, give all or none.

    Returns:
        A Difference, which has q, k, head, batch, n_q, n_kv, kept_by ("a" or "b"), data and pairs
        (how many differ in all); or None, which is a proof that the masks are equal.

    Raises:
        Undecided: neither a difference nor a proof that there is none was found (MC126).
        NotAMask: an argument is no mask (MC106).
        WrongHeads: `n_heads` contradicts a mask (MC125).
        BadLength: a length is no integer, or out of range (MC306).
        MaskcError: a mistake in data (MC3xx).
    """
    from maskc.questions import diff as find

    if n_q is not None and n is not None:
        data["n"] = n
    return find(a, b, n if n_q is None else n_q, n_kv, n_heads, data)


def merge(outs: Sequence[Any], lses: Sequence[Any]) -> tuple[Any, Any]:
    """Attention over the union of disjoint pieces, from the pieces' results.

    Each result is weighed by its share of the sum of exponentials, as in FlashDecoding. Torch
    tensors keep their gradients.

    Args:
        outs: the pieces' results, each [B, H, N, Dv].
        lses: the pieces' log-sum-exp (natural log), each fp32 [B, H, N].

    Returns:
        (out, lse) of the union; a query that sees no key in any piece has out 0 and lse -inf.

    Raises:
        BadShape: there are no pieces, or their shapes differ (MC401).
        MixedLibraries: the arrays come from several libraries (MC411).
    """
    from maskc.runtime.merge import merge as join

    return join(outs, lses)
