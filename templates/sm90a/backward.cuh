// Attention backward for Hopper (sm_90a). Arguments: maskc/core/abi.py. Launches before and after
// the main one, and its modes: maskc/plan/families/sm90a_backward.py.
//
// An item is a tile column: its k and v stay, while tiles of q and dout stream past. Scores are
// computed transposed, keys by queries. With SPLIT_KEYS each consumer warpgroup has 64 keys, and
// keeps their dk and dv in registers. Otherwise each has half of the columns of dk and dv.
//
// Warps. Warpgroup 0 gives its registers to the others, which are the consumers (compute):
//   warp 3  the producer, one thread: takes items and loads by TMA (load_items)
//   warp 1  STAGED: adds tiles of dq to memory (add_dq_tiles). Else, if DETERMINISTIC: waits until
//           a step may add (await_turns)
//   warp 2  ZEROES: writes the zeros that later heads add to (zero_tiles). Else, if DETERMINISTIC:
//           lets the next column add (pass_turns_on)
//   warp 0  PAIR_RING: copies tiles of a table of pairs (copy_pairs)
//
// A step of a consumer (take_step), for one tile of q and dout:
//   1. issue s = k q^T and dp = v dout^T
//   2. p = exp2(mask(s) - lse); ds = p (dp - delta); ds goes to shared memory, where both meet
//   3. issue dq = ds^T k, then dv += p dout and dk += ds q
//   4. wait for dq; hand it to warp 1, or add it to memory; wait for dv and dk; release dout and q
// With SEPARATE_DQ another launch computes dq, and steps 3 and 4 lack it.
//
// mbarriers. A `full` one completes when the producer has arrived and all bytes have come. A `free`
// one takes an arrival from each consumer warpgroup.
//   column_full, column_free         k and v of an item, and `item`. One without tiles, whose
//                                    gradients are zero, arrives likewise
//   q_full, q_free                   a tile of q; `word`, `owner`, lse, and delta if LSE_IN_WGMMA
//   dout_full, dout_free             a tile of dout, and delta otherwise
//   dq_full[group], dq_free[group]   the group's four warps have written their dq; warp 1: it has
//                                    left shared memory, or may be added
//   dq_added, dq_seen                DETERMINISTIC: from warp 1 to warp 2, which lets the next
//                                    column add, and back
//   column_settled                   DETERMINISTIC: a step that is HELD may add, so the producer
//                                    may claim the next item
//
// Named barriers. 1: all consumers. 2 + group: the threads of one consumer warpgroup. 4 and 5: the
// consumers take turns with the only tile of ds (ONE_DS).

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#if WITH_PAIR_ROWS
#include "sm90a/lib/pair_rows.cuh"

#endif
#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/logit_slope.cuh"

#include "sm90a/lib/backward_constants.cuh"

#include "common/lib/tiles.h"

#include TOKENS_POLICY

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/tokens.cuh"

#include "sm90a/lib/wgmma.cuh"

#include "sm90a/lib/work.cuh"

#if DOCUMENT_ROWS
#include "sm90a/lib/lines_documents.cuh"

#else
#include "sm90a/lib/lines_even.cuh"

#endif
#include "common/lib/keep.cuh"

struct Maps {
#if DQ_LAUNCH
    TensorMap q, dout, k, v, dk, dv, out;
#else
    TensorMap q, dout, k, v, dk, dv;
#endif
};

#if WITH_THRESHOLDS
#include "common/lib/thresholds.cuh"

#endif
#include "sm90a/lib/backward_workspace.cuh"

#include "sm90a/lib/backward_rows.cuh"

#if !SEPARATE_DQ
#include "common/lib/backward_few.cuh"

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_few(const __grid_constant__ struct Attention p,
                       const __grid_constant__ struct Maps) {
    const struct Place at = place_of_row(p, blockIdx.x);
    const struct QueryRange queries = queries_of(p, at, blockIdx.x % p.tile_rows);
    settle_rows(p, queries.first, queries.end);
}
#endif

#if WITH_PAIR_RING && PAIR_RING
#include "sm90a/lib/gather_copy.cuh"

constexpr int PAIR_COPIERS = 1;
#include "sm90a/lib/pair_ring.cuh"

#endif
#include "sm90a/lib/backward_scores.cuh"

#include "sm90a/lib/backward_products.cuh"

#if SPLIT_KEYS
#include "sm90a/lib/split_keys.cuh"
#else
#include "sm90a/lib/split_columns.cuh"
#endif

