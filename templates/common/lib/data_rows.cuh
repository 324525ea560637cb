// Columns of rows that data bound, as bits: a few intervals, in the whole tile or per run of
// columns with equal data. All lanes of a warp have the same columns. Needs: bits.cuh,
// mask_sides.cuh; Own, a type of a thread's columns, DataRows of the mask.

// Finds the columns that meet each condition on columns.
template <class Side, class Own, int CONDITIONS>
FN void vote_on_columns(u32 (&counts)[CONDITIONS][Own::WORDS], const struct Mask &mask, i32 first,
                        i32 n_q, i32 n_kv) {
#pragma unroll
    for (int j = 0; j < (Own::ALL + 31) / 32; j++) {
        const i32 place = first + 32 * j + threadIdx.x % 32;
        const i32 column = min_i32(place, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int c = 0; c < DataRows<Side>::CONDITIONS; c++) {
            const i32 meets = DataRows<Side>::counts(c, mask, column, n_q, n_kv);
            Own::add_votes(counts[c], j, __ballot_sync(~0u, meets));
        }
    }
}

// Adds the columns of a run, `begin` to `end`, counted from the tile's first column.
template <class Side, class Own, int R, int CONDITIONS>
FN void add_run(u32 (&word)[R][Own::WORDS], const u32 (&counts)[CONDITIONS][Own::WORDS],
                const struct Mask &mask, const i32 (&rows)[R], i32 first, i32 begin, i32 end,
                i32 n_q, i32 n_kv) {
    typedef DataRows<Side> Data;
    const i32 column = first + Own::first();
    // A tile may begin behind the last column
    const i32 run = min_i32(first + begin, Side::last_column(n_q, n_kv));
#pragma unroll
    for (int r = 0; r < R; r++) {
        struct Bounds own[Data::INTERVALS];
        Data::row_bounds(own, mask, rows[r], run, n_q, n_kv);
#pragma unroll
        for (int i = 0; i < Data::INTERVALS; i++) {
            i32 low = own[i].first, high = own[i].last;
            if (Data::RUNS) low = max_i32(low, first + begin), high = min_i32(high, first + end);
            low = Own::before(low - column), high = Own::before(high - column);
#pragma unroll
            for (int w = 0; w < Own::WORDS; w++) {
                const u32 inside = bits_from(low - 32 * w) & bits_before(high - 32 * w);
                const int condition = Data::condition(i);
                word[r][w] |= condition < 0 ? inside : inside & counts[max_i32(condition, 0)][w];
            }
        }
    }
}

// Adds what rows see of the tile that begins with column `first`. Returns false if there are too
// many runs to process one by one, or if data do not bound the rows.
template <class Side, class Own, int R>
FN bool add_data(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                 i32 first, i32 n_q, i32 n_kv) {
    typedef DataRows<Side> Data;
    if constexpr (Data::INTERVALS == 0) {
        return false;
    } else {
        constexpr int VOTES = (Own::ALL + 31) / 32;
        constexpr int CONDITIONS = Data::CONDITIONS > 0 ? Data::CONDITIONS : 1;
        u32 counts[CONDITIONS][Own::WORDS] = {};
        vote_on_columns<Side, Own>(counts, mask, first, n_q, n_kv);
        if constexpr (Data::RUNS) {
            const i32 lane = threadIdx.x % 32, last = Side::last_column(n_q, n_kv);
            u32 starts[VOTES];
            i32 runs = 0;
#pragma unroll
            for (int j = 0; j < VOTES; j++) {
                const i32 place = first + 32 * j + lane, column = min_i32(place, last);
                const i32 before = min_i32(max_i32(place - 1, 0), last);
                starts[j] = __ballot_sync(~0u, Data::differs(mask, column, before, n_q, n_kv));
                if (Own::ALL < 32) starts[j] &= bits_before(Own::ALL);
                if (j == 0) starts[j] |= 1;
                runs += __popc(starts[j]);
            }
            if (runs > (Own::ALL / 16 + Data::INTERVALS - 1) / Data::INTERVALS) return false;
#pragma unroll 1
            for (i32 begin = 0, end; begin < Own::ALL; begin = end) {
                end = Own::ALL;
#pragma unroll
                for (int j = VOTES - 1; j >= 0; j--) {
                    const u32 later = starts[j] & bits_from(begin + 1 - 32 * j);
                    end = later ? 32 * j + __ffs(later) - 1 : end;
                }
                add_run<Side, Own>(word, counts, mask, rows, first, begin, end, n_q, n_kv);
            }
        } else {
            add_run<Side, Own>(word, counts, mask, rows, first, 0, Own::ALL, n_q, n_kv);
        }
        return true;
    }
}
