// Ring of tiles of the table with an entry for each pair, in shared memory and storage precision.
// The producer thread requests tiles, and PAIR_COPIERS further warps copy them. A tile that its
// slot still holds is not copied again, because sequences may share a table. Consumer warps read
// 8 x 8 matrices. Direct loads would fetch a few bytes of each row at a time. Needs: ptx.cuh,
// gather_copy.cuh, pair_rows.cuh, PAIR_SLOTS, PAIR_COPIERS. Gives: PairRing, copies_entries,
// ask_pairs, copy_pairs, each_copied_entry. The includer defines pair_ring.

#include "sm90a/lib/pair_pieces.cuh"

constexpr u32 PAIR_TILE_BYTES = 2 * TILE_Q * TILE_K;

// Position in the ring, with the mbarrier parity.
struct PairPlace {
    i32 at;
    u32 phase;
    FN void next() {
        at = at + 1 == PAIR_SLOTS ? 0 : at + 1;
        phase ^= at == 0;
    }
};
FN struct PairPlace pair_place_of(u32 steps) {
    return {(i32)(steps % PAIR_SLOTS), steps / PAIR_SLOTS % 2};
}

struct alignas(16) PairTile {
    i32 query, key, head, batch;  // first query and key; a negative query: no more tiles
};
struct PairRing {
    unsigned char tile[PAIR_SLOTS][PAIR_TILE_BYTES];
    struct PairTile wanted[PAIR_SLOTS];
    // First entry of the tile in a slot, of each warp that copies
    const unsigned short *held[PAIR_COPIERS][PAIR_SLOTS];
    u64 asked[PAIR_SLOTS], full[PAIR_SLOTS], free[PAIR_SLOTS];
    struct PairPlace next;  // of the next tile to request
};
FN struct PairRing &pair_ring();

FN void initialize(struct PairRing &ring) {
    ring.next = {0, 0};
    for (int i = 0; i < PAIR_SLOTS; i++) {
        for (int j = 0; j < PAIR_COPIERS; j++) ring.held[j][i] = nullptr;
        barrier_init(ring.asked[i], 1);
        barrier_init(ring.full[i], 32 * PAIR_COPIERS);
        barrier_init(ring.free[i], 4 * GROUPS);  // consumer warps
    }
}
FN bool copies_entries(const struct Attention &p) { return p.score_pairs & EIGHTS; }

// The producer thread requests a tile.
FN void ask_pairs(const struct Attention &p, const struct PairTile &tile) {
    if (!copies_entries(p)) return;
    struct PairRing &ring = pair_ring();
    struct PairPlace place = ring.next;
    wait(ring.free[place.at], place.phase ^ 1);
    ring.wanted[place.at] = tile;
    arrive(ring.asked[place.at]);
    place.next();
    ring.next = place;
}

// Arrives once all copies of this thread so far are complete.
FN void copies_arrive(u64 &barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 :: "r"(shared_address(&barrier)) : "memory");
}
// A warp that copies, in turns of eight rows. Entries outside the table become zeros.
FN void copy_pairs(const struct Attention &p, i32 copier) {
    if (!copies_entries(p)) return;
    constexpr int ROWS = 32 / PAIR_PIECES, COPIES = 8 / ROWS;  // all lanes copy ROWS at once
    constexpr int ROWS_PER_COPY = 8 * PAIR_COPIERS;
    static_assert(TILE_Q % ROWS_PER_COPY == 0, "all warps copy as many rows");
    struct PairRing &ring = pair_ring();
    const unsigned short **const tiles_held = ring.held[copier];
    const i32 lane = threadIdx.x % 32, piece = lane % PAIR_PIECES;
    const i32 first = 8 * copier + lane / PAIR_PIECES;
    const i64 down = pair_row_step(p);
    struct PairPlace place = {0, 0};
#pragma unroll 1
    for (;; place.next()) {
        wait(ring.asked[place.at], place.phase);
        const struct PairTile wanted = ring.wanted[place.at];
        if (wanted.query < 0) break;
        const unsigned short *from = (const unsigned short *)pair_table(p)
                                     + pair_head(wanted.head, wanted.batch, p)
                                     + wanted.query * down + wanted.key;
        const bool held = tiles_held[place.at] == from;
        __syncwarp();
        if (lane == 0) tiles_held[place.at] = from;
        if (!held) {
            const u32 tile = shared_address(ring.tile[place.at]);
            const i32 rows = p.n_q - wanted.query, left = p.n_kv - wanted.key;
            u32 to[COPIES];
            const unsigned short *source[COPIES];
#pragma unroll
            for (int j = 0; j < COPIES; j++) {
                to[j] = pair_piece(tile, first + ROWS * j, piece);
                source[j] = from + (first + ROWS * j) * down + 8 * piece;
            }
            if (rows >= TILE_Q && left >= TILE_K) {
#pragma unroll
                for (int i = 0; i < TILE_Q; i += ROWS_PER_COPY)
#pragma unroll
                    for (int j = 0; j < COPIES; j++) {
                        copy_bytes(to[j] + PAIR_PIECES * 16 * i, source[j]);
                        source[j] += ROWS_PER_COPY * down;
                    }
            } else {
                const i32 bytes = 2 * max_i32(min_i32(left - 8 * piece, 8), 0);
#pragma unroll 1
                for (int i = first; i < TILE_Q; i += ROWS_PER_COPY)
#pragma unroll
                    for (int j = 0; j < COPIES; j++) {
                        copy_bytes(to[j], source[j], i + ROWS * j < rows ? bytes : 0);
                        to[j] += PAIR_PIECES * 16 * ROWS_PER_COPY;
                        source[j] += ROWS_PER_COPY * down;
                    }
            }
        }
        copies_arrive(ring.full[place.at]);
    }
}

FN void load_matrices_transposed(u32 &a, u32 &b, u32 &c, u32 &d, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}
// Calls `work` with every element of a thread and its entry.
template <int N, typename Where, typename Work>
FN void each_copied_entry(const Where &where, const Work &work) {
    struct PairRing &ring = pair_ring();
    const struct PairPlace place = where.pairs();
    const u32 tile = shared_address(ring.tile[place.at]);
    wait(ring.full[place.at], place.phase);
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        u32 x[4];
        where.load_pairs(x, tile, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 two = unpack(x[j]);
            work(i + 2 * j, two.x);
            work(i + 2 * j + 1, two.y);
        }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.free[place.at]);
}
