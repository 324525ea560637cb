// pack_gqa: sinks of packed heads, and rows whose keys several blocks split. Needs: work.cuh,
// softmax.cuh. Gives: sink_of, store_part, merge_row.

FN float sink_of(const struct Attention *p, i32 head, i32 row) {
    if (!PACK_GQA) return p->sink_logits[head];
    const i32 packed = p->n_q / p->queries;
    return p->sink_logits[head * packed + min_i32(row, p->n_q - 1) / p->queries];
}

#if PACK_GQA
// A block's partial result for a tile of rows: out before the division, tops, sums.
constexpr int PART_FLOATS = TILE_Q * (HEAD_DIM_V + 2);
FN float *part_of(const struct Attention *p, const struct Work &work, i32 part) {
    const i32 rows = (p->n_q + TILE_Q - 1) / TILE_Q;
    const i64 tile = ((i64)work.batch * p->heads_q + work.head) * rows + work.row;
    return p->delta + (tile * work.parts + part) * PART_FLOATS;
}

FN void store_part(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
                   const struct Attention *p, const struct Work &work) {
    float *const to = part_of(p, work, work.part);
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 row = first_row() + lane / 4 + 8 * r;
        const float whole = quad_sum(sum[r]);
        if (lane % 4 == 0 && own_half() == 0) {
            to[TILE_Q * HEAD_DIM_V + row] = top[r];
            to[TILE_Q * (HEAD_DIM_V + 1) + row] = whole;
        }
        float2 *const columns = (float2 *)(to + row * HEAD_DIM_V + 8 * first_group()) + lane % 4;
#pragma unroll
        for (int n = 0; n < OWN_GROUPS; n++)
            columns[4 * n] = make_float2(o[0][n][2 * r], o[0][n][2 * r + 1]);
    }
}

// A warp merges the parts of a row in a fixed order.
FN void merge_row(const struct Attention *p, i64 number) {
    const i32 lane = threadIdx.x % 32, rows = (p->n_q + TILE_Q - 1) / TILE_Q * TILE_Q;
    const i32 row = number % rows, head = number / rows;
    if (row >= p->n_q) return;
    struct Work work = {row / TILE_Q, head % p->heads_q, head / p->heads_q};
    if (work.batch >= p->batch) return;
    work.parts = p->items;
    const i32 in_tile = row % TILE_Q;
    float peak = ROW_MAX_INIT;
    for (i32 i = lane; i < work.parts; i += 32)
        peak = fmaxf(peak, part_of(p, work, i)[TILE_Q * HEAD_DIM_V + in_tile]);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, by));
#if WITH_SINKS
    const float sink = sink_of(p, work.head, row) * LOG2E;
    peak = fmaxf(peak, sink);
    float total = fast_exp2(sink - peak);
#else
    float total = 0.0f;
#endif
    constexpr int PIECES = HEAD_DIM_V / 128;  // of four columns
    float4 x[PIECES] = {};
    for (i32 i = 0; i < work.parts; i++) {
        const float *const part = part_of(p, work, i);
        const float sum = part[TILE_Q * (HEAD_DIM_V + 1) + in_tile];
        if (sum == 0.0f) continue;
        const float factor = fast_exp2(part[TILE_Q * HEAD_DIM_V + in_tile] - peak);
        total += sum * factor;
        const float4 *const from = (const float4 *)(part + in_tile * HEAD_DIM_V);
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float4 y = from[32 * j + lane];
            x[j].x += y.x * factor, x[j].y += y.y * factor;
            x[j].z += y.z * factor, x[j].w += y.w * factor;
        }
    }
    const bool empty = total == 0.0f;
    const float scale = empty ? 0.0f : fast_reciprocal(total);
    if (lane == 0) lse_of(p, work, row) = (peak + fast_log2(total)) * LN2;
    uint2 *const to = (uint2 *)out_of(p, work, row);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const i32 place = 32 * j + lane;
        if (PADDED && place >= 2 * PIECES_V) continue;
        to[place] = make_uint2(pack(x[j].x * scale, x[j].y * scale),
                               pack(x[j].z * scale, x[j].w * scale));
    }
}
#endif
