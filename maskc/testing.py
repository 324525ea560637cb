"""Property tests of your own masks: compiled kernels against dense attention in fp64.

    import maskc as mc
    from maskc import testing

    def test_my_mask():
        testing.check(mc.causal() & mc.window(300), cases=30)

`maskc verify` does the same from the command line and prints the smallest wrong case as a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskc.core.errors import CheckFailed

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.dsl.pattern import Pattern


def check(
    mask: Mask | Pattern[...], *, head_dim: int = 64, dtype: str = "float32",
    target: str | None = None, cases: int = 20, seed: int = 0,
) -> int:  # fmt: skip
    """Compile a mask and compare it with dense attention at random lengths, forward and backward.

    Lengths lie around the mask's own constants; batches, grouped heads, soft-cap, ALiBi, sinks,
    strides, parameters and the data that the mask reads are drawn. With Hypothesis installed a
    wrong case is made as small as possible.

    Args:
        mask: a mask, or a pattern, which is taken with its default parameters.
        head_dim: elements per row of q, k and v.
        dtype: float32, bfloat16 or float16.
        target: cpu, simt, sm_80 or sm_90a; None is what this machine has.
        cases: how many are drawn at most, within 20 seconds.
        seed: the same seed draws the same cases.

    Returns:
        How many cases were compared.

    Raises:
        CheckFailed: MC602, a result is wrong; the message ends with a program that shows it.
        MaskcError: the mask cannot be compiled for the target, or refuses every case.
    """
    from maskc import driver
    from maskc.core.expr import params
    from maskc.dsl.mask import Mask
    from maskc.ir.heads import differs_by_head, fixed_heads, head_count
    from maskc.reference.dense import formulas, walk
    from maskc.verify.counterexample import script
    from maskc.verify.lengths import lengths_for
    from maskc.verify.random_cases import Subject, try_cases

    known = mask if isinstance(mask, Mask) else mask()
    heads = None
    if differs_by_head(known):
        heads = fixed_heads(known) or max(8, head_count(known))
    attn = driver.compile(known, head_dim=head_dim, n_heads=heads, dtype=dtype, target=target)
    found: dict[str, int] = {}
    for node in walk(known):
        for part in formulas(node):
            found |= params(part)
    lengths = lengths_for(known, heads, {})
    subject = Subject("mask", known, attn, lengths, heads, tuple(sorted(found.items())))
    done = try_cases(subject, cases, seed)
    if done.mismatch is not None:
        wrong = done.mismatch
        finding = (
            f"{wrong.part} of {known} is off by {wrong.error:.2g}, allowed {wrong.allowed:.2g}"
        )
        raise CheckFailed(f"{finding}\n\n{script(wrong, subject)}")
    if not done.cases:
        raise CheckFailed(f"no case of {known} could be compared: {done.reason}")
    return done.cases
