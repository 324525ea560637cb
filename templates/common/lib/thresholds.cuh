// Keys chosen by score, of which two numbers a row tell.

#include "common/lib/images.cuh"

// A row's chosen keys are those with scores above `low`, and those with just that score before key
// `end`. With fewer numbers than keys to choose `low` is none: then all numbers are chosen, and
// before `end` what is no number, too.
struct Threshold {
    float low, high;  // the least score that is chosen, of keys before `end` and of later ones
    i32 end;
};
FN struct Threshold threshold_from(float low, i32 end) {
    return {low, low == low ? number_of(image_of(low) + 1) : MINUS_INFINITY, end};
}
FN bool chosen_by(const struct Threshold &t, float score, bool before_end) {
    return score >= (before_end ? t.low : t.high);
}

#include "common/lib/threshold_place.cuh"
