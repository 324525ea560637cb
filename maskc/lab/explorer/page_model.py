"""Model of a page: a mask, facts from the compiler, and optionally a mask to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maskc import driver
from maskc.core import expr as E
from maskc.core.errors import MaskcError
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.ir.decompose import pieces_of
from maskc.lab.explorer.model import Plain, mask_model, tree
from maskc.lab.explorer.program_rows import forms, no_price, prices, taken
from maskc.lab.explorer.sources import pattern_text, sources
from maskc.questions import diff, equals, subset_of


@dataclass(frozen=True)
class Shown:
    """A mask that is explored, and how the user calls it."""

    name: str
    mask: Mask
    title: str = ""
    expression: str = ""
    """The pattern name or expression for a command line."""
    data: Mapping[str, object] = field(default_factory=dict)
    made_up: tuple[str, ...] = ()
    """Names of the data that nobody gave: they are made up."""
    labels: Mapping[str, str] = field(default_factory=dict)
    stuck: tuple[tuple[str, object], ...] = ()
    """Arguments of its pattern that are no parameters, and their values."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Arguments of its pattern that are not as they were written, as text."""
    plain: Mask | None = None
    """The mask with numbers where `mask` has parameters that the user did not write."""

    @property
    def written(self) -> Mask:
        """The mask as the user wrote it."""
        return self.mask if self.plain is None else self.plain


def page_model(
    shown: Shown, n_q: int, n_kv: int, *, problem: Problem, target: Target,
    other: Shown | None = None, served: bool = False, embedded: bool = False, quick: bool = False,
) -> Plain:  # fmt: skip
    """Return everything that the page shows, as plain values.

    Args:
        n_q, n_kv: lengths to begin with.
        problem, target: for the kernel's tile, its source and its times.
        other: a mask to compare with.
        served: whether a server makes other models.
        embedded: whether the page is part of another one and must not change its address.
        quick: leave out what takes planning and proofs; the page then requests the rest.

    Raises:
        ExplorerTooLarge: the arrays are too large for a page (MC720).
        MaskcError: as `Mask.layout`.
    """
    model: Plain = {
        "version": 1, "name": shown.name, "title": shown.title, "expression": shown.expression,
        "served": served, "embedded": embedded, "settings": dict(shown.settings),
        "stuck": [[name, _plain(value)] for name, value in shown.stuck],
        "mask": _mask(shown, n_q, n_kv, problem), "other": None, "verdict": None,
    }  # fmt: skip
    if quick:
        why = "the compiler is at work"
        return model | {
            "pending": True, "source": {"files": []}, "price": no_price(problem, why),
            "with": other.expression if other else None,
        }  # fmt: skip
    model |= _planned(shown, problem, target, model["mask"])
    if other is not None:
        model["other"] = {
            "name": other.name if other.name != shown.name else f"{other.name} (second)",
            "expression": other.expression, "mask": _mask(other, n_q, n_kv, problem),
        }  # fmt: skip
        model["verdict"] = _verdict(shown, other, model["other"]["name"], problem.n_heads)
    return model


def _short(keep: Expr) -> str:
    text = to_people(keep)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _mask(shown: Shown, n_q: int, n_kv: int, problem: Problem) -> Plain:
    model = mask_model(
        shown.mask, n_q, n_kv, n_heads=problem.n_heads, data=shown.data, labels=shown.labels
    )
    if shown.made_up:
        model["notes"].insert(0, f"made up, not yours: {', '.join(shown.made_up)}")
    return model


def _planned(shown: Shown, problem: Problem, target: Target, mask: Plain) -> Plain:
    """Pieces by set, sources and prices; what cannot be planned says why."""
    try:
        heads = driver.analyse_heads(shown.mask, problem.n_heads)
        written = driver.analyse_heads(shown.written, problem.n_heads)
        for group in mask["sets"]:
            first = group["heads"][0] if group["heads"] else 0
            ir = heads.masks[heads.of_head[first] if heads.of_head else 0]
            known = set(group["arrays"])
            group["pieces"] = [
                {"kind": piece.kind.value, "text": _short(piece.keep), "keep": tree(piece.keep)}
                for piece in pieces_of(ir) if set(E.arrays(piece.keep)) <= known
            ]  # fmt: skip
    except MaskcError as refusal:
        return {"source": {"files": []}, "price": no_price(problem, str(refusal.finding))}
    plans, why = {}, ""
    for each_target in dict.fromkeys((Target.named("cpu"), target)):
        try:
            plans[each_target] = driver.plan_kernel(shown.written, problem, each_target)
        except MaskcError as refusal:
            why = refusal.finding
    text = pattern_text(shown.written, shown.expression)
    files = sources(shown.written, written, list(plans.values()), shown.name, text)
    content: Plain = {"source": {"files": files}}
    if (planned := plans.get(target)) is None:
        return content | {"price": no_price(problem, why)}
    return content | {
        "price": prices(planned), "forms": forms(planned, heads),
        "taken": taken(planned, mask["n_q"], mask["n_kv"]),
    }  # fmt: skip


# ------------------------------------------------------------------ two masks


def _verdict(one: Shown, other: Shown, name: str, n_heads: int | None) -> Plain:
    """Return what is proved about two masks at all lengths, and a pair that distinguishes them."""
    a, b = one.written, other.written
    if equals(a, b) is True:
        return {"said": "Proved: both are the same set at all lengths.", "witness": None}
    inside, around = subset_of(a, b), subset_of(b, a)
    if inside:
        said = f"Proved: {one.name} is a subset of {name} at all lengths, and not equal."
    elif around:
        said = f"Proved: {name} is a subset of {one.name} at all lengths, and not equal."
    elif inside is None or around is None:
        said = "Nothing was proved for all lengths; below are the numbers at these."
    else:
        said = "Neither is a subset of the other."
    try:
        difference = diff(a, b, None, None, n_heads, {})
    except MaskcError as refusal:
        return {"said": said, "witness": None, "why": refusal.finding}
    witness = None
    if difference is not None:
        witness = {
            "q": difference.q, "k": difference.k, "n_q": difference.n_q, "n_kv": difference.n_kv,
            "head": difference.head,
            "text": f"At other lengths, too: {_named(str(difference), one.name, name)}",
        }  # fmt: skip
    return {"said": said, "witness": witness}


def _named(text: str, one: str, other: str) -> str:
    first, *rest = text.split("\n")
    for letter, name in (("a", one), ("b", other)):
        first = first.replace(f"only in {letter}", f"only in {name}")
    return "\n".join([first, *rest])
