// The softmax part of a backward step: turns transposed scores into weights p, and dp = dout . v
// into gradients ds = u (dp - delta). With softmax, u = p.

// Scores are transposed: a warpgroup has 64 keys as rows and QUERIES columns. Element 4 i + 2 r + e
// of a thread belongs to key 16 warp + lane / 4 + 8 r and query 8 i + 2 (lane % 4) + e.
typedef float Scores[QUERIES / 2];
typedef u32 Pairs[QUERIES / 4];  // two scores each, in storage precision
// One number for each of a thread's queries. They are stored in the order in which threads read
// them, four per load, because shared memory bandwidth limits a step: of 16 queries, lane 0 reads
// 0, 1, 8 and 9 first.
typedef float4 Rows[QUERIES / 16];

#if LSE_IN_WGMMA
// The WGMMAs have already added them.
FN void read_rows(Rows &, const float *) {}
FN float2 pair_of(const Rows &, int) { return make_float2(0.0f, 0.0f); }
FN float4 row_four(const float *, int) { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
#else
FN float4 row_four(const float *from, int i) {
    return *(const float4 *)(from + 16 * i + threadIdx.x % 4 * 4);
}
FN void read_rows(Rows &rows, const float *from) {
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++) rows[i] = row_four(from, i);
}
FN float2 pair_of(const Rows &rows, int i) {  // of queries 8 i + 2 (lane % 4)
    return i % 2 ? make_float2(rows[i / 2].z, rows[i / 2].w)
                 : make_float2(rows[i / 2].x, rows[i / 2].y);
}
#endif

// Scale of the scores.
struct Logit {
    float unit;    // of the output of `bend`, times log2(e); with entmax, times alpha - 1
    float hidden;  // score of a hidden pair: gives weight 0
};
FN struct Logit logit_of(const struct Attention &p) {
    struct Logit logit;
    logit.unit = score_unit(p);
    logit.hidden = logit.unit < 0.0f ? PLUS_INFINITY : MINUS_INFINITY;
    return logit;
}

// Maps a thread's score elements to pairs; see logit.cuh.
struct Where {
    struct Place place;
    i32 query_place, key_place;  // at the first element
    struct HeadLogit own;
    struct Steps steps;
#if WITH_PAIR_RING && PAIR_RING
    u32 number;  // of the step
    FN struct PairPlace pairs() const { return pair_place_of(number); }
    // The entries of elements i to i + 7.
    FN void load_pairs(u32 (&x)[4], u32 tile, int i) const {
        const i32 group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const i32 row = (SPLIT_KEYS ? 0 : QUERIES * group) + i / 4 * 8;
        const i32 piece = key_of(group) / 8 + threadIdx.x % 128 / 32 * 2;
        load_matrices_transposed(x[0], x[1], x[2], x[3],
                                 pair_piece(tile, row + lane / 16 * 8 + lane % 8,
                                            piece + lane / 8 % 2));
    }
#endif
    FN void refresh(const struct Attention &) { make_opaque_steps(steps); }
    FN float distance(int i) const {
        return fabsf(steps.at(i / 4 * 8 + i % 2, i / 2 % 2 * 8));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, place.batch, query_row(i));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, place.batch, key_at(key_place + i / 2 % 2 * 8));
    }
    FN float q_minus_k(const struct Attention &p, int i) const {
        if (GRID_TILES) return (float)(query(p, i) - key(p, i));
        return steps.at(i / 4 * 8 + i % 2, i / 2 % 2 * 8);
    }
    FN i32 query_row(int i) const { return query_at(query_place + i / 4 * 8 + i % 2); }
    FN i32 head(int) const { return place.head; }
    FN i32 batch() const { return place.batch; }
#if WITH_PAIR_ROWS
    FN bool all_columns_inside(const struct Attention &p) const {
        return query_place - (i32)threadIdx.x % 4 * 2 + QUERIES <= p.n_q;
    }
    template <typename Kind>
    FN auto pair_rows(const struct Attention &p) const {
        return key_rows<Kind>(p, query_place, key_place, place.head, place.batch);
    }
