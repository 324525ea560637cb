// pack_gqa with split_kv: the only tile row is split along the keys. An item computes a part, and
// the last item to finish merges all of them. Needs: work.cuh, unpack.cuh; lse_before
// and sink_of of forward_store.cuh.

// A part is stored as fp32 at p.delta: the unnormalized output of every row, then for every row the
// level of its exponentials (times log2(e)) and their sum. Parts are 16-byte aligned, and do not
// record their item.
FN i32 part_rows(const struct Attention &p) { return p.n_q + p.n_q % 2; }
FN float *part_at(const struct Attention &p, i32 part) {
    return p.delta + (i64)part * (part_rows(p) * (HEAD_DIM_V + 2));
}
FN float2 *sums_of(const struct Attention &p, float *part) {
    return (float2 *)(part + part_rows(p) * HEAD_DIM_V);
}

FN void store_part(const Output &o, const float (&top)[2], const float (&sum)[2], float unit,
                   const struct Attention &p, i32 part, i32 group) {
    const i32 lane = threadIdx.x % 32, first = 64 * group + threadIdx.x % 128 / 32 * 16;
    if (first >= p.n_q) return;  // uniform in a warp
    float *const to = part_at(p, part);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first + lane / 4 + 8 * r;
        const float total = quad_sum(sum[r]);
        if (row >= p.n_q) continue;
        float2 *const output = (float2 *)(to + row * HEAD_DIM_V) + lane % 4;
#pragma unroll
        for (int i = 0; i < HEAD_DIM_V / 8; i++)
            output[4 * i] = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
        if (lane % 4 == 0) sums_of(p, to)[row] = make_float2(__fmul_rn(top[r], unit), total);
    }
}

constexpr int FOURS = HEAD_DIM_V / 4, OWN_FOURS = (FOURS + 31) / 32;
constexpr int MAX_PARTS = 64;  // of a row; see maskc/layout/work/work_list.py

// The weights of a row's parts, two of each lane, and of an earlier result; the factor of their
// sum, and the row's lse.
struct PartWeights {
    float own[MAX_PARTS / 32], before, scale, lse;
};
FN struct PartWeights part_weights(const struct Attention &p, const struct Place &at, i32 row,
                                   const float2 (&sums)[MAX_PARTS / 32]) {
    const float before = lse_before(p, p.lse + row_offset(p.lse_stride, at, 0), row);
    const float sink =
        WITH_SINKS ? __fmul_rn(sink_of(p, at.head, row), LOG2E) : MINUS_INFINITY;
    float top = fmaxf(before, sink);
#pragma unroll
    for (int i = 0; i < MAX_PARTS / 32; i++) top = fmaxf(top, sums[i].x);
#pragma unroll
    for (int by = 16; by; by /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, by));
    top = top == MINUS_INFINITY ? 0.0f : top;
    struct PartWeights weights;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_PARTS / 32; i++) {
        weights.own[i] = fast_exp2(__fsub_rn(sums[i].x, top));
        total = fmaf(weights.own[i], sums[i].y, total);
    }
#pragma unroll
    for (int by = 16; by; by /= 2) total += __shfl_xor_sync(0xffffffff, total, by);
    weights.before = fast_exp2(__fsub_rn(before, top));
    total += weights.before + fast_exp2(__fsub_rn(sink, top));
    const bool empty = total == 0.0f;
    weights.scale = empty ? 0.0f : fast_reciprocal(total);
    weights.lse = empty ? MINUS_INFINITY : __fmul_rn(__fadd_rn(top, fast_log2(total)), LN2);
    return weights;
}