#include "sm90a/lib/order.cuh"

#include "sm90a/lib/backward_order.cuh"

// State of the producer thread for one query head: everything its tiles have in common.
struct Source {
    List list;
    struct Place q, dout;     // coordinates; 0 along dimensions that broadcast
    const float *lse, *delta;  // at the first query
    i32 tail;                 // MASKED if the tile column reaches past the last key
};

// Shared memory of a block. maskc/plan/families/sm90a_backward.py plans its size.
struct Shared {
    unsigned char k[K_BYTES], v[V_BYTES];
    unsigned char q[STAGES][Q_BYTES], dout[DOUT_STAGES][DOUT_BYTES];
#if LSE_IN_WGMMA
    // bf16 pieces of lse and delta. They must not come last: WGMMA reads them as if they were twice
    // as long.
    unsigned char rows[STAGES][PIECE_BYTES];
#endif
    // ds, and p if the warpgroups exchange it. With two warpgroups, dk and dv are staged here at
    // the end of a tile column.
    unsigned char ds[DS_STAGES][PAIR_BYTES];
#if !SPLIT_KEYS
    unsigned char weights[STAGES][PAIR_BYTES];
#endif
#if WITH_PAIR_RING && PAIR_RING
    struct PairRing pairs;
#endif
#if STAGED
    float dq[TILE_FLOATS];
#endif
#if ZEROES
    unsigned char zeros[ZERO_BYTES];
#endif
#if !LSE_IN_WGMMA
    float lse[STAGES][TILE_Q], delta[STAGES][TILE_Q];
#endif
#if WITH_THRESHOLDS
    float low[STAGES][TILE_Q], end[STAGES][TILE_Q];  // thresholds; `end` holds integers
#endif
    u64 column_full, column_free;
    u64 q_full[STAGES], q_free[STAGES];
    u64 dout_full[DOUT_STAGES], dout_free[DOUT_STAGES];
    u64 dq_full[GROUPS], dq_free[GROUPS], dq_added, dq_seen, column_settled;
    struct Item item[ITEMS];
    struct Source source;  // the head whose steps are being loaded
    i32 word[STAGES], owner[STAGES];  // the query tile in this stage; see lines_even.cuh
    struct Turn turn[STAGES], dq_turn;  // of a step; of the tile staged in `dq`
    i32 *dq_counter;                    // counts additions to the tile of dq that a step adds to
    u32 holds, settled;  // whether the last turn of the item being loaded is HELD; mbarrier parity
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");

#include "common/lib/memory.cuh"

// Ring of one or two slots in shared memory. dout may have fewer slots than q: see dout_at.
template <u32 COUNT>
struct Ring {
    u32 steps = 0;
    FN u32 at() const { return steps % COUNT; }
    FN u32 phase() const { return steps / COUNT % 2; }  // parity
    FN u32 phase_of_dout() const { return steps / DOUT_STAGES % 2; }
    FN void next() { steps++; }
};
FN u32 dout_at(u32 at) { return at % DOUT_STAGES; }

#if WITH_PAIR_RING && PAIR_RING
FN struct PairRing &pair_ring() { return shared_memory().pairs; }

#endif
FN void initialize(struct Shared &shared) {
    shared.holds = shared.settled = 0;
#if WITH_PAIR_RING && PAIR_RING
    initialize(shared.pairs);
#endif
    barrier_init(shared.column_full, 1);
    barrier_init(shared.column_free, GROUPS);
    barrier_init(shared.dq_added, 1);
    barrier_init(shared.dq_seen, 1);
    barrier_init(shared.column_settled, 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.q_full[i], 1);
        barrier_init(shared.dout_full[dout_at(i)], 1);
        barrier_init(shared.q_free[i], GROUPS);
        barrier_init(shared.dout_free[dout_at(i)], GROUPS);
    }
    for (int i = 0; i < GROUPS; i++) {
        barrier_init(shared.dq_full[i], 4);  // warps
        barrier_init(shared.dq_free[i], 1);
    }
    barriers_ready();
}

// One step: a query tile.
struct Step {
    i32 word;
    i32 row;  // index of the tile row
#if WITH_PAIR_RING && PAIR_RING
    u32 number;  // of the step, among those of the block
#endif
};

#include "sm90a/lib/backward_load.cuh"

#include "sm90a/lib/backward_dq.cuh"

// ---------------------------------------------------------------- warpgroups that compute

