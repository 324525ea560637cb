"""Masks that arrive as tensors: a model, or its user, made them outside of transformers' functions.

Booleans keep pairs where they are True; floating-point numbers are added to scores. Each becomes
one of a few masks with named data, so a tensor that a model makes anew in each forward pass
neither builds kernels nor plans again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import block_table, flags, intervals
from maskc.dsl.mask import Mask

KEYS, RUNS, PAIRS = "model_keys", "model_runs", "model_pairs"
"""Names of the data: keys that all queries see, the run of keys of each query, all pairs."""

_FULL, _CAUSAL = full(), causal()
_KEYS, _RUNS, _PAIRS = flags(KEYS), intervals(RUNS), block_table(PAIRS, 1)

_MEMO = "maskc_masks"
"""The attribute of a tensor with the masks of its views."""


class Parts(NamedTuple):
    """Facts about pairs of queries and keys, read from a mask tensor."""

    mask: Mask
    data: dict[str, Any]
    has_bias: bool
    """Whether its numbers must be added to the scores of the pairs that the mask keeps."""


def misfit(tensor: Any, shape: tuple[int, int, int, int]) -> str:
    """Return why a tensor cannot be the mask of a call; empty if it can.

    Args:
        tensor: what the model gave.
        shape: of the scores, [B, Hq, n_q, n_kv].
    """
    sizes = tuple(tensor.shape)
    shown = f"a mask of shape {sizes} and {tensor.dtype}"
    if not tensor.is_floating_point() and str(tensor.dtype) != "torch.bool":
        return shown
    wanted = shape[len(shape) - len(sizes) :]
    fits = 2 <= len(sizes) <= 4 and all(
        size in (1, most) for size, most in zip(sizes, wanted, strict=True)
    )
    by_sequence = len(sizes) == 2 and 1 < sizes[0] == shape[0]  # padding, as flash attention's
    return f"{shown} for scores of shape {shape}" if by_sequence or not fits else ""


def parts_of(tensor: Any) -> Parts:
    """Return the mask of a tensor that fits, and its data.

    On a CPU the tensor is read, once for all layers that get it: everything, causal masks, keys
    that all queries see and one run of keys for each query are recognised. On a GPU, and in a graph
    of torch.compile, the host reads nothing: dimensions of size 1 are used, everything else
    becomes a table on the device, and numbers are always added to scores.
    """
    import torch

    if torch.compiler.is_compiling():
        return _parts(tensor, look=False)
    on_cpu = tensor.device.type == "cpu"
    memo, key = _memo(tensor)
    if not on_cpu and tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        memo = None  # a graph that is replayed reads what the tensor holds then
    parts: Parts | None = None if memo is None else memo.get(key)
    if parts is None:
        parts = _parts(tensor, look=on_cpu)
        if memo is not None:
            memo[key] = parts
    return parts


def _memo(tensor: Any) -> tuple[dict[Any, Parts] | None, Any]:
    """(parts of the views of a tensor, the view and its version); None if nothing counts writes.

    The memo lies at the tensor that owns the memory, and lives as long. Its parts hold no reference
    to that tensor.
    """
    owner = tensor if tensor._base is None else tensor._base
    try:
        version = owner._version
    except RuntimeError:  # made in inference mode
        return None, None
    memo = owner.__dict__.get(_MEMO)
    if memo is None or memo[0] != version:
        memo = owner.__dict__[_MEMO] = (version, {})
    return memo[1], (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _parts(tensor: Any, look: bool) -> Parts:
    import torch

    small = _without_repeats(tensor.detach())
    has_bias = False
    if small.dtype == torch.bool:
        keep = small if torch.compiler.is_compiling() else small.data
    else:
        keep, has_bias = _kept(small, look or tensor.requires_grad)
    if tensor.requires_grad:
        has_bias = True
    if look:
        if bool(keep.all()):
            return Parts(_FULL, {}, has_bias)
        for axis in (0, 1):  # sequences, heads
            first = keep.narrow(axis, 0, 1)
            if keep.shape[axis] > 1 and bool((keep == first).all()):
                keep = first
    if keep.shape[1:3] == (1, 1):
        return Parts(_KEYS, {KEYS: keep[:, 0, 0].contiguous()}, has_bias)
    if look and keep.shape[1] == 1:
        parts = _recognised(keep[:, 0])
        if parts is not None:
            return Parts(*parts, has_bias)
    return Parts(_PAIRS, {PAIRS: keep.contiguous()}, has_bias)


def _without_repeats(tensor: Any) -> Any:
    """The tensor with four dimensions; those that repeat one element have size 1, where strides
    say so."""
    tensor = tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))
    for axis in range(3):
        if tensor.shape[axis] > 1 and tensor.stride(axis) == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _kept(bias: Any, look: bool) -> tuple[Any, bool]:
    """(pairs that numbers added to scores leave a weight, whether these numbers matter).

    -inf and the lowest number of the dtype hide a pair. A row that has the lowest number and
    nothing above it hides nothing there: softmax gives its pairs equal weights.
    """
    import torch

    lowest = torch.finfo(bias.dtype).min
    keep = (bias <= lowest).logical_not_()  # NaN hides nothing
    rows = keep.any(-1, keepdim=True)
    if not look or not bool(rows.all()):
        keep |= (bias == lowest) & ~rows
    return keep, not look or bool((bias != 0).logical_and_(keep).any())


def _recognised(keep: Any) -> tuple[Mask, dict[str, Any]] | None:
    """(a mask with less data than booleans [B or 1, n_q, n_kv] have, its data); None if rows
    have gaps."""
    import torch

    kept = keep.numpy()  # whose argmax of booleans stops at the first
    n_q, n_kv = kept.shape[1:]
    first, count = kept.argmax(-1), np.count_nonzero(kept, axis=-1)
    last = n_kv - 1 - kept[..., ::-1].argmax(-1)
    if not ((last - first + 1 == count) | (count == 0)).all():
        return None
    end = first + count
    if not first.any() and (end == np.arange(n_kv - n_q + 1, n_kv + 1).clip(0)).all():
        return _CAUSAL, {}
    return _RUNS, {RUNS: tuple(torch.as_tensor(x, dtype=torch.int32) for x in (first, end))}
