"""The `top` best past keys by the indexer.

Mask: topk(2048, of=causal(), score='indexer', share='all')

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
dsa.cpu.c, dsa.sm_80_gather.cu, dsa.sm_80_gather_lists.cu, dsa.sm_90a_gather.cu,
dsa.sm_90a_gather_lists.cu, dsa.sm_90a_gather_wide.cu, dsa.sm_90a_gather_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import (
    GeneratedMask,
    bundle,
    data,
    kernel,
    launch,
    loop,
    mask,
    selection,
    tiles,
)

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "dsa.cpu.c").read_text(),
    "sm_80_gather": (_HERE / "dsa.sm_80_gather.cu").read_text(),
    "sm_80_gather_lists": (_HERE / "dsa.sm_80_gather_lists.cu").read_text(),
    "sm_90a_gather": (_HERE / "dsa.sm_90a_gather.cu").read_text(),
    "sm_90a_gather_lists": (_HERE / "dsa.sm_90a_gather_lists.cu").read_text(),
    "sm_90a_gather_wide": (_HERE / "dsa.sm_90a_gather_wide.cu").read_text(),
    "sm_90a_gather_backward": (_HERE / "dsa.sm_90a_gather_backward.cu").read_text(),
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

target   sm_80, bfloat16, head_dim 128
mask     (topk_44002701f734[q, k] != 0) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_44002701f734: the 2048 best keys for each query by the sum over index heads of index_w
         * relu(index_q . index_k) in fp32, all heads together, ties to the lower index; among k <=
         q + n_kv - n_q
plan     tiles of 64 heads of one query x 64 of its keys, 4 warps, 49 KiB of shared memory
plan     keys are gathered: the best 2048, listed on the device for each query; all query heads
         share a list, nothing waits for the host
plan     rows of a tile are the heads of a key/value head: below 64 the rest is padding, so one head
         takes the time of 64
plan     scores of an indexer are kept for as many queries as fit 128 MiB

target   sm_90a, bfloat16, head_dim 128
mask     (topk_44002701f734[q, k] != 0) & (k <= q + n_kv - n_q)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_44002701f734: the 2048 best keys for each query by the sum over index heads of index_w
         * relu(index_q . index_k) in fp32, all heads together, ties to the lower index; among k <=
         q + n_kv - n_q
plan     tiles of 64 heads of one query x 64 of its keys, 3 stages, 113 KiB of shared memory; or
         tiles of 128 heads of one query x 64 of its keys, 4 stages, 161 KiB of shared memory
plan     backward: tiles of 64 heads of one query x 64 of its keys, 3 stages, 146 KiB of shared
         memory; dk and dv are added up in fp32 memory
plan     keys are gathered: the best 2048, listed on the device for each query; all query heads
         share a list, nothing waits for the host
plan     rows of a tile are the heads of a key/value head: below 64 the rest is padding, so one head
         takes the time of 64; 65 to 128 take that of 128
plan     scores of an indexer are kept for as many queries as fit 128 MiB
plan     backward passes choose anew; they add up dk and dv in fp32, or, where they are to be
         deterministic, in 64-bit integers
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
                tiles(
                    128,
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
            kernel(
                "sm_80",
                SOURCE["sm_80_gather"],
                launch("attention_forward", "stream", threads=128, shared=50176, resident=2),
                tile=(64, 64),
                ranges=False,
                form="gather",
            ),
            kernel(
                "sm_80",
                SOURCE["sm_80_gather_lists"],
                launch(
                    "gather_scores",
                    "tiles",
                    threads=256,
                    shared=68096,
                    per_block=128,
                    mode="indexed_64",
                    macro="INDEXED_64",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_64",
                    macro="INDEXED_64",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=256,
                    shared=84480,
                    per_block=128,
                    macro="INDEXED_128",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    macro="INDEXED_128",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=256,
                    shared=100352,
                    per_block=128,
                    mode="indexed_256",
                    macro="INDEXED_256",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_256",
                    macro="INDEXED_256",
                ),
                tile=(1, 1),
                ranges=False,
                passes=(),
                form="gather_lists",
                gather=(('n_kv - n_q', 'n_kv - n_q'), (('True', '0', '0'),)),
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_gather"],
                launch("attention_forward", "stream", threads=256, shared=115712, resident=2),
                tile=(64, 64),
                ranges=False,
                form="gather",
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_gather_lists"],
                launch(
                    "gather_scores",
                    "tiles",
                    threads=640,
                    shared=168960,
                    per_block=256,
                    mode="indexed_64",
                    macro="INDEXED_64",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_64",
                    macro="INDEXED_64",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=640,
                    shared=201728,
                    per_block=256,
                    macro="INDEXED_128",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    macro="INDEXED_128",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=640,
                    shared=216576,
                    per_block=256,
                    mode="indexed_256",
                    macro="INDEXED_256",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_256",
                    macro="INDEXED_256",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=640,
                    shared=168960,
                    per_block=256,
                    mode="indexed_e4m3_128",
                    macro="INDEXED_E4M3_128",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_e4m3_128",
                    macro="INDEXED_E4M3_128",
                ),
                launch(
                    "gather_scores",
                    "tiles",
                    threads=640,
                    shared=201728,
                    per_block=256,
                    mode="indexed_e4m3_256",
                    macro="INDEXED_E4M3_256",
                ),
                launch(
                    "gather_lists",
                    "rows",
                    threads=512,
                    shared=65536,
                    resident=3,
                    mode="indexed_e4m3_256",
                    macro="INDEXED_E4M3_256",
                ),
                tile=(1, 1),
                ranges=False,
                passes=(),
                form="gather_lists",
                gather=(('n_kv - n_q', 'n_kv - n_q'), (('True', '0', '0'),)),
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_gather_wide"],
                launch("attention_forward", "stream", threads=384, shared=164864),
                tile=(128, 64),
                ranges=False,
                form="gather_wide",
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_gather_backward"],
                launch("attention_clear", "results", threads=256, resident=6),
                launch("attention_backward", "stream", threads=256, shared=149504),
                launch("attention_keys", "results", threads=256, resident=6),
                launch(
                    "attention_clear",
                    "results",
                    threads=256,
                    resident=6,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_seen",
                    "results",
                    threads=256,
                    resident=6,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_largest",
                    "results",
                    threads=256,
                    resident=6,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=256,
                    shared=149504,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_keys",
                    "results",
                    threads=256,
                    resident=6,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                tile=(64, 64),
                ranges=False,
                passes=("backward",),
                form="gather",
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
