"""mc.attention inside torch.compile: no graph breaks, dynamic lengths, the same bits as eager."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import maskc as mc
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.errors import BadShape, DataMissing, TargetNotBuilt
from maskc.core.problem import Direction
from maskc.integrations import torch as with_torch
from maskc.integrations.torch import handles
from tests.support.torch_oracle import MASKS, Spy, data_of, loss_of, spied, tensors, vectors

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


# ------------------------------------------------------------------ captured tensors


def dense(inputs, live):
    """Attention in fp64."""
    q, k, v = (x.double() for x in inputs)
    run = torch.nn.functional.scaled_dot_product_attention
    return run(q, k, v, attn_mask=live, enable_gqa=True)


def right(found, inputs, live, grad=None):
    want = dense(inputs, live)
    torch.testing.assert_close(found.double(), want, atol=1e-5, rtol=1e-5)
    if grad is not None:
        (wanted,) = torch.autograd.grad(want.square().sum(), inputs[0])
        torch.testing.assert_close(grad, wanted.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.bool])
def test_a_graph_reads_what_it_wrote_itself(graphs, backend: str, kind):
    n, hidden = 9, torch.zeros(9, dtype=kind)
    if kind == torch.bool:
        mask = mc.from_mask_mod(lambda b, h, q, k: ~hidden[k])
    else:
        mask = mc.from_mask_mod(lambda b, h, q, k: hidden[k] == 0)

    @torch.compile(fullgraph=True, backend=backend)
    def twice(q, k, v, place):
        first = mc.attention(q, k, v, mask)
        hidden[place] = 1
        return first, mc.attention(q, k, v, mask)

    q, k, v = (x.detach() for x in tensors(n))
    for place in (2, 5, 0):
        before = hidden == 0
        first, second = twice(q, k, v, torch.tensor([place]))
        right(first, (q, k, v), before.expand(n, n))
        right(second, (q, k, v), (hidden == 0).expand(n, n))
    assert int((hidden != 0).sum()) == 3
    assert graphs() == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_backward_pass_reads_what_its_forward_pass_read(graphs, backend: str):
    n, length = 9, torch.tensor([5])
    mask = mc.from_mask_mod(lambda b, h, q, k: k < length[b])
    compiled = torch.compile(Layer(mask), fullgraph=True, backend=backend)
    inputs = tensors(n)
    for size in (5, 3):
        length.fill_(size)
        out = compiled(*inputs)
        length.fill_(9)
        (grad,) = torch.autograd.grad(out.square().sum(), inputs[0])
        scaled = (inputs[0] * 1.5, *inputs[1:])
        live = (torch.arange(n) < size).expand(n, n)
        want = dense(scaled, live)
        (wanted,) = torch.autograd.grad(want.square().sum(), inputs[0])
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(grad, wanted.float(), atol=1e-4, rtol=1e-4)


def test_views_of_a_tensor_that_the_graph_writes(graphs):
    """The mask reads a column, which is another tensor with the same memory."""
    n, table = 7, torch.zeros(7, 2, dtype=torch.int32)
    mask = mc.from_mask_mod(lambda b, h, q, k: (table[k, 1] == 0) | (table[q, 0] == 1))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q, k, v):
        table.add_(torch.eye(7, 2, dtype=torch.int32))
        return mc.attention(q, k, v, mask)

    inputs = [x.detach() for x in tensors(n)]
    for _ in range(2):
        found = call(*inputs)
        right(found, inputs, (table[:, 1] == 0) | (table[:, :1] == 1))


def test_masks_over_equal_tensors_stay_two_in_graphs(graphs):
    """Keywords restrict them; what was made for one is not taken for the other."""
    n, lengths = 8, [torch.tensor([3]), torch.tensor([3])]
    masks = [mc.from_mask_mod(lambda b, h, q, k, own=own: k < own[b]) for own in lengths]

    @torch.compile(fullgraph=True, backend="eager")
    def call(q, k, v, mask):
        return mc.attention(q, k, v, mask, is_causal=True)

    inputs = [x.detach() for x in tensors(n)]
    for size in (3, 6):
        lengths[1].fill_(size)
        for mask, own in zip(masks, lengths, strict=True):
            live = (torch.arange(n) < own).expand(n, n).tril()
            right(call(*inputs, mask), inputs, live)


def test_only_watched_tensors_are_operands(graphs):
    ids = np.arange(6) // 2
    keys = [
        handles.handle(mc.api._compiled, id(mask), 16, 16, 4, torch.float32, ("cpu", 0), False)
        for mask in (
            mc.where(lambda q, k: ids[q] == ids[k]),
            mc.from_mask_mod(lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k]),
        )
    ]
    assert [len(handles.operands(key)) for key in keys] == [0, 1]
    assert handles.operands(keys[1])[0] is DOCUMENT


DOCUMENT = torch.arange(6) // 2


def test_fake_tensors_beside_captured_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    mask = mc.from_mask_mod(lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k])
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x.detach()) for x in tensors(6)]
        assert mc.attention(*fakes, mask).shape == (2, 4, 6, fakes[2].shape[-1])


# ------------------------------------------------------------------ seeds


@pytest.mark.parametrize(
    "seeds", [(1, 2, 3, -5), (2**63, 2**64 - 1, 2**63 + 9)], ids=["signed", "unsigned"]
)
def test_another_seed_is_no_other_graph(graphs, seeds: tuple[int, ...]):
    """The first one is a constant, as every number is that did not change yet."""

    def call(q, k, v, seed):
        return mc.attention(q, k, v, MASKS["causal"], dropout_p=0.5, dropout_seed=seed)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    inputs = [x.detach() for x in tensors(12)]
    for seed in seeds:
        assert torch.equal(compiled(*inputs, seed), call(*inputs, seed))
    assert graphs() == 2


# ------------------------------------------------------------------ modes and refusals


def spied_call(mask: mc.Mask, compiled: bool):
    """A call through the operator whose kernels the spy stands in for."""

    def call(q, k, v, deterministic=False):
        options = CallOptions(deterministic=deterministic)
        return with_torch.attention(spied, mask, AttentionCall(q, k, v, options))

    return torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call


@pytest.mark.parametrize("compiled", [False, True])
def test_determinism_is_passed_on(graphs, spy: Spy, compiled: bool):
    call = spied_call(mc.causal() & mc.window(1000), compiled)  # a handle that no other test filled

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


@pytest.mark.parametrize("compiled", [False, True])
def test_no_backward_kernels_is_said_at_the_call(graphs, spy: Spy, compiled: bool):
    spy.target = replace(spy.target, directions=(Direction.forward,), missing="none yet")
    call, inputs = spied_call(mc.causal() & mc.window(2000), compiled), tensors(5)
    with pytest.raises(TargetNotBuilt, match="no backward kernels"):
        call(*inputs)
    with torch.no_grad():
        assert torch.equal(call(*inputs), mc.attention(*inputs, mc.causal()))


@pytest.mark.parametrize("compiled", [False, True])
def test_mistakes_keep_their_codes(graphs, compiled: bool):
    (q, k, v), call = tensors(6), Layer(MASKS["documents"])
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.raises(DataMissing):
        call(q, k, v)
    with pytest.raises(BadShape, match="k has shape"):
        call(q, k[..., :8].detach(), v, doc=torch.zeros(6, dtype=torch.int32))
    with pytest.raises(Exception, match=r"MC441 q .* four dimensions"):
        call(q[0].detach(), k, v)


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
