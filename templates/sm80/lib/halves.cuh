// Rows that two warps share: the start of a warp's half, and the exchange of halves of scores.
// Needs: load.cuh, ptx.cuh; HALVES, OWN_GROUPS, DEPTH, CHUNKS, SPAN, THREADS.

constexpr int HALF_DEPTH = DEPTH / HALVES;    // 16-column steps along a half
constexpr int HALF_CHUNKS = CHUNKS / HALVES;  // 16-byte pieces of it
constexpr int ODD_CHUNKS = HALF_CHUNKS % SPAN;
static_assert(SPAN == 8 && ODD_CHUNKS % 4 == 0, "see half_of");

FN i32 own_half() { return threadIdx.x / 32 % HALVES; }
FN i32 first_group() { return own_half() * OWN_GROUPS; }

// ldmatrix address of the lane in the first block of a half. If the half begins inside a swizzle
// group, the later pieces of each group are in the next group (`late`).
struct Half {
    u32 early, late;
};
FN struct Half half_of(u32 lane_address, i32 half) {
    const u32 early = (lane_address ^ (half * 16 * ODD_CHUNKS))
                    + half * 16 * (HALF_CHUNKS - ODD_CHUNKS);
    return {early, early + (ODD_CHUNKS ? half * 16 * SPAN : 0)};
}
FN u32 half_at(const struct Half &half, int down, int right) {
    return fragment_at(2 * right % SPAN < SPAN - ODD_CHUNKS ? half.early : half.late, down, right);
}

// give_half and add_half exchange partial scores with the thread of the other half: each adds the
// other's to its own, so both have equal sums. The caller synchronizes the block in between.
template <int COUNT, int GROUPS>
FN void give_half(float4 (&place)[GROUPS][THREADS], const float (&s)[COUNT][GROUPS][4]) {
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        place[n][threadIdx.x] = make_float4(s[0][n][0], s[0][n][1], s[0][n][2], s[0][n][3]);
}
template <int COUNT, int GROUPS>
FN void add_half(float (&s)[COUNT][GROUPS][4], const float4 (&place)[GROUPS][THREADS]) {
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const float4 other = place[n][threadIdx.x ^ 32];
        s[0][n][0] += other.x, s[0][n][1] += other.y, s[0][n][2] += other.z, s[0][n][3] += other.w;
    }
}
