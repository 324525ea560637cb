// alpha-entmax instead of softmax: repeated passes over a row until its level is found. The level
// is the threshold tau of entmax plus 1: a score (times alpha - 1) has a weight if it exceeds level
// - 1. Needs: items.cuh, ptx.cuh.

#include "common/lib/entmax_weights.cuh"

// Persistent blocks loop over tile rows. START, the first pass over the tiles of a row, lists the
// keys that may have a weight; the level of this list is the level of the row. DONE: the list is
// short, so the consumers fetch single values. LISTED: the list is long, so a pass over the tiles
// of v follows. SUMS: the lists overflowed, so passes over k refine the level. VALUES: passes over
// k and v compute the output, until the level is right. Each warp writes the pass that it needs
// next to `wishes`, and all are combined with a bitwise or. UNLISTED comes from a warp that has no
// room to prepare a LISTED pass: together with LISTED it becomes VALUES.
enum Pass { DONE = 0, LISTED = 1, UNLISTED = 2, VALUES = 3, SUMS = 7, START = 8 };

// Unit of the scores that finish_scores leaves, times alpha - 1.
FN float unit_of_entmax(const struct Attention &p) {
    return p.alpha_minus_1 * fmaxf(fabsf(left_scale(p)), 1e-30f);
}

typedef Scores RowScores;
#include "common/lib/entmax_levels.cuh"

#include "sm90a/lib/entmax_lists.cuh"

#include "sm90a/lib/entmax_values.cuh"

#include "sm90a/lib/entmax_products.cuh"

// ---------------------------------------------------------------- the next pass

// All warps agree on the next pass, and the producer thread reads the decision. It arrives too;
// without it, the consumers could complete two phases before the producer looked at the first.
// Decisions are numbered over all items of a block.
FN Pass heard(struct Shared &shared, i32 number) {
    wait(shared.decided, number & 1);
    i32 next = DONE;
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) next |= shared.wishes[number & 1][i];
    return next == UNLISTED ? DONE : (Pass)next;
}
FN Pass agreed(struct Shared &shared, Pass wish, i32 number) {
    const i32 next = (i32)__reduce_or_sync(0xffffffff, (u32)wish);
    if (threadIdx.x % 32 == 0) {
        shared.wishes[number & 1][threadIdx.x / 32 - 4] = next;
        arrive(shared.decided);
    }
    return (Pass)uniform(heard(shared, number));
}

// ---------------------------------------------------------------- the warp that copies

// Tile i of a pass. Passes begin in the middle of the list, where most masks hide nothing, so that
// every row gets a first level early.
FN i32 tile_of_pass(const struct Attention &p, const struct Work &work, i32 i) {
    const i32 place = i + work.count / 2;
    return word_at(p, work, place < work.count ? place : place - work.count);
}

// State of the producer thread over all items.
struct Copier {
    Ring<STAGES> k_stage, v_stage;
    i32 decisions = 0;     // read so far
    bool storing = false;  // the previous item's output is being stored from the place of q
    u32 stored = 0;        // parity of such items
};

// Loads q of an item. The place of q and the decisions of the previous item must be free.
FN void copy_q(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
               const struct Work &work, struct Copier &c) {
    if (c.storing) {
        wait(shared.q_free[0], c.stored);
        c.stored ^= 1;
    }
    const struct Place place = place_of(work.head, p.heads_q);
    shared.first_word = work.count;
    const struct RowRange rows = rows_of_item(p, work);
    shared.row[0] = {rows, place.head, place.batch};
    load_tile<TILE_Q>(shared.q[0], maps.q, shared.q_full[0], box_at(p, rows.first()),
                      slice_of(p.q_stride, place.head, place.batch));
}

// Loads the tiles of all passes over one item, and fetches the next item (`coming`) meanwhile. The
// first keys are requested before q, since the place of q may still be in use. A pass over keys is
// always followed by another pass, so its first keys are prefetched before it is known which pass
// it is. After other passes most items are done, so the next item's keys are prefetched. A pass
// over values uses the slots of k, because the lists occupy the slots of v.
FN void copy_item(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                  const struct Work &work, struct Work &coming, struct Copier &c) {
    const struct Place place = place_of(work.head, p.heads_q);
    const i32 kv_head = (u32)place.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const struct Slice k = slice_of(p.k_stride, kv_head, place.batch);
    const struct Slice v = slice_of(p.v_stride, kv_head, place.batch);
    const i32 first = min_i32(work.count, STAGES);  // tiles that fit the ring
    i32 ahead = 0;  // tiles of k that the previous pass already requested
    Pass now = START, next;
#pragma unroll 1
    while (true) {
        const i32 next_ahead = now == SUMS ? first : 0;
#pragma unroll 1
        for (i32 i = 0; i < work.count + next_ahead; i++) {
            const bool next_pass = i >= work.count;
            const i32 word = tile_of_pass(p, work, next_pass ? i - work.count : i);
            const Point first_k = key_point((word & INDEX) * KEY_STEP);
            if (next_pass || i >= ahead) {
                wait(shared.k_free[c.k_stage.at], c.k_stage.phase ^ 1);
                shared.next[c.k_stage.at] = word;
                unsigned char *const tile = shared.k[c.k_stage.at];
                if (BY_PRODUCTS && now == LISTED)
                    load_value_rows(tile, maps.v, shared.k_full[c.k_stage.at], first_k, v);
                else
                    load_tile<TILE_K>(tile, maps.k, shared.k_full[c.k_stage.at], first_k, k);
                c.k_stage.next();
            }
            if (now == START && i + 1 == first) copy_q(shared, p, maps, work, c);
            if (now == VALUES && !next_pass) {
                wait(shared.v_free[c.v_stage.at], c.v_stage.phase ^ 1);
                load_value_rows(shared.v[c.v_stage.at], maps.v, shared.v_full[c.v_stage.at],
                                first_k, v);
                c.v_stage.next();
            }
        }
        if (BY_PRODUCTS && now == LISTED) break;
        if (now == START) coming = item(p, atomicAdd(p.counter, 1));
        arrive(shared.decided);
        next = heard(shared, c.decisions++);
        if (next == DONE) break;
        ahead = next_ahead, now = next;
    }
    c.storing = now != START;
}

// The producer thread. It loads the next item's first tiles while the output of this one is
// computed.
FN void copy_passes(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    struct Copier c;
    struct Work work = item(p, atomicAdd(p.counter, 1)), coming;
#pragma unroll 1
    while (work.count > 0) {
        copy_item(shared, p, maps, work, coming, c);
        work = coming;
    }
    if (c.storing) wait(shared.q_free[0], c.stored);
    shared.first_word = 0;
    arrive(shared.q_full[0]);
    // The last block resets the counter for the next launch.
    if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}

// ---------------------------------------------------------------- warpgroups that compute

#include "sm90a/lib/entmax_passes.cuh"
