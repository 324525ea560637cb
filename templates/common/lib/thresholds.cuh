// Keys selected by score: two numbers per row describe the selection.

#include "common/lib/images.cuh"

// A row selects the keys with scores above `low`, and keys before `end` with a score of exactly
// `low`. If a row has fewer numbers than keys to select, `low` is NaN: all numbers are selected,
// and NaN scores before `end`.
struct Threshold {
    float low, high;  // least selected score, for keys before `end` and for later keys
    i32 end;
};
FN struct Threshold threshold_from(float low, i32 end) {
    return {low, low == low ? number_of(image_of(low) + 1) : MINUS_INFINITY, end};
}
FN bool chosen_by(const struct Threshold &t, float score, bool before_end) {
    return score >= (before_end ? t.low : t.high);
}

#include "common/lib/threshold_place.cuh"
