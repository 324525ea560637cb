// A warpgroup's q, and its products with keys. Needs: ptx.cuh, wgmma.cuh; Shared and Scores of the
// includer.

// ldmatrix or stmatrix address of a lane, for 16 columns of its warp's rows of q or out.
FN u32 warp_rows(u32 tile, i32 group, int step) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32;
    const u32 row = 64 * group + thread / 32 * 16 + lane % 16;
    return tile + step / 4 * Q_SLAB + swizzled(row, step % 4 * 2 + lane / 16);
}

// A warpgroup's q: a shared-memory descriptor, or fragments in registers.
struct Query {
    u64 operand;
#if KEEP_Q
    u32 fragment[QK_STEPS * 4];
#endif
};

FN u64 q_operand(const struct Shared &shared, i32 at, i32 group) {
    return along_columns(shared_address(shared.q[at]) + group * 64 * SLAB_ROW);
}
FN void take_q(struct Query &q, struct Shared &shared, i32 at, i32 group) {
    const u32 tile = shared_address(shared.q[at]);
    q.operand = q_operand(shared, at, group);
#if KEEP_Q
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++) {
        u32 *x = q.fragment + 4 * i;
        load_matrices(x[0], x[1], x[2], x[3], warp_rows(tile, group, i));
    }
#endif
}

// Issues s = q k^T.
FN void begin_scores(Scores &s, struct Query &q, u64 k) {
    fence_operand(s);
#if KEEP_Q
    fence_operand(q.fragment);
#endif
    products_begin();
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++)
#if KEEP_Q
        multiply_kept_qk(s, q.fragment + 4 * i, k + column_step(i, K_SLAB), i > 0);
#else
        multiply_qk(s, q.operand + column_step(i, Q_SLAB), k + column_step(i, K_SLAB), i > 0);
#endif
    products_commit();
}
