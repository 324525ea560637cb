// The loader of keys that lie one after another: a tile is one box of a tensor map.
// keys_granules.cuh, whose names these are, is the other one.
// Needs: items.cuh. Gives: Keys, keys_in, ValueMap, load_keys, load_value_rows.

// Where the keys of a head lie, and, likewise, its values.
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
