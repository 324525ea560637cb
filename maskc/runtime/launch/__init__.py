"""Built kernels and their launches."""
