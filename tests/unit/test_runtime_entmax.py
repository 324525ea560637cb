"""`normalizer="entmax"` in calls: which kernel runs, what is refused, and torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.bundle import WorkList
from maskc.core.cost import Cost
from maskc.core.errors import BadOption, TargetNotBuilt
from maskc.core.problem import Feature
from maskc.reference.attention import attention, gradients
from maskc.runtime import CompiledMask
from tests.support.bundles import bundle
from tests.support.fake_cuda import Tensor
from tests.support.fake_hopper import BACKWARD, FORWARD, SPARE, given
from tests.support.fake_hopper import backward as gradients_of
from tests.support.fake_hopper import compiled as on_card

N = 90


def tensors(n: int = N, dim: int = 16) -> list[np.ndarray]:
    """q, k, v and dout [1, 2, n, dim]."""
    rng = np.random.default_rng(n)
    return [rng.standard_normal((1, 2, n, dim), dtype=np.float32) for _ in range(4)]


def compiled(mask: mc.Mask, **options) -> CompiledMask:
    return mask.compile(head_dim=16, dtype="float32", target="cpu", **options)


def test_alpha_is_no_part_of_the_kernel() -> None:
    attn, (q, k, v, _) = compiled(mc.causal()), tensors()
    attn.warmup(["entmax"])
    built = dict(attn.reports)
    assert list(built) == [frozenset({Feature.entmax})]
    for alpha in (1.5, 2, 1.3, 1.5):
        out = attn(q, k, v, normalizer="entmax", alpha=alpha)
        want, _ = attention(q, k, v, mc.causal().dense(N), alpha=alpha)
        np.testing.assert_allclose(out, want, atol=1e-5)
    assert dict(attn.reports) == built


def test_the_usual_alpha_and_softmax() -> None:
    attn, (q, k, v, _) = compiled(mc.causal()), tensors()
    usual = attn(q, k, v, normalizer="entmax")
    np.testing.assert_array_equal(usual, attn(q, k, v, normalizer="entmax", alpha=1.5))
    plain = attn(q, k, v, return_lse=True)
    for options in ({"normalizer": "softmax"}, {"normalizer": "entmax", "alpha": 1}):
        for a, b in zip(attn(q, k, v, return_lse=True, **options), plain, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_mask_with_parts_runs_whole() -> None:
    """Residue classes are joined by log-sum-exp, which entmax does not have."""
    mask = mc.dilated(9, stride=7)
    q, k, v, dout = tensors()
    attn = compiled(mask)
    parts = CompiledMask(attn.bundle, "cpu", in_parts=True)
    assert parts.bundle.parts
    out, lse = parts(q, k, v, return_lse=True, normalizer="entmax")
    want, want_lse = attention(q, k, v, mask.dense(N), alpha=1.5)
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    results = parts.backward(q, k, v, out, lse, dout, normalizer="entmax")
    wanted = gradients(q, k, v, mask.dense(N), dout, alpha=1.5)
    for gradient, name in zip(results, ("dq", "dk", "dv"), strict=True):
        np.testing.assert_allclose(gradient, wanted[name], atol=1e-5)
    parts.warmup(["entmax"])
    assert not any(source.startswith("part") for source, _, _ in parts.all_reports)


def test_tau_by_its_definition() -> None:
    """p = max(0, (alpha - 1) s - tau)^(1 / (alpha - 1)) sums to 1 within 1e-6."""
    attn, (q, k, v, _) = compiled(mc.causal() & mc.window(40)), tensors(300)
    keep = (mc.causal() & mc.window(40)).dense(300)
    for alpha in (1.2, 1.5, 1.7, 2.0):
        _, lse = attn(q, k, v, return_lse=True, normalizer="entmax", alpha=alpha)
        a = alpha - 1
        tau = a * lse.astype(np.float64) - 1
        scores = np.where(keep, q.astype(np.float64) @ k.swapaxes(2, 3) / 4, -np.inf)
        p = np.maximum(0, a * scores - tau[..., None]) ** (1 / a)
        # each of at most 41 scores is an fp32 dot product of magnitude 4 at most
        np.testing.assert_allclose(p.sum(-1), 1, atol=5e-6)


def test_a_generated_module(tmp_path, monkeypatch) -> None:
    from maskc import driver
    from maskc.core.target import TARGETS

    problem = driver.problem(16, None, None, "float32")
    files = driver.generate(
        mc.causal(), "entmax_case", [driver.plan_module(mc.causal(), problem, TARGETS["cpu"])], "A."
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import entmax_case

    q, k, v, _ = tensors()
    out = entmax_case.attention(q, k, v, normalizer="entmax", alpha=2.0)
    np.testing.assert_allclose(out, attention(q, k, v, mc.causal().dense(N), alpha=2)[0], atol=1e-5)


# ------------------------------------------------------------------ refusals

SINKS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"normalizer": "sparsemax"}, "must be 'softmax' or 'entmax', found 'sparsemax'"),
        ({"alpha": 1.5}, "alpha must be left out with normalizer='softmax', found 1.5"),
        ({"normalizer": "entmax", "alpha": 0.9}, "alpha must be a number in 1 .. 2, found 0.9"),
        ({"normalizer": "entmax", "alpha": 2.1}, "alpha must be a number in 1 .. 2, found 2.1"),
        ({"normalizer": "entmax", "alpha": "2"}, "alpha must be a number in 1 .. 2, found '2'"),
        ({"normalizer": "entmax", "alpha": True}, "alpha must be a number in 1 .. 2, found True"),
        ({"normalizer": "entmax", "alpha": np.nan}, "alpha must be a number in 1 .. 2, found nan"),
        ({"normalizer": "entmax", "sink_logits": SINKS},
         "sink_logits must be left out with normalizer='entmax', which has no denominator"),
    ],
)  # fmt: skip
def test_refused_options(options: dict, text: str) -> None:
    attn, (q, k, v, _) = compiled(mc.causal()), tensors(4)
    with pytest.raises(BadOption) as caught:
        attn(q, k, v, **options)
    assert text in str(caught.value)


# ------------------------------------------------------------------ on a Hopper, made up


def test_a_hopper_runs_whole_rows(machine) -> None:
    mask, tensors = on_card(), given(n=600)
    mask(*tensors)
    assert machine.driver.block.shared_items == 0
    assert machine.driver.block.alpha_minus_1 == 0
    cut = replace(FORWARD, work=WorkList(1 << 16, 2), row_floats=66)
    mask = on_card(units=(cut, BACKWARD, SPARE))
    mask(*tensors)
    assert machine.driver.block.shared_items > 0
    machine.launched()
    mask(*tensors, normalizer="entmax", alpha=1.25)
    assert machine.driver.block.shared_items == 0
    assert machine.driver.block.alpha_minus_1 == 0.25
    assert machine.launched() == [("attention_forward", 2 * 4 * 10, 384)]
    assert machine.built[-1] == ("forward", "default", ["entmax"])
    mask(*tensors)
    assert machine.driver.block.shared_items > 0
    assert machine.driver.block.alpha_minus_1 == 0


def test_a_hopper_streams_no_entmax(machine) -> None:
    stream = replace(FORWARD, costs=(Cost("default", 50, 3, 0), Cost("persistent", 5, 4, 0)))
    mask, tensors = on_card("band", units=(stream, BACKWARD, SPARE)), given(n=60)
    mask(*tensors)
    mask(*tensors, normalizer="entmax")
    assert [name for _, name, _ in machine.built] == ["persistent", "default"]
    mask.warmup(["entmax"])
    added = sorted(name for text, name, _ in machine.built[2:] if text == "backward")
    assert added == ["default", "deterministic"]


def test_a_backward_pass_on_a_hopper_finds_the_mean_first(machine) -> None:
    """By a launch that softmax does not have; columns may be cut, as gradients just add up."""
    cut = replace(BACKWARD, work=WorkList(1 << 16, 2))
    mask, tensors = on_card(units=(FORWARD, cut, SPARE)), given(n=600)
    gradients_of(mask, *tensors)
    plain = [name for name, _, _ in machine.launched()]
    assert plain == ["attention_rows", "attention_backward", "attention_keys"]
    shared = machine.driver.block.shared_items
    assert shared > 0
    gradients_of(mask, *tensors, normalizer="entmax", alpha=1.25)
    launched = machine.launched()
    assert [name for name, _, _ in launched] == [plain[0], "attention_mean", *plain[1:]]
    assert launched[1] == ("attention_mean", 2 * 4 * 10, 384), "a block per tile row"
    assert machine.driver.block.alpha_minus_1 == 0.25
    assert machine.driver.block.shared_items == shared
    gradients_of(mask, *tensors, normalizer="entmax", deterministic=True)
    assert machine.built[-1] == ("backward", "deterministic", ["entmax"])


def test_a_spare_kernel_stands_in_for_entmax_but_not_for_nan_safe(machine) -> None:
    mask, tensors = on_card(), given()
    with pytest.raises(TargetNotBuilt, match=r"no nan_safe forward kernels.*\n.*target='cpu'"):
        mask(*tensors, normalizer="entmax", nan_safe=True)
    odd = Tensor((2, 4, 150, 64), pointer=1 << 20, strides=(4 * 150 * 72, 150 * 72, 72, 1))
    mask(odd, *tensors[1:])  # an ordinary view
    huge = Tensor((2, 4, 150, 64), pointer=1 << 20, strides=(1 << 43, 1 << 20, 64, 1))
    assert not any(text == "spare" for text, _, _ in machine.built)
    mask(huge, *tensors[1:], normalizer="entmax")
    assert machine.built[-1] == ("spare", "default", ["entmax"])


# ------------------------------------------------------------------ torch


def leaves() -> list:
    return [torch.tensor(x).requires_grad_() for x in tensors(30)[:3]]


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_gradients_of_torch_tensors(alpha: float) -> None:
    q, k, v = leaves()
    out = mc.attention(q, k, v, mc.causal(), normalizer="entmax", alpha=alpha)
    dout = torch.arange(out.numel()).view(out.shape).cos()
    results = torch.autograd.grad((out * dout).sum(), (q, k, v))
    arrays = [x.detach().numpy() for x in (q, k, v)]
    want = gradients(*arrays, mc.causal().dense(30), dout.numpy(), alpha=alpha)
    for gradient, name in zip(results, ("dq", "dk", "dv"), strict=True):
        np.testing.assert_allclose(gradient, want[name], atol=2e-5)


def test_inside_torch_compile() -> None:
    def call(q, k, v):
        return mc.attention(q, k, v, mc_causal, normalizer="entmax", alpha=1.5, return_lse=True)

    mc_causal = mc.causal()
    torch._dynamo.reset()
    run = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = []
    for each in (call, run):
        q, k, v = leaves()
        out, lse = each(q, k, v)
        results.append((out, lse, *torch.autograd.grad(out.cos().sum(), (q, k, v))))
    assert all(map(torch.equal, *results))
    torch._dynamo.reset()


def test_the_operators_are_sound() -> None:
    from maskc.core.attention_call import CallOptions
    from maskc.integrations.torch import handles
    from maskc.integrations.torch.keywords import packed_call

    mask, inputs = mc.causal(), leaves()
    key = handles.handle(mc.api._compiled, id(mask), 16, 16, 2, torch.float32, ("cpu", 0), True)
    call, data = packed_call(CallOptions(normalizer="entmax", alpha=2), {}, as_operator=True)
    rest = (None, None, False, data, None, key, *call.numbers())
    out, lse, _ = torch.ops.maskc.attention(*inputs, *rest)
    want = mc.attention(*inputs, mask, normalizer="entmax", alpha=2, return_lse=True)
    assert all(map(torch.equal, (out, lse), want))
    samples = (*inputs, *rest)
    torch.library.opcheck(torch.ops.maskc.attention.default, samples, test_utils=(
        "test_schema", "test_autograd_registration", "test_faketensor"))  # fmt: skip
    plain = [x.detach() for x in (*inputs, out, lse, torch.ones_like(out))]
    own = (*rest[:2], [], *rest[3:])  # no tables whose gradients follow
    torch.library.opcheck(torch.ops.maskc.attention_backward.default, (*plain, *own))


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_no_gradient_through_lse(backend: str | None) -> None:
    mask = mc.causal()

    def call(q, k, v):
        return mc.attention(q, k, v, mask, normalizer="entmax", return_lse=True)

    torch._dynamo.reset()
    run = torch.compile(call, fullgraph=True, backend=backend) if backend else call
    out, lse = run(*leaves())
    assert out.requires_grad
    assert not lse.requires_grad
    torch._dynamo.reset()


def test_a_bundle_by_hand() -> None:
    """Data, parameters and heads go their usual ways."""
    mask, rng = CompiledMask(bundle("documents"), "cpu"), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 4, 50, d), dtype=np.float32) for d in (32, 32, 48))
    doc = rng.integers(0, 3, (2, 50))
    out = mask(q, k, v, doc=(doc, doc), normalizer="entmax", alpha=1.5)
    keep = (doc[:, :, None] == doc[:, None])[:, None]
    np.testing.assert_allclose(out, attention(q, k, v, keep, alpha=1.5)[0], atol=1e-5)
