// Products of cells where only some pairs are candidates; for select_scores.cuh.
// Needs: Cell and heads_alike.

// ---------------------------------------------------------------- products of some pairs

// The sum of q . k over the candidate pairs of a cell, for heads from `head` on that share keys; by
// a warp. Never reads other keys, which may hold NaN.
template <class S>
FN float sum_one_by_one(const struct Selected &p, const struct Mask &m, const struct Cell &cell,
                      i32 batch, i32 head) {
    constexpr i32 PIECES = HEAD_DIM / 32;
    const i32 lane = threadIdx.x % 32, kv = head / (p.heads_q / p.heads_kv);
    const i64 from_q = batch * p.q_stride[0] + head * p.q_stride[1] + lane;
    const i64 from_k = batch * p.k_stride[0] + kv * p.k_stride[1] + lane;
    float sum = 0;
#pragma unroll 1
    for (i32 q = cell.q; q < cell.q_end; q++) {
        float keys[PIECES] = {};
#pragma unroll 1
        for (i32 k = cell.k; k < cell.k_end; k++) {
            if (!S::allows(m, q, k, p.n[0], p.n[1])) continue;  // uniform in a warp
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                keys[i] += element(p.k, from_k + k * p.k_stride[2] + 32 * i);
        }
#pragma unroll 1
        for (i32 h = 0; h < heads_alike<S>(p); h++) {
            const i64 row = from_q + h * p.q_stride[1] + q * p.q_stride[2];
#pragma unroll
            for (int i = 0; i < PIECES; i++) sum += element(p.q, row + 32 * i) * keys[i];
        }
    }
    return warp_sum(sum);
}

// Sums the candidate keys of each of 16 queries on tensor cores: the mask, as zeros and ones, times
// the keys. Exact except for the order of fp32 additions. Processes SLAB dimensions at a time: for
// queries l / 4 and l / 4 + 8, lane l has dimensions 8 (l % 4) + t and those 32 further on. Tokens
// and dimensions are permuted within a product, so that a lane reads contiguous memory.
constexpr i32 SLAB = 64, TILES = SLAB / 8, SLABS = (HEAD_DIM + SLAB - 1) / SLAB;
struct KeySums {
    float of[TILES][4];  // by t; two for the first query, two for the second
};

FN void add_product(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
        "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 1.0 in the low and in the high half.
FN u32 ones(bool low, bool high) { return (low ? ONE : 0) | (high ? ONE << 16 : 0); }

// Adds 16 keys from `k` on; `keys` points to this lane's first dimension.
template <class S>
FN void add_keys(const struct Selected &p, const struct Mask &m, const struct Cell &cell, i32 q,
                 i32 k, const u16 *keys, struct KeySums &sums) {
    const i32 own_q = q + threadIdx.x % 32 / 4, own_k = k + 4 * (threadIdx.x % 4);
    u32 read[4][4];
    bool first[4], second[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const i64 place = min_i32(own_k + i, cell.k_end - 1) * p.k_stride[2];
        const uint4 row = *(const uint4 *)(keys + place);
        read[i][0] = row.x, read[i][1] = row.y, read[i][2] = row.z, read[i][3] = row.w;
        const bool inside = own_k + i < cell.k_end;
        first[i] = inside && own_q < cell.q_end
            && S::allows(m, own_q, own_k + i, p.n[0], p.n[1]);
        second[i] = inside && own_q + 8 < cell.q_end
            && S::allows(m, own_q + 8, own_k + i, p.n[0], p.n[1]);
    }
    const u32 mask[4] = {ones(first[0], first[1]), ones(second[0], second[1]),
                         ones(first[2], first[3]), ones(second[2], second[3])};
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const u32 half = t % 2 ? 0x7632 : 0x5410;
        add_product(sums.of[t], mask, __byte_perm(read[0][t / 2], read[1][t / 2], half),
                    __byte_perm(read[2][t / 2], read[3][t / 2], half));
    }
}

// Multiplies eight dimensions of a query with one of the sums.
FN float times_query(const u16 *query, const struct KeySums &sums, i32 which, float sum) {
    const uint4 row = *(const uint4 *)query;
    const u32 read[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
    for (int t = 0; t < TILES; t++)
        sum += number((u16)(read[t / 2] >> t % 2 * 16)) * sums.of[t][which];
    return sum;
}

// The sum of q . k over the candidate pairs of a cell, for heads from `head` on that share keys; by
// a warp.
template <class S>
FN float sum_products(const struct Selected &p, const struct Mask &m, const struct Cell &cell,
                      i32 batch, i32 head) {
    const i32 lane = threadIdx.x % 32, kv = head / (p.heads_q / p.heads_kv);
    const u16 *const of_q = (const u16 *)p.q + batch * p.q_stride[0] + head * p.q_stride[1]
        + 8 * (lane % 4);
    const u16 *const of_k = (const u16 *)p.k + batch * p.k_stride[0] + kv * p.k_stride[1]
        + 8 * (lane / 8);
    float part[2] = {};
#pragma unroll 1
    for (i32 turn = 0; turn < (S::Q_BLOCK + 15) / 16 * SLABS; turn++) {
        const i32 q = cell.q + turn / SLABS * 16, d = turn % SLABS * SLAB;
        // Otherwise the dimensions 32 further on do not exist
        const bool whole = d + SLAB <= HEAD_DIM;
        const u16 *const keys = of_k + d + (whole ? lane / 4 % 2 * 32 : 0);
        struct KeySums sums = {};
#pragma unroll 1
        for (i32 i = 0; i < S::BLOCK; i += 16)
            add_keys<S>(p, m, cell, q, cell.k + i, keys, sums);
        const i64 first = min_i32(q + lane / 4, cell.q_end - 1) * p.q_stride[2] + d;
        const i64 second = min_i32(q + lane / 4 + 8, cell.q_end - 1) * p.q_stride[2] + d;
#pragma unroll 2
        for (i32 h = 0; h < heads_alike<S>(p); h++) {
            const u16 *const from = of_q + h * p.q_stride[1];
            part[0] = times_query(from + first, sums, 0, part[0]);
            if (whole) part[1] = times_query(from + first + 32, sums, 1, part[1]);
            part[0] = times_query(from + second, sums, 2, part[0]);
            if (whole) part[1] = times_query(from + second + 32, sums, 3, part[1]);
        }
    }
    const float sum = warp_sum(part[0] + part[1]);
    // 0 * inf is NaN even if no candidate pair is infinite, so recompute without the other keys.
    return sum - sum == 0 ? sum : sum_one_by_one<S>(p, m, cell, batch, head);
}
