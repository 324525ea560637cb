"""From what a call gives to the plan that it shares with calls like it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.errors import NotAddressable
from maskc.core.problem import Direction, Feature, Features
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import Array, singles
from maskc.runtime import ahead, checks
from maskc.runtime.ahead import Ahead, processors
from maskc.runtime.arrays import LIBRARIES
from maskc.runtime.binding import Binder, Bound
from maskc.runtime.chooser import Chooser
from maskc.runtime.kernels import Form, Kernels
from maskc.runtime.launch_cuda import current_device
from maskc.runtime.lister import Lister
from maskc.runtime.making import Arrays, Maker
from maskc.runtime.parts import chosen_plan, hold, parted_plan, pays, whole_plan, within
from maskc.runtime.plans import Plan
from maskc.runtime.prepare import (
    Pass,
    Place,
    check_call,
    launches,
    make_plan,
    outputs_of,
    strides_of,
)
from maskc.runtime.selected import Planned
from maskc.runtime.signature import features_asked
from maskc.runtime.tables import NOTHING

_REMEMBERED = 1024
"""Lengths and data of which it is known whether parts pay."""


def _call(job: Callable[[], object]) -> None:
    job()


class Planner:
    """Plans the calls of one mask on one target; safe to use from several threads."""

    def __init__(
        self, bundle: Bundle, target: Target, binder: Binder, in_parts: bool | None
    ) -> None:
        """`in_parts`: as CompiledMask has it."""
        self.bundle, self.target = bundle, target
        self.whole = Maker(bundle, target)
        self.parts = tuple(
            Maker(part.bundle, target)
            for part in (bundle.parts if in_parts is not False else ())
            if part.bundle.unit(target.name)
        )
        chooser = bundle.chooser
        self.chooser = Maker(chooser, target) if chooser is not None else None
        made_by = Chooser if bundle.selections else Lister
        self.lister = made_by(self.whole, binder, target.name)
        """Makes tile lists on the device."""
        self._binder, self._in_parts = binder, in_parts
        self._paying: dict[object, bool] = {}
        self._ahead: set[tuple[Direction, Features]] = set()
        """Passes whose other sources are built, or being built."""
        self._lock = threading.Lock()

    def plan(self, asked: tuple[Any, ...], given: list[Any], bound: Bound) -> Planned:
        """Check everything, build what is missing, prepare.

        Args:
            asked: the names of what is given, then the options that a plan depends on.
            given: arrays of known libraries.
            bound: the mask's parameters and data.

        Raises:
            MaskcError: MC4xx for tensors, MC5xx for builds.
            Unlisted: the host is to make lists that the device was to make.
        """
        names, no_softcap, alpha, nan_safe, *deterministic = asked
        views = {
            name: LIBRARIES[type(x)].view(x, name) for name, x in zip(names, given, strict=True)
        }
        direction = Direction.backward if "lse" in views else Direction.forward
        features = features_asked(names, not no_softcap, alpha > 0, nan_safe)
        unit = self.whole.kernels.unit(direction, features)
        sizes = check_call(views, self.bundle, unit)
        ordered = LIBRARIES[type(given[0])].ordered
        wanted = Pass(direction, features, any(deterministic), views["q"].device, alpha)
        rest = (wanted, views, sizes, bound, ordered)
        others = self._build_ahead(wanted)
        try:
            return self._planned(unit, *rest)
        except NotAddressable:
            spare = self.whole.kernels.spare_unit()
            if direction is Direction.backward or spare is None or bound.given is not None:
                raise
            return self._planned(spare, *rest)
        finally:
            if others is not None:
                others.wait_as_long_again()

    def build_all(self, features: Iterable[Feature | str]) -> None:
        """See CompiledMask.warmup."""
        wanted = checks.features_named(features)
        device = current_device() if self.target.language == "cuda" else 0
        jobs = [partial(kernels.get, *form, device) for kernels, form in self._forms(wanted)]
        alone = len(jobs) == 1 or self.target.language == "c"  # what it says, it says to the caller
        with ThreadPoolExecutor(1 if alone else min(len(jobs), 2 * processors())) as pool:
            for _ in map(_call, jobs) if alone else pool.map(_call, jobs):
                pass

    def _forms(
        self, features: Features, directions: Sequence[Direction] = tuple(Direction)
    ) -> Iterator[tuple[Kernels, Form]]:
        """What lengths and data choose from for calls with these features, and whose it is.

        Raises:
            TargetNotBuilt: no forward pass has them.
        """
        whole = self.whole.kernels
        yield from ((whole, form) for form in whole.forms(features, directions))
        own = whole.unit(Direction.forward, features).target == self.target.name
        for number, maker in enumerate(
            self.parts if own and Feature.entmax not in features else ()
        ):
            kernels, ours = maker.kernels, features - {Feature.sinks} if number else features
            yield from ((kernels, form) for form in kernels.forms(ours, directions))
        if self.chooser is not None:
            kernels = self.chooser.kernels
            forms = kernels.forms(frozenset(), (Direction.forward,))
            yield from ((kernels, form) for form in forms)

    def _build_ahead(self, wanted: Pass) -> Ahead | None:
        """Start to build what other calls of such a pass may need, at the first one."""
        if self.target.language != "cuda":
            return None
        with self._lock:
            key = (wanted.direction, wanted.features)
            if key in self._ahead:
                return None
            self._ahead.add(key)
        device = wanted.device[1]
        forms = [
            (kernels, form)
            for kernels, form in self._forms(wanted.features, (wanted.direction,))
            if not kernels.has(*form, device)
        ]
        return ahead.start([partial(kernels.build, *form, device) for kernels, form in forms])

    def _planned(
        self, unit: SourceUnit, wanted: Pass, views: Mapping[str, Array], sizes: Sizes,
        bound: Bound, ordered: bool,
    ) -> Planned:  # fmt: skip
        """The plan of a checked call: in parts where these take less time, else whole."""
        bundle, direction = self.bundle, wanted.direction
        outputs = outputs_of(bundle, direction, views, sizes, ordered)
        place = Place(sizes, strides_of(views, outputs))
        if not launches(sizes, direction):
            return make_plan(bundle, unit, wanted, None, place, bound.params, NOTHING, outputs)
        if bound.given is not None:
            lists = self.whole.gatherer or self.lister
            return lists.plan(unit, wanted, bound, place, outputs)
        arrays = cache(partial(self._binder.arrays, bound, sizes.n_q, sizes.n_kv))
        own = unit.target == self.target.name and not wanted.alpha_minus_1  # parts join by softmax
        if own and self._divides(unit, wanted.features, sizes, bound, arrays):
            spared = outputs if direction is Direction.backward else (outputs[0], singles(0))

            def make(number: int, features: Features, part: Place) -> Plan:
                maker, own = self.parts[number], within(bound, bundle.parts[number], sizes.n_kv)
                source = maker.kernels.unit(direction, features)
                asked = replace(wanted, features=features)
                source = maker.chosen(source, asked, part.sizes, own, arrays, part.joins)
                return maker.plan(source, asked, own, arrays, part, spared)

            # A stride of a class that no tensor map can have: such a call runs whole.
            with suppress(NotAddressable):
                return parted_plan(
                    bundle.parts, direction, wanted.features, place,
                    bundle.problem.dtype.itemsize, outputs, make,
                )  # fmt: skip
        if self.chooser is not None:
            makers = self.chooser, self.whole
            return chosen_plan(*makers, unit, wanted, bound, arrays, place, outputs)
        return whole_plan(self.whole, unit, wanted, bound, arrays, place, outputs)

    def _divides(
        self, unit: SourceUnit, features: Features, sizes: Sizes, bound: Bound, arrays: Arrays
    ) -> bool:
        """Whether a pass of `unit` runs in parts at these lengths."""
        if not self.parts or not hold(self.bundle, sizes.n_q, sizes.n_kv, features):
            return False
        if self._in_parts is not None:
            return self._in_parts
        key = (unit.key, unit.directions, sizes.n_q, sizes.n_kv, bound.key)
        paying = self._paying.get(key)
        if paying is None:
            paying = pays(self.bundle, unit, sizes, bound.params, arrays)
            if len(self._paying) >= _REMEMBERED:
                self._paying.clear()
            self._paying[key] = paying
        return paying
