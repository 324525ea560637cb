// Builds the tile lists and the work list of a pass in one launch, on the device that holds the
// data. Blocks first read the data, then count the live candidates of a line, then write lists and
// items. A line is a tile row or a tile column of one of the lists; a block has one line, or one
// for each warp.
// Needs: block_sums.cuh, list_items.cuh, and a verdict policy. That has
//     bool read_part(p, block)       one of p.reading_blocks blocks reads; returns whether data
//                                    are wrong
//     struct Line line_of(p, at)     a line: its number of candidates, and where their bits are
//     i32 word_at(line, i)           a candidate; 0 past the end
//     i32 across_of(word)            its position on the other side
//     i32 verdict_of(p, line, i, word)  for a warp of candidates: 0 empty, 1 partial, 3 full; 0
//                                    past the end
//     SEVERAL                        a candidate may be several tiles, see segments.cuh
// Gives: make_lists.

// ---------------------------------------------------------------- the order of blocks

// A block waits only for blocks of a lower index. GPUs start blocks in the order of their index
// (decoupled look-back scans such as CUB's rely on this too), so those blocks are running or done,
// and there is no deadlock.
FN void finish(const struct Lists &p, i32 stage) {
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.state + stage) : "memory");
}
FN void wait_for(const struct Lists &p, i32 stage, i32 blocks) {
    if (threadIdx.x == 0) {
        i32 done;
        do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
                        : "=r"(done) : "l"(p.state + stage) : "memory");
        while (done < blocks);
    }
    __syncthreads();
}
// ---------------------------------------------------------------- the tiles that stay

// Marks the live candidates of a line; returns their number. `word`: the thread's first candidate.
FN i32 mark_tiles(const struct Lists &p, const struct Line &line, i32 word) {
    i32 count[1] = {0};
    for (i32 turn = 0; turn < line.count; turn += p.line_threads) {
        const i32 i = turn + line_thread(p), next = word_at(line, i + p.line_threads);
        const i32 found = verdict_of(p, line, i, word);
        word = next;  // loaded while the verdict was found
        const u32 live = __ballot_sync(ALL, found & 1), full = __ballot_sync(ALL, found >> 1);
        if (threadIdx.x % 32 == 0 && i < line.count) {
            line.bits[i / 32] = make_uint2(live, full);
            count[0] += __popc(live);
        }
    }
    line_sums(p, count);
    return count[0];
}
// What a warp loads to write marked candidates: bits of up to 32 words, one for each lane, and a
// lane's candidate of the warp's first word.
struct Marked {
    uint2 bits;
    i32 word;
};
FN struct Marked marked_at(const struct Lists &p, const struct Line &line, i32 begin) {
    const i32 lane = threadIdx.x % 32, w = begin + lane, own = begin + line_thread(p) / 32;
    struct Marked found = {};
    if (32 * w < line.count) found.bits = line.bits[w];
    found.word = word_at(line, 32 * own + lane);
    return found;
}
// Writes the marked candidates in order. `marked`: of the first words of bits.
FN void write_marked(const struct Lists &p, const struct Line &line, struct Marked marked,
                     i32 *to) {
    const i32 words = (line.count + 31) / 32, lane = threadIdx.x % 32, on = p.line_threads / 32;
    for (i32 begin = 0; begin < words; begin += 32) {
        if (begin) marked = marked_at(p, line, begin);
        const i32 until = warp_until(__popc(marked.bits.x));
#pragma unroll 1
        for (i32 w = line_thread(p) / 32; w < min_i32(words - begin, 32); w += on) {
            const i32 next = word_at(line, 32 * (begin + w + on) + lane);
            const u32 live = __shfl_sync(ALL, marked.bits.x, w);
            const u32 full = __shfl_sync(ALL, marked.bits.y, w);
            const i32 before = __shfl_sync(ALL, until, w) - __popc(live >> lane);
            if (live >> lane & 1)
                to[before] = across_of(marked.word) << 1 | (i32)(full >> lane & 1);
            marked.word = next;
        }
        to += __shfl_sync(ALL, until, 31);
    }
}

#if SEVERAL
constexpr i32 STASH_WORDS = 1024;  // words that a block keeps in shared memory while it waits

