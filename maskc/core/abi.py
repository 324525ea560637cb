"""Argument blocks of kernels, as tables of fields.

The declarations in C and the ctypes structures are made from these tables. Strides are in elements.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cache

from maskc.core.score import MAX_RANK, MAX_SLOTS


@dataclass(frozen=True, slots=True)
class Field:
    """A member of an argument block: its name, its type in C, and a note on shape and meaning."""

    name: str
    ctype: str
    note: str
    count: int = 1
    """Length of an array member; 1 for a scalar."""


_AXES = MAX_SLOTS * MAX_RANK

MAX_ARRAYS = 8
"""The most data arrays that a mask may read."""

FIELDS: tuple[Field, ...] = (
    Field("q", "const void *", "[batch, heads_q, n_q, HEAD_DIM]"),
    Field("k", "const void *", "[batch, heads_kv, n_kv, HEAD_DIM]"),
    Field("v", "const void *", "[batch, heads_kv, n_kv, HEAD_DIM_V]"),
    Field("out", "void *", "[batch, heads_q, n_q, HEAD_DIM_V]"),
    Field("lse", "float *", "[batch, heads_q, n_q], natural log"),
    Field("dout", "const void *", "backward: like out"),
    Field("dq", "void *", "backward: like q"),
    Field("dk", "void *", "backward: like k"),
    Field("dv", "void *", "backward: like v"),
    Field("delta", "float *", "workspace; backward: [batch, heads_q, n_q] rowsum(out * dout)"),
    Field("dsink", "float *", "backward: [heads_q] to add to, or null"),
    Field("dslopes", "float *", "backward: [heads_q] to add to, or null"),
    Field("alibi_slopes", "const float *", "[heads_q], or null"),
    Field("sink_logits", "const float *", "[heads_q], or null"),
    Field("row_ptr", "const i32 *", "[lists][tile_rows + 1] offsets into row_tiles"),
    Field("row_tiles", "const i32 *", "tile column * 2 + (1 if every pair is live), ascending"),
    Field("col_ptr", "const i32 *", "backward: [lists][tile_cols + 1] offsets into col_tiles"),
    Field("col_tiles", "const i32 *", "backward: tile row * 2 + (1 if full), ascending"),
    Field("work", "const i32 *", "[items + empty + merges][WORK_FIELDS], see maskc/core/abi.py"),
    Field("counter", "i32 *", "[2 + rows], zero before and after a launch; see maskc/core/abi.py"),
    Field("head_variant", "const i32 *", "[heads_q] which mask each head has, or null: mask 0"),
    Field("mask_args", "const i32 *", "[variants][1 + N_ARGS]: the formula's shape, its constants"),
    Field("distances", "const i32 *", "[variants] bits of partial tiles, see maskc/layout/"),
    Field("col_turns", "const i32 *", "of each of col_tiles, or null: see maskc/layout/work/"),
    Field("array", "const i32 *", "data arrays of the mask", MAX_ARRAYS),
    Field("array_batch", "i64", "elements from one sequence's array to the next, 0 if shared",
          MAX_ARRAYS),
    Field("array_head", "i64", "elements from one head's array to the next, 0 if shared",
          MAX_ARRAYS),
    Field("array_row", "i64", "elements from one row to the next; of parts see lib/tokens_*.cuh",
          MAX_ARRAYS),
    Field("q_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("k_stride", "i64", "likewise", 3),
    Field("v_stride", "i64", "likewise", 3),
    Field("out_stride", "i64", "likewise", 3),
    Field("dout_stride", "i64", "likewise", 3),
    Field("dq_stride", "i64", "likewise", 3),
    Field("dk_stride", "i64", "likewise", 3),
    Field("dv_stride", "i64", "likewise", 3),
    Field("lse_stride", "i64", "likewise", 3),
    Field("batch", "i32", "sequences"),
    Field("heads_q", "i32", "query heads"),
    Field("heads_kv", "i32", "key/value heads; heads_q is a multiple"),
    Field("n_q", "i32", "queries per sequence, or rows of a packed head"),
    Field("queries", "i32", "per sequence; n_q counts rows where heads are packed"),
    Field("n_kv", "i32", "keys per sequence"),
    Field("tile_rows", "i32", "ceil(n_q / TILE_Q), or boxes of a grid"),
    Field("tile_cols", "i32", "ceil(n_kv / TILE_K), or boxes of a grid"),
    Field("items", "i32", "of the work list that have tiles"),
    Field("empty", "i32", "items behind them without any"),
    Field("shared_items", "i32", "rows to be merged, or columns that items share"),
    Field("list_batch", "i32", "lists from one sequence to the next, 0 if all share theirs"),
    Field("accumulates", "i32", "1: add to the results of an earlier launch over other keys"),
    Field("spacing", "float", "the distance from one token to the next"),
    Field("scale", "float", "factor of q . k"),
    Field("softcap", "float", "of the options; read only where they are built in"),
    Field("alpha_minus_1", "float", "of entmax; read only by kernels built WITH_ENTMAX"),
    Field("further", "i32", "deterministic: most further tiles of dq of a list"),
    Field("row_sums", "const i32 *", "[lists][tile_rows + 1] of them before a row, or null: none"),
)  # fmt: skip

SCORE_FIELDS: tuple[Field, ...] = (
    Field("score_table", "const void *", "tables, or null: a number", MAX_SLOTS),
    Field("score_gradient", "float *", "backward: to add to, or null", MAX_SLOTS),
    Field("score_sums", "i64 *", "backward: exact sums [entries][SUM_WORDS], or null", MAX_SLOTS),
    Field("score_diagonals", "float *", "backward: zeros for sums by distance, or null"),
    Field("score_entries", "i64", "of each gradient", MAX_SLOTS),
    Field("score_step", "i64", "elements along each dimension; 0: one for all", _AXES),
    Field("score_gradient_step", "i64", "likewise of gradients", _AXES),
    Field("score_size", "i32", "entries along each dimension", _AXES),
    Field("score_number", "float", "parameters that are no tables", MAX_SLOTS),
    Field("score_integer", "i32", "likewise", MAX_SLOTS),
    Field("score_pairs", "i32", "the table of pairs: HALVES, TWOS of gen/score.h.j2"),
)
"""Members that follow FIELDS in `struct Attention` in sources with a score formula."""

TABLES_LEFT = 32
"""Flag of `score_pairs`: some gradients of tables are left to the launches after the main one."""

DROPOUT_FIELDS: tuple[Field, ...] = (
    Field("dropout_seed_at", "const i64 *", "where the seed lies, or null: in dropout_seed"),
    Field("dropout_seed", "i64", "of all bits that are drawn"),
    Field("dropout_least", "i32", "the least of 0 .. 65535 whose pair is kept"),
    Field("dropout_scale", "float", "1 / (the share that is kept); 0 where nothing is"),
    Field("dropout_first_q", "i32", "sixteens of queries of the sequence before the call's first"),
    Field("dropout_first_k", "i32", "likewise of keys"),
)
"""Members that follow these in sources with dropout."""

FP8_FIELDS: tuple[Field, ...] = (
    Field("v_transposed", "unsigned char *", "workspace: v^T, tile by tile"),
    Field("q_descale", "const float *", "[batch, heads_kv] factors of q, or null: 1"),
    Field("k_descale", "const float *", "of k, likewise"),
    Field("v_descale", "const float *", "of v, likewise"),
)
"""Members that follow FIELDS in `struct Attention` in sources for E4M3."""

PAGE_FIELDS: tuple[Field, ...] = (
    Field("pages", "const i32 *", "entries of page tables: which page of the pool"),
    Field("first_page", "const i32 *", "[batch]: where a sequence's entries begin"),
    Field("key_count", "const i32 *", "[batch]: keys of each sequence"),
    Field("page_count", "i32", "pages of a pool"),
)
"""Members that follow these in sources with a paged KV cache."""

POOL_FIELDS: tuple[Field, ...] = (
    Field("k_scale", "const float *", "factors of keys, or null: k_number"),
    Field("v_scale", "const float *", "likewise of values"),
    Field("k_scale_step", "i64", "elements between sequences, heads; 0 broadcasts", 2),
    Field("v_scale_step", "i64", "likewise", 2),
    Field("scale_sequence", "const i32 *", "[batch]: whose factors, or null: its own"),
    Field("k_number", "float", "the factor of all keys"),
    Field("v_number", "float", "likewise of values"),
)
"""Members that follow these in sources that convert pools of E4M3."""

WORK_FIELDS: tuple[tuple[str, str], ...] = (
    (
        "tile",
        "tile row; backward: tile column; packed heads, which have one row: 0, -1 in unused items",
    ),
    ("head", "batch * heads_q + query head, the first one"),
    ("first", "first tile of its range, or where its list starts in row_tiles (col_tiles)"),
    ("count", "tiles; deterministic backward: of all its heads"),
    (
        "full_first",
        "range: tiles full_first .. full_last - 1 have only live pairs; where tile rows may begin "
        "with documents: the first query, packed heads: the first row",
    ),
    ("full_last", "past the last of them"),
    (
        "heads",
        "backward: consecutive query heads with this list that are taken one by one; "
        "packed heads: the number of the row among those to be merged",
    ),
    (
        "shared",
        "1 + number of a column that others add to too, or of a part of a row, "
        "of packed heads its last one; else 0",
    ),
)
"""The int32 fields of one work item.

