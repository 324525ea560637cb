"""sm_80 kernels on a real GPU: random masks, patterns, features, poison, streams and graphs.

Run with `make test-gpu`. The reference is masked dense attention in fp64 on the same inputs; the
bound is the contract's: at most twice the error of the unfused computation in PyTorch in that
dtype, and never tighter than its own rounding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support import exact_attention
from tests.support.cases import RANGES
from tests.support.exact_attention import DEVICE, called, exact, exact_and_rough, live_pairs, wrong
from tests.support.exact_entmax import check_mask
from tests.support.patterns import static_patterns

HEADS = 4
DIMS = [32, 64, 96, 128, 192, 256, 512]
SIZES = [(0, 0), (1, 1), (63, 63), (64, 65), (129, 128), (40, 300), (300, 40), (1, 257), (257, 1)]
PATTERNS = static_patterns()  # for the others see test_selection.py


def tensors(*sizes, **heads):
    return exact_attention.tensors(*sizes, **heads)[:3]


def check(attn, q, k, v, live, data=None, **features):
    computed = called(attn, q, k, v, data=data, **features)
    sides = exact_and_rough(q, k, v, q, live, backward=False, **features)
    assert not wrong(computed, *sides)


@pytest.mark.parametrize("part", range(9))
def test_random_masks(part):
    @seeded(part)
    @settings(max_examples=3, database=None, phases=[Phase.generate])
    @given(st.data(), st.lists(masks(max_depth=2), min_size=HEADS, max_size=HEADS))
    def run(data, parts):
        judge_masks(data, parts)

    run()


def judge_masks(data, parts):
    mask = mc.per_head(parts)
    keeps = [driver.lowered(mask, head, HEADS).keep for head in range(HEADS)]
    assume(len({name for keep in keeps for name in E.arrays(keep)}) <= MAX_ARRAYS)
    attn = mask.compile(head_dim=64, n_heads=HEADS, target="sm_80")
    seed = data.draw(st.integers(0, 1 << 16))
    rng = np.random.default_rng(seed)
    features = {}
    if data.draw(st.booleans()):
        features["softcap"] = 3.0
    for name in ("sink_logits", "alibi_slopes"):
        if data.draw(st.booleans()):
            features[name] = torch.tensor(rng.random(HEADS), dtype=torch.float32, device=DEVICE)
    for n_q, n_kv in data.draw(st.lists(st.sampled_from(SIZES), min_size=3, max_size=3)):
        given_data = sample_data(mask, n_q, n_kv, seed=data.draw(st.integers(0, 99)))
        live = mask.dense(n_q, n_kv, n_heads=HEADS, **given_data)
        live = torch.tensor(np.broadcast_to(live, (HEADS, n_q, n_kv)).copy(), device=DEVICE)
        check(attn, *tensors(n_q, n_kv, 64, torch.bfloat16, seed), live, given_data, **features)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", DIMS)
def test_head_dims(dim, dtype):
    band = mc.causal() & (mc.sinks(5) | mc.window(70))
    for mask, queries in ((band | mc.global_tokens([100]).rows, 128), (band, 64)):
        attn = mask.compile(head_dim=dim, dtype=dtype, target="sm_80")
        assert attn.unit.tile.q == (queries if dim <= 128 else 64)
        for n_q, n_kv in SIZES:
            live = torch.tensor(mask.dense(n_q, n_kv), device=DEVICE)
            check(attn, *tensors(n_q, n_kv, dim, getattr(torch, dtype), dim), live)


@pytest.mark.parametrize("mask", RANGES, ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_closed_form_ranges(dim, mask):
    attn = mask.compile(head_dim=dim, target="sm_80")
    assert attn.unit.ranges
    for n_q, n_kv in [*SIZES, (500, 500), (700, 333)]:
        live = torch.tensor(mask.dense(n_q, n_kv), device=DEVICE)
        check(attn, *tensors(n_q, n_kv, dim, torch.bfloat16, dim), live)


def test_strides_and_bits():
    """BSHD views give the bits of contiguous tensors; a sequence's bits ignore its batch."""
    attn = (mc.causal() & mc.window(200)).compile(head_dim=128, target="sm_80")
    q, k, v = tensors(333, 333, 128, torch.bfloat16, 1)
    whole = attn(q, k, v)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert (attn(*views) == whole).all()
    assert (attn(q[1:], k[1:], v[1:]) == whole[1:]).all()
    assert all((attn(q, k, v) == whole).all() for _ in range(20))


def test_poison_stays_where_it_is_seen():
    mask, n = mc.block_diagonal(128), 500
    q, k, v = tensors(n, n, 64, torch.bfloat16, 2)
    attn = mask.compile(head_dim=64, target="sm_80")
    clean = attn(q, k, v)
    for poisoned in (k, v):
        kept = poisoned[:, :, 130].clone()
        poisoned[:, :, 130] = torch.nan
        out = attn(q, k, v)
        assert out[:, :, 128:256].isnan().any(-1).all()
        assert (out[:, :, :128] == clean[:, :, :128]).all()
        assert (out[:, :, 256:] == clean[:, :, 256:]).all()
        poisoned[:, :, 130] = kept


