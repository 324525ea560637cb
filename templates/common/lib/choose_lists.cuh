// Collects the scores near a threshold in one pass. Needs: choose_rows.cuh, images.cuh; score_at
// and Scores of the family.

// Each thread lists its own scores of a row inside the bracket: threads do not synchronize, and the
// end of a list is in a register. The four lists of a quad use the memory of the row's bins.
constexpr int LIST_ROOM = 64;        // scores; the same position of all lanes is contiguous
constexpr int MAX_LISTED = LIST_ROOM - 8;  // limit of a list: its end is checked every 8 scores
constexpr u32 LIST_STEP = 32 * 4;    // bytes between consecutive scores of a list

FN const u32 *list_in(const u32 *bins, int r) {
    return bins + (LIST_ROOM * r * 32 + threadIdx.x % 32);
}

struct List {
    float low, high;       // range of listed scores
    u32 first, at;         // addresses
    i32 reached;           // scores >= `low`
    u32 dropped;           // bytes of scores inside that did not fit
};
FN struct List list_of(const struct Bracket &b, const u32 *bins, int r) {
    const u32 first = shared_address(list_in(bins, r));
    return {b.from, b.to, first, first, 0, 0};
}

// PTX without a branch: the compiler would branch, and use more instructions.
FN void list_one(struct List &x, float score) {
    asm volatile("{\n"
                 ".reg .pred reaches, inside;\n"
                 "setp.ge.f32 reaches, %2, %3;\n"
                 "setp.le.and.f32 inside, %2, %4, reaches;\n"
                 "@reaches add.s32 %0, %0, 1;\n"
                 "@inside st.shared.f32 [%1], %2;\n"
                 "@inside add.u32 %1, %1, %5;\n"
                 "}" : "+r"(x.reached), "+r"(x.at)
                 : "f"(score), "f"(x.low), "f"(x.high), "n"(LIST_STEP) : "memory");
}

FN void collect(struct List (&list)[2], Scores &s) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            struct List &x = list[r];
            list_one(x, score_at(s, r, i));
            if (i % 8 != 7) continue;
            const u32 end = x.first + MAX_LISTED * LIST_STEP;
            x.dropped += max(x.at, end) - end;
            x.at = min(x.at, end);
        }
    }
}

// State of a rank search in the lists of two rows.
struct Ranked {
    u32 low, high;  // images that enclose the score of that rank
    i32 rank, reached;  // rank, and the number of scores >= `low`
    bool open;
};

// Bisects until no listed score lies between `low` and the wanted score, or until they are equal.
FN void halve(struct Ranked (&x)[2], const float (&score)[2][MAX_LISTED]) {
#pragma unroll 1
    while (__any_sync(0xffffffff, x[0].open || x[1].open)) {
        u32 middle[2];
        float least[2];
        float count[2] = {};  // floats: two instructions per score
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 range = x[r].high - x[r].low;
            middle[r] = x[r].low + range / 2 + range % 2, least[r] = number_of(middle[r]);
        }
#pragma unroll
        for (int i = 0; i < MAX_LISTED; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) count[r] += score[r][i] >= least[r] ? 1.0f : 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 reached = quad_add((i32)count[r]);
            if (!x[r].open) continue;
            if (reached >= x[r].rank)
                x[r].low = middle[r], x[r].reached = reached;
            else
                x[r].high = middle[r] - 1;
            x[r].open = x[r].reached != x[r].rank && x[r].low != x[r].high;
        }
    }
}

FN float quad_min(float x) { return -quad_max(-x); }

// Narrows the bracket: `reached` scores are >= `low`, `above` are > `high`.
FN void prove(struct Bracket &b, float low, float high, i32 reached, i32 above) {
    i32 least = b.better + b.inside;
    if (reached < b.k)
        b.high = number_of(image_of(low) - 1), b.better = reached;
    else if (above < b.k)
        b.low = low, b.high = high, least = reached, b.better = above;
    else
        b.low = number_of(image_of(high) + 1), least = above;
    b.inside = least - b.better;
}

// A row's threshold: the least score at or above the end of the search. If some pairs with exactly
// this score are not selected, the result is a bracket of keys.
FN void take_least(struct Bracket &b, const struct Ranked &x, const float (&score)[MAX_LISTED],
                   bool found, i32 n_kv) {
    const float low = number_of(x.low);
    float least = PLUS_INFINITY, alike = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_LISTED; i++) least = score[i] >= low ? fminf(least, score[i]) : least;
    least = quad_min(least);
#pragma unroll
    for (int i = 0; i < MAX_LISTED; i++) alike += score[i] == least ? 1.0f : 0.0f;
    const i32 many = quad_add((i32)alike);
    if (!found) return;
    if (x.reached == x.rank) {
        finish_bracket(b, least, UNLIMITED);
    } else {
        b.low = b.high = least, b.inside = many, b.first = 0, b.last = n_kv - 1;
        forget(b);
    }
}

// Evaluates the guesses of two rows. `again`: whether to guess again after a wrong guess.
FN void take_collected(struct Bracket (&row)[2], const struct List (&list)[2], const u32 *bins,
                       bool again, i32 n_kv) {
    float score[2][MAX_LISTED];
    struct Ranked ranked[2];
    bool found[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const struct List &x = list[r];
        const i32 listed = (x.at - x.first) / LIST_STEP;
#pragma unroll
        for (int i = 0; i < MAX_LISTED; i++) {
            const float there = __uint_as_float(list_in(bins, r)[32 * i]);
            score[r][i] = i < listed ? there : NO_CANDIDATE;
        }
        const i32 dropped = quad_add(x.dropped / LIST_STEP), reached = quad_add(x.reached);
        const i32 inside = quad_add(listed) + dropped, rank = row[r].k - (reached - inside);
        found[r] = guessed(row[r]) && rank > 0 && rank <= inside && dropped == 0;
        if (guessed(row[r])) {
            forget(row[r]);
            prove(row[r], x.low, x.high, reached, reached - inside);
            const i32 reach = dropped > 0 ? NEAR : REACH;
            if (again) guess_by(row[r], x.low, x.high, reached, reached - inside, reach);
        }
        ranked[r] = {image_of(x.low), image_of(x.high), rank, inside, false};
        ranked[r].open = found[r] && rank != inside && ranked[r].low != ranked[r].high;
    }
    halve(ranked, score);
#pragma unroll
    for (int r = 0; r < 2; r++) take_least(row[r], ranked[r], score[r], found[r], n_kv);
}
