"""Dense alpha-entmax with gradients in torch: exact in fp64, and unfused in the tensors' own dtype.

The counterpart of exact_attention; its `wrong` is the judge of both.
"""

from __future__ import annotations

import torch

from maskc.core.problem import Direction
from tests.support.exact_attention import Results, called, distances, live_pairs, tensors, wrong

STEPS = 24
"""At most: ten or so are enough, after which rounding alone moves lse."""


def weights(scores, alpha):
    """(p, u = dp/dscore with lse fixed, lse), fp64, of scores [..., n] where -inf is no key.

    Newton's steps from the left: the sum of the weights is convex in lse, so none goes too far.
    """
    a, s = alpha - 1, scores.double()
    lse = s.amax(-1, keepdim=True)
    empty = lse == -torch.inf
    lse = lse.masked_fill(empty, 0)
    for _ in range(STEPS):
        x = 1 + a * (s - lse)
        p, u = _power(x, 1 / a), _power(x, 1 / a - 1)
        further = lse + (p.sum(-1, keepdim=True) - 1) / u.sum(-1, keepdim=True).clamp(min=0.5)
        rows = (further > lse) & ~empty
        if not rows.any():
            break
        lse = torch.where(rows, further, lse)
    return p, u, lse.masked_fill(empty, -torch.inf).squeeze(-1)


def _power(x, exponent):
    """x ** exponent above 0, else 0; also where the exponent is 0."""
    return torch.where(x > 0, x.clamp(min=0) ** exponent, 0.0)


def results(
    q, k, v, dout, live, kind, alpha, *, scale=None, softcap=None, alibi_slopes=None
) -> Results:
    """out, lse, dq, dk, dv, and ALiBi's gradient where it is given, computed in `kind`; in fp64
    also the sizes that roundings are measured by, see exact_attention."""
    group = q.shape[1] // k.shape[1]
    q, dout = q.to(kind), dout.to(kind)
    k, v = (x.to(kind).repeat_interleave(group, 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    far = distances(q, k)
    s, derivative = (q @ k.mT) * scale, 1.0
    if softcap is not None:
        capped = torch.tanh(s / softcap)
        s, derivative = softcap * capped, 1 - capped.square()
    if alibi_slopes is not None:
        s = s - (alibi_slopes[:, None, None] * far).to(kind)
    p, u, lse = (x.to(kind) for x in weights(s.masked_fill(~live, -torch.inf), alpha))
    dp = dout @ v.mT
    # Where a row has keys, the sum of u is 1 or more, as u >= p.
    delta = (u * dp).sum(-1, keepdim=True) / u.sum(-1, keepdim=True).clamp(min=0.5)
    logits = u * (dp - delta)
    ds = scale * logits * derivative

    def of_keys(x):
        return x.unflatten(1, (-1, group)).sum(2)

    found = {
        "out": p @ v, "lse": lse, "dq": ds @ k, "dk": of_keys(ds.mT @ q), "dv": of_keys(p.mT @ dout)
    }  # fmt: skip
    if alibi_slopes is not None:
        found["dalibi_slopes"] = -(logits * far).sum((0, 2, 3))
    if kind == torch.float64:
        terms = u * (dp.abs() + delta.abs())
        squares = (scale * terms).square()
        size = {
            "out": p.square() @ v.square(),
            "dq": squares @ k.square(),
            "dk": of_keys(squares.mT @ q.square()),
            "dv": of_keys(p.square().mT @ dout.square()),
            "dalibi_slopes": (terms * far).sum(-1).square().sum((0, 2)),
        }
        found |= {f"size of {name}": x.max().sqrt() for name, x in size.items()}
    return found


def check(attn, given, live, alpha, data=None, deterministic=False, **options) -> Results:
    """The passes of a compiled mask that its target has against fp64; lse to 2e-6. Returns what was
    found."""
    call = {"normalizer": "entmax", "alpha": alpha, **options}
    asked = given if Direction.backward in attn.target.directions else given[:3]
    computed = called(attn, *asked, data=data, deterministic=deterministic, **call)
    sides = [
        results(*given, live, kind, alpha, **options) for kind in (torch.float64, given[0].dtype)
    ]
    if asked is not given:
        sides = [{name: side[name] for name in side if "out" in name or name == "lse"}
                 for side in sides]  # fmt: skip
    faults = wrong(computed, *sides)
    assert not faults, (alpha, sorted(options), faults)
    lse, wanted = computed["lse"].double(), sides[0]["lse"]
    empty = wanted == -torch.inf
    assert torch.equal(lse == -torch.inf, empty)
    assert not computed["out"][empty].any()
    assert "dq" not in computed or not computed["dq"][empty].any()
    error = (lse - wanted)[~empty].abs() / wanted[~empty].abs().clamp(min=1)
    assert not error.numel() or error.max() <= 2e-6
    return computed


def check_mask(
    mask, n_q, n_kv, dim=64, alpha=1.5, dtype=torch.bfloat16, spread=1.0, data=None,
    heads=(4, 2), batch=2, target="sm_90a", **options,
) -> Results:  # fmt: skip
    """Compile a mask and check it; `spread` sets how far scores are apart."""
    q, *rest = tensors(n_q, n_kv, dim, dtype, heads=heads[0], kv_heads=heads[1], batch=batch)
    attn = mask.compile(head_dim=dim, n_heads=heads[0], dtype=dtype, target=target)
    live = live_pairs(mask, n_q, n_kv, data, heads=heads[0])
    return check(attn, (q * spread, *rest), live, alpha, data, **options)
