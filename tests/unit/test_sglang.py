"""The attention backend of SGLang, called as its layers and graph runner call it, on the CPU. With
SGLang installed, its own layers, batches and pools are used. Slots that no request owns are NaN."""

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
from maskc.paging import PagedAttention
from tests.support import engine_stubs
from tests.support.paged import Pool, exact

HEADS, KV_HEADS, DIM, LONGEST = 4, 2, 16, 128
LENGTHS, COUNTS = [75, 1, 40, 33, 20], [1, 1, 17, 33, 2]
SGLANG = engine_stubs.classes(engine_stubs.SGLANG)
ForwardMode = SGLANG.ForwardMode
ROWS = [3, 0, 5, 2, 6]
"""The lines of req_to_token that requests have."""


@pytest.fixture(scope="module")
def sglang():
    with engine_stubs.installed(engine_stubs.SGLANG, "maskc.integrations.sglang") as module:
        yield module


def radix(layer_id=0, after=None, **options):
    """A layer of SGLang; `after` has what SGLang sets when it loads weights."""
    layer = SGLANG.RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, layer_id, **options)
    vars(layer).update(after or {})
    return layer


class Server:
    """Requests whose new tokens are not in the pools yet."""

    def __init__(self, sglang, pool, counts, kind=torch.float32, in_hnd=False, **options):
        self.pool, self.counts, page = pool, counts, pool.page
        self.slots = torch.full((8, LONGEST + 4), -7, dtype=torch.int32)
        new = []
        for sequence, length in enumerate(pool.lengths):
            token = np.arange(length)
            slot = pool.table[sequence, token // page] * page + token % page
            self.slots[ROWS[sequence], :length] = torch.from_numpy(slot)
            new.append(torch.from_numpy(slot[length - counts[sequence] :]))
        self.loc = torch.cat(new).long()
        self.pools = SGLANG.MHATokenToKVPool(
            pool.k_pool.shape[0] * page - page, page, kind, KV_HEADS, DIM, 5, "cpu", False
        )
        for buffer, values in (
            (self.pools.get_key_buffer(0), pool.k_pool),
            (self.pools.get_value_buffer(0), pool.v_pool),
        ):
            values = torch.from_numpy(values).clone()
            values.flatten(0, 1)[self.loc] = torch.nan
            buffer.copy_((values.transpose(1, 2) if in_hnd else values.flatten(0, 1)).to(kind))
        self.k, self.v = (
            torch.from_numpy(
                np.concatenate([x[len(x) - c :] for x, c in zip(rows, counts, strict=True)])
            )
            for rows in (pool.k, pool.v)
        )
        runner = SimpleNamespace(
            model_config=SimpleNamespace(context_len=LONGEST, is_encoder_decoder=False),
            server_args=SimpleNamespace(speculative_algorithm=None), use_mla_backend=False,
            req_to_token_pool=SimpleNamespace(req_to_token=self.slots), is_hybrid_swa=False,
            page_size=page, token_to_kv_pool=self.pools,
        )  # fmt: skip
        vars(runner).update(options)
        self.backend = sglang.SglangBackend(runner)

    def batch(self, mode, lens=None, requests=None, **more):
        """SGLang's ForwardBatch."""
        lens = torch.tensor(self.pool.lengths) if lens is None else lens
        requests = torch.tensor(ROWS[: len(lens)]) if requests is None else requests
        return SGLANG.ForwardBatch(**{
            "forward_mode": mode, "batch_size": len(lens), "input_ids": None,
            "req_pool_indices": requests, "seq_lens": lens, "seq_lens_cpu": lens,
            "out_cache_loc": self.loc, "seq_lens_sum": int(lens.sum()),
            "extend_seq_lens": torch.tensor(self.counts), "extend_seq_lens_cpu": self.counts,
            **more,
        })  # fmt: skip

    def run(self, q, layer, batch, **options):
        q = torch.from_numpy(q).reshape(len(q), -1)
        k, v = self.k.clone(), self.v.clone()  # SGLang's pool divides them in place
        return self.backend.forward(q, k, v, layer, batch, **options).numpy()


def causal(p, k):
    return k <= p


def close(out, want):
    np.testing.assert_allclose(out, want.reshape(len(want), -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("page", "in_hnd"), [(1, False), (16, False), (16, True)])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DECODE])
