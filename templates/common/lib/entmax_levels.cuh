// alpha-entmax: sums over a row's scores, and the steps that raise its level until the weights sum
// to 1. The includer defines `RowScores` and the passes DONE < VALUES < SUMS. Needs:
// entmax_weights.cuh. Gives: Search.

// State for a thread's two rows. Levels are equal within a quad; sums are too, once a pass is
// complete.
struct Search {
    float level[2];
    float p[2], u[2], count[2];  // sums; count: positive weights, with alpha 1.5
};

// A NaN score makes the level NaN.
FN float max_or_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
FN float quad_max_or_nan(float x) {
    x = max_or_nan(x, __shfl_xor_sync(0xffffffff, x, 1));
    return max_or_nan(x, __shfl_xor_sync(0xffffffff, x, 2));
}

// 1 - e^-x, accurate for small x.
FN float one_less_exp(float x) {
    const float near = x * (1.0f - x * (0.5f - x * (1.0f / 6 - x * (1.0f / 24))));
    return fabsf(x) < 0.1f ? near : 1.0f - fast_exp2(-LOG2E * x);
}

// Adds row r of a tile to the sums of a thread. KEEP: replaces scores by weights.
template <Alpha ALPHA, bool KEEP>
FN void add_row(RowScores &s, int r, float unit, float a, struct Search &sums) {
    // As long as no key was seen, all scores are -inf, and any level gives weights of 0.
    // make_opaque_float: values derived from the level must not occupy further registers.
    const float met = make_opaque_float(sums.level[r]), level = met == MINUS_INFINITY ? 0.0f : met;
    const float offset = 1.0f - level, exponent = 1.0f / a - 1.0f;
    const float sharpness = LOG2E / a;
    float p = 0.0f, u = 0.0f, count = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) {
        float &y = s[i / 2 * 4 + 2 * r + i % 2];
        const float x = __saturatef(fmaf(y, unit, offset));
        if (ALPHA == HALF_MORE) {
            u += x;
            p = fmaf(x, x, p);
            if (!KEEP) count += x > 0.0f ? 1.0f : 0.0f;
            if (KEEP) y = x * x;
        } else if (ALPHA == SPARSEMAX) {
            u += x > 0.0f ? 1.0f : 0.0f;
            p += x;
            if (KEEP) y = x;
        } else if (ALPHA == NEAR_SOFTMAX) {  // u is almost p
            const float weight = fast_exp2(sharpness * log_near_1(fmaf(y, unit, -level)));
            p += weight;
            if (KEEP) y = weight;
        } else {
            const float slope = power(x, exponent);
            u += slope;
            p = fmaf(slope, x, p);
            if (KEEP) y = slope * x;
        }
    }
    sums.p[r] += p, sums.u[r] += ALPHA == NEAR_SOFTMAX ? p : u, sums.count[r] += count;
}

template <bool KEEP>
FN void add_tile(RowScores &s, float unit, float a, struct Search &sums) {
#pragma unroll
    for (int r = 0; r < 2; r++)
        by_alpha(a, [&](auto kind) { add_row<decltype(kind)::value, KEEP>(s, r, unit, a, sums); });
}

FN void clear_sums(struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) x.p[r] = x.u[r] = x.count[r] = 0.0f;
}
FN void sum_over_quads(struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        x.p[r] = quad_sum(x.p[r]);
        x.u[r] = quad_sum(x.u[r]);
        x.count[r] = quad_sum(x.count[r]);
    }
}

// Newton's step for the 1/a-norm of x. It decreases with the level and is convex, so steps from
// below do not pass the root. 0 if there are no weights.
FN float newton_step(float a, float p, float u) {
    return p > 0.0f ? p * one_less_exp(a * LN2 * fast_log2(p)) * fast_reciprocal(u) : 0.0f;
}
// With alpha 1.5 and the set of positive weights known, the level solves a quadratic equation.
// Weights that become 0 or appear change it only by the square of their distance.
FN float closed_step(float a, float p, float u, float count) {
    const float square = fmaf(u, u, -count * (p - 1.0f));
    if (a != 0.5f || count == 0.0f || square < 0.0f) return newton_step(a, p, u);
    return (p - 1.0f) * fast_reciprocal(u + sqrtf(square));
}

// Updates the sums of earlier tiles for a higher level: p is rounded down and u up, so that later
// steps do not pass the root either.
FN void raise_level(struct Search &x, int r, float by, float a) {
    x.level[r] += by;
    if (!(x.p[r] > 0.0f)) return;
    const float shrink = fmaxf(1.0f - by * x.u[r] * fast_reciprocal(x.p[r]), 0.0f);
    if (a == 0.5f) {
        x.p[r] *= shrink * shrink;
        x.u[r] = fminf(x.u[r], sqrtf(x.count[r] * x.p[r]));
    } else {
        x.p[r] *= power(shrink, 1.0f / a);
    }
    if (x.p[r] == 0.0f) x.u[r] = x.count[r] = 0.0f;
}

FN float largest_score(const RowScores &s, int r) {
    float peak = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) peak = max_or_nan(peak, s[i / 2 * 4 + 2 * r + i % 2]);
    return quad_max_or_nan(peak);
}

// Raises the levels towards those of the keys seen so far, whose sums are known.
FN void start_levels(RowScores &s, float unit, float a, struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float peak = largest_score(s, r) * unit;  // a weight is at most 1
        if (x.level[r] > MINUS_INFINITY)
            raise_level(x, r, max_or_nan(peak - x.level[r], 0.0f), a);
        x.level[r] = max_or_nan(x.level[r], peak);  // if rounded down, a weight of 1 would be lost
    }
#pragma unroll 1
    for (int sweep = 0; sweep < 2; sweep++) {
        struct Search tile = x;
        clear_sums(tile);
        add_tile<false>(s, unit, a, tile);
        sum_over_quads(tile);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float p = x.p[r] + tile.p[r], u = x.u[r] + tile.u[r];
            const float by = p > 1.0f ? newton_step(a, p, u) : 0.0f;
            if (sweep) x.p[r] = p, x.u[r] = u, x.count[r] += tile.count[r];
            raise_level(x, r, by, a);
        }
    }
}

// How precise a level must be before its last step, which corrects it once more: with alpha 1.5 an
// error of d becomes about d^2.
FN float close_enough(float a, float level) {
    return fmaf(1e-6f, fmaxf(fabsf(level), a), a == 0.5f ? 0x1p-13f : 0.0f);
}

// The same before a pass over keys only: the next level will most likely be close enough.
FN float coarse(float a) { return a == 0.5f ? 0x1p-5f : 0x1p-9f * a; }

constexpr i32 MAX_PASSES = 40;  // limit, in case rounding keeps a level from settling

// Applies the step that follows from the sums of a pass. Returns the pass that these rows need
// next.
FN Pass take_step(struct Search &x, float a, Pass now, i32 passes) {
    a = make_opaque_float(a);  // values derived from it must not occupy registers
    Pass next = DONE;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float by = now == VALUES || passes > 8 ? newton_step(a, x.p[r], x.u[r])
                                                     : closed_step(a, x.p[r], x.u[r], x.count[r]);
        const float size = fabsf(by);
        Pass wish = now == VALUES && !(size > close_enough(a, x.level[r])) ? DONE : VALUES;
        if (size > coarse(a)) wish = SUMS;
        x.level[r] += by;
        next = wish > next ? wish : next;
    }
    return passes < MAX_PASSES ? next : now == VALUES ? DONE : VALUES;
}
