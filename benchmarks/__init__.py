"""Timings beside other libraries, and the fit of the cost model: run from a checkout, as
`python -m benchmarks`."""
