// Overwrites the scores of invisible pairs with `hidden`. Element 4 (i / 2) + 2 r + i % 2 belongs
// to a thread's row r and column i. Needs: Scores, Visible, word_of.

FN void apply_mask(Scores &s, const struct Visible &seen, int r, float hidden) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float &x = s[i / 2 * 4 + 2 * r + i % 2];
        x = word_of(seen, r, i / 32) & 1u << i % 32 ? x : hidden;
    }
}
FN void apply_mask(Scores &s, const struct Visible &seen, float hidden) {
#pragma unroll
    for (int r = 0; r < 2; r++) apply_mask(s, seen, r, hidden);
}