#endif
#if ADDS_PAIRS
    FN struct PairSums sums(const struct Attention &p) const {
        return pair_sums(p, query_place, key_place, place.head, place.batch);
    }
#endif
};

#include "common/lib/plain_rows.cuh"

#include "sm90a/lib/mask_policy.cuh"

#if WITH_THRESHOLDS
#include "sm90a/lib/always_kept.cuh"

#include "sm90a/lib/filter_columns.cuh"

#endif
#if WITH_ENTMAX
#include "common/lib/entmax_weights.cuh"
#else
#include "common/lib/softmax_weights.cuh"
#endif

// u, the derivative of the weight by its logit times the derivative of the logit, must live until
// dp is complete: in the registers of s or, if registers are short, packed in storage precision.
#if ADDS_PAIRS || ADDS_DIAGONALS
constexpr bool ADDS_UP = true;  // gradients of tables: large tiles pack u then, too
#else
constexpr bool ADDS_UP = false;
#endif
constexpr bool KEEP_U = !(HAS_SLOPE && (REGISTER_PRESSURE || HEAD_GRADIENT))
                        && !(QUERIES > 64 && (HAS_SLOPE || WITH_ENTMAX || ADDS_UP))
                        && !(HEAD_GRADIENT && (WITH_ENTMAX || WIDE_SUMS))
                        && !(WIDE_SUMS && WITH_ENTMAX);
struct Kept {
    Pairs p;  // without the derivative of the logit
#if WITH_ENTMAX
    Pairs u;  // with it, unless the head's own gradient is computed first
#endif
    struct Slopes<QUERIES / 2> slopes;
    struct Staying<QUERIES / 2> stay;
};

#if WITH_SHIFTS
#include "sm90a/lib/shifts.cuh"

// SHIFTED: the distance term of a warpgroup's scores, times log2(e).
typedef struct Shifts<QUERIES, 64> StepShifts;
FN float *shifts_of(i32 group) {
    __shared__ float all[GROUPS][StepShifts::COUNT];
    return all[group];
}
// The value to subtract from element i, a score times log2(e).
FN float base_of(float lse, int i) {
    if (!SHIFTED) return lse;
    const i32 thread = threadIdx.x % 128;
    const float *const own = shifts_of(threadIdx.x / 128 - 1) + StepShifts::ORIGIN
                             + thread % 4 * 2 - thread / 32 * 16 - thread % 32 / 4;
    const float shift = own[i / 4 * 8 + i % 2 - i / 2 % 2 * 8];
    return LSE_IN_WGMMA ? -shift : lse - shift;
}

#endif
// Turns logits into weights. Past the last query, lse is infinite, so weights are 0.
template <Alpha ALPHA>
FN void weigh_all(Scores &s, Kept &kept, const Rows &lse, const struct Attention &p,
                  const struct Logit &logit, struct Where where) {
    if (HAS_SLOPE && NEEDS_WHERE) where.refresh(p);
#pragma unroll
    for (int i = 0; i < QUERIES / 8; i++) {
        const float2 base = pair_of(lse, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = 4 * i + 2 * r;
            const float x = s[at], y = s[at + 1];
#if WITH_SHIFTS
            const float low = base_of(base.x, at), high = base_of(base.y, at + 1);
#else
            const float low = base.x, high = base.y;
#endif
            const struct Weight v = weigh<ALPHA>(x, logit.unit, low, p.alpha_minus_1);
            const struct Weight w = weigh<ALPHA>(y, logit.unit, high, p.alpha_minus_1);
            s[at] = v.u, s[at + 1] = w.u;
            kept.p[2 * i + r] = pack(v.p, w.p);
#if HAS_SLOPE
            const float2 slope = take_slopes(kept.slopes, 2 * i + r, x, y, p, where);
            s[at] *= slope.x, s[at + 1] *= slope.y;
#endif
#if WITH_ENTMAX
            kept.u[2 * i + r] = HEAD_GRADIENT ? pack(v.u, w.u) : pack(s[at], s[at + 1]);
#endif
        }
    }
}
FN void to_weights(Scores &s, Kept &kept, const Rows &lse, const struct Attention &p,
                   const struct Logit &logit, const struct Where &where) {
    by_alpha(p.alpha_minus_1, [&](auto kind) {
        weigh_all<decltype(kind)::value>(s, kept, lse, p, logit, where);
    });
}

