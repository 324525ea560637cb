// Mask policy: tiles of keys begin with documents. If all keys of a tile belong to one document,
// its queries see intervals, and other queries see nothing; otherwise the mask's formula decides.
// See mask_policy.cuh. Needs: ENDS, query_documents, key_documents of the config header.

#include "sm90a/lib/visible.cuh"

#include "common/lib/intervals.cuh"

#include "common/lib/pairs.cuh"

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = true;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

// The end of the document that a tile begins with; the next document has its own tiles. If the tile
// holds several documents: minus the number of all keys. ENDS is the index of the data array.
FN i32 document_end(const struct Attention &p, i32 batch, i32 first_k) {
    return __ldg(p.array[ENDS] + batch * p.array_batch[ENDS] + first_k);
}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    static_assert(!Side::KEY_ROWS, "tiles of keys begin with documents, those of queries do not");
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    const i32 end = document_end(p, at.batch, first);
    if (INTERVALS > 0 && end >= 0) {
        const i32 document = key_documents(mask)[first];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (query_documents(mask)[rows[r]] != document) continue;
            add_intervals<Side, Own>(seen.word[r], mask, rows[r], column, end, n_q, n_kv);
        }
        return seen;
    }
    add_pairs<Side, Own>(seen.word, mask, rows, column, end < 0 ? -end : end, n_q, n_kv);
    return seen;
}
