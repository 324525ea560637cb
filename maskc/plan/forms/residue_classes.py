"""Masks in parts, of which some run over residue classes of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from maskc.analysis.facts import analyse
from maskc.ir.relayout import Extents, parts
from maskc.plan.types import Heads, KernelPlan, PlannedPart

_PASS = 4
"""Tiles of 128 keys per row that take as long as one more pass over the rows does beside its own:
q, k, v and out are read or written again, and out and lse joined."""


def strides_together(extents: Extents) -> Mapping[int, int]:
    """Strides that run with a lesser one, where the tiles that lie between their keys take less
    time than a pass of their own."""
    chosen: dict[int, int] = {}
    base = 1
    for stride, extent in extents.items():
        more = None if extent is None else extent * (stride / base - 1) / 128
        if base not in chosen or stride % base or more is None or more >= _PASS:
            base = stride
        chosen[stride] = base
    return chosen


def planned_parts(heads: Heads, again: Callable[[Heads], KernelPlan]) -> tuple[PlannedPart, ...]:
    """The parts of the one mask that all heads share, if some run over residue classes.

    Args:
        again: plans such a part, alone.
    """
    if len(heads.masks) > 1 or heads.masks[0].selections:
        return ()
    found = parts(heads.masks[0], strides_together)
    if all(part.stride == 1 for part in found):
        return ()
    return tuple(
        PlannedPart(
            part.stride,
            again(Heads((part.ir,), (analyse(part.ir),), ())),
            part.aligned,
            part.keys,
        )
        for part in found
    )
