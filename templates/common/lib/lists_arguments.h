// The argument block of launches that make tile lists: maskc/core/abi.py.

struct Lists {
    const void *source[8];  // what the caller gave, by array
    const i32 *kept_ptr[2];  // [heads][tiles + 1]: candidates, the tiles of any data
    const i32 *kept_tiles[2];  // index * 2 + (1 if every pair is live), ascending
    const i32 *mask_args;  // [heads]: the formula's shape, its constants
    const i32 *cases;  // selections: [cases][2], a variant and a head that has the case
    const i32 *codes;  // [variants][tile rows][tile columns], see maskc/layout/topk/
    const i32 *planned;  // [items + merges][WORK_FIELDS] of candidates, or null
    i32 *array[8];  // what is given, or chosen, as the pass reads it
    i32 *bounds;  // [tiles][4]: least and greatest of a tile, 0, their last end
    i32 *starts;  // [batches][tile columns][4] bits: keys that begin a tile, or null
    i32 *seen[3];  // [lists][tile rows][2][words]: what some queries chose, and all
    i32 *bits[2];  // [lists][words][2]: candidates that stay, and are full
    i32 *counts[2];  // [lists][tiles]: live tiles
    i32 *ptr[2];  // [lists][tiles + 1]: row_ptr and col_ptr
    i32 *tiles[2];  // row_tiles and col_tiles; [lists][room]
    i32 *work;  // [items][WORK_FIELDS], or null
    i32 *counter;  // [counters] of the pass, which this launch clears
    i32 *verdict;  // whether the data were wrong, or null
    i32 *state;  // [STATE_WORDS + lists * STATE_OF_LIST], zero before the launch
    i32 *spent;  // the state of the launch before, to be cleared, or null
    i32 *report;  // in host memory: set to 1 if data were wrong, never cleared
    i32 *fine;  // in host memory: gets the ticket if nothing was wrong, or null
    i32 *result[5];  // results of the pass; they become NaN if data were wrong
    i64 most[8];  // most tokens of a document, as declared
    i64 ticket;  // number of these lists, see `fine`
    i64 result_words[5];  // size of a result, in words of four bytes
    i64 source_batch[8];  // elements from one sequence to the next, 0 if shared
    i64 source_head[8];  // likewise from one head to the next
    i64 source_row[8];  // likewise from one row of a table to the next
    i64 source_step[8];  // elements from one entry, or length, to the next
    i64 array_batch[8];  // as in struct Attention
    i64 array_head[8];  // likewise
    i64 array_row[8];  // likewise
    i32 source_code[8];  // type of an element: 0 u8, 1 i8, 2 i16, 3 i32, 4 i64
    i32 rule[8];  // 0 as it is, 1 boolean, 2 clipped to 0..n_kv, 3 cumulative
    i32 ends[8];  // cumulative lengths of a sequence
    i32 batches[8];  // sequences of the array, or 1
    i32 heads_of[8];  // heads of the array, or 1
    i32 rows[8];  // rows of a table, or 1
    i32 columns[8];  // entries of a row
    i32 first_block[17];  // first block of each reading; then their number
    i32 first_tile[16];  // first tile of each reading, among all bounds
    i32 bit_words[2];  // words of `bits` of a list
    i32 room[2];  // tiles for which a list has room
    i32 n[2];  // queries, and keys
    i32 tile[2];  // tokens of a tile
    i32 tile_count[2];  // tile rows, and tile columns
    i32 lists;  // tile lists: sequences with their own data, times heads with theirs
    i32 heads;  // lists of a sequence
    i32 sharing;  // query heads with lists of their own that share items' columns, or 0
    i32 wide;  // whether constants have two words
    i32 band[2];  // query q sees keys q + [0] to q + [1] - 1 of its document
    i32 most_runs;  // most documents of a list, if tiles begin with documents
    i32 reading_blocks;  // blocks that read the data
    i32 reading_tiles[2];  // tiles that such a block reads, at most READ_TILES
    i32 lines;  // tile rows, tile columns or both, of all lists
    i32 line_blocks;  // blocks that find the tiles of lines
    i32 line_threads;  // threads of a line: those of a warp, or of a block
    i32 item_blocks;  // blocks that write planned items, 0 without a plan
    i32 first_side;  // first side that gets lists: 0 rows, 1 columns
    i32 work_side;  // side whose tiles the items have, if there are items
    i32 owners;  // items of a tile row or column of a list: one for each head, or group of heads
    i32 owner_heads;  // query heads from one owner to the next
    i32 item_heads;  // heads of an item, see WORK_FIELDS
    i32 group_owners;  // owners of a list that share the L2 cache
    i32 group_lists;  // lists that share it; above 1 with all of their owners
    i32 part_tiles;  // pack_gqa: least tiles of a part; 0: rows are not split
    i32 fixed_tiles;  // tiles of a part, if only the row's own tiles decide; 0: the load decides
    i32 most_parts;  // most parts of a row
    i32 pieces[20];  // numbers of parts of the longest row, to choose from
    i32 item_cost;  // tiles that take as long as starting an item
    i32 part_cost;  // tiles that take as long as finishing a part
    i32 blocks;  // blocks of the pass that run at once; each should get an item
    i32 items;  // items that are planned, or for which there is room
    i32 merges;  // rows to merge, behind the items
    i32 counters;  // counters of the pass
};
