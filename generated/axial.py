"""The query's row and its column.

Mask: block_diagonal(64) | dilated(n_kv, n_q, stride=64)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
axial.cpu.c, axial.sm_80.cu, axial.sm_90a.cu, axial.sm_90a_small.cu, axial.sm_90a_backward.cu,
axial.sm_90a_small_backward.cu, axial.part0.cpu.c, axial.part0.sm_80.cu, axial.part0.sm_90a.cu,
axial.part0.sm_90a_small.cu, axial.part0.sm_90a_backward.cu, axial.part0.sm_90a_small_backward.cu,
axial.part1.cpu.c, axial.part1.sm_80.cu, axial.part1.sm_90a.cu, axial.part1.sm_90a_small.cu,
axial.part1.sm_90a_backward.cu, axial.part1.sm_90a_small_backward.cu.
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
    "cpu": (_HERE / "axial.cpu.c").read_text(),
    "sm_80": (_HERE / "axial.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "axial.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "axial.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "axial.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "axial.sm_90a_small_backward.cu").read_text(),
    "part0.cpu": (_HERE / "axial.part0.cpu.c").read_text(),
    "part0.sm_80": (_HERE / "axial.part0.sm_80.cu").read_text(),
    "part0.sm_90a": (_HERE / "axial.part0.sm_90a.cu").read_text(),
    "part0.sm_90a_small": (_HERE / "axial.part0.sm_90a_small.cu").read_text(),
    "part0.sm_90a_backward": (_HERE / "axial.part0.sm_90a_backward.cu").read_text(),
    "part0.sm_90a_small_backward": (_HERE / "axial.part0.sm_90a_small_backward.cu").read_text(),
    "part1.cpu": (_HERE / "axial.part1.cpu.c").read_text(),
    "part1.sm_80": (_HERE / "axial.part1.sm_80.cu").read_text(),
    "part1.sm_90a": (_HERE / "axial.part1.sm_90a.cu").read_text(),
    "part1.sm_90a_small": (_HERE / "axial.part1.sm_90a_small.cu").read_text(),
    "part1.sm_90a_backward": (_HERE / "axial.part1.sm_90a_backward.cu").read_text(),
    "part1.sm_90a_small_backward": (_HERE / "axial.part1.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((q + n_kv - k - n_q) % 64 == 0) | ((q + n_kv - n_q) // 64 == k // 64)
piece    band: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) // 64) + 63)
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k < 64 * ((q + n_kv - n_q) // 64))
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k >= 64 * ((q + n_kv - n_q) // 64) + 64)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/64 + 63*N  (N >= 64, N a multiple of 64)
flops    forward 8*N**2 + 32256*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 4 closed-form loops
part     tokens as they are: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) //
         64) + 63); tiles of 64 x 64, tile lists in memory
part     residue classes modulo 64: (k > q + n_kv - n_q) | (k < q + n_kv - n_q); tiles of 64 x 64,
         tile lists in memory
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_80, bfloat16, head_dim 128
mask     ((q + n_kv - k - n_q) % 64 == 0) | ((q + n_kv - n_q) // 64 == k // 64)
piece    band: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) // 64) + 63)
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k < 64 * ((q + n_kv - n_q) // 64))
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k >= 64 * ((q + n_kv - n_q) // 64) + 64)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/64 + 63*N  (N >= 64, N a multiple of 64)
flops    forward 8*N**2 + 32256*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
part     tokens as they are: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) //
         64) + 63); tiles of 64 x 64, tile lists in memory
part     residue classes modulo 64: (k > q + n_kv - n_q) | (k < q + n_kv - n_q); tiles of 128 x 64,
         tile lists in memory
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_90a, bfloat16, head_dim 128
mask     ((q + n_kv - k - n_q) % 64 == 0) | ((q + n_kv - n_q) // 64 == k // 64)
piece    band: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) // 64) + 63)
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k < 64 * ((q + n_kv - n_q) // 64))
piece    lattice: ((q + n_kv - k - n_q) % 64 == 0) & (k >= 64 * ((q + n_kv - n_q) // 64) + 64)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/64 + 63*N  (N >= 64, N a multiple of 64)
flops    forward 8*N**2 + 32256*N, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
plan     partial tiles: bits from a table over k - q and of 1 interval per row, no pair is tested
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
part     tokens as they are: (k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) //
         64) + 63); tiles of 128 x 128, tile lists in memory
part     residue classes modulo 64: (k > q + n_kv - n_q) | (k < q + n_kv - n_q); tiles of 128 x 128,
         tile lists in memory
parts    taken by a call where their tiles take less time than the whole mask's
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "axial",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((q + n_kv - k - n_q) % 64 == 0) | ((q + n_kv - n_q) // 64 == k // 64)",
                tiles(
                    64,
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_kv + 63) % 64 + 64 * ti >= n_q"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv - n_q) // 64 + ti",
                        "(n_kv - n_q) // 64 + ti",
                        where=(
                            "((n_kv - n_q) % 64 == 0) & (n_q > (n_kv + 63) % 64 + 64 * ti) & (n_kv "
                            "+ 64 * ti >= n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv - n_q + 63) // 64 + ti - 1, (n_kv + 63) // 64 - 2)",
                        full=False,
                    ),
                    loop(
                        "max(0, (n_kv - n_q) // 64 + ti + 1)",
                        "(n_kv + 63) // 64 - 1",
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_kv + 63) % 64 + 128 * ti >= n_q - 1"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "(n_kv + 63) // 64 - 2",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "n_q >= (n_kv + 63) % 64 + 128 * ti + 2"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "(n_kv + 63) // 128",
                        "(n_kv + 63) // 128",
                        where=(
                            "(n_kv + 63) % 128 + 128 * ti >= n_q + 63"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "(n_kv + 63) // 128 - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 63) % 128 >= 64) & (n_q >= (n_kv + 63) % 128 + 128 * ti - 62)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    64,
                    128,
                    loop(
                        "(n_kv + 63) // 128",
                        "(n_kv + 63) // 128",
                        where=(
                            "(n_kv + 63) % 128 + 64 * ti >= n_q + 63"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "(n_kv + 63) // 128 - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 63) % 128 >= 64) & (n_q >= (n_kv + 63) % 128 + 64 * ti - 62)"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('n_kv - n_q',),
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
                distances=True,
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
                distances=True,
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
                distances=True,
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
                distances=True,
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
                    "axial_part0",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "(k >= 64 * ((q + n_kv - n_q) // 64)) & (k <= 64 * ((q + n_kv - n_q) //"
                            " 64) + 63)",
                            tiles(
                                64,
                                64,
                                loop(
                                    "(n_kv + 63) // 64 - 1",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "(n_kv + 63) % 64 + 64 * ti >= n_q"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv - n_q) // 64 + ti",
                                    "(n_kv - n_q) // 64 + ti",
                                    where=(
                                        "((n_kv - n_q) % 64 == 0) & (n_q > (n_kv + 63) % 64 + 64 * ti) & (n_kv "
                                        "+ 64 * ti >= n_q)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv - n_q + 63) // 64 + ti - 1",
                                    "(n_kv - n_q + 63) // 64 + ti - 1",
                                    where=(
                                        "(n_kv > 64 * ((n_kv - n_q) // 64) + n_q) & (n_kv >= 64 * ((n_kv - n_q)"
                                        " // 64) + 64 * ti + 65) & (n_kv + 64 * ti >= n_q)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "(n_kv - n_q + 63) // 64 + ti",
                                    "(n_kv - n_q + 63) // 64 + ti",
                                    where=(
                                        "(n_kv > 64 * ((n_kv - n_q) // 64) + n_q) & (n_kv >= 64 * ((n_kv - n_q)"
                                        " // 64) + 64 * ti + 65) & (n_kv + 64 * ti >= n_q - 64)"
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
                                        "(((n_kv + 63) % 128 + 128 * ti >= n_q + 63) & (n_kv >= 65)) | ((n_kv +"
                                        " 128 * ti >= n_q) & (n_kv < 65))"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 128 + ti, 0)",
                                    "min((n_kv + 63) // 128 - 1, (n_kv - n_q + 127) // 128 + ti)",
                                    full=False,
                                ),
                                loop(
                                    "(n_kv + 127) // 128 - 1",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_kv + 63) % 128 >= 64) & (64 * ((n_q - n_kv + 63) // 64) + n_kv >= "
                                        "128 * ti + 65) & ((n_kv + 63) % 128 + 128 * ti >= n_q - 64)"
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
                                        "(((n_kv + 63) % 128 + 64 * ti >= n_q + 63) & (n_kv >= 65)) | ((n_kv + "
                                        "64 * ti >= n_q) & (n_kv < 65))"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q) // 128, 0)",
                                    "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 63) // 128 - 1)",
                                    full=False,
                                ),
                                loop(
                                    "(n_kv + 127) // 128 - 1",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_kv + 63) % 128 >= 64) & ((n_kv + 63) % 128 + 64 * ti >= n_q) & "
                                        "(n_q >= (n_kv + 63) % 128 + 64 * ti - 62)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=('n_kv - n_q', '0', '63'),
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
                64,
                bundle(
                    "axial_part1",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "(k > q + n_kv - n_q) | (k < q + n_kv - n_q)",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(n_kv - n_q) // 64 + ti - 1",
                                    full=True,
                                ),
                                loop(
                                    "max(0, (n_kv - n_q + 63) // 64 + ti + 1)",
                                    "(n_kv + 63) // 64 - 1",
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 64 + ti, 0)",
                                    "min((n_kv + n_q + 61) // 64 - ti - 1, (n_kv + 63) // 64 - 1, (n_kv - "
                                    "n_q + 63) // 64 + ti)",
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                64,
                                loop(
                                    "0",
                                    "(n_kv - n_q) // 64 + 2 * ti - 1",
                                    full=True,
                                ),
                                loop(
                                    "max(0, (n_kv - n_q + 63) // 64 + 2 * ti + 2)",
                                    "(n_kv + 63) // 64 - 1",
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 64 + 2 * ti, 0)",
                                    "min((n_kv + n_q + 61) // 64 - 2 * ti - 1, (n_kv + 63) // 64 - 1, (n_kv"
                                    " - n_q + 63) // 64 + 2 * ti + 1)",
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(n_kv - n_q) // 128 + ti - 1",
                                    full=True,
                                ),
                                loop(
                                    "max(0, (n_kv - n_q + 127) // 128 + ti + 1)",
                                    "(n_kv + 127) // 128 - 1",
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 128 + ti, 0)",
                                    "min((n_kv + n_q + 125) // 128 - ti - 1, (n_kv + 127) // 128 - 1, (n_kv"
                                    " - n_q + 127) // 128 + ti)",
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(n_kv + 64 * ti - n_q) // 128 - 1",
                                    full=True,
                                ),
                                loop(
                                    "max(0, (n_kv + 64 * ti - n_q + 63) // 128 + 1)",
                                    "(n_kv + 127) // 128 - 1",
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q) // 128, 0)",
                                    "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + n_q + 64 * ti + 125) "
                                    "// 128 - ti - 1, (n_kv + 127) // 128 - 1)",
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=('n_q - n_kv - 1', 'n_kv - n_q - 1'),
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
                            SOURCE["part1.cpu"],
                            tile=(64, 64),
                            ranges=False,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part1.sm_80"],
                            launch("attention_forward", "rows", threads=128, shared=70656),
                            tile=(128, 64),
                            ranges=False,
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
                            ranges=False,
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
                            ranges=False,
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
        ),
        report=REPORT,
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
