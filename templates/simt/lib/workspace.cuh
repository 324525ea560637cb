// fp32 workspace between the launches of a backward pass: delta of every padded row, then for every
// tile row its share of the gradient of its head's slope. Gives: delta_of, slope_shares.

FN i64 tile_row(const struct Attention &p, i32 batch, i32 head) {
    return ((i64)batch * p.heads_q + head) * p.tile_rows;
}
FN float *delta_of(const struct Attention &p, i32 batch, i32 head) {
    return p.delta + tile_row(p, batch, head) * TILE_Q;
}
FN float *slope_shares(const struct Attention &p, i32 batch, i32 head) {
    return p.delta + tile_row(p, p.batch, 0) * TILE_Q + tile_row(p, batch, head);
}
