"""Masked attention step by step, with all that changes the scores: in fp64 the right answer, in
half precision what PyTorch's operators make of it, the measure of the error a kernel may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskc.core.dtypes import DType
from maskc.verify.judge import Results, rounding


@dataclass(frozen=True, eq=False)
class Steps(Results):
    """Results with the size of what adds up to gradients: where a softmax is nearly one-hot these
    terms cancel, and what is left is as exact as the terms are, not as itself."""

    dq_terms: np.ndarray | None = None
    """[B, Hq, rows]."""
    dk_terms: np.ndarray | None = None
    """[B, Hkv, Nkv]."""


@np.errstate(divide="ignore", invalid="ignore")
def stepwise(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keep: np.ndarray,
    dout: np.ndarray | None,
    dtype: DType | None,
    *,
    softcap: float | None = None,
    alibi_slopes: np.ndarray | None = None,
    sink_logits: np.ndarray | None = None,
) -> Steps:
    """Attention and, given dout, its gradients.

    Args:
        dtype: every intermediate is rounded to it, and sums inside a product or a softmax are fp32;
            None computes all in fp64.
        q: fp32 [B, Hq, Nq, D]; k: [B, Hkv, Nkv, D]; v: [B, Hkv, Nkv, Dv]; dout: [B, Hq, Nq, Dv];
            values of the dtype.
        keep: bool [B, Hq, Nq, Nkv].
        softcap, alibi_slopes [Hq], sink_logits [Hq]: as for a CompiledMask.
    """
    store, group = rounding(dtype), q.shape[1] // k.shape[1]
    real = np.dtype(np.float64 if dtype is None else np.float32).type
    q, k, v = (x.astype(real) for x in (q, k, v))
    n_q, n_kv = keep.shape[-2:]
    scale = real(q.shape[-1] ** -0.5)
    distance = abs(np.arange(n_q)[:, None] + n_kv - n_q - np.arange(n_kv)).astype(real)
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), real), np.zeros(q.shape[:3], real)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dq_terms, dk_terms = np.zeros(q.shape[:3], real), np.zeros_like(k)
    for b, h in np.ndindex(q.shape[:2]):
        of_k, of_v = k[b, h // group], v[b, h // group]
        s = store(store(q[b, h] @ of_k.T) * scale)
        bend = real(1)
        if softcap is not None:
            bent = store(np.tanh(store(s / real(softcap))))
            s, bend = store(bent * real(softcap)), 1 - bent**2
        if alibi_slopes is not None:
            s = store(s - store(real(alibi_slopes[h]) * distance))
        s = np.where(keep[b, h], s, real(-np.inf))
        sink = real(-np.inf if sink_logits is None else sink_logits[h])
        top = np.maximum(s.max(1, initial=-np.inf), sink)
        base = np.where(np.isneginf(top), 0, top)[:, None]
        weights = np.exp(s - base)
        total = weights.sum(1) + np.exp(sink - base[:, 0])
        lse[b, h] = base[:, 0] + np.log(total)
        p = store(weights / np.where(total == 0, 1, total)[:, None])
        out[b, h] = store(p @ of_v)
        if dout is not None:
            of_out = dout[b, h].astype(real)
            dp = store(of_out @ of_v.T)
            delta = (of_out * out[b, h]).sum(1)[:, None]
            sizes = p * (abs(dp) + abs(delta)) * bend * scale
            dq_terms[b, h] = np.linalg.norm(sizes @ abs(of_k), axis=1)
            dk_terms[b, h // group] += sizes.T @ abs(q[b, h])
            ds = store(p * (dp - delta))
            ds = store(store(ds * bend) * scale)
            dq[b, h] = store(ds @ of_k)
            dk[b, h // group] += ds.T @ q[b, h]
            dv[b, h // group] += p.T @ of_out
    if dout is None:
        return Steps(out, lse)
    sums = {"dq_terms": dq_terms, "dk_terms": np.linalg.norm(dk_terms, axis=-1)}
    return Steps(out, lse, dq, store(dk), store(dv), **sums)
