// Finds the k-th best score of a row without storing the scores. Needs: images.cuh; score_at and
// Scores of the family.

// A row's threshold is found in passes over its scores. The first pass computes mean and variance.
// If scores were normally distributed, these predict where a bit more than a hundred scores around
// the threshold lie. The second pass collects these scores and counts the ones above. Usually this
// finds the threshold; otherwise the counts give a better guess. For rows where guesses fail, or
// where many pairs have the threshold score, further passes build a histogram of the bracket, and
// one of its bins becomes the next bracket. When few pairs are left, they are listed with their
// keys and the right one is picked. Guesses may be wrong; brackets are always right, because they
// follow from counts only.
//
// Each warp owns 16 rows, and the four lanes of a quad share two of them: all four hold the same
// bracket.
struct Bracket {
    float low, high;  // inclusive bounds of scores; at the end `low` is the threshold
    float from, to;   // a guess inside; NaN if there is none
    i32 first, last;  // of keys, if low == high; at the end `last` is the threshold's end
    i32 k;            // the wanted rank; 1 is the best
    i32 numbers;      // pairs of the row with a score that is not NaN
    i32 better;       // how many of them are above the bracket
    i32 inside;       // how many are in it
    i32 above;        // this thread's pairs above the bracket in this pass
    bool nans;        // NaN pairs are ranked too, by their keys only
    bool done;
};
constexpr i32 UNLIMITED = 0x7fffffff;

constexpr int BINS = 256;       // per row, in shared memory
constexpr int LISTED = 127;     // pairs that fit a row's bins, with their count
constexpr int LIST_SIZE = 254;  // index of that count
// Marks pairs that are not candidates. A NaN that no product produces.
#define NO_CANDIDATE __int_as_float(0xffffffff)

// What a warp does with the scores in a pass.
enum Pass { MOMENTS, MOMENTS_OF_NUMBERS, COLLECT, BINS_OF_SCORES, BINS_OF_ALL, LISTS };

FN i32 quad_add(i32 x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---------------------------------------------------------------- the first bracket

struct Moments {
    float sum, squares;
    i32 numbers;
};
// LOOK false: assume that there are no NaNs; a NaN shows in the sum.
template <bool LOOK>
FN void add_moments(struct Moments (&x)[2], Scores &s) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float y = score_at(s, r, i);
            if (LOOK && y != y) continue;
            x[r].sum += y, x[r].squares = fmaf(y, y, x[r].squares), x[r].numbers += LOOK;
        }
    if (!LOOK) x[0].numbers += OWN, x[1].numbers += OWN;
}

// The quantile that a share `above` of a normal distribution exceeds, in standard deviations:
// Abramowitz and Stegun 26.2.23, error below 5e-4.
FN float normal_quantile(float above) {
    const float t = sqrtf(-2.0f * LN2 * fast_log2(fminf(above, 1.0f - above)));
    const float over = fmaf(fmaf(0.010328f, t, 0.802853f), t, 2.515517f);
    const float under = fmaf(fmaf(fmaf(0.001308f, t, 0.189269f), t, 1.432788f), t, 1.0f);
    const float x = t - over * fast_reciprocal(under);
    return above < 0.5f ? x : -x;
}
// Ranks that a guess covers on each side of the wanted one: at first, and later. NEAR is small
// enough that the list of one lane can hold all of them, as with strided masks.
constexpr i32 REACH = 64, NEAR = 24;

// The score that `rank` of `count` pairs reach.
FN float expected(i32 rank, i32 count, float mean, float deviation) {
    if (rank <= 0) return PLUS_INFINITY;
    if (rank >= count) return MINUS_INFINITY;
    return fmaf(normal_quantile((float)rank / (float)count), deviation, mean);
}
FN bool guessed(const struct Bracket &b) { return b.from <= b.to; }
FN void forget(struct Bracket &b) { b.from = b.to = NO_CANDIDATE; }

// No guess if scores are not finite, or all equal.
FN void guess(struct Bracket &b, float mean, float deviation, i32 reach) {
    const float from = expected(b.k + reach, b.numbers, mean, deviation);
    const float to = expected(b.k - reach, b.numbers, mean, deviation);
    forget(b);
    if (from < to) b.from = fmaxf(from, b.low), b.to = fminf(to, b.high);
}

