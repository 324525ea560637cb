"""FlexAttention for blocks that are chosen at run time: its mask_mod reads a table of the choice.

A call chooses with PyTorch's operators, as the rival `topk` does, copies the choice into the table,
makes a block mask of it and runs the compiled kernel; the variant `attention` has its block mask
made before. No mask is ever evaluated pair by pair to find blocks: what the static part of a mask
keeps of each is found once, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from benchmarks.selection import OneSelection, cells, one_selection
from benchmarks.unfused import Chooser, exact_products
from maskc.dsl.mask import Mask
from maskc.lab.case_pairs import CasePairs
from maskc.lab.mask_mod import mask_mod
from maskc.lab.rivals import Contender, Unavailable, quiet
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors

_SIDE = 128
"""Tokens of a side of a block of FlexAttention, if what is chosen is not smaller."""
_LEAST = 16
"""The least block size of its kernels."""


class Table:
    """What FlexAttention is told of a mask with a selection."""

    def __init__(self, one: OneSelection, tensors: CaseTensors) -> None:
        """Classify the blocks of the static parts, and make room for the table.

        Raises:
            Unavailable: its blocks would hold parts of chosen ones.
        """
        import torch

        self.one, case, device = one, one.case, tensors.q.device
        self.block = tuple(
            side_of(size, n)
            for size, n in ((one.node.q_block, case.n_q), (one.node.block, case.n_kv))
        )
        self.chooser = Chooser(one, tensors)
        shape = (case.batch, case.heads, one.rows, one.columns)
        self.table = torch.zeros(shape, dtype=torch.bool, device=device)
        self._of, self._static = (
            None if mask is None else Static(mask, case, self.block, device)
            for mask in (one.node.of, one.static)
        )
        self.mask_mod = self._mask_mod()

    def _mask_mod(self) -> Callable[..., Any]:
        """One function for all calls, so that nothing is compiled again."""
        table, (tall, wide) = self.table, (self.one.node.q_block, self.one.node.block)
        of, static = self._of.keep, self._static and self._static.keep

        def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
            kept = table[b, h, q // tall, k // wide] & of(b, h, q, k)
            return kept | static(b, h, q, k) if static else kept

        return keep

    def choose(self, q: Any, k: Any) -> None:
        """Fill the table by q and k [B, H, N, D]."""
        table = self.chooser.table(q, k)
        self.table.copy_(table.repeat_interleave(self.one.case.heads // self.one.owners, 1))

    def block_mask(self) -> Any:
        """A BlockMask of the table as it is."""
        from torch.nn.attention.flex_attention import BlockMask

        some, every = self._tiles()
        live, full = some & self._of.live, every & self._of.full
        if self._static is not None:
            live, full = live | self._static.live, full | self._static.full
        case = self.one.case
        return BlockMask.from_kv_blocks(
            *_listed(live & ~full), *_listed(full), BLOCK_SIZE=self.block, mask_mod=self.mask_mod,
            seq_lengths=(case.n_q, case.n_kv), compute_q_blocks=False,
        )  # fmt: skip

    def _tiles(self) -> tuple[Any, Any]:
        """(bool [B, H, tile rows, tile columns]: whether a tile has chosen blocks; whether all of
        its are)."""
        node, case = self.one.node, self.one.case
        some = every = self.table
        sides = ((2, node.q_block, case.n_q), (3, node.block, case.n_kv))
        for (axis, block, n), size in zip(sides, self.block, strict=True):
            some = _resized(some, axis, block, size, -(-n // size), False)
            every = _resized(every, axis, block, size, -(-n // size), True)
        return some, every


class Static:
    """A mask without data on a device: as a mask_mod, and block by block."""

    def __init__(self, mask: Mask, case: Case, block: tuple[int, int], device: Any) -> None:
        import torch

        own = Case(
            case.name, mask, 1, case.heads, case.kv_heads, case.n_q, case.n_kv, case.head_dim,
            case.dtype,
        )  # fmt: skip
        self.keep = mask_mod(own, CasePairs(own), device)
        counts = cells(mask, case, block, np.arange(-(-case.n_q // block[0])))
        self.live, self.full = (
            torch.tensor(marks, device=device)
            for marks in (counts > 0, counts == block[0] * block[1])
        )
        """bool [tile rows, tile columns]: blocks with any pair, and with every one."""


def side_of(size: int, n: int) -> int:
    """Tokens of FlexAttention's blocks where `size` are chosen together, of n.

    Raises:
        Unavailable: they would not fit each other.
    """
    for side in (_SIDE, 64, 32, _LEAST):
        if size % side == 0 or (size == 1 and side == _SIDE):
            return side
    raise Unavailable(f"blocks of {size} are not made of its own")


def _resized(x: Any, axis: int, block: int, size: int, count: int, whole: bool) -> Any:
    """Blocks of `block` tokens along an axis as `count` blocks of `size`: several of one, or one of
    several, of which any is marked, or, for `whole`, every one."""
    import torch

    if block >= size:
        return x.repeat_interleave(block // size, axis).narrow(axis, 0, count)
    each = size // block
    lacking = [0, 0] * (x.ndim - 1 - axis) + [0, count * each - x.shape[axis]]
    x = torch.nn.functional.pad(x, lacking, value=whole).unflatten(axis, (count, each))
    return x.all(axis + 1) if whole else x.any(axis + 1)


def _listed(marks: Any) -> tuple[Any, Any]:
    """(how many are marked in each row, their columns first) in int32."""
    import torch

    order = marks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return marks.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


@contextmanager
def _scope() -> Iterator[None]:
    with quiet(), exact_products():
        yield


def _selected(case: Case) -> OneSelection | None:
    """The selection of blocks, where there is one."""
    one = one_selection(case)
    return one if one is not None and one.node.block >= _LEAST and case.alpha == 1 else None


def flex_table_contender(case: Case, tensors: CaseTensors) -> Contender | None:
    """compile(flex_attention) with a table; None where no blocks are chosen.

    Raises:
        Unavailable: this PyTorch has no FlexAttention, or the blocks are not made of its own.
    """
    one = _selected(case)
    if one is None:
        return None
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError as error:
        raise Unavailable(str(error)) from None
    import torch

    with _scope():
        table = Table(one, tensors)
    options = {"enable_gqa": case.group > 1}
    if min(table.block) < _SIDE:  # else its kernel takes tiles that are larger than its blocks
        options["kernel_options"] = dict(zip(("BLOCK_M", "BLOCK_N"), table.block, strict=True))
    call = partial(torch.compile(flex_attention, dynamic=False), *tensors.qkv, **options)

    def choose() -> Any:
        table.choose(*tensors.qkv[:2])
        return table.block_mask()

    return _with_attention("flex_table", choose, lambda blocks: call(block_mask=blocks))


def _with_attention(
    impl: str, choose: Callable[[], Any], attend: Callable[[Any], Any]
) -> Contender:
    """Choosing and attending in every call, and attending alone to what was chosen before."""
    import torch

    with torch.no_grad(), _scope():
        known = choose()

    def forward() -> Any:
        with torch.no_grad():
            return attend(choose())

    def alone() -> Any:
        with torch.no_grad():
            return attend(known)

    part = Contender(impl, alone, None, scope=_scope, variant="attention")
    return Contender(impl, forward, None, scope=_scope, also=(part,))
