// Top-k columns of rows of scores, for run-time selections. Needs: vector.h.

// Increases with the float of these bits: lowest for NaN, equal for both zeros.
FN i32 rank(i32 bits) {
    const i32 size = bits & 0x7fffffff;
    const i32 number = bits < 0 ? -size : size;
    return size > 0x7f800000 ? -0x7fffffff : number;
}

#define NO_CANDIDATE (-0x7fffffff - 1)  // ranks below everything

// A candidate as one number: better candidates have larger numbers; all are distinct and not 0.
FN u64 candidate(i32 ranked, i32 column) {
    return (u64)((unsigned)ranked ^ 0x80000000) << 32 | (0xffffffff - (unsigned)column);
}

FN i32 rank_of(u64 found) { return (i32)((unsigned)(found >> 32) ^ 0x80000000); }

// Whether one of LANES columns ranks at `least` or above; usually none does.
FN i32 any_from(const i32 *ranks, i32 least) {
    const ivec found = *(const ivec_in_memory *)ranks >= least;
    i32 any = 0;
    for (i32 i = 0; i < LANES; i++) any |= found[i];
    return any;
}

FN void swap_candidates(u64 *a, u64 *b) {
    const u64 held = *a;
    *a = *b;
    *b = held;
}

// Moves the `wanted` largest of `count` numbers to the front, the least of them last.
FN void put_largest_first(u64 *x, i64 count, i64 wanted) {
    i64 low = 0, high = count - 1;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (x[middle] > x[low]) swap_candidates(x + middle, x + low);
        if (x[high] > x[low]) swap_candidates(x + high, x + low);
        if (x[high] > x[middle]) swap_candidates(x + high, x + middle);
        const u64 pivot = x[middle];
        i64 i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i <= j) swap_candidates(x + i++, x + j--);
        }
        if (wanted - 1 <= j) {
            high = j;
        } else if (wanted - 1 >= i) {
            low = i;
        } else {
            return;
        }
    }
}

// Scratch memory of one thread.
struct Ranking {
    i32 *ranks;  // of a row's columns
    u64 *kept;   // the best so far; room for 2 * width
};

// The least of the `width` best candidates of a row; 0 if there are at most `width`.
FN u64 least_of_best(struct Ranking r, i32 columns, i64 width) {
    u64 least = 0;
    i64 count = 0;
    for (i32 first = 0; first < columns; first += LANES) {
        const i32 end = min_i32(columns, first + LANES);
        if (first + LANES == end && !any_from(r.ranks + first, rank_of(least))) continue;
        for (i32 j = first; j < end; j++) {
            const u64 found = candidate(r.ranks[j], j);
            if (r.ranks[j] == NO_CANDIDATE || found < least) continue;
            r.kept[count++] = found;
            if (count < 2 * width) continue;
            put_largest_first(r.kept, count, width);
            count = width;
            least = r.kept[width - 1];
        }
    }
    if (count <= width) return least;
    put_largest_first(r.kept, count, width);
    return r.kept[width - 1];
}

// Lists the live columns that are at least as good as `least`, ascending; returns their number.
FN i32 list_best(struct Ranking r, i32 columns, u64 least, i32 *list) {
    i32 count = 0;
    for (i32 first = 0; first < columns; first += LANES) {
        const i32 end = min_i32(columns, first + LANES);
        if (first + LANES == end && !any_from(r.ranks + first, rank_of(least))) continue;
        for (i32 j = first; j < end; j++) {
            if (r.ranks[j] != NO_CANDIDATE && candidate(r.ranks[j], j) >= least) list[count++] = j;
        }
    }
    return count;
}

// For each row: the `width` best live columns, ascending, then the largest integer as padding.
// scores [rows][columns] as bits of floats, live [rows][columns], lists [rows][width]. Scratch:
// ranks [threads][columns] and kept [threads][2 * width].
void attention_select(const i32 *scores, const unsigned char *live, i64 rows, i32 columns,
                      i32 width, i32 *lists, i32 *ranks, u64 *kept, i32 threads) {
    i32 started = 0;
#pragma omp parallel num_threads(max_i32(1, threads))
    {
        const i64 me = __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
        const struct Ranking r = {ranks + me * columns, kept + me * 2 * width};
#pragma omp for schedule(dynamic, 8)
        for (i64 row = 0; row < rows; row++) {
            const i32 *own = scores + row * columns;
            const unsigned char *alive = live + row * columns;
            for (i32 j = 0; j < columns; j++) r.ranks[j] = alive[j] ? rank(own[j]) : NO_CANDIDATE;
            i32 *list = lists + row * width;
            i32 count = list_best(r, columns, least_of_best(r, columns, width), list);
            while (count < width) list[count++] = 0x7fffffff;
        }
    }
}
