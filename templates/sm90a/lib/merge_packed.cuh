// pack_gqa with split_kv: the only tile row is split along the keys. An item computes a part, and
// the last item to finish merges all of them. Needs: work.cuh, unpack.cuh; lse_before
// and sink_of of forward_store.cuh.

// A part is stored as fp32 at p.delta: the unnormalized output of every row, then for every row the
// level of its exponentials (times log2(e)) and their sum. Parts are 16-byte aligned, and do not
// record their item.
FN i32 part_rows(const struct Attention &p) { return p.n_q + p.n_q % 2; }
FN float *part_at(const struct Attention &p, i32 part) {
    return p.delta + (i64)part * (part_rows(p) * (HEAD_DIM + 2));
}
FN float2 *sums_of(const struct Attention &p, float *part) {
    return (float2 *)(part + part_rows(p) * HEAD_DIM);
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
        float2 *const output = (float2 *)(to + row * HEAD_DIM) + lane % 4;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            output[4 * i] = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
        if (lane % 4 == 0) sums_of(p, to)[row] = make_float2(__fmul_rn(top[r], unit), total);
    }
}

// Run by one warpgroup: one row per warp, four columns per lane. Parts are added in key order,
// whichever finished last, then the sink. This keeps the result deterministic.
constexpr int FOURS = HEAD_DIM / 4, OWN_FOURS = (FOURS + 31) / 32;

FN void merge_parts(const struct Attention &p, const struct Work &work) {
    const struct Place at = place_of(work.head, p.heads_q);
    const i32 lane = threadIdx.x % 32, step = part_rows(p) * (HEAD_DIM + 2);
    const float *const parts = part_at(p, work.first);
#pragma unroll 1
    for (i32 row = threadIdx.x % 128 / 32; row < p.n_q; row += 4) {
        const float *const from = parts + row * HEAD_DIM;
        const float *const sums = parts + part_rows(p) * HEAD_DIM + 2 * row;
        float *const lse = p.lse + row_offset(p.lse_stride, at, 0);
        const float before = lse_before(p, lse, row);
        const float sink =
            WITH_SINKS ? __fmul_rn(sink_of(p, at.head, row), LOG2E) : MINUS_INFINITY;
        float top = fmaxf(before, sink);
#pragma unroll 4
        for (i32 i = lane; i < work.count; i += 32)
            top = fmaxf(top, __ldcg((const float2 *)(sums + (i64)i * step)).x);
#pragma unroll
        for (int by = 16; by; by /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, by));
        top = top == MINUS_INFINITY ? 0.0f : top;

        float total = 0.0f, o[4 * OWN_FOURS] = {};
#pragma unroll 1
        for (i32 first = 0; first < work.count; first += 32) {
            const i32 count = min_i32(work.count - first, 32), own = min_i32(lane, count - 1);
            const float2 sum = __ldcg((const float2 *)(sums + (i64)(first + own) * step));
            const float weight = lane < count ? fast_exp2(__fsub_rn(sum.x, top)) : 0.0f;
            total = fmaf(weight, sum.y, total);
#pragma unroll 16
            for (i32 i = 0; i < count; i++) {
                const float share = __shfl_sync(0xffffffff, weight, i);
                const float4 *const part = (const float4 *)(from + (i64)(first + i) * step);
#pragma unroll
                for (int j = 0; j < OWN_FOURS; j++) {
                    if (FOURS % 32 && lane + 32 * j >= FOURS) continue;
                    const float4 x = __ldcg(part + lane + 32 * j);
                    float *const y = o + 4 * j;
                    y[0] = fmaf(share, x.x, y[0]), y[1] = fmaf(share, x.y, y[1]);
                    y[2] = fmaf(share, x.z, y[2]), y[3] = fmaf(share, x.w, y[3]);
                }
            }
        }
#pragma unroll
        for (int by = 16; by; by /= 2) total += __shfl_xor_sync(0xffffffff, total, by);
        const float share = fast_exp2(__fsub_rn(before, top));
        total += share + fast_exp2(__fsub_rn(sink, top));
        const bool empty = total == 0.0f;
        const float scale = empty ? 0.0f : fast_reciprocal(total);
        uint2 *const out = (uint2 *)p.out + row_offset(p.out_stride, at, row) / 4;
#pragma unroll
        for (int j = 0; j < OWN_FOURS; j++) {
            if (FOURS % 32 && lane + 32 * j >= FOURS) continue;
            // This would be the next row's memory
            if (PADDED && lane + 32 * j >= 2 * PIECES_V) continue;
            const uint2 old = p.accumulates ? out[lane + 32 * j] : make_uint2(0, 0);
            const float2 low = unpack(old.x), high = unpack(old.y);
            const float *const x = o + 4 * j;
            out[lane + 32 * j] = make_uint2(
                pack(fmaf(low.x, share, x[0]) * scale, fmaf(low.y, share, x[1]) * scale),
                pack(fmaf(high.x, share, x[2]) * scale, fmaf(high.y, share, x[3]) * scale));
        }
        if (lane == 0)
            lse[row * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : __fmul_rn(__fadd_rn(top, fast_log2(total)), LN2);
    }
}

// Counts a stored part. The last warpgroup to store a part of a row merges them and resets the row's
// counter for the next launch.
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
