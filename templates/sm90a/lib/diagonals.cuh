// Sums of logit gradients along the diagonals of tiles, for tables that the score formula reads by
// distance only. A backward pass adds up one sum per distance and head; a later launch adds the
// sums to the tables. Needs: Shared, backward_workspace.cuh, ptx.cuh. Gives: diagonals_of,
// add_diagonals.

// The sums of a head, at distance 0 (query minus key). Tiles may reach past both ends, hence the
// margin.
constexpr i32 MARGIN = 128;
static_assert(TILE_Q <= MARGIN && TILE_K <= MARGIN, "room past the ends");
FN float *diagonals_of(const struct Attention &p, i32 head, i32 batch) {
    const i64 number = (i64)batch * p.heads_q + head;
    return p.score_diagonals + number * (p.n_q + p.n_kv + 2 * MARGIN) + p.n_kv + MARGIN;
}

// Adds a tile of ds in shared memory, with all consumer warps; `first` is its first query minus its
// first key. A warp takes 16 queries and 64 keys, two keys per lane. Every second query, a diagonal
// moves on to the next lane. Instead of passing sums on, lanes keep their diagonal and change keys;
// a lane that wraps around to the first keys starts another diagonal.
FN void add_diagonals(const unsigned char *tile, float *to, i32 first) {
    constexpr int ACROSS = TILE_K / 64, ALL = ACROSS * (TILE_Q / 16);
    const i32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (i32 part = threadIdx.x / 32 - 4; part < ALL; part += 4 * GROUPS) {
        const unsigned char *const from =
            tile + part % ACROSS * Q_SLAB + part / ACROSS * 16 * SLAB_ROW;
        float sum[4] = {}, before[4] = {};  // of even and of odd queries, for two keys each
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i > 0)
#pragma unroll
                for (int j = 0; j < 4; j++) before[j] = lane == 32 - i ? sum[j] : before[j];
            float2 pair[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 row = 2 * i + r, column = (lane + i) % 32 * 4 ^ row % 8 << 4;
                pair[r] = unpack(*(const u32 *)(from + row * SLAB_ROW + column));
            }
            sum[0] += pair[0].x, sum[1] += pair[0].y;
            sum[2] += pair[1].x, sum[3] += pair[1].y;
        }
        float after[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            before[j] = lane <= 24 ? sum[j] : before[j];
            after[j] = sum[j] - before[j];
        }
        // For odd queries, a lane's first key is on the diagonal that precedes the next lane's
        // second key.
        const float next = __shfl_sync(0xffffffff, before[2], (lane + 1) % 32);
        const float later = __shfl_sync(0xffffffff, after[2], (lane + 1) % 32);
        float *const own = to + first + part / ACROSS * 16 - part % ACROSS * 64 - 2 * lane;
        atomicAdd(own, before[0] + before[3]);
        atomicAdd(own - 1, before[1] + (lane < 31 ? next : 0.0f));
        if (lane >= 24) {
            atomicAdd(own + 64, after[0] + after[3]);
            atomicAdd(own + 63, after[1] + (lane < 31 ? later : next));
        }
    }
}
