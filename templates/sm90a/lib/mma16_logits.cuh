// Turns scores into logits times log2(e), and hides dead pairs. Needs: logit_tanh.cuh,
// mma16_rows.cuh; keep of the mask.

// Maps a lane's score elements to pairs: element e of eight keys n is number 4 n + e; see
// logit.cuh.
struct Where {
    i32 query_place, key_place, own_head, own_batch;  // at the first element
    struct Steps steps;
    FN float distance(int i) const {
        return fabsf(steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2));
    }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, own_batch, min_i32(query_place + i / 2 % 2 * 8, p.n_q - 1));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, own_batch, min_i32(key_place + i / 4 * 8 + i % 2, p.n_kv - 1));
    }
    FN float q_minus_k(const struct Attention &, int i) const {
        return steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2);
    }
    FN i32 head(int) const { return own_head; }
    FN i32 batch() const { return own_batch; }
};
// For queries first_q + lane / 4, and + 8.
FN struct Where where_of(const struct Attention &p, i32 head, i32 batch, i32 first_q,
                         i32 first_k) {
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
    return {q, k, head, batch, steps_from(p, batch, q, k)};
}

FN void make_logits(Scores &s, const struct Log2Logit &logit, const struct Attention &p,
                    const struct Where &where) {
#pragma unroll
    for (int i = 0; i < 8; i++) s[i / 4][i % 4] = log2_logit(s[i / 4][i % 4], logit, p, where, i);
}

// Returns whether some pairs of a tile are dead or past the end.
FN bool is_masked(const struct Attention &p, struct Tile tile, i32 first_q, i32 first_k) {
    return !tile.full || p.n_q - first_q < TILE_Q || p.n_kv - first_k < TILE_K;
}
FN void hide_rest(Scores &s, const struct Attention &p, const struct Mask &mask, i32 full,
                  i32 first_q, i32 first_k) {
    const i32 n_q = p.n_q, n_kv = p.n_kv;
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 row = q + 8 * (e / 2), column = k + 8 * n + e % 2;
            const bool inside = row < n_q && column < n_kv;
            if (!inside || !(full || keep(mask, row, column, n_q, n_kv)))
                s[n][e] = MINUS_INFINITY;
        }
}
