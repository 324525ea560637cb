// The dropout bits. Needs: FN, struct Attention with the fields of dropout. Gives: Dropout,
// dropout_of, Draws, draws_at, stays.

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011) turns a counter into 128 bits. A pair (q, k) uses 16 of them. Eight pairs share a counter:
// {q, q + 8} x {k, k + 1, k + 8, k + 9} in an aligned square of 16 x 16, because these belong to
// one thread of an mma fragment. The bits depend on positions only, never on tile sizes.
typedef unsigned int u32;
typedef unsigned long long u64;

struct Dropout {
    u32 key[2];  // the seed
    u32 least;   // a draw in 0 .. 65535 of at least this keeps its pair
    u32 first_q, first_k;  // token offset of the call in its sequence, / 16
};
FN struct Dropout dropout_of(const i64 *seed_at, i64 seed, i32 least, i32 first_q, i32 first_k) {
    const u64 bits = (u64)(seed_at ? *seed_at : seed);
    const struct Dropout d = {
        {(u32)bits, (u32)(bits >> 32)}, (u32)least, (u32)first_q, (u32)first_k};
    return d;
}

// Draws of eight pairs: the halves of word[2 * (k % 2) + q / 8 % 2] belong to k / 8 % 2 == 0 (lower
// half) and 1 (upper half).
struct Draws {
    u32 word[4];
};
FN struct Draws draws_at(struct Dropout d, i32 q, i32 k, i32 head, i32 batch) {
    u32 c0 = (d.first_q + ((u32)q >> 4)) << 3 | ((u32)q & 7);
    u32 c1 = (d.first_k + ((u32)k >> 4)) << 2 | ((u32)k >> 1 & 3);
    u32 c2 = (u32)head, c3 = (u32)batch, k0 = d.key[0], k1 = d.key[1];
    for (i32 round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0, c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1, c3 = (u32)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const struct Draws draws = {{c0, c1, c2, c3}};
    return draws;
}

// Whether one of these eight pairs is kept.
FN i32 stays(struct Draws draws, u32 least, i32 q, i32 k) {
    const u32 *const w = draws.word;
    const u32 even = q & 8 ? w[1] : w[0], odd = q & 8 ? w[3] : w[2], word = k & 1 ? odd : even;
    return (k & 8 ? word >> 16 : word & 0xffff) >= least;
}
