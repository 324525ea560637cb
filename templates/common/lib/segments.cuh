// Tiles of keys that begin with documents. If documents are packed, every document has its own
// tiles, and the first one begins with it, so that its sums do not depend on its position in the
// batch. Otherwise tiles begin at tile columns. Needs: entries.cuh, reading_at, OF_Q and OF_K,
// STOPS. The readings OF_Q and OF_K are document ids; array STOPS holds document ends. Gives, where
// SEVERAL: note_segments, segments_of, hand_tiles, write_stops.

#if SEVERAL
static_assert(THREADS == 128, "bits of the keys of a tile come from four warps");

// One bit per key of a tile column.
struct Bits {
    u32 word[4];
};
FN struct Bits bits_at(const i32 *from, i32 tile) {
    const int4 x = ((const int4 *)from)[tile];
    return {(u32)x.x, (u32)x.y, (u32)x.z, (u32)x.w};
}
// The first bit at or after `from`, or `none`.
FN i32 first_bit(const struct Bits &x, i32 from, i32 none) {
    i32 found = none;
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        const u32 rest = from >= 32 * i + 32 ? 0 : x.word[i] & ALL << max_i32(from - 32 * i, 0);
        if (rest) found = 32 * i + __ffs(rest) - 1;
    }
    return found;
}
// The last bit, or `none`.
FN i32 last_bit(const struct Bits &x, i32 none) {
    i32 found = none;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (x.word[i]) found = 32 * i + 31 - __clz(x.word[i]);
    return found;
}

// Search by a block for the first of low .. high - 1 that satisfies a monotonic condition, or high.
// In every turn, each thread tests one place.
struct Search {
    i32 low, high;
    FN bool open() const { return low < high; }
    FN i32 step() const { return (high - low + THREADS - 1) / THREADS; }
    FN i32 probe() const { return low + ((i32)threadIdx.x + 1) * step() - 1; }
    FN bool inside() const { return open() && probe() < high; }
    // `before`: places tested in this turn that lie before the one searched for.
    FN void narrow(i32 before) {
        if (!open()) return;
        const i32 size = step();
        low = min_i32(low + before * size, high), high = min_i32(high, low + size - 1);
    }
};
// What a thread reads of a tile of ids: how its own compares with the one before, the first and the
// last of the tile, and the first tests of two searches: for the beginning of the first one's
// document, and for the end of the last one's.
struct Near {
    bool differs, descends;
    i64 first, last;
    i64 probes[2];
};
FN struct Near entries_near(const struct Lists &p, const struct Stretch &at,
                            const struct Search &begin, const struct Search &end) {
    const i32 last = p.n[at.side] - 1, token = min_i32(at.first + threadIdx.x, at.end - 1);
    const i32 places[6] = {token, max_i32(token - 1, 0), at.first, at.end - 1,
                           max_i32(min_i32(begin.probe(), last), 0), min_i32(end.probe(), last)};
    i64 x[6];
    entries_at(p, at.slot, at.batch, places, x);
    return {x[0] != x[1], x[0] < x[1], x[2], x[3], {x[4], x[5]}};
}
// Beginning and end of documents: whichever search is open goes on.
FN void search_ends(const struct Lists &p, const struct Stretch &at, struct Near &near,
                    struct Search &begin, struct Search &end) {
    const i32 last = p.n[at.side] - 1;
    for (bool first = true; begin.open() || end.open(); first = false) {
        if (!first) {
            const i32 places[2] = {max_i32(min_i32(begin.probe(), last), 0),
                                   min_i32(end.probe(), last)};
            entries_at(p, at.slot, at.batch, places, near.probes);
        }
        i32 before[2] = {begin.inside() && near.probes[0] < near.first,
                         end.inside() && near.probes[1] <= near.last};
        block_sums(before);
        begin.narrow(before[0]), end.narrow(before[1]);
    }
}

// Processes a tile of ids; each thread has `kept` one of them. Records the keys that tiles begin
// with if documents are packed, the number of documents that begin here, and whether ids descend.
// Returns the end of the last key's document.
FN i32 note_segments(const struct Lists &p, const struct Stretch &at, i32 kept,
                     const struct Ends &ends, struct Near &near, i32 tile) {
    const i32 slot = at.slot, n = p.n[at.side], token = at.first + threadIdx.x;
    const bool cumulative = p.rule[slot] == CUMULATIVE;
    bool descends = false;
    i32 *const list = of_list(p, at.batch);
    if (at.side == 0) {
        for (i32 i = token; i < at.end && !cumulative; i += THREADS)
            descends |= i && entry(p, slot, at.batch, i) < entry(p, slot, at.batch, i - 1);
        if (__syncthreads_or(descends) && threadIdx.x == 0) atomicOr(list + DESCENDS, 1);
        return 0;
    }
    bool begins = token == 0;
    i32 begin, end;  // the documents of the first and of the last key
    if (cumulative) {
        const i32 own = min_i32(kept, p.ends[slot] - 1);
        begins |= token < at.end && entry(p, slot, at.batch, own) == token;
        begin = ends.begin, end = ends.end;
    } else {
        if (token < at.end && token) begins = near.differs, descends = near.descends;
        struct Search of_first = {0, at.first}, of_last = {at.end, n};
        search_ends(p, at, near, of_first, of_last);
        begin = of_first.low, end = of_last.low;
    }
    begin = min_i32(max_i32(begin, 0), at.first), end = min_i32(max_i32(end, at.end), n);
    i32 runs[1] = {begins};
    block_sums(runs);
    __shared__ u32 words[4];
    const u32 word = __ballot_sync(ALL, begins);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = word;
    descends = __syncthreads_or(descends);
    if (threadIdx.x == 0) {
        struct Bits bits = {words[0], words[1], words[2], words[3]};
        const i32 goes_on = begin % p.tile[1];  // next tile of the document that began earlier
        const bool own = goes_on < first_bit(bits, 0, at.end - at.first);
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits.word[i] |= (u32)(own && goes_on / 32 == i) << goes_on % 32;
        ((int4 *)p.starts)[at.batch * p.tile_count[1] + tile] = make_int4(
            (i32)bits.word[0], (i32)bits.word[1], (i32)bits.word[2], (i32)bits.word[3]);
        atomicAdd(list + RUNS, runs[0]);
        if (descends) atomicOr(list + DESCENDS + 1, 1);
    }
    return end;
}

