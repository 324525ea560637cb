// Epilogue of a tile column: stores dk and dv, or adds them if items share the column. Needs:
// backward_workspace.cuh, backward_dq.cuh, ptx.cuh.

// Slabs of dk or dv for which a warpgroup has room where ds was.
constexpr int ROOM = SPLIT_KEYS ? DS_STAGES * PAIR_BYTES / (GROUPS * 64 * SLAB_ROW) : SLABS;

// Stages a warpgroup's share of a tile column's gradients in storage precision for box copies: its
// own keys, or its own columns of all keys. Of COUNT slabs, those from `first` on that fit.
template <int COUNT, int N>
FN void stage_gradient(const float (&d)[N], u32 tile, float scale, i32 group, u32 first) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float *x = d + 8 * i;
        const u32 column = column_of<COUNT>(group, 2 * i), slab = column / 64 - first;
        if (!ONE_WARPGROUP && COUNT > ROOM && slab >= ROOM) continue;
        store_matrices(tile + slab * 64 * SLAB_ROW
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
    if (!ONE_WARPGROUP)
        return shared_address(shared.ds)
               + (SPLIT_KEYS ? group * (SLABS < ROOM ? SLABS : ROOM) * 64 * SLAB_ROW : 0);
    if (column.steps == 0) return shared_address(of_k ? shared.k : shared.v);
    return shared_address(of_k ? shared.q[last] : shared.dout[dout_at(last)]);
}

// dv (OF_K 0) or dk (OF_K 1), in tiles of COUNT slabs; `at` is the head of keys.
template <int OF_K, int COUNT, int N>
FN void store_gradient(const float (&d)[N], const TensorMap &map, float scale,
                       const struct Place &at, const struct Column &column, u32 last,
                       const struct Shared &shared, const struct Attention &p, i32 group) {
    const bool leader = threadIdx.x % 128 == 0 && (SPLIT_KEYS || group == 0);
    const u32 tile = gradient_place(shared, column, last, OF_K, group);
    constexpr int AT_ONCE = ONE_WARPGROUP || COUNT < ROOM ? COUNT : ROOM;
#pragma unroll
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        stage_gradient<COUNT>(d, tile, scale, group, first);
        if (SPLIT_KEYS) sync_group(group);
        else sync_both();
        if (leader) {
#pragma unroll
            for (int j = first; j < first + AT_ONCE && j < COUNT; j++) {
                const u32 from = tile + (j - first) * 64 * SLAB_ROW;
                const Point key = key_point(column.tile * TILE_K + key_of(group));
                if (p.accumulates) add_box(map, from, 64 * j, key, at.head, at.batch);
                else store_box(map, from, 64 * j, key, at.head, at.batch);
            }
            commit_stores();
            if (!ONE_WARPGROUP || OF_K) stores_read<0>();
        }
        if (ONE_WARPGROUP) continue;
        if (SPLIT_KEYS && !(OF_K && first + AT_ONCE >= COUNT)) sync_group(group);
        else sync_both();
    }
}
FN void store_column(const Gradient &dk, const ValueGradient &dv, const struct Column &column,
                     u32 last, struct Shared &shared, const struct Attention &p,
                     const struct Maps &maps, i32 group) {
    sync_both();  // all WGMMAs that read this place have finished
    const struct Place place = place_of(column.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    store_gradient<0, SLABS_V>(dv, maps.dv, kept_scale(p), at, column, last, shared, p, group);
    store_gradient<1, SLABS>(dk, maps.dk, p.scale, at, column, last, shared, p, group);
}

// The same for columns that several items share: adds to the column, or stores a share of it.
template <int N>
FN void add_gradient(float4 *to, const float (&d)[N]) {
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        const float *x = d + 4 * j;
        const float4 four = make_float4(x[0], x[1], x[2], x[3]);
        if (DETERMINISTIC || SEPARATE_DQ) to[j * 128] = four;
        else atomicAdd(to + j * 128, four);
    }
}
FN void add_column(const Gradient &dk, const ValueGradient &dv, const struct Column &column,
                   const struct Attention &p, i32 group) {
    float *const tile = workspace(p).keys + (column.shared - 1ll) * KEY_TILE_FLOATS;
    float4 *const to = (float4 *)tile + threadIdx.x % 128;
    add_gradient(to + group * PIECES * 128, dk);
    add_gradient(to + (GROUPS * PIECES + group * PIECES_OF_DV) * 128, dv);
}
