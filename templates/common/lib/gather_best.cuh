// The exact top-k of the scores of a query. The includer defines what is ranked (`Row`,
// `scores_at`, `score_of`) and the candidates. Needs: block_before.cuh, gen/gather_mask.cuh.j2.

// A sample estimates the threshold. One pass over the scores lists the candidates above the
// estimate in shared memory, and the k-th best is found among them. Counts reveal a bad estimate;
// then, or if the list would overflow, the search makes repeated passes over the scores.
constexpr i32 LISTED = 6144;           // candidates
constexpr i32 SAMPLED = 32;            // one key of this many; more if the list would overflow
constexpr i32 STRETCH = 1 << 17;       // keys whose bits are in memory at a time
constexpr int BITS = 11, BINS = 1 << BITS, OWN_BINS = BINS / THREADS;
constexpr int AHEAD = 4;               // loads in flight per thread

struct Choice {
    u64 list[LISTED];
    union {
        i32 bins[BINS];
        u32 kept[STRETCH / 32];
    };
};
FN struct Choice &choice_memory() { return *(struct Choice *)memory; }

// ---------------------------------------------------------------- candidates

// Increases with the score; 0 for NaN, and equal for both zeros.
FN u32 rank_of(float score) {
    const u32 bits = __float_as_uint(__fadd_rn(score, 0.0f));
    if ((bits & 0x7fffffff) > 0x7f800000) return 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}
FN float score_with(u32 rank) {
    return __uint_as_float(rank & 0x80000000 ? rank ^ 0x80000000 : ~rank);
}
// A candidate as one number: better is larger, and all are distinct.
FN u64 candidate(float score, i32 key) {
    return (u64)rank_of(score) << 32 | (0xffffffff - (u32)key);
}
FN i32 key_of(u64 x) { return (i32)(0xffffffff - (u32)x); }

FN bool may(const struct Gathered &p, const struct Mask &m, const struct Row &row,
            const struct Hull &hull, i32 key) {
    return key < hull.last && allowed(m, row.query, key, p.n_q, p.n_kv);
}

// Visits scores with their keys: all of a range, and a few around it.
template <class Act>
FN void each_score(const struct Gathered &p, const struct Row &row, const struct Hull &hull,
                   const Act &act) {
    const i32 end = hull.last - 1 & ~3;
#pragma unroll 1
    for (i32 first = (hull.first & ~3) + 4 * (i32)threadIdx.x; first < hull.last;
         first += AHEAD * 4 * THREADS) {
        float4 x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            x[i] = scores_at(p, row, min_i32(first + i * 4 * THREADS, end));
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const i32 key = first + i * 4 * THREADS;
            act(x[i].x, key), act(x[i].y, key + 1), act(x[i].z, key + 2), act(x[i].w, key + 3);
        }
    }
}

// ---------------------------------------------------------------- the last one to be chosen

// The bin, from the last one down, that contains the `wanted`-th candidate.
struct Bin {
    i32 bin, above, inside;  // its index; candidates in higher bins, and in it
    i32 all;
};
FN struct Bin bin_of(const i32 *bins, i32 wanted) {
    __shared__ struct Bin found;
    const i32 last = BINS - 1 - OWN_BINS * (i32)threadIdx.x;
    i32 own = 0, all;
#pragma unroll
    for (int i = 0; i < OWN_BINS; i++) own += bins[last - i];
    const i32 before = block_before(own, all);
    if (before < wanted && wanted <= before + own) {
        i32 above = before, bin = last;
        while (above + bins[bin] < wanted) above += bins[bin--];
        found.bin = bin, found.above = above, found.inside = bins[bin];
    }
    __syncthreads();
    struct Bin result = found;
    result.all = all;
    __syncthreads();
    return result;
}