FN i32 first_row(i32 group) { return SPLIT_KEYS ? 0 : QUERIES * group; }
FN i32 first_query(i32 word, i32 group) { return (word & INDEX) * ROW_STEP + first_row(group); }
FN struct Step step_in(const struct Shared &shared, i32 at, const struct Attention &p) {
    const i32 word = uniform(shared.word[at]);
    return {word, row_of_step(p, uniform(shared.owner[at]), word)};
}
#if WITH_PAIR_RING
FN struct Step numbered(struct Step step, u32 number) {
#if PAIR_RING
    step.number = number;
#endif
    return step;
}
#endif
// The thread's first key; its second one is 8 further on. Recomputed at each use to save a
// register.
FN i32 first_key(i32 tile, i32 group) {
    const i32 thread = threadIdx.x % 128;
    return make_opaque(tile) * COLUMN_STEP + key_of(group) + thread / 32 * 16 + thread % 32 / 4;
}
FN struct Where where_of(const struct Place &place, const struct Step &step,
                         const struct Attention &p, i32 tile, i32 group) {
    const struct HeadLogit own = head_logit_of(p, place.head);
    const i32 query = first_query(step.word, group) + (i32)threadIdx.x % 4 * 2;
    const i32 key = first_key(tile, group);
#if WITH_PAIR_RING && PAIR_RING
    return {place, query, key, own, steps_from(p, place.batch, query, key), step.number};
#endif
    return {place, query, key, own, steps_from(p, place.batch, query, key)};
}

// EARLY: issue dp = dout . v before the scores become weights, if there are registers for both.
constexpr bool SMALL_TILE = QUERIES <= 64;
constexpr bool EARLY =
    !LONG_LOGITS && !WIDE_SUMS
    && (THRESHOLDS ? SMALL_TILE
        : !(PAIRWISE_LOGITS || WITH_ENTMAX) || (SMALL_TILE && !REGISTER_PRESSURE));
// LSE_EARLY, DELTA_EARLY: load lse and delta before issuing the WGMMAs. Afterwards the loads would
// queue behind the WGMMA operand reads from shared memory.
constexpr bool LSE_EARLY =
    EARLY && !PAIRWISE_LOGITS && !MASK_HEAVY && (DROPS ? SMALL_TILE : !THRESHOLDS && !WITH_ENTMAX);
constexpr bool DELTA_EARLY = LSE_EARLY && QUERIES <= 64 && !REGISTER_PRESSURE;
// BY_HALVES: dp, and ds with it, for half of the queries after the other, if registers are short.
constexpr bool BY_HALVES = WIDE_SUMS && (MASK_HEAVY || !LSE_IN_WGMMA) && !DROPS;

#if LSE_IN_WGMMA
FN const float *lse_in(const struct Shared &, u32, i32) { return nullptr; }
FN const float *delta_in(const struct Shared &, u32, i32) { return nullptr; }
#else
FN const float *lse_in(const struct Shared &shared, u32 at, i32 group) {
    return shared.lse[at] + first_row(group);
}
FN const float *delta_in(const struct Shared &shared, u32 at, i32 group) {
    return shared.delta[at] + first_row(group);
}
#endif

FN void begin_dp(Scores &dp, Rows &delta, struct Shared &shared, const struct Operands &tiles,
                 const Ring<STAGES> &stage, i32 group) {
    const u32 at = stage.at();
    wait(shared.dout_full[dout_at(at)], stage.phase_of_dout());
    if (DELTA_EARLY) read_rows(delta, delta_in(shared, at, group));
    begin_scores<STEPS_V>(dp, tiles.k + TO_V, tiles.q + TO_DOUT + dout_stage(at), tiles, at, true);
}

