// split_kv: tile rows that are split along the keys. What their items store, and the launch that
// merges it. Needs: work.cuh, unpack.cuh.

// An item of a split row stores a part as fp32 at p.delta instead of results. For each warpgroup:
// its accumulators, four numbers of every thread at a time, then for each query the level of its
// exponentials (times log2(e)) and their sum.
constexpr i32 PART_FLOATS = TILE_Q * (HEAD_DIM_V + 2);

FN float *part_at(const struct Attention &p, i32 part) { return p.delta + (i64)part * PART_FLOATS; }
FN float4 *output_of(float *part, i32 group) {
    return (float4 *)part + group * (HEAD_DIM_V / 8 * 128);
}
FN float2 *sums_of(float *part) { return (float2 *)(part + TILE_Q * HEAD_DIM_V); }

FN void store_part(const Output &o, const float (&top)[2], const float (&sum)[2], float unit,
                   float *part, i32 group) {
    const i32 thread = threadIdx.x % 128;
    float4 *const output = output_of(part, group) + thread;
#pragma unroll
    for (int i = 0; i < HEAD_DIM_V / 8; i++)
        output[i * 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    float2 *const sums = sums_of(part) + 64 * group + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(sum[r]);
        if (thread % 4 == 0) sums[8 * r] = make_float2(__fmul_rn(top[r], unit), total);
    }
}

// Merge launch: a block has 16 queries of a row, which one warp computed. Each of its warps merges
// a quarter of the columns. Parts are added in key order, then the sink, so that the result is
// deterministic.
constexpr int MERGE_ROWS = 16, MERGE_PIECES = (HEAD_DIM_V + 31) / 32;  // pieces of eight columns
constexpr int PARTS_AT_ONCE = HEAD_DIM_V > 128 ? 2 : 4;

extern "C" __global__ void __launch_bounds__(128)
attention_merge(const __grid_constant__ struct Attention p, const __grid_constant__ struct Maps) {
    constexpr u32 STRIPS = TILE_Q / MERGE_ROWS;
    const struct Work work = work_at(p, p.items + p.empty + blockIdx.x / STRIPS);
    const i32 strip = blockIdx.x % STRIPS, lane = threadIdx.x % 32;
    const i32 row = strip * MERGE_ROWS + lane / 4, query = work.tile * TILE_Q + row;
    if (!GRID_TILES && work.tile * TILE_Q + strip * MERGE_ROWS >= p.n_q) return;  // no queries here
    const i32 first = threadIdx.x / 32 * MERGE_PIECES;
    const i32 place = first * 128 + strip % 4 * 32 + lane;

    const struct Place at = place_of(work.head, p.heads_q);
    float *const lse = p.lse + row_offset(p.lse_stride, at, 0);
    const i32 token[2] = {query_at(query), query_at(query + 8)};
    const float before[2] = {lse_before(p, lse, token[0]), lse_before(p, lse, token[1])};
    __syncthreads();  // all warps have read lse before one writes it

    float top[2] = {before[0], before[1]};
#pragma unroll 8
    for (i32 i = 0; i < work.count; i++) {
        const float2 *const sums = sums_of(part_at(p, work.first + i)) + row;
        top[0] = fmaxf(top[0], sums[0].x), top[1] = fmaxf(top[1], sums[8].x);
    }
    float sink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sink[r] = WITH_SINKS ? __fmul_rn(sink_of(p, at.head, token[r]), LOG2E) : MINUS_INFINITY;
        top[r] = fmaxf(top[r], sink[r]);
        top[r] = top[r] == MINUS_INFINITY ? 0.0f : top[r];
    }

    float total[2] = {}, o[4 * MERGE_PIECES] = {};
#pragma unroll PARTS_AT_ONCE
    for (i32 i = 0; i < work.count; i++) {
        float *const part = part_at(p, work.first + i);
        const float2 *const sums = sums_of(part) + row;
        const float low = fast_exp2(__fsub_rn(sums[0].x, top[0]));
        const float high = fast_exp2(__fsub_rn(sums[8].x, top[1]));
        total[0] = fmaf(low, sums[0].y, total[0]), total[1] = fmaf(high, sums[8].y, total[1]);
#pragma unroll
        for (int j = 0; j < MERGE_PIECES; j++) {
            if (4 * MERGE_PIECES > HEAD_DIM_V / 8 && first + j >= HEAD_DIM_V / 8) break;
            const float4 x = output_of(part, strip / 4)[place + j * 128];
            float *const y = o + 4 * j;
            y[0] = fmaf(low, x.x, y[0]), y[1] = fmaf(low, x.y, y[1]);
            y[2] = fmaf(high, x.z, y[2]), y[3] = fmaf(high, x.w, y[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * MERGE_PIECES; i++) o[i] *= kept_scale(p);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float share = fast_exp2(__fsub_rn(before[r], top[r]));
        total[r] += share + fast_exp2(__fsub_rn(sink[r], top[r]));
        const bool empty = total[r] == 0.0f;
        const float scale = empty ? 0.0f : fast_reciprocal(total[r]);
        const i32 q = token[r];
        if (q >= p.n_q) continue;
        u32 *const out = (u32 *)p.out + row_offset(p, p.out_stride, at, q) / 2 + lane % 4;
#pragma unroll
        for (int j = 0; j < MERGE_PIECES; j++) {
            if (4 * MERGE_PIECES > PIECES_V && first + j >= PIECES_V) break;
            u32 &to = out[4 * (first + j)];
            const float *const x = o + 4 * j + 2 * r;
            const float2 y = p.accumulates ? unpack(to) : make_float2(0.0f, 0.0f);
            to = pack(fmaf(y.x, share, x[0]) * scale, fmaf(y.y, share, x[1]) * scale);
        }
        if (threadIdx.x < 32 && lane % 4 == 0)
            lse[row_step(p, p.lse_stride, q)] =
                empty ? MINUS_INFINITY : __fmul_rn(__fadd_rn(top[r], fast_log2(total[r])), LN2);
    }
}
