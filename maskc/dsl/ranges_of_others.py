"""Masks that other libraries describe by ranges: FlashMask per key, MagiAttention by slices.

Ranges become arrays that a formula reads. They are data: a mask with other ranges of the same shape
uses the same kernels, and tile lists are built on the device that holds the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.errors import BadRanges
from maskc.core.source import caller
from maskc.core.tensors import refuse_masked, torch_of
from maskc.dsl.mask import Mask
from maskc.dsl.tables import WatchedArray
from maskc.dsl.tracer import traced_at

_MAX_RUNS = 4
"""Runs of keys that one query may see: kernels read two arrays for each."""
FULL, CAUSAL, INVERSE_CAUSAL, BOTH_CAUSAL = range(4)


def from_flashmask(startend_row_indices: Any, *, causal: bool = False) -> Mask:
    """Return the mask of PaddlePaddle's FlashMask: for each key, ranges of queries that miss it.

    With `causal=True`, k <= q is kept by index, and each key has one or two numbers: it is hidden
    from rows [start, n_q), or [start, end). With `causal=False` each key has two or four numbers:
    it is hidden from rows [start, n_q) and [0, end), or from [start, end) and [start2, end2).

    Args:
        startend_row_indices: integers [B or 1, heads or 1, n_kv, numbers]; a NumPy array, or a
            torch tensor on the device of q. Each call reads the current content.
        causal: as in `paddle.nn.functional.flashmask_attention`.

    Returns:
        The mask. Its heads are query heads; repeat the rows of key/value heads.

    Raises:
        BadRanges: the shape is wrong, or the values are not integers (MC664).
        BatchUsed: see from_mask_mod.

    References:
        FlashMask, https://arxiv.org/abs/2410.01359
    """
    rows = _integers(startend_row_indices, "startend_row_indices")
    shape, counts = tuple(rows.shape), (1, 2) if causal else (2, 4)
    if len(shape) != 4 or shape[3] not in counts or not all(shape):
        numbers = " or ".join(map(str, counts))
        others = "2 or 4" if causal else "1 or 2"
        wanted = f"of shape [batch, heads, n_kv, {numbers}] with causal={causal}, of {others} "
        wanted += f"numbers with causal={not causal}"
        raise BadRanges("startend_row_indices", wanted, list(shape), at="startend_row_indices")

    rows = _watched(rows)

    def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
        of = b if shape[0] > 1 else 0, h if shape[1] > 1 else 0, k
        start, *more = (rows[(*of, number)] for number in range(shape[3]))
        if causal and not more:
            return (k <= q) & (q < start)
        if not causal and len(more) == 1:
            return (q < start) & (q >= more[0])
        outside = (q < start) | (q >= more[0])
        if causal:
            return (k <= q) & outside
        return outside & ((q < more[1]) | (q >= more[2]))

    return traced_at(keep, caller())


def slices(q_ranges: Any, k_ranges: Any, types: Any = None, *, n_q: int | None = None) -> Mask:
    """Return the mask of MagiAttention's slices: each keeps pairs of a query range and a key range.

    Types are 0 full, 1 causal (the last query is aligned with the last key), 2 inverse causal (the
    first ones are aligned, and a query sees later keys), 3 both. Slices may overlap.

    The ranges are read on the host, once. They become runs of keys, with 1, 2 or 4 runs for every
    query. Slices that touch or overlap form one run. Masks with equally many runs share kernels.

    Args:
        q_ranges, k_ranges: integers [slices, 2]: the first index, and one past the last.
        types: integers [slices]; None: all are full.
        n_q: queries of the calls; None: up to the end of the last range.

    Returns:
        The mask, for calls with n_q queries.

    Raises:
        BadRanges: a wrong shape, values that are not integers, a range that ends before it begins,
            an unknown type, or more than 4 runs of keys for a query (MC664).

    References:
        MagiAttention, https://github.com/SandAI-org/MagiAttention
    """
    of_q, of_k = (
        _on_host(x, name, (None, 2)) for x, name in ((q_ranges, "q_ranges"), (k_ranges, "k_ranges"))
    )
    kinds = np.zeros(len(of_q), int) if types is None else _on_host(types, "types", (None,))
    for name, array in (("k_ranges", of_k), ("types", kinds)):
        if len(array) != len(of_q):
            raise BadRanges(name, f"one for each of {len(of_q)} slices", len(array), at=name)
    for name, array in (("q_ranges", of_q), ("k_ranges", of_k)):
        wrong = np.flatnonzero((array[:, 0] < 0) | (array[:, 1] < array[:, 0]))
        if wrong.size:
            slice_, (first, end) = wrong[0], array[wrong[0]]
            shown = f"[{first}, {end}) in slice {slice_}"
            raise BadRanges(name, "ranges from 0 on that do not end before they begin", shown,
                            at=name)  # fmt: skip
    if not np.isin(kinds, (FULL, CAUSAL, INVERSE_CAUSAL, BOTH_CAUSAL)).all():
        raise BadRanges("types", "0, 1, 2 or 3 each", kinds.tolist(), at="types")
    queries = max(1, int(of_q[:, 1].max(initial=0)) if n_q is None else n_q)
    table: Any = _intervals(of_q, of_k, kinds, queries)
    if (torch := torch_of(q_ranges)) is not None:
        table = torch.from_numpy(table).to(q_ranges.device)

    table = _watched(table)

    def keep(q: Any, k: Any) -> Any:
        kept: Any = False
        for number in range(len(table) // 2):
            kept = kept | ((k >= table[2 * number, q]) & (k < table[2 * number + 1, q]))
        return kept

    return traced_at(keep, caller(), by_place=False)


def _intervals(of_q: np.ndarray, of_k: np.ndarray, kinds: np.ndarray, n_q: int) -> np.ndarray:
    """Return the first key and the end of each run of a query, int32 [2 * runs, n_q]; runs do not
    touch.
    """
    count = np.zeros(n_q, int)
    for start, stop in of_q.tolist():
        count[start:stop] += 1
    most, never = int(count.max(initial=0)), np.iinfo(np.int32).max
    low, high = np.full((2, most, n_q), never, np.int64)
    count[:] = 0
    for (q_first, q_end), (k_first, k_end), kind in zip(
        of_q.tolist(), of_k.tolist(), kinds.tolist(), strict=True
    ):
        query = np.arange(q_first, min(q_end, n_q))
        later = 0 * query if kind in (FULL, CAUSAL) else query - q_first
        earlier = 0 * query if kind in (FULL, INVERSE_CAUSAL) else q_end - 1 - query
        first, end = k_first + later, k_end - earlier
        low[count[query], query] = np.where(first < end, first, never)
        high[count[query], query] = np.where(first < end, end, never)
        count[query] += 1
    order = np.argsort(low, 0, kind="stable")
    low, high = np.take_along_axis(low, order, 0), np.take_along_axis(high, order, 0)
    every, run = np.arange(n_q), np.full(n_q, -1)
    bounds = np.zeros((2, most + 1, n_q), np.int64)
    for first, end in zip(low, high, strict=True):
        new = (first < never) & ((run < 0) | (first > bounds[1, run, every]))
        run = run + new
        at = run.clip(min=0)
        bounds[0, at, every] = np.where(new, first, bounds[0, at, every])
        end = np.where(first < never, end, 0)
        bounds[1, at, every] = np.where(new, end, np.maximum(bounds[1, at, every], end))
    runs = int(run.max(initial=0) + 1)
    if runs > _MAX_RUNS:
        wanted = f"at most {_MAX_RUNS} runs of keys for each query"
        raise BadRanges("k_ranges", wanted, f"{runs} for query {run.argmax()}", at="k_ranges")
    room = 1 << (runs - 1).bit_length()
    kept = np.zeros((room, 2, n_q), np.int32)
    kept[:runs] = bounds[:, :runs].swapaxes(0, 1)
    return kept.reshape(2 * room, n_q)


def _watched(x: Any) -> Any:
    """Return an array that traced values can index; NumPy arrays are wrapped, tensors are not."""
    return x.view(WatchedArray) if isinstance(x, np.ndarray) else x


def _integers(x: Any, name: str) -> Any:
    """Return an array of integers; a list or a number becomes one.

    Raises:
        BadRanges: no integers.
    """
    refuse_masked(x, name)
    if torch_of(x) is not None:
        whole = not (x.is_floating_point() or x.is_complex())
    else:
        x = x if hasattr(x, "shape") else np.asarray(x)
        whole = x.dtype.kind in "iu"
    if not whole:
        raise BadRanges(name, "integers", str(x.dtype), at=name)
    return x


def _on_host(x: Any, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Check integers of a shape, in which None allows any length.

    Raises:
        BadRanges: others.
    """
    refuse_masked(x, name)
    given = np.asarray(x.cpu() if torch_of(x) is not None else x)
    given = given.reshape(0, *shape[1:]) if not given.size else _integers(given, name)
    wrong = (b not in (None, a) for a, b in zip(given.shape, shape, strict=False))
    if given.ndim != len(shape) or any(wrong):
        wanted = f"of shape [slices{', 2' if len(shape) == 2 else ''}]"
        raise BadRanges(name, wanted, list(given.shape), at=name)
    return given.astype(np.int64)
