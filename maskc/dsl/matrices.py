"""Masks from matrices: `from_bool` for booleans, `from_block_mask` for FlexAttention's BlockMask.

Both become formulas over small captured arrays. Captured arrays are data, so another matrix of the
same shape uses the same kernel. The masks are valid at the lengths of the matrix only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import Lengths
from maskc.core.errors import BadMatrix, HeadsUnknown, MaskcError, SequencesUnknown
from maskc.core.jax_arrays import is_jax_array, jax_values
from maskc.core.source import SourceLoc, caller, outside
from maskc.core.tensors import refuse_masked
from maskc.dsl import nodes
from maskc.dsl.bit_tiles import TILE, tiles_of
from maskc.dsl.collect import mistake
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.slots import emptied
from maskc.dsl.tables import BATCH, capturing, read
from maskc.dsl.traced import Traced
from maskc.dsl.tracer import from_mask_mod, numbered


class DenseWarning(UserWarning):
    """A matrix masks so few pairs that dense attention would be as fast."""


_DENSE = 0.75
"""The share of live tiles above which skipping the others gains next to nothing."""

_Q, _K, _H, _B = (Traced(index) for index in (E.Q, E.K, E.H, BATCH))


def _where(formula: Callable[[], Any], lengths: Lengths, at: SourceLoc | None) -> Mask:
    """The mask of a formula over captured arrays."""
    with capturing() as registry:
        traced = formula()
    expr, tables = numbered(traced.expr, registry)
    return nodes.Where(expr, tables, lengths, loc=at)


def _element(array: np.ndarray, *indices: Traced) -> Any:
    """Read array[b, h, *indices]; a dimension of sequences or heads of size 1 broadcasts."""
    index: list[Traced] = list(indices)
    for axis, which in ((1, _H), (0, _B)):
        if array.shape[axis] == 1:
            array = array.squeeze(axis)
        else:
            index.insert(0, which)
    return read(array, tuple(index))


# ------------------------------------------------------------------ matrices of booleans


def from_bool(matrix: object) -> Mask:
    """Make a mask from a matrix of booleans, True where the query sees the key.

    The matrix is compressed. If each query sees one interval of keys (causal, windows, padding,
    sorted documents), its bounds are stored. Otherwise blocks of 64 x 64 are stored, and equal
    partial blocks only once. The mask holds at the lengths of the matrix only; a dimension of 1
    broadcasts, as in scaled_dot_product_attention.

    Args:
        matrix: booleans, NumPy, JAX or torch on any device: [n_q, n_kv], [heads, n_q, n_kv] or
            [sequences, heads, n_q, n_kv].

    Returns:
        The mask.

    Raises:
        BadMatrix: it has another rank or element type (MC127).
        MaskedValues: it is a masked array of NumPy with masked entries (MC444).
        NotTraced: JAX traces it (MC481).

    Warns:
        DenseWarning: so many blocks have pairs that dense attention would be as fast.
    """
    at = caller()
    try:
        given = _four_dimensions(matrix, at)
    except MaskcError as error:
        return mistake(error, nodes.Full(loc=at))
    n_q, n_kv = given.shape[2:]
    lengths = (None if n_q == 1 else n_q, None if n_kv == 1 else n_kv)
    if None in lengths:
        return _where(lambda: _of_vector(given), lengths, at)
    kinds, tiles = tiles_of((given,))
    live = float((kinds > 0).mean())
    if live > _DENSE:
        warnings.warn(
            f"from_bool: {live:.0%} of the blocks of {TILE} x {TILE} have pairs, so dense "
            "attention, such as scaled_dot_product_attention with the matrix, would be as fast",
            DenseWarning,
            stacklevel=outside(),
        )
    low, high, one_run = _runs(given)
    if one_run and live:
        return _where(lambda: (_element(low, _Q) <= _K) & (_element(high, _Q) > _K), lengths, at)
    return _where(lambda: _of_tiles(kinds, tiles), lengths, at)


def _four_dimensions(matrix: Any, at: SourceLoc | None) -> np.ndarray:
    """Booleans [sequences or 1, heads or 1, n_q, n_kv].

    Raises:
        BadMatrix, MaskedValues, NotTraced.
    """
    matrix = _on_host(matrix, at)
    shape = tuple(getattr(matrix, "shape", ()))
    if not isinstance(matrix, np.ndarray) or matrix.dtype != bool:
        dtype = getattr(matrix, "dtype", None)
        finding = type(matrix).__name__ if dtype is None else f"{dtype} of shape {shape}"
        raise BadMatrix("from_bool", finding, _compared(str(dtype)), at=at)
    if not matrix.size:
        raise BadMatrix("from_bool", f"shape {shape}", "mc.full() has no lengths", at=at)
    if not 2 <= matrix.ndim <= 4:
        hint = 'a vector over keys is mc.flags("keep"), called with keep=vector'
        raise BadMatrix("from_bool", f"shape {shape}", hint, at=at)
    return matrix.reshape((1,) * (4 - matrix.ndim) + matrix.shape)


def _on_host(matrix: Any, at: SourceLoc | None) -> Any:
    """Return the array of NumPy; what is no array, and a tensor that holds no booleans, stays.

    Raises:
        BadMatrix, MaskedValues, NotTraced.
    """
    refuse_masked(matrix, "the matrix", at)
    if hasattr(matrix, "detach"):
        if "strided" not in str(matrix.layout):
            finding, hint = f"a tensor of layout {matrix.layout}", "matrix.to_dense() is one"
            raise BadMatrix("from_bool", finding, hint, at=at)
        return matrix.numpy(force=True) if str(matrix.dtype) == "torch.bool" else matrix
    if hasattr(matrix, "get") and hasattr(matrix, "__cuda_array_interface__"):
        return matrix.get()
    if hasattr(matrix, "toarray"):  # SciPy
        finding = f"a sparse {type(matrix).__name__}"
        raise BadMatrix("from_bool", finding, "matrix.toarray() is one", at=at)
    if is_jax_array(matrix):
        return jax_values("the matrix of from_bool", matrix, at)
    if isinstance(matrix, (list, tuple, np.ndarray)) or hasattr(matrix, "to_numpy"):
        try:
            return np.asarray(matrix)
        except ValueError:
            hint = "all rows need as many entries: one for each key"
            raise BadMatrix("from_bool", "rows of different lengths", hint, at=at) from None
    return matrix


def _compared(dtype: str) -> str:
    """The hint for a matrix of another element type."""
    if "int" in dtype:
        return "True keeps a pair; compare first: matrix != 0 keeps the pairs of ones"
    return "True keeps a pair; compare first, as in matrix == 0 for a bias of 0 and -inf"


def _of_vector(given: np.ndarray) -> Any:
    """Return the mask of a matrix with one row for all queries, or one column for all keys."""
    indices = [index for axis, index in ((2, _Q), (3, _K)) if given.shape[axis] > 1]
    gone = tuple(axis for axis in (2, 3) if given.shape[axis] == 1)
    element = _element(given.squeeze(gone), *indices) if indices or given.size > 1 else None
    return Traced(E.Truth(bool(given.item()))) if element is None else element


def _runs(given: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the first kept key, the end of the last one, and whether all keys between are kept."""
    n_kv, count = given.shape[-1], given.sum(-1)
    low = np.where(count, given.argmax(-1), 0)
    high = np.where(count, n_kv - given[..., ::-1].argmax(-1), 0)
    return low, high, bool((high - low == count).all())


