// Attention forward for Hopper (sm_90a). Arguments: maskc/core/abi.py. Grids and launches:
// maskc/core/bundle.py. Macros that end in _POLICY come from the config header.
//
// Warps. Warpgroup 0 gives its registers to the others. One thread of its first warp is the
// producer (copy_tiles): it takes work items and loads q, k and v by TMA. Its other warps idle,
// except with E4M3_POOLS (convert_tiles), PAIR_RING (copy_pairs) and WITH_PAGES (copy_share).
// Warpgroups 1 to GROUPS are the consumers (compute): 64 queries each, all with the same k and v.
//
// A step of a consumer, for tile j of its row:
//   1. issue s = q k[j]^T, then o += p v[j - 1], where p comes from the previous step
//   2. wait for s; release k[j]
//   3. mask, logits, row maxima, exponentials, while p v is still running
//   4. wait for p v; release v[j - 1]; rescale o if a maximum rose; p = the exponentials
// The last tile's p v has no next step: it is issued after the loop or, in a persistent block, in
// the first step of the next row, which also stores the old row.
//
// mbarriers. A `full` one completes when the producer has arrived and all bytes have come. A `free`
// one takes an arrival from each consumer warpgroup. A Ring has the slot and the phase's parity;
// the producer waits for the other parity, so that its first waits pass.
//   started         first_word is written
//   q_full, q_free  a row's q, and `row`: whose it is. q_free: out, which is staged in the place of
//                   q, has left it; with STORE_DIRECT: no product reads q again
//   k_full, k_free  a tile of k, and `next`: the word of the tile behind it
//   v_full, v_free  a tile of v
// With E4M3_POOLS the producer fills pool_k and pool_v, which have barriers of their own, and warps
// that convert fill k and v. Entmax has other loops over the same barriers: entmax_passes.cuh.
//
// Named barriers. 1 to GROUPS: the scheduler barrier, by which consumers take turns to issue
// products. 8 + group: the threads of one consumer warpgroup.

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#if WITH_PAIR_ROWS
#include "sm90a/lib/pair_rows.cuh"

#endif
#if FORMULA_FAR
#define NEAR_BY_ROWS !WITH_ENTMAX
#endif
#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/constants.cuh"

#include TOKENS_POLICY

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/tokens.cuh"

#include "sm90a/lib/wgmma.cuh"

#include "sm90a/lib/work.cuh"

#include "common/lib/keep.cuh"

#include "sm90a/lib/softmax.cuh"

#include "sm90a/lib/packed_rows.cuh"

#include ROWS_POLICY

#include "sm90a/lib/mask_policy.cuh"

#if WITH_THRESHOLDS
#include "common/lib/thresholds.cuh"

#include "sm90a/lib/always_kept.cuh"

#include "sm90a/lib/filter_rows.cuh"

#endif
#if WITH_PAIR_RING && PAIR_RING
#include "sm90a/lib/gather_copy.cuh"

constexpr int PAIR_COPIERS = 2;
#include "sm90a/lib/pair_ring.cuh"

#endif
// The tile row that a warpgroup works on.
struct alignas(16) Row {
    struct RowRange rows;  // of q and out
    i32 head, batch;
    i32 part;   // 1 + index of the part if the row is split along the keys, else 0
    i32 merge;  // with pack_gqa: index of the row among the split rows; read in merge_packed.cuh
#if WITH_PAIR_RING && PAIR_RING
    struct PairPlace pairs;  // of the current tile's entries; in registers only
    u32 home;                // where a lane finds its first matrix in a tile of entries
#endif
};

// Shared memory of a block. maskc/plan/families/sm90a.py plans its size.
struct Shared {
    unsigned char q[Q_TILES][Q_BYTES];  // the output is staged here in the epilogue
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][V_STAGE];
#if WITH_PAIR_RING && PAIR_RING
    struct PairRing pairs;