// The tiles of keys of a list.
struct Segments {
    const i32 *starts, *ids;
    const int4 *bounds;  // bounds of ids by tile column
    int4 own;            // bounds of ids of the tile row
    i32 n, size;
    bool packed;

    // Loads before it tests `packed`, which other blocks write: the two loads overlap.
    FN struct Bits starts_at(i32 column) const {
        const struct Bits there = bits_at(starts, column);
        if (packed) return there;
        return {{1}};
    }
    // The end of the document of a tile, or -n.
    FN i32 stop_of(const struct Bits &at, i32 column, i32 start) const {
        if (!packed) return -n;
        const i32 next = first_bit(at, start + 1, size);
        return next < size ? column * size + next : bounds[column].w;
    }
};
FN struct Segments segments_of(const struct Lists &p, i32 list, i32 row) {
    const i32 batch_q = p.batches[reading_at(OF_Q).slot] > 1 ? list : 0;
    const i32 slot = reading_at(OF_K).slot, batch = p.batches[slot] > 1 ? list : 0;
    const i32 *const of_k = of_list(p, batch);
    const i32 place = batch * p.tile_count[1];
    const bool packed = !of_list(p, batch_q)[DESCENDS] && !of_k[DESCENDS + 1] &&
                        of_k[RUNS] <= p.most_runs;
    return {p.starts + 4 * place, p.array[slot] + batch * p.array_batch[slot],
            (const int4 *)p.bounds + p.first_tile[OF_K] + place,
            bounds_at(p, reading_at(OF_Q), list, row), p.n[1], p.tile[1], packed};
}

FN bool meet(int4 a, int4 b) { return a.x <= b.y && b.x <= a.y; }
FN bool same(int4 a, int4 b) { return a.x == a.y && b.x == b.y && a.x == b.x; }

// Calls `hand` with the word of a tile of keys, if the tile is live.
template <class Hand>
FN void hand_tile(const struct Segments &keys, i32 first, i32 stop, bool full, int4 bounds,
                  const Hand &hand) {
    if (keys.packed) bounds.x = bounds.y = keys.ids[first];
    full &= (stop < 0 ? -stop : stop) - first >= keys.size && same(keys.own, bounds);
    if (meet(keys.own, bounds)) hand(2 * first + full);
}
// The word of a candidate, and its neighbors in the list of a line.
struct Words {
    i32 before, own, after;
};
FN struct Words words_at(const i32 *words, i32 count, i32 i) {
    struct Words near = {-1, 0, 0};
    if (i < count) {
        near.own = words[i];
        if (i) near.before = words[i - 1] >> 1;
        if (i + 1 < count) near.after = words[i + 1];
    }
    return near;
}
// Calls `hand` with the words of the live tiles of a candidate, in order: for a live tile column,
// all tiles that begin there; and the tile that reaches into it from a dead column. Some ids
// between the least and the greatest may be absent; such a tile stays, and its pairs are tested.
template <class Hand>
FN void hand_tiles(const struct Segments &keys, const struct Words &words, const Hand &hand) {
    const i32 word = words.own, column = word >> 1, before = words.before, after = words.after;
    // Overlaps this load with that of the bounds
    const struct Bits starts = keys.starts_at(column);
    const int4 bounds = keys.bounds[column];
    if (!meet(keys.own, bounds)) return;
    const i32 size = keys.size, first = column * size;
    if (column > 0 && before < column - 1) {
        const struct Bits earlier = keys.starts_at(column - 1);
        const i32 own = last_bit(earlier, -size), start = first - size + own;
        const i32 stop = own < 0 ? 0 : keys.stop_of(earlier, column - 1, own);
        if (own >= 0 && min_i32(start + size, stop) > first)
            hand_tile(keys, start, stop, false, bounds, hand);
    }
    const bool next = after == 2 * (column + 1) + 1;
    for (i32 at = first_bit(starts, 0, size); at < size; at = first_bit(starts, at + 1, size)) {
        const bool full = word & 1 && (at == 0 || next);
        hand_tile(keys, first + at, keys.stop_of(starts, column, at), full, bounds, hand);
    }
}

// Writes the ends of the documents that tiles begin with. The rows of a list share the columns.
FN void write_stops(const struct Lists &p, const struct Place &at) {
    const struct Segments keys = segments_of(p, at.list, at.tile);
    i32 *const stops = p.array[STOPS] + at.list * p.array_batch[STOPS];
    for (i32 column = at.tile; column < p.tile_count[1]; column += p.tile_count[0]) {
        const struct Bits starts = keys.starts_at(column);
        for (i32 own = line_thread(p); own < keys.size; own += p.line_threads) {
            const i32 place = column * keys.size + own;
            if (first_bit(starts, own, keys.size) == own && place < keys.n)
                stops[place] = keys.stop_of(starts, column, own);
        }
    }
}
#endif
