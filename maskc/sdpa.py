"""`scaled_dot_product_attention`: the signature of torch.nn.functional's."""

from __future__ import annotations

import math
import sys
from typing import Any

from maskc.api import attend, attention
from maskc.conventions import Keywords
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.dtypes import dtype_name
from maskc.core.errors import BadOption, BadShape, HeadsDoNotDivide, NotAnArray
from maskc.core.recorders import refuse_proxy, unscripted
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import block_table, flags
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_an_attn_mask
from maskc.dsl.score_tracer import Score
from maskc.scores import bias

_NAME = "attn_mask"
_EVERY = full()
_PAIRS = block_table(_NAME, 1)
"""A boolean for each pair."""
_KEYS = flags(_NAME)
"""A boolean for each key, for all queries and heads."""
_BIAS = bias(_NAME)
_CAUSAL = {"UPPER_LEFT": causal(align="start"), "LOWER_RIGHT": causal()}
"""Variants of torch.nn.attention.bias.CausalBias -> masks."""
_ROLES = ("query", "key", "value")


@unscripted
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Compute PyTorch's scaled_dot_product_attention with maskc, differentiable and as one operator
    inside torch.compile.

    A matrix is read at every call. A rule costs no memory and skips more:
    `mc.attention(q, k, v, mc.causal() & mc.window(1023))`.

    Args:
        query: [..., Hq, Nq, D], or [Nq, D].
        key: [..., Hkv, Nkv, D]; value: [..., Hkv, Nkv, Dv]. Leading dimensions broadcast.
        attn_mask: broadcasts to [..., Hq, Nq, Nkv]. Booleans, True where the query sees the key; or
            floating-point numbers that are added to the scores, with a gradient where they require
            grad; or torch's causal_upper_left and causal_lower_right.
        dropout_p: the probability of dropping a weight, in every call that passes it. The seed
            comes from the default generator of the device, so torch.manual_seed repeats it.
        is_causal: keep k <= q: the first query meets the first key. With attn_mask, a pair must
            satisfy both.
        scale: factor of q . k; D^-1/2 when None.
        enable_gqa: whether groups of query heads may share a head of key and value. A single head
            of key and value serves all query heads without it too.

    Returns:
        out [..., Hq, Nq, Dv]. A query without keys has out 0.

    Raises:
        NotAnArray: query, key or value is not an array (MC406).
        BadShape: shapes do not broadcast (MC401).
        BadOption: heads differ without enable_gqa (MC407).
        HeadsDoNotDivide: query heads are not a multiple of the heads of key or value (MC402).
        NotAnAttnMask: attn_mask is not an array of booleans or floating-point numbers (MC437).
        MaskcError: as `mc.attention`.
    """
    refuse_proxy(query)
    if getattr(query, "is_nested", False):  # refused, with what to do
        return attention(query, key, value, _EVERY, layout="bhsd")
    if _is_plain(query, key, value):
        front, q, k, v = query.shape[:1], query, key, value
    else:
        front, q, k, v = _four_dimensions((query, key, value), enable_gqa)
    q, k, v = _with_rows(q), _with_rows(k), _with_rows(v)
    mask: Mask = _EVERY
    data: dict[str, Any] = {}
    score = None
    if attn_mask is not None:
        mask, score, data = _meaning(attn_mask, front, (q.shape[1], q.shape[2], k.shape[2]))
    options = CallOptions(scale=scale, dropout_p=dropout_p)
    causal = Keywords(is_causal, layout="bhsd")
    out = attend(AttentionCall(q, k, v, options, data), mask, score, causal)
    if len(front) == 1:
        return out
    if query.ndim == key.ndim == value.ndim == 2:
        return out[0, 0]
    return out.reshape(*front, *out.shape[1:])


def _meaning(
    attn_mask: Any, front: tuple[int, ...], last: tuple[int, int, int]
) -> tuple[Mask, Score | None, dict[str, Any]]:
    """Return the mask, the score and the data that are equivalent to attn_mask.

    Args:
        attn_mask: what the call gives.
        front: dimensions in front of the heads; last: query heads, queries and keys.

    Raises:
        NotAnAttnMask, BadShape.
    """
    if type(attn_mask).__name__ == "CausalBias":
        _check_mask((attn_mask.seq_len_q, attn_mask.seq_len_kv), (*front, *last))
        return _CAUSAL[attn_mask.variant.name], None, {}
    dtype = dtype_name(attn_mask)
    if not dtype.startswith(("bool", "float", "bfloat")):
        raise not_an_attn_mask(attn_mask)
    given = _mask_in_four(attn_mask, front, last)
    if dtype != "bool":
        return _EVERY, _BIAS, {_NAME: given}
    _, n_q, n_kv = last
    if given.shape[1] == 1 == given.shape[2] != n_q and given.shape[3] == n_kv:
        return _KEYS, None, {_NAME: given[:, 0, 0]}
    return _PAIRS, None, {_NAME: _broadcast(given, (*given.shape[:2], n_q, n_kv))}


def _is_plain(q: Any, k: Any, v: Any) -> bool:
    """Whether they are [B, H, N, D] with the same sequences and heads, as nearly always."""
    try:
        (batch, heads, _, _), (batch_k, heads_k, _, _) = q.shape, k.shape
        return bool(batch == batch_k and heads == heads_k and v.shape[:2] == k.shape[:2])
    except (AttributeError, TypeError, ValueError):
        return False


def _four_dimensions(tensors: tuple[Any, Any, Any], enable_gqa: bool) -> tuple[Any, ...]:
    """(dimensions in front of the heads, q, k, v), the tensors being [B, H, N, D]."""
    shapes = []
    for name, x in zip(_ROLES, tensors, strict=True):
        if not hasattr(x, "shape"):
            raise NotAnArray(name, type(x).__name__, at=name)
        shape = tuple(x.shape)
        if len(shape) < 2:
            raise BadShape(name, shape, "[..., heads, tokens, dim] or [tokens, dim]", at=name)
        shapes.append((1, *shape) if len(shape) == 2 else shape)
    of_q, of_k, of_v = shapes
    front = of_q[:-3]
    for name, shape in (("key", of_k), ("value", of_v)):
        front = _common(front, shape[:-3], name, shape)
    heads, of_key, of_value = (shape[-3] for shape in shapes)
    if enable_gqa:
        for count in (of_key, of_value):
            if count != heads and (count == 0 or heads % count):
                raise HeadsDoNotDivide(heads, count, at="enable_gqa")
    else:
        most = max(heads, of_key, of_value)
        if any(count not in (1, most) for count in (heads, of_key, of_value)):
            finding = f"query has {heads} heads, key {of_key} and value {of_value}"
            raise BadOption("enable_gqa", f"True, because {finding}", enable_gqa, at="enable_gqa")
        heads = most
    shared = of_key if of_key == of_value else heads
    counts = (heads, shared, shared)
    return front, *(
        _seen(x, shape, front, count)
        for x, shape, count in zip(tensors, shapes, counts, strict=True)
    )


def _with_rows(x: Any) -> Any:
    """Return the tensor, copied if its rows are not contiguous, because kernels need contiguous
    rows."""
    if hasattr(x, "stride"):
        return x if x.is_sparse or x.stride(-1) == 1 else x.contiguous()
    strides = getattr(x, "strides", None)  # arrays of JAX have none
    is_strided = strides is not None and strides[-1] != x.itemsize
    return _library(x).ascontiguousarray(x) if is_strided else x


def _common(
    front: tuple[int, ...], other: tuple[int, ...], name: str, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The dimensions to which both broadcast.

    Raises:
        BadShape: there are none.
    """
    if front == other:
        return front
    rank = max(len(front), len(other))
    sizes = []
    for a, b in zip(_padded(front, rank), _padded(other, rank), strict=True):
        if a != b and a != 1 and b != 1:
            wanted = f"leading dimensions that broadcast with {list(front)}"
            raise BadShape(name, shape, wanted, at=name)
        sizes.append(b if a == 1 else a)
    return tuple(sizes)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _seen(x: Any, shape: tuple[int, ...], front: tuple[int, ...], heads: int) -> Any:
    """A tensor as [B, heads, N, D], where `shape` is its own, heads included."""
    if shape[:-3] == front and shape[-3] == heads:
        if len(front) == 1:
            return x
        return x.reshape(math.prod(front), *shape[-3:])
    rows, tokens, dim = shape[-3:]
    x = x.reshape(*_padded(shape[:-3], len(front)), rows, 1, tokens, dim)
    repeats = heads // rows if rows else 1
    x = _broadcast(x, (*front, rows, repeats, tokens, dim))
    return x.reshape(math.prod(front), heads, tokens, dim)


