// The machine under translated kernels: fibers, barriers, copy engine and matrix units. Threads run
// in an order drawn from a seed; copies and products end as late as a wait allows, or earlier.
#include "device.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif

Index threadIdx, blockIdx, blockDim, gridDim;

// Saves this fiber's registers on its stack, and goes on where another one saved its own.
extern "C" void emu_switch(void **from, void *to);
asm(R"(
.pushsection .text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.popsection
)");

namespace emu {
static float number_of(u32 x) {
    const u32 exponent = x >> 3 & 15, mantissa = x & 7;
    if ((x & 127) == 127) return NAN;
    const float y = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    return x >> 7 ? -y : y;
}
float widen_byte(u32 x) {
    static float numbers[256];
    if (numbers[1] == 0.0f)
        for (u32 i = 0; i < 256; i++) numbers[i] = number_of(i);
    return numbers[x];
}
namespace {

constexpr size_t STACK = 1 << 18, STATICS = 1 << 16, ARENA = (1 << 18) + STATICS;
constexpr int RESIDENT = 6;        // blocks under way at a time
constexpr int PATIENCE = 1 << 14;  // rounds in which threads do nothing but poll
constexpr int SLEEPS = 200, LONGEST_SLEEP = 100;  // rounds after which a warp lags behind, and of it

// ---- threads

typedef std::function<void()> Job;

struct Block;
struct Fiber {
    void *sp = nullptr;
    unsigned char *stack = nullptr;
    Block *block = nullptr;
    unsigned thread = 0;
    bool done = false, polling = false;
    const u64 *word = nullptr;  // it waits while this is `old`, or, for a barrier, of this parity
    u64 old = 0;
    bool on_barrier = false;
    const char *what = "";
    std::deque<std::vector<Job>> stores = {{}}, copies = {{}};  // groups, the open one last
};

struct Meeting {
    unsigned arrived = 0;
    u64 generation = 0;
    u64 slots[2][WARP_SLOTS];
};
// An instruction on matrices of a whole warp: what lanes bring, and where they want their results.
struct Matrices {
    u64 done = 0;  // the meeting of the last one, whose lanes have their results
    u32 address[32], a[32][4], b[32][2];
    u32 *words[32][4];
    float *sums[32][4];
};
struct Warp {
    u32 live = 0;
    int asleep = 0;  // for so many rounds
    const Fiber *waiting = nullptr;  // all other threads wait for what this one waits for
    Meeting whole;                    // of all lanes
    std::map<u32, Meeting> meetings;  // of fewer, by mask
    Matrices matrices;
    Meeting &meeting(u32 mask) { return mask == ~0u ? whole : meetings[mask]; }
};
struct Product {
    float *d[128];
    u32 a[128][4];
    u64 a_tile, b_tile;
    int columns;
    bool in_registers, add, a_turned, b_turned, half, bytes;
};
struct Warpgroup {
    Meeting meeting;
    std::vector<Product> open;
    std::deque<std::vector<Product>> groups;
    Product next;
};
struct Block {
    unsigned index = 0, live = 0, loads = 0;  // under way
    unsigned char *memory = nullptr;
    size_t bytes = 0, taken = 0;  // of memory; those that the launch and variables asked for
    std::map<int, unsigned char *> variables;
    std::vector<Fiber *> fibers;
    std::vector<Warp> warps;
    std::vector<Warpgroup> groups;
    Meeting all;
    bool any = false, found = false;
    Meeting named[16];
};

Fiber *me;
void *scheduler;
std::string failure;
std::mt19937_64 chance;
std::vector<std::unique_ptr<Block>> blocks;
struct Load {
    Block *block;
    Job job;
    bool late;  // it ends when nothing else can go on
};
std::vector<Load> loads;  // that no order holds
std::vector<unsigned char *> stacks, arenas;  // to be used again
void (*the_kernel)(void *);
void *the_arguments;
bool progress;

bool drawn(int out_of) { return chance() % out_of == 0; }

struct State {  // of a barrier: 64 bits in shared memory
    u64 expected : 12, pending : 12;
    int64_t bytes : 30;
    u64 phase : 1, alive : 9;
};
static_assert(sizeof(State) == 8, "a barrier has 64 bits");
constexpr unsigned ALIVE = 0x0b5;
State &state(u32 at) {
    State &found = *(State *)(arena() + at);
    if (at % 8 || at + 8 > me->block->taken) fail("a barrier at %u", at);
    if (found.alive != ALIVE) fail("a barrier at %u that nobody made", at);
    return found;
}

bool ready(const Fiber &f) {
    if (f.polling || !f.word) return true;
    if (f.on_barrier) return ((const State *)f.word)->phase != f.old;
    return *f.word != f.old;
}
void enter(Fiber &f) {
    me = &f;
    threadIdx = {f.thread, 0, 0}, blockIdx = {f.block->index, 0, 0};
    f.polling = false;
    if (f.thread + 1 < f.block->fibers.size()) {  // the next one's stack is seldom in a cache
        const char *const next = (const char *)f.block->fibers[f.thread + 1]->sp;
        __builtin_prefetch(next), __builtin_prefetch(next + 64);
    }
}
// The next thread of the warp goes on, as the scheduler would have it do, without going there.
void suspend() {
    Fiber &own = *me;
    const auto &all = own.block->fibers;
    const size_t end = failure.empty() ? std::min<size_t>(all.size(), own.thread / 32 * 32 + 32) : 0;
    for (size_t i = own.thread + 1; i < end; i++)
        if (Fiber &f = *all[i]; !f.done && ready(f)) {
            enter(f);
            emu_switch(&own.sp, f.sp);
            return;
        }
    emu_switch(&own.sp, scheduler);
}
void block_on(const u64 &word, u64 old, const char *what) {
    me->word = &word, me->old = old, me->what = what, me->on_barrier = false;
    while (word == old) suspend();
    me->word = nullptr;
}
// Arrives and waits until `all` have.
void meet(Meeting &at, unsigned all, const char *what) {
    progress = true;
    const u64 old = at.generation;
    if (++at.arrived >= all) at.arrived = 0, at.generation++;
    else block_on(at.generation, old, what);
}
void release(Meeting &at, unsigned all) {
    if (at.arrived && at.arrived >= all) at.arrived = 0, at.generation++;
}

Warp &warp() { return me->block->warps[me->thread / 32]; }
Warpgroup &warpgroup() { return me->block->groups[me->thread / 128]; }

void leave() {
    Block &block = *me->block;
    for (auto &group : me->stores)
        if (!group.empty()) fail("a thread left before its bulk stores had read shared memory");
    me->done = true;
    block.live--;
    release(block.all, block.live);
    Warp &own = warp();
    own.live &= ~(1u << me->thread % 32);
    release(own.whole, __builtin_popcount(own.live));
    for (auto &[mask, at] : own.meetings) release(at, __builtin_popcount(mask & own.live));
    progress = true;
    suspend();
    abort();
}
void begin() {
    the_kernel(the_arguments);
    leave();
}

// Its lowest page is nobody's: a thread that needs more than there is stops there.
unsigned char *new_stack() {
    void *const made = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED || mprotect(made, 4096, PROT_NONE))
        fprintf(stderr, "the emulator has no memory for another thread\n"), abort();
    return (unsigned char *)made;
}

Fiber *new_fiber(Block *block, unsigned thread) {
    auto *f = new Fiber;
    f->block = block, f->thread = thread;
    if (stacks.empty()) stacks.push_back(new_stack());
    f->stack = stacks.back();
    stacks.pop_back();
    // Tops that lie a power of two apart would share few lines of every cache.
    const size_t shifted = ((size_t)f->stack / STACK + thread) % 61 * 832;
    void **top = (void **)(f->stack + STACK - shifted - 72);  // as if begin had been called
    *top = nullptr;
    *--top = (void *)begin;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->sp = top;
    return f;
}

std::unique_ptr<Block> new_block(unsigned index, int threads, int shared) {
    auto block = std::make_unique<Block>();
    block->index = index, block->live = threads, block->bytes = shared + STATICS;
    block->taken = (shared + 15) / 16 * 16;
    if (arenas.empty()) arenas.push_back((unsigned char *)aligned_alloc(1024, ARENA));
    block->memory = arenas.back();
    arenas.pop_back();
    memset(block->memory, 0xff, block->bytes);  // NaN, and barriers that nobody made
    block->warps.resize((threads + 31) / 32);
    block->groups.resize((threads + 127) / 128);
    for (int i = 0; i < threads; i++) {
        block->warps[i / 32].live |= 1u << i % 32;
        block->fibers.push_back(new_fiber(block.get(), i));
    }
    return block;
}
void drop(Block &block) {
    for (Fiber *f : block.fibers) stacks.push_back(f->stack), delete f;
    block.fibers.clear();
    arenas.push_back(block.memory);
}

void resume(Fiber &f) {
    enter(f);
    emu_switch(&scheduler, f.sp);
    me = nullptr;
}

// ---- copies and products that are under way

void finish(std::vector<Job> &jobs) {
    for (Job &job : jobs) job();
    jobs.clear();
}
void drain(std::deque<std::vector<Job>> &groups, size_t pending) {
    while (groups.size() > pending + 1) finish(groups.front()), groups.pop_front();
}
void take_load(size_t i) {
    std::swap(loads[i], loads.back());
    Load load = std::move(loads.back());
    loads.pop_back();
    load.block->loads--;
    load.job();
}
void begin_load(Job job) {
    me->block->loads++;
    loads.push_back({me->block, std::move(job), drawn(4)});
}

u32 shuffled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
// Where a descriptor says that element (row, k) of an operand lies in shared memory.
u32 element(u64 tile, bool turned, u32 row, u32 k, u32 size) {
    const u32 start = (u32)(tile & 0x3fff) << 4, leading = (u32)(tile >> 16 & 0x3fff) << 4;
    const u32 stride = (u32)(tile >> 32 & 0x3fff) << 4;
    if (tile >> 62 == 0) return start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2;
    if (tile >> 62 == 2) {  // swizzled by 64 bytes
        const u32 at = start + row / 8 * stride + row % 8 * 64 + size * k;
        return at ^ (at >> 7 & 3) << 4;
    }
    if (!turned) return shuffled(start + row / 8 * stride + row % 8 * 128 + size * k);
    return shuffled(start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2);
}
typedef float Operand[32][256];  // by k
// 16 bytes lie side by side, along k or along the rows.
void read_operand(Block &block, Operand &to, u64 tile, bool turned, int rows, const Product &p) {
    const int each = p.bytes ? 16 : 8, depth = 2 * each;
    if (tile >> 62 > 2 || (tile >> 62 != 1 && turned))
        fail("an operand that is neither swizzled by 128 bytes nor along its columns");
    for (int row = 0; row < rows; row += turned ? 8 : 1)
        for (int k = 0; k < depth; k += turned ? 1 : each) {
            const u32 at = element(tile, turned, row, k, p.bytes ? 1 : 2);
            if (at + 16 > block.bytes)
                fail("a product reads shared memory at %u of %zu", at, block.bytes);
            const unsigned char *const from = block.memory + at;
            for (int i = 0; i < each; i++)
                to[turned ? k : k + i][turned ? row + i : row] =
                    p.bytes ? widen_byte(from[i]) : widen(((const uint16_t *)from)[i], p.half);
        }
}
void compute(Block &block, const Product &p) {
    static Operand a, b;
    static float sum[64][256];
    if (p.in_registers && p.bytes)
        for (int row = 0; row < 64; row++)
            for (int k = 0; k < 32; k++) {
                const u32 *const own = p.a[row / 16 * 32 + row % 8 * 4 + k % 16 / 4];
                a[k][row] = widen_byte(own[row % 16 / 8 + k / 16 * 2] >> k % 4 * 8 & 255);
            }
    else if (p.in_registers)
        for (int row = 0; row < 64; row++)
            for (int k = 0; k < 16; k++) {
                const u32 *const own = p.a[row / 16 * 32 + row % 8 * 4 + k % 8 / 2];
                a[k][row] = widen(own[row % 16 / 8 + k / 8 * 2] >> k % 2 * 16, p.half);
            }
    else
        read_operand(block, a, p.a_tile, p.a_turned, 64, p);
    read_operand(block, b, p.b_tile, p.b_turned, p.columns, p);
    const int depth = p.bytes ? 32 : 16;
    for (int row = 0; row < 64; row++)
        for (int first = 0; first < p.columns; first += 64) {
            float part[64] = {};
            for (int k = 0; k < depth; k++)
                for (int n = 0; n < 64; n++) part[n] += a[k][row] * b[k][first + n];
            memcpy(sum[row] + first, part, sizeof part);
        }
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < p.columns / 2; i++) {
            const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
            const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            float &d = p.d[thread][i];
            d = (p.add ? d : 0.0f) + sum[row][column];
        }
}
void compute_until(Block &block, Warpgroup &group, size_t pending) {
    for (; group.groups.size() > pending; group.groups.pop_front())
        for (const Product &p : group.groups.front()) compute(block, p);
}

