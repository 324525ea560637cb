// alpha-entmax: lists of the keys of a row that may have a weight. Needs: entmax_levels.cuh,
// entmax_weights.cuh. Gives: Lists.

// With alpha >= 1.5, most rows have few keys with a weight, though in many tiles. The first pass
// keeps the scores of keys that have a weight at the level of the keys seen so far. That
// level only rises, so the level of the list is the level of the row. The lists use the
// place of v and the memory behind it. Each thread has one region for its share of both rows: the
// first row's list grows upwards, the second row's downwards. If they meet, passes over all keys
// find the level.
constexpr u32 PLACE = sizeof(float2);  // a score and the index of its key
constexpr u32 LIST_STEP = PLACE * 128 * GROUPS;  // bytes between consecutive entries of a thread
constexpr u32 LIST = (sizeof(Shared::v) + sizeof(Shared::lists)) / LIST_STEP;
// Key indices are stored as fp32: their additions use the FP32 pipe, since the lists keep the
// integer pipe busy. They are exact, and tile indices fit 16 bits, up to this many keys.
constexpr i32 MAX_KEYS = 1 << 22;

struct Lists {
    u32 free[2];     // address of each row's first free entry, in shared memory
    float least[2];  // a score must exceed this to have a weight
    bool full;       // the lists overflowed; uniform in a warp and permanent
};

// Address of the lists of a thread's two rows. Recomputed at each use to save a register.
FN u32 first_place(int r) {
    return shared_address(shared_memory().v[0]) + PLACE * (threadIdx.x - 128)
        + r * (LIST - 1) * LIST_STEP;
}
FN float2 &kept(u32 at) { return *(float2 *)__cvta_shared_to_generic(at); }
FN float &kept_score(u32 at) { return *(float *)__cvta_shared_to_generic(at); }
FN u32 next_in_list(int r, u32 at) { return r ? at - LIST_STEP : at + LIST_STEP; }

// Calls f(row, score, key) for all entries of both rows' lists. An iteration takes AT_ONCE entries
// of each list, so that it waits for shared memory only once. ASKED: `f` uses the key. Entries of
// minus infinity, which have no weight, follow each list, so an iteration needs no end test; a list
// that has ended rereads them. Both lists may share these entries. `f` may overwrite entries that
// were read.
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

// With a NaN level the row needs no scores any more.
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

// Bytes reserved behind the lists.
constexpr u32 BEHIND = (AT_ONCE - 1) * LIST_STEP;

// Appends the scores of a tile; `key` is the thread's first key. NaN scores are kept too. The rows
// alternate, because a store delays the computation of its row's next address. One overflow check
// serves TOGETHER scores: when the region is full, the last entry is overwritten again and again.
constexpr u32 TOGETHER = 2;
FN void keep_scores(const Scores &s, float key, struct Lists &x) {
#pragma unroll
    for (int first = 0; first < OWN; first += TOGETHER) {
        const u32 low = x.free[0], high = x.free[1];
        const u32 last[2] = {(u32)make_opaque(max(low, high - BEHIND - TOGETHER * LIST_STEP)),
                             (u32)make_opaque(low + BEHIND)};
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

// Drops entries that have no weight any more. Keeps NaN entries.
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
        if (ALPHA == NEAR_SOFTMAX) return;  // no lists
        for_lists(lists, [&](int r, float y, float) {
            const struct Weight w = weigh<ALPHA>(y, unit, x.level[r], a);
            x.p[r] += w.p, x.u[r] += w.u;
            if (ALPHA == HALF_MORE) x.count[r] += w.u > 0.0f ? 1.0f : 0.0f;
        });
    });
    sum_over_quads(x);
}

// Raises the level towards the level of the lists, never beyond it: a score without a weight then
// stays without one. The lists are read once. On the way, entries without a weight at the previous
// level are dropped; scores too far above it count as 1, which makes the step smaller and therefore
// safe. A weight is at most 1, so the level is at least the largest score.
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

constexpr int MAX_STEPS = 12;  // steps of a search

// Makes the levels those of the lists, and leaves only entries with a weight. Returns whether
// the levels are precise enough.
FN bool search_lists(struct Lists &lists, float unit, float a, struct Search &x) {
    raise_and_drop(lists, unit, a, x);
    bool moves = true;
#pragma unroll 1
    for (int step = 0; moves && step < MAX_STEPS; step++) {
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

// Returns whether a warp's lists have room for less than `places` more entries.
FN bool fewer_places(const struct Lists &lists, u32 places) {
    const u32 room = lists.free[1] - lists.free[0] - BEHIND;
    return __any_sync(0xffffffff, room < places * LIST_STEP);
}

// Returns whether entries may have been lost.
FN bool too_few_places(const struct Lists &lists) { return fewer_places(lists, TOGETHER + 1); }

// The level is raised after 2, 3, 5, 8, 16, 32, ... tiles, and when space runs out. That is
// early enough for most lists, and all warps raise at the same tiles.
FN bool time_to_raise(const struct Lists &lists, i32 tiles) {
    const bool power = (tiles & (tiles - 1)) == 0 && tiles != 1 && tiles != 4;
    return power || tiles == 3 || tiles == 5 || fewer_places(lists, LIST / 6);
}

// First pass over one tile. `tiles` counts tiles, `key` is the thread's first key. The tile's own
// scores raise the level before they are appended if a row has none yet, if they would not fit,
// or if the lists were given up.
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
