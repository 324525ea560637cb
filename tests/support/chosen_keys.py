"""Masks with keys that are chosen one by one, and what the passes of a target make of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import maskc as mc
from tests.support import exact_entmax
from tests.support.exact_attention import DEVICE, exact_and_rough, tensors, vectors, wrong
from tests.support.hopper import called, half, nan_memory, with_rules

TOP = mc.topk(9, mc.causal())


class Case(NamedTuple):
    """A mask and a call of it."""

    mask: mc.Mask
    sizes: tuple[int, int] = (150, 170)
    dim: int = 64
    dtype: str = "bfloat16"
    options: dict = {}
    deterministic: bool = False
    documents: int = 0
    """Tokens of each."""
    dim_v: int = 0
    """The head dimension of v; 0: that of q and k."""

    def tensors(self):
        """q, k, v and dout."""
        q, k, v, dout = on_grid(tensors(*self.sizes, self.dim, half(self.dtype), batch=2))
        own = self.dim_v or self.dim
        return q, k, v[..., :own].contiguous(), dout[..., :own].contiguous()

    def compile(self, target):
        return self.mask.compile(
            self.dim, head_dim_v=self.dim_v or None, n_heads=4, dtype=self.dtype, target=target
        )


PASSES = {
    "causal": Case(TOP),
    "fewer queries": Case(TOP, (33, 300)),
    "more queries": Case(TOP, (200, 70)),
    "one key": Case(TOP, (3, 1)),
    "union": Case(TOP | mc.window(6), (200, 200), 128),
    "union that is tested": Case(mc.topk(9, mc.window(60)) | mc.strided(17) & mc.causal()),
    "some are chosen": Case(mc.topk(20, mc.full()) & mc.window(50, 30), (140, 190), 96),
    "none": Case(mc.topk(0, mc.causal()) | mc.sinks(2)),
    "more than there are": Case(mc.topk(500, mc.causal()), (150, 150)),
    "logits": Case(TOP | mc.window(6), (130, 200), 64, "float16",
                   {"softcap": 3.0, "alibi_slopes": None, "sink_logits": None}),
    "less is more": Case(TOP | mc.sinks(3), (130, 140), 128, options={"scale": -0.2}),
    "ordered": Case(mc.topk(30, mc.full()), (300, 200), 128, deterministic=True),
    "documents": Case(mc.topk(9, mc.causal() & mc.documents("d")) | mc.sinks(1), documents=37),
    "heads": Case(mc.per_head([TOP, mc.causal(), mc.window(5), TOP | mc.window(5)])),
    "candidates of heads": Case(mc.topk(9, mc.per_head([
        mc.causal(), mc.full(), mc.window(20), mc.strided(3)])), (140, 190)),
    "wide": Case(TOP | mc.window(4), (130, 130), 256),
    "192": Case(TOP, (100, 220), 192),
    "rows of 80": Case(TOP | mc.window(4), (150, 170), 80),
    "rows of 40 and 24": Case(TOP, (150, 170), 40, "float16", dim_v=24, deterministic=True),
    "rows of 136 and 72": Case(
        mc.topk(9, mc.window(60)) | mc.strided(17) & mc.causal(), (150, 170), 136, dim_v=72
    ),
}  # fmt: skip

BOTH = {"chosen": (17, mc.causal()), "of all": (100, mc.full())}


def on_grid(made):
    """q and k in steps of 1 / 16: scores are exact in fp32, and many are alike."""
    return [*((x * 16).round() / 16 for x in made[:2]), *made[2:]]


def live_of(mask, q, k, data):
    """bool [batch, heads, n_q, n_kv], by the reference."""
    (batch, heads, n_q, _), n_kv = q.shape, k.shape[2]
    found = mask.dense(n_q, n_kv, n_heads=heads, heads_kv=k.shape[1], q=q, k=k, **data)
    if found.ndim == 3:
        found = found[:, None] if len(found) == batch else found[None]
    shape = (batch, heads, n_q, n_kv)
    return torch.tensor(np.broadcast_to(found, shape).copy(), device=DEVICE)


TARGETS = ("sm_90a", "sm_80")


def check_passes(name, most_tiles=0, target="sm_90a"):
    """All passes of one of PASSES against fp64, in memory full of NaN; rows and columns are cut
    every `most_tiles` tiles, if that is not 0."""
    case = PASSES[name]
    q, k, v, dout = case.tensors()
    heads = [key for key, value in case.options.items() if value is None]
    options = {**case.options, **vectors(heads, q.shape[1])}
    data = {}
    if case.documents:
        data = {"d": tuple(np.arange(n) // case.documents for n in case.sizes)}
    live = live_of(case.mask, q, k, data)
    attn = case.compile(target)
    assert attn.target.name == target
    if most_tiles:
        attn = with_rules(attn, {"most_tiles": most_tiles}, {"most_tiles": most_tiles})
    rest = {"data": data, "deterministic": case.deterministic, **options}
    with nan_memory():
        computed = called(attn, q, k, v, dout, **rest)
    exact, rough = exact_and_rough(q, k, v, dout, live, **options)
    assert not wrong(computed, exact, rough)


def check_entmax(name, alpha=1.5, target="sm_90a", **options):
    """All passes of one of PASSES with entmax instead of softmax, against fp64."""
    case = PASSES[name]
    given = case.tensors()
    data = {}
    if case.documents:
        data = {"d": tuple(np.arange(n) // case.documents for n in case.sizes)}
    live = live_of(case.mask, *given[:2], data)
    attn = case.compile(target)
    options = {**case.options, **options}
    return exact_entmax.check(attn, given, live, alpha, data, case.deterministic, **options)


def check_nans(dim=64, n=150, target="sm_90a"):
    """Keys that are no numbers are seen by nobody who has enough others."""
    q, k, v, _ = on_grid(tensors(n, n, dim, torch.bfloat16))
    clean = k.clone()
    k[:, :, [5, 17]] = torch.nan
    live = live_of(TOP, q, k, {})
    out, lse = TOP.compile(dim, target=target)(q, k, v, return_lse=True)
    sides = exact_and_rough(q, clean, v, torch.zeros_like(q), live, backward=False)
    for side in (found := {"out": out, "lse": lse}), *sides:
        side.update({name: side[name][:, :, 20:] for name in ("out", "lse")})
    assert not wrong(found, *sides)


def check_counts(wanted, of, dim, n_q, n_kv, seed=0, dtype="bfloat16", target="sm_90a"):
    """Each pass sees as many keys of a row as are to be chosen, whatever scores are in fp32.

    With all weights of a row alike lse is the logarithm of their number, and dv, added up, has
    dout as often as the backward pass sees a key for each that the forward pass saw.
    """
    q, k, v, _ = tensors(n_q, n_kv, dim, half(dtype), seed)
    dout = torch.zeros_like(q)
    dout[..., 0] = 1
    live = torch.tensor(of.dense(n_q, n_kv).sum(-1).clip(max=wanted), device=DEVICE)
    attn = mc.topk(wanted, of).compile(dim, n_heads=q.shape[1], dtype=dtype, target=target)
    computed = called(attn, q, k, v, dout, scale=0.0)
    assert torch.equal(computed["lse"].exp().round().long(), live.expand(computed["lse"].shape))
    seen = computed["dv"][..., 0].double().sum().item()
    assert abs(seen / dout.sum().double().item() - 1) < 2e-3
