"""The launches of a run over pages, and how layers repeat the first one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.paging.plan_memory import place_of
from maskc.runtime.autograd import has_modes, needs_torch
from maskc.runtime.paged import BLOCK, TABLES, PoolScales
from maskc.runtime.query_blocks import QueryBlocks
from maskc.runtime.repeated import RepeatedPass

if TYPE_CHECKING:
    from maskc.paging.pools import PlanScales
    from maskc.runtime.compiled import CompiledMask

_VECTOR = 16
"""Bytes to whose multiple kernels align rows of results."""
_MAX_KINDS = 16
"""Kinds of layers whose launch a part remembers."""


class _Result(NamedTuple):
    """The shape and strides of a result."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Repeat(NamedTuple):
    """A launch of a layer, which other layers repeat."""

    launch: RepeatedPass
    block: bytes
    """Page tables, see `runtime/paged`; blocks of scales follow it."""
    out: _Result
    lse: _Result
    numbers: Any
    """An empty array in fp32 where results lie."""


class QueryPart:
    """A launch of a run."""

    def __init__(self, attn: CompiledMask, blocks: QueryBlocks, data: dict[str, Any]) -> None:
        """`data`: of the mask."""
        self.blocks = blocks
        self._attn, self._data = attn, data
        self._in_rows = blocks.in_rows
        self._repeats: dict[object, _Repeat] = {}
        """By kinds of calls."""

    def call(
        self, q: Any, pools: tuple[Any, Any], scales: PoolScales, options: CallOptions,
        tables: Mapping[str, Any],
    ) -> AttentionCall:  # fmt: skip
        """Return the call of a launch; `pools` are [pages, heads, page_size, D]."""
        blocks, data = self.blocks, {**self._data, **tables}
        if self._attn.serving(q).bundle.problem.page_size:
            k, v, data[TABLES] = blocks.in_pages(*pools, scales)
        else:
            k, v = (blocks.copied(x, q, scale) for x, scale in zip(pools, scales, strict=False))
        return AttentionCall(blocks.queries(q), k, v, options, data)

    def run(self, call: AttentionCall, kind: object) -> tuple[Any, Any]:
        """Run a call, and remember how layers of this kind repeat it; None: they do not.

        Returns:
            Results for each row of q.
        """
        if kind is None or TABLES not in call.data:
            return self.blocks.rows(*self._attn.attend(call))
        (out, lse), launch = self._attn.serving(call.q).run_first(call)
        if launch is not None:
            if len(self._repeats) >= _MAX_KINDS:
                self._repeats.clear()
            of_out, of_lse = self.blocks.flattened(out, lse)
            block = call.data[TABLES].block[: BLOCK.size]
            self._repeats[kind] = _Repeat(
                launch, block, _Result(of_out.shape, of_out.stride()),
                _Result(of_lse.shape, of_lse.stride()), lse.new_empty(0),
            )  # fmt: skip
        return self.blocks.rows(out, lse)

    def again(
        self, kind: object, q: Any, k_pool: Any, v_pool: Any, scales: PlanScales, k_scale: Any,
        v_scale: Any, memory: Any = None,
    ) -> tuple[Any, Any] | None:  # fmt: skip
        """Repeat a launch for another layer; None where it has to be planned.

        Args:
            scales: of all layers of the plan.
            memory: where out may be written, if it lies there as kernels write it.
        """
        known = self._repeats.get(kind)
        if known is None:
            return None
        launch, block, (shape, strides), (lse_shape, lse_strides), numbers = known
        block += scales.of_layer(k_scale, v_scale).block
        if not self._in_rows:
            q = self.blocks.gathered(q)
        out = memory
        if memory is None or not self._in_rows or memory.data_ptr() % _VECTOR or (
            (memory.shape, memory.stride(), memory.get_device()) != (shape, strides, q.get_device())
        ):  # fmt: skip
            out = q.new_empty_strided(shape, strides)
        lse = numbers.new_empty_strided(lse_shape, lse_strides)
        places = (
            q.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(), out.data_ptr(), lse.data_ptr()
        )  # fmt: skip
        if not launch.run(q, places, block):
            return None
        return (out, lse) if self._in_rows else self.blocks.of_tokens(out, lse, memory)

    def renew(self) -> None:
        """Make lists of tiles again, after the arrays of the step have changed."""
        for repeat in self._repeats.values():
            repeat.launch.renew()


def kind_of(
    torch: Any, q: Any, k_pool: Any, v_pool: Any, options: tuple[object, ...], slopes: Any,
    sinks: Any,
) -> object:  # fmt: skip
    """Everything that the launch of a layer depends on, except where its tensors lie; None for a
    call that torch must see."""
    if not type(q) is type(k_pool) is type(v_pool) is torch.Tensor or has_modes(torch):
        return None
    if q.is_neg() or k_pool.is_neg() or v_pool.is_neg():
        return None
    is_trained = q.requires_grad or k_pool.requires_grad or v_pool.requires_grad
    if is_trained and torch.is_grad_enabled():
        return None
    kind = (
        q.shape, q.stride(), q.dtype, q.get_device(),
        k_pool.shape, k_pool.stride(), k_pool.dtype, k_pool.get_device(),
        v_pool.shape, v_pool.stride(), v_pool.dtype, v_pool.get_device(),
        options,
    )  # fmt: skip
    if slopes is None and sinks is None:
        return kind
    of_heads = place_of(slopes), place_of(sinks)
    if None in of_heads or needs_torch(q, k_pool, v_pool, slopes, sinks):
        return None
    return (*kind, *of_heads)
