// Loader for contiguous keys. Counterpart with the same names: keys_pages.cuh. Needs: load.cuh.
// Gives: key_batch, load_keys.

// The batch index of a sequence's keys.
FN i32 key_batch(i32 batch) { return batch; }

// Starts to copy keys or values first, first + 1, ... of a head that begins at `rows`.
template <int PIECES = PIECES_QK>
FN void load_keys(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first,
                  const struct Attention &p, i32) {
    load_tile<TILE_K, PIECES>(tile, rows, stride, first, p.n_kv);
}
