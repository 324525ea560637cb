// The scores of an indexer, in tiles, on tensor cores; everything except the products. Needs:
// INDEX_BYTES of an element, INDEX_SLABS of a row, KEYS, QUERIES and COLUMNS of a step, the threads
// COMPUTING and COPYING, swizzled and copy_piece.

// A block owns KEYS keys and iterates over queries in steps of COLUMNS columns. The columns are the
// heads of consecutive queries; the padded number of heads divides COLUMNS or is a multiple of it.
// Keys are the rows of the product, sixteen per warp, so a thread sums the heads of a query itself.
// Keys stay in shared memory; heads stream through in slabs of 128 bytes per row.
constexpr int COLUMN_BITS = 7;
constexpr u32 KEY_SLAB = KEYS * 128, COLUMN_SLAB = COLUMNS * 128;  // bytes
static_assert(COLUMNS == 1 << COLUMN_BITS, "heads are told by bits");
static_assert(COMPUTING == 2 * KEYS, "a warp has sixteen keys");

FN float relu(float x) {  // NaN stays NaN
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(0.0f));
    return y;
}

// The part of the scores that a block computes.
struct Part {
    i32 batch, first_key;
    i32 query, queries;  // the first query, and their number
    i64 row;             // row index of its scores
    i32 heads;           // number of columns per query, padded
    i32 bits;            // a query has 2^bits columns in a step, or several steps
};
FN struct Part part_of(const struct Gathered &p, i32 block) {
    const i32 tiles = (p.n_kv + KEYS - 1) / KEYS, tile = block % tiles;
    const i32 below = block / tiles * QUERIES, batch = p.first / p.n_q;
    struct Part part;
    part.batch = batch;
    part.first_key = tile * KEYS;
    part.query = p.first - (i64)batch * p.n_q + below;
    part.queries = min_i32(QUERIES, p.rows - below);
    part.row = below;
    part.bits = 3;
    while (1 << part.bits < min_i32(p.heads, COLUMNS)) part.bits++;
    part.heads = (p.heads + COLUMNS - 1) / COLUMNS * COLUMNS;
    if (part.bits < COLUMN_BITS) part.heads = 1 << part.bits;
    return part;
}

// The first column of a step: a head of one of the block's queries.
struct Step {
    i32 query, head;
};
FN struct Step step_of(const struct Part &part, i32 query) {
    return {query >> (COLUMN_BITS - part.bits) << (COLUMN_BITS - part.bits), 0};
}
FN struct Step step_after(const struct Part &part, struct Step step) {
    const i32 head = step.head + COLUMNS;
    if (head < part.heads) return {step.query, head};
    return {step.query + (1 << (COLUMN_BITS - part.bits)), 0};
}
// A column of a step.
struct Column {
    i32 query, head;
    bool real;
};
FN struct Column column_at(const struct Gathered &p, const struct Part &part, struct Step at,
                           i32 i) {
    const i32 query = at.query + (i >> part.bits), head = at.head + (i & ((1 << part.bits) - 1));
    return {query, head, head < p.heads && query < part.queries};
}

// Finds the queries that may select one of the keys: the first, and past the last, in shared
// memory.
FN void find_live(i32 &first, i32 &last, const struct Gathered &p, const struct Mask &m,
                  const struct Part &part) {
    const i32 own = threadIdx.x, end = min_i32(part.first_key + KEYS, p.n_kv);
    if (own == 0) first = QUERIES, last = 0;
    __syncthreads();
    if (own < part.queries
        && may_choose(m, part.query + own, part.first_key, end, p.n_q, p.n_kv)) {
        atomicMin(&first, own);
        atomicMax(&last, own + 1);
    }
    __syncthreads();
}

// ---------------------------------------------------------------- copies

// Eight threads copy the 128 bytes of a row in a slab; zeros past the row's end.
FN void copy_part(const struct Gathered &p, u32 slab, u32 row, const unsigned char *from,
                  i32 number, bool real) {
    const i32 own = threadIdx.x % 8, piece = 8 * number + own;
    const bool inside = real && 16 * piece < INDEX_BYTES * p.index_dim;
    copy_piece(slab + swizzled(row, own), from + (inside ? 16 * piece : 0), inside);
}
// Copies all keys, with the consumer threads.
FN void copy_keys(u32 keys, const struct Gathered &p, const struct Part &part) {
#pragma unroll
    for (int row = threadIdx.x / 8; row < KEYS; row += COMPUTING / 8) {
        const i32 key = min_i32(part.first_key + row, p.n_kv - 1);
        const unsigned char *const from = (const unsigned char *)p.index_k
            + INDEX_BYTES * (part.batch * p.index_k_stride[0] + key * p.index_k_stride[1]);
#pragma unroll
        for (int i = 0; i < INDEX_SLABS; i++)
            copy_part(p, keys + i * KEY_SLAB, row, from, i,
                      part.first_key + row < p.n_kv);
    }
}

