// Gradients of rows with a large head dimension. A block has 64 keys and computes dk, or dv; or it
// has 64 queries and computes dq. Two warps share 16 rows, with half of the columns each. One loop
// serves all three: the block's own tokens stay, and the others stream through in steps. Weights
// come from products with the own k (or q), in registers, and their gradients from products with
// the own v (or dout), in shared memory. Needs: backward_scores.cuh, backward_store.cuh,
// halves.cuh.

#include "sm80/lib/backward_turns.cuh"

#include "sm80/lib/backward_line.cuh"

enum Wanted { OF_KEYS, OF_VALUES, OF_QUERIES, MEANS };

struct Shared {
    unsigned char own[TILE_K * PITCH];  // v or dout; k or q at the start, gradients at the end
    unsigned char others[2][STEP_Q * PITCH];  // q and dout of a step, or k and v
    float lse[2][STEP_Q], delta[2][STEP_Q];
};
static_assert(sizeof(struct Shared) <= MEMORY, "see maskc/plan/families/sm80_backward.py");
extern __shared__ __align__(128) unsigned char memory[];
FN struct Shared &shared_memory() { return *(struct Shared *)memory; }

// The exchanged halves of scores overwrite the other tokens' v or dout. Blocks for dv still need
// that operand, so they overwrite the slot of their own operand, which they do not load.
typedef float4 Exchanged[STEP_Q / 8][THREADS];
static_assert(2 * sizeof(Exchanged) <= STEP_Q * PITCH, "those of two products fit");

// Starts to copy COUNT rows; missing pieces, and rows past `end`, become zeros.
template <int COUNT>
FN void load_rows_of(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first,
                     i32 end, i32 pieces) {
    constexpr int WIDTH = THREADS / 16;
    const i32 row = threadIdx.x / WIDTH, chunk = threadIdx.x % WIDTH;
#pragma unroll 1
    for (int i = row; i < COUNT; i += 16) {
        const unsigned char *const from = rows + (first + i) * stride[2] * 2 + 16 * chunk;
        const u32 to = tile + place(i, chunk);
#pragma unroll
        for (int j = 0; j < CHUNKS; j += WIDTH)
            copy_async(to + 16 * j, from + 16 * j, first + i < end && chunk + j < pieces);
    }
    copy_commit();
}

// The work of a block: its own tokens, and the tokens that stream through, head by head.
struct Walk {
    i32 tile;             // of the block's own tokens
    struct Place keys;    // sequence and key/value head
    struct Turn turn;
    bool more;
};
template <bool KEY_ROWS>
FN void load_own(u32 to, const struct Attention &p, const struct Walk &w, bool values) {
    const i32 batch = w.keys.batch, first = w.tile * TILE_K;
    if (KEY_ROWS && values)
        load_rows_of<TILE_K>(to, head_rows(p.v, p.v_stride, batch, w.keys.head), p.v_stride, first,
                             p.n_kv, PIECES_V);
    else if (KEY_ROWS)
        load_rows_of<TILE_K>(to, head_rows(p.k, p.k_stride, batch, w.keys.head), p.k_stride, first,
                             p.n_kv, PIECES_QK);
    else if (values)
        load_rows_of<TILE_K>(to, head_rows(p.dout, p.dout_stride, batch, w.turn.head),
                             p.dout_stride, first, p.n_q, PIECES_V);
    else
        load_rows_of<TILE_K>(to, head_rows(p.q, p.q_stride, batch, w.turn.head), p.q_stride, first,
                             p.n_q, PIECES_QK);
}
template <bool KEY_ROWS>
FN void load_others(u32 to, const struct Attention &p, const struct Walk &w, i32 first,
                    bool values) {
    const i32 batch = w.keys.batch;
    if (!KEY_ROWS && values)
        load_rows_of<STEP_Q>(to, head_rows(p.v, p.v_stride, batch, w.keys.head), p.v_stride, first,
                             p.n_kv, PIECES_V);
    else if (!KEY_ROWS)
        load_rows_of<STEP_Q>(to, head_rows(p.k, p.k_stride, batch, w.keys.head), p.k_stride, first,
                             p.n_kv, PIECES_QK);
    else if (values)
        load_rows_of<STEP_Q>(to, head_rows(p.dout, p.dout_stride, batch, w.turn.head),
                             p.dout_stride, first, p.n_q, PIECES_V);
    else
        load_rows_of<STEP_Q>(to, head_rows(p.q, p.q_stride, batch, w.turn.head), p.q_stride, first,
                             p.n_q, PIECES_QK);
}
// Starts to copy lse and delta of a step of queries.
FN void load_levels(struct Shared &shared, const struct Attention &p, const struct Walk &w,
                    i32 first, i32 parity) {
    const struct Workspace space = workspace(p);
    const i64 from = ((i64)w.keys.batch * p.heads_q + w.turn.head) * p.tile_rows * TILE_Q + first;
    const i32 i = threadIdx.x % 4 * 4;
    if (threadIdx.x < 4)
        copy_async(shared_address(shared.lse[parity] + i), space.lse + from + i, true);
    else if (threadIdx.x < 8)
        copy_async(shared_address(shared.delta[parity] + i), space.delta + from + i, true);
    copy_commit();
}

