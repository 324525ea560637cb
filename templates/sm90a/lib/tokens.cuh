// The tokens of a tile: consecutive ones or, with GRID, a box of a grid. Gives GRID_TILES, Point,
// query_point, key_point, query_at, key_at, keys_end, and for boxes their copies.

#if GRID
[[maybe_unused]] constexpr bool GRID_TILES = true;
// A place is the index of a token if tokens are counted tile by tile.
FN i32 query_at(i32 place) { return token_at(query_point(place)); }
FN i32 key_at(i32 place) { return token_at(key_point(place)); }
FN i32 keys_end(const struct Attention &) { return BEYOND; }  // full tiles lie inside the grid

// Box copies. Coordinates: element, then BOX_COORDINATES.
FN void load_box(u32 to, const TensorMap &map, u64 &barrier, i32 d, const struct Point &at,
                 i32 head, i32 batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, { %3, %4, %5, %6, %7}], [%2];"
        :: "r"(to), "l"(&map), "r"(shared_address(&barrier)), "r"(d), BOX_COORDINATES
        : "memory");
}
FN void store_box(const TensorMap &map, u32 from, i32 d, const struct Point &at, i32 head,
                  i32 batch) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5, %6}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), BOX_COORDINATES : "memory");
}
// As store_box, with reduce-add.
FN void add_box(const TensorMap &map, u32 from, i32 d, const struct Point &at, i32 head,
                i32 batch) {
    asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5, %6}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), BOX_COORDINATES : "memory");
}
#else
[[maybe_unused]] constexpr bool GRID_TILES = false;
// A place is the index of a token if tokens are counted tile by tile. Tiles are consecutive here,
// so place, token and coordinate are equal.
typedef i32 Point;
FN Point query_point(i32 place) { return place; }
FN Point key_point(i32 place) { return place; }
FN i32 query_at(i32 place) { return place; }
FN i32 key_at(i32 place) { return place; }
FN i32 keys_end(const struct Attention &p) { return p.n_kv; }
#endif
