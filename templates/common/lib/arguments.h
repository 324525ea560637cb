#pragma once
// The argument block of attention kernels, the same bytes for every target: maskc/core/abi.py.

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
    i32 *counter;  // [2 + rows], zero before and after every launch: see below
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
    i32 n_q;  // queries per sequence, or rows of a packed head
    i32 queries;  // per sequence; n_q counts rows where heads are packed
    i32 n_kv;  // keys per sequence
    i32 tile_rows;  // ceil(n_q / TILE_Q), or boxes of a grid
    i32 tile_cols;  // ceil(n_kv / TILE_K), or boxes of a grid
    i32 items;  // of the work list that have tiles
    i32 empty;  // items behind them without any
    i32 shared_items;  // rows to be merged, or columns that items share
    i32 list_batch;  // lists from one sequence to the next, 0 if all share theirs
    i32 joins;  // 1: results hold those of other keys, and are joined with them
    float spacing;  // the distance from one token to the next
    float scale;  // factor of q . k
    float softcap;  // of the options; read only where they are built in
    float alpha_minus_1;  // of entmax; read only by kernels built WITH_ENTMAX
    i32 further;  // deterministic: most further tiles of dq of a list
    const i32 *row_sums;  // [lists][tile_rows + 1] of them before a row, or null: none
#if WITH_SCORE
    const void *score_table[8];  // tables, or null: a number
    float *score_gradient[8];  // backward: to add to, or null
    i64 *score_sums[8];  // backward: exact sums [entries][SUM_WORDS], or null
    float *score_diagonals;  // backward: zeros for sums by distance, or null
    i64 score_entries[8];  // of each gradient
    i64 score_step[32];  // elements along each dimension; 0: one for all
    i64 score_gradient_step[32];  // likewise of gradients
    i32 score_size[32];  // entries along each dimension
    float score_number[8];  // parameters that are no tables
    i32 score_integer[8];  // likewise
#endif
#if WITH_DROPOUT
    const i64 *dropout_seed_at;  // where the seed lies, or null: in dropout_seed
    i64 dropout_seed;  // of all bits that are drawn
    i32 dropout_least;  // the least of 0 .. 65535 whose pair is kept
    float dropout_scale;  // 1 / (the share that is kept); 0 where nothing is
    i32 dropout_first_q;  // sixteens of queries of the sequence before the call's first
    i32 dropout_first_k;  // likewise of keys
#endif
#if WITH_FP8
    unsigned char *v_transposed;  // workspace: v^T, tile by tile
    const float *q_descale;  // [batch, heads_kv] factors of q, or null: 1
    const float *k_descale;  // of k, likewise
    const float *v_descale;  // of v, likewise
#endif
#if WITH_PAGES
    const i32 *pages;  // entries of page tables: which page of the pool
    const i32 *first_page;  // [batch]: where a sequence's entries begin
    const i32 *key_count;  // [batch]: keys of each sequence
    i32 page_count;  // pages of a pool
#endif
};