// Computes a half of s = a b^T: `left` gives fragments of a, and `right` is the address of the rows
// of b.
template <class Left>
FN void half_products(Scores &s, u32 right, const Left &left) {
    const struct Half b_half = half_of(right + lane_in_halves(), own_half());
    clear(s);
#pragma unroll
    for (int d = 0; d < HALF_DEPTH; d++) {
        u32 a[4], b[4];
        left(a, d);
#pragma unroll
        for (int n = 0; n < STEP_Q / 16; n++) {
            load_matrices(b, half_at(b_half, n, d));
            multiply(s[0][2 * n], a, b[0], b[1]);
            multiply(s[0][2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <Wanted WANTED>
FN void pass_over(struct Shared &shared, const struct Attention &p, struct Walk w) {
    constexpr bool KEY_ROWS = WANTED == OF_KEYS || WANTED == OF_VALUES;
    constexpr bool GRADIENTS = WANTED != OF_VALUES;  // needs gradients of scores, or their means
    const i32 lane = threadIdx.x % 32, row = threadIdx.x / (32 * HALVES) * 16;
    const i32 first_own = w.tile * TILE_K;
    const u32 own = shared_address(shared.own);
    // Double-buffers the streamed tokens if there is room.
    const auto of_scores = [&](i32 stage) {
        return stage ? own : shared_address(shared.others[0]);
    };
    const auto of_values = [&](i32 stage) { return of_scores(stage) + STEP_Q * PITCH; };
    Exchanged *const exchanged =
        (Exchanged *)(GRADIENTS ? shared.others[1] : shared.own + 2 * STEP_Q * PITCH);

    load_own<KEY_ROWS>(own, p, w, false);
    copy_wait<0>();
    __syncthreads();
    u32 left[HALF_DEPTH][4];
    const struct Half a_half = half_of(own + row * PITCH + lane_in_rows(), own_half());
#pragma unroll
    for (int d = 0; d < HALF_DEPTH; d++) load_matrices(left[d], half_at(a_half, 0, d));
    __syncthreads();
    if (GRADIENTS) load_own<KEY_ROWS>(own, p, w, true);

    float lse[2], delta[2], sum[2] = {0.0f, 0.0f}, mass[2] = {0.0f, 0.0f}, total = 0.0f;
    if (!KEY_ROWS) {
        const struct Workspace space = workspace(p);
        const i64 line = ((i64)w.keys.batch * p.heads_q + w.turn.head) * p.tile_rows + w.tile;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i64 place = line * TILE_Q + row + lane / 4 + 8 * r;
            lse[r] = space.lse[place], delta[r] = space.delta[place];
        }
    }
    Gradient x;
    if (WANTED != MEANS) clear(x);
    struct Tile tile = {0, 0};
    if (w.more) tile = tile_at(w.turn.list, w.turn.i);
    i32 step = 0, parity = 0;
    if (w.more) {
        load_others<KEY_ROWS>(of_scores(0), p, w, tile.index * TILE_Q, false);
        load_others<KEY_ROWS>(of_values(0), p, w, tile.index * TILE_Q, true);
        if (KEY_ROWS) load_levels(shared, p, w, tile.index * TILE_Q, 0);
    }
#pragma unroll 1
    while (w.more) {
        const struct Place at = {w.keys.batch, w.turn.head};
        const i32 first_other = tile.index * TILE_Q + step, stage = GRADIENTS ? 0 : parity;
        const i32 first_k = KEY_ROWS ? first_own : tile.index * TILE_K, full = tile.full;
        const bool masked = !full || p.n_kv - first_k < TILE_K;
        const struct Logit logit = logit_of(&p, at.head);
        step += STEP_Q;
        if (step == TILE_Q) {
            step = 0, w.turn.i++;
            const struct Column column = {w.tile, w.keys};
            if constexpr (KEY_ROWS) w.more = find_tile(w.turn, p, column);
            else w.more = w.turn.i < w.turn.list.count;
            if (w.more) tile = tile_at(w.turn.list, w.turn.i);
        }
        const i32 next = tile.index * TILE_Q + step;
        const i32 query = KEY_ROWS ? first_other + lane % 4 * 2 : first_own + row + lane / 4;
        const i32 key = KEY_ROWS ? first_own + row + lane / 4 : first_other + lane % 4 * 2;
        const struct Steps steps = steps_from(p, at.batch, query, key);
        Scores s, dp;
        Weights<1, STEP_Q / 8> weights;
        if (masked) weights.seen = seen_by<KEY_ROWS, 1, STEP_Q / 8>(p, at, query, key, full);

        copy_wait<0>();   // the step has arrived, and
        __syncthreads();  // the previous step is no longer read
        if (!GRADIENTS && w.more) {
            load_others<KEY_ROWS>(of_scores(1 - parity), p, w, next, false);
            load_others<KEY_ROWS>(of_values(1 - parity), p, w, next, true);
            load_levels(shared, p, w, next, 1 - parity);
        }
        half_products(s, of_scores(stage), [&](u32 (&a)[4], int d) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = left[d][i];
        });
        if (GRADIENTS) {
            half_products(dp, of_values(0),
                          [&](u32 (&a)[4], int d) { load_matrices(a, half_at(a_half, 0, d)); });
            __syncthreads();  // the exchange overwrites the values
            give_half(exchanged[1], dp);
        }
        give_half(exchanged[0], s);
        __syncthreads();
        add_half(s, exchanged[0]);
        if (GRADIENTS) {
            add_half(dp, exchanged[1]);
            __syncthreads();
            if (w.more) load_others<KEY_ROWS>(of_values(0), p, w, next, true);
            if (KEY_ROWS && w.more) load_levels(shared, p, w, next, 1 - parity);
        }

        const float *const of_lse = KEY_ROWS ? shared.lse[parity] : lse;
        const auto number_of = [&](const float *rows) {
            return [=](int, int n, int e) {
                return KEY_ROWS ? rows[8 * n + lane % 4 * 2 + e % 2] : rows[e / 2];
            };
        };
        parity = 1 - parity;
        weigh_scores<KEY_ROWS>(s, weights, p, logit, masked,
                               placed<KEY_ROWS>(number_of(of_lse), query, key, at, steps));
        struct Staying<STEP_Q / 2> stay;
        if constexpr (KEY_ROWS) draw_by_key(stay, dropout_of(p), query, key, at.head, at.batch);
        else draw_by_query(stay, dropout_of(p), query, key, at.head, at.batch);
        if (GRADIENTS) drop(*(float (*)[STEP_Q / 2])&dp[0], stay, kept_scale(p));
        else drop_pairs(*(u32 (*)[STEP_Q / 4])&weights.p[0], stay);
        if constexpr (WANTED == MEANS) {
#pragma unroll
            for (int n = 0; n < STEP_Q / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const bool live = !masked || weights.seen >> bit_of<STEP_Q / 8>(0, n, e) & 1;
                    sum[e / 2] += live ? s[0][n][e] * dp[0][n][e] : 0.0f;
                    mass[e / 2] += s[0][n][e];
                }
        } else if constexpr (WANTED == OF_VALUES) {
            add_products(x, weights.p, of_values(stage) + lane_in_rows() + 16 * first_group());
        } else {
            Pairs ds;
            const float *const of_delta = KEY_ROWS ? shared.delta[1 - parity] : delta;
            total += to_gradients<KEY_ROWS>(ds, dp, s, weights, steps, masked, number_of(of_delta));
            add_products(x, ds, of_scores(0) + lane_in_rows() + 16 * first_group());
        }
        if (GRADIENTS) {
            __syncthreads();
            if (w.more) load_others<KEY_ROWS>(of_scores(0), p, w, next, false);
        }
    }
    copy_wait<0>();
    __syncthreads();
    unsigned char *const to = shared.own + row * PITCH;
    if constexpr (WANTED == OF_KEYS)
        store_rows(x, to, p.dk, p.dk_stride, w.keys, first_own + row, p.n_kv, p.scale,
                   p.accumulates);
    if constexpr (WANTED == OF_VALUES) {
        store_rows<PIECES_V>(x, to, p.dv, p.dv_stride, w.keys, first_own + row, p.n_kv,
                             kept_scale(p), p.accumulates);
    }
    if constexpr (!KEY_ROWS) {
        const struct Place at = {w.keys.batch, w.turn.head};
        const i64 line = ((i64)at.batch * p.heads_q + at.head) * p.tile_rows + w.tile;
        if constexpr (WANTED == OF_QUERIES) {
            store_rows(x, to, p.dq, p.dq_stride, at, first_own + row, p.n_q, p.scale,
                       p.accumulates);
            if (!HEAD_GRADIENT) return;
            total = block_sum<THREADS>(own_half() ? 0.0f : total);  // both halves computed it
            if (threadIdx.x == 0)
                workspace(p).sums[line * TILE_Q + SLOPE_SUM] = total * p.spacing;
        } else {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float whole = quad_sum(mass[r]), part = quad_sum(sum[r]);
                float &mean = workspace(p).delta[line * TILE_Q + row + lane / 4 + 8 * r];
                if (lane % 4 == 0 && own_half() == 0) mean = whole > 0.0f ? part / whole : 0.0f;
            }
        }
    }
}

FN struct Walk walk_of_row(const struct Attention &p, i32 index) {
    const struct Line line = line_of(p, index);
    struct Walk w = {line.tile, {line.at.batch, line.at.head / (p.heads_q / p.heads_kv)}};
    const struct Mask mask = load_mask(&p, line.at.batch, line.at.head);
    w.turn.head = line.at.head;
    w.turn.list = row_tiles(&p, mask, line.at.batch, line.at.head, line.tile);
    w.more = w.turn.list.count > 0;
    return w;
}

#if WITH_ENTMAX
// delta = sum(u dp) / sum(u) over the keys of a row, with dp = dout . v. It makes the score
// gradients of a row sum to 0, as they must, because the weights sum to 1 for any scores.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_mean(const __grid_constant__ struct Attention p) {
    pass_over<MEANS>(shared_memory(), p, walk_of_row(p, blockIdx.x));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_rows(const __grid_constant__ struct Attention p) {
    pass_over<OF_QUERIES>(shared_memory(), p, walk_of_row(p, blockIdx.x));
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    const struct Column column = column_of(p, blockIdx.x);
    struct Walk w = {column.tile, column.keys};
    w.turn = first_turn(p, column);
    w.more = find_tile(w.turn, p, column);
    if (column.of_values) pass_over<OF_VALUES>(shared_memory(), p, w);
    else pass_over<OF_KEYS>(shared_memory(), p, w);
}
