// Loader for contiguous keys: a tile is one box of a tensor map. Counterpart with the same names:
// keys_granules.cuh. Needs: items.cuh. Gives: Keys, keys_in, ValueMap, load_keys, load_value_rows.

#if PACK_GQA
// Where the keys of a head lie; values likewise. With pack_gqa, one block reads each key, and reads
// it once. If keys and values do not fit the L2 cache, they leave it before other data do.
struct Keys {
    struct Slice at;
    u64 hint;
};
constexpr i64 L2_BYTES = 32 << 20;  // keys and values of this size stay for the next call
FN Keys keys_in(const struct Attention &p, const i64 (&stride)[3], struct Place at) {
    const i64 keys = (i64)p.batch * p.heads_kv * p.n_kv;
    const bool fits = keys * (2 * (HEAD_DIM + HEAD_DIM_V)) <= L2_BYTES;
    return {slice_of(stride, at.head, at.batch), fits ? EVICT_NORMAL : EVICT_FIRST};
}
template <int COUNT>
FN void load_run(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                 const Keys &from) {
    arrive_expecting(full, COUNT * TILE_K * 128);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_box(shared_address(tile) + i * TILE_K * 128, map, full, SLAB_COLUMNS * i, first,
                 from.at.head, from.at.batch, from.hint);
}
#else
// Where the keys of a head lie; values likewise.
typedef struct Slice Keys;
FN Keys keys_in(const struct Attention &, const i64 (&stride)[3], struct Place at) {
    return slice_of(stride, at.head, at.batch);
}
template <int COUNT>
FN void load_run(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                 const Keys &from) {
    load_tile<TILE_K, COUNT>(tile, map, full, first, from);
}
#endif
typedef TensorMap ValueMap;
FN void load_keys(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                  const Keys &from) {
    load_run<OPERAND_SLABS>(tile, map, full, first, from);
}
FN void load_value_rows(unsigned char *tile, const ValueMap &map, u64 &full, const Point &first,
                        const Keys &from) {
    load_run<VALUE_SLABS>(tile, map, full, first, from);
}