// Turns the scores of a step, whose WGMMAs are in flight, into weights. Leaves p and dp in
// registers.
FN void finish_scores(Scores &s, Scores &dp, Kept &kept, Rows &lse, Rows &delta,
                      struct Shared &shared, const struct Operands &tiles,
                      const struct Attention &p, const struct Step &step,
                      const Ring<STAGES> &stage, i32 tile, i32 group) {
#if WITH_THRESHOLDS
    struct Visible seen = see_all();
#else
    struct Visible seen;
#endif
    struct MaskRow mask_rows;
    if (step.word & MASKED)
        seen = visible<ByKey>(p, place_of_row(p, step.row), first_key(tile, group),
                              first_query(step.word, group), mask_rows, {});
    products_wait<EARLY ? 1 : 0>();
    fence_operand(s);
    const struct Place place = place_of_row(p, step.row);
    const struct Logit logit = logit_of(p);
    const struct Where where = where_of(place, step, p, tile, group);
#if WITH_THRESHOLDS
    keep_chosen(seen, s, p, place_of_row(p, step.row), shared.low[stage.at()] + first_row(group),
                shared.end[stage.at()] + first_row(group), first_key(tile, group),
                first_query(step.word, group));
    bend(s, kept.slopes, p, where);
    apply_mask(s, seen, logit.hidden);
#else
    bend(s, kept.slopes, p, where);
    if (step.word & MASKED) apply_mask(s, seen, logit.hidden);
#endif
    if (!LSE_EARLY) {
        fence_operand(s);
        read_rows(lse, lse_in(shared, stage.at(), group));
    }
    to_weights(s, kept, lse, p, logit, where);
#if !SPLIT_KEYS
    Pairs staying;
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) staying[i] = kept.p[i];
    drop_pairs(staying, kept.stay);
    store_pairs(shared_address(shared.weights[stage.at()]), staying, group);
#endif
    if (BY_HALVES && HEAD_GRADIENT) settle(kept.p);
    if (BY_HALVES) return;
    if (!EARLY) begin_dp(dp, delta, shared, tiles, stage, group);
    products_wait<0>();
    fence_operand(dp);
}

#if ADDS_DIAGONALS
#include "sm90a/lib/diagonals.cuh"

// Adds a step's tile of ds to the gradients of the score formula's tables, if the call wants them.
FN void add_step(struct Shared &shared, const struct Attention &p, const struct Step &step, u32 at,
                 i32 tile) {
#if !DETERMINISTIC
    if (!SHIFTED || !p.score_diagonals) return;
    const struct Place own = place_of_row(p, step.row);
    add_diagonals(shared.ds[at % DS_STAGES], diagonals_of(p, own.head, own.batch),
                  (step.word & INDEX) * ROW_STEP - tile * COLUMN_STEP);
#endif
}

#endif
#if ADDS_PAIRS
#include "sm90a/lib/pair_sums.cuh"

// Adds a step's tile of ds to the gradients of the table of pairs, if the call wants them.
FN void add_pair_step(struct Shared &shared, const struct Attention &p, const struct Step &step,
                      u32 at, i32 tile) {
    if (!BFLOAT16) return;  // to_gradients has added them
    add_pair_tile(shared.ds[at % DS_STAGES], p, place_of_row(p, step.row),
                  (step.word & INDEX) * ROW_STEP, tile * COLUMN_STEP);
}

#endif
// The tile column that a block works on.
struct Column {
    i32 tile, head, shared, steps;
};
FN struct Column column_in(const struct Item &item) {
    return {uniform(item.work.tile), uniform(item.work.head), uniform(shared_of(item.work)),
            uniform(item.steps)};
}

#include "sm90a/lib/backward_store.cuh"

#if SPLIT_KEYS
// Waits for the product that reads dout, with PENDING younger ones. WIDE_SUMS: before dq needs the
// registers of p.
template <int PENDING>
FN void finish_dv(ValueGradient &dv, Pairs &p, struct Shared &shared, u32 at, bool keeps) {
    products_wait<PENDING>();
    fence_operand(dv);
    fence_operand(p);
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.dout_free[dout_at(at)]);
}
#endif

// Computes dp and ds for half of the queries, from FIRST on.
template <int FIRST>
FN float gradients_of(const Scores &s, const Kept &kept, Pairs &ds, Rows &delta, const float *rest,
                      const struct Operands &tiles, u32 at, const struct Attention &p,
                      const struct Where &where) {
    float dp[QUERIES / 4];
    begin_scores<STEPS_V>(dp, tiles.k + TO_V, tiles.q + TO_DOUT + dout_stage(at), tiles, at, true,
                          FIRST);
    products_wait<0>();
    fence_operand(dp);
    return to_gradients<FIRST>(dp, s, kept, ds, delta, rest, p, where);
}

