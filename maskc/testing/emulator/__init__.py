"""Hopper on the CPU: our CUDA kernels run whole, instruction by instruction, where no GPU is.

`translate` turns a rendered source into C++, `machine` stands in for the driver. What is checked is
what a kernel computes and that its threads meet; the memory model and speed are a card's to judge.
It needs g++ and PyTorch, whose CPU tensors stand for those of a GPU.
"""

from __future__ import annotations

from maskc.testing.emulator.machine import Fault as Fault
from maskc.testing.emulator.machine import emulated as emulated
from maskc.testing.emulator.machine import start as start
