"""The attention backend of SGLang 0.5.10, called as its layers and graph runner call it, on the
CPU, against the definition. Slots that no request owns are NaN."""

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
from tests.support.engine_stubs import ForwardMode, RadixAttention
from tests.support.paged import Pool, exact

HEADS, KV_HEADS, DIM, LONGEST = 4, 2, 16, 128
LENGTHS, COUNTS = [75, 1, 40, 33, 20], [1, 1, 17, 33, 2]
ROWS = [3, 0, 5, 2, 6]
"""The lines of req_to_token that requests have."""


@pytest.fixture(scope="module")
def sglang():
    with engine_stubs.installed(engine_stubs.SGLANG, "maskc.integrations.sglang") as module:
        yield module


class Pools:
    """SGLang's pools of a layer, [slots, heads, D]."""

    def __init__(self, pool, kind=torch.float32):
        shape = (-1, KV_HEADS, DIM)
        self.k, self.v = (torch.from_numpy(x).reshape(shape).to(kind)
                          for x in (pool.k_pool, pool.v_pool))  # fmt: skip

    def get_key_buffer(self, layer_id):
        return self.k

    def get_value_buffer(self, layer_id):
        return self.v

    def set_kv_buffer(self, layer, loc, k, v, k_scale=None, v_scale=None):
        self.k[loc], self.v[loc] = k.to(self.k.dtype), v.to(self.v.dtype)


