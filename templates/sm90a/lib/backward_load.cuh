// The producer thread: claims tile columns and loads their operands. Needs: backward_order.cuh,
// backward_workspace.cuh, ptx.cuh; Shared and Maps of the includer.

// ---------------------------------------------------------------- the warp that loads

// Loads one tile of a tensor.
template <int ROWS, int COUNT = SLABS>
FN void load_tile(unsigned char *tile, const TensorMap &map, u64 &full, const Point &from,
                  const struct Place &at) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_box(shared_address(tile) + i * ROWS * 128, map, full, 64 * i, from, at.head,
                 at.batch);
}

// Loads one query tile with lse and thresholds; load_dout loads dout with delta.
FN void load_queries(struct Shared &shared, const struct Source &source, const TensorMap &map,
                     u32 at, i32 first) {
    u64 &full = shared.q_full[at];
#if LSE_IN_WGMMA
    arrive_expecting(full, Q_BYTES + PIECE_BYTES);
    load_bytes(shared_address(shared.rows[at]), source.lse + ROW_FLOATS * first, PIECE_BYTES, full);
#else
    constexpr u32 NUMBERS = 4 * TILE_Q;  // bytes
    arrive_expecting(full, Q_BYTES + (THRESHOLDS ? 3 : 1) * NUMBERS);
    load_bytes(shared_address(shared.lse[at]), source.lse + first, NUMBERS, full);
#endif
    load_tile<TILE_Q>(shared.q[at], map, full, query_point(first), source.q);
#if THRESHOLDS
    // The thresholds of all rows precede lse in the workspace, as many numbers each, so they need
    // no pointer of their own.
    const i64 rows = source.delta - source.lse;
    load_bytes(shared_address(shared.low[at]), source.lse - 2 * rows + first, NUMBERS, full);
    load_bytes(shared_address(shared.end[at]), source.lse - rows + first, NUMBERS, full);
#endif
}
FN void load_dout(struct Shared &shared, const struct Source &source, const TensorMap &map, u32 at,
                  i32 first) {
    u64 &full = shared.dout_full[dout_at(at)];
#if LSE_IN_WGMMA
    arrive_expecting(full, DOUT_BYTES);
#else
    arrive_expecting(full, DOUT_BYTES + 4 * TILE_Q);
    load_bytes(shared_address(shared.delta[at]), source.delta + first, 4 * TILE_Q, full);
#endif
    load_tile<TILE_Q, SLABS_V>(shared.dout[dout_at(at)], map, full, query_point(first),
                               source.dout);
}

// Tensor coordinates of a place: 0 along dimensions with stride 0, which broadcast.
FN struct Place coordinates(const i64 (&stride)[3], const struct Place &at) {
    return {stride[0] ? at.batch : 0, stride[1] ? at.head : 0};
}

FN void find_source(struct Source &source, const struct Attention &p, const struct Work &work,
                    i32 head) {
    const struct Place at = place_of(head, p.heads_q);
    const struct Workspace w = workspace(p);
    const i64 first = (i64)head * p.tile_rows * TILE_Q;
    find_list(source.list, p, work, head);
    source.q = coordinates(p.q_stride, at);
    source.dout = coordinates(p.dout_stride, at);
    source.lse = w.lse + (LSE_IN_WGMMA ? ROW_FLOATS : 1) * first;
    source.delta = w.delta + first;
    source.tail = (work.tile + 1) * TILE_K > keys_end(p) ? MASKED : 0;
}

FN void load_column(struct Shared &shared, const struct Work &work, const struct Attention &p,
                    const struct Maps &maps) {
    const struct Place place = place_of(work.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const Point first = key_point(work.tile * TILE_K);
    arrive_expecting(shared.column_full, K_BYTES + V_BYTES);
    load_tile<TILE_K>(shared.k, maps.k, shared.column_full, first, coordinates(p.k_stride, at));
    load_tile<TILE_K, SLABS_V>(shared.v, maps.v, shared.column_full, first,
                               coordinates(p.v_stride, at));
}

// Loads the steps of one head of an item. Keep the loop body short: it competes with consumer warps
// for issue slots of the same scheduler. The keys are loaded after the first queries, because the q
// slot becomes free earlier. `begins`: the keys must still be loaded. `phase`: parity at which
// their slot is free.
FN void load_steps(struct Shared &shared, const struct Work &work, const struct Attention &p,
                   const struct Maps &maps, i32 head, bool &begins, u32 phase,
                   Ring<STAGES> &stage) {
    struct Source &source = shared.source;
    find_source(source, p, work, head);
#pragma unroll 1
    for (i32 i = 0; i < source.list.count; i++) {
        const i32 word = word_in(p, source.list, i) | source.tail, first = (word & INDEX) * TILE_Q;
        const u32 at = stage.at();
#if DETERMINISTIC
        const struct Turn added = turn_at(p, source.list, i, head, word & INDEX, work.tile);
        wait_asleep(shared.q_free[at], stage.phase() ^ 1);
        shared.turn[at] = added;
        shared.holds = held(added);
#else
        wait_asleep(shared.q_free[at], stage.phase() ^ 1);
#endif
        shared.word[at] = word;
        shared.head[at] = head;
        load_queries(shared, source, maps.q, at, first);
#if WITH_PAIR_RING && PAIR_RING
        const struct Place of_pairs = place_of(head, p.heads_q);
        ask_pairs(p, {first, work.tile * TILE_K, of_pairs.head, of_pairs.batch});
#endif
        if (begins) {
            wait_asleep(shared.column_free, phase);
            load_column(shared, work, p, maps);
            begins = false;
        }
        wait_asleep(shared.dout_free[dout_at(at)], stage.phase_of_dout() ^ 1);
        load_dout(shared, source, maps.dout, at, first);
        stage.next();
    }
}

FN void load_items(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    Ring<STAGES> stage;
#pragma unroll 1
    for (Ring<ITEMS> column;; column.next()) {
#if DETERMINISTIC
        if (shared.holds) {  // in shared memory, because this thread has no registers for them
            wait_asleep(shared.column_settled, shared.settled);
            shared.settled ^= 1, shared.holds = 0;
        }
#endif
        const i32 index = atomicAdd(p.counter, 1);
        const u32 phase = column.steps % 2 ^ 1;
        bool begins = ITEMS > 1;
        if (!begins) wait_asleep(shared.column_free, phase);
        struct Item &item = shared.item[column.at()];  // with two slots, written ahead of its turn
        find_item(item, p, index);
        if (item.steps <= 0) {
            if (begins) wait_asleep(shared.column_free, phase);
            arrive(shared.column_full);
            if (item.steps < 0) break;
            continue;
        }
        if (!begins) load_column(shared, item.work, p, maps);
#pragma unroll 1
        for (i32 i = 0; i < item.work.heads; i++)
            load_steps(shared, item.work, p, maps, item.work.head + i, begins, phase, stage);
    }
#if WITH_PAIR_RING && PAIR_RING
    ask_pairs(p, {-1, 0, 0, 0});
#endif
    // The last block resets the counter for the next launch.
    if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}
