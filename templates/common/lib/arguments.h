#pragma once
// The argument block of attention kernels, byte-identical for every target: maskc/core/abi.py.

typedef int i32;
typedef long long i64;

struct Attention {
    const void *q;  // [batch, heads_q, n_q, HEAD_DIM]
    const void *k;  // [batch, heads_kv, n_kv, HEAD_DIM]
    const void *v;  // [batch, heads_kv, n_kv, HEAD_DIM_V]
    void *out;  // [batch, heads_q, n_q, HEAD_DIM_V]
    float *lse;  // [batch, heads_q, n_q], natural log
    const void *dout;  // backward: like out
    void *dq;  // backward: like q
    void *dk;  // backward: like k
    void *dv;  // backward: like v
    float *delta;  // workspace; backward: [batch, heads_q, n_q] rowsum(out * dout)
    float *dsink;  // backward: [heads_q] to add to, or null
    float *dslopes;  // backward: [heads_q] to add to, or null
    const float *alibi_slopes;  // [heads_q], or null
    const float *sink_logits;  // [heads_q], or null
    const i32 *row_ptr;  // [lists][tile_rows + 1] offsets into row_tiles
    const i32 *row_tiles;  // tile column * 2 + (1 if every pair is live), ascending
    const i32 *col_ptr;  // backward: [lists][tile_cols + 1] offsets into col_tiles
    const i32 *col_tiles;  // backward: tile row * 2 + (1 if full), ascending
    const i32 *work;  // [items + empty + merges][WORK_FIELDS], see maskc/core/abi.py
    i32 *counter;  // [2 + rows], zero before and after a launch; see maskc/core/abi.py
    const i32 *head_variant;  // [heads_q] which mask each head has, or null: mask 0
    const i32 *mask_args;  // [variants][1 + N_ARGS]: the formula's shape, its constants
    const i32 *distances;  // [variants] bits of partial tiles, see maskc/layout/
    const i32 *col_turns;  // of each of col_tiles, or null: see maskc/layout/work/
    const i32 *array[8];  // data arrays of the mask
    i64 array_batch[8];  // elements from one sequence's array to the next, 0 if shared
    i64 array_head[8];  // elements from one head's array to the next, 0 if shared
    i64 array_row[8];  // elements from one row to the next; of parts see lib/tokens_*.cuh
    i64 q_stride[3];  // elements between batches, heads, tokens
    i64 k_stride[3];  // likewise
    i64 v_stride[3];  // likewise
    i64 out_stride[3];  // likewise
    i64 dout_stride[3];  // likewise
    i64 dq_stride[3];  // likewise
    i64 dk_stride[3];  // likewise
    i64 dv_stride[3];  // likewise
    i64 lse_stride[3];  // likewise
    i32 batch;  // sequences
    i32 heads_q;  // query heads
    i32 heads_kv;  // key/value heads; heads_q is a multiple
    i32 n_q;  // queries per sequence, or rows per key/value head with pack_gqa
    i32 queries;  // per sequence; differs from n_q with pack_gqa
    i32 n_kv;  // keys per sequence
    i32 tile_rows;  // ceil(n_q / TILE_Q), or boxes of a grid
    i32 tile_cols;  // ceil(n_kv / TILE_K), or boxes of a grid
    i32 items;  // work items with tiles
    i32 empty;  // work items without tiles, behind them
    i32 shared_items;  // rows to merge, or columns that several items share
    i32 list_batch;  // lists per sequence, 0 if all share one set
    i32 accumulates;  // 1: add to the results of an earlier launch over other keys
    float spacing;  // ALiBi distance between neighboring tokens
    float scale;  // factor of q . k
    float softcap;  // option of the call; read only WITH_SOFTCAP
    float alpha_minus_1;  // of entmax; read only WITH_ENTMAX
    i32 further;  // deterministic: most further tiles of dq in a list
    const i32 *row_sums;  // [lists][tile_rows + 1] counts of those before a row, or null
#if WITH_SCORE
    const void *score_table[8];  // tables, or null for a number
    float *score_gradient[8];  // backward: to add to, or null
    i64 *score_sums[8];  // backward: exact sums [entries][SUM_WORDS], or null
    float *score_diagonals;  // backward: zeros for sums by distance, or null
    i64 score_entries[8];  // entries of each gradient
    i64 score_step[32];  // stride of each dimension; 0 broadcasts
    i64 score_gradient_step[32];  // likewise for gradients
    i32 score_size[32];  // entries along each dimension
    float score_number[8];  // scalar parameters
    i32 score_integer[8];  // likewise
    i32 score_pairs;  // the table of pairs: HALVES, TWOS of gen/score.h.j2
#endif
#if WITH_DROPOUT
    const i64 *dropout_seed_at;  // address of the seed, or null: use dropout_seed
    i64 dropout_seed;  // seed of all dropout bits
    i32 dropout_least;  // pairs with a 16-bit draw of at least this are kept
    float dropout_scale;  // 1 / (fraction kept); 0 if nothing is kept
    i32 dropout_first_q;  // token offset of the call's first query in its sequence, / 16
    i32 dropout_first_k;  // likewise for keys
#endif
#if WITH_FP8
    unsigned char *v_transposed;  // workspace: v^T, tile by tile
    const float *q_descale;  // [batch, heads_kv] scales of q, or null: 1
    const float *k_descale;  // of k, likewise
    const float *v_descale;  // of v, likewise
#endif
#if WITH_PAGES
    const i32 *pages;  // page-table entries: page indices in the pool
    const i32 *first_page;  // [batch]: first entry of each sequence
    const i32 *key_count;  // [batch]: keys of each sequence
    i32 page_count;  // pages of a pool
#endif
#if E4M3_POOLS
    const float *k_scale;  // factors of keys, or null: k_number
    const float *v_scale;  // likewise of values
    i64 k_scale_step[2];  // elements between sequences, heads; 0 broadcasts
    i64 v_scale_step[2];  // likewise
    const i32 *scale_sequence;  // [batch]: whose factors, or null: its own
    float k_number;  // the factor of all keys
    float v_number;  // likewise of values
#endif
};
