"""The `top` causal keys nearest to the query; call it with normalizer="entmax".

Mask: topk(32, of=causal())

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
splash_attention.cpu.c.
"""

from pathlib import Path

from maskc.runtime.generated import (
    GeneratedMask,
    bundle,
    data,
    kernel,
    loop,
    mask,
    selection,
    tiles,
)

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "splash_attention.cpu.c").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (topk_ecb5b2ce6cf7[q, k] != 0) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_ecb5b2ce6cf7: the 32 best keys for each query by q . k in fp32, every head for itself,
         ties to the lower index; among k <= q + n_kv - n_q
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR), made at every call: what is chosen decides which live
plan     layout by counts of chosen pairs: tiles that these leave in doubt count as partial
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "splash_attention",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(topk_ecb5b2ce6cf7[q, k] != 0) & (k <= q + n_kv - n_q)",
                tiles(
                    64,
                    64,
                    numeric=True,
                ),
                shape=0,
                args=('n_kv - n_q',),
            ),
        ),
        of_head=(),
        arrays=('topk_ecb5b2ce6cf7',),
        data=(
            data('topk_ecb5b2ce6cf7', 'selection', ('topk_ecb5b2ce6cf7',), options=(1,)),
        ),
        params=(),
        kernels=(
            kernel(
                "cpu",
                SOURCE["cpu"],
                tile=(64, 64),
                ranges=False,
                passes=("forward", "backward"),
            ),
        ),
        selections=(
            selection("topk_ecb5b2ce6cf7", 32, "k <= q + n_kv - n_q"),
        ),
        report=REPORT,
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
