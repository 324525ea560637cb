// Accumulated gradients of keys and heads, and the launches before and after a pass. Needs:
// gathered_items.cuh, unpack.cuh.

#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // bitwise deterministic gradients
#endif

// Queries add to the keys that they selected in any order, so fp32 sums are not deterministic.
// DETERMINISTIC uses 64-bit integers in a fixed-point unit. The unit follows from the largest
// numbers of q, v and dout: small enough that its rounding error is invisible in the results, and
// large enough that no sum overflows. A term that is not finite sets a mark instead; marked results
// become NaN.
//
// Layout at p.array[2]: sums of dk and of dv [sequences][heads][keys][HEAD_DIM]. With integers,
// then: sums of dsink and of dslopes [heads_q], marks [2: dk, dv][rows] and [2][heads_q], which
// rows of v are used [rows], and the largest numbers [3: of q, v and dout].
#if DETERMINISTIC
typedef i64 Sum;
#else
typedef float Sum;
#endif
constexpr i32 BLOCK = 256;  // threads per block of the launches before and after

FN i64 rows_of_keys(const struct Attention &p) { return (i64)p.batch * p.heads_kv * p.n_kv; }
FN Sum *sums_of(const struct Attention &p) { return (Sum *)p.array[2]; }
FN i64 sums_count(const struct Attention &p) {
    return 2 * rows_of_keys(p) * HEAD_DIM + (DETERMINISTIC ? 2 * p.heads_q : 0);
}
FN Sum *head_sums(const struct Attention &p) {
    return sums_of(p) + 2 * rows_of_keys(p) * HEAD_DIM;
}
FN u32 *marks_of(const struct Attention &p) { return (u32 *)(sums_of(p) + sums_count(p)); }
FN u32 *head_marks(const struct Attention &p) { return marks_of(p) + 2 * rows_of_keys(p); }
FN u32 *seen_rows(const struct Attention &p) { return head_marks(p) + 2 * p.heads_q; }
FN u32 *largest(const struct Attention &p) { return seen_rows(p) + rows_of_keys(p); }

// Units of the integers: 2^-exponent.
struct Units {
    i32 dk, dv, dsink, dslopes;
};
FN float power_of_two(i32 exponent) {
    return __int_as_float((min_i32(max_i32(exponent, -126), 127) + 127) << 23);
}
// The least exponent whose power of two exceeds a number, or is at least a count.
FN i32 exponent_above(u32 bits) { return (i32)(bits >> 23) - 126; }
FN i32 exponent_of_count(i32 x) { return 32 - __clz(x - 1); }

FN struct Units units_of(const struct Attention &p) {
    struct Units units = {};
#if DETERMINISTIC
    const u32 *const most = largest(p);
    const i32 q = exponent_above(most[0]), v = exponent_above(most[1]);
    const i32 dout = exponent_above(most[2]), dim = exponent_of_count(HEAD_DIM);
    const i32 queries = exponent_of_count(p.n_q), spare = 2;
    const i32 heads = exponent_of_count((u32)p.heads_q / (u32)p.heads_kv);
    const i32 ds = dim + v + dout + 1;  // of a row: weights sum to 1, times dp - delta
    const i32 all = queries + exponent_of_count(p.batch), far = max_i32(p.n_q, p.n_kv);
    units.dv = 62 - spare - (queries + heads + dout);
    units.dk = 62 - spare - (queries + heads + ds + q);
    units.dsink = 62 - spare - (all + ds);
    units.dslopes = 62 - spare - (all + ds + exponent_of_count(far));
#endif
    return units;
}

FN void add_exactly(Sum *to, u32 *mark, float x, i32 exponent) {
    if (fabsf(x) < PLUS_INFINITY)
        atomicAdd((u64 *)to, (u64)__float2ll_rn(x * power_of_two(exponent)));
    else
        *mark = 1;
}
FN float sum_at(const Sum *sums, const u32 *marks, i64 place, i32 exponent) {
#if DETERMINISTIC
    if (*marks) return __int_as_float(0x7fffffff);
    return __fmul_rn(__ll2float_rn(sums[place]), power_of_two(-exponent));
#else
    return sums[place];
#endif
}

FN void add_sink(const struct Attention &p, const struct Units &units, i32 head, float x) {
#if DETERMINISTIC
    add_exactly(head_sums(p) + head, head_marks(p) + head, x, units.dsink);
#else
    atomicAdd(p.dsink + head, x);
#endif
}
FN void add_slope(const struct Attention &p, const struct Units &units, i32 head, float x) {
#if DETERMINISTIC
    const i32 place = p.heads_q + head;
    add_exactly(head_sums(p) + place, head_marks(p) + place, x, units.dslopes);
#else
    atomicAdd(p.dslopes + head, x);
#endif
}
// ---------------------------------------------------------------- before and after

