// alpha-entmax: the keys of a row that may have a weight, as lists.

// With alpha from 1.5 on most rows have few keys with a weight, if in many tiles. The first pass
// keeps the scores of those that have one at the level of the keys met so far, which only rises:
// the level of the row is that of its list. Lists lie where values will, and behind: a thread has
// one place for both rows' shares, the first's growing from below, the second's from above. Where
// they meet, the level takes passes over the row's keys.
constexpr u32 PLACE = sizeof(float2);  // of a score and the number of its key
constexpr u32 LIST_STEP = PLACE * 128 * GROUPS;  // bytes from one place of a thread to its next
constexpr u32 LIST = (sizeof(Shared::v) + sizeof(Shared::lists)) / LIST_STEP;
// Numbers of keys are fp32: what adds to them runs beside the instructions on integers that lists
// take anyway. They are exact, and tiles have numbers of 16 bits, up to so many keys.
constexpr i32 MOST_KEYS = 1 << 22;

struct Lists {
    u32 free[2];     // the first place of each row that is, in shared memory
    float least[2];  // what a score must be above to have a weight
    bool full;       // the same in a warp, and for good
};

// Where the lists of a thread's rows begin. Computed where it is used.
FN u32 first_place(int r) {
    return shared_address(shared_memory().v[0]) + PLACE * (threadIdx.x - 128)
        + r * (LIST - 1) * LIST_STEP;
}
FN float2 &kept(u32 at) { return *(float2 *)__cvta_shared_to_generic(at); }
FN float &kept_score(u32 at) { return *(float *)__cvta_shared_to_generic(at); }
FN u32 next_in_list(int r, u32 at) { return r ? at - LIST_STEP : at + LIST_STEP; }

// Calls f(row, score, key) for the lists, both rows at once: a loop waits for shared memory once a
// turn. Only some ask for keys.
// Behind a list lie so many places with minus infinity, which has no weight, that a turn needs not
// ask where it ends; one that has ended reads them again. Both lists may have the same ones, and
// `f` may write to places that were read.
constexpr u32 AT_ONCE = 2;
template <bool ASKED = false, typename F>
FN void for_lists(const struct Lists &lists, const F &f) {
    const u32 end[2] = {lists.free[0], lists.free[1]};
    u32 at[2] = {first_place(0), first_place(1)};
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        kept_score(end[0] + i * LIST_STEP) = MINUS_INFINITY;
        kept_score(end[1] - i * LIST_STEP) = MINUS_INFINITY;
    }
#pragma unroll 1
    while (at[0] < end[0] || at[1] > end[1]) {
        float2 x[2][AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 from[2] = {at[0] + i * LIST_STEP, at[1] - i * LIST_STEP};
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (ASKED)
                    x[r][i] = kept(from[r]);
                else
                    x[r][i].x = kept_score(from[r]);
            }
        }
        at[0] = min(at[0] + AT_ONCE * LIST_STEP, end[0]);
        at[1] = max(at[1] - AT_ONCE * LIST_STEP, end[1]);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) f(r, x[r][i].x, x[r][i].y);
    }
}

// Where the level is no number the row needs no scores any more.
FN void set_least(struct Lists &lists, const struct Search &x, float unit) {
#pragma unroll
    for (int r = 0; r < 2; r++) lists.least[r] = fminf((x.level[r] - 1.0f) / unit, PLUS_INFINITY);
}

// With alpha near 1 every key has a weight.
FN void start_lists(struct Lists &lists, const struct Search &x, float unit, float a) {
    lists.free[0] = first_place(0), lists.free[1] = first_place(1);
    lists.full = a < 0x1p-7f;
    set_least(lists, x, unit);
}

// The places that are free beyond those behind the lists.
constexpr u32 BEHIND = (AT_ONCE - 1) * LIST_STEP;

// Keeps the scores of a tile; `key` is the thread's first one. What is not a number is kept too.
// The rows take turns, as a store holds up what finds its row's next place. Some scores share what
// keeps the lists apart: where there is no place left the last one is written again and again.
constexpr u32 TOGETHER = 2;
FN void keep_scores(const Scores &s, float key, struct Lists &x) {
#pragma unroll
    for (int first = 0; first < OWN; first += TOGETHER) {
        const u32 low = x.free[0], high = x.free[1];
        const u32 last[2] = {(u32)anew(max(low, high - BEHIND - TOGETHER * LIST_STEP)),
                             (u32)anew(low + BEHIND)};
#pragma unroll
        for (int i = first; i < first + TOGETHER; i++) {
            const float own = key + (float)(i / 2 * 8 + i % 2);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float y = s[i / 2 * 4 + 2 * r + i % 2];
                if (y <= x.least[r]) continue;
                const u32 free = x.free[r], next = next_in_list(r, free);
                kept(free) = make_float2(y, own);
                x.free[r] = r ? max(next, last[r]) : min(next, last[r]);
            }
        }
    }
}

