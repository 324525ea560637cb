// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.
#include <sched.h>
#include <stdlib.h>

// ---------------------------------------------------------------- constants

#ifndef WITH_SOFTCAP
#define WITH_SOFTCAP 0
#endif
#ifndef WITH_ALIBI
#define WITH_ALIBI 0
#endif
#ifndef WITH_SINKS
#define WITH_SINKS 0
#endif
#ifndef WITH_ENTMAX
#define WITH_ENTMAX 0
#endif
#ifndef WITH_NAN_SAFE
#define WITH_NAN_SAFE 0
#endif
#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif
#include "common/lib/score_facts.h"

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

// Floats in one vector register, and how many registers wide the block of sums is that multiply()
// keeps. Six rows of sums, a row of its operand and one factor fill the register file.
#if defined(__AVX512F__)
enum { LANES = 16, BLOCK_VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, BLOCK_VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, BLOCK_VECTORS = 4 };
#else
enum { LANES = 4, BLOCK_VECTORS = 2 };
#endif
enum {
    BLOCK_ROWS = 6,
    QK_VECTORS = (HEAD_DIM + LANES - 1) / LANES,  // a row of q or k, padded with zeros
    V_VECTORS = (HEAD_DIM_V + LANES - 1) / LANES,
    QK_LD = QK_VECTORS * LANES,  // floats from one row of a tile to the next
    V_LD = V_VECTORS * LANES,
    MAX_LD = QK_LD > V_LD ? QK_LD : V_LD,
};
_Static_assert(TILE_Q % LANES == 0, "the lanes of a vector are queries of one tile");

#define FN static inline
#define INLINE static inline __attribute__((always_inline))  // for constants to reach the body
#define INFINITE __builtin_inff()
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f
// Softmax sees scores times log2(e), so that 2^x replaces e^x; entmax sees them as they are.
#define UNIT (WITH_ENTMAX ? 1.0f : LOG2E)
#define POWER 1.0f
#define NATURAL (WITH_ENTMAX ? 1.0f : LN2)

// ---------------------------------------------------------------- arguments

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
    i32 queries;  // per sequence: n_q, but for packed heads
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
};

// ---------------------------------------------------------------- the mask

#include "common/lib/integers.h"
#include "common/lib/formulas.h"

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    Integer c0;  // n_kv // 64 - 4
    Integer c1;  // 3
    Integer c2;  // 3
    Integer c3;  // 60
    Integer c4;  // 3
    Integer c5;  // 3
    Integer c6;  // 3
    Integer c7;  // 3
};

// A constant of the mask: one word, or two.
FN Integer constant(const i32 *args, i32 i) {
#if WITH_WIDE
    return (Integer)args[2 * i + 1] * 4294967296 + (unsigned)args[2 * i];
#else
    return args[i];
#endif
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 8 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.c3 = constant(args + 1, 3);
    m.c4 = constant(args + 1, 4);
    m.c5 = constant(args + 1, 5);
    m.c6 = constant(args + 1, 6);
    m.c7 = constant(args + 1, 7);
    return m;
}

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 34: where(lambda q, k: (max(min(q // 64, n_kv // 64 - 4), 3) >= k // 64 -...
        max_int(min_int(q / 64, m.c0), m.c1) + m.c2 >= k / 64 &&
        k % 64 + m.c4 >= min_int(q % 64, m.c3) &&
        k / 64 + m.c5 >= min_int(q / 64, m.c0) &&
        max_int(min_int(q % 64, m.c3), m.c6) + m.c7 >= k % 64;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

// ---------------------------------------------------------------- its tiles

struct Tile {
    i32 index;  // tile column of a row's list, tile row of a column's list
    i32 full;   // every pair of it is live: no predicate
};

#include "common/lib/tiles_csr.h"

// ---------------------------------------------------------------- vectors

#include "cpu/lib/vector.h"

// ---------------------------------------------------------------- storage

#include "cpu/lib/storage_bfloat16.h"

#include "cpu/lib/storage.h"

// ---------------------------------------------------------------- products of tiles

#include "cpu/lib/multiply.h"

// ---------------------------------------------------------------- tokens of rows

#include "cpu/lib/tokens_even.h"

// ---------------------------------------------------------------- scores

// A tile lies transposed, scores[k][q]: the lanes of a vector are queries, so what softmax needs
// (maxima and sums over keys) is plain vector arithmetic, and a NaN in one query stays in it.
typedef float Scores[TILE_K][TILE_Q];
typedef i32 Live[TILE_K][TILE_Q];  // the mask of a partial tile: 0 or 1

// One tile of one head: where it starts and how much of it lies inside the lengths.
struct Place {
    i32 q0, k0;
    i32 queries, keys;
    i32 vectors;  // of queries; lanes past the last query hold numbers nobody reads
};

FN struct Place place(const struct Attention *p, i32 ti, i32 tj) {
    struct Place at = {.q0 = ti * TILE_Q, .k0 = tj * TILE_K};
    at.queries = min_i32(TILE_Q, p->n_q - at.q0);
    at.keys = min_i32(TILE_K, p->n_kv - at.k0);
    at.vectors = (at.queries + LANES - 1) / LANES;
    return at;
}

#include "cpu/lib/option_logits.h"

// The mask's formula, pair by pair, in a pass of its own: whatever it is, a compiler sees a plain
// loop and may vectorise it.
static __attribute__((noinline)) void tested_pairs(const struct Attention *p, struct Mask m,
                                                   struct Place at, Live live) {
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 q = 0; q < at.queries; q++) {
            live[k][q] = keep(m, at.q0 + q, at.k0 + k, n_q, n_kv);
        }
    }
}

static __attribute__((noinline)) void live_pairs(const struct Attention *p, struct Mask m,
                                                 struct Place at, Live live) {
    tested_pairs(p, m, at, live);
}

// -inf where the mask says no, so that a dead pair's weight is exactly 0 whatever its score was.
FN void mask_scores(struct Place at, Live live, Scores scores) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            const ivec seen = *(const ivec_in_memory *)&live[k][j] != 0;
            store(&scores[k][j], either(seen, load(&scores[k][j]), splat(-INFINITE)));
        }
    }
}

// scores = UNIT * (the scores of q and k as softmax will see them). `q` is transposed and holds
// query_factor() already. `kept`, where given, is for gradients; `live` is filled if the tile is
// partial.
FN void tile_scores(const struct Attention *p, struct Mask m, i32 head, struct Place at, i32 full,
                    const float *q, struct Left k, Scores scores, Scores kept, Live live) {
    clear(&scores[0][0], at.keys * TILE_Q);
    multiply(&scores[0][0], TILE_Q, k, q, TILE_Q, at.keys, at.vectors, HEAD_DIM);
    make_logits(p, m, head, at, scores, kept);
    if (full) return;
    live_pairs(p, m, at, live);
    mask_scores(at, live, scores);
}

// ---------------------------------------------------------------- weights

#include "cpu/lib/weights.h"

// ---------------------------------------------------------------- forward

#include "cpu/lib/forward.h"

// ---------------------------------------------------------------- backward

#include "cpu/lib/backward.h"
