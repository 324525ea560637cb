"""Rows of new tokens, and the pages into which they are written."""

from __future__ import annotations

from typing import Any, NamedTuple

from maskc.core.dtypes import dtype_name
from maskc.core.tensors import torch_of
from maskc.runtime.arrays.known import to_fp32
from maskc.runtime.paged_launch import FLOAT_CODES, ROWS, ArgumentBlock, PageKernels
from maskc.runtime.paged_rows import Rotary, append, is_e4m3, stored


class NewRows(NamedTuple):
    """Rows of new tokens; pools are [pages, page_size, heads, D]."""

    q: Any
    """None if there are none."""
    k: Any
    v: Any
    k_pool: Any
    v_pool: Any
    slots: Any
    """Integers [tokens]: page * page_size + token of the page, -1 for rows that go nowhere."""
    positions: Any
    """Integers [tokens], which a rotary embedding reads."""
    rotary: Rotary | None
    k_scale: Any
    v_scale: Any

    def write(self, kernels: PageKernels | None) -> Any:
        """Write keys and values into the pools: one launch of the kernels, or array operations
        without kernels.

        Returns:
            The queries, turned by the rotary embedding.
        """
        if kernels is not None:
            return self._launch(kernels)
        k, q = to_fp32(self.k), self.q
        if self.rotary is not None:
            k = self.rotary.turned(k, self.positions)
            if q is not None:
                q = stored(self.rotary.turned(to_fp32(q), self.positions), self.q, 1.0)
        append(self.k_pool, k, self.slots, self.k_scale)
        append(self.v_pool, self.v, self.slots, self.v_scale)
        return q

    def _launch(self, kernels: PageKernels) -> Any:
        torch: Any = torch_of(self.k)
        block = ArgumentBlock(ROWS)
        to = block.members
        q = None if self.q is None else torch.empty_like(self.q)
        pools = q, self.k_pool, self.v_pool
        for kind, (source, into) in enumerate(zip((self.q, self.k, self.v), pools, strict=True)):
            if source is None:
                continue
            to.source[kind], to.to[kind] = source.data_ptr(), into.data_ptr()
            to.source_step[2 * kind : 2 * kind + 2] = source.stride()[:2]
            page, *inside = into.stride()[:-1]
            if kind:  # [pages, page_size, heads, D]
                to.to_step[3 * kind : 3 * kind + 3] = (page, inside[1], inside[0])
            else:
                to.to_step[:3] = (page, inside[0], 0)
            to.heads[kind], to.dim[kind] = source.shape[1:]
            to.to_code[kind] = FLOAT_CODES[dtype_name(into)]
        held = []
        to.number[:] = 1.0, 1.0, 1.0
        for kind, scale in ((1, self.k_scale), (2, self.v_scale)):
            if hasattr(scale, "shape"):
                held.append(scale.to(self.k.device, torch.float32).reshape(-1))
                to.scale[kind] = held[-1].data_ptr()
                to.scale_step[kind] = held[-1].shape[0] > 1
            elif is_e4m3(pools[kind]):
                to.number[kind] = scale
        to.slots = self.slots.data_ptr()
        to.source_code, to.tokens = FLOAT_CODES[dtype_name(self.k)], self.k.shape[0]
        to.page_count, to.page_size = self.k_pool.shape[:2]
        if self.rotary is not None:
            cosine, sine, to.interleaved = self.rotary
            to.token_position = self.positions.data_ptr()
            to.cosine, to.sine = cosine.data_ptr(), sine.data_ptr()
            to.lines, to.line_step = cosine.shape[0], cosine.stride(0)
            to.rotated, to.angle_code = 2 * cosine.shape[1], FLOAT_CODES[dtype_name(cosine)]
        kernels.append(block)
        torch.autograd.graph.increment_version((self.k_pool, self.v_pool))
        return q
