"""The query itself and keys 1, 2, 4, 8, ... before it.

Mask: offsets([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768,
      65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608, 16777216, 33554432,
      67108864, 134217728, 268435456, 536870912, 1073741824])

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
logsparse.cpu.c, logsparse.sm_80.cu, logsparse.sm_90a.cu, logsparse.sm_90a_small.cu,
logsparse.sm_90a_backward.cu, logsparse.sm_90a_small_backward.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, launch, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "logsparse.cpu.c").read_text(),
    "sm_80": (_HERE / "logsparse.sm_80.cu").read_text(),
    "sm_90a": (_HERE / "logsparse.sm_90a.cu").read_text(),
    "sm_90a_small": (_HERE / "logsparse.sm_90a_small.cu").read_text(),
    "sm_90a_backward": (_HERE / "logsparse.sm_90a_backward.cu").read_text(),
    "sm_90a_small_backward": (_HERE / "logsparse.sm_90a_small_backward.cu").read_text(),
}
"""Kernel source by target; `_backward` where a pass has a source of its own, `_small` for short
rows, `_documents` for lists of tiles that are made on the device."""

REPORT = """\
target   cpu, bfloat16, head_dim 128
mask     member(q + n_kv - k - n_q, [(0, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128,
         128), (256, 256), (512, 512), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192),
         (16384, 16384), (32768, 32768), (65536, 65536), (131072, 131072), (262144, 262144),
         (524288, 524288), (1048576, 1048576), (2097152, 2097152), (4194304, 4194304), (8388608,
         8388608), (16777216, 16777216), (33554432, 33554432), (67108864, 67108864), (134217728,
         134217728), (268435456, 268435456), (536870912, 536870912), (1073741824, 1073741824)])
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 2)
piece    band: k == q + n_kv - n_q - 4
piece    band: k == q + n_kv - n_q - 8
piece    band: k == q + n_kv - n_q - 16
piece    band: k == q + n_kv - n_q - 32
piece    band: k == q + n_kv - n_q - 64
piece    band: k == q + n_kv - n_q - 128
piece    band: k == q + n_kv - n_q - 256
piece    band: 22 more
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 27 closed-form loops

target   sm_80, bfloat16, head_dim 128
mask     member(q + n_kv - k - n_q, [(0, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128,
         128), (256, 256), (512, 512), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192),
         (16384, 16384), (32768, 32768), (65536, 65536), (131072, 131072), (262144, 262144),
         (524288, 524288), (1048576, 1048576), (2097152, 2097152), (4194304, 4194304), (8388608,
         8388608), (16777216, 16777216), (33554432, 33554432), (67108864, 67108864), (134217728,
         134217728), (268435456, 268435456), (536870912, 536870912), (1073741824, 1073741824)])
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 2)
piece    band: k == q + n_kv - n_q - 4
piece    band: k == q + n_kv - n_q - 8
piece    band: k == q + n_kv - n_q - 16
piece    band: k == q + n_kv - n_q - 32
piece    band: k == q + n_kv - n_q - 64
piece    band: k == q + n_kv - n_q - 128
piece    band: k == q + n_kv - n_q - 256
piece    band: 22 more
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 27 closed-form loops

target   sm_90a, bfloat16, head_dim 128
mask     member(q + n_kv - k - n_q, [(0, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128,
         128), (256, 256), (512, 512), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192),
         (16384, 16384), (32768, 32768), (65536, 65536), (131072, 131072), (262144, 262144),
         (524288, 524288), (1048576, 1048576), (2097152, 2097152), (4194304, 4194304), (8388608,
         8388608), (16777216, 16777216), (33554432, 33554432), (67108864, 67108864), (134217728,
         134217728), (268435456, 268435456), (536870912, 536870912), (1073741824, 1073741824)])
