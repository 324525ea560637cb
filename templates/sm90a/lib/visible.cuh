// The columns of a tile that a thread's two rows see. Needs: quad_columns.cuh; OWN, the columns of
// a tile that a thread has in each row.

typedef QuadColumns<OWN> Own;
constexpr int WORDS = Own::WORDS;
struct Visible {
    u32 word[2][WORDS];
};
FN u32 word_of(const struct Visible &seen, int r, int w) { return seen.word[r][w]; }

// If rows are keys, rows past the last key see nothing.
template <class Side>
FN void hide_keys_past(struct Visible &seen, const i32 (&rows)[2], i32 n_kv) {
    if (!Side::KEY_ROWS) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if (rows[r] >= n_kv) seen.word[r][w] = 0;
}
