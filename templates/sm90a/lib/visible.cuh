// Which columns of a tile a thread's two rows see. Needs: quad_columns.cuh; OWN, the columns of a
// tile that a thread has in each row.

typedef QuadColumns<OWN> Own;
constexpr int WORDS = Own::WORDS;
struct Visible {
    u32 word[2][WORDS];
};
FN u32 word_of(const struct Visible &seen, int r, int w) { return seen.word[r][w]; }
