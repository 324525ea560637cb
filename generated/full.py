"""Every pair.

Mask: full()

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
full.cpu.c, full.sm_80.cu, full.sm_90a.cu, full.sm_90a_small.cu, full.sm_90a_backward.cu,
full.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "full.cpu.c").read_text(),
    "sm_80": (_HERE / "full.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "full.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "full.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "full.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "full.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     True
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: yes (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2  (N >= 2)
flops    forward 512*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     closed-form tile ranges: every row's live tiles are consecutive, no index memory
plan     layout from 1 closed-form loops

target   sm_80, bfloat16, head_dim 128
mask     True
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: yes (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2  (N >= 2)
flops    forward 512*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     closed-form tile ranges: every row's live tiles are consecutive, no index memory
plan     layout from 1 closed-form loops

target   sm_90a, bfloat16, head_dim 128
mask     True
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: yes (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2  (N >= 2)
flops    forward 512*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     closed-form tile ranges: every row's live tiles are consecutive, no index memory
plan     layout from 1 closed-form loops
plan     partial tiles: bits of 1 interval per row, no pair is tested
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "full",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "True",
                tiles(
                    64,
                    64,
                    loop(
                        "0",
                        "(n_kv + 63) // 64 - 1",
                        full=True,
                    ),
                ),
                tiles(
                    128,
                    64,
                    loop(
                        "0",
                        "(n_kv + 63) // 64 - 1",
                        full=True,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 1",
                        full=True,
                    ),
                ),
                tiles(
                    64,
                    128,
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 1",
                        full=True,
                    ),
                ),
                shape=0,
                args=(),
            ),
        ),
        of_head=(),
        arrays=(),
        data=(
        ),
        params=(),
        kernels=(
            kernel(
                "cpu",
                SOURCE["cpu"],
                tile=(64, 64),
                ranges=True,
                passes=("forward", "backward"),
            ),
            kernel(
                "sm_80",
                SOURCE["sm_80"],
                launch("attention_forward", "rows", threads=128, shared=70656),
                tile=(128, 64),
                ranges=True,
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
                ranges=True,
                maps=(("q", 128), ("k", 128), ("v", 128), ("out", 64)),
                work={"group_tokens": 65536, "stream_below": 40, "uneven_tiles": 16},
                row_floats=130,
                costs=(("usual", 9886, 2442, 395), ("stream", 3996, 2624, 0)),
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
                ranges=True,
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
                ranges=True,
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
                launch(
                    "attention_backward_rows",
                    "stream",
                    threads=256,
                    shared=115712,
                    resident=2,
                    mode="apart",
                    macro="APART",
                ),
                launch(
                    "attention_backward",
                    "stream",
                    threads=256,
                    shared=109056,
                    resident=2,
                    mode="apart",
                    macro="APART",
                ),
                launch(
                    "attention_backward_finish_keys",
                    "keys",
                    threads=256,
                    per_block=16,
                    mode="apart",
                    macro="APART",
                ),
                tile=(64, 64),
                ranges=True,
                passes=("backward",),
                maps=(
                    ("q", 64),
                    ("dout", 64),
                    ("k", 64),
                    ("v", 64),
                    ("dk", 64),
                    ("dv", 64),
                    ("out", 64),
                ),
                work={"group_tokens": 32768, "most_tiles": 256, "uneven_tiles": 8, "resident": 2},
                row_floats=137,
                key_floats=256,
                form="small",
                costs=(
                    ("usual", 9614, 2336, 1),
                    ("once", 4569, 2336, 1),
                    ("apart", 6500, 2200, 900),
                ),
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