#endif
#if E4M3_POOLS
    unsigned char pool_k[STAGES][K_BYTES_IN_POOL];
    unsigned char pool_v[STAGES][V_BYTES_IN_POOL];
#endif
#if LONG_SUMS
    float4 sums[GROUPS][HEAD_DIM_V / 8][128];
    // ROWS_SHARED, of each consumer thread: factors of its sums, the tops and sums of the row that
    // it stores next, and the columns that its rows see.
    float2 sum_factors[GROUPS * 128];
    float4 ended[GROUPS * 128];
    struct Visible seen[GROUPS * 128];
#endif
#if LIST_BYTES && WITH_ENTMAX
    unsigned char lists[LIST_BYTES];  // the lists begin in v
#endif
    u64 q_full[Q_TILES], q_free[Q_TILES];
    u64 k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
#if E4M3_POOLS
    u64 pool_k_full[STAGES], pool_k_free[STAGES], pool_v_full[STAGES], pool_v_free[STAGES];
    i32 pool_next[STAGES];
#endif
    u64 started;              // the producer has written first_word
    i32 first_word;           // tile word (see work.cuh) of the item's first tile
    i32 next[STAGES];         // word of the tile that follows the one in this stage
    struct Row row[Q_TILES];  // the row that this stage's q belongs to
#if PACK_GQA
    i32 stored[GROUPS];       // per warpgroup: parts of the row stored before this one
#endif
#if WITH_ENTMAX
    u64 decided;                // all consumer warps have written `wishes`
    i32 wishes[2][4 * GROUPS];  // requests: per consumer warp, the pass that it needs next
#endif
};

#include "common/lib/memory.cuh"

#include "sm90a/lib/ring.cuh"

#if WITH_PAIR_RING && PAIR_RING
FN struct PairRing &pair_ring() { return shared_memory().pairs; }

#endif
FN void initialize(struct Shared &shared) {
    barrier_init(shared.started, 1);
#if WITH_PAIR_RING && PAIR_RING
    initialize(shared.pairs);
#endif
#if WITH_ENTMAX
    barrier_init(shared.decided, 4 * GROUPS + 1);
#endif
    for (int i = 0; i < Q_TILES; i++) {
        barrier_init(shared.q_full[i], 1);
        barrier_init(shared.q_free[i], GROUPS);
    }
    for (int i = 0; i < STAGES; i++) {
#if E4M3_POOLS
        barrier_init(shared.pool_k_full[i], 1);
        barrier_init(shared.pool_v_full[i], 1);
        barrier_init(shared.pool_k_free[i], CONVERTING_WARPS);
        barrier_init(shared.pool_v_free[i], CONVERTING_WARPS);
        barrier_init(shared.k_full[i], CONVERTING_WARPS);
        barrier_init(shared.v_full[i], CONVERTING_WARPS);
#else
        barrier_init(shared.k_full[i], 1);
        barrier_init(shared.v_full[i], 1);
#endif
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
    }
    barriers_ready();
}

// ---------------------------------------------------------------- the producer thread

#include "sm90a/lib/items.cuh"

#include KEYS_POLICY

#if WITH_FP8
#include "sm90a/lib/values_bytes.cuh"
#else
#include "sm90a/lib/values_halves.cuh"
#endif

#include "sm90a/lib/sums.cuh"

#if E4M3_POOLS
#include "sm90a/lib/convert_tiles.cuh"

#endif
#include "sm90a/lib/forward_load.cuh"

#if WITH_PAGES
#include "sm90a/lib/share_load.cuh"

#endif
// ---------------------------------------------------------------- the consumer warpgroups

FN struct Row row_in(const struct Shared &shared, i32 place) {
    struct Row row = shared.row[place];
    row.rows = uniform(row.rows), row.head = uniform(row.head), row.batch = uniform(row.batch);
    return row;
}
// The first query of the thread. A thread holds two rows of an accumulator, 8 queries apart.
FN i32 query_of(const struct Row &row, i32 group) {
    const i32 thread = threadIdx.x % 128;
    return row.rows.first() + 64 * group + thread / 32 * 16 + thread % 32 / 4;
}

