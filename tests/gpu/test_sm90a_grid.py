"""Tiles that are boxes of a grid on a Hopper: both passes against fp64."""

from __future__ import annotations

from pathlib import Path

import pytest

import maskc as mc
from tests.support.exact_attention import live_pairs, tensors, vectors
from tests.support.hopper import check, compiled, half, modes, replayed_alike

PATTERNS = Path(__file__).parents[2] / "patterns"


def pattern(name):
    return mc.load(PATTERNS / f"{name}.py")[name]


def flat(**options):
    return pattern("natten_2d")(width=20, **options)


def solid(**options):
    return pattern("natten_3d")(height=9, width=10, **options)


FLAT = {
    "image": flat(kernel=(5, 7)),
    "strides": flat(kernel=(6, 9), stride=(3, 4)),
    "dilated": flat(kernel=(4, 5), dilation=(2, 3)),
    "causal": flat(kernel=(7, 5), causal=True, dilation=(1, 2)),
    "windows": pattern("swin")(width=20, window=6, shift=2),
    "some rows": mc.where(lambda q, k: (q % 20 <= 3) & (k % 20 < 9) & (q // 20 >= k // 20)),
    "columns": mc.where(lambda q, k: (k % 20 == 3) & (q // 20 - k // 20 < 9)),
}
"""Tokens: any number of rows of 20."""
SOLID = {
    "video": solid(kernel=(3, 4, 5)),
    "groups": solid(kernel=(4, 6, 6), stride=(2, 3, 4)),
    "dilated video": solid(kernel=(3, 3, 2), dilation=(2, 1, 3)),
    "causal video": solid(kernel=(3, 4, 3), causal=True),
}
"""Tokens: any number of frames of 90."""
MASKS = FLAT | SOLID


def lengths(name):
    return (20, 260, 740) if name in FLAT else (90, 630)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", MASKS)
def test_both_passes(name, dim):
    for mode in ("grid default", "grid persistent"):
        attn = compiled(MASKS[name], dim, mode=mode)
        for n in lengths(name):
            check(attn, tensors(n, n, dim, half("bfloat16"), n), live_pairs(MASKS[name], n, n))
        used = {source for source, _ in modes(attn)}
        assert used == {"sm_90a_grid", "sm_90a_grid_backward"}


@pytest.mark.parametrize("dim", [96, 192, 256])
@pytest.mark.parametrize("name", ["strides", "video"])
def test_other_dimensions(name, dim):
    attn, n = compiled(MASKS[name], dim, mode="grid"), lengths(name)[-1]
    given = tensors(n, n, dim, half("float16"), 1)
    check(compiled(MASKS[name], dim, "float16", mode="grid"), given, live_pairs(MASKS[name], n, n))
    assert attn.unit.boxes


@pytest.mark.parametrize("name", ["image", "some rows", "groups"])
def test_features(name):
    attn, n = compiled(MASKS[name], 128, mode="grid"), lengths(name)[-1]
    given, live = tensors(n, n, 128, half("bfloat16"), 1), live_pairs(MASKS[name], n, n)
    sinks = vectors(("sink_logits",), 4)["sink_logits"]
    check(attn, given, live, sink_logits=sinks, deterministic=True)
    check(attn, given, live, softcap=2.0, scale=-0.3)


@pytest.mark.parametrize("name", ["image", "video"])
def test_tokens_before_heads(name):
    """Sequences whose heads are not equally far apart are launched one by one if need be."""
    attn, n = compiled(MASKS[name], 64, mode="grid"), lengths(name)[-1]
    given = tensors(n, n, 64, half("bfloat16"), 5, batch=3)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    check(attn, swapped, live_pairs(MASKS[name], n, n))


@pytest.mark.parametrize("name", ["image", "video"])
def test_rows_and_columns_in_parts(name):
    attn = compiled(MASKS[name], 128, mode="grid", row_tiles=1, most_tiles=1)
    n = lengths(name)[-1]
    check(attn, tensors(n, n, 128, half("bfloat16"), 2), live_pairs(MASKS[name], n, n))


def test_heads_with_masks_of_their_own():
    masks = [FLAT["image"], FLAT["strides"], FLAT["image"], FLAT["causal"]]
    each = mc.per_head(masks)
    attn = compiled(each, 128, heads=4, mode="grid")
    live = live_pairs(each, 260, 260, heads=4)
    check(attn, tensors(260, 260, 128, half("bfloat16"), 3), live)
    each = mc.per_head([SOLID["video"], SOLID["groups"]] * 2)
    attn = compiled(each, 128, heads=4, mode="grid")
    live = live_pairs(each, 630, 630, heads=4)
    check(attn, tensors(630, 630, 128, half("bfloat16"), 3), live)


def test_other_calls_run_otherwise():
    """Lengths that are no grid, ALiBi, and queries that are not all."""
    mask = FLAT["image"]
    attn = compiled(mask, 64)
    for n_q, n_kv in ((261, 261), (260, 520)):
        check(attn, tensors(n_q, n_kv, 64, half("bfloat16"), 1), live_pairs(mask, n_q, n_kv))
    slopes = vectors(("alibi_slopes",), 4)["alibi_slopes"]
    given = tensors(260, 260, 64, half("bfloat16"), 1)
    check(attn, given, live_pairs(mask, 260, 260), alibi_slopes=slopes)
    assert not {source for source, _ in modes(attn)} & {"sm_90a_grid", "sm_90a_grid_backward"}


def test_a_large_window_takes_boxes_by_itself():
    mask = pattern("natten_2d")(width=128, kernel=(40, 40))
    attn = compiled(mask, 128)
    n = 64 * 128
    q, k, v, dout = tensors(n, n, 128, half("bfloat16"), 1, batch=1, heads=2, kv_heads=1)
    out, lse = attn(q, k, v, return_lse=True)
    gradients = attn.backward(q, k, v, out, lse, dout)
    plain = compiled(mask, 128, mode="large")
    units = {source for source, _ in modes(attn)}
    assert units == {"sm_90a_grid", "sm_90a_grid_backward"}
    want, lse_want = plain(q, k, v, return_lse=True)
    assert (out.float() - want.float()).abs().max() <= 2**-7
    assert (lse - lse_want).abs().max() <= 1e-4
    again = plain.backward(q, k, v, want, lse_want, dout)
    for x, y in zip(gradients, again, strict=True):
        assert (x.float() - y.float()).abs().max() <= 2**-6 * y.float().abs().max()


def test_a_graph():
    attn = compiled(SOLID["video"], 64, mode="grid")
    q, k, v, _ = tensors(630, 630, 64, half("bfloat16"), 3)
    replayed_alike(attn, q, k, v)
