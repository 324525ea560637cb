"""Diffusion inside blocks of `block` tokens, autoregression between them.

Mask: where(lambda q, k: ((k // 16 == q // 16) & (k < n_q // 2) & (q < n_q // 2)) | ((q // 16 > (k -
      n_q // 2) // 16) & (q < n_q // 2) & (k >= n_q // 2)) | (((q - n_q // 2) // 16 >= (k - n_q //
      2) // 16) & (k >= n_q // 2) & (q >= n_q // 2)))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
block_diffusion.cpu.c, block_diffusion.sm_80.cu, block_diffusion.sm_90a.cu,
block_diffusion.sm_90a_small.cu, block_diffusion.sm_90a_backward.cu,
block_diffusion.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "block_diffusion.cpu.c").read_text(),
    "sm_80": (_HERE / "block_diffusion.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "block_diffusion.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "block_diffusion.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "block_diffusion.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "block_diffusion.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     ((k // 16 == q // 16) & (k < n_q // 2) & (q < n_q // 2)) | ((q // 16 > (k - n_q // 2) //
         16) & (q < n_q // 2) & (k >= n_q // 2)) | (((q - n_q // 2) // 16 >= (k - n_q // 2) // 16) &
         (k >= n_q // 2))
piece    band: (n_q >= 2 * k + 2) & (n_q >= 2 * q + 2) & (k >= 16 * (q // 16)) & (k <= 16 * (q //
         16) + 15)
piece    band: (q >= 16 * ((2 * k - n_q + 1) // 32) + 16) & (n_q >= 2 * q + 2) & (2 * k >= n_q - 1)
piece    band: (2 * k >= n_q - 1) & (32 * ((2 * q - n_q + 1) // 32) + n_q >= 2 * k - 30)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 18 closed-form loops

target   sm_80, bfloat16, head_dim 128
mask     ((k // 16 == q // 16) & (k < n_q // 2) & (q < n_q // 2)) | ((q // 16 > (k - n_q // 2) //
         16) & (q < n_q // 2) & (k >= n_q // 2)) | (((q - n_q // 2) // 16 >= (k - n_q // 2) // 16) &
         (k >= n_q // 2))
piece    band: (n_q >= 2 * k + 2) & (n_q >= 2 * q + 2) & (k >= 16 * (q // 16)) & (k <= 16 * (q //
         16) + 15)
piece    band: (q >= 16 * ((2 * k - n_q + 1) // 32) + 16) & (n_q >= 2 * q + 2) & (2 * k >= n_q - 1)
piece    band: (2 * k >= n_q - 1) & (32 * ((2 * q - n_q + 1) // 32) + n_q >= 2 * k - 30)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 18 closed-form loops

target   sm_90a, bfloat16, head_dim 128
mask     ((k // 16 == q // 16) & (k < n_q // 2) & (q < n_q // 2)) | ((q // 16 > (k - n_q // 2) //
         16) & (q < n_q // 2) & (k >= n_q // 2)) | (((q - n_q // 2) // 16 >= (k - n_q // 2) // 16) &
         (k >= n_q // 2))
piece    band: (n_q >= 2 * k + 2) & (n_q >= 2 * q + 2) & (k >= 16 * (q // 16)) & (k <= 16 * (q //
         16) + 15)
piece    band: (q >= 16 * ((2 * k - n_q + 1) // 32) + 16) & (n_q >= 2 * q + 2) & (2 * k >= n_q - 1)
piece    band: (2 * k >= n_q - 1) & (32 * ((2 * q - n_q + 1) // 32) + n_q >= 2 * k - 30)
proof    causal: no (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 18 closed-form loops
plan     partial tiles: pairs are tested, as a query's keys are not a few intervals
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
        "block_diffusion",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "((k // 16 == q // 16) & (k < n_q // 2) & (q < n_q // 2)) | ((q // 16 >"
                " (k - n_q // 2) // 16) & (q < n_q // 2) & (k >= n_q // 2)) | (((q - "
                "n_q // 2) // 16 >= (k - n_q // 2) // 16) & (k >= n_q // 2))",
                tiles(
                    64,
                    64,
                    loop(
                        "(n_q + 126) // 128",
                        "min((n_kv + 63) // 64 - 1, ti - 1)",
                        full=True,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "(n_kv > 64 * ti) & (2 * n_kv >= n_q + 33) & (n_q + 128 * ti >= 32 * "
                            "((n_q + 30) // 32) + 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "n_q // 128 + ti - 1",
                        where=(
                            "(2 * n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + 128)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q >= 128 * ti + 128) & (2 * n_kv >= n_q + 33) & (n_q + 128 * ti >= "
                            "2 * n_kv)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "((n_q + 128 * ti >= 2 * n_kv) | (128 * ti >= n_q - 127)) & (n_kv > 64 "
                            "* ti) & (128 * ti >= n_q - 1) & (n_q >= 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "(n_q + 126) // 128",
                        where=(
                            "((n_q + 128 * ti >= 2 * n_kv) | (128 * ti >= n_q - 127)) & (n_kv > 64 "
                            "* ((n_q + 126) // 128)) & (ti >= 1) & (n_q >= 128 * ti + 2) & (n_q >= "
                            "2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti",
                        "min((2 * n_kv - n_q + 31) // 32 + ti - 1, (n_q - 32 * ti + 94) // 96 -"
                        " 1)",
                        where=(
                            "(n_q >= 128 * ti + 2) & (128 * ti >= n_q - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q - 32 * ti + 94) // 96",
                        "min((n_q + 62) // 64 - 1, (n_kv + 63) // 64 - 1)",
                        where=(
                            "(2 * n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + 2) & (128 * ti >= n_q"
                            " - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "1",
                        where=(
                            "(ti == 0) & (2 * n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + 2) & "
                            "(n_kv >= 65) & (128 * ti >= n_q - 127) & (n_q >= 2 * n_kv - 32)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q - 32 * ti + 94) // 96",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q >= 128 * ti + 2) & (n_q + 128 * ti >= 2 * n_kv) & (128 * ti >= "
                            "n_q - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "(n_kv > 64 * ti) & (n_q >= 128 * ti + 2) & (n_q >= 2 * n_kv) & (128 * "
                            "ti >= n_q - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 126) // 128 - 1",
                        "(n_q + 126) // 128 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 128 >= 2) & (128 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "min((2 * n_q - (n_q + 30) % 32 + 29) // 128, (2 * n_kv - ti + 124) // "
                        "127 - 1, (n_q + 1) // 2 + 16 * ((n_q + 30) // 32) + ti - n_q, ti + 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv >= (n_q + 30) % 32 + 128 * ti + 3) & (n_q"
                            " + 128 * ti >= 2 * n_kv) & (128 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "min((2 * n_q - (n_q + 30) % 32 + 29) // 128, (n_q + 1) // 2 + 16 * "
                        "((n_q + 30) // 32) + ti - n_q, ti + 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv > n_q + 128 * ti) & (n_q >= 34) & (128 * "
                            "ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "((n_q >= 128 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 64 * ti) & (n_q "
                            ">= 128 * ti + 128)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 126) // 128 - 1",
                        "(n_q + 126) // 128 - 1",
                        where=(
                            "((n_q >= 128 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 64 * ti) & (2 * "
                            "n_kv > n_q) & (n_q >= 128 * ti + 128) & (n_q % 128 >= 2)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 126) // 128, n_q // 128 + ti)",
                        "min((n_kv + 63) // 64 - 1, (n_q + 94) // 128 + ti)",
                        where=(
                            "((n_q >= 128 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 64 * ti) & (2 * "
                            "n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + 128)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q >= 128 * ti + 128) | (128 * ti >= n_q - 1)) & (n_q == 1) & (ti "
                            "== 0) & (n_kv >= 17)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    64,
                    loop(
                        "(n_q + 126) // 128",
                        "min((n_kv + 63) // 64 - 1, 2 * ti - 1)",
                        full=True,
                    ),
                    loop(
                        "2 * ti",
                        "2 * ti",
                        where=(
                            "(n_kv > 128 * ti) & (2 * n_kv >= n_q + 33) & (n_q + 256 * ti >= 32 * "
                            "((n_q + 30) // 32) + 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "n_q // 128 + 2 * ti - 1",
                        where=(
                            "(2 * n_kv > n_q + 256 * ti) & (n_q >= 256 * ti + 256)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q >= 256 * ti + 256) & (2 * n_kv >= n_q + 33) & (n_q + 256 * ti >= "
                            "2 * n_kv)"
                        ),
                        full=True,
                    ),
                    loop(
                        "2 * ti",
                        "2 * ti",
                        where=(
                            "((n_q + 256 * ti >= 2 * n_kv) | (256 * ti >= n_q - 255)) & (n_kv > 128"
                            " * ti) & (256 * ti >= n_q - 1) & (n_q >= 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128",
                        "(n_q + 126) // 128",
                        where=(
                            "((n_q + 256 * ti >= 2 * n_kv) | (256 * ti >= n_q - 255)) & (n_kv > 64 "
                            "* ((n_q + 126) // 128)) & (ti >= 1) & (n_q >= 256 * ti + 2) & (n_q >= "
                            "2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 126) // 128 - 1",
                        "(n_q + 126) // 128 - 1",
                        where=(
                            "(256 * ti > n_q) & (2 * n_kv > n_q) & (n_q % 128 >= 2)"
                        ),
                        full=False,
                    ),
                    loop(
                        "2 * ti",
                        "2 * ti",
                        where=(
                            "(2 * n_kv > n_q) & (32 * ((n_q + 30) // 32) + 2 * n_kv >= n_q + 256 * "
                            "ti + 33) & (256 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "2 * ti + 1",
                        "min((2 * n_q - (n_q + 30) % 32 + 29) // 128, (n_kv + 63) // 64 - 1, 2 "
                        "* ti - ((n_q + 30) % 32 + 98) // 128 + 2)",
                        where=(
                            "(2 * n_kv > n_q) & (n_q + 256 * ti >= 2 * n_kv) & (256 * ti >= n_q - "
                            "1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "2 * ti",
                        "min(n_q // 128 - 1, 2 * ti + 1)",
                        where=(
                            "2 * n_kv > n_q"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 126) // 128 - 1",
                        "(n_q + 126) // 128 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 128 >= 2) & (n_q >= 256 * ti + 2)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 30) // 128",
                        "(n_q + 30) // 128",
                        where=(
                            "(2 * n_kv > n_q) & (n_q >= 256 * ti + 2) & (2 * n_kv >= n_q + 33) & "
                            "((n_q + 126) % 128 >= 96) & (256 * ti >= n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 30) // 128 + 1, 2 * ti + 1)",
                        "min((32 * ((n_q + 30) // 32) + n_q + 127) // 128 - 1, (n_kv + 63) // "
                        "64 - 1, 2 * ti - (n_q - 32 * ((n_q + 30) // 32)) // 128 + 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv > n_q + 256 * ti)"
                        ),
                        full=False,
                    ),
                    loop(
                        "2 * ti - ((n_q + 30) % 32 + 98) // 128 + 3",
                        "min((n_q + 62) // 64 - 1, (n_kv + 63) // 64 - 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv > n_q + 256 * ti) & (n_q >= 256 * ti + 2)"
                            " & (256 * ti >= n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "n_q - (127 * n_q + 1) // 128",
                        "n_q - (127 * n_q + 1) // 128",
                        where=(
                            "(ti == 0) & (n_kv > 64 * ((n_q + 126) // 128)) & (2 * n_kv > n_q) & (2"
                            " * n_kv > n_q + 256 * ti) & (n_q >= 34) & (n_q < 256) & (n_q >= 2 * "
                            "n_kv - 32)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 126) // 128, n_q // 128 + 2 * ti)",
                        "min((n_kv + 63) // 64 - 1, (n_q + 94) // 128 + 2 * ti + 1)",
                        where=(
                            "((ti != 0) | (n_q >= 256) | (2 * n_kv >= n_q + 33) | (64 * ((n_q + "
                            "126) // 128) >= n_kv) | (n_q < 34)) & (2 * n_kv > n_q) & (2 * n_kv > "
                            "n_q + 256 * ti) & (n_q >= 256 * ti + 256)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 30) // 128 + 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q >= 256 * ti + 2) & (n_q + 256 * ti >= 2 * "
                            "n_kv) & (256 * ti >= n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "2 * ti",
                        "min((n_kv + 63) // 64 - 1, 2 * ti + 1)",
                        where=(
                            "n_q >= 2 * n_kv"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    128,
                    128,
                    loop(
                        "(n_q + 254) // 256",
                        "min((n_kv + 127) // 128 - 1, ti - 1)",
                        full=True,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "(n_kv > 128 * ti) & (2 * n_kv >= n_q + 33) & (n_q + 256 * ti >= 32 * "
                            "((n_q + 30) // 32) + 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 254) // 256",
                        "n_q // 256 + ti - 1",
                        where=(
                            "(2 * n_kv > n_q + 256 * ti) & (n_q >= 256 * ti + 256)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 254) // 256",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q >= 256 * ti + 256) & (2 * n_kv >= n_q + 33) & (n_q + 256 * ti >= "
                            "2 * n_kv)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "((n_q + 256 * ti >= 2 * n_kv) | (256 * ti >= n_q - 255)) & (n_kv > 128"
                            " * ti) & (256 * ti >= n_q - 1) & (n_q >= 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 254) // 256",
                        "(n_q + 254) // 256",
                        where=(
                            "((n_q + 256 * ti >= 2 * n_kv) | (256 * ti >= n_q - 255)) & (n_kv > 128"
                            " * ((n_q + 254) // 256)) & (ti >= 1) & (n_q >= 256 * ti + 2) & (n_q >="
                            " 2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti",
                        "min((n_q - 32 * ti + 222) // 224 - 1, (2 * n_kv - n_q + 31) // 32 + ti"
                        " - 1)",
                        where=(
                            "(n_q >= 256 * ti + 2) & (256 * ti >= n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q - 32 * ti + 222) // 224",
                        "min((n_q + 126) // 128 - 1, (n_kv + 127) // 128 - 1)",
                        where=(
                            "(2 * n_kv > n_q + 256 * ti) & (n_q >= 256 * ti + 2) & (256 * ti >= n_q"
                            " - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "1",
                        "1",
                        where=(
                            "(ti == 0) & (2 * n_kv > n_q + 256 * ti) & (n_kv >= 129) & (n_q >= 256 "
                            "* ti + 2) & (256 * ti >= n_q - 255) & (n_q >= 2 * n_kv - 32)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q - 32 * ti + 222) // 224",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q >= 256 * ti + 2) & (n_q + 256 * ti >= 2 * n_kv) & (256 * ti >= "
                            "n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "(n_kv > 128 * ti) & (n_q >= 256 * ti + 2) & (n_q >= 2 * n_kv) & (256 *"
                            " ti >= n_q - 255)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 254) // 256 - 1",
                        "(n_q + 254) // 256 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 256 >= 2) & (256 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "min((2 * n_q - (n_q + 30) % 32 + 29) // 256, (2 * n_kv - ti + 252) // "
                        "255 - 1, (n_q + 1) // 2 + 16 * ((n_q + 30) // 32) + ti - n_q, ti + 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv >= (n_q + 30) % 32 + 256 * ti + 3) & (n_q"
                            " + 256 * ti >= 2 * n_kv) & (256 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "min((2 * n_q - (n_q + 30) % 32 + 29) // 256, (n_q + 1) // 2 + 16 * "
                        "((n_q + 30) // 32) + ti - n_q, ti + 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv > n_q + 256 * ti) & (n_q >= 34) & (256 * "
                            "ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti",
                        "ti",
                        where=(
                            "((n_q >= 256 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 128 * ti) & (n_q"
                            " >= 256 * ti + 256)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 254) // 256 - 1",
                        "(n_q + 254) // 256 - 1",
                        where=(
                            "((n_q >= 256 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 128 * ti) & (2 *"
                            " n_kv > n_q) & (n_q % 256 >= 2) & (n_q >= 256 * ti + 256)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 254) // 256, n_q // 256 + ti)",
                        "min((n_kv + 127) // 128 - 1, (n_q + 222) // 256 + ti)",
                        where=(
                            "((n_q >= 256 * ti + 2) | (n_q >= 2 * n_kv)) & (n_kv > 128 * ti) & (2 *"
                            " n_kv > n_q + 256 * ti) & (n_q >= 256 * ti + 256)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q >= 256 * ti + 256) | (256 * ti >= n_q - 1)) & (n_q == 1) & (ti "
                            "== 0) & (n_kv >= 17)"
                        ),
                        full=False,
                    ),
                ),
                tiles(
                    64,
                    128,
                    loop(
                        "(n_q + 254) // 256",
                        "min((n_kv + 127) // 128 - 1, ti // 2 - 1)",
                        full=True,
                    ),
                    loop(
                        "ti // 2",
                        "ti // 2",
                        where=(
                            "((ti % 2 == 0) & (n_kv > 64 * ti) & (2 * n_kv >= n_q + 33) & (n_q >= "
                            "128 * ti - 126) & (n_q + 128 * ti >= 32 * ((n_q + 30) // 32) + 2 * "
                            "n_kv - 32)) | ((128 * ti >= n_q + 127) & ((n_q + 30) % 32 + 128 * ti "
                            ">= 2 * n_kv - 2) & (n_kv >= 64 * ((ti + 1) % 2) + 64 * ti - 63))"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 254) // 256",
                        "(n_q + 128 * ti) // 256 - 1",
                        where=(
                            "(2 * n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + 128)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_q + 254) // 256",
                        "(n_kv + 127) // 128 - 1",
                        where=(
                            "(n_q >= 128 * ti + 128) & (2 * n_kv >= n_q + 33) & (n_q + 128 * ti >= "
                            "2 * n_kv)"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti // 2",
                        "ti // 2",
                        where=(
                            "((n_q + 128 * ti >= 2 * n_kv) | (128 * ti >= n_q - 127)) & (ti % 2 == "
                            "0) & (n_kv > 64 * ti) & (n_q >= 34) & (128 * ti >= n_q - 1) & (n_q >= "
                            "2 * n_kv - 32)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((ti % 2 != 0) | (n_q >= 128 * ti + 2) | (2 * n_kv >= n_q + 33) | (64 "
                            "* ti >= n_kv) | (n_q < 34)) & ((2 * n_kv > n_q + 128 * ti) | (128 * ti"
                            " >= n_q - 127) | (n_q >= 2 * n_kv - 32)) & ((n_q + 128 * ti >= 2 * "
                            "n_kv) | (128 * ti >= n_q - 127)) & (n_q == 1) & (ti == 0) & (n_kv < "
                            "17)"
                        ),
                        full=True,
                    ),
                    loop(
                        "n_q - (255 * n_q + 1) // 256",
                        "n_q - (255 * n_q + 1) // 256",
                        where=(
                            "((((ti + 1) % 2 == 0) & (n_kv >= 64 * ti + 65) & (128 * ti >= n_q - "
                            "129) & (n_q >= 2 * n_kv - 32)) | ((n_kv > 128 * ((n_q + 254) // 256)) "
                            "& (ti >= 1) & (n_q >= 128 * ti + 130) & (n_q >= 2 * n_kv - 32))) & "
                            "((ti % 2 != 0) | (n_q >= 128 * ti + 2) | (2 * n_kv >= n_q + 33) | (64 "
                            "* ti >= n_kv) | (n_q < 34)) & ((n_q != 1) | (ti != 0) | (n_kv >= 17)) "
                            "& ((2 * n_kv > n_q + 128 * ti) | (128 * ti >= n_q - 127) | (n_q >= 2 *"
                            " n_kv - 32)) & ((n_q + 128 * ti >= 2 * n_kv) | (128 * ti >= n_q - "
                            "127))"
                        ),
                        full=True,
                    ),
                    loop(
                        "ti // 2",
                        "ti // 2",
                        where=(
                            "(2 * n_kv > n_q) & (n_q >= 128 * ti + 2) & (128 * (ti % 2) + n_q >= "
                            "128 * ti + 256)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 254) // 256 - 1",
                        "(n_q + 254) // 256 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 256 >= 2) & (n_q >= 128 * ti + 2)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti // 2 + 1",
                        "min((n_kv + 127) // 128 - 1, ti)",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 256 >= 2) & (n_q >= 128 * ti + 2) & (2 * "
                            "n_kv >= n_q + 33) & (128 * ti >= n_q - 127)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 128 * ti) // 256, (n_q + 254) // 256)",
                        "min((n_q + 128 * ti + 94) // 256, (n_kv + 127) // 128 - 1)",
                        where=(
                            "(2 * n_kv > n_q) & (2 * n_kv > n_q + 128 * ti) & (n_q >= 128 * ti + "
                            "128) & (n_q >= 128 * ti + 2)"
                        ),
                        full=False,
                    ),
                    loop(
                        "(n_q + 254) // 256 - 1",
                        "(n_q + 254) // 256 - 1",
                        where=(
                            "(2 * n_kv > n_q) & (n_q % 256 >= 2) & (128 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_q + 254) // 256, ti // 2)",
                        "min((ti + 1) // 2, (n_kv + 127) // 128 - 1, (32 * ((n_q + 30) // 32) +"
                        " n_q + 255) // 256 - 1, 8 * ((n_q + 30) // 32) - (n_q - 2 * ti + 2) //"
                        " 4)",
                        where=(
                            "(2 * n_kv > n_q) & (32 * ((n_q + 30) // 32) + 2 * n_kv >= n_q + 128 * "
                            "ti + 33) & (128 * ti >= n_q - 1)"
                        ),
                        full=False,
                    ),
                    loop(
                        "ti // 2",
                        "ti // 2",
                        where=(
                            "((n_q >= 128 * ti + 2) | (n_q >= 2 * n_kv)) & ((n_q >= 2 * n_kv) | "
                            "(128 * ti >= n_q - 1)) & (n_kv > 64 * ti)"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('n_q // 2 - 1', 'n_q // 2 - 1', '-(n_q // 2)', '0', '-1'),
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
