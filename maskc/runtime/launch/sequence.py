"""Several launches that run as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from maskc.core.abi import POINTERS, Numbers, Pointers
from maskc.core.problem import Direction
from maskc.core.tensors import Output
from maskc.runtime.arrays.known import Library
from maskc.runtime.launch.prepared import PreparedLaunch, Sent

_UNMOVED = (0,) * len(POINTERS)
"""Shifts of a launch that begins where the call's tensors do."""


class Step(NamedTuple):
    """One launch of a plan in parts."""

    plan: PreparedLaunch
    shifts: tuple[int | None, ...]
    """Bytes to add to each of POINTERS; None if the launch has nothing to do with it."""


class Sents(NamedTuple):
    """Arguments of each launch on the device; replaces `Sent`."""

    steps: tuple[Sent, ...]
    lse: int = 0
    """None that calls share: launches join what they find there."""

    def with_block(self, block: bytes) -> Sents:
        """Return the arguments with one more block for every launch."""
        return self._replace(steps=tuple([sent.with_block(block) for sent in self.steps]))


@dataclass(frozen=True, eq=False)
class PartedPlan:
    """One direction of one signature, in parts; stands in for `PreparedLaunch`."""

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    """The outputs of a `PreparedLaunch`; the workspace serves one launch after another."""
    unwritten: bool
    """Whether launches leave rows of gradients unwritten, which must be zero."""

    @property
    def kernel(self) -> object:
        return None if self.unwritten or not self.steps else self.steps[0].plan.kernel

    @property
    def size(self) -> int:
        return sum({id(step.plan.tables): step.plan.size for step in self.steps}.values())

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for step in self.steps for name in step.plan.sources)

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(layout for step in self.steps for layout in step.plan.layouts)

    def place(self, library: Library, q: Any) -> tuple[Sents, int]:
        """Return the arguments of each launch on the device, and the stream to launch on; see
        PreparedLaunch.place."""
        placed = [step.plan.place(library, q) for step in self.steps]
        return Sents(tuple([sent for sent, _ in placed])), placed[0][1] if placed else 0

    def run(self, sent: Sents, pointers: Pointers, numbers: Numbers, stream: int) -> None:
        pointers += (0,) * (len(POINTERS) - len(pointers))
        for (launch, shifts), there in zip(self.steps, sent.steps, strict=True):
            moved = pointers if shifts == _UNMOVED else _moved(pointers, shifts)
            launch.run(there, moved, numbers, stream)


def _moved(pointers: Pointers, shifts: tuple[int | None, ...]) -> Pointers:
    """Return the pointers of a launch from those of the call."""
    both = zip(pointers, shifts, strict=True)
    return tuple([at + by if at and by is not None else 0 for at, by in both])


def _in_order(
    steps: list[Step], direction: Direction, outputs: tuple[Output, ...], unwritten: bool
) -> PartedPlan:
    """One after another, in a workspace that is enough for each."""
    at = 3 if direction is Direction.backward else 2  # a few forward launches have one too
    spaces = [step.plan.outputs[at] for step in steps if len(step.plan.outputs) > at]
    if spaces:
        most = max(spaces, key=lambda space: space.shape)
        outputs = (*outputs[:at], most, *outputs[at + 1 :])
    return PartedPlan(tuple(steps), outputs, unwritten)
