"""Functions of a kernel, called by a kernel of a test, in the emulator.

A probe follows the whole source, whose functions and constants it uses by name.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from maskc.core.abi import structure
from maskc.dispatch.tables import Tables
from maskc.testing.emulator import machine

Argument = ctypes.Structure | ctypes.Array | np.ndarray | int | float


def fenced(array: np.ndarray) -> np.ndarray:
    """Return a copy that ends with a page; who reads on crashes."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    room = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(room.ctypes.data + size, mmap.PAGESIZE, 0):
        raise OSError("the page behind an array cannot be protected")
    copy = room[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Block:
    """The argument block of a call, and the arrays that it names."""

    def __init__(self, tables: Tables | None = None) -> None:
        """
        Args:
            tables: lists of tiles and data, as calls make them.
        """
        self.structure = structure()()
        self._arrays: list[np.ndarray] = []
        if tables is None:
            return
        lists = {name: np.ascontiguousarray(x, np.int32) for name, x in tables.parts}
        self.set(**{name: fenced(x) for name, x in lists.items()})
        for i, slot in enumerate(tables.slots):
            self._arrays.append(fenced(np.ascontiguousarray(slot.values, np.int32)))
            self.structure.array[i] = self._arrays[-1].ctypes.data
            self.structure.array_batch[i], self.structure.array_head[i] = slot.batch, slot.head
            self.structure.array_row[i] = slot.row

    def set(self, **members: np.ndarray | int | tuple[int, ...]) -> None:
        """Members of the argument block; arrays by address."""
        for name, value in members.items():
            if isinstance(value, np.ndarray):
                self._arrays.append(value)
                value = value.ctypes.data
            elif isinstance(value, tuple):
                value = (ctypes.c_int64 * len(value))(*value)
            setattr(self.structure, name, value)


class Probe:
    """A source, and one entry point that can be launched."""

    def __init__(
        self, source: str, text: str = "", macros: tuple[str, ...] = (), entry: str = "probe"
    ) -> None:
        """
        Args:
            text: a kernel named `probe`, in CUDA.
            entry: what is launched; an entry point of the source needs no text.
        """
        self._library = machine.loaded(source + text, macros, (entry,))
        self._entry = entry

    def launch(
        self, blocks: int, threads: int, *arguments: Argument, shared: int = 1 << 17
    ) -> None:  # fmt: skip
        """Run blocks of threads; arrays are given by address, numbers are 32 bits wide."""
        values = [_value(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        address = ctypes.addressof(places)
        machine.run(self._library, self._entry, address, blocks, threads, shared)


def _value(argument: Argument) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_int(argument) if isinstance(argument, int) else argument
