// Which pairs a thread's scores of a tile are of, where rows are of several heads; see logit.cuh.
// Needs: packed_rows.cuh, logit.cuh, Row of the includer.

struct Where {
    i32 sequence, key_place;  // of the first element
    i32 token[2], of_head[2];  // of the thread's two rows
    struct HeadLogit own[2];
    float far[2];  // positions: the query's minus the first key's
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const { return fabsf(far[i / 2 % 2] - (i / 4 * 8 + i % 2)); }
    FN struct HeadLogit head_logit(int i) const { return own[i / 2 % 2]; }
    FN i32 query(const struct Attention &, int i) const { return token[i / 2 % 2]; }
    FN i32 key(const struct Attention &, int i) const { return key_place + i / 4 * 8 + i % 2; }
    FN float apart(const struct Attention &p, int i) const {
        return (float)(query(p, i) - key_place) - (i / 4 * 8 + i % 2);
    }
    FN i32 head(int i) const { return of_head[i / 2 % 2]; }
    FN i32 batch() const { return sequence; }
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    struct Where where;
    where.sequence = row.batch;
    where.key_place = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        where.token[r] = mask_row(p, query + 8 * r);
        where.of_head[r] = head_of_row(p, row.head, query + 8 * r);
        where.own[r] = head_logit_of(p, where.of_head[r]);
        where.far[r] = (float)(where.token[r] + p.n_kv - p.queries - where.key_place);
    }
    return where;
}
