"""dq and dk in half precision where rows have few keys: at most twice the error of PyTorch's
unfused computation in that dtype, as delta does not come from the rounded out.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.exact_attention import by_autograd
from tests.support.thorough import alternating

pytestmark = [pytest.mark.filterwarnings("ignore::maskc.runtime.FallbackWarning")]
DIM = 32
EPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
MASK = mc.block_table("t", 1)


@pytest.fixture(params=["cc", "none"], autouse=True)
def compiler(request, monkeypatch):
    """The compiled kernel, and NumPy in its place."""
    if request.param == "none":
        monkeypatch.setenv("CC", "/nowhere/cc")


def drawn(generator, n_q, n_kv, keys, dtype):
    """q, k, v, dout [1, 1, N, DIM], and a table with `keys` keys for each query."""
    made = [
        torch.randn((1, 1, n, DIM), generator=generator).to(dtype) for n in (n_q, n_kv, n_kv, n_q)
    ]
    chosen = torch.rand((n_q, n_kv), generator=generator).argsort(-1) < keys
    return made, chosen


@pytest.mark.parametrize(
    ("dtype", "scale"), alternating([torch.bfloat16, torch.float16], [DIM**-0.5, 1.0])
)
def test_within_twice_the_error_of_pytorch(dtype, scale):
    attn = MASK.compile(DIM, dtype=dtype, target="cpu")
    generator = torch.Generator().manual_seed(1)
    for number in range(60):
        n_q, n_kv, keys = 1 + number % 3, 20 + 40 * (number % 2), (1, 2, 3, 4, 8)[number % 5]
        made, live = drawn(generator, n_q, n_kv, keys, dtype)
        q, k, v, dout = made
        out, lse = attn(q, k, v, return_lse=True, scale=scale, t=live)
        gradients = attn.backward(q, k, v, out, lse, dout, scale=scale, t=live)
        exact = by_autograd(made, live, torch.float64, scale=scale)
        rough = by_autograd(made, live, dtype, scale=scale)
        # A row with one key has gradient 0, the difference of two numbers that are fp32.
        spare = 1e-5 * scale
        for name, x, wanted, peer in zip(("dq", "dk", "dv"), gradients, exact, rough, strict=True):
            error, allowed = (x.double() - wanted).abs().max(), 2 * (peer - wanted).abs().max()
            allowed += EPS[dtype] * wanted.abs().max() + spare
            assert error <= allowed, (number, n_q, n_kv, keys, name, float(error / allowed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_out_decides_where_it_is_not_of_these_keys_alone(dtype):
    """Gradients of pieces, each with the out and lse of all keys, add up to those of the whole; and
    where out is said to be 0, delta is."""
    attn, generator = MASK.compile(DIM, dtype=dtype, target="cpu"), torch.Generator().manual_seed(2)
    made, live = drawn(generator, 40, 50, 9, dtype)
    q, k, v, dout = made
    out, lse = attn(q, k, v, return_lse=True, t=live)
    first = torch.arange(50) % 3 > 0
    pieces = [
        attn.backward(q, k, v, out, lse, dout, t=live & own) for own in (first, ~first)
    ]  # fmt: skip
    exact = by_autograd(made, live, torch.float64)
    for x, y, wanted in zip(*pieces, exact, strict=True):
        error = (x.double() + y.double() - wanted).abs().max()
        assert error < 8 * EPS[dtype] * wanted.abs().max()
    scores = (q.double() @ k.double().transpose(-1, -2)) * DIM**-0.5
    p = torch.softmax(scores.masked_fill(~live, -torch.inf), -1)
    ds = p * (dout.double() @ v.double().transpose(-1, -2))
    dq = attn.backward(q, k, v, torch.zeros_like(out), lse, dout, t=live)[0]
    wanted = ds @ k.double() * DIM**-0.5
    assert (dq.double() - wanted).abs().max() < 4 * EPS[dtype] * wanted.abs().max()
