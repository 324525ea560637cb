"""Pools of keys and values: their shapes, dtypes and scales."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from maskc.core.dtypes import dtype_name
from maskc.core.errors import BadPages
from maskc.paging.plan_memory import PlanMemory, check_sign, place_of
from maskc.runtime.paged import PoolFactor, PoolScales, pool_block
from maskc.runtime.paged_rows import is_e4m3
from maskc.runtime.query_blocks import address, steps_of

_MAX_SCALES = 512
"""Entries for pairs of scales that a plan remembers, up to two for a pair."""


class PoolFormat(NamedTuple):
    """The shapes and dtypes of pools."""

    page_size: int
    n_kv_heads: int
    layout: str
    """"NHD" or "HND", see `mc.paged`."""
    in_e4m3: bool

    def check(self, k_pool: Any, v_pool: Any) -> None:
        """Raise BadPages if pools have other shapes or dtypes than `mc.paged` says."""
        for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
            rows = (self.page_size, self.n_kv_heads)[:: 1 if self.layout == "NHD" else -1]
            if len(pool.shape) != 4 or tuple(pool.shape[1:3]) != rows:
                wanted = f"of shape [pages, {rows[0]}, {rows[1]}, head_dim] for {self.layout}"
                raise BadPages(name, wanted, list(pool.shape), at=name)
            if is_e4m3(pool) != self.in_e4m3:
                wanted = "float8_e4m3fn, as pool_dtype says: pool.view(float8_e4m3fn) of bytes"
                wanted = wanted if self.in_e4m3 else (
                    "of q's dtype; pools of E4M3 need mc.paged(..., pool_dtype='float8_e4m3fn')"
                )  # fmt: skip
                raise BadPages(name, wanted, dtype_name(pool), at=name)
            check_sign(pool, name)
        if k_pool.shape[0] != v_pool.shape[0]:
            wanted = f"a pool of {k_pool.shape[0]} pages, as k_pool is"
            raise BadPages("v_pool", wanted, v_pool.shape[0], at="v_pool")

    def heads_first(self, k_pool: Any, v_pool: Any) -> tuple[Any, Any]:
        """Return pools as [pages, n_kv_heads, page_size, D].

        Raises:
            BadPages: they do not fit.
        """
        self.check(k_pool, v_pool)
        if self.layout == "HND":
            return k_pool, v_pool
        return k_pool.swapaxes(1, 2), v_pool.swapaxes(1, 2)

    def scale(self, scale: Any, name: str) -> Any:
        """The scale of a pool, for all heads or one for each; 1 when None.

        Raises:
            BadPages: it has another shape, or pools are not E4M3.
        """
        if scale is None:
            return 1.0
        if not self.in_e4m3:
            wanted, kind = "left out, as pools have q's dtype", type(scale).__name__
            raise BadPages(name, wanted, kind, at=name)
        wanted = f"a positive number or an array of 1 or {self.n_kv_heads} of them"
        if hasattr(scale, "shape"):
            if math.prod(scale.shape) not in (1, self.n_kv_heads):
                raise BadPages(name, wanted, list(scale.shape), at=name)
            return scale
        if isinstance(scale, (int, float)) and 0 < scale < math.inf:
            return float(scale)
        raise BadPages(name, wanted, repr(scale), at=name)


class PlanScales:
    """The scales of all layers that run with a plan."""

    def __init__(
        self,
        pools: PoolFormat,
        memory: PlanMemory,
        converts: bool,
        sequences: int | None,
        owner: Any,
    ) -> None:
        """Remember none yet.

        Args:
            converts: whether kernels convert rows on load, and read scales.
            sequences: number of sequences, which may have scales; None: they share keys.
            owner: the sequence of each block of queries, where blocks ask for it.
        """
        self._pools, self._memory, self._converts = pools, memory, converts
        self._sequences, self._owner = sequences, owner
        self._known: dict[object, PoolScales] = {}
        """By where they lie."""

    def of_layer(self, k_scale: Any, v_scale: Any) -> PoolScales:
        """Return the scales of a layer; those on the plan's device are remembered.

        Raises:
            BadPages: a scale has a wrong shape or dtype (MC464).
        """
        if k_scale is None and v_scale is None:
            return self._usual
        same = id(k_scale), id(v_scale)
        known = self._known.get(same)
        if known is not None and known.lies_at(k_scale, v_scale):
            return known
        kinds = place_of(k_scale), place_of(v_scale)
        known = None if None in kinds else self._known.get(kinds)
        if known is None:
            known = self._checked(k_scale, v_scale)
        if known.lasting and None not in kinds:
            if len(self._known) >= _MAX_SCALES:
                self._known.clear()
            self._known[kinds] = known
            if known.k is k_scale and known.v is v_scale:
                self._known[same] = known
        return known

    @cached_property
    def _usual(self) -> PoolScales:
        return self._checked(None, None)

    def _checked(self, k_scale: Any, v_scale: Any) -> PoolScales:
        k, v = self._scale(k_scale, "k_scale"), self._scale(v_scale, "v_scale")
        if not self._converts:
            return PoolScales(k, v)
        factors = self._factor(k), self._factor(v)
        by_sequence = any(factor.sequence_step for factor in factors)
        at = address(self._owner) if by_sequence and self._owner is not None else 0
        held = zip(factors, (k, v), strict=True)
        lasting = all(factor.held is None or factor.held is x for factor, x in held)
        return PoolScales(k, v, pool_block(*factors, at), factors, lasting)

    def _scale(self, scale: Any, name: str) -> Any:
        """The scale of a pool, or one for each sequence."""
        shape = tuple(getattr(scale, "shape", ()))
        if len(shape) != 2 or not self._pools.in_e4m3:
            return self._pools.scale(scale, name)
        sequences, heads = self._sequences, self._pools.n_kv_heads
        if sequences is None:
            wanted = f"of shape [{heads}] or a number, as sequences share keys"
            raise BadPages(name, wanted, list(shape), at=name)
        if shape not in ((sequences, heads), (sequences, 1)):
            wanted = f"of shape [{sequences}, {heads}] or [{sequences}, 1]"
            raise BadPages(name, wanted, list(shape), at=name)
        return scale

    def _factor(self, scale: Any) -> PoolFactor:
        """A scale as kernels read it."""
        if not hasattr(scale, "shape"):
            return PoolFactor(scale)
        torch, device = self._memory
        if torch is None:
            scale = np.asarray(scale, np.float32)
        else:
            scale = scale if isinstance(scale, torch.Tensor) else torch.from_numpy(scale)
            if scale.dtype != torch.float32 or scale.device != device:
                scale = scale.to(device, torch.float32)
        axes = zip(scale.shape, steps_of(scale), strict=True)
        by_sequence, by_head = (0, 0, *(step if size > 1 else 0 for size, step in axes))[-2:]
        return PoolFactor(1.0, address(scale), by_sequence, by_head, scale)
