"""Entmax with an alpha for each head in autograd, and the gradient of alpha.

With a = alpha - 1, y = score - lse, x = max(0, 1 + a y), a weight is p = x^(1/a), and its
derivative by the score u = x^(1/a - 1). If lse stays, dp/dalpha is r = (u y - p log p) / a, and
as weights add up to 1 whatever alpha is, lse moves by sum(r) / sum(u). (Correia, Niculae and
Martins, "Adaptively Sparse Transformers", 2019, write it in p alone.) Towards softmax r becomes
-p y^2 / 2.
"""

from __future__ import annotations

from typing import Any

import torch

from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.errors import AlphaWithoutGradient, BadOption
from maskc.core.problem import Direction
from maskc.integrations.torch import cast_all
from maskc.integrations.torch.gradients import once, refuse_transforms, rows
from maskc.integrations.torch.option_logits import option_logits
from maskc.runtime.alphas import backward, forward, runs_of
from maskc.runtime.autograd import is_traced
from maskc.runtime.selecting import Pairs, pairs_of_call

_MAX = 1 << 24
"""Scores of a step of the gradient of alpha, in fp64."""
_NEAR_SOFTMAX = 1e-4
"""alpha - 1 below which r is its limit: there the two differ by less than fp32 tells."""


def attention_by_head(attn: Any, call: AttentionCall) -> tuple[Any, Any]:
    """(out, lse) of a call whose alpha is an array.

    Raises:
        AlphaWithoutGradient: alpha requires grad, and which pairs have weight is known to kernels
            alone.
        BadOption, BadShape: see `runs_of`; the call is traced.
    """
    if is_traced(torch):
        finding = "a tensor, whose values decide what runs"
        wanted = "a number inside of torch.compile and torch.jit.trace"
        raise BadOption("alpha", wanted, finding, at="alpha")
    *_, options, data = call[:5]
    q, k, v = cast_all(*call[:3], attn.bundle.problem.dtype.value)
    alpha, slopes = options.alpha, options.alibi_slopes
    refuse_transforms({"q": q, "k": k, "v": v, **options._asdict(), **data})
    learned = isinstance(alpha, torch.Tensor) and alpha.requires_grad and torch.is_grad_enabled()
    if learned and attn.listing is None:
        raise AlphaWithoutGradient(attn.target.name, at="alpha")
    if torch.is_grad_enabled() and Direction.backward not in attn.target.directions:
        attn.target.check(attn.bundle.problem, Direction.backward)
    plain_options = options._replace(alpha=None, alibi_slopes=None)
    results: tuple[Any, Any] = _apply(
        attn.settled(), plain_options, dict(data), q, k, v, alpha, slopes
    )
    return results


class EntmaxByHead(torch.autograd.Function):
    """out, lse = attention(q, k, v) by an alpha for each head."""

    @staticmethod
    def forward(
        ctx: Any, attn: Any, options: CallOptions, data: Any, q: Any, k: Any, v: Any, alpha: Any,
        slopes: Any,
    ) -> Any:  # fmt: skip
        runs = runs_of(attn.bundle, alpha, q.shape[1], k.shape[1], options.normalizer, data)
        selects = attn.bundle.selections and not attn.gathers
        runner = attn.choosing_on_host() if selects else attn
        call = AttentionCall(q, k, v, options._replace(alibi_slopes=slopes), data)
        out, lse = forward(runner, runs, call)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(lse)
        ctx.own = runner, options, data, runs
        ctx.save_for_backward(q, k, v, out, lse, alpha, slopes)
        return out, lse

    @staticmethod
    @once
    def backward(ctx: Any, saved: Any, dout: Any, _: Any) -> Any:
        if dout is None:
            return (None,) * 8
        attn, options, data, runs = ctx.own
        q, k, v, out, lse, alpha, slopes = saved
        dout = rows(dout)
        always = options.deterministic or torch.are_deterministic_algorithms_enabled()
        options = options._replace(deterministic=always, alibi_slopes=slopes)
        call = AttentionCall(q, k, v, options, data, None, out, lse, dout)
        dq, dk, dv, *rest = backward(attn, runs, call)
        dalpha = None
        if ctx.needs_input_grad[6]:
            # where kernels alone know which single keys they chose, the host chooses once more
            pairs = pairs_of_call(attn.listing, q, k, v, data)
            dalpha = gradient_of_alpha(call, alpha, pairs)
        return None, None, None, dq, dk, dv, dalpha, *(rest or (None,))


_apply: Any = EntmaxByHead.apply


def gradient_of_alpha(call: AttentionCall, alpha: Any, pairs: Pairs) -> Any:
    """The gradient, of the shape of alpha, [] or [Hq]; computed in fp64, some queries at a time."""
    q, k, v, options, *_ = call
    lse, dout = call.lse, call.dout
    batch, heads, n_q, dim = q.shape
    n_kv, group = k.shape[2], heads // k.shape[1]
    a = (alpha.detach().double() - 1).expand(heads)[:, None, None]
    near = a < _NEAR_SOFTMAX
    a = torch.where(near, 1.0, a)
    keys, values = (x.double().repeat_interleave(group, 1).mT for x in (k, v))
    total = torch.zeros(heads, dtype=torch.float64, device=q.device)
    every = torch.arange(n_kv, device=q.device)
    step = max(1, _MAX // max(1, batch * heads * n_kv))
    for first in range(0, n_q, step):
        last = min(first + step, n_q)
        products = q[:, :, first:last].double() @ keys
        s = option_logits(products, options, dim, (first, last), every, n_kv - n_q)
        live = torch.from_numpy(pairs.rows(first, last)).to(q.device)
        level = lse[:, :, first:last, None].double()
        y = torch.where(live & (level > -torch.inf), s - level, -torch.inf)
        x = torch.where(near, 1.0, (1 + a * y).clamp(min=0))
        live = torch.where(near, y, x) > torch.where(near, -torch.inf, 0.0)
        y, x = torch.where(live, y, 0.0), torch.where(live, x, 1.0)
        log = torch.where(near, y, x.log() / a)
        p = torch.where(live, log.exp(), 0.0)
        u = torch.where(live, p / x, 0.0)
        r = torch.where(near, -p * y * y / 2, (u * y - p * log) / a)
        g = dout[:, :, first:last].double() @ values
        mass = u.sum(-1, keepdim=True)
        mean = torch.where(mass > 0, (u * g).sum(-1, keepdim=True) / mass, 0.0)
        total += (r * (g - mean)).sum((0, 2, 3))
    return (total if alpha.dim() else total.sum()).to(alpha.dtype)
