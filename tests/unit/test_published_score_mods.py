"""score_mods as attention-gym has them: its generators, and the biases that its example trains."""

from __future__ import annotations

import functools

import pytest
import torch
from attn_gym import mods

import maskc as mc
from tests.unit.test_scores_torch import B, H, N, check, tensors

W = 8


def learned(*shape):
    return torch.randn(*shape, requires_grad=True)


def graphs():
    """(distances, edge types along shortest paths, how many of them count) of random graphs."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.rand((B, N, N), generator=generator) < 0.08
    edges = edges | edges.mT
    kinds = torch.randint(0, 3, (B, N, N), generator=generator)
    return mods.shortest_path_distances(edges, 4), *mods.shortest_path_edge_types(edges, kinds, 3)


def test_sandwich():
    check(mods.generate_sandwich_bias(H, N))


def test_graphormer():
    distances, kinds, lengths = graphs()
    spatial, edges = learned(H, 6), learned(H, 3, 3)
    check(mods.generate_graphormer_spatial_bias(spatial, distances), spatial)
    check(mods.generate_graphormer_edge_bias(edges, kinds, lengths), edges)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "sin"])
def test_activations_in_place_of_softmax(name):
    """The logarithm of an activation: softmax's numerator is the activation."""
    check(mods.generate_activation_score_mod(getattr(torch, name), 1.5))


ACTIVATIONS = (
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "mish", "relu",
    "relu6", "silu", "softplus", "softsign", "tanh",
)  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_that_stay_above_minus_1(name):
    """No score makes log(f + 1) undefined: SiLU's least value is -0.2785."""
    check(mods.generate_activation_score_mod(getattr(torch.nn.functional, name), 1.0))


def test_a_softplus_with_a_threshold_of_its_own():
    softplus = functools.partial(torch.nn.functional.softplus, beta=2.0, threshold=1.0)
    check(mods.generate_activation_score_mod(softplus, 1.0))


def test_an_activation_of_0_has_no_weight():
    """Also where its logarithm's derivative is infinite: nothing of it reaches a gradient."""
    score = mc.from_score_mod(mods.generate_activation_score_mod(torch.relu, 0.0))
    (q, k, v), dout = tensors()
    out = mc.attention(q, k, v, mc.causal(), score=score)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    scores = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).tril().relu()
    total = scores.sum(-1, keepdim=True)
    wanted = (scores / torch.where(total == 0, 1, total)) @ v.double()
    right = torch.autograd.grad(wanted, (q, k, v), dout.double())
    for one, two in zip((out, *gradients), (wanted, *right), strict=True):
        torch.testing.assert_close(one.double(), two.double(), atol=2e-4, rtol=2e-4)


def test_an_activation_below_its_logarithm_is_refused():
    with pytest.raises(mc.MaskcError, match=r"MC130.*may be below 0"):
        mc.from_score_mod(mods.generate_activation_score_mod(torch.selu, 1.0))


def test_gelu_in_place_of_softmax():
    """The generator's own default."""
    check(mods.generate_activation_score_mod())


def test_what_has_no_formula_is_refused_at_its_line():
    rope = mods.generate_mla_rope_score_mod(torch.randn(B, H, N, 8), torch.randn(B, 1, N, 8), H)
    capped = mods.generate_tanh_softcap(20, approx=True)  # a torch.autograd.Function
    for mod, what, exact in ((rope, "side by side", True), (capped, "such as torch.tanh", False)):
        with pytest.raises(mc.MaskcError, match="MC129") as found:
            mc.from_score_mod(mod, exact=exact)
        assert what in str(found.value)
    with pytest.warns(mc.EvaluatedScoreWarning, match="side by side"):
        mc.from_score_mod(rope)


BIASES = {
    "relative_1d": (lambda s, b, h, q, k, x: s + x[torch.abs(q - k)], (2 * N,)),
    "absolute_2d": (lambda s, b, h, q, k, x: s + x[q, k], (N, N)),
    "head_specific": (lambda s, b, h, q, k, x: s + x[h, q, k], (H, N, N)),
    "batch_head": (lambda s, b, h, q, k, x: s + x[b, h, q, k], (B, H, N, N)),
    "multiplicative": (lambda s, b, h, q, k, x: s * x[q], (N,)),
    "local_window": (
        lambda s, b, h, q, k, x: s + x[torch.clamp(q - k + W, 0, 2 * W)], (2 * W + 1,)
    ),
    "global_tokens": (lambda s, b, h, q, k, x: s + x[k], (N,)),
    "weird": (lambda s, b, h, q, k, x: s + x[b, h, torch.tensor(0), q], (B, H, 4, N)),
    "offset": (lambda s, b, h, q, k, x: s + x[OFFSET[q]], (N,)),
}  # fmt: skip
OFFSET = torch.randint(0, N, (N,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", BIASES)
def test_learnable_biases(name):
    bias, shape = BIASES[name]
    table = learned(*shape)
    check(lambda score, b, h, q_idx, kv_idx: bias(score, b, h, q_idx, kv_idx, table), table)
