"""The request of a plan: the pass, the tokens, and the mask bound to a call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maskc.core.problem import Direction, Features
from maskc.core.sizes import Sizes
from maskc.core.tensors import Device, Shape
from maskc.dispatch.options import Pages


@dataclass(frozen=True, slots=True)
class Pass:
    """The pass of a call, and its options for running."""

    direction: Direction
    features: Features
    deterministic: bool
    device: Device
    alpha_minus_1: float = 0.0
    """Entmax's alpha - 1; 0 with softmax."""
    pages: Pages | None = None
    """Layout of keys and values in pages; None if tokens lie one after another."""


@dataclass(frozen=True, slots=True)
class Place:
    """The tokens that a launch runs over: those of a call, or a part of them."""

    sizes: Sizes
    strides: Mapping[str, Shape]
    """Strides in elements, of sequences, heads and tokens, by tensor and for lse."""
    shifts: Mapping[str, int] = field(default_factory=dict)
    """Bytes from the start of a tensor, or of lse, to the first token; 0 where not named."""
    spacing: int = 1
    """The distance from one of them to the next, in tokens of the call."""
    shift: int | None = None
    """The difference between a query's position and its token, if queries or keys of the call are
    missing; None if the lengths determine it."""
    keys: tuple[int, int] = (0, 1)
    """The first key and the step between keys, if they are not all keys."""
    accumulates: bool = False
    """Whether results are joined with those that are there."""
    packed: int = 0
    """Query heads that are rows of one tile: one head after another in the mode PACK_GQA, all heads
    of each query in the mode INTERLEAVED. `sizes` counts these as one head, and strides of heads
    are from one group to the next. 0: in every other mode."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A mask's parameters and data for one call."""

    params: Mapping[str, int]
    """A value for every parameter."""
    arrays: Mapping[str, np.ndarray]
    """int32 arrays by their names in formulas. Empty if they depend on lengths that are not known
    yet, or if data stay on the device."""
    key: Hashable
    """A key for masks at lengths, or for plans if documents are `given`."""
    given: Any = None
    """Data that stay on the device, in place of `arrays`; read only by the code that bound them."""
    longest: int | None = None
    """The longest document, as the call promises; None if it promises nothing."""
    longest_on_host: int | None = None
    """The longest document of a call that promises nothing, if its lengths are on the host. It is a
    number of the whole batch, so deterministic passes do not read it."""
    lasting: bool = True
    """Whether another call may have the same key: not if the mask depends on q and k."""
