// Tiles of the table with an entry for each pair in shared memory, in pieces of 16 bytes. Gives:
// PAIR_PIECES, pair_piece, copy_bytes.

constexpr int PAIR_PIECES = TILE_K / 8;  // in a row of a tile

// The pieces of eight rows at one place lie in different banks.
FN u32 pair_piece(u32 tile, u32 row, u32 piece) {
    return tile + 16 * (row * PAIR_PIECES + (piece ^ row % 8));
}
// Copies up to 16 bytes from global to shared memory, and writes zeros behind them.
FN void copy_bytes(u32 to, const void *from, i32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
FN void copy_bytes(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :: "r"(to), "l"(from) : "memory");
}
