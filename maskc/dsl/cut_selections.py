"""A warning if a run-time selection chooses among all documents and a mask then drops some keys."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from maskc.core.source import outside
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask


class PackedSelectionWarning(UserWarning):
    """`topk` chooses among keys of all documents, but the mask around it keeps one document."""


def warn_of_cut(left: Mask, right: Mask) -> None:
    """Warn where `left & right` drops keys of other documents that a selection chose.

    Warns:
        PackedSelectionWarning: a selection on one side does not read the documents on the other.
    """
    for packed, mask in ((left, right), (right, left)):
        for documents in _conjuncts(packed):
            for node in N.walk(mask):
                if isinstance(node, N.TopK) and not _reads(node.of, documents):
                    _warn(node, documents)
                    return


def _conjuncts(mask: Mask) -> Iterator[N.Documents]:
    """Return the document terms that every pair of a mask must satisfy."""
    match mask:
        case N.Algebra("&", left, right):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case N.Documents():
            yield mask


def _reads(of: Mask, documents: N.Documents) -> bool:
    return any(
        isinstance(node, N.Documents) and node.decl.name == documents.decl.name
        for node in N.walk(of)
    )


def _warn(selection: N.TopK, documents: N.Documents) -> None:
    several = selection.block > 1 or selection.q_block > 1
    blocks = (
        "; give it at=mc.positions(...), too, as its blocks count from the start of the row"
        if several and selection.at is None
        else ""
    )
    warnings.warn(
        f"topk({selection.k}, ...) chooses among the keys of all documents, and & {documents} "
        f"drops those of other ones: write {documents} into its of={blocks}",
        PackedSelectionWarning,
        stacklevel=outside(),
    )
