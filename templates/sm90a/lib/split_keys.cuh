// WGMMAs of gradients when warpgroups split the keys of a tile column. Needs:
// backward_products.cuh, backward_workspace.cuh, wgmma.cuh.

FN struct Operands operands(u32 k, u32 q, u32 ds, i32 group) {
    const u32 half = SHARE_COLUMNS ? 0 : group * 64 * SLAB_ROW;
    struct Operands at;
    at.k = along_columns(k + group * 64 * SLAB_ROW);
    at.q = along_columns(q);
    const i32 first_slab = SHARE_COLUMNS ? group * whole(SLABS) : 0;
    at.k_tokens = along_tokens(k + first_slab * K_SLAB, K_SLAB);
    at.k_half = along_tokens(k + 2 * whole(SLABS) * K_SLAB + 2 * HALF_COLUMNS * group, K_SLAB);
    at.q_tokens = along_tokens(q, Q_SLAB);
    at.ds = along_columns(ds + half);
    return at;
}

// Issues dv += p dout, or dk += ds q. The A operand is in registers.
template <int N>
FN void begin_gradient(float (&d)[N], Pairs &pairs, u64 q) {
    fence_operand(pairs);
    fence_operand(d);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++)
        multiply_gradient(d, pairs + 4 * i, q + token_step(i), true);
    products_commit();
}

// Issues dq = ds k, with the columns of k from `k` on.
template <int N>
FN void begin_dq(float (&dq)[N], const struct Operands &tiles, u32 at, u64 k) {
    const u64 ds = tiles.ds + ds_stage(at);
    fence_operand(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        multiply_dq(dq, ds + column_step(i, Q_SLAB), k + token_step(i), i > 0);
    products_commit();
}
// A single warpgroup does this once per share.
FN void begin_dq(QueryGradient &dq, const struct Operands &tiles, u32 at, int share) {
    begin_dq(dq, tiles, at, tiles.k_tokens + share * (K_SLAB >> 4));
}
