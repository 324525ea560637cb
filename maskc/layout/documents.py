"""Masks of documents and something else that reads no data."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.expr import Expr


def beside_documents(keep: Expr, data: tuple[DataDecl, ...]) -> Expr | None:
    """What a mask asks of a pair besides that both tokens are of one document.

    Args:
        keep: the mask over q, k, n_q, n_kv, parameters and data arrays.
        data: all that it reads.

    Returns:
        The rest of the conjunction, which reads no data; None where the mask is anything else.
    """
    if len(data) != 1 or data[0].kind is not DataKind.documents:
        return None
    of_q, of_k = data[0].arrays
    same = E.eq(E.Load(of_q, (E.Q,)), E.Load(of_k, (E.K,)))
    terms = keep.terms if isinstance(keep, E.All) else (keep,)
    rest = tuple(term for term in terms if term != same)
    if len(rest) == len(terms) or any(E.arrays(term) for term in rest):
        return None
    return E.conj(*rest)