After all items follow records of the same form: rows to merge, or columns that several items share.
In these, `tile` and `head` name the row or column, `first` is the number of its first part, and
`count` the number of parts. In lists built on the GPU, `items` also counts items without tiles,
which come last. In a deterministic backward pass, `first` and `count` of a shared item are relative
to its head's list.

`counter` holds the number of items that blocks took after their first, and the number of blocks
that finished. With pack_gqa it also holds the number of stored partial results for each row to
merge.
"""

MAX_READINGS = 2 * MAX_ARRAYS
"""The most ways in which tiles read a mask's arrays: every array by queries and by keys."""
MAX_SELECTIONS = 3
"""The most run-time selections of one mask that the GPU computes."""
_EACH = MAX_SELECTIONS
MAX_RESULTS = 5
"""The most results of a pass: dq, dk, dv and two gradients per head."""

LISTS_FIELDS: tuple[Field, ...] = (
    Field("source", "const void *", "what the caller gave, by array", MAX_ARRAYS),
    Field("kept_ptr", "const i32 *", "[heads][tiles + 1]: candidates, the tiles of any data", 2),
    Field("kept_tiles", "const i32 *", "index * 2 + (1 if every pair is live), ascending", 2),
    Field("mask_args", "const i32 *", "[heads]: the formula's shape, its constants"),
    Field("cases", "const i32 *", "selections: [cases][2], a variant and a head that has the case"),
    Field("codes", "const i32 *", "[variants][tile rows][tile columns], see maskc/layout/topk/"),
    Field("planned", "const i32 *", "[items + merges][WORK_FIELDS] of candidates, or null"),
    Field("array", "i32 *", "what is given, or chosen, as the pass reads it", MAX_ARRAYS),
    Field("bounds", "i32 *", "[tiles][4]: least and greatest of a tile, 0, their last end"),
    Field("starts", "i32 *", "[batches][tile columns][4] bits: keys that begin a tile, or null"),
    Field("seen", "i32 *", "[lists][tile rows][2][words]: what some queries chose, and all", _EACH),
    Field("bits", "i32 *", "[lists][words][2]: candidates that stay, and are full", 2),
    Field("counts", "i32 *", "[lists][tiles]: live tiles", 2),
    Field("ptr", "i32 *", "[lists][tiles + 1]: row_ptr and col_ptr", 2),
    Field("tiles", "i32 *", "row_tiles and col_tiles; [lists][room]", 2),
    Field("work", "i32 *", "[items][WORK_FIELDS], or null"),
    Field("counter", "i32 *", "[counters] of the pass, which this launch clears"),
    Field("verdict", "i32 *", "whether the data were wrong, or null"),
    Field("state", "i32 *", "[STATE_WORDS + lists * STATE_OF_LIST], zero before the launch"),
    Field("spent", "i32 *", "the state of the launch before, to be cleared, or null"),
    Field("report", "i32 *", "in host memory: set to 1 if data were wrong, never cleared"),
    Field("fine", "i32 *", "in host memory: gets the ticket if nothing was wrong, or null"),
    Field(
        "result", "i32 *", "results of the pass; they become NaN if data were wrong", MAX_RESULTS
    ),
    Field("most", "i64", "most tokens of a document, as declared", MAX_ARRAYS),
    Field("ticket", "i64", "number of these lists, see `fine`"),
    Field("result_words", "i64", "size of a result, in words of four bytes", MAX_RESULTS),
    Field("source_batch", "i64", "elements from one sequence to the next, 0 if shared", MAX_ARRAYS),
    Field("source_head", "i64", "likewise from one head to the next", MAX_ARRAYS),
    Field("source_row", "i64", "likewise from one row of a table to the next", MAX_ARRAYS),
    Field("source_step", "i64", "elements from one entry, or length, to the next", MAX_ARRAYS),
    Field("array_batch", "i64", "as in struct Attention", MAX_ARRAYS),
    Field("array_head", "i64", "likewise", MAX_ARRAYS),
    Field("array_row", "i64", "likewise", MAX_ARRAYS),
    Field("source_code", "i32", "type of an element: 0 u8, 1 i8, 2 i16, 3 i32, 4 i64", MAX_ARRAYS),
    Field("rule", "i32", "0 as it is, 1 boolean, 2 clipped to 0..n_kv, 3 cumulative", MAX_ARRAYS),
    Field("ends", "i32", "cumulative lengths of a sequence", MAX_ARRAYS),
    Field("batches", "i32", "sequences of the array, or 1", MAX_ARRAYS),
    Field("heads_of", "i32", "heads of the array, or 1", MAX_ARRAYS),
    Field("rows", "i32", "rows of a table, or 1", MAX_ARRAYS),
    Field("columns", "i32", "entries of a row", MAX_ARRAYS),
    Field("first_block", "i32", "first block of each reading; then their number", MAX_READINGS + 1),
    Field("first_tile", "i32", "first tile of each reading, among all bounds", MAX_READINGS),
    Field("bit_words", "i32", "words of `bits` of a list", 2),
    Field("room", "i32", "tiles for which a list has room", 2),
    Field("n", "i32", "queries, and keys", 2),
    Field("tile", "i32", "tokens of a tile", 2),
    Field("tile_count", "i32", "tile rows, and tile columns", 2),
    Field("lists", "i32", "tile lists: sequences with their own data, times heads with theirs"),
    Field("heads", "i32", "lists of a sequence"),
    Field("sharing", "i32", "query heads with lists of their own that share items' columns, or 0"),
    Field("wide", "i32", "whether constants have two words"),
    Field("band", "i32", "query q sees keys q + [0] to q + [1] - 1 of its document", 2),
    Field("most_runs", "i32", "most documents of a list, if tiles begin with documents"),
    Field("reading_blocks", "i32", "blocks that read the data"),
    Field("reading_tiles", "i32", "tiles that such a block reads, at most READ_TILES", 2),
    Field("lines", "i32", "tile rows, tile columns or both, of all lists"),
    Field("line_blocks", "i32", "blocks that find the tiles of lines"),
    Field("line_threads", "i32", "threads of a line: those of a warp, or of a block"),
    Field("item_blocks", "i32", "blocks that write planned items, 0 without a plan"),
    Field("first_side", "i32", "first side that gets lists: 0 rows, 1 columns"),
    Field("work_side", "i32", "side whose tiles the items have, if there are items"),
    Field(
        "owners",
        "i32",
        "items of a tile row or column of a list: one for each head, or group of heads",
    ),
    Field("owner_heads", "i32", "query heads from one owner to the next"),
    Field("item_heads", "i32", "heads of an item, see WORK_FIELDS"),
    Field("group_owners", "i32", "owners of a list that share the L2 cache"),
    Field("group_lists", "i32", "lists that share it; above 1 with all of their owners"),
    Field("part_tiles", "i32", "pack_gqa: least tiles of a part; 0: rows are not split"),
    Field(
        "fixed_tiles",
        "i32",
        "tiles of a part, if only the row's own tiles decide; 0: the load decides",
    ),
    Field("most_parts", "i32", "most parts of a row"),
    Field("pieces", "i32", "numbers of parts of the longest row, to choose from", 20),
    Field("item_cost", "i32", "tiles that take as long as starting an item"),
    Field("part_cost", "i32", "tiles that take as long as finishing a part"),
    Field("blocks", "i32", "blocks of the pass that run at once; each should get an item"),
    Field("items", "i32", "items that are planned, or for which there is room"),
    Field("merges", "i32", "rows to merge, behind the items"),
    Field("counters", "i32", "counters of the pass"),
)
"""Arguments of the kernel that builds tile lists on the GPU from data, documents or chosen blocks.
In arrays of two, the first value is for queries and tile rows, the second for keys and tile
columns."""
LIST_THREADS = 128
"""The threads of a block of that kernel: one for every key of a tile."""
LENGTH_THREADS = 512
"""The threads of a block that makes lists from cumulative lengths alone."""
READ_TILES = 16
"""The most tiles for which a block of that kernel reads data."""
MAX_LENGTHS, MAX_ROWS, MAX_LISTS = 2048, 2048, 256
"""The most cumulative lengths of both sides, tile rows, and lists that follow from lengths alone: a
block keeps them in shared memory."""
MAX_TOKENS = 1 << 23
"""The most tokens of these: more cannot be divided by a multiplication."""
STATE_WORDS, STATE_OF_LIST = 4, 4
"""int32 words by which blocks of that kernel report progress to each other: in all, and for each
list."""

