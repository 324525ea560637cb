"""Results of a build: machine code, its entry points, and the output of the toolchain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Resources of one CUDA kernel, as ptxas reports them."""

    name: str
    """Entry point."""
    registers: int
    """Per thread."""
    stack: int
    """Bytes of local memory per thread."""
    spill_stores: int
    """Bytes per thread."""
    spill_loads: int
    """Bytes per thread."""
    shared: int
    """Static shared memory per block, bytes; the dynamic part is the launch's."""


@dataclass(frozen=True)
class BuildReport:
    """Compiler, options and output of a build."""

    toolchain: str
    """Name and version, for example `gcc 12.2.0`."""
    flags: tuple[str, ...]
    """The flags that the cache key names: no machine paths."""
    log: str
    """Warnings, and ptxas's report."""

    @cached_property
    def kernels(self) -> tuple[KernelUse, ...]:
        """Resource use of every CUDA entry point; empty for C."""
        blocks = _ENTRY.split(self.log)
        return tuple(map(_kernel_use, blocks[1::2], blocks[2::2]))


def _kernel_use(name: str, text: str) -> KernelUse:
    """`text` is the part of the log from this entry point to the next."""
    spills = _SPILLS.search(text)
    stack, stores, loads = map(int, spills.groups()) if spills else (0, 0, 0)
    registers, shared = _REGISTERS.search(text), _SHARED.search(text)
    return KernelUse(
        name, int(registers[1]) if registers else 0, stack, stores, loads,
        int(shared[1]) if shared else 0,
    )  # fmt: skip


@dataclass(frozen=True)
class Binary:
    """A shared object (C), or a cubin or PTX (CUDA)."""

    target: str
    code: bytes
    entries: tuple[str, ...]
    """Entry points that were asked for."""
    key: str
    """sha256 of source, flags and toolchain: what the cache calls it."""
    report: BuildReport
