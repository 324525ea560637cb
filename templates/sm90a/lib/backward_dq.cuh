// Moves a warpgroup's share of dq to memory. Needs: backward_workspace.cuh, backward_order.cuh,
// backward_products.cuh, ptx.cuh.

// ---------------------------------------------------------------- dq to memory

// Named barrier 1 is for all consumer warpgroups, 2 and 3 are for one warpgroup each.
FN void sync_both() { sync_threads(1, 128 * GROUPS); }
FN void sync_group(i32 group) { sync_threads(2 + group, 128); }
// ONE_DS, named barriers 4 and 5: a warpgroup writes its half of ds once the other has read it.
FN void acquire_ds(i32 group) {
    if (ONE_DS) sync_threads(4 + group, 256);
}
FN void release_ds(i32 group) {
    if (ONE_DS) arrive_threads(5 - group, 256);
}

#if ZEROES
// The warp that zeroes tiles of dq ahead of the warps that add to them. All blocks take rows from
// one counter.
FN void zero_tiles(struct Shared &shared, const struct Attention &p) {
    for (u32 i = threadIdx.x % 32; i < ZERO_BYTES / 16; i += 32)
        ((float4 *)shared.zeros)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    publish_writes();
    __syncwarp();
    if (!elected()) return;
    float *const dq = workspace(p).dq;
    i32 *const taken = control_of(p, 0, TAKEN);
    const i64 rows = (i64)p.batch * p.heads_q * p.tile_rows, before = zeroed_before(p);
    if (before == rows) return;
#pragma unroll 1
    for (;;) {
        const i64 row = before + atomicAdd(taken, 1);
        if (row >= rows) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            put_floats(dq + row * TILE_FLOATS + i * (ZERO_BYTES / 4), shared_address(shared.zeros),
                       ZERO_BYTES);
        commit_stores();
        stores_done<0>();
        tell(control_of(p, row - row % p.tile_rows, ZEROED));
    }
}
#endif

#if DETERMINISTIC
// The thread that signals that a step's dq has reached memory. Waiting for that takes long, so a
// thread of its own does it: the threads that add the next dq do not stall.
FN void pass_turns_on(struct Shared &shared) {
#pragma unroll 1
    for (Ring<1> added;; added.next()) {
#if STAGED
        wait_asleep(shared.dq_added, added.phase());
#else
        for (i32 group = 0; group < GROUPS; group++)
            wait_asleep(shared.dq_full[group], added.phase());
#endif
        i32 *const semaphore = shared.dq_counter;
        arrive(shared.dq_seen);
        if (!semaphore) break;
        tell(semaphore);
    }
}
#endif

#if STAGED
// The thread that adds the staged tiles to dq in memory.
FN void add_dq_tiles(struct Shared &shared, const struct Attention &p) {
    float *const dq = workspace(p).dq;
#if ZEROES
    const i64 before = zeroed_before(p);
    i32 head = -1;  // the head whose tiles are known to be zeroed
#endif
#pragma unroll 1
    for (Ring<1> staged;; staged.next()) {
        i32 row;
#pragma unroll
        for (i32 group = 0; group < GROUPS; group++) {
            wait_asleep(shared.dq_full[group], staged.phase());
            row = shared.dq_turn.sum;
            if (row < 0) continue;
#if DETERMINISTIC
            if (group == 0) {
                wait_until(control_of(p, row, TURN), rank_in(shared.dq_turn));
                if (held(shared.dq_turn)) arrive(shared.column_settled);
            }
#elif ZEROES
            if (group == 0 && row / p.tile_rows != head) {
                head = row / p.tile_rows;
                i32 *const zeroed = control_of(p, head * p.tile_rows, ZEROED);
                if (row >= before) wait_until(zeroed, p.tile_rows);
            }
#endif
            const int place = group * SHARE;
            float *const to = dq + (i64)row * TILE_FLOATS + place;
            const u32 from = shared_address(shared.dq + place);
            const u32 bytes = 2048 * dq_pieces(group) + 4 * SLOPE_SUMS;
            if (DETERMINISTIC && rank_in(shared.dq_turn) == 0) put_floats(to, from, bytes);
            else add_floats(to, from, bytes);
            commit_stores();
        }
        if (row >= 0) {
            stores_read<1>();
            arrive(shared.dq_free[0]);
            stores_read<0>();
            arrive(shared.dq_free[1]);
        }
#if DETERMINISTIC
        stores_done<0>();
        wait_asleep(shared.dq_seen, staged.phase() ^ 1);
        shared.dq_counter = row < 0 ? nullptr : control_of(p, row, TURN);
        arrive(shared.dq_added);
#endif
        if (row < 0) break;
    }
    stores_done<0>();
}
#elif DETERMINISTIC
// The thread that waits until the next step may add to dq, while the warpgroups compute this step.
FN void await_turns(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
#pragma unroll 1
    for (Ring<1> given;; given.next(), stage.next()) {
        wait_asleep(shared.q_full[stage.at()], stage.phase());
        const struct Turn next = shared.turn[stage.at()];
        i32 *const semaphore = next.sum < 0 ? nullptr : control_of(p, next.sum, TURN);
        if (semaphore) wait_until(semaphore, rank_in(next));
        if (semaphore && held(next)) arrive(shared.column_settled);
        wait_asleep(shared.dq_seen, given.phase() ^ 1);
        shared.dq_counter = semaphore;
        for (i32 group = 0; group < GROUPS; group++) arrive(shared.dq_free[group]);
        if (!semaphore) break;
    }
}
#endif

