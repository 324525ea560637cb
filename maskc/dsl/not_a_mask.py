"""Hints that say what to write instead of something that is not a mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maskc.core.errors import NotAMask, NotAnAttnMask
from maskc.core.source import SourceLoc

_OTHERWISE = "masks come from maskc's combinators: mc.causal(), mc.window(256), mc.where(...)"


def not_a_mask(where: str, value: object, at: SourceLoc | str | None) -> NotAMask:
    """Return the error for a value that is not a mask, with a hint for its kind.

    Args:
        where: the function or argument that expects a mask.
        value: what was given.
        at: the place.
    """
    hint = _hint(value)
    if where == "mc.attention" and _is_array(value) and not _of_library(value):
        hint = f"{_SDPA}; {hint}"
    return NotAMask(where, _found(value), hint, at=at)


def not_an_attn_mask(value: object) -> NotAnAttnMask:
    """Return the error for a wrong attn_mask of scaled_dot_product_attention."""
    kind = type(value)
    if text := _of_library(value):
        hint = text.replace("write ", "call mc.attention with ", 1)
    elif _is_array(value):
        hint = "compare first: attn_mask=attn_mask != 0 keeps the pairs of ones"
    elif kind.__name__ == "BlockMask":
        hint = "mc.flex_attention(query, key, value, block_mask=...) takes it"
    elif any(base.__name__ == "Mask" for base in kind.__mro__) and _is_ours(kind):
        hint = "mc.attention(query, key, value, mask) takes masks of maskc"
    elif callable(value):
        hint = "mc.attention(query, key, value, mc.from_mask_mod(f)) takes a mask_mod"
    else:
        hint = "pass an array that broadcasts to [..., heads, n_q, n_kv]"
    return NotAnAttnMask(_found(value), hint, at="attn_mask")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "maskc"


def _found(value: Any) -> str:
    """Return the name of a value in the message."""
    kind = type(value).__name__
    if kind == "Traced":
        return "a formula"
    if value is None or isinstance(value, (bool, int, float)):
        return f"{kind} {value}" if value is not None else "None"
    if _is_array(value):
        return f"{kind} of {value.dtype}"
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return f"{kind} {name}" if isinstance(name, str) else kind


def _is_array(value: object) -> bool:
    if isinstance(value, type) or type(value).__name__ == "Traced":  # a formula refuses .dtype
        return False
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _hint(value: Any) -> str:
    """Return a hint that says what to write for this kind of value."""
    kind = type(value)
    is_ours = _is_ours(kind)
    if text := _of_library(value):
        return text
    match kind.__name__:
        case "NoneType":
            return (
                "mc.full() keeps every pair; mc.from_mask_mod(f) takes a mask_mod, and "
                "mc.scaled_dot_product_attention(q, k, v) needs no mask"
            )
        case "bool" | "bool_":
            return "mc.full() keeps every pair and ~mc.full() none"
        case "int":
            return f"mc.window({value}) keeps the {value} keys before a query, and the query's own"
        case "str":
            return "mc.parse(text) reads a mask; mc.documents(name) and others name data"
        case "list" | "tuple":
            return "mc.per_head([...]) takes one mask per head; | joins masks"
        case "BlockMask":
            return "mc.from_block_mask(block_mask) is its mask"
        case "Traced" if is_ours:
            return "write the formula inside of mc.where(lambda q, k: ...)"
        case "Pattern" if is_ours:
            return f"call it to get its mask: {value.name}()"
        case "Score" if is_ours:
            return "it changes scores and drops no pairs: a call takes it as score="
        case "CompiledMask" if is_ours:
            return "it is compiled: call it, attn(q, k, v), or pass the mask that it was made of"
    if _is_array(value):
        return _of_array(value)
    return _of_callable(value, is_ours) if callable(value) else _OTHERWISE


def _of_array(value: Any) -> str:
    dtype = str(value.dtype)
    if "float" in dtype:
        return (
            "a bias that is added to scores is no set of pairs: mc.from_bool(bias == 0) "
            "is the mask of a bias of 0 and -inf, score=mc.scores.bias() with bias= adds one, and "
            "ALiBi goes by alibi_slopes="
        )
    return (
        "mc.from_bool(array) is the mask of a matrix [.., queries, keys] of booleans, "
        "mc.block_table(array, block) that of a matrix of blocks, and mc.flags('keep') that of a "
        "vector given at the call"
    )


# ------------------------------------------------------------------ objects of other libraries

_SDPA = "mc.scaled_dot_product_attention(q, k, v, array) takes it as PyTorch does"
_PACKED = 'cu_seqlens_q=x.q_seqinfo.seqstart, cu_seqlens_k=x.k_seqinfo.seqstart and layout="bshd"'
_OWN_KEYS = (
    'mc.intervals("keys"), called with keys=(first, end): integers [n_q], the keys of each query'
)
_XFORMERS = {
    "BlockDiagonalCausalFromBottomRightMask": f"write {_PACKED} with is_causal=True",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (
        f"write {_PACKED} with window_size=(w - 1, 0)"
    ),
    "BlockDiagonalCausalLocalAttentionMask": (
        'write mc.documents("doc") & mc.window(w - 1), called with '
        "doc=mc.cu_seqlens(x.q_seqinfo.seqstart)"
    ),
    "BlockDiagonalCausalMask": (
        'write mc.documents("doc") & mc.causal(), called with '
        "doc=mc.cu_seqlens(x.q_seqinfo.seqstart)"
    ),
    "BlockDiagonalMask": (
        'write mc.documents("doc"), called with doc=mc.cu_seqlens(x.q_seqinfo.seqstart); '
        f"where keys have lengths of their own, {_PACKED}"
    ),
    "LocalAttentionFromBottomRightMask": "write mc.window(window_left, window_right)",
    "LowerTriangularFromBottomRightLocalAttentionMask": "write mc.window(w - 1)",
    "LowerTriangularFromBottomRightMask": "write mc.causal()",
    "LowerTriangularMask": 'write mc.causal(align="start")',
    "LowerTriangularMaskWithTensorBias": (
        'write mc.causal(align="start") and score=mc.scores.bias(), called with bias='
    ),
}
"""Classes of xformers' attn_bias -> what to write."""
_SPLASH = {
    "CausalMask": 'write mc.causal(align="start")',
    "ChunkedCausalMask": 'write mc.chunked(size, align="start")',
    "FullMask": "write mc.full()",
    "LocalMask": 'write mc.window(left, right, align="start")',
    "LogicalAnd": "write the parts and join them with &",
    "LogicalOr": "write the parts and join them with |",
    "MultiHeadMask": "write mc.per_head([...])",
    "NumpyMask": "write mc.from_bool(array)",
}
"""Classes of JAX's splash_attention_mask -> what to write."""


