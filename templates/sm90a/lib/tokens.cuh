// Which tokens a tile has: consecutive ones. Gives Point, query_point, key_point, query_at, key_at,
// keys_end; gen/grid_tiles.cuh.j2 gives the same for boxes of a grid.

[[maybe_unused]] constexpr bool GRID_TILES = false;
// Places count the tokens of tiles, one tile after another.
// They are tokens, and where copies find them.
typedef i32 Point;
FN Point query_point(i32 place) { return place; }
FN Point key_point(i32 place) { return place; }
FN i32 query_at(i32 place) { return place; }
FN i32 key_at(i32 place) { return place; }
FN i32 keys_end(const struct Attention &p) { return p.n_kv; }