// `words`: of the thread's first candidate.
FN i32 count_tiles(const struct Lists &p, const struct Line &line, struct Words words) {
    const struct Segments keys = segments_of(p, line.at.list, line.at.tile);
    i32 count[1] = {0};
    for (i32 i = line_thread(p); i < line.count;) {
        hand_tiles(keys, words, [&](i32) { count[0]++; });
        i += p.line_threads;
        words = words_at(line.words, line.count, i);
    }
    line_sums(p, count);
    return count[0];
}
// Writes the first `room` words of a line, in order.
FN void write_tiles(const struct Lists &p, const struct Line &line, struct Words words, i32 *to,
                    i32 room) {
    const struct Segments keys = segments_of(p, line.at.list, line.at.tile);
    for (i32 turn = 0, before = 0; turn < line.count; turn += p.line_threads) {
        const i32 i = turn + line_thread(p);
        i32 at = 0, end = 0, all;
        if (turn) words = words_at(line.words, line.count, i);
#pragma unroll 1  // first count, then write: the same instructions
        for (i32 pass = 0; pass < 2; pass++) {
            if (i < line.count)
                hand_tiles(keys, words, [&](i32 word) {
                    if (at < end) to[at] = word;
                    at++;
                });
            if (pass) break;
            at = before + line_before(p, at, all), end = room;
        }
        before += all;
    }
}
#endif

// ---------------------------------------------------------------- the launch

FN void count_line(const struct Lists &p, const struct Place &at) {
    const struct Line line = line_of(p, at);
#if SEVERAL
    const struct Words words = words_at(line.words, line.count, line_thread(p));
    const i32 word = words.own;
#else
    const i32 word = word_at(line, line_thread(p));
#endif
    wait_for(p, READ, p.reading_blocks);
    if ((i32)blockIdx.x == p.reading_blocks && threadIdx.x == 0 && p.verdict)
        tell_verdict(p, p.state[WRONG]);
#if SEVERAL
    const i32 count = p.starts ? count_tiles(p, line, words) : mark_tiles(p, line, word);
#else
    const i32 count = mark_tiles(p, line, word);
#endif
    if (line_thread(p) == 0) {
        p.counts[at.side][at.list * p.tile_count[at.side] + at.tile] = count;
        if (count && at.side == p.work_side && p.lists > p.group_lists)
            atomicAdd(of_list(p, at.list) + LIVE, 1);
    }
    finish(p, COUNTED);
#if SEVERAL
    if (p.starts) write_stops(p, at);  // read only by the pass
#endif
}
// Calls write_items once: with a second inlined copy, NVRTC takes 60 % longer.
FN void list_line(const struct Lists &p, const struct Place &at) {
    const struct Line line = line_of(p, at);
    const struct Ranks ranks = ranks_of(p, at);
#if SEVERAL
    __shared__ i32 stash[STASH_WORDS];
    struct Words words = words_at(line.words, line.count, line_thread(p));
    const i32 share = STASH_WORDS / (THREADS / p.line_threads);
    const auto kept = [&] { return stash + threadIdx.x / p.line_threads * share; };
    wait_for(p, READ, p.reading_blocks);
    if (p.starts) write_tiles(p, line, words, kept(), share);
    const bool marks = !p.starts;
#else
    const bool marks = true;
#endif
    wait_for(p, COUNTED, p.line_blocks);
    // Loaded before the sums of counts, so that the block waits once for both
    struct Marked marked = {};
    if (marks) marked = marked_at(p, line, 0);
    const struct Listing own = write_items(p, at, ranks);
    i32 *const to = p.tiles[at.side] + own.first;
    if (marks) return write_marked(p, line, marked, to);
#if SEVERAL
    if (own.count > share) {  // read again: few lines have so many tiles
        words = words_at(line.words, line.count, line_thread(p));
        return write_tiles(p, line, words, to, own.count);
    }
    for (i32 i = line_thread(p); i < own.count; i += p.line_threads) to[i] = kept()[i];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
make_lists(const __grid_constant__ struct Lists p) {
    wait_for_launches();
    const i32 number = (i32)blockIdx.x - p.reading_blocks;
    if (number < 0) {
        if (read_part(p, blockIdx.x) && threadIdx.x == 0) atomicOr(p.state + WRONG, 1);
        finish(p, READ);
        return;
    }
    const bool counts = number < p.line_blocks;
    if (!counts && blockIdx.x == gridDim.x - 1) clear_words(p);
    if (number < 2 * p.line_blocks) {
        const struct Place at = line_place(p, counts ? number : number - p.line_blocks);
        if (counts) return count_line(p, at);
        list_line(p, at);
        if (p.item_blocks) finish(p, LISTED);
    } else {
        wait_for(p, LISTED, p.line_blocks);
        write_planned(p, number - 2 * p.line_blocks);
    }
}
