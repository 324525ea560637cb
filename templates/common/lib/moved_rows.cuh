// Copies rows of listed tokens to packed tensors and back. Needs: moved_arguments.h. Gives:
// move_rows.

// ---------------------------------------------------------------- rows

enum { PACK, UNPACK, HIDE };

// Whether a token is in an ascending list that is padded with -1.
FN bool holds(const i32 *list, i32 count, i32 token) {
    i32 low = 0, high = count;
    while (low < high) {
        const i32 middle = (low + high) / 2;
        if ((u32)__ldg(list + middle) < (u32)token) low = middle + 1;
        else high = middle;
    }
    return low < count && __ldg(list + low) == token;
}

FN i64 place_in(const i64 *stride, i32 batch, i32 head, i32 row) {
    return batch * stride[0] + head * stride[1] + row * stride[2];
}

template <typename Unit>
FN void move(const struct Moved &p, int t, Unit filling) {
    const Unit *const source = (const Unit *)p.source[t];
    Unit *const to = (Unit *)p.to[t];
    const u32 width = p.width[t], rows = p.rows[t], heads = p.heads[t], way = p.way[t];
    const i64 all = (i64)p.batch * heads * rows * width, step = (i64)gridDim.x * THREADS;
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < all; i += step) {
        const u32 unit = i % width, line = i / width;
        const i32 row = line % rows, head = line / rows % heads, batch = line / rows / heads;
        const i32 *const list = p.tokens[t] + batch * p.tokens_batch[t];
        i32 from = row, into = row;
        bool filled = !source;
        if (way == HIDE) {
            filled = holds(list, p.listed[t], row);
        } else {
            const i32 token = __ldg(list + row);
            if (way == UNPACK && token < 0) continue;
            filled |= token < 0;
            if (way == PACK) from = token;
            else into = token;
        }
        const i64 there = place_in(p.to_stride + 3 * t, batch, head, into) + unit;
        to[there] = filled
            ? filling : source[place_in(p.source_stride + 3 * t, batch, head, from) + unit];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
move_rows(const __grid_constant__ struct Moved p) {
    for (int t = 0; t < p.count; t++) {
        const i32 word = p.filling[t];
        switch (p.unit[t]) {
        case 16: move<int4>(p, t, make_int4(word, word, word, word)); break;
        case 4: move<i32>(p, t, word); break;
        default: move<short>(p, t, (short)word);
        }
    }
}
