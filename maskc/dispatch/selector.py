"""Which source of a bundle runs a pass, in which mode, with which tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from maskc.core.bundle import (
    DEFAULT,
    DETERMINISTIC,
    EXCLUSIVE_DQ,
    INTERLEAVED,
    NOT_EXCLUSIVE_DQ,
    NOT_INTERLEAVED,
    SEPARATE_DQ,
    Bundle,
    SourceUnit,
)
from maskc.core.cost import Tally
from maskc.core.errors import TargetNotBuilt, TooManyTiles, TooMuchWork
from maskc.core.forks import new_lock
from maskc.core.forms import DATA
from maskc.core.problem import Direction, Feature, Features
from maskc.core.target import Target
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.constants import lengths_widen
from maskc.dispatch.launch_plan import LaunchPlan, launch_plan
from maskc.dispatch.packing import interleaved, interleaved_heads, narrowed
from maskc.dispatch.programs import (
    PARTS,
    Emitted,
    Facts,
    cheapest,
    least,
    programs_of,
)
from maskc.dispatch.recent import Recent
from maskc.dispatch.stand_ins import expected_tally
from maskc.dispatch.tables import Tables, make_tables, per_sequence
from maskc.layout import runs_side_by_side

_REMEMBERED = 1024
"""Number of calls to keep expected tile counts for."""
_UNCUT = {"most_tiles": 0, "uneven_tiles": 0}
"""Rules of work lists that cut no row."""

_MAX_TURNS = 64
"""Limit on the ordered additions to one small tile of dq. Each comes some 2 us after the previous
one (Longformer at 16k, H200: 256 of them 0.48 ms, 128 to larger tiles 0.38 ms; 12, as its global
queries have many tiles of dq, 0.36 ms)."""

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


def tuning_key(direction: Direction, deterministic: bool, n_q: int, n_kv: int) -> str:
    """Key of a measured choice. It leaves out batch and heads, so bits do not depend on them."""
    same_bits = ", deterministic" if deterministic and direction is Direction.backward else ""
    return f"{direction.value} {n_q} x {n_kv}{same_bits}"


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
        self.tuned: dict[str, str] = {}
        """Measured choices: `tuning_key` -> name of a program, or PARTS."""
        self._counts: dict[Hashable, Tally | None] = {}
        self._lock = new_lock()

    def source(self, direction: Direction, features: Features = frozenset()) -> SourceUnit:
        """Return the source of a pass, the first if there are several.

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
        """The source for forward passes that the target's own kernel cannot run, if the bundle has
        one."""
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
            bundle = self.bundle
            made_by = bundle.list_source, bundle.moving_source, bundle.pages_source
            units += tuple(filter(None, (source(units[0].target) for source in made_by)))
        forms = {
            (unit.key, mode, built): (unit, mode, built)
            for unit in units
            if unit.offers(features)
            for mode in modes_of(unit, features)
            for built in self._widths(unit, features)
        }
        return tuple(forms.values())

    def _widths(self, unit: SourceUnit, features: Features) -> tuple[Features, ...]:
        """The features that a source is built with: also for 64 bits, if lengths may ask for it."""
        if not unit.directions:
            return (frozenset(),)
        if unit.gathers or not lengths_widen(self.bundle, unit):
            return (features,)
        return features, features | {Feature.wide}

    def plan(
        self, program: Emitted, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...], lists: bool = False,
    ) -> LaunchPlan:  # fmt: skip
        """Plan a pass over some tokens.

        Args:
            program: what runs.
            bound: the mask's parameters and data.
            place: the tokens.
            outputs: of the call.
            lists: whether the kernel reads lists of tiles even where its source needs none.

        Raises:
            NotAddressable: a stride that no tensor map can have.
        """
        unit = program.unit
        if Feature.entmax in wanted.features and wanted.direction is Direction.forward:
            unit = _working(unit, **_UNCUT)  # what entmax makes of parts could not be merged
        if program.mode == SEPARATE_DQ:
            unit = _working(unit, apart=True)
        elif program.mode == DETERMINISTIC:
            unit, wanted = self._ordered(unit, wanted), replace(wanted, deterministic=True)
        listed = narrowed(unit, interleaved_heads(program.mode, place))
        tables = self._tables_of(listed, wanted, bound, place, lists)
        rest = (wanted, place, bound.params, tables, outputs)
        return launch_plan(self.bundle, unit, program.mode, *rest)

    def _ordered(self, unit: SourceUnit, wanted: Pass) -> SourceUnit:
        """Return the source for a deterministic pass. The result must not depend on who built the
        lists, so the order is the plain one if a device may have built them."""
        if unit.work is None or DETERMINISTIC not in dict(unit.modes):
            return unit
        if self._keeps_bits(unit.target):
            return _working(unit, ordered=True, plain=True, **_UNCUT)
        both_ways = runs_side_by_side(self._multiprocessors(wanted.device[1]))
        return _working(unit, ordered=True, both_ways=both_ways)

    def choose(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, alone: bool = False,
        parts: Callable[[Emitted], Emitted] | None = None,
    ) -> Emitted:  # fmt: skip
        """Return the program of a pass with the least predicted time.

        Args:
            unit: the source, perhaps the first of a choice.
            wanted: the pass.
            bound: the mask's parameters and data.
            place: the tokens.
            alone: whether no other source may run.
            parts: see `cheapest`.
        """
        units = (unit,) if alone else self._choice(unit, wanted, place)
        programs = partial(self._programs, wanted, place)
        counted = partial(self._counted, wanted, bound, place)
        expected = partial(self._expected, wanted, bound, place)
        stands_in = len(units) > 1 and self._stands_in(unit, bound)
        if self.tuned and not alone:
            measured = self._measured(units, wanted, place, programs, counted)
            if measured is not None:
                return measured
        try:
            facts = expected if stands_in else counted
            best = cheapest(units, programs, facts, place.sizes.n_kv, parts)
            if best.runs_in_parts:
                return best
            if stands_in:
                best = least(programs(best.unit, counted(best.unit)))
        except (TooManyTiles, TooMuchWork):  # 2^28 items and more
            return least(programs(unit, Facts(None)))
        waits = wanted.deterministic and best.mode == DETERMINISTIC and not stands_in
        waits &= bound.given is None and bound.lasting
        if waits and best.unit.tile.k < unit.tile.k:
            ordered = self._ordered(best.unit, wanted)
            if self._tables_of(ordered, wanted, bound, place).chain > _MAX_TURNS:
                return least(programs(unit, counted(unit)))
        return best

    def interleave(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, best: Emitted
    ) -> tuple[Emitted, Place]:
        """Return the program of a pass and its tokens: with interleaved heads if that was measured
        or is predicted to take less time than `best`, otherwise as they are; arguments as of
        `choose`."""
        units = self._choice(unit, wanted, place)
        able, packed = interleaved(self.bundle, units, wanted, bound, place)
        measured = self._tuned(wanted, place)
        if measured:
            able = tuple(unit for unit in able if measured == f"{unit.key} {INTERLEAVED}")
        counted = self._expected if self._stands_in(unit, bound) else self._counted
        program = best
        with suppress(TooManyTiles, TooMuchWork):
            for other in able:
                facts = counted(wanted, bound, packed, narrowed(other, packed.packed))
                (made,) = programs_of(other, wanted, facts, packed.sizes, interleaved=packed.packed)
                if measured or (facts.tally is not None and made.time < program.time):
                    program = made
        return (best, place) if program is best else (program, packed)

    def compare(
        self, unit: SourceUnit, wanted: Pass, place: Place, facts: Callable[[SourceUnit], Facts],
        parts: Callable[[Emitted], Emitted],
    ) -> Emitted:  # fmt: skip
        """Return the program with the least predicted time, given the tiles of every source;
        arguments as of `choose` and `cheapest`."""
        units, programs = self._choice(unit, wanted, place), partial(self._programs, wanted, place)
        return cheapest(units, programs, facts, place.sizes.n_kv, parts)

    def _measured(
        self, units: Sequence[SourceUnit], wanted: Pass, place: Place,
        programs: Callable[[SourceUnit, Facts], list[Emitted]],
        counted: Callable[[SourceUnit], Facts],
    ) -> Emitted | None:  # fmt: skip
        """The measured program; None if none was measured, or it cannot run."""
        source, _, mode = self._tuned(wanted, place).rpartition(" ")
        for unit in units:
            if unit.key == source:
                for program in programs(unit, counted(unit)):
                    if program.mode == mode and not program.obstacle:
                        return program
        return None

    def in_parts(self, wanted: Pass, place: Place) -> bool | None:
        """Whether a pass was measured to be faster in parts; None if nobody measured it."""
        measured = self._tuned(wanted, place)
        return measured == PARTS if measured else None

    def _tuned(self, wanted: Pass, place: Place) -> str:
        """Return the name of the program that was measured to be the fastest; empty if nobody
        measured the pass."""
        sizes = place.sizes
        key = tuning_key(wanted.direction, wanted.deterministic, sizes.n_q, sizes.n_kv)
        return self.tuned.get(key, "")

    def _programs(
        self, wanted: Pass, place: Place, unit: SourceUnit, facts: Facts
    ) -> list[Emitted]:
        return list(programs_of(unit, wanted, facts, place.sizes, place.accumulates))

    def _stands_in(self, unit: SourceUnit, bound: Bound) -> bool:
        """Whether sources are compared by expected tiles, as the data of a sequence decide its own.

        The choice must not depend on the others of the batch.
        """
        if bound.given is not None or not bound.lasting:
            return True
        first = self.bundle.unit(unit.target)
        return (first is not None and first.by_documents) or per_sequence(self.bundle, bound.arrays)

    def _counted(self, wanted: Pass, bound: Bound, place: Place, unit: SourceUnit) -> Facts:
        """Return the tile counts of a call; typical ones if the host does not know the tiles."""
        if not unit.costs and EXCLUSIVE_DQ not in dict(unit.modes):
            return Facts(None)
        if bound.given is not None or not bound.lasting:
            return self._expected(wanted, bound, place, unit)
        tables = self._tables_of(unit, wanted, bound, place)
        if tables.tally is None:
            return self._expected(wanted, bound, place, unit)
        work, alike = tables.work, self._keeps_bits(unit.target)
        adders = None if alike and wanted.deterministic else tables.adders
        shared = work is not None and work.shared
        items = work.load if work is not None else None
        return Facts(tables.tally, adders, work is not None and not alike, shared, items)

    def _expected(self, wanted: Pass, bound: Bound, place: Place, unit: SourceUnit) -> Facts:
        """Return typical tile counts for a call."""
        if not self.bundle.data or unit.boxes is not None:
            return Facts(None)
        params, sizes = self._params(bound), place.sizes
        longest = bound.longest
        if longest is None and not wanted.deterministic:
            longest = bound.longest_on_host
        rest = (wanted.direction, longest)
        key = (unit.tile, sizes.n_q, sizes.n_kv, *rest, *params.values())
        if key not in self._counts:
            if len(self._counts) >= _REMEMBERED:
                self._counts.clear()
            self._counts[key] = expected_tally(self.bundle, unit.tile, params, sizes, *rest)
        return Facts(self._counts[key])

    def _keeps_bits(self, target: str) -> bool:
        """Whether results have the same bits, be lists of tiles made on the host or the device: of
        documents and chosen blocks, not of other data."""
        source = self.bundle.list_source(target)
        return source is not None and source.form != DATA

    def chooses(self, target: str) -> bool:
        """Whether a device can choose the blocks of keys of this mask."""
        known = self.bundle.list_source(target) is not None
        return bool(self.bundle.selections) and known and not self.gathers

    def _params(self, bound: Bound) -> dict[str, int]:
        """The parameters of this bundle's masks."""
        return {name: bound.params[name] for name, _ in self.bundle.params}

    def _choice(self, unit: SourceUnit, wanted: Pass, place: Place) -> tuple[SourceUnit, ...]:
        """Return `unit`, and where it is the first of a choice the others that serve the pass."""
        units = self.bundle.choice(unit.target, wanted.direction)
        if unit is not units[0]:
            return (unit,)
        served = (wanted.features, place.sizes.n_q, place.sizes.n_kv)
        return (unit, *(other for other in units[1:] if other.serves(*served)))

    def _tables_of(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, lists: bool = False
    ) -> Tables:
        """Return the tables of a mask at these lengths; calls that differ only in strides or
        features share them."""
        sizes, direction = place.sizes, wanted.direction
        lists |= not unit.ranges
        by_head = bool(self.bundle.data) or unit.work is not None
        others = (sizes.batch, sizes.heads_q, sizes.heads_kv) if by_head else ()
        source = unit.key, unit.tile, unit.work
        key = (*source, sizes.n_q, sizes.n_kv, others, bound.key, direction, lists)
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
        return (DEFAULT,)
    return tuple(
        name for name, _ in unit.modes
        if (name != EXCLUSIVE_DQ or not features & NOT_EXCLUSIVE_DQ)
        and (name != INTERLEAVED or not features & NOT_INTERLEAVED)
    )  # fmt: skip


def _working(unit: SourceUnit, **rule: Any) -> SourceUnit:
    """The source with other rules of its work list, where it has one."""
    return unit if unit.work is None else replace(unit, work=replace(unit.work, **rule))