// Processes one query tile: adds its contributions to dk, dv and dq. No WGMMA is in flight before
// or after. `keeps`: do not release the stage to the producer thread; the epilogue still needs it.
FN void take_step(ValueGradient &dv, Gradient &dk, const Ring<STAGES> &stage, Ring<1> &staged,
                  const struct Column &column, const struct Attention &p, i32 group, bool keeps) {
    struct Shared &shared = shared_memory();
    struct Operands tiles = operands(shared_address(shared.k), shared_address(shared.q),
                                     shared_address(shared.ds), group);
#if LSE_IN_WGMMA
    tiles.rows = along_pieces(shared_address(shared.rows) + 16 * first_row(group));
#endif
    const u32 at = stage.at();
    Scores s, dp;
    Rows lse, delta;
    Kept kept;
    Pairs ds;
    QueryGradient dq;
    wait(shared.q_full[at], stage.phase());
#if WITH_PAIR_RING
    const struct Step step = numbered(step_in(shared, at, p), stage.steps);
#else
    const struct Step step = step_in(shared, at, p);
#endif
    if (LSE_EARLY) read_rows(lse, lse_in(shared, at, group));
#if WITH_SHIFTS
    StepShifts shifts;
    if (SHIFTED) {
        const struct Place own = place_of_row(p, step.row);
        const i32 first = first_query(step.word, group) - column.tile * COLUMN_STEP - key_of(group);
        find_shifts(shifts, first, own.head, own.batch, p, LOG2E);
    }
#endif
    begin_scores<STEPS>(s, tiles.k, tiles.q + q_stage(at), tiles, at, false);
    if (EARLY) begin_dp(dp, delta, shared, tiles, stage, group);
#if WITH_SHIFTS
    if (SHIFTED) {
        lay_shifts<true>(shifts_of(group), shifts);
        sync_group(group);
    }
#endif
    if (DROPS) {
        const struct Place own = place_of_row(p, step.row);
        draw_by_key(kept.stay, dropout_of(p),
                    first_query(step.word, group) + (i32)threadIdx.x % 4 * 2,
                    first_key(column.tile, group), own.head, own.batch);
    }
    finish_scores(s, dp, kept, lse, delta, shared, tiles, p, step, stage, column.tile, group);
    drop(dp, kept.stay, kept_scale(p));
    const struct Where where =
        where_of(place_of_row(p, step.row), step, p, make_opaque(column.tile), make_opaque(group));
    const float *const rest = DELTA_EARLY ? nullptr : delta_in(shared, at, group);
    float slope;
    if constexpr (BY_HALVES) {
        wait(shared.dout_full[dout_at(at)], stage.phase_of_dout());
        gradients_of<0>(s, kept, ds, delta, rest, tiles, at, p, where);
        slope = gradients_of<QUERIES / 2>(s, kept, ds, delta, rest, tiles, at, p, where);
    } else {
        slope = to_gradients(dp, s, kept, ds, delta, rest, p, where);
    }
#if SEPARATE_DQ
    sync_both();  // after this, no thread reads lse or delta of this step
    begin_gradient(dv, kept.p, tiles.q_tokens + TO_DOUT + dout_stage(at));
    begin_gradient(dk, ds, tiles.q_tokens + q_stage(at));
    products_wait<1>();
    fence_operand(dv);
    fence_operand(kept.p);
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.dout_free[dout_at(at)]);
    products_wait<0>();
    fence_operand(dk);
    fence_operand(ds);
    (void)slope, (void)dq, (void)staged;
#else
    acquire_ds(group);
    store_pairs(shared_address(shared.ds[at % DS_STAGES]), ds, group);
#if SPLIT_KEYS
    drop_pairs(kept.p, kept.stay);
    begin_gradient(dv, kept.p, tiles.q_tokens + TO_DOUT + dout_stage(at));
#endif
    publish_writes();
    const struct Turn turn = turn_in(shared, at, step);
    sync_both();
#if SPLIT_KEYS
    if (WIDE_SUMS) finish_dv<0>(dv, kept.p, shared, at, keeps);
#endif
    begin_dq(dq, tiles, at, 0);
#if SPLIT_KEYS
    if (!WIDE_SUMS) finish_dv<1>(dv, kept.p, shared, at, keeps);
    begin_gradient(dk, ds, tiles.q_tokens + q_stage(at));
#if ADDS_DIAGONALS
    add_step(shared, p, step, at, column.tile);
#endif
#if ADDS_PAIRS
    add_pair_step(shared, p, step, at, column.tile);
#endif
    products_wait<1>();
#else
    begin_gradient<SLABS_V>(dv, tiles, TO_P + ds_stage(at), TO_DOUT + dout_stage(at), group);
    begin_gradient<SLABS>(dk, tiles, ds_stage(at), q_stage(at), group);
