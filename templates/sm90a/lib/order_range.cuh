// The order of additions to dq where tiles come as ranges. Needs: gen/tiles.h.j2.

#if DETERMINISTIC
FN void skip_tiles(struct TileList &list, i32 count) { list.first += count; }

// How many tile columns add to a tile of dq before this one: those behind it.
FN i32 behind(const struct TileList &list, i32 column) {
    return list.first + list.count - 1 - column;
}

// The host wrote nothing.
FN bool turn_word(i32 &, const struct Attention &, const struct TileList &, i32) { return false; }
#endif