// Announces that a warp's part of a tile of dq is complete: staged and visible to bulk copies, or
// in memory.
FN void publish_dq(struct Shared &shared, i32 group) {
#if STAGED
    publish_writes();
#endif
#if STAGED || DETERMINISTIC
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.dq_full[group]);
#endif
}

// Returns the turn of a step. Read where registers are free, but before the last barrier of the
// step: after it, the producer may reuse the slot.
FN struct Turn turn_in(const struct Shared &shared, u32 at, const struct Step &step) {
    if (!DETERMINISTIC) return {step.row, 0};
    return {uniform(shared.turn[at].sum), uniform(shared.turn[at].rank)};
}

// Waits until the warpgroup may hand over its part of a step's dq.
FN void await_dq(struct Shared &shared, const struct Turn &turn, i32 group, Ring<1> &staged) {
#if STAGED
    wait(shared.dq_free[group], staged.phase() ^ 1);
    staged.next();
    if (threadIdx.x == 128) shared.dq_turn = turn;
#elif DETERMINISTIC
    wait(shared.dq_free[group], staged.phase());
    staged.next();
#endif
}

// Packs a thread's columns of one row of two pieces of a gradient. Neighboring threads exchange
// halves, so that four threads write 32 contiguous bytes of piece thread % 2.
FN uint2 traded_halves(const float *x, const float *y, float scale) {
    const bool odd = threadIdx.x % 2;
    const u32 low = pack(x[0] * scale, x[1] * scale), high = pack(y[0] * scale, y[1] * scale);
    const u32 theirs = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
    return make_uint2(odd ? theirs : low, odd ? high : theirs);
}

#if EXCLUSIVE_DQ
// Stores a share of a tile of dq, from piece FIRST on, directly in storage precision.
template <int FIRST = 0, int N>
FN void add_dq(float (&dq)[N], float, struct Shared &, const struct Attention &p,
               const struct Step &step, const struct Turn &, i32 share) {
    const i32 thread = threadIdx.x % 128, odd = thread % 2;
    const i32 first = (step.word & INDEX) * TILE_Q + dq_query(share) + thread / 32 * 16
                      + thread % 32 / 4;
    const struct Place at = place_of_row(p, step.row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const i32 token = query_at(first + 8 * half);
        u32 *const line = (u32 *)p.dq + row_offset(p.dq_stride, at, token) / 2 + thread % 4 / 2 * 2;
#pragma unroll
        for (int i = 0; i < N / 4; i += 2) {
            if (FIRST + i >= dq_pieces(1) && share) break;
            const float *const x = dq + 4 * i + 2 * half;
            const uint2 both = traded_halves(x, x + 4, p.scale);
            const int column = dq_column(share, FIRST + i + odd);
            if (PADDED && column >= 8 * PIECES_QK) continue;
            if (token < p.n_q) *(uint2 *)(line + column / 2) = both;
        }
    }
}
#else
// Hands over a share of a tile of dq, from piece FIRST on. `slope` is the thread's share of its
// head's gradient. STAGED: the caller must still publish the writes.
template <int FIRST = 0, int N>
FN void add_dq(float (&dq)[N], float slope, struct Shared &shared, const struct Attention &p,
               const struct Step &, const struct Turn &turn, i32 share) {
    const i32 thread = threadIdx.x % 128;
#if STAGED
    constexpr bool first = true;
    float *const to = shared.dq + share * SHARE;
#else
    const bool first = DETERMINISTIC && rank_in(turn) == 0;  // nothing to add to yet
    float *const to = workspace(p).dq + (i64)make_opaque(turn.sum) * TILE_FLOATS
        + make_opaque(share) * SHARE;
#endif
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        if (FIRST + i >= dq_pieces(1) && share) break;
        const float *x = dq + 4 * i;
        const float4 four = make_float4(x[0], x[1], x[2], x[3]);
        float4 *const own = (float4 *)to + (FIRST + i) * 128 + thread;
        if (first) *own = four;
        else atomicAdd(own, four);
    }
    if (HEAD_GRADIENT && FIRST == 0) {
        float *const own = to + 512 * dq_pieces(share) + thread;
        if (first) *own = slope;
        else atomicAdd(own, slope);
    }
}
#endif
