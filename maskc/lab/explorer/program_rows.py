"""Tiles that are no rectangles of the map: boxes of a grid, and tiles of residue classes.

A call may run them in place of the plan's ordinary tiles. The page draws which pairs they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from maskc import driver
from maskc.analysis.head_groups import HeadGroups
from maskc.core import expr as E
from maskc.core.boxes import MAX_ALONG
from maskc.core.bundle import N_KV_OF_ALL
from maskc.core.coefficients import card_of
from maskc.core.errors import MaskcError
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target
from maskc.core.widths import largest, reach
from maskc.dsl.combinators import full
from maskc.ir.types import MaskPart
from maskc.lab.explorer.model import tree
from maskc.plan.cost import choice, title
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan
from maskc.viz.words import cut

_LONGEST = 60
"""Characters of a part's formula."""
_CHOSEN = 1 << 15
"""Tokens up to which the page says what a call would choose: all tiles are counted for that."""

Plain = dict[str, Any]


def forms(plan: KernelPlan, moved: HeadGroups) -> list[Plain]:
    """Return alternatives to `plan.tile` that a call may run, as the page's forms.js reads them.

    Args:
        plan: of the mask as it was written.
        moved: the same mask, in which parameters stand for its numbers.
    """
    return [*_boxes(plan), *_classes(plan, moved)]


def taken(plan: KernelPlan, n_q: int, n_kv: int) -> Plain | None:
    """Which form a call of these lengths takes; None if that is not known here."""
    if max(n_q, n_kv) > _CHOSEN or any(mask.ir.data for mask in plan.masks):
        return None
    chosen = choice(plan, n_q, n_kv) if n_q and n_kv else None
    chosen_plan = plan if chosen is None else chosen[0].unit.plan
    if chosen is not None and chosen[0].runs_in_parts:
        form, name = "classes", "residue classes"
    else:
        form, name = ("boxes" if chosen_plan.boxes else "tiles"), title(chosen_plan)
    by_model = "By the cost model, a" if card_of(plan.target.name) is not None else "A"
    return {
        "n_q": n_q, "n_kv": n_kv, "form": form,
        "said": f"{by_model} call of these lengths runs {name}",
        "tile": [chosen_plan.tile.q, chosen_plan.tile.k] if form == "tiles" else None,
        "partial": _partial(chosen_plan),
    }  # fmt: skip


_PARTIAL = "partial tiles"


def _partial(plan: KernelPlan) -> str:
    """Describe how the planned kernel treats a partial tile."""
    said = (reason for reason in plan.reasons if reason.startswith(_PARTIAL))
    return next(said, "").removeprefix(_PARTIAL).lstrip(": ") or "some of its pairs are live"


def _boxes(plan: KernelPlan) -> Iterator[Plain]:
    """The forward pass of a plan whose tiles are boxes of a grid, at most one."""
    for candidate in (plan, *plan.alternatives):
        if candidate.boxes is None or candidate.direction is not plan.direction:
            continue
        boxes = candidate.boxes
        along = " x ".join(map(str, boxes.extents))
        yield {
            "mode": "boxes", "label": "Boxes", "extents": list(boxes.extents),
            "q": list(boxes.q), "k": list(boxes.k), "most": MAX_ALONG,
            "said": f"boxes of {_by(boxes.q)} queries and {_by(boxes.k)} keys, in a grid of rows "
            f"of {along} tokens",
            "partial": _partial(candidate),
            "only": f"square, whole rows of {boxes.period} tokens, at most {MAX_ALONG} of them",
        }  # fmt: skip
        return


def _by(box: tuple[int, ...]) -> str:
    return " x ".join(map(str, box))


def _classes(plan: KernelPlan, moved: HeadGroups) -> Iterator[Plain]:
    """Yield the parts of a plan; at most one of them runs over residue classes."""
    if not plan.parts or any(part.listed is not None for part in plan.parts):
        return  # the rows of listed tokens are copied: they have no place on the map
    if any(part.inner.masks[0].ir.data for part in plan.parts):
        return
    alike = [(part.stride, part.keys) for part in plan.parts]
    movable = alike == [(part.stride, part.keys) for part in moved.parts]
    keeps = [
        moved.parts[i].inner.masks[0].keep if movable else part.inner.masks[0].ir.keep
        for i, part in enumerate(plan.parts)
    ]
    yield {
        "mode": "classes", "label": "Classes", "of_all": N_KV_OF_ALL, "as_built": not movable,
        "divides": [part.stride for part in plan.parts if part.aligned],
        "said": "tiles of residue classes, in which tokens that lie a stride apart are neighbours",
        "only": _only(plan.parts, movable), "partial": _partial(plan.parts[0].inner),
        "parts": [_part(part, keep) for part, keep in zip(plan.parts, keeps, strict=True)],
    }  # fmt: skip


