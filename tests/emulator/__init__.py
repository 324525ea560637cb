"""Hopper on the CPU: our CUDA kernels run whole, instruction by instruction, where no GPU is.

`translate` turns a rendered source into C++, `machine` stands in for the driver. What is checked is
what a kernel computes and that its threads meet; the memory model and speed are a card's to judge.
"""
