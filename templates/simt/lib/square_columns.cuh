// The columns of a thread in a tile are contiguous, as are its rows. Needs: bits.cuh,
// constants.cuh.

// A thread's columns, as common/lib/data_rows.cuh and similar files need them.
template <int COLUMNS>
struct SquareColumns {
    static constexpr int COUNT = COLUMNS, ALL = SIDE * COUNT, WORDS = 1;
    static constexpr int ROW_STEP = 1;
    static constexpr bool SPREAD = false;  // a thread's columns are within eight consecutive ones
    FN static i32 first() { return COUNT * thread_across(); }
    FN static i32 place(int i) { return i; }
    FN static i32 before(i32 column) { return min_i32(max_i32(column, 0), COUNT); }
    // Adds this thread's bits of a ballot over columns 32 j, 32 j + 1, ..., one per lane.
    FN static void add_votes(u32 (&word)[1], int j, u32 votes) {
        if (first() / 32 == j) word[0] |= votes >> first() % 32 & bits_before(COUNT);
    }
};
static_assert(8 % (TILE_K / SIDE) == 0 && 8 % (TILE_Q / SIDE) == 0, "eights have whole threads");