#if PACK_GQA
#include "sm90a/lib/where_packed.cuh"
#else
// Maps a thread's score elements to pairs; see logit.cuh.
struct Where {
    struct Row row;
    i32 query_place, key_place;  // at the first element
    struct HeadLogit own;  // constants of this row's head
    struct Steps steps;
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const {
        return fabsf(steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, row.batch, mask_row(p, query_at(query_place + i / 2 % 2 * 8)));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, row.batch, key_at(key_place + i / 4 * 8 + i % 2));
    }
    FN float q_minus_k(const struct Attention &p, int i) const {
        if (GRID_TILES) return (float)(query(p, i) - key(p, i));
        return steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2);
    }
    FN i32 head(int) const { return row.head; }
    FN i32 batch() const { return row.batch; }
#if WITH_PAIR_ROWS
    FN bool all_columns_inside(const struct Attention &p) const {
        return key_place - (i32)threadIdx.x % 4 * 2 + TILE_K <= p.n_kv;
    }
#if WITH_PAIR_RING && PAIR_RING
    FN struct PairPlace pairs() const { return row.pairs; }
    // The entries of elements i to i + 7.
    FN void load_pairs(u32 (&x)[4], u32 tile, int i) const {
        load_matrices(x[0], x[1], x[2], x[3], tile + (row.home ^ (u32)i * 4));
    }
#endif
    template <typename Kind>
    FN auto pair_rows(const struct Attention &p) const {
        return query_rows<Kind>(p, query_place, key_place, row.head, row.batch);
    }
#endif
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    const i32 key = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
    return {row, query, key, head_logit_of(p, row.head), steps_from(p, row.batch, query, key)};
}
#endif

#if WITH_PAIR_TILES
#if PAIR_TILES
#include "sm90a/lib/gather_copy.cuh"

#include "sm90a/lib/pair_tiles.cuh"

#endif
// Whether a tile follows that is of the same row.
FN bool follows(i32 next) { return !(uniform(next) & END) && !(PERSISTENT && next & FIRST); }
// Starts the copy of the entries that a tile reads, if they are copied.
FN void lay_pairs(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
#if PAIR_TILES
    lay_entries(p, query - (i32)threadIdx.x % 32 / 4, (word & INDEX) * KEY_STEP, row.head,
                row.batch);
#endif
}

#endif
#include "sm90a/lib/look.cuh"

#include "sm90a/lib/finish.cuh"

#include "sm90a/lib/query.cuh"

#if WITH_SHIFTS
#include "sm90a/lib/shifts.cuh"

// SHIFTED: the distance term of the score formula for a warpgroup's tile, in the unit of scores.
typedef struct Shifts<64, TILE_K> TileShifts;
FN float *shifts_in(i32 stage, i32 group) {
    __shared__ float all[STAGES * GROUPS][TileShifts::COUNT];
    return all[stage * GROUPS + group];
}
// Evaluates the distance term on the tile's diagonals and writes it to shared memory.
FN void lay_tile(const struct Attention &p, const struct Row &row, i32 word, i32 stage, i32 group) {
    if (!SHIFTED) return;
    const float unit = flips(p) ? -unit_of(p) : unit_of(p);
    const i32 first = row.rows.first() + 64 * group - (word & INDEX) * KEY_STEP;
    TileShifts shifts;
    find_shifts(shifts, first, row.head, row.batch, p, LOG2E / unit);
    lay_shifts<false>(shifts_in(stage, group), shifts);
    sync_threads(8 + group, 128);
}
// Adds the distance term to the scores.
FN void add_shifts(Scores &s, i32 stage, i32 group) {
    if (!SHIFTED) return;
    const i32 thread = threadIdx.x % 128;
    const float *const own = shifts_in(stage, group) + TileShifts::ORIGIN + thread / 32 * 16
                             + thread % 32 / 4 - thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] += own[i / 2 % 2 * 8 - i / 4 * 8 - i % 2];
}

