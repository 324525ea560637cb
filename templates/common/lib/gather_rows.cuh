// Queries that choose single keys, and the scores of their keys. Needs: gathered_arguments.h,
// gather_element.cuh. Gives: row_at, score_of, scores_at.

// ---------------------------------------------------------------- what ranks

// A query whose keys a block selects.
struct Row {
    i64 number;  // index among all rows
    i32 query, batch, group;
};
FN struct Row row_at(const struct Gathered &p, i32 block) {
    const i64 number = p.first + block, list = number / p.n_q, batch = list / p.groups;
    return {number, (i32)(number - list * p.n_q), (i32)batch, (i32)(list - batch * p.groups)};
}

// The score of a key: the mean over heads that select together.
FN float score_of(const struct Gathered &p, const struct Row &row, i32 key) {
#if INDEXED
    return p.scores[(i64)blockIdx.x * p.pitch + key];
#else
    const i64 place = row.batch * p.given_stride[0] + row.query * p.given_stride[2] + key;
    const i32 first = row.group * p.heads;
    float sum = element_at(p.given, place + first * p.given_stride[1], p.given_code);
    if (p.heads == 1) return sum;
    for (i32 i = 1; i < p.heads; i++)
        sum = __fadd_rn(sum, element_at(p.given, place + (first + i) * p.given_stride[1],
                                        p.given_code));
    return __fdiv_rn(sum, (float)p.heads);
#endif
}
// Scores of four keys, the first a multiple of four. Undefined for keys that do not exist.
FN float4 scores_at(const struct Gathered &p, const struct Row &row, i32 key) {
#if INDEXED
    return *(const float4 *)(p.scores + (i64)blockIdx.x * p.pitch + key);
#else
    const i32 last = p.n_kv - 1;
    return make_float4(score_of(p, row, key), score_of(p, row, min_i32(key + 1, last)),
                       score_of(p, row, min_i32(key + 2, last)),
                       score_of(p, row, min_i32(key + 3, last)));
#endif
}
