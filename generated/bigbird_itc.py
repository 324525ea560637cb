"""Global end blocks, a window of three blocks and `n_random` random ones.

Mask: where(lambda q, k: ((q + n_kv - n_q) // 64 == 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) | ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q) // 64 - k // 64) < 2)) | random_blocks(64, 3, 0)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
bigbird_itc.cpu.c, bigbird_itc.sm_80.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "bigbird_itc.cpu.c").read_text(),
    "sm_80": (_HERE / "bigbird_itc.sm_80.cu").read_text(),
}
"""Kernel source by target."""

_MASK = GeneratedMask(
    bundle(
        "bigbird_itc",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] "
                "!= 0) | ((q + n_kv - n_q) // 64 == 0) | (k // 64 == 0) | ((n_kv + 63) "
                "// 64 == k // 64 + 1) | ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 -"
                " 1) | (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q) // 64 - "
                "k // 64) < 2)",
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
                shape=0,
                args=('-((n_kv - n_q) // 64)', 'n_kv - n_q', '(n_kv + 63) // 64 - 1', '-((n_kv + 63) // 64) + 1', '1'),
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
                threads=0,
                shared=0,
            ),
            kernel(
                "sm_80",
                SOURCE["sm_80"],
                tile=(128, 64),
                ranges=False,
                threads=128,
                shared=70656,
            ),
        ),
        report="""\
target   cpu, bfloat16, head_dim 128
mask     (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] != 0) | ((q + n_kv -
         n_q) // 64 == 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) | ((q + n_kv - n_q)
         // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q)
         // 64 - k // 64) < 2)
piece    random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] != 0
piece    ((q + n_kv - n_q) // 64 == 0) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64,
         k // 64] == 0)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 == 0) & (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] == 0)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 != 0) & (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] == 0) & ((n_kv + 63) // 64 == k // 64 + 1)
piece    (k // 64 != 0) & ((n_kv + 63) // 64 != k // 64 + 1) & (random_64_3_0[(q + n_kv - n_q) // 64
         - (n_kv - n_q) // 64, k // 64] == 0) & ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 != 0) & ((n_kv + 63) // 64 != k // 64 + 1) & ((q +
         n_kv - n_q) // 64 != (n_kv + 63) // 64 - 1) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv
         - n_q) // 64, k // 64] == 0) & (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q) //
         64 - k // 64) < 2)
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
mask     (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] != 0) | ((q + n_kv -
         n_q) // 64 == 0) | (k // 64 == 0) | ((n_kv + 63) // 64 == k // 64 + 1) | ((q + n_kv - n_q)
         // 64 == (n_kv + 63) // 64 - 1) | (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q)
         // 64 - k // 64) < 2)
piece    random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64, k // 64] != 0
piece    ((q + n_kv - n_q) // 64 == 0) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv - n_q) // 64,
         k // 64] == 0)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 == 0) & (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] == 0)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 != 0) & (random_64_3_0[(q + n_kv - n_q) // 64 -
         (n_kv - n_q) // 64, k // 64] == 0) & ((n_kv + 63) // 64 == k // 64 + 1)
piece    (k // 64 != 0) & ((n_kv + 63) // 64 != k // 64 + 1) & (random_64_3_0[(q + n_kv - n_q) // 64
         - (n_kv - n_q) // 64, k // 64] == 0) & ((q + n_kv - n_q) // 64 == (n_kv + 63) // 64 - 1)
piece    ((q + n_kv - n_q) // 64 != 0) & (k // 64 != 0) & ((n_kv + 63) // 64 != k // 64 + 1) & ((q +
         n_kv - n_q) // 64 != (n_kv + 63) // 64 - 1) & (random_64_3_0[(q + n_kv - n_q) // 64 - (n_kv
         - n_q) // 64, k // 64] == 0) & (max(k // 64 - (q + n_kv - n_q) // 64, (q + n_kv - n_q) //
         64 - k // 64) < 2)
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data
""",
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
