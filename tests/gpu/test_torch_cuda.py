"""mc.attention on CUDA tensors inside PyTorch: autograd, torch.compile, checkpoints, operators.

Run with `make test-gpu`. The oracle is dense attention in fp64, differentiated by PyTorch.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import maskc as mc
from maskc.core.attention_call import DEFAULTS
from maskc.integrations.torch import handles
from maskc.integrations.torch.keywords import packed_call
from maskc.runtime import GeneratedMask
from tests.support.exact_attention import exact
from tests.support.hopper import no_waiting

HEADS, KV_HEADS, DIM = 4, 2, 64
MASKS = {
    "causal": mc.causal(),
    "sinks and a window": mc.causal() & (mc.sinks(4) | mc.window(63)),
    "documents": mc.causal() & mc.documents("doc"),
    "in parts": mc.causal() & mc.dilated(256, stride=4),
    "per head": mc.per_head([mc.causal(), mc.window(99), mc.full(), mc.causal()]),
}


def tensors(n: int, seed: int = 0) -> list[torch.Tensor]:
    """q, k, v of two sequences, views of [B, N, H, D], that require gradients."""
    made = torch.Generator("cuda").manual_seed(seed)
    return [
        torch.randn(2, n, heads, DIM, device="cuda", dtype=torch.bfloat16, generator=made)
        .transpose(1, 2).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]  # fmt: skip


def data_of(name: str, n: int) -> dict[str, torch.Tensor]:
    return {"doc": torch.arange(n, device="cuda") // 77} if name == "documents" else {}


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return (out.float() * torch.arange(out.shape[2], device="cuda").cos()[:, None]).sum()


def gradients(inputs, out) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss_of(out), inputs)


@pytest.mark.parametrize("n", [129, 700])
@pytest.mark.parametrize("name", MASKS)
def test_gradients(name: str, n: int):
    inputs, data = tensors(n), data_of(name, n)
    live = MASKS[name].dense(n, n_heads=HEADS, **{k: x.cpu().numpy() for k, x in data.items()})
    found, want = (
        mc.attention(*inputs, MASKS[name], **data),
        exact(*inputs, live)[0],
    )
    pairs = zip((found, *gradients(inputs, found)), (want, *gradients(inputs, want)), strict=True)
    for a, b in pairs:
        assert (a - b).norm() < 6e-3 * b.norm()
        assert a.dtype == torch.bfloat16


@pytest.mark.parametrize("name", MASKS)
def test_compiled_modules_give_the_same_bits(name: str):
    torch._dynamo.reset()
    mask = MASKS[name]

    def layer(q, k, v, data):
        return mc.attention(q, k, v, mask, **data)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for n in (130, 333):
        inputs, data = tensors(n), data_of(name, n)
        found, want = compiled(*inputs, data), layer(*inputs, data)
        assert torch.equal(found, want)
        deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            pairs = zip(
                gradients(inputs, compiled(*inputs, data)),
                gradients(inputs, layer(*inputs, data)), strict=True,
            )  # fmt: skip
            assert all(torch.equal(a, b) for a, b in pairs)
        finally:
            torch.use_deterministic_algorithms(deterministic)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # one of torch's own
@pytest.mark.parametrize("name", MASKS)
def test_graphs_of_torch_compile(name: str):
    """reduce-overhead records CUDA graphs, and refuses to if anybody keeps their memory."""
    torch._dynamo.reset()
    n, mask = 256, MASKS[name]
    data = data_of(name, n)
    compiled = torch.compile(
        lambda q, k, v: mc.attention(q * 1.0, k, v, mask, deterministic=True, **data),
        fullgraph=True, mode="reduce-overhead",
    )  # fmt: skip
    for seed in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        inputs = tensors(n, seed)
        out = compiled(*inputs)
        results = (out.clone(), *(x.clone() for x in gradients(inputs, out)))
        want = mc.attention(*inputs, mask, deterministic=True, **data)
        assert all(map(torch.equal, results, (want, *gradients(inputs, want))))


def test_the_first_call_may_be_inside_of_a_graph():
    mask, doc = mc.window(17) & mc.documents("doc"), torch.arange(100, device="cuda") // 30
    inputs = [x.detach() for x in tensors(100)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mc.attention(*inputs, mask, doc=doc)
    graph.replay()
    want, _ = exact(*inputs, mask.dense(100, doc=doc.cpu().numpy()))
    assert (out - want).norm() < 6e-3 * want.norm()


def test_checkpoint():
    inputs = tensors(300)

    def layer(q, k, v):
        return mc.attention(q.sin(), k, v, MASKS["causal"], deterministic=True)

    wanted = gradients(inputs, layer(*inputs))
    loss_of(checkpoint(layer, *inputs, use_reentrant=False)).backward()
    assert all(torch.equal(x.grad, g) for x, g in zip(inputs, wanted, strict=True))


@pytest.mark.parametrize("name", ["causal", "documents"])
def test_opcheck(name: str):
    inputs, n = tensors(140), 140
    key = handles.handle(
        mc.api._compiled, id(MASKS[name]), DIM, DIM, HEADS, torch.bfloat16, ("cuda", 0), True
    )
    call, data = packed_call(DEFAULTS, data_of(name, n), as_operator=True)
    rest = (None, None, False, data, None, key, *call.numbers())
    out, lse, _ = torch.ops.maskc.attention(*inputs, *rest)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.maskc.attention.default, (*inputs, *rest), test_utils=checks)
    plain = [x.detach() for x in (*inputs, out, lse, torch.ones_like(out))]
    own = (*rest[:2], [], *rest[3:])  # no tables whose gradients follow
    torch.library.opcheck(
        torch.ops.maskc.attention_backward.default, (*plain, *own), test_utils=checks
    )


def test_nothing_waits_for_the_device():
    inputs = tensors(512)
    out = mc.attention(*inputs, MASKS["in parts"])
    gradients(inputs, out)
    torch.cuda.synchronize()
    with no_waiting():
        for _ in range(3):
            gradients(inputs, mc.attention(*inputs, MASKS["in parts"]))


@pytest.mark.parametrize("name", MASKS)
def test_compiled_masks_and_generated_modules_are_differentiable(name: str):
    n, mask = 333, MASKS[name]
    inputs, data = tensors(n), data_of(name, n)
    attn = mask.compile(DIM, n_heads=HEADS)
    want = mc.attention(*inputs, mask, deterministic=True, **data)
    wanted = gradients(inputs, want)
    for call in (attn, GeneratedMask(attn.bundle).attention):
        found = call(*inputs, deterministic=True, **data)
        assert torch.equal(found, want)
        assert all(map(torch.equal, gradients(inputs, found), wanted))
        with torch.no_grad():
            assert torch.equal(call(*inputs, deterministic=True, **data), want)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda q, k, v, data, call=call: call(q, k, v, deterministic=True, **data),
            fullgraph=True, dynamic=True,
        )  # fmt: skip
        found = compiled(*inputs, data)
        assert torch.equal(found, want)
        assert all(map(torch.equal, gradients(inputs, found), wanted))


@pytest.mark.parametrize("wanted", [False, True])
def test_autocast_casts_for_a_compiled_mask(wanted: bool):
    inputs = [x.detach().float().requires_grad_(wanted) for x in tensors(200)]
    attn = MASKS["causal"].compile(DIM, dtype="bfloat16")
    with torch.autocast("cuda", dtype=torch.float16):  # its own dtype counts
        out = attn(*inputs)
    half = [x.detach().bfloat16() for x in inputs]
    assert torch.equal(out, attn(*half))
    if wanted:
        assert all(x.dtype == torch.float32 for x in gradients(inputs, out))
