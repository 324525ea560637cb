"""The attention backends of vLLM and SGLang on a card: steps, caches in place, CUDA graphs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support import engine_stubs
from tests.support.paged import Pool, exact

SGLANG = engine_stubs.classes(engine_stubs.SGLANG)
ForwardMode = SGLANG.ForwardMode
PAGE, HEADS, KV_HEADS, DIM, LONGEST = 16, 8, 2, 128, 2048
LENGTHS, COUNTS = [1300, 1, 700, 77, 260], [1, 1, 200, 77, 33]


def causal(p, k):
    return k <= p


def close(out, want):
    assert not out.isnan().any()
    np.testing.assert_allclose(out.float().cpu().numpy(), want, atol=2e-2, rtol=2e-2)


def on_gpu(x):
    return torch.from_numpy(np.ascontiguousarray(x)).cuda()


class Runner:
    """vLLM's side of a model with one layer: a cache, and the tables of steps."""

    def __init__(self, module, **options):
        self.layer = module.VllmLayer(HEADS, DIM, DIM**-0.5, KV_HEADS, **options)
        self.scales = SimpleNamespace(_k_scale=torch.ones(1).cuda(), _v_scale=torch.ones(1).cuda())
        model = SimpleNamespace(dtype=torch.bfloat16, max_model_len=LONGEST)
        spec = SimpleNamespace(block_size=PAGE, dtype=torch.bfloat16)
        config = SimpleNamespace(model_config=model)
        self.steps = module.VllmSteps(spec, ["layers.0"], config, "cuda")

    def load(self, pool, counts):
        """Take a cache without the newest tokens; their rows and slots."""
        both = on_gpu(np.concatenate([pool.k_pool, pool.v_pool], -1)).bfloat16()
        rows = [(s, p) for s, n in enumerate(pool.lengths) for p in range(n - counts[s], n)]
        slots = [int(pool.table[s, p // PAGE]) * PAGE + p % PAGE for s, p in rows]
        self.slots = torch.tensor(slots).cuda()
        both.flatten(0, 1)[self.slots] = torch.nan
        self.cache = both.transpose(1, 2)
        self.k, self.v = (
            on_gpu(np.stack([x[s][p] for s, p in rows])).bfloat16() for x in (pool.k, pool.v)
        )

    def tables(self, pool, counts, fill=0):
        wide = np.zeros((len(counts) + fill, LONGEST // PAGE), np.int32)
        wide[: len(counts), : pool.table.shape[1]] = pool.table.clip(0, len(pool.k_pool) - 1)
        starts = np.concatenate([[0], np.cumsum(counts), [sum(counts)] * fill]).astype(np.int32)
        lens = np.array([*pool.lengths, *[0] * fill], np.int32)
        return SimpleNamespace(
            query_start_loc=on_gpu(starts), seq_lens=on_gpu(lens), num_reqs=len(wide),
            num_actual_tokens=sum(counts) + fill, max_query_len=max(counts),
            max_seq_len=max(pool.lengths), block_table_tensor=on_gpu(wide), causal=True,
        )  # fmt: skip

    def run(self, q, metadata, output):
        self.layer.do_kv_cache_update(self.scales, self.k, self.v, self.cache, self.slots)
        self.layer.forward(self.scales, q, None, None, self.cache, metadata, output)


@pytest.fixture(scope="module")
def vllm():
    with engine_stubs.installed(engine_stubs.VLLM, "maskc.integrations.vllm") as module:
        yield module


@pytest.mark.parametrize("counts", [COUNTS, [1] * 5], ids=["mixed", "decode"])
def test_steps_of_vllm(vllm, counts):
    pool = Pool(LENGTHS, PAGE, KV_HEADS, DIM)
    q, runner = pool.queries(counts, HEADS), Runner(vllm)
    runner.load(pool, counts)
    with torch.inference_mode():
        output = torch.full((len(q) + 3, HEADS, DIM), 7.0).cuda().bfloat16()
        queries = torch.cat([on_gpu(q).bfloat16(), output[:3]])
        runner.run(queries, runner.steps.build(0, runner.tables(pool, counts)), output)
    close(output[:-3], exact(pool, q, counts, lambda s, h: causal)[0])
    assert (output[-3:] == 7).all()


def test_graphs_of_vllm(vllm):
    """A graph for eight requests is captured once and replayed with two other batches of five."""
    counts, runner = [1] * 5, Runner(vllm)
    pools = [Pool(LENGTHS, PAGE, KV_HEADS, DIM, seed=s) for s in range(3)]
    runner.load(pools[0], counts)
    queries = torch.zeros(8, HEADS, DIM).cuda().bfloat16()
    output = torch.zeros_like(queries)
    with torch.inference_mode():
        step = runner.steps.build_for_cudagraph_capture(runner.tables(pools[0], counts, 3))
        runner.run(queries, step, output)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            runner.run(queries, step, output)
        for pool in pools[1:]:
            k, v, cache, slots = runner.k, runner.v, runner.cache, runner.slots
            runner.load(pool, counts)
            for old, new in zip((k, v, cache, slots), (runner.k, runner.v, runner.cache,
                                                       runner.slots), strict=True):  # fmt: skip
                old.copy_(new)
            runner.k, runner.v, runner.cache, runner.slots = k, v, cache, slots
            q = pool.queries(counts, HEADS)
            queries[:5].copy_(on_gpu(q))
            runner.steps.build(0, runner.tables(pool, counts, 3))
            graph.replay()
            close(output[:5], exact(pool, q, counts, lambda s, h: causal)[0])
            assert not output[5:].any()


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_steps_of_sglang(page, mode):
    counts = [1] * 5 if mode.is_decode() else COUNTS
    pool = Pool(LENGTHS, page, KV_HEADS, DIM)
    lines = torch.zeros(8, LONGEST + 4, dtype=torch.int32)
    for s, n in enumerate(LENGTHS):
        token = np.arange(n)
        lines[s + 1, :n] = torch.from_numpy(pool.table[s, token // page] * page + token % page)
    lines = lines.cuda()
    k_pool, v_pool = (on_gpu(x).bfloat16().flatten(0, 1) for x in (pool.k_pool, pool.v_pool))
    pools = SimpleNamespace(get_key_buffer=lambda i: k_pool, get_value_buffer=lambda i: v_pool)
    batch = SGLANG.ForwardBatch(
        forward_mode=mode, batch_size=5, input_ids=None, out_cache_loc=None,
        seq_lens_sum=sum(LENGTHS), seq_lens=torch.tensor(LENGTHS).cuda(), spec_info=None,
        seq_lens_cpu=torch.tensor(LENGTHS), req_pool_indices=torch.arange(1, 6).cuda(),
        extend_seq_lens=torch.tensor(counts).cuda(),
        extend_seq_lens_cpu=counts,
    )  # fmt: skip
    runner = SimpleNamespace(
        model_config=SimpleNamespace(context_len=LONGEST),
        server_args=SimpleNamespace(),
        page_size=page,
        token_to_kv_pool=pools,
        req_to_token_pool=SimpleNamespace(req_to_token=lines),
    )
    q, layer = (
        pool.queries(counts, HEADS),
        SGLANG.RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, 0),
    )
    with engine_stubs.installed(engine_stubs.SGLANG, "maskc.integrations.sglang") as module:
        backend = module.SglangBackend(runner)
        backend.init_forward_metadata(batch)
        rows = on_gpu(q).bfloat16().flatten(1)
        out = backend.forward(rows, None, None, layer, batch, save_kv_cache=False)
    close(out.view(-1, HEADS, DIM), exact(pool, q, counts, lambda s, h: causal)[0])
