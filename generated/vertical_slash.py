"""Keys in `columns` and keys at a distance in `slashes`.

Mask: causal() & (global_tokens([0, 1, 2, 3]).columns | offsets([0, 1, 2, 3, 256, 512]))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
vertical_slash.cpu.c, vertical_slash.sm_80.cu, vertical_slash.sm_90a.cu,
vertical_slash.sm_90a_small.cu, vertical_slash.sm_90a_backward.cu,
vertical_slash.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "vertical_slash.cpu.c").read_text(),
    "sm_80": (_HERE / "vertical_slash.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "vertical_slash.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "vertical_slash.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "vertical_slash.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "vertical_slash.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((k < 4) | member(q + n_kv - k - n_q, [(0, 3), (256, 256), (512, 512)])) & (k <= q + n_kv -
         n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 3)
piece    band: k == q + n_kv - n_q - 256
piece    band: k == q + n_kv - n_q - 512
piece    columns: (k != q + n_kv - n_q - 256) & (k != q + n_kv - n_q - 512) & (k <= q + n_kv - n_q -
         4) & (k < 4)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    10*N - 804  (N >= 3086)
flops    forward 5120*N - 411648, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 14 closed-form loops

target   sm_80, bfloat16, head_dim 128
mask     ((k < 4) | member(q + n_kv - k - n_q, [(0, 3), (256, 256), (512, 512)])) & (k <= q + n_kv -
         n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 3)
piece    band: k == q + n_kv - n_q - 256
piece    band: k == q + n_kv - n_q - 512
piece    columns: (k != q + n_kv - n_q - 256) & (k != q + n_kv - n_q - 512) & (k <= q + n_kv - n_q -
         4) & (k < 4)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    10*N - 804  (N >= 3086)
flops    forward 5120*N - 411648, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 64 x 64, 2 warps of 32 rows (each fragment of K and V serves them all), 51 KiB of
         shared memory; 64 queries a tile because rows are short: 513 consecutive keys, with the
         first 64, hold each
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 14 closed-form loops

target   sm_90a, bfloat16, head_dim 128
mask     ((k < 4) | member(q + n_kv - k - n_q, [(0, 3), (256, 256), (512, 512)])) & (k <= q + n_kv -
         n_q)
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 3)
piece    band: k == q + n_kv - n_q - 256
piece    band: k == q + n_kv - n_q - 512
piece    columns: (k != q + n_kv - n_q - 256) & (k != q + n_kv - n_q - 512) & (k <= q + n_kv - n_q -
         4) & (k < 4)
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    10*N - 804  (N >= 3086)
flops    forward 5120*N - 411648, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 13 closed-form loops
plan     partial tiles: bits from a table over k - q and of 1 interval per row, no pair is tested
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
        "vertical_slash",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((k < 4) | member(q + n_kv - k - n_q, [(0, 3), (256, 256), (512, "
                "512)])) & (k <= q + n_kv - n_q)",
                tiles(
                    64,
                    64,
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 64 * ti + 1) & (n_kv < 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & ((n_kv + 59) % 64 >= 60) & (n_kv >= 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 64 * ti + 1) & (n_kv >= 577)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv < 577)) & (n_q == 64 * ti + 1) & (n_kv "
                            ">= 321) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv < 577)) & (n_q == 64 * ti + 1) & (n_kv >= 68) & (n_kv "
                            "< 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 577)) & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 576)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 577)) & ((64 * ti >= n_q - 1) | (n_q >= n_kv + 64 * ti - 575))"
                            " & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 449) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 577)) & ((64 * ti >= n_q - 1) | (n_q >= n_kv + 64 * ti - 575))"
                            " & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 320) & (n_q >= n_kv"
                            " + 64 * ti - 448)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 577)) & ((n_kv + 64 * ti >= n_q + 449) | (64 * ti >= n_q - 1) "
                            "| (n_q >= n_kv + 64 * ti - 319)) & ((n_kv >= 513) | (64 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 64 * ti - 448)) & ((64 * ti >= n_q - 1) | (n_q >= "
                            "n_kv + 64 * ti - 575)) & (n_kv + 64 * ti >= n_q + 193) & (n_q >= 64 * "
                            "ti + 2) & (n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 577)) & ((n_kv + 64 * ti >= n_q + 449) | (64 * ti >= n_q - 1) "
                            "| (n_q >= n_kv + 64 * ti - 319)) & ((n_kv >= 513) | (64 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 64 * ti - 448)) & ((64 * ti >= n_q - 1) | (n_q >= "
                            "n_kv + 64 * ti - 575)) & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q"
                            " + 67) & (n_q >= n_kv + 64 * ti - 192)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 8, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 7, (n_kv + 63) // 64 - 8) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 4, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 3, (n_kv + 63) // 64 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 59) // 64 - 1",
                        "(n_kv + 59) // 64 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & ((n_kv + 60) % 64 >= 1) & (n_kv >= 9)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 61) // 64 + ti - 1, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + ti)",
                        where=(
                            "((n_q != 64 * ti + 1) | ((n_kv + 60) % 64 < 1) | (n_kv < 9)) & (n_q >="
                            " 64 * ti + 2)"
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
                            "(n_q == 128 * ti + 1) & (n_kv < 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q == 128 * ti + 1) & ((n_kv + 123) % 128 >= 124) & (n_kv >= 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 128 * ti + 1) & (n_kv >= 641)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv < 641)) & (n_q == 128 * ti + 1) & (n_kv"
                            " >= 385) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv < 641)) & (n_q == 128 * ti + 1) & (n_kv >= 132) & "
                            "(n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 641)) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= n_q + 640)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 641)) & ((128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti - "
                            "639)) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= n_q + 385) & (n_kv"
                            " < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 641)) & ((n_kv >= 513) | (128 * ti >= n_q - 1) | (n_q >= n_kv "
                            "+ 128 * ti - 384)) & ((128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti "
                            "- 639)) & (n_kv + 128 * ti == n_q + 384) & (n_kv >= 386)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 641)) & ((n_kv + 128 * ti != n_q + 384) | (n_kv < 386)) & "
                            "((n_kv >= 513) | (128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti - "
                            "384)) & ((128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti - 639)) & "
                            "(n_kv + 128 * ti >= n_q + 131) & (n_q >= 128 * ti + 2) & (n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 4, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 3, (n_kv + 127) // 128 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 2, 0)",
                        "min((n_kv - n_q + 125) // 128 + ti - 1, (n_kv + 127) // 128 - 2) - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 123) // 128 - 1",
                        "(n_kv + 123) // 128 - 1",
                        where=(
                            "(n_q == 128 * ti + 1) & ((n_kv + 124) % 128 >= 1) & (n_kv >= 9)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 125) // 128 + ti - 1, 0)",
                        "min((n_kv + 127) // 128 - 1, (n_kv - n_q + 127) // 128 + ti)",
                        where=(
                            "((n_q != 128 * ti + 1) | ((n_kv + 124) % 128 < 1) | (n_kv < 9)) & (n_q"
                            " >= 128 * ti + 2)"
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
                            "(n_q == 64 * ti + 1) & (n_kv < 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 127) // 128 - 1",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & ((n_kv + 123) % 128 >= 124) & (n_kv >= 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 64 * ti + 1) & (n_kv >= 641)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv < 641)) & (n_q == 64 * ti + 1) & (n_kv "
                            ">= 385) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv < 641)) & (n_q == 64 * ti + 1) & (n_kv >= 132) & (n_kv"
                            " < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 641)) & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 640)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 641)) & ((64 * ti >= n_q - 1) | (n_q >= n_kv + 64 * ti - 639))"
                            " & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 449) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 641)) & ((64 * ti >= n_q - 1) | (n_q >= n_kv + 64 * ti - 639))"
                            " & (n_q >= 64 * ti + 2) & (n_kv + 64 * ti >= n_q + 384) & (n_q >= n_kv"
                            " + 64 * ti - 448)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 641)) & ((n_kv + 64 * ti >= n_q + 449) | (64 * ti >= n_q - 1) "
                            "| (n_q >= n_kv + 64 * ti - 383)) & ((n_kv >= 513) | (64 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 64 * ti - 448)) & ((64 * ti >= n_q - 1) | (n_q >= "
                            "n_kv + 64 * ti - 639)) & (n_kv + 64 * ti >= n_q + 193) & (n_q >= 64 * "
                            "ti + 2) & (n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 64 * ti + 1) | (n_kv >= 257) | (n_kv < 132)) & ((n_q != 64 * "
                            "ti + 1) | (n_kv >= 513) | (n_kv < 385)) & ((n_q != 64 * ti + 1) | "
                            "(n_kv < 641)) & ((n_kv + 64 * ti >= n_q + 449) | (64 * ti >= n_q - 1) "
                            "| (n_q >= n_kv + 64 * ti - 383)) & ((n_kv >= 513) | (64 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 64 * ti - 448)) & ((64 * ti >= n_q - 1) | (n_q >= "
                            "n_kv + 64 * ti - 639)) & (n_kv + 64 * ti >= n_q + 131) & (n_q >= 64 * "
                            "ti + 2) & (n_q >= n_kv + 64 * ti - 192)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 4, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 3, (n_kv + 127) // 128 - 4) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 2, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 1, (n_kv + 127) // 128 - 2) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 123) // 128 - 1",
                        "(n_kv + 123) // 128 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & ((n_kv + 124) % 128 >= 1) & (n_kv >= 9)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q + 125) // 128 - 1, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                        where=(
                            "((n_q != 64 * ti + 1) | ((n_kv + 124) % 128 < 1) | (n_kv < 9)) & (n_q "
                            ">= 64 * ti + 2)"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('3', 'n_kv - n_q'),
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
        report=REPORT,
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
