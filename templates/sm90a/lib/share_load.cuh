// A further warp of the producer: loads its share of each tile of a work item. Needs:
// forward_load.cuh, keys_granules.cuh.

FN void copy_share(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    const i32 warp = threadIdx.x / 32;
    const struct Work work = item(p, blockIdx.x);
    const struct Place place = place_of(work.head, p.heads_q);
    const i32 kv_head = (u32)place.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const Keys k = keys_in(p, p.k_stride, {place.batch, kv_head});
    const Values v = values_in(p, {place.batch, kv_head});
    Ring<STAGES> stage;
#pragma unroll 1
    for (i32 left = work.count - 1; left >= 0; left--) {
        const i32 first = (word_at(p, work, left) & INDEX) * KEY_STEP;
        wait(shared.k_free[stage.at], stage.phase ^ 1);
        load_share<KEY_SLABS>(shared.k[stage.at], maps.k, shared.k_full[stage.at], first, k, warp);
        wait(shared.v_free[stage.at], stage.phase ^ 1);
        if (ends_between(v, first))
            load_share<ROW_SLABS>(shared.v[stage.at], maps.v.granule, shared.v_full[stage.at],
                                  first, v, warp);
        stage.next();
    }
}
