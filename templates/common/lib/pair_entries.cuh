// Bounds of a table with an entry per pair: unknown for a tile, which has too many of them. Needs:
// box_entries.cuh. Gives: entry_of.

FN struct Span entry_of(const struct Lists &, i32, const struct Box &) {
    return span(-0x7fffffff - 1, 0x7fffffff);
}
FN struct Span entry_of(const struct Lists &p, i32 slot, const struct Pair &at) {
    return entries(p, slot, at, at.q, at.q, at.k, at.k);
}