// Something that is under way ends before anybody waits for it.
void end_something() {
    if (!loads.empty() && drawn(2)) {
        const size_t i = chance() % loads.size();
        if (!loads[i].late) take_load(i), progress = true;
    }
    Block &block = *blocks[chance() % blocks.size()];
    Fiber &f = *block.fibers[chance() % block.fibers.size()];
    if (f.stores.size() > 1 && drawn(2)) finish(f.stores.front()), f.stores.pop_front();
    if (f.copies.size() > 1 && drawn(2)) finish(f.copies.front()), f.copies.pop_front();
    Warpgroup &group = block.groups[chance() % block.groups.size()];
    if (!group.groups.empty() && drawn(2)) compute_until(block, group, group.groups.size() - 1);
}

std::string stuck() {
    std::string text = "no thread can go on:";
    for (auto &block : blocks) {
        std::map<std::string, std::vector<unsigned>> by;
        for (Fiber *f : block->fibers)
            if (!f->done) by[f->polling ? "polls" : f->what].push_back(f->thread);
        for (auto &[what, threads] : by)
            text += "\n  block " + std::to_string(block->index) + ": " +
                    std::to_string(threads.size()) + " threads from " +
                    std::to_string(threads.front()) + " on: " + what;
    }
    return text;
}

void run_round() {
    std::vector<std::pair<Block *, unsigned>> order;
    for (auto &block : blocks)
        for (unsigned w = 0; w < block->warps.size(); w++) order.push_back({block.get(), w});
    std::shuffle(order.begin(), order.end(), chance);
    for (auto [block, w] : order) {
        Warp &warp = block->warps[w];
        if (warp.asleep == 0 && drawn(SLEEPS)) warp.asleep = chance() % LONGEST_SLEEP;
        if (warp.asleep > 0 ? warp.asleep-- : drawn(4)) continue;
        if (warp.waiting && !ready(*warp.waiting)) continue;
        warp.waiting = nullptr;
        const Fiber *first = nullptr;
        bool alike = true;
        const size_t end = std::min<size_t>(block->fibers.size(), 32 * w + 32);
        for (size_t i = 32 * w; i < end; i++) {
            Fiber &f = *block->fibers[i];
            if (f.done) continue;
            if (ready(f)) {
                resume(f);  // and all those behind it
                alike = false;
                break;
            }
            if (!first) first = &f;
            alike &= f.word == first->word && f.old == first->old && f.on_barrier == first->on_barrier;
        }
        if (alike) warp.waiting = first;
        if (!failure.empty()) return;
    }
}

