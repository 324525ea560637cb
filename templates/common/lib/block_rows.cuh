// Copies rows of queries into blocks, and results of blocks back to their tokens. LANES threads
// have a row. Needs: BlockRows. Gives: gather_rows, return_rows.

// Rows are counted in 32 bits: more of them do not fit a card.
constexpr u32 LANES = 16, ROWS = THREADS / LANES;

template <typename Unit>
FN void copy_units(const struct BlockRows &p, const char *from, char *to) {
    for (u32 i = threadIdx.x % LANES; i < (u32)p.units; i += LANES)
        ((Unit *)to)[i] = from ? ((const Unit *)from)[i] : Unit{};
}
// Copies a row, or fills it with zeros if there is none.
FN void copy_row(const struct BlockRows &p, const char *from, char *to) {
    switch (p.unit) {
    case 16: return copy_units<int4>(p, from, to);
    case 8: return copy_units<int2>(p, from, to);
    case 4: return copy_units<i32>(p, from, to);
    }
    copy_units<short>(p, from, to);
}
FN i64 step(const i64 (&steps)[3], u32 block, u32 head, u32 query) {
    return block * steps[0] + head * steps[1] + query * steps[2];
}

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows(const __grid_constant__ struct BlockRows p) {
    const u32 all = (u32)p.blocks * p.block * p.heads, step_of_all = gridDim.x * ROWS;
    for (u32 at = blockIdx.x * ROWS + threadIdx.x / LANES; at < all; at += step_of_all) {
        const u32 place = at / p.heads, head = at - place * p.heads;
        const u32 block = place / p.block, query = place - block * p.block;
        const i64 token = p.rows ? p.rows[place] : place;
        copy_row(p, (const char *)p.source + token * p.token_step[0] + head * p.token_step[1],
                 (char *)p.to + step(p.block_step, block, head, query));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
return_rows(const __grid_constant__ struct BlockRows p) {
    const u32 all = (u32)p.tokens * p.heads, step_of_all = gridDim.x * ROWS;
    for (u32 at = blockIdx.x * ROWS + threadIdx.x / LANES; at < all; at += step_of_all) {
        const u32 token = at / p.heads, head = at - token * p.heads;
        const u32 place = p.places ? p.places[token] : token;
        const u32 block = place / p.block, query = place - block * p.block;
        const bool real = !p.is_real || p.is_real[token];
        const char *const from = (const char *)p.source + step(p.block_step, block, head, query);
        copy_row(p, real ? from : nullptr,
                 (char *)p.to + (i64)token * p.token_step[0] + head * p.token_step[1]);
        if (threadIdx.x % LANES == 0)
            p.lse_to[at] = real ? p.lse[step(p.lse_step, block, head, query)]
                                : __uint_as_float(0xff800000);  // -inf
    }
}
