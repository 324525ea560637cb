// The argument blocks of launches over pages: maskc/core/abi.py.

struct PageStep {
    const void *lens_q;  // queries of each sequence, or null: `sequence_queries` of all
    const void *lens_kv;  // keys of each sequence
    const void *table;  // [sequences][columns] or [entries]: pages
    const void *starts;  // where each sequence's entries begin, or null: by rows
    const void *source[8];  // data of the mask, an entry per token
    i32 *position;  // [blocks][block]: of each query, -1 where there is none
    i32 *length;  // [blocks][block]: keys of its sequence, 0 where there is none
    i32 *queries;  // [blocks][block]: queries of its sequence, or null
    i32 *key_count;  // [blocks]: as in struct Attention
    i32 *first_page;  // [blocks]: likewise
    i32 *owner;  // [blocks]: the sequence of each, or null
    i32 *used;  // [sequences]: keys
    i32 *spans;  // [sequences][2]: its first entry, and the one past its last
    i32 *pages;  // [entries]: as in struct Attention
    i32 *token_position;  // [tokens]: position, -1 behind the last sequence
    i64 *slots;  // [tokens]: page * page_size + place, -1 where there is none
    i32 *rows;  // [blocks][block]: the token of each query, or null
    i32 *places;  // [tokens]: block * queries of a block + query, or null
    unsigned char *is_real;  // [tokens]: whether it is of a sequence, or null
    i32 *array[8];  // data by block: [blocks][block], [blocks][n_kv] or [n_kv]
    i64 lens_q_step;  // elements from one to the next
    i64 lens_kv_step;  // likewise
    i64 starts_step;  // likewise
    i64 table_step[2];  // likewise: of sequences, and of entries
    i64 source_sequence[8];  // elements between sequences, 0 if shared
    i64 source_token[8];  // likewise between tokens
    i32 lens_q_code;  // of an element: 0 u8, 1 i8, 2 i16, 3 i32, 4 i64
    i32 lens_kv_code;  // likewise
    i32 table_code;  // likewise
    i32 starts_code;  // likewise
    i32 source_code[8];  // likewise
    i32 flags[8];  // whether entries become 0 or 1
    i32 of_queries[8];  // whether a block has those of its queries, else of keys
    i32 shared[8];  // whether all sequences share its keys' data
    i32 arrays;  // of the mask
    i32 sequence_queries;  // queries of every sequence without lens_q
    i32 cumulative;  // whether lens_q says where queries begin, [sequences + 1]
    i32 whole;  // whether every sequence is one block
    i32 sequences;  // of the step
    i32 tokens;  // queries for which there is room
    i32 block;  // queries of a block
    i32 blocks;  // for which there is room
    i32 columns;  // entries of a row of the table; all entries with starts
    i32 entries;  // of the table
    i32 page_size;  // tokens of a page
    i32 n_kv;  // keys of a block, a multiple of tiles
    i32 max_kv;  // tokens for which data have entries
};

struct PagedRows {
    const void *source[3];  // [tokens][heads][dim]: queries, keys, values
    void *to[3];  // where they go: queries likewise, others to pages
    const void *cosine;  // [lines][rotated / 2], or null
    const void *sine;  // likewise
    const float *scale[3];  // by which rows are divided, or null
    const i64 *slots;  // [tokens]: as in struct PageStep
    const i32 *token_position;  // [tokens]: likewise
    i64 source_step[6];  // of each: elements between tokens, heads
    i64 to_step[9];  // of each: between pages, heads, tokens; of queries between tokens, heads
    i64 line_step;  // elements between lines of cosine and sine
    i64 scale_step[3];  // elements between heads, 0 if shared
    float number[3];  // by which rows are divided without `scale`
    i32 heads[3];  // of each, 0 where it is not given
    i32 dim[3];  // elements of a row
    i32 to_code[3];  // of an element: 0 fp32, 1 bf16, 2 fp16, 3 E4M3
    i32 source_code;  // likewise
    i32 angle_code;  // likewise of cosine and sine
    i32 rotated;  // elements of a row that turn, the first ones
    i32 interleaved;  // whether pairs are neighbours, else half of `rotated` apart
    i32 lines;  // positions that cosine and sine have
    i32 tokens;  // of the step
    i32 page_size;  // tokens of a page
    i32 page_count;  // pages of a pool
};

struct BlockRows {
    const void *source;  // rows of q, or results of blocks
    void *to;  // blocks, or results of tokens
    const float *lse;  // results of blocks
    float *lse_to;  // [tokens][heads]
    const i32 *rows;  // [blocks][block]: row of q of each query, or null: in order
    const i32 *places;  // [tokens]: query among those of all blocks, or null: in order
    const unsigned char *is_real;  // [tokens]: whether a block has it, or null: all
    i64 token_step[2];  // bytes between tokens, heads
    i64 block_step[3];  // bytes between blocks, heads, queries
    i64 lse_step[3];  // elements likewise, of `lse`
    i32 units;  // of a row
    i32 unit;  // bytes that are copied at once: 16, 8, 4 or 2
    i32 heads;  // of queries
    i32 tokens;  // rows of q
    i32 block;  // queries of a block
    i32 blocks;  // of queries
};
