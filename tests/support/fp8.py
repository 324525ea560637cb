"""Attention in E4M3 beside fp64, with a bound on what rounding weights to E4M3 may do.

A weight is rounded to 4 bits, by at most 2^-4 of itself, and where it is small by at most 2^-10 of
2^-7 of the row's largest. Where products are added with 14 bits, as Hopper does, each of them may
lose 2^-13 of the largest term, see `bits`.
"""

from __future__ import annotations

import torch

from maskc.integrations.torch.fp8 import to_e4m3

ROUNDED, LOST = 2**-4, 2**-17
OUT = 2**-8
"""Of bfloat16."""


def tensors(n_q, n_kv, dim, seed=0, *, batch=2, heads=4, kv_heads=2, device="cpu"):
    """(q, k, v) in E4M3 and their factors by keyword; heads of k differ in size."""
    torch.manual_seed(seed)
    shapes = (heads, n_q), (kv_heads, n_kv), (kv_heads, n_kv)
    q, k, v = (torch.randn(batch, h, n, dim, device=device) for h, n in shapes)
    k = k * torch.linspace(0.5, 2, kv_heads, device=device)[:, None, None]
    made = to_e4m3(q, kv_heads), to_e4m3(k), to_e4m3(v + 0.1)
    names = "q_descale", "k_descale", "v_descale"
    return [x for x, _ in made], {n: f for n, (_, f) in zip(names, made, strict=True)}


def wide(x, factor, heads):
    """The numbers that x stands for, in fp64, for so many heads."""
    found = x.double()
    if factor is not None:
        each = factor.double().repeat_interleave(x.shape[1] // factor.shape[1], 1)
        found = found * each[..., None, None]
    return found.repeat_interleave(heads // x.shape[1], 1)


def exact(q, k, v, live, factors=None, *, scale=None, softcap=None, alibi_slopes=None,
          sink_logits=None):  # fmt: skip
    """(out, lse, what out may be off by, the root of the sum of squares of its terms), in fp64."""
    factors, heads = factors or {}, q.shape[1]
    each = ((q, "q_descale"), (k, "k_descale"), (v, "v_descale"))
    q, k, v = (wide(x, factors.get(name), heads) for x, name in each)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        n_q, n_kv = s.shape[-2:]
        p = torch.arange(n_q, device=s.device)[:, None] + n_kv - n_q
        apart = (p - torch.arange(n_kv, device=s.device)).abs()
        s = s - alibi_slopes.double()[:, None, None] * apart
    s = s.masked_fill(~live, -torch.inf)
    all_logits = s
    if sink_logits is not None:
        sinks = sink_logits.double()[:, None, None].expand(*s.shape[:3], 1)
        all_logits = torch.cat([s, sinks], -1)
    lse = torch.logsumexp(all_logits, -1)
    w = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    out = w @ v
    most = torch.cat([w, torch.zeros_like(lse)[..., None]], -1).amax(-1, keepdim=True) * live
    bound = (ROUNDED * w + LOST * most) @ v.abs() + OUT * out.abs()
    return out, lse, bound, (w.square() @ v.square()).sqrt()


def check(attn, n_q, n_kv, dim, live, *, bits=0.0, data=None, made=None, **features):
    """Compare a call with fp64.

    Args:
        bits: of the sum of all terms' sizes, what adding them up may lose.
    """
    (q, k, v), factors = made or tensors(n_q, n_kv, dim, device=live.device)
    out, lse = attn(q, k, v, return_lse=True, **factors, **features, **(data or {}))
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    right, level, bound, noise = exact(q, k, v, live, factors, **features)
    if bits:
        sizes, *_ = exact(q, k, v.float().abs().to(v.dtype), live, factors, **features)
        bound = bound + bits * sizes
    off = (out.double() - right).abs()
    assert (off <= bound + 1e-12).all()
    dead = level == -torch.inf
    assert (lse[dead] == -torch.inf).all()
    assert (out[dead] == 0).all()
    assert ((lse.double() - level)[~dead].abs() < (2e-3 if bits else 1e-5)).all()
    # roundings are as likely up as down: errors add up as squares, a 36th of each on the average
    assert off.square().sum().sqrt() <= (1 / 28 + bits) * noise.square().sum().sqrt()
    return out, lse
