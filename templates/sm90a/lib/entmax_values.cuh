// alpha-entmax: computes out from the lists of keys by fetching single values. Needs:
// entmax_lists.cuh, unpack.cuh, work.cuh.

// Used if all rows of a block have short lists: only the values of listed keys are read, from
// global memory. A quad owns two rows and takes four keys of each per iteration. Each thread
// computes the weight of one key, and all four read a quarter of each value row: 16 bytes of every
// 64.
constexpr int PIECES = (HEAD_DIM_V + 31) / 32;  // 16-byte pieces of a thread
typedef float Fetched[16 * PIECES];            // of each of its rows
constexpr bool SHORT = 4 * PIECES > PIECES_V;  // rows end before the last pieces of some threads
// Keys of a row per iteration.
constexpr int FETCHED = HEAD_DIM_V > 128 ? 1 : HEAD_DIM_V > 64 ? 2 : 4;

// The lists of the four threads of a quad, concatenated.
struct Joined {
    u32 end[2][4];  // end offset of each thread's list, in bytes
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
    __syncwarp();  // make the entries visible to all threads of the quad
    return x;
}
FN u32 longest(const struct Joined &x) { return max(x.end[0][3], x.end[1][3]); }
// Above this length, a pass over tiles of v is faster: it reads each value once for all rows, while
// single values go through the L2 bandwidth that all blocks share.
FN u32 most_fetched(i32 tiles) { return (3 * (u32)tiles / 2 + 8) * LIST_STEP; }

// Address of the score at offset `before` in the concatenated lists.
FN u32 joined_at(const struct Joined &x, int r, u32 before) {
    u32 begin = 0, thread = 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (before >= x.end[r][i]) begin = x.end[r][i], thread = PLACE * (i + 1);
    const u32 first = first_place(r) - threadIdx.x % 4 * PLACE + thread;
    return r ? first - (before - begin) : first + (before - begin);
}

// Adds piece n of row r. Here an output holds the pieces of a thread one after another.
FN void add_piece(Fetched &o, int r, int piece, float weight, const uint4 &x) {
    const u32 pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(pairs[i]);
        float *const to = o + 16 * piece + 4 * i + 2 * r;
        to[0] = fmaf(weight, y.x, to[0]), to[1] = fmaf(weight, y.y, to[1]);
    }
}
// Adds four keys of each row. The thread contributes one of them: its weight, and where its values
// lie.
FN void add_keys(Fetched &o, const float (&own)[2], const u32 (&own_at)[2], const uint4 *values) {
#pragma unroll (HEAD_DIM_V > 192 ? 1 : 4)  // unroll as far as registers allow
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
                x[i / 2][i % 2][n] = SHORT && 4 * n + threadIdx.x % 4 >= PIECES_V
                                         ? make_uint4(0, 0, 0, 0) : __ldg(values + at + 4 * n);
        }
#pragma unroll
        for (int i = 0; i < 2 * FETCHED; i++)
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                add_piece(o, i % 2, n, weight[i / 2][i % 2], x[i / 2][i % 2][n]);
    }
}

// Stores pieces of a row, because a thread does not hold columns in WGMMA order here.
FN void store_pieces(const Fetched &o, const float (&lse)[2], const float (&sum)[2],
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
            if (SHORT && 4 * n + threadIdx.x % 4 >= PIECES_V) continue;
            to[4 * n] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        if (threadIdx.x % 4 == 0)
            p.lse[row_offset(p.lse_stride, place, token)] = empty ? MINUS_INFINITY : lse[r];
    }
}

// Offset of the values of a score's key, in units of 16 bytes, so that 32 bits reach over 64 GiB.
FN u32 values_of(const struct Attention &p, u32 place) {
    return (i64)(i32)kept(place).y * p.v_stride[2] / 8;
}

// Sums the weights of rows with known levels, and computes the output before the division by the
// sums. A row whose list ends before others' rereads the value of one of its own keys: values of
// other keys might be NaN.
FN void fetch_values(Fetched &o, const struct Lists &lists, const struct Attention &p,
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