def _of_library(value: object) -> str:
    """Return a hint for a mask object of another library, or an empty text."""
    kind = type(value)
    module, name = kind.__module__, kind.__name__
    if "splash_attention" in module:
        return _SPLASH.get(name, "docs/porting.md names the combinator of each mask")
    if name == "CausalBias" and module.startswith("torch."):
        last = getattr(getattr(value, "variant", None), "name", "") == "LOWER_RIGHT"
        return "write mc.causal()" if last else 'write mc.causal(align="start")'
    if module.partition(".")[0] != "xformers":
        return ""
    if (text := _XFORMERS.get(name)) is not None:
        return text
    if name.startswith("Paged"):
        return "a mask over the pool: docs/decoding.md, Decoding from a pool of pages"
    if "PaddedKeys" in name or "GappyKeys" in name:
        return f"write {_OWN_KEYS}"
    return "docs/porting.md names the combinator of each attn_bias"


def _of_callable(value: Callable[..., object], is_ours: bool) -> str:
    module = getattr(value, "__module__", None) or ""
    if is_ours or module.partition(".")[0] == "maskc":
        name = getattr(value, "__name__", type(value).__name__).strip("_").lower()
        return f"call it to get a mask: mc.{name}(...)"
    try:
        count = len(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        count = 0
    if count == 5:
        return (
            "a score_mod changes scores and drops no pairs: a call takes it as "
            "score=mc.from_score_mod(f); mc.from_mask_mod takes a mask_mod, f(b, h, q, k)"
        )
    return "mc.from_mask_mod(f) takes a mask_mod, f(b, h, q, k), and mc.where(f) an f(q, k)"
