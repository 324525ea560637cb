"""Tensor maps as numbers: extents, strides and boxes of Hopper's copy engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from maskc.core.abi import POINTERS
from maskc.core.boxes import Boxes
from maskc.core.bundle import OF_KEYS, TensorMap
from maskc.core.errors import NotAddressable
from maskc.core.problem import Problem
from maskc.core.sizes import Sizes
from maskc.core.tensors import Shape

ROW = 128
"""Bytes of a row that a box holds: the width of the swizzle."""


GRANULE = 16
"""Bytes: addresses and strides are multiples."""


_FAR = 1 << 40
"""Bytes: strides are less."""


_OF_VALUES = ("v", "out", "dout", "dv")


_MAX_AXES = 3
"""The most axes of a grid: a map has no more than five dimensions."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor map without its address."""

    pointer: int
    """Index among the pointers of a call."""
    dims: Shape
    """Elements of a row, tokens (along each axis of a grid, the innermost first), heads,
    sequences; the last one is left out where a grid has three axes. Interleaved heads come before
    tokens."""
    strides: Shape
    """Bytes between neighbours, for all but the first."""
    box: Shape
    """The box that one copy moves."""
    dtype: str


def tensor(
    wanted: TensorMap, strides: Shape, sizes: Sizes, problem: Problem, target: str,
    boxes: Boxes | None = None, pages: int = 0, interleaved: int = 0,
) -> Tensor:  # fmt: skip
    """The map of a tensor [batch, heads, tokens, dim].

    A dimension with size 1, or with stride 0 because it was expanded, has size 1 in the map:
    kernels multiply its coordinate by 0 if the stride in the argument block is 0.

    Args:
        wanted: which tensor, and its box.
        strides: in elements, of batch, heads, tokens; for paged keys, strides of the pool.
        boxes: boxes of a grid; three axes only with a single sequence.
        pages: number of pages of a pool, which take the place of sequences of keys and values; 0
            without a pool.
        interleaved: heads whose rows lie side by side in a box, see INTERLEAVED; 0: one.

    Raises:
        NotAddressable: a stride that no map can have.
    """
    name = wanted.tensor
    width = problem.head_dim_v if name in _OF_VALUES else problem.head_dim
    heads, tokens, batch = sizes.heads_q, sizes.n_q, sizes.batch
    if name in OF_KEYS:
        heads, tokens = sizes.heads_kv, sizes.n_kv
        interleaved = 0
        if pages:
            tokens, batch = problem.page_size, pages
    kind = problem.dtype.of_out if name == "out" else problem.dtype
    kind = problem.of_keys if name in OF_KEYS else kind
    dims, steps = [width], []
    nothing = 0 in (batch, heads, tokens)
    for what, count, stride in (
        *([("heads", interleaved, strides[1] // interleaved)] if interleaved else []),
        *_along(tokens, strides[2], boxes),
        ("heads", heads, strides[1]),
        *([("sequences", batch, strides[0])] if len(wanted.box) < _MAX_AXES else []),
    ):
        step = stride * kind.itemsize
        far = count > 1 and not nothing
        if far and (step < 0 or step % GRANULE or step >= _FAR or (not step and what == "tokens")):
            why = f"its {what} are {step} bytes apart, not a positive multiple of 16 below 2^40"
            raise NotAddressable(name, target, why, at=name)
        dims.append(count if far and step else 1)
        steps.append(step if far and step else -(-width * kind.itemsize // GRANULE) * GRANULE)
    place = 0 if nothing else POINTERS.index(name)  # of an empty tensor any address does
    rows = (interleaved, wanted.rows // interleaved) if interleaved else (wanted.rows,)
    box = (ROW // kind.itemsize, *(wanted.box[::-1] or rows))
    box = (*box, *(1,) * (len(dims) - len(box)))
    return Tensor(place, tuple(dims), tuple(steps), box, kind.value)


def _along(tokens: int, stride: int, boxes: Boxes | None) -> list[tuple[str, int, int]]:
    """Tokens along each axis, the innermost first, and elements between neighbours."""
    dims = []
    for extent in reversed(boxes.grid(tokens) if boxes else (tokens,)):
        dims.append(("tokens", extent, stride))
        stride *= extent
    return dims


def tensors(
    maps: tuple[TensorMap, ...], strides: Mapping[str, Shape], sizes: Sizes, problem: Problem,
    target: str, boxes: Boxes | None = None, pages: int = 0, interleaved: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All maps of a source; `strides` in elements by tensor; errors as above."""
    rest = (sizes, problem, target, boxes, pages, interleaved)
    return tuple(tensor(tensor_map, strides[tensor_map.tensor], *rest) for tensor_map in maps)
