// A row's sum, joined with that of other keys.

// What a row's other keys gave before becomes one key more: its lse is that key's logit, out its
// value. Returns its weight.
FN float join_sum(float lse, float &total, float &base, float &factor) {
    const float before = lse * LOG2E, higher = fmaxf(base, before);
    const float shrink = fast_exp2(base - higher), weight = fast_exp2(before - higher);
    factor *= shrink;
    total = total * shrink + weight;
    base = higher;
    return weight;
}