// Run by one warpgroup. A warp merges TOGETHER rows at a time, so that their loads are in flight
// together; a lane has four columns of each, and the weights of two parts. Parts are added in key
// order, whichever finished last, then the sink. This keeps the result deterministic.
template <int TOGETHER>
FN void merge_rows(const struct Attention &p, const struct Work &work) {
    const struct Place at = place_of(work.head, p.heads_q);
    const i32 lane = threadIdx.x % 32, step = part_rows(p) * (HEAD_DIM_V + 2);
    const float *const parts = part_at(p, work.first);
    const float *const sums = parts + part_rows(p) * HEAD_DIM_V;
#pragma unroll 1
    for (i32 first = threadIdx.x % 128 / 32; first < p.n_q; first += 4 * TOGETHER) {
        float2 sum[TOGETHER][MAX_PARTS / 32];
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const i32 row = min_i32(first + 4 * r, p.n_q - 1);
#pragma unroll
            for (int i = 0; i < MAX_PARTS / 32; i++) {
                const i32 part = lane + 32 * i;
                sum[r][i] = part < work.count
                    ? __ldcg((const float2 *)(sums + (i64)part * step + 2 * row))
                    : make_float2(MINUS_INFINITY, 0.0f);
            }
        }
        struct PartWeights weights[TOGETHER];
#pragma unroll
        for (int r = 0; r < TOGETHER; r++)
            weights[r] = part_weights(p, at, min_i32(first + 4 * r, p.n_q - 1), sum[r]);

        float o[TOGETHER][4 * OWN_FOURS] = {};
#pragma unroll
        for (int i = 0; i < MAX_PARTS / 32; i++) {
            const i32 count = min_i32(work.count - 32 * i, 32);
#pragma unroll 16 / TOGETHER
            for (i32 j = 0; j < count; j++) {
                const float *const part = parts + (i64)(32 * i + j) * step;
#pragma unroll
                for (int r = 0; r < TOGETHER; r++) {
                    const float share = __shfl_sync(0xffffffff, weights[r].own[i], j);
                    const i32 row = min_i32(first + 4 * r, p.n_q - 1);
                    const float4 *const from = (const float4 *)(part + row * HEAD_DIM_V);
#pragma unroll
                    for (int c = 0; c < OWN_FOURS; c++) {
                        if (FOURS % 32 && lane + 32 * c >= FOURS) continue;
                        const float4 x = __ldcg(from + lane + 32 * c);
                        float *const y = o[r] + 4 * c;
                        y[0] = fmaf(share, x.x, y[0]), y[1] = fmaf(share, x.y, y[1]);
                        y[2] = fmaf(share, x.z, y[2]), y[3] = fmaf(share, x.w, y[3]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const i32 row = first + 4 * r;
            if (row >= p.n_q) break;
            if (lane == 0) p.lse[row_offset(p.lse_stride, at, row)] = weights[r].lse;
            uint2 *const out = (uint2 *)p.out + row_offset(p.out_stride, at, row) / 4;
            const float share = weights[r].before, scale = weights[r].scale;
#pragma unroll
            for (int c = 0; c < OWN_FOURS; c++) {
                if (FOURS % 32 && lane + 32 * c >= FOURS) continue;
                // This would be the next row's memory
                if (PADDED && lane + 32 * c >= 2 * PIECES_V) continue;
                const uint2 old = p.accumulates ? out[lane + 32 * c] : make_uint2(0, 0);
                const float2 low = unpack(old.x), high = unpack(old.y);
                const float *const x = o[r] + 4 * c;
                out[lane + 32 * c] = make_uint2(
                    pack(fmaf(low.x, share, x[0]) * scale, fmaf(low.y, share, x[1]) * scale),
                    pack(fmaf(high.x, share, x[2]) * scale, fmaf(high.y, share, x[3]) * scale));
            }
        }
    }
}

FN void merge_parts(const struct Attention &p, const struct Work &work) {
    if (p.n_q <= 4)
        merge_rows<1>(p, work);
    else
        merge_rows<HEAD_DIM_V <= 128 ? 4 : 2>(p, work);
}

// Counts a stored part. The last warpgroup to store a part of a row merges them and resets the
// row's counter for the next launch.
FN void finish_part(struct Shared &shared, const struct Attention &p, i32 group) {
    const i32 merge = uniform(shared.row[0].merge);
    const struct Work work = work_at(p, p.items + p.empty + merge);
    i32 &done = p.counter[2 + merge];
    sync_threads(8 + group, 128);
    if (threadIdx.x % 128 == 0) {
        __threadfence();
        shared.stored[group] = atomicAdd(&done, 1);
    }
    sync_threads(8 + group, 128);
    if (uniform(shared.stored[group]) + 1 != work.count * GROUPS) return;
    if (threadIdx.x % 128 == 0) done = 0;
    __threadfence();
    merge_parts(p, work);
}