void at_address(u32 address, u32 bytes, const char *what) {
    if (address % 16 || address + bytes > me->block->taken)
        fail("%s at %u, %u bytes", what, address, bytes);
}
}  // namespace

// A tensor map, as machine.py encodes it.
struct Map {
    u64 base;
    u32 rank, half, size;  // bytes of an element
    u64 dims[5], strides[5];  // strides in bytes, of all but the first
    u32 box[5];
    u32 magic;
};
static_assert(sizeof(Map) <= 128, "a map has 128 bytes");

namespace {
// Hands on every element of a box: its bytes in shared memory, and where it lies, or null outside.
template <class Each>
void over_box(const Map &map, u32 shared, const int (&at)[5], const Each &each) {
    u32 place = 0;
    for (u32 e = 0; e < map.box[4]; e++)
        for (u32 d = 0; d < map.box[3]; d++)
            for (u32 c = 0; c < map.box[2]; c++)
                for (u32 b = 0; b < map.box[1]; b++)
                    for (u32 a = 0; a < map.box[0]; a++, place += map.size) {
                        const int64_t x[5] = {at[0] + (int64_t)a, at[1] + (int64_t)b,
                                              at[2] + (int64_t)c, at[3] + (int64_t)d,
                                              at[4] + (int64_t)e};
                        bool inside = true;
                        u64 offset = map.size * x[0];
                        for (int i = 0; i < 5; i++) {
                            inside &= x[i] >= 0 && (u64)x[i] < map.dims[i];
                            if (i) offset += x[i] * map.strides[i];
                        }
                        each(shuffled(shared + place),
                             inside ? (unsigned char *)(map.base + offset) : nullptr);
                    }
}
const Map &map_at(const void *at) {
    const Map &map = *(const Map *)at;
    if (map.magic != 0x7e5a) fail("no tensor map where one is used");
    return map;
}
u32 box_bytes(const Map &map) {
    return map.size * map.box[0] * map.box[1] * map.box[2] * map.box[3] * map.box[4];
}
struct Corner {
    int at[5] = {};
    explicit Corner(std::initializer_list<int> given) { std::copy(given.begin(), given.end(), at); }
};
void complete(Block &block, u32 barrier, u32 bytes) {
    State &found = *(State *)(block.memory + barrier);
    found.bytes -= bytes;
    if (!found.pending && !found.bytes) found.phase ^= 1, found.pending = found.expected;
}
}  // namespace

