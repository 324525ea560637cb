"""Combinators over arrays that arrive when the kernel is called."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import numpy as np

from maskc.core.data import (
    CuSeqlens,
    DataDecl,
    DataKind,
    Parents,
    check_name,
    positions_of_keys,
    positions_of_queries,
)
from maskc.core.errors import BadTable, DataRange, MaskcError, MaskedValues, ReservedName
from maskc.core.source import SourceLoc, caller
from maskc.core.tensors import refuse_masked
from maskc.dsl import checked, nodes
from maskc.dsl.collect import mistake
from maskc.dsl.mask import Mask


def _name(name: object, at: SourceLoc | None) -> str:
    try:
        return check_name(name, at)
    except MaskcError as error:
        return mistake(error, "data")


def documents(name: str, *, align: str = nodes.END) -> Mask:
    """Keep doc[p] == doc[k]: packed documents see only themselves.

    At call time pass `name=ids`, integers [N] or [B, N] in any order (sorted ones run faster), or
    `name=mc.cu_seqlens(x, max_seqlen)`. If there are fewer queries than keys, N is the greater
    length. A pair of arrays (for queries, for keys) gives each side its own ids.

    Args:
        name: the keyword under which calls pass the ids.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).

    Returns:
        The mask; calls pass its data under `name`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        BadAlign: `align` is another word (MC109).
    """
    return _atom(nodes.Documents, DataKind.documents, name, align, "q", "k")


def flags(
    name: str, on: str = "k", *, align: str = nodes.END, at_most: int | None = None
) -> nodes.Flags:
    """Keep the pairs with a flagged key, or with a flagged query.

    At call time pass `name=flags`, booleans. For keys they are [n_kv] or [B, n_kv]. For queries
    they are [n_q], one per query, or [n_kv], one per token. One name may be read on both sides.

    Rows of a few flagged tokens among many keys, such as global tokens, are gathered into dense
    tiles. Flags on a GPU need `at_most` for this. Without it, every tile that contains a flag is
    live.

    Args:
        name: the keyword under which calls pass the flags.
        on: "k" for flag[k], "q" for flag[p].
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at_most: upper bound on the flagged tokens of a sequence. With more, a call raises DataRange
            (MC305); on a GPU its results are NaN, and the next call raises.

    Returns:
        The mask; calls pass its data under `name`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        BadChoice: `on` is neither "k" nor "q" (MC119).
        BadAlign: `align` is another word (MC109).
        NotConstant, NotPositive: `at_most` is not an integer, or below 1 (MC104, MC102).
    """
    return flagged("flags", name, on, align, at_most, caller())


def flagged(
    where: str, name: str, on: str, align: str, at_most: int | None, at: SourceLoc | None
) -> nodes.Flags:
    """`flags` as another combinator writes them, `where` being its name."""
    label = _name(name, at)
    on = checked.choice(where, "on", on, ("k", "q"), at)
    align = checked.align(where, align, at)
    most = None if at_most is None else checked.constant(where, "at_most", at_most, at)
    start = on == "q" and align == nodes.START
    options = (int(on == "q"), *((1,) if start else ()))
    array = f"{label}.start" if start else label
    decl = DataDecl(label, DataKind.flags, (array,), options=options, most=most)
    return nodes.Flags(decl, on, align, loc=at)


def intervals(name: str, *, align: str = nodes.END) -> Mask:
    """Keep lo[p] <= k < hi[p]: each query sees one interval of keys.

    At call time pass `name=(lo, hi)`, two integer arrays. They are [n_q], one entry per query, or
    [n_kv], one per token; a batch dimension may come first.

    Args:
        name: the keyword under which calls pass the pair.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).

    Returns:
        The mask; calls pass its data under `name`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        BadAlign: `align` is another word (MC109).
    """
    return _atom(nodes.Intervals, DataKind.intervals, name, align, "lo", "hi")


def positions(*, q: str, k: str) -> nodes.Positions:
    """Let calls pass positions of tokens, for `at=` of causal, window, dilated, block_diagonal,
    chunked.

    At call time pass both by name: integers [n_q] or [B, n_q] of queries, [n_kv] or [B, n_kv] of
    keys, in any order. Use them for tokens that were reordered, packed or selected from a longer
    sequence, and keep their original positions, such as SplashAttention's Q_idx and K_idx.

    Args:
        q: the keyword under which calls pass the positions of queries.
        k: the keyword for the positions of keys; it must differ from `q`.

    Returns:
        A pair of names for `at=`; it is not a mask.

    Raises:
        ReservedName: a name is a keyword of calls or not an identifier, or both are equal (MC111).
    """
    at = caller()
    of_q, of_k = _name(q, at), _name(k, at)
    if of_q == of_k:
        finding = "it is the name of the queries' positions"
        of_k = mistake(ReservedName(repr(k), finding, at=at), of_k)
    return nodes.Positions(positions_of_queries(of_q), positions_of_keys(of_k))


def tree(name: str, *, align: str = nodes.END) -> Mask:
    """Keep tin[k] <= tin[p] < tout[k]: a query sees itself and its ancestors.

    At call time pass `name=(tin, tout)`, entry and exit times of a depth-first walk, or
    `name=mc.parents(x)`. They are integers with one entry per token of the longer side. This is the
    mask of speculative decoding by token trees (SpecInfer, Miao et al., 2023).

    Args:
        name: the keyword under which calls pass the times.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).

    Returns:
        The mask; calls pass its data under `name`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        BadAlign: `align` is another word (MC109).
    """
    return _atom(nodes.Tree, DataKind.tree, name, align, "tin", "tout", "q")


def _atom(node: Callable[..., Mask], kind: DataKind, name: str, align: str, *parts: str) -> Mask:
    """The mask over one argument of calls, whose parts formulas read by names of their own: these
    differ where `align` makes the arrays hold other values."""
    at = caller()
    label, align = _name(name, at), checked.align(kind.value, align, at)
    start = align == nodes.START
    arrays = tuple(f"{label}.{part}{'_start' * start}" for part in parts)
    return node(DataDecl(label, kind, arrays, options=(1,) if start else ()), align, loc=at)


def block_table(table: object, block: int) -> Mask:
    """Keep the pairs whose blocks a table allows: table[q // block, k // block].

    Args:
        table: booleans or integers [query blocks, key blocks] or [heads, query blocks, key blocks];
            or a name, under which calls pass such an array.
        block: tokens per row and column of the table, a constant.

    Returns:
        The mask; a table given by name is read from each call.

    Raises:
        BadTable: the array has another rank or element type (MC116).
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        NotPositive: the block size is below 1 (MC102).
    """
    at = caller()
    size = checked.constant("block_table", "block", block, at)
    if isinstance(table, str):
        name = _name(table, at)
        return nodes.BlockTable(DataDecl(name, DataKind.table, (name,), size), loc=at)
    try:
        refuse_masked(table, "the table", at)
        array = np.asarray(table)
    except MaskedValues as error:
        return mistake(error, nodes.Full(loc=at))
    except (TypeError, ValueError):  # a ragged list, a tensor on a device
        finding = f"a {type(table).__name__} that NumPy cannot read"
        return mistake(BadTable("block_table", finding, at=at), nodes.Full(loc=at))
    if array.ndim not in (2, 3) or array.dtype.kind not in "biu" or not array.size:
        wrong = BadTable("block_table", f"shape {array.shape} of {array.dtype}", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    return nodes.BlockTable(captured(array != 0, DataKind.table, size), loc=at)


def key_lists(name: str) -> Mask:
    """Keep the listed keys of each query: k is in lists[q].

    At call time pass `name=lists`, integers [n_q, K], [H, n_q, K] or [B, H or 1, n_q, K], in any
    order, with -1 for no key. A key that is listed twice counts once. The choice of an indexer, as
    in DeepSeek's sparse attention, or the result of a retrieval has this form.

    Args:
        name: the keyword under which calls pass the lists.

    Returns:
        The mask; calls pass its data under `name`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
    """
    at = caller()
    label = _name(name, at)
    return nodes.KeyLists(DataDecl(label, DataKind.key_lists, (label,), options=(1,)), loc=at)


def captured(array: np.ndarray, kind: DataKind, block: int = 1) -> DataDecl:
    """Declare an integer array of any shape with known values; its name is derived from its
    content.

    Raises:
        DataRange: a value does not fit 32 bits.
    """
    values = np.ascontiguousarray(array, dtype="<i4")
    if not np.array_equal(values, array):
        finding = f"values reach {array.min()} and {array.max()}, beyond 32 bits"
        raise DataRange("a captured array", finding, "kernels read 32-bit integers", at=caller())
    content = values.tobytes()
    digest = sha256(repr((kind.value, block, values.shape)).encode() + content).hexdigest()[:12]
    name = f"table_{digest}"
    return DataDecl(name, kind, (name,), block, values=content, shape=values.shape)


def cu_seqlens(array: object, max_seqlen: int | None = None) -> CuSeqlens:
    """Mark an array as cumulative lengths, to pass it in place of document ids.

    Args:
        array: integers [documents + 1] or [B, documents + 1], ascending from 0 to N.
        max_seqlen: upper bound on the tokens of a document; calls check it. It lets short documents
            run in smaller tiles if these are faster (Hopper), and their lists take less memory.
            None: calls count lengths on the host, and take documents on a device for long ones.

    Returns:
        The array with a mark, to be passed as the data of `documents`.
    """
    return CuSeqlens(array, max_seqlen)


def parents(array: object) -> Parents:
    """Mark an array as parents of tokens, to pass it in place of the entry and exit times of a
    tree.

    Args:
        array: integers [N] or [B, N], the index of each token's parent, -1 for roots.

    Returns:
        The array with a mark, to be passed as the data of `tree`.
    """
    return Parents(array)
