// Ranks the cells of a selection and marks the best of each row. S is a struct of the config
// header: what it chooses, and by which scores. Needs: selected_numbers.cuh. Gives: choose.

// ---------------------------------------------------------------- scores

// The heads and queries that a block selects for: query heads that select together, and query
// blocks from `first` on.
struct Voters {
    i32 batch, head, first;
};

template <class S>
FN i32 class_of(const struct Selected &p, i32 row, i32 column) {
    if (row >= p.rows[S::INDEX] || column >= p.columns[S::INDEX]) return NOTHING;
    const i32 across = (p.columns[S::INDEX] + S::CLASS_COLUMNS - 1) / S::CLASS_COLUMNS;
    return p.classes[S::INDEX][row / S::CLASS_ROWS * across + column / S::CLASS_COLUMNS];
}

// The tokens of a cell.
struct Cell {
    i32 q, q_end, k, k_end;
};
template <class S>
FN struct Cell cell_at(const struct Selected &p, i32 row, i32 column) {
    const i32 q = row * S::Q_BLOCK, k = column * S::BLOCK;
    return {q, min_i32(q + S::Q_BLOCK, p.n[0]), k, min_i32(k + S::BLOCK, p.n[1])};
}
FN i32 pairs_of(const struct Cell &cell) { return (cell.q_end - cell.q) * (cell.k_end - cell.k); }

// Distributes the candidate pairs over the lanes of a warp; returns their number.
template <class S, class Hand>
FN i32 hand_pairs(const struct Selected &p, const struct Mask &m, const struct Cell &cell,
                  const Hand &hand) {
    i32 count = 0;
    for (i32 i = threadIdx.x % 32; i < S::Q_BLOCK * S::BLOCK; i += 32) {
        const i32 q = cell.q + i / S::BLOCK, k = cell.k + i % S::BLOCK;
        if (q < cell.q_end && k < cell.k_end && S::allows(m, q, k, p.n[0], p.n[1]))
            hand(q, k), count++;
    }
    return warp_sum(count);
}

// Number of heads that select together and share keys: the sum of their products is the product of
// their summed queries.
template <class S>
FN i32 heads_alike(const struct Selected &p) {
    return min_i32(p.voters[S::INDEX], p.heads_q / p.heads_kv);
}

#include "common/lib/select_products.cuh"

// The score of one pair.
template <class S>
FN float score_of(const struct Selected &p, i32 batch, i32 head, i32 q, i32 k) {
    if (S::SCORE == GIVEN) return ranked(p, SCORES, batch, head, q, k);
    float total = 0;
    for (i32 h = 0; h < p.index_heads; h++) {
        float product = 0;
        for (i32 d = 0; d < p.index_dim; d++)
            product += ranked(p, INDEX_Q, batch, h, q, d) * ranked(p, INDEX_K, batch, 0, k, d);
        total += ranked(p, INDEX_W, batch, h, q, 0) * (product < 0 ? 0 : product);  // NaN stays
    }
    return p.ranked[FACTORS] ? total * ranked(p, FACTORS, batch, 0, k, 0) : total;
}

// The rank key of a cell where some or all pairs are candidates, computed by a warp. `total` is the
// sum of the heads' scores of the cell, if cells have scores.
template <class S>
FN u32 key_of_some(const struct Selected &p, const struct Mask &m, const struct Voters &at, i32 row,
                   i32 column, bool by_cells, float total) {
    const struct Cell cell = cell_at<S>(p, row, column);
    const i32 heads = p.voters[S::INDEX];
    double sum = 0;
    const i32 count = hand_pairs<S>(p, m, cell, [&](i32 q, i32 k) {
        if (S::SCORE == INDEXER || (S::SCORE == GIVEN && !by_cells))
            for (i32 h = 0; h < heads; h++) sum += score_of<S>(p, at.batch, at.head + h, q, k);
    });
    if (!count) return 0;
    if (by_cells) return ascending(total / (float)heads);
    if (S::SCORE == PRODUCTS)
#pragma unroll 1
        for (i32 h = 0; h < heads; h += heads_alike<S>(p))
            sum += sum_products<S>(p, m, cell, at.batch, at.head + h);
    else sum = warp_sum(sum);
    return ascending((float)(sum / ((double)count * heads)));
}

