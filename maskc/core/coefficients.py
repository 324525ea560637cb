"""The cost model's coefficients, from cost.toml, for each source and each card."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from maskc.core.bundle import DEFAULT, Bundle, SourceUnit
from maskc.core.cost import Card, Cost, LaunchCost
from maskc.core.problem import Direction, TileShape
from maskc.core.target import TARGETS

STEP_KEYS = 12
"""The constant cost of a forward step, in keys: full tiles of 128, 96 and 64 keys took 2830, 2190
and 1540 cycles at head dimension 128."""

Tables = Mapping[str, Mapping[str, Any]]
"""Coefficients by the names of sources; "card" is the card that they were measured on."""


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
    """Return all measured numbers of a target; empty if there are none.

    Args:
        gpu: the card. An unmeasured card gets numbers between two measured cards, with less and
            with more memory bandwidth per multiprocessor and cycle. None: the numbers that plans
            use.
    """
    main: Tables = _file().get(target, _NONE)
    if gpu is None or not main:
        return main
    shipped: list[Tables] = [main, *(over(main, tables) for tables in _others(target))]
    for tables in shipped:
        if tables["card"]["name"] == gpu.name:
            return tables
    if not gpu.bytes_per_cycle:
        return main
    shipped.sort(key=_bytes_per_cycle)
    places = [_bytes_per_cycle(tables) for tables in shipped]
    mixed: Tables = _between(shipped, places, gpu.bytes_per_cycle)
    return {**mixed, "card": {**mixed["card"], "name": gpu.name}}


def _others(target: str) -> list[Tables]:
    """The tables of the cards other than the first."""
    return [tables for name, tables in _file().items() if name.startswith(f"{target} {OF_CARD} ")]


def cards(target: str) -> tuple[str, ...]:
    """Return the names of the cards with shipped coefficients; empty if calls of a target have no
    choice."""
    main = _file().get(target)
    tables = () if main is None else (main, *_others(target))
    return tuple(table["card"]["name"] for table in tables)


_NONE: Tables = {}
_UNMEASURED = 132
"""Multiprocessors assumed for a card without measured coefficients."""
OF_CARD = "on"
"""Separator between a target and a card in the names of tables of other cards."""


def _bytes_per_cycle(tables: Tables) -> float:
    rate: float = tables["card"]["bytes_per_cycle"]
    return rate


def over(main: Any, other: Any) -> Any:
    """Return the numbers of `other`, filled up with numbers of `main`."""
    if not isinstance(main, Mapping):
        return other
    if "tile" in other:  # a mode is fitted as a whole, apart from tests of pairs
        return {**{name: main[name] for name in ("test",) if name in main}, **other}
    names = (*main, *(name for name in other if name not in main))
    return {
        name: over(main[name], other[name]) if name in main and name in other
        else other.get(name, main.get(name))
        for name in names
    }  # fmt: skip


def _between(given: Sequence[Any], places: Sequence[float], at: float) -> Any:
    """Interpolate numbers between cards at ascending places; beyond them, return those of the outer
    cards."""
    first = given[0]
    if isinstance(first, Mapping):
        return {name: _between([x[name] for x in given], places, at) for name in first}
    if isinstance(first, str):
        return first
    value = float(np.interp(at, places, given))
    return round(value) if all(isinstance(x, int) for x in given) else value


def card_of(target: str, gpu: Gpu | None = None) -> Card | None:
    """The card that coefficients of a target were measured on; None if there are none."""
    card = measured(target, gpu).get("card")
    return None if card is None else Card(**card)


def source_name(direction: Direction, form: str) -> str:
    """The name of a source in cost.toml: of its form and pass, such as `small_backward`.

    The first source of a pass is `large` or `backward`; so is one of a form that has no numbers.
    """
    backward = direction is Direction.backward
    name = f"{form}_backward" if backward else form
    first = "backward" if backward else "large"
    return name if any(name in tables for tables in _file().values()) else first


def step_size(keys: int, default_keys: int) -> float:
    """The time of a forward step over `keys` keys, relative to one over `usual` keys."""
    return (keys + STEP_KEYS) / (default_keys + STEP_KEYS)


def costs(
    tables: Tables, direction: Direction, form: str, head_dim: int, modes: Collection[str],
    size: float = 1.0, tests: int = 0, head_dim_v: int | None = None,
) -> tuple[Cost, ...]:  # fmt: skip
    """Return the costs of the modes of a source; empty if the tables lack it.

    Args:
        tables: the coefficients of a target, see `measured`.
        direction, form, head_dim: the source.
        modes: the names of the modes that it has.
        size: the cost of a step, relative to a step of the default source.
        tests: the operations of a condition that partial tiles test pair by pair.
        head_dim_v: of rows of v; None: as of q and k.
    """
    by_dims = tables.get(source_name(direction, form), {})
    by_mode = by_dims.get(f"{head_dim}/{head_dim_v}") or _of_width(by_dims, head_dim)
    launch = _launch_cost(tables, direction, head_dim) if by_mode else LaunchCost()
    return tuple(
        Cost(
            mode,
            numbers["row"],
            round(size * numbers["tile"]),
            round(size * (numbers["masked"] + tests * numbers.get("test", 0))),
            numbers.get("lone", 0),
            numbers.get("query", 0),
            launch,
        )
        for mode, numbers in by_mode.items()
        if mode in modes
    )


def _of_width(by_dims: Mapping[str, Any], head_dim: int) -> Mapping[str, Any]:
    """Return the numbers of the narrowest measured width that holds rows of `head_dim`; empty if
    there is none."""
    widths = (int(dim) for dim in by_dims if dim.isdigit() and int(dim) >= head_dim)
    numbers: Mapping[str, Any] = by_dims.get(str(min(widths, default=0)), {})
    return numbers


def _launch_cost(tables: Tables, direction: Direction, head_dim: int) -> LaunchCost:
    """The cost of a launch of a mask in parts; nothing where the tables lack it."""
    parts = tables.get("parts")
    if parts is None:
        return LaunchCost()
    card = Card(**tables["card"])
    return LaunchCost(
        card.cycles(parts["launch_us"]) * card.multiprocessors,
        parts[direction.value] * head_dim,
        card.multiprocessors,
        parts["alone"],
        card.cycles(parts["last_row_us"]),
        card.cycles(card.launch_us) * card.multiprocessors,
    )


def assumed(target: str, direction: Direction, tile: TileShape) -> tuple[Cost, ...]:
    """Return assumed costs of a source that was not measured, with one mode.

    They only serve to decide whether a mask runs in parts; they are not times of a card.
    """
    numbers = _file()["unmeasured"][TARGETS[target].language][direction.value]
    area, per_row = tile.q * tile.k, numbers["query"] * tile.q
    forward = direction is Direction.forward
    row, query = (per_row, 0) if forward else (0, per_row)
    masked = round(numbers["masked"] * area)
    launch = LaunchCost(numbers["launch"] * _UNMEASURED, numbers["join"])
    return (Cost(DEFAULT, row, area, masked, query=query, launch=launch),)


def unpriced(bundle: Bundle) -> Bundle:
    """The bundle, and its parts, without any measured number."""
    units = tuple(replace(unit, costs=()) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(unpriced)


def priced(
    bundle: Bundle, tables_of: Callable[[str], Tables] = measured, of_parts: bool = False
) -> Bundle:
    """Return the bundle with the costs of its sources.

    Args:
        tables_of: the coefficients of a target; by default the ones that planning uses.
        of_parts: whether it is inside a bundle that has parts, whose sources all have costs.
    """
    of_parts |= bool(bundle.parts)
    units = tuple(
        replace(unit, costs=_costs(unit, bundle, tables_of, of_parts)) for unit in bundle.units
    )
    inner = partial(priced, tables_of=tables_of, of_parts=of_parts)
    return replace(bundle, units=units).with_inner(inner)


def _costs(
    unit: SourceUnit, bundle: Bundle, tables_of: Callable[[str], Tables], of_parts: bool
) -> tuple[Cost, ...]:
    direction = next(iter(unit.directions), None)
    if direction is None:
        return ()
    first = bundle.choice(unit.target, direction)[0]
    boxes = unit.boxes is not None and direction is Direction.forward
    size = step_size(unit.tile.k, first.tile.k) if boxes else 1.0
    modes = [name for name, _ in unit.modes]
    padded = TARGETS[unit.target].padded(bundle.problem, direction, unit.form)
    rest = (padded.head_dim, modes, size, unit.tests, padded.head_dim_v)
    of_unit = costs(tables_of(unit.target), direction, unit.form, *rest)
    return of_unit or (assumed(unit.target, direction, unit.tile) if of_parts else ())
