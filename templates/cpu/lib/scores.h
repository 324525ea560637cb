// A tile is transposed, scores[k][q]: the lanes of a vector are queries. Softmax's maxima and sums
// over keys are then plain vector arithmetic, and a NaN in one query stays in that query.
typedef float Scores[TILE_K][TILE_Q];
typedef i32 Live[TILE_K][TILE_Q];  // the mask of a partial tile: 0 or 1

// One tile of one head: its start, and the part inside the lengths.
struct Place {
    i32 q0, k0;
    i32 queries, keys;
    i32 vectors;  // of queries; lanes past the last query are never read
};

FN struct Place place(const struct Attention *p, i32 ti, i32 tj) {
    struct Place at = {.q0 = ti * TILE_Q, .k0 = tj * TILE_K};
    at.queries = min_i32(TILE_Q, p->n_q - at.q0);
    at.keys = min_i32(TILE_K, p->n_kv - at.k0);
    at.vectors = (at.queries + LANES - 1) / LANES;
    return at;
}

#if WITH_SCORE
#include "cpu/lib/formula_logits.h"
#else
#include "cpu/lib/option_logits.h"
#endif

#if HAS_SELECTIONS
typedef unsigned long long u64;
_Static_assert(TILE_K == 64, "a query's keys are the bits of one word");

// The first of ascending entries that is at least `least`.
FN i32 first_from(const i32 *list, i32 entries, i32 least) {
    i32 first = 0;
    while (entries > 0) {
        const i32 half = entries / 2;
        const i32 below = list[first + half] < least;
        first += below ? half + 1 : 0;
        entries = below ? entries - half - 1 : half;
    }
    return first;
}

// Converts a list of selected blocks of `block` keys to bits of keys k0 .. k0 + TILE_K - 1.
FN u64 chosen_keys(const i32 *list, i32 entries, i32 block, i32 k0) {
    u64 keys = 0;
    const i32 last = (k0 + TILE_K - 1) / block;
    for (i32 i = first_from(list, entries, k0 / block); i < entries && list[i] <= last; i++) {
        const i32 from = max_i32(0, list[i] * block - k0);
        const i32 to = min_i32(TILE_K, list[i] * block + block - k0);
        keys |= ~0ull >> (TILE_K - (to - from)) << from;
    }
    return keys;
}

// One word per query of the tile; `q_block` queries share a list.
FN void chosen_pairs(u64 *words, const i32 *lists, i32 entries, struct Place at, i32 q_block,
                     i32 block) {
    for (i32 q = 0, before = -1; q < at.queries; q++) {
        const i32 row = (at.q0 + q) / q_block;
        words[q] = row == before ? words[q - 1]
                                 : chosen_keys(lists + (i64)row * entries, entries, block, at.k0);
        before = row;
    }
}

#endif
#include "cpu/lib/live_pairs.h"

// Writes -inf to dead pairs, so that their weight is exactly 0 with any score.
FN void mask_scores(struct Place at, Live live, Scores scores) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            const ivec seen = *(const ivec_in_memory *)&live[k][j] != 0;
            store(&scores[k][j], either(seen, load(&scores[k][j]), splat(-INFINITE)));
        }
    }
}

// scores = UNIT * (the logits of q and k). `q` is transposed and includes query_factor(). `kept`,
// if given, receives the input for gradients; `live` is filled for partial tiles.
FN void tile_scores(const struct Attention *p, struct Mask m, i32 head, struct Place at, i32 full,
                    const float *q, struct Left k, Scores scores, Scores kept, Live live) {
    clear(&scores[0][0], at.keys * TILE_Q);
    multiply(&scores[0][0], TILE_Q, k, q, TILE_Q, at.keys, at.vectors, HEAD_DIM);
    make_logits(p, m, head, at, scores, kept);
    if (full) return;
    live_pairs(p, m, at, live);
    mask_scores(at, live, scores);
}
