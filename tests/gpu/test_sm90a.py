"""sm_90a kernels on a Hopper: every result of both passes against fp64.

Run with `make test-gpu`. The bound is the contract's, see tests/support/exact_attention.py. Bits,
poison, streams and graphs are in test_sm90a_runs.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, seed, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support.cases import FEATURES, RANGES
from tests.support.exact_attention import (
    DEVICE,
    called,
    fits,
    heads_of,
    live_pairs,
    results,
    tensors,
    vectors,
    wrong,
)
from tests.support.hopper import (
    BACKWARD,
    BAND,
    DIMS,
    HEADS,
    SIZES,
    WAYS,
    check,
    compiled,
    half,
    modes,
    needs_backward,
    way,
)
from tests.support.patterns import static_patterns

PATTERNS = static_patterns()  # for the others see test_selection.py


# ------------------------------------------------------------------ masks


@pytest.mark.parametrize("part", range(12))
def test_random_masks(part):
    """Four masks a call, one per head, with random data, features, modes and lengths."""

    @seed(part)
    @settings(max_examples=3, database=None, phases=[Phase.generate])
    @given(st.data(), st.lists(masks(max_depth=2), min_size=HEADS, max_size=HEADS))
    def run(data, parts):
        mask = mc.per_head(parts)
        assume(fits(mask, HEADS))
        mode = data.draw(st.sampled_from(WAYS))
        dim = data.draw(st.sampled_from([64, 96, 128] if "small" in mode else DIMS))
        dtype = data.draw(st.sampled_from(["bfloat16", "float16"]))
        cuts = data.draw(st.sampled_from([256, 2])), data.draw(st.sampled_from([None, 1, 2]))
        attn = compiled(mask, dim, dtype, HEADS, mode, *cuts)
        number = data.draw(st.integers(0, 1 << 16))
        names = data.draw(st.sets(st.sampled_from(["sink_logits", "alibi_slopes"])))
        features = vectors(sorted(names), HEADS, number)
        if data.draw(st.booleans()):
            features["softcap"] = 3.0
        features["scale"] = data.draw(st.sampled_from([None, None, 0.3, -0.2, 0.0]))
        for n_q, n_kv in data.draw(st.lists(st.sampled_from(SIZES), min_size=3, max_size=3)):
            given_data = sample_data(mask, n_q, n_kv, seed=number % 97)
            live = live_pairs(mask, n_q, n_kv, given_data, HEADS)
            check(attn, tensors(n_q, n_kv, dim, half(dtype), number), live, given_data, **features)

    run()


@pytest.mark.parametrize("form", [None, "large", "small"])
@pytest.mark.parametrize("path", PATTERNS, ids=lambda path: path.stem)
def test_patterns(path, form):
    mask = mc.load(path)[path.stem]()
    heads = heads_of(mask, HEADS)
    attn = compiled(mask, 128, heads=heads, mode=form)
    for n_q, n_kv in [(190, 190), (333, 450)]:
        data = sample_data(mask, n_q, n_kv)
        live = live_pairs(mask, n_q, n_kv, data, heads)
        check(attn, tensors(n_q, n_kv, 128, torch.bfloat16, heads=heads, kv_heads=1), live, data)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", DIMS)
def test_head_dims_and_lengths(dim, dtype, mode):
    """A mask in intervals; rows and columns that see nothing where the lengths differ."""
    attn = compiled(BAND, dim, dtype, mode=mode)
    for n_q, n_kv in SIZES:
        live = live_pairs(BAND, n_q, n_kv)
        check(attn, tensors(n_q, n_kv, dim, half(dtype), n_q), live)
    if way(mode)[1] in dict(attn.unit.modes):
        assert way(mode) in modes(attn)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_pairs_tested_one_by_one(dim, mode):
    mask = mc.causal() & (mc.strided(7) | mc.window(20)) - mc.global_tokens([100]).rows
    attn = compiled(mask, dim, mode=mode)
    for n_q, n_kv in [(1, 1), (193, 192), (333, 777), (777, 333)]:
        live = live_pairs(mask, n_q, n_kv)
        check(attn, tensors(n_q, n_kv, dim, torch.bfloat16, n_q), live)


BITS = {
    "distances": mc.causal() & (mc.window(20) | mc.where(lambda q, k: (q - k) % 37 == 0)),
    "distances and intervals": mc.dilated(9, 9, stride=3) | mc.sinks(5),
    "runs": mc.where(lambda q, k: (q // 64 + k // 64) % 3 != 1),
    "distances by head": mc.per_head([mc.dilated(90, stride=2 + i) for i in range(HEADS)]),
}
"""Partial tiles by data that are read, or tested, once for many pairs."""


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", BITS)
def test_bits_for_many_pairs(name, dim, mode):
    heads = HEADS if name.endswith("head") else None
    attn = compiled(BITS[name], dim, mode=mode, heads=heads)
    for n_q, n_kv in ((333, 777), (777, 333), (129, 640)):
        made = tensors(n_q, n_kv, dim, torch.bfloat16)
        check(attn, made, live_pairs(BITS[name], n_q, n_kv, heads=heads))


@pytest.mark.parametrize("mask", RANGES, ids=str)
@pytest.mark.parametrize("form", ["large", "small"])
@pytest.mark.parametrize("dim", [64, 128])
def test_closed_form_ranges(dim, form, mask):
    attn = compiled(mask, dim, mode=form)
    assert attn.unit.ranges
    for n_q, n_kv in [(1, 1), (255, 257), (500, 500), (700, 333)]:
        live = live_pairs(mask, n_q, n_kv)
        check(attn, tensors(n_q, n_kv, dim, torch.bfloat16, dim), live)


def test_rows_and_columns_that_see_nothing():
    mask = mc.where(lambda q, k: (q >= 200) & (q < 500) & (k >= 300) & (k < 410))
    for mode in WAYS:
        computed = check(
            compiled(mask, 64, mode=mode),
            tensors(900, 800, 64, torch.bfloat16),
            live_pairs(mask, 900, 800),
        )
        dead = torch.ones(900, dtype=torch.bool, device=DEVICE)
        dead[200:500] = False
        assert not computed["out"][:, :, dead].any()
        assert (computed["lse"][:, :, dead] == -torch.inf).all()
        for name, side in (("dq", dead), ("dk", slice(0, 300)), ("dv", slice(410, None))):
            assert name not in computed or not computed[name][:, :, side].any()


@pytest.mark.parametrize(("n_q", "n_kv", "batch"), [(0, 5, 2), (5, 0, 2), (5, 5, 0), (0, 0, 1)])
def test_nothing_at_all(n_q, n_kv, batch):
    attn = compiled(mc.causal())
    q, k, v, dout = tensors(n_q, n_kv, 64, torch.bfloat16, batch=batch)
    computed = called(attn, q, k, v, dout if BACKWARD else None)
    assert not computed["out"].any()
    assert (computed["lse"] == -torch.inf).all()
    for name, x in (("dq", q), ("dk", k), ("dv", v)):
        assert name not in computed or (
            computed[name].shape == x.shape and not computed[name].any()
        )


def test_masks_by_head_and_tables_by_head():
    parts = [mc.causal(), mc.window(40), mc.window(90, 10), mc.strided(3) & mc.causal()]
    mask = mc.per_head(parts)
    attn = compiled(mask, 128, heads=HEADS)
    for n_q, n_kv in [(190, 190), (333, 500)]:
        live = live_pairs(mask, n_q, n_kv, heads=HEADS)
        for kv_heads in (4, 2, 1):
            check(attn, tensors(n_q, n_kv, 128, torch.bfloat16, kv_heads=kv_heads), live)

    attn, block, n = compiled(mc.block_table("t", 64), 128), 64, 500
    side = torch.arange(n, device=DEVICE) // block
    for shape in ((HEADS, 8, 8), (2, 1, 8, 8), (2, HEADS, 8, 8)):
        table = np.random.default_rng(len(shape)).random(shape) < 0.4
        blocks = torch.tensor(table, device=DEVICE)
        live = blocks[..., side[:, None], side[None]]
        check(attn, tensors(n, n, 128, torch.bfloat16), live, {"t": table})


def test_a_full_block_list_is_the_closed_form():
    n = 700
    q, k, v, dout = tensors(n, n, 128, torch.bfloat16)
    dout = dout if BACKWARD else None
    listed = called(
        compiled(mc.block_table("t", 64), 128), q, k, v, dout, {"t": np.ones((11, 11), bool)}
    )
    whole = called(compiled(mc.full(), 128), q, k, v, dout)
    for name, x in whole.items():
        torch.testing.assert_close(listed[name], x, rtol=2**-7, atol=2**-9 if x.ndim == 4 else 1e-5)


@pytest.mark.parametrize("dim", [64, 192])
def test_documents_by_sequence(dim):
    n = 600
    rng = np.random.default_rng(3)
    doc = np.sort(rng.integers(0, 5, (2, n)), axis=1).astype(np.int32)
    mixed = rng.integers(0, 3, (2, n)).astype(np.int32)
    mask = mc.causal() & mc.documents("doc")
    attn = compiled(mask, dim)
    for ids in (doc, mixed):
        same = torch.tensor(ids[:, None, :, None] == ids[:, None, None, :], device=DEVICE)
        check(attn, tensors(n, n, dim, torch.bfloat16), same.tril(), {"doc": ids})


# ------------------------------------------------------------------ features, heads, strides


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", FEATURES)
def test_features(name, dim):
    mask = BAND | mc.prefix(3) if "scale" in name else mc.causal() & mc.window(150)
    heads, options = FEATURES[name]
    for mode in WAYS if dim <= 128 else WAYS[:2]:
        attn = compiled(mask, dim, mode=mode)
        for n_q, n_kv in [(65, 65), (300, 333), (333, 300)]:
            live, features = live_pairs(mask, n_q, n_kv), {**vectors(heads, HEADS), **options}
            check(attn, tensors(n_q, n_kv, dim, torch.bfloat16), live, **features)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (6, 2), (8, 1), (16, 4)])
def test_shared_heads(heads, kv_heads):
    attn = compiled(BAND, 128)
    made = tensors(333, 400, 128, torch.bfloat16, heads=heads, kv_heads=kv_heads, batch=3)
    check(attn, made, live_pairs(BAND, 333, 400))


@pytest.mark.parametrize("most_tiles", [1, 3])
@pytest.mark.parametrize("dim", DIMS)
@needs_backward
def test_columns_cut_into_items(dim, most_tiles):
    """Gradients of keys that several items add up."""
    attn = compiled(BAND | mc.strided(50), dim, most_tiles=most_tiles)
    live = live_pairs(BAND | mc.strided(50), 700, 650)
    for deterministic in (False, True):
        check(
            attn, tensors(700, 650, dim, torch.bfloat16), live, deterministic=deterministic
        )  # fmt: skip


@pytest.mark.parametrize("dim", DIMS)
@needs_backward
def test_deterministic_is_right_too(dim):
    attn = compiled(mc.causal(), dim)
    for n in (1, 130, 777):
        made, live = tensors(n, n, dim, torch.bfloat16), live_pairs(mc.causal(), n, n)
        extra = vectors(["alibi_slopes", "sink_logits"], HEADS)
        check(attn, made, live, deterministic=True)
        check(attn, made, live, deterministic=True, **extra)
    assert any(mode == "deterministic" for _, mode in modes(attn))


def as_bshd(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def inside(x):
    """A view into a larger tensor that is NaN everywhere else."""
    b, h, n, d = x.shape
    around = torch.full((b + 1, h + 2, n + 70, d + 64), torch.nan, dtype=x.dtype, device=x.device)
    view = around[1:, 1 : h + 1, 3 : n + 3, 32 : d + 32]
    return view.copy_(x)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_views(dim, mode):
    """Views give the bits of contiguous tensors."""
    attn = compiled(BAND, dim, mode=mode)
    live = live_pairs(BAND, 333, 400)
    made = tensors(333, 400, dim, torch.bfloat16, 1)
    whole = check(attn, made, live, deterministic=True)
    for view in (as_bshd, inside):
        computed = check(attn, [view(x) for x in made], live, deterministic=True)
        for name, x in whole.items():
            assert torch.equal(computed[name], x), (view.__name__, name)
    assert called(attn, *map(as_bshd, made[:3]))["out"].transpose(1, 2).is_contiguous()


def test_expanded_keys_and_values():
    """Stride 0 between heads, between sequences, and both."""
    attn = compiled(BAND, 128)
    q, k, v, dout = tensors(333, 400, 128, torch.bfloat16, kv_heads=4)
    live = live_pairs(BAND, 333, 400)
    for cut in ((slice(None), slice(1)), (slice(1), slice(None)), (slice(1), slice(1))):
        shared = [x[cut].expand(x.shape) for x in (k, v)]
        assert 0 in shared[0].stride()
        check(attn, [q, *shared, dout], live)


# ------------------------------------------------------------------ long rows


LONG = {
    "window": (mc.causal() & mc.window(255), 4096, "persistent"),
    "causal, short": (mc.causal(), 4100, "default"),  # one row a block
    "causal, long": (mc.causal(), 11000, "default"),
    "full": (mc.full(), 6000, "default"),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("dim", [64, 128])
def test_long_rows_choose_their_mode(name, dim):
    mask, n, mode = LONG[name]
    attn = compiled(mask, dim, mode="large")
    live = torch.ones((n, n), dtype=torch.bool, device=DEVICE)
    if name != "full":
        live = live.tril().triu(-255 if name == "window" else -n)
    check(attn, tensors(n, n, dim, torch.bfloat16, batch=1, heads=1, kv_heads=1), live)
    assert {found for source, found in modes(attn) if source == "sm_90a"} == {mode}


def streaming_chunk(n, first, size, keep=300, front=3):
    """(rows, keys they may see, bool [rows, keys]) of causal & (sinks(front) | window(keep))."""
    rows = torch.arange(first, min(first + size, n), device=DEVICE)
    begin = max(front, first - keep)
    keys = torch.cat([torch.arange(front, device=DEVICE),
                      torch.arange(begin, min(first + size, n), device=DEVICE)])  # fmt: skip
    away = rows[:, None] - keys[None]
    return rows, keys, (away >= 0) & ((keys < front) | (away <= keep))


@pytest.mark.parametrize("n", [65535, 65536, 65537])
def test_long_sequences(n):
    """Every row and every key, a piece at a time; the first keys' columns are cut."""
    mask = mc.causal() & (mc.sinks(3) | mc.window(300))
    attn = compiled(mask, 64)
    q, k, v, dout = tensors(n, n, 64, torch.bfloat16, 5, batch=1, heads=2, kv_heads=1)
    computed = called(attn, q, k, v, dout if BACKWARD else None)
    sides = [{}, {}]
    for kind, side in zip((torch.float64, torch.bfloat16), sides, strict=True):
        for first in range(0, n, 4096):
            rows, keys, live = streaming_chunk(n, first, 4096)
            piece = results(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], dout[:, :, rows], live, kind,
                backward=BACKWARD,
            )  # fmt: skip
            for name, x in piece.items():
                if name.startswith("size of "):
                    side[name] = torch.maximum(side.get(name, x), x)
                    continue
                blank = torch.zeros_like(computed[name], dtype=torch.float64)
                where = keys if name in ("dk", "dv") else rows
                side.setdefault(name, blank).index_add_(2, where, x.double())
    assert not wrong(computed, *sides)


def test_offsets_beyond_two_to_the_31():
    """The second sequence lies 2^31 elements behind the first."""
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("not enough free memory")
    n, attn, live = 500, compiled(mc.causal(), 64), live_pairs(mc.causal(), 500, 500)
    far, size = 1 << 31, HEADS * n * 64
    storage = torch.empty(far + 4 * size, dtype=torch.bfloat16, device=DEVICE)
    made = []
    for place, x in enumerate(tensors(n, n, 64, torch.bfloat16, 7, kv_heads=HEADS)):
        view = storage.as_strided((2, HEADS, n, 64), (far, n * 64, 64, 1), place * size)
        made.append(view.copy_(x))
    computed = check(attn, made, live, deterministic=True)
    for name, x in check(attn, [y.clone() for y in made], live, deterministic=True).items():
        assert torch.equal(x, computed[name]), name
