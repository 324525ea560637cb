// Rows policy: a tile row may begin with a document, and ends with it. Its work item has its first
// query and its end. See rows_even.cuh.

struct RowRange {
    i32 begin, past;
    FN i32 first() const { return begin; }
    FN i32 end(const struct Attention &) const { return uniform(past); }
};
FN struct RowRange uniform(const struct RowRange &rows) {
    return {uniform(rows.begin), rows.past};
}
FN struct RowRange rows_of_item(const struct Attention &p, const struct Work &work) {
    return {first_row(p, work.full_first), first_row(p, work.full_last)};
}
// All ones is NaN of any precision: the lengths that the device read are wrong
FN u32 empty_word(const struct Work &work) { return work.shared < 0 ? 0xffffffff : 0; }
constexpr bool ENDS_INSIDE = true;
constexpr bool UNUSED_LAST = false;
