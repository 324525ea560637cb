"""Keywords of a call for the mask: parameters and data, and a cache key for them.

Data are identified by their content. Reading them takes longer than many kernels, so the last few
calls are cached by a mark: an exact copy of the data, which costs little more than its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from maskc.core.bundle import Bundle, Variant
from maskc.core.captured import HELD, Held
from maskc.core.data import CuSeqlens, DataKind, Parents
from maskc.core.errors import DataMissing, DataRange, NoSuchHead, OneOfSeveral
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.core.sizes import Sizes
from maskc.dispatch.call import Bound
from maskc.dispatch.tables import make_slot
from maskc.layout import (
    Chosen,
    atom_arrays,
    bind_arrays,
    bind_ranked,
    build,
    check_lengths,
    extents,
    held_arrays,
    longest_on_host,
    longest_promised,
    sequence_arrays,
    split_call_data,
    tile_shape,
)


@dataclass(frozen=True, eq=False, slots=True)
class _Known:
    """A call that is remembered."""

    mark: list[object]
    bound: Bound
    size: int
    """Approximate number of bytes that this keeps alive."""


_MAX_KNOWN = 4
"""Calls that are remembered."""
_MAX_BYTES = 32 << 20
"""Limit on the memory of all cached data."""
_MAX_MARKED = 4 << 20
"""Bytes of a mark; calls with more data are read every time."""


class Binder:
    """Reads the keywords of calls to one mask."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self.reads_data = any(decl.from_caller or decl.held for decl in bundle.data)
        """Whether the mask reads data, passed by calls or captured by its formulas."""
        self.needs_data = self.reads_data or bool(bundle.selections)
        """Whether the mask of a call depends on more than its lengths and parameters."""
        self.default = Bound({}, {}, None) if self.needs_data else self._plain({})
        """The binding of a call without keywords, if the mask needs no data."""
        self._known: tuple[_Known, ...] = ()  # latest first; only ever replaced as a whole

    def _split(self, keywords: Mapping[str, object]) -> tuple[dict[str, int], dict[str, object]]:
        mask = self._bundle
        return split_call_data(mask.data, mask.params, keywords, mask.unread)

    def parameters(self, keywords: Mapping[str, object]) -> dict[str, int]:
        """A value for every parameter.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange.
        """
        return self._split(keywords)[0]

    def check(
        self, keywords: Mapping[str, object], sizes: Sizes, tables: Iterable[str] = ()
    ) -> None:
        """Check names, shapes and dtypes of a call's data, where values are not known yet.

        Args:
            keywords: arrays with any values.
            sizes: of the call.
            tables: names that a score formula reads.

        Raises:
            DataMissing, DataUnknown, DataShape, DataType.
        """
        mask = self._bundle
        of_mask = {decl.name for decl in mask.data}.union(dict(mask.params), mask.unread)
        of_score = set(tables) - of_mask
        _, data = self._split({name: x for name, x in keywords.items() if name not in of_score})
        if mask.selections:  # which read q and k, too
            return
        try:
            arrays = bind_arrays(mask.data, data, sizes.n_q, sizes.n_kv)
        except DataRange:  # which is about values
            return
        for name, values in arrays.items():
            make_slot(name, values, mask.data, sizes)

    def _plain(self, keywords: Mapping[str, object]) -> Bound:
        params = self.parameters(keywords)
        return Bound(params, {}, tuple(params.values()))

    def bind(self, keywords: Mapping[str, object], n_q: int, n_kv: int) -> Bound:
        """Parameters, and data as int32 arrays.

        Data are identified by their content: an array that was changed in place counts as new, and
        an array equal to one of a recent call costs only a comparison. Data on a GPU are copied
        to the host every time, which waits for the device.

        Raises:
            DataMissing, DataUnknown, DataShape, DataType, DataRange, NotAnArray.
        """
        if not self.reads_data:
            return self._plain(keywords)
        mark: list[object] = [n_q, n_kv]
        room = _mark_all(keywords, mark)
        if room >= 0:
            known = self._known
            for one in known:
                if one.mark == mark:
                    if one is not known[0]:
                        self._known = (one, *(other for other in known if other is not one))
                    return one.bound
        params, given = self._split(keywords)
        arrays = _own(bind_arrays(self._bundle.data, given, n_q, n_kv))
        digests = [_digest(arrays)]
        held, kept = keywords.get(HELD), sum({id(x): x.nbytes for x in arrays.values()}.values())
        if isinstance(held, Held):
            captured = held_arrays(held, params, n_q, n_kv)
            digests += _digests(held, captured)
            kept += _longer_than(held, captured)
            atoms = atom_arrays(self._bundle.data, captured, n_q, n_kv)
            kept += sum(array.nbytes for array in atoms.values())
            arrays |= captured | atoms
        elif any(decl.held for decl in self._bundle.data):
            raise DataMissing("the captured arrays", "CompiledMask(..., held=...)", at="held")
        promised, counted = self._longest(given)
        key = (tuple(params.values()), b"".join(digests), promised, counted)
        bound = Bound(params, arrays, key, longest=promised, longest_on_host=counted)
        if room >= 0:
            self._remember(_Known(mark, bound, _MAX_MARKED - room + kept))
        return bound

    def _longest(self, given: Mapping[str, object]) -> tuple[int | None, int | None]:
        """Return the length of the longest document, as promised and as the host counts it, for a
        mask that reads no other data."""
        (decl, *others) = self._bundle.data
        if others or decl.held or decl.kind is not DataKind.documents:
            return None, None
        documents = given[decl.name]
        return longest_promised(decl.name, documents), longest_on_host(documents)

    def _remember(self, call: _Known) -> None:
        """Put a call first in the cache; drop the last ones if the cache has too many calls or
        bytes."""
        kept = [call, *self._known][:_MAX_KNOWN]
        while sum(one.size for one in kept) > _MAX_BYTES:
            kept.pop()
        self._known = tuple(kept)

    def completed(self, bound: Bound, n_q: int, n_kv: int) -> Bound:
        """Return the call with its length-dependent arrays computed."""
        if bound.arrays or bound.given is not None or not self._bundle.data:
            return bound
        return replace(bound, arrays=bind_arrays(self._bundle.data, {}, n_q, n_kv))

    def ranked(
        self, keywords: Mapping[str, object], n_q: int, n_kv: int
    ) -> tuple[Mapping[str, int], Mapping[str, np.ndarray]]:
        """(parameters, all arrays) without q and k: run-time selections rank by `scores`.

        Raises:
            As `bind`.
        """
        mask = self._bundle
        if mask.selections:
            return bind_ranked(
                mask.data, mask.params, mask.selections, mask.unread, keywords, n_q, n_kv
            )
        bound = self.completed(self.bind(keywords, n_q, n_kv), n_q, n_kv)
        return bound.params, bound.arrays


