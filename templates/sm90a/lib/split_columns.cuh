// WGMMAs of gradients when warpgroups split the columns: whole slabs and, if their number is odd,
// half of one more slab. Needs: backward_products.cuh, wgmma.cuh.

// Operand descriptors of a warpgroup's columns, in tiles of q or k with slabs of `slab` bytes:
// whole slabs, then half of one.
FN u64 whole_slabs(u32 tile, u32 slab, i32 group) {
    return along_tokens(tile + whole(SLABS) * slab * group, slab);
}
FN u64 half_slab(u32 tile, u32 slab, i32 group) {
    return along_tokens(tile + 2 * whole(SLABS) * slab + 2 * HALF_COLUMNS * group, slab);
}
// Leads from such a descriptor to the same one of a tile of COUNT slabs.
template <int COUNT>
FN i32 to_whole_slabs(i32 group) {
    return (whole(COUNT) - whole(SLABS)) * (i32)(Q_SLAB >> 4) * group;
}
template <int COUNT>
FN i32 to_half_slab() { return 2 * (whole(COUNT) - whole(SLABS)) * (i32)(Q_SLAB >> 4); }
FN struct Operands operands(u32 k, u32 q, u32 ds, i32 group) {
    struct Operands at;
    at.k = along_columns(k);
    at.q = along_columns(q + group * QUERIES * SLAB_ROW);
    at.k_tokens = whole_slabs(k, K_SLAB, group);
    at.q_tokens = whole_slabs(q, Q_SLAB, group);
    at.k_half = half_slab(k, K_SLAB, group);
    at.q_half = half_slab(q, Q_SLAB, group);
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
template <int COUNT, int N>
FN void begin_gradient(float (&d)[N], const struct Operands &tiles, u32 to_pairs, u32 to_q,
                       i32 group) {
    constexpr int WHOLE = 32 * whole(COUNT);  // accumulators
    const u64 pairs = tiles.ds_keys + to_pairs;
    fence_operand(d);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++) {
        multiply_gradient(part<0, WHOLE>(d), pairs + token_step(i),
                          tiles.q_tokens + to_whole_slabs<COUNT>(group) + to_q + token_step(i),
                          true);
        if constexpr (COUNT % 2)
            multiply_gradient(part<WHOLE, 16>(d), pairs + token_step(i),
                              tiles.q_half + to_half_slab<COUNT>() + to_q + token_step(i), true);
    }
    products_commit();
}

// Issues dq = ds k.
template <int COUNT = SLABS, int N>
FN void begin_dq(float (&dq)[N], const struct Operands &tiles, u32 at, int) {
    constexpr int WHOLE = 32 * whole(COUNT);  // accumulators
    const u64 ds = tiles.ds + ds_stage(at);
    fence_operand(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++) {
        multiply_dq(part<0, WHOLE>(dq), ds + column_step(i, Q_SLAB),
                    tiles.k_tokens + token_step(i), i > 0);
        if constexpr (COUNT % 2)
            multiply_dq(part<WHOLE, 16>(dq), ds + column_step(i, Q_SLAB),
                        tiles.k_half + token_step(i), i > 0);
    }
    products_commit();
}
