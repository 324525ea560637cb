// Tile lists and work items of one query for each list, whose keys data bound as an interval. Every
// block finds the tiles of all lists, so no block waits for another one. A block writes one list,
// or several if there are more than multiprocessors.
// Needs: bounds.h, entries.cuh, list_items.cuh, and MOST_QUERIES, load_mask and keys_of_query of
// the config header. Gives: lists_of_queries.

// The tiles of a list: some consecutive ones.
struct Tiles {
    i32 first, count;
};
FN struct Tiles tiles_of(const struct Lists &p, const struct Bounds &keys) {
    if (keys.first >= keys.last) return {0, 0};
    const u32 size = p.tile[1], first = (u32)keys.first / size;
    return {(i32)first, (i32)(((u32)keys.last + size - 1) / size - first)};
}
// Reads what data tell of a list.
FN void read_entries(const struct Lists &p, i32 list, i32 (&x)[READINGS]) {
    i64 found[READINGS];
    bool wrong = false;  // never: lists of doubtful data are made another way
#pragma unroll
    for (i32 i = 0; i < READINGS; i++) {
        const i32 slot = reading_at(i).slot;
        found[i] = entry(p, slot, p.batches[slot] > 1 ? list : 0, 0);
    }
#pragma unroll
    for (i32 i = 0; i < READINGS; i++) x[i] = value_of(p, reading_at(i).slot, found[i], wrong);
}

// Writes the tiles and items of a list. `size`: see size_of_all.
FN void write_list(const struct Lists &p, i32 list, const struct Bounds &keys, const i32 *counts,
                   i32 size) {
    const struct Tiles own = tiles_of(p, keys);
    const i32 first = list * p.room[0];
#pragma unroll 1
    for (i32 i = threadIdx.x; i < own.count; i += THREADS) {
        const i32 tile = own.first + i, key = tile * p.tile[1];
        const i32 end = min_i32(key + p.tile[1], p.n[1]);
        p.tiles[0][first + i] = 2 * tile + (keys.first <= key && end <= keys.last);
    }
    if (threadIdx.x < 2) p.ptr[0][2 * list + threadIdx.x] = first + threadIdx.x * own.count;
    write_parts(p, {0, list, 0}, first, own.count, counts, size);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lists_of_queries(const __grid_constant__ struct Lists p) {
    __shared__ i32 counts[MOST_QUERIES];
    __shared__ struct Bounds keys[MOST_QUERIES];
    wait_for_launches();
    const struct Mask mask = load_mask(p, 0);
#pragma unroll 1
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) {
        i32 x[READINGS];
        read_entries(p, i, x);
        const struct Bounds own = keys_of_query(p, mask, x);
        keys[i] = {max_i32(own.first, 0), min_i32(own.last, p.n[1])};
        counts[i] = tiles_of(p, keys[i]).count;
        if (i / THREADS % gridDim.x != blockIdx.x) continue;  // all blocks have the same
#pragma unroll
        for (i32 j = 0; j < READINGS; j++) {
            const i32 slot = reading_at(j).slot;
            if (i == 0 || p.batches[slot] > 1) p.array[slot][i * p.array_batch[slot]] = x[j];
        }
    }
    __syncthreads();
    const i32 size = size_of_all(p, counts);
#pragma unroll 1
    for (i32 list = blockIdx.x; list < p.lists; list += gridDim.x)
        write_list(p, list, keys[list], counts, size);
    if (blockIdx.x == gridDim.x - 1) clear_words(p);
}