// The representative of a query block, summed over the heads from `head` on that share keys.
template <class S>
FN float query_of(const struct Selected &p, i32 batch, i32 head, i32 row, i32 d) {
    float sum = 0;
    for (i32 h = head; h < head + heads_alike<S>(p); h++) {
        const i64 place = ((i64)(batch * p.heads_q + h) * p.rows[S::INDEX] + row) * HEAD_DIM + d;
        const i64 from = batch * p.q_stride[0] + h * p.q_stride[1] + row * p.q_stride[2] + d;
        sum += S::Q_BLOCK == 1 ? element(p.q, from) : p.joined[2 * S::INDEX][place];
    }
    return sum;
}

// Products of one column with OWN rows of a warp.
template <int COUNT>
FN void multiply(const float4 *key, const float4 *query, float (&total)[OWN]) {
    float own[COUNT] = {};
#pragma unroll 2
    for (int d = 0; d < HEAD_DIM / 4; d++) {
        const float4 x = key[d];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float4 y = query[j * WARPS * (HEAD_DIM / 4) + d];
            own[j] += x.x * y.x, own[j] += x.y * y.y, own[j] += x.z * y.z, own[j] += x.w * y.w;
        }
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) total[j] += own[j];
}

// Adds products of the blocks' representatives; a lane has the same column for all rows of a warp.
template <class S>
FN void add_products(const struct Selected &p, const struct Voters &at, i32 head, i32 chunk,
                     bool fresh, float (&total)[OWN]) {
    constexpr i32 INDEX = S::INDEX;
    float *const queries = (float *)memory, *const keys = queries + ROWS * HEAD_DIM;
    const i32 kv = head / (p.heads_q / p.heads_kv), rows = p.rows[INDEX];
    const float *const of_k = p.joined[2 * INDEX + 1]
        + (i64)(at.batch * p.heads_kv + kv) * p.columns[INDEX] * HEAD_DIM;
    __syncthreads();
    for (i32 i = threadIdx.x; fresh && i < p.turn[INDEX] * HEAD_DIM; i += THREADS) {
        const i32 row = at.first + i / HEAD_DIM;
        queries[i] = row < rows ? query_of<S>(p, at.batch, head, row, i % HEAD_DIM) : 0;
    }
    for (i32 i = threadIdx.x; i < COLUMNS * HEAD_DIM; i += THREADS) {
        const i32 column = COLUMNS * chunk + i / HEAD_DIM, d = i % HEAD_DIM;
        keys[i / HEAD_DIM * KEY_ROW + d] =
            column < p.columns[INDEX] ? of_k[(i64)column * HEAD_DIM + d] : 0;
    }
    __syncthreads();
    const float4 *const key = (const float4 *)(keys + threadIdx.x % 32 * KEY_ROW);
    const float4 *const query = (const float4 *)(queries + threadIdx.x / 32 * HEAD_DIM);
    if (p.turn[INDEX] <= WARPS) multiply<1>(key, query, total);
    else multiply<OWN>(key, query, total);
}

// Whether scores belong to whole cells.
template <class S>
FN bool has_cells(const struct Selected &p) {
    return S::SCORE == MEANS || (S::SCORE == GIVEN && p.cells);
}
// Whether the rank key of a cell of this class follows without looking at its pairs.
template <class S>
FN bool is_plain(const struct Selected &p, i32 kind) {
    return kind == EVERYTHING && (S::SCORE == PRODUCTS || has_cells<S>(p));
}

// Rank keys of the cells of a chunk whose pairs must be looked at, one warp per cell. In a separate
// loop, because the loop over totals needs all registers for the products.
template <class S>
FN void rank_rest(const struct Selected &p, const struct Voters &at, i32 chunk, u32 *keys) {
    const struct Mask m = load_mask(p);
    const i32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (i32 turn = threadIdx.x / 32; turn < p.turn[S::INDEX]; turn += WARPS) {
        const i32 row = at.first + turn, kind = class_of<S>(p, row, COLUMNS * chunk + lane);
        u32 *const own = keys + turn * 32 * p.words[S::INDEX] + COLUMNS * chunk;
#pragma unroll 1
        for (u32 rest = __ballot_sync(ALL, kind && !is_plain<S>(p, kind)); rest; rest &= rest - 1) {
            const i32 other = __ffs(rest) - 1;
            const float total = __shfl_sync(ALL, __uint_as_float(own[lane]), other);
            const u32 key = key_of_some<S>(p, m, at, row, COLUMNS * chunk + other,
                                           has_cells<S>(p), total);
            if (lane == other) own[lane] = key;
        }
    }
}

