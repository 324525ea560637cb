"""Attention in E4M3 compared with fp64, with bounds on what roundings may do.

A weight is rounded to 4 bits, by at most 2^-4 of itself, and where it is small by at most 2^-10 of
2^-7 of the row's largest. Hopper adds products with 14 bits, see `hopper_products`.
"""

from __future__ import annotations

import torch

from maskc.integrations.torch.fp8 import to_e4m3

ROUNDED, LOST = 2**-4, 2**-17
KEPT = 13
"""Bits of a sum behind its first one."""
OUT = 2**-8
"""Rounding of bfloat16."""


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


def power(x, least):
    """The exponents of numbers, -100 of 0."""
    return torch.where(x == 0, -100, torch.frexp(x)[1].clamp(min=least + 1) - 1)


def cut(x, powers):
    """x without what is below 2^-13 of these powers of two, towards zero."""
    step = ((powers - KEPT + 127) << 23).view(torch.float32)
    return torch.trunc(x / step) * step


def hopper_products(q, k):
    """q k^T of numbers in E4M3 as Hopper's tensor cores add it up, to the bit: [B, H, n_q, n_kv].

    Each step adds 32 products and the sum so far. All are cut where the largest of them, by the
    exponents of its factors, has its 14th bit, and so is the result.
    """
    q, k = q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    total = q.new_zeros((*q.shape[:3], k.shape[2]))
    for left, right in zip(q.split(32, -1), k.split(32, -1), strict=True):
        left, right = left[..., :, None, :], right[..., None, :, :]
        terms = left * right
        powers = torch.where(terms == 0, -100, power(left, -6) + power(right, -6)).amax(-1)
        powers = torch.maximum(powers, power(total, -100))
        total = cut(terms, powers[..., None]).sum(-1) + cut(total, powers)
        total = cut(total, power(total, -100))
    return total


def exact(q, k, v, live, factors=None, *, scale=None, softcap=None, alibi_slopes=None,
          sink_logits=None, products=None):  # fmt: skip
    """(out, lse, what out may be off by, the root of the sum of squares of its terms), in fp64.

    Args:
        products: of the numbers in E4M3, where they are not exact: see `hopper_products`.
    """
    factors, heads = factors or {}, q.shape[1]
    if products is not None:  # a row of ones for each factor
        unit = wide(torch.ones_like(q[:, :, :1, :1]), factors.get("q_descale"), heads)
        unit = unit * wide(torch.ones_like(k[:, :, :1, :1]), factors.get("k_descale"), heads)
    each = ((q, "q_descale"), (k, "k_descale"), (v, "v_descale"))
    q, k, v = (wide(x, factors.get(name), heads) for x, name in each)
    s = q @ k.transpose(-1, -2) if products is None else products.double() * unit
    s = s * (q.shape[-1] ** -0.5 if scale is None else scale)
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
        bits: of the sum of all terms' sizes, what adding up values may lose, on tensor cores; the
            emulator loses nothing.
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
    products = hopper_products(q, k) if bits else None
    made = exact(q, k, v, live, factors, products=products, **features)[1]
    assert ((lse.double() - made)[~dead].abs() <= 1e-5 + 1e-6 * made[~dead].abs()).all()
    # roundings are as likely up as down: errors add up as squares, a 36th of each on the average
    assert off.square().sum().sqrt() <= (1 / 28 + bits) * noise.square().sum().sqrt()
    return out, lse
