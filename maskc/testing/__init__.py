"""Property tests of your own masks: compiled kernels against dense attention in fp64.

    import maskc as mc
    from maskc import testing

    def test_my_mask():
        testing.check(mc.causal() & mc.window(300), examples=30)

`maskc test FILE` does the same from the command line. With pytest, the fixture `maskc_check` tests
every pattern of a file (see `maskc.testing.plugin`), and `maskc.testing.strategies` draws masks,
lengths and data for Hypothesis.

Kernels for GPUs run on a GPU; where there is none they run in `maskc.testing.emulator`, which needs
g++ and PyTorch.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.dsl.pattern import Pattern


def check(
    mask: Mask | Pattern[...] | str | PathLike[str], *, target: str | None = None,
    head_dim: int = 64, head_dim_v: int | None = None, dtype: str | None = None,
    examples: int = 20, seed: int = 0, seconds: float | None = None,
) -> int:  # fmt: skip
    """Compile a mask and compare it with dense attention in random cases, both passes.

    Cases draw lengths around the mask's own constants, batches, grouped heads, dtypes, strides,
    soft-cap, ALiBi, sinks and scales. They also draw the data that the mask reads (by sequence, as
    arrays or as tensors), its parameters, the deterministic backward pass, and NaN keys. fp64
    decides; what rounding may do is derived (see `maskc.verify.full_judge`). With Hypothesis
    installed, a wrong case is shrunk.

    Args:
        mask: a mask; a pattern, with its default parameters; or the path of a pattern file, to test
            all of its patterns.
        target: cpu, simt, sm_80 or sm_90a; None is the best target of this machine. Without such a
            GPU the kernels run in the emulator, on short lengths.
        head_dim, head_dim_v: elements per row of q and k, and of v (as of q when None).
        dtype: float32, bfloat16 or float16; None draws from those that the target has.
        examples: most cases to draw for each mask.
        seed: the same seed draws the same cases.
        seconds: time limit for drawing cases; None sets no limit.

    Returns:
        Number of compared cases.

    Raises:
        Counterexample: a result is wrong (MC611); the message ends with a program that shows it.
        NothingCompared: every case was refused (MC612).
        EmulatorMissing: there is neither such a GPU nor what the emulator needs (MC610).
        MaskcError: the mask cannot be compiled for the target.
    """
    from maskc.dsl.loader import load
    from maskc.dsl.mask import Mask
    from maskc.testing.checking import Wanted, examine

    wanted = Wanted(target, head_dim, head_dim_v, dtype, None, examples, seed, seconds)
    if isinstance(mask, (str, PathLike)):
        masks = load(Path(mask))
    else:
        masks = {getattr(mask, "name", "mask"): mask}
    made = {name: mask if isinstance(mask, Mask) else mask() for name, mask in masks.items()}
    return sum(examine(name, mask, wanted).right() for name, mask in made.items())
