"""mc.attention inside torch.compile: no graph breaks, dynamic lengths, the same bits as eager."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadShape, DataMissing, TargetNotBuilt
from maskc.core.problem import Direction
from tests.support.torch_oracle import (
    MASKS,
    Spy,
    data_of,
    loss_of,
    spied,
    tensors,
    vectors,
)

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

from maskc.integrations import torch as with_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Layer(torch.nn.Module):
    """A module around one mask, made outside."""

    def __init__(self, mask: mc.Mask):
        super().__init__()
        self.mask = mask
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, q, k, v, **options):
        return mc.attention(q * self.scale, k, v, self.mask, **options)


def same(layer, compiled, inputs, **options) -> None:
    """Results and gradients of both, bit for bit."""
    every = [*inputs, *(x for x in options.values() if getattr(x, "requires_grad", False))]
    results = [run(*inputs, return_lse=True, **options) for run in (layer, compiled)]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    gradients = [torch.autograd.grad(loss_of(*r, "out and lse"), every) for r in results]
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize(
    ("name", "bshd"),
    [("causal", True), ("empty rows", False), ("documents", True), ("per head", False)],
)
def test_compiled_modules_give_the_same_bits(graphs, name: str, bshd: bool):
    layer = Layer(MASKS[name])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(layer, compiled, tensors(14, bshd=bshd), **vectors(), **data_of(name, 14))
    assert graphs() == 1


def test_dynamic_lengths_share_one_graph(graphs):
    layer = Layer(MASKS["documents"])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for n in (12, 19, 31, 8):
        inputs, doc = tensors(n, seed=n), torch.arange(n) // 5
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(doc, 0)
        same(layer, compiled, inputs, doc=doc)
    assert graphs() == 1


def test_everything_dynamic(graphs):
    compiled = torch.compile(
        Layer(MASKS["parameter"]), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for n, w in ((12, 3), (17, 5), (9, 6)):
        same(Layer(MASKS["parameter"]), compiled, tensors(n), w=w)
    assert graphs() == 1


DOC = np.arange(12) // 5


@pytest.mark.parametrize(
    ("mask", "data"),
    [
        (mc.documents("d"), mc.cu_seqlens(torch.tensor([0, 5, 12]))),
        (mc.documents("d"), mc.cu_seqlens(torch.tensor([0, 5, 12]), max_seqlen=7)),
        (mc.documents("d"), (torch.tensor(DOC), torch.tensor(DOC[::-1].copy()))),
        (mc.documents("d"), DOC),
        (mc.documents("d"), DOC.tolist()),
        (mc.documents("d"), tuple(DOC.tolist())),
        (mc.tree("d"), mc.parents(torch.arange(12) - 1)),
        (mc.block_table("d", 4), torch.tensor([[True, False, True]] * 3)),
    ],
    ids=lambda x: str(x) if isinstance(x, mc.Mask) else type(x).__name__,
)
def test_data_in_every_form(graphs, mask: mc.Mask, data: object):
    inputs = [x.detach() for x in tensors(12)]

    def call(q, k, v, d):
        return mc.attention(q, k, v, mask, d=d)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*inputs, data), call(*inputs, data))


def test_another_mask_is_another_graph(graphs):
    layer, inputs = Layer(mc.causal()), tensors(9)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for mask in (mc.causal(), mc.full(), mc.causal()):
        layer.mask = mask
        same(layer, compiled, inputs)
    assert graphs() >= 2


def test_checkpoint_inside_a_compiled_function(graphs):
    layer, inputs = Layer(mc.causal()), tensors(9)

    def call(q, k, v):
        return checkpoint(layer, q, k, v, use_reentrant=False)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = [run(*inputs) for run in (call, compiled)]
    wanted, found = (torch.autograd.grad(r.square().sum(), inputs) for r in results)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.slow
def test_inductor(graphs):
    layer, compiled = Layer(MASKS["documents"]), None
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    try:
        for n in (10, 21):
            same(layer, compiled, tensors(n, bshd=True), doc=torch.arange(n) // 5)
    except Exception as error:
        if "InvalidCxxCompiler" in repr(error):
            pytest.skip("no C++ compiler for inductor")
        raise
    assert graphs() == 1


def test_export():
    inputs = [x.detach() for x in tensors(10)]
    program = torch.export.export(Layer(mc.causal()), tuple(inputs))
    other = [x.detach() for x in tensors(10, seed=5)]
    assert torch.equal(program.module()(*other), Layer(mc.causal())(*other))


# ------------------------------------------------------------------ modes and refusals


def test_determinism_is_passed_on(graphs, spy: Spy):
    mask = mc.causal() & mc.window(1000)  # a handle that no other test has filled

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q, k, v, deterministic):
        return with_torch.attention(spied, q, k, v, mask, {}, deterministic)

    def run(deterministic: bool) -> bool:
        call(*tensors(5), deterministic).sum().backward()
        return spy.passes[-1][1]

    assert [run(False), run(True)] == [False, True]
    torch.use_deterministic_algorithms(True)
    try:
        assert run(False) is True
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(graphs, inside: bool):
    layer, inputs = Layer(mc.causal()), tensors(10)

    def call(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(q, k, v)

    compiled = torch.compile(call if inside else layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        out = compiled(*inputs)
    want = call(*inputs)
    assert out.dtype == want.dtype == torch.bfloat16
    gradients = [torch.autograd.grad(r.float().square().sum(), inputs) for r in (out, want)]
    assert all(map(torch.equal, *gradients))


def test_no_backward_kernels_is_said_at_the_call(graphs, spy: Spy):
    spy.target = replace(spy.target, directions=(Direction.forward,), missing="none yet")
    mask, inputs = mc.causal() & mc.window(2000), tensors(5)

    def call(q, k, v):
        return with_torch.attention(spied, q, k, v, mask, {})

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.raises(TargetNotBuilt, match="no backward kernels"):
        compiled(*inputs)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs), mc.attention(*inputs, mc.causal()))


def test_mistakes_keep_their_codes(graphs):
    q, k, v = tensors(6)
    compiled = torch.compile(Layer(MASKS["documents"]), fullgraph=True, backend="aot_eager")
    with pytest.raises(DataMissing):
        compiled(q, k, v)
    with pytest.raises(BadShape, match="k has shape"):
        compiled(q, k[..., :8].detach(), v, doc=torch.zeros(6, dtype=torch.int32))
    with pytest.raises(Exception, match=r"MC441 q .* four dimensions"):
        compiled(q[0].detach(), k, v)


# ------------------------------------------------------------------ others who need an operator


def test_selective_checkpoints_can_save_it():
    inputs, policy = tensors(7), torch.utils.checkpoint.CheckpointPolicy
    asked, (wanted_op, _) = [], with_torch.operators()

    def choose(ctx, op, *args, **kwargs):
        found = op is wanted_op
        asked.extend([op] * found)
        return policy.MUST_SAVE if found else policy.PREFER_RECOMPUTE

    def call(q, k, v):
        return Layer(mc.causal())(q.sin(), k, v)

    def contexts():
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(choose)

    wanted = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    out = checkpoint(call, *inputs, use_reentrant=False, context_fn=contexts)
    found = torch.autograd.grad(out.square().sum(), inputs)
    assert all(map(torch.equal, found, wanted))
    assert asked
