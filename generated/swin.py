"""Windows of window x window tokens, moved by `shift` (0: not moved).

Mask: where(lambda q, k: ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k % 64 + 4) // 8 == (q % 64 + 4) // 8))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
swin.cpu.c, swin.sm_80.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "swin.cpu.c").read_text(),
    "sm_80": (_HERE / "swin.sm_80.cu").read_text(),
}
"""Kernel source by target."""

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
                    64,
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "((n_kv + 59) % 64 >= 60) & (4 * ((n_kv + 315) // 512) >= ti - 1) & (ti"
                            " >= 4 * ((n_kv + 315) // 512) - 2) & (128 * ti >= n_q - 4)"
                        ),
                        full=True,
                    ),
                    loop(
                        "max(2 * ti - 2 * ((ti + 2) % 4), 0)",
                        "min((n_kv + 63) // 64 - 1, 2 * ti - 2 * ((ti + 2) % 4) + 7)",
                        where=(
                            "n_q >= 128 * ti + 5"
                        ),
                        full=False,
                    ),
                    loop(
                        "max(2 * ti - 2 * ((ti + 2) % 4), 0)",
                        "min((n_kv + 59) // 64 - 1, 2 * ti - 2 * ((ti + 2) % 4) + 7)",
                        where=(
                            "128 * ti >= n_q - 4"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=(),
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
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 3 closed-form loops
""",
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
