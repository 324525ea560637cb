"""Masks over a part of a sequence: some of its queries, and of its keys.

A mask counts queries and keys from the first row of the call's tensors. In a part of a sequence
two parameters say how many queries and keys of the sequence come before the tensors.
"""

from __future__ import annotations

from functools import lru_cache

from maskc.core import expr as E
from maskc.core.captured import ANY_LENGTHS, Computed
from maskc.core.expr import Expr
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask

FIRST_QUERY, FIRST_KEY = "first_query", "first_key"
"""Parameters: the positions of the tensors' first query and first key in the sequence."""


class NotMoved(Exception):
    """A mask that depends on keys, or on an evaluation, of the whole sequence."""


@lru_cache(maxsize=64)
def moved(mask: Mask, keys: bool) -> Mask:
    """Return the mask of a sequence, to be used on a part of it.

    Parts of the mask that count from the last query and key stay as they are, unless keys are
    missing.

    Args:
        mask: as it is written for the whole sequence.
        keys: whether keys are missing before the tensors, and not only queries.

    Returns:
        The mask, which reads FIRST_QUERY and FIRST_KEY where its pairs depend on them.

    Raises:
        NotMoved: it selects keys at run time, reads data of a call, or is evaluated for the
            lengths of a call.
    """
    before_q = E.Param(FIRST_QUERY, 0)
    before_k: Expr = E.Param(FIRST_KEY, 0) if keys else E.ZERO
    values: dict[Expr, Expr] = {
        E.Q: E.add(E.Q, before_q), E.K: E.add(E.K, before_k),
        E.N_Q: E.add(E.N_Q, before_q), E.N_KV: E.add(E.N_KV, before_k),
    }  # fmt: skip

    def change(part: Mask) -> Mask:
        node = N.as_node(part)
        if isinstance(node, N.Combinator):
            keep = E.substitute(node.keeps, values)
            if keep == node.keeps:
                return node
            if any(isinstance(decl.values, Computed) for decl in node.decls):
                raise NotMoved
            lengths = getattr(node, "lengths", ANY_LENGTHS)
            return N.Where(keep, node.decls, lengths, loc=node.loc)
        if keys and not isinstance(node, N.Algebra | N.Complement | N.PerHead):
            raise NotMoved
        return node.over(change)

    result = change(mask)
    return mask if result == mask else result
