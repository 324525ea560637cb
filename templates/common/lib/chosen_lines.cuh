// Lines of tiles that are all candidates: a part of the verdict policy of make_lists.cuh. Needs:
// chosen_bits.cuh. Gives: ways_of, line_of, word_at, across_of.

// Each pair is selected or not by each selection, which gives a set of possible combinations.
// Returns those that pairs of a tile may have; `chosen` are the combinations that include this
// selection.
template <class S>
FN u32 ways_of(const struct Lists &p, i32 list, i32 row, i32 column, u32 chosen) {
    const i32 *const words = seen_by<S>(p, list, row);
    const i32 first = column * p.tile[1] / S::BLOCK;
    const i32 last = (min_i32((column + 1) * p.tile[1], p.n[1]) - 1) / S::BLOCK;
    u32 some = 0, others = 0;
    for (i32 word = first / 32; word <= last / 32; word++) {
        const u32 from = word == first / 32 ? ALL << first % 32 : ALL;
        const u32 asked = word == last / 32 ? from & ALL >> (31 - last % 32) : from;
        some |= words[word] & asked;
        others |= ~words[p.array_row[S::INDEX] + word] & asked;
    }
    return (some ? chosen : 0) | (others ? ~chosen : 0);
}

// A line: all of its tiles are candidates.
struct Line {
    struct Place at;
    i32 count;
    uint2 *bits;
};
FN struct Line line_of(const struct Lists &p, const struct Place &at) {
    const i32 count = p.tile_count[1 - at.side], words = (count + 31) / 32;
    const i64 place = ((i64)at.list * p.tile_count[at.side] + at.tile) * words;
    return {at, count, (uint2 *)p.bits[at.side] + place};
}
FN i32 word_at(const struct Line &, i32 i) { return i; }
FN i32 across_of(i32 word) { return word; }
