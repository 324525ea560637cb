"""Attention weights as a raster of cells: softmax of q and k under a mask, computed in blocks of
rows and reduced to at most 256 cells a side.

A cell holds the mean, or the maximum, of the weights of its pairs that the mask keeps. A cell
without such a pair is masked, which is not the same as a weight of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.errors import BadWeightTensors, NoSuchWeights, TooManyWeights, WeightsNotFinite
from maskc.core.svg import sums
from maskc.driver import selects
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK, walk
from maskc.ir.heads import written_heads
from maskc.layout import check_lengths
from maskc.questions.lengths import fixed_lengths
from maskc.viz.made_scores import made_tensors, with_scores
from maskc.viz.shown_lengths import showing
from maskc.viz.view import ViewSpan, views

CELLS = 256
"""The most cells in a row or a column."""
_LONGEST = 512
"""Default limit on queries and keys of synthetic tensors: larger masks take longer."""
_MAX = 1 << 28
"""Pairs that are computed, at most: some seconds."""
_MAX_SELECTED = 1 << 24
"""Pairs of a mask that selects keys, which ranks all of them at once."""
_AT_ONCE = 1 << 22
"""Pairs in memory at once."""
REDUCTIONS = ("mean", "max")

Rows = Callable[[int, int], np.ndarray]
"""bool [stop - start, n_kv] of the queries start .. stop - 1: the pairs that the mask keeps."""


@dataclass(frozen=True, eq=False)
class WeightCells:
    """Weights reduced to the cells of a drawing."""

    values: np.ndarray
    """float64 [rows, columns]: mean or maximum of the weights of kept pairs; 0 where masked."""
    masked: np.ndarray
    """bool [rows, columns]: the mask keeps no pair of the cell."""
    covers: tuple[int, int]
    """Queries and keys per cell; the last cells may have fewer."""


@dataclass(frozen=True, eq=False)
class WeightMap:
    """The attention weights of one head, for drawing; `Mask.weights` makes one.

    It shows itself in a notebook, `print` draws it as text, and `save` writes a PNG or SVG file.
    """

    name: str
    formula: str
    n_q: int
    n_kv: int
    head: int
    sequence: int
    source: str
    """Where q and k come from."""
    reduce: str
    """`mean` or `max`."""
    unit: tuple[int, int]
    """Queries and keys per entry of the rasters."""
    total: np.ndarray
    """float64 [rows, columns]: sum of the weights of each entry."""
    kept: np.ndarray
    """int64 [rows, columns]: pairs that the mask keeps."""
    largest: np.ndarray
    """float64 [rows, columns]: largest weight of each entry."""

    def cells(self, rows: int = CELLS, columns: int = CELLS) -> WeightCells:
        """Return the weights in at most rows x columns cells."""
        down, right = (
            max(1, -(-size // most))
            for size, most in zip(self.total.shape, (rows, columns), strict=True)
        )
        kept = sums(self.kept, down, right)
        if self.reduce == "max":
            values = _maxima(self.largest, down, right)
        else:
            values = np.divide(
                sums(self.total, down, right), kept, out=np.zeros_like(kept), where=kept > 0
            )
        return WeightCells(values, kept == 0, (down * self.unit[0], right * self.unit[1]))

    @property
    def caption(self) -> str:
        """Describe the picture in a sentence or two."""
        where = f"{self.n_q} queries x {self.n_kv} keys, head {self.head}"
        if self.sequence:
            where += f", sequence {self.sequence}"
        return f"{where}; {self.source}"

    def __str__(self) -> str:
        from maskc.viz.weight_drawings import text

        return text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from maskc.viz.weight_drawings import html

        return html(self)

    def save(self, path: object) -> None:
        """Draw the heatmap into a file.

        Args:
            path: *.png or *.svg.

        Raises:
            UsageMistake: another suffix (MC603).
            ExtraMissing: matplotlib is not installed (MC507).
            OSError: the file cannot be written.
        """
        from maskc.viz.weight_drawings import save

        save(self, str(path))


def weights(
    mask: Mask,
    n_q: int | None = None,
    n_kv: int | None = None,
    *,
    q: object = None,
    k: object = None,
    name: str = "mask",
    head: int = 0,
    sequence: int = 0,
    n_heads: int | None = None,
    scale: float | None = None,
    reduce: str = "mean",
    data: Mapping[str, object] | None = None,
    seed: int = 0,
) -> WeightMap:
    """Compute the attention weights of one head in float64; see `Mask.weights`."""
    if reduce not in REDUCTIONS:
        raise NoSuchWeights("reduction", repr(reduce), "'mean' and 'max'", at="reduce")
    if (q is None) != (k is None):
        raise BadWeightTensors(f"only {'k' if q is None else 'q'} was given", at="q")
    if q is None:
        if n_q is None:
            n_q, n_kv = weight_lengths(mask, n_heads)
        n_kv = n_q if n_kv is None else n_kv
        source = f"synthetic q and k, seed {seed}"
    else:
        of_q, of_k = _checked(q, k, n_q, n_kv)
        n_q, n_kv = of_q.shape[2], of_k.shape[2]
        source = "given q and k"
    n_q, n_kv = check_lengths(n_q, n_kv)
    most = _MAX_SELECTED if selects(mask) else _MAX
    if n_q * n_kv > most:
        raise TooManyWeights(n_q, n_kv, f"{most:,}", at="n")
    if q is None:
        of_q, of_k = made_tensors(n_q, n_kv, seed)
    heads = n_heads or (of_q.shape[1] if of_q.shape[1] > 1 else written_heads(mask))
    _check_index("head", head, max(heads or 1, of_q.shape[1]))
    _check_index("sequence", sequence, of_q.shape[0] if of_q.shape[0] > 1 else sequence + 1)
    read: dict[str, object] = dict(data or {})
    notes: list[str] = []
    if selects(mask):
        rows, notes = _selected(mask, of_q, of_k, heads, head, sequence, read, seed)
    else:
        rows = _kept(mask, n_q, n_kv, heads, head, sequence, read)
    formula = f"{mask} ({', '.join(notes)})" if notes else str(mask)
    one_q = of_q[min(sequence, len(of_q) - 1), min(head, of_q.shape[1] - 1)]
    group = max(1, of_q.shape[1] // of_k.shape[1])
    one_k = of_k[min(sequence, len(of_k) - 1), min(head // group, of_k.shape[1] - 1)]
    scale = one_q.shape[1] ** -0.5 if scale is None else scale
    unit = max(1, -(-n_q // CELLS)), max(1, -(-n_kv // CELLS))
    rasters = _rasters(one_q, one_k, rows, scale, unit)
    return WeightMap(name, formula, n_q, n_kv, head, sequence, source, reduce, unit, *rasters)


# ------------------------------------------------------------------ what is asked for


def weight_lengths(
    mask: Mask, n_heads: int | None = None, params: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Return the default numbers of queries and keys of a heatmap, at most 512."""
    n_q, n_kv = showing(mask, n_heads or written_heads(mask), params)
    if fixed_lengths(mask):
        return n_q, n_kv
    return min(n_q, _LONGEST), min(n_kv, _LONGEST)


