// The loader of keys that lie one after another. keys_pages.cuh, whose names these are, is the
// other one.
// Needs: load.cuh. Gives: key_batch, load_keys.

// The sequence whose first row the keys of one begin with.
FN i32 key_batch(i32 batch) { return batch; }

// Starts to copy keys or values first, first + 1, ... of a head whose first row is `rows`.
template <int PIECES = PIECES_QK>
FN void load_keys(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first,
                  const struct Attention &p, i32) {
    load_tile<TILE_K, PIECES>(tile, rows, stride, first, p.n_kv);
}
