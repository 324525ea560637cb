#pragma once
// The columns of a tile that a thread holds in a row of an accumulator, two of every eight: bit 2 i
// + e of a row is column 8 i + 2 (lane % 4) + e. Needs: bits.cuh. Gives: own_before, QuadColumns.

// Number of the thread's columns before `column`, counted from the thread's first one; negative if
// `column` is.
FN i32 own_before(i32 column) { return (column >> 3) * 2 + min_i32(column & 7, 2); }
// Picks the thread's columns out of 32, from a ballot of the warp's lanes.
FN u32 own_votes(u32 votes) {
    return (votes >> threadIdx.x % 4 * 2 & 0x03030303u) * 0x01041040u >> 24;
}

// A thread's columns, as data_rows.cuh and similar files need them.
template <int COLUMNS>
struct QuadColumns {
    static constexpr int COUNT = COLUMNS, ALL = 4 * COUNT, WORDS = (COUNT + 31) / 32;
    static constexpr int ROW_STEP = 8;  // distance of a thread's rows
    static constexpr bool SPREAD = true;  // each thread has two of every eight consecutive columns
    FN static i32 first() { return threadIdx.x % 4 * 2; }
    // Offset of column i from the first one
    FN static i32 place(int i) { return i / 2 * 8 + i % 2; }
    FN static i32 before(i32 column) { return own_before(column); }
    // Adds this thread's bits of a ballot over columns 32 j, 32 j + 1, ..., one per lane.
    FN static void add_votes(u32 (&word)[WORDS], int j, u32 votes) {
        word[j / 4] |= own_votes(votes) << j % 4 * 8;
    }
};
