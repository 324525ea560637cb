"""The first and the last blocks, and the best blocks between them.

Mask: causal() & (prefix(64) | where(lambda q, k: k // 64 >= (q + n_kv - n_q) // 64 - 1)) | topk(13,
      of=causal() - (causal() & (prefix(64) | where(lambda q, k: k // 64 >= (q + n_kv - n_q) // 64 -
      1))), score='given', block=64, share='group')

Written by `maskc compile`; change the pattern, not this file. Next to it are its kernels,
nsa_selected.cpu.c, nsa_selected.sm_90a.cu, nsa_selected.sm_90a_selections.cu,
nsa_selected.sm_90a_small.cu, nsa_selected.sm_90a_backward.cu,
nsa_selected.sm_90a_small_backward.cu, nsa_selected.sm_80.cu,
and nsa_selected.plan.json: how lengths become tiles, and how kernels are launched.
"""

from maskc.runtime.generated import GeneratedMask

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (((k // 64 >= (q + n_kv - n_q) // 64 - 1) | (k < 64)) & (k <= q + n_kv - n_q)) |
         ((topk_436d8904dfd3[q, k // 64] != 0) & (k <= q + n_kv - n_q))
piece    band: (k <= q + n_kv - n_q) & (q <= 64 * (k // 64) + n_q - n_kv + 127)
piece    columns: (q >= n_q - n_kv + 128) & (k < 64)
piece    selection: (topk_436d8904dfd3[q, k // 64] != 0) & (q >= 64 * (k // 64) + n_q - n_kv + 128)
         & (k >= 64)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_436d8904dfd3: the 13 best blocks of 64 keys for each query by scores in fp32, the
         heads of a key/value head together, ties to the lower index; among ((q + n_kv - n_q) // 64
         >= k // 64 + 2) & (k >= 64) & (k <= q + n_kv - n_q)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR), built at every call: the selection decides what is live
plan     layout by counts of chosen pairs: undecided tiles count as partial
plan     partial tiles: test each pair, because a query's keys are not a few intervals

target   sm_90a, bfloat16, head_dim 128
mask     (((k // 64 >= (q + n_kv - n_q) // 64 - 1) | (k < 64)) & (k <= q + n_kv - n_q)) |
         ((topk_436d8904dfd3[q, k // 64] != 0) & (k <= q + n_kv - n_q))
piece    band: (k <= q + n_kv - n_q) & (q <= 64 * (k // 64) + n_q - n_kv + 127)
piece    columns: (q >= n_q - n_kv + 128) & (k < 64)
piece    selection: (topk_436d8904dfd3[q, k // 64] != 0) & (q >= 64 * (k // 64) + n_q - n_kv + 128)
         & (k >= 64)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_436d8904dfd3: the 13 best blocks of 64 keys for each query by scores in fp32, the
         heads of a key/value head together, ties to the lower index; among ((q + n_kv - n_q) // 64
         >= k // 64 + 2) & (k >= 64) & (k <= q + n_kv - n_q)
plan     tiles of 128 x 128, 2 consumer warpgroups of 64 rows and a producer, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR), built at every call: the selection decides what is live
plan     layout by counts of chosen pairs: undecided tiles count as partial
plan     partial tiles: bits of 3 intervals per row and of the chosen blocks, no test per pair
plan     the GPU chooses blocks and builds tile lists in the call's own memory, and the host does
         not wait; with nan_safe, entmax, or scores in host memory, the host chooses and waits
plan     or tiles of 64 x 64, a consumer warpgroup and a producer, 2 stages, 81 KiB of shared
         memory, 2 blocks per multiprocessor: used if predicted to be faster at a call's lengths,
         with typical data
plan     backward: or tiles of 64 x 64, a consumer warpgroup and a producer, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory: used if predicted to be faster at a call's
         lengths, with typical data
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
    scores,
    scale=None,
    return_lse=False,
    softcap=None,
    alibi_slopes=None,
    sink_logits=None,
    normalizer="softmax",
    alpha=None,
    nan_safe=False,
    deterministic=False,
    return_selection=False,
    indexer_loss=False,
):
    """softmax(scale * q k^T, restricted to the mask) v, on the device of q.

    Args:
        q: [B, Hq, Nq, 128], bfloat16; torch, CuPy, NumPy or DLPack.
        k, v: [B, Hkv, Nkv, 128] and [B, Hkv, Nkv, 128].
        scores: floating-point [n_q, n_kv], [heads, n_q, n_kv] or [batch, heads, n_q, n_kv], or as
            many per block of queries and of keys.
        scale: factor of q . k; D^-1/2 when None.
        return_lse: also return the log-sum-exp of every row.
        softcap: scores become softcap * tanh(score / softcap) first; > 0.
        alibi_slopes: fp32 [Hq]; -slope * |distance| joins the scores.
        sink_logits: fp32 [Hq]; one more logit per head in the denominator.
        normalizer: "softmax", or "entmax" with alpha from 1 to 2 (1.5 when None).
        nan_safe: on GPUs, non-finite rows of v reach only queries that see them, at a price.
        deterministic: gradients of torch tensors have the same bits on every run.
        return_selection: also return what was chosen, int32 [B, heads, query blocks, width].
        indexer_loss: also return what trains the ranking of torch tensors, fp32 [B, Nq].

    Returns:
        out [B, Hq, Nq, 128], or (out, lse) with lse fp32 [B, Hq, Nq], natural log.
    """
    return _MASK.attention(
        q,
        k,
        v,
        scores=scores,
        scale=scale,
        return_lse=return_lse,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sink_logits=sink_logits,
        normalizer=normalizer,
        alpha=alpha,
        nan_safe=nan_safe,
        deterministic=deterministic,
        return_selection=return_selection,
        indexer_loss=indexer_loss,
    )


def backward(
    q,
    k,
    v,
    out,
    lse,
    dout,
    *,
    scores,
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
        scores=scores,
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
    *,
    scores=None,
    n_heads=None,
    heads_kv=None,
):
    """Return the mask: bool [n_q, n_kv], with leading batch and heads if it depends on them."""
    return _MASK.dense(
        n_q,
        n_kv,
        scores=scores,
        n_heads=n_heads,
        heads_kv=heads_kv,
    )


def layout(
    n_q,
    n_kv=None,
    *,
    block=None,
    head=0,
    batch=0,
    scores=None,
    n_heads=None,
    heads_kv=None,
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
        scores=scores,
        n_heads=n_heads,
        heads_kv=heads_kv,
    )


def explain():
    """Return what was proved about the mask, its cost, and why its kernels were chosen."""
    return _MASK.explain()