class Server:
    """Requests whose new tokens are not in the pools yet."""

    def __init__(self, sglang, pool, counts, kind=torch.float32, **options):
        self.pool, self.counts, page = pool, counts, pool.page
        self.slots = torch.full((8, LONGEST + 4), -7, dtype=torch.int32)
        new = []
        for sequence, length in enumerate(pool.lengths):
            token = np.arange(length)
            slot = pool.table[sequence, token // page] * page + token % page
            self.slots[ROWS[sequence], :length] = torch.from_numpy(slot)
            new.append(torch.from_numpy(slot[length - counts[sequence] :]))
        self.pools, self.loc = Pools(pool, kind), torch.cat(new).long()
        self.k, self.v = (
            torch.from_numpy(
                np.concatenate([x[len(x) - c :] for x, c in zip(rows, counts, strict=True)])
            )
            for rows in (pool.k, pool.v)
        )
        self.pools.k[self.loc] = self.pools.v[self.loc] = torch.nan
        runner = SimpleNamespace(
            model_config=SimpleNamespace(context_len=LONGEST, is_encoder_decoder=False),
            server_args=SimpleNamespace(page_size=page, speculative_algorithm=None),
            req_to_token_pool=SimpleNamespace(req_to_token=self.slots), use_mla_backend=False,
            is_hybrid_swa=False,
        )  # fmt: skip
        vars(runner).update(options)
        self.backend = sglang.SglangBackend(runner)

    def batch(self, mode, **more):
        lens, counts = torch.tensor(self.pool.lengths), self.counts
        return SimpleNamespace(**{
            "forward_mode": mode, "seq_lens": lens, "seq_lens_cpu": lens, "spec_info": None,
            "req_pool_indices": torch.tensor(ROWS[: len(lens)]), "token_to_kv_pool": self.pools,
            "out_cache_loc": self.loc, "extend_seq_lens": torch.tensor(counts),
            "extend_seq_lens_cpu": counts, **more,
        })  # fmt: skip

    def run(self, q, layer, batch, **options):
        q = torch.from_numpy(q).reshape(len(q), -1)
        return self.backend.forward(q, self.k, self.v, layer, batch, **options).numpy()


def causal(p, k):
    return k <= p


def close(out, want):
    np.testing.assert_allclose(out, want.reshape(len(want), -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.DECODE])
def test_prompts_chunks_and_decoding(sglang, page, mode):
    counts = [1] * 5 if mode.is_decode() else COUNTS
    pool = Pool(LENGTHS, page, KV_HEADS, DIM)
    server = Server(sglang, pool, counts)
    q = pool.queries(counts, HEADS)
    layer, batch = RadixAttention(HEADS, DIM, KV_HEADS), server.batch(mode)
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
        out = server.run(q, RadixAttention(HEADS, DIM, KV_HEADS, **options), batch, **more)
        close(out, exact(pool, q, COUNTS, lambda s, h, keeps=keeps: keeps, **given)[0])
    monkeypatch.setenv(serving.VARIABLE, "sinks(2) | window(30)")
    server = Server(sglang, pool, COUNTS)
    batch = server.batch(ForwardMode.EXTEND)
    server.backend.init_forward_metadata(batch)
    out = server.run(q, RadixAttention(HEADS, DIM, KV_HEADS), batch)
    keeps = lambda p, k: (k <= p) & ((p - k <= 30) | (k < 2))  # noqa: E731
    close(out, exact(pool, q, COUNTS, lambda s, h: keeps)[0])


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
    server = Server(sglang, stored, COUNTS, torch.float32)
    server.pools.k[server.loc], server.pools.v[server.loc] = server.k, server.v
    server.pools.k, server.pools.v = (
        x.to(torch.float8_e4m3fn) for x in (server.pools.k, server.pools.v)
    )
    q = pool.queries(COUNTS, HEADS)
    scale = {"k_scale": torch.tensor(2.0), "v_scale": torch.tensor(0.5), "k_scale_float": 2.0,
             "v_scale_float": 0.5}  # fmt: skip
    batch = server.batch(ForwardMode.EXTEND)
    server.backend.init_forward_metadata(batch)
    layer = RadixAttention(HEADS, DIM, KV_HEADS, **scale)
    close(server.run(q, layer, batch, save_kv_cache=False),
          exact(pool, q, COUNTS, lambda s, h: causal)[0])  # fmt: skip


def test_graphs_keep_their_arrays(sglang):
    """A graph for eight requests replays steps of five."""
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    server, layer = Server(sglang, pool, [1] * 5), RadixAttention(HEADS, DIM, KV_HEADS)
    backend, batch = server.backend, server.batch(ForwardMode.DECODE)
    server.slots[7, 0] = int(pool.indices[0]) * 16
    requests = torch.tensor([*ROWS, 7, 7, 7])
    q = np.concatenate([pool.queries([1] * 5, HEADS), np.ones((3, HEADS, DIM), np.float32)])
    backend.init_cuda_graph_state(8, 8)
    fill = backend.get_cuda_graph_seq_len_fill_value()
    ones = torch.full((8,), fill)
    backend.init_forward_metadata_capture_cuda_graph(
        8, 8, torch.full((8,), 7), ones, None, ForwardMode.DECODE, None
    )
    server.run(q, layer, batch, save_kv_cache=False)
    (plan,) = backend._step._plans.values()
    held = {name: x.data_ptr() for name, x in plan.data.items()}
    lens = torch.tensor([*LENGTHS, fill, fill, fill])
    backend.init_forward_metadata_replay_cuda_graph(
        8, requests, lens, int(lens.sum()), None, ForwardMode.DECODE, None, lens
    )
    server.pools.set_kv_buffer(layer, server.loc, server.k, server.v)
    out = server.run(q, layer, batch, save_kv_cache=False)
    close(out[:5], exact(pool, q[:5], [1] * 5, lambda s, h: causal)[0])
    assert {name: x.data_ptr() for name, x in plan.data.items()} == held
    with pytest.raises(MaskcError, match=r"MC665.*CUDA graphs of anything except decoding"):
        backend.init_forward_metadata_replay_cuda_graph(
            8, requests, lens, 0, None, ForwardMode.TARGET_VERIFY, None, lens
        )


def test_registration(sglang):
    root = Path(__file__).parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["sglang.srt.plugins"]["maskc"].partition(":")
    register = getattr(importlib.import_module(module), name)
    for _ in range(2):
        register()
    assert engine_stubs.SGLANG_CHOICES == ["maskc"]
    made = engine_stubs.SGLANG_BACKENDS["maskc"](SimpleNamespace(
        model_config=SimpleNamespace(context_len=9), server_args=SimpleNamespace(page_size=1),
        req_to_token_pool=SimpleNamespace(req_to_token=None),
    ))  # fmt: skip
    assert isinstance(made, sglang.SglangBackend)


def test_what_is_refused(sglang):
    pool = Pool(LENGTHS, 16, KV_HEADS, DIM)
    for options, why in (
        ({"use_mla_backend": True}, "multi-head latent attention"),
        ({"is_hybrid_swa": True}, "start with --disable-hybrid-swa-memory"),
    ):
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            Server(sglang, pool, COUNTS, **options)
    q = pool.queries(COUNTS, HEADS)
    server = Server(sglang, pool, COUNTS)
    batch = server.batch(ForwardMode.EXTEND)
    plain = RadixAttention(HEADS, DIM, KV_HEADS)
    with pytest.raises(MaskcError, match=r"MC665.*outside of a step"):
        server.run(q, plain, batch)
    with pytest.raises(MaskcError, match=r"MC665.*drafts"):
        server.backend.init_forward_metadata(server.batch(ForwardMode.EXTEND, spec_info=1))
    server.backend.init_forward_metadata(server.batch(ForwardMode.IDLE))
    server.backend.init_forward_metadata(batch)
    with pytest.raises(MaskcError, match=r"MC665.*\['q_rope'\]"):
        server.run(q, plain, batch, q_rope=q)
    for number, (options, why) in enumerate(
        (
            ({"attn_type": "encoder_only"}, "encoder_only layers"),
            ({"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, "soft-caps by sigmoid"),
            ({"pos_encoding_mode": "ALIBI"}, "positions of kind ALIBI"),
            ({"use_irope": True}, "chunked local attention"),
        )
    ):
        layer = RadixAttention(HEADS, DIM, KV_HEADS, layer_id=number + 1, **options)
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            server.run(q, layer, batch)