// ---- what device.h declares

void fail(const char *format, ...) {
    char text[400];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    if (failure.empty()) failure = text;
    if (!me) return (void)fprintf(stderr, "%s\n", text), abort();
    failure += " (block " + std::to_string(blockIdx.x) + ", thread " +
               std::to_string(threadIdx.x) + ")";
    suspend();
    abort();
}
void yield() {
    me->polling = true;
    suspend();
}
unsigned char *arena() { return me->block->memory; }
int new_variable() {
    static int count = 0;
    return count++;
}
void *block_variable(int id, size_t bytes) {
    Block &block = *me->block;
    unsigned char *&at = block.variables[id];
    if (!at) {
        at = block.memory + block.taken;
        block.taken += (bytes + 15) / 16 * 16;
        if (block.taken > block.bytes) fail("too much static shared memory");
    }
    return at;
}

void block_sync() { meet(me->block->all, me->block->live, "__syncthreads"); }
bool block_any(bool mine) {
    Block &block = *me->block;
    block.any |= mine;
    if (block.all.arrived + 1 >= block.live) block.found = block.any, block.any = false;
    block_sync();
    const bool found = block.found;
    block_sync();
    return found;
}
u64 *warp_slots(u32 mask) {
    Meeting &at = warp().meeting(mask);
    return at.slots[at.generation % 2];
}
void warp_sync(u32 mask) {
    Warp &own = warp();
    if (!(mask >> me->thread % 32 & 1)) fail("a lane outside of its own mask %08x", mask);
    meet(own.meeting(mask), __builtin_popcount(mask & own.live), "its warp");
}
void named_sync(int name, int threads) { meet(me->block->named[name], threads, "a named barrier"); }
void named_arrive(int name, int threads) {
    Meeting &at = me->block->named[name];
    progress = true;
    if (++at.arrived >= (unsigned)threads) at.arrived = 0, at.generation++;
}

