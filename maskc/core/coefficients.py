"""The cost model's coefficients, from cost.toml, for each source and each card."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.cost import Card, Cost
from maskc.core.forms import SMALL, TINY
from maskc.core.problem import Direction
from maskc.core.target import TARGETS

STEP_KEYS = 12
"""The constant cost of a forward step, in keys: full tiles of 128, 96 and 64 keys took 2830, 2190
and 1540 cycles at head dimension 128."""

_NAMES = {
    (Direction.forward, SMALL): "small",
    (Direction.backward, SMALL): "small_backward",
    (Direction.forward, TINY): "tiny",
    (Direction.backward, TINY): "tiny_backward",
}
"""Names in cost.toml of the sources that are not the first ones of their pass."""


@cache
def measured(target: str) -> Mapping[str, Mapping[str, Any]]:
    """All measured numbers of a target, by the names of its sources; empty where there are none."""
    tables: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(
        (files("maskc.core") / "cost.toml").read_text("utf-8")
    )
    return tables.get(target, {})


def card_of(target: str) -> Card | None:
    """The card that coefficients of a target were measured on; None where there are none."""
    found = measured(target).get("card")
    return None if found is None else Card(**found)


def source_name(direction: Direction, form: str) -> str:
    """The name of a source among coefficients.

    It is `large`, `small`, `tiny`, `backward`, `small_backward` or `tiny_backward`.
    """
    first = "backward" if direction is Direction.backward else "large"
    return _NAMES.get((direction, form), first)


def step_size(keys: int, usual: int) -> float:
    """The time of a forward step over `keys` keys, relative to one over `usual` keys."""
    return (keys + STEP_KEYS) / (usual + STEP_KEYS)


def costs(
    target: str, direction: Direction, form: str, head_dim: int, modes: Collection[str],
    size: float = 1.0,
) -> tuple[Cost, ...]:  # fmt: skip
    """The costs of the modes of a source; empty where nothing is known.

    Args:
        modes: the names of the modes that it has.
        size: the cost of a step, relative to a step of the default source.
    """
    found = measured(target).get(source_name(direction, form), {}).get(str(head_dim), {})
    return tuple(
        Cost(mode, own["row"], round(size * own["tile"]), round(size * own["masked"]))
        for mode, own in found.items()
        if mode in modes
    )


def unpriced(bundle: Bundle) -> Bundle:
    """The bundle, and its parts, without any measured number."""
    units = tuple(replace(unit, costs=()) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(unpriced)


def priced(bundle: Bundle) -> Bundle:
    """A bundle as planning gives it, from one without costs: sources have them where a call
    chooses between several of a pass."""
    units = tuple(replace(unit, costs=_costs(unit, bundle)) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(priced)


def _costs(unit: SourceUnit, bundle: Bundle) -> tuple[Cost, ...]:
    direction = next(iter(unit.directions), None)
    if direction is None:
        return ()
    first, *others = bundle.choice(unit.target, direction)
    if not any(each.form for each in others):
        return ()
    boxes = unit.boxes is not None and direction is Direction.forward
    size = step_size(unit.tile.k, first.tile.k) if boxes else 1.0
    modes = [name for name, _ in unit.modes]
    head_dim = TARGETS[unit.target].padded(bundle.problem).head_dim
    return costs(unit.target, direction, unit.form, head_dim, modes, size)
