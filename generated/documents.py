"""Each document sees itself only.

Mask: causal() & documents('doc')

Written by `maskc compile`; change the pattern, not this file. Next to it are its kernels,
documents.cpu.c, documents.sm_90a.cu, documents.sm_90a_documents.cu, documents.sm_90a_small.cu,
documents.sm_90a_backward.cu, documents.sm_90a_small_backward.cu, documents.sm_80.cu,
and documents.plan.json: how lengths become tiles, and how kernels are launched.
"""

from maskc.runtime.generated import GeneratedMask

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (doc.k[k] == doc.q[q]) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data
plan     partial tiles: bits of 1 interval per row, from the data, once for each run of equal data;
         a test per pair if there are many runs

target   sm_90a, bfloat16, head_dim 128
mask     (doc.k[k] == doc.q[q]) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 128, 2 consumer warpgroups of 64 rows and a producer, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data
plan     partial tiles of one document: bits of 1 interval per row; others: tests per pair
plan     if documents are packed, tiles of keys begin at their first tokens; with ids on a GPU,
         lists are built there and the host does not wait; the host reads arrays that differ by head
plan     or tiles of 64 x 64, a consumer warpgroup and a producer, 2 stages, 81 KiB of shared
         memory, 2 blocks per multiprocessor: used if predicted to be faster for documents of the
         length that mc.cu_seqlens(x, max_seqlen) promises
plan     backward: or tiles of 64 x 64, a consumer warpgroup and a producer, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory: used if predicted to be faster at a call's
         lengths, with typical data
plan     interleaved: where 2 to 64 query heads share keys, all heads of a query may share a tile
choice   documents of at most 512 tokens, as max_seqlen says: tiles of 64 x 64; other documents:
         tiles of 128 x 128
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
    doc,
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
        doc: ids, integer [N]; or (ids of queries, ids of keys); or mc.cu_seqlens(x).
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
        doc=doc,
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
    doc,
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
        doc=doc,
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
    doc,
):
    """Return the mask: bool [n_q, n_kv], with leading batch and heads if it depends on them."""
    return _MASK.dense(
        n_q,
        n_kv,
        doc=doc,
    )


def layout(
    n_q,
    n_kv=None,
    *,
    block=None,
    head=0,
    batch=0,
    doc,
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
        doc=doc,
    )


def explain():
    """Return what was proved about the mask, its cost, and why its kernels were chosen."""
    return _MASK.explain()
