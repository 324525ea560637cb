"""Find or make the plan that all calls of one signature share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from maskc.build import BuildReport
from maskc.core.abi import POINTERS
from maskc.core.bundle import EXCLUSIVE_DQ, PACK_GQA, Bundle, SourceUnit
from maskc.core.errors import MaskcError, NotAddressable
from maskc.core.forks import new_lock
from maskc.core.problem import Direction, Feature, Features, Problem
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import HOST, Array, Device, Order, Output, singles
from maskc.dispatch import checks
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.checks import check_call
from maskc.dispatch.launch_plan import (
    launch_plan,
    launches,
    outputs_of,
    strides_of,
    threshold_words,
)
from maskc.dispatch.options import PlanOptions, features_named
from maskc.dispatch.packing import packed
from maskc.dispatch.programs import Emitted, Launched, in_parts
from maskc.dispatch.residue_split import _ONCE, hold, in_turn, slices, within
from maskc.dispatch.selector import Form
from maskc.dispatch.tables import NOTHING, per_sequence
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, DeviceListedPlan, DeviceLists, Unlisted
from maskc.runtime.device_lists.data import DataLists
from maskc.runtime.device_lists.gathered import Gatherer
from maskc.runtime.device_lists.topk import TopKLists
from maskc.runtime.device_lists.topk_host import TopKOnHost
from maskc.runtime.launch import ahead
from maskc.runtime.launch.ahead import Ahead, Job, processors
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.cuda import current_device
from maskc.runtime.launch.kernels import Kernels, survey
from maskc.runtime.launch.listed import Flags, ListedRowsPlan
from maskc.runtime.launch.prepared import PreparedLaunch, prepared
from maskc.runtime.launch.sequence import PartedPlan, Step, _in_order
from maskc.runtime.listed_parts import ListedParts
from maskc.runtime.tuned import stored


def _made_by(bundle: Bundle) -> Callable[[BuiltBundle, Binder], DeviceLists]:
    """Return the class that builds the tile lists of a mask on the device."""
    return TopKLists if bundle.selections else DataLists


class _Run(NamedTuple):
    """A launch of a call whose mask runs in parts."""

    built: BuiltBundle
    program: Emitted
    wanted: Pass
    bound: Bound
    place: Place
    shifts: tuple[int | None, ...]
    """See Step."""

    def launched(self, sizes: Sizes) -> Launched:
        """The launch with its share in a call of these sizes."""
        regrouped = self.place.spacing > 1
        classes = self.place.sizes.batch if regrouped else 1
        heads = self.place.sizes.heads_q if regrouped else sizes.batch * sizes.heads_q
        return Launched(self.program, classes, heads / (sizes.batch * sizes.heads_q))


@dataclass
class _Runs:
    """The launches of a call whose mask runs in parts."""

    runs: list[_Run] = field(default_factory=list)
    unwritten: bool = False
    """See PartedPlan."""


_ORDERED = "q", "k", "v", "out", "dout"
"""Arrays with the caller's order of axes."""
Planned = PreparedLaunch | PartedPlan | ListedRowsPlan | DeviceListedPlan
"""A plan for calls of one signature."""


