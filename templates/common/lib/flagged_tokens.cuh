// Lists the flagged tokens of each sequence. Needs: moved_arguments.h, block_before.cuh. Gives:
// list_tokens.

// ---------------------------------------------------------------- lists of flagged tokens

FN bool flagged(const struct Moved &p, int side, i64 place) {
    const void *const flags = p.flags[side];
    switch (p.flag_bytes[side]) {
    case 1: return ((const unsigned char *)flags)[place];
    case 4: return ((const i32 *)flags)[place];
    default: return ((const i64 *)flags)[place];
    }
}

// One block per list: writes the flagged tokens in order, then -1.
extern "C" __global__ void __launch_bounds__(THREADS)
list_tokens(const __grid_constant__ struct Moved p) {
    constexpr int EACH = 8;  // tokens per thread
    const i32 side = blockIdx.x >= p.lists[0], list = blockIdx.x - side * p.lists[0];
    const i32 room = p.room[side], n = p.n[side];
    i32 *const to = p.made[side] + (i64)list * room;
    i32 taken = 0;
    for (i32 first = 0; first < n; first += THREADS * EACH) {
        const i32 own = first + threadIdx.x * EACH;
        u32 bits = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (own + i < n) {
                const i64 place = list * p.flags_list[side] + (own + i) * p.flags_step[side];
                bits |= (u32)flagged(p, side, place) << i;
            }
        i32 all;
        i32 at = taken + block_before(__popc(bits), all);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (bits >> i & 1) {
                if (at < room) to[at] = own + i;
                at++;
            }
        taken += all;
    }
    for (i32 i = taken + threadIdx.x; i < room; i += THREADS) to[i] = -1;
    if (threadIdx.x == 0) {
        const i32 wrong = taken > room;
        p.verdict[blockIdx.x] = wrong;
        if (wrong) *p.report = 1;
    }
}
