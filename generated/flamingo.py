"""Each text token sees the visual tokens of the image before it.

Mask: documents('image')

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
flamingo.cpu.c, flamingo.sm_80.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "flamingo.cpu.c").read_text(),
    "sm_80": (_HERE / "flamingo.sm_80.cu").read_text(),
}
"""Kernel source by target."""

_MASK = GeneratedMask(
    bundle(
        "flamingo",
        head_dim=128,
        head_dim_v=128,
        dtype="bfloat16",
        n_heads=None,
        masks=(
            mask(
                "image.k[k] == image.q[q]",
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
                args=(),
            ),
        ),
        of_head=(),
        arrays=('image.k', 'image.q'),
        data=(
            data('image', 'documents', ('image.q', 'image.k')),
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
mask     image.k[k] == image.q[q]
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
proof    contiguous rows: unknown (all lengths; row hull - mask is empty)
proof    translation invariant: unknown (all lengths; mask shifted by (1, 1) stays in mask)
pairs    no closed form: exact numbers at given lengths
plan     tiles of 64 x 64: products run from registers, and a thread's fp32 tiles (320 KiB in the
         backward pass) from its L2 cache
plan     tile lists in memory (CSR): which tiles live depends on data given at call time
plan     layout by exact numbers, because it reads data

target   sm_80, bfloat16, head_dim 128
mask     image.k[k] == image.q[q]
proof    causal: unknown (all lengths; mask - {k <= p} is empty)
proof    no empty row: unknown (all lengths; rows - projection(mask) is empty)
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