def tensor_lengths(q: object, k: object) -> tuple[int, int] | None:
    """The rows of q and k; None if one is missing or has too few dimensions."""
    if q is None or k is None:
        return None
    of_q, of_k = np.shape(np.asarray(q)), np.shape(np.asarray(k))
    return (of_q[-2], of_k[-2]) if min(len(of_q), len(of_k)) > 1 else None


def _checked(
    q: object, k: object, n_q: int | None, n_kv: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return q and k with dimensions for sequences and heads, in float64.

    Raises:
        BadWeightTensors: their shapes do not fit each other or the lengths (MC751).
    """
    tensors = []
    for label, value in (("q", q), ("k", k)):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub" or array.ndim not in (2, 3, 4) or 0 in array.shape:
            shape = f"{label} has shape {array.shape} and dtype {array.dtype}"
            raise BadWeightTensors(shape, at=label)
        tensors.append(array.astype(np.float64).reshape((1,) * (4 - array.ndim) + array.shape))
    one, other = tensors
    if one.shape[3] != other.shape[3] or one.shape[0] != other.shape[0]:
        raise BadWeightTensors(f"q has shape {one.shape}, k {other.shape}", at="k")
    if one.shape[1] % other.shape[1]:
        raise BadWeightTensors(f"{one.shape[1]} heads of q, {other.shape[1]} of k", at="k")
    for label, array, length in (("q", one, n_q), ("k", other, n_kv)):
        if length is not None and array.shape[2] != length:
            what = f"{label} has {array.shape[2]} rows, and {length} were asked for"
            raise BadWeightTensors(what, at=label)
    return one, other


def _check_index(what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise NoSuchWeights(what, index, count, at=what)


def _kept(
    mask: Mask, n_q: int, n_kv: int, heads: int | None, head: int, sequence: int,
    data: Mapping[str, object],
) -> Rows:  # fmt: skip
    span = ViewSpan(0, n_q, 0, n_kv)
    by_heads = views(mask, n_q, n_kv, span, n_heads=heads, batch=sequence, data=data).by_heads
    view = next(view for heads_of, view in by_heads.items() if not heads_of or head in heads_of)
    return view.elements


def _selected(
    mask: Mask, q: np.ndarray, k: np.ndarray, heads: int | None, head: int, sequence: int,
    data: dict[str, object], seed: int,
) -> tuple[Rows, list[str]]:  # fmt: skip
    """The pairs of a mask that selects keys by these q and k, or by scores; notes for a caption."""
    n_q, n_kv = q.shape[2], k.shape[2]
    if q.shape[1] == 1 and heads:  # one head of q and k serves all
        q = np.broadcast_to(q, (len(q), heads, *q.shape[2:]))
    by = {node.score for node in walk(mask) if isinstance(node, TopK)}
    by_tensors = by <= {"qk", "block_mean"}  # q and k rank; nothing else is needed
    read, notes = (data, ()) if by_tensors else with_scores(mask, n_q, n_kv, data, seed)
    tensors: dict[str, object] = {"q": q, "k": k} if by & {"qk", "block_mean"} else {}
    many: dict[str, object] = {"n_heads": heads, "heads_kv": k.shape[1]} if heads else {}
    kept = mask.dense(n_q, n_kv, **many, **tensors, **read)  # type: ignore[arg-type]
    kept = kept.reshape((1,) * (4 - kept.ndim) + kept.shape)
    one = kept[min(sequence, len(kept) - 1), min(head, kept.shape[1] - 1)]
    return lambda start, stop: one[start:stop], list(notes)


# ------------------------------------------------------------------ weights


def _rasters(
    q: np.ndarray, k: np.ndarray, rows: Rows, scale: float, unit: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of weights, numbers of kept pairs and largest weights of all entries."""
    down, right = unit
    n_q, n_kv = len(q), len(k)
    step = max(1, _AT_ONCE // n_kv // down) * down
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for start in range(0, n_q, step):
        stop = min(start + step, n_q)
        kept = rows(start, stop)
        with np.errstate(invalid="ignore", over="ignore"):
            shares = softmax(scale * (q[start:stop] @ k.T), kept)
        wrong = np.flatnonzero(~np.isfinite(shares).all(axis=1))
        if len(wrong):
            raise WeightsNotFinite(start + int(wrong[0]), at="q")
        parts.append((
            sums(shares, down, right), sums(kept, down, right).astype(np.int64),
            _maxima(shares, down, right),
        ))  # fmt: skip
    total, counts, largest = (np.concatenate(part) for part in zip(*parts, strict=True))
    return total, counts, largest


def softmax(scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The weights of each row, float64 [rows, keys]: 0 where the mask keeps no pair; NaN in rows
    with a kept score that is not a finite number."""
    seen = np.where(kept, scores, -np.inf)
    top = np.max(seen, axis=1, keepdims=True)
    empty = ~kept.any(axis=1, keepdims=True)
    powers = np.exp(seen - np.where(empty, 0.0, top))
    shares: np.ndarray = powers / np.where(empty, 1.0, powers.sum(axis=1, keepdims=True))
    shares[(kept & ~np.isfinite(scores)).any(axis=1)] = np.nan
    return shares


def _maxima(numbers: np.ndarray, down: int, right: int) -> np.ndarray:
    """The largest number of each block of down x right entries; the last blocks may be smaller."""
    rows, columns = (
        np.arange(0, n, step) for n, step in zip(numbers.shape, (down, right), strict=True)
    )
    by_row = np.maximum.reduceat(numbers, rows, axis=0)
    largest: np.ndarray = np.maximum.reduceat(by_row, columns, axis=1)
    return largest
