"""Passes whose blocks are chosen on the device, just before they run, from q and k there.

As with documents (see listed.py) all that is made lies in the workspace of the call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from maskc.core import abi
from maskc.core.abi import Pointers
from maskc.core.tensors import Array
from maskc.runtime.launch_cuda import CudaKernel, Step
from maskc.runtime.listed import DELTA, KEPT, KEPT_AT, Arguments, ListedPlan
from maskc.runtime.listed import Call as ListedCall
from maskc.runtime.parts import PartedPlan
from maskc.runtime.plans import Plan, Sent

SELECTED = abi.structure(abi.SELECTED_FIELDS)
_EACH = range(abi.MAX_SELECTIONS)
PARTS = (
    *(f"joined_{side}{i}" for i in _EACH for side in "qk"), *(f"bits{i}" for i in _EACH),
    *(f"seen{i}" for i in _EACH), "counts0", "counts1", "ptr0", "ptr1", "tiles0", "tiles1", "work",
    "counter",
)  # fmt: skip
"""Parts of the workspace, in the order of `struct Selected`."""
_PLACE = {name: number for number, name in enumerate(PARTS)}
_OWN = struct.Struct(f"{SELECTED.q_stride.offset // 8}Q")
"""The members of `struct Selected` that are pointers, its first."""
_INT = 4
"""Bytes."""
_LISTS = ("ptr0", "tiles0", "ptr1", "tiles1", "work", "counter")
"""What the pass reads as its lists, in the order of LISTED_POINTERS."""
_ARRAYS = 3
"""Places of the argument block for data arrays that a call sets."""


class Ranked(NamedTuple):
    """A tensor that a call gives for selections to rank by."""

    array: Array
    strides: tuple[int, int, int, int]
    """In elements, of sequences, heads, rows and columns; 0 where these share theirs."""

    @property
    def key(self) -> Hashable:
        """All but where it is."""
        return self.array[1:]


Given = tuple[Ranked | None, ...]
"""scores, index_q, index_k, index_w, the factors of index_k."""


@dataclass(frozen=True, eq=False)
class SelectedPlan:
    """One direction of one signature; what `called` gives stands in for `Plan`."""

    own: Plan
    """The pass itself. Its tables are what the lists are made from."""
    lists: CudaKernel
    """Chooses, and makes the lists."""
    before: tuple[Step, ...]
    """Launches of it."""
    numbers: bytes
    """`struct Selected` without its pointers."""
    room: tuple[int, ...]
    """Bytes from the start of the workspace to each of PARTS; -1 for those that are not made."""
    classes: tuple[int, ...]
    """int32 entries before each selection's classes, among those of all."""
    arrays: tuple[int, ...]
    """Of the kernel's data arrays which selection each is."""

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return self.own.size

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels it runs, in order."""
        return (self.lists.name, *self.own.sources)

    def called(self, given: Given) -> Call:
        """A call that ranks by these tensors."""
        return Call(self, given)


Planned = Plan | PartedPlan | ListedPlan | SelectedPlan
"""How calls of one signature run."""


class Call:
    """One call of a `SelectedPlan`."""

    __slots__ = ("_given", "_plan", "kernel", "outputs", "place")

    def __init__(self, plan: SelectedPlan, given: Given) -> None:
        self._plan, self._given = plan, given
        self.kernel, self.outputs, self.place = plan.own.kernel, plan.own.outputs, plan.own.place

    def run(
        self, _: object, sent: Sent, pointers: Pointers, scale: float | None,
        softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Choose, make the lists and run the pass, in order."""
        plan, own, base = self._plan, self._plan.own, pointers[DELTA]
        made = [base + offset if offset >= 0 else 0 for offset in plan.room]
        cases, codes, args, classes, planned, _, of_head, mask_args, *_ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        block = Arguments(plan.numbers, _OWN, (
            *pointers[:2], *(x.array.pointer if x else 0 for x in self._given), cases, codes,
            *(classes + _INT * first for first in plan.classes), args, planned, *made,
        ))  # fmt: skip
        plan.lists.launch(plan.before, stream, block)
        arrays = [made[_PLACE[f"bits{number}"]] for number in plan.arrays]
        seen = (
            *pointers, *(made[_PLACE[name]] for name in _LISTS), of_head, mask_args, 0, 0,
            *arrays, *[0] * (_ARRAYS - len(arrays)),
        )  # fmt: skip
        own.run(own, sent, seen, scale, softcap, stream)


Called = ListedCall | Call
"""One call whose lists are made on the device."""


def block_of(numbers: dict[str, object]) -> bytes:
    """`struct Selected` without its pointers; arrays may be shorter than their members."""
    block = SELECTED()
    for name, value in numbers.items():
        if isinstance(value, (tuple, list)):
            member = getattr(block, name)
            member[: len(value)] = value
        else:
            setattr(block, name, value)
    return ctypes.string_at(ctypes.addressof(block), ctypes.sizeof(block))