void barrier_init(u32 barrier, u32 arrivals) {
    if (barrier % 8 || barrier + 8 > me->block->taken) fail("a barrier at %u", barrier);
    State made = {};
    made.expected = made.pending = arrivals, made.alive = ALIVE;
    memcpy(arena() + barrier, &made, sizeof made);
}
void barrier_arrive(u32 barrier) {
    State &found = state(barrier);
    progress = true;
    if (!found.pending) fail("one arrival too many at the barrier at %u", barrier);
    found.pending--;
    complete(*me->block, barrier, 0);
}
void barrier_expect(u32 barrier, u32 bytes) {
    state(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
void barrier_wait(u32 barrier, u32 parity) {
    State &found = state(barrier);
    me->word = (const u64 *)&found, me->old = parity, me->on_barrier = true;
    me->what = "a barrier in memory";
    while (found.phase == parity) suspend();
    me->word = nullptr, me->on_barrier = false;
    progress = true;
}

void load_tensor(u32 to, const void *at, u32 barrier, std::initializer_list<int> corner) {
    const Map map = map_at(at);
    at_address(to, box_bytes(map), "a box");
    state(barrier);
    Block *block = me->block;
    begin_load([=, from = Corner(corner)] {
        over_box(map, to, from.at, [&](u32 shared, const unsigned char *global) {
            if (global) memcpy(block->memory + shared, global, map.size);
            else memset(block->memory + shared, 0, map.size);
        });
        complete(*block, barrier, box_bytes(map));
    });
}
void store_tensor(const void *at, u32 from, std::initializer_list<int> corner, bool adds) {
    const Map map = map_at(at);
    at_address(from, box_bytes(map), "a box");
    Block *block = me->block;
    me->stores.back().push_back([=, to = Corner(corner)] {
        over_box(map, from, to.at, [&](u32 shared, unsigned char *global) {
            if (!global) return;
            uint16_t x, y;
            memcpy(&x, block->memory + shared, 2), memcpy(&y, global, 2);
            if (adds) x = pack(widen(x, map.half) + widen(y, map.half), 0.0f, map.half);
            memcpy(global, &x, 2);
        });
    });
}
void load_bytes(u32 to, const void *from, u32 bytes, u32 barrier) {
    at_address(to, bytes, "a bulk copy");
    if (bytes % 16 || (u64)from % 16) fail("a bulk copy of %u bytes from %p", bytes, from);
    state(barrier);
    Block *block = me->block;
    begin_load([=] {
        memcpy(block->memory + to, from, bytes);
        complete(*block, barrier, bytes);
    });
}
void store_bytes(void *to, u32 from, u32 bytes) {
    at_address(from, bytes, "a bulk copy");
    Block *block = me->block;
    me->stores.back().push_back([=] { memcpy(to, block->memory + from, bytes); });
}
void add_floats(float *to, u32 from, u32 bytes) {
    at_address(from, bytes, "a bulk addition");
    if (bytes % 16 || (u64)to % 16) fail("a bulk addition of %u bytes to %p", bytes, (void *)to);
    Block *block = me->block;
    me->stores.back().push_back([=] {
        for (u32 i = 0; i < bytes / 4; i++) {
            float x;
            memcpy(&x, block->memory + from + 4 * i, 4);
            to[i] += x;
        }
    });
}
void bulk_commit() { me->stores.emplace_back(); }
void bulk_wait(int pending) {
    drain(me->stores, pending);
    if (pending == 0 && !me->stores.back().empty()) fail("bulk stores that no group holds");
}

void copy_async(u32 to, const void *from, u32 bytes, u32 given) {
    if (to % bytes || to + bytes > me->block->taken) fail("a copy to %u", to);
    if (given && (size_t)from % bytes) fail("a copy from %p", from);
    Block *block = me->block;
    me->copies.back().push_back([=] {
        if (given) memcpy(block->memory + to, from, given);
        memset(block->memory + to + given, 0, bytes - given);
    });
}
void copy_commit() { me->copies.emplace_back(); }
void copy_wait(int pending) { drain(me->copies, pending); }
void copy_arrive(u32 barrier) {
    state(barrier);
    std::vector<Job> before;
    for (auto &group : me->copies)
        for (Job &job : group) before.push_back(std::move(job));
    me->copies = {{}};
    Block *block = me->block;
    begin_load([=]() mutable {
        finish(before);
        State &found = *(State *)(block->memory + barrier);
        found.pending--;
        complete(*block, barrier, 0);
    });
}

// One meeting for each instruction: whoever goes on first does the work of all lanes.
template <class Work>
static void all_lanes(Warp &own, const Work &work) {
    const u64 now = own.whole.generation + 1;
    warp_sync(~0u);
    if (own.matrices.done == now) return;
    if (own.live != ~0u) fail("an instruction of a whole warp, of which some threads have left");
    own.matrices.done = now;
    work(own.matrices);
}
// Where lane l keeps its pair of numbers of a matrix of 8 x 8: (row, column) of the first or second.
static u32 place_of(u32 l, int j, bool transposed, const u32 *rows) {
    const u32 along = l / 4, across = l % 4 * 2 + j;
    return transposed ? rows[across] + 2 * along : rows[along] + 2 * across;
}
void matrices_load(u32 *const (&x)[4], u32 from, int count, bool transposed) {
    if (from % 16 || from + 16 > me->block->taken) fail("a matrix row at %u", from);
    Warp &own = warp();
    own.matrices.address[lane()] = from;
    std::copy(x, x + count, own.matrices.words[lane()]);
    const unsigned char *const memory = arena();
    all_lanes(own, [=](Matrices &of) {
        for (u32 l = 0; l < 32; l++)
            for (int i = 0; i < count; i++) {
                uint16_t pair[2];
                for (int j = 0; j < 2; j++)
                    memcpy(pair + j, memory + place_of(l, j, transposed, of.address + 8 * i), 2);
                *of.words[l][i] = pair[0] | (u32)pair[1] << 16;
            }
    });
}
void matrices_store(u32 to, const u32 (&x)[4], int count, bool transposed) {
    if (to % 16 || to + 16 > me->block->taken) fail("a matrix row at %u", to);
    Warp &own = warp();
    own.matrices.address[lane()] = to;
    memcpy(own.matrices.a[lane()], x, sizeof x);
    unsigned char *const memory = arena();
    all_lanes(own, [=](Matrices &of) {
        for (u32 l = 0; l < 32; l++)
            for (int i = 0; i < count; i++)
                for (int j = 0; j < 2; j++) {
                    const uint16_t half = of.a[l][i] >> 16 * j;
                    memcpy(memory + place_of(l, j, transposed, of.address + 8 * i), &half, 2);
                }
    });
}

void mma(float *const (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bool half) {
    Warp &own = warp();
    Matrices &mine = own.matrices;
    memcpy(mine.a[lane()], a, sizeof a), memcpy(mine.b[lane()], b, sizeof b);
    std::copy(c, c + 4, mine.sums[lane()]);
    all_lanes(own, [=](Matrices &of) {
        float rows[16][16], columns[16][8];  // by row and k; by k and column
        for (u32 l = 0; l < 32; l++)
            for (u32 j = 0; j < 2; j++) {
                const u32 k = l % 4 * 2 + j, along = l / 4;
                for (u32 r = 0; r < 4; r++)
                    rows[r % 2 * 8 + along][r / 2 * 8 + k] = widen(of.a[l][r] >> 16 * j, half);
                for (u32 r = 0; r < 2; r++)
                    columns[r * 8 + k][along] = widen(of.b[l][r] >> 16 * j, half);
            }
        for (u32 row = 0; row < 16; row++) {
            float sum[8] = {};
            for (int k = 0; k < 16; k++)
                for (int n = 0; n < 8; n++) sum[n] += rows[row][k] * columns[k][n];
            for (u32 n = 0; n < 8; n++)
                *of.sums[row % 8 * 4 + n / 2][row / 8 * 2 + n % 2] += sum[n];
        }
    });
}

// A thread's part of a product; the last thread begins it.
static void begin_product(float *d, const u32 *own_a, const Product &given) {
    Warpgroup &group = warpgroup();
    Product &next = group.next;
    const u32 own = me->thread % 128;
    if (!group.meeting.arrived) {
        next.columns = given.columns, next.half = given.half, next.add = given.add;
        next.bytes = given.bytes;
        next.a_tile = given.a_tile, next.a_turned = given.a_turned;
        next.b_tile = given.b_tile, next.b_turned = given.b_turned;
        next.in_registers = own_a != nullptr;
    } else if (next.a_tile != given.a_tile || next.b_tile != given.b_tile ||
               next.columns != given.columns || next.add != given.add) {
        fail("threads of a warpgroup begin different products");
    }
    next.d[own] = d;
    if (own_a) memcpy(next.a[own], own_a, sizeof next.a[own]);
    if (group.meeting.arrived == 127) group.open.push_back(next);
    meet(group.meeting, 128, "its warpgroup");
}
void wgmma(float *d, int columns, u64 a, u64 b, bool add, bool a_turned, bool b_turned,
           bool half) {
    begin_product(d, nullptr, {{}, {}, a, b, columns, false, add, a_turned, b_turned, half, false});
}
void wgmma_registers(float *d, int columns, const u32 (&a)[4], u64 b, bool add, bool a_turned,
                     bool b_turned, bool half) {
    begin_product(d, a, {{}, {}, 0, b, columns, true, add, a_turned, b_turned, half, false});
}
void wgmma_bytes(float *d, int columns, u64 a, u64 b, bool add) {
    begin_product(d, nullptr, {{}, {}, a, b, columns, false, add, false, false, false, true});
}
void wgmma_byte_registers(float *d, int columns, const u32 (&a)[4], u64 b, bool add) {
    begin_product(d, a, {{}, {}, 0, b, columns, true, add, false, false, false, true});
}
void wgmma_commit() {
    Warpgroup &group = warpgroup();
    if (group.meeting.arrived == 127) group.groups.push_back(std::move(group.open)), group.open = {};
    meet(group.meeting, 128, "its warpgroup");
}
// Warps of a group begin products together, but none waits here for the others.
void wgmma_wait(int pending) {
    compute_until(*me->block, warpgroup(), pending);
    progress = true;
    warp_sync(~0u);
}

static uint16_t narrow(float x, bool half) {
    if (half) {
        const uint16_t y = emu_bits<uint16_t>((_Float16)x);
        return x != x ? 0x7fff : y;
    }
    if (x != x) return 0x7fff;
    const u32 bits = emu_bits<u32>(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
u32 pack(float low, float high, bool half) {
    return narrow(low, half) | (u32)narrow(high, half) << 16;
}

// To the nearest, ties to even, and to 448 what is larger.
static u32 narrow_byte(float x) {
    const u32 sign = std::signbit(x) ? 128 : 0;
    x = std::fabs(x);
    if (x != x) return 127;
    if (x >= 448) return sign | 126;
    const int exponent = std::max(x > 0 ? std::ilogb(x) : -9, -6);
    const u32 steps = (u32)std::nearbyint(std::ldexp(x, 3 - exponent));  // 8 .. 16, less below
    return sign | (steps + ((exponent + 6) << 3));
}
u32 pack_bytes(float a, float b, float c, float d) {
    return narrow_byte(a) | narrow_byte(b) << 8 | narrow_byte(c) << 16 | narrow_byte(d) << 24;
}

const char *run(void (*kernel)(void *), void *arguments, int count, int threads, int shared,
                u64 seed) {
    the_kernel = kernel, the_arguments = arguments;
    failure.clear(), blocks.clear(), loads.clear();
    chance.seed(seed);
    gridDim = {(unsigned)count, 1, 1}, blockDim = {(unsigned)threads, 1, 1};
    int next = 0, patience = PATIENCE;
    if (shared + STATICS > ARENA) return "more shared memory than there is";
    while (failure.empty()) {
        while (next < count && blocks.size() < RESIDENT)
            blocks.push_back(new_block(next++, threads, shared));
        if (blocks.empty()) break;
        progress = false;
        run_round();
        if (!failure.empty()) break;
        end_something();
        for (size_t i = 0; i < blocks.size(); i++)
            if (!blocks[i]->live && !blocks[i]->loads) {
                drop(*blocks[i]);
                std::swap(blocks[i], blocks.back());
                blocks.pop_back();
                i--;
            }
        if (progress) patience = PATIENCE;
        else if (!loads.empty()) take_load(chance() % loads.size());
        else if (--patience == 0) failure = stuck();
    }
    for (auto &block : blocks) drop(*block);
    blocks.clear();
    return failure.empty() ? nullptr : failure.c_str();
}
}  // namespace emu

// What g++ calls with an index that an array does not have, as -fsanitize=bounds says.
struct ArrayType {
    unsigned short kind, info;
    char name[1];
};
struct OutOfBounds {
    const char *file;
    unsigned line, column;
    const ArrayType *array, *index;
};
extern "C" void __ubsan_handle_out_of_bounds(const OutOfBounds *place, unsigned long index) {
    emu::fail("element %ld of an array %s", (long)index, place->array->name);
}