// Has all weights packed before later WGMMAs, which need the registers of scores: ptxas would
// compute exponentials after them. Weights are never NaN with this bit pattern, and the instruction
// does nothing.
FN void settle(const Pairs &p) {
    u32 all = 0xffffffff;
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) all &= p[i];
    asm volatile("{ .reg .pred q; setp.eq.u32 q, %0, 0xffffffff; @q nanosleep.u32 0; }"
                 :: "r"(all) : "memory");
}

// A thread's share of the gradient of its head's slope or sink, from the gradients of logits.
FN float head_gradient(const Pairs &ds, const struct Where &where) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) {
        const float2 x = unpack(ds[i]);
        sum -= x.x * where.distance(2 * i) + x.y * where.distance(2 * i + 1);
    }
    return sum;
}

// Turns dp = dout . v into ds = u (dp - delta). If `rest` is set, delta must still be read from
// there. `dp` has the queries from FIRST on. After the last ones, returns the thread's share of the
// head's own gradient.
template <int FIRST = 0, int N>
FN float to_gradients(float (&dp)[N], const Scores &s, const Kept &kept, Pairs &ds, Rows &delta,
                      const float *rest, const struct Attention &p, struct Where where) {
    float share = 0.0f;
#if WITH_ENTMAX
    const Pairs &slopes = kept.u;
#else
    const Pairs &slopes = kept.p;
#endif
#if ADDS_PAIRS
    const struct PairSums sums = where.sums(p);
#endif
#pragma unroll
    for (int i = FIRST / 8; i < FIRST / 8 + N / 4; i++) {
        if (rest && i % 2 == 0) delta[i / 2] = row_four(rest, i / 2);
        const float2 base = pair_of(delta, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = 4 * i + 2 * r;
            const float *const own = dp + at - FIRST / 2;
            const float a = own[0] - base.x, b = own[1] - base.y;
            float2 u = unpack(slopes[2 * i + r]);
#if HAS_SLOPE && !HEAD_GRADIENT && !WITH_ENTMAX
            const float2 slope = kept_slopes(kept.slopes, 2 * i + r);
            u.x *= slope.x, u.y *= slope.y;
#endif
#if ADDS_PAIRS
            if (!BFLOAT16) {  // in fp16, small numbers would become 0
                const float2 u_kept = KEEP_U ? make_float2(s[at], s[at + 1]) : u;
                const float2 both = make_float2(u_kept.x * a, u_kept.y * b);
                add_two(sums, 2 * i + r, both, kept.p[2 * i + r]);
            }
#endif
            ds[2 * i + r] = KEEP_U ? pack(s[at] * a, s[at + 1] * b) : pack(u.x * a, u.y * b);
        }
    }
#if ADDS_PAIRS
    if (BFLOAT16 && SEPARATE_DQ) add_pairs(where.sums(p), ds, kept.p);
#endif
#if HEAD_GRADIENT
    if (FIRST / 2 + N < QUERIES / 2) return share;
    fence_operand(ds);  // one after the other, because registers are short
    where.refresh(p);
    share = head_gradient(ds, where);
#if HAS_SLOPE
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) {
        const float2 x = unpack(ds[i]), slope = kept_slopes(kept.slopes, i);
        ds[i] = pack(x.x * slope.x, x.y * slope.y);
    }
#endif
#endif
    return share;
}