SELECTED_FIELDS: tuple[Field, ...] = (
    Field("q", "const void *", "[batch, heads_q, n_q, HEAD_DIM]"),
    Field("k", "const void *", "[batch, heads_kv, n_kv, HEAD_DIM]"),
    Field("ranked", "const void *", "scores, index_q, index_k, index_w, its factors; or null", 5),
    Field("classes", "const i32 *", "[rows][columns]: 0 no pair may be chosen, 1 some, 2 all",
          _EACH),
    Field("args", "const i32 *", "values of parameters"),
    Field("joined", "float *", "sums or means of blocks: of queries, of keys; [..., HEAD_DIM]",
          2 * _EACH),
    Field("bits", "i32 *", "[batch or 1][heads or 1][rows][words]: what is chosen", _EACH),
    Field("state", "i32 *", "of struct Lists, to be cleared"),
    Field("q_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("k_stride", "i64", "likewise", 3),
    Field("ranked_stride", "i64", "of each: between batches, heads, rows, columns", 20),
    Field("bits_batch", "i64", "words from one sequence to the next, 0 if all share theirs", _EACH),
    Field("bits_head", "i64", "the same of query heads", _EACH),
    Field("ranked_type", "i32", "0 fp32, 1 fp16, 2 bf16, 3 E4M3", 5),
    Field("cells", "i32", "whether scores are of blocks, not of pairs"),
    Field("index_heads", "i32", "of the indexer"),
    Field("index_dim", "i32", "elements of its rows"),
    Field("n", "i32", "queries, and keys", 2),
    Field("batch", "i32", "sequences"),
    Field("heads_q", "i32", "query heads"),
    Field("heads_kv", "i32", "key/value heads"),
    Field("rows", "i32", "blocks of queries", _EACH),
    Field("columns", "i32", "blocks of keys", _EACH),
    Field("words", "i32", "of 32 blocks of keys", _EACH),
    Field("turn", "i32", "blocks of queries that a block ranks for", _EACH),
    Field("owners", "i32", "who choose for themselves in a sequence", _EACH),
    Field("voters", "i32", "query heads whose scores an owner joins", _EACH),
    Field("copies", "i32", "query heads to which an owner's choice is written", _EACH),
    Field("first_block", "i32", "of the launch that ranks", _EACH),
    Field("first_join", "i32", "warp of the launch that joins rows", _EACH),
    Field("state_words", "i32", "of the state"),
)  # fmt: skip
"""Arguments of the kernels that choose blocks. Arrays have an entry for each selection. In arrays
of two, the first value is for queries, the second for keys."""

MAX_MOVED = 8
"""The most tensors whose rows one launch moves."""
_TENSORS = MAX_MOVED

MOVED_FIELDS: tuple[Field, ...] = (
    Field("source", "const void *", "or null: every row is filled", _TENSORS),
    Field("to", "void *", "rows of other memory", _TENSORS),
    Field("tokens", "const i32 *", "[lists][listed], ascending; -1 behind the last one", _TENSORS),
    Field("flags", "const void *", "[lists][n]: booleans or integers", 2),
    Field("made", "i32 *", "[lists][room]: the lists", 2),
    Field("result", "i32 *", "what is spoilt where a list has no room", MAX_RESULTS),
    Field("verdict", "i32 *", "[both lists]: whether it has none"),
    Field("report", "i32 *", "the same, set and never cleared, in memory of the host"),
    Field("source_stride", "i64", "of each: units between batches, heads, rows", 3 * _TENSORS),
    Field("to_stride", "i64", "likewise", 3 * _TENSORS),
    Field("tokens_batch", "i64", "entries from one list to the next, 0 if all share theirs",
          _TENSORS),
    Field("way", "i32", "0: to row i from row tokens[i]; 1: back; 2: all rows, filled if listed",
          _TENSORS),
    Field("heads", "i32", "of each", _TENSORS),
    Field("rows", "i32", "of a head that are moved", _TENSORS),
    Field("listed", "i32", "entries of a list", _TENSORS),
    Field("width", "i32", "units of a row", _TENSORS),
    Field("unit", "i32", "bytes: 2, 4 or 16", _TENSORS),
    Field("filling", "i32", "the word in rows that have no source", _TENSORS),
    Field("flags_list", "i64", "elements from one sequence's flags to the next", 2),
    Field("flags_step", "i64", "elements from one token's flag to the next", 2),
    Field("result_words", "i64", "of four bytes", MAX_RESULTS),
    Field("flag_bytes", "i32", "of an element: 1, 4 or 8", 2),
    Field("n", "i32", "queries, and keys", 2),
    Field("room", "i32", "tokens for which a list has room", 2),
    Field("lists", "i32", "sequences with flags of their own, or 1; 0 without flags", 2),
    Field("batch", "i32", "sequences"),
    Field("count", "i32", "tensors"),
)  # fmt: skip
"""Arguments of the kernels that list tokens and move their rows. Arrays have an entry for each
tensor. In arrays of two, the first value is for queries, the second for keys."""

STEP_FIELDS: tuple[Field, ...] = (
    Field("lens_q", "const void *", "queries of each sequence, or null: `sequence_queries` of all"),
    Field("lens_kv", "const void *", "keys of each sequence"),
    Field("table", "const void *", "[sequences][columns] or [entries]: pages"),
    Field("starts", "const void *", "where each sequence's entries begin, or null: by rows"),
    Field("source", "const void *", "data of the mask, an entry per token", MAX_ARRAYS),
    Field("position", "i32 *", "[blocks][block]: of each query, -1 where there is none"),
    Field("length", "i32 *", "[blocks][block]: keys of its sequence, 0 where there is none"),
    Field("queries", "i32 *", "[blocks][block]: queries of its sequence, or null"),
    Field("key_count", "i32 *", "[blocks]: as in struct Attention"),
    Field("first_page", "i32 *", "[blocks]: likewise"),
    Field("owner", "i32 *", "[blocks]: the sequence of each, or null"),
    Field("used", "i32 *", "[sequences]: keys"),
    Field("spans", "i32 *", "[sequences][2]: its first entry, and the one past its last"),
    Field("pages", "i32 *", "[entries]: as in struct Attention"),
    Field("token_position", "i32 *", "[tokens]: position, -1 behind the last sequence"),
    Field("slots", "i64 *", "[tokens]: page * page_size + place, -1 where there is none"),
    Field("rows", "i32 *", "[blocks][block]: the token of each query, or null"),
    Field("places", "i32 *", "[tokens]: block * queries of a block + query, or null"),
    Field("is_real", "unsigned char *", "[tokens]: whether it is of a sequence, or null"),
    Field("array", "i32 *", "data by block: [blocks][block], [blocks][n_kv] or [n_kv]", MAX_ARRAYS),
    Field("lens_q_step", "i64", "elements from one to the next"),
    Field("lens_kv_step", "i64", "likewise"),
    Field("starts_step", "i64", "likewise"),
    Field("table_step", "i64", "likewise: of sequences, and of entries", 2),
    Field("source_sequence", "i64", "elements between sequences, 0 if shared", MAX_ARRAYS),
    Field("source_token", "i64", "likewise between tokens", MAX_ARRAYS),
    Field("lens_q_code", "i32", "of an element: 0 u8, 1 i8, 2 i16, 3 i32, 4 i64"),
    Field("lens_kv_code", "i32", "likewise"),
    Field("table_code", "i32", "likewise"),
    Field("starts_code", "i32", "likewise"),
    Field("source_code", "i32", "likewise", MAX_ARRAYS),
    Field("flags", "i32", "whether entries become 0 or 1", MAX_ARRAYS),
    Field("of_queries", "i32", "whether a block has those of its queries, else of keys",
          MAX_ARRAYS),
    Field("shared", "i32", "whether all sequences share its keys' data", MAX_ARRAYS),
    Field("arrays", "i32", "of the mask"),
    Field("sequence_queries", "i32", "queries of every sequence without lens_q"),
    Field("cumulative", "i32", "whether lens_q says where queries begin, [sequences + 1]"),
    Field("whole", "i32", "whether every sequence is one block"),
    Field("sequences", "i32", "of the step"),
    Field("tokens", "i32", "queries for which there is room"),
    Field("block", "i32", "queries of a block"),
    Field("blocks", "i32", "for which there is room"),
    Field("columns", "i32", "entries of a row of the table; all entries with starts"),
    Field("entries", "i32", "of the table"),
    Field("page_size", "i32", "tokens of a page"),
    Field("n_kv", "i32", "keys of a block, a multiple of tiles"),
    Field("max_kv", "i32", "tokens for which data have entries"),
)  # fmt: skip
"""Arguments of the kernel that prepares the arrays of a step over a paged KV cache."""

PAGED_ROWS_FIELDS: tuple[Field, ...] = (
    Field("source", "const void *", "[tokens][heads][dim]: queries, keys, values", 3),
    Field("to", "void *", "where they go: queries likewise, others to pages", 3),
    Field("cosine", "const void *", "[lines][rotated / 2], or null"),
    Field("sine", "const void *", "likewise"),
    Field("scale", "const float *", "by which rows are divided, or null", 3),
    Field("slots", "const i64 *", "[tokens]: as in struct PageStep"),
    Field("token_position", "const i32 *", "[tokens]: likewise"),
    Field("source_step", "i64", "of each: elements between tokens, heads", 6),
    Field("to_step", "i64", "of each: between pages, heads, tokens; of queries between tokens, "
          "heads", 9),
    Field("line_step", "i64", "elements between lines of cosine and sine"),
    Field("scale_step", "i64", "elements between heads, 0 if shared", 3),
    Field("number", "float", "by which rows are divided without `scale`", 3),
    Field("heads", "i32", "of each, 0 where it is not given", 3),
    Field("dim", "i32", "elements of a row", 3),
    Field("to_code", "i32", "of an element: 0 fp32, 1 bf16, 2 fp16, 3 E4M3", 3),
    Field("source_code", "i32", "likewise"),
    Field("angle_code", "i32", "likewise of cosine and sine"),
    Field("rotated", "i32", "elements of a row that turn, the first ones"),
    Field("interleaved", "i32", "whether pairs are neighbours, else half of `rotated` apart"),
    Field("lines", "i32", "positions that cosine and sine have"),
    Field("tokens", "i32", "of the step"),
    Field("page_size", "i32", "tokens of a page"),
    Field("page_count", "i32", "pages of a pool"),
)  # fmt: skip
"""Arguments of the kernel that appends rows of new tokens to a paged KV cache."""

BLOCK_ROWS_FIELDS: tuple[Field, ...] = (
    Field("source", "const void *", "rows of q, or results of blocks"),
    Field("to", "void *", "blocks, or results of tokens"),
    Field("lse", "const float *", "results of blocks"),
    Field("lse_to", "float *", "[tokens][heads]"),
    Field("rows", "const i32 *", "[blocks][block]: row of q of each query, or null: in order"),
    Field("places", "const i32 *", "[tokens]: query among those of all blocks, or null: in order"),
    Field("is_real", "const unsigned char *", "[tokens]: whether a block has it, or null: all"),
    Field("token_step", "i64", "bytes between tokens, heads", 2),
    Field("block_step", "i64", "bytes between blocks, heads, queries", 3),
    Field("lse_step", "i64", "elements likewise, of `lse`", 3),
    Field("units", "i32", "of a row"),
    Field("unit", "i32", "bytes that are copied at once: 16, 8, 4 or 2"),
    Field("heads", "i32", "of queries"),
    Field("tokens", "i32", "rows of q"),
    Field("block", "i32", "queries of a block"),
    Field("blocks", "i32", "of queries"),
)
"""Arguments of the kernels that copy queries into blocks, and results back."""

_CTYPES: dict[str, type[ctypes.c_int32 | ctypes.c_int64 | ctypes.c_float]] = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "float": ctypes.c_float,
}  # fmt: skip


