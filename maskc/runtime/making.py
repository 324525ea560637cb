"""What one bundle needs to run a pass over some tokens: a built kernel, and its tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maskc.build import BuildReport
from maskc.core.bundle import APART, OF_HEADS, ONCE, PACKED, Bundle, SourceUnit
from maskc.core.cost import Tally, cheapest, faster
from maskc.core.errors import TooManyTiles, TooMuchWork
from maskc.core.problem import Direction, Feature, Features
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import Output
from maskc.layout import Rank, best
from maskc.runtime.binding import Binder, Bound
from maskc.runtime.documents import Suited
from maskc.runtime.fallback import NumPyKernel
from maskc.runtime.foreseen import Foreseen
from maskc.runtime.gather import Gatherer
from maskc.runtime.kernels import Kernels
from maskc.runtime.plans import Plan, Recent
from maskc.runtime.prepare import (
    Pass,
    Place,
    apart,
    few_pairs,
    make_plan,
    mode_of,
    ordered,
    uncut,
)
from maskc.runtime.selecting import Selector
from maskc.runtime.signature import features_asked
from maskc.runtime.tables import Tables, make_tables

Arrays = Callable[[], Mapping[str, np.ndarray]]
"""The mask's data as int32 arrays, found when asked for."""
_MOST_TURNS = 64
"""Additions to one small tile of dq up to which blocks may wait for each other: each comes some
2 us after the one before (Longformer at 16k, H200: 256 of them .48 ms, 128 to larger tiles .38; 12,
as its global queries have many tiles of dq, .36)."""

_UNEVEN = 4
"""Times the mean tiles of a row that one may have where dq is made by tile rows: these are not cut,
so one much longer than the others would be at work alone in the end."""

_TURNS = 1.05
"""What waiting for turns takes at least, as a factor (dense masks and windows 1.02 to 1.11, sinks
1.2): less than this is not lost by dq that is made by tile rows."""

_FEW_ADDERS, _MANY_COLUMNS = 3, 32
"""So few columns add to a tile of dq one after another in less time than zeros take to add to,
where each begins at a later row than the one before, and there are so many that waiting at the
start does not count (windows at 16k, 16 heads, D 128, H200: 2 columns .86 and .91 of the time, 3
columns .97, 5 columns 1.03; D 64, small tiles: .93, .98 and 1.03)."""


