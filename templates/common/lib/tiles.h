#pragma once
// The live tiles of a tile row, ascending: lists in memory or, with TILE_RANGES, closed forms from
// the config header. Needs: FN.

struct Tile {
    i32 index;  // tile column in a row's list, tile row in a column's list
    i32 full;   // every pair is live: no predicate needed
};

#if TILE_RANGES
// The live tiles of one tile row (or, transposed, of one tile column), as a range.
struct TileList {
    i32 count;
    i32 first, full_first, full_last;
};
FN struct Tile tile_at(struct TileList list, i32 i) {
    struct Tile tile;
    tile.index = list.first + i;
    tile.full = tile.index >= list.full_first && tile.index < list.full_last;
    return tile;
}
#else
#include "common/lib/tiles_csr.h"
#endif
