"""BigBird-ITC and `n_global` global tokens in front.

Mask: where(lambda q, k: ((q + n_kv - n_q) // 64 == 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k //
      64 + 1) | ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q)
      // 64, (q + n_kv - n_q) // 64 - k // 64) < 2)) | random_blocks(64, 3, 0) | global_tokens(64)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
bigbird_etc.cpu.c, bigbird_etc.sm_80.cu, bigbird_etc.sm_90a.cu, bigbird_etc.sm_90a_small.cu,
bigbird_etc.sm_90a_backward.cu, bigbird_etc.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "bigbird_etc.cpu.c").read_text(),
    "sm_80": (_HERE / "bigbird_etc.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "bigbird_etc.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "bigbird_etc.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "bigbird_etc.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "bigbird_etc.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] != 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) |
         ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64,
         (q + n_kv - n_q) // 64 - k // 64) < 2)
piece    band: ((k < 64 * ((q + n_kv - n_q) // 64)) & (k >= 64 * ((q + n_kv - n_q) // 64) - 64)) |
         ((q <= 64 * (k // 64) + n_q - n_kv + 63) & (q >= 64 * (k // 64) + n_q - n_kv - 64))
piece    columns: (((q >= 64 * (k // 64) + n_q - n_kv + 64) | (q <= 64 * (k // 64) + n_q - n_kv -
         65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65) | (k >= 64 * ((q + n_kv - n_q) // 64))) &
         (k < 64)) | ((q <= 64 * (k // 64) + n_q - n_kv - 65) & (k >= 64 * ((n_kv + 63) // 64) -
         64))
piece    rows: ((k >= 128) & (k <= 64 * ((n_kv + 63) // 64) - 65) & (q >= n_q - n_kv) & (q <= n_q -
         n_kv + 63)) | ((k >= 64) & (k <= 64 * ((q + n_kv - n_q) // 64) - 65) & (q >= n_q - (n_kv +
         63) % 64 - 1))
piece    table: ((q < n_q - n_kv) | (q >= n_q - n_kv + 64)) & ((q >= 64 * (k // 64) + n_q - n_kv +
         64) | (q <= 64 * (k // 64) + n_q - n_kv - 65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65)
         | (k >= 64 * ((q + n_kv - n_q) // 64))) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv -
         n_q) // 64, k // 64] != 0) & (q <= n_q - (n_kv + 63) % 64 - 2) & (k >= 64) & (k <= 64 *
         ((n_kv + 63) // 64) - 65)
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data

target   sm_80, bfloat16, head_dim 128
mask     ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] != 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) |
         ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64,
         (q + n_kv - n_q) // 64 - k // 64) < 2)
piece    band: ((k < 64 * ((q + n_kv - n_q) // 64)) & (k >= 64 * ((q + n_kv - n_q) // 64) - 64)) |
         ((q <= 64 * (k // 64) + n_q - n_kv + 63) & (q >= 64 * (k // 64) + n_q - n_kv - 64))
piece    columns: (((q >= 64 * (k // 64) + n_q - n_kv + 64) | (q <= 64 * (k // 64) + n_q - n_kv -
         65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65) | (k >= 64 * ((q + n_kv - n_q) // 64))) &
         (k < 64)) | ((q <= 64 * (k // 64) + n_q - n_kv - 65) & (k >= 64 * ((n_kv + 63) // 64) -
         64))
piece    rows: ((k >= 128) & (k <= 64 * ((n_kv + 63) // 64) - 65) & (q >= n_q - n_kv) & (q <= n_q -
         n_kv + 63)) | ((k >= 64) & (k <= 64 * ((q + n_kv - n_q) // 64) - 65) & (q >= n_q - (n_kv +
         63) % 64 - 1))
piece    table: ((q < n_q - n_kv) | (q >= n_q - n_kv + 64)) & ((q >= 64 * (k // 64) + n_q - n_kv +
         64) | (q <= 64 * (k // 64) + n_q - n_kv - 65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65)
         | (k >= 64 * ((q + n_kv - n_q) // 64))) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv -
         n_q) // 64, k // 64] != 0) & (q <= n_q - (n_kv + 63) % 64 - 2) & (k >= 64) & (k <= 64 *
         ((n_kv + 63) // 64) - 65)
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64, 2 warps of 32 rows (each fragment of K and V serves them all), 51 KiB of
         shared memory; 64 queries a tile because every block of 64 x 64 is wholly live or wholly
         dead
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data

target   sm_90a, bfloat16, head_dim 128
mask     ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] != 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) |
         ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64,
         (q + n_kv - n_q) // 64 - k // 64) < 2)
piece    band: ((k < 64 * ((q + n_kv - n_q) // 64)) & (k >= 64 * ((q + n_kv - n_q) // 64) - 64)) |
         ((q <= 64 * (k // 64) + n_q - n_kv + 63) & (q >= 64 * (k // 64) + n_q - n_kv - 64))
piece    columns: (((q >= 64 * (k // 64) + n_q - n_kv + 64) | (q <= 64 * (k // 64) + n_q - n_kv -
         65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65) | (k >= 64 * ((q + n_kv - n_q) // 64))) &
         (k < 64)) | ((q <= 64 * (k // 64) + n_q - n_kv - 65) & (k >= 64 * ((n_kv + 63) // 64) -
         64))
piece    rows: ((k >= 128) & (k <= 64 * ((n_kv + 63) // 64) - 65) & (q >= n_q - n_kv) & (q <= n_q -
         n_kv + 63)) | ((k >= 64) & (k <= 64 * ((q + n_kv - n_q) // 64) - 65) & (q >= n_q - (n_kv +
         63) % 64 - 1))
piece    table: ((q < n_q - n_kv) | (q >= n_q - n_kv + 64)) & ((q >= 64 * (k // 64) + n_q - n_kv +
         64) | (q <= 64 * (k // 64) + n_q - n_kv - 65)) & ((k <= 64 * ((q + n_kv - n_q) // 64) - 65)
         | (k >= 64 * ((q + n_kv - n_q) // 64))) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv -
         n_q) // 64, k // 64] != 0) & (q <= n_q - (n_kv + 63) % 64 - 2) & (k >= 64) & (k <= 64 *
         ((n_kv + 63) // 64) - 65)
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data
plan     partial tiles: pairs are tested, one for 64 keys, as a query's keys are not a few intervals
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
        "bigbird_etc",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (random_64_3_0[(q + "
                "n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] != 0) | (k // 64 == "
                "0) | ((n_kv + 63) // 64 == k // 64 + 1) | ((q + n_kv - n_q) // 64 == "
                "(n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64, (q + "
                "n_kv - n_q) // 64 - k // 64) < 2)",
                tiles(
                    64,
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
                args=(
                    'n_q - n_kv + 63',
                    'n_kv - n_q',
                    '-((n_kv - n_q) // 64)',
                    '(n_kv + 63) // 64 - 1',
                    '-((n_kv + 63) // 64) + 1',
                    '1',
                ),
            ),
        ),
        of_head=(),
        arrays=('random_64_3_0',),
        data=(
            data('random_64_3_0', 'random', ('random_64_3_0',), block=64, options=(3, 0, 1)),
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
                launch("attention_forward", "rows", threads=64, shared=52224),
                tile=(64, 64),
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