def _only(parts: tuple[MaskPart[KernelPlan], ...], movable: bool) -> str:
    """Describe the condition on lengths and parameters, for people."""
    strides = [str(part.stride) for part in parts if part.aligned]
    said = [f"{' and '.join(strides)} must divide n_kv - n_q"] if strides else []
    return "; ".join([*said, *([] if movable else ["parameters must stay as they are"])])


def _part(part: MaskPart[KernelPlan], keep: Expr) -> Plain:
    """A part: its formula speaks of the coordinates in a class, and of the class's lengths."""
    if part.keys is not None:
        name = f"keys {part.keys}, {part.keys + part.stride}, ..."
    else:
        name = "tokens as they are" if part.stride == 1 else f"classes modulo {part.stride}"
    tile = part.inner.tile
    return {
        "stride": part.stride, "keys": part.keys, "tile": [tile.q, tile.k], "name": name,
        "text": cut(to_people(keep), _LONGEST),
        "keep": tree(keep), "bound": tree(largest([*reach(keep), E.N_Q, E.N_KV])),
    }  # fmt: skip


# ------------------------------------------------------------------ prices


_LENGTHS = tuple(1 << exponent for exponent in range(8, 16))
"""Beyond them predicting takes seconds: all tiles of all sources are counted."""
_HEADS = 16
"""Query heads that times are for, where the mask does not say how many there are."""

_PEAKS = {"NVIDIA H200": (989, 4800), "NVIDIA H100": (989, 3350)}
"""The peaks of the data sheets: TFLOP/s of bf16 with fp32 sums, GB/s of memory."""


def no_price(problem: Problem, why: str) -> Plain:
    """Return the note on prices for a page without a plan.

    `others` says whether a call may run something else than `tile`.
    """
    return {
        "tile": [128, 128], "partial": "some of its pairs are live", "others": False,
        "dims": problem.head_dim + problem.head_dim_v,
        "itemsize": problem.dtype.itemsize, "card": None, "curve": [], "why": why,
    }  # fmt: skip


def prices(plan: KernelPlan) -> Plain:
    """The plan's tile and, where the compiler predicts times, those of the mask and of `full()`."""
    problem, target = plan.problem, plan.target
    prices_of = no_price(problem, "the compiler predicts no times here") | {
        "tile": [plan.tile.q, plan.tile.k], "target": target.name, "partial": _partial(plan),
        "others": bool(plan.parts) or any(x.direction is plan.direction for x in plan.alternatives),
        "heads": problem.n_heads or _HEADS,
    }  # fmt: skip
    card = card_of(target.name)
    if card is None:
        prices_of["why"] = (
            f"no times are predicted for {target.name}: --target sm_90a predicts some"
        )
        return prices_of
    tflops, gbytes = _PEAKS.get(card.name, (0, 0))
    if tflops:
        prices_of["card"] = {"name": card.name, "tflops": tflops, "gbytes": gbytes}
    prices_of["curve"] = list(_curve(plan, _dense(problem, target)))
    return prices_of


def _curve(plan: KernelPlan, dense: KernelPlan) -> Iterator[Plain]:
    """Forward milliseconds at some lengths."""
    heads = plan.problem.n_heads or _HEADS
    if plan.chooser is not None or plan.gathering is not None:
        return  # the cost model knows nothing of choosing
    for n in _LENGTHS:
        try:
            mask = milliseconds(plan, Direction.forward, n, n, heads)
        except MaskcError:
            continue  # lengths that the mask does not have
        whole = milliseconds(dense, Direction.forward, n, n, heads)
        if mask is not None and whole is not None:
            yield {"n": n, "mask": mask, "dense": whole}


def _dense(problem: Problem, target: Target) -> KernelPlan:
    """The plan of dense attention by its first source: small tiles never serve it better."""
    return replace(driver.plan_kernel(full(), problem, target), alternatives=())
