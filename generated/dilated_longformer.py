"""`window` keys on each side, `dilation` apart, and global tokens.

Mask: dilated(256, 256, stride=2) | global_tokens(64)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
dilated_longformer.cpu.c, dilated_longformer.sm_80.cu, dilated_longformer.sm_90a.cu,
dilated_longformer.sm_90a_small.cu, dilated_longformer.sm_90a_backward.cu,
dilated_longformer.sm_90a_small_backward.cu, dilated_longformer.part0.cpu.c,
dilated_longformer.part0.sm_80.cu, dilated_longformer.part0.sm_90a.cu,
dilated_longformer.part0.sm_90a_small.cu, dilated_longformer.part0.sm_90a_backward.cu,
dilated_longformer.part0.sm_90a_small_backward.cu, dilated_longformer.part1.cpu.c,
dilated_longformer.part1.sm_80.cu, dilated_longformer.part1.sm_90a.cu,
dilated_longformer.part1.sm_90a_small.cu, dilated_longformer.part1.sm_90a_backward.cu,
dilated_longformer.part1.sm_90a_small_backward.cu.
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
    "cpu": (_HERE / "dilated_longformer.cpu.c").read_text(),
    "sm_80": (_HERE / "dilated_longformer.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "dilated_longformer.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "dilated_longformer.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "dilated_longformer.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "dilated_longformer.sm_90a_small_backward.cu").read_text(),
    "part0.cpu": (_HERE / "dilated_longformer.part0.cpu.c").read_text(),
    "part0.sm_80": (_HERE / "dilated_longformer.part0.sm_80.cu").read_text(),
    "part0.sm_90a": (_HERE / "dilated_longformer.part0.sm_90a.cu").read_text(),
    "part0.sm_90a_small": (_HERE / "dilated_longformer.part0.sm_90a_small.cu").read_text(),
    "part0.sm_90a_backward": (_HERE / "dilated_longformer.part0.sm_90a_backward.cu").read_text(),
    "part0.sm_90a_small_backward": (_HERE / "dilated_longformer.part0.sm_90a_small_backward.cu").read_text(),
    "part1.cpu": (_HERE / "dilated_longformer.part1.cpu.c").read_text(),
    "part1.sm_80": (_HERE / "dilated_longformer.part1.sm_80.cu").read_text(),
    "part1.sm_90a": (_HERE / "dilated_longformer.part1.sm_90a.cu").read_text(),
    "part1.sm_90a_small": (_HERE / "dilated_longformer.part1.sm_90a_small.cu").read_text(),
    "part1.sm_90a_backward": (_HERE / "dilated_longformer.part1.sm_90a_backward.cu").read_text(),
    "part1.sm_90a_small_backward": (_HERE / "dilated_longformer.part1.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     (((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv - n_q +
         512)) | ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (k < 64)
piece    lattice: ((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv -
         n_q + 512)
piece    columns: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513) | (k <= q + n_kv -
         n_q - 513)) & (k < 64)
piece    rows: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513)) & (k >= 64) & (q >=
         n_q - n_kv) & (q <= n_q - n_kv + 63)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    641*N - 168512  (N >= 2302, N a multiple of 2)
flops    forward 328192*N - 86278144, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 10 closed-form loops
part     tokens as they are: columns, rows; tiles of 64 x 64, tile lists in memory
part     residue classes modulo 2: (k >= q + n_kv - n_q - 256) & (k <= q + n_kv - n_q + 256); tiles
         of 64 x 64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_80, bfloat16, head_dim 128
mask     (((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv - n_q +
         512)) | ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (k < 64)
piece    lattice: ((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv -
         n_q + 512)
piece    columns: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513) | (k <= q + n_kv -
         n_q - 513)) & (k < 64)
piece    rows: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513)) & (k >= 64) & (q >=
         n_q - n_kv) & (q <= n_q - n_kv + 63)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    641*N - 168512  (N >= 2302, N a multiple of 2)
flops    forward 328192*N - 86278144, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 9 closed-form loops
part     tokens as they are: columns, rows; tiles of 128 x 64, tile lists in memory
part     residue classes modulo 2: (k >= q + n_kv - n_q - 256) & (k <= q + n_kv - n_q + 256); tiles
         of 64 x 64, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's

target   sm_90a, bfloat16, head_dim 128
mask     (((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv - n_q +
         512)) | ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63)) | (k < 64)
piece    lattice: ((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <= q + n_kv -
         n_q + 512)
piece    columns: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513) | (k <= q + n_kv -
         n_q - 513)) & (k < 64)
piece    rows: (((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513)) & (k >= 64) & (q >=
         n_q - n_kv) & (q <= n_q - n_kv + 63)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    641*N - 168512  (N >= 2302, N a multiple of 2)
flops    forward 328192*N - 86278144, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 9 closed-form loops
plan     partial tiles: bits from a table over k - q and of 2 intervals per row, no pair is tested
plan     or tiles of 64 x 64, one warpgroup and one that copies, 2 stages, 81 KiB of shared memory,
         2 blocks per multiprocessor: taken by a call when the exact tiles of its lengths are
         predicted to take fewer cycles (never for data given per sequence)
plan     backward: or tiles of 64 x 64, one warpgroup and one that copies, 2 blocks per
         multiprocessor, 106.5 KiB of shared memory, dq in a launch of its own where that takes
         less: taken by a call when the exact tiles of its lengths are predicted to take fewer
         cycles (never for data given per sequence)
part     tokens as they are: columns, rows; tiles of 128 x 128, tile lists in memory
part     residue classes modulo 2: (k >= q + n_kv - n_q - 256) & (k <= q + n_kv - n_q + 256); tiles
         of 128 x 128, closed-form tile ranges
parts    taken by a call where their tiles take less time than the whole mask's
"""
"""What `explain()` returns."""