// Interpolates in the normal distribution between two scores of known rank, and extrapolates
// beyond.
FN void guess_by(struct Bracket &b, float low, float high, i32 reached, i32 above, i32 reach) {
    const float count = (float)b.numbers;
    const float left = normal_quantile(fminf((float)reached, count - 0.5f) / count);
    const float right = normal_quantile(fmaxf((float)above, 0.5f) / count);
    const float deviation = (high - low) / (right - left);
    guess(b, low - left * deviation, deviation, reach);
}

// If the sum is NaN, `own` must come from a pass with LOOK; otherwise sets `unsure`.
FN struct Bracket first_bracket(const struct Moments &own, i32 allowed, i32 k, i32 n_kv,
                                bool looked, bool &unsure) {
    struct Bracket b = {MINUS_INFINITY, PLUS_INFINITY, NO_CANDIDATE, NO_CANDIDATE, 0, n_kv - 1, k};
    b.inside = b.numbers = quad_add(own.numbers);
    const float sum = quad_sum(own.sum), squares = quad_sum(own.squares);
    if (k >= allowed) {  // all of them
        b.low = __int_as_float(0x7fffffff), b.last = allowed > 0 ? UNLIMITED : 0, b.done = true;
        if (allowed == 0) b.low = PLUS_INFINITY;
    } else if (k == 0) {
        b.low = PLUS_INFINITY, b.last = 0, b.done = true;
    } else if (sum != sum && !looked) {
        unsure = true;
    } else if (k > b.numbers) {
        b.nans = true, b.low = b.high = 0.0f;
        b.k = k - b.numbers, b.inside = b.numbers = allowed - b.numbers;
    } else {
        const float count = (float)b.numbers, mean = sum / count;
        const float deviation = sqrtf(fmaxf(squares / count - mean * mean, 0.0f));
        guess(b, mean, deviation, REACH);
    }
    return b;
}

// ---------------------------------------------------------------- a pass

// A warp's bins, or lists: BINS words per row. The same word of eight rows is in eight different
// banks.
FN void clear_bins(u32 *bins) {
#pragma unroll
    for (int i = 0; i < 16 * BINS / 128; i++)
        ((uint4 *)bins)[32 * i + threadIdx.x % 32] = make_uint4(0, 0, 0, 0);
    __syncwarp();
}
FN u32 *bins_of(u32 *bins, int r) { return bins + (threadIdx.x % 32 / 4 + 8 * r) * BINS; }
FN u32 bin_at(u32 bin) { return bin ^ threadIdx.x % 32 / 4 * 4; }

// Mapping from the bracket to bins, the best pairs first.
struct Spread {
    u32 best, range;  // 0 .. range: how much worse than the best
    i32 shift;
    bool by_key;
};
FN struct Spread spread_of(const struct Bracket &b) {
    struct Spread x;
    x.by_key = b.low == b.high && !b.done;
    x.best = x.by_key ? (u32)b.first : image_of(b.high);
    x.range = x.by_key ? (u32)(b.last - b.first) : x.best - image_of(b.low);
    x.shift = max_i32(0, 24 - __clz(x.range));
    return x;
}
FN u32 worse(const struct Spread &x, float score, i32 key) {
    return x.by_key ? (u32)key - x.best : x.best - image_of(score);
}

// Processes a pair inside a row's bracket of scores. Brackets of keys are rare.
template <Pass PASS>
FN void meet(struct Bracket &b, const struct Spread &x, u32 *bins, float score, i32 key) {
    if (PASS == BINS_OF_SCORES) {
        atomicAdd(bins + bin_at((x.best - image_of(score)) >> x.shift), 1u);
        return;
    }
    const u32 y = worse(x, score, key);
    if (y > x.range) {
        b.above += (i32)y < 0;  // the same score and an earlier key
    } else if (PASS == LISTS) {
        const u32 place = atomicAdd(bins + LIST_SIZE, 1u);
        if (place < LISTED) bins[2 * place] = y, bins[2 * place + 1] = (u32)key;
    } else {
        atomicAdd(bins + bin_at(y >> x.shift), 1u);
    }
}

template <Pass PASS>
FN void look_at(struct Bracket &b, const struct Spread &x, u32 *bins, Scores &s, int r, i32 k) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const float score = score_at(s, r, i);
        b.above += score > b.high;
        if (score >= b.low & score <= b.high)
            meet<PASS>(b, x, bins, score, k + i / 2 * 8 + i % 2);
    }
}

