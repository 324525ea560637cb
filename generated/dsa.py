"""The `top` best past keys by the indexer.

Mask: topk(2048, of=causal(), score='indexer', share='all')

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
dsa.cpu.c.
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
    "cpu": (_HERE / "dsa.cpu.c").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (topk_44002701f734[q, k] != 0) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_44002701f734: the 2048 best keys for each query by the sum over index heads of index_w
         * relu(index_q . index_k) in fp32, all heads together, ties to the lower index; among k <=
         q + n_kv - n_q
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR), made at every call: what is chosen decides which live
plan     layout by counts of chosen pairs: tiles that these leave in doubt count as partial
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "dsa",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(topk_44002701f734[q, k] != 0) & (k <= q + n_kv - n_q)",
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
        arrays=('topk_44002701f734',),
        data=(
            data('index_k', 'scoring', ()),
            data('index_q', 'scoring', ()),
            data('index_w', 'scoring', ()),
            data('topk_44002701f734', 'selection', ('topk_44002701f734',), options=(1,)),
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
            selection(
                "topk_44002701f734",
                2048,
                "k <= q + n_kv - n_q",
                score="indexer",
                share="all",
            ),
        ),
        report=REPORT,
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