FN void keep_score(u32 (&free)[2], int r, float y, float key) {
    kept(free[r]) = make_float2(y, key);
    free[r] = next_in_list(r, free[r]);
}

// Forgets those that have no weight any more, and nothing that is no number.
FN void drop_scores(struct Lists &x) {
    u32 free[2] = {first_place(0), first_place(1)};
    for_lists<true>(x, [&](int r, float y, float key) {
        if (!(y <= x.least[r] || y == MINUS_INFINITY)) keep_score(free, r, y, key);
    });
    x.free[0] = free[0], x.free[1] = free[1];
}

FN void add_lists(const struct Lists &lists, float unit, float a, struct Search &x) {
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;  // has no lists
        for_lists(lists, [&](int r, float y, float) {
            const struct Weight w = weigh<ALPHA>(y, unit, x.level[r], a);
            x.p[r] += w.p, x.u[r] += w.u;
            if (ALPHA == HALF_MORE) x.count[r] += w.u > 0.0f ? 1.0f : 0.0f;
        });
    });
    sum_over_quads(x);
}

// Rises towards the level of the lists, but not past it: what has no weight then has none for good.
// The lists are read once: on the way they lose what had no weight at the level before, and scores
// too far above that count as 1, as if they were lower, which only makes the step smaller. No
// weight is above 1: the level is not below the largest score either.
FN void raise_and_drop(struct Lists &lists, float unit, float a, struct Search &x) {
    u32 free[2] = {first_place(0), first_place(1)};
    float peak[2] = {MINUS_INFINITY, MINUS_INFINITY};
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;
        for_lists<true>(lists, [&](int r, float y, float key) {
            const struct Weight w = weigh<ALPHA>(y, unit, x.level[r], a);
            x.p[r] += w.p, x.u[r] += w.u;
            peak[r] = max_or_nan(peak[r], y);
            if (y > lists.least[r]) keep_score(free, r, y, key);
        });
    });
    sum_over_quads(x);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float raised = x.level[r] + newton_step(a, x.p[r], x.u[r]);
        x.level[r] = max_or_nan(raised, quad_max_or_nan(peak[r]) * unit);
        lists.free[r] = free[r];
    }
    set_least(lists, x, unit);
}

constexpr int MOST_STEPS = 12;  // of a search

// The levels become those of the lists, which then hold just what has a weight. Returns whether
// they are close enough.
FN bool search_lists(struct Lists &lists, float unit, float a, struct Search &x) {
    raise_and_drop(lists, unit, a, x);
    bool moves = true;
#pragma unroll 1
    for (int step = 0; moves && step < MOST_STEPS; step++) {
        add_lists(lists, unit, a, x);
        moves = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float by = closed_step(a, x.p[r], x.u[r], x.count[r]);
            moves = moves || fabsf(by) > close_enough(a, x.level[r]);
            x.level[r] += by;
        }
        moves = __any_sync(0xffffffff, moves);
    }
    set_least(lists, x, unit);
    drop_scores(lists);
    return !moves;
}

// Whether a warp's lists have room for less than so many scores.
FN bool fewer_places(const struct Lists &lists, u32 places) {
    const u32 room = lists.free[1] - lists.free[0] - BEHIND;
    return __any_sync(0xffffffff, room < places * LIST_STEP);
}

// Whether scores may have been without one.
FN bool too_few_places(const struct Lists &lists) { return fewer_places(lists, TOGETHER + 1); }

// Levels are raised after 2, 3, 5, 8, 16, 32, ... tiles, which is early enough for most lists and
// finds all warps at it together, and where places get few.
FN bool time_to_raise(const struct Lists &lists, i32 tiles) {
    const bool power = (tiles & (tiles - 1)) == 0 && tiles != 1 && tiles != 4;
    return power || tiles == 3 || tiles == 5 || fewer_places(lists, LIST / 6);
}

// The first pass over a tile; `tiles` counts it, `key` is the thread's first one. Its own scores
// raise the level before they are kept where a row has none, where there are no places for them,
// and where lists were given up.
FN void list_scores(Scores &s, i32 tiles, float key, float unit, float a, struct Lists &lists,
                    struct Search &x) {
    const u32 before[2] = {lists.free[0], lists.free[1]};
    const bool begins = x.level[0] == MINUS_INFINITY || x.level[1] == MINUS_INFINITY;
    bool carefully = lists.full || __any_sync(0xffffffff, begins);
    if (!carefully) {
        keep_scores(s, key, lists);
        carefully = too_few_places(lists);
    }
    if (carefully) {
        lists.free[0] = before[0], lists.free[1] = before[1];
        if (!lists.full) add_lists(lists, unit, a, x);
        start_levels(s, unit, a, x);
        if (lists.full) return;
        set_least(lists, x, unit);
        drop_scores(lists);
        keep_scores(s, key, lists);
        lists.full = too_few_places(lists);
    } else if (time_to_raise(lists, tiles)) {
        raise_and_drop(lists, unit, a, x);
    }
}
