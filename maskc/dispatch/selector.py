"""Which source of a bundle runs a pass, in which mode, with which tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from maskc.core.bundle import APART, NOT_ONCE, ONCE, PACKED, Bundle, SourceUnit
from maskc.core.cost import Tally, cheapest, faster
from maskc.core.errors import TargetNotBuilt, TooManyTiles, TooMuchWork
from maskc.core.forms import DATA
from maskc.core.problem import OF_HEADS, Direction, Feature, Features
from maskc.core.target import Target
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.constants import lengths_widen
from maskc.dispatch.launch_plan import LaunchPlan, few_pairs, launch_plan, mode_of
from maskc.dispatch.recent import Recent
from maskc.dispatch.source_choice import foreseen, suited
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import beside_documents, runs_side_by_side

_REMEMBERED = 1024
"""Calls of which it is known which source suits them."""
_UNCUT = {"most_tiles": 0, "uneven_tiles": 0}
"""The rule of work lists that cut no row."""

_MOST_TURNS = 64
"""Additions to one small tile of dq up to which blocks may wait for each other: each comes some
2 us after the one before (Longformer at 16k, H200: 256 of them .48 ms, 128 to larger tiles .38; 12,
as its global queries have many tiles of dq, .36)."""

_UNEVEN = 4
"""Times the mean tiles of a row that one may have where dq is made by tile rows: these are not cut,
so one much longer than the others would be at work alone in the end."""

_SHORT = 32
"""Tiles of a row that is never much longer, however few the others have."""

_TURNS = 1.05
"""What waiting for turns takes at least, as a factor (dense masks and windows 1.02 to 1.11, sinks
1.2): less than this is not lost by dq that is made by tile rows."""

_FEW_ADDERS, _MANY_COLUMNS = 3, 32
"""So few columns add to a tile of dq one after another in less time than zeros take to add to,
where each begins at a later row than the one before, and there are so many that waiting at the
start does not count (windows at 16k, 16 heads, D 128, H200: 2 columns .86 and .91 of the time, 3
columns .97, 5 columns 1.03; D 64, small tiles: .93, .98 and 1.03)."""


_EXACT = {"sm_90a": "sm_80"}
"""Targets whose kernels have no nan_safe variant: the one that runs such forward passes."""
_MULTIPLIES = {
    ("sm_90a", Direction.forward), ("sm_90a", Direction.backward), ("sm_80", Direction.backward),
}  # fmt: skip
"""Passes of a target whose kernels multiply the values of dead pairs."""
_INEXACT = "matrix units multiply the masked values of a tile by zero"
_EXACT_SOFTMAX_ONLY = "kernels that multiply no masked value know softmax only"
_KEYS_SOFTMAX_ONLY = "its kernels for gathered keys know softmax only"
_ENTMAX_REMEDY = "use target='simt', or 'cpu' with tensors on the CPU, or leave normalizer out"
_REMEDY = "leave nan_safe out, or use target='{}'"

Form = tuple[SourceUnit, str, Features]
"""A source, the mode it runs in, and the features it is built with."""


class SourceSelector:
    """Which source of a bundle runs a pass, in which mode and with which tables: from shapes,
    parameters and data on the host alone. Safe to use from several threads."""

    def __init__(
        self, bundle: Bundle, target: Target, multiprocessors: Callable[[int], int]
    ) -> None:
        """`multiprocessors`: of a device, by its index; asked only by deterministic passes."""
        self.bundle, self.target = bundle, target
        self._multiprocessors = multiprocessors
        self.gathers = any(u.gathers and u.target == target.name for u in bundle.units)
        """Whether its sources read lists of single keys, made on the device."""
        self.tables: Recent[Tables] = Recent()
        self._suited: dict[Hashable, SourceUnit] = {}
        self._lock = threading.Lock()

    def source(self, direction: Direction, features: Features = frozenset()) -> SourceUnit:
        """The source of a pass, the first where there is a choice.

        Raises:
            TargetNotBuilt: there is none.
        """
        return self.sources(direction, features)[0]

    def sources(
        self, direction: Direction, features: Features = frozenset()
    ) -> tuple[SourceUnit, ...]:
        """The source of a pass, or several to choose from, the one with the largest tiles first.

        Raises:
            TargetNotBuilt: there is none.
        """
        name = self.target.name
        units = self.bundle.choice(name, direction)
        gathers = any(unit.gathers for unit in units)
        if Feature.entmax in features and gathers:
            raise TargetNotBuilt(name, f"entmax {direction.value}", _KEYS_SOFTMAX_ONLY,
                                 _ENTMAX_REMEDY, at="normalizer")  # fmt: skip
        if {Feature.entmax, Feature.nan_safe} <= features and self.target.language == "cuda":
            raise TargetNotBuilt(name, f"nan_safe {direction.value}", _EXACT_SOFTMAX_ONLY,
                                 _REMEDY.format("cpu"), at="nan_safe")  # fmt: skip
        if Feature.nan_safe in features and (name, direction) in _MULTIPLIES and not gathers:
            return (self._exact_source(direction),)
        if not units:
            missing = "the bundle has no source of it"
            remedy = "compile the mask for another target"
            raise TargetNotBuilt(name, direction.value, missing, remedy, at="target")
        return units[:1] if Feature.entmax in features else units

    def _exact_source(self, direction: Direction) -> SourceUnit:
        name = self.target.name
        unit = self.spare_source()
        if direction is Direction.backward or unit is None:
            nobody = direction is Direction.backward or self.bundle.chooser is not None
            remedy = _REMEDY.format("simt" if nobody else _EXACT[name])
            raise TargetNotBuilt(name, f"nan_safe {direction.value}", _INEXACT, remedy,
                                 at="nan_safe")  # fmt: skip
        return unit

    def spare_source(self) -> SourceUnit | None:
        """What runs a forward pass that the target's own kernel cannot, if the bundle has it."""
        spare = _EXACT.get(self.target.name)
        return self.bundle.unit(spare) if spare else None

    def forms(self, features: Features, directions: Sequence[Direction]) -> tuple[Form, ...]:
        """Every source that calls with these features may run, in every mode of theirs: which it is
        depends on lengths and data.

        Raises:
            TargetNotBuilt: no forward pass has these features.
        """
        units: tuple[SourceUnit, ...] = ()
        if Direction.forward in directions:
            units += self.sources(Direction.forward, features)
        if Direction.backward in directions:
            with suppress(TargetNotBuilt):  # a call of it says so
                units += self.sources(Direction.backward, features)
        if units:
            made_by = self.bundle.list_source, self.bundle.moving_source
            units += tuple(filter(None, (source(units[0].target) for source in made_by)))
        found = {
            (unit.key, mode, built): (unit, mode, built)
            for unit in units
            if unit.offers(features)
            for mode in modes_of(unit, features)
            for built in self._widths(unit, features)
        }
        return tuple(found.values())

    def _widths(self, unit: SourceUnit, features: Features) -> tuple[Features, ...]:
        """The features that a source is built with: also for 64 bits, if lengths may ask for it."""
        if not unit.directions:
            return (frozenset(),)
        if unit.gathers or not lengths_widen(self.bundle, unit):
            return (features,)
        return features, features | {Feature.wide}

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...], lists: bool = False,
    ) -> LaunchPlan:  # fmt: skip
        """How a pass runs over some tokens.

        Args:
            unit: its source.
            bound: the mask's parameters and data.
            place: the tokens.
            outputs: of the call.
            lists: whether the kernel reads lists of tiles even where its source needs none.

        Raises:
            NotAddressable: a stride that no tensor map can have.
        """
        if Feature.entmax in wanted.features and wanted.direction is Direction.forward:
            unit = _working(unit, **_UNCUT)  # what entmax makes of parts could not be merged
        if place.packed:
            unit = _working(unit, heads=place.packed)
        if self._runs_apart(unit, wanted, bound, place):
            unit = _working(unit, apart=True)
        elif wanted.deterministic and wanted.direction is Direction.backward:
            if self._keeps_bits(unit.target) or not self._repeats(unit, wanted, bound, place):
                unit = self._ordered(unit, wanted)
        elif self._take_turns(unit, wanted, bound, place):
            unit = self._ordered(unit, wanted)
            wanted = replace(wanted, deterministic=True)
        tables = self._tables_of(unit, wanted, bound, place, lists)
        mode = PACKED if place.packed else mode_of(unit, wanted, tables, place.joins)
        return launch_plan(self.bundle, unit, mode, wanted, place, bound.params, tables, outputs)

    def _ordered(self, unit: SourceUnit, wanted: Pass) -> SourceUnit:
        """The source for a deterministic pass; plain where a device may have made the lists, for
        results have the same bits, whoever makes them."""
        if unit.work is None or "deterministic" not in dict(unit.modes):
            return unit
        if self._keeps_bits(unit.target):
            return _working(unit, ordered=True, plain=True, **_UNCUT)
        both_ways = runs_side_by_side(self._multiprocessors(wanted.device[1]))
        return _working(unit, ordered=True, both_ways=both_ways)

    def choose(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place
    ) -> SourceUnit:  # fmt: skip
        """The source of a pass: where `unit` is the first of a choice, the one predicted to take
        least for this mask at these lengths; the first, with the largest tiles, where that would
        depend on more."""
        first = self.bundle.unit(unit.target)
        if first is not None and first.by_documents:
            return self.suited(unit, wanted, bound, place)
        units = self._choice(unit, wanted, place)
        if len(units) > 1 and self.chooses(unit.target):
            return self.foreseen(unit, wanted, bound, place)
        if len(units) < 2 or not bound.lasting:
            return unit

        def tally(each: SourceUnit) -> Tally:
            tables = self._tables_of(each, wanted, bound, place)
            if tables.tally is None:  # of the first source, too: then nothing is compared
                raise TypeError(f"{each.key} has no tally")
            if _stores_once(each, wanted, tables, place.joins):
                return tables.tally
            return replace(tables.tally, single=False, alone=False)

        try:
            known = self._tables_of(unit, wanted, bound, place).tally is not None
            found = cheapest(units, tally, place.sizes.n_kv) if known else unit
            apart = self._runs_apart(found, wanted, bound, place)
            if found.tile.k < unit.tile.k and wanted.deterministic and not apart:
                tables = self._tables_of(self._ordered(found, wanted), wanted, bound, place)
                return unit if tables.chain > _MOST_TURNS else found
        except (TooManyTiles, TooMuchWork):  # 2^28 items and more: there alone the batch decides
            return unit
        return found

    def _runs_apart(self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place) -> bool:
        """Whether a backward pass takes least time with dq made by a launch of its own, which has
        the same bits on every run."""
        if wanted.direction is Direction.forward or APART not in dict(unit.modes):
            return False
        if wanted.features & OF_HEADS or few_pairs(place.sizes):
            return False
        tables = self._tables_of(unit, wanted, bound, place)
        tally, adders = tables.tally, tables.adders
        if tally is None or adders is None or mode_of(unit, wanted, tables, place.joins) == ONCE:
            return False
        even = adders.most * adders.rows <= _UNEVEN * tally.tiles
        others = (tally.tiles - adders.most) / max(1, adders.rows - 1)  # a long one of a few
        even &= adders.most <= _UNEVEN * max(others, _SHORT)
        return even and faster(unit, tally) == APART

    def _repeats(self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place) -> bool:
        """Whether a deterministic backward pass has the same bits on every run anyway: nothing is
        added up by several blocks."""
        tables = self._tables_of(unit, wanted, bound, place)
        return _stores_once(unit, wanted, tables, place.joins)

    def _take_turns(self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place) -> bool:
        """Whether a backward pass is faster where columns add to dq one after another, although
        nobody asks for the same bits on every run."""
        if wanted.direction is Direction.forward or "deterministic" not in dict(unit.modes):
            return False
        if not bound.lasting or self._keeps_bits(unit.target):
            return False
        tables = self._tables_of(unit, wanted, bound, place)
        adders, work = tables.adders, tables.work
        if adders is None or work is None or work.shared:
            return False
        return 1 < adders.most <= _FEW_ADDERS and adders.in_steps >= _MANY_COLUMNS

    def _keeps_bits(self, target: str) -> bool:
        """Whether results have the same bits, be lists of tiles made on the host or the device: of
        documents and chosen blocks, not of other data."""
        source = self.bundle.list_source(target)
        return source is not None and source.form != DATA

    def chooses(self, target: str) -> bool:
        """Whether a device can choose the blocks of keys of this mask."""
        known = self.bundle.list_source(target) is not None
        return bool(self.bundle.selections) and known and not self.gathers

    def foreseen(self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place) -> SourceUnit:
        """The source before blocks of keys are chosen, wherever they will be."""
        units, sizes = self._choice(unit, wanted, place), place.sizes
        own = self._params(bound)
        key = (*own.values(), sizes.n_q, sizes.n_kv)
        return self._remembered(units, key, lambda: foreseen(self.bundle, units, own, sizes))

    def suited(self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place) -> SourceUnit:
        """The source for documents: the one that takes least for those of the length that is
        promised, whichever documents there are."""
        units, own = self._choice(unit, wanted, place), self._params(bound)

        def find() -> SourceUnit:
            beside = beside_documents(self.bundle.variants[0].keep, self.bundle.data)
            backward = wanted.direction is Direction.backward
            return suited(units, beside, own, bound.longest, backward)

        return self._remembered(units, (*own.values(), bound.longest), find)

    def _params(self, bound: Bound) -> dict[str, int]:
        """The parameters of this bundle's masks."""
        return {name: bound.params[name] for name, _ in self.bundle.params}

    def _remembered(
        self, units: Sequence[SourceUnit], call: tuple[object, ...], find: Callable[[], SourceUnit]
    ) -> SourceUnit:
        """The one of some sources that suits calls which are alike.

        Args:
            call: what it depends on besides the sources and their costs.
        """
        if len(units) == 1:
            return units[0]
        key = (tuple((unit.key, unit.costs) for unit in units), call)
        found = self._suited.get(key)
        if found is None:
            if len(self._suited) >= _REMEMBERED:
                self._suited.clear()
            found = self._suited[key] = find()
        return found

    def by_hull(
        self, unit: SourceUnit, wanted: Pass, place: Place, tally: Callable[[SourceUnit], Tally]
    ) -> SourceUnit:  # fmt: skip
        """The source for other data on a device: the one that takes least for all that the mask
        could keep, whatever its data are. `tally` counts that."""
        units = tuple(
            each.without(APART)
            for each in self._choice(unit, wanted, place)
            if not each.only_once and each.boxes is None
        )
        return cheapest(units, tally, place.sizes.n_kv) if len(units) > 1 else unit

    def _choice(self, unit: SourceUnit, wanted: Pass, place: Place) -> tuple[SourceUnit, ...]:
        """`unit`, and where it is the first of a choice the others that serve the pass."""
        units = self.bundle.choice(unit.target, wanted.direction)
        if unit is not units[0]:
            return (unit,)
        served = (wanted.features, place.sizes.n_q, place.sizes.n_kv)
        others = [each for each in units[1:] if each.serves(*served)]
        if wanted.features & OF_HEADS:
            others = [each.without(APART) for each in others]
        found = (unit, *others)
        return tuple(map(_in_turns, found)) if wanted.deterministic else found

    def _tables_of(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, lists: bool = False
    ) -> Tables:
        """The mask at these lengths; calls that differ only in strides or features share it.
        `lists` asks for lists of tiles even where the source needs none."""
        sizes, direction = place.sizes, wanted.direction
        lists |= not unit.ranges
        by_head = bool(self.bundle.data) or unit.work is not None
        others = (sizes.batch, sizes.heads_q, sizes.heads_kv) if by_head else ()
        key = (unit.key, unit.work, sizes.n_q, sizes.n_kv, others, bound.key, direction, lists)
        tables = self.tables.get(key)
        if tables is None:
            params = self._params(bound)
            tables = make_tables(self.bundle, unit, sizes, params, bound.arrays, direction, lists)
            if bound.lasting:
                with self._lock:
                    self.tables.put(key, tables)
        return tables


