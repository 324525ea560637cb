"""Whole tiles around the query's own; by default of 6 x 8 x 8 in a 30 x 48 x 80 video.

Mask: where(lambda q, k: (max(max(min((q // 384) // 60, 3), 1) - (k // 384) // 60, (k // 384) // 60
      - max(min((q // 384) // 60, 3), 1)) < 2) & (max(((k // 384) // 10) % 6 - max(min(((q // 384)
      // 10) % 6, 4), 1), max(min(((q // 384) // 10) % 6, 4), 1) - ((k // 384) // 10) % 6) < 2) &
      (max((k // 384) % 10 - max(min((q // 384) % 10, 8), 1), max(min((q // 384) % 10, 8), 1) - (k
      // 384) % 10) < 2))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
sta.cpu.c, sta.sm_80.cu, sta.sm_90a.cu, sta.sm_90a_small.cu, sta.sm_90a_backward.cu,
sta.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "sta.cpu.c").read_text(),
    "sm_80": (_HERE / "sta.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "sta.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "sta.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "sta.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "sta.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (max(max(min((q // 384) // 60, 3), 1) - (k // 384) // 60, (k // 384) // 60 - max(min((q //
         384) // 60, 3), 1)) < 2) & (max(((k // 384) // 10) % 6 - max(min(((q // 384) // 10) % 6,
         4), 1), max(min(((q // 384) // 10) % 6, 4), 1) - ((k // 384) // 10) % 6) < 2) & (max((k //
         384) % 10 - max(min((q // 384) % 10, 8), 1), max(min((q // 384) % 10, 8), 1) - (k // 384) %
         10) < 2)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout by exact numbers, because isl's budget or loop form did not suffice

target   sm_80, bfloat16, head_dim 128
mask     (max(max(min((q // 384) // 60, 3), 1) - (k // 384) // 60, (k // 384) // 60 - max(min((q //
         384) // 60, 3), 1)) < 2) & (max(((k // 384) // 10) % 6 - max(min(((q // 384) // 10) % 6,
         4), 1), max(min(((q // 384) // 10) % 6, 4), 1) - ((k // 384) // 10) % 6) < 2) & (max((k //
         384) % 10 - max(min((q // 384) % 10, 8), 1), max(min((q // 384) % 10, 8), 1) - (k // 384) %
         10) < 2)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout by exact numbers, because isl's budget or loop form did not suffice

target   sm_90a, bfloat16, head_dim 128
mask     (max(max(min((q // 384) // 60, 3), 1) - (k // 384) // 60, (k // 384) // 60 - max(min((q //
         384) // 60, 3), 1)) < 2) & (max(((k // 384) // 10) % 6 - max(min(((q // 384) // 10) % 6,
         4), 1), max(min(((q // 384) // 10) % 6, 4), 1) - ((k // 384) // 10) % 6) < 2) & (max((k //
         384) % 10 - max(min((q // 384) % 10, 8), 1), max(min((q // 384) % 10, 8), 1) - (k // 384) %
         10) < 2)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout by exact numbers, because isl's budget or loop form did not suffice
plan     partial tiles: pairs are tested, one for 128 keys, as a query's keys are not a few
         intervals
plan     a product over a grid of N x 10 x 384: tiles of consecutive tokens are as good as boxes
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
        "sta",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(max(max(min((q // 384) // 60, 3), 1) - (k // 384) // 60, (k // 384) "
                "// 60 - max(min((q // 384) // 60, 3), 1)) < 2) & (max(((k // 384) // "
                "10) % 6 - max(min(((q // 384) // 10) % 6, 4), 1), max(min(((q // 384) "
                "// 10) % 6, 4), 1) - ((k // 384) // 10) % 6) < 2) & (max((k // 384) % "
                "10 - max(min((q // 384) % 10, 8), 1), max(min((q // 384) % 10, 8), 1) "
                "- (k // 384) % 10) < 2)",
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
                args=('1', '1', '1'),
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
                ranges=False,
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
