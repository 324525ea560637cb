"""Masks, tensors and losses, to compare mc.attention on torch tensors with dense attention."""

from __future__ import annotations

import torch

import maskc as mc

HEADS, KV_HEADS, DIM, DIM_V = 4, 2, 16, 24

MASKS = {
    "causal": mc.causal(),
    "empty rows": mc.causal() - mc.prefix(3),
    "documents": mc.window(mc.param("w", 6)) & mc.documents("doc"),
    "parameter": mc.window(mc.param("w", 2)) | mc.sinks(1),
    "per head": mc.per_head([mc.causal(), mc.window(2), mc.full(), mc.causal()]),
}
"""All but the second see a key from every query."""


def data_of(name: str, n: int) -> dict[str, object]:
    if name == "documents":
        return {"doc": torch.arange(n) // 5, "w": 3}
    return {"w": 4} if name == "parameter" else {}


def tensors(n: int, seed: int = 0, bshd: bool = False, n_q: int | None = None):
    """q, k, v that require gradients, [B, H, N, D] or views of [B, N, H, D]."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    sizes = ((HEADS, n if n_q is None else n_q, DIM), (KV_HEADS, n, DIM), (KV_HEADS, n, DIM_V))
    for heads, tokens, dim in sizes:
        shape = (2, tokens, heads, dim) if bshd else (2, heads, tokens, dim)
        x = torch.randn(shape, generator=generator)
        made.append((x.transpose(1, 2) if bshd else x).requires_grad_())
    return made


def vectors(seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ("alibi_slopes", "sink_logits")
    return {name: torch.rand(HEADS, generator=generator).requires_grad_() for name in names}


def loss_of(out, lse, parts: str):
    """A number that depends on out, lse or both, unevenly."""
    total = 0
    if "out" in parts:
        total = total + (out * torch.arange(out.numel()).view(out.shape).cos()).sum()
    if "lse" in parts:
        rows = lse.masked_fill(lse == -torch.inf, 0)
        total = total + (rows * torch.arange(lse.numel()).view(lse.shape).sin()).sum()
    return total


def close(found, wanted, bound: float = 2e-5):
    scale = wanted.abs().nan_to_num(0, 0, 0).max().clamp(min=1)
    torch.testing.assert_close(found.double() / scale, wanted.double() / scale, atol=bound, rtol=0)


# ------------------------------------------------------------------ a look inside


class Spy:
    """A compiled mask that remembers what it was called with."""

    def __init__(self, attn):
        self.attn, self.target, self.bundle = attn, attn.target, attn.bundle
        self.calls, self.passes = [], []
        self.identity = f"spy {id(self)}"

    def __call__(self, q, k, v, **options):
        return self.attn(q, k, v, **options)

    def settled(self):
        return self

    def run(self, call):
        self.calls.append((call.q, call.k, call.v))
        return self.attn.run(call)

    def differentiate(self, call):
        given = call.q, call.k, call.v, call.out, call.lse, call.dout
        self.passes.append((given, call.options.deterministic))
        return self.attn.differentiate(call)


SPIES: dict[str, Spy] = {}


def spied(*_):
    """In place of the compiler: the current spy. No closure, so torch.compile can take it."""
    return SPIES["current"]
