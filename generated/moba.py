"""The current block, causal, and the best `top` - 1 before it.

Mask: chunked(512) | topk(2, of=where(lambda q, k: (q + n_kv - n_q) // 512 > k // 512),
      score='block_mean', block=512)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
moba.cpu.c, moba.sm_80.cu, moba.sm_80_selections.cu, moba.sm_90a.cu, moba.sm_90a_selections.cu,
moba.sm_90a_small.cu, moba.sm_90a_backward.cu, moba.sm_90a_small_backward.cu.
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
    "cpu": (_HERE / "moba.cpu.c").read_text(),
    "sm_80": (_HERE / "moba.sm_80.cu").read_text(),
    "sm_80_selections": (_HERE / "moba.sm_80_selections.cu").read_text(),
    "sm_90a": (_HERE / "moba.sm_90a.cu").read_text(),
    "sm_90a_selections": (_HERE / "moba.sm_90a_selections.cu").read_text(),
    "sm_90a_small": (_HERE / "moba.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "moba.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "moba.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)) | (((q +
         n_kv - n_q) // 512 == k // 512) & (k <= q + n_kv - n_q))
piece    band: (k >= 512 * ((q + n_kv - n_q) // 512)) & (k <= q + n_kv - n_q)
piece    selection: (topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_41f21d713b8c: the 2 best blocks of 512 keys for each query by mean q . mean k in fp32,
         every head for itself, ties to the lower index; among (q + n_kv - n_q) // 512 > k // 512
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR), made at every call: what is chosen decides which live
plan     layout by counts of chosen pairs: tiles that these leave in doubt count as partial

target   sm_80, bfloat16, head_dim 128
mask     ((topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)) | (((q +
         n_kv - n_q) // 512 == k // 512) & (k <= q + n_kv - n_q))
piece    band: (k >= 512 * ((q + n_kv - n_q) // 512)) & (k <= q + n_kv - n_q)
piece    selection: (topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_41f21d713b8c: the 2 best blocks of 512 keys for each query by mean q . mean k in fp32,
         every head for itself, ties to the lower index; among (q + n_kv - n_q) // 512 > k // 512
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR), made at every call: what is chosen decides which live
plan     layout by counts of chosen pairs: tiles that these leave in doubt count as partial
plan     blocks are chosen and tile lists made on the device, in the call's own memory, and nothing
         waits; on the host, which waits, with nan_safe or entmax, and where scores are given
         elsewhere

target   sm_90a, bfloat16, head_dim 128
mask     ((topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)) | (((q +
         n_kv - n_q) // 512 == k // 512) & (k <= q + n_kv - n_q))
piece    band: (k >= 512 * ((q + n_kv - n_q) // 512)) & (k <= q + n_kv - n_q)
piece    selection: (topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k // 512)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
chosen   topk_41f21d713b8c: the 2 best blocks of 512 keys for each query by mean q . mean k in fp32,
         every head for itself, ties to the lower index; among (q + n_kv - n_q) // 512 > k // 512
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR), made at every call: what is chosen decides which live
plan     layout by counts of chosen pairs: tiles that these leave in doubt count as partial
plan     partial tiles: bits of 2 intervals per row and of the chosen blocks, no pair is tested
plan     blocks are chosen and tile lists made on the device, in the call's own memory, and nothing
         waits; on the host, which waits, with nan_safe or entmax, and where scores are given
         elsewhere
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory: taken by a call when the exact tiles of its
         lengths are predicted to take fewer cycles (never for data given per sequence)
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "moba",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((topk_41f21d713b8c[q, k // 512] != 0) & ((q + n_kv - n_q) // 512 > k "
                "// 512)) | (((q + n_kv - n_q) // 512 == k // 512) & (k <= q + n_kv - "
                "n_q))",
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
                tiles(
                    128,
                    128,
                    numeric=True,
                ),
                tiles(
                    64,
                    128,
                    numeric=True,
                ),
                shape=0,
                args=('n_kv - n_q', '-1'),
            ),
        ),
        of_head=(),
        arrays=('topk_41f21d713b8c',),
        data=(
            data('topk_41f21d713b8c', 'selection', ('topk_41f21d713b8c',), block=512, options=(1,)),
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
                SOURCE["sm_80"],
                launch("attention_forward", "rows", threads=128, shared=70656),
                tile=(128, 64),
                ranges=False,
            ),
            kernel(
                "sm_80",
                SOURCE["sm_80_selections"],
                launch("select_join", "keys", threads=128),
                launch("select_blocks", "queries", threads=128, shared=101376),
                launch("select_tiles", "rows", threads=128),
                launch("select_counts", "lists", threads=128),
                launch("select_lists", "lists", threads=128),
                launch("select_items", "items", threads=128, per_block=1024),
                tile=(1, 1),
                ranges=False,
                passes=(),
                form="selections",
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a"],
                launch("attention_forward", "items", threads=384, shared=164864),
                launch("attention_merge", "merges", threads=128, per_block=16),
                launch("attention_forward", "stream", threads=384, shared=230400, feature="entmax"),
                launch(
                    "attention_forward",
                    "stream",
                    threads=384,
                    shared=197632,
                    mode="stream",
                    macro="STREAM",
                ),
                launch(
                    "attention_merge",
                    "merges",
                    threads=128,
                    per_block=16,
                    mode="stream",
                    macro="STREAM",
                ),
                launch(
                    "attention_forward",
                    "items",
                    threads=384,
                    shared=164864,
                    mode="packed",
                    macro="PACKED",
                ),
                launch(
                    "attention_merge",
                    "merges",
                    threads=128,
                    per_block=16,
                    mode="packed",
                    macro="PACKED",
                ),
                tile=(128, 128),
                ranges=False,
                maps=(("q", 128), ("k", 128), ("v", 128), ("out", 64)),
                work={"group_tokens": 65536, "stream_below": 40, "uneven_tiles": 16},
                row_floats=130,
                costs=(("usual", 9886, 2442, 395), ("stream", 3996, 2624, 0)),
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_selections"],
                launch("select_join", "keys", threads=128),
                launch("select_blocks", "queries", threads=128, shared=232448),
                launch("select_tiles", "rows", threads=128),
                launch("select_counts", "lists", threads=128),
                launch("select_lists", "lists", threads=128),
                launch("select_items", "items", threads=128, per_block=1024),
                tile=(1, 1),
                ranges=False,
                passes=(),
                form="selections",
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_small"],
                launch("attention_forward", "items", threads=256, shared=82944, resident=2),
                launch("attention_merge", "merges", threads=128, per_block=16),
                launch(
                    "attention_forward",
                    "stream",
                    threads=256,
                    shared=99328,
                    resident=2,
                    mode="stream",
                    macro="STREAM",
                ),
                launch(
                    "attention_merge",
                    "merges",
                    threads=128,
                    per_block=16,
                    mode="stream",
                    macro="STREAM",
                ),
                launch(
                    "attention_forward",
                    "items",
                    threads=256,
                    shared=82944,
                    resident=2,
                    mode="packed",
                    macro="PACKED",
                ),
                launch(
                    "attention_merge",
                    "merges",
                    threads=128,
                    per_block=16,
                    mode="packed",
                    macro="PACKED",
                ),
                tile=(64, 64),
                ranges=False,
                maps=(("q", 64), ("k", 64), ("v", 64), ("out", 64)),
                work={"group_tokens": 65536, "stream_below": 40, "uneven_tiles": 32},
                row_floats=130,
                form="small",
                costs=(("usual", 4027, 740, 0), ("stream", 2141, 772, 0)),
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_backward"],
                launch("attention_backward_prepare", "queries", threads=256, per_block=64),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=384,
                    shared=207616,
                    per_block=64,
                    feature="entmax",
                ),
                launch("attention_backward", "stream", threads=384, shared=207616),
                launch("attention_backward_finish", "queries", threads=256, per_block=64),
                launch("attention_backward_finish_keys", "keys", threads=256, per_block=16),
                launch(
                    "attention_backward_prepare",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=384,
                    shared=199168,
                    per_block=64,
                    feature="entmax",
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=384,
                    shared=199168,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_finish",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_finish_keys",
                    "keys",
                    threads=256,
                    per_block=16,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_prepare",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=384,
                    shared=166400,
                    per_block=64,
                    feature="entmax",
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=384,
                    shared=166400,
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward_finish_keys",
                    "keys",
                    threads=256,
                    per_block=16,
                    mode="once",
                    macro="ONCE",
                ),
                tile=(64, 128),
                ranges=False,
                passes=("backward",),
                maps=(("q", 64), ("dout", 64), ("k", 128), ("v", 128), ("dk", 64), ("dv", 64)),
                work={"group_tokens": 32768, "most_tiles": 256, "uneven_tiles": 16},
                row_floats=137,
                key_floats=256,
                costs=(("usual", 16116, 3717, 776), ("once", 7655, 3717, 776)),
            ),
            kernel(
                "sm_90a",
                SOURCE["sm_90a_small_backward"],
                launch("attention_backward_prepare", "queries", threads=256, per_block=64),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=256,
                    shared=109056,
                    per_block=64,
                    feature="entmax",
                ),
                launch("attention_backward", "stream", threads=256, shared=109056, resident=2),
                launch("attention_backward_finish", "queries", threads=256, per_block=64),
                launch("attention_backward_finish_keys", "keys", threads=256, per_block=16),
                launch(
                    "attention_backward_prepare",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=256,
                    shared=109056,
                    per_block=64,
                    feature="entmax",
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=256,
                    shared=109056,
                    resident=2,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_finish",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_finish_keys",
                    "keys",
                    threads=256,
                    per_block=16,
                    mode="deterministic",
                    macro="DETERMINISTIC",
                ),
                launch(
                    "attention_backward_prepare",
                    "queries",
                    threads=256,
                    per_block=64,
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward_mean",
                    "queries",
                    threads=256,
                    shared=109056,
                    per_block=64,
                    feature="entmax",
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=256,
                    shared=109056,
                    resident=2,
                    mode="once",
                    macro="ONCE",
                ),
                launch(
                    "attention_backward_finish_keys",
                    "keys",
                    threads=256,
                    per_block=16,
                    mode="once",
                    macro="ONCE",
                ),
                tile=(64, 64),
                ranges=False,
                passes=("backward",),
                maps=(("q", 64), ("dout", 64), ("k", 64), ("v", 64), ("dk", 64), ("dv", 64)),
                work={"group_tokens": 32768, "most_tiles": 256, "uneven_tiles": 8, "resident": 2},
                row_floats=137,
                key_floats=256,
                form="small",
                costs=(("usual", 9614, 2336, 1), ("once", 4569, 2336, 1)),
            ),
        ),
        selections=(
            selection(
                "topk_41f21d713b8c",
                2,
                "(q + n_kv - n_q) // 512 > k // 512",
                score="block_mean",
                block=512,
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