// The rows of a step that a thread copies.
constexpr int TURNS = COLUMNS / (COPYING / 8);
struct Heads {
    const unsigned char *from[TURNS];
    bool real[TURNS];
};
FN struct Heads heads_of(const struct Gathered &p, const struct Part &part, struct Step step) {
    struct Heads heads;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const i32 column = threadIdx.x % COPYING / 8 + i * (COPYING / 8);
        const struct Column at = column_at(p, part, step, column);
        const i64 offset = part.batch * p.index_q_stride[0] + at.head * p.index_q_stride[1]
            + (part.query + at.query) * p.index_q_stride[2];
        heads.from[i] = (const unsigned char *)p.index_q + INDEX_BYTES * (at.real ? offset : 0);
        heads.real[i] = at.real;
    }
    return heads;
}
FN float weight_at(const struct Gathered &p, const struct Part &part, struct Step step,
                   i32 column) {
    const struct Column at = column_at(p, part, step, column);
    if (!at.real) return 0.0f;
    return element_at(p.index_w, part.batch * p.index_w_stride[0] + at.head * p.index_w_stride[1]
                                     + (part.query + at.query) * p.index_w_stride[2],
                      p.weight_code);
}
FN void copy_heads(u32 slab, const struct Gathered &p, const struct Heads &heads, i32 number) {
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        copy_part(p, slab, threadIdx.x % COPYING / 8 + i * (COPYING / 8), heads.from[i], number,
                  heads.real[i]);
}

// ---------------------------------------------------------------- sums

// Where the scores of the thread's two keys go. Heads are added eight columns at a time.
struct Target {
    float *to;  // score of the thread's first key
    i32 query;
    float2 factor;  // factors of its keys
};
// Writes the scores of a query after its last head.
FN void write_scores(float (&sum)[2], struct Target &target, const struct Gathered &p,
                     const struct Part &part) {
    const i32 lane = threadIdx.x % 32;
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + lane / 4;
    const bool real = lane % 4 == 0 && target.query < part.queries;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(sum[r]);
        const float factor = r ? target.factor.y : target.factor.x;
        if (real && key + 8 * r < p.n_kv) target.to[8 * r] = factor * total;
        sum[r] = 0.0f;
    }
    target.to += p.pitch;
    target.query++;
}
FN struct Target target_of(const struct Gathered &p, const struct Part &part, i32 query,
                           float2 factor) {
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    return {p.scores + (part.row + query) * p.pitch + key, query, factor};
}
// The factors of a thread's keys.
FN float factor_at(const struct Gathered &p, const struct Part &part, i32 key) {
    const i64 place = part.batch * p.factor_stride[0]
        + min_i32(key, p.n_kv - 1) * p.factor_stride[1];
    return element_at(p.factors, place, p.factor_code);
}
FN float2 factors_of(const struct Gathered &p, const struct Part &part) {
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (!p.factors) return make_float2(1.0f, 1.0f);
    return make_float2(factor_at(p, part, key), factor_at(p, part, key + 8));
}

// Any number of heads. Padding may give NaN, so padded columns are excluded from the sum.
FN void add_heads(const float (&x)[COLUMNS / 2], float (&sum)[2], const float *weight,
                  float2 factor, const struct Gathered &p, const struct Part &part,
                  struct Step step) {
    const i32 own = threadIdx.x % 4 * 2;
    const i32 last = part.heads - step.head - 8;  // the query's last eight heads
    struct Target target = target_of(p, part, step.query, factor);
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
        const float2 w = *(const float2 *)(weight + 8 * i + own);
        const i32 at = 8 * i & ((1 << part.bits) - 1), head = step.head + at + own;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float a = relu(x[4 * i + 2 * r]), b = relu(x[4 * i + 2 * r + 1]);
            if (head < p.heads) sum[r] = fmaf(w.x, a, sum[r]);
            if (head + 1 < p.heads) sum[r] = fmaf(w.y, b, sum[r]);
        }
        if (at == last) write_scores(sum, target, p, part);
    }
}

// A multiple of 64 heads without padding: no test within half a step.
FN void add_all_heads(const float (&x)[COLUMNS / 2], float (&sum)[2], const float *weight,
                      float2 factor, const struct Gathered &p, const struct Part &part,
                      struct Step step) {
    float half[2][2] = {sum[0], sum[1], 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
        const float2 w = *(const float2 *)(weight + 8 * i + threadIdx.x % 4 * 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float &to = half[i / (COLUMNS / 16)][r];
            const float a = relu(x[4 * i + 2 * r]), b = relu(x[4 * i + 2 * r + 1]);
            to = fmaf(w.y, b, fmaf(w.x, a, to));
        }
    }
    struct Target target = target_of(p, part, step.query, factor);
    if (part.bits < COLUMN_BITS) {
        write_scores(half[0], target, p, part);
        write_scores(half[1], target, p, part);
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] = half[0][r] + half[1][r];
        if (step.head + COLUMNS == part.heads) write_scores(sum, target, p, part);
    }
}
