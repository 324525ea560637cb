"""The caller's arrays and parameters, checked and turned into what formulas and kernels read.

Every array becomes int32 under the names formulas use. A leading batch dimension stays; a table
may carry heads before its rows. Nothing is rounded or guessed: what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from maskc.core.captured import HELD
from maskc.core.data import CALL, CuSeqlens, DataDecl, DataKind, Parents, check_ends, check_truths
from maskc.core.errors import BadLength, DataMissing, DataRange, DataShape, DataType
from maskc.core.layout import MAX_LENGTH
from maskc.core.leading import leading
from maskc.core.selection import SHAPES
from maskc.core.unknown import unknown_keyword, wrong_ids
from maskc.core.widths import plain_integer
from maskc.layout.inputs import random_draw as random
from maskc.layout.inputs.host import check_int32, to_host
from maskc.layout.inputs.max_seqlen import check_lengths_promised
from maskc.layout.tiles.chosen_blocks import NONE, Chosen

_DIMENSIONS = (1, 2, 3)
"""Dimensions of a vector, with sequences and heads in front."""
LIMIT = 1 << 30
"""Largest magnitude of a parameter or a data value: differences then fit 32 bits."""

_NO_QUERY, _NO_KEY = LIMIT - 1, LIMIT
"""Ids of queries and keys after the last packed document. They differ, so that such queries see no
key. templates/common/lib/read_arrays.cuh writes the same ones."""

Arrays = dict[str, np.ndarray]

EXPECTED = {
    DataKind.documents: "document ids, mc.cu_seqlens(x), or a pair of them for queries and keys",
    DataKind.flags: "one boolean per token",
    DataKind.positions: "integers, one per query or per key as the mask says",
    DataKind.intervals: "a pair (lo, hi) of integer arrays, one value per query or token",
    DataKind.tree: "a pair (tin, tout) of integer arrays, or mc.parents(x)",
    DataKind.table: "booleans [query blocks, key blocks]",
    DataKind.key_lists: "integers [n_q, K], the keys of each query, -1 for none",
}


def check_lengths(n_q: object, n_kv: object) -> tuple[int, int]:
    """Both lengths as plain integers.

    Raises:
        BadLength: not an integer, negative, or above 2^30.
    """
    return _length("n_q", n_q), _length("n_kv", n_kv)


def _length(name: str, value: object) -> int:
    length = plain_integer(value)
    if length is None or not 0 <= length <= MAX_LENGTH:
        raise BadLength(name, MAX_LENGTH, repr(value), at=name)
    return length


# ------------------------------------------------------------------ keywords of a call


def split_call_data(
    decls: tuple[DataDecl, ...],
    params: tuple[tuple[str, int], ...],
    data: Mapping[str, object],
    unread: Iterable[str] = (),
    options: Iterable[str] = CALL,
) -> tuple[dict[str, int], dict[str, object]]:
    """Separate the keywords of a call into parameters and data.

    Args:
        decls: data the mask reads.
        params: (name, default) of its parameters.
        data: what the caller passed by name.
        unread: names that the mask declares but its formula does not need; they may be passed.
        options: what else the caller could have written, for messages.

    Returns:
        A value for every parameter, and the data still as given, in the order of `decls`.

    Raises:
        DataUnknown, DataMissing: a name too many or too few.
        DataType, DataRange: a parameter that is not an integer, or not in 0..2^30.
    """
    wanted = [decl for decl in decls if decl.from_caller]
    known = [decl.name for decl in wanted] + [name for name, _ in params]
    _refuse_unknown((name for name in data if name != HELD), [*known, *unread], options)
    values = {name: _parameter(name, data.get(name, default)) for name, default in params}
    for decl in wanted:
        if data.get(decl.name) is None:
            raise DataMissing(decl.name, _expected(decl), at=decl.name)
    return values, {decl.name: data[decl.name] for decl in wanted}


def _expected(decl: DataDecl) -> str:
    return SHAPES[decl.name] if decl.kind is DataKind.scoring else EXPECTED[decl.kind]


def _refuse_unknown(data: Iterable[str], known: list[str], options: Iterable[str] = CALL) -> None:
    for name in data:
        if name not in known:
            raise unknown_keyword(name, known, options)


def _parameter(name: str, value: object) -> int:
    number = plain_integer(value)
    if number is None:
        kind = getattr(value, "dtype", type(value).__name__)
        raise DataType(name, kind, "an integer", at=name)
    if not 0 <= number <= LIMIT:
        hint = "parameters count tokens; None in the pattern means unbounded"
        raise DataRange(name, f"{number} is outside 0..{LIMIT}", hint, at=name)
    return number


# ------------------------------------------------------------------ arrays


def bind_arrays(
    decls: tuple[DataDecl, ...],
    data: Mapping[str, object],
    n_q: int,
    n_kv: int,
    offset: int | None = None,
) -> Arrays:
    """Check the caller's data and compute the rest: every array the formulas read.

    Args:
        decls: data the mask reads.
        data: the caller's arrays by declaration name (parameters already taken out); NumPy,
            torch, CuPy, DLPack or lists. A pair is a tuple.
        n_q, n_kv: lengths.
        offset: position of query 0 where positions are aligned at the end; n_kv - n_q when None.

    Returns:
        int32 arrays by the names in `DataDecl.arrays`, C-contiguous, with sequences and heads in
        front as `maskc.core.leading` says.
        Run-time selections are not among them, see `choose`, nor are the captured arrays that
        a mask brings, see `held_arrays`.

    Raises:
        BadLength, DataMissing, DataUnknown, DataShape, DataType, DataRange, NotAnArray.
    """
    n_q, n_kv = check_lengths(n_q, n_kv)
    _refuse_unknown(data, [decl.name for decl in decls if decl.from_caller])
    arrays: Arrays = {}
    for decl in decls:
        if decl.kind in (DataKind.selection, DataKind.scoring) or decl.held:
            continue
        if decl.from_caller:
            if data.get(decl.name) is None:
                raise DataMissing(decl.name, _expected(decl), at=decl.name)
            parts = _READERS[decl.kind](decl, data[decl.name], n_q, n_kv)
        elif decl.kind is DataKind.random:
            parts = (_random(decl, n_q, n_kv, n_kv - n_q if offset is None else offset),)
        else:
            parts = (_embedded(decl, n_q, n_kv),)
        made = {id(part): _narrowed(decl, part) for part in parts}
        arrays |= {name: made[id(part)] for name, part in zip(decl.arrays, parts, strict=True)}
    _check_batches(decls, arrays)
    return arrays


def _narrowed(decl: DataDecl, array: Any) -> Any:
    """The integers as kernels read them: int32, C-contiguous; a vector [batch, 1, N] as [batch, N].

    Raises:
        DataRange: one does not fit.
    """
    if isinstance(array, Chosen):
        return array
    check_int32(decl.name, array)
    single = decl.rank == 1 and array.ndim == _DIMENSIONS[-1] and array.shape[1] == 1
    return np.ascontiguousarray(array[:, 0] if single else array, dtype=np.int32)


def _check_batches(decls: tuple[DataDecl, ...], arrays: Arrays) -> None:
    sizes: dict[int, str] = {}
    for decl in decls:
        for name in filter(arrays.__contains__, decl.arrays):
            sequences, _ = leading(arrays[name].shape, decl.rank)
            if sequences != 1:
                sizes.setdefault(sequences, decl.name)
    if len(sizes) > 1:
        (one, first), (two, second) = list(sizes.items())[:2]
        raise DataShape(second, f"[{two}, ...]", f"batch {one}, like {first!r}", at=second)


def _shaped(name: str, array: np.ndarray, length: int) -> np.ndarray:
    """A vector of the length, with or without sequences, and heads, in front."""
    if not _is_vector(array, length):
        raise DataShape(name, array.shape, _vectors(length), at=name)
    return array


def _is_vector(array: np.ndarray, *lengths: int) -> bool:
    return array.ndim in _DIMENSIONS and array.shape[-1] in lengths


def _rows(array: np.ndarray) -> np.ndarray:
    """The vectors of all sequences and heads, one below the other."""
    return array.reshape(prod(array.shape[:-1]), array.shape[-1])


def _vectors(length: object) -> str:
    """The shapes of a vector, for messages."""
    return f"[{length}], [batch, {length}] or [batch, heads, {length}]"


def _side(decl: DataDecl, array: np.ndarray, length: int) -> np.ndarray:
    """Return the entries of one side from an array with one entry per token: the last ones, or the
    first ones."""
    tokens = array.shape[-1]
    if tokens == length:
        return array
    return array[..., :length] if decl.from_start else array[..., tokens - length :]


def _of_queries(decl: DataDecl, name: str, array: np.ndarray, n_q: int, n_kv: int) -> np.ndarray:
    """Return a vector with an entry per query. It may be passed with an entry per token if there
    are fewer queries."""
    if _is_vector(array, n_q, max(n_q, n_kv)):
        return _side(decl, array, n_q)
    tokens = f", with {n_kv} of all tokens in place of {n_q}" if n_q < n_kv else ""
    raise DataShape(name, array.shape, f"{_vectors(n_q)}{tokens}", at=name)


def _integers(name: str, given: object) -> np.ndarray:
    array = to_host(given, name)
    if array.size == 0 and array.dtype == float:  # an empty list
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DataType(name, array.dtype, "integers", at=name)
    return array


def _booleans(name: str, given: object) -> np.ndarray:
    array = to_host(given, name)
    if array.dtype.kind not in "biu" and array.size:
        raise DataType(name, array.dtype, "booleans or integers", at=name)
    check_truths(name, array)
    flags: np.ndarray = array != 0
    return flags


def _pair(decl: DataDecl, given: object) -> tuple[object, object]:
    """The two arrays of a pair; a stacked array [2, ...] is one too."""
    parts = tuple(given) if hasattr(given, "__iter__") else ()
    if len(parts) != 2:
        shape = getattr(given, "shape", f"{len(parts)} parts" if parts else type(given).__name__)
        hint = f"pass both arrays together: {decl.name}=(first, second)"
        raise DataShape(decl.name, shape, EXPECTED[decl.kind], hint, at=decl.name)
    return parts[0], parts[1]


def _documents(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    if isinstance(given, tuple) and len(given) == 2 and not all(map(_is_number, given)):
        sides = zip(decl.arrays, given, (n_q, n_kv), (_NO_QUERY, _NO_KEY), strict=True)
        of_q, of_k = (
            _ids(name, part, length, nobody=nobody) for name, part, length, nobody in sides
        )
        kinds = [isinstance(part, CuSeqlens) for part in given]
        if kinds == [True, False]:
            of_k = _numbers(of_k)
        elif kinds == [False, True]:
            of_q = _numbers(of_q)
    else:
        ids = _ids(decl.name, given, max(n_q, n_kv), (n_q, n_kv))
        of_q, of_k = _side(decl, ids, n_q), _side(decl, ids, n_kv)
        if isinstance(given, CuSeqlens) and (of_k == _NO_QUERY).any():
            of_k = np.where(of_k == _NO_QUERY, _NO_KEY, of_k)
    return small_ids(decl.name, of_q, of_k)


def _is_number(part: Any) -> bool:
    return not isinstance(part, CuSeqlens) and np.ndim(part) == 0


def _numbers(ids: np.ndarray) -> np.ndarray:
    """Return ids to compare with document numbers; -1 for ids that cannot be one."""
    return np.where((ids < 0) | (ids >= _NO_QUERY), np.int64(-1), ids.astype(np.int64))


def _ids(
    name: str, given: object, length: int, lengths: tuple[int, ...] = (), nobody: int = _NO_QUERY
) -> np.ndarray:
    """The documents of `length` tokens.

    Args:
        lengths: of queries and keys, where the ids are for both.
        nobody: the id of tokens after the last document of cumulative lengths.
    """
    if not isinstance(given, CuSeqlens):
        array = _integers(name, given)
        if _is_vector(array, length):
            return array
        wanted = _vectors(length)
        if len(set(lengths)) == 2:
            queries, keys = lengths
            wanted = (
                f"[{length}] of all tokens, or a pair, for queries [{queries}] and keys [{keys}]"
            )
        raise wrong_ids(name, array, length, wanted)
    ends = _integers(name, given.array)
    if ends.ndim not in _DIMENSIONS or ends.shape[-1] < 1:
        raise DataShape(name, ends.shape, _vectors("documents + 1"), at=name)
    ids = [_ids_from_ends(name, given, row, length, nobody) for row in _rows(ends)]
    return np.reshape(ids, (*ends.shape[:-1], length))


def _ids_from_ends(
    name: str, given: CuSeqlens, ends: np.ndarray, length: int, nobody: int
) -> np.ndarray:
    check_ends(name, ends, length)
    sizes: np.ndarray = np.diff(ends.astype(np.int64))
    check_lengths_promised(name, given, sizes)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    return np.pad(numbers, (0, length - len(numbers)), constant_values=nobody)


def small_ids(name: str, of_q: np.ndarray, of_k: np.ndarray) -> tuple[np.ndarray, ...]:
    """The ids, numbered anew where they are too large: only their equality matters."""
    for ids in (of_q, of_k):
        if ids.dtype == np.uint64 and ids.size and ids.max() >= 2**63:
            finding = f"the id {ids.max()} does not fit 64 signed bits"
            raise DataRange(name, finding, "number the documents from 0", at=name)
    if all(_extent(ids) <= LIMIT for ids in (of_q, of_k)):
        return of_q, of_k
    both = np.concatenate([of_q.astype(np.int64).ravel(), of_k.astype(np.int64).ravel()])
    numbers = np.unique(both, return_inverse=True)[1]
    return numbers[: of_q.size].reshape(of_q.shape), numbers[of_q.size :].reshape(of_k.shape)


def _extent(array: np.ndarray) -> int:
    return max(-int(array.min()), int(array.max())) if array.size else 0


def _flags(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    array = _booleans(decl.name, given)
    if decl.on_queries:
        array = _of_queries(decl, decl.name, array, n_q, n_kv)
    else:
        array = _shaped(decl.name, array, n_kv)
    count = int(array.sum(axis=-1).max(initial=0))
    if decl.most is not None and count > decl.most:
        finding = f"{count} tokens of a sequence are flagged, and the mask promises {decl.most}"
        raise DataRange(decl.name, finding, "raise at_most, or leave it out", at=decl.name)
    return (array,)


def _positions(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    array = _integers(decl.name, given)
    return (_shaped(decl.name, array, n_q if decl.on_queries else n_kv),)


def kept_promise(decl: DataDecl, flags: np.ndarray) -> np.ndarray:
    """Return random flags [N], at most as many as the mask declares with `at_most`."""
    if decl.most is not None:
        flags[np.flatnonzero(flags)[decl.most :]] = False
    return flags


def _intervals(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    """Ends beyond the keys say the same as ends at the last key."""
    parts = zip(decl.arrays, _pair(decl, given), strict=True)
    return tuple(
        np.clip(_of_queries(decl, name, _integers(name, part), n_q, n_kv), 0, n_kv)
        for name, part in parts
    )


def _tree(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    entered, left = _times(decl, given, max(n_q, n_kv))
    of_k = _side(decl, entered, n_kv)
    return of_k, _side(decl, left, n_kv), of_k if n_q == n_kv else _side(decl, entered, n_q)


def _times(decl: DataDecl, given: object, length: int) -> tuple[np.ndarray, ...]:
    """When the walk enters and leaves each token."""
    if isinstance(given, Parents):
        return times_of_parents(decl.name, given, length)
    names = decl.arrays[:2]
    times = tuple(
        _shaped(name, _integers(name, part), length)
        for name, part in zip(names, _pair(decl, given), strict=True)
    )
    for name, array in zip(names, times, strict=True):
        if _extent(array) > LIMIT:
            hint = "entry and exit times count the tokens of a depth-first walk"
            reached = f"values reach {_extent(array)}, beyond {LIMIT}"
            raise DataRange(name, reached, hint, at=name)
    return times


def _grid(decl: DataDecl, n_q: int, n_kv: int) -> tuple[int, int]:
    return -(-n_q // decl.block), -(-n_kv // decl.block)


def _table(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
    array = _booleans(decl.name, given)
    rows, columns = _grid(decl, n_q, n_kv)
    if array.ndim not in (2, 3, 4) or array.shape[-2:] != (rows, columns):
        grid = f"{rows}, {columns}]"
        expected = f"[{grid}, [heads, {grid} or [batch, heads, {grid}"
        raise DataShape(decl.name, array.shape, expected, at=decl.name)
    return (array,)


def _key_lists(decl: DataDecl, given: object, n_q: int, n_kv: int) -> tuple[Chosen, ...]:
    """Lists in order, each key once."""
    array = _integers(decl.name, given)
    if array.ndim not in (2, 3, 4) or array.shape[-2] != n_q:
        rows = f"{n_q}, K]"
        expected = f"[{rows}, [heads, {rows} or [batch, heads, {rows}"
        raise DataShape(decl.name, array.shape, expected, at=decl.name)
    if array.size and not -1 <= (least := int(array.min())) <= int(array.max()) < n_kv:
        highest = int(array.max()) if least >= -1 else least
        hint = f"keys count from 0 to {n_kv - 1}, and -1 stands for none"
        raise DataRange(decl.name, f"a list names key {highest} of {n_kv}", hint, at=decl.name)
    lists = np.full((*array.shape[:-1], max(1, array.shape[-1])), NONE)
    lists[..., : array.shape[-1]] = np.sort(np.where(array < 0, NONE, array), axis=-1)
    again = lists[..., 1:] == lists[..., :-1]
    if (again & (lists[..., 1:] != NONE)).any():
        lists[..., 1:][again] = NONE
        lists.sort(axis=-1)
    return (Chosen(lists, n_kv, 1, 1),)


def _random(decl: DataDecl, n_q: int, n_kv: int, offset: int) -> np.ndarray:
    per_row, seed = decl.options[:2]
    start = decl.options[2:] == (0,)
    position = 0 if start else offset
    rows = random.table_rows(n_q, position, decl.block)
    first = random.first_row(position, decl.block)
    return random.draw(seed, per_row, first, rows, -(-n_kv // decl.block))


def _embedded(decl: DataDecl, n_q: int, n_kv: int) -> np.ndarray:
    """The values captured when the mask was written."""
    array = decl.array
    if decl.kind is DataKind.table and array.shape[-2:] != _grid(decl, n_q, n_kv):
        wanted = f"{_grid(decl, n_q, n_kv)} for {n_q} queries and {n_kv} keys"
        raise DataShape(f"block_table(block={decl.block})", array.shape, wanted)
    return array


_READERS: dict[DataKind, Callable[[DataDecl, object, int, int], tuple[Any, ...]]] = {
    DataKind.documents: _documents,
    DataKind.flags: _flags,
    DataKind.positions: _positions,
    DataKind.intervals: _intervals,
    DataKind.tree: _tree,
    DataKind.table: _table,
    DataKind.key_lists: _key_lists,
}


# ------------------------------------------------------------------ trees


_HINT = "parents are token indices; -1 marks a root"


def times_of_parents(name: str, given: Parents, length: int) -> tuple[np.ndarray, ...]:
    """Return entry and exit times of each token, in the shape of the parents.

    Raises:
        DataShape, DataType: parents are no integers [.., length].
        DataRange: see `walk_times`.
    """
    parents = _shaped(name, _integers(name, given.array), length)
    walks = [walk_times(name, row) for row in _rows(parents)]
    return tuple(np.reshape(part, parents.shape) for part in zip(*walks, strict=True))


def walk_times(name: str, parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tin, tout), int64 [N] each: the tokens below k, and k, enter at tin[k] .. tout[k] - 1.

    Roots and children are visited in the order of their indices.

    Args:
        name: what an error calls the array.
        parents: integers [N], -1 for a root; a parent may come after its child.

    Raises:
        DataRange: an index outside the array, or tokens that hang from a cycle.
    """
    count = len(parents)
    wrong = (parents < -1) | (parents >= count)  # as given: in 64 signed bits 2^64 - 1 is a root
    if wrong.any():
        at = int(np.argmax(wrong))
        finding = f"the parent of token {at} is {parents[at]}, not in -1..{count - 1}"
        raise DataRange(name, finding, _HINT, at=name)
    parents = parents.astype(np.int64)
    children = np.argsort(parents, kind="stable")
    starts = np.searchsorted(parents[children], np.arange(-1, count + 1)).tolist()
    order = children.tolist()
    visited: list[int] = []
    stack = order[: starts[1]][::-1]
    while stack:
        token = stack.pop()
        visited.append(token)
        stack.extend(reversed(order[starts[token + 1] : starts[token + 2]]))
    if len(visited) < count:
        lost = int(np.setdiff1d(np.arange(count), visited)[0])
        raise DataRange(name, f"token {lost} hangs from a cycle of parents", _HINT, at=name)
    above, sizes = parents.tolist(), [1] * count
    for token in reversed(visited):
        if above[token] >= 0:
            sizes[above[token]] += sizes[token]
    tin = np.empty(count, dtype=np.int64)
    tin[visited] = np.arange(count)
    return tin, tin + np.array(sizes, dtype=np.int64)
