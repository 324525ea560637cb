// The queries of a block, in launches over tile rows. Needs: backward_rows.cuh. Gives: Line,
// line_of.

struct Line {
    i32 tile;
    struct Place at;
};
// Start with the last rows, which are the longest in most masks.
FN struct Line line_of(const struct Attention &p, i32 index) {
    const i32 row = gridDim.x - 1 - index;
    return {row % p.tile_rows, place_of_row(p, row)};
}
