"""mc.attention on torch tensors: gradients, layouts, autocast, operators and their handles.

The oracle is dense attention in fp64, differentiated by torch itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

import maskc as mc
from maskc.core.attention_call import DEFAULTS, AttentionCall
from maskc.core.errors import BadOption
from maskc.integrations import torch as with_torch
from maskc.integrations.torch import handles
from maskc.integrations.torch.gradients import rows
from maskc.integrations.torch.keywords import packed_call
from tests.support.exact_attention import exact
from tests.support.torch_oracle import (
    DIM,
    DIM_V,
    HEADS,
    MASKS,
    Spy,
    close,
    data_of,
    loss_of,
    spied,
    tensors,
    vectors,
)

# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("on_card", [False, True])
@pytest.mark.parametrize(
    ("shape", "strides", "start"),
    [
        ((2, 3, 8, 16), (384, 128, 16, 1), 0), ((2, 3, 8, 12), (288, 96, 12, 1), 0),
        ((2, 3, 8, 16), (384, 128, 16, 1), 4), ((2, 8, 3, 16), (384, 16, 128, 1), 8),
        ((1, 3, 8, 16), (5, 128, 16, 1), 0), ((2, 3, 8, 16), (0, 0, 0, 1), 0),
        ((2, 3, 8, 16), (0, 0, 0, 0), 0), ((2, 3, 8, 16), (384, 128, 1, 8), 0),
    ],
)  # fmt: skip
def test_gradients_are_copied_only_if_kernels_cannot_take_them(shape, strides, start, on_card):
    class Placed(torch.Tensor):
        is_cuda = on_card

    memory = torch.arange(1024, dtype=torch.bfloat16)
    dout = memory.as_strided(shape, strides, start).as_subclass(Placed)
    aligned = all(2 * step % 16 == 0 for step in (start, *strides[:-1]))
    fits = strides[-1] == 1 and (aligned or not on_card)
    made = rows(dout)
    assert (made is dout) == fits
    assert made.stride(-1) == 1
    assert torch.equal(made, dout)


def test_queries_at_the_end_of_longer_keys():
    inputs, slopes = tensors(15, n_q=4), vectors()["alibi_slopes"]
    live = MASKS["causal"].dense(4, 15)
    results = mc.attention(*inputs, MASKS["causal"], return_lse=True, alibi_slopes=slopes)
    want = exact(*inputs, live, alibi_slopes=slopes)
    every = [*inputs, slopes]
    gradients = [torch.autograd.grad(loss_of(*r, "out and lse"), every) for r in (results, want)]
    for a, b in zip(*gradients, strict=True):
        close(a, b)


def test_pieces_that_are_merged_have_the_gradients_of_their_union():
    near, far = mc.causal() & mc.window(3), mc.causal() - mc.window(3)
    inputs = tensors(12)
    parts = [mc.attention(*inputs, mask, return_lse=True) for mask in (near, far)]
    found, _ = mc.merge(*zip(*parts, strict=True))
    want = mc.attention(*inputs, mc.causal())
    close(found, want)
    wanted = torch.autograd.grad(loss_of(want, None, "out"), inputs)
    for a, b in zip(torch.autograd.grad(loss_of(found, None, "out"), inputs), wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize("changed", ["q", "doc"])
def test_what_changes_before_the_backward_pass_is_noticed(changed: str):
    q, k, v = (x * 1 for x in tensors(10))
    doc = torch.arange(10) // 5
    out = mc.attention(q, k, v, MASKS["documents"], doc=doc)
    with torch.no_grad():
        {"q": q, "doc": doc}[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ------------------------------------------------------------------ layouts, modes


@pytest.mark.parametrize("bshd", [False, True])
def test_nothing_is_copied_and_gradients_lie_as_their_tensors(spy: Spy, bshd: bool):
    inputs = tensors(7, bshd=bshd)
    out = with_torch.attention(spied, mc.causal(), AttentionCall(*inputs))
    assert [x.data_ptr() for x in spy.calls[0]] == [x.data_ptr() for x in inputs]
    assert out.transpose(1, 2).is_contiguous() == bshd
    dout = torch.randn(out.shape) if not bshd else torch.randn(2, 7, 4, DIM_V).transpose(1, 2)
    gradients = torch.autograd.grad(out, inputs, dout)
    assert spy.passes[0][0][5].data_ptr() == dout.data_ptr()
    assert [x.stride() for x in gradients] == [x.stride() for x in inputs]


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "packed"])
@pytest.mark.parametrize("kind", ["plain", "score", "one sequence of keys", "sliced"])
def test_a_layout_adds_no_nodes_to_the_graph(layout: str, kind: str):
    """Results and gradients are those of [B, H, N, D], in the caller's order."""
    axes = {"sbhd": (2, 0, 1, 3)}.get(layout, (0, 2, 1, 3))
    ends, doc = torch.tensor([0, 4, 9]), (torch.arange(9) >= 4).int()
    options = {"score": mc.scores.soft_cap(5.0)} if kind == "score" else {}
    first, turned = [], []
    for x in tensors(9):
        x = x.detach()[: 1 if layout == "packed" else 2]
        if kind == "one sequence of keys" and x.shape[1] < HEADS:
            x = x[:1]
        first.append(x.requires_grad_())
        y = x.detach().permute(axes).contiguous()
        y = torch.stack([y, y], 3)[:, :, :, 0] if kind == "sliced" else y
        turned.append((y[0] if layout == "packed" else y).requires_grad_())
    if layout == "packed":
        mask, data, asked = mc.documents("doc"), {"doc": doc}, {"cu_seqlens_q": ends}
    else:
        mask, data, asked = mc.full(), {}, {"layout": layout}
    want = mc.attention(*first, mc.causal() & mask, return_lse=True, **options, **data)
    out, lse = mc.attention(*turned, mc.causal(), return_lse=True, **options, **asked)
    node = out.grad_fn
    assert node.name() == "MaskedAttentionBackward"
    assert not out._is_view()
    assert {of[0].name() for of in node.next_functions if of[0]} == {
        "torch::autograd::AccumulateGrad"
    }
    out, lse = (out[None], lse[None]) if layout == "packed" else (out, lse)
    back = [axes.index(axis) for axis in range(4)]
    assert torch.equal(out.permute(back), want[0])
    assert torch.equal(lse, want[1])
    gradients = torch.autograd.grad(loss_of(out.permute(back), lse, "out and lse"), turned)
    wanted = torch.autograd.grad(loss_of(*want, "out and lse"), first)
    for x, gradient, its in zip(turned, gradients, wanted, strict=True):
        assert gradient.shape == x.shape
        its = its.permute(axes)
        torch.testing.assert_close(gradient, its[0] if layout == "packed" else its)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["score", "captured", "alpha", "selection", "dropout"])