_MASK = GeneratedMask(
    bundle(
        "dilated_longformer",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(((q + n_kv - k - n_q) % 2 == 0) & (k >= q + n_kv - n_q - 512) & (k <="
                " q + n_kv - n_q + 512)) | ((q >= n_q - n_kv) & (q <= n_q - n_kv + 63))"
                " | (k < 64)",
                tiles(
                    64,
                    64,
                    loop(
                        "0",
                        "0",
                        full=True,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 63) % 64 == 0) & (n_kv + 64 * ti == n_q + 1) & (n_kv >= 129) "
                            "& (n_kv < 578)"
                        ),
                        full=True,
                    ),
                    loop(
                        "1",
                        "1",
                        where=(
                            "(((n_kv + 63) % 64 != 0) | (n_kv + 64 * ti != n_q + 1) | (n_kv >= 578)"
                            " | (n_kv < 129)) & (n_kv == 65) & (64 * ti >= n_q - 64)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(((n_kv + 63) % 64 != 0) | (n_kv + 64 * ti != n_q + 1) | (n_kv >= 578)"
                            " | (n_kv < 129)) & ((n_kv != 65) | (n_q >= 64 * ti + 65)) & ((n_kv + "
                            "63) % 64 == 0) & (n_q == 64 * ti + 1) & (n_kv >= 129)"
                        ),
                        full=True,
                    ),
                    loop(
                        "1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(((n_kv + 63) % 64 != 0) | (n_kv + 64 * ti != n_q + 1) | (n_kv >= 578)"
                            " | (n_kv < 129)) & (((n_kv + 63) % 64 != 0) | (n_q != 64 * ti + 1) | "
                            "(n_kv < 129)) & ((n_kv != 65) | (n_q >= 64 * ti + 65)) & (n_kv + 64 * "
                            "ti == n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 8, 1)",
                        "min((n_kv + n_q + 61) // 64 - ti - 1, (n_kv + 63) // 64 - 1, (n_kv - "
                        "n_q + 63) // 64 + ti + 8)",
                        where=(
                            "n_kv + 64 * ti >= n_q + 64"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "min((n_kv + 63) // 64 - 1, ti - (n_q - n_kv) // 64 + 8)",
                        where=(
                            "(n_q > n_kv + 64 * ti) & (n_q >= n_kv + 64 * ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "9",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q > n_kv + 64 * ti) & (n_q >= n_kv + 64 * ti - 63) & (n_kv + 64 * "
                            "ti >= n_q - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "min((n_kv + 60) // 63 - 1, (2 * n_kv - n_q + 61) // 64 + ti - 1, (n_kv"
                        " + 63) // 64 - 1)",
                        where=(
                            "(n_kv + 64 * ti > n_q) & (n_kv + 64 * ti >= n_q) & (n_q >= n_kv + 64 *"
                            " ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 63) % 64 == 0) & (n_kv + 64 * ti == n_q + 1) & (n_kv + 64 * "
                            "ti > n_q) & (n_kv >= 641) & (n_kv + 64 * ti >= n_q) & (n_q >= n_kv + "
                            "64 * ti - 63)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    64,
                    loop(
                        "0",
                        "0",
                        full=True,
                    ),
                    loop(
                        "1",
                        "1",
                        where=(
                            "(n_kv == 65) & (128 * ti >= n_q - 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv != 65) | (n_q >= 128 * ti + 66)) & ((n_kv + 63) % 64 == 0) & "
                            "(n_q == 128 * ti + 1) & (n_kv >= 129)"
                        ),
                        full=True,
                    ),
                    loop(
                        "1",
                        "min((n_kv + 62) // 64 - 1, 2 * ti - (n_q - n_kv) // 64 + 9)",
                        where=(
                            "n_q >= n_kv + 128 * ti + 128"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 63) % 64 == 0) & (n_q >= n_kv + 128 * ti + 128) & (n_kv >= "
                            "129) & (128 * ti >= n_q - 640)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 8, 1)",
                        "min((n_kv + 62) // 64 - 1, (n_kv - n_q + 63) // 64 + 2 * ti + 9)",
                        where=(
                            "(n_kv + 128 * ti >= n_q + 64) & (n_kv + 128 * ti >= n_q - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 63) % 64 == 0) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= "
                            "n_q + 64) & (n_kv + 128 * ti >= n_q - 127) & (128 * ti >= n_q - 640)"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_kv >= 66) & (n_kv + 128 * ti >= n_q - 127) & (n_q >= n_kv + 128 * "
                            "ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "1",
                        where=(
                            "(n_kv == 65) & (n_q >= 128 * ti + 66) & (128 * ti >= n_q - 640)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "0",
                        "0",
                        where=(
                            "n_kv < 65"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_kv == 65) & (n_kv >= 65) & (128 * ti >= n_q - 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv != 65) | (n_q >= 128 * ti + 66)) & ((n_kv + 127) % 128 == 0) & "
                            "(n_q == 128 * ti + 1) & (n_kv >= 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q >= n_kv + 128 * ti + 640) & (n_kv >= 66)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "min((n_kv + 127) // 128 - 1, ti - (n_q - n_kv) // 128 + 4)",
                        where=(
                            "(n_q >= n_kv + 128 * ti + 128) & (n_kv >= 66)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_kv + 128 * ti >= n_q - 127) | (n_kv < 66)) & (n_kv + 128 * ti >= "
                            "n_q + 64) & (n_kv + 128 * ti >= n_q + 640) & (n_kv >= 66)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 4, 0)",
                        "min((n_kv + n_q + 125) // 128 - ti - 1, (n_kv + 127) // 128 - 1, (n_kv"
                        " - n_q + 127) // 128 + ti + 4)",
                        where=(
                            "((n_kv + 128 * ti >= n_q - 127) | (n_kv < 66)) & (n_kv + 128 * ti >= "
                            "n_q + 64) & (n_kv >= 66)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_kv >= 66) & (n_kv + 128 * ti >= n_q - 127) & (n_q >= n_kv + 128 * "
                            "ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q >= n_kv + 128 * ti + 128) | (n_kv + 128 * ti >= n_q + 64) | "
                            "(n_kv < 66)) & ((n_kv + 128 * ti >= n_q - 127) | (n_kv < 66)) & ((n_q "
                            ">= n_kv + 128 * ti - 63) | (n_kv < 66)) & (n_kv == 65) & (n_q >= 128 *"
                            " ti + 66)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    64,
                    128,
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_kv + 64 * ti > n_q) & (n_kv < 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_kv >= 65) | (n_q >= n_kv + 64 * ti)) & (n_q > n_kv + 64 * ti) & "
                            "(n_kv < 65)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv >= 65) | (n_q >= n_kv + 64 * ti)) & ((n_kv >= 65) | (n_kv + 64 "
                            "* ti >= n_q)) & (n_kv + 64 * ti == n_q)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_kv >= 65) | (n_q >= n_kv + 64 * ti)) & ((n_kv >= 65) | (n_kv + 64 "
                            "* ti >= n_q)) & (n_kv + 64 * ti != n_q) & (n_kv == 65) & (64 * ti >= "
                            "n_q - 64)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv != 65) | (n_q >= 64 * ti + 65)) & ((n_kv >= 65) | (n_q >= n_kv "
                            "+ 64 * ti)) & ((n_kv >= 65) | (n_kv + 64 * ti >= n_q)) & (n_kv + 64 * "
                            "ti != n_q) & ((n_kv + 127) % 128 == 0) & (n_kv + 64 * ti == n_q + 1) &"
                            " (n_kv < 514)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(((n_kv + 127) % 128 != 0) | (n_kv + 64 * ti != n_q + 1) | (n_kv >= "
                            "514)) & ((n_kv != 65) | (n_q >= 64 * ti + 65)) & ((n_kv >= 65) | (n_q "
                            ">= n_kv + 64 * ti)) & ((n_kv >= 65) | (n_kv + 64 * ti >= n_q)) & (n_kv"
                            " + 64 * ti != n_q) & ((n_kv + 127) % 128 == 0) & (n_q == 64 * ti + 1)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_kv + 64 * ti > n_q) & (n_kv + 64 * ti >= n_q + 640)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 4, 0)",
                        "min((n_kv + 126) // 128 - 1, (n_kv + 64 * ti - n_q + 63) // 128 + 4)",
                        where=(
                            "(n_kv + 64 * ti > n_q) & (n_kv >= 66)"
                        ),
                        full=False,
                    ),
                    loop(
                        "5",
                        "(n_kv + 126) // 128 - 1",
                        where=(
                            "(n_kv + 64 * ti > n_q) & (n_q >= n_kv + 64 * ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 127) % 128 == 0) & (n_kv + 64 * ti == n_q + 1) & (n_kv + 64 *"
                            " ti > n_q) & (n_kv >= 641) & (n_q >= n_kv + 64 * ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(((n_kv + 127) % 128 != 0) | (n_kv + 64 * ti != n_q + 1) | (n_kv < "
                            "641)) & ((n_kv + 127) % 128 == 0) & (n_kv + 64 * ti > n_q) & (n_kv + "
                            "64 * ti >= n_q + 2) & (n_q >= n_kv + 64 * ti - 63)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "((n_kv + 127) % 128 == 0) & (n_kv + 64 * ti > n_q) & (n_q >= 64 * ti +"
                            " 2) & (n_kv + 64 * ti >= n_q + 64) & (64 * ti >= n_q - 576)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q >= n_kv + 64 * ti + 576) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "min((n_kv + 127) // 128 - 1, -((n_q - n_kv - 64 * ti + 64) // 128) + "
                        "4)",
                        where=(
                            "(n_q > n_kv + 64 * ti) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti)"
                        ),
                        full=False,
                    ),
                    loop(
                        "5",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q > n_kv + 64 * ti) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti) & "
                            "(n_kv + 64 * ti >= n_q - 63)"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=(
                    'n_kv - n_q',
                    'n_q - n_kv + 512',
                    'n_kv - n_q + 512',
                    'n_q - n_kv + 63',
                    '63',
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
                    "dilated_longformer_part0",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "((((q + n_kv - k - n_q) % 2 != 0) | (k >= q + n_kv - n_q + 513)) & (q "
                            ">= n_q - n_kv) & (q <= n_q - n_kv + 63)) | ((((q + n_kv - k - n_q) % 2"
                            " != 0) | (k >= q + n_kv - n_q + 513) | (k <= q + n_kv - n_q - 513)) & "
                            "(k < 64))",
                            tiles(
                                64,
                                64,
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "n_kv + 64 * ti >= n_q + 576"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_q >= n_kv + 64 * ti + 576) & (n_q >= n_kv + 64 * ti - 575)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "9",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "(n_kv + 64 * ti == n_q) & (n_q >= n_kv + 64 * ti - 575) & (n_kv + 64 *"
                                        " ti >= n_q - 575)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_kv + 64 * ti >= n_q + 64) & (n_q >= n_kv + 64 * ti - 575)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "(n_kv + 64 * ti > n_q) & (n_q >= n_kv + 64 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "min((n_kv + 63) // 64 - 1, (2 * n_kv - n_q + 61) // 64 + ti, 7)",
                                    where=(
                                        "((n_kv + 64 * ti >= n_q + 576) | (n_q >= n_kv + 64 * ti - 63)) & "
                                        "((n_kv + 64 * ti >= n_q + 64) | (n_q >= n_kv + 64 * ti)) & (n_q > n_kv"
                                        " + 64 * ti) & (n_kv >= 2) & (n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "8",
                                    "8",
                                    where=(
                                        "((n_kv + 64 * ti >= n_q + 576) | (n_q >= n_kv + 64 * ti - 63)) & "
                                        "((n_kv + 64 * ti >= n_q + 64) | (n_q >= n_kv + 64 * ti)) & (n_kv == "
                                        "513) & (n_q > n_kv + 64 * ti) & (n_kv >= 2) & (64 * ti >= n_q - 575) &"
                                        " (n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "8",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "((n_kv != 513) | (n_q >= 64 * ti + 576)) & ((n_kv + 64 * ti >= n_q + "
                                        "576) | (n_q >= n_kv + 64 * ti - 63)) & ((n_kv + 64 * ti >= n_q + 64) |"
                                        " (n_q >= n_kv + 64 * ti)) & (n_q > n_kv + 64 * ti) & (n_kv >= 2) & "
                                        "(n_kv >= 514) & (n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_kv + 64 * ti >= n_q + 576) | (n_q >= n_kv + 64 * ti - 63)) & "
                                        "((n_kv + 64 * ti >= n_q + 64) | (n_q >= n_kv + 64 * ti)) & (n_kv >= 2)"
                                        " & (n_q >= n_kv + 64 * ti + 64) & (n_kv + 64 * ti >= n_q - 575)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "min((n_kv + 63) // 64 - 1, 8)",
                                    where=(
                                        "((n_q >= n_kv + 64 * ti + 576) | (n_kv < 2) | (n_kv + 64 * ti >= n_q -"
                                        " 63)) & ((n_kv + 64 * ti >= n_q + 576) | (n_q >= n_kv + 64 * ti - 63))"
                                        " & ((n_q >= n_kv + 64 * ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < "
                                        "2)) & ((n_kv + 64 * ti >= n_q + 64) | (n_q >= n_kv + 64 * ti)) & (n_kv"
                                        " + 64 * ti == n_q) & (n_kv >= 2)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_kv + 64 * ti != n_q) | (n_kv < 2)) & ((n_q >= n_kv + 64 * ti + "
                                        "576) | (n_kv < 2) | (n_kv + 64 * ti >= n_q - 63)) & ((n_kv + 64 * ti "
                                        ">= n_q + 576) | (n_q >= n_kv + 64 * ti - 63)) & ((n_q >= n_kv + 64 * "
                                        "ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < 2)) & ((n_kv + 64 * ti >="
                                        " n_q + 64) | (n_q >= n_kv + 64 * ti)) & (n_kv == 1) & (n_q >= 64 * ti "
                                        "+ 2) & (64 * ti >= n_q - 576)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                64,
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "n_q >= n_kv + 128 * ti + 640"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_kv + 128 * ti >= n_q + 576) & (n_kv + 128 * ti >= n_q - 639)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_kv + 128 * ti >= n_q + 64) & (n_q >= n_kv + 128 * ti - 575)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_kv + 128 * ti >= n_q + 576) | (n_q >= n_kv + 128 * ti - 63)) & "
                                        "(n_q >= n_kv + 128 * ti + 128) & (n_kv + 128 * ti >= n_q - 639)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "8",
                                    where=(
                                        "((n_q >= n_kv + 128 * ti + 640) | (n_kv + 128 * ti >= n_q - 127)) & "
                                        "(n_kv >= 514) & (128 * ti >= n_q - 513) & (n_q >= n_kv + 128 * ti - "
                                        "63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "7",
                                    where=(
                                        "(n_kv >= 514) & (n_q >= 128 * ti + 514) & (n_kv + 128 * ti >= n_q - "
                                        "127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "8",
                                    "8",
                                    where=(
                                        "(n_kv + 128 * ti == n_q + 63) & (n_kv >= 514) & (n_q >= 128 * ti + "
                                        "514) & (n_kv + 128 * ti >= n_q - 127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "max((n_kv - n_q + 1) // 64 + 2 * ti + 8, 8)",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "(n_kv >= 514) & (n_q >= 128 * ti + 514) & (n_kv + 128 * ti >= n_q - "
                                        "127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "min((n_kv + 63) // 64 - 1, (2 * n_kv - n_q + 61) // 64 + 2 * ti + 1)",
                                    where=(
                                        "(n_kv >= 2) & (n_kv + 128 * ti >= n_q - 127) & (n_kv < 514) & (n_q >= "
                                        "n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_q >= n_kv + 128 * ti + 128) | (n_kv >= 514) | (n_kv + 128 * ti >= "
                                        "n_q + 64) | (n_kv < 2)) & ((n_q >= n_kv + 128 * ti + 128) | (n_kv + "
                                        "128 * ti >= n_q + 64) | (n_kv < 514) | (128 * ti >= n_q - 513)) & "
                                        "((n_q >= 128 * ti + 514) | (n_kv + 128 * ti >= n_q + 64) | (n_kv < "
                                        "514)) & ((n_kv + 128 * ti >= n_q + 576) | (n_q >= n_kv + 128 * ti - "
                                        "63)) & ((n_q >= n_kv + 128 * ti + 640) | (n_kv + 128 * ti >= n_q - "
                                        "127)) & (n_kv == 1) & (n_q >= 128 * ti + 2) & (128 * ti >= n_q - 128)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_q >= n_kv + 128 * ti + 640) & (n_kv < 65)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "n_kv + 128 * ti >= n_q + 64"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_q >= n_kv + 128 * ti + 128) & (n_kv >= 65) & (n_q >= n_kv + 128 * "
                                        "ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "4",
                                    where=(
                                        "((n_kv + 128 * ti >= n_q - 127) | (n_kv < 65)) & (n_kv >= 514) & (128 "
                                        "* ti >= n_q - 513) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_q >= 128 * ti + 514) | (n_kv < 514)) & (n_q >= n_kv + 128 * ti + "
                                        "128) & (n_q >= n_kv + 128 * ti - 63) & (n_kv + 128 * ti >= n_q - 639) "
                                        "& (n_kv < 65)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "3",
                                    where=(
                                        "(n_kv >= 514) & (n_q >= 128 * ti + 514) & (n_kv + 128 * ti >= n_q - "
                                        "127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "4",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "(n_kv >= 514) & (n_q >= 128 * ti + 514) & (n_kv + 128 * ti >= n_q - "
                                        "127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "min((n_kv + 127) // 128 - 1, (2 * n_kv - n_q + 125) // 128 + ti)",
                                    where=(
                                        "((n_q >= n_kv + 128 * ti + 128) | (n_kv < 514) | (128 * ti >= n_q - "
                                        "513)) & ((n_q >= 128 * ti + 514) | (n_kv < 514)) & (n_kv >= 2) & (n_kv"
                                        " + 128 * ti >= n_q - 127) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_q >= n_kv + 128 * ti + 128) | (n_kv < 2)) & ((n_q >= n_kv + 128 * "
                                        "ti + 128) | (n_kv < 514) | (128 * ti >= n_q - 513)) & ((n_q >= 128 * "
                                        "ti + 514) | (n_kv < 514)) & ((n_q >= n_kv + 128 * ti + 640) | (n_kv >="
                                        " 65) | (n_kv + 128 * ti >= n_q - 127)) & ((n_kv + 128 * ti >= n_q - "
                                        "127) | (n_kv < 65)) & (n_kv == 1) & (n_q >= 128 * ti + 2) & (128 * ti "
                                        ">= n_q - 128) & (n_q >= n_kv + 128 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_q >= n_kv + 64 * ti + 576) & (n_kv < 65)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "5",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_kv >= 65) | (n_kv + 64 * ti >= n_q - 575)) & (n_kv + 64 * ti == "
                                        "n_q)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "n_kv + 64 * ti >= n_q + 64"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_q >= n_kv + 64 * ti + 64) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti -"
                                        " 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_kv + 64 * ti >= n_q - 63) | (n_kv < 65)) & (n_kv + 64 * ti > n_q) "
                                        "& (n_q >= n_kv + 64 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "min((2 * n_kv + 64 * ti - n_q + 61) // 128, (n_kv + 127) // 128 - 1, "
                                    "3)",
                                    where=(
                                        "(n_q > n_kv + 64 * ti) & (n_kv >= 2) & (n_q >= n_kv + 64 * ti) & (n_q "
                                        ">= n_kv + 64 * ti - 63) & (n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "4",
                                    "4",
                                    where=(
                                        "(n_kv == 513) & (n_q > n_kv + 64 * ti) & (n_kv >= 2) & (n_q >= n_kv + "
                                        "64 * ti) & (64 * ti >= n_q - 575) & (n_q >= n_kv + 64 * ti - 63) & "
                                        "(n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "4",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "((n_kv != 513) | (n_q >= 64 * ti + 576)) & (n_q > n_kv + 64 * ti) & "
                                        "(n_kv >= 2) & (n_kv >= 514) & (n_q >= n_kv + 64 * ti) & (n_q >= n_kv +"
                                        " 64 * ti - 63) & (n_kv + 64 * ti >= n_q - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "(n_kv >= 2) & (n_q >= n_kv + 64 * ti + 64) & (n_q >= n_kv + 64 * ti) &"
                                        " (n_kv + 64 * ti >= n_q - 575) & (n_q >= n_kv + 64 * ti - 63) & (n_kv "
                                        "< 65)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_q >= n_kv + 64 * ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < 2)) "
                                        "& ((n_kv + 64 * ti >= n_q - 63) | (n_kv < 65)) & (n_kv + 64 * ti == "
                                        "n_q) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti) & (n_q >= n_kv + 64 * ti"
                                        " - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "1",
                                    "min((n_kv + 127) // 128 - 1, 4)",
                                    where=(
                                        "((n_q >= n_kv + 64 * ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < 2)) "
                                        "& ((n_kv + 64 * ti >= n_q - 63) | (n_kv < 65)) & (n_kv + 64 * ti == "
                                        "n_q) & (n_kv >= 65) & (n_q >= n_kv + 64 * ti) & (n_q >= n_kv + 64 * ti"
                                        " - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_kv + 64 * ti != n_q) | (n_kv < 65)) & ((n_q >= n_kv + 64 * ti + "
                                        "576) | (n_kv >= 65) | (n_kv < 2) | (n_kv + 64 * ti >= n_q - 63)) & "
                                        "((n_q >= n_kv + 64 * ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < 2)) "
                                        "& ((n_kv + 64 * ti >= n_q - 63) | (n_kv < 65)) & (n_kv == 1) & (n_q >="
                                        " 64 * ti + 2) & (n_q >= n_kv + 64 * ti) & (64 * ti >= n_q - 576) & "
                                        "(n_q >= n_kv + 64 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                                loop(
                                    "0",
                                    "0",
                                    where=(
                                        "((n_kv != 1) | (n_q >= 64 * ti + 577) | (64 * ti >= n_q - 1)) & ((n_kv"
                                        " + 64 * ti != n_q) | (n_kv < 65)) & ((n_q >= n_kv + 64 * ti + 576) | "
                                        "(n_kv >= 65) | (n_kv < 2) | (n_kv + 64 * ti >= n_q - 63)) & ((n_q >= "
                                        "n_kv + 64 * ti + 64) | (n_kv + 64 * ti >= n_q) | (n_kv < 2)) & ((n_kv "
                                        "+ 64 * ti >= n_q - 63) | (n_kv < 65)) & (n_kv + 64 * ti == n_q) & "
                                        "(n_kv >= 2) & (n_q >= n_kv + 64 * ti) & (n_q >= n_kv + 64 * ti - 63)"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=(
                                'n_kv - n_q',
                                'n_q - n_kv - 513',
                                'n_kv - n_q - 513',
                                '63',
                                'n_q - n_kv + 63',
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
                            SOURCE["part0.cpu"],
                            tile=(64, 64),
                            ranges=False,
                            passes=("forward", "backward"),
                        ),
                        kernel(
                            "sm_80",
                            SOURCE["part0.sm_80"],
                            launch("attention_forward", "rows", threads=128, shared=70656),
                            tile=(128, 64),
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
                2,
                bundle(
                    "dilated_longformer_part1",
                    head_dim=128,
                    head_dim_v=128,
                    dtype="bfloat16",
                    n_heads=None,
                    masks=(
                        mask(
                            "(k >= q + n_kv - n_q - 256) & (k <= q + n_kv - n_q + 256)",
                            tiles(
                                64,
                                64,
                                loop(
                                    "max((n_kv - n_q + 62) // 64 + ti - 3, 0)",
                                    "(n_kv - n_q + 1) // 64 + ti + 3",
                                    where=(
                                        "n_q >= 64 * ti + 258"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv + 62) // 64 - 4",
                                    "(n_kv + 62) // 64 - 4",
                                    where=(
                                        "(((n_kv + 64 * ti >= n_q + 194) & (n_kv < 258)) | ((n_kv >= 258) & "
                                        "((n_kv + 62) % 64 + 64 * ti >= n_q))) & (64 * ti >= n_q - 257)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q + 62) // 64 + ti - 3, 0)",
                                    "(n_kv + 63) // 64 - 1",
                                    where=(
                                        "64 * ti >= n_q - 257"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 64 + ti - 4, 0)",
                                    "min((n_kv - n_q + 62) // 64 + ti - 3, (n_kv + 62) // 64 - 4) - 1",
                                    full=False,
                                ),
                                loop(
                                    "max(0, (n_kv - n_q + 1) // 64 + ti + 4)",
                                    "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + ti + 4)",
                                    where=(
                                        "n_q >= 64 * ti + 258"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                128,
                                128,
                                loop(
                                    "max((n_kv - n_q + 126) // 128 + ti - 1, 0)",
                                    "(n_kv - n_q + 1) // 128 + ti + 1",
                                    where=(
                                        "n_q >= 128 * ti + 258"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv + 126) // 128 - 2",
                                    "(n_kv + 126) // 128 - 2",
                                    where=(
                                        "(((n_kv + 128 * ti >= n_q + 130) & (n_kv < 258)) | ((n_kv >= 258) & "
                                        "((n_kv + 126) % 128 + 128 * ti >= n_q))) & (128 * ti >= n_q - 257)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q + 126) // 128 + ti - 1, 0)",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "128 * ti >= n_q - 257"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv - n_q) // 128 + ti - 2, 0)",
                                    "min((n_kv - n_q + 126) // 128 + ti - 1, (n_kv + 126) // 128 - 2) - 1",
                                    full=False,
                                ),
                                loop(
                                    "max(0, (n_kv - n_q + 1) // 128 + ti + 2)",
                                    "min((n_kv + 127) // 128 - 1, (n_kv - n_q + 127) // 128 + ti + 2)",
                                    where=(
                                        "n_q >= 128 * ti + 258"
                                    ),
                                    full=False,
                                ),
                            ),
                            tiles(
                                64,
                                128,
                                loop(
                                    "max((n_kv + 64 * ti - n_q + 62) // 128 - 1, 0)",
                                    "(n_kv + 64 * ti - n_q + 1) // 128 + 1",
                                    where=(
                                        "n_q >= 64 * ti + 258"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "(n_kv + 126) // 128 - 2",
                                    "(n_kv + 126) // 128 - 2",
                                    where=(
                                        "(((n_kv + 64 * ti >= n_q + 194) & (n_kv < 258)) | ((n_kv >= 258) & "
                                        "((n_kv + 126) % 128 + 64 * ti >= n_q + 64))) & (64 * ti >= n_q - 257)"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q + 62) // 128 - 1, 0)",
                                    "(n_kv + 127) // 128 - 1",
                                    where=(
                                        "64 * ti >= n_q - 257"
                                    ),
                                    full=True,
                                ),
                                loop(
                                    "max((n_kv + 64 * ti - n_q) // 128 - 2, 0)",
                                    "min((n_kv + 64 * ti - n_q + 62) // 128 - 1, (n_kv + 126) // 128 - 2) -"
                                    " 1",
                                    full=False,
                                ),
                                loop(
                                    "max(0, (n_kv + 64 * ti - n_q + 1) // 128 + 2)",
                                    "min((n_kv + 127) // 128 - 1, (n_kv + 64 * ti - n_q + 63) // 128 + 2)",
                                    where=(
                                        "n_q >= 64 * ti + 258"
                                    ),
                                    full=False,
                                ),
                            ),
                            shape=0,
                            args=('n_q - n_kv + 256', 'n_kv - n_q + 256'),
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
