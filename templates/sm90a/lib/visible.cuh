// Which columns of a tile a thread's two rows see: bit 2 i + e of a row is column
// 8 i + 2 (lane % 4) + e. Needs: OWN, the columns of a tile that a thread has in each row.

constexpr int WORDS = (OWN + 31) / 32;
struct Visible {
    u32 word[2][WORDS];
};
FN u32 word_of(const struct Visible &seen, int r, int w) { return seen.word[r][w]; }
