"""Launches whose argument block is longer: what a call gives lies behind `struct Attention`."""

from __future__ import annotations

from typing import Any

from maskc.core.abi import Numbers, Pointers
from maskc.runtime.arrays.known import Library
from maskc.runtime.launch.prepared import Runnable


class BlockLaunch:
    """A plan with the block of one call; several nest, and their blocks follow each other."""

    __slots__ = ("_block", "_held", "_plan", "kernel", "outputs")

    def __init__(self, plan: Runnable, block: bytes, held: object = None) -> None:
        """`held`: memory that the block points to."""
        self._plan, self._block, self._held = plan, block, held
        self.kernel, self.outputs = plan.kernel, plan.outputs

    def place(self, lib: Library, q: Any) -> tuple[Any, int]:
        """Does what the plan does."""
        sent, stream = self._plan.place(lib, q)
        return sent.with_block(self._block), stream

    def run(
        self, plan: Any, sent: Any, pointers: Pointers, numbers: Numbers,
        stream: int,
    ) -> None:  # fmt: skip
        """Does what the plan does."""
        self._plan.run(self._plan, sent, pointers, numbers, stream)