#endif
// Issues o += p v.
FN void begin_output(Output &o, Weights &weights, u64 v) {
    fence_operand(weights);
    fence_operand(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < PV_STEPS; i++)
        multiply_pv(o, weights + 4 * i, v + values_step(i), true);
    products_commit();
}

#include "sm90a/lib/forward_store.cuh"

// Draws the dropout bits of a thread's pairs of a tile.
FN void draw_tile(struct Staying<TILE_K / 2> &stay, const struct Dropout &d, const struct Row &row,
                  i32 query, i32 word) {
    const i32 key = (word & INDEX) * TILE_K + threadIdx.x % 4 * 2;
    draw_by_query(stay, d, query, key, row.head, row.batch);
}

// Scheduler barrier between the consumer warpgroups (named barriers 1 .. GROUPS): they issue WGMMAs
// in turn, so that the softmax of one overlaps the WGMMAs of the next. With a single warpgroup per
// block, the other blocks of the SM provide the overlap.
FN void scheduler_barrier_sync(i32 group) {
    if (GROUPS > 1) sync_threads(1 + group, 256);
}
FN void scheduler_barrier_arrive(i32 group) {
    if (GROUPS > 1) arrive_threads(1 + (group + 1 == GROUPS ? 0 : group + 1), 256);
}

// Whether the next row's q may take the place of this one, as no product reads it again.
FN bool frees_q(i32 next) { return STORE_DIRECT && next & (FIRST | END); }

// The loop of a consumer warpgroup over the tiles of its work items.
FN void compute(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                i32 group) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    const u64 v_tiles = values_operand(shared_address(shared.v[0]));
    struct Factors factors = factors_of(p);
    LongSum long_sum;
    Ring<STAGES> stage;
    Ring<Q_TILES> q_place;
    struct Query q;
    Scores s;
    Output o;
    Weights weights;
    struct Softmax softmax;
    start(softmax);
    clear(o);
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);

    wait(shared.started, 0);
    i32 word = uniform(shared.first_word);
    if (word & END) return;
    wait(shared.k_full[0], 0);
    i32 next = shared.next[0];
    wait(shared.q_full[0], 0);
    struct Row row = row_in(shared, 0);
    begin_row(factors, p, row);
    begin_row(long_sum);
    i32 query = query_of(row, group);
    take_q(q, shared, 0, group);
#if WITH_PAIR_TILES
    lay_pairs(p, row, query, word);
#endif
    struct MaskRow kept;  // what the mask policy keeps between tiles
    // The columns that the thread's rows see. Set later, unless the mask policy works early.
    struct Visible seen = look_early(p, row, query, word, kept);
    begin_scores(s, q, k_tiles);
#if WITH_SHIFTS
    lay_tile(p, row, word, 0, group);
#endif
    const struct Dropout dropout = dropout_of(p);
    struct Staying<TILE_K / 2> stay;  // pairs that dropout keeps
    draw_tile(stay, dropout, row, query, word);
    products_wait<0>();
    fence_operand(s);
    if (leader) arrive(shared.k_free[0]);
    if (leader && frees_q(next)) arrive(shared.q_free[0]);
    multiply_scores(s, factors);
#if WITH_FP8
    add_distances(s, factors, where_of(p, row, query, word));
#endif
#if WITH_SHIFTS
    add_shifts(s, 0, group);
#endif
#if WITH_PAIR_RING && PAIR_RING
    struct PairPlace pairs = {0, 0};
    const u32 lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 - 64;
    u32 home = pair_piece(0, first_row + lane % 16, lane / 16);
    asm volatile("" : "+r"(home));  // keeps it in a register
    row.pairs = pairs;
    row.home = home;
#endif
    finish_scores(s, p, row, query, word, kept, seen);
