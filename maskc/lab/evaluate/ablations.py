"""Variants of a mask that show what each of its terms is for, and controls."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import reduce
from operator import or_

import numpy as np

from maskc.core.errors import NoTerms
from maskc.dsl.combinators import causal, sinks
from maskc.dsl.mask import Mask
from maskc.dsl.matrices import DenseWarning, from_bool
from maskc.dsl.nodes import Algebra, Sinks, walk

_SINKS = 4


def ablations(mask: Mask) -> dict[str, Mask]:
    """Return a mask without each of its terms in turn, and with sinks added if it has none.

    The terms are those of the outermost union: causal() & (A | B | C) gives the mask without A,
    without B and without C.

    Args:
        mask: a mask that contains a union.

    Returns:
        Masks by a description of the change, such as "without sinks(4)" or "with sinks(4)".

    Raises:
        NoTerms: the mask contains no union (MC733).
    """
    masks = {f"without {term}": rest for term, rest in _without(mask)}
    if not masks:
        raise NoTerms(mask)
    if not any(isinstance(node, Sinks) for node in walk(mask)):
        masks[f"with sinks({_SINKS})"] = causal() & (mask | sinks(_SINKS))
    return masks


def _without(mask: Mask) -> Iterator[tuple[Mask, Mask]]:
    """(a term of the outermost union, the mask without it)."""
    if not isinstance(mask, Algebra):
        return
    match mask.op:
        case "|":
            terms = list(_union(mask))
            for index, term in enumerate(terms):
                yield term, reduce(or_, terms[:index] + terms[index + 1 :])
        case "&":
            for term, other in _without(mask.left):
                yield term, other & mask.right
            for term, other in _without(mask.right):
                yield term, mask.left & other
        case "-":
            for term, other in _without(mask.left):
                yield term, other - mask.right


def _union(mask: Mask) -> Iterator[Mask]:
    if isinstance(mask, Algebra) and mask.op == "|":
        yield from _union(mask.left)
        yield from _union(mask.right)
    else:
        yield mask


def permuted(mask: Mask, n: int, *, base: Mask | None = None, seed: int = 0) -> Mask:
    """Make a control mask: as many keys in each row as the mask, drawn at random from `base`.

    Its expected retained mass is its share of the keys, for any mask and model.

    Args:
        mask: any mask without data, the same for all heads.
        n: the length at which the control holds.
        base: the mask of dense attention; causal() when None.
        seed: seed of the draw.

    Returns:
        The mask, for n queries and n keys only.
    """
    allowed = (causal() if base is None else base).dense(n)
    counts = (mask.dense(n) & allowed).sum(axis=-1)
    rng = np.random.default_rng(seed)
    ranks = np.where(allowed, rng.random((n, n)), 2.0).argsort(axis=-1).argsort(axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DenseWarning)  # a control is not there to be fast
        return from_bool(ranks < counts[:, None])
