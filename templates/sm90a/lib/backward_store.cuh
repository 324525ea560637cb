// Epilogue of a tile column: stores dk and dv, or adds them if items share the column. Needs:
// backward_workspace.cuh, backward_dq.cuh, ptx.cuh.

// Stages a warpgroup's share of a tile column's gradients in storage precision for box copies: its
// own keys, or its own columns of all keys.
FN void stage_gradient(const Gradient &d, u32 tile, float scale, i32 group) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < PIECES / 2; i++) {
        const float *x = d + 8 * i;
        const u32 column = column_of(group, 2 * i);
        store_matrices(tile + column / 64 * 64 * SLAB_ROW
                           + swizzled(row, column % 64 / 8 + lane / 16),
                       pack(x[0] * scale, x[1] * scale), pack(x[2] * scale, x[3] * scale),
                       pack(x[4] * scale, x[5] * scale), pack(x[6] * scale, x[7] * scale));
    }
    publish_writes();
}

// Where a warpgroup stages dk or dv. `last` is the stage of the column's last step, which a single
// warpgroup has not released yet. A column without steps uses the place of its keys.
FN u32 gradient_place(const struct Shared &shared, const struct Column &column, u32 last, int of_k,
                      i32 group) {
    if (!ALONE)
        return shared_address(shared.ds) + (SPLIT_KEYS ? group * SLABS * 64 * SLAB_ROW : 0);
    if (column.steps == 0) return shared_address(of_k ? shared.k : shared.v);
    return shared_address(of_k ? shared.q[last] : shared.dout[last]);
}

FN void store_column(const Gradient &dk, const Gradient &dv, const struct Column &column, u32 last,
                     struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                     i32 group) {
    const struct Place place = place_of(column.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const bool leader = threadIdx.x % 128 == 0 && (SPLIT_KEYS || group == 0);
    sync_both();  // all WGMMAs that read this place have finished
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 tile = gradient_place(shared, column, last, i, group);
        stage_gradient(i ? dk : dv, tile, i ? p.scale : kept_scale(p), group);
        if (SPLIT_KEYS) sync_group(group);
        else sync_both();
        if (leader) {
#pragma unroll
            for (int j = 0; j < SLABS; j++) {
                const TensorMap &map = i ? maps.dk : maps.dv;
                const u32 from = tile + j * 64 * SLAB_ROW;
                const Point key = key_point(column.tile * TILE_K + key_of(group));
                if (p.accumulates) add_box(map, from, 64 * j, key, at.head, at.batch);
                else store_box(map, from, 64 * j, key, at.head, at.batch);
            }
            commit_stores();
            if (!ALONE || i == 1) stores_read<0>();
        }
        if (ALONE) continue;
        if (SPLIT_KEYS && i == 0) sync_group(group);
        else sync_both();
    }
}

// The same for columns that several items share: adds to the column, or stores a share of it.
FN void add_column(const Gradient &dk, const Gradient &dv, const struct Column &column,
                   const struct Attention &p, i32 group) {
    float *const tile = workspace(p).keys + (column.shared - 1ll) * KEY_TILE_FLOATS;
    float4 *const to = (float4 *)tile + group * PIECES * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float *x = (i ? dv : dk) + 4 * j;
            const float4 four = make_float4(x[0], x[1], x[2], x[3]);
            float4 *const own = to + (GROUPS * i * PIECES + j) * 128;
            if (DETERMINISTIC || SEPARATE_DQ) *own = four;
            else atomicAdd(own, four);
        }
}
