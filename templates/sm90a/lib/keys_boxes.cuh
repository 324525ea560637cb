// Loader for contiguous keys: a tile is one box of a tensor map. Counterpart with the same names:
// keys_granules.cuh. Needs: items.cuh. Gives: Keys, keys_in, ValueMap, load_keys, load_value_rows.

// Where the keys of a head lie; values likewise.
typedef struct Slice Keys;
FN Keys keys_in(const struct Attention &, const i64 (&stride)[3], struct Place at) {
    return slice_of(stride, at.head, at.batch);
}
typedef TensorMap ValueMap;
FN void load_keys(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                  const Keys &from) {
    load_tile<TILE_K>(tile, map, full, first, from);
}
FN void load_value_rows(unsigned char *tile, const ValueMap &map, u64 &full, const Point &first,
                        const Keys &from) {
    load_tile<TILE_K>(tile, map, full, first, from);
}
