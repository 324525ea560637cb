// Hopper accumulates FP8 products with about 14 bits. Therefore the accumulators are added to an
// fp32 sum in shared memory after every SUM_TILES tiles, and start again from 0. Without LONG_SUMS,
// the accumulators hold the sum of the whole row.
// Needs: softmax.cuh; shared_memory, whose `sums` these are.

#if LONG_SUMS
// Whether state of rows is in shared memory, because registers are few: with three warpgroups,
// persistent blocks spill otherwise. Elsewhere this takes 1 to 5 % longer.
constexpr bool ROWS_SHARED = PERSISTENT && GROUPS == 3;
// The factors of a thread's sums; the softmax of a row that is stored after the next one starts.
FN float2 &shared_factors() { return shared_memory().sum_factors[threadIdx.x - 128]; }
FN float4 &shared_softmax() { return shared_memory().ended[threadIdx.x - 128]; }
struct LongSum {
    float factor[2];  // rescales the sum to the current row maxima, unless ROWS_SHARED
    i32 tiles;        // tiles in the accumulators
    bool begun;
};
FN void begin_row(LongSum &x) {
    x.factor[0] = x.factor[1] = 1.0f;
    x.tiles = 0, x.begun = false;
}
FN void rescale(LongSum &x, const struct Softmax &by) {
    if (ROWS_SHARED) {
        if (!x.begun) return;
        const float2 y = shared_factors();
        shared_factors() = make_float2(y.x * by.factor[0], y.y * by.factor[1]);
    }
    x.factor[0] *= by.factor[0], x.factor[1] *= by.factor[1];
}
// Adds the sum to the accumulators: o is then the whole row's.
FN void collect(Output &o, LongSum &x, i32 group) {
    if (!x.begun) return;
    if (ROWS_SHARED) x.factor[0] = shared_factors().x, x.factor[1] = shared_factors().y;
    const float4 *const sums = shared_memory().sums[group][0] + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < HEAD_DIM_V / 8; i++) {
        const float4 y = sums[i * 128];
        o[4 * i] = fmaf(y.x, x.factor[0], o[4 * i]);
        o[4 * i + 1] = fmaf(y.y, x.factor[0], o[4 * i + 1]);
        o[4 * i + 2] = fmaf(y.z, x.factor[1], o[4 * i + 2]);
        o[4 * i + 3] = fmaf(y.w, x.factor[1], o[4 * i + 3]);
    }
}
// Call after the WGMMA of a tile.
FN void tile_added(Output &o, LongSum &x, i32 group) {
    if (++x.tiles < SUM_TILES) return;
    collect(o, x, group);
    float4 *const sums = shared_memory().sums[group][0] + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < HEAD_DIM_V / 8; i++)
        sums[i * 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    if (ROWS_SHARED) shared_factors() = make_float2(1.0f, 1.0f);
    clear(o);
    begin_row(x);
    x.begun = true;
}
#else
struct LongSum {};
FN void begin_row(LongSum &) {}
FN void rescale(LongSum &, const struct Softmax &) {}
FN void collect(Output &, LongSum &, i32) {}
FN void tile_added(Output &, LongSum &, i32) {}
#endif
