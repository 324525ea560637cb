"""Masks as boolean matrices on a device, and attention by them that needs no kernel of its own.

A study looks at a hundred masks for a second each: to build a hundred kernels would take longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from maskc.api import attention
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import Algebra, TopK, selects
from maskc.ir.names import declared_names
from maskc.lab.evaluate.best_masks import Queries, block_of, can_select, combined, selected
from maskc.lab.evaluate.tensors import placed, torch_module

_ROWS = 1024
"""Queries that are computed together: only the keys that one of them sees are read."""
_ALIGN = 16
"""Keys of a part are a multiple of this: fused kernels of torch want aligned rows of a mask."""
_HELD = 1 << 34
"""Bytes of matrices that are kept on the device."""
_PARTS_HELD = 1 << 26
"""Pairs of masks whose parts are kept: parts that were made again would stop a GPU each time."""


class Matrices:
    """Masks of square problems as matrices, each made once; those of data once for the same arrays.

    Args:
        device: where they lie; the CPU when None.
    """

    def __init__(self, device: object = None) -> None:
        self.device = "cpu" if device is None else device
        self._bits: dict[tuple[Mask, int], np.ndarray] = {}
        self._made: dict[tuple[Mask, int], Any] = {}
        self._of_data: dict[tuple[Mask, int], tuple[dict[str, Any], Any]] = {}
        self._parts: dict[tuple[Mask, int, Any], list[_Part]] = {}

    def give(self, mask: Mask, n: int, bits: np.ndarray) -> None:
        """A matrix that was made elsewhere: uint8 [n, ceil(n / 8)], as `packed` gives it."""
        self._bits[mask, n] = bits

    def of(self, mask: Mask, n: int) -> Any:
        """bool [n, n] on the device.

        Raises:
            MaskcError: as `Mask.dense`.
        """
        torch = torch_module()
        matrix = self._made.get((mask, n))
        if matrix is None:
            bits = self._bits.get((mask, n))
            if bits is not None:
                matrix = _unpacked(torch.from_numpy(bits).to(self.device), n)
            elif isinstance(mask, Algebra):
                matrix = combined(mask.op, self.of(mask.left, n), self.of(mask.right, n))
            else:
                matrix = torch.from_numpy(np.ascontiguousarray(mask.dense(n))).to(self.device)
            while self._made and (len(self._made) + 1) * n * n > _HELD:
                self._made.pop(next(iter(self._made)))
            self._made[mask, n] = matrix
        return matrix

    def attention(
        self, q: Any, k: Any, v: Any, mask: Mask, *, scale: float | None = None,
        softcap: float | None = None, sink_logits: Any = None, score: Any = None,
        dropout_p: float = 0.0, layer: int | None = None, **data: object,
    ) -> Any:  # fmt: skip
        """Attention as `maskc.attention` computes it, by torch.

        Selections that `can_select` does not know, scores, soft caps, sinks and dropout go to
        maskc.

        Args:
            q: [B, Hq, N, D]; k: [B, Hkv, N, D]; v: [B, Hkv, N, Dv], one float type.
            mask: the same for all heads.
            scale, softcap, sink_logits, score, dropout_p, data: as `maskc.attention`.
            layer: of a model; it changes nothing here.

        Returns:
            [B, Hq, N, Dv]; zeros in rows without a key.
        """
        torch = torch_module()
        n = q.shape[2]
        read = {name: data.pop(name) for name in declared_names(mask) & data.keys()}
        more = {"softcap": softcap, "sink_logits": sink_logits, "score": score, **data}
        more = {name: value for name, value in more.items() if value is not None}
        if more or dropout_p or n != k.shape[2] or not can_select(mask):
            call: Any = attention
            return call(q, k, v, mask, scale=scale, dropout_p=dropout_p, **more, **read)
        if selects(mask):
            lots = enumerate(zip(q.split(1), k.split(1), v.split(1), strict=True))
            return torch.cat([self._selected(*lot, mask, scale, read, b) for b, lot in lots])
        if read:
            keep = self._read(mask, n, read)
            return _under(keep if keep.ndim == 2 else keep[:, None], q, k, v, scale)
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        out = q.new_zeros((*q.shape[:3], v.shape[-1]))
        for part in self._parts_of(mask, n, q.dtype):
            if part.bias is None:
                continue
            keys, values = (x.index_select(2, part.keys) for x in (k, v))
            rows = slice(part.first, part.last)
            dense_out = torch.nn.functional.scaled_dot_product_attention(
                q[:, :, rows], keys, values, attn_mask=part.bias, scale=scale
            )
            out[:, :, rows] = dense_out.masked_fill(part.empty, 0) if part.any_empty else dense_out
        return out

    def _read(self, mask: Mask, n: int, data: Mapping[str, Any]) -> Any:
        """bool [n, n], or [B, n, n] of arrays with a row for each sequence."""
        torch = torch_module()
        names = declared_names(mask) & data.keys()
        if not names:
            return self.of(mask, n)
        if isinstance(mask, Algebra):
            left, right = (self._read(operand, n, data) for operand in (mask.left, mask.right))
            return combined(mask.op, left, right)
        data_read = {name: data[name] for name in names}
        before, keep = self._of_data.get((mask, n), ({}, None))
        if keep is None or any(before[name] is not value for name, value in data_read.items()):
            arrays: Any = {name: placed(value, "cpu") for name, value in data_read.items()}
            whole = np.ascontiguousarray(mask.dense(n, **arrays))
            keep = torch.from_numpy(whole).to(self.device)
            self._of_data[mask, n] = data_read, keep
        return keep

    def _selected(
        self, q: Any, k: Any, v: Any, mask: Mask, scale: float | None, data: Mapping[str, Any],
        batch: int,
    ) -> Any:  # fmt: skip
        """Attention of one sequence under a mask that selects keys."""
        torch = torch_module()
        n, out = q.shape[2], []

        def made(part: Mask) -> Any:
            keep = self._read(part, n, data)
            return keep if keep.ndim == 2 else keep[batch if len(keep) > 1 else 0]

        def cut(keys: slice, part: Mask) -> Any:
            return made(part)[..., keys]

        below = leaves({"": mask})
        for first in range(0, n, _ROWS):
            last = min(n, first + _ROWS)
            rows = [made(leaf)[..., first:last, :] for leaf in below]
            keys = slice(_width(rows) if not _ROWS % block_of(mask) else n)
            with torch.no_grad():
                few = Queries(q[0], k[0, :, keys], first, last)
                keep = selected(mask, partial(cut, keys), few)
            out.append(_under(keep, q[:, :, first:last], k[:, :, keys], v[:, :, keys], scale))
        return torch.cat(out, dim=2)

    def _parts_of(self, mask: Mask, n: int, dtype: Any) -> list[_Part]:
        """The parts of as many masks as fit: of short sequences all, of long ones the last."""
        key = mask, n, dtype
        if key not in self._parts:
            made = list(_parts(self.of(mask, n), dtype))
            while self._parts and (len(self._parts) + 1) * n * n > _PARTS_HELD:
                self._parts.pop(next(iter(self._parts)))
            self._parts[key] = made
        return self._parts[key]


def _width(rows: list[Any]) -> int:
    """Keys up to the last one that a row of bool [..., n] has, to a multiple of `_ROWS`."""
    seen = torch_module().stack([row.flatten(0, -2).any(dim=0) for row in rows]).any(dim=0)
    n, places = len(seen), seen.nonzero()
    return min(n, -(-(int(places[-1]) + 1) // _ROWS) * _ROWS) if len(places) else min(n, _ROWS)


def _under(keep: Any, q: Any, k: Any, v: Any, scale: float | None) -> Any:
    """Attention under booleans [..., queries, keys] that broadcast to the scores."""
    torch = torch_module()
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    bias = torch.zeros(keep.shape, dtype=q.dtype, device=q.device).masked_fill_(~keep, -torch.inf)
    bias = bias.expand(*q.shape[:2], *keep.shape[-2:])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return out.masked_fill(~keep.any(dim=-1, keepdim=True), 0)


class _Part(NamedTuple):
    """Some rows of a matrix, without the columns that are empty in all of them."""

    first: int
    last: int
    keys: Any
    """int64 [columns], padded with repeats."""
    bias: Any
    """[rows, columns] in the type of q: 0, or -inf where a key is hidden; None without a key."""
    empty: Any
    """bool [rows, 1], rows without a key."""
    any_empty: bool


def _parts(keep: Any, dtype: Any) -> Iterator[_Part]:
    torch = torch_module()
    for first in range(0, len(keep), _ROWS):
        rows = keep[first : first + _ROWS]
        last = first + len(rows)
        keys = rows.any(dim=0).nonzero()[:, 0]
        count = len(keys)
        if not count:
            yield _Part(first, last, keys, None, None, True)
            continue
        keys = torch.nn.functional.pad(keys, (0, -count % _ALIGN), value=int(keys[-1]))
        seen = rows[:, keys]
        seen[:, count:] = False
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        bias.masked_fill_(~seen, -torch.inf)
        empty = ~seen.any(dim=1, keepdim=True)
        yield _Part(first, last, keys, bias, empty, bool(empty.any()))


def packed(mask: Mask, n: int) -> np.ndarray:
    """uint8 [n, ceil(n / 8)], the bits of the mask's matrix: what other processes send."""
    return np.packbits(mask.dense(n), axis=-1, bitorder="little")


def leaves(masks: Mapping[str, Mask]) -> list[Mask]:
    """The masks without children that the given ones are made of, each once."""

    def below(mask: Mask) -> Iterator[Mask]:
        if isinstance(mask, (Algebra, TopK)):
            for child in mask.children:
                yield from below(child)
        else:
            yield mask

    return list(dict.fromkeys(leaf for mask in masks.values() for leaf in below(mask)))


def _unpacked(bits: Any, n: int) -> Any:
    torch = torch_module()
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[..., None] >> shifts) & 1).flatten(1)[:, :n].bool()
