"""Tables with an entry for each pair: kernels compared with PyTorch's operators in float64."""

from __future__ import annotations

import torch

import maskc as mc

BIAS = mc.table("bias")
ADDED = mc.score(lambda s, q, k, h, b: s + BIAS[b, h, q, k])
TURNED = mc.score(lambda s, q, k, h, b: s + BIAS[b, h, q, k] + 0.5 * BIAS[b, h, k, q])
TWICE = mc.score(lambda s, q, k, h, b: s + BIAS[b, h, q, k] + mc.scores.tanh(BIAS[b, h, q, k]))
CAPPED = mc.score(lambda s, q, k, h, b: 4 * mc.scores.tanh((s + BIAS[b, h, q, k]) / 4))
FACTOR = mc.score(lambda s, q, k, h, b: s * BIAS[b, h, q, k])
B, H, HKV = 2, 2, 1
KINDS = (
    "contiguous",
    "padded rows",
    "every other",
    "turned",
    "shared",
    "one query",
    "one key",
    "off by one",
)


def logits(score, s, bias):
    """Logits in float64."""
    if score is TURNED:
        return s + bias + 0.5 * bias.mT
    if score is CAPPED:
        return 4 * torch.tanh((s + bias) / 4)
    if score is TWICE:
        return s + bias + torch.tanh(bias)
    return s * bias if score is FACTOR else s + bias


def table(kind, n_q, n_kv, dtype, device):
    """A bias [B, H, n_q, n_kv] that lies in memory in one of several ways."""
    made = torch.Generator().manual_seed(5)
    shape = {
        "padded rows": (B, H, n_q, n_kv + 3),
        "off by one": (B, H, n_q, n_kv + 1),
        "every other": (B, H, n_q, 2 * n_kv),
        "turned": (B, H, n_kv, n_q),
        "shared": (1, 1, n_q, n_kv),
        "one query": (B, H, 1, n_kv),
        "one key": (B, H, n_q, 1),
    }.get(kind, (B, H, n_q, n_kv))
    x = torch.randn(shape, generator=made).to(device, dtype)
    if kind == "turned":
        return x.mT
    if kind == "steps":  # from the last tile to the first, rows rise, or begin with dead keys
        query = torch.arange(n_q)
        warp = query // 16 % 4
        x[:, :, warp == 1, : n_kv // 2] += 20
        x[:, :, warp == 2, :64] += 300
        x[:, :, (warp == 3) & (query % 2 > 0), n_kv - 150 :] = -torch.inf
    parts = {
        "off by one": slice(1, None),
        "padded rows": slice(n_kv),
        "every other": slice(None, None, 2),
    }
    return x[..., parts.get(kind, slice(None))]


def judged(
    score,
    mask,
    kind,
    n_q,
    n_kv,
    dtype=torch.float32,
    dim=64,
    deterministic=False,
    device="cpu",
    attn=None,
):
    """Compare both passes with the definition."""
    made = torch.Generator().manual_seed(3)

    def tensor(heads, n):
        return torch.randn((B, heads, n, dim), generator=made).to(device, torch.bfloat16)

    q, dout, k, v = tensor(H, n_q), tensor(H, n_q), tensor(HKV, n_kv), tensor(HKV, n_kv)
    bias = table(kind, n_q, n_kv, dtype, device)
    attn = attn or mask.compile(dim, dtype="bfloat16", target="sm_90a", score=score)
    out, lse = attn(q, k, v, return_lse=True, bias=bias)
    results = attn.backward(q, k, v, out, lse, dout, bias=bias, deterministic=deterministic)

    exact = [x.double().cpu().requires_grad_() for x in (q, k, v, bias)]
    s = exact[0] @ exact[1].repeat_interleave(H // HKV, 1).mT / dim**0.5
    live = torch.from_numpy(mask.dense(n_q, n_kv))
    logged = logits(score, s, exact[3])
    x = logged.masked_fill(~live, -1e30)
    right = (torch.softmax(x, -1) * live) @ exact[2].repeat_interleave(H // HKV, 1)
    slope, *rest = torch.autograd.grad(
        right, [logged, *exact], dout.double().cpu(), retain_graph=True
    )
    wanted = right, *rest
    slopes = torch.autograd.grad(logged, exact[3], slope.abs())[0]  # where shares may cancel
    scales = *(y.norm() for y in wanted[:-1]), slopes.abs().norm()
    names = ("out", "dq", "dk", "dv", "dbias")
    for name, x, y, size in zip(names, (out, *results), wanted, scales, strict=True):
        assert x.shape == y.shape, name
        assert (x.double().cpu() - y).norm() <= 0.006 * size, name
