"""`flex_attention`: the signature of torch.nn.attention.flex_attention.flex_attention."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from maskc.api import attention
from maskc.core.errors import BadOption, BadShape, NotAMask, ScoreModUnsupported
from maskc.core.source import caller
from maskc.dsl.combinators import full
from maskc.dsl.mask import Mask
from maskc.dsl.matrices import from_block_mask
from maskc.dsl.not_a_mask import not_a_mask

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_known: WeakKeyDictionary[Any, tuple[tuple[object, ...], Mask]] = WeakKeyDictionary()
_FULL = full()
_ANY = 1 << 30
"""The size of the one block of torch's BlockMask for all lengths."""


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Any = None,
) -> Any:  # fmt: skip
    """FlexAttention's call, run by maskc; differentiable on torch tensors, without torch.compile.

    The mask of a BlockMask is made when it is seen first, see `mc.from_block_mask`, and again
    when its lists have been written into. Inside of torch.compile, make it outside:
    `mc.attention(q, k, v, mc.from_block_mask(block_mask))`.

    Args:
        query: [B, Hq, Nq, D]; key: [B, Hkv, Nkv, D]; value: [B, Hkv, Nkv, Dv].
        score_mod: must be None.
        block_mask: a BlockMask, also a mask of maskc; None keeps every pair.
        scale: of the products q . k; D^-1/2 when None.
        enable_gqa: whether query may have more heads than key and value.
        return_lse: whether to return the log-sum-exp of each query too, natural, fp32.
        kernel_options: has no effect; it chooses among torch's kernels.

    Returns:
        out [B, Hq, Nq, Dv], or (out, lse [B, Hq, Nq]) with return_lse=True. A query without keys
        has out 0 and lse -inf.

    Raises:
        ScoreModUnsupported: a score_mod is given (MC128).
        NotAMask: block_mask is something else, such as a mask_mod (MC106).
        BadShape: the BlockMask was made for other lengths, sequences or heads (MC401).
        BadOption: query has more heads than key, and enable_gqa is False (MC407).
        MaskcError: see `mc.from_block_mask` and CompiledMask.
    """
    if score_mod is not None:
        found = getattr(score_mod, "__name__", type(score_mod).__name__)
        raise ScoreModUnsupported(found, at=caller() or "score_mod")
    mask = _FULL if block_mask is None else block_mask
    if not isinstance(mask, Mask):
        mask = _mask_of(block_mask)
        _check(block_mask, query.shape, key.shape)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        wanted = f"True, as query has {query.shape[1]} heads and key {key.shape[1]}"
        raise BadOption("enable_gqa", wanted, enable_gqa, at="enable_gqa")
    return attention(query, key, value, mask, scale=scale, return_lse=return_lse)


def _mask_of(block_mask: Any) -> Mask:
    """The mask of a BlockMask, remembered while the BlockMask lives and is not written into.

    Raises:
        As `from_block_mask`.
    """
    lists = [getattr(block_mask, name, None) for name in _LISTS]
    mark = (
        getattr(block_mask, "mask_mod", None),
        *((id(x), getattr(x, "_version", 0)) for x in lists),
    )
    try:
        known = _known.get(block_mask)
    except TypeError:  # what cannot be referred to weakly is no BlockMask
        raise _refused(block_mask) from None
    if known is None or known[0] != mark:
        if callable(block_mask):
            raise _refused(block_mask)
        known = _known[block_mask] = mark, from_block_mask(block_mask)
    return known[1]


def _refused(given: object) -> NotAMask:
    return not_a_mask("flex_attention", given, caller() or "block_mask")


def _check(block_mask: Any, of_q: tuple[int, ...], of_k: tuple[int, ...]) -> None:
    """Refuse a BlockMask that was made for another call.

    Raises:
        BadShape.
    """
    made, call = tuple(block_mask.seq_lengths), (of_q[2], of_k[2])
    if made != call and min(block_mask.BLOCK_SIZE) < _ANY:
        what = f"{call} for the queries and keys of this call; make it anew for other lengths"
        raise BadShape("block_mask", made, what, at="block_mask")
    front, wanted = tuple(block_mask.kv_num_blocks.shape[:2]), tuple(of_q[:2])
    if any(size not in (1, n) for size, n in zip(front, wanted, strict=True)):
        what = f"{wanted} sequences and heads, or 1 of these"
        raise BadShape("block_mask", front, what, at="block_mask")
