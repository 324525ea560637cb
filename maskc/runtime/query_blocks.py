"""Blocks of queries over pages: the tensors of one launch, made of those of a step."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from maskc.dispatch.options import Pages
from maskc.layout.paged_step import StepSizes
from maskc.runtime.paged import BLOCK, PageTables, PoolScales
from maskc.runtime.paged_launch import RowMover
from maskc.runtime.paged_rows import as_bytes, converted, is_e4m3


class QueryBlocks(NamedTuple):
    """Which queries each block has, and in which pages its keys lie."""

    sizes: StepSizes
    state: dict[str, Any]
    """Arrays of a step by name, see `layout/paged_step`."""
    torch: Any
    """The library of the arrays; None for NumPy."""
    in_order: bool = False
    """Whether blocks are all rows of q, one after another."""
    mover: RowMover | None = None
    """Copies rows on the GPU; None on the host."""

    @property
    def _moves(self) -> bool:
        """Whether queries are copied into blocks, and results back."""
        return not (self.sizes.whole or self.in_order)

    @property
    def in_rows(self) -> bool:
        """Whether kernels read rows of q, and write results, where they lie."""
        return self.sizes.block == 1 and not self._moves

    def queries(self, q: Any) -> Any:
        """Return the queries [blocks, heads, queries of a block, D] of a call."""
        q = self.gathered(q)
        return self._one_of_each(q) if self.sizes.block == 1 else q

    def gathered(self, q: Any) -> Any:
        """Return the queries as `queries` does, or [blocks, heads, D] if blocks have one each."""
        if self.in_rows:
            return q
        if self.mover is not None:
            q = self.mover.gathered(q)
            return q.squeeze(2) if self.sizes.block == 1 else q
        if self.sizes.block == 1:
            return q[self.state["rows"].reshape(-1)]
        q = self.blocked(q)
        return np.ascontiguousarray(q) if self.torch is None else q.contiguous()

    def blocked(self, x: Any) -> Any:
        """Return rows of q, or their results, [tokens, heads, ...], as [blocks, heads, queries of a
        block, ...]."""
        blocks, block = self.sizes.blocks, self.sizes.block
        if self._moves:
            x = x[self.state["rows"].reshape(-1)]
        if block == 1:
            return self._one_of_each(x)
        return x.reshape(blocks, block, *x.shape[1:]).swapaxes(1, 2)

    def _one_of_each(self, x: Any) -> Any:
        """[blocks, heads, ...] as [blocks, heads, 1, ...]."""
        return x[:, :, None] if self.torch is None else x.unsqueeze(2)  # in a third of the time

    def flattened(self, out: Any, lse: Any) -> tuple[Any, Any]:
        """Return the results of a call in the form of `gathered`, in the same memory."""
        return (out.squeeze(2), lse.squeeze(2)) if self.sizes.block == 1 else (out, lse)

    def rows(self, out: Any, lse: Any) -> tuple[Any, Any]:
        """Return the results of a call for each row of q: out [tokens, heads, D], lse [tokens,
        heads]."""
        return self.of_tokens(*self.flattened(out, lse))

    def of_tokens(self, out: Any, lse: Any, memory: Any = None) -> tuple[Any, Any]:
        """Return what `rows` does, from results in the form of `gathered`; `memory`: where the GPU
        may write out."""
        if self.mover is not None and not self.in_rows:
            if self.sizes.block == 1:
                out, lse = out.unsqueeze(2), lse.unsqueeze(2)
            return self.mover.returned(out, lse, memory)
        if self.sizes.block > 1:
            out, lse = out.swapaxes(1, 2), lse.swapaxes(1, 2)
            out, lse = out.reshape(-1, *out.shape[2:]), lse.reshape(-1, lse.shape[2])
        if not self._moves:
            return out, lse
        places, real = self.state["places"], self.state["is_real"][:, None]
        zero = out.dtype.type(0) if self.torch is None else 0
        where = np.where if self.torch is None else self.torch.where
        out = where(real[..., None], out[places], zero)
        return out, where(real, lse[places], -math.inf if self.torch else np.float32(-np.inf))

    def in_pages(self, k_pool: Any, v_pool: Any, scales: PoolScales) -> tuple[Any, Any, PageTables]:
        """Return k and v [blocks, heads, keys, D] without places, and where their pages are.

        Args:
            k_pool, v_pool: [pages, heads, page_size, D].
            scales: of the pools.
        """
        views, steps = [], []
        for pool in (k_pool, v_pool):
            page, head, token, dim = steps_of(pool)
            shape = (self.sizes.blocks, pool.shape[1], self.sizes.n_kv, pool.shape[3])
            views.append(_laid(pool, shape, (0, head, 0, dim)))
            steps.append((page, head, token))
        held = tuple(self.state[name] for name in ("pages", "first_page", "key_count"))
        block = BLOCK.pack(*map(address, held), k_pool.shape[0])
        block, held = block + scales.block, (*held, scales)
        return views[0], views[1], PageTables(Pages(k_pool.shape[0], *steps), block, held)

    def copied(self, pool: Any, like: Any, scale: Any) -> Any:
        """Return the rows of a pool [pages, heads, page_size, D] one after another for each block:
        [blocks, heads, keys, D] in the dtype of `like`, zeros where a block has no key."""
        torch, size, state = self.torch, self.sizes.page_size, self.state
        where = np.where if torch is None else torch.where
        if torch is None:
            key = np.arange(self.sizes.n_kv)
        else:
            key = torch.arange(self.sizes.n_kv, device=state["pages"].device)
        there = key[None] < state["key_count"][:, None]
        entry = state["first_page"][:, None] + key[None] // size
        entries = state["pages"]
        if not entries.shape[0]:
            entries, there = key[:1], there & False
        page = entries[where(there, entry, 0)]
        there = there & (page >= 0) & (page < pool.shape[0])
        if not pool.shape[0]:
            pool = pool.reshape(1, pool.shape[1], size, pool.shape[3])
        rows = as_bytes(pool).swapaxes(1, 2)[where(there, page, 0), (key % size)[None]]
        if is_e4m3(pool):
            rows = rows.view(pool.dtype)
        rows = converted(rows, like, self._of_blocks(scale))
        zero = rows.dtype.type(0) if torch is None else 0
        return where(there[..., None, None], rows, zero).swapaxes(1, 2)

    def _of_blocks(self, scale: Any) -> Any:
        """A scale as a factor of rows [blocks, keys, heads, D]; arrays of two dimensions are by
        sequence."""
        if not hasattr(scale, "shape") or len(scale.shape) != 2:
            return scale
        if self.torch is not None:
            scale = scale.to(self.state["pages"].device)
        owner = self.state.get("owner")
        return (scale if owner is None else scale[owner])[:, None, :, None]


def address(x: Any) -> int:
    """The address of an array of torch or NumPy."""
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def steps_of(x: Any) -> tuple[int, ...]:
    """Elements from one entry to the next along each dimension."""
    if isinstance(x, np.ndarray):
        return tuple(step // x.itemsize for step in x.strides)
    strides: tuple[int, ...] = x.stride()
    return strides


def _laid(x: Any, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """An array at the same address with another shape and other steps."""
    if isinstance(x, np.ndarray):
        strides = [step * x.itemsize for step in steps]
        return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)
    return x.as_strided(shape, steps)
