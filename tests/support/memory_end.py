"""Tensors behind which no memory can be read, for programs that run in a process of their own."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import torch

_BEGIN = """
import os, pytest, torch
import maskc as mc
from maskc.testing.emulator import machine
from tests.support.memory_end import at_the_end

machine.install(pytest.MonkeyPatch())
"""
_END = """
print("fine", flush=True)
os._exit(0)
"""


def at_the_end(values: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to memory that ends where a page begins that cannot be read."""
    page, size = mmap.PAGESIZE, values.numel() * values.dtype.itemsize
    whole = -(-size // page) * page
    room = mmap.mmap(-1, whole + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    view = torch.frombuffer(room, dtype=torch.uint8)[whole - size : whole]
    copied = view.view(values.dtype).view(values.shape).copy_(values)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + whole), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return copied


def run_apart(program: str) -> None:
    """Run a program with the emulator; fail unless it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + program + _END],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
