// Entries of the table with an entry for each pair, for the elements of a thread. Pointers are
// found once per tile. The host has checked that the table has all queries and keys. Needs:
// gen/score.h.j2, unpack.cuh. Gives: PAIR_ROWS, each_entry, query_rows, key_rows;
// PairSums, add_two, add_pairs.

// With pack_gqa, rows of a tile have different heads.
#ifndef PACK_GQA
#define PACK_GQA 0
#endif
#define PAIR_ROWS !PACK_GQA
// The kernel copies tiles of the table to shared memory: warps that compute (PAIR_TILES, see
// pair_tiles.cuh), or a warp of the producer (PAIR_RING, see pair_ring.cuh).
#if WITH_PAIR_TILES
#define PAIR_TILES (PAIR_ROWS && !WITH_ENTMAX)
#else
#define PAIR_TILES 0
#endif
#if WITH_PAIR_RING
#define PAIR_RING (PAIR_ROWS && !WITH_ENTMAX)
#else
#define PAIR_RING 0
#endif

#if PAIR_ROWS
// How a tile reads the table. HALF: entries are in storage precision. WHOLE: no column of the tile
// lies past the end, and the entries of two neighboring keys can be loaded at once.
template <bool HALF, bool WHOLE>
struct PairKind;
template <bool WHOLE_>
struct PairKind<false, WHOLE_> {
    typedef float Entry;
    static constexpr bool WHOLE = WHOLE_;
    FN static float one(const float *from) { return __ldg(from); }
    FN static float2 two(const float *from) { return __ldg((const float2 *)from); }
};
template <bool WHOLE_>
struct PairKind<true, WHOLE_> {
    typedef unsigned short Entry;
    static constexpr bool WHOLE = WHOLE_;
    FN static float one(const Entry *from) { return unpack(__ldg(from)).x; }
    FN static float2 two(const Entry *from) { return unpack(__ldg((const u32 *)from)); }
};
// Calls `work` with the kind of the table, given whether all columns of the tile exist.
template <typename Work>
FN void by_pair_kind(const struct Attention &p, bool inside, const Work &work) {
    const bool whole = inside && p.score_pairs & TWOS;
    if (p.score_pairs & HALVES) {
        if (whole) work(PairKind<true, true>());
        else work(PairKind<true, false>());
    } else {
        if (whole) work(PairKind<false, true>());
        else work(PairKind<false, false>());
    }
}

#if PAIR_TILES
FN bool lays_entries(const struct Attention &p);
template <int N, typename Work>
FN void each_laid_entry(const Work &work);
#endif
#if PAIR_RING
FN bool copies_entries(const struct Attention &p);
template <int N, typename Where, typename Work>
FN void each_copied_entry(const Where &where, const Work &work);
#endif
// Calls `work` with every element of a thread and its entry, two neighbors one after the other.
template <int N, typename Where, typename Work>
FN void each_entry(const struct Attention &p, const Where &where, const Work &work) {
#if PAIR_TILES
    if (lays_entries(p)) {
        each_laid_entry<N>(work);
        return;
    }
#endif
#if PAIR_RING
    if (copies_entries(p)) {
        each_copied_entry<N>(where, work);
        return;
    }
#endif
    by_pair_kind(p, where.all_columns_inside(p), [&](auto kind) {
        const auto rows = where.template pair_rows<decltype(kind)>(p);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const float2 two = rows.two(i);
            work(i, two.x);
            work(i + 1, two.y);
        }
    });
}

// Two lines of the table: elements 4 i + 2 r + e of a thread are in line r, 8 i + e steps behind
// its start. NEIGHBORS: a step goes to the next key.
template <typename Kind, bool NEIGHBORS>
struct Lines {
    typedef typename Kind::Entry Entry;
    const Entry *start[2];
    i64 step;
    i32 last;  // steps to the last entry
    FN float one(const Entry *from, i32 steps) const {
        return Kind::one(from + (Kind::WHOLE ? steps : min_i32(steps, last)) * step);
    }
    FN float2 two(int i) const {
        const Entry *const from = start[i / 2 % 2];
        const i32 steps = i / 4 * 8;
        if (Kind::WHOLE && NEIGHBORS) return Kind::two(from + steps);
        return make_float2(one(from, steps), one(from, steps + 1));
    }
};
// Rows are queries: lines are queries `query` and `query` + 8, from a key on.
template <typename Kind>
FN Lines<Kind, true> query_rows(const struct Attention &p, i32 query, i32 key, i32 head,
                                i32 batch) {
    typedef typename Kind::Entry Entry;
    const i64 step = pair_key_step(p), down = pair_row_step(p);
    const Entry *const from = (const Entry *)pair_table(p) + pair_head(head, batch, p) + key * step;
    return {{from + min_i32(query, p.n_q - 1) * down, from + min_i32(query + 8, p.n_q - 1) * down},
            step, p.n_kv - 1 - key};
}
// Rows are keys: lines are keys `key` and `key` + 8, from a query on.
template <typename Kind>
FN Lines<Kind, false> key_rows(const struct Attention &p, i32 query, i32 key, i32 head,
                               i32 batch) {
    typedef typename Kind::Entry Entry;
    const i64 step = pair_key_step(p), down = pair_row_step(p);
    const Entry *const from =
        (const Entry *)pair_table(p) + pair_head(head, batch, p) + query * down;
    const i32 last = p.n_kv - 1;
    return {{from + min_i32(key, last) * step, from + min_i32(key + 8, last) * step}, down,
            p.n_q - 1 - query};
}

#if ADDS_PAIRS
// Gradients of entries, where rows are keys.
struct PairSums {
    float *from;     // of the head; null if the call does not want them here
    i64 place[2];    // of the thread's keys, at its first query
    i64 step;        // from one query to the next
    i32 pairs;
    FN void add(i64 place, float x) const {
        if (pairs & HALF_GRADIENT) ((unsigned short *)from)[place] = (unsigned short)pack(x, 0.0f);
        else if (pairs & ALONE_IN_ENTRY) from[place] = x;
        else atomicAdd(from + place, x);
    }
};
FN struct PairSums pair_sums(const struct Attention &p, i32 query, i32 key, i32 head, i32 batch) {
    const i64 step = gradient_key_step(p), down = gradient_row_step(p);
    const i64 first = query * down + key * step;
    return {pair_gradient(head, batch, p), {first, first + 8 * step}, down, p.score_pairs};
}
// Adds the gradients of elements 2 i and 2 i + 1. Pairs without weight may lie outside.
FN void add_two(const struct PairSums &sums, int i, float2 two, u32 weights) {
    if (!sums.from) return;
    const i64 place = sums.place[i % 2] + i / 2 * 8 * sums.step;
    if (weights & 0xffff) sums.add(place, two.x);
    if (weights >> 16) sums.add(place + sums.step, two.y);
}
// Adds gradients in storage precision, which need fewer registers than those in fp32.
template <int N>
FN void add_pairs(const struct PairSums &sums, const u32 (&gradients)[N], const u32 (&weights)[N]) {
    if (!sums.from) return;
#pragma unroll
    for (int i = 0; i < N; i++) add_two(sums, i, unpack(gradients[i]), weights[i]);
}
#endif
#endif
