#pragma once
// The columns of a tile that a thread has in a row of an accumulator, two of every eight: bit
// 2 i + e of a row is column 8 i + 2 (lane % 4) + e.
// Needs: bits.cuh. Gives: own_before, QuadColumns.

// How many of a thread's columns lie before `column`, counted from its first one; below 0 where
// `column` is.
FN i32 own_before(i32 column) { return (column >> 3) * 2 + min_i32(column & 7, 2); }
// Of 32 columns those that a thread has, from a vote of the warp's lanes.
FN u32 own_votes(u32 votes) {
    return (votes >> threadIdx.x % 4 * 2 & 0x03030303u) * 0x01041040u >> 24;
}

// What data_rows.cuh and its like ask of a thread's columns.
template <int COLUMNS>
struct QuadColumns {
    static constexpr int COUNT = COLUMNS, ALL = 4 * COUNT, WORDS = (COUNT + 31) / 32;
    static constexpr int ROW_STEP = 8;  // from one of a thread's rows to the next
    static constexpr bool SPREAD = true;  // of eight columns side by side every thread has two
    FN static i32 first() { return threadIdx.x % 4 * 2; }
    FN static i32 place(int i) { return i / 2 * 8 + i % 2; }  // of column i, from the first one on
    FN static i32 before(i32 column) { return own_before(column); }
    // Adds those of columns 32 j on for which the warp's lanes, a column each, have voted.
    FN static void add_votes(u32 (&word)[WORDS], int j, u32 votes) {
        word[j / 4] |= own_votes(votes) << j % 4 * 8;
    }
};
