// Which queries a block has, where a launch goes by tile rows.
// Needs: backward_rows.cuh. Gives: Line, line_of.

struct Line {
    i32 tile;
    struct Place at;
};
// The last rows, which most masks make the longest, come first.
FN struct Line line_of(const struct Attention &p, i32 index) {
    const i32 row = gridDim.x - 1 - index;
    return {row % p.tile_rows, place_of_row(p, row)};
}
