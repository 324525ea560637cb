"""The laboratory: evidence, reports, the explorer and benchmarks. Only commands import it."""