def test_nan_safe_is_exact_inside_a_tile():
    mask, n = mc.causal(), 200
    q, k, v = tensors(n, n, 64, torch.bfloat16, 3)
    attn = mask.compile(head_dim=64, target="sm_80")
    clean = attn(q, k, v, nan_safe=True)
    v[:, :, 77] = torch.inf
    out = attn(q, k, v, nan_safe=True)
    assert (out[:, :, :77] == clean[:, :, :77]).all()
    assert (out[:, :, 77:] == torch.inf).all()


def poisoned(clean, v, live):
    """Results of queries: `clean`, and whatever is not finite in the v they see.

    Exponentials are positive, so an infinity that is seen is in the sum, however small its weight.

    Args:
        clean: [B, H, n_q, D], out with zeros in place of what is not finite.
        v: [B, H_kv, n_kv, D].
        live: bool [n_q, n_kv].
    """
    group = clean.shape[1] // v.shape[1]
    up, down, nan = (
        (live.float() @ bad.float()).repeat_interleave(group, 1) > 0
        for bad in (v == torch.inf, v == -torch.inf, v.isnan())
    )
    out = clean.clone()
    out[up], out[down], out[nan | up & down] = torch.inf, -torch.inf, torch.nan
    return out


@pytest.mark.parametrize("sink", [None, 3000.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64, 96, 128, 256, 512])
def test_nan_safe_infinities_outlive_tops_sinks_and_small_weights(dim, dtype, sink):
    """Logits jump by hundreds, so that what was summed, or a key's own weight, underflows to 0."""
    n = 400
    attn = mc.causal().compile(head_dim=dim, dtype=dtype, target="sm_80")
    q, k, v = tensors(n, n, dim, getattr(torch, dtype), 8)
    level = torch.zeros(n, device=DEVICE)
    level[150:300], level[300:350] = 300.0, 600.0
    q[:], k[:] = 1.0, (level / dim**0.5)[:, None].to(k.dtype)
    plain = v.clone()
    marks = [
        (3, 0, torch.inf), (70, 1, -torch.inf), (149, 2, torch.inf),  # below later tops
        (360, 3, torch.inf), (399, 4, -torch.inf),  # of no weight beside earlier keys
        (10, 5, torch.inf), (200, 5, -torch.inf),  # both signs: NaN from 200 on
        (20, 6, torch.nan), (320, 7, torch.nan),
        (149, 8, torch.inf), (150, 8, torch.inf),
    ]  # fmt: skip
    for key, column, value in marks:
        v[:, :, key, column], plain[:, :, key, column] = value, 0.0
    features = {"nan_safe": True}
    if sink is not None:
        features["sink_logits"] = torch.full((HEADS,), sink, device=DEVICE)
    clean, clean_lse = attn(q, k, plain, return_lse=True, **features)
    out, lse = attn(q, k, v, return_lse=True, **features)
    assert clean.isfinite().all()
    live = torch.ones(n, n, dtype=torch.bool, device=DEVICE).tril()
    expected = poisoned(clean, v, live)
    assert ((out == expected) | (out.isnan() & expected.isnan())).all()
    assert (lse == clean_lse).all()


def test_nan_safe_leaves_the_other_documents_alone():
    """Partial tiles with lists: only the poisoned document's queries get what it holds."""
    mask, n = mc.block_diagonal(100) | mc.dilated(3, stride=64), 450
    attn = mask.compile(head_dim=128, target="sm_80")
    q, k, v = tensors(n, n, 128, torch.bfloat16, 9)
    plain = v.clone()
    for key, column, value in ((130, 0, torch.inf), (131, 0, -torch.inf), (449, 9, torch.nan)):
        v[:, :, key, column], plain[:, :, key, column] = value, 0.0
    clean, out = attn(q, k, plain, nan_safe=True), attn(q, k, v, nan_safe=True)
    expected = poisoned(clean, v, torch.tensor(mask.dense(n), device=DEVICE))
    assert ((out == expected) | (out.isnan() & expected.isnan())).all()
    assert expected.isfinite().any(-1).all(), "most columns hold no poison"


