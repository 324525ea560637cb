"""The keywords of a call that speak of the mask: parameters and data, and a key for them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core.bundle import Bundle, Variant
from maskc.core.errors import NoSuchHead
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.layout import (
    bind_arrays,
    build,
    check_lengths,
    sequence_arrays,
    split_call_data,
    tile_shape,
)


@dataclass(frozen=True, eq=False)
class Bound:
    """A mask's parameters and data for one call."""

    params: Mapping[str, int]
    """A value for every parameter."""
    given: Mapping[str, object]
    """What the caller passed as data."""
    arrays: Mapping[str, np.ndarray] | None
    """int32 by the names formulas use; None where lengths alone decide them."""
    key: Hashable
    """Equal keys, equal masks at equal lengths."""


class Binder:
    """Reads the keywords of calls to one mask."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self.needs_data = any(decl.from_caller for decl in bundle.data)
        """Whether a call must pass data."""
        self.default = Bound({}, {}, None, None) if self.needs_data else self._plain({})
        """What a call without keywords means, where it needs no data."""

    def _plain(self, keywords: Mapping[str, object]) -> Bound:
        mask = self._bundle
        params, given = split_call_data(mask.data, mask.params, keywords, mask.unread)
        return Bound(params, given, None, tuple(params.values()))

    def bind(self, keywords: Mapping[str, object], n_q: int, n_kv: int) -> Bound:
        """Parameters, and data as int32 arrays.

        Data are known by their content, never by identity: an array changed in place is a new
        one, an equal array costs a digest and nothing more. Data on a GPU are copied to the host
        here, which waits for the device; pass host arrays to avoid that.

        Raises:
            DataMissing, DataUnknown, DataShape, DataType, DataRange, NotAnArray.
        """
        plain = self._plain(keywords)
        if not self.needs_data:
            return plain
        arrays = bind_arrays(self._bundle.data, plain.given, n_q, n_kv)
        return Bound(plain.params, plain.given, arrays, (plain.key, _digest(arrays)))

    def arrays(self, bound: Bound, n_q: int, n_kv: int) -> Mapping[str, np.ndarray]:
        """All arrays of a call, computed ones included."""
        if bound.arrays is not None:
            return bound.arrays
        return bind_arrays(self._bundle.data, bound.given, n_q, n_kv)


def _digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for name, values in arrays.items():
        digest.update(f"{name}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.digest()


def variant_of(bundle: Bundle, head: int) -> Variant:
    """The mask of one head.

    Raises:
        NoSuchHead: the mask was compiled for fewer heads.
    """
    if not bundle.head_variant:
        return bundle.variants[0]
    if not 0 <= head < len(bundle.head_variant):
        raise NoSuchHead(head, len(bundle.head_variant), at="head")
    return bundle.variants[bundle.head_variant[head]]


def mask_layout(
    bundle: Bundle, binder: Binder, tile: TileShape, n_q: int, n_kv: int | None,
    block: tuple[int, int] | None, head: int, batch: int, data: Mapping[str, object],
) -> BlockLayout:  # fmt: skip
    """The live tiles of one head of one sequence; see CompiledMask.layout."""
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    bound = binder.bind(data, n_q, n_kv)
    recipe = variant_of(bundle, head).recipe(tile_shape(block) if block is not None else tile)
    arrays = sequence_arrays(recipe, binder.arrays(bound, n_q, n_kv), batch, head)
    return build(recipe, n_q, n_kv, bound.params, arrays)
