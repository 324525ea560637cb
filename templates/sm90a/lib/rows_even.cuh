// Rows policy: a tile row begins at a multiple of TILE_Q. The other policy is rows_documents.cuh.
// Needs: work.cuh, packed_rows.cuh. Gives:
//   RowRange                 first(): the first row; end(p): past the last one that is stored
//   rows_of_item(p, work)    the rows of a work item
//   empty_word(work)         a word of the output of a row without tiles
//   ENDS_INSIDE              rows may end inside a tile, before rows of other items
//   UNUSED_LAST              items without rows precede all those that have rows but no tiles

struct RowRange {
    i32 tile;
    FN i32 first() const { return tile * TILE_Q; }
    FN i32 end(const struct Attention &p) const { return p.n_q; }
};
FN struct RowRange uniform(const struct RowRange &rows) { return {uniform(rows.tile)}; }
FN struct RowRange rows_of_item(const struct Attention &, const struct Work &work) {
    return {work.tile};
}
FN u32 empty_word(const struct Work &) { return 0; }
constexpr bool ENDS_INSIDE = false;
constexpr bool UNUSED_LAST = true;
