"""Adapters in the engines' own classes, on the CPU. Tests of an engine that is not installed are
skipped; the stand-ins that replace it elsewhere must have its interface."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support import engine_interfaces, engine_stubs
from tests.support.paged import Pool

pytestmark = pytest.mark.filterwarnings("ignore")  # engines warn about what this machine lacks
ENGINES = ("vllm", "sglang", "megatron", "torchtitan")
PAGE, HEADS, KV_HEADS, DIM, LONGEST = 16, 4, 2, 16, 128


@pytest.mark.parametrize("engine", ENGINES)
def test_stand_ins_have_the_interface(engine):
    """Stand-ins may lack fields and arguments with defaults, and have no other ones."""
    _, lines = engine_interfaces.stated()[engine]
    for name, line in engine_interfaces.stands_in(engine).items():
        (real,) = (x for x in lines if x.startswith(f"{name}("))
        ours, theirs = engine_interfaces.parts(line), engine_interfaces.parts(real)
        assert set(ours) <= set(theirs), line
        assert {x for x in theirs if "=" not in x} <= set(ours) or name == "AttnMaskType", line
        assert [x for x in theirs if x in ours] == ours, line


@pytest.mark.parametrize("engine", ENGINES)
def test_installed_classes_have_the_interface(engine):
    needs(engine)
    number, lines = engine_interfaces.installed(engine)
    stated, wanted = engine_interfaces.stated()[engine]
    assert list(lines.values()) == wanted, f"{engine} {number} differs from {stated}"


def test_adapters_take_what_engines_pass():
    """Each method accepts the arguments of the class that it overrides, in their order."""
    for engine, stubs, loaded, pairs in (
        ("vllm", engine_stubs.VLLM, "maskc.integrations.vllm", {
            "VllmBackend": "AttentionBackend", "VllmSteps": "AttentionMetadataBuilder",
            "VllmLayer": "AttentionImpl",
        }),
        ("sglang", engine_stubs.SGLANG, "maskc.integrations.sglang",
         {"SglangBackend": "AttentionBackend"}),
    ):  # fmt: skip
        with engine_stubs.installed(stubs, loaded) as module:
            for ours, base in pairs.items():
                adapter = getattr(module, ours)
                assert not adapter.__abstractmethods__
                for line in engine_interfaces.stated()[engine][1]:
                    owner, _, method = line.partition("(")[0].partition(".")
                    if owner != base or method not in vars(adapter) or method == "__init__" == ours:
                        continue
                    if engine == "sglang" and method == "__init__":
                        continue
                    names = list(inspect.signature(getattr(adapter, method)).parameters)
                    wanted = [x.strip("=*") for x in engine_interfaces.parts(line) if x]
                    wanted = [x for x in wanted if x != "kwargs"]
                    assert names[: len(wanted)] == wanted, line


def needs(engine):
    if not engine_stubs.INSTALLED[engine]:
        pytest.skip(f"{engine} is not installed")


def test_the_attention_layer_of_vllm():
    """vLLM's Attention writes the cache and calls the layer; prompt, chunk and decoding."""
    needs("vllm")
    engine_stubs.imported("vllm.model_executor.layers.attention.attention")
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.attention.attention import Attention

    from maskc.integrations.serving import register_vllm
    from maskc.integrations.vllm import VllmBackend, VllmSteps
    from tests.unit.test_vllm import common

    register_vllm()
    lengths, counts = [75, 33, 20], [1, 17, 20]
    pool = Pool(lengths, PAGE, KV_HEADS, DIM)
    q = torch.from_numpy(pool.queries(counts, HEADS))
    config = VllmConfig(
        cache_config=CacheConfig(block_size=PAGE), device_config=DeviceConfig("cpu")
    )
    with set_current_vllm_config(config):
        layer = Attention(HEADS, DIM, DIM**-0.5, KV_HEADS, prefix="layers.0.attn",
                          attn_backend=VllmBackend)  # fmt: skip
    layer.use_direct_call = True
    both = np.concatenate([pool.k_pool, pool.v_pool], -1)
    rows = [(s, p) for s, n in enumerate(lengths) for p in range(n - counts[s], n)]
    slots = torch.tensor([int(pool.table[s, p // PAGE]) * PAGE + p % PAGE for s, p in rows])
    cache = torch.from_numpy(both)
    cache.flatten(0, 1)[slots] = torch.nan
    layer.kv_cache = cache.transpose(1, 2)
    k, v = (torch.from_numpy(np.stack([x[s][p] for s, p in rows])) for x in (pool.k, pool.v))
    model = SimpleNamespace(dtype=torch.float32, max_model_len=LONGEST)
    spec = SimpleNamespace(block_size=PAGE, dtype=torch.float32)
    steps = VllmSteps(spec, [layer.layer_name], SimpleNamespace(model_config=model), "cpu")
    metadata = {layer.layer_name: steps.build(0, common(pool, counts))}
    with set_forward_context(metadata, config, slot_mapping={layer.layer_name: slots}):
        out = layer(q.flatten(1), k.flatten(1), v.flatten(1))
    first = 0
    for sequence, count in enumerate(counts):
        keys, values = (torch.from_numpy(x[sequence]).transpose(0, 1) for x in (pool.k, pool.v))
        n = len(pool.k[sequence])
        want = torch.nn.functional.scaled_dot_product_attention(
            q[first : first + count].transpose(0, 1), keys, values,
            torch.ones(count, n, dtype=torch.bool).tril(n - count), enable_gqa=True,
        )  # fmt: skip
        torch.testing.assert_close(out[first : first + count], want.transpose(0, 1).flatten(1))
        first += count


@pytest.mark.parametrize("window", [-1, 9])
@pytest.mark.parametrize("decodes", [False, True])
def test_the_backend_of_sglang_written_in_torch(decodes, window):
    """Compare with TorchNativeAttnBackend, SGLang's reference, on equal layers and batches."""
    needs("sglang")
    engine_stubs.imported("sglang.srt.layers.attention.torch_native_backend")
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from maskc.integrations import sglang
    from tests.unit.test_sglang import SGLANG, Server, radix

    counts = [1, 1, 1] if decodes else [17, 5, 20]
    pool = Pool([75, 33, 20], PAGE, KV_HEADS, DIM)
    server = Server(sglang, pool, counts)
    for buffer in (server.pools.get_key_buffer(0), server.pools.get_value_buffer(0)):
        buffer.nan_to_num_()
    prefix = torch.tensor(pool.lengths) - torch.tensor(counts)
    mode = SGLANG.ForwardMode.DECODE if decodes else SGLANG.ForwardMode.EXTEND
    batch = server.batch(mode, extend_prefix_lens=prefix)
    q = pool.queries(counts, HEADS)
    layer = radix(sliding_window_size=window)
    runner = SimpleNamespace(
        device="cpu", token_to_kv_pool=server.pools,
        req_to_token_pool=SimpleNamespace(req_to_token=server.slots),
    )  # fmt: skip
    results = []
    for backend in (server.backend, TorchNativeAttnBackend(runner)):
        backend.init_forward_metadata(batch)
        server.backend = backend
        results.append(server.run(q, layer, batch))
    np.testing.assert_allclose(*results, atol=1e-5, rtol=1e-5)


def test_a_model_of_megatron(monkeypatch, tmp_path):
    """Logits, gradients and checkpoint of a GPT model with Megatron's DotProductAttention."""
    needs("megatron")
    engine_stubs.imported("megatron.core.models.gpt.gpt_layer_specs")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention as Reference
    from megatron.core.transformer.transformer_config import TransformerConfig

    from maskc.integrations.megatron import DotProductAttention

    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    tracker = SimpleNamespace(fork=contextlib.nullcontext, is_initialized=lambda: False)
    monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: tracker)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        parallel_state.initialize_model_parallel()
        config = TransformerConfig(
            num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=2,
            use_cpu_initialization=True, attention_dropout=0.0, hidden_dropout=0.0,
            masked_softmax_fusion=False, bias_dropout_fusion=False, bias_activation_fusion=False,
        )  # fmt: skip
        models = []
        for core in (Reference, DotProductAttention):
            torch.manual_seed(0)
            spec = get_gpt_layer_local_spec(normalization="RMSNorm")
            spec.submodules.self_attention.submodules.core_attention = core
            models.append(GPTModel(config, spec, vocab_size=64, max_sequence_length=32,
                                   position_embedding_type="rope"))  # fmt: skip
        assert isinstance(
            models[1].decoder.layers[0].self_attention.core_attention, DotProductAttention
        )
        tokens, places = torch.randint(64, (2, 24)), torch.arange(24).expand(2, 24)
        hidden = torch.ones(1, 1, 24, 24).triu(1) > 0
        want, got = (model(tokens, places, hidden) for model in models)
        torch.testing.assert_close(got, want)
        for out in (want, got):
            out.square().sum().backward()
        for (name, x), (_, y) in zip(*(model.named_parameters() for model in models), strict=True):
            torch.testing.assert_close(y.grad, x.grad, atol=1e-4, rtol=1e-4, msg=name)
        names = [list(model.sharded_state_dict()) for model in models]
        assert names[0] == names[1]
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def test_a_model_of_torchtitan(monkeypatch):
    """Logits and gradients of a tiny Llama with GQA and packed documents, as with FlexAttention.
    PyTorch has no gradients of FlexAttention on CPUs: for these, SDPA replaces it."""
    needs("torchtitan")
    engine_stubs.imported("torchtitan.models.llama3")
    from torch.nn.attention.flex_attention import create_mask, flex_attention
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import FlexAttention

    from maskc.integrations.torchtitan import InnerAttention

    def dense(q, k, v, *, block_mask, scale, **_):
        keep = create_mask(block_mask.mask_mod, q.shape[0], None, q.shape[2], k.shape[2], "cpu")
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, keep, scale=scale, enable_gqa=True
        )
        return out, SimpleNamespace(lse=None)

    models = []
    for kind in ("flex", "varlen"):
        config = llama3.llama3_configs["debugmodel"](kind)
        config.layers = llama3._build_llama3_layers(
            n_layers=2, dim=256, n_heads=8, n_kv_heads=2, hidden_dim=256, attn_backend=kind,
            rope=type(config.layers[0].attention.rope)(dim=32, max_seq_len=256),
        )  # fmt: skip
        if kind == "varlen":
            for layer in config.layers:
                layer.attention.inner_attention = InnerAttention.Config()
        torch.manual_seed(0)
        model = config.build()
        model.init_states()
        models.append(model)
    inner = models[1].layers["0"].attention.inner_attention
    assert isinstance(inner, InnerAttention)
    tokens = torch.randint(2048, (2, 128))
    places = torch.cat([torch.arange(40), torch.arange(88)]).expand(2, 128)
    results = []
    for model in models:
        masks = model.get_attention_masks(places)
        for replaced in (flex_attention, dense):
            monkeypatch.setattr(FlexAttention, "_compiled_flex_attn", staticmethod(replaced))
            with torch.set_grad_enabled(replaced is dense):
                out = model(tokens, positions=places, attention_masks=masks)
            results.append(out.detach())
        out.square().mean().backward()
    for got in results[1:]:
        torch.testing.assert_close(got, results[0], atol=1e-4, rtol=1e-4)
    for (name, x), (_, y) in zip(*(model.named_parameters() for model in models), strict=True):
        torch.testing.assert_close(y.grad, x.grad, atol=1e-5, rtol=1e-3, msg=name)
