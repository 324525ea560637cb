"""Combinators over arrays that arrive when the kernel is called."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from maskc.core.data import CuSeqlens, DataDecl, DataKind, Parents, check_name
from maskc.core.errors import BadTable, DataRange, MaskcError
from maskc.core.source import SourceLoc, caller
from maskc.dsl import checked, nodes
from maskc.dsl.collect import mistake
from maskc.dsl.mask import Mask


def _name(name: object, at: SourceLoc | None) -> str:
    try:
        return check_name(name, at)
    except MaskcError as error:
        return mistake(error, "data")


def documents(name: str) -> Mask:
    """doc[q] == doc[k]: packed documents see only themselves.

    At call time: `name=ids` (integers [N] or [B, N], any order; sorted ones run faster),
    `name=mc.cu_seqlens(x, max_seqlen)`, or a pair (for queries, for keys) when the lengths differ.
    """
    at = caller()
    found = _name(name, at)
    decl = DataDecl(found, DataKind.documents, (f"{found}.q", f"{found}.k"))
    return nodes.Documents(decl, loc=at)


def flags(name: str, on: str = "k") -> Mask:
    """flag[k] (or flag[q] with on="q"): booleans [n_kv] (or [n_q]) given at call time."""
    at = caller()
    found = _name(name, at)
    on = checked.choice("flags", "on", on, ("k", "q"), at)
    decl = DataDecl(found, DataKind.flags, (found,), options=(int(on == "q"),))
    return nodes.Flags(decl, on, loc=at)


def intervals(name: str) -> Mask:
    """lo[q] <= k < hi[q]: `name=(lo, hi)`, two integer arrays [n_q], given at call time."""
    at = caller()
    found = _name(name, at)
    decl = DataDecl(found, DataKind.intervals, (f"{found}.lo", f"{found}.hi"))
    return nodes.Intervals(decl, loc=at)


def tree(name: str) -> Mask:
    """tin[k] <= tin[q] < tout[k]: a query sees itself and its ancestors.

    At call time `name=(tin, tout)`, entry and exit times of a depth-first walk, or
    `name=mc.parents(x)`.
    """
    at = caller()
    found = _name(name, at)
    decl = DataDecl(found, DataKind.tree, (f"{found}.tin", f"{found}.tout"))
    return nodes.Tree(decl, loc=at)


def block_table(table: object, block: int) -> Mask:
    """table[q // block, k // block]: booleans, given here or (by name) at call time.

    Args:
        table: a name, or an array [query blocks, key blocks] or [heads, query blocks, key blocks].
        block: tokens per row and column of the table.
    """
    at = caller()
    size = checked.constant("block_table", "block", block, at)
    if isinstance(table, str):
        name = _name(table, at)
        return nodes.BlockTable(DataDecl(name, DataKind.table, (name,), size), loc=at)
    try:
        array = np.asarray(table)
    except (TypeError, ValueError):  # a ragged list, a tensor on a device
        found = f"a {type(table).__name__} that NumPy cannot read"
        return mistake(BadTable("block_table", found, at=at), nodes.Full(loc=at))
    if array.ndim not in (2, 3) or array.dtype.kind not in "biu" or not array.size:
        wrong = BadTable("block_table", f"shape {array.shape} of {array.dtype}", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    return nodes.BlockTable(captured(array != 0, DataKind.table, size), loc=at)


def captured(array: np.ndarray, kind: DataKind, block: int = 1) -> DataDecl:
    """The declaration of an array whose values are known now; named after its content.

    Raises:
        DataRange: a value beyond 32 bits.
    """
    values = np.ascontiguousarray(array, dtype="<i4")
    if not np.array_equal(values, array):
        found = f"values reach {array.min()} and {array.max()}, beyond 32 bits"
        raise DataRange("a captured array", found, "kernels read 32-bit integers", at=caller())
    content = values.tobytes()
    digest = sha256(repr((kind.value, block, values.shape)).encode() + content).hexdigest()[:12]
    name = f"table_{digest}"
    return DataDecl(name, kind, (name,), block, values=content, shape=values.shape)


def cu_seqlens(array: object, max_seqlen: int | None = None) -> CuSeqlens:
    """Marks cumulative lengths [documents + 1], from 0 to N, where documents are expected.

    Args:
        array: integers [documents + 1] or [B, documents + 1].
        max_seqlen: a promise, checked: no document has more tokens. Short documents then run in
            smaller tiles where these take less time (Hopper), and their lists take less memory.
    """
    return CuSeqlens(array, max_seqlen)


def parents(array: object) -> Parents:
    """Marks a parent array [N] (-1 for roots) where a tree is expected."""
    return Parents(array)
