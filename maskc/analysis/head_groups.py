"""Stage 4: the distinct masks of all heads with their facts, and alternative forms of these masks.

A mask that regroups has parts: separate masks over residue classes. A mask that chooses single keys
is handled with two masks without a selection: the pairs it keeps if all candidates are chosen,
and the candidates themselves. All of these are analysed here, once, so that planning does not
return to an earlier stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from maskc.analysis.facts import MaskFacts, analyse
from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.selection import Score, Selection
from maskc.ir.decompose import decompose
from maskc.ir.listed import listed_parts
from maskc.ir.relayout import Extents, parts
from maskc.ir.selecting import chosen
from maskc.ir.set_comparison import equals, fingerprint
from maskc.ir.types import MaskIR, MaskPart

_PASS = 4
"""Tiles of 128 keys per row that take as long as one more pass over the rows: q, k, v and out are
read or written again, and out and lse are joined."""


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """The distinct masks of all query heads."""

    masks: tuple[MaskIR, ...]
    """In pieces where all heads share one; `pieces_of` has those of the others."""
    facts: tuple[MaskFacts, ...]
    of_head: tuple[int, ...]
    """The mask of each head; empty when all share the first."""
    parts: tuple[MaskPart[HeadGroups], ...] = ()
    """The one mask in parts, if some run over residue classes."""
    hulls: tuple[SelectionHulls, ...] = ()
    """The hulls, one for each selection of single keys by q . k."""


@dataclass(frozen=True, slots=True)
class SelectionHulls:
    """The masks around a selection."""

    selection: Selection
    widest: HeadGroups
    """The masks as if all candidates were chosen."""
    candidates: HeadGroups
    """The pairs among which keys are chosen."""


def analyse_masks(masks: tuple[MaskIR, ...]) -> HeadGroups:
    """The distinct masks of all heads, analysed.

    Only a mask that all heads share can run in parts: no other is decomposed.

    Args:
        masks: one for each head, or one for all.
    """
    distinct, of_head = _distinct(masks)
    if len(distinct) == 1 and not distinct[0].selections:
        distinct = (decompose(distinct[0]),)
    heads = _analysed(distinct, of_head)
    hulls = tuple(
        SelectionHulls(selection, _widest(heads, selection), _candidates(heads, selection))
        for selection in dict.fromkeys(selection for ir in distinct for selection in ir.selections)
        if selection.block == 1
        and selection.q_block == 1
        and selection.score is Score.qk
        and not selection.at
    )
    return replace(heads, parts=_parts(distinct), hulls=hulls)


def assume(keep: Expr, selection: Selection, taken: bool) -> Expr:
    """Return a formula under the assumption that a selection chose every pair, or none."""
    return E.assume(keep, chosen(selection), taken)


def strides_together(extents: Extents) -> Mapping[int, int]:
    """Group strides that run together with a smaller one, if the tiles between their keys take less
    time than a separate pass."""
    strides: dict[int, int] = {}
    base = 1
    for stride, extent in extents.items():
        more = None if extent is None else extent * (stride / base - 1) / 128
        if base not in strides or stride % base or more is None or more >= _PASS:
            base = stride
        strides[stride] = base
    return strides


def _analysed(masks: tuple[MaskIR, ...], of_head: tuple[int, ...]) -> HeadGroups:
    return HeadGroups(masks, tuple(map(analyse, masks)), of_head)


def _parts(masks: tuple[MaskIR, ...]) -> tuple[MaskPart[HeadGroups], ...]:
    """The parts of the one mask that all heads share, if some run over residue classes, or over
    the rows of listed tokens."""
    if len(masks) > 1 or masks[0].selections:
        return ()
    split = parts(masks[0], strides_together)
    if all(part.stride == 1 for part in split):
        split = listed_parts(masks[0])
    return tuple(part.over(_analysed((part.inner,), ())) for part in split)


def _widest(heads: HeadGroups, selection: Selection) -> HeadGroups:
    masks = []
    for ir in heads.masks:
        keep = assume(ir.keep, selection, True)
        masks.append(replace(ir, keep=keep, data=ir.data_of(keep), pieces=(), selections=()))
    return _analysed(tuple(masks), heads.of_head)


def _candidates(heads: HeadGroups, selection: Selection) -> HeadGroups:
    owner = next(ir for ir in heads.masks if selection in ir.selections)
    formulas = tuple(dict.fromkeys(selection.allowed))
    data = {decl for ir in heads.masks for decl in ir.data}
    masks = []
    for keep in formulas:
        read = set(E.arrays(keep))
        decls = sorted((d for d in data if read.intersection(d.arrays)), key=lambda d: d.name)
        masks.append(MaskIR(keep, tuple(decls), owner.origins, owner.declared))
    of_head = tuple(map(formulas.index, selection.allowed)) if len(formulas) > 1 else ()
    return _analysed(tuple(masks), of_head)


def _distinct(masks: tuple[MaskIR, ...]) -> tuple[tuple[MaskIR, ...], tuple[int, ...]]:
    """Heads with equal sets share one mask, however the sets were written."""
    distinct: list[MaskIR] = []
    prints: list[str] = []
    of_head: list[int] = []
    for ir in masks:
        mark = fingerprint(ir.keep)
        same = (
            i for i, known in enumerate(distinct)
            if known.keep == ir.keep or (prints[i] == mark and equals(known.keep, ir.keep))
        )  # fmt: skip
        index = next(same, len(distinct))
        if index == len(distinct):
            distinct.append(ir)
            prints.append(mark)
        of_head.append(index)
    return tuple(distinct), tuple(of_head) if len(distinct) > 1 else ()
