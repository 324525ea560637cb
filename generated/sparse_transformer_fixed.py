"""The query's own block, and the last `summary` keys of every earlier one.

Mask: chunked(128) | causal() & where(lambda q, k: k % 128 >= 120)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
sparse_transformer_fixed.cpu.c, sparse_transformer_fixed.sm_80.cu,
sparse_transformer_fixed.sm_90a.cu, sparse_transformer_fixed.sm_90a_small.cu,
sparse_transformer_fixed.sm_90a_backward.cu, sparse_transformer_fixed.sm_90a_small_backward.cu,
sparse_transformer_fixed.part0.cpu.c, sparse_transformer_fixed.part0.sm_80.cu,
sparse_transformer_fixed.part0.sm_90a.cu, sparse_transformer_fixed.part0.sm_90a_small.cu,
sparse_transformer_fixed.part0.sm_90a_backward.cu,
sparse_transformer_fixed.part0.sm_90a_small_backward.cu, sparse_transformer_fixed.part1.cpu.c,
sparse_transformer_fixed.part1.sm_80.cu, sparse_transformer_fixed.part1.sm_90a.cu,
sparse_transformer_fixed.part1.sm_90a_small.cu, sparse_transformer_fixed.part1.sm_90a_backward.cu,
sparse_transformer_fixed.part1.sm_90a_small_backward.cu.
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
    part,
    tiles,
)

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "sparse_transformer_fixed.cpu.c").read_text(),
    "sm_80": (_HERE / "sparse_transformer_fixed.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "sparse_transformer_fixed.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "sparse_transformer_fixed.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "sparse_transformer_fixed.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "sparse_transformer_fixed.sm_90a_small_backward.cu").read_text(),
    "part0.cpu": (_HERE / "sparse_transformer_fixed.part0.cpu.c").read_text(),
    "part0.sm_80": (_HERE / "sparse_transformer_fixed.part0.sm_80.cu").read_text(),
    "part0.sm_90a": (_HERE / "sparse_transformer_fixed.part0.sm_90a.cu").read_text(),
    "part0.sm_90a_small": (_HERE / "sparse_transformer_fixed.part0.sm_90a_small.cu").read_text(),
    "part0.sm_90a_backward": (_HERE / "sparse_transformer_fixed.part0.sm_90a_backward.cu").read_text(),
    "part0.sm_90a_small_backward": (_HERE / "sparse_transformer_fixed.part0.sm_90a_small_backward.cu").read_text(),
    "part1.cpu": (_HERE / "sparse_transformer_fixed.part1.cpu.c").read_text(),
    "part1.sm_80": (_HERE / "sparse_transformer_fixed.part1.sm_80.cu").read_text(),
    "part1.sm_90a": (_HERE / "sparse_transformer_fixed.part1.sm_90a.cu").read_text(),
    "part1.sm_90a_small": (_HERE / "sparse_transformer_fixed.part1.sm_90a_small.cu").read_text(),
    "part1.sm_90a_backward": (_HERE / "sparse_transformer_fixed.part1.sm_90a_backward.cu").read_text(),
    "part1.sm_90a_small_backward": (_HERE / "sparse_transformer_fixed.part1.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (((q + n_kv - n_q) // 128 == k // 128) & (k <= q + n_kv - n_q)) | ((k % 128 >= 120) & (k <=
         q + n_kv - n_q))
piece    band: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q)
piece    lattice: (k < 128 * ((q + n_kv - n_q) // 128)) & (k % 128 >= 120)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/32 + 121*N/2  (N >= 256, N a multiple of 128)
flops    forward 16*N**2 + 30976*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 4 closed-form loops where n_q = n_kv, else by exact numbers
part     tokens as they are: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q); tiles
         of 64 x 64, tile lists in memory
part     keys 120, 248, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 121, 249, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 122, 250, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 123, 251, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 124, 252, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 125, 253, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 126, 254, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 127, 255, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_80, bfloat16, head_dim 128
mask     (((q + n_kv - n_q) // 128 == k // 128) & (k <= q + n_kv - n_q)) | ((k % 128 >= 120) & (k <=
         q + n_kv - n_q))
piece    band: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q)
piece    lattice: (k < 128 * ((q + n_kv - n_q) // 128)) & (k % 128 >= 120)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/32 + 121*N/2  (N >= 256, N a multiple of 128)
flops    forward 16*N**2 + 30976*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout by exact numbers, because isl's budget or loop form did not suffice
part     tokens as they are: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q); tiles
         of 64 x 64, tile lists in memory
part     keys 120, 248, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 121, 249, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 122, 250, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 123, 251, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 124, 252, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 125, 253, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 126, 254, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
part     keys 127, 255, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 64 x
         64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_90a, bfloat16, head_dim 128
mask     (((q + n_kv - n_q) // 128 == k // 128) & (k <= q + n_kv - n_q)) | ((k % 128 >= 120) & (k <=
         q + n_kv - n_q))
piece    band: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q)
piece    lattice: (k < 128 * ((q + n_kv - n_q) // 128)) & (k % 128 >= 120)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/32 + 121*N/2  (N >= 256, N a multiple of 128)
flops    forward 16*N**2 + 30976*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
plan     partial tiles: pairs are tested, as a query's keys are not a few intervals
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
part     tokens as they are: (k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q); tiles
         of 128 x 128, tile lists in memory
part     keys 120, 248, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 121, 249, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 122, 250, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 123, 251, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 124, 252, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 125, 253, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 126, 254, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
part     keys 127, 255, ... as k = 0, 1, ...: q >= 128 * k + n_q - n_kv_of_all + 128; tiles of 128 x
         128, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "sparse_transformer_fixed",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(((q + n_kv - n_q) // 128 == k // 128) & (k <= q + n_kv - n_q)) | ((k "
                "% 128 >= 120) & (k <= q + n_kv - n_q))",
                tiles(
                    64,
                    64,
                    loop(
                        "2 * ((n_q + 127) // 128) - 2",
                        "(n_q + 63) // 64 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & (n_kv == n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti - 1",
                        "ti - 1",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv != n_q)) & ((ti + 1) % 2 == 0) & (n_kv "
                            "== n_q) & (n_q >= 64 * ti + 2)"
                        ),
                        full=True,
                    ),
                    loop(
                        "1",
                        "ti - ti % 2 - 1",
                        where=(
                            "n_kv == n_q"
                        ),
                        step=2,
                        full=False,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "(n_kv == n_q) & (n_q >= 64 * ti + 2)"
                        ),
                        full=False,
                    ),
                    square=True,
                ),
                tiles(
                    128,
                    64,
                    numeric=True,
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "n_q == 128 * ti + 1"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv + 127) // 128 - 1, (n_kv - n_q + 127) // 128 + ti)",
                        where=(
                            "n_q >= 128 * ti + 2"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 2",
                        where=(
                            "128 * ti >= n_q - 1"
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
                            "n_q == 64 * ti + 1"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                        where=(
                            "n_q >= 64 * ti + 2"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 2",
                        where=(
                            "64 * ti >= n_q - 1"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('n_kv - n_q', '-120'),
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
        parts=(
            part(
                1,
                bundle(
                    "sparse_transformer_fixed_part0",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "(k >= 128 * ((q + n_kv - n_q) // 128)) & (k <= q + n_kv - n_q)",
                            tiles(
                                64,
                                64,
                                loop(
                                    "2 * ((n_q + 127) // 128) - 2",
                                    "(n_q + 63) // 64 - 1",
                                    where=(
                                        "(n_q == 64 * ti + 1) & (n_kv == n_q)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "ti - 1",
                                    "ti - 1",
                                    where=(
                                        "((n_q != 64 * ti + 1) | (n_kv != n_q)) & ((ti + 1) % 2 == 0) & (n_kv "
                                        "== n_q) & (n_q >= 64 * ti + 2)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "ti",
                                    "ti",
                                    where=(
                                        "(n_kv == n_q) & (n_q >= 64 * ti + 2)"
                                    ),
                                    full=False,
                                ),
                                square=True,
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "(n_kv + 127) // 128 - 1",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "n_q == 128 * ti + 1"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 128 + ti, 0)",
                                    "min((n_kv + 127) // 128 - 1, (n_kv - n_q + 127) // 128 + ti)",
                                    where=(
                                        "n_q >= 128 * ti + 2"
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
                                        "n_q == 64 * ti + 1"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q) // 128, 0)",
                                    "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                                    where=(
                                        "n_q >= 64 * ti + 2"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=('n_kv - n_q', '0'),
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
                            SOURCE["part0.cpu"],
                            tile=(64, 64),
                            ranges=False,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part0.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=False,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part0.sm_90a"],
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
                            SOURCE["part0.sm_90a_small"],
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
                            SOURCE["part0.sm_90a_backward"],
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
                            SOURCE["part0.sm_90a_small_backward"],
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
                ),
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part1",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=120,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part2",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=121,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part3",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=122,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part4",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=123,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part5",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=124,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part6",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=125,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part7",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=126,
            ),
            part(
                128,
                bundle(
                    "sparse_transformer_fixed_part8",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 128 * k + n_q - param('n_kv_of_all', 4096) + 128",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 8192 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 8127) // 8192 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 + n_q >= 64 * ti "
                                        "+ 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 8192 >= 65) &"
                                        " (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 16383) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 128 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 >= 1) & "
                                        "((param('n_kv_of_all', 4096) + 128 * ti - n_q) % 16384 + n_q >= 128 * "
                                        "ti + 129) & (param('n_kv_of_all', 4096) + 128 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q) // 16384 - 1",
                                    where=(
                                        "128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 128 * n_kv + n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 16319) // 16384 - 1",
                                    where=(
                                        "(128 * n_kv + n_q > param('n_kv_of_all', 4096) + 64 * ti) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 + n_q >= 64 * ti"
                                        " + 129) & ((param('n_kv_of_all', 4096) + 64 * ti - n_q) % 16384 >= 65)"
                                        " & (param('n_kv_of_all', 4096) + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 128",),
                        ),
                    ),
                    of_head=(),
                    arrays=(),
                    data=(
                    ),
                    params=(('n_kv_of_all', 4096),),
                    kernels=(
                        kernel(
                            "cpu",
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
                        ),
                        kernel(
                            "sm_90a",
                            SOURCE["part1.sm_90a"],
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
                            SOURCE["part1.sm_90a_small"],
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
                            SOURCE["part1.sm_90a_backward"],
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
                            SOURCE["part1.sm_90a_small_backward"],
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
                ),
                keys=127,
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