def test_prompts_chunks_and_decoding(sglang, page, in_hnd, mode, monkeypatch):
    if in_hnd:
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
    counts = [1] * 5 if mode.is_decode() else COUNTS
    pool = Pool(LENGTHS, page, KV_HEADS, DIM)
    server = Server(sglang, pool, counts, in_hnd=in_hnd)
    q = pool.queries(counts, HEADS)
    layer, batch = radix(), server.batch(mode)
    with torch.inference_mode():
        server.backend.init_forward_metadata(batch)
        more = np.concatenate([q, np.ones((2, HEADS, DIM), np.float32)])  # rows of nobody
        out = server.run(more, layer, batch)
    close(out[:-2], exact(pool, q, counts, lambda s, h: causal)[0])
    assert not out[-2:].any()


def test_windows_sinks_soft_caps_and_masks(sglang, monkeypatch):
    """A window of SGLang counts the keys before a query's own."""
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    q = pool.queries(COUNTS, HEADS)
    sinks = np.array([0, 1, -2, 3], np.float32)
    near = lambda p, k: (k <= p) & (p - k <= 9)  # noqa: E731
    cap = lambda s, **_: 3 * np.tanh(s / 3)  # noqa: E731
    for options, more, keeps, given in (
        ({"sliding_window_size": 9}, {}, near, {}),
        ({}, {"sinks": torch.from_numpy(sinks)}, causal, {"sinks": sinks}),
        ({"logit_cap": 3.0}, {}, causal, {"logit": cap}),
    ):
        server = Server(sglang, pool, COUNTS)
        batch = server.batch(ForwardMode.EXTEND)
        server.backend.init_forward_metadata(batch)
        out = server.run(q, radix(**options), batch, **more)
        close(out, exact(pool, q, COUNTS, lambda s, h, keeps=keeps: keeps, **given)[0])
    monkeypatch.setenv(serving.VARIABLE, "sinks(2) | window(30)")
    server = Server(sglang, pool, COUNTS)
    batch = server.batch(ForwardMode.EXTEND)
    server.backend.init_forward_metadata(batch)
    out = server.run(q, radix(), batch)
    keeps = lambda p, k: (k <= p) & ((p - k <= 30) | (k < 2))  # noqa: E731
    close(out, exact(pool, q, COUNTS, lambda s, h: keeps)[0])


def test_deterministic_inference_makes_results_batch_invariant(sglang, monkeypatch):
    wanted = []
    monkeypatch.setattr(
        PagedAttention,
        "run",
        lambda _, q, *__, deterministic, **___: wanted.append(deterministic) or (q, None),
    )
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    options = {"speculative_algorithm": None, "enable_deterministic_inference": True}
    for given in ({}, {"server_args": SimpleNamespace(**options)}):
        server = Server(sglang, pool, COUNTS, **given)
        batch = server.batch(ForwardMode.EXTEND)
        server.backend.init_forward_metadata(batch)
        server.run(pool.queries(COUNTS, HEADS), radix(), batch)
    assert wanted == [False, True]


