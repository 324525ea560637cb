// alpha-entmax instead of softmax: passes over a row until its lse is found.
// Needs: items.cuh, ptx.cuh.

#include "common/lib/entmax_weights.cuh"

// Blocks stream through tile rows. A block passes once over the tiles of one for the keys that may
// have a weight: the level of these is the row's. Where they are few, their values are all that it
// takes then; where they are more, a pass over values alone. Where they were too many to be
// remembered it passes over keys until their level is close, and over both until it is right.
// Wishes of warps are joined bit by bit: one that cannot have values alone, UNLISTED, may have few.
enum Pass { DONE = 0, LISTED = 1, UNLISTED = 2, VALUES = 3, SUMS = 7, START = 8 };

// Of scores, as finish_scores leaves them, in units of a * score.
FN float unit_of_entmax(const struct Attention &p) {
    return p.alpha_minus_1 * fmaxf(fabsf(left_scale(p)), 1e-30f);
}

typedef Scores RowScores;
#include "common/lib/entmax_levels.cuh"

#include "sm90a/lib/entmax_lists.cuh"

#include "sm90a/lib/entmax_values.cuh"

#include "sm90a/lib/entmax_products.cuh"

// ---------------------------------------------------------------- what comes next

// All warps agree on the next pass, and the thread that copies hears of it. It arrives as well, as
// the others might else be through with two passes before it asks about the first. Decisions are
// counted, over all items of a block.
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

// Tile i of a pass: it begins in the middle of the list, where most masks hide nothing and every
// row finds a level.
FN i32 tile_of_pass(const struct Attention &p, const struct Work &work, i32 i) {
    const i32 place = i + work.count / 2;
    return word_at(p, work, place < work.count ? place : place - work.count);
}

// What the thread that copies has throughout.
struct Copier {
    Ring<STAGES> k_stage, v_stage;
    i32 decisions = 0;     // heard of
    bool storing = false;  // the last item's output leaves through the place of q
    u32 stored = 0;        // parity of items whose output did
};

// q of an item, whose place must be free, as must be what is known of the item before.
FN void copy_q(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
               const struct Work &work, struct Copier &c) {
    if (c.storing) {
        wait(shared.q_free[0], c.stored);
        c.stored ^= 1;
    }
    const struct Place place = place_of(work.head, p.heads_q);
    shared.first_word = work.count;
    shared.row[0] = {work.tile, place.head, place.batch, 0};
    load_tile<TILE_Q>(shared.q[0], maps.q, shared.q_full[0], work.tile * TILE_Q,
                      slice_of(p.q_stride, place.head, place.batch));
}

// All passes over one item; `coming` is fetched on the way. The first keys are on their way before
// q, whose place may still be taken. A pass over keys alone is followed by another one for sure:
// the first of its keys come before it is known which one that is. After other passes most items
// are done, and those of the next one come. Values alone take the places of keys, as their own have
// the lists.
FN void copy_item(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                  const struct Work &work, struct Work &coming, struct Copier &c) {
    const struct Place place = place_of(work.head, p.heads_q);
    const i32 kv_head = (u32)place.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const struct Slice k = slice_of(p.k_stride, kv_head, place.batch);
    const struct Slice v = slice_of(p.v_stride, kv_head, place.batch);
    const i32 first = min_i32(work.count, STAGES);  // tiles for which there is a place
    i32 ahead = 0;  // tiles of k of this pass that were asked for in the last one
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
                wait(shared.k_free[c.k_stage.at], c.k_stage.turn ^ 1);
                shared.next[c.k_stage.at] = word;
                unsigned char *const tile = shared.k[c.k_stage.at];
                if (BY_PRODUCTS && now == LISTED)
                    load_tile<TILE_K>(tile, maps.v, shared.k_full[c.k_stage.at], first_k, v);
                else
                    load_tile<TILE_K>(tile, maps.k, shared.k_full[c.k_stage.at], first_k, k);
                c.k_stage.next();
            }
            if (now == START && i + 1 == first) copy_q(shared, p, maps, work, c);
            if (now == VALUES && !next_pass) {
                wait(shared.v_free[c.v_stage.at], c.v_stage.turn ^ 1);
                load_tile<TILE_K>(shared.v[c.v_stage.at], maps.v, shared.v_full[c.v_stage.at],
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

// One thread. The next item's first tiles come while the output of this one is made.
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
    // The last block leaves the counter as it found it.
    if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}

// ---------------------------------------------------------------- warpgroups that compute

#include "sm90a/lib/entmax_passes.cuh"
