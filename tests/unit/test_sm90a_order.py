"""Who adds to a tile of dq after whom, in deterministic mode: the kernel's own text on the CPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.build.hostcc import host_compiler
from maskc.core.abi import structure
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.tables import make_tables
from maskc.testing.emulator.shared_object import library

SM_90A = TARGETS["sm_90a"]
_SHIMS = """
#include <stdint.h>
#define FN static inline
typedef uint32_t u32;
template <typename T> FN T __ldg(const T *from) { return *from; }
struct Place { i32 batch, head; };
FN Place place_of(i32 head, i32 heads) { return {head / heads, head % heads}; }
"""
_DRIVER = """
extern "C" int rank(const Attention *p, int head, int row, int column) {
    return rank_of(*p, head, row, column);
}
"""


def _between(text: str, first: str, last: str) -> str:
    start = text.index(first)
    return text[start : text.index(last, start)]


def ranks(unit):
    """rank(block of arguments, head, row, column) of a source."""
    text = unit.source
    own = "FN i32 behind(" if unit.ranges else "FN i32 column_at("
    own_end = "// The host wrote nothing" if unit.ranges else "// What the host wrote"
    source = "".join([
        _between(text, "typedef int i32;", "\n};\n"), "\n};\n", _SHIMS,
        _between(text, "FN i32 min_i32", "// The two sides from which"),
        _between(text, "// The constants and arrays of one head's mask", "// Whether query q"),
        _between(text, "FN struct Mask load_mask", "\n}\n"), "\n}\n",
        _between(text, "struct TileList {", "FN struct Tile tile_at"),
        _between(text, "FN struct TileList row_tiles", "#define ELEMENT_POLICY")
        if unit.ranges else "",
        "typedef struct TileList List;\n", _between(text, own, own_end),
        _between(text, "FN i32 rank_of(", "FN struct Turn turn_at("), _DRIVER,
    ])  # fmt: skip
    return library([*host_compiler().command, "-x", "c++", "-std=c++17", "-O1"], source).rank


@pytest.mark.parametrize("name", ["random", "prefix", "causal", "window"])
def test_all_columns_of_a_row_take_turns(name):
    """From the last to the first: nobody is left out, none comes twice."""
    rng = np.random.default_rng(0)
    mask, n_q, n_kv, data = {
        "random": (mc.block_table("t", 128), 900, 9000, {"t": rng.random((8, 71)) < 0.4}),
        "prefix": (mc.causal() | mc.where(lambda q, k: k < 700), 3000, 3000, {}),
        "causal": (mc.causal(), 2000, 2300, {}),
        "window": (mc.window(100, 300), 900, 3000, {}),
    }[name]
    bundle = driver.emit_bundle(
        driver.plan_kernel(mask, driver.problem(128, None, 1, "bfloat16"), SM_90A)
    )
    unit = bundle.unit("sm_90a", Direction.backward)
    rank = ranks(unit)
    arrays = {key: value.astype(np.int32)[None] for key, value in data.items()}
    tables = make_tables(
        bundle, unit, Sizes(1, 1, 1, n_q, n_kv), dict(bundle.params), arrays, Direction.backward,
        not unit.ranges,
    )  # fmt: skip
    block, kept = structure()(), []
    for member, values in tables.parts:
        kept.append(np.ascontiguousarray(values, dtype=np.int32))
        setattr(block, member, kept[-1].ctypes.data)
    block.n_q, block.n_kv, block.batch, block.heads_q = n_q, n_kv, 1, 1
    block.tile_rows, block.tile_cols = unit.tiles(n_q, n_kv)
    layout = mask.layout(n_q, n_kv, block=(unit.tile.q, unit.tile.k), **data)
    for row in range(block.tile_rows):
        columns = layout.col[layout.row_ptr[row] : layout.row_ptr[row + 1]].tolist()
        wanted = sorted(columns, reverse=True)
        found = {column: rank(ctypes.byref(block), 0, row, column) for column in columns}
        assert sorted(found, key=found.get) == wanted
        assert sorted(found.values()) == list(range(len(columns)))
