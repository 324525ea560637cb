// Rows that two warps share: where a warp's half of each begins, and how halves of scores meet.
// Needs: load.cuh, ptx.cuh; HALVES, OWN_GROUPS, DEPTH, CHUNKS, SPAN, THREADS.

constexpr int HALF_DEPTH = DEPTH / HALVES;    // 16-column steps along a half
constexpr int HALF_CHUNKS = CHUNKS / HALVES;  // 16-byte pieces of it
constexpr int ODD_CHUNKS = HALF_CHUNKS % SPAN;
static_assert(SPAN == 8 && ODD_CHUNKS % 4 == 0, "see half_of");

FN i32 own_half() { return threadIdx.x / 32 % HALVES; }
FN i32 first_group() { return own_half() * OWN_GROUPS; }

// Where the lane points ldmatrix in the first block of a half. One that begins amid pieces that
// trade places has the later pieces of each eight in the next eight.
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

// A thread's numbers of a half of scores go to the thread with the other half, which adds its own:
// both then have the same sums. Whoever calls these waits for the block in between.
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
