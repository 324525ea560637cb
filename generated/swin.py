"""Windows of window x window tokens, moved by `shift` (0: not moved).

Mask: where(lambda q, k: ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64
      + 4) // 8))

Written by `maskc compile`; change the pattern, not this file. Next to it are its kernels,
swin.cpu.c, swin.sm_90a.cu, swin.sm_90a_grid.cu, swin.sm_90a_small.cu, swin.sm_90a_backward.cu,
swin.sm_90a_small_backward.cu, swin.sm_80.cu, swin.sm_90a_grid_backward.cu,
and swin.plan.json: how lengths become tiles, and how kernels are launched.
"""

from maskc.runtime.generated import GeneratedMask

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64 + 4) // 8)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    15*N**2/128  (N >= 64, N a multiple of 64)
flops    forward 60*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
plan     partial tiles: test each pair, because a query's keys are not a few intervals

target   sm_90a, bfloat16, head_dim 128
mask     ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64 + 4) // 8)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    15*N**2/128  (N >= 64, N a multiple of 64)
flops    forward 60*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 consumer warpgroups of 64 rows and a producer, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
plan     partial tiles: test each pair, because a query's keys are not a few intervals
plan     or boxes of a grid, 4 x 32 queries x 4 x 24 keys of N x 64: used if predicted to be faster
         at a call's lengths
plan     or tiles of 64 x 64, a consumer warpgroup and a producer, 2 stages, 81 KiB of shared
         memory, 2 blocks per multiprocessor: used if predicted to be faster at a call's lengths
plan     backward: or tiles of 64 x 64, a consumer warpgroup and a producer, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a separate launch if that is faster: used
         if predicted to be faster at a call's lengths
plan     backward: or boxes of a grid, 4 x 16 queries x 4 x 32 keys of N x 64: used if predicted to
         be faster at a call's lengths
"""
"""The text that `explain()` returns."""

_MASK = GeneratedMask.of_module(__file__, REPORT)

SOURCE = _MASK.source
"""The text of the kernels by target, from the files next to this one."""


def attention(
    q,
    k,
    v,
    *,
    scale=None,
    return_lse=False,
    softcap=None,
    alibi_slopes=None,
    sink_logits=None,
    normalizer="softmax",
    alpha=None,
    nan_safe=False,
    deterministic=False,
):
    """softmax(scale * q k^T, restricted to the mask) v, on the device of q.

    Args:
        q: [B, Hq, Nq, 128], bfloat16; torch, CuPy, NumPy or DLPack.
        k, v: [B, Hkv, Nkv, 128] and [B, Hkv, Nkv, 128].
        scale: factor of q . k; D^-1/2 when None.
        return_lse: also return the log-sum-exp of every row.
        softcap: scores become softcap * tanh(score / softcap) first; > 0.
        alibi_slopes: fp32 [Hq]; -slope * |distance| joins the scores.
        sink_logits: fp32 [Hq]; one more logit per head in the denominator.
        normalizer: "softmax", or "entmax" with alpha from 1 to 2 (1.5 when None).
        nan_safe: on GPUs, non-finite rows of v reach only queries that see them, at a price.
        deterministic: gradients of torch tensors have the same bits on every run.

    Returns:
        out [B, Hq, Nq, 128], or (out, lse) with lse fp32 [B, Hq, Nq], natural log.
    """
    return _MASK.attention(
        q,
        k,
        v,
        scale=scale,
        return_lse=return_lse,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sink_logits=sink_logits,
        normalizer=normalizer,
        alpha=alpha,
        nan_safe=nan_safe,
        deterministic=deterministic,
    )


def backward(
    q,
    k,
    v,
    out,
    lse,
    dout,
    *,
    scale=None,
    softcap=None,
    alibi_slopes=None,
    sink_logits=None,
    normalizer="softmax",
    alpha=None,
    deterministic=False,
    nan_safe=False,
):
    """Return gradients of a call of `attention` from its inputs, results and gradient of out.

    Returns:
        (dq, dk, dv), then dsink_logits and dalibi_slopes (fp32 [Hq]) for those given.
    """
    return _MASK.backward(
        q,
        k,
        v,
        out,
        lse,
        dout,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sink_logits=sink_logits,
        normalizer=normalizer,
        alpha=alpha,
        deterministic=deterministic,
        nan_safe=nan_safe,
    )


def dense(
    n_q,
    n_kv=None,
):
    """Return the mask: bool [n_q, n_kv], with leading batch and heads if it depends on them."""
    return _MASK.dense(
        n_q,
        n_kv,
    )


def layout(
    n_q,
    n_kv=None,
    *,
    block=None,
    head=0,
    batch=0,
):
    """Return the live tiles of the mask at these lengths, for one head and one sequence.

    `block` is (queries, keys) per tile; by default the tile of the first kernel.
    """
    return _MASK.layout(
        n_q,
        n_kv,
        block=block,
        head=head,
        batch=batch,
    )


def explain():
    """Return what was proved about the mask, its cost, and why its kernels were chosen."""
    return _MASK.explain()
