"""The attention backend of vLLM, called as vLLM's layers and runner call it, on the CPU. With vLLM
installed, its own base classes, registry and metadata are used. Slots that no request owns are NaN.
"""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskc.core.errors import MaskcError
from maskc.integrations import serving
from tests.support import engine_stubs
from tests.support.paged import Pool, exact

PAGE, HEADS, KV_HEADS, DIM, LONGEST = 16, 4, 2, 16, 128
LENGTHS, COUNTS = [75, 1, 40, 33, 20], [1, 1, 17, 33, 2]
VLLM = engine_stubs.classes(engine_stubs.VLLM)
LAYOUTS = {
    "LBHNC": (0, 1, 2, 3, 4), "LBNHC": (0, 1, 3, 2, 4), "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4), "BLNHC": (1, 0, 3, 2, 4), "BHLNC": (1, 2, 0, 3, 4),
}  # fmt: skip
"""The order in memory of layers L, blocks B, heads H, tokens N and elements C of a cache."""


@pytest.fixture(scope="module")
def vllm():
    with engine_stubs.installed(engine_stubs.VLLM, "maskc.integrations.vllm") as module:
        yield module


def builder(vllm, **spec):
    given = {"block_size": PAGE, "dtype": torch.float32, **spec}
    model = SimpleNamespace(dtype=torch.float32, max_model_len=LONGEST)
    return vllm.VllmBackend.get_builder_cls()(
        SimpleNamespace(**given), ["layers.0"], SimpleNamespace(model_config=model), "cpu"
    )


def common(pool, counts, fill=0, tokens=None):
    """vLLM's CommonAttentionMetadata; `fill` requests that only fill up a graph."""
    starts = np.concatenate([[0], np.cumsum(counts), [sum(counts)] * fill]).astype(np.int32)
    table = np.concatenate([pool.table, np.zeros((fill, pool.table.shape[1]), np.int32)])
    wide = np.zeros((len(table), LONGEST // PAGE), np.int32)  # as the runner's, for all lengths
    width = min(wide.shape[1], table.shape[1])
    wide[:, :width] = np.where(table >= 0, table, 0)[:, :width]
    tokens = tokens or sum(counts)
    return VLLM.CommonAttentionMetadata(
        query_start_loc=torch.from_numpy(starts), query_start_loc_cpu=torch.from_numpy(starts),
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        seq_lens=torch.tensor([*pool.lengths, *[0] * fill], dtype=torch.int32),
        num_reqs=len(table), num_actual_tokens=tokens, max_query_len=max(counts),
        max_seq_len=max(pool.lengths), block_table_tensor=torch.from_numpy(wide),
    )  # fmt: skip


def cache_of(pool, counts, layout):
    """The logical cache [blocks, heads, tokens, 2 D] without the step's new tokens, and their rows
    and slots; the last row goes nowhere."""
    keys, values = pool.k_pool.copy(), pool.v_pool.copy()
    k, v, slots = [], [], []
    for sequence, (length, count) in enumerate(zip(pool.lengths, counts, strict=True)):
        for p in range(length - count, length):
            page = pool.table[sequence, p // PAGE]
            keys[page, p % PAGE] = values[page, p % PAGE] = np.nan
            k.append(pool.k[sequence][p])
            v.append(pool.v[sequence][p])
            slots.append(page * PAGE + p % PAGE)
    both = torch.from_numpy(np.concatenate([keys, values], -1))  # [blocks, tokens, heads, 2 D]
    both = both.transpose(1, 2)
    order, shape = LAYOUTS[layout], (2, *both.shape)  # the other layer is NaN
    layers = torch.full([shape[axis] for axis in order], torch.nan)
    cache = layers.permute([order.index(axis) for axis in range(5)])[1].copy_(both)
    new = (torch.from_numpy(np.stack([*x, x[0] * 0 + 9])) for x in (k, v))
    return cache, *new, torch.tensor([*slots, -1])


def ran(vllm, pool, q, counts, metadata, layout="LBNHC", more=1, **options):
    layer = vllm.VllmBackend.get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, **options)
    cache, k, v, slots = cache_of(pool, counts, layout)
    scales = SimpleNamespace(_k_scale=torch.tensor(1.0), _v_scale=torch.tensor(1.0))
    layer.do_kv_cache_update(scales, k, v, cache, slots)
    output = torch.full((len(q) + more, HEADS, DIM), 7.0)
    queries = torch.cat([torch.from_numpy(q), torch.zeros(more, HEADS, DIM)])
    result = layer.forward(scales, queries, k, v, cache, metadata, output)
    assert result is output
    assert (output[len(q) :] == 7).all()  # rows that only fill up a graph
    return output[: len(q)].numpy()


def causal(p, k):
    return k <= p


@pytest.mark.parametrize(
    ("layout", "counts"), [*((name, COUNTS) for name in LAYOUTS), ("LBNHC", [1] * 5)]
)
def test_prompts_chunks_and_decoding(vllm, layout, counts):
    pool = Pool(LENGTHS, PAGE, KV_HEADS, DIM)
    q = pool.queries(counts, HEADS)
    with torch.inference_mode():  # as the runner
        metadata = builder(vllm).build(0, common(pool, counts))
        out = ran(vllm, pool, q, counts, metadata, layout)
    want = exact(pool, q, counts, lambda s, h: causal)[0]
    np.testing.assert_allclose(out, want, atol=1e-5, rtol=1e-5)


def test_windows_sinks_soft_caps_and_slopes(vllm):
    """A window counts a query's own key."""
    pool = Pool(LENGTHS, PAGE, KV_HEADS, DIM)
    q = pool.queries(COUNTS, HEADS)
    sinks, slopes = np.array([0, 1, -2, 3], np.float32), [0.5, 0.1, 0.01, 1.0]
    near = lambda p, k: (k <= p) & (p - k < 9)  # noqa: E731
    cap = lambda s, **_: 3 * np.tanh(s / 3)  # noqa: E731
    far = lambda s, p, k, head: s - slopes[head] * np.abs(p - k)  # noqa: E731
    step = builder(vllm).build(0, common(pool, COUNTS))
    for options, keeps, given in (
        ({"sliding_window": 9}, near, {}),
        ({"sinks": torch.from_numpy(sinks).bfloat16()}, causal, {"sinks": sinks}),
        ({"logits_soft_cap": 3.0}, causal, {"logit": cap}),
        ({"logits_soft_cap": 0.0}, causal, {}),
        ({"alibi_slopes": slopes}, causal, {"logit": far}),
    ):
        out = ran(vllm, pool, q, COUNTS, step, **options)
        want = exact(pool, q, COUNTS, lambda s, h, keeps=keeps: keeps, **given)[0]
        np.testing.assert_allclose(out, want, atol=1e-5, rtol=1e-5)


def test_the_mask_of_the_environment_narrows_all_layers(vllm, monkeypatch):
    monkeypatch.setenv(serving.VARIABLE, "sinks(2) | window(30)")
    pool = Pool(LENGTHS, PAGE, KV_HEADS, DIM)
    q = pool.queries(COUNTS, HEADS)
    step = builder(vllm).build(0, common(pool, COUNTS))
    keeps = lambda p, k: (k <= p) & ((p - k <= 30) | (k < 2))  # noqa: E731
    near = lambda p, k: keeps(p, k) & (p - k < 20)  # noqa: E731
    for options, rule in (({}, keeps), ({"sliding_window": 20}, near)):
        out = ran(vllm, pool, q, COUNTS, step, **options)
        want = exact(pool, q, COUNTS, lambda s, h, rule=rule: rule)[0]
        np.testing.assert_allclose(out, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5, 2.0])])
