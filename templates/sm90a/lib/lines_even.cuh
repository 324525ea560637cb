// Lines policy of a backward pass: tile rows and tile columns begin at multiples of their size. The
// other policy is lines_documents.cuh. Needs: work.cuh. Gives:
//   QueryRange                 first, and past the last one
//   queries_of(p, at, row)     the queries of a tile row
//   first_query_of(work, row)  the first query of a tile row among the tiles of an item
//   COLUMN_STEP                keys from tile 0 of an item to tile 1
//   column_end(p, work)        past the last key of a tile column
//   shared_of(work)            what `Column::shared` is. Of it: adds_up: items add to the column;
//                              end_of_keys: past its last one; factor_of: of its gradients
//   word_of_step, owner_of_step    what the producer leaves of a step: its word and its owner
//   row_of_step, ROW_STEP      from these: the index of its tile row; queries from index 0 to 1
//   unused(work)               whether no block computes an item
//   ENDS_INSIDE                columns may end inside a tile, before keys of other items

struct QueryRange {
    i32 first, end;
};
FN struct QueryRange queries_of(const struct Attention &p, const struct Place &, i32 row) {
    return {row * TILE_Q, p.n_q};
}
FN float factor_of(const struct QueryRange &, float x) { return x; }
FN i32 first_query_of(const struct Work &, i32 row) { return row * TILE_Q; }
constexpr i32 COLUMN_STEP = TILE_K, ROW_STEP = TILE_Q;
FN i32 column_end(const struct Attention &p, const struct Work &) { return keys_end(p); }

FN i32 shared_of(const struct Work &work) { return work.shared; }
FN bool adds_up(i32 shared) { return shared; }
FN i32 end_of_keys(const struct Attention &p, i32) { return p.n_kv; }
FN float factor_of(i32, float scale) { return scale; }

FN i32 word_of_step(i32 word, i32) { return word; }
FN i32 owner_of_step(const struct Attention &, i32 head, i32) { return head; }
FN i32 row_of_step(const struct Attention &p, i32 owner, i32 word) {
    return owner * p.tile_rows + (word & INDEX);
}
FN bool unused(const struct Work &) { return false; }
constexpr bool ENDS_INSIDE = false;
