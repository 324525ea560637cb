// Maps a thread's score elements to pairs, if rows belong to several heads (pack_gqa); see
// logit.cuh. Needs: packed_rows.cuh, logit.cuh, Row of the includer.

// One of the thread's rows.
struct RowWhere {
    i32 sequence, key_place;  // at the first element
    i32 token, of_head;  // token in the call, or in its list
    struct HeadLogit own;
    struct Steps steps;  // counted from the first key
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const { return fabsf(steps.at(0, i / 2 * 8 + i % 2)); }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int) const { return query_token(p, sequence, token); }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, sequence, key_place + i / 2 * 8 + i % 2);
    }
    FN float q_minus_k(const struct Attention &, int i) const {
        return steps.at(0, i / 2 * 8 + i % 2);
    }
    FN i32 head(int) const { return of_head; }
    FN i32 batch() const { return sequence; }
};
struct Where {
    struct RowWhere row[2];
    bool any[2];  // whether any lane of the warp has such a row
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    struct Where where;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        struct RowWhere &own = where.row[r];
        own.sequence = row.batch;
        own.key_place = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
        own.token = mask_row(p, query + 8 * r);
        own.of_head = head_of_row(p, row.head, query + 8 * r);
        own.own = head_logit_of(p, own.of_head);
        own.steps = steps_from(p, own.sequence, own.token, own.key_place);
        where.any[r] = query - (i32)threadIdx.x % 32 / 4 + 8 * r < p.n_q;
    }
    return where;
}

// Turns scores into logits row by row. Few rows of a tile exist; the others are skipped.
template <bool SCALED, int N>
FN void bend(float (&s)[N], const struct Attention &p, const struct Where &where) {
#if PAIRWISE_LOGITS
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!where.any[r]) continue;
        float part[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) part[i] = s[i / 2 * 4 + 2 * r + i % 2];
        bend<SCALED>(part, p, where.row[r]);
#pragma unroll
        for (int i = 0; i < N / 2; i++) s[i / 2 * 4 + 2 * r + i % 2] = part[i];
    }
#endif
}
