"""Measuring: a mask's kernels against what PyTorch offers, every result checked in the same run."""
