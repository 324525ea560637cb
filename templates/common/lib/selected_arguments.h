// The argument block of launches that select blocks of keys: maskc/core/abi.py.

struct Selected {
    const void *q;  // [batch, heads_q, n_q, HEAD_DIM]
    const void *k;  // [batch, heads_kv, n_kv, HEAD_DIM]
    const void *ranked[5];  // scores, index_q, index_k, index_w, its factors; or null
    const i32 *classes[3];  // [rows][columns]: 0 no pair may be chosen, 1 some, 2 all
    const i32 *args;  // values of parameters
    float *joined[6];  // sums or means of blocks: of queries, of keys; [..., HEAD_DIM]
    i32 *bits[3];  // [batch or 1][heads or 1][rows][words]: what is chosen
    i32 *state;  // of struct Lists, to be cleared
    i64 q_stride[3];  // elements between batches, heads, tokens
    i64 k_stride[3];  // likewise
    i64 ranked_stride[20];  // of each: between batches, heads, rows, columns
    i64 bits_batch[3];  // words from one sequence to the next, 0 if all share theirs
    i64 bits_head[3];  // the same of query heads
    i32 ranked_type[5];  // 0 fp32, 1 fp16, 2 bf16, 3 E4M3
    i32 cells;  // whether scores are of blocks, not of pairs
    i32 index_heads;  // of the indexer
    i32 index_dim;  // elements of its rows
    i32 n[2];  // queries, and keys
    i32 batch;  // sequences
    i32 heads_q;  // query heads
    i32 heads_kv;  // key/value heads
    i32 rows[3];  // blocks of queries
    i32 columns[3];  // blocks of keys
    i32 words[3];  // of 32 blocks of keys
    i32 turn[3];  // blocks of queries that a block ranks for
    i32 owners[3];  // who choose for themselves in a sequence
    i32 voters[3];  // query heads whose scores an owner joins
    i32 copies[3];  // query heads to which an owner's choice is written
    i32 first_block[3];  // of the launch that ranks
    i32 first_join[3];  // warp of the launch that joins rows
    i32 state_words;  // of the state
};