def test_caches_in_e4m3(vllm, scale):
    """vLLM keeps them as bytes; numbers here have a short E4M3 code, so nothing is rounded."""
    counts = [3, 1]
    pool = Pool([20, 9], PAGE, KV_HEADS, DIM)
    pool.k, pool.v = ([np.round(x * 2) for x in rows] for rows in (pool.k, pool.v))
    q = pool.queries(counts, HEADS)
    layer = vllm.VllmLayer(HEADS, DIM, DIM**-0.5, KV_HEADS, kv_cache_dtype="fp8")
    scales = SimpleNamespace(_k_scale=scale, _v_scale=scale)
    pages = len(pool.k_pool)
    cache = torch.full((pages, KV_HEADS, PAGE, 2 * DIM), 0x7F, dtype=torch.uint8)  # NaN
    k, v = (torch.from_numpy(np.concatenate(x)) for x in (pool.k, pool.v))
    slots = torch.tensor([
        int(pool.table[s, p // PAGE]) * PAGE + p % PAGE
        for s, n in enumerate(pool.lengths) for p in range(n)
    ])  # fmt: skip
    layer.do_kv_cache_update(scales, k, v, cache, slots)
    output = torch.empty(len(q), HEADS, DIM)
    step = builder(vllm, dtype=torch.uint8).build(0, common(pool, counts))
    layer.forward(scales, torch.from_numpy(q), None, None, cache, step, output)
    want = exact(pool, q, counts, lambda s, h: causal)[0]
    np.testing.assert_allclose(output, want, atol=1e-5, rtol=1e-5)


def test_graphs_keep_their_arrays(vllm):
    """A capture for eight requests, then steps of five; the arrays that a graph reads stay where
    they are, and requests that only fill it up get rows of 0."""
    make = builder(vllm)
    pools = [Pool(LENGTHS, PAGE, KV_HEADS, DIM, seed=s) for s in range(2)]
    captured = make.build_for_cudagraph_capture(common(pools[0], [1] * 5, fill=3, tokens=8))
    places = None
    for pool in pools:
        step = make.build(0, common(pool, [1] * 5, fill=3, tokens=8))
        assert step.step is captured.step
        q = np.concatenate([pool.queries([1] * 5, HEADS), np.ones((3, HEADS, DIM), np.float32)])
        out = ran(vllm, pool, q, [1] * 5, step, more=0)
        want = exact(pool, q[:5], [1] * 5, lambda s, h: causal)[0]
        np.testing.assert_allclose(out[:5], want, atol=1e-5, rtol=1e-5)
        assert not out[5:].any()
        (plan,) = captured.step._plans.values()
        assert plan.max_seqlen_kv == LONGEST
        held = {name: x.data_ptr() for name, x in plan.data.items()}
        assert places in (None, held)
        places = held
    other = make.build(0, common(pools[0], COUNTS))
    assert other.step is not captured.step


def test_runs_that_only_measure_memory(vllm):
    layer = vllm.VllmLayer(HEADS, DIM, 1.0)
    output = torch.ones(3, HEADS, DIM)
    assert not layer.forward(None, None, None, None, None, None, output).any()


def test_registration(vllm):
    root = Path(__file__).parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["vllm.general_plugins"]["maskc"].partition(":")
    register = getattr(importlib.import_module(module), name)
    for _ in range(2):  # vLLM may load a plug-in several times
        register()
    path, _, kind = VLLM.AttentionBackendEnum["MASKC"].get_path().rpartition(".")
    backend = getattr(importlib.import_module(path), kind)
    assert backend.get_name() == "MASKC"
    assert not backend.forward_includes_kv_cache_update
    assert backend.supports_sink()
    assert backend.supports_sliding_window()
    assert [d for d in (64, 100, 128, 512) if backend.supports_head_size(d)] == [64, 128]
    capability = lambda *x: SimpleNamespace(major=x[0], minor=x[1])  # noqa: E731
    assert backend.supports_compute_capability(capability(8, 0))
    assert not backend.supports_compute_capability(capability(7, 0))
    assert not backend.supports_mm_prefix()
    assert not backend.supports_device_cpu_query_lens_mismatch()


def test_other_versions(vllm, monkeypatch):
    """vLLM calls every plug-in when it starts, so an old version gets a warning, not an error."""
    monkeypatch.delattr(VLLM.AttentionBackendEnum, "register")
    with pytest.warns(UserWarning, match=r"MC613.*needs vllm 0\.32 or later"):
        serving.register_vllm()
    cache = torch.zeros(2, 3, PAGE, KV_HEADS, DIM)
    layer = vllm.VllmLayer(HEADS, DIM, 1.0, KV_HEADS)
    with pytest.raises(MaskcError, match=r"MC665.*a cache of 5 dimensions"):
        layer.do_kv_cache_update(None, cache, cache, cache, PAGE)


def test_what_is_refused(vllm, monkeypatch):
    pool = Pool(LENGTHS, PAGE, KV_HEADS, DIM)
    step = common(pool, COUNTS)
    step.causal = False
    for make, why in (
        (lambda: vllm.VllmLayer(4, 16, 1.0, attn_type="encoder"), "does not run encoder layers"),
        (lambda: vllm.VllmLayer(4, 16, 1.0, use_alibi_sqrt=True), "use_alibi_sqrt"),
        (lambda: builder(vllm, dtype=torch.float16), "a cache of torch.float16 for a model of"),
        (lambda: builder(vllm).build(0, step), "attention that is not causal"),
        (lambda: vllm.VllmLayer(4, 16, 1.0).forward(*[None] * 7, output_scale=1), "FP8 or FP4"),
    ):
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            make()
    monkeypatch.setenv(serving.VARIABLE, "window(")
    layer = serving.ServedLayer(4, 2, 16, 16, 16, "HND", None, False, True)
    for text, why in (
        ("window(", "is not a mask: cannot read"),
        ("documents('d')", "reads d, which engines do not have"),
        ("topk(2, of=causal(), block=16)", "cannot run: mc.paged has no kernel"),
    ):
        monkeypatch.setenv(serving.VARIABLE, text)
        with pytest.raises(MaskcError, match=f"MC666.*{why}"):
            layer.attention()
    monkeypatch.setenv(serving.VARIABLE, "window(9)")
    with pytest.raises(MaskcError, match=r"MC665.*chunked local attention"):
        builder(vllm, attention_chunk_size=32)
