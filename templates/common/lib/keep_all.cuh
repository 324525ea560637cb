// The keep policy of calls without dropout: all weights stay. keep_drawn.cuh is the other one.
// Gives: as that one.

#define DROPS 0

struct Dropout {};
template <int N>
struct Staying {};
FN struct Dropout dropout_of(const struct Attention &) { return {}; }
FN float kept_scale(const struct Attention &) { return 1.0f; }
FN float kept_factor(const struct Attention &, i32, i32, i32, i32) { return 1.0f; }
FN bool stays(const struct Dropout &, i32, i32, i32, i32) { return true; }
template <int N>
FN bool has(const struct Staying<N> &, int) {
    return true;
}
template <int N>
FN void draw_by_query(struct Staying<N> &, const struct Dropout &, i32, i32, i32, i32) {}
template <int N>
FN void draw_by_key(struct Staying<N> &, const struct Dropout &, i32, i32, i32, i32) {}
template <int N>
FN void drop(float (&)[N], const struct Staying<N> &, float = 1.0f) {}
template <int N>
FN void drop_pairs(u32 (&)[N], const struct Staying<2 * N> &) {}
