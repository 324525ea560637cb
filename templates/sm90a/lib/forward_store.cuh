// Epilogue of a row: sinks, results of other launches, lse, and out. Needs: query.cuh, ptx.cuh,
// unpack.cuh, work.cuh.

// The logit of a sink. With pack_gqa, every row has its own head's sink.
FN float sink_of(const struct Attention &p, i32 head, i32 row) {
    return p.sink_logits[head_of_row(p, head, row)];
}

// lse of a row from an earlier launch over other keys, times log2(e); -inf if there is none.
FN float lse_before(const struct Attention &p, const float *lse, i32 token) {
    return p.accumulates && token < p.n_q ? __fmul_rn(lse[token * p.lse_stride[2]], LOG2E)
                                    : MINUS_INFINITY;
}

#if PACK_GQA
#include "sm90a/lib/merge_packed.cuh"
#else
#include "sm90a/lib/merge_rows.cuh"
#endif

// Adds an earlier result or a sink to a row's sum, like one more key with the logit `before`.
// Either side may be -inf. Returns the weight of this key.
FN float join_sum(float before, float &total, float &base, float &factor) {
    const float higher = fmaxf(base, before), finite = higher == MINUS_INFINITY ? 0.0f : higher;
    const float shrink = fast_exp2(__fsub_rn(base, finite));
    const float weight = fast_exp2(__fsub_rn(before, finite));
    factor = __fmul_rn(factor, shrink);
    total = fmaf(total, shrink, weight);
    base = higher;
    return weight;
}
// Adds the earlier output, before the division.
FN void join_rows(Output &o, float (&scale)[2], const float (&share)[2], const struct Row &row,
                  i32 query, const struct Attention &p) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = min_i32(query_at(query + 8 * r), p.n_q - 1);
        const u32 *const before = (const u32 *)p.out + threadIdx.x % 4
            + row_offset(p.out_stride, {row.batch, row.head}, token) / 2;
#pragma unroll
        for (int i = 0; i < PIECES_V; i++) {
            const float2 x = unpack(before[4 * i]);
            float *const y = o + 4 * i + 2 * r;
            y[0] = fmaf(x.x, share[r], __fmul_rn(y[0], scale[r]));
            y[1] = fmaf(x.y, share[r], __fmul_rn(y[1], scale[r]));
        }
        scale[r] = 1.0f;
    }
}

// Index + 1 of the part that the item computes, if its row is split; 0 otherwise. Read from the
// slot of q, which may already be free.
FN i32 part_of(const struct Row &row, u32 tile) {
    if (STORE_DIRECT) return row.part;
    const struct Shared &shared = shared_memory();
    return uniform(shared.row[PERSISTENT && tile != shared_address(shared.q)].part);
}

#if DOCUMENT_ROWS
// Past the last row of the item. Read like the part.
FN i32 end_of(const struct Row &row, u32 tile) {
    if (STORE_DIRECT) return row.end;
    const struct Shared &shared = shared_memory();
    return uniform(shared.row[PERSISTENT && tile != shared_address(shared.q)].end);
}

