// The argument block of launches that pack listed rows: maskc/core/abi.py.

struct Moved {
    const void *source[8];  // or null: every row is filled
    void *to[8];  // rows of other memory
    const i32 *tokens[8];  // [lists][listed], ascending; -1 behind the last one
    const void *flags[2];  // [lists][n]: booleans or integers
    i32 *made[2];  // [lists][room]: the lists
    i32 *result[5];  // what is spoilt where a list has no room
    i32 *verdict;  // [both lists]: whether it has none
    i32 *report;  // the same, set and never cleared, in memory of the host
    i64 source_stride[24];  // of each: units between batches, heads, rows
    i64 to_stride[24];  // likewise
    i64 tokens_batch[8];  // entries from one list to the next, 0 if all share theirs
    i32 way[8];  // 0: to row i from row tokens[i]; 1: back; 2: all rows, filled if listed
    i32 heads[8];  // of each
    i32 rows[8];  // of a head that are moved
    i32 listed[8];  // entries of a list
    i32 width[8];  // units of a row
    i32 unit[8];  // bytes: 2, 4 or 16
    i32 filling[8];  // the word in rows that have no source
    i64 flags_list[2];  // elements from one sequence's flags to the next
    i64 flags_step[2];  // elements from one token's flag to the next
    i64 result_words[5];  // of four bytes
    i32 flag_bytes[2];  // of an element: 1, 4 or 8
    i32 n[2];  // queries, and keys
    i32 room[2];  // tokens for which a list has room
    i32 lists[2];  // sequences with flags of their own, or 1; 0 without flags
    i32 batch;  // sequences
    i32 count;  // tensors
};