FN i64 first_place() { return (i64)blockIdx.x * BLOCK + threadIdx.x; }
FN i64 step_of_places() { return (i64)gridDim.x * BLOCK; }

extern "C" __global__ void __launch_bounds__(BLOCK)
attention_clear(const __grid_constant__ struct Attention p) {
    u32 *const words = (u32 *)sums_of(p);
    const i64 sums = sums_count(p) * (sizeof(Sum) / 4);
    const i64 count = DETERMINISTIC ? largest(p) + 3 - words : sums;
    for (i64 i = first_place(); i < count; i += step_of_places()) words[i] = 0;
}

#if DETERMINISTIC
// Marks the keys that some query selected.
extern "C" __global__ void __launch_bounds__(BLOCK)
attention_seen(const __grid_constant__ struct Attention p) {
    const i64 lists = (i64)p.batch * p.heads_kv * p.n_q;
    for (i64 i = blockIdx.x; i < lists; i += gridDim.x) {
        const i64 list = i / p.n_q;
        struct Item item = {};
        item.query = i - list * p.n_q, item.batch = list / p.heads_kv;
        item.kv_head = list - (i64)item.batch * p.heads_kv;
        const i32 *const keys = keys_of(p, item);
        const i32 count = count_of(p, item);
        for (i32 j = threadIdx.x; j < count; j += BLOCK)
            seen_rows(p)[list * p.n_kv + keys[j]] = 1;
    }
}

// The largest finite magnitude in a tensor.
template <int OWN>
FN void raise_largest(const struct Attention &p, const void *tensor, const i64 (&stride)[3],
                      i32 heads, i32 tokens, const u32 *seen, u32 *to) {
    const i64 count = (i64)p.batch * heads * tokens * OWN;
    u32 most = 0;
    for (i64 i = first_place(); i < count; i += step_of_places()) {
        const i64 row = i / OWN, list = row / tokens, batch = list / heads;
        if (seen && !seen[row]) continue;
        const uint4 *const from = (const uint4 *)row_of(tensor, stride, batch, list - batch * heads,
                                                        row - list * tokens);
        const uint4 piece = from[i % OWN];
        const u32 x[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 pair = unpack(x[j]);
            const u32 a = __float_as_uint(fabsf(pair.x)), b = __float_as_uint(fabsf(pair.y));
            if (a < 0x7f800000 && a > most) most = a;
            if (b < 0x7f800000 && b > most) most = b;
        }
    }
    most = __reduce_max_sync(0xffffffff, most);
    if (threadIdx.x % 32 == 0) atomicMax(to, most);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
attention_largest(const __grid_constant__ struct Attention p) {
    u32 *const most = largest(p);
    raise_largest<PIECES_QK>(p, p.q, p.q_stride, p.heads_q, p.n_q, nullptr, most);
    raise_largest<PIECES_V>(p, p.v, p.v_stride, p.heads_kv, p.n_kv, seen_rows(p), most + 1);
    raise_largest<PIECES_V>(p, p.dout, p.dout_stride, p.heads_q, p.n_q, nullptr, most + 2);
}
#endif

// Converts sums to dk and dv, eight columns per thread, and to gradients of heads.
extern "C" __global__ void __launch_bounds__(BLOCK)
attention_keys(const __grid_constant__ struct Attention p) {
    const struct Units units = units_of(p);
    const i64 rows = rows_of_keys(p);
    for (i64 i = first_place(); i < 2 * rows * PIECES; i += step_of_places()) {
        const i64 own = i / PIECES, row = own < rows ? own : own - rows, list = row / p.n_kv;
        const bool values = own >= rows;
        if (PADDED && i % PIECES >= (values ? PIECES_V : PIECES_QK)) continue;
        const i32 batch = list / p.heads_kv, head = list - (i64)batch * p.heads_kv;
        const float by = values ? 1.0f : p.scale;
        const i32 exponent = values ? units.dv : units.dk;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = by * sum_at(sums_of(p), marks_of(p) + own, 8 * i + j, exponent);
        void *const to = (void *)row_of(values ? p.dv : p.dk, values ? p.dv_stride : p.dk_stride,
                                        batch, head, row - list * p.n_kv);
        ((uint4 *)to)[i % PIECES] = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]),
                                               pack(x[4], x[5]), pack(x[6], x[7]));
    }
#if DETERMINISTIC
    for (i64 i = first_place(); i < 2 * p.heads_q; i += step_of_places()) {
        const bool slope = i >= p.heads_q;
        float *const to = slope ? p.dslopes : p.dsink;
        const float x = sum_at(head_sums(p), head_marks(p) + i, i,
                               slope ? units.dslopes : units.dsink);
        if (to) to[slope ? i - p.heads_q : i] = x;
    }
#endif
}