def test_autocast_casts_every_kind_of_call(name, requires_grad):
    table, chosen = torch.randn(6, 6), mc.topk(2, of=mc.causal(), score="qk")
    mask, options = {
        "score": (mc.causal(), {"score": mc.scores.soft_cap(5.0)}),
        "captured": (mc.causal(), {"score": mc.score(lambda s, q, k: s + table[q, k])}),
        "alpha": (mc.causal(), {"normalizer": "entmax", "alpha": torch.tensor([1.5, 2.0])}),
        "selection": (chosen, {"return_selection": True}),
        "dropout": (mc.causal(), {"score": mc.scores.soft_cap(5.0), "dropout_p": 0.5,
                                  "dropout_seed": 3}),
    }[name]  # fmt: skip
    q, k, v = (torch.randn(1, 2, 6, 16, requires_grad=requires_grad) for _ in range(3))
    half = [x.detach().bfloat16() for x in (q, k, v)]
    want = mc.attention(*half, mask, **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = mc.attention(q, k, v, mask, **options)
    if name == "selection":
        (want, *_), (found, *_) = want, found
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, want)
    if requires_grad:
        (dq,) = torch.autograd.grad(found.float().sum(), q)
        assert dq.dtype == torch.float32


# ------------------------------------------------------------------ the operators