def _own(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy arrays, because the caller may write into them later; one array under two names is
    copied once."""
    made = {
        id(values): values if isinstance(values, Chosen) else values.copy()
        for values in arrays.values()
    }
    return {name: made[id(values)] for name, values in arrays.items()}


def _digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for name, values in arrays.items():
        digest.update(f"{name}{values.shape}".encode())
        content = values.lists if isinstance(values, Chosen) else values
        digest.update(np.ascontiguousarray(content).data)
    return digest.digest()


def _digests(held: Held, arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    """Return digests of captured arrays: their content, and their extended lengths."""
    digests = []
    for name, _, values in held.tables:
        digests += [f"{name}{arrays[name].shape}".encode(), values.digest]
    return digests


def _longer_than(held: Held, arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes of captured arrays that were made longer; the others the mask keeps anyway."""
    return sum(
        arrays[name].nbytes
        for name, _, values in held.tables
        if not np.may_share_memory(arrays[name], values.array)
    )


# ------------------------------------------------------------------ marks

_PLAIN = {int, bool}
_PLAIN_BYTES = 64
"""Approximate bytes of an integer in a list."""


def _mark_all(keywords: Mapping[str, object], mark: list[object]) -> int:
    """Append an encoding of these keywords to a mark; see `_mark`."""
    room = _MAX_MARKED
    for name, given in keywords.items():
        mark.append(name)
        room = _mark(given, mark, room)
        if room < 0:
            break
    return room


def _mark(given: Any, mark: list[object], room: int) -> int:
    """Append a unique encoding of a value to a mark: type, shape and content.

    Args:
        given: an integer; an array of integers or booleans of NumPy or torch on the host; a tuple
            or list of such; or one of the wrappers of documents and trees.
        mark: every value starts with its type, which says what follows.
        room: bytes that are left.

    Returns:
        Bytes that are left afterwards; negative if the value is of another type, or too large.
    """
    kind = type(given)
    if kind is np.ndarray:
        dtype, room = given.dtype, room - given.nbytes
        if room < 0 or dtype.kind not in "biu":
            return -1
        mark += (kind, dtype.str, given.shape, given.tobytes())
        return room
    if kind in _PLAIN or kind is Held:  # equal by identity or content
        mark += (kind, given)
        return room - _PLAIN_BYTES
    if kind is tuple or kind is list:
        return _mark_items(given, mark, room)
    if kind is CuSeqlens or kind is Parents:
        most = given.max_seqlen if kind is CuSeqlens else None
        if most is not None and type(most) is not int:
            return -1
        mark += (kind, most)
        return _mark(given.array, mark, room)
    if kind.__module__ == "torch" and kind.__name__ == "Tensor" and given.device.type == "cpu":
        mark.append(kind)
        try:
            return _mark(given.numpy(force=True), mark, room)
        except (RuntimeError, TypeError):  # without plain memory: an error says so where it is read
            return -1
    return -1


def _mark_items(given: tuple[Any, ...] | list[Any], mark: list[object], room: int) -> int:
    """Marks the items of a tuple or a list."""
    kinds = tuple(map(type, given))
    mark += (type(given), kinds)
    if _PLAIN.issuperset(kinds):
        mark.append(tuple(given))
        return room - _PLAIN_BYTES * (1 + len(kinds))
    for item in given:
        room = _mark(item, mark, room - _PLAIN_BYTES)
        if room < 0:
            break
    return room


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
    block: tuple[int, int] | None, head: int | None, batch: int | None,
    data: Mapping[str, object],
) -> BlockLayout:  # fmt: skip
    """The live tiles of one head of one sequence; see CompiledMask.layout."""
    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    params, arrays = binder.ranked(data, n_q, n_kv)
    if head is None and bundle.head_variant:
        raise OneOfSeveral(f"{len(bundle.head_variant)} heads", "head=", at="head")
    recipe = variant_of(bundle, head or 0).recipe(tile_shape(block) if block is not None else tile)
    sequences, heads = extents(recipe, arrays)
    for name, index, count in (("head", head, heads), ("batch", batch, sequences)):
        if index is None and count > 1:
            several = f"{count} {'heads' if name == 'head' else 'sequences'}"
            raise OneOfSeveral(several, f"{name}=", at=name)
        if index is not None and not 0 <= index < (count if count > 1 else index + 1):
            if name == "head":
                raise NoSuchHead(index, count, at=name)
            finding = f"no sequence {index} among {count}"
            raise DataRange(name, finding, "sequences count from 0", at=name)
    arrays_of_head = sequence_arrays(recipe, arrays, batch or 0, head or 0)
    return build(recipe, n_q, n_kv, params, arrays_of_head)
