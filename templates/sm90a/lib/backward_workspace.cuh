// Global memory that carries data between the launches of a backward pass, and where a warpgroup's
// numbers lie in it. Needs: backward_constants.cuh, work.cuh, SPLIT_KEYS. Gives: Workspace,
// Further, column_of.

// Layout, for every tile row, head and sequence: TILE_Q numbers each of lse, delta and control,
// then a tile of dq. lse and delta are in the order in which `Rows` reads them; LSE_IN_WGMMA stores
// a row of bf16 pieces per query instead. In deterministic mode a tile row may have further tiles
// of dq, with TILE_Q control numbers each. They follow the tiles of all rows, head by head. For
// every tile column that several items share: tiles of dk and dv. In deterministic mode, one pair
// of tiles for each of these items.
struct Workspace {
    float *lse;  // times log2(e), or the entmax threshold; infinite past the end and without keys
    float *delta;    // softmax: rowsum(out * dout); entmax: mean of dout . v, weighted by u
    float *control;  // of the tile; see below
    float *dq;
    float *keys;
};
constexpr int ROW_FLOATS = 4;  // floats of lse and delta per row, in either form
// Position of a query of the tile in the order of `Rows`.
FN i32 place_in_rows(i32 query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2;
}

// Control numbers of a tile row. SINK_SUM, SLOPE_SUM: shares of these gradients. The others are
// integers. DONE (first tile): blocks that have finished. TURN (every tile): tile columns that were
// added to dq. ZEROED (first tile of a head): tiles of the head that are zeroed. TAKEN (first
// tile): tiles that zeroing warps have claimed.
enum { SINK_SUM = 0, SLOPE_SUM = 1, DONE = 2, TURN = 4, ZEROED = 5, TAKEN = 6 };
constexpr int KEY_TILE_FLOATS = TILE_K * (HEAD_DIM + HEAD_DIM_V);

FN struct Workspace workspace(const struct Attention &p) {
    const i64 heads = p.batch * p.heads_q, rows = heads * p.tile_rows;
    const i64 sums = DETERMINISTIC ? rows + heads * p.further : rows;
    struct Workspace w;
    w.lse = p.delta;
    w.delta = w.lse + rows * TILE_Q;
    w.control = w.lse + ROW_FLOATS * rows * TILE_Q;
    w.dq = w.control + sums * TILE_Q;
    // With SEPARATE_DQ there are no tiles of dq.
    w.keys = SEPARATE_DQ ? w.control : w.dq + sums * TILE_FLOATS;
    return w;
}

// Control numbers of a tile row, or of a further tile of dq.
FN i32 *control_of(const struct Attention &p, i64 row, int which) {
    return (i32 *)(workspace(p).control + row * TILE_Q) + which;
}

// The further tiles of dq of one tile row of a head.
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
// Number of tile rows that the prepare launch zeroes: those of the first heads, or all if few
// blocks run.
FN i64 zeroed_before(const struct Attention &p) {
    constexpr i32 FEW_ITEMS = 256;
    const i64 heads = p.batch * p.heads_q;
    const i64 first = (i64)max_i32(1, GROUP_TOKENS / p.n_q) * (p.heads_q / p.heads_kv);
    return (p.items < FEW_ITEMS || first > heads ? heads : first) * p.tile_rows;
}
#endif

// Scale of the scores, times log2(e); with entmax, times alpha - 1 instead.
FN float score_unit(const struct Attention &p) {
    const float whole = WITH_ENTMAX ? p.alpha_minus_1 : LOG2E;
    const float unit = left_scale(p) * whole;
    return fabsf(unit) < 1e-30f ? 1e-30f : unit;  // zero must not turn infinity into NaN
}

// Release/acquire between blocks: a thread publishes its writes by incrementing a counter, and
// others wait for a value of it.
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

// The thresholds precede lse: first as computed, then for every tile row in the order of `Rows`.
FN i64 padded_rows(const struct Attention &p) {
    return (i64)p.batch * p.heads_q * p.tile_rows * TILE_Q;
}
FN float *ends_of(const struct Attention &p) { return p.delta - padded_rows(p); }
FN float *lows_of(const struct Attention &p) { return ends_of(p) - padded_rows(p); }

// If two warpgroups divide `slabs` slabs of columns: how many each has whole. If the number is odd,
// they have half of the columns of the last slab each.
FN constexpr int whole(int slabs) { return slabs / 2; }
constexpr int HALF_COLUMNS = (HEAD_DIM - 64 * (SLABS - 1)) / 2;
template <int COUNT>
FN int divided_column(i32 group, int piece) {
    constexpr int WHOLE = whole(COUNT);
    return piece < 8 * WHOLE ? 64 * WHOLE * group + 8 * piece
                             : 128 * WHOLE + HALF_COLUMNS * group + 8 * (piece - 8 * WHOLE);
}
// A warpgroup's columns of dk, dv and dq are divided into pieces of eight.
#if SPLIT_KEYS
constexpr int PIECES = HEAD_DIM / 8, PIECES_OF_DV = HEAD_DIM_V / 8;  // of dk (or dq), and of dv
template <int COUNT = SLABS>
FN int column_of(i32, int piece) { return 8 * piece; }
FN int key_of(i32 group) { return 64 * group; }
// A share of dq has 64 rows, or 64 columns, or is the whole tile. In transposed tiles, pieces are
// of queries.
constexpr bool SHARE_COLUMNS = TILE_Q < 128;
#if HALF_SHARE
FN int dq_pieces(i32) { return DQ_PIECES; }
#else
FN int dq_pieces(i32 share) { return share && HEAD_DIM % 64 ? HEAD_DIM % 64 / 8 : DQ_PIECES; }
#endif
FN int dq_column(i32 share, int piece) {
    return SHARE_COLUMNS && SHARES > 1 ? divided_column<SLABS>(share, piece) : 8 * piece;
}
FN int dq_query(i32 share) { return SHARE_COLUMNS ? 0 : 64 * share; }
#else
constexpr int PIECES = HEAD_DIM / 16, PIECES_OF_DV = HEAD_DIM_V / 16;
template <int COUNT = SLABS>
FN int column_of(i32 group, int piece) { return divided_column<COUNT>(group, piece); }
FN int key_of(i32) { return 0; }
FN int dq_pieces(i32) { return DQ_PIECES; }
FN int dq_column(i32 share, int piece) { return column_of(share, piece); }
FN int dq_query(i32) { return 0; }
#endif

// The head and sequence that a tile row's index belongs to.
FN struct Place place_of_row(const struct Attention &p, i32 row) {
    return place_of(row / p.tile_rows, p.heads_q);
}
