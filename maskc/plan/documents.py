"""Tile lists made on the device (templates/sm90a/documents.cu.j2), where ids of documents arrive
there: their launches.

A tile that the mask would have without its documents stays where the ids of its queries, from the
least to the greatest, and those of its keys overlap. One block makes the list of one tile row or
column; it adds up how many tiles come before, so that the lists are in the order of the host's.

On one H200 (CUDA 13.0), with 128k tokens and documents of 64 to 4095, causal: 4, 7, 7 and 11 us for
the four launches of a forward pass, 33 us from the first to the pass itself.
"""

from __future__ import annotations

from maskc.core.bundle import Grid, Launch

THREADS = 128
"""Of a block: one for every key of a tile. Twice as many took longer at 128k tokens, 38 instead of
33 us for all lists of a causal forward pass."""
BLOCKS = 8
"""That a multiprocessor has room for: sets the registers of a thread."""
RESULTS = 5
"""Of a pass: dq, dk, dv and two gradients per head."""
FORM = "documents"
"""Of the source, which is the same for all masks."""
FAMILIES = ("sm90a",)
"""That read such lists."""

REASON = (
    "tiles of keys begin with documents where these are packed; given on the device, lists are "
    "made there and nothing waits"
)
WHEN = (
    "taken by a call where documents of the length that mc.cu_seqlens(x, max_seqlen) promises are "
    "predicted to take fewer cycles"
)

LAUNCHES = (
    Launch("documents_tiles", Grid.tiles, THREADS),
    Launch("documents_starts", Grid.columns, THREADS),
    Launch("documents_counts", Grid.lists, THREADS),
    Launch("documents_lists", Grid.lists, THREADS),
    Launch("documents_spoil", Grid.results, THREADS, resident=4),
)
"""The last one behind the pass, and only where ids may turn out to be wrong."""