def modes_of(unit: SourceUnit, features: Features) -> tuple[str, ...]:
    """The modes that calls with these features may run in."""
    whole = Feature.entmax in features and Direction.forward in unit.directions
    if not unit.modes or whole:
        return ("usual",)
    return tuple(name for name, _ in unit.modes if name != ONCE or not features & NOT_ONCE)


def _working(unit: SourceUnit, **rule: Any) -> SourceUnit:
    """The source with other rules of its work list, where it has one."""
    return unit if unit.work is None else replace(unit, work=replace(unit.work, **rule))


def _in_turns(unit: SourceUnit) -> SourceUnit:
    """This source, whose modes that add dq up wait for turns."""
    costs = tuple(
        cost if cost.mode in (APART, ONCE)
        else replace(cost, row=round(_TURNS * cost.row), tile=round(_TURNS * cost.tile))
        for cost in unit.costs
    )  # fmt: skip
    return replace(unit, costs=costs)


def _stores_once(unit: SourceUnit, wanted: Pass, tables: Tables, joins: bool) -> bool:
    """Whether a pass of a source runs in the mode ONCE; with the same bits on every run only where
    columns are not shared."""
    shared = tables.work is not None and tables.work.shared
    alike = not (wanted.deterministic and shared)
    return alike and mode_of(unit, wanted, tables, joins) == ONCE
