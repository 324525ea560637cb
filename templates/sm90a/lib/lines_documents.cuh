// Lines policy of a backward pass: tile rows and tile columns begin with documents, and end with
// them. Lists from lengths give them (common/lib/lists_of_lengths.cuh): `tile` of an item is its
// first key, `full_last` past its last one, `full_first` what the first query of a tile row is more
// than TILE_Q times its number. p.row_ptr has the first query of each tile row, complemented if
// lengths are wrong. See lines_even.cuh.

FN float not_a_number() { return __int_as_float(0x7fffffff); }

struct QueryRange {
    i32 first, end;
    bool wrong;
};
FN struct QueryRange queries_of(const struct Attention &p, const struct Place &at, i32 row) {
    const i32 *const begins =
        p.row_ptr + (i64)at.batch * p.list_batch * (p.tile_rows + 1) + row;
    const i32 first = __ldg(begins), end = __ldg(begins + 1);
    if (first < 0) return {~first, ~end, true};
    return {first, end, false};
}
FN float factor_of(const struct QueryRange &queries, float x) {
    return queries.wrong ? not_a_number() : x;
}
FN i32 first_query_of(const struct Work &work, i32 row) { return row * TILE_Q + work.full_first; }
constexpr i32 COLUMN_STEP = 1, ROW_STEP = 1;
FN i32 column_end(const struct Attention &, const struct Work &work) { return work.full_last; }

// Past the last key, complemented if lengths are wrong.
FN i32 shared_of(const struct Work &work) {
    return work.shared < 0 ? ~work.full_last : work.full_last;
}
FN bool adds_up(i32) { return false; }
FN i32 end_of_keys(const struct Attention &, i32 end) { return end < 0 ? ~end : end; }
FN float factor_of(i32 end, float scale) { return end < 0 ? not_a_number() : scale; }

FN i32 word_of_step(i32 word, i32 first) { return first | (word & MASKED); }
FN i32 owner_of_step(const struct Attention &p, i32 head, i32 row) {
    return head * p.tile_rows + row;
}
FN i32 row_of_step(const struct Attention &, i32 owner, i32) { return owner; }
FN bool unused(const struct Work &work) { return work.tile < 0; }
constexpr bool ENDS_INSIDE = true;