#if WITH_PAIR_TILES
    if (follows(next)) lay_pairs(p, row, query, next);
#endif
    raise_tops(s, factors.unit, factors.margin, softmax);
    exponentials(s, 0, factors.unit, softmax);
    exponentials(s, 1, factors.unit, softmax);
    drop(s, stay);
    to_weights(weights, s);
    Ring<STAGES> last = stage;  // stage of the previous tile, whose p v the next step issues
    stage.next();
    // Operand descriptors of the next step. Computed early, so that the integer work overlaps the
    // exponentials.
    u64 k_tile = k_tiles + stage.at * (K_BYTES >> 4), v_tile = v_tiles;

    bool storing = false;  // the previous row's output is still being stored from the other q slot
#pragma unroll 1
    while (true) {
        if (PERSISTENT && !STORE_DIRECT && storing) {
            if (leader) {
                stores_read<0>();
                arrive(shared.q_free[1 - q_place.at]);
            }
            storing = false;
        }
        word = uniform(next);
        if (word & END) break;
        wait(shared.k_full[stage.at], stage.phase);
        next = shared.next[stage.at];
        // On a new row, issue its first WGMMA before the last one of the previous row has finished.
        const bool first = PERSISTENT && word & FIRST;
#if LONG_SUMS
        if (ROWS_SHARED && first)
            shared_softmax() = {softmax.top[0], softmax.top[1], softmax.sum[0], softmax.sum[1]};
        struct Row old = row;
        float old_top[2] = {softmax.top[0], softmax.top[1]};
#else
        const struct Row old = row;
        const float old_top[2] = {softmax.top[0], softmax.top[1]};
#endif
        float old_sum[2] = {softmax.sum[0], softmax.sum[1]};
        const u32 old_tile = shared_address(shared.q[q_place.at]);
#if LONG_SUMS
        struct Factors old_factors = factors;
#else
        const struct Factors old_factors = factors;
#endif
        if (first) {
            q_place.next();
            wait(shared.q_full[q_place.at], q_place.phase);
            row = row_in(shared, q_place.at);
            begin_row(factors, p, row);
            query = query_of(row, group);
            take_q(q, shared, q_place.at, group);
            start(softmax);
            begin_row(kept);
#if WITH_PAIR_TILES
            lay_pairs(p, row, query, word);
#endif
        }
        seen = look_early(p, row, query, word, kept);
        if (HEAD_DIM > 128) q.operand = q_operand(shared_memory(), q_place.at, group);
        scheduler_barrier_sync(group);
        begin_scores(s, q, k_tile);
        wait(shared.v_full[last.at], last.phase);
        begin_output(o, weights, v_tile);
        scheduler_barrier_arrive(group);
#if WITH_SHIFTS
        lay_tile(p, row, word, stage.at, group);
#endif
        draw_tile(stay, dropout, row, query, word);
        products_wait<1>();
        fence_operand(s);
        if (leader) arrive(shared.k_free[stage.at]);
        if (leader && frees_q(next)) arrive(shared.q_free[0]);
        if (PV_WAIT == 0) {
            products_wait<0>();
            fence_operand(weights);
        }
        multiply_scores(s, factors);
#if WITH_FP8
        add_distances(s, factors, where_of(p, row, query, word));
#endif
#if WITH_SHIFTS
        add_shifts(s, stage.at, group);
#endif
#if WITH_PAIR_RING && PAIR_RING
        pairs.next();
        row.pairs = pairs;
        row.home = home;
#endif
        finish_scores(s, p, row, query, word, kept, seen);
#if WITH_PAIR_TILES
        if (follows(next)) lay_pairs(p, row, query, next);
#endif
#if WITH_PAIR_RING
        const bool weighed = SUMS_DECIDE && weigh(weights, s, factors.unit, softmax);
        const bool raised = !weighed && raise_tops(s, factors.unit, factors.margin, softmax);
#else
        const bool raised = raise_tops(s, factors.unit, factors.margin, softmax);
#endif
        if (PV_WAIT > 1) {
            exponentials(s, 0, factors.unit, softmax);
            fence_operand(s);
        }
        // The wait for p v is duplicated in the branches below. With a single wait, ptxas hoists it
        // above the row maxima and exponentials that should overlap the WGMMA.
        if (first) {
            products_wait<0>();
            fence_operand(o);
            if (PV_WAIT) fence_operand(weights);
            if (leader) arrive(shared.v_free[last.at]);
            collect(o, long_sum, group);  // FP8: adds the fp32 sums, see sums.cuh
            begin_row(long_sum);
#if LONG_SUMS
            if (ROWS_SHARED) {
                old = row_in(shared, 1 - q_place.at);
                const float4 ended = shared_softmax();
                old_top[0] = ended.x, old_top[1] = ended.y;
                old_sum[0] = ended.z, old_sum[1] = ended.w;
                begin_row(old_factors, p, old);
                group = make_opaque(group);  // so that the loop keeps no addresses for the epilogue
            }
#endif
            lower(o, old_sum, old_factors);  // FP8: undoes the scaling of the weights
            store(o, old_top, old_sum, old_factors.unit, old, p, maps, old_tile, group);
            storing = true;
            clear(o);
        } else if (raised) {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // raised" ::: "memory");
            fence_operand(o);
            if (PV_WAIT) fence_operand(weights);
            if (leader) arrive(shared.v_free[last.at]);
            rescale(o, softmax);
            rescale(long_sum, softmax);
        } else {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // as before" ::: "memory");
            fence_operand(o);
            if (PV_WAIT) fence_operand(weights);
            if (leader) arrive(shared.v_free[last.at]);
        }
        if (!first) tile_added(o, long_sum, group);
        last = stage;
        stage.next();
        k_tile = k_tiles + stage.at * (K_BYTES >> 4);
        v_tile = v_tiles + last.at * (V_STAGE >> 4);
#if WITH_PAIR_RING
        if (weighed) continue;
#endif
        if (PV_WAIT < 2) exponentials(s, 0, factors.unit, softmax);
        exponentials(s, 1, factors.unit, softmax);
        drop(s, stay);
        to_weights(weights, s);
    }
    wait(shared.v_full[last.at], last.phase);
    begin_output(o, weights, v_tile);
    products_wait<0>();
    fence_operand(o);
    const u32 tile = shared_address(shared.q[q_place.at]);
    collect(o, long_sum, group);
