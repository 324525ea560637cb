"""Test one mask: its kernels, where they run, and the outcome of random cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from maskc import driver
from maskc.core.dtypes import DType
from maskc.core.errors import Counterexample, NothingCompared
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import default_parameters
from maskc.ir.heads import written_heads
from maskc.runtime.device import default_target, runs
from maskc.testing.emulator.machine import emulated, installed
from maskc.verify.case_lengths import lengths_for
from maskc.verify.counterexample import script
from maskc.verify.random_cases import MaskUnderTest, Outcome, try_cases

EMULATED_PAIRS = 1 << 14
"""Most pairs of a case in the emulator, which runs a kernel some ten thousand times slower."""


@dataclass(frozen=True)
class Wanted:
    """Settings of a property test."""

    target: str | None = None
    """None: what this machine has."""
    head_dim: int = 64
    head_dim_v: int | None = None
    dtype: str | None = None
    """None: every one that the target has for this head dimension."""
    heads: int | None = None
    """None: as the mask is written."""
    examples: int = 20
    seed: int = 0
    seconds: float | None = None
    """No more cases are drawn after so many."""

    def dtypes(self, target: Target) -> tuple[DType, ...]:
        """The dtypes to draw from; the first one is preferred where several are wrong."""
        return (DType.parse(self.dtype),) if self.dtype is not None else target.dtypes


@dataclass(frozen=True)
class Examined:
    """The result of one mask's cases."""

    subject: MaskUnderTest
    outcome: Outcome
    target: Target

    @property
    def where(self) -> str:
        """The target, and that it was emulated."""
        return f"{self.target.name} in the emulator" if self.subject.emulated else self.target.name

    @property
    def program(self) -> str | None:
        """A program that shows the wrong case; None if there is none."""
        wrong = self.outcome.mismatch
        return None if wrong is None else script(wrong, self.subject, "maskc test")

    def right(self) -> int:
        """The number of cases that were compared.

        Raises:
            Counterexample: one is wrong (MC611).
            NothingCompared: all were refused (MC612).
        """
        done, mask = self.outcome, self.subject.mask
        if done.mismatch is not None:
            raise Counterexample(f"{self.finding()}\n\n{self.program}")
        if not done.cases and done.refused:
            raise NothingCompared(done.refused, mask, done.reason)
        return done.cases

    def finding(self) -> str:
        """Describe the fault in one line."""
        wrong = self.outcome.mismatch
        if wrong is None:
            return f"{self.outcome.cases} cases are right"
        of = f"of {self.subject.mask} on {self.where}"
        if wrong.part == "call":
            return f"a call {of} raises {wrong.raised}"
        if wrong.part == "planted":
            return f"a NaN in a key reaches the wrong queries {of}"
        return f"{wrong.part} {of} is off by {wrong.error:.2g}, allowed {wrong.allowed:.2g}"


def examine(
    name: str, mask: Mask, wanted: Wanted, params: dict[str, int] | None = None,
    tell: Callable[[int], object] = lambda done: None,
) -> Examined:  # fmt: skip
    """Compile a mask and try random cases.

    Args:
        name: of the mask, for messages.
        params: parameters of the mask that keep a value; the others are drawn.
        tell: called before each case with the number of cases so far.

    Raises:
        MaskcError: the mask cannot be compiled, or there is nothing that runs the kernels.
    """
    heads = wanted.heads or written_heads(mask)
    dims = wanted.head_dim, wanted.head_dim_v or wanted.head_dim
    given = DType.parse(wanted.dtype) if wanted.dtype is not None else DType.float32
    target = Target.named(wanted.target or default_target(Problem(*dims, given, heads)))
    kernels = {
        dtype.value: driver.compile(
            mask, head_dim=dims[0], head_dim_v=dims[1], n_heads=heads, dtype=dtype,
            target=target.name, name=name,
        )
        for dtype in wanted.dtypes(target)
    }  # fmt: skip
    fixed = params or {}
    free = {name: value for name, value in default_parameters(mask).items() if name not in fixed}
    lengths = lengths_for(mask, heads, fixed)
    subject = MaskUnderTest(
        name, mask, kernels, lengths, heads, tuple(sorted(free.items())), tuple(fixed.items())
    )
    with _machine(target) as is_emulated:
        if is_emulated:
            subject = replace(subject, emulated=True, pairs=EMULATED_PAIRS)
        done = try_cases(subject, wanted.examples, wanted.seed, wanted.seconds, tell)
    return Examined(subject, done, target)


@contextmanager
def _machine(target: Target) -> Iterator[bool]:
    """Something that runs the target: this machine, or the emulator; whether it is that."""
    here = target.language == "c" or runs(target, 0)
    with nullcontext() if here else emulated():
        yield target.language != "c" and bool(installed)
