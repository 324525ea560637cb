// Gathers rows: the heads of a query, and listed keys. Hands tiles over in order. Expects BEHIND:
// groups of copies in flight. Needs: gather_copy.cuh, ptx.cuh.

constexpr int PIECES = HEAD_DIM / 8;  // 16-byte pieces in a row of a tile
constexpr int COPIERS = 128;          // threads that copy

#include "common/lib/gathered_items.cuh"

#include "sm90a/lib/ring.cuh"

// ---------------------------------------------------------------- the warpgroup that copies

// Eight threads copy a row, each 16 bytes at a time.
constexpr int ROWS_AT_ONCE = COPIERS / 8, TURNS = TILE_K / ROWS_AT_ONCE;

// The rows of a tile of keys that this thread copies.
struct Rows {
    i32 key[TURNS];
    i32 live;  // existing rows; the others become zeros
};
FN struct Rows rows_of(const i32 *keys, i32 count, i32 tile) {
    const i32 own = tile * TILE_K + threadIdx.x / 8, last = count - 1;
    struct Rows rows;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        rows.key[i] = __ldg(keys + min_i32(own + ROWS_AT_ONCE * i, last));
    rows.live = max_i32(count - own + ROWS_AT_ONCE - 1, 0) / ROWS_AT_ONCE;
    return rows;
}

// Copies every eighth piece of a row. If HEAD_DIM is not a multiple of 64, the last pieces do not
// exist; if rows in memory have only OWN pieces, the others become zeros.
template <int OWN>
FN void copy_row(u32 tile, u32 slab, u32 row, const unsigned char *from, bool live) {
    const u32 own = threadIdx.x % 8;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece += 8)
        if (PIECES % 8 == 0 || piece + 8 <= PIECES || piece + own < PIECES)
            copy_piece(tile + piece / 8 * slab + swizzled(row, own), from + 16 * (piece + own),
                       live && (OWN == PIECES || piece + own < OWN));
}
template <int OWN>
FN void gather(unsigned char *tile, const void *tensor, const i64 (&stride)[3],
               const struct Item &item, const struct Rows &rows) {
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        copy_row<OWN>(shared_address(tile), K_SLAB, threadIdx.x / 8 + ROWS_AT_ONCE * i,
                      row_of(tensor, stride, item.batch, item.kv_head, rows.key[i]),
                      i < rows.live);
}
// Copies the rows of a tile of heads; missing heads become zeros.
template <int OWN>
FN void copy_heads(unsigned char *tile, const void *tensor, const i64 (&stride)[3],
                   const struct Item &item) {
#pragma unroll 4
    for (i32 row = threadIdx.x / 8; row < TILE_Q; row += ROWS_AT_ONCE) {
        const i32 inside = min_i32(row, item.heads - 1);
        copy_row<OWN>(shared_address(tile), Q_SLAB, row,
                      row_of(tensor, stride, item.batch, item.head + inside, item.query),
                      row < item.heads);
    }
}

// Groups of copies in flight, oldest first. WGMMA reads the data only after the copying threads
// have issued a proxy fence, so a group's mbarrier is signalled when BEHIND later groups have been
// started.
static_assert(STAGES >= 2, "the warpgroup that copies would wait for itself");
struct Under {
    u64 *barrier[BEHIND];
    i32 count = 0;
};
FN void settle_first(struct Under &under) {
    publish_writes();
    arrive(*under.barrier[0]);
#pragma unroll
    for (int i = 1; i < BEHIND; i++) under.barrier[i - 1] = under.barrier[i];
    under.count--;
}
// Commits the copies since the last call as a group; the consumers wait on `barrier`.
FN void begun(struct Under &under, u64 &barrier) {
    copies_commit();
    if (under.count == BEHIND) {
        copies_wait<BEHIND>();
        settle_first(under);
    }
#pragma unroll
    for (int i = 0; i < BEHIND; i++)
        if (i == under.count) under.barrier[i] = &barrier;
    under.count++;
}
FN void settle_all(struct Under &under) {
    copies_wait<0>();
#pragma unroll 1
    while (under.count > 0) settle_first(under);
}
