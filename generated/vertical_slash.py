"""Keys in `columns` and keys at a distance in `slashes`.

Mask: causal() & (global_tokens([0, 1, 2, 3]).columns | offsets([0, 1, 2, 3, 256, 512]))

Written by `maskc compile`; change the pattern, not this file. Its kernels lie beside it:
vertical_slash.cpu.c, vertical_slash.sm_80.cu.
"""

from pathlib import Path

from maskc.runtime.generated import GeneratedMask, bundle, data, kernel, loop, mask, tiles

_HERE = Path(__file__).parent

SOURCE = {
    "cpu": (_HERE / "vertical_slash.cpu.c").read_text(),
    "sm_80": (_HERE / "vertical_slash.sm_80.cu").read_text(),
}
"""Kernel source by target."""

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
                    64,
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 128 * ti + 1) & (n_kv < 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "(n_kv + 63) // 64 - 1",
                        "(n_kv + 63) // 64 - 1",
                        where=(
                            "(n_q == 128 * ti + 1) & ((n_kv + 59) % 64 >= 60) & (n_kv >= 9)"
                        ),
                        full=True,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "(n_q == 128 * ti + 1) & (n_kv >= 577)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv < 577)) & (n_q == 128 * ti + 1) & (n_kv"
                            " >= 321) & (n_kv < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 "
                            "* ti + 1) | (n_kv < 577)) & (n_q == 128 * ti + 1) & (n_kv >= 68) & "
                            "(n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 128 *"
                            " ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 577)) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= n_q + 576)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 128 *"
                            " ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 577)) & ((128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti - "
                            "575)) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= n_q + 385) & (n_kv"
                            " < 513)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 128 *"
                            " ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 577)) & ((128 * ti >= n_q - 1) | (n_q >= n_kv + 128 * ti - "
                            "575)) & (n_q >= 128 * ti + 2) & (n_kv + 128 * ti >= n_q + 320) & (n_q "
                            ">= n_kv + 128 * ti - 384)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 128 *"
                            " ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 577)) & ((n_kv + 128 * ti >= n_q + 385) | (128 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 128 * ti - 319)) & ((n_kv >= 513) | (128 * ti >= "
                            "n_q - 1) | (n_q >= n_kv + 128 * ti - 384)) & ((128 * ti >= n_q - 1) | "
                            "(n_q >= n_kv + 128 * ti - 575)) & (n_kv + 128 * ti >= n_q + 129) & "
                            "(n_q >= 128 * ti + 2) & (n_kv < 257)"
                        ),
                        full=False,
                    ),
                    loop(
                        "0",
                        "0",
                        where=(
                            "((n_q != 128 * ti + 1) | (n_kv >= 257) | (n_kv < 68)) & ((n_q != 128 *"
                            " ti + 1) | (n_kv >= 513) | (n_kv < 321)) & ((n_q != 128 * ti + 1) | "
                            "(n_kv < 577)) & ((n_kv + 128 * ti >= n_q + 385) | (128 * ti >= n_q - "
                            "1) | (n_q >= n_kv + 128 * ti - 319)) & ((n_kv >= 513) | (128 * ti >= "
                            "n_q - 1) | (n_q >= n_kv + 128 * ti - 384)) & ((128 * ti >= n_q - 1) | "
                            "(n_q >= n_kv + 128 * ti - 575)) & (n_q >= 128 * ti + 2) & (n_kv + 128 "
                            "* ti >= n_q + 67) & (n_q >= n_kv + 128 * ti - 128)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 8, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 6, (n_kv + 63) // 64 - 8) - 1",
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q) // 64 + 2 * ti - 4, 0)",
                        "min((n_kv - n_q + 63) // 64 + 2 * ti - 2, (n_kv + 63) // 64 - 4) - 1",
                        full=False,
                    ),
                    loop(
                        "(n_kv + 59) // 64 - 1",
                        "(n_kv + 59) // 64 - 1",
                        where=(
                            "(n_q == 128 * ti + 1) & ((n_kv + 60) % 64 >= 1) & (n_kv >= 9)"
                        ),
                        full=False,
                    ),
                    loop(
                        "max((n_kv - n_q + 61) // 64 + 2 * ti - 1, 0)",
                        "min((n_kv + 63) // 64 - 1, (n_kv - n_q + 63) // 64 + 2 * ti + 1)",
                        where=(
                            "((n_q != 128 * ti + 1) | ((n_kv + 60) % 64 < 1) | (n_kv < 9)) & (n_q "
                            ">= 128 * ti + 2)"
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
mask     ((k < 4) | member(q + n_kv - k - n_q, [(0, 3), (256, 256), (512, 512)])) & (k <= q + n_kv -
         n_q)
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
proof    causal: yes (all lengths; mask - {k <= p} is empty)
proof    no empty row: yes (n_q = n_kv; rows - projection(mask) is empty)
proof    contiguous rows: no (all lengths; row hull - mask is empty)
proof    translation invariant: no (all lengths; mask shifted by (1, 1) stays in mask)
pairs    10*N - 804  (N >= 3086)
flops    forward 5120*N - 411648, backward 2.5 x
bytes    at least 1024*N (q, k, v and out once)
plan     tiles of 128 x 64, 4 warps of 32 rows (each fragment of K and V serves them all), 69 KiB of
         shared memory
plan     tile lists in memory (CSR): some rows have gaps between their live tiles
plan     layout from 14 closed-form loops
""",
    )
)

attention = _MASK.attention
backward = _MASK.backward
layout = _MASK.layout
dense = _MASK.dense
explain = _MASK.explain
