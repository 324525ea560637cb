// Where rows are keys, those past the last one see nothing. Needs: visible.cuh.

template <class Side>
FN void hide_keys_past(struct Visible &seen, const i32 (&rows)[2], i32 n_kv) {
    if (!Side::KEY_ROWS) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if (rows[r] >= n_kv) seen.word[r][w] = 0;
}
