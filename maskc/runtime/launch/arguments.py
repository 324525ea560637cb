"""Argument blocks of kernels that make lists for others."""

from __future__ import annotations

import ctypes
import struct


class Arguments:
    """A block that launches take, as `struct Listed`: its pointers come first."""

    def __init__(
        self, numbers: bytes, layout: struct.Struct, pointers: tuple[int, ...] = ()
    ) -> None:
        """`numbers` is the block without its pointers, which `layout` writes."""
        self._block = ctypes.create_string_buffer(numbers, len(numbers))
        self._write = layout.pack_into
        if pointers:
            self.fill(pointers)
        self._places = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self.address = ctypes.addressof(self._places)
        """The address of the array of addresses that a launch takes."""

    def fill(self, pointers: tuple[int, ...]) -> None:
        """Write all pointers, while no launch reads them."""
        self._write(self._block, 0, *pointers)

    def arguments(self) -> tuple[bytes, ...]:
        """What the addresses point to."""
        return (self._block.raw,)
