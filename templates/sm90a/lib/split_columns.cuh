// WGMMAs of gradients when warpgroups split the columns: WHOLE_COLUMNS columns in whole slabs and,
// with HALF_SLAB, half of one more slab. Needs: backward_products.cuh, wgmma.cuh.

#define OF_COLUMNS(name, columns) OF_COLUMNS_(name, columns)
#define OF_COLUMNS_(name, columns) name##columns

// Operand descriptors of a warpgroup's columns, in tiles with slabs of `slab` bytes: whole slabs,
// then half of one.
FN u64 whole_slabs(u32 tile, u32 slab, i32 group) {
    return along_tokens(tile + (SLABS - WHOLE) * slab * group, slab);
}
FN u64 half_slab(u32 tile, u32 slab, i32 group) {
    return along_tokens(tile + WHOLE * slab + 64 * group, slab);
}
FN struct Operands operands(u32 k, u32 q, u32 ds, i32 group) {
    struct Operands at;
    at.k = along_columns(k);
    at.q = along_columns(q + group * QUERIES * SLAB_ROW);
    at.k_tokens = whole_slabs(k, K_SLAB, group);
    at.q_tokens = whole_slabs(q, Q_SLAB, group);
#if HALF_SLAB
    at.k_half = half_slab(k, K_SLAB, group);
    at.q_half = half_slab(q, Q_SLAB, group);
#endif
    at.ds = along_columns(ds);
    at.ds_keys = along_tokens(ds, Q_SLAB);
    return at;
}
// The `count` accumulators starting at `first`.
template <int first, int count, int N>
FN float (&part(float (&x)[N]))[count] {
    return *(float (*)[count])(x + first);
}

// Issues dv += p^T dout, or dk += ds^T q. `to_pairs` and the other offset lead from the operands of
// ds and q to the actual ones.
FN void begin_gradient(Gradient &d, const struct Operands &tiles, u32 to_pairs, u32 to_q) {
    const u64 pairs = tiles.ds_keys + to_pairs;
    fence_operand(d);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++) {
        OF_COLUMNS(multiply_gradient_, WHOLE_COLUMNS)(
            part<0, WHOLE_COLUMNS / 2>(d), pairs + token_step(i),
            tiles.q_tokens + to_q + token_step(i), true);
#if HALF_SLAB
        multiply_gradient_32(part<WHOLE_COLUMNS / 2, 16>(d), pairs + token_step(i),
                             tiles.q_half + to_q + token_step(i), true);
#endif
    }
    products_commit();
}

// Issues dq = ds k.
FN void begin_dq(QueryGradient &dq, const struct Operands &tiles, u32 at, int) {
    const u64 ds = tiles.ds + ds_stage(at);
    fence_operand(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++) {
        OF_COLUMNS(multiply_dq_, WHOLE_COLUMNS)(
            part<0, WHOLE_COLUMNS / 2>(dq), ds + column_step(i, Q_SLAB),
            tiles.k_tokens + token_step(i), i > 0);
#if HALF_SLAB
        multiply_dq_32(part<WHOLE_COLUMNS / 2, 16>(dq), ds + column_step(i, Q_SLAB),
                       tiles.k_half + token_step(i), i > 0);
#endif
    }
    products_commit();
}