def _mask_in_four(attn_mask: Any, front: tuple[int, ...], last: tuple[int, int, int]) -> Any:
    """attn_mask as [B or 1, Hq or 1, Nq or 1, Nkv or 1].

    Raises:
        BadShape: it does not broadcast to [*front, *last].
    """
    shape, wanted = tuple(attn_mask.shape), (*front, *last)
    _check_mask(shape, wanted)
    padded = _padded(shape, len(wanted))
    if len(front) == 1 == len(shape) - 3:
        return attn_mask
    if all(size == 1 for size in padded[:-3]):
        return attn_mask.reshape(1, *padded[-3:])
    attn_mask = _broadcast(attn_mask.reshape(*padded), (*front, *padded[-3:]))
    return attn_mask.reshape(math.prod(front), *padded[-3:])


def _check_mask(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Refuse a mask that does not broadcast to the scores."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    if not 1 <= len(shape) <= len(wanted) or any(a != b and a != 1 for a, b in pairs):
        hint = "its last two dimensions are the queries and the keys, or 1"
        raise BadShape(_NAME, shape, f"one that broadcasts to {list(wanted)}", hint, at=_NAME)


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """A view of the shape, by the array's own library."""
    return x if tuple(x.shape) == shape else _library(x).broadcast_to(x, shape)


def _library(x: Any) -> Any:
    """The module of an array's functions."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    return sys.modules[type(x).__module__.partition(".")[0]]
