"""Forms of kernels, one file each: the masks that they match, and their plans."""
