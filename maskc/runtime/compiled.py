"""CompiledMask: a compiled mask as a callable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, Self, cast, overload

from maskc.build import BuildReport
from maskc.core.abi import Numbers, Pointers
from maskc.core.attention_call import (
    DEFAULTS,
    WITH_LSE,
    AttentionCall,
    CallOptions,
    shown_by_overload,
)
from maskc.core.bundle import Bundle
from maskc.core.captured import HELD, Held
from maskc.core.dtypes import DType
from maskc.core.errors import (
    BadOption,
    DropoutNotRun,
    NotAddressable,
    UnknownDType,
    UnknownTarget,
)
from maskc.core.forks import new_lock
from maskc.core.forms import GRID
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, Feature, Features
from maskc.core.recorders import refuse_proxy
from maskc.core.score import Inputs
from maskc.core.sizes import Sizes
from maskc.core.target import SPARE, Target
from maskc.core.tensors import Device, Order, torch_of
from maskc.dispatch.call import Bound
from maskc.dispatch.options import (
    PlanOptions,
    alpha_less_1,
    in_order,
    joining,
    numbers,
    over_pages,
    plan_options,
    sinks_beside_entmax,
)
from maskc.dispatch.recent import Recent
from maskc.runtime.alphas import forward as forward_by_head
from maskc.runtime.alphas import runs_of
from maskc.runtime.arrays.known import (
    LIBRARIES,
    Library,
    dtype_of_call,
    expanded,
    plain,
    summed,
    zeros,
)
from maskc.runtime.arrays.read import all_pointers, low_bits, read, with_heads
from maskc.runtime.autograd import (
    UNFIT,
    is_compiling,
    needs_torch,
    refuse_lost_gradient,
    torch_answers,
)
from maskc.runtime.binding import Binder, mask_layout
from maskc.runtime.device import default_target
from maskc.runtime.device_lists.call import Asked, DataCall, Unlisted
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.dropout import DropoutBlock, drawn
from maskc.runtime.fp8 import E4M3Factors
from maskc.runtime.launch.ahead import Job
from maskc.runtime.launch.listed import ListedRowsPlan
from maskc.runtime.launch.prepared import BlockLaunch, CallBlock, OpenedCall, Runnable
from maskc.runtime.launch.recording import Blank
from maskc.runtime.launch.sequence import PartedPlan
from maskc.runtime.paged import PageBlock
from maskc.runtime.pickles import pickled, unpickled
from maskc.runtime.planner import CallPlanner, Planned, Sound
from maskc.runtime.repeated import FirstPass, RepeatedPass
from maskc.runtime.scored import ScoreReader
from maskc.runtime.selecting import call_selecting
from maskc.runtime.torch_calls import entmax_by_head, through_torch

_NOTHING: Mapping[str, Any] = {}
_MOST_REPEATS = 16
"""The number of kinds of calls for which the latest call is cached."""
_QKV = ("q", "k", "v")
_BACKWARD = (*_QKV, "out", "dout", "lse")
_USUAL = plan_options(_QKV, True, 0.0, False)
"""A forward pass without options."""
_WHOLE = "whole"
"""The key of kernels that run a mask as a whole."""


class Runner(Protocol):
    """Something that runs calls in place of kernels, as the reference does in float64."""

    dtype: str
    """The dtype of its calls."""

    def run(self, attn: CompiledMask, call: AttentionCall) -> Any:
        """Run the forward pass, see `CompiledMask.run`."""

    def differentiate(self, attn: CompiledMask, call: AttentionCall) -> tuple[Any, ...]:
        """Run the backward pass, see `CompiledMask.differentiate`."""


class CompiledMask:
    """Attention restricted to a mask, for one target; safe to call from several threads.

    `Mask.compile` returns one. Kernels are built on first use, or by `warmup`. Later calls only
    launch kernels on the caller's current stream and do not wait. Arrays may be torch, CuPy or
    NumPy arrays, or anything with DLPack or `__cuda_array_interface__`. Results have the library,
    device and dtype of q.

    With alpha-entmax, a = alpha - 1, a row's weights are max(0, 1 + a * (score - lse)) ** (1 / a)
    (Peters, Niculae and Martins, 2019). lse approaches that of softmax as alpha approaches 1, and
    the threshold tau of a * score is a * lse - 1.

    Before you capture a call in a CUDA graph, make one call with the same shapes and data.
    """

    def __init__(
        self, bundle: Bundle, target: str | None = None, report: Callable[[], str] | None = None,
        *, in_parts: bool | None = None, held: Held | None = None, inputs: Inputs | None = None,
        runner: Runner | None = None,
    ) -> None:  # fmt: skip
        """Choose the source; nothing is built yet.

        Args:
            bundle: what compilation gave.
            target: one of its targets; None takes what this machine has.
            report: writes what explain() returns; None takes the bundle's own text.
            in_parts: True runs a mask in parts whenever possible, False never; None: whenever that
                is predicted to be faster.
            held: the arrays that formulas of the mask captured.
            inputs: what a score formula reads; None takes the names of its slots.
            runner: runs calls instead of kernels; None: kernels run.

        Raises:
            UnknownTarget: the bundle has no source for it (MC502).
            MaskcError: the target lacks the dtype (MC505), the head dimension (MC504) or the pass
                (MC503).
        """
        targets = [unit.target for unit in bundle.units]
        if target is None:
            default = default_target(bundle.problem)
            target = default if default in targets else targets[0]
        unit = bundle.unit(target)
        if unit is None:
            raise UnknownTarget(target, ", ".join(targets), at="target")
        self.bundle, self.unit, self.target = bundle, unit, Target.named(target)
        self.held = held
        self._holding: CompiledMask | None = None
        self._on_device = True
        """Whether lists may be made there."""
        self._on_host: CompiledMask | None = None
        self._report, self._in_parts = report, in_parts
        self._with: dict[str, CompiledMask] = {}
        """Kernels that calls with further options need, which copies share."""
        self._of_dtypes: dict[object, CompiledMask | None] | None = None
        """Kernels for other dtypes of a mask without a dtype; None for its own. Copies share
        them."""
        self.target.check(bundle.problem)
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
        self._unaligned = self.target.alignment(bundle.problem.dtype) - 1
        self._sound = Sound(bundle.problem, self.target, self._unaligned)
        if inputs is None and bundle.problem.score is not None:
            inputs = Inputs.of(bundle.problem.score)
        self._score, self._factors = None, None
        if inputs is not None:
            self._score = ScoreReader(inputs, bundle, self.target, self._needs_data)
        if bundle.problem.dtype is DType.float8_e4m3fn:
            self._factors = E4M3Factors(self.target.name, unit.tile.k)
        self._drops = DropoutBlock() if bundle.problem.dropout else None
        self._pages = PageBlock() if bundle.problem.page_size else None
        self._runner = runner
        self._is_plain = not (runner or self._score or self._factors or self._drops or self._pages)
        """Whether calls are run by kernels that read nothing behind `struct Attention`."""

    def holding(self, held: Held | None, inputs: Inputs | None = None) -> CompiledMask:
        """Return the same kernels with other captured arrays; plans and binaries are shared.

        Args:
            held: arrays that formulas of the mask captured; None leaves them.
            inputs: names and arrays of the score formula; None leaves them.

        Returns:
            A compiled mask with the same kernels; itself if nothing changes.
        """
        held = self.held if held is None else held
        inputs = self.inputs if inputs is None else inputs
        if held is self.held and inputs is self.inputs:
            return self
        copy = self._holding
        if copy is None or copy.held is not held or copy.inputs is not inputs:
            score = None if self._score is None or inputs is None else self._score.reading(inputs)
            copy = self._like(held=held, _score=score)
            if inputs is None or not inputs.captured:  # which this would keep alive
                self._holding = copy
        return copy

    @property
    def inputs(self) -> Inputs | None:
        """Arrays that a score formula reads; None without a formula."""
        return None if self._score is None else self._score.inputs

    @property
    def trainable(self) -> tuple[str, ...]:
        """Tables and parameters of the score formula that may require grad."""
        return () if self._score is None else self._score.inputs.trainable

    def _like(self, **changed: Any) -> Self:
        """These kernels for calls of another kind, which remember calls of their own."""
        copy = object.__new__(type(self))
        attributes: dict[str, Any] = {
            "_last": (None, None),
            "_repeats": {},
            "_holding": None,
            "_on_host": None,
        }
        vars(copy).update(vars(self), **attributes, **changed)
        return copy

    @property
    def tuned(self) -> dict[str, str]:
        """Measured choices of programs, see `maskc.tune`: pass and lengths -> program."""
        return self._planner.whole.selector.tuned

    def forget_plans(self) -> None:
        """Plan calls again, after `tuned` has changed."""
        with self._lock:
            self._plans = Recent()
            self._last = (None, None)
            self._repeats.clear()

    @property
    def gathers(self) -> bool:
        """Whether kernels read lists of single keys that the device makes."""
        return self._planner.gatherer is not None

    def of_any_dtype(self) -> Self:
        """Return a mask that uses these kernels for its dtype and compiles others for other
        dtypes."""
        self._of_dtypes = {}
        return self

    def serving(self, q: Any) -> CompiledMask:
        """Return the kernels for a call with q; without a fixed dtype, those for q's dtype."""
        if self._of_dtypes is None:
            return self
        return self.of_dtype(dtype_of_call(q))

    def of_dtype(self, dtype: object) -> CompiledMask:
        """Return the kernels for a dtype. If there are none, return these, which raise an error for
        it."""
        known = self._of_dtypes
        if known is None:
            return self
        if dtype not in known:
            known[dtype] = self._compiled_for(dtype)
        of_kind = known[dtype]
        return self if of_kind is None else self._sharing(of_kind)

    def _compiled_for(self, dtype: object) -> CompiledMask | None:
        recipe: Any = self._report
        try:
            kind = DType.parse(dtype)
        except UnknownDType:
            double = str(dtype).endswith("float64") and self.target.language == "c"
            return recipe.double() if double and hasattr(recipe, "double") else None
        is_same = kind is self.bundle.problem.dtype or kind is DType.float8_e4m3fn
        return None if is_same or not hasattr(recipe, "compile") else recipe.compile(dtype=kind)

    def _sharing(self, other: CompiledMask) -> CompiledMask:
        """Return other kernels that share the cached data of these."""
        other = other.holding(self.held, self.inputs)
        return other if self._on_device else other.choosing_on_host()

    def choosing_on_host(self) -> CompiledMask:
        """Return the same kernels with lists built on the host, so that the host knows the
        selection."""
        if self.target.language == "c" or not self._on_device:
            return self
        if self._on_host is None:
            self._on_host = self._like(_on_device=False, _plans=Recent())
        return self._on_host

    @property
    def listing(self) -> CompiledMask | None:
        """Return the mask that can list the selected keys of a call.

        That is this mask or, if its kernels store no list of single keys, the same mask for `simt`;
        None if it cannot be compiled.
        """
        if self.bundle.chooser is None:
            return self
        spare = self._with.get(SPARE)
        if spare is None:
            recipe: Any = self._report
            if not hasattr(recipe, "dropping"):
                return None
            spare = self._with.setdefault(SPARE, recipe.compile(target=SPARE))
        return spare.holding(self.held, self.inputs)

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

    def settled(self) -> CompiledMask:
        """Return a copy that keeps the current content of captured arrays, even if they change.

        A backward pass needs it to read what its forward pass read.
        """
        return self if self.held is None else self.holding(self.held.now())

    def over(self, tensors: Sequence[Any]) -> CompiledMask:
        """Return the same kernels for a call that reads these tensors instead of captured ones.

        Args:
            tensors: one for each of `Held.watched`.

        Returns:
            A compiled mask with the same kernels.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        held = None if self.held is None else self.held.over(tensors)
        return self if held is self.held else self._like(held=held)

    # -------------------------------------------------------------- calls

    @overload
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        return_lse: Literal[True],
        return_selection: Literal[False] = False,
        indexer_loss: Literal[False] = False,
        **options: Any,
    ) -> tuple[Any, Any]: ...
    @overload
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sink_logits: Any = None,
        normalizer: str = "softmax",
        alpha: Any = None,
        nan_safe: bool = False,
        deterministic: bool = False,
        dropout_p: float = 0.0,
        dropout_seed: Any = None,
        return_selection: bool = False,
        indexer_loss: bool = False,
        **data: Any,
    ) -> Any: ...
    @shown_by_overload
    def __call__(self, q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        """Compute softmax(scale * q k^T, restricted to the mask) v.

        Results of torch tensors are differentiable, as from `maskc.attention`; `launch` does the
        same without an autograd graph. Under torch.autocast q, k and v are cast to the kernel's
        dtype.

        Args:
            q: queries [B, Hq, Nq, D] in the kernel's dtype; any strides with a contiguous last
                dimension, as for k and v.
            k: keys [B, Hkv, Nkv, D]; Hq is a multiple of Hkv.
            v: values [B, Hkv, Nkv, Dv].
            scale: factor of q . k; D^-1/2 when None.
            return_lse: also return the log-sum-exp of every row.
            softcap: scores become softcap * tanh(score / softcap) first; 1e-30 to 1e30.
            alibi_slopes: fp32 [Hq]; -slope * |p - k| is added to the scores, p being the query's
                position (Press, Smith and Lewis, 2022).
            sink_logits: fp32 [Hq]; one more logit per head in the denominator.
            normalizer: "softmax", or "entmax".
            alpha: alpha of entmax, from 1 (softmax) to 2 (sparsemax); 1.5 when None. A 1-D array
                [Hq] has one alpha per head, a 0-D array one for all. The host reads the array and
                waits; heads with equal alpha run together. A torch tensor that requires grad gets
                its gradient.
            nan_safe: on GPUs, guarantee that non-finite rows of v never reach a query that does not
                see them, which takes more time. The CPU always guarantees it.
            deterministic: make gradients of torch tensors bitwise deterministic;
                torch.use_deterministic_algorithms(True) does the same. Forward results are always
                bitwise deterministic. With True they are also batch-invariant: a sequence's results
                do not depend on the other sequences. This makes decoding of small batches slower.
            dropout_p: probability of dropping a weight after the softmax; the other weights are
                multiplied by 1 / (1 - p). lse is not affected. Rounded to a multiple of 2^-16.
            dropout_seed: a 64-bit integer, or an array of one int64 on the device of q. Whether a
                weight is dropped depends only on the seed, the sequence, the head and the pair.
                None takes a seed from the default generator of the tensors' device (torch only).
            return_selection: also return the keys or blocks that run-time selections chose (on cpu
                and simt; blocks of keys on every target).
            indexer_loss: also return the loss that trains the ranking of topk, for torch tensors.
                The target distribution of a query is its attention weights at the chosen keys,
                summed over heads and normalised. The loss is the KL divergence from this target to
                the softmax of the ranking over the same keys (DeepSeek-AI, 2025). Only `index_q`,
                `index_k` and `index_w`, or `scores`, get gradients.
            **data: the mask's data and parameters by name. Data on the host are identified by
                content, and new data need a new layout. Data on the GPU stay there: tile lists are
                built there, and the host does not wait.

        Returns:
            out [B, Hq, Nq, Dv] in q's dtype, or (out, lse) with lse fp32 [B, Hq, Nq], natural log.
            A query without a key has out 0 and lse -inf (or its sink logit). return_selection adds
            the selection: int32 [B, heads that choose separately, query blocks, keys or blocks of
            keys], ascending, padded with -1; a tuple if there are several selections. indexer_loss
            adds the loss, fp32 [B, Nq].

        Raises:
            NothingSelected, SelectionNotListed, NoIndexerLoss: `return_selection` or `indexer_loss`
                is not available for this mask (MC460 to MC462).
            TargetNotBuilt: a gradient is required and the target has no backward kernels (MC503).
            MaskcError: a mistake in data (MC3xx), tensors or options (MC4xx), or a build (MC5xx).
        """
        options, data = CallOptions.read(keywords) if keywords else (DEFAULTS, keywords)
        return self.attend(AttentionCall(q, k, v, options, data))

    def attend(self, call: AttentionCall) -> Any:
        """Run a call whose keywords have been read; see `__call__`.

        Returns:
            The results of `__call__`.
        """
        q, k, v, options, data = call[:5]
        refuse_proxy(q)
        if self._of_dtypes is not None and not is_compiling(q):
            attn = self.serving(q)
            if attn is not self:
                return attn.attend(call)
        if self._score is not None and self._score.tensors:
            data = {**self._score.present_tensors(), **data}
            call = call.with_data(data)
        if self._factors is not None:
            self._factors.admit(call)
            return self.run(call)
        drops = False
        if not (options is DEFAULTS or options is WITH_LSE or options.is_one_pass):
            several = options.return_selection or options.indexer_loss or options.alpha_by_head
            if options.dropout_p and several:
                wanted = "left out with return_selection, indexer_loss or an alpha for each head"
                raise BadOption("dropout_p", wanted, options.dropout_p, at="dropout_p")
            if options.return_selection or options.indexer_loss:
                return call_selecting(self, call)
            if options.alpha_by_head:
                return call_by_head(self, call)
            call, drops = drawn(call), True
            options, data = call.options, call.data
        if not needs_torch(q, k, v, options.alibi_slopes, options.sink_logits, data):
            try:
                return (self.dropping if drops else self).run(call)
            except UNFIT:
                if not torch_answers(q):
                    raise
        find = _dropping if drops else None
        dtype: str | None = self._planner.whole.dtype
        if self._of_dtypes is not None:  # torch.compile traces: q will be of its dtype
            find, dtype = _of_dtype_dropping if drops else _of_dtype, None
        return through_torch(find, self, call, dtype)

    @property
    def dropping(self) -> CompiledMask:
        """Return the same mask with dropout kernels, compiled on first use.

        Raises:
            DropoutNotRun: the mask cannot be compiled again (MC432).
            MaskcError: as `Mask.compile`.
        """
        if self._runner is not None:  # which drops weights, too
            return self
        dropping = self._with.get("dropout")
        if dropping is None:
            recipe: Any = self._report
            if not hasattr(recipe, "dropping"):
                what = "a generated module holds the kernels that it was written with"
                raise DropoutNotRun(what, "compile the mask with mask.compile", at="dropout_p")
            dropping = self._with.setdefault("dropout", recipe.dropping())
        return dropping.holding(self.held, self.inputs)

    def launch(
        self, q: Any, k: Any, v: Any, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        data: Mapping[str, Any] = _NOTHING, into: Any = None,
    ) -> Any:  # fmt: skip
        """Run the forward pass alone; torch neither sees nor records it.

        Arguments, results and errors are those of a call, with positional options.

        Args:
            data: the mask's data and parameters by name.
            into: a torch tensor to write out to, with the strides that out would have.

        Returns:
            out [B, Hq, Nq, Dv], or (out, lse) with return_lse.
        """
        options = CallOptions(
            scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha, nan_safe
        )
        return self.serving(q).run(AttentionCall(q, k, v, options, data, into))

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
        if not (options is DEFAULTS or options is WITH_LSE):
            asked, scalars = _planned(options, _QKV, given)
        for more in opened:
            asked = asked if more.pages is None else over_pages(asked, more.pages)
        if earlier is not None:
            asked = joining(asked)
        if order is not None:
            asked = in_order(asked, order)
        plan, lib, places = self._begin(asked, given, data, backward)
        for more in opened:
            plan = BlockLaunch(plan, more.block)
        q, outputs = given[0], plan.outputs
        sent, stream = plan.place(lib, q)
        out, place = lib.empty(q, outputs[0]) if into is None else (into, into.data_ptr())
        unread, lse = sent.lse, cast(Any, None)
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

    def backward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *,
        scale: float | None = None, softcap: float | None = None, alibi_slopes: Any = None,
        sink_logits: Any = None, normalizer: str = "softmax", alpha: float | None = None,
        deterministic: bool = False, nan_safe: bool = False, dropout_p: float = 0.0,
        dropout_seed: Any = None, **data: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Compute the gradients of a call from its inputs and results.

        Options and data must be those of the call. The results have no autograd graph.

        Args:
            q: queries [B, Hq, Nq, D].
            k: keys [B, Hkv, Nkv, D].
            v: values [B, Hkv, Nkv, Dv].
            out: the result of the call [B, Hq, Nq, Dv], in any strides with contiguous rows.
            lse: the lse of the call, fp32 [B, Hq, Nq].
            dout: gradient of out, of the same shape and dtype.
            scale: as in the call.
            softcap: as in the call.
            alibi_slopes: as in the call.
            sink_logits: as in the call.
            normalizer: as in the call.
            alpha: as in the call.
            deterministic: make the gradients bitwise deterministic on GPUs of one model. On CPUs
                they always are.
            nan_safe: as in the call.
            dropout_p: as in the call.
            dropout_seed: as in the call; required if dropout_p is above 0.
            **data: the mask's data and parameters by name.

        Returns:
            (dq, dk, dv) in the shapes of q, k and v and the dtype of q, then dsink_logits and
            dalibi_slopes (fp32 [Hq]) if the call passed them.

        Raises:
            TargetNotBuilt: this target has no backward kernels (MC503).
            TooFewMultiprocessors: a deterministic pass could deadlock on this stream (MC410).
            MaskcError: as in the call.
        """
        options = CallOptions(
            scale, False, softcap, alibi_slopes, sink_logits, normalizer, alpha, nan_safe,
            deterministic, dropout_p, dropout_seed,
        )  # fmt: skip
        call = AttentionCall(q, k, v, options, data, None, out, lse, dout)
        attn = self.serving(q)
        if dropout_p:
            call, attn = drawn(call), attn.dropping
        return attn.differentiate(call)

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
        asked, scalars = _planned(call.options, _BACKWARD, given)
        if order is not None:
            asked = in_order(asked, order)
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

    @property
    def _in_no_parts(self) -> CompiledMask:
        """Return the mask without its parts."""
        whole = self._with.get(_WHOLE)
        if whole is None:
            made = CompiledMask(self.bundle, self.target.name, self._report, in_parts=False,
                                held=self.held, inputs=self.inputs)  # fmt: skip
            whole = self._with.setdefault(_WHOLE, made)
        return whole.holding(self.held, self.inputs)

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
            if len(self._repeats) >= _MOST_REPEATS:
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
        asked, _ = _planned(options, _BACKWARD, arrays)
        asked = asked if order is None else in_order(asked, order)
        return self._planner.missing(asked, arrays, bound)

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

    # -------------------------------------------------------------- kernels

    def warmup(self, features: Iterable[Feature | str] = ()) -> None:
        """Build and load all kernels now instead of on first use, so that later calls compile
        nothing.

        Args:
            features: options that the calls will use together: `softcap`, `alibi`, `sinks`,
                `entmax`, `nan_safe`, `dropout`. Each combination has its own kernels; warm up each.

        Raises:
            BadOption: a feature is unknown (MC407).
            NoDevice: the machine lacks the GPU (MC509).
            ExtraMissing: CuPy or NVRTC is not installed (MC507).
            BuildFailed: a compiler refused the source (MC508).
        """
        names = [features] if isinstance(features, str) else list(features)
        if self._factors is not None:
            self._factors.admit_features(names)
        if "dropout" in names:
            self.dropping.warmup(name for name in names if name != "dropout")
        else:
            self._planner.build_all(names)

    @property
    def reports(self) -> Mapping[Features, BuildReport]:
        """Build reports by features: toolchain, flags, registers, spills.

        If several sources were built for the same features, it is the report of the forward pass.
        """
        return self._planner.whole.kernels.reports

    @property
    def all_reports(self) -> Mapping[tuple[str, str, Features], BuildReport]:
        """Build reports by source, mode and features.

        A source is named after its target, with `_small` for smaller tiles, `_choose` for finding
        the chosen keys, and `_backward` for a separate backward source. If a mask runs in parts,
        the part's name comes first.
        """
        return self._planner.all_reports

    # -------------------------------------------------------------- copies

    def __copy__(self) -> CompiledMask:
        return self

    def __deepcopy__(self, memo: object) -> CompiledMask:
        return self  # nothing of it ever changes, and kernels are built once

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the bundle, the target and the mask if it is known; another process builds kernels
        again.

        Another version of the package compiles the mask again, because kernels and runtime may not
        fit. If the pickle has no mask, it raises StalePickle.
        """
        recipe = self._report if hasattr(self._report, "compile") else None
        made = self.target.name, recipe, self._in_parts, self.held, self._of_dtypes is not None
        return _restored, (pickled(self.bundle), *made, self.inputs, self._runner)

    # -------------------------------------------------------------- questions

    @property
    def identity(self) -> str:
        """A text that is equal for two compiled masks if they compute the same result with the same
        kernels.

        It does not depend on the process.
        """
        held = "" if self.held is None else self.held.identity
        dtype = "" if self._of_dtypes is None else "any dtype "
        dtype += "" if self._runner is None else f"{self._runner.dtype} "
        score = "" if self._score is None else f" {self._score.identity}"
        return f"{self.target.name} {self._in_parts} {self.bundle.digest} {dtype}{held}{score}"

    @property
    def last_sources(self) -> tuple[str, ...]:
        """Names of the kernels that the latest call ran, in order, each with its mode.

        They show which of several sources ran, and in how many parts. The tuple is empty if the
        host selected keys.
        """
        plan = self._last[1]
        return () if plan is None else plan.sources

    @property
    def last_layouts(self) -> tuple[str, ...]:
        """Origins of the tiles of each of `last_sources`.

        `closed form`: kernels compute a range of tiles. `host lists`: the host built the lists.
        `device lists`: a kernel built them, from data on the GPU.
        """
        plan = self._last[1]
        return () if plan is None else plan.layouts

    @property
    def ran_in_parts(self) -> bool:
        """Whether the latest call ran the mask in parts, see `explain`."""
        plan = self._last[1]
        if isinstance(plan, ListedRowsPlan):
            return True
        launches = isinstance(plan, PartedPlan) and self.bundle.chooser is None
        boxes = any(GRID in source for source in self.last_sources)
        return launches and bool(self.bundle.parts) and not boxes

    def __repr__(self) -> str:
        """The mask where it is known, and the kernel."""
        problem, tile = self.bundle.problem, self.unit.tile
        dtype = problem.dtype.value if self._runner is None else self._runner.dtype
        dtype = dtype if self._of_dtypes is None else "any dtype"
        dims = f"head_dim {problem.head_dim}"
        if problem.head_dim_v != problem.head_dim:
            dims += f"/{problem.head_dim_v}"
        mask = getattr(self._report, "mask", None)
        return (
            f"CompiledMask({self.bundle.name if mask is None else repr(mask)}, "
            f"{self.target.name}, {dtype}, {dims}, tiles of {tile.q} x {tile.k})"
        )

    def _repr_html_(self) -> str:
        from maskc.core.svg import page

        mask = getattr(self._report, "mask", None)
        drawn = "" if mask is None else mask._repr_html_()
        return page(repr(self), [], []) + drawn

    def explain(self) -> str:
        """Return a report: the plan with its reasons, its cost, and when dense attention would be
        faster.

        Returns:
            The report as text.
        """
        return self._report() if self._report else self.bundle.report

    def layout(
        self, n_q: int, n_kv: int | None = None, *, block: tuple[int, int] | None = None,
        head: int | None = None, batch: int | None = None, **data: Any,
    ) -> BlockLayout:  # fmt: skip
        """Return the live tiles of the whole mask at these lengths.

        A call may run the mask in parts or in smaller tiles, see `explain`. For a selection of
        single keys, all candidates count as live.

        Args:
            n_q: queries.
            n_kv: keys; n_q when None.
            block: (queries, keys) per tile; the kernel's own tile when None.
            head: which head; needed where heads differ.
            batch: which sequence; needed where data differ.
            **data: the mask's data and parameters by name.

        Returns:
            The tiles of one head of one sequence, as `Mask.layout` gives them.

        Raises:
            OneOfSeveral: heads or sequences differ, and none is selected (MC310).
            BadLength: a length is not an integer, or out of range (MC306).
            BadBlock: `block` is not two integers in range (MC307).
            NoSuchHead: `head` does not exist (MC113).
            MaskcError: a mistake in data (MC301 to MC305).
        """
        if self.held is not None:
            n_heads = self.bundle.problem.n_heads
            data[HELD] = self.held.of_question(n_heads, n_q, n_q if n_kv is None else n_kv)
        return mask_layout(self.bundle, self._binder, self.unit.tile, n_q, n_kv, block, head, batch,
                           data)  # fmt: skip


def _restored(
    kept: tuple[str, bytes], target: str, recipe: Any, in_parts: bool | None, held: Held | None,
    any_dtype: bool = False, inputs: Inputs | None = None, runner: Runner | None = None,
) -> CompiledMask:  # fmt: skip
    """Restore a pickled mask.

    Raises:
        StalePickle: see CompiledMask.__reduce__.
    """
    bundle = unpickled(kept, "a compiled mask") if recipe is None else unpickled(kept)
    if bundle is None:
        bundle = recipe.compile().bundle
    made = CompiledMask(bundle, target, recipe, in_parts=in_parts, held=held, inputs=inputs,
                        runner=runner)  # fmt: skip
    return made.of_any_dtype() if any_dtype else made


def _planned(
    options: CallOptions, names: tuple[str, ...], given: list[Any]
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
    return plan_options(names, softcap is None, alpha_1, bool(nan_safe), exactly), scalars


def call_by_head(attn: CompiledMask, call: AttentionCall) -> Any:
    """A call whose alpha is an array."""
    if call.order is not None:
        return call.order.with_out(call_by_head(attn, call.heads_first()))
    q, k, _, options, data = call[:5]
    if options.sink_logits is not None:
        raise sinks_beside_entmax()
    if torch_of(q) is not None:
        results = entmax_by_head(attn, call)
    else:
        refuse_lost_gradient(q, "alpha", options.alpha)
        runs = runs_of(attn.bundle, options.alpha, q.shape[1], k.shape[1], options.normalizer, data)
        results = forward_by_head(attn, runs, call)
    return results if options.return_lse else results[0]


def _dropping(attn: CompiledMask, *_kernel: Any) -> CompiledMask:
    """The kernel of a call with dropout."""
    return attn.dropping


def _of_dtype(attn: CompiledMask, *kernel: Any) -> CompiledMask:
    """The kernel of a call to a mask without a dtype; the dtype is the last argument but one."""
    return attn.of_dtype(kernel[-2])


def _of_dtype_dropping(attn: CompiledMask, *kernel: Any) -> CompiledMask:
    """Likewise, with dropout."""
    return attn.of_dtype(kernel[-2]).dropping
