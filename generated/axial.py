"""The query's row and its column.

Mask: block_diagonal(64) | dilated(n_kv, n_kv, stride=64)

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
axial.cpu.c, axial.sm_80.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "axial.cpu.c").read_text(),
    "sm_80": (_HERE / "axial.sm_80.cu").read_text(),
}
"""Kernel source by target."""

_MASK = GeneratedMask(
    bundle(
        "axial",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "(((q + n_kv - k - n_q) % 64 == 0) & (k <= q + 65 * n_kv - n_q)) | ((q "
                "+ n_kv - n_q) // 64 == k // 64)",
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
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + n_kv + ti)",
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
                        "min((n_kv + 63) // 64 - 2, (n_kv - n_q + 63) // 64 + n_kv + 2 * ti + "
                        "1)",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q >= (n_kv + 63) % 64 + 128 * ti + 2) & ((n_kv + 63) % 64 + 64 * "
                            "n_kv + 128 * ti >= n_q - 128)"
                        ),
                        full=False,
                    ),
                ),
                shape=0,
                args=('n_kv - n_q', '65 * n_kv - n_q'),
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
mask     (((q + n_kv - k - n_q) % 64 == 0) & (k <= q + 65 * n_kv - n_q)) | ((q + n_kv - n_q) // 64
         == k // 64)
piece    ((q + n_kv - k - n_q) % 64 == 0) & (k <= q + 65 * n_kv - n_q)
piece    ((q + n_kv - k - n_q) % 64 != 0) & ((q + n_kv - n_q) // 64 == k // 64)
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

target   sm_80, bfloat16, head_dim 128
mask     (((q + n_kv - k - n_q) % 64 == 0) & (k <= q + 65 * n_kv - n_q)) | ((q + n_kv - n_q) // 64
         == k // 64)
piece    ((q + n_kv - k - n_q) % 64 == 0) & (k <= q + 65 * n_kv - n_q)
piece    ((q + n_kv - k - n_q) % 64 != 0) & ((q + n_kv - n_q) // 64 == k // 64)
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
""",
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
