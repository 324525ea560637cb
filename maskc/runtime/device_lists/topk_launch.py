"""Passes whose blocks are chosen on the device, just before they run, from q and k there.

All that is made lies in the workspace of the call.
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
from maskc.runtime.device_lists.lists_launch import BEHIND_STATE, OF_MASK, OF_PASS, OWN, PARTS
from maskc.runtime.launch.cuda import Arguments, Step
from maskc.runtime.launch.prepared import Sent

SELECTED = abi.structure(abi.SELECTED_FIELDS)
_EACH = range(abi.MAX_SELECTIONS)
JOINED = tuple(f"joined_{side}{number}" for number in _EACH for side in "qk")
WORKSPACE = ("state", *JOINED, *PARTS)
"""Parts of the workspace: JOINED are for the choice alone."""
_STATE, _JOINED, _LISTS = slice(1), slice(1, 1 + len(JOINED)), slice(1 + len(JOINED), None)
_OWN = struct.Struct(f"{SELECTED.q_stride.offset // 8}Q")
"""The members of `struct Selected` that are pointers, its first."""


class Ranked(NamedTuple):
    """A tensor that a call passes for selections to rank by."""

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
    """A pass with blocks that are selected, and lists that are built, on the device."""

    choices: tuple[Step, ...]
    """Launches that choose."""
    make: tuple[Step, ...]
    """The launch that makes the lists."""
    numbers: tuple[bytes, bytes]
    """`struct Selected`, and `struct Lists`, without their pointers."""
    room: tuple[int, ...]
    """Bytes from the start of the workspace to each part of WORKSPACE; -1 for those that are not
    made."""
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
        parts, state = made[_LISTS], made[_STATE]
        bits = parts[: len(_EACH)]
        choosing = Arguments(self.numbers[0], _OWN, (
            *pointers[:2], *(x.array.pointer if x else 0 for x in given),
            *(classes + INT * first for first in self.classes), args, *made[_JOINED], *bits, *state,
        ))  # fmt: skip
        making = Arguments(self.numbers[1], OWN, (
            *(0,) * OF_MASK, cases, codes, planned, *parts, *state, *(0,) * BEHIND_STATE,
        ))  # fmt: skip
        self.lists.launch(self.choices, stream, choosing)
        self.lists.launch(self.make, stream, making)
        arrays = [bits[number] for number in self.arrays]
        seen = (
            *pointers, *OF_PASS(parts), of_head, mask_args, 0, 0,
            *arrays, *[0] * (len(_EACH) - len(arrays)),
        )  # fmt: skip
        self.main.run(sent, seen, numbers, stream)


def block_of(structure: type[ctypes.Structure], numbers: dict[str, object]) -> bytes:
    """An argument block without its pointers; arrays may be shorter than their members."""
    block = structure()
    for name, value in numbers.items():
        if isinstance(value, (tuple, list)):
            member = getattr(block, name)
            member[: len(value)] = value
        else:
            setattr(block, name, value)
    return bytes(block)
