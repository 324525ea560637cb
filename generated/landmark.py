"""The last `window` keys, and the landmark that ends each block.

Mask: causal() & (window(255) | strided(64, 63))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
landmark.cpu.c, landmark.sm_80.cu, landmark.sm_90a.cu, landmark.sm_90a_small.cu,
landmark.sm_90a_backward.cu, landmark.sm_90a_small_backward.cu, landmark.part0.cpu.c,
landmark.part0.sm_80.cu, landmark.part0.sm_90a.cu, landmark.part0.sm_90a_small.cu,
landmark.part0.sm_90a_backward.cu, landmark.part0.sm_90a_small_backward.cu, landmark.part1.cpu.c,
landmark.part1.sm_80.cu, landmark.part1.sm_90a.cu, landmark.part1.sm_90a_small.cu,
landmark.part1.sm_90a_backward.cu, landmark.part1.sm_90a_small_backward.cu.
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
    "cpu": (_HERE / "landmark.cpu.c").read_text(),
    "sm_80": (_HERE / "landmark.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "landmark.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "landmark.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "landmark.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "landmark.sm_90a_small_backward.cu").read_text(),
    "part0.cpu": (_HERE / "landmark.part0.cpu.c").read_text(),
    "part0.sm_80": (_HERE / "landmark.part0.sm_80.cu").read_text(),
    "part0.sm_90a": (_HERE / "landmark.part0.sm_90a.cu").read_text(),
    "part0.sm_90a_small": (_HERE / "landmark.part0.sm_90a_small.cu").read_text(),
    "part0.sm_90a_backward": (_HERE / "landmark.part0.sm_90a_backward.cu").read_text(),
    "part0.sm_90a_small_backward": (_HERE / "landmark.part0.sm_90a_small_backward.cu").read_text(),
    "part1.cpu": (_HERE / "landmark.part1.cpu.c").read_text(),
    "part1.sm_80": (_HERE / "landmark.part1.sm_80.cu").read_text(),
    "part1.sm_90a": (_HERE / "landmark.part1.sm_90a.cu").read_text(),
    "part1.sm_90a_small": (_HERE / "landmark.part1.sm_90a_small.cu").read_text(),
    "part1.sm_90a_backward": (_HERE / "landmark.part1.sm_90a_backward.cu").read_text(),
    "part1.sm_90a_small_backward": (_HERE / "landmark.part1.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (((k + 1) % 64 == 0) | (k >= q + n_kv - n_q - 255)) & (k <= q + n_kv - n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255)
piece    lattice: ((k + 1) % 64 == 0) & (k <= q + n_kv - n_q - 256)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/128 + 16097*N/64 - 32004  (N >= 576, N a multiple of 64)
flops    forward 4*N**2 + 128776*N - 16386048, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 5 closed-form loops
part     tokens as they are: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255); tiles of 64 x 64,
         closed-form tile ranges
part     keys 63, 127, ... as k = 0, 1, ...: q >= 64 * k + n_q - n_kv_of_all + 319; tiles of 64 x
         64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_80, bfloat16, head_dim 128
mask     (((k + 1) % 64 == 0) | (k >= q + n_kv - n_q - 255)) & (k <= q + n_kv - n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255)
piece    lattice: ((k + 1) % 64 == 0) & (k <= q + n_kv - n_q - 256)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/128 + 16097*N/64 - 32004  (N >= 576, N a multiple of 64)
flops    forward 4*N**2 + 128776*N - 16386048, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 5 closed-form loops
part     tokens as they are: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255); tiles of 64 x 64,
         closed-form tile ranges
part     keys 63, 127, ... as k = 0, 1, ...: q >= 64 * k + n_q - n_kv_of_all + 319; tiles of 64 x
         64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_90a, bfloat16, head_dim 128
mask     (((k + 1) % 64 == 0) | (k >= q + n_kv - n_q - 255)) & (k <= q + n_kv - n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255)
piece    lattice: ((k + 1) % 64 == 0) & (k <= q + n_kv - n_q - 256)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    N**2/128 + 16097*N/64 - 32004  (N >= 576, N a multiple of 64)
flops    forward 4*N**2 + 128776*N - 16386048, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 5 closed-form loops
plan     partial tiles: pairs are tested, as a query's keys are not a few intervals
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
part     tokens as they are: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255); tiles of 128 x
         128, closed-form tile ranges
part     keys 63, 127, ... as k = 0, 1, ...: q >= 64 * k + n_q - n_kv_of_all + 319; tiles of 128 x
         128, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "landmark",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(((k + 1) % 64 == 0) | (k >= q + n_kv - n_q - 255)) & (k <= q + n_kv -"
                " n_q)",
                tiles(
                    64,
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 4",
                        "(n_kv + 63) // 64 - 4",
                        where=(
                            "(n_kv >= 193) & (n_q >= 64 * ti + 2) & ((n_kv + 63) % 64 + 64 * ti >= "
                            "n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q + 63) // 64 + ti - 3, 0)",
                        "(n_kv - n_q + 1) // 64 + ti - 1",
                        where=(
                            "n_q >= 64 * ti + 2"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv + 63) // 64 - 4, 0)",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "64 * ti >= n_q - 1"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv - n_q + 63) // 64 + ti - 3, (n_kv + 63) // 64 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 1) // 64 + ti, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + ti)",
                        where=(
                            "n_q >= 64 * ti + 2"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    64,
                    loop(
                        "max((n_kv + 63) // 64 - 4, 0)",
                        "(n_kv - n_q + 63) // 64 + 2 * ti - 3",
                        where=(
                            "n_q >= 128 * ti + 2"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q + 63) // 64 + 2 * ti - 2, 0)",
                        "(n_kv - n_q + 1) // 64 + 2 * ti - 1",
                        where=(
                            "n_q >= 128 * ti + 2"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv + 63) // 64 - 4, 0)",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "128 * ti >= n_q - 1"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 2, (n_kv + 63) // 64 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 1) // 64 + 2 * ti, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + 2 * ti + 1)",
                        where=(
                            "n_q >= 128 * ti + 2"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "(n_kv + 127) // 128 - 2",
                        "(n_kv + 127) // 128 - 2",
                        where=(
                            "(n_kv >= 129) & (n_q >= 128 * ti + 2) & ((n_kv + 127) % 128 + 128 * ti"
                            " >= n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv - n_q + 1) // 128 + ti - 1",
                        "(n_kv - n_q + 1) // 128 + ti - 1",
                        where=(
                            "((n_q > (n_kv + 127) % 128 + 128 * ti) | (128 * ti >= n_q - 1) | (n_kv"
                            " < 129)) & (n_kv + 128 * ti > n_q) & (n_q >= 128 * ti + 2) & (n_kv >= "
                            "128 * ((n_kv - n_q + 127) // 128) + n_q - 1)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv + 127) // 128 - 2, 0)",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_q > (n_kv + 127) % 128 + 128 * ti) | (128 * ti >= n_q - 1) | (n_kv"
                            " < 129)) & ((128 * ((n_kv - n_q + 127) // 128) + n_q >= n_kv + 2) | "
                            "(n_q >= n_kv + 128 * ti) | (128 * ti >= n_q - 1)) & (n_q == 128 * ti +"
                            " 1)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv - n_q + 127) // 128 + ti - 1, (n_kv + 127) // 128 - 2) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 1) // 128 + ti, 0)",
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
                        "(n_kv + 64 * ti - n_q + 1) // 128 - 1",
                        "(n_kv + 64 * ti - n_q + 1) // 128 - 1",
                        where=(
                            "(n_q >= 64 * ti + 2) & ((n_kv + 64 * ti - n_q + 63) % 128 >= 62) & "
                            "(n_kv + 64 * ti >= n_q + 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 2",
                        "(n_kv + 127) // 128 - 2",
                        where=(
                            "((64 * ti >= n_q - 1) | ((n_kv + 64 * ti - n_q + 63) % 128 < 62) | "
                            "(n_q >= n_kv + 64 * ti - 64)) & (n_kv >= 129) & (n_q >= 64 * ti + 2) &"
                            " ((n_kv + 127) % 128 + 64 * ti >= n_q + 64)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv + 127) // 128 - 2, 0)",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((64 * ti >= n_q - 1) | (n_kv < 129) | (n_q >= (n_kv + 127) % 128 + 64"
                            " * ti - 63)) & ((64 * ti >= n_q - 1) | ((n_kv + 64 * ti - n_q + 63) % "
                            "128 < 62) | (n_q >= n_kv + 64 * ti - 64)) & (n_q == 64 * ti + 1)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 1, (n_kv + 127) // 128 - 2) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q + 1) // 128, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                        where=(
                            "n_q >= 64 * ti + 2"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('n_q - n_kv + 255', 'n_kv - n_q'),
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
                    "landmark_part0",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "(k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 255)",
                            tiles(
                                64,
                                64,
                                loop(
                                    "(n_kv + 63) // 64 - 4",
                                    "(n_kv + 63) // 64 - 4",
                                    where=(
                                        "(n_kv >= 193) & (n_q >= 64 * ti + 2) & ((n_kv + 63) % 64 + 64 * ti >= "
                                        "n_q)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q + 63) // 64 + ti - 3, 0)",
                                    "(n_kv - n_q + 1) // 64 + ti - 1",
                                    where=(
                                        "n_q >= 64 * ti + 2"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 63) // 64 - 4, 0)",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "64 * ti >= n_q - 1"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q + 1) // 64 + ti - 4, 0)",
                                    "min((n_kv - n_q + 63) // 64 + ti - 3, (n_kv + 63) // 64 - 4) - 1",
                                    full=False,
                                ),
                                loop(
                                    "max((n_kv - n_q + 1) // 64 + ti, 0)",
                                    "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + ti)",
                                    where=(
                                        "n_q >= 64 * ti + 2"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "(n_kv + 127) // 128 - 2",
                                    "(n_kv + 127) // 128 - 2",
                                    where=(
                                        "(n_kv >= 129) & (n_q >= 128 * ti + 2) & ((n_kv + 127) % 128 + 128 * ti"
                                        " >= n_q)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv - n_q + 1) // 128 + ti - 1",
                                    "(n_kv - n_q + 1) // 128 + ti - 1",
                                    where=(
                                        "((n_q > (n_kv + 127) % 128 + 128 * ti) | (128 * ti >= n_q - 1) | (n_kv"
                                        " < 129)) & (n_kv + 128 * ti > n_q) & (n_q >= 128 * ti + 2) & (n_kv >= "
                                        "128 * ((n_kv - n_q + 127) // 128) + n_q - 1)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 127) // 128 - 2, 0)",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_q > (n_kv + 127) % 128 + 128 * ti) | (128 * ti >= n_q - 1) | (n_kv"
                                        " < 129)) & ((128 * ((n_kv - n_q + 127) // 128) + n_q >= n_kv + 2) | "
                                        "(n_q >= n_kv + 128 * ti) | (128 * ti >= n_q - 1)) & (n_q == 128 * ti +"
                                        " 1)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q + 1) // 128 + ti - 2, 0)",
                                    "min((n_kv - n_q + 127) // 128 + ti - 1, (n_kv + 127) // 128 - 2) - 1",
                                    full=False,
                                ),
                                loop(
                                    "max((n_kv - n_q + 1) // 128 + ti, 0)",
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
                                    "(n_kv + 64 * ti - n_q + 1) // 128 - 1",
                                    "(n_kv + 64 * ti - n_q + 1) // 128 - 1",
                                    where=(
                                        "(n_q >= 64 * ti + 2) & ((n_kv + 64 * ti - n_q + 63) % 128 >= 62) & "
                                        "(n_kv + 64 * ti >= n_q + 65)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv + 127) // 128 - 2",
                                    "(n_kv + 127) // 128 - 2",
                                    where=(
                                        "((64 * ti >= n_q - 1) | ((n_kv + 64 * ti - n_q + 63) % 128 < 62) | "
                                        "(n_q >= n_kv + 64 * ti - 64)) & (n_kv >= 129) & (n_q >= 64 * ti + 2) &"
                                        " ((n_kv + 127) % 128 + 64 * ti >= n_q + 64)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 127) // 128 - 2, 0)",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((64 * ti >= n_q - 1) | (n_kv < 129) | (n_q >= (n_kv + 127) % 128 + 64"
                                        " * ti - 63)) & ((64 * ti >= n_q - 1) | ((n_kv + 64 * ti - n_q + 63) % "
                                        "128 < 62) | (n_q >= n_kv + 64 * ti - 64)) & (n_q == 64 * ti + 1)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q + 1) // 128 - 2, 0)",
                                    "min((n_kv + 64 * ti - n_q + 63) // 128 - 1, (n_kv + 127) // 128 - 2) -"
                                    " 1",
                                    full=False,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q + 1) // 128, 0)",
                                    "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                                    where=(
                                        "n_q >= 64 * ti + 2"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=('n_q - n_kv + 255', 'n_kv - n_q'),
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
                            ranges=True,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part0.sm_80"],
                            launch("attention_forward", "rows", threads=64, shared=52224),
                            tile=(64, 64),
                            ranges=True,
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
                            ranges=True,
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
                            ranges=True,
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
            ),
            part(
                64,
                bundle(
                    "landmark_part1",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "q >= 64 * k + n_q - param('n_kv_of_all', 4096) + 319",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 64 * n_kv + n_q + 255"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 3841) // 4096 - 2",
                                    where=(
                                        "64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 64 * ti - 254"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 3840) // 4096 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 3840) // 4096 - 1",
                                    where=(
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q + 3841) % 4096 >= 1) & "
                                        "(param('n_kv_of_all', 4096) + 64 * ti >= n_q + 255) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q + 3841) % 4096 + n_q >= "
                                        "64 * ti + 65) & (64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 64 * "
                                        "ti - 254)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 128 * ti >= 64 * n_kv + n_q + 255"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 128 * ti - n_q + 7937) // 8192 - 2",
                                    where=(
                                        "64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 128 * ti - 254"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((param('n_kv_of_all', 4096) + 128 * ti - n_q + 7937) // 8192 - 1, "
                                    "0)",
                                    "min((n_kv + 127) // 128 - 1, (param('n_kv_of_all', 4096) + 7872) // "
                                    "8192 - 1, (param('n_kv_of_all', 4096) + 128 * ti - n_q + 8000) // 8192"
                                    " - 1)",
                                    where=(
                                        "64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 128 * ti - 254"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "param('n_kv_of_all', 4096) + 64 * ti >= 64 * n_kv + n_q + 255"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 7937) // 8192 - 2",
                                    where=(
                                        "64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 64 * ti - 254"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 7936) // 8192 - 1",
                                    "(param('n_kv_of_all', 4096) + 64 * ti - n_q + 7936) // 8192 - 1",
                                    where=(
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q + 7937) % 8192 >= 1) & "
                                        "(param('n_kv_of_all', 4096) + 64 * ti >= n_q + 255) & "
                                        "((param('n_kv_of_all', 4096) + 64 * ti - n_q + 7937) % 8192 + n_q >= "
                                        "64 * ti + 65) & (64 * n_kv + n_q >= param('n_kv_of_all', 4096) + 64 * "
                                        "ti - 254)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=("param('n_kv_of_all', 4096) - n_q - 319",),
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
                keys=63,
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
