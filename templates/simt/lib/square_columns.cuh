// A thread's columns of a tile lie side by side, as do its rows.
// Needs: bits.cuh, constants.cuh.

// What common/lib/data_rows.cuh and its like ask of a thread's columns.
template <int COLUMNS>
struct SquareColumns {
    static constexpr int COUNT = COLUMNS, ALL = SIDE * COUNT, WORDS = 1;
    static constexpr int ROW_STEP = 1;
    static constexpr bool SPREAD = false;  // a thread's columns lie in eight side by side
    FN static i32 first() { return COUNT * thread_across(); }
    FN static i32 place(int i) { return i; }
    FN static i32 before(i32 column) { return min_i32(max_i32(column, 0), COUNT); }
    // Adds those of columns 32 j on for which the warp's lanes, a column each, have voted.
    FN static void add_votes(u32 (&word)[1], int j, u32 votes) {
        if (first() / 32 == j) word[0] |= votes >> first() % 32 & bits_before(COUNT);
    }
};
static_assert(8 % (TILE_K / SIDE) == 0 && 8 % (TILE_Q / SIDE) == 0, "eights have whole threads");