@pytest.mark.parametrize(("name", "bshd"), [("causal", False), ("documents", True)])
def test_opcheck(name: str, bshd: bool):
    inputs, extras = tensors(9, bshd=bshd), vectors() if bshd else {}
    key = handles.handle(
        mc.api._compiled, id(MASKS[name]), DIM, DIM_V, HEADS, torch.float32, ("cpu", 0), True
    )
    call, data = packed_call(DEFAULTS, data_of(name, 9), as_operator=True)
    heads = [extras.get("alibi_slopes"), extras.get("sink_logits")]
    captured = list(handles.operands(key))
    rest = (*heads, True, data, captured, key, *call.numbers())
    out, lse, kept = torch.ops.maskc.attention(*inputs, *rest)
    torch.library.opcheck(torch.ops.maskc.attention.default, (*inputs, *rest))
    plain = [x.detach() for x in (*inputs, out, lse, torch.ones_like(out))]
    heads = [None if x is None else x.detach() for x in heads]
    rest = (*heads, [], data, kept, key, *call.numbers())
    torch.library.opcheck(torch.ops.maskc.attention_backward.default, (*plain, *rest))


def test_a_dispatch_mode_sees_operators():
    names = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.extend([func.name()] * (func.namespace == "maskc"))
            return func(*args, **(kwargs or {}))

    with Watch():
        mc.attention(*tensors(6), mc.causal()).sum().backward()
    assert names == ["maskc::attention", "maskc::attention_backward"]


def test_a_subclass_sees_the_operator():
    class Tagged(torch.Tensor):
        seen = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs)

    q, k, v = (x.detach() for x in tensors(6))
    out = mc.attention(q.as_subclass(Tagged), k, v, mc.causal())
    assert isinstance(out, Tagged)
    assert "maskc.attention.default" in Tagged.seen
    assert torch.equal(out.as_subclass(torch.Tensor), mc.attention(q, k, v, mc.causal()))


# ------------------------------------------------------------------ handles


def handle(mask: mc.Mask, dim: int = DIM) -> str:
    place = ("cpu", 0)
    return handles.handle(mc.api._compiled, id(mask), dim, dim, HEADS, torch.float32, place, False)


def test_handles_name_what_is_computed():
    assert handle(mc.causal()) == handle(mc.causal())
    others = (mc.full(), mc.window(1), mc.window(2), mc.documents("one"), mc.documents("two"),
              mc.offsets([1, 2]), mc.offsets([1, 3]))  # fmt: skip
    keys = {handle(mc.causal()), handle(mc.causal(), 8), *map(handle, others)}
    assert len(keys) == 2 + len(others)


NAMING = """
import sys, torch, maskc as mc
from maskc.integrations.torch import handles
from maskc.integrations.torch.gradients import rows
table = mc.block_table([[1, 0], [0, 1]], 64)
mask = (mc.where(lambda q, k: q % 3 == k % 3) & mc.documents("doc")) | table
name = handles.handle(mc.api._compiled, id(mask), 8, 8, 2, torch.float32, ("cpu", 0), False)
"""


def test_handles_are_the_same_in_every_process():
    here: dict[str, str] = {}
    exec(NAMING, here)
    done = subprocess.run(
        [sys.executable, "-c", f"{NAMING}print(name)"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == here["name"]


def test_handles_from_many_threads():
    masks = [mc.window(n) for n in range(40, 48)]
    found: list[list[str]] = []

    def work():
        found.append([handle(mask) for mask in masks])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(keys == found[0] for keys in found)
    for key in found[0]:
        assert handles.named(key) is handles.named(key)


def test_a_handle_from_elsewhere_is_refused():
    with pytest.raises(BadOption, match="a handle made in this process"):
        handles.named("0" * 32)


def test_a_tensor_that_outlived_its_transform_is_the_one_inside():
    q, k, v = tensors(5)
    left = []
    torch.func.grad(lambda x: left.append(x) or x.sum())(q.detach())
    want = mc.attention(q, k, v, mc.causal())
    got = mc.attention(left[0], k, v, mc.causal())
    assert torch.equal(got, want)
    wanted = torch.autograd.grad(want.sum(), (k, v))
    assert all(map(torch.equal, torch.autograd.grad(got.sum(), (k, v)), wanted))