piece    band: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 2)
piece    band: k == q + n_kv - n_q - 4
piece    band: k == q + n_kv - n_q - 8
piece    band: k == q + n_kv - n_q - 16
piece    band: k == q + n_kv - n_q - 32
piece    band: k == q + n_kv - n_q - 64
piece    band: k == q + n_kv - n_q - 128
piece    band: k == q + n_kv - n_q - 256
piece    band: 22 more
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: yes (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 128, 2 warpgroups of 64 rows and one that copies, 2 stages, 161 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 26 closed-form loops
plan     partial tiles: bits from a table over k - q, no pair is tested
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
        "logsparse",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "member(q + n_kv - k - n_q, [(0, 2), (4, 4), (8, 8), (16, 16), (32, "
                "32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024), "
                "(2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384), (32768, "
                "32768), (65536, 65536), (131072, 131072), (262144, 262144), (524288, "
                "524288), (1048576, 1048576), (2097152, 2097152), (4194304, 4194304), "
                "(8388608, 8388608), (16777216, 16777216), (33554432, 33554432), "
                "(67108864, 67108864), (134217728, 134217728), (268435456, 268435456), "
                "(536870912, 536870912), (1073741824, 1073741824)])",
                tiles(
                    64,
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q == 64 * ti + 1) & ((n_kv + 60) % 64 >= 61)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 16777216, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 16777215, (n_kv + 63) // 64 - "
                        "16777216) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 8388608, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 8388607, (n_kv + 63) // 64 - "
                        "8388608) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 4194304, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 4194303, (n_kv + 63) // 64 - "
                        "4194304) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 2097152, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 2097151, (n_kv + 63) // 64 - "
                        "2097152) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 1048576, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 1048575, (n_kv + 63) // 64 - "
                        "1048576) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 524288, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 524287, (n_kv + 63) // 64 - 524288)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 262144, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 262143, (n_kv + 63) // 64 - 262144)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 131072, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 131071, (n_kv + 63) // 64 - 131072)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 65536, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 65535, (n_kv + 63) // 64 - 65536) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 32768, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 32767, (n_kv + 63) // 64 - 32768) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 16384, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 16383, (n_kv + 63) // 64 - 16384) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 8192, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 8191, (n_kv + 63) // 64 - 8192) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 4096, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 4095, (n_kv + 63) // 64 - 4096) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 2048, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 2047, (n_kv + 63) // 64 - 2048) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 1024, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 1023, (n_kv + 63) // 64 - 1024) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 512, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 511, (n_kv + 63) // 64 - 512) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 256, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 255, (n_kv + 63) // 64 - 256) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 128, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 127, (n_kv + 63) // 64 - 128) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 64, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 63, (n_kv + 63) // 64 - 64) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 32, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 31, (n_kv + 63) // 64 - 32) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 16, 0)",
                        "min((n_kv - n_q + 63) // 64 + ti - 15, (n_kv + 63) // 64 - 16) - 1",
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
                        "(n_kv - n_q) // 64 + ti - 2",
                        "(n_kv - n_q) // 64 + ti - 2",
                        where=(
                            "n_kv + 64 * ti >= n_q + 128"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 63) // 64 - 2, 0)",
                        "(n_kv + 60) // 64 - 1",
                        where=(
                            "n_q == 64 * ti + 1"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + ti - 1, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + ti)",
                        where=(
                            "n_q != 64 * ti + 1"
                        ),
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
                            "(n_q == 128 * ti + 1) & ((n_kv + 60) % 64 >= 61)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 16777216, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 16777214, (n_kv + 63) // 64 - "
                        "16777216) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 8388608, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 8388606, (n_kv + 63) // 64 - "
                        "8388608) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 4194304, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 4194302, (n_kv + 63) // 64 - "
                        "4194304) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 2097152, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 2097150, (n_kv + 63) // 64 - "
                        "2097152) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 1048576, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 1048574, (n_kv + 63) // 64 - "
                        "1048576) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 524288, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 524286, (n_kv + 63) // 64 - "
                        "524288) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 262144, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 262142, (n_kv + 63) // 64 - "
                        "262144) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 131072, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 131070, (n_kv + 63) // 64 - "
                        "131072) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 65536, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 65534, (n_kv + 63) // 64 - "
                        "65536) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 32768, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 32766, (n_kv + 63) // 64 - "
                        "32768) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 16384, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 16382, (n_kv + 63) // 64 - "
                        "16384) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 8192, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 8190, (n_kv + 63) // 64 - 8192)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 4096, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 4094, (n_kv + 63) // 64 - 4096)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 2048, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 2046, (n_kv + 63) // 64 - 2048)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 1024, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 1022, (n_kv + 63) // 64 - 1024)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 512, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 510, (n_kv + 63) // 64 - 512) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 256, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 254, (n_kv + 63) // 64 - 256) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 128, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 126, (n_kv + 63) // 64 - 128) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 64, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 62, (n_kv + 63) // 64 - 64) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 32, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 30, (n_kv + 63) // 64 - 32) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 16, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 14, (n_kv + 63) // 64 - 16) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 8, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 6, (n_kv + 63) // 64 - 8) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 4, 0)",
                        "min((n_kv - n_q) // 64 + 2 * ti - 2, (n_kv + 63) // 64 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv - n_q) // 64 + 2 * ti - 2",
                        "(n_kv - n_q) // 64 + 2 * ti - 2",
                        where=(
                            "n_kv + 128 * ti >= n_q + 128"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 63) // 64 - 2, 0)",
                        "(n_kv + 60) // 64 - 1",
                        where=(
                            "n_q == 128 * ti + 1"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 1, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + 2 * ti + 1)",
                        where=(
                            "n_q != 128 * ti + 1"
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
                            "(n_q == 128 * ti + 1) & ((n_kv + 124) % 128 >= 125)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 8388608, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 8388607, (n_kv + 127) // 128 - "
                        "8388608) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 4194304, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 4194303, (n_kv + 127) // 128 - "
                        "4194304) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 2097152, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 2097151, (n_kv + 127) // 128 - "
                        "2097152) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 1048576, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 1048575, (n_kv + 127) // 128 - "
                        "1048576) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 524288, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 524287, (n_kv + 127) // 128 - "
                        "524288) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 262144, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 262143, (n_kv + 127) // 128 - "
                        "262144) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 131072, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 131071, (n_kv + 127) // 128 - "
                        "131072) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 65536, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 65535, (n_kv + 127) // 128 - "
                        "65536) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 32768, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 32767, (n_kv + 127) // 128 - "
                        "32768) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 16384, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 16383, (n_kv + 127) // 128 - "
                        "16384) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 8192, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 8191, (n_kv + 127) // 128 - 8192)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 4096, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 4095, (n_kv + 127) // 128 - 4096)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 2048, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 2047, (n_kv + 127) // 128 - 2048)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 1024, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 1023, (n_kv + 127) // 128 - 1024)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 512, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 511, (n_kv + 127) // 128 - 512) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 256, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 255, (n_kv + 127) // 128 - 256) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 128, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 127, (n_kv + 127) // 128 - 128) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 64, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 63, (n_kv + 127) // 128 - 64) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 32, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 31, (n_kv + 127) // 128 - 32) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 16, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 15, (n_kv + 127) // 128 - 16) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 8, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 7, (n_kv + 127) // 128 - 8) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 4, 0)",
                        "min((n_kv - n_q + 127) // 128 + ti - 3, (n_kv + 127) // 128 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv - n_q) // 128 + ti - 2",
                        "(n_kv - n_q) // 128 + ti - 2",
                        where=(
                            "n_kv + 128 * ti >= n_q + 256"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 127) // 128 - 2, 0)",
                        "(n_kv + 124) // 128 - 1",
                        where=(
                            "n_q == 128 * ti + 1"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 128 + ti - 1, 0)",
                        "min((n_kv + 127) // 128 - 1, (n_kv - n_q + 127) // 128 + ti)",
                        where=(
                            "n_q != 128 * ti + 1"
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
                            "(n_q == 64 * ti + 1) & ((n_kv + 124) % 128 >= 125)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 8388608, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 8388607, (n_kv + 127) // 128 "
                        "- 8388608) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 4194304, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 4194303, (n_kv + 127) // 128 "
                        "- 4194304) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 2097152, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 2097151, (n_kv + 127) // 128 "
                        "- 2097152) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 1048576, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 1048575, (n_kv + 127) // 128 "
                        "- 1048576) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 524288, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 524287, (n_kv + 127) // 128 -"
                        " 524288) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 262144, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 262143, (n_kv + 127) // 128 -"
                        " 262144) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 131072, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 131071, (n_kv + 127) // 128 -"
                        " 131072) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 65536, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 65535, (n_kv + 127) // 128 - "
                        "65536) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 32768, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 32767, (n_kv + 127) // 128 - "
                        "32768) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 16384, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 16383, (n_kv + 127) // 128 - "
                        "16384) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 8192, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 8191, (n_kv + 127) // 128 - "
                        "8192) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 4096, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 4095, (n_kv + 127) // 128 - "
                        "4096) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 2048, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 2047, (n_kv + 127) // 128 - "
                        "2048) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 1024, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 1023, (n_kv + 127) // 128 - "
                        "1024) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 512, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 511, (n_kv + 127) // 128 - "
                        "512) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 256, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 255, (n_kv + 127) // 128 - "
                        "256) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 128, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 127, (n_kv + 127) // 128 - "
                        "128) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 64, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 63, (n_kv + 127) // 128 - 64)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 32, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 31, (n_kv + 127) // 128 - 32)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 16, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 15, (n_kv + 127) // 128 - 16)"
                        " - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 8, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 7, (n_kv + 127) // 128 - 8) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 4, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128 - 3, (n_kv + 127) // 128 - 4) -"
                        " 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 64 * ti - n_q) // 128 - 2",
                        "(n_kv + 64 * ti - n_q) // 128 - 2",
                        where=(
                            "n_kv + 64 * ti >= n_q + 256"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 127) // 128 - 2, 0)",
                        "(n_kv + 124) // 128 - 1",
                        where=(
                            "n_q == 64 * ti + 1"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv + 64 * ti - n_q) // 128 - 1, 0)",
                        "min((n_kv + 64 * ti - n_q + 63) // 128, (n_kv + 127) // 128 - 1)",
                        where=(
                            "n_q != 64 * ti + 1"
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
        report=REPORT,
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