class Maker:
    """Kernels and tables of one bundle on one target; safe to use from several threads."""

    def __init__(self, bundle: Bundle, target: Target) -> None:
        self.bundle = bundle
        self._selector = Selector(bundle, target)
        self.kernels = Kernels(bundle, target)
        gathers = any(u.gathers and u.target == target.name for u in bundle.units)
        self.gatherer = Gatherer(bundle, target, self.kernels) if gathers else None
        """Makes plans over single keys that are chosen on the device."""
        self.tables: Recent[Tables] = Recent()
        self._suited = Suited(bundle)
        self._foreseen = Foreseen(bundle)
        self._lock = threading.Lock()

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, arrays: Arrays, place: Place,
        outputs: tuple[Output, ...],
    ) -> Plan:  # fmt: skip
        """How a pass runs over some tokens.

        Args:
            unit: its source.
            bound, arrays: the mask's parameters and data.
            place: the tokens.
            outputs: of the call.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        rest = (wanted, place.sizes, bound, arrays)
        if Feature.entmax in wanted.features and wanted.direction is Direction.forward:
            unit = uncut(unit)
        if self._runs_apart(unit, *rest, place.joins):
            unit = apart(unit)
        elif wanted.deterministic and wanted.direction is Direction.backward:
            listed = self.bundle.list_source(unit.target) is not None
            if listed or not self._repeats(unit, *rest, place.joins):
                unit = ordered(unit, listed, wanted.device[1])
        elif self._take_turns(unit, *rest):
            unit = ordered(unit, False, wanted.device[1])
            wanted = replace(wanted, deterministic=True)
            rest = (wanted, *rest[1:])
        tables = self._bound(unit, *rest, not unit.ranges)
        mode = PACKED if place.packed > 1 else mode_of(unit, wanted, tables, place.joins)
        features = tables.features(wanted.features)
        kernel = self.kernels.get(unit, mode, features, wanted.device[1])
        if isinstance(kernel, NumPyKernel) and unit.ranges:
            tables = self._bound(unit, *rest, True)
        return make_plan(self.bundle, unit, wanted, kernel, place, bound.params, tables, outputs)

    def selected(
        self, binder: Binder, asked: tuple[Any, ...], given: Sequence[Any], data: Mapping[str, Any]
    ) -> Bound:
        """Parameters and data of a call, run-time selections included; see `selecting`.

        Args:
            asked: the names of what is given, whether soft-cap is absent, entmax's alpha - 1,
                `nan_safe`.
            given: q and k, then what else the call has.
        """
        names, no_softcap, alpha, nan_safe, *_ = asked
        if self.gatherer is not None:
            return self.gatherer.bound(binder, asked, given, data)
        features = features_asked(names, not no_softcap, alpha > 0, nan_safe)
        unit = self.kernels.unit(Direction.forward, features)

        def rank() -> Rank:
            if unit.target == "cpu":
                return self.kernels.get(unit, "usual", features, 0).best
            return best

        return self._selector.bound(binder, given, data, rank)

    def chosen(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound, arrays: Arrays,
        joins: bool = False,
    ) -> SourceUnit:  # fmt: skip
        """The source of a pass: where `unit` is the first of a choice, the one predicted to take
        least for this mask at these lengths; the first, with the largest tiles, where that would
        depend on more. `joins` says whether results are joined with others."""
        first = self.bundle.unit(unit.target)
        if first is not None and first.by_documents:
            return self.suited(unit, wanted, sizes, bound)
        units = self._choice(unit, wanted, sizes)
        if len(units) > 1 and self.chooses(unit.target):
            return self._foreseen.unit(units, bound.params, sizes)
        if len(units) < 2 or not bound.lasting:
            return unit

        def tally(each: SourceUnit) -> Tally | None:
            tables = self._bound(each, wanted, sizes, bound, arrays, not each.ranges)
            if tables.tally is None or _stores_once(each, wanted, tables, joins):
                return tables.tally
            return replace(tables.tally, single=False, alone=False)

        try:
            found = cheapest(units, tally, sizes.n_kv) if tally(unit) else unit
            apart = self._runs_apart(found, wanted, sizes, bound, arrays, False)
            if found.tile.k < unit.tile.k and wanted.deterministic and not apart:
                listed = self.bundle.list_source(unit.target) is not None
                turns = ordered(found, listed, wanted.device[1])
                tables = self._bound(turns, wanted, sizes, bound, arrays, not found.ranges)
                return unit if tables.chain > _MOST_TURNS else found
        except (TooManyTiles, TooMuchWork):  # 2^28 items and more: there alone the batch decides
            return unit
        return found

    def _runs_apart(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound, arrays: Arrays,
        joins: bool,
    ) -> bool:  # fmt: skip
        """Whether a backward pass takes least time with dq made by a launch of its own, which has
        the same bits on every run."""
        if wanted.direction is Direction.forward or APART not in dict(unit.modes):
            return False
        if wanted.features & OF_HEADS or few_pairs(sizes):
            return False
        tables = self._bound(unit, wanted, sizes, bound, arrays, not unit.ranges)
        tally, adders = tables.tally, tables.adders
        if tally is None or adders is None or mode_of(unit, wanted, tables, joins) == ONCE:
            return False
        even = adders.most * adders.rows <= _UNEVEN * tally.tiles
        return even and faster(unit, tally) == APART

    def _repeats(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound, arrays: Arrays,
        joins: bool,
    ) -> bool:  # fmt: skip
        """Whether a backward pass has the same bits on every run anyway: nothing is added up by
        several blocks."""
        tables = self._bound(unit, wanted, sizes, bound, arrays, not unit.ranges)
        return _stores_once(unit, replace(wanted, deterministic=True), tables, joins)

    def _take_turns(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound, arrays: Arrays
    ) -> bool:  # fmt: skip
        """Whether a backward pass is faster where columns add to dq one after another, although
        nobody asks for the same bits on every run."""
        if wanted.direction is Direction.forward or "deterministic" not in dict(unit.modes):
            return False
        if not bound.lasting or self.bundle.list_source(unit.target) is not None:
            return False
        tables = self._bound(unit, wanted, sizes, bound, arrays, not unit.ranges)
        few = tables.adders is not None and 1 < tables.adders.most <= _FEW_ADDERS
        return few and tables.adders.in_steps >= _MANY_COLUMNS and not tables.work.shared

    def chooses(self, target: str) -> bool:
        """Whether a device can choose the blocks of keys of this mask."""
        known = self.bundle.list_source(target) is not None
        return bool(self.bundle.selections) and known and self.gatherer is None

    def foreseen(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound
    ) -> SourceUnit:  # fmt: skip
        """The same before blocks of keys are chosen, wherever they will be."""
        return self._foreseen.unit(self._choice(unit, wanted, sizes), bound.params, sizes)

    def suited(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound
    ) -> SourceUnit:  # fmt: skip
        """The same for documents: the source that takes least for those of the length that is
        promised, whichever documents there are."""
        return self._suited.unit(self._choice(unit, wanted, sizes), bound.params, bound.longest)

    def _choice(self, unit: SourceUnit, wanted: Pass, sizes: Sizes) -> tuple[SourceUnit, ...]:
        """`unit`, and where it is the first of a choice the others that serve the pass."""
        units = self.bundle.choice(unit.target, wanted.direction)
        if unit is not units[0]:
            return (unit,)
        served = (wanted.features, sizes.n_q, sizes.n_kv)
        others = [each for each in units[1:] if each.serves(*served)]
        if wanted.features & OF_HEADS:
            others = [each.without(APART) for each in others]
        found = (unit, *others)
        return tuple(map(_in_turns, found)) if wanted.deterministic else found

    def _bound(
        self, unit: SourceUnit, wanted: Pass, sizes: Sizes, bound: Bound, arrays: Arrays,
        lists: bool,
    ) -> Tables:  # fmt: skip
        """The mask at these lengths; calls that differ only in strides or features share it."""
        by_head = bool(self.bundle.data) or unit.work is not None
        others = (sizes.batch, sizes.heads_q, sizes.heads_kv) if by_head else ()
        direction = wanted.direction
        key = (unit.key, unit.work, sizes.n_q, sizes.n_kv, others, bound.key, direction, lists)
        tables = self.tables.get(key)
        if tables is None:
            params = {name: bound.params[name] for name, _ in self.bundle.params}
            tables = make_tables(self.bundle, unit, sizes, params, arrays(), direction, lists)
            if bound.lasting:
                with self._lock:
                    self.tables.put(key, tables)
        return tables


def _in_turns(unit: SourceUnit) -> SourceUnit:
    """The same source, whose modes that add dq up wait for turns."""
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


def all_reports(
    whole: Maker, parts: Sequence[Maker], chooser: Maker | None = None
) -> dict[tuple[str, str, Features], BuildReport]:
    """What was built so far, by source, mode and features; see CompiledMask.all_reports."""
    found = dict(whole.kernels.all_reports)
    if chooser is not None:
        found |= chooser.kernels.all_reports
    for number, maker in enumerate(parts):
        for (source, mode, features), report in maker.kernels.all_reports.items():
            found[f"part{number}.{source}", mode, features] = report
    return found
