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

// Where a store reads the part and the end of its row: in the slot of q, which may already be free,
// so that they occupy no registers before. If STORE_DIRECT, the slot has the next row.
FN const struct Row &stored_row(const struct Row &row, u32 tile) {
    if (STORE_DIRECT) return row;
    const struct Shared &shared = shared_memory();
    return shared.row[PERSISTENT && tile != shared_address(shared.q)];
}

// Stores a thread's two rows of out from registers. Neighboring threads exchange words of two
// pieces, so that four threads write 32 contiguous bytes.
FN void store_direct(const Output &o, const float (&scale)[2], const i32 (&token)[2], i32 end,
                     const struct Row &row, const struct Attention &p) {
    const i32 odd = threadIdx.x % 2, word = odd * 4 + threadIdx.x % 4 / 2 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = token[r] < end;
        u32 *const line = (u32 *)p.out
            + row_offset(p, p.out_stride, {row.batch, row.head}, inside ? token[r] : 0) / 2 + word;
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
    const struct Row &stored = stored_row(row, tile);
    if (const i32 part = uniform(stored.part)) {
#if PACK_GQA
        store_part(o, top, sum, unit, p, part - 1, group);
        finish_part(shared_memory(), p, group);
#else
        store_part(o, top, sum, unit, part_at(p, part - 1), group);
        sync_threads(8 + group, 128);  // all threads have read `stored`; its slot may be reused
#endif
        return;
    }
    const i32 lane = threadIdx.x % 32, query = query_of(row, group);
    float *const lse = p.lse + row_offset(p.lse_stride, {row.batch, row.head}, 0);
    const i32 token[2] = {query_at(query), query_at(query + 8)};
    const float before[2] = {lse_before(p, lse, token[0]), lse_before(p, lse, token[1])};
    const i32 end = stored.rows.end(p);
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
        if (lane % 4 == 0 && token[r] < end)
            lse[row_step(p, p.lse_stride, token[r])] =
                empty ? MINUS_INFINITY
                : WITH_ENTMAX ? base
                              : __fmul_rn(__fadd_rn(base, fast_log2(total)), LN2);
    }
    if (DROPS) scale[0] = __fmul_rn(scale[0], kept_scale(p));
    if (DROPS) scale[1] = __fmul_rn(scale[1], kept_scale(p));
    if (p.accumulates) join_rows(o, scale, share, row, query, p);
    // A box would overwrite rows of the next document
    const bool crosses =
        ENDS_INSIDE && row.rows.first() + 64 * group + 64 > end && end < p.n_q;
    if (STORE_DIRECT || crosses) {
        if (!STORE_DIRECT) sync_threads(8 + group, 128);  // all have read `stored`, as with parts
        return store_direct(o, scale, token, end, row, p);
    }
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
                      box_at(p, row.rows.first() + first), row.head, row.batch);
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
        if (work.count > 0 || (UNUSED_LAST && work.tile < 0)) return;
        if (work.tile < 0) continue;
        const struct Place at = place_of(work.head, p.heads_q);
        const i32 first = rows_of_item(p, work).first(), end = rows_of_item(p, work).end(p);
        const u32 word = empty_word(work);
        for (i32 i = thread; i < TILE_Q * (HEAD_DIM_V / 8); i += 128 * GROUPS) {
            const i32 token = query_at(first + i / (HEAD_DIM_V / 8));
            if (token >= end) continue;
            if (PADDED && i % (HEAD_DIM_V / 8) >= PIECES_V) continue;
            const i64 place = row_offset(p, p.out_stride, at, token);
            ((uint4 *)p.out)[place / 8 + i % (HEAD_DIM_V / 8)] =
                make_uint4(word, word, word, word);
        }
        for (i32 i = thread; i < TILE_Q; i += 128 * GROUPS) {
            const i32 token = query_at(first + i);
            if (token < end)
                p.lse[row_offset(p, p.lse_stride, at, token)] =
                    word ? __uint_as_float(word)
                    : WITH_SINKS ? sink_of(p, at.head, token)
                                 : MINUS_INFINITY;
        }
    }
}