#if ADDS_DIAGONALS
    add_step(shared, p, step, at, column.tile);
#endif
#if ADDS_PAIRS
    add_pair_step(shared, p, step, at, column.tile);
#endif
    products_wait<2>();
#endif
    fence_operand(dq);
    await_dq(shared, turn, group, staged);
    add_dq(dq, slope, shared, p, step, turn, ONE_WARPGROUP ? 0 : group);
#pragma unroll
    for (int share = 1; share < OWN_SHARES; share++) {
        begin_dq(dq, tiles, at, share);
        products_wait<0>();
        fence_operand(dq);
        add_dq(dq, 0.0f, shared, p, step, turn, share);
    }
#if HALF_SHARE
    products_wait<0>();  // before the half needs the registers of ds
    fence_operand(dk);
    fence_operand(ds);
    QueryHalf half;
    begin_dq(half, tiles, at, tiles.k_half);
    products_wait<0>();
    release_ds(group);
    fence_operand(half);
    add_dq<PRODUCT_PIECES>(half, 0.0f, shared, p, step, turn, group);
#endif
    publish_dq(shared, group);
    products_wait<0>();
    fence_operand(dk);
#if SPLIT_KEYS
    fence_operand(ds);
#else
    fence_operand(dv);
    if (threadIdx.x % 128 == 0) arrive(shared.dout_free[dout_at(at)]);
#endif
#endif
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.q_free[at]);
}

FN void compute(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                i32 group) {
    const i32 thread = threadIdx.x % 128;
    Ring<STAGES> stage;
    Ring<1> staged;
    release_ds(group);
#pragma unroll 1
    for (Ring<1> filled;; filled.next()) {
        wait(shared.column_full, filled.phase());
        const struct Column column = column_in(shared.item[filled.steps % ITEMS]);
        if (column.steps < 0) break;
        Gradient dk;
        ValueGradient dv;
        clear(dk);
        clear(dv);
#pragma unroll 1
        for (i32 left = column.steps; left > 0; left--, stage.next())
            take_step(dv, dk, stage, staged, column, p, group, ONE_WARPGROUP && left == 1);
        if (column.steps > 0 && thread == 0) arrive(shared.column_free);
        const u32 last = (stage.steps - 1) % STAGES;
        if (adds_up(column.shared)) add_column(dk, dv, column, p, group);
        else store_column(dk, dv, column, last, shared, p, maps, group);
        // Only after store_column, where all warps meet: until then some warp may still read
        // `column`.
        if (column.steps == 0 && thread == 0) arrive(shared.column_free);
        if (ONE_WARPGROUP && column.steps > 0 && thread == 0)
            arrive(shared.dout_free[dout_at(last)]), arrive(shared.q_free[last]);
    }
#if STAGED
    wait(shared.dq_free[group], staged.phase() ^ 1);
    if (threadIdx.x == 128) shared.dq_turn.sum = -1;
    publish_dq(shared, group);
#elif DETERMINISTIC
    if (threadIdx.x == 128) {  // a step that adds nothing
        shared.turn[stage.at()].sum = -1;
        arrive(shared.q_full[stage.at()]);
    }
    wait(shared.dq_free[group], staged.phase());
    publish_dq(shared, group);
#endif
    if (thread == 0) stores_done<0>();
}

#if WITH_ENTMAX
#include "sm90a/lib/backward_mean.cuh"
#endif

#if DQ_LAUNCH && SEPARATE_DQ
#include "sm90a/lib/logit_tanh.cuh"

#include "sm90a/lib/separate_dq.cuh"

#endif
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p,
                   const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        const i32 warp = uniform(threadIdx.x / 32);
        if (warp == 3) {  // testing for warp 0 instead makes ptxas emit a jump table, and spill
            if (elected()) load_items(shared, p, maps);
        } else if (warp == 1) {
#if STAGED
            if (elected()) add_dq_tiles(shared, p);
#elif DETERMINISTIC
            if (elected()) await_turns(shared, p);
#endif
#if WITH_PAIR_RING && PAIR_RING
        } else if (warp == 0) {
            copy_pairs(p, 0);
#endif
        } else if (warp == 2) {
#if ZEROES
            zero_tiles(shared, p);
#elif DETERMINISTIC
            if (elected()) pass_turns_on(shared);
#endif
        }
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        compute(shared, p, maps, group - 1);
    }
}
