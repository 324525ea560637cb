"""Launches for steps over pages: the arrays of a step, rows for pages, queries for blocks."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from maskc.core.abi import BLOCK_ROWS_FIELDS, PAGED_ROWS_FIELDS, STEP_FIELDS, structure
from maskc.core.bundle import Grid
from maskc.layout.paged_step import StepSizes
from maskc.runtime.arrays.known import Library, library_of
from maskc.runtime.device_lists.data_given import CODES
from maskc.runtime.launch.cuda import CudaKernel, Step

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

STEP = structure(STEP_FIELDS)
ROWS = structure(PAGED_ROWS_FIELDS)
BLOCK_ROWS = structure(BLOCK_ROWS_FIELDS)
_MAX_BLOCKS = 512
"""Blocks of the launch that makes the arrays of a step; they share its sequences."""
_WARPS = 8
"""Warps of a block that appends rows; each has a row at a time."""
_ROWS = 16
"""Rows that a block of threads copies at a time."""
_UNIT = 16
"""The most bytes that a thread copies at once."""
FLOAT_CODES = {"float32": 0, "bfloat16": 1, "float16": 2, "float8_e4m3fn": 3}
"""The codes of elements in `struct PagedRows`."""


class ArgumentBlock:
    """One argument block of a launch, whose members are set by name."""

    def __init__(self, kind: type[ctypes.Structure]) -> None:
        self.members: Any = kind()
        self._places = (ctypes.c_void_p * 1)(ctypes.addressof(self.members))
        self.address = ctypes.addressof(self._places)
        """The address of the array of addresses that a launch takes."""

    def arguments(self) -> tuple[bytes, ...]:
        """See `Sendable`."""
        return (bytes(self.members),)


class Integers(NamedTuple):
    """An array of integers where a caller keeps it."""

    pointer: int
    code: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, x: Any, library: Library, name: str) -> Integers | None:
        """Describe an array; None if its elements are no integers."""
        array = library.view(x, name)
        code = CODES.get(array.dtype)
        return None if code is None else cls(array.pointer, code[0], array.shape, array.strides)


def page_kernels(attn: CompiledMask, x: Any) -> PageKernels | None:
    """The kernels for steps over pages on the device of an array; None if there are none.

    Raises:
        NotAnArray: x has no memory.
    """
    target = attn.target.name
    unit, library = attn.bundle.pages_source(target), library_of(type(x))
    if unit is None or library is None:
        return None
    kind, device = library.view(x, "page_table").device
    if kind != "cuda":
        return None
    kernels = attn._planner.whole.kernels
    kernel = kernels.on_device(unit, "default", frozenset(), device)
    return PageKernels(kernel, library, device)


class PageKernels:
    """The kernels for steps over pages on one device."""

    def __init__(self, kernel: CudaKernel, library: Library, device: int) -> None:
        """`kernel`: of the source for pages."""
        self.library, self._device, self._launch = library, device, kernel.launch
        self._plan, self._append, self._gather, self._return = kernel.steps(_most_blocks)

    def plan(self, block: ArgumentBlock) -> None:
        """Enqueue what makes the arrays of a step."""
        blocks = max(1, min(_MAX_BLOCKS, block.members.sequences))
        function, _, threads, shared, _ = self._plan
        self._enqueue(Step(function, blocks, threads, shared), block)

    def append(self, block: ArgumentBlock) -> None:
        """Enqueue what writes rows into pages."""
        rows = block.members.tokens * sum(block.members.heads)
        if rows:
            blocks = min(self._append.blocks, -(-rows // _WARPS))
            self._enqueue(self._append._replace(blocks=blocks), block)

    def gather(self, block: ArgumentBlock) -> None:
        """Enqueue what copies queries into blocks."""
        sizes = block.members
        self._move(self._gather, sizes.blocks * sizes.block * sizes.heads, block)

    def give_back(self, block: ArgumentBlock) -> None:
        """Enqueue what copies results of blocks to their tokens."""
        self._move(self._return, block.members.tokens * block.members.heads, block)

    def _move(self, step: Step, rows: int, block: ArgumentBlock) -> None:
        if rows:
            blocks = min(step.blocks, -(-rows // _ROWS))
            self._enqueue(step._replace(blocks=blocks), block)

    def _enqueue(self, step: Step, block: ArgumentBlock) -> None:
        self._launch((step,), self.library.stream(self._device), block)


class RowMover:
    """Copies the queries of a step into blocks on the GPU, and results of blocks back."""

    def __init__(
        self, kernels: PageKernels, sizes: StepSizes, state: Mapping[str, Any], heads: int
    ) -> None:
        """`state`: arrays of the step by name; they keep their places."""
        self._kernels, self._sizes = kernels, sizes
        self._block = ArgumentBlock(BLOCK_ROWS)
        members = self._block.members
        members.heads, members.tokens = heads, sizes.tokens
        members.blocks, members.block = sizes.blocks, sizes.block
        for name in ("rows", "places", "is_real"):
            if name in state:
                setattr(members, name, state[name].data_ptr())

    def gathered(self, q: Any) -> Any:
        """Return q [tokens, heads, D] as [blocks, heads, queries of a block, D]."""
        sizes, heads, dim = self._sizes, q.shape[1], q.shape[2]
        q = q if q.stride(2) == 1 else q.contiguous()
        to = q.new_empty((sizes.blocks, heads, sizes.block, dim))
        self._set(q, to, q, to)
        self._kernels.gather(self._block)
        return to

    def returned(self, out: Any, lse: Any, memory: Any = None) -> tuple[Any, Any]:
        """Return results [blocks, heads, queries of a block, ...] as [tokens, heads, ...], out in
        the given memory if its elements are adjacent; 0 and -inf for tokens of no sequence."""
        heads, dim = out.shape[1], out.shape[3]
        out = out if out.stride(3) == 1 else out.contiguous()
        to = memory
        if to is None or to.stride(2) != 1:
            to = out.new_empty((self._sizes.tokens, heads, dim))
        lse_to = lse.new_empty((self._sizes.tokens, heads))
        self._set(out, to, to, out)
        members = self._block.members
        members.lse, members.lse_to = lse.data_ptr(), lse_to.data_ptr()
        members.lse_step[:] = lse.stride()
        self._kernels.give_back(self._block)
        return to, lse_to

    def _set(self, source: Any, to: Any, of_tokens: Any, of_blocks: Any) -> None:
        """Set the arguments for two tensors, one [tokens, heads, ...], one by block."""
        size = source.element_size()
        tokens, blocks = ([size * step for step in x.stride()[:-1]] for x in (of_tokens, of_blocks))
        row, places = size * source.shape[-1], (source.data_ptr(), to.data_ptr())
        members, unit = self._block.members, math.gcd(_UNIT, row, *tokens, *blocks, *places)
        members.source, members.to = places
        members.token_step[:], members.block_step[:] = tokens, blocks
        members.unit, members.units = unit, row // unit


def _most_blocks(launch: Any, processors: int) -> int:
    return _MAX_BLOCKS if launch.grid is Grid.lists else int(launch.resident) * processors
