"""The judge of GPU kernels: exact where NumPy is, content with a right answer, not with a wrong
one.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.reference.attention import attention
from tests.support.exact_attention import (
    called,
    exact_and_rough,
    live_pairs,
    results,
    tensors,
    vectors,
    wrong,
)

MASK, SIZES = mc.causal() & mc.window(20), (60, 50)
FEATURES = {"softcap": 2.0, "scale": -0.3}


def case(dtype, names=("alibi_slopes", "sink_logits")):
    """(tensors, features, live pairs); the first ten queries see nothing."""
    features = FEATURES | vectors(names, 4, device="cpu")
    return (
        tensors(*SIZES, 32, dtype, device="cpu"),
        features,
        live_pairs(MASK, *SIZES, device="cpu"),
    )


def test_fp64_is_the_reference():
    made, features, live = case(torch.float64)
    given = {name: x.numpy() if hasattr(x, "numpy") else x for name, x in features.items()}
    want, lse = attention(*(x.numpy() for x in made[:3]), live[0].numpy(), **given)
    found = results(*made, live, torch.float64, **features)
    np.testing.assert_allclose(found["out"], want, atol=1e-12)
    np.testing.assert_allclose(found["lse"], lse, atol=1e-12)


@pytest.mark.parametrize("name", ["q", "k", "v", "alibi_slopes", "sink_logits"])
def test_gradients_are_differences(name):
    """Against a step along a random direction."""
    (q, k, v, dout), features, live = case(torch.float64)
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        **{n: x.double() for n, x in features.items() if n[-1] == "s"},
    }
    rest = {n: x for n, x in features.items() if n not in inputs}
    found = results(q, k, v, dout, live, torch.float64, **features)
    gradient = found[f"d{name}"]
    way, step = torch.randn_like(inputs[name]), 1e-5

    def loss(by):
        moved = {**inputs, name: inputs[name] + by * way}
        order = [moved.pop(n) for n in "qkv"]
        out = results(*order, dout, live, torch.float64, backward=False, **moved, **rest)["out"]
        return float((out * dout).sum())

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert float((gradient * way).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_right_kernel_passes_and_wrong_ones_do_not(dtype):
    made, features, live = case(dtype)
    attn = MASK.compile(head_dim=32, dtype=str(dtype)[6:], target="cpu")
    computed = called(attn, *made, **features)
    sides = exact_and_rough(*made, live, **features)
    assert not wrong(computed, *sides)
    for name, x in computed.items():
        some = x.clone()
        some.view(-1)[x.nan_to_num(0, 0, 0).abs().argmax()] *= 1.2
        assert any(fault.startswith(name) for fault in wrong({**computed, name: some}, *sides)), (
            name
        )
        nothing = torch.full_like(x, torch.nan)
        assert any(fault.startswith(name) for fault in wrong({**computed, name: nothing}, *sides))
    other = live.roll(1, -1)
    late = exact_and_rough(*made, other, **features)
    faults = wrong(computed, *late)
    assert len(faults) == len(computed), "a mask that is off by one is seen in everything"
