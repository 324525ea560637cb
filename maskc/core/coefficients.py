"""The cost model's coefficients, from cost.toml, for each source and each card."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

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


Tables = Mapping[str, Mapping[str, Any]]
"""Numbers by the names of sources; "card" tells where they were measured."""


class Gpu(NamedTuple):
    """A card that calls run on."""

    name: str
    bytes_per_cycle: float
    """See Card; 0 where that is not known."""


@cache
def _file() -> Mapping[str, Tables]:
    return tomllib.loads((files("maskc.core") / "cost.toml").read_text("utf-8"))


@cache
def measured(target: str, gpu: Gpu | None = None) -> Tables:
    """All measured numbers of a target; empty where there are none.

    Args:
        gpu: the card whose numbers are wanted: its own, or those between the two measured cards
            whose memory gives a multiprocessor less and more in a cycle. None: those that plans are
            made with.
    """
    main: Tables = _file().get(target, _NONE)
    if gpu is None or not main:
        return main
    others = [own for name, own in _file().items() if name.startswith(f"{target} {OF_CARD} ")]
    cards: list[Tables] = [main, *(_over(main, own) for own in others)]
    for tables in cards:
        if tables["card"]["name"] == gpu.name:
            return tables
    if not gpu.bytes_per_cycle:
        return main
    cards.sort(key=_bytes_per_cycle)
    found: Tables = _between(cards, [_bytes_per_cycle(x) for x in cards], gpu.bytes_per_cycle)
    return {**found, "card": {**found["card"], "name": gpu.name}}


_NONE: Tables = {}
OF_CARD = "on"
"""What stands between a target and the name of a card, in the names of tables of another card."""


def _bytes_per_cycle(tables: Tables) -> float:
    found: float = tables["card"]["bytes_per_cycle"]
    return found


def _over(main: Any, own: Any) -> Any:
    """The numbers of a card, and where there are none those of the main one."""
    if not isinstance(main, Mapping) or "tile" in own:  # one mode was fitted as a whole
        return own
    names = (*main, *(name for name in own if name not in main))
    return {
        name: _over(main[name], own[name]) if name in main and name in own
        else own.get(name, main.get(name))
        for name in names
    }  # fmt: skip


def _between(given: Sequence[Any], places: Sequence[float], at: float) -> Any:
    """Numbers at a place between cards at ascending places; those of the outer ones beyond."""
    first = given[0]
    if isinstance(first, Mapping):
        return {name: _between([x[name] for x in given], places, at) for name in first}
    if isinstance(first, str):
        return first
    found = float(np.interp(at, places, given))
    return round(found) if all(isinstance(x, int) for x in given) else found


def card_of(target: str, gpu: Gpu | None = None) -> Card | None:
    """The card that coefficients of a target were measured on; None where there are none."""
    found = measured(target, gpu).get("card")
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
    size: float = 1.0, gpu: Gpu | None = None,
) -> tuple[Cost, ...]:  # fmt: skip
    """The costs of the modes of a source; empty where nothing is known.

    Args:
        modes: the names of the modes that it has.
        size: the cost of a step, relative to a step of the default source.
        gpu: see `measured`.
    """
    found = measured(target, gpu).get(source_name(direction, form), {}).get(str(head_dim), {})
    return tuple(
        Cost(
            mode,
            own["row"],
            round(size * own["tile"]),
            round(size * own["masked"]),
            own.get("lone", 0),
            own.get("query", 0),
        )
        for mode, own in found.items()
        if mode in modes
    )


def unpriced(bundle: Bundle) -> Bundle:
    """The bundle, and its parts, without any measured number."""
    units = tuple(replace(unit, costs=()) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(unpriced)


def priced(bundle: Bundle, gpu: Gpu | None = None) -> Bundle:
    """A bundle with the costs of its sources, as planning gives it, or with those of a card."""
    units = tuple(replace(unit, costs=_costs(unit, bundle, gpu)) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(partial(priced, gpu=gpu))


def _costs(unit: SourceUnit, bundle: Bundle, gpu: Gpu | None) -> tuple[Cost, ...]:
    direction = next(iter(unit.directions), None)
    if direction is None:
        return ()
    first = bundle.choice(unit.target, direction)[0]
    boxes = unit.boxes is not None and direction is Direction.forward
    size = step_size(unit.tile.k, first.tile.k) if boxes else 1.0
    modes = [name for name, _ in unit.modes]
    head_dim = TARGETS[unit.target].padded(bundle.problem).head_dim
    return costs(unit.target, direction, unit.form, head_dim, modes, size, gpu)
