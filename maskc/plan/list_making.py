"""The launches that make tile lists on the device (templates/common/lib/make_lists.cuh).

One launch reads the data, finds the candidates that stay and writes lists and work items: blocks
wait for others of a lower index, so nothing else separates these steps.
"""

from __future__ import annotations

from maskc.core.bundle import Grid, Launch

THREADS = 128
"""The threads of a block: one for every key of a tile."""
BLOCKS = 8
"""The blocks that a multiprocessor has room for: this sets the registers of a thread."""

MAKE_LISTS = Launch("make_lists", Grid.lists, THREADS)
SPOIL_RESULTS = Launch("spoil_results", Grid.results, THREADS, resident=4)
"""Runs behind the pass, and only where data may turn out to be wrong."""