// Rank keys of all cells: rows of 32 per word of bits.
template <class S>
FN void rank(const struct Selected &p, const struct Voters &at, u32 *keys) {
    constexpr i32 INDEX = S::INDEX;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, heads = p.voters[INDEX];
    const bool by_cells = has_cells<S>(p);
    const bool joined = S::SCORE == MEANS || S::SCORE == PRODUCTS;
    const i32 alike = joined ? heads_alike<S>(p) : 1;
    bool fresh = true;  // queries are not in shared memory yet
#pragma unroll 1
    for (i32 chunk = 0; chunk < p.words[INDEX]; chunk++) {
        const i32 column = COLUMNS * chunk + lane;
        i32 kind[OWN];
        float total[OWN] = {};
        bool some = false;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const i32 turn = warp + WARPS * j;
            kind[j] = turn < p.turn[INDEX] ? class_of<S>(p, at.first + turn, column) : NOTHING;
            some |= kind[j] != NOTHING;
        }
        some = __syncthreads_or(some);
#pragma unroll 1
        for (i32 h = 0; some && h < heads; h += alike) {
            if (joined) add_products<S>(p, at, at.head + h, chunk, fresh || heads > alike, total);
#pragma unroll
            for (int j = 0; j < OWN; j++)
                if (!joined && by_cells && kind[j])
                    total[j] += ranked(p, SCORES, at.batch, at.head + h,
                                       at.first + warp + WARPS * j, column);
        }
        fresh = fresh && !some;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const i32 turn = warp + WARPS * j;
            if (turn >= p.turn[INDEX]) break;
            const i32 pairs = by_cells ? 1 : pairs_of(cell_at<S>(p, at.first + turn, column));
            keys[turn * 32 * p.words[INDEX] + column] =
                kind[j] == NOTHING ? 0
                : is_plain<S>(p, kind[j]) ? ascending(total[j] / ((float)pairs * heads))
                : __float_as_uint(total[j]);
        }
        if (some) rank_rest<S>(p, at, chunk, keys);
    }
    __syncthreads();
}

// ---------------------------------------------------------------- the best of a row

// The greatest key that at least `most` keys reach; 0 if there are fewer candidates. By a warp.
FN u32 threshold_of(const u32 *keys, i32 words, i32 most) {
    u32 found = 0;
#pragma unroll 1
    for (i32 bit = 31; bit >= 0; bit--) {
        const u32 next = found | 1u << bit;
        i32 count = 0;
        for (i32 i = threadIdx.x % 32; i < 32 * words; i += 32) count += keys[i] >= next;
        if (__reduce_add_sync(ALL, count) >= most) found = next;
    }
    return found;
}

// Bits of the best of a row, ties to the lower index; for all heads that select together.
template <class S>
FN void mark_best(const struct Selected &p, const u32 *keys, i64 row, i64 head_step) {
    const i32 words = p.words[S::INDEX], lane = threadIdx.x % 32;
    const u32 least = threshold_of(keys, words, S::MAX_CHOSEN);
    i32 above = 0;
    for (i32 i = lane; i < 32 * words; i += 32) above += keys[i] > least;
    i32 left = S::MAX_CHOSEN - __reduce_add_sync(ALL, above);
    for (i32 word = 0; word < words; word++) {
        const u32 key = keys[32 * word + lane];
        const u32 ties = __ballot_sync(ALL, key == least && least > 0);
        const bool tie = ties >> lane & 1 && __popc(ties & ((1u << lane) - 1)) < left;
        const u32 bits = __ballot_sync(ALL, key > least || tie);
        left -= __popc(ties);
        for (i32 head = lane; head < p.copies[S::INDEX]; head += 32)
            p.bits[S::INDEX][row * words + word + head * head_step] = bits;
    }
}

template <class S>
FN void choose(const struct Selected &p, i32 block) {
    constexpr i32 INDEX = S::INDEX;
    const i32 turns = (p.rows[INDEX] + p.turn[INDEX] - 1) / p.turn[INDEX], place = block / turns;
    const i32 owner = place % p.owners[INDEX], heads = p.copies[INDEX];
    // Start with the last rows: in most masks they have the most candidates.
    const i32 first = (turns - 1 - block % turns) * p.turn[INDEX];
    const struct Voters at = {place / p.owners[INDEX], owner * p.voters[INDEX], first};
    u32 *const keys = (u32 *)memory + ROWS * HEAD_DIM + COLUMNS * KEY_ROW;
    rank<S>(p, at, keys);
    const i64 head_step = (i64)p.rows[INDEX] * p.words[INDEX];
    for (i32 turn = threadIdx.x / 32; turn < p.turn[INDEX]; turn += WARPS) {
        if (first + turn >= p.rows[INDEX]) break;
        mark_best<S>(p, keys + turn * 32 * p.words[INDEX],
                     (i64)place * heads * p.rows[INDEX] + first + turn, head_step);
    }
}
