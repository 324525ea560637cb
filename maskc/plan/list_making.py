"""The launches that make tile lists on the device (templates/common/lib/make_lists.cuh).

One launch reads the data, finds the remaining candidates, and writes lists and work items. Blocks
wait for blocks with a lower index, so these steps need no separate launches.
"""

from __future__ import annotations

from maskc.core.abi import ALONE_THREADS, LIST_THREADS
from maskc.core.bundle import Grid, Launch

THREADS = LIST_THREADS
BLOCKS = 6
"""The blocks that a multiprocessor has room for: this sets the registers of a thread."""
ALONE_BLOCKS = 2
"""The blocks that it has room for, if none waits for another one."""

MAKE_LISTS = Launch("make_lists", Grid.lists, THREADS)
LISTS_OF_LENGTHS = Launch("lists_of_lengths", Grid.lists, ALONE_THREADS)
"""In the place of the launch before, if cumulative lengths alone decide the lists: blocks do not
wait for each other (templates/common/lib/lists_of_lengths.cuh)."""
LISTS_OF_QUERIES = Launch("lists_of_queries", Grid.lists, ALONE_THREADS)
"""Likewise, if lists have one query each, whose keys are one interval of data
(templates/common/lib/lists_of_queries.cuh)."""
SPOIL_RESULTS = Launch("spoil_results", Grid.results, THREADS)
"""The launch after the pass; only if data may turn out to be wrong. It has few blocks, which start
sooner."""