// The least selected candidate; all candidates lie between `low` and `high`; 0 if all are selected.
// `each` visits every candidate, and may be called repeatedly.
template <class Each>
FN u64 least_of(i32 *bins, u64 low, u64 high, i32 wanted, const Each &each) {
#pragma unroll 1
    for (bool first = true;; first = false) {
        const u64 range = high - low;
        const i32 shift = max_i32(64 - __clzll(range) - BITS, 0);
        for (i32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        each([&](u64 x) {
            if (x - low <= range) atomicAdd(bins + (i32)(x - low >> shift), 1);
        });
        __syncthreads();
        const struct Bin bin = bin_of(bins, wanted);
        if (first && bin.all <= wanted) return 0;
        wanted -= bin.above;
        low += (u64)bin.bin << shift;
        if (bin.inside == wanted || shift == 0) return low;
        high = low + (1ull << shift) - 1;
    }
}
FN u64 least_listed(struct Choice &c, i32 count, i32 wanted) {
    __shared__ u32 low;
    __shared__ u32 high;
    if (count <= wanted) return 0;
    if (threadIdx.x == 0) low = ALL, high = 0;
    __syncthreads();
    u32 least = ALL, most = 0;
    for (i32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 rank = c.list[i] >> 32;
        least = rank < least ? rank : least, most = rank > most ? rank : most;
    }
    least = __reduce_min_sync(ALL, least), most = __reduce_max_sync(ALL, most);
    if (threadIdx.x % 32 == 0) atomicMin(&low, least), atomicMax(&high, most);
    __syncthreads();
    return least_of(c.bins, (u64)low << 32, (u64)high << 32 | ALL, wanted, [&](const auto &act) {
        for (i32 i = threadIdx.x; i < count; i += THREADS) act(c.list[i]);
    });
}

// ---------------------------------------------------------------- the candidates that are listed

// The least selected candidate of a query. The best are in the list, or not listed if `count` is
// -1.
struct Best {
    u64 least;
    i32 count;
};

// An estimated rank that more keys reach than are wanted, but fewer than a list holds; 0: list all.
FN u32 sampled_rank(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                    const struct Row &row, const struct Hull &hull, i32 &count) {
    const i32 length = hull.last - hull.first;
    if (length <= LISTED) return 0;
    const i32 step = max_i32(SAMPLED, (length + LISTED - 1) / LISTED);
    for (i32 i = threadIdx.x; i < length / step; i += THREADS) {
        // A pseudo-random position within each step, so that the sample does not resonate with a
        // pattern of the keys.
        const u32 beside = (u64)((u32)i * 0x9e3779b1u) * (u32)step >> 32;
        const i32 key = hull.first + i * step + (i32)beside;
        if (may(p, m, row, hull, key))
            c.list[atomicAdd(&count, 1)] = candidate(score_of(p, row, key), key);
    }
    __syncthreads();
    const i32 sampled = count, place = max_i32((p.wanted + LISTED) / 2 / step, 1);
    const u64 least = least_listed(c, sampled, place);
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    return least >> 32;
}

FN struct Best best_of(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                       const struct Row &row) {
    __shared__ i32 count;
    const struct Hull hull = choice_hull(m, row.query, p.n_q, p.n_kv);
    if (p.wanted == 0) return {~0ull, 0};
    if (p.wanted < LISTED / 5 * 4 || hull.last - hull.first <= LISTED) {
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        const u32 rank = sampled_rank(c, p, m, row, hull, count);
        const bool all = rank == 0;
        const float bound = score_with(rank);
        each_score(p, row, hull, [&](float x, i32 key) {
            if (!(all || x >= bound) || !may(p, m, row, hull, key)) return;
            const i32 place = atomicAdd(&count, 1);
            if (place < LISTED) c.list[place] = candidate(x, key);
        });
        __syncthreads();
        const i32 found = count;
        if (found <= LISTED && (all || found >= p.wanted))
            return {least_listed(c, found, p.wanted), found};
    }
    const u64 least = least_of(c.bins, 0, ~0ull, p.wanted, [&](const auto &act) {
        each_score(p, row, hull, [&](float x, i32 key) {
            if (may(p, m, row, hull, key)) act(candidate(x, key));
        });
    });
    return {least, -1};
}