@cache
def structure(fields: tuple[Field, ...] = FIELDS) -> type[ctypes.Structure]:
    """Return the ctypes structure of an argument block, with pointers as integers.

    Args:
        fields: the members, in order.
    """
    members: list[tuple[str, type]] = []
    for field in fields:
        kind = ctypes.c_void_p if field.ctype.endswith("*") else _CTYPES[field.ctype]
        members.append((field.name, kind * field.count if field.count > 1 else kind))
    return type("Arguments", (ctypes.Structure,), {"_fields_": members})


_FORMATS = {"i32": "i", "i64": "q", "float": "f"}


def packer(fields: tuple[Field, ...]) -> struct.Struct:
    """Return what packs the values of a few members into the bytes of their block.

    Args:
        fields: the members, in order; an array member takes as many values as it has entries.
    """
    formats = ("P" if x.ctype.endswith("*") else _FORMATS[x.ctype] for x in fields)
    members = (f"{x.count}{text}" for x, text in zip(fields, formats, strict=True))
    return struct.Struct("".join(members) + "0P")  # the next block begins aligned


ATTENTION = structure()
SCORE = structure(SCORE_FIELDS)
"""Blocks that follow ATTENTION in this order, in sources that have them."""


@cache
def longer(size: int) -> type[ctypes.Structure]:
    """Return ATTENTION extended to a size in bytes.

    Args:
        size: bytes of the extended block.
    """
    rest = size - ctypes.sizeof(ATTENTION)
    return type("Longer", (ATTENTION,), {"_fields_": [("rest", ctypes.c_char * rest)]})