def test_pools_in_e4m3(sglang):
    """SGLang divides by the scales when it stores, and 2 and 0.5 are exact."""
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    pool.k, pool.v = ([np.round(x * 2) for x in rows] for rows in (pool.k, pool.v))
    stored = Pool(LENGTHS, 16, KV_HEADS, DIM)
    stored.k, stored.v = ([x * by for x in rows] for rows, by in ((pool.k, 0.5), (pool.v, 2)))
    for s, n in enumerate(LENGTHS):
        token = np.arange(n)
        place = stored.table[s, token // 16], token % 16
        stored.k_pool[place], stored.v_pool[place] = stored.k[s], stored.v[s]
    server = Server(sglang, stored, COUNTS, torch.float8_e4m3fn)
    server.k, server.v = (torch.cat([
        torch.from_numpy(x[len(x) - count :]) for x, count in zip(rows, COUNTS, strict=True)
    ]) for rows in (pool.k, pool.v))  # fmt: skip
    q = pool.queries(COUNTS, HEADS)
    scale = {"k_scale": torch.tensor(2.0), "v_scale": torch.tensor(0.5), "k_scale_float": 2.0,
             "v_scale_float": 0.5}  # fmt: skip
    batch = server.batch(ForwardMode.EXTEND)
    server.backend.init_forward_metadata(batch)
    out = server.run(q, radix(after=scale), batch)
    close(out, exact(pool, q, COUNTS, lambda s, h: causal)[0])


def test_graphs_keep_their_arrays(sglang):
    """A graph for eight requests replays a step of five. A second graph of the same size shares the
    arrays, and its capture leaves those of the first in place."""
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    server, layer = Server(sglang, pool, [1] * 5), radix()
    backend, fill = server.backend, server.backend.get_cuda_graph_seq_len_fill_value()
    server.slots[7, 0] = int(pool.indices[0]) * 16
    q = np.concatenate([pool.queries([1] * 5, HEADS), np.ones((3, HEADS, DIM), np.float32)])
    backend.init_cuda_graph_state(8, 8)
    dummy = server.batch(ForwardMode.DECODE, torch.full((8,), fill), torch.full((8,), 7))
    places = []
    for _ in range(2):
        backend.init_forward_metadata_out_graph(dummy, in_capture=True)
        server.run(q, layer, dummy, save_kv_cache=False)
        (plan,) = backend._step._plans.values()
        places.append({name: x.data_ptr() for name, x in plan.data.items()})
    assert places[0] == places[1]
    requests = torch.tensor([*ROWS, 7, 7, 7])
    lens = torch.tensor([*LENGTHS, fill, fill, fill])
    batch = server.batch(ForwardMode.DECODE, lens, requests)
    eager = server.batch(ForwardMode.EXTEND, torch.tensor([20]), torch.tensor([6]),
                         extend_seq_lens=torch.tensor([20]), extend_seq_lens_cpu=[20])  # fmt: skip
    backend.init_forward_metadata(eager)  # a step without a graph between replays
    backend.init_forward_metadata_out_graph(batch)
    server.pools.set_kv_buffer(layer, server.loc, server.k, server.v)
    out = server.run(q, layer, batch, save_kv_cache=False)
    close(out[:5], exact(pool, q[:5], [1] * 5, lambda s, h: causal)[0])
    assert {name: x.data_ptr() for name, x in plan.data.items()} == places[0]
    verify = server.batch(ForwardMode.TARGET_VERIFY, lens, requests)
    with pytest.raises(MaskcError, match=r"MC665.*CUDA graphs of anything except decoding"):
        backend.init_forward_metadata_out_graph(verify)


def test_registration(sglang):
    root = Path(__file__).parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["sglang.srt.plugins"]["maskc"].partition(":")
    register = getattr(importlib.import_module(module), name)
    for _ in range(2):
        register()
    assert SGLANG.ATTENTION_BACKEND_CHOICES.count("maskc") == 1
    assert SGLANG.ATTENTION_BACKENDS["maskc"] is sglang.SglangBackend


def test_older_versions(sglang, monkeypatch):
    monkeypatch.delattr(SGLANG.AttentionBackend, "init_forward_metadata_out_graph")
    with pytest.raises(MaskcError, match=r"MC613.*needs sglang 0\.5\.14 or later"):
        sglang.register()


def test_what_is_refused(sglang):
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    for options, why in (
        ({"use_mla_backend": True}, "multi-head latent attention"),
        ({"is_hybrid_swa": True}, "start with --disable-hybrid-swa-memory"),
        (
            {"token_to_kv_pool": SimpleNamespace(kv_cache_layout="vectorized_5d")},
            "the pool layout VECTORIZED_5D",
        ),
    ):
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            Server(sglang, pool, COUNTS, **options)
    q = pool.queries(COUNTS, HEADS)
    server = Server(sglang, pool, COUNTS)
    batch = server.batch(ForwardMode.EXTEND)
    plain = radix()
    with pytest.raises(MaskcError, match=r"MC665.*outside of a step"):
        server.run(q, plain, batch)
    with pytest.raises(MaskcError, match=r"MC665.*drafts"):
        server.backend.init_forward_metadata(server.batch(ForwardMode.EXTEND, spec_info=1))
    with pytest.raises(MaskcError, match=r"MC665.*blocks of diffusion models"):
        server.backend.init_forward_metadata(server.batch(ForwardMode.DLLM_EXTEND))
    server.backend.init_forward_metadata(server.batch(ForwardMode.IDLE))
    server.backend.init_forward_metadata(batch)
    with pytest.raises(MaskcError, match=r"MC665.*\['q_rope'\]"):
        server.run(q, plain, batch, q_rope=q)
    for number, (options, why) in enumerate(
        (
            ({"attn_type": "decoder_bidirectional"}, "decoder_bidirectional layers"),
            ({"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, "soft-caps by sigmoid"),
            ({"pos_encoding_mode": "ALIBI"}, "positions of kind ALIBI"),
            ({"use_irope": True}, "chunked local attention"),
        )
    ):
        layer = radix(number + 1, **options)
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            server.run(q, layer, batch)
