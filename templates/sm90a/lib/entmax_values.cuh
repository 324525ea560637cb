// alpha-entmax: out from the lists of keys, without another pass.
// Needs: entmax_lists.cuh, unpack.cuh, work.cuh.

// Where all rows of a block have few keys in their lists, only the values of these are read, from
// global memory. A quad has two rows of queries, and four keys of each a turn: each of its threads
// weighs one, and all take a quarter of its values, 16 bytes of every 64.
constexpr int PIECES = HEAD_DIM / 32;  // of 16 bytes, of a thread
constexpr int FETCHED = HEAD_DIM > 128 ? 1 : HEAD_DIM > 64 ? 2 : 4;  // keys of a row at once

// The lists of a quad's rows, one after another.
struct Joined {
    u32 end[2][4];  // where each ends, in bytes
};
FN struct Joined join_lists(const struct Lists &lists) {
    struct Joined x;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 own = r ? first_place(1) - lists.free[1] : lists.free[0] - first_place(0);
        u32 end = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) x.end[r][i] = end += __shfl_sync(0xffffffff, own, i, 4);
    }
    __syncwarp();  // now all threads see them
    return x;
}
FN u32 longest(const struct Joined &x) { return max(x.end[0][3], x.end[1][3]); }
// Beyond so many keys a pass over tiles of values is faster: it reads them once for all rows, and
// single ones come through a bandwidth that all blocks share.
FN u32 most_fetched(i32 tiles) { return (3 * (u32)tiles / 2 + 8) * LIST_STEP; }

// Where the score lies that has so many bytes before it.
FN u32 joined_at(const struct Joined &x, int r, u32 before) {
    u32 begin = 0, thread = 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (before >= x.end[r][i]) begin = x.end[r][i], thread = PLACE * (i + 1);
    const u32 first = first_place(r) - threadIdx.x % 4 * PLACE + thread;
    return r ? first - (before - begin) : first + (before - begin);
}

// Piece n of row r: in an output those of a thread lie one after another.
FN void add_piece(Output &o, int r, int piece, float weight, const uint4 &x) {
    const u32 pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(pairs[i]);
        float *const to = o + 16 * piece + 4 * i + 2 * r;
        to[0] = fmaf(weight, y.x, to[0]), to[1] = fmaf(weight, y.y, to[1]);
    }
}
// Of four keys of each row one is the thread's: its weight, and where its values lie.
FN void add_keys(Output &o, const float (&own)[2], const u32 (&own_at)[2], const uint4 *values) {
#pragma unroll (HEAD_DIM > 192 ? 1 : 4)  // where values take no more registers than there are
    for (int first = 0; first < 4; first += FETCHED) {
        float weight[FETCHED][2];
        uint4 x[FETCHED][2][PIECES];
#pragma unroll
        for (int i = 0; i < 2 * FETCHED; i++) {
            const float y = __shfl_sync(0xffffffff, own[i % 2], first + i / 2, 4);
            const u32 at = __shfl_sync(0xffffffff, own_at[i % 2], first + i / 2, 4);
            weight[i / 2][i % 2] = y;
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                x[i / 2][i % 2][n] = PADDED && 4 * n + threadIdx.x % 4 >= PIECES_V
                                         ? make_uint4(0, 0, 0, 0) : __ldg(values + at + 4 * n);
        }
#pragma unroll
        for (int i = 0; i < 2 * FETCHED; i++)
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                add_piece(o, i % 2, n, weight[i / 2][i % 2], x[i / 2][i % 2][n]);
    }
}

// A thread has pieces of a row's output, not columns as a product leaves them.
FN void store_pieces(const Output &o, const float (&lse)[2], const float (&sum)[2],
                     const struct Row &row, i32 query, const struct Attention &p) {
    const struct Place place = {row.batch, row.head};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = query_at(query + 8 * r);
        if (token >= p.n_q) continue;
        const bool empty = sum[r] == 0.0f;
        const float scale = fast_reciprocal(sum[r]) * kept_scale(p);
        uint4 *const to =
            (uint4 *)p.out + row_offset(p.out_stride, place, token) / 8 + threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *const x = o + 16 * n + 4 * i + 2 * r;
                pairs[i] = empty ? 0 : pack(x[0] * scale, x[1] * scale);
            }
            if (PADDED && 4 * n + threadIdx.x % 4 >= PIECES_V) continue;
            to[4 * n] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        if (threadIdx.x % 4 == 0)
            p.lse[row_offset(p.lse_stride, place, token)] = empty ? MINUS_INFINITY : lse[r];
    }
}

// Where the values of a score's key lie, in 16 bytes: 32 bits reach over 64 GiB.
FN u32 values_of(const struct Attention &p, u32 place) {
    return (i64)(i32)kept(place).y * p.v_stride[2] / 8;
}

// Of rows whose levels are found: sums of their weights, and the output that these are to divide.
// A row that has no more keys, but others have, reads values of one again: no others, which might
// not be numbers.
FN void fetch_values(Output &o, const struct Lists &lists, const struct Attention &p,
                     const struct Row &row, float unit, float a, struct Search &x) {
    const i32 kv_head = (u32)row.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const uint4 *const values = (const uint4 *)p.v + threadIdx.x % 4
        + row_offset(p.v_stride, {row.batch, kv_head}, 0) / 8;
    const struct Joined joined = join_lists(lists);
    const u32 most = __reduce_max_sync(0xffffffff, longest(joined));
    u32 at[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        at[r] = joined.end[r][3] ? values_of(p, joined_at(joined, r, 0)) : 0;
    clear(o);
    clear_sums(x);
    const struct Dropout dropout = dropout_of(p);
#pragma unroll 1
    for (u32 first = 0; first < most; first += 4 * LIST_STEP) {
        const u32 before = first + threadIdx.x % 4 * LIST_STEP;
        float weight[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (before >= joined.end[r][3]) continue;
            const u32 place = joined_at(joined, r, before);
            const float y = kept_score(place);
            at[r] = values_of(p, place);
            by_alpha(a, [&](auto kind) {
                constexpr Alpha ALPHA = decltype(kind)::value;
                if (ALPHA != NEAR_SOFTMAX) weight[r] = weigh<ALPHA>(y, unit, x.level[r], a).p;
            });
            x.p[r] += weight[r];
            if (DROPS) {
                const i32 query = query_of(row, threadIdx.x / 128 - 1) + 8 * r;
                const i32 key = (i32)kept(place).y;
                if (!stays(dropout, query, key, row.head, row.batch)) weight[r] = 0.0f;
            }
        }
        add_keys(o, weight, at, values);
    }
    sum_over_quads(x);
}
