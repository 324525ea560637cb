// The rows that a block computes, and what its threads share. Needs: load.cuh, a loader of keys;
// Mask and lists of tiles. Gives: Block.

#include "sm80/lib/logit.cuh"

struct Work {
    i32 row, head, batch;  // `row` is a tile row
#if WIDE
    i32 part, parts;  // split_kv, with pack_gqa
#endif
};

#if WIDE
// The query at a row of a tile.
FN i32 mask_row(const struct Attention &p, i32 row) {
    return min_i32(PACK_GQA ? (u32)row % (u32)p.queries : row, p.queries - 1);
}
#else
#include "common/lib/plain_rows.cuh"
#endif

// Heads are processed in groups whose keys and values fit the L2 cache. Within a group, start with
// the last tile rows, which are the longest of a causal mask. A grid has at most 2^31 - 1 blocks,
// so 32 bits suffice.
FN struct Work work_of(const struct Attention *p, u32 index) {
#if WIDE
    if (PACK_GQA) {  // blocks with the same keys are adjacent
        const u32 rows = (p->n_q + TILE_Q - 1) / TILE_Q, heads = p->batch * p->heads_q;
        const u32 parts = gridDim.x / (rows * heads), head = index / (rows * parts);
        return {(i32)(index % rows), (i32)(head % p->heads_q), (i32)(head / p->heads_q),
                (i32)(index / rows % parts), (i32)parts};
    }
#endif
    const u32 heads = p->batch * p->heads_q, rows = p->tile_rows;
    const u32 kv_heads = GROUP_KEYS / max_i32(1, p->n_kv);
    const i64 fit = (i64)kv_heads * (p->heads_q / p->heads_kv);
    const u32 size = fit < 1 ? 1 : fit < heads ? (u32)fit : heads;
    const u32 group = index / (size * rows), rest = index % (size * rows);
    const u32 here = heads - group * size < size ? heads - group * size : size;
    const u32 head = group * size + rest % here;
    return {(i32)(rows - 1 - rest / here), (i32)(head % p->heads_q), (i32)(head / p->heads_q)};
}

// Data that the threads of a block share, in shared memory because registers are short.
struct Block {
    struct Work work;
    struct Mask mask;
    struct TileList list;
    struct Logit logit;
    const unsigned char *k, *v;  // first rows of the head
#if E4M3_POOLS
    float key_scale, value_scale;
#endif
};

FN void start_block(struct Block &block, const struct Attention *p) {
    const struct Work work = block.work;
    const i32 kv_head = work.head / (p->heads_q / p->heads_kv);
    block.mask = load_mask(p, work.batch, work.head);
#if WIDE
    block.list =
        row_tiles(p, block.mask, work.batch, work.head, PACK_GQA ? 0 : work.row);
    if (PACK_GQA) {
        const i64 count = block.list.count;
        const i32 first = count * work.part / work.parts;
        block.list.count = (i32)(count * (work.part + 1) / work.parts) - first;
        begin_later(block.list, first);
    }
#else
    block.list = row_tiles(p, block.mask, work.batch, work.head, work.row);
#endif
    block.logit = logit_of(p, work.head);
#if E4M3_POOLS
    block.k = (const unsigned char *)p->k + kv_head * p->k_stride[1];
    block.v = (const unsigned char *)p->v + kv_head * p->v_stride[1];
    block.key_scale = key_scale(*p, work.batch, kv_head);
    block.value_scale = value_scale(*p, work.batch, kv_head);
    if (!PAIRWISE_LOGITS) block.logit.unit *= block.key_scale;
#else
    block.k = head_rows(p->k, p->k_stride, key_batch(work.batch), kv_head);
    block.v = head_rows(p->v, p->v_stride, key_batch(work.batch), kv_head);
#endif
}

static_assert(sizeof(struct Block) <= BLOCK_BYTES,
              "the mask has too many constants");

// Rows and columns of a tile that a warp and a lane hold; see Scores for the others.
#if WIDE
FN i32 first_row() { return threadIdx.x / (32 * HALVES) * 16; }
FN i32 warp_query(struct Work work, i32 warp) { return work.row * TILE_Q + warp / HALVES * 16; }
#else
FN i32 first_row() { return threadIdx.x / 32 * 16 * FRAGMENTS; }
FN i32 warp_query(struct Work work, i32 warp) {
    return work.row * TILE_Q + warp * 16 * FRAGMENTS;
}
#endif
FN i32 lane_query(struct Work work) {
    return warp_query(work, threadIdx.x / 32) + threadIdx.x % 32 / 4;
}
FN i32 lane_key(i32 first) { return first + make_opaque(threadIdx.x) % 4 * 2; }
