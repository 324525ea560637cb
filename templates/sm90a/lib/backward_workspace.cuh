// Memory between the launches of a backward pass, and where a warpgroup's numbers belong.
// Needs: backward_constants.cuh, work.cuh, SPLIT_KEYS. Gives: Workspace, Further, column_of.

// For every tile row, head and sequence: TILE_Q numbers of each of the first three, the first two
// as `Rows` reads them, or instead of these two a row of pieces for every query, then a tile of dq.
// In deterministic mode a tile row may have further tiles of dq, with TILE_Q numbers of control
// each: they lie behind those of all rows, head by head.
// For every tile column that several items add to, or in deterministic mode for each of these
// items: tiles of dk and dv.
struct Workspace {
    float *lse;      // times log2(e), or the level; infinite past the end and where there is no key
    float *delta;    // mean of dout . v, by u: rowsum(out * dout) with softmax
    float *control;  // of the tile; see below
    float *dq;
    float *keys;
};
constexpr int ROW_FLOATS = 4;  // of lse and delta, in either form
// Where `Rows` looks for the number of a query of the tile.
FN i32 place_in_rows(i32 query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2;
}

// In the control numbers of a tile row: its shares; then, integers, of the first tile how many
// blocks are through, and of all tiles how many tile columns added to dq; of a head's first tile
// how many of the head's have zeros to add to; of the first tile how many were taken up.
enum { SINK_SUM = 0, SLOPE_SUM = 1, DONE = 2, TURN = 4, ZEROED = 5, TAKEN = 6 };
constexpr int KEY_TILE_FLOATS = 2 * TILE_K * HEAD_DIM;

FN struct Workspace workspace(const struct Attention &p) {
    const i64 heads = p.batch * p.heads_q, rows = heads * p.tile_rows;
    const i64 sums = DETERMINISTIC ? rows + heads * p.further : rows;
    struct Workspace w;
    w.lse = p.delta;
    w.delta = w.lse + rows * TILE_Q;
    w.control = w.lse + ROW_FLOATS * rows * TILE_Q;
    w.dq = w.control + sums * TILE_Q;
    w.keys = APART ? w.control : w.dq + sums * TILE_FLOATS;  // then there are no others
    return w;
}

// Of a tile row, or of another tile of dq.
FN i32 *control_of(const struct Attention &p, i64 row, int which) {
    return (i32 *)(workspace(p).control + row * TILE_Q) + which;
}

// The further tiles of dq that a tile row of a head has.
struct Further {
    i32 first, count;
};
FN struct Further further_of(const struct Attention &p, i32 head, i32 row) {
    if (!TILE_LISTS || !p.further) return {0, 0};
    const struct Place at = place_of(head, p.heads_q);
    const i64 list = (i64)at.batch * p.list_batch + (p.head_variant ? p.head_variant[at.head] : 0);
    const i32 *const before = p.row_sums + list * (p.tile_rows + 1) + row;
    const i32 first = __ldg(before), rows = p.batch * p.heads_q * p.tile_rows;
    return {rows + head * p.further + first, __ldg(before + 1) - first};
}
#if ZEROES
// Tile rows whose zeros come before the main launch: those of the heads that begin, or where only
// few blocks run all.
FN i64 zeroed_before(const struct Attention &p) {
    constexpr i32 FEW_ITEMS = 256;
    const i64 heads = p.batch * p.heads_q;
    const i64 first = (i64)max_i32(1, GROUP_TOKENS / p.n_q) * (p.heads_q / p.heads_kv);
    return (p.items < FEW_ITEMS || first > heads ? heads : first) * p.tile_rows;
}
#endif

// The unit of scores, in powers of two; with entmax, times alpha - 1.
FN float score_unit(const struct Attention &p) {
    const float whole = WITH_ENTMAX ? p.alpha_minus_1 : LOG2E;
    const float unit = left_scale(p) * whole;
    return fabsf(unit) < 1e-30f ? 1e-30f : unit;  // zero must not turn infinity into NaN
}

// One thread tells others what it wrote by adding to a number; they wait until it is so much.
FN void tell(i32 *number) {
    asm volatile("fence.proxy.async.global;\n"
                 "red.release.gpu.global.add.s32 [%0], 1;" :: "l"(number) : "memory");
}
FN void wait_until(const i32 *number, i32 is) {
    i32 now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
    while (now != is);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Thresholds come before them: as they were found, then for every tile row as `Rows` reads them.
FN i64 padded_rows(const struct Attention &p) {
    return (i64)p.batch * p.heads_q * p.tile_rows * TILE_Q;
}
FN float *ends_of(const struct Attention &p) { return p.delta - padded_rows(p); }
FN float *lows_of(const struct Attention &p) { return ends_of(p) - padded_rows(p); }

// A warpgroup's columns of dk, dv and dq come in pieces of eight.
#if SPLIT_KEYS
constexpr int PIECES = HEAD_DIM / 8;  // of dk and dv
FN int column_of(i32, int piece) { return 8 * piece; }
FN int key_of(i32 group) { return 64 * group; }
// A share of dq has 64 rows or 64 columns, or is all. Pieces of what is transposed are of queries.
constexpr bool SHARE_COLUMNS = TILE_Q < 128;
FN int dq_pieces(i32 share) { return share && HEAD_DIM % 64 ? HEAD_DIM % 64 / 8 : DQ_PIECES; }
FN int dq_column(i32 share, int piece) { return (SHARE_COLUMNS ? 64 * share : 0) + 8 * piece; }
FN int dq_query(i32 share) { return SHARE_COLUMNS ? 0 : 64 * share; }
#else
constexpr int PIECES = HEAD_DIM / 16;
constexpr int WHOLE = SLABS / 2;  // slabs; the one in the middle, if any, is divided
FN int column_of(i32 group, int piece) {
    return piece < 8 * WHOLE ? 64 * (SLABS - WHOLE) * group + 8 * piece
                             : 64 * WHOLE + 32 * group + 8 * (piece - 8 * WHOLE);
}
FN int key_of(i32) { return 0; }
FN int dq_pieces(i32) { return DQ_PIECES; }
FN int dq_column(i32 share, int piece) { return column_of(share, piece); }
FN int dq_query(i32) { return 0; }
#endif

// Whose row a tile row's number stands for.
FN struct Place place_of_row(const struct Attention &p, i32 row) {
    return place_of(row / p.tile_rows, p.heads_q);
}