POINTERS = (
    "q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv", "delta", "dsink", "dslopes",
    "alibi_slopes", "sink_logits",
)  # fmt: skip
"""The pointers that every call sets: a plain forward pass the first five, other calls all."""


LISTED_POINTERS = (
    "row_ptr", "row_tiles", "col_ptr", "col_tiles", "work", "counter", "head_variant", "mask_args",
    "distances", "col_turns",
)  # fmt: skip
"""Pointers that a call sets as well if its lists are built on the GPU; `array` adds three."""


Pointers = tuple[int, ...]
"""Addresses in the order of POINTERS, the first five or all, with 0 for missing tensors. If lists
are built on the GPU, the addresses of LISTED_POINTERS and of three arrays follow."""

Numbers = tuple[float | None, float | None] | None
"""(scale, softcap) of a call, each None if it has none; None if it has neither."""


MAX_CONSTANTS = 48
"""The most constants that a mask's formulas have."""


GATHERED_FIELDS: tuple[Field, ...] = (
    Field("index_q", "const void *", "[batch, index heads, n_q, INDEX_DIM]"),
    Field("index_k", "const void *", "[batch, n_kv, INDEX_DIM]"),
    Field("index_w", "const void *", "[batch, index heads, n_q]"),
    Field("given", "const void *", "scores [batch, heads, n_q, n_kv]"),
    Field("factors", "const void *", "of the keys of index_k, [batch, n_kv], or null"),
    Field("scores", "float *", "workspace [rows][pitch], of the rows at hand"),
    Field("lists", "i32 *", "[all rows][room]: the keys of a query, ascending"),
    Field("counts", "i32 *", "[all rows]: how many they are"),
    Field("index_q_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("index_k_stride", "i64", "elements between batches, tokens", 2),
    Field("index_w_stride", "i64", "elements between batches, heads, tokens", 3),
    Field("given_stride", "i64", "elements between batches, heads, queries", 3),
    Field("factor_stride", "i64", "elements between batches, tokens", 2),
    Field("pitch", "i64", "elements from one row of scores to the next"),
    Field("first", "i64", "of the rows at hand: (sequence * groups + group) * n_q + query"),
    Field("rows", "i32", "at hand"),
    Field("groups", "i32", "of heads of a sequence that have lists of their own"),
    Field("n_q", "i32", "queries"),
    Field("n_kv", "i32", "keys"),
    Field("wanted", "i32", "keys that are chosen, at most n_kv"),
    Field("room", "i32", "keys for which a list has room"),
    Field("heads", "i32", "of the indexer, or whose given scores are averaged"),
    Field("index_dim", "i32", "elements of a row of index_q and index_k"),
    Field("weight_code", "i32", "of an element of index_w: 0 fp32, 1 bf16, 2 fp16"),
    Field("given_code", "i32", "likewise of the scores"),
    Field("factor_code", "i32", "likewise of the factors"),
    Field("constants", "i32", "of the mask's formulas", MAX_CONSTANTS),
)
"""Argument block of kernels that score keys and list the best."""