def _of_tiles(kinds: np.ndarray, tiles: np.ndarray) -> Any:
    number = _element(kinds, _Q // TILE, _K // TILE)
    if len(tiles) == 2:
        return number == 1
    rows = tiles.reshape(-1, TILE)
    pair = read(rows, (number * TILE + _Q % TILE, _K % TILE))
    return (number >= 1) & ((number == 1) | pair)


# ------------------------------------------------------------------ FlexAttention's BlockMask

_LARGEST = 65536
"""The largest side of a layout's tile."""


@dataclass(frozen=True)
class _Blocks:
    """Blocks of a BlockMask, booleans [sequences, heads, rows, columns]."""

    partial: np.ndarray
    full: np.ndarray
    size: tuple[int, int]
    lengths: tuple[int, int]

    def only_skips(self, rule: Mask) -> bool:
        """Whether the lists only skip empty blocks: all pairs of the mask_mod are listed, and full
        blocks are full in the mask_mod.
        """
        _, held = emptied(rule)
        try:
            batch, heads = (1, 1) if held is None else held.extents
        except (SequencesUnknown, HeadsUnknown):  # of an evaluated mask_mod
            return False
        sequences, of_heads = self.partial.shape[:2]
        by_head = "h" in E.symbols(rule.formula)  # type: ignore[attr-defined]
        q, k = (max(1, min(pair)) for pair in zip(self.size, self.lengths, strict=True))
        block = q, k
        if (by_head and of_heads == 1) or max(block) > _LARGEST:
            return False
        every = max(heads, of_heads) if by_head or heads > 1 else 1
        for b in range(batch):
            for h in range(every):
                where = {"batch": b} if batch > 1 else {}
                if every > 1:
                    where |= {"head": h, "n_heads": every}
                kinds = rule.layout(*self.lengths, block=block, **where).to_dense()
                sides = (slice(b, b + 1) if 1 < batch <= sequences else slice(None),
                         slice(h, h + 1) if 1 < every <= of_heads else slice(None))  # fmt: skip
                partial, full = self.partial[sides], self.full[sides]
                if (full & (kinds != 2)).any() or ((kinds != 0) & ~partial & ~full).any():
                    return False
        return True


def from_block_mask(block_mask: object) -> Mask:
    """Convert FlexAttention's BlockMask to a mask.

    A pair is kept if its block is listed as full, or if the block is listed as partial and the
    mask_mod keeps the pair. A BlockMask from `create_block_mask` becomes the mask of its mask_mod,
    at all lengths. If the lists leave out or add pairs, they are captured as data, and the mask is
    valid at the lengths of the BlockMask only.

    Args:
        block_mask: a torch.nn.attention.flex_attention.BlockMask, on any device; its lists are
            copied to the host.

    Returns:
        The mask.

    Raises:
        NotAMask: it is something else (MC106).
        NotTraceable, ArgumentOrder: as `from_mask_mod`, of its mask_mod.

    Warns:
        EvaluatedMaskWarning: as `from_mask_mod`.
    """
    at = caller()
    known = ("kv_num_blocks", "kv_indices", "mask_mod", "seq_lengths", "BLOCK_SIZE")
    if isinstance(block_mask, Mask) or not all(hasattr(block_mask, name) for name in known):
        wrong = not_a_mask("from_block_mask", block_mask, at)
        return mistake(wrong, nodes.Full(loc=at))
    rule = from_mask_mod(block_mask.mask_mod)  # type: ignore[attr-defined]
    blocks = _listed(block_mask)
    if not isinstance(rule, nodes.Where) or blocks.only_skips(rule):
        return rule
    kept: Mask | None = None
    if blocks.partial.any():
        kept = _of_blocks(blocks.partial, blocks, at) & rule
    if blocks.full.any() or kept is None:
        full = _of_blocks(blocks.full, blocks, at)
        kept = full if kept is None else kept | full
    return kept


def _listed(block_mask: Any) -> _Blocks:
    n_q, n_kv = map(int, block_mask.seq_lengths)
    size = tuple(map(int, block_mask.BLOCK_SIZE))
    shape = (-(-n_q // size[0]), -(-n_kv // size[1]))
    full = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    partial = _dense(block_mask.kv_num_blocks, block_mask.kv_indices, shape)
    full_blocks = np.zeros_like(partial) if full[0] is None else _dense(*full, shape)
    return _Blocks(partial & ~full_blocks, full_blocks, size, (n_q, n_kv))  # type: ignore[arg-type]


def _dense(counts: Any, columns: Any, shape: tuple[int, int]) -> np.ndarray:
    """Booleans [sequences, heads, *shape]: the first `counts` of each row's columns."""
    counts, columns = (x.numpy(force=True) for x in (counts, columns))
    kept = np.zeros((*counts.shape[:2], *shape), dtype=bool)
    rows = min(shape[0], counts.shape[2])
    taken = np.arange(columns.shape[-1]) < counts[:, :, :rows, None]
    taken &= columns[:, :, :rows] < shape[1]
    b, h, row, place = np.nonzero(taken)
    kept[b, h, row, columns[b, h, row, place]] = True
    return kept


def _of_blocks(table: np.ndarray, blocks: _Blocks, at: SourceLoc | None) -> Mask:
    rows, columns = blocks.size
    return _where(lambda: _element(table, _Q // rows, _K // columns), blocks.lengths, at)
