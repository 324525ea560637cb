"""The judge: random inputs, tolerances and probes, for the command line, tests and benchmarks."""
