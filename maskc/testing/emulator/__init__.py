"""Hopper on the CPU: run whole CUDA kernels instruction by instruction without a GPU.

`translate` turns a rendered source into C++, and `machine` replaces the driver. The emulator checks
results, synchronisation of threads and indices of arrays. Only a card can check the memory model
and speed. It needs g++ and PyTorch; CPU tensors replace those of a GPU.
"""

from __future__ import annotations

from maskc.testing.emulator.machine import Fault as Fault
from maskc.testing.emulator.machine import emulated as emulated
from maskc.testing.emulator.machine import start as start
