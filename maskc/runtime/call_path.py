"""The path of a call, from its arrays to its launches.

`run` and `differentiate` go the same way:

1. `_opened` reads what only some kernels need: tables of a score, dropout, pages, scales.
2. `read` gives the addresses of the arrays, and their kinds: shapes, strides and dtypes.
3. `_begin` finds the plan for these kinds. A call with data is bound first: kernels that make tile
   lists get the addresses of the data. The latest call of each kind is known again.
4. `place` gives what lies on the device for the stream of the call.
5. Results are allocated, and the plan is run with the addresses of all arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from maskc.core.abi import Numbers, Pointers
from maskc.core.attention_call import DEFAULTS, WITH_LSE, AttentionCall, CallOptions
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.captured import Held
from maskc.core.dtypes import DType
from maskc.core.errors import NotAddressable
from maskc.core.forks import new_lock
from maskc.core.problem import Direction
from maskc.core.score import Inputs
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import Device, Order
from maskc.dispatch.call import Bound
from maskc.dispatch.options import (
    PlanOptions,
    alpha_less_1,
    joining,
    numbers,
    over_pages,
    plan_options,
)
from maskc.dispatch.recent import Recent
from maskc.runtime.arrays.known import LIBRARIES, Library, expanded, plain, summed, zeros
from maskc.runtime.arrays.read import all_pointers, low_bits, read, with_heads
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, DataCall, Unlisted
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.dropout import DropoutBlock
from maskc.runtime.fp8 import E4M3Factors
from maskc.runtime.launch.ahead import Job
from maskc.runtime.launch.prepared import BlockLaunch, CallBlock, OpenedCall, Runnable
from maskc.runtime.launch.recording import Blank
from maskc.runtime.paged import PageBlock
from maskc.runtime.planner import CallPlanner, Planned, Sound
from maskc.runtime.repeated import FirstPass, RepeatedPass
from maskc.runtime.scored import ScoreReader

_MAX_REPEATS = 16
"""The number of kinds of calls for which the latest call is cached."""
_QKV = ("q", "k", "v")
_BACKWARD = (*_QKV, "out", "dout", "lse")
_USUAL = plan_options(_QKV, True, 0.0, False)
"""A forward pass without options."""


class Runner(Protocol):
    """Something that runs calls in place of kernels, as the reference does in float64."""

    dtype: str
    """The dtype of its calls."""

    def run(self, attn: Any, call: AttentionCall) -> Any:
        """Run the forward pass of a compiled mask, see `Passes.run`."""

    def differentiate(self, attn: Any, call: AttentionCall) -> tuple[Any, ...]:
        """Run the backward pass of a compiled mask, see `Passes.differentiate`."""


class Passes(ABC):
    """Runs the passes of one mask for one target; safe to call from several threads."""

    def __init__(
        self, bundle: Bundle, unit: SourceUnit, in_parts: bool | None, held: Held | None,
        inputs: Inputs | None, runner: Runner | None,
    ) -> None:  # fmt: skip
        """Nothing is built yet.

        Args:
            bundle: what compilation gave.
            unit: its source for the target.
            in_parts, held, inputs, runner: see `CompiledMask`.
        """
        self.bundle, self.unit, self.target = bundle, unit, Target.named(unit.target)
        problem = bundle.problem
        self.target.check(problem)
        self.held = held
        self._in_parts, self._runner = in_parts, runner
        self._on_device = True
        """Whether lists may be made there."""
        self._binder = Binder(bundle)
        self._needs_data, self._default = self._binder.needs_data, self._binder.default
        self._planner = CallPlanner(bundle, self.target, self._binder, in_parts)
        self._plans: Recent[Planned] = Recent()
        self._last: tuple[object, Planned | None] = (None, None)
        self._repeats: dict[tuple[PlanOptions, tuple[Any, ...]], list[Any]] = {}
        """The latest call with data on a device, and its `_last`, for each kind of call: its
        options, and the shapes, strides and dtypes of its arrays. A further one with the same
        arrays of data is known again, whether or not somebody has written into them."""
        self._lock = new_lock()
        self._unaligned = self.target.alignment(problem.dtype) - 1
        self._sound = Sound(problem, self.target, self._unaligned)
        if inputs is None and problem.score is not None:
            inputs = Inputs.of(problem.score)
        self._score, self._factors = None, None
        if inputs is not None:
            self._score = ScoreReader(inputs, bundle, self.target, self._needs_data)
        if problem.dtype is DType.float8_e4m3fn:
            self._factors = E4M3Factors(self.target.name, unit.tile.k)
        self._drops = DropoutBlock() if problem.dropout else None
        self._pages = PageBlock() if problem.page_size else None
        self._is_plain = not (runner or self._score or self._factors or self._drops or self._pages)
        """Whether calls are run by kernels that read nothing behind `struct Attention`."""

    @property
    @abstractmethod
    def _in_no_parts(self) -> Passes:
        """The mask without its parts."""

    @property
    def inputs(self) -> Inputs | None:
        """Arrays that a score formula reads; None without a formula."""
        return None if self._score is None else self._score.inputs

    def forget_plans(self) -> None:
        """Plan calls again, after `tuned` has changed."""
        with self._lock:
            self._plans = Recent()
            self._last = (None, None)
            self._repeats.clear()

    # -------------------------------------------------------------- forward

    def run(self, call: AttentionCall) -> Any:
        """Run the forward pass of a call for q's dtype; torch neither sees nor records it.

        Returns:
            out [B, Hq, Nq, Dv], or (out, lse) with return_lse; lse is fp32 [B, Hq, Nq].
        """
        order = call.order
        if order is not None and not self._is_plain:  # they read lengths from the arrays
            return order.with_out(self.run(call.heads_first()))
        if self._runner is not None:
            return self._runner.run(self, call)
        return self._launched(call)[0]

    def run_first(self, call: AttentionCall) -> tuple[Any, RepeatedPass | None]:
        """Run the forward pass of a call for q's dtype, and prepare calls that repeat it.

        Returns:
            (the results of `run`, the pass in a form that repeats for tensors at other addresses).
            The second is None if every call must be planned: if the host builds lists, if changes
            of data cannot be detected, and in CUDA graphs, which build lists at every replay.
        """
        if self._runner is not None or self._score is not None:
            return self.run(call), None
        results, plan, sent, data, *rest = self._launched(call)
        while isinstance(plan, BlockLaunch):
            plan = plan.plan
        if not isinstance(plan, DataCall) or not isinstance(plan.plan, ListsPlan):
            return results, None
        if plan.watched is None or not (plan.watched.counted and sent.usual.lasting):
            return results, None
        launched = FirstPass(plan, *rest)
        again = launched, plan.plan, plan.watched, data, self.held, self._unaligned
        return results, RepeatedPass(*again)

    def _launched(self, call: AttentionCall) -> tuple[Any, ...]:
        """Run a call; return its results, and how it was launched: the plan, what its stream has,
        the data of the mask, then the rest of `FirstPass`."""
        opened: Sequence[OpenedCall] = ()
        if not self._is_plain:
            call, opened = self._opened(call)
        q, k, v, options, data, into, _, _, _, _, earlier, backward, order = call
        given = [q, k, v]
        asked, scalars = _USUAL, None
        if order is not None or not (options is DEFAULTS or options is WITH_LSE):
            asked, scalars = _asked(options, order, _QKV, given)
        for more in opened:
            asked = asked if more.pages is None else over_pages(asked, more.pages)
        if earlier is not None:
            asked = joining(asked)
        plan, lib, places = self._begin(asked, given, data, backward)
        for more in opened:
            plan = BlockLaunch(plan, more.block)
        q, outputs = given[0], plan.outputs
        sent, stream = plan.place(lib, q)
        out, place = lib.empty(q, outputs[0]) if into is None else (into, into.data_ptr())
        lse: Any = None
        unread = sent.lse
        if options.return_lse or not unread:
            lse, unread = lib.empty(q, outputs[1])
        if earlier is not None:
            out[...], lse[...] = earlier
        if len(places) == len(_QKV) and len(outputs) == 2:
            at_q, at_k, at_v = places
            pointers: Pointers = (at_q, at_k, at_v, place, unread)
        else:
            space = lib.empty(q, outputs[2]) if len(outputs) > 2 else (None, 0)
            pointers = all_pointers(asked.names, places, out=place, lse=unread, delta=space[1])
        plan.run(sent, pointers, scalars, stream)
        results = (out, lse) if options.return_lse else out
        return results, plan, sent, data, lib, stream, pointers, scalars, outputs

    # -------------------------------------------------------------- backward

    def differentiate(self, call: AttentionCall) -> tuple[Any, ...]:
        """Run the backward pass of a call for q's dtype.

        Returns:
            The results of `backward`, then the gradients of tables of the score, in the order of
            the call's `wanted`.

        Raises:
            MaskcError: as `backward`.
        """
        opened: Sequence[OpenedCall] = ()
        order = call.order
        if not self._is_plain:
            if order is not None:
                (*of_tensors,) = self.differentiate(call.heads_first())
                return *map(order.restored, of_tensors[:3]), *of_tensors[3:]
            if self._runner is not None:
                return self._runner.differentiate(self, call)
            if self._adds_by_distance(call):
                return self._in_no_parts.differentiate(call)
        if Direction.backward not in self.target.directions:
            self.target.check(self.bundle.problem, Direction.backward)
        if not self._is_plain:
            call, opened = self._opened(call)
        given = [call.q, call.k, call.v, call.out, call.dout, call.lse]
        asked, scalars = _asked(call.options, order, _BACKWARD, given)
        plan, lib, places = self._begin(asked, given, call.data)
        for more in opened:
            plan = BlockLaunch(plan, more.block)
        q = given[0]
        sent, stream = plan.place(lib, q)
        *tensors, workspace, heads = plan.outputs
        make = partial(zeros, lib) if plan.kernel is None else lib.empty
        made = [] if call.into is None else [(call.into, call.into.data_ptr())]
        if made and plan.kernel is None:
            lib.clear(call.into)
        made += [make(q, x) for x in tensors[len(made) :]]
        (_, at_dq), (_, at_dk), (_, at_dv) = made
        delta, space = lib.empty(q, workspace)
        if len(places) == len(_BACKWARD):
            at_q, at_k, at_v, at_out, at_dout, at_lse = places
            pointers: Pointers = (
                at_q, at_k, at_v, at_out, at_lse, at_dout, at_dq, at_dk, at_dv, space, 0, 0, 0, 0
            )  # fmt: skip
        else:
            written = {"dq": at_dq, "dk": at_dk, "dv": at_dv, "delta": space}
            for name, of in (("dsink", "sink_logits"), ("dslopes", "alibi_slopes")):
                if of in asked.names:
                    made.append(zeros(lib, q, heads))
                    written[name] = made[-1][1]
            pointers = all_pointers(asked.names, places, **written)
        plan.run(sent, pointers, scalars, stream)
        del delta  # what reuses its memory comes later in the stream
        gradients, _ = zip(*made, strict=True)
        _, k, v, *_ = given
        axis = 0 if order is None else order.sequences
        if not k.shape[axis] == v.shape[axis] == q.shape[axis]:  # which sequences share
            dq, dk, dv, *others = gradients
            gradients = dq, summed(dk, k, axis), summed(dv, v, axis), *others
        for more in opened:
            gradients += more.gradients
        return gradients

    def _adds_by_distance(self, call: AttentionCall) -> bool:
        """Whether a mask should run as a whole because tables that are read by distance need
        gradients.

        For such tables, kernels of whole tiles sum diagonals, while parts add pair by pair (window
        128 and 16 scattered ids, T5's buckets, H100: 1.8 and 21.7 ms).
        """
        score = self._score
        return (
            score is not None and score.by_distance
            and self._in_parts is None and bool(self.bundle.parts)
            and self.target.language == "cuda" and bool(score.wanted(call))
        )  # fmt: skip

    # -------------------------------------------------------------- what only some kernels read

    def _opened(self, call: AttentionCall) -> tuple[AttentionCall, list[OpenedCall]]:
        """(the call without what kernels find behind `struct Attention`, that in its order)."""
        blocks: tuple[CallBlock | None, ...] = (
            self._drops, self._pages, self._score, self._factors
        )  # fmt: skip
        opened: list[OpenedCall] = []
        for block in blocks:
            if block is not None:
                one = block.opened(call)
                opened, call = [one, *opened], one.call
        return call, opened

    # -------------------------------------------------------------- plans

    def _begin(
        self, options: PlanOptions, given: list[Any], data: Mapping[str, Any],
        backward: CallOptions | None = None,
    ) -> tuple[Runnable, Library, tuple[int, ...]]:  # fmt: skip
        """Return (plan, q's library, addresses of the arrays).

        Args:
            options: options that the plan depends on.
            given: arrays; those of unknown libraries are replaced by views.
            backward: options of the backward pass that will follow a forward pass.
        """
        lib, kinds, places = read(options.names, given)
        if data or self._needs_data:
            repeat = self._repeats.get((options, kinds))
            if repeat is not None and not low_bits(places) & self._unaligned:
                call, self._last = repeat
                watched = call.watched.again(data, self.held)
                if watched is call.watched:
                    return call, lib, places
                call = watched and call.changed(watched)
                if call is not None:
                    repeat[0] = call
                    return call, lib, places
            bound = self._bind(options, given, data, kinds, places, self._on_device)
        else:
            bound = self._default
        signature = kinds, bound.key, options
        plan: Any  # of the kinds in Planned
        last, plan = self._last
        if signature != last:
            try:
                plan = self._planned(signature, given, bound, backward)
            except (NotAddressable, Unlisted):
                if bound.given is None:
                    raise
                bound = self._bind(options, given, data, kinds, places, False)
                plan = self._planned((kinds, bound.key, options), given, bound, backward)
        if self._unaligned and low_bits(places) & self._unaligned:  # which no signature tells
            self._planner.plan(options, given, bound)
        if bound.given is None:
            return plan, lib, places
        call = plan.called(bound.given)
        if call.watched is not None:
            if len(self._repeats) >= _MAX_REPEATS:
                self._repeats = {}
            self._repeats[options, kinds] = [call, self._last]
        return call, lib, places

    def _planned(
        self, signature: tuple[Any, ...], given: list[Any], bound: Bound,
        backward: CallOptions | None,
    ) -> Planned:  # fmt: skip
        """The plan of a signature that is not the last call's."""
        plan = self._plans.get(signature)
        if plan is None:
            following = None
            if backward is not None:
                order = signature[-1].order
                following = partial(self._missing_backward, backward, order, given, bound)
            plan = self._planner.plan(signature[-1], given, bound, following)
            if bound.lasting:
                with self._lock:
                    self._plans.put(signature, plan)
        self._last = (signature, plan) if bound.lasting else (None, None)
        return plan

    def _missing_backward(
        self, options: CallOptions, order: Order | None, given: list[Any], bound: Bound,
        forward: Planned,
    ) -> Iterable[Job]:  # fmt: skip
        """Return jobs that build what the backward pass of a call will need.

        Args:
            options: of the backward pass.
            order: of the axes of tensors.
            given, bound, forward: arrays, data and plan of the forward pass.
        """
        q, *others = given[:3]
        array = LIBRARIES[type(q)].view(q, "q")
        out, lse = (
            Blank(number, x.shape, x.strides, x.dtype or array.dtype, array.device)
            for number, x in enumerate(forward.outputs[:2])
        )
        arrays = [q, *others, out, out, lse]
        asked, _ = _asked(options, order, _BACKWARD, arrays)
        return self._planner.missing(asked, arrays, bound)

    # -------------------------------------------------------------- data

    def _bind(
        self, options: PlanOptions, given: list[Any], data: Mapping[str, Any],
        kinds: tuple[Any, ...], places: tuple[int, ...], listed: bool,
    ) -> Bound:  # fmt: skip
        """Parameters and data; the lengths must be sound before data are compared with them."""
        if not self._needs_data:
            return self._binder.bind(data, 0, 0)
        data = {name: plain(x) for name, x in data.items()}
        sizes, device = self._sound.sizes(given, kinds, places, options.order)
        if self.bundle.selections:  # which read q and k
            if options.order is not None:
                given = [*map(options.order.heads_first, given[:3]), *given[3:]]
            given = [given[0], *(expanded(x, sizes.batch) for x in given[1:3]), *given[3:]]
        return self._planner.bind(Asked(options, given, data, self.held, sizes, device), listed)

    def bound_on_host(
        self, asked: Callable[[Sizes, Device], Asked], given: list[Any], kinds: tuple[Any, ...],
        places: tuple[int, ...],
    ) -> Bound:  # fmt: skip
        """Return the host's selection for a call, cached or new.

        Args:
            asked: makes the call from its sizes and device.
            given, kinds, places: as returned by `read`.
        """
        sizes, device = self._sound.sizes(given, kinds, places)
        return self._planner.bind(asked(sizes, device), False)

    def arrays_of(self, bound: Bound, sizes: Sizes) -> Mapping[str, Any]:
        """Return all arrays that formulas of the mask read in a call, on the host.

        Args:
            bound: the call's data.
            sizes: its lengths and heads.

        Returns:
            Integer arrays by name.
        """
        return self._binder.completed(bound, sizes.n_q, sizes.n_kv).arrays

    def check_data(self, data: Mapping[str, Any], sizes: Sizes) -> None:
        """Check names, shapes and dtypes of a call's data, where values are not known yet.

        Args:
            data: arrays of NumPy with any values, parameters and tables by name.
            sizes: lengths and heads of the call.

        Raises:
            MaskcError: data are missing or unknown, or have a wrong shape or dtype (MC301 to
                MC304).
        """
        self._binder.check(data, sizes, () if self.inputs is None else self.inputs.names)


def _asked(
    options: CallOptions, order: Order | None, names: tuple[str, ...], given: list[Any]
) -> tuple[PlanOptions, Numbers]:
    """(what the plan of a pass depends on, the numbers of a call).

    Args:
        names: of the arrays that are given; vectors per head follow them.
    """
    scale, _, softcap, slopes, sinks, normalizer, alpha, nan_safe, deterministic = options[:9]
    if slopes is not None or sinks is not None:
        names = with_heads(names, given, slopes, sinks)
    scalars = None if scale is None and softcap is None else numbers(scale, softcap)
    is_softmax = alpha is None and normalizer == "softmax"
    alpha_1 = 0.0 if is_softmax else alpha_less_1(normalizer, alpha)
    exactly = bool(deterministic)
    asked = plan_options(names, softcap is None, alpha_1, bool(nan_safe), exactly, order=order)
    return asked, scalars