#endif
// Stores a thread's two rows of out from registers. Neighboring threads exchange words of two
// pieces, so that four threads write 32 contiguous bytes.
#if DOCUMENT_ROWS
FN void store_direct(const Output &o, const float (&scale)[2], const i32 (&token)[2],
                     const struct Row &row, const struct Attention &p, i32 end) {
#else
FN void store_direct(const Output &o, const float (&scale)[2], const i32 (&token)[2],
                     const struct Row &row, const struct Attention &p) {
#endif
    const i32 odd = threadIdx.x % 2, word = odd * 4 + threadIdx.x % 4 / 2 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#if DOCUMENT_ROWS
        const bool inside = token[r] < end;
#else
        const bool inside = token[r] < p.n_q;
#endif
#if INTERLEAVED
        u32 *const line = (u32 *)p.out
            + row_offset(p, p.out_stride, {row.batch, row.head}, inside ? token[r] : 0) / 2 + word;
#else
        u32 *const line = (u32 *)p.out
            + row_offset(p.out_stride, {row.batch, row.head}, inside ? token[r] : 0) / 2 + word;
#endif
#pragma unroll
        for (int i = 0; i < OUT_STEPS; i++) {
            const float *const x = o + 8 * i + 2 * r;
            const u32 low = pack(x[0] * scale[r], x[1] * scale[r]);
            const u32 high = pack(x[4] * scale[r], x[5] * scale[r]);
            const u32 theirs = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
            if (PADDED && 2 * i + odd >= PIECES_V) continue;
            if (inside)
                *(uint2 *)(line + 8 * i) = make_uint2(odd ? theirs : low, odd ? high : theirs);
        }
    }
}

// Divides by the row sums, writes lse, and stores out: from registers, or by box copies of the
// shared memory of q. Roundings are explicit (__fmul_rn): persistent launches call this in two
// places, which must give identical bits.
FN void store(Output &o, const float (&top)[2], const float (&sum)[2], float unit,
              const struct Row &row, const struct Attention &p, const struct Maps &maps, u32 tile,
              i32 group) {
    if (const i32 part = part_of(row, tile)) {
#if PACK_GQA
        store_part(o, top, sum, unit, p, part - 1, group);
        finish_part(shared_memory(), p, group);
#else
        store_part(o, top, sum, unit, part_at(p, part - 1), group);
        sync_threads(8 + group, 128);  // all threads have read `part`; now its slot may be reused
#endif
        return;
    }
    const i32 lane = threadIdx.x % 32, query = query_of(row, group);
    float *const lse = p.lse + row_offset(p.lse_stride, {row.batch, row.head}, 0);
    const i32 token[2] = {query_at(query), query_at(query + 8)};
    const float before[2] = {lse_before(p, lse, token[0]), lse_before(p, lse, token[1])};
#if DOCUMENT_ROWS
    const i32 end = end_of(row, tile);
#endif
    float scale[2], share[2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = WITH_ENTMAX ? sum[r] : quad_sum(sum[r]);
        float base = __fmul_rn(top[r], unit), factor = 1.0f;
#if WITH_SINKS
        join_sum(__fmul_rn(sink_of(p, row.head, token[r]), LOG2E), total, base, factor);
#endif
        if (p.accumulates) share[r] = join_sum(before[r], total, base, factor);
        const bool empty = total == 0.0f;
        const float inverse = empty ? 0.0f : fast_reciprocal(total);
        scale[r] = __fmul_rn(factor, inverse);
        share[r] = __fmul_rn(share[r], inverse);
#if DOCUMENT_ROWS
        if (lane % 4 == 0 && token[r] < end)
#else
        if (lane % 4 == 0 && token[r] < p.n_q)
#endif
#if INTERLEAVED
            lse[row_step(p, p.lse_stride, token[r])] =
#else
            lse[token[r] * p.lse_stride[2]] =
#endif
                empty ? MINUS_INFINITY
                : WITH_ENTMAX ? base
                              : __fmul_rn(__fadd_rn(base, fast_log2(total)), LN2);
    }
    if (DROPS) scale[0] = __fmul_rn(scale[0], kept_scale(p));
    if (DROPS) scale[1] = __fmul_rn(scale[1], kept_scale(p));
    if (p.accumulates) join_rows(o, scale, share, row, query, p);
#if DOCUMENT_ROWS
    // A box would overwrite rows of the next document
    const bool crosses = row.tile + 64 * group + 64 > end && end < p.n_q;
    if (STORE_DIRECT || crosses) {
        if (!STORE_DIRECT) sync_threads(8 + group, 128);  // all have read `end`, as with parts
        return store_direct(o, scale, token, row, p, end);
    }
#else
    if (STORE_DIRECT) return store_direct(o, scale, token, row, p);
#endif
#pragma unroll
    for (int i = 0; i < OUT_STEPS; i++) {
        const float *const x = o + 8 * i;
        store_matrices(warp_rows(tile, group, i), pack(x[0] * scale[0], x[1] * scale[0]),
                       pack(x[2] * scale[1], x[3] * scale[1]),
                       pack(x[4] * scale[0], x[5] * scale[0]),
                       pack(x[6] * scale[1], x[7] * scale[1]));
    }
    publish_writes();
    sync_threads(8 + group, 128);
    if (threadIdx.x % 128 == 0) {
        const i32 first = 64 * group;
#pragma unroll
        for (int i = 0; i < SLABS_V; i++)
            store_box(maps.out, tile + i * Q_SLAB + first * SLAB_ROW, 64 * i,
#if DOCUMENT_ROWS
#if INTERLEAVED
                      queries_of(p, row.tile + first), row.head, row.batch);
#else
                      row.tile + first, row.head, row.batch);
#endif
#elif INTERLEAVED
                      queries_of(p, row.tile * TILE_Q + first), row.head, row.batch);