// Turns NaN into 0 and numbers into NaN, to rank the NaN pairs.
FN void turn_around(Scores &s, int r) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float &x = score_at(s, r, i);
        x = x == x || __float_as_int(x) == -1 ? NO_CANDIDATE : 0.0f;
    }
}

// Processes a tile's scores in a pass that fills bins or lists, for the rows that are not done.
FN void look_on(enum Pass pass, struct Bracket (&row)[2], const struct Spread (&spread)[2],
                u32 *bins, Scores &s, i32 k) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r].done) continue;
        if (row[r].nans) turn_around(s, r);
        u32 *const own = bins_of(bins, r);
        if (pass == LISTS)
            look_at<LISTS>(row[r], spread[r], own, s, r, k);
        else if (pass == BINS_OF_ALL)
            look_at<BINS_OF_ALL>(row[r], spread[r], own, s, r, k);
        else
            look_at<BINS_OF_SCORES>(row[r], spread[r], own, s, r, k);
    }
}

// ---------------------------------------------------------------- results of a pass

// Whether the pairs inside fit a list.
FN bool is_short(const struct Bracket &b) { return b.done || b.inside <= LISTED; }

FN void finish_bracket(struct Bracket &b, float low, i32 end) {
    b.low = b.nans ? __int_as_float(0x7fffffff) : low, b.last = end, b.done = true;
    forget(b);
}

// Picks the pair of the wanted rank: the four lanes rank all listed pairs.
FN void take_from_list(struct Bracket &b, const u32 *list) {
    const struct Spread x = spread_of(b);
    const i32 rank = b.k - quad_add(b.above), count = min_i32(list[LIST_SIZE], LISTED);
    u32 found = 0, key = 0;
    if (!b.done) {
#pragma unroll 1
        for (i32 i = threadIdx.x % 4; i < count; i += 4) {
            const u32 own = list[2 * i], own_key = list[2 * i + 1];
            i32 better = 0;
#pragma unroll 1
            for (i32 j = 0; j < count; j++) {
                const u32 other = list[2 * j];
                better += other < own || (other == own && list[2 * j + 1] < own_key);
            }
            if (better + 1 == rank) found = own, key = own_key + 1;
        }
    }
    // The other three lanes hold 0
    found = (u32)quad_add((i32)found), key = (u32)quad_add((i32)key);
    if (!b.done) finish_bracket(b, x.by_key ? b.low : number_of(x.best - found), (i32)key);
}

// Finds the bin with the wanted rank, the number of pairs in better bins, and in the bin. Each lane
// scans a quarter.
FN void find_bin(const u32 *bins, i32 rank, i32 &bin, i32 &before, i32 &in_it) {
    const i32 lane = threadIdx.x % 4;
    i32 own = 0;
#pragma unroll 4
    for (int i = 0; i < BINS / 16; i++) {
        const uint4 x = *(const uint4 *)(bins + bin_at(BINS / 4 * lane + 4 * i));
        own += x.x + x.y + x.z + x.w;
    }
    const i32 left = __shfl_xor_sync(0xffffffff, own, 1);
    const i32 half = own + left, other = __shfl_xor_sync(0xffffffff, half, 2);
    i32 sum = (lane & 1 ? left : 0) + (lane & 2 ? other : 0);
    i32 found = 0, earlier = 0, many = 0;
    if (rank > sum && rank <= sum + own) {
        i32 i = BINS / 4 * lane;
#pragma unroll 1
        for (;; i++) {
            many = bins[bin_at(i)];
            if (rank <= sum + many) break;
            sum += many;
        }
        found = i, earlier = sum;
    }
    bin = quad_add(found), before = quad_add(earlier), in_it = quad_add(many);
}

// The next bracket.
FN void narrow(struct Bracket &b, const u32 *bins, i32 n_kv) {
    const struct Spread x = spread_of(b);
    const i32 above = quad_add(b.above);
    i32 bin, before, in_it;
    find_bin(bins, b.k - above, bin, before, in_it);
    if (b.done) return;
    const u32 from = (u32)bin << x.shift, to = from + (1u << x.shift) - 1;
    const u32 last = to < from || to > x.range ? x.range : to;
    b.inside = in_it, b.better = above + before;
    if (x.by_key) {
        b.first = (i32)(x.best + from), b.last = (i32)(x.best + last);
    } else {
        b.low = number_of(x.best - last), b.high = number_of(x.best - from);
        b.first = 0, b.last = n_kv - 1;
    }
}
