// The scales of E4M3 pools. Needs: struct Attention. Gives: key_scale, value_scale.

FN float pool_scale(const struct Attention &p, const float *scales, const i64 (&step)[2],
                    float number, i32 batch, i32 head) {
    if (scales == nullptr) return number;
    const i32 sequence = p.scale_sequence ? __ldg(p.scale_sequence + batch) : batch;
    return __ldg(scales + sequence * step[0] + head * step[1]);
}
FN float key_scale(const struct Attention &p, i32 batch, i32 head) {
    return pool_scale(p, p.k_scale, p.k_scale_step, p.k_number, batch, head);
}
FN float value_scale(const struct Attention &p, i32 batch, i32 head) {
    return pool_scale(p, p.v_scale, p.v_scale_step, p.v_number, batch, head);
}
