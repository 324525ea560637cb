"""Dense attention with gradients in torch: exact in fp64, and unfused in the tensors' own dtype.

A kernel is judged by its contract: at most twice the error of the unfused computation in that
dtype, or its own rounding. Everything runs where the tensors are, and nothing waits for a device
until a verdict is read.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

import maskc as mc
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.ir.heads import fixed_heads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GRADIENTS = ("dq", "dk", "dv")
VECTORS = {"sink_logits": "dsink_logits", "alibi_slopes": "dalibi_slopes"}
"""Inputs per head and what their gradients are called."""

Results = dict[str, torch.Tensor]


def tensors(n_q, n_kv, dim, dtype, seed=0, *, batch=2, heads=4, kv_heads=2, device=DEVICE):
    """q, k, v and dout, standard normal, [B, H, N, D]."""
    generator = torch.Generator(device).manual_seed(seed)
    sizes = ((heads, n_q), (kv_heads, n_kv), (kv_heads, n_kv), (heads, n_q))
    return [
        torch.randn((batch, h, n, dim), generator=generator, device=device).to(dtype)
        for h, n in sizes
    ]


def vectors(names, heads, seed=0, device=DEVICE) -> Results:
    """Inputs per head by name, fp32 in 0..1."""
    generator = torch.Generator(device).manual_seed(seed)
    return {name: torch.rand(heads, generator=generator, device=device) for name in names}


def distances(q, k):
    """|p - k|, [n_q, n_kv]."""
    n_q, n_kv = q.shape[2], k.shape[2]
    p = torch.arange(n_q, device=q.device)[:, None] + n_kv - n_q
    return (p - torch.arange(n_kv, device=q.device)).abs()


def product(a, b):
    """In their dtype, sums in fp32: processors take three times as long to say so themselves."""
    if a.is_cuda or a.dtype in (torch.float32, torch.float64):
        return a @ b
    return (a.float() @ b.float()).to(a.dtype)


def dense(q, k, v, live, *, scale=None, softcap=None, alibi_slopes=None, sink_logits=None):
    """(out, lse, weights) in the dtype of q; k and v have as many heads as q.

    Args:
        live: bool, broadcastable to [B, H, n_q, n_kv].

    Returns:
        weights [B, H, n_q, n_kv + 1]: the last one is the sink's.
    """
    scores = product(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - (alibi_slopes[:, None, None] * distances(q, k)).to(q.dtype)
    scores = scores.masked_fill(~live, -torch.inf)
    extra = torch.full((q.shape[1],), -torch.inf, device=q.device)
    extra = (extra if sink_logits is None else sink_logits).to(q.dtype)
    scores = torch.cat([scores, extra[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(scores.double(), -1)
    empty = (lse == -torch.inf)[..., None]
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return product(weights[..., :-1], v), lse, weights


def exact(q, k, v, live, **features):
    """(out, lse) in fp64, which torch differentiates.

    Args:
        live: bool, of NumPy or torch, broadcastable to [B, H, n_q, n_kv].
        features: as of `dense`.
    """
    group = q.shape[1] // k.shape[1]
    repeated = (x.double().repeat_interleave(group, 1) for x in (k, v))
    wide = {name: x.double() if torch.is_tensor(x) else x for name, x in features.items()}
    return dense(q.double(), *repeated, _as_tensor(live, q), **wide)[:2]


def eager(score_mod, live, q, k, v, logits_too=False):
    """FlexAttention's meaning in fp64: the score_mod on all pairs at once; `live` as of `exact`."""
    q, k, v = (x.double() for x in (q, k, v))
    batch, heads, n, dim = q.shape
    axes = [torch.arange(size, device=q.device) for size in (batch, heads, n, k.shape[2])]
    scores = q @ k.repeat_interleave(heads // k.shape[1], 1).mT / dim**0.5
    logits = score_mod(scores, *torch.meshgrid(*axes, indexing="ij")).double()
    logits = logits.masked_fill(~_as_tensor(live, q), -torch.inf)
    out = torch.softmax(logits, -1) @ v.repeat_interleave(heads // v.shape[1], 1)
    return (out, logits) if logits_too else out


def _as_tensor(live, like):
    made = live if isinstance(live, torch.Tensor) else torch.tensor(np.array(live))
    return made.to(like.device)


def by_autograd(given, live, kind, **features):
    """dq, dk and dv in fp64, of a computation in `kind` from q, k, v and dout."""
    leaves = [x.detach().to(kind).requires_grad_() for x in given[:3]]
    group = given[0].shape[1] // given[1].shape[1]
    repeated = [x.repeat_interleave(group, 1) for x in leaves[1:]]
    out = dense(leaves[0], *repeated, live, **features)[0]
    return [x.double() for x in torch.autograd.grad(out, leaves, given[3].to(kind))]


def results(q, k, v, dout, live, kind, *, backward=True, **features) -> Results:
    """out, lse, dq, dk, dv, and the gradients of what there is per head, computed in `kind`.

    With fp64 also the sizes that roundings are measured by, as `size of dq` and so on.
    """
    wide = torch.float64 if kind == torch.float64 else torch.float32
    leaves = [x.detach().to(kind).requires_grad_(backward) for x in (q, k, v)]
    heads = {
        name: x.detach().to(wide).requires_grad_(backward)
        for name, x in features.items()
        if name in VECTORS
    }
    group = q.shape[1] // k.shape[1]
    repeated = [x.repeat_interleave(group, 1) for x in leaves[1:]]
    out, lse, weights = dense(leaves[0], *repeated, live, **{**features, **heads})
    found = {"out": out.detach(), "lse": lse.detach()}
    del lse  # and what its gradient would read
    if backward:
        wanted = [*leaves, *heads.values()]
        with warnings.catch_warnings():
            # The first product of a thread that differentiates finds no CUDA context, and says so.
            warnings.simplefilter("ignore")
            gradients = torch.autograd.grad(out, wanted, dout.to(kind), allow_unused=True)
        names = (*GRADIENTS, *(VECTORS[name] for name in heads))
        found |= {
            name: torch.zeros_like(x) if gradient is None else gradient
            for name, x, gradient in zip(names, wanted, gradients, strict=True)
        }
    if kind == torch.float64:
        scale = features.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else abs(scale)
        given = [x.detach() for x in (leaves[0], *repeated, dout.to(kind), out, weights)]
        found |= {f"size of {name}": x for name, x in sizes(*given, scale, group).items()}
    return found


def exact_and_rough(q, k, v, dout, live, **features) -> list[Results]:
    """`results` in fp64 and in the tensors' own dtype: what `wrong` judges by."""
    return [results(q, k, v, dout, live, kind, **features) for kind in (torch.float64, q.dtype)]


def sizes(q, k, v, dout, out, weights, scale, group) -> Results:
    """The largest value of each result were every pair's term of it an error of its own, and errors
    added up as squares: what a relative rounding of all terms is multiplied by.

    Terms of a row's dalibi_slopes share the error of the row's delta.
    """

    def of_keys(x):
        return x.unflatten(1, (-1, group)).sum(2)

    p, sink = weights[..., :-1], weights[..., -1]
    delta = (out * dout).sum(-1, keepdim=True).abs()
    terms = p * ((dout @ v.transpose(-1, -2)).abs() + delta)
    squares, far = (scale * terms).square(), distances(q, k)
    found = {
        "out": p.square() @ v.square(),
        "dq": squares @ k.square(),
        "dk": of_keys(squares.transpose(-1, -2) @ q.square()),
        "dv": of_keys(p.square().transpose(-1, -2) @ dout.square()),
        "dalibi_slopes": (terms * far).sum(-1).square().sum((0, 2)),
        "dsink_logits": (sink * delta[..., 0]).square().sum((0, 2)),
    }
    return {name: x.max().sqrt() if x.numel() else x.sum() for name, x in found.items()}


def called(attn, q, k, v, dout=None, data=None, deterministic=False, **features) -> Results:
    """Results of a compiled mask; without `dout` of the forward pass alone."""
    options = {**features, **(data or {})}
    out, lse = attn(q, k, v, return_lse=True, deterministic=deterministic, **options)
    found = {"out": out, "lse": lse}
    if dout is not None:
        made = attn.backward(q, k, v, out, lse, dout, deterministic=deterministic, **options)
        given = [name for name in ("sink_logits", "alibi_slopes") if name in features]
        names = (*GRADIENTS, *(VECTORS[name] for name in given))
        found |= dict(zip(names, made, strict=True))
    return found


def excess(found: Results, exact: Results, rough: Results) -> Results:
    """For each result its largest error over what is allowed; NaN where it is not finite.

    Allowed: twice the error of `rough`, and half a unit in the last place of the largest value or
    term. A row that sees a single key has gradient 0, the difference of two numbers that are not;
    and of a handful of values `rough` may by luck have every one right.
    """
    made = {}
    for name, x in found.items():
        wanted, peer = exact[name], rough[name]
        if not x.numel():
            continue
        if name == "lse":
            # An infinite lse is right where it is equal; finite ones are fp32.
            difference = torch.where(x == wanted, 0.0, (x - wanted).abs())
            made[name] = (difference / (1e-3 + 1e-5 * wanted.abs().nan_to_num(0, 0, 0))).max()
            continue
        error = (x.double() - wanted).abs().max()
        step = torch.finfo(found["out"].dtype).eps / 2
        size = torch.maximum(wanted.abs().max(), exact[f"size of {name}"])
        allowed = 2 * (peer.double() - wanted).abs().max() + step * size
        made[name] = error / (allowed + 1e-6)
    return made


def wrong(found: Results, exact: Results, rough: Results) -> list[str]:
    """Names of results that are off, and by how much. Waits for the device."""
    return [
        f"{name}: {float(x):.3g} times the error allowed"
        for name, x in excess(found, exact, rough).items()
        if not x <= 1
    ]


def live_pairs(mask: mc.Mask, n_q, n_kv, data=None, heads=None, device=DEVICE) -> torch.Tensor:
    """The mask as bool [1 or H, n_q, n_kv]."""
    dense_mask = mask.dense(n_q, n_kv, n_heads=heads, **(data or {}))
    live = torch.tensor(dense_mask.copy(), device=device)
    return live if live.ndim == 3 else live[None]


def fits(mask: mc.Mask, heads: int) -> bool:
    """Whether a kernel can read all arrays of the mask."""
    from maskc import driver

    irs = (driver.lowered(mask, head, heads) for head in range(heads))
    return len({name for ir in irs for name in E.arrays(ir.keep)}) <= MAX_ARRAYS


def heads_of(mask: mc.Mask, usual: int) -> int:
    """Query heads the mask is made for."""
    return fixed_heads(mask) or usual