class CallPlanner:
    """Plans the calls of one mask on one target; safe to use from several threads."""

    def __init__(
        self, bundle: Bundle, target: Target, binder: Binder, in_parts: bool | None
    ) -> None:
        """`in_parts`: as CompiledMask has it."""
        self.bundle, self.target = bundle, target
        self.whole = BuiltBundle(bundle, target)
        self.whole.selector.tuned.update(stored(bundle, target))
        self.parts = tuple(
            BuiltBundle(part.bundle, target)
            for part in (bundle.parts if in_parts is not False else ())
            if part.bundle.unit(target.name)
        )
        chooser = bundle.chooser
        self.chooser = BuiltBundle(chooser, target) if chooser is not None else None
        self.gatherer = Gatherer(self.whole, binder) if self.whole.selector.gathers else None
        """Makes plans over single keys that are chosen on the device."""
        self.lister: DeviceLists = _made_by(bundle)(self.whole, binder)
        """Makes tile lists on the device."""
        self._on_host = TopKOnHost(bundle, binder)
        self.listed = ListedParts(self.whole, self.parts, binder, in_parts)
        """Makes plans in parts over the rows of listed tokens."""
        self._device_readers = [
            (maker.bind, maker is self.lister and isinstance(maker, DataLists))
            for maker, reads in (
                (self.listed, self.listed.on_device), (self.lister, self.lister.active),
            ) if reads
        ]  # fmt: skip
        """Readers that can leave data on the device, in order of preference, each with whether it
        supports entmax and nan_safe."""
        self._binder, self._in_parts = binder, in_parts
        self._itemsize = bundle.problem.dtype.itemsize
        self._ahead: set[tuple[Direction, Features]] = set()
        """Passes whose other sources are built, or being built."""
        self._lock = new_lock()

    def plan(
        self, options: PlanOptions, given: list[Any], bound: Bound,
        following: Callable[[Planned], Iterable[Job]] | None = None,
    ) -> Planned:  # fmt: skip
        """Check everything, build what is missing, prepare.

        The kernels of the call are built side by side. Those for other lengths follow, in threads
        that nobody waits for.

        Args:
            options: of the call.
            given: arrays of known libraries.
            bound: the mask's parameters and data.
            following: jobs that build what the call after this one will need; they begin with the
                kernels of this call, if any of these must be built.

        Raises:
            MaskcError: MC4xx for tensors, MC5xx for builds.
            Unlisted: the host is to make lists that the device was to make.
        """
        wanted, planned = self._checked(options, given, bound)
        urgent = None
        with survey() as missing:
            plan = planned()
        if missing:
            first, *others = missing.values()
            urgent = ahead.start((*others, *(() if following is None else following(plan))))
            first()
            plan = planned()
        self._build_ahead(wanted, urgent)
        return plan

    def missing(self, options: PlanOptions, given: list[Any], bound: Bound) -> tuple[Job, ...]:
        """Return jobs that build what a call needs and is not built yet.

        Args:
            options, given, bound: as of `plan`; no array is read.
        """
        with suppress(MaskcError, Unlisted), survey() as missing:  # the call itself says so
            _, planned = self._checked(options, given, bound)
            planned()
            return tuple(missing.values())
        return ()

    def _checked(
        self, options: PlanOptions, given: list[Any], bound: Bound
    ) -> tuple[Pass, Callable[[], Planned]]:
        """Check a call; return its pass, and the function that plans it. Arguments and errors are
        those of `plan`."""
        views = {
            name: LIBRARIES[type(x)].view(x, name)
            for name, x in zip(options.names, given, strict=True)
        }
        order = options.order
        if order is not None:
            views |= {name: order.array(views[name]) for name in _ORDERED if name in views}
        shared = checks.of_every_sequence(views["q"], views["k"], views["v"])
        views |= dict(zip("qkv", shared, strict=True))
        direction, features = options.direction, options.features
        unit = self.whole.selector.source(direction, features)
        sizes = check_call(views, self.bundle, unit)
        ordered = LIBRARIES[type(given[0])].ordered
        pages = options.pages
        if pages is not None:  # what was checked has the lengths of sequences, and no strides
            views["k"] = views["k"]._replace(strides=(*pages.k, 1))
            views["v"] = views["v"]._replace(strides=(*pages.v, 1))
            for name in ("k", "v"):
                dtype, device = self.bundle.problem.of_keys.value, views["q"].device
                checks.check_storage(name, views[name], dtype, self.target, device)
        wanted = Pass(
            direction, features, options.deterministic, views["q"].device, options.alpha_minus_1,
            pages,
        )  # fmt: skip
        rest = (wanted, views, sizes, bound, ordered, options.accumulates, order)

        def planned() -> Planned:
            try:
                return self._planned(unit, *rest)
            except NotAddressable:
                spare = self.whole.selector.spare_source()
                if direction is Direction.backward or spare is None or bound.given is not None:
                    raise
                return self._planned(spare, *rest)

        return wanted, planned

    def bind(self, asked: Asked, on_device: bool) -> Bound:
        """Parameters and data of a call, by the first that can read them.

        Args:
            on_device: whether tile lists may be made there.

        Raises:
            MC3xx for data, MC4xx for q, k and v.
        """
        is_plain = not (asked.options.alpha_minus_1 or asked.options.nan_safe)
        for bind, always in self._device_readers if on_device else ():
            bound = bind(asked) if is_plain or always else None
            if bound is not None:
                return bound
        return self._on_host_bound(asked)

    def _on_host_bound(self, asked: Asked) -> Bound:
        """Return the data that the host reads, and the selections made there."""
        if not self.bundle.selections:
            return self._binder.bind(asked.keywords_of_call, asked.sizes.n_q, asked.sizes.n_kv)
        if self.gatherer is not None:
            return self.gatherer.bind(asked)
        built, features = self.whole, asked.options.features
        unit = built.selector.source(Direction.forward, features)
        return self._on_host.bind(asked, partial(built.kernels.ranking, unit, features))

    @property
    def all_reports(self) -> dict[tuple[str, str, Features], BuildReport]:
        """Return the build reports so far, by source, mode and features; see
        CompiledMask.all_reports."""
        reports = dict(self.whole.kernels.all_reports)
        if self.chooser is not None:
            reports |= self.chooser.kernels.all_reports
        for number, built in enumerate(self.parts):
            for (source, mode, features), report in built.kernels.all_reports.items():
                reports[f"part{number}.{source}", mode, features] = report
        return reports

    def build_all(self, features: Iterable[Feature | str]) -> None:
        """See CompiledMask.warmup."""
        wanted = features_named(features)
        device = current_device() if self.target.language == "cuda" else 0
        jobs = [partial(kernels.get, *form, device) for kernels, form in self._forms(wanted)]
        alone = len(jobs) == 1 or self.target.language == "c"  # what it says, it says to the caller
        with ThreadPoolExecutor(1 if alone else min(len(jobs), 2 * processors())) as pool:
            for _ in (job() for job in jobs) if alone else pool.map(lambda job: job(), jobs):
                pass

    def _forms(
        self, features: Features, directions: Sequence[Direction] = tuple(Direction)
    ) -> Iterator[tuple[Kernels, Form]]:
        """Yield the kernels for calls with these features, with their forms; lengths and data
        choose among them.

        Raises:
            TargetNotBuilt: no forward pass has them.
        """
        whole, kernels = self.whole.selector, self.whole.kernels
        yield from ((kernels, form) for form in whole.forms(features, directions))
        is_own_target = whole.source(Direction.forward, features).target == self.target.name
        for number, built in enumerate(
            self.parts if is_own_target and Feature.entmax not in features else ()
        ):
            listed = self.bundle.parts[number].listed
            rows = listed is not None and listed.side == "q"
            ours = features if rows or not number else features - {Feature.sinks}
            never = {EXCLUSIVE_DQ} if listed else set()  # their gradients are added to others
            never |= set() if rows else {PACK_GQA}
            forms = built.selector.forms(ours, directions)
            yield from ((built.kernels, form) for form in forms if form[1] not in never)
        if self.chooser is not None:
            kernels, chooser = self.chooser.kernels, self.chooser.selector
            forms = chooser.forms(frozenset(), (Direction.forward,))
            yield from ((kernels, form) for form in forms)

    def _build_ahead(self, wanted: Pass, urgent: Ahead | None) -> None:
        """Start to build what other calls of such a pass may need, at the first one.

        Args:
            urgent: what this call and the backward pass after it need; it is built first.
        """
        if self.target.language != "cuda":
            return
        with self._lock:
            key = (wanted.direction, wanted.features)
            if key in self._ahead:
                return
            self._ahead.add(key)
        device = wanted.device[1]
        forms = [
            (kernels, form)
            for kernels, form in self._forms(wanted.features, (wanted.direction,))
            if not kernels.has(*form, device)
        ]
        ahead.start([partial(kernels.build, *form, device) for kernels, form in forms], urgent)

    def _planned(
        self, unit: SourceUnit, wanted: Pass, views: Mapping[str, Array], sizes: Sizes,
        bound: Bound, ordered: bool, accumulates: bool = False, order: Order | None = None,
    ) -> Planned:  # fmt: skip
        """Plan a checked call: in parts if that takes less time, otherwise as a whole."""
        bundle, direction = self.bundle, wanted.direction
        outputs = outputs_of(bundle, direction, views, sizes, ordered)
        place = Place(sizes, strides_of(views, outputs), accumulates=accumulates)
        if order is not None:
            results = 1 if direction is Direction.forward else 3
            outputs = *map(order.output, outputs[:results]), *outputs[results:]
        if not launches(sizes, direction):
            idle = launch_plan(
                bundle, unit, "default", wanted, place, bound.params, NOTHING, outputs, idle=True
            )
            return prepared(idle, None, outputs)
        if isinstance(bound.given, Flags):
            is_own_target = unit.target == self.target.name
            plan = self.listed.plan(unit, wanted, bound, place, outputs) if is_own_target else None
            if plan is None:
                raise Unlisted
            return plan
        if bound.given is not None:
            lists = self.gatherer or self.lister
            return lists.plan(unit, wanted, bound, place, outputs)
        bound = self._binder.completed(bound, sizes.n_q, sizes.n_kv)
        is_own_target = (
            unit.target == self.target.name and not wanted.alpha_minus_1 and not accumulates
        )  # parts join by softmax, and begin with the first one
        measured = self.whole.selector.in_parts(wanted, place) if self.parts else None
        if (
            is_own_target
            and self.listed.active
            and self._in_parts is not False
            and measured is not False
        ):
            with suppress(NotAddressable):
                plan = self.listed.plan(unit, wanted, bound, place, outputs, measured)
                if plan is not None:
                    return plan
        elif is_own_target:
            runs = self._in_launches(unit, wanted, bound, place, measured)
            if runs is not None:
                # No tensor map can have the stride of a residue class: such a call runs as a whole.
                with suppress(NotAddressable):
                    return self._parted(runs, wanted.direction, outputs)
        if self.chooser is not None:
            return self._after_choice(self.chooser, unit, wanted, bound, place, outputs)
        return self._whole(unit, wanted, bound, place, outputs)

    def _in_launches(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, measured: bool | None
    ) -> _Runs | None:
        """The launches of a pass that runs in parts; None if it runs whole.

        Args:
            unit: the source of the whole mask.
            measured: whether parts were measured to be faster; None if nobody measured it.
        """
        sizes, bundle = place.sizes, self.bundle
        asked = measured if self._in_parts is None else self._in_parts
        if not self.parts or not hold(bundle, sizes.n_q, sizes.n_kv) or asked is False:
            return None
        if asked is None and per_sequence(bundle, bound.arrays):
            return None  # else the others of the batch would decide too
        runs = _Runs()
        launches = self._add_runs(runs, wanted, bound, place)
        if asked is None:

            def parts(whole: Emitted) -> Emitted:
                launched = (run.launched(sizes) for run in launches)
                return in_parts(whole, launched, sizes, wanted.deterministic, stops=True)

            best = self.whole.selector.choose(unit, wanted, bound, place, parts=parts)
            if not best.runs_in_parts:
                return None
        for _ in launches:
            pass
        return runs

    def _add_runs(self, runs: _Runs, wanted: Pass, bound: Bound, place: Place) -> Iterator[_Run]:
        """Yield the launches of a call in parts, each by its best program, and add them."""
        sizes = place.sizes
        backward = wanted.direction is Direction.backward
        order = in_turn(self.bundle.parts, wanted.direction, wanted.features)
        for turn, number in enumerate(order):
            part, built = self.bundle.parts[number], self.parts[number]
            features = wanted.features - {Feature.sinks} if turn else wanted.features
            asked, bound_part = replace(wanted, features=features), within(bound, part, sizes.n_kv)
            first = built.selector.source(wanted.direction, features)
            rest = (sizes, place.strides, self._itemsize, features)
            for view in slices(part.stride, *rest, keys=part.keys):
                no_keys = not view.sizes.n_kv and (backward or turn)
                if not view.sizes.n_q or no_keys:
                    runs.unwritten |= backward and not turn
                    continue
                rows = replace(view, accumulates=turn > 0)
                program = built.selector.choose(first, asked, bound_part, rows)
                shifts = tuple(
                    None if turn and name in _ONCE else rows.shifts.get(name, 0)
                    for name in POINTERS
                )
                runs.runs.append(_Run(built, program, asked, bound_part, rows, shifts))
                yield runs.runs[-1]

    def _parted(
        self, launches: _Runs, direction: Direction, outputs: tuple[Output, ...]
    ) -> PartedPlan:
        """The plan of a call whose mask runs in parts."""
        backward = direction is Direction.backward
        part_outputs = outputs if backward else (outputs[0], singles(0))
        steps = [Step(run.built.plan(*run[1:5], part_outputs), run.shifts) for run in launches.runs]
        return _in_order(steps, direction, outputs, launches.unwritten)

    def _whole(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> PreparedLaunch | PartedPlan:  # fmt: skip
        """Plan a call that runs as a whole, with the best source if `unit` is the first of several.

        Sequences become heads, or separate launches, if the tensor maps need that.
        """
        built, first = self.whole, unit
        if unit.by_documents:  # whose tiles do not depend on how many queries there are
            unit = built.selector.choose(unit, wanted, bound, place).unit
        fit = packed(built.bundle, unit, wanted, bound, place)
        if fit is not None:
            return built.plan(fit[0], wanted, bound, fit[1], outputs)
        program = built.selector.choose(unit, wanted, bound, place)
        program, place = built.selector.interleave(first, wanted, bound, place, program)
        boxes = program.unit.boxes
        if boxes is None or not boxes.folds or place.sizes.batch < 2:
            return built.plan(program, wanted, bound, place, outputs)
        steps = [
            Step(
                built.plan(program, wanted, bound, part, outputs),
                tuple(part.shifts.get(name, 0) for name in POINTERS),
            )
            for part in slices(
                1, place.sizes, place.strides, self._itemsize, wanted.features, fold=True,
                by_head=bool(built.bundle.head_variant),
            )
        ]  # fmt: skip
        return _in_order(steps, wanted.direction, outputs, False)

    def _after_choice(
        self, chooser: BuiltBundle, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> PartedPlan:  # fmt: skip
        """The plan of a call whose keys are chosen one by one: thresholds first, then the pass.

        Both have the same workspace, and are told where the thresholds, which it begins with, end.
        """
        nothing = (singles(0),) * (3 if wanted.direction is Direction.backward else 2)
        first = Pass(Direction.forward, frozenset(), False, wanted.device)
        source = chooser.selector.source(Direction.forward)
        programs = (
            chooser.selector.choose(source, first, bound, place, alone=True),
            self.whole.selector.choose(unit, wanted, bound, place, alone=True),
        )
        plans = (
            chooser.plan(programs[0], first, bound, place, nothing),
            self.whole.plan(programs[1], wanted, bound, place, outputs),
        )
        steps = [
            Step(plan, tuple(4 * threshold_words(part, place.sizes) if name == "delta" else 0
                             for name in POINTERS))
            for plan, part in zip(plans, (source, unit), strict=True)
        ]  # fmt: skip
        return _in_order(steps, wanted.direction, outputs, False)


class Sound:
    """Checks tensors before their lengths are used. Tensors with the shapes and strides of the last
    call, and at least its alignment, are not checked again."""

    def __init__(self, problem: Problem, target: Target, unaligned: int) -> None:
        """`unaligned`: bits that no address may have."""
        self._problem, self._target, self._unaligned = problem, target, unaligned
        self._last: tuple[object, tuple[Sizes, Device]] = (None, (Sizes(0, 0, 0, 0, 0), HOST))

    def sizes(
        self, given: list[Any], kinds: tuple[Any, ...], places: tuple[int, ...],
        order: Order | None = None,
    ) -> tuple[Sizes, Device]:  # fmt: skip
        """Return the sizes of a call, and its device; arguments begin with q, k and v.

        Raises:
            MC4xx, BadLength: see `checks`.
        """
        last, last_device = self._last
        if (kinds, order) != last or (places[0] | places[1] | places[2]) & self._unaligned:
            arrays = [LIBRARIES[type(x)].view(x, n) for n, x in zip("qkv", given, strict=False)]
            q, k, v = arrays if order is None else map(order.array, arrays)
            q, k, v = checks.of_every_sequence(q, k, v)
            sizes = checks.check_inputs(q, k, v, self._problem, self._target)
            last_device = sizes, q.device
            self._last = ((kinds, order), last_device)
        return last_device
