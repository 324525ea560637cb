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


def documents(name: str, *, align: str = nodes.END) -> Mask:
    """doc[p] == doc[k]: packed documents see only themselves.

    At call time: `name=ids` (integers [N] or [B, N], any order; sorted ones run faster), or
    `name=mc.cu_seqlens(x, max_seqlen)`. Where the lengths differ N is the greater one, and the last
    query is the last token (the first one the first with align="start"); a pair (for queries, for
    keys) gives each side its own.
    """
    at = caller()
    found, align, options = _name(name, at), *_aligned("documents", align, at)
    decl = DataDecl(found, DataKind.documents, _arrays(found, align, "q", "k"), options=options)
    return nodes.Documents(decl, align, loc=at)


def flags(name: str, on: str = "k", *, align: str = nodes.END) -> Mask:
    """flag[k], booleans [n_kv] given at call time; or flag[p] with on="q".

    On queries they are [n_q], one per query, or [n_kv], one per token: the last query then is the
    last token, or with align="start" the first one the first.
    """
    at = caller()
    found = _name(name, at)
    on = checked.choice("flags", "on", on, ("k", "q"), at)
    align, options = _aligned("flags", align, at)
    of_queries = (1, *options) if on == "q" else (0,)
    array = f"{found}.start" if of_queries == (1, 1) else found
    decl = DataDecl(found, DataKind.flags, (array,), options=of_queries)
    return nodes.Flags(decl, on, align, loc=at)


def intervals(name: str, *, align: str = nodes.END) -> Mask:
    """lo[p] <= k < hi[p]: `name=(lo, hi)`, two integer arrays given at call time.

    They are [n_q], one entry per query, or [n_kv], one per token: the last query then is the last
    token, or with align="start" the first one the first.
    """
    at = caller()
    found, align, options = _name(name, at), *_aligned("intervals", align, at)
    decl = DataDecl(found, DataKind.intervals, _arrays(found, align, "lo", "hi"), options=options)
    return nodes.Intervals(decl, align, loc=at)


def tree(name: str, *, align: str = nodes.END) -> Mask:
    """tin[k] <= tin[p] < tout[k]: a query sees itself and its ancestors.

    At call time `name=(tin, tout)`, entry and exit times of a depth-first walk, or
    `name=mc.parents(x)`; one entry per token, of which there are as many as the greater length. The
    last query is the last token, as behind a key/value cache, or with align="start" the first one
    the first.
    """
    at = caller()
    found, align, options = _name(name, at), *_aligned("tree", align, at)
    arrays = _arrays(found, align, "tin", "tout", "q")
    decl = DataDecl(found, DataKind.tree, arrays, options=options)
    return nodes.Tree(decl, align, loc=at)


def _aligned(where: str, align: str, at: SourceLoc | None) -> tuple[str, tuple[int, ...]]:
    """(the checked word, what a declaration's options say of it)."""
    found = checked.align(where, align, at)
    return found, (1,) if found == nodes.START else ()


def _arrays(name: str, align: str, *parts: str) -> tuple[str, ...]:
    """Names by which formulas read the parts of one argument: others where they hold others."""
    return tuple(f"{name}.{part}{'_start' * (align == nodes.START)}" for part in parts)


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
