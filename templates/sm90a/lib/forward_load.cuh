// The producer thread: loads the tiles of work items. Needs: ring.cuh, items.cuh, a loader of keys,
// an operand policy; Shared of the includer.

// Claims the next item of a persistent launch. Each block begins with the item of its own index.
FN struct Work next_item(const struct Attention &p) {
    return item(p, (i32)gridDim.x + atomicAdd(p.counter, 1));
}

// Tiles of a row that are left when the next item is claimed. An early claim binds the next row to
// a block that is still busy. A late one delays the next loads: tiles take longer with ONE_Q.
constexpr i32 CLAIM_AT = ONE_Q ? 4 : 8;

// The producer thread. Keep the loop body short: it competes with consumer warps for issue slots of
// the same scheduler.
#if E4M3_POOLS
FN void copy_tiles(const struct PoolStages &shared, const struct Attention &p,
                   const struct Maps &maps) {
#else
FN void copy_tiles(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
#endif
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv;
    Ring<STAGES> stage;
    Ring<Q_TILES> q_place;
    struct Work work = item(p, blockIdx.x), coming = {};
    i32 word = word_at(p, work, work.count - 1);
    shared.first_word = word;
    arrive(shared.started);
#pragma unroll 1
    while (work.count > 0) {
        const struct Place place = place_of(work.head, p.heads_q);
        const i32 kv_head = (u32)place.head / group;
        const Keys k = keys_in(p, p.k_stride, {place.batch, kv_head});
        const Values v = values_in(p, {place.batch, kv_head});
        // Claim the next item while the tile with CLAIM_AT tiles behind it is in flight, or the
        // first one; if there is only one tile, claim it now.
        if (PERSISTENT && work.count == 1) coming = next_item(p);
#pragma unroll 1
        for (i32 left = work.count - 1; left >= 0; left--) {
            const i32 column = word & INDEX;
            const Point first_k = key_point(column * KEY_STEP);
            if (left > 0)
                word = word_at(p, work, left - 1);
            else
                word = word_at(p, coming, coming.count - 1) | (PERSISTENT ? FIRST : 0);
            wait(shared.k_free[stage.at], stage.phase ^ 1);
            shared.next[stage.at] = word;
            load_keys(shared.k[stage.at], maps.k, shared.k_full[stage.at], first_k, k);
            if (left + 1 == work.count) {
                wait(shared.q_free[q_place.at], q_place.phase ^ 1);
                const struct RowRange rows = rows_of_item(p, work);
                shared.row[q_place.at] = {rows, place.head, place.batch, work.shared,
                                          PACK_GQA ? work.heads : 0};
                load_tile<TILE_Q>(shared.q[q_place.at], maps.q, shared.q_full[q_place.at],
                                  box_at(p, rows.first()),
                                  slice_of(p.q_stride, place.head, place.batch));
                q_place.next();
            }
#if WITH_PAIR_RING && PAIR_RING
            ask_pairs(p, {rows_of_item(p, work).first(), column * KEY_STEP, place.head,
                          place.batch});
#endif
            if (PERSISTENT && left > 0 && left == min_i32(work.count - 1, CLAIM_AT))
                coming = next_item(p);
            wait(shared.v_free[stage.at], stage.phase ^ 1);
            load_values(shared.v[stage.at], maps, shared.v_full[stage.at], first_k, column, v);
            stage.next();
        }
        work = coming;
        coming = {};
    }
#if WITH_PAIR_RING && PAIR_RING
    ask_pairs(p, {-1, 0, 0, 0});
#endif
    // The last block resets the counter for the next launch.
    if (PERSISTENT && atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}
