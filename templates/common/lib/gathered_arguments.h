// The argument block of launches that gather keys: maskc/core/abi.py.

struct Gathered {
    const void *index_q;  // [batch, index heads, n_q, INDEX_DIM]
    const void *index_k;  // [batch, n_kv, INDEX_DIM]
    const void *index_w;  // [batch, index heads, n_q]
    const void *given;  // scores [batch, heads, n_q, n_kv]
    const void *factors;  // of the keys of index_k, [batch, n_kv], or null
    float *scores;  // workspace [rows][pitch], of the rows at hand
    i32 *lists;  // [all rows][room]: the keys of a query, ascending
    i32 *counts;  // [all rows]: how many they are
    i64 index_q_stride[3];  // elements between batches, heads, tokens
    i64 index_k_stride[2];  // elements between batches, tokens
    i64 index_w_stride[3];  // elements between batches, heads, tokens
    i64 given_stride[3];  // elements between batches, heads, queries
    i64 factor_stride[2];  // elements between batches, tokens
    i64 pitch;  // elements from one row of scores to the next
    i64 first;  // of the rows at hand: (sequence * groups + group) * n_q + query
    i32 rows;  // at hand
    i32 groups;  // of heads of a sequence that have lists of their own
    i32 n_q;  // queries
    i32 n_kv;  // keys
    i32 wanted;  // keys that are chosen, at most n_kv
    i32 room;  // keys for which a list has room
    i32 heads;  // of the indexer, or whose given scores are averaged
    i32 index_dim;  // elements of a row of index_q and index_k
    i32 weight_code;  // of an element of index_w: 0 fp32, 1 bf16, 2 fp16
    i32 given_code;  // likewise of the scores
    i32 factor_code;  // likewise of the factors
    i32 constants[48];  // of the mask's formulas
};
