"""Launches for steps over pages: what makes a step's arrays, and what writes rows into pages."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from maskc.core.abi import PAGED_ROWS_FIELDS, STEP_FIELDS, structure
from maskc.core.bundle import Grid
from maskc.runtime.arrays.known import Library, library_of
from maskc.runtime.device_lists.data_given import CODES
from maskc.runtime.launch.cuda import CudaKernel, Step

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

STEP = structure(STEP_FIELDS)
ROWS = structure(PAGED_ROWS_FIELDS)
_MOST_BLOCKS = 512
"""Blocks of the launch that makes the arrays of a step; they share its sequences."""
_WARPS = 8
"""Warps of a block that moves rows; each has a row at a time."""
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
        self._plan, self._append = kernel.steps(_most_blocks)

    def plan(self, block: ArgumentBlock) -> None:
        """Enqueue what makes the arrays of a step."""
        blocks = max(1, min(_MOST_BLOCKS, block.members.sequences))
        function, _, threads, shared = self._plan
        self._enqueue(Step(function, blocks, threads, shared), block)

    def append(self, block: ArgumentBlock) -> None:
        """Enqueue what writes rows into pages."""
        rows = block.members.tokens * sum(block.members.heads)
        if rows:
            blocks = min(self._append.blocks, -(-rows // _WARPS))
            self._enqueue(self._append._replace(blocks=blocks), block)

    def _enqueue(self, step: Step, block: ArgumentBlock) -> None:
        self._launch((step,), self.library.stream(self._device), block)


def _most_blocks(launch: Any, processors: int) -> int:
    return _MOST_BLOCKS if launch.grid is Grid.lists else int(launch.resident) * processors
