"""Judges the kernels on CUDA cores: tensors of every dtype, both passes compared with fp64."""

from __future__ import annotations

import torch

import maskc as mc
from tests.support.exact_attention import called, exact_and_rough, live_pairs, wrong

TABLE = mc.block_table("t", 1)
"""Any mask, as data."""


def made(n_q, n_kv, dim, dim_v=None, dtype=torch.float32, seed=0, *, batch=1, heads=2, kv_heads=1,
         device="cpu"):  # fmt: skip
    """q, k, v and dout."""
    generator = torch.Generator(device).manual_seed(seed)
    dim_v = dim_v or dim
    sizes = ((heads, n_q, dim), (kv_heads, n_kv, dim), (kv_heads, n_kv, dim_v), (heads, n_q, dim_v))
    return [
        torch.randn((batch, *size), generator=generator, device=device).to(dtype) for size in sizes
    ]


def judged(attn, tensors, live, data=None, **features):
    """Both passes: 1e-5 in fp32, in halves twice the error of PyTorch's unfused computation."""
    computed = called(attn, *tensors, data=data, **features)
    dtype = tensors[0].dtype
    exact, rough = exact_and_rough(*tensors, live, **features)
    if dtype != torch.float32:
        assert not wrong(computed, exact, rough)
    for name, x in computed.items() if dtype == torch.float32 else ():
        if x.numel() and name != "lse":
            size = torch.maximum(exact[name].abs().max(), exact[f"size of {name}"])
            assert (x.double() - exact[name]).abs().max() <= 1e-5 * size + 1e-30, name
    empty = ~live.any(-1).expand(*computed["lse"].shape) & (computed["lse"] == -torch.inf)
    assert not computed["out"][empty].any()
    assert not computed["dq"][empty].any()
    return computed


def values_that_are_no_numbers(value, dim, device="cpu", **heads):
    """Check that they reach the queries that see them: with nan_safe no others, in both passes;
    never from beyond the tiles that a query sees.

    Returns:
        (attention, (q, k, v), which queries see key 20, where v is `value`)
    """
    mask = mc.causal() & mc.window(40)
    attn = mask.compile(dim, dtype="float32", target="simt")
    q, k, v, dout = made(150, 150, dim, device=device, **heads)
    sees = live_pairs(mask, 150, 150, device=device)[0][:, 20]
    clean = called(attn, q, k, v, dout, nan_safe=True)
    v[:, :, 20] = value
    out, lse = attn(q, k, v, return_lse=True, nan_safe=True)
    assert torch.equal(out[:, :, ~sees], clean["out"][:, :, ~sees])
    assert not out[:, :, sees].isfinite().any()
    assert attn(q, k, v)[:, :, 128:].isfinite().all()
    dq, _, _ = attn.backward(q, k, v, out, lse, dout, nan_safe=True)
    assert torch.equal(dq[:, :, ~sees], clean["dq"][:, :, ~sees])
    return attn, (q, k, v), sees
