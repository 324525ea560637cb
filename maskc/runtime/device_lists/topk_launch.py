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
from maskc.core.abi import Numbers, Pointers
from maskc.core.tensors import Array
from maskc.runtime.device_lists.call import DELTA, INT, KEPT, KEPT_AT, DeviceListedPlan
from maskc.runtime.launch.cuda import Arguments, Step
from maskc.runtime.launch.prepared import Sent

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
_LISTS = ("ptr0", "tiles0", "ptr1", "tiles1", "work", "counter")
"""What the pass reads as its lists, in the order of LISTED_POINTERS."""
_ARRAYS = 3
"""Places of the argument block for data arrays that a call sets."""


class Ranked(NamedTuple):
    """A tensor that a call gives for selections to rank by."""

    array: Array
    strides: tuple[int, int, int, int]
    """Strides in elements, of sequences, heads, rows and columns; 0 where these share theirs."""

    @property
    def key(self) -> Hashable:
        """All but where it is."""
        return self.array[1:]


Given = tuple[Ranked | None, ...]
"""scores, index_q, index_k, index_w, the factors of index_k."""


@dataclass(frozen=True, eq=False)
class SelectedPlan(DeviceListedPlan):
    """A pass whose blocks are chosen, and whose lists are made, on the device."""

    before: tuple[Step, ...]
    """Launches of it."""
    numbers: bytes
    """`struct Selected` without its pointers."""
    room: tuple[int, ...]
    """Bytes from the start of the workspace to each of PARTS; -1 for those that are not made."""
    classes: tuple[int, ...]
    """int32 entries before each selection's classes, among those of all."""
    arrays: tuple[int, ...]
    """The selection that each of the kernel's data arrays is."""

    def enqueue(
        self, given: Given, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Choose, make the lists and run the pass, in order."""
        base = pointers[DELTA]
        made = [base + offset if offset >= 0 else 0 for offset in self.room]
        cases, codes, args, classes, planned, _, of_head, mask_args, *_ = KEPT.unpack_from(
            sent.template, KEPT_AT
        )
        block = Arguments(self.numbers, _OWN, (
            *pointers[:2], *(x.array.pointer if x else 0 for x in given), cases, codes,
            *(classes + INT * first for first in self.classes), args, planned, *made,
        ))  # fmt: skip
        self.lists.launch(self.before, stream, block)
        arrays = [made[_PLACE[f"bits{number}"]] for number in self.arrays]
        seen = (
            *pointers, *(made[_PLACE[name]] for name in _LISTS), of_head, mask_args, 0, 0,
            *arrays, *[0] * (_ARRAYS - len(arrays)),
        )  # fmt: skip
        self.own.run(sent, seen, numbers, stream)


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
