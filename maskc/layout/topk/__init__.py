"""Run-time selection on the host, and the sizes that its device kernels share."""
