// Adds the result of an earlier launch over other keys to a row's sum.

// The earlier result counts as one more key: its lse is the key's logit, its out the key's value.
// Returns its weight.
FN float join_sum(float lse, float &total, float &base, float &factor) {
    const float before = lse * LOG2E, higher = fmaxf(base, before);
    const float shrink = fast_exp2(base - higher), weight = fast_exp2(before - higher);
    factor *= shrink;
    total = total * shrink + weight;
    base = higher;
    return weight;
}
