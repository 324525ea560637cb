// Rows that are gathered: a query's heads, and keys by a list; the order in which they are handed
// over. Expects BEHIND: groups of copies under way.
// Needs: gather_copy.cuh, ptx.cuh.

constexpr int PIECES = HEAD_DIM / 8;  // of 16 bytes, in a row of a tile
constexpr int COPIERS = 128;          // threads that copy

#include "common/lib/gathered_items.cuh"

#include "sm90a/lib/ring.cuh"

// ---------------------------------------------------------------- the warpgroup that copies

// Eight threads copy a row, a piece of 16 bytes each at a time.
constexpr int ROWS_AT_ONCE = COPIERS / 8, TURNS = TILE_K / ROWS_AT_ONCE;

// What a thread's copies are of: the rows, of a tile of keys, that are its to copy.
struct Rows {
    i32 key[TURNS];
    i32 live;  // of them; the others become zeros
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

// A piece of a row, one in eight; the last ones are not there where HEAD_DIM is no multiple of 64,
// and zeros where the row in memory has but OWN.
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
// The rows of a tile's heads, zeros where there are fewer.
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

// Groups of copies that are under way, the oldest first. Products read what ordinary writes left
// only after the writing threads' fence, so a barrier is told when BEHIND later groups have begun.
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
// What was copied since is a group of its own; the barrier is of those who wait for it.
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