#if LONG_SUMS
    if (ROWS_SHARED) begin_row(factors, p, row);  // the loop then needs no scale of v
#endif
    lower(o, softmax.sum, factors);
    store(o, softmax.top, softmax.sum, factors.unit, row, p, maps, tile, group);
    if (leader) stores_done<0>();
}

#if LIST_BYTES && WITH_ENTMAX
#include "sm90a/lib/entmax.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p,
                  const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
#if WITH_ENTMAX
        if (threadIdx.x / 32 == 0 && elected()) copy_passes(shared, p, maps);
#else
#if E4M3_POOLS
        if (threadIdx.x >= 32) convert_tiles(shared);
        else if (elected()) copy_tiles(pool_stages(shared), p, maps);
#else
        if (threadIdx.x / 32 == 0 && elected()) copy_tiles(shared, p, maps);
#if WITH_PAIR_RING && PAIR_RING
        const i32 copier = uniform(threadIdx.x / 32) - 1;
        if (0 <= copier && copier < PAIR_COPIERS) copy_pairs(p, copier);
#endif
#if WITH_PAGES
        const i32 warp = threadIdx.x / 32;
        if (warp && warp < COPIERS && elected()) copy_share(shared, p, maps);
#endif
#endif
#endif
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
#if WITH_ENTMAX
        compute_passes(shared, p, maps, group - 1);
#else
        compute(shared, p, maps, group - 1);
#endif
        store_empty(p);
    }
}
