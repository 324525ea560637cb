"""Names of the forms of kernels, which distinguish sources of one target and pass."""

from __future__ import annotations

SMALL = "small"
"""Tiles of 64 x 64, for short rows."""
MEDIUM = "medium"
"""Tiles of 128 x 128, where default tiles have 192 queries, which short rows fill badly."""
TINY = "tiny"
"""Tiles of 16 x 16, for rows of very few keys."""
GRID = "grid"
"""Tiles that are boxes of a grid."""
CHOOSE = "choose"
"""Source that finds the thresholds of keys that are selected one by one."""
THRESHOLDS = "thresholds"
"""The schedule of a backward pass that compares with such thresholds."""
TOGETHER = "small_together"
"""The schedule of a backward pass in small tiles that never makes dq in a launch of its own."""
GATHER, WIDE = "gather", "gather_wide"
"""Tiles of gathered keys: with the rows of 64 heads, and of 128."""
LISTS = "gather_lists"
"""Source that builds the lists of gathered keys."""
DOCUMENTS = "documents"
"""Source that builds the tile lists of documents on the device."""
DATA = "data"
"""Source that builds the tile lists of other data on the device."""
SELECTIONS = "selections"
"""Source that selects blocks of keys on the device."""

MOVES = "moves"
"""Source that packs the rows of listed tokens and stores them back."""

PAGES = "pages"
"""Source that makes the arrays of a step over pages, and writes rows of new tokens into pages."""

STEMS = {TINY: "mma16", CHOOSE: "choose", GATHER: "gather", WIDE: "gather"}
"""The first part of a template's name, by form; forms that are not named share the default's."""
