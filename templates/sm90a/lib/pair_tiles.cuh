// Tiles of the table with an entry for each pair, in storage precision, in shared memory. A warp
// copies the sixteen rows that it needs of the next tile, and reads them as 8 x 8 matrices. Direct
// loads take a thread's four bytes of each row at a time. Needs: ptx.cuh, gather_copy.cuh,
// pair_rows.cuh. Gives: lays_entries, lay_entries, each_laid_entry.

#include "sm90a/lib/pair_pieces.cuh"

FN u32 pair_tile() {
    __shared__ uint4 tiles[4 * GROUPS][16 * PAIR_PIECES];
    return shared_address(tiles[threadIdx.x / 32 - 4]);
}
FN bool lays_entries(const struct Attention &p) { return p.score_pairs & EIGHTS; }

// Starts the copy of a warp's entries. `query` is the first row of the warp. Keys past the last one
// become zeros.
FN void lay_entries(const struct Attention &p, i32 query, i32 key, i32 head, i32 batch) {
    if (!lays_entries(p)) return;
    const i32 lane = threadIdx.x % 32;
    const u32 tile = pair_tile();
    const unsigned short *const from =
        (const unsigned short *)pair_table(p) + pair_head(head, batch, p);
    const i64 down = pair_row_step(p);
    __syncwarp();  // all lanes have read the entries of the tile before
#pragma unroll
    for (int i = 0; i < PAIR_PIECES / 2; i++) {
        const i32 at = 32 * i + lane, row = at / PAIR_PIECES, piece = at % PAIR_PIECES;
        const i32 own = key + 8 * piece, left = 2 * max_i32(min_i32(p.n_kv - own, 8), 0);
        copy_bytes(pair_piece(tile, row, piece),
                   from + min_i32(query + row, p.n_q - 1) * down + (left ? own : 0), left);
    }
    copies_commit();
}

// Calls `work` with every element of a thread and its entry.
template <int N, typename Work>
FN void each_laid_entry(const Work &work) {
    const u32 tile = pair_tile(), lane = threadIdx.x % 32;
    copies_wait<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        u32 x[4];
        load_matrices(x[0], x[1], x[2], x[3],
                      pair_piece(tile, lane % 16, (u32)i / 4 + lane / 16));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 two = unpack(x[j]);
            work(i + 2 * j, two.x);
            work(i + 2 * j + 1, two.y);
        }
    }
}
