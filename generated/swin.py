"""Windows of window x window tokens, moved by `shift` (0: not moved).

Mask: where(lambda q, k: ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64
      + 4) // 8))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
swin.cpu.c, swin.sm_80.cu, swin.sm_90a.cu, swin.sm_90a_grid.cu, swin.sm_90a_small.cu,
swin.sm_90a_backward.cu, swin.sm_90a_small_backward.cu, swin.sm_90a_grid_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "swin.cpu.c").read_text(),
    "sm_80": (_HERE / "swin.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "swin.sm_90a.cu").read_text(),
    "sm_90a_grid": (_HERE / "swin.sm_90a_grid.cu").read_text(),
    "sm_90a_small": (_HERE / "swin.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "swin.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "swin.sm_90a_small_backward.cu").read_text(),
    "sm_90a_grid_backward": (_HERE / "swin.sm_90a_grid_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

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

target   sm_80, bfloat16, head_dim 128
mask     ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64 + 4) // 8)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    15*N**2/128  (N >= 64, N a multiple of 64)
flops    forward 60*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64, 2 warps of 32 rows (each fragment of K and V serves them all), 51 KiB of
         shared memory; 64 queries a tile because rows are short: 456 consecutive keys, with the
         first 64, hold each
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops

target   sm_90a, bfloat16, head_dim 128
mask     ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64 + 4) // 8)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    15*N**2/128  (N >= 64, N a multiple of 64)
flops    forward 60*N**2, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
plan     partial tiles: pairs are tested, as a query's keys are not a few intervals
plan     or boxes of a grid, 4 x 32 queries x 4 x 24 keys of N x 64: taken by a call when the exact
         tiles of its lengths are predicted to take fewer cycles (never for data given per sequence)
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
plan     backward: or boxes of a grid, 4 x 16 queries x 4 x 32 keys of N x 64: taken by a call when
         the exact tiles of its lengths are predicted to take fewer cycles (never for data given per
         sequence)
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "swin",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q "
                "% 64 + 4) // 8)",
                tiles(
                    64,
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 59) % 64 >= 60) & (8 * ((n_kv + 315) // 512) >= ti - 3) & (64"
                            " * ti >= n_q - 4) & (ti >= 8 * ((n_kv + 315) // 512) - 4)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max(ti - (ti + 4) % 8, 0)",
                        "min((n_kv + 63) // 64 - 1, ti - (ti + 4) % 8 + 7)",
                        where=(
                            "n_q >= 64 * ti + 5"
                        ),
                        full=False,
                    ),
                    loop(
                        "max(ti - (ti + 4) % 8, 0)",
                        "min((n_kv + 59) // 64 - 1, ti - (ti + 4) % 8 + 7)",
                        where=(
                            "64 * ti >= n_q - 4"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 123) % 128 >= 124) & (4 * ((n_kv + 379) // 512) >= ti - 1) & "
                            "(ti >= 4 * ((n_kv + 379) // 512) - 2) & (128 * ti >= n_q - 4)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max(ti - (ti + 2) % 4, 0)",
                        "min((n_kv + 127) // 128 - 1, ti - (ti + 2) % 4 + 3)",
                        where=(
                            "n_q >= 128 * ti + 5"
                        ),
                        full=False,
                    ),
                    loop(
                        "max(ti - (ti + 2) % 4, 0)",
                        "min((n_kv + 123) // 128 - 1, ti - (ti + 2) % 4 + 3)",
                        where=(
                            "128 * ti >= n_q - 4"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    64,
                    128,
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 123) % 128 >= 124) & (8 * ((n_kv + 379) // 512) >= ti - 3) & "
                            "(64 * ti >= n_q - 4) & (ti >= 8 * ((n_kv + 379) // 512) - 4)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max(4 * ((ti + 4) // 8) - 2, 0)",
                        "min((n_kv + 127) // 128 - 1, 4 * ((ti + 4) // 8) + 1)",
                        where=(
                            "n_q >= 64 * ti + 5"
                        ),
                        full=False,
                    ),
                    loop(
                        "max(4 * ((ti + 4) // 8) - 2, 0)",
                        "min((n_kv + 123) // 128 - 1, 4 * ((ti + 4) // 8) + 1)",
                        where=(
                            "64 * ti >= n_q - 4"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=(),
                axes=(
                    (
                        "(k + 4) // 8 == (q + 4) // 8"
                    ),
                    (
                        "(k + 4) // 8 == (q + 4) // 8"
                    ),
                ),
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
                SOURCE["sm_90a_grid"],
                launch("attention_forward", "items", threads=384, shared=181248),
                launch("attention_merge", "merges", threads=128, per_block=16),
                launch("attention_forward", "stream", threads=384, shared=232448, feature="entmax"),
                launch(
                    "attention_forward",
                    "stream",
                    threads=384,
                    shared=214016,
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
                tile=(128, 96),
                ranges=False,
                maps=(
                    ("q", 128, (4, 32)),
                    ("k", 96, (4, 24)),
                    ("v", 96, (4, 24)),
                    ("out", 64, (2, 32)),
                ),
                work={"group_tokens": 65536, "stream_below": 40, "uneven_tiles": 21},
                row_floats=130,
                form="grid",
                costs=(("usual", 9886, 1884, 305), ("stream", 3996, 2024, 0)),
                boxes=((64,), (4, 32), (4, 24), 96),
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
            kernel(
                "sm_90a",
                SOURCE["sm_90a_grid_backward"],
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
                tile=(64, 128),
                ranges=False,
                passes=("backward",),
                maps=(
                    ("q", 64, (4, 16)),
                    ("dout", 64, (4, 16)),
                    ("k", 128, (4, 32)),
                    ("v", 128, (4, 32)),
                    ("dk", 64, (2, 32)),
                    ("dv", 64, (2, 32)),
                ),
                work={"group_tokens": 32768, "most_tiles": 256, "uneven_tiles": 16},
                row_floats=137,
                key_floats=256,
                form="grid",
                costs=(("usual", 16116, 3717, 776),),
                boxes=((64,), (4, 16), (4, 32), 64),
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