#else
                      query_point(row.tile * TILE_Q + first), row.head, row.batch);
#endif
        commit_stores();
    }
}

// Writes rows of tiles without a live pair. They are at the end of the work list, behind the live
// items and the unused items of a list that the device built.
FN void store_empty(const struct Attention &p) {
    if (p.accumulates) return;  // these rows keep the earlier result
    const i32 thread = threadIdx.x - 128;
    for (i32 index = p.items + p.empty - 1 - blockIdx.x; index >= 0; index -= gridDim.x) {
        const struct Work work = work_at(p, index);
#if DOCUMENT_ROWS
        if (work.count > 0) return;
        if (work.tile < 0) continue;
        const struct Place at = place_of(work.head, p.heads_q);
        const i32 first = document_rows(p, work).first, end = document_rows(p, work).end;
        // NaN of any precision if the lengths that the device read are wrong
        const i32 filled = work.shared < 0 ? -1 : 0;
#else
        if (work.count > 0 || work.tile < 0) return;
        const struct Place at = place_of(work.head, p.heads_q);
        const i32 first = work.tile * TILE_Q;
#endif
        for (i32 i = thread; i < TILE_Q * (HEAD_DIM_V / 8); i += 128 * GROUPS) {
            const i32 token = query_at(first + i / (HEAD_DIM_V / 8));
#if DOCUMENT_ROWS
            if (token >= end) continue;
#else
            if (token >= p.n_q) continue;
#endif
            if (PADDED && i % (HEAD_DIM_V / 8) >= PIECES_V) continue;
#if INTERLEAVED
            const i64 place = row_offset(p, p.out_stride, at, token);
#else
            const i64 place = row_offset(p.out_stride, at, token);
#endif
#if DOCUMENT_ROWS
            ((int4 *)p.out)[place / 8 + i % (HEAD_DIM_V / 8)] =
                make_int4(filled, filled, filled, filled);
#else
            ((uint4 *)p.out)[place / 8 + i % (HEAD_DIM_V / 8)] = make_uint4(0, 0, 0, 0);
#endif
        }
        for (i32 i = thread; i < TILE_Q; i += 128 * GROUPS) {
            const i32 token = query_at(first + i);
#if DOCUMENT_ROWS
            if (token < end)
#else
            if (token < p.n_q)
#endif
#if INTERLEAVED
                p.lse[row_offset(p, p.lse_stride, at, token)] =
#else
                p.lse[row_offset(p.lse_stride, at, token)] =
#endif
#if DOCUMENT_ROWS
                    filled ? __int_as_float(filled) :
#endif
                    WITH_SINKS ? sink_of(p, at.head, token) : MINUS_INFINITY;
        }
    }
}