def test_streams_and_graphs():
    attn = mc.causal().compile(head_dim=64, target="sm_80")
    q, k, v = tensors(256, 256, 64, torch.bfloat16, 4)
    expected = attn(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert (attn(q, k, v) == expected).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attn(q, k, v)
    q.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert (captured == attn(q, k, v)).all()


@pytest.mark.parametrize("n", [65535, 65536, 65537])
def test_long_sequences(n):
    mask = mc.causal() & (mc.sinks(3) | mc.window(300))
    attn = mask.compile(head_dim=64, target="sm_80")
    q, k, v = tensors(n, n, 64, torch.bfloat16, 5, batch=1, heads=2, kv_heads=1)
    out, lse = attn(q, k, v, return_lse=True)
    rows = torch.tensor([0, 1, 299, 300, 5000, n // 2, n - 2, n - 1], device=DEVICE)
    p, keys = rows[:, None], torch.arange(n, device=DEVICE)[None]
    live = (keys <= p) & ((keys < 3) | (p - keys <= 300))
    right_out, right_lse = exact(q[:, :, rows], k, v, live)
    assert (out[:, :, rows].double() - right_out).abs().max() < 2e-2
    assert (lse[:, :, rows] - right_lse).abs().max() < 2e-3
    assert not out.isnan().any()


def test_offsets_beyond_two_to_the_31():
    """Views into a tensor of more than 2^31 elements."""
    attn = mc.window(64).compile(head_dim=64, target="sm_80")
    big = torch.empty((1 << 31) // 64 + 4096, 64, dtype=torch.bfloat16, device=DEVICE)
    tail = big[-1024:].normal_()[None, None]
    assert (attn(tail, tail, tail) == attn(*[tail.clone()] * 3)).all()


def test_many_lengths_one_binary():
    attn = mc.window(mc.param("w", 50)).compile(head_dim=64, target="sm_80")
    attn.warmup()
    built = dict(attn.reports)
    for n in range(1, 400, 4):
        q, k, v = tensors(n, n, 64, torch.bfloat16, n)
        attn(q, k, v, w=n // 2)
    assert dict(attn.reports) == built


@pytest.mark.parametrize("path", PATTERNS, ids=lambda path: path.stem)
def test_patterns(path):
    """Every pattern whose mask needs no data, at its default parameters."""
    pattern = mc.load(path)[path.stem]
    mask = pattern()
    heads = driver_heads(mask)
    try:
        live = mask.dense(190, 190, n_heads=heads)
    except mc.MaskcError as error:
        pytest.skip(f"needs data: {error.code}")
    attn = mask.compile(head_dim=128, n_heads=heads, target="sm_80")
    q, k, v = tensors(190, 190, 128, torch.bfloat16, 6, heads=heads, kv_heads=1)
    check(attn, q, k, v, torch.tensor(live, device=DEVICE))


def driver_heads(mask):
    from maskc.ir.heads import fixed_heads

    return fixed_heads(mask) or HEADS


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "alibi_slopes", "softcap"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_entmax(dim, alpha, kind):
    mask = mc.causal() & (mc.sinks(9) | mc.window(300))
    if "float" in kind:
        for n_q, n_kv in ((1, 1), (333, 777), (777, 333)):
            check_mask(mask, n_q, n_kv, dim, alpha, getattr(torch, kind), target="sm_80")
    else:
        slopes = 0.5 ** torch.arange(1, HEADS + 1, device=DEVICE)
        feature = slopes if kind == "alibi_slopes" else 3.0
        check_mask(mask, 500, 500, dim, alpha, target="sm_80", **{kind: feature})


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "mask", [mc.causal(), mc.window(200, 100), mc.dilated(9, stride=3)], ids=str
)
def test_gradients_of_long_rows(mask, deterministic):
    """Beyond 256 elements two warps share rows; against fp64, both passes."""
    attn = mask.compile(512, target="sm_80")
    q, k, v, dout = exact_attention.tensors(500, 700, 512, torch.bfloat16, 5)
    live = live_pairs(mask, 500, 700).to(q.device)
    sides = exact_and_rough(q, k, v, dout, live)
    assert not wrong(called(attn, q, k, v, dout, deterministic=deterministic), *sides)


@pytest.mark.parametrize("n_q", [1, 3])
@pytest.mark.parametrize("batch", [1, 9])
def test_heads_packed_for_decoding(batch, n_q):
    """128 heads over one, 576 elements of q and k with 512 of v: parts of rows are merged."""
    attn = mc.causal().compile(576, 512, target="sm_80")
    q, k, _ = tensors(n_q, 5000, 576, torch.bfloat16, 7, batch=batch, heads=128, kv_heads=1)
    out, lse = attn(q, k, k[..., :512], return_lse=True)
    scores = q.double() @ k.double().transpose(2, 3) * 576**-0.5
    hidden = torch.ones(n_q, 5000, device=q.device).triu(5000 - n_q + 1).bool()
    scores = scores.masked_fill(hidden, -torch.inf)
    right = scores.softmax(3) @ k[..., :512].double()
    assert (lse - scores.logsumexp(3)).abs().max() < 1e-4
    assert (out - right).abs().max() < 0.02 * right.abs().max()
