"""Forms of kernels, one file each: which masks have them, and what their plans are."""
