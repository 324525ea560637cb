"""The callable that a compiled mask is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self, overload

from maskc.build import BuildReport
from maskc.core.abi import Pointers
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
from maskc.core.forms import GRID
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, Feature, Features
from maskc.core.sizes import Sizes
from maskc.core.target import SPARE, Target
from maskc.core.tensors import Device, torch_of
from maskc.dispatch.call import Bound
from maskc.dispatch.options import (
    CallOptions,
    alpha_less_1,
    call_options,
    numbers,
    sinks_beside_entmax,
)
from maskc.dispatch.recent import Recent
from maskc.runtime.alphas import forward as forward_by_head
from maskc.runtime.alphas import is_by_head, runs_of
from maskc.runtime.arrays.known import Library, dtype_of_call, expanded, plain, summed, zeros
from maskc.runtime.arrays.read import all_pointers, low_bits, read, with_heads
from maskc.runtime.autograd import (
    UNFIT,
    entmax_by_head,
    is_compiling,
    needs_torch,
    refuse_lost_gradient,
    through_torch,
    torch_answers,
)
from maskc.runtime.binding import Binder, mask_layout
from maskc.runtime.device import default_target
from maskc.runtime.device_lists.call import Asked, Unlisted
from maskc.runtime.launch.listed import ListedRowsPlan
from maskc.runtime.launch.prepared import Runnable
from maskc.runtime.launch.sequence import PartedPlan
from maskc.runtime.pickles import pickled, unpickled
from maskc.runtime.planner import CallPlanner, Planned, Sound
from maskc.runtime.selecting import call_selecting

_NOTHING: Mapping[str, Any] = {}
_MOST_REPEATS = 16
"""Kinds of calls whose latest one is remembered."""
_NO_REPEAT = None, None
_QKV = ("q", "k", "v")
_BACKWARD = (*_QKV, "out", "dout", "lse")


class CompiledMask:
    """Attention restricted to a mask, for one target; safe to call from several threads.

    `Mask.compile` makes one. Kernels are built on first use, or by `warmup`; later calls only
    launch, on the caller's current stream, and nothing waits. Arrays may be torch, CuPy or NumPy
    arrays, or anything with DLPack or `__cuda_array_interface__`; results follow q in library,
    device and dtype.

    With alpha-entmax, a = alpha - 1, a row's weights are max(0, 1 + a * (score - lse)) ** (1 / a)
    (Peters, Niculae and Martins, 2019): its lse is softmax's as alpha falls to 1, and the
    threshold tau of a * score is a * lse - 1.

    To capture a call in a CUDA graph, make a call with the same shapes and data before.
    """

    def __init__(
        self, bundle: Bundle, target: str | None = None, report: Callable[[], str] | None = None,
        *, in_parts: bool | None = None, held: Held | None = None,
    ) -> None:  # fmt: skip
        """Choose the source; nothing is built yet.

        Args:
            bundle: what compilation gave.
            target: one of its targets; None takes what this machine has.
            report: writes what explain() returns; None takes the bundle's own text.
            in_parts: whether a mask that has parts runs in them wherever they hold, or never;
                None: where they take less time.
            held: the arrays that formulas of the mask captured.

        Raises:
            UnknownTarget: the bundle has no source for it (MC502).
            MaskcError: the target lacks the dtype (MC505), the head dimension (MC504) or the pass
                (MC503).
        """
        targets = [unit.target for unit in bundle.units]
        if target is None:
            usual = default_target(bundle.problem)
            target = usual if usual in targets else targets[0]
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
        self._repeats: dict[CallOptions, tuple[object, Any]] = {}
        """The latest call with data on a device, for each kind of call, and what its q, k, v and
        others are: a further one with the same arrays of data is known again, whether or not
        somebody has written into them."""
        self._lock = threading.Lock()
        self._unaligned = self.target.alignment(bundle.problem.dtype) - 1
        self._sound = Sound(bundle.problem, self.target, self._unaligned)

    def holding(self, held: Held | None) -> CompiledMask:
        """These kernels with other captured arrays; plans and binaries are shared."""
        if held is None:
            return self
        if self._holding is None or self._holding.held is not held:
            self._holding = self._like(held=held)
        return self._holding

    def _like(self, **changed: Any) -> Self:
        """These kernels for calls of another kind, which remember calls of their own."""
        found = object.__new__(type(self))
        anew: dict[str, Any] = {
            "_last": (None, None),
            "_repeats": {},
            "_holding": None,
            "_on_host": None,
        }
        vars(found).update(vars(self), **anew, **changed)
        return found

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
        """These kernels, beside which calls in other dtypes get kernels of their own."""
        self._of_dtypes = {}
        return self

    def serving(self, q: Any) -> CompiledMask:
        """The kernels for a call with q: these, or of a mask without a dtype those for q's."""
        if self._of_dtypes is None:
            return self
        return self.of_dtype(dtype_of_call(q))

    def of_dtype(self, dtype: object) -> CompiledMask:
        """The kernels for a dtype; these where there are no others, which then say so."""
        known = self._of_dtypes
        if known is None:
            return self
        if dtype not in known:
            known[dtype] = self._compiled_for(dtype)
        found = known[dtype]
        return self if found is None else self._sharing(found)

    def _compiled_for(self, dtype: object) -> CompiledMask | None:
        recipe: Any = self._report
        try:
            kind = DType.parse(dtype)
        except UnknownDType:
            double = str(dtype).endswith("float64") and self.target.language == "c"
            return recipe.double() if double and hasattr(recipe, "double") else None
        own = kind is self.bundle.problem.dtype or kind is DType.float8_e4m3fn
        return None if own or not hasattr(recipe, "compile") else recipe.compile(dtype=kind)

    def _sharing(self, other: CompiledMask) -> CompiledMask:
        """Other kernels, with what these read beside their calls."""
        other = other.holding(self.held)
        return other if self._on_device else other.choosing_on_host()

    def choosing_on_host(self) -> CompiledMask:
        """These kernels, whose lists the host makes, so that it knows what was chosen."""
        if self.target.language == "c" or not self._on_device:
            return self
        if self._on_host is None:
            self._on_host = self._like(_on_device=False, _plans=Recent())
        return self._on_host

    @property
    def listing(self) -> CompiledMask | None:
        """What knows which keys a call chose: itself, or where kernels that choose single keys keep
        no list of them, the same mask for `simt`; None where nothing says how to compile it."""
        if self.bundle.chooser is None:
            return self
        found = self._with.get(SPARE)
        if found is None:
            recipe: Any = self._report
            if not hasattr(recipe, "dropping"):
                return None
            found = self._with.setdefault(SPARE, recipe.compile(target=SPARE))
        return found.holding(self.held)

    def bound_on_host(
        self, asked: Callable[[Sizes, Device], Asked], given: list[Any], kinds: tuple[Any, ...],
        places: tuple[int, ...],
    ) -> Bound:  # fmt: skip
        """What the host chooses for a call, or remembers to have chosen.

        Args:
            asked: makes the call, when its sizes and its device are known.
            given, kinds, places: as `read` gives them.
        """
        sizes, device = self._sound.sizes(given, kinds, places)
        return self._planner.bind(asked(sizes, device), False)

    def arrays_of(self, bound: Bound, sizes: Sizes) -> Mapping[str, Any]:
        """All arrays that formulas of the mask read in a call, on the host.

        Args:
            bound: the call's data.
            sizes: its lengths and heads.
        """
        return self._binder.completed(bound, sizes.n_q, sizes.n_kv).arrays

    def settled(self) -> CompiledMask:
        """A copy that keeps the captured arrays of this moment, whoever writes into them later.

        A backward pass needs it to read what its forward pass read.
        """
        return self if self.held is None else self.holding(self.held.now())

    def over(self, tensors: Sequence[Any]) -> CompiledMask:
        """These kernels for one call that reads these tensors in place of captured ones.

        Args:
            tensors: one for each of `Held.watched`.

        Raises:
            DataRange: a value beyond 32 bits.
        """
        held = None if self.held is None else self.held.over(tensors)
        return self if held is self.held else self._like(held=held)

    # -------------------------------------------------------------- calls

    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, scale: float | None = None,
        return_lse: Literal[False] = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        deterministic: bool = False, dropout_p: float = 0.0, dropout_seed: Any = None,
        return_selection: Literal[False] = False, indexer_loss: Literal[False] = False,
        **data: Any,
    ) -> Any: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, scale: float | None = None, return_lse: Literal[True],
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        deterministic: bool = False, dropout_p: float = 0.0, dropout_seed: Any = None,
        return_selection: Literal[False] = False, indexer_loss: Literal[False] = False,
        **data: Any,
    ) -> tuple[Any, Any]: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        deterministic: bool = False, dropout_p: float = 0.0, dropout_seed: Any = None,
        return_selection: bool = False, indexer_loss: bool = False, **data: Any,
    ) -> Any: ...  # fmt: skip
    def __call__(
        self, q: Any, k: Any, v: Any, *, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        deterministic: bool = False, dropout_p: float = 0.0, dropout_seed: Any = None,
        return_selection: bool = False, indexer_loss: bool = False, **data: Any,
    ) -> Any:  # fmt: skip
        """softmax(scale * q k^T, restricted to the mask) v.

        Torch tensors that require grad get results that do, as from `maskc.attention`; `launch` is
        the same without a graph. Under torch.autocast q, k and v are cast to the kernel's dtype.

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
            normalizer: "softmax", or "entmax" (backward on CPUs and sm_90a).
            alpha: of entmax, from 1 (softmax) to 2 (sparsemax); 1.5 when None. An array [Hq], or
                [], gives each head its own: heads with one alpha run together, and the host reads
                it, which waits. A torch tensor that requires grad gets its gradient.
            nan_safe: on GPUs, non-finite rows of v never reach a query that does not see them,
                which costs time; the CPU is always exact.
            deterministic: gradients of torch tensors have the same bits on every run; also whenever
                torch.use_deterministic_algorithms(True) is in force.
            dropout_p: weights are dropped with this probability, after the normaliser, and the
                others multiplied by 1 / (1 - p); lse does not see it. The rate is rounded to a
                multiple of 2^-16.
            dropout_seed: decides which ones, with the place of a pair and nothing else: an integer
                of 64 bits, or an array of one int64 on the device of q. Torch tensors take one from
                their device's default generator when None.
            return_selection: also return what run-time selections chose, where the host chooses
                (cpu, simt, and blocks of keys).
            indexer_loss: also return what trains the ranking of torch tensors that topk ranks by:
                for each query the KL divergence of their softmax over the chosen keys from the
                attention's weights there, added up over heads and normalised (DeepSeek-AI, 2025).
                It has gradients for `index_q`, `index_k` and `index_w`, or `scores`, alone.
            **data: the mask's data and parameters by name. Data on the host are known by content:
                new data make a new layout. Data on the card stay there, and lists of tiles are made
                there while nothing waits.

        Returns:
            out [B, Hq, Nq, Dv] in q's dtype, or (out, lse) with lse fp32 [B, Hq, Nq], natural log.
            A query without a key has out 0 and lse -inf (or its sink logit). Behind these, where
            asked for, the selection, int32 [B, heads that choose apart, query blocks, keys or
            blocks of keys], ascending and -1 behind the last one (a tuple where there are several
            selections), and the loss, fp32 [B, Nq].

        Raises:
            NothingSelected, SelectionNotListed, NoIndexerLoss: there is no such thing (MC460 to
                MC462).
            TargetNotBuilt: a gradient is wanted and the target has no backward kernels (MC503).
            MaskcError: a mistake in data (MC3xx), tensors or options (MC4xx), or a build (MC5xx).
        """
        if self._of_dtypes is not None and not is_compiling(q):
            attn = self.serving(q)
            if attn is not self:
                return attn(
                    q, k, v, scale=scale, return_lse=return_lse, softcap=softcap,
                    alibi_slopes=alibi_slopes, sink_logits=sink_logits, normalizer=normalizer,
                    alpha=alpha, nan_safe=nan_safe, deterministic=deterministic,
                    dropout_p=dropout_p, dropout_seed=dropout_seed,
                    return_selection=return_selection, indexer_loss=indexer_loss, **data,
                )  # fmt: skip
        if not (
            dropout_p or return_selection or indexer_loss
            or (alpha is not None and is_by_head(alpha))
            or needs_torch(q, k, v, alibi_slopes, sink_logits, data)
        ):  # fmt: skip
            try:
                return self.launch(
                    q, k, v, scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer,
                    alpha, nan_safe, data,
                )  # fmt: skip
            except UNFIT:
                if not torch_answers(q):
                    raise
        options: dict[str, Any] = {
            "scale": scale, "return_lse": return_lse, "softcap": softcap,
            "alibi_slopes": alibi_slopes, "sink_logits": sink_logits, "normalizer": normalizer,
            "alpha": alpha, "nan_safe": nan_safe,
        }  # fmt: skip
        by_head = is_by_head(alpha)
        if dropout_p and (return_selection or indexer_loss or by_head):
            wanted = "left out beside return_selection, indexer_loss and an alpha for each head"
            raise BadOption("dropout_p", wanted, dropout_p, at="dropout_p")
        if return_selection or indexer_loss:
            options["deterministic"] = deterministic
            return call_selecting(self, q, k, v, options, data, return_selection, indexer_loss)
        if by_head:
            return call_by_head(self, q, k, v, options, deterministic, data)
        options |= data
        if dropout_p:
            from maskc.runtime.dropout import asked

            options |= asked(q, dropout_p, dropout_seed)
            if not needs_torch(q, k, v, data=options):
                return self.dropping(q, k, v, **options)
        if self._of_dtypes is not None:  # torch.compile traces: q will be of its dtype
            find = _of_dtype_dropping if dropout_p else _of_dtype
            return through_torch(find, self, q, k, v, options, deterministic)
        own = _dropping if dropout_p else None
        dtype = self._planner.whole.dtype
        return through_torch(own, self, q, k, v, options, deterministic, dtype)

    @property
    def dropping(self) -> CompiledMask:
        """The same mask with kernels that drop weights, compiled when it is first asked for.

        Raises:
            DropoutNotRun: nothing says how to compile the mask again (MC432).
            MaskcError: as `Mask.compile`.
        """
        found = self._with.get("dropout")
        if found is None:
            recipe: Any = self._report
            if not hasattr(recipe, "dropping"):
                what = "a generated module holds the kernels that it was written with"
                raise DropoutNotRun(what, "compile the mask with mask.compile", at="dropout_p")
            found = self._with.setdefault("dropout", recipe.dropping())
        return found.holding(self.held)

    def launch(
        self, q: Any, k: Any, v: Any, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        data: Mapping[str, Any] = _NOTHING, into: Any = None,
    ) -> Any:  # fmt: skip
        """The forward pass alone, which torch neither sees nor records.

        Arguments, results and errors are those of a call, with positional options.

        Args:
            data: the mask's data and parameters by name.
            into: a torch tensor that out is written to, of the strides that it would have.
        """
        if self._of_dtypes is not None and (attn := self.serving(q)) is not self:
            return attn.launch(
                q, k, v, scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha,
                nan_safe, data, into,
            )  # fmt: skip
        names: tuple[str, ...] = _QKV
        given = [q, k, v]
        if alibi_slopes is not None or sink_logits is not None:
            names = with_heads(names, given, alibi_slopes, sink_logits)
        own = None if scale is None and softcap is None else numbers(scale, softcap)
        usual = alpha is None and normalizer == "softmax"
        alpha_1 = 0.0 if usual else alpha_less_1(normalizer, alpha)
        options = call_options(names, softcap is None, alpha_1, bool(nan_safe))
        plan, lib, places = self._begin(options, given, data)
        q, outputs = given[0], plan.outputs
        sent, stream = plan.place(lib, q)
        out, place = lib.empty(q, outputs[0]) if into is None else (into, into.data_ptr())
        lse, unread = None, sent.lse
        if return_lse or not unread:
            lse, unread = lib.empty(q, outputs[1])
        if names is _QKV and len(outputs) == 2:
            at_q, at_k, at_v = places
            pointers: Pointers = (at_q, at_k, at_v, place, unread)
        else:
            space = lib.empty(q, outputs[2]) if len(outputs) > 2 else (None, 0)
            pointers = all_pointers(names, places, out=place, lse=unread, delta=space[1])
        plan.run(sent, pointers, own, stream)
        return (out, lse) if return_lse else out

    def backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        dout: Any,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sink_logits: Any = None,
        normalizer: str = "softmax",
        alpha: float | None = None,
        deterministic: bool = False,
        nan_safe: bool = False,
        dropout_p: float = 0.0,
        dropout_seed: Any = None,
        **data: Any,
    ) -> tuple[Any, ...]:
        """Gradients of a call, from its inputs and results.

        Options and data must be those of the call. The results have no autograd graph.

        Args:
            q: queries [B, Hq, Nq, D].
            k: keys [B, Hkv, Nkv, D].
            v: values [B, Hkv, Nkv, Dv].
            out: what the call returned [B, Hq, Nq, Dv], in any strides with contiguous rows.
            lse: what the call returned with return_lse=True, fp32 [B, Hq, Nq].
            dout: gradient of out, of the same shape and dtype.
            scale: as in the call.
            softcap: as in the call.
            alibi_slopes: as in the call.
            sink_logits: as in the call.
            normalizer: as in the call.
            alpha: as in the call.
            deterministic: the same bits on every run on cards alike; the CPU always gives them.
            nan_safe: as in the call.
            dropout_p: as in the call.
            dropout_seed: as in the call, where it must have been given.
            **data: the mask's data and parameters by name.

        Returns:
            (dq, dk, dv) in the dtype of q, then dsink_logits and dalibi_slopes (fp32 [Hq]) for
            those given.

        Raises:
            TargetNotBuilt: this target has no backward kernels (MC503).
            TooFewMultiprocessors: a deterministic pass would never end on this stream (MC410).
            MaskcError: as in the call.
        """
        attn = self
        if dropout_p:
            from maskc.runtime.dropout import asked

            data.update(asked(None, dropout_p, dropout_seed))
            attn = self.dropping
        return attn.launch_backward(
            q, k, v, out, lse, dout, scale, softcap, alibi_slopes, sink_logits, normalizer, alpha,
            deterministic, nan_safe, data,
        )  # fmt: skip

    def launch_backward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, scale: float | None = None,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, deterministic: bool = False,
        nan_safe: bool = False, data: Mapping[str, Any] = _NOTHING, into: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The backward pass; arguments, results and errors are those of `backward`.

        Args:
            data: the mask's data and parameters by name.
            into: a torch tensor that dq is written to, of the strides that it would have.
        """
        if self._of_dtypes is not None and (attn := self.serving(q)) is not self:
            return attn.launch_backward(
                q, k, v, out, lse, dout, scale, softcap, alibi_slopes, sink_logits, normalizer,
                alpha, deterministic, nan_safe, data, into,
            )  # fmt: skip
        if Direction.backward not in self.target.directions:
            self.target.check(self.bundle.problem, Direction.backward)
        names: tuple[str, ...] = _BACKWARD
        given = [q, k, v, out, dout, lse]
        if alibi_slopes is not None or sink_logits is not None:
            names = with_heads(names, given, alibi_slopes, sink_logits)
        own = None if scale is None and softcap is None else numbers(scale, softcap)
        usual = alpha is None and normalizer == "softmax"
        alpha_1 = 0.0 if usual else alpha_less_1(normalizer, alpha)
        options = call_options(
            names, softcap is None, alpha_1, bool(nan_safe), bool(deterministic)
        )  # fmt: skip
        plan, lib, places = self._begin(options, given, data)
        q = given[0]
        sent, stream = plan.place(lib, q)
        *tensors, workspace, heads = plan.outputs
        make = partial(zeros, lib) if plan.kernel is None else lib.empty
        made = [] if into is None else [(into, into.data_ptr())]
        if made and plan.kernel is None:
            lib.clear(into)
        made += [make(q, x) for x in tensors[len(made) :]]
        (_, at_dq), (_, at_dk), (_, at_dv) = made
        delta, space = lib.empty(q, workspace)
        if names is _BACKWARD:
            at_q, at_k, at_v, at_out, at_dout, at_lse = places
            pointers: Pointers = (
                at_q, at_k, at_v, at_out, at_lse, at_dout, at_dq, at_dk, at_dv, space, 0, 0, 0, 0
            )  # fmt: skip
        else:
            written = {"dq": at_dq, "dk": at_dk, "dv": at_dv, "delta": space}
            for name, asked in (("dsink", sink_logits), ("dslopes", alibi_slopes)):
                if asked is not None:
                    made.append(zeros(lib, q, heads))
                    written[name] = made[-1][1]
            pointers = all_pointers(names, places, **written)
        plan.run(sent, pointers, own, stream)
        del delta  # what reuses its memory comes later in the stream
        gradients, _ = zip(*made, strict=True)
        _, k, v, *_ = given
        if k.shape[0] != q.shape[0] or v.shape[0] != q.shape[0]:  # which sequences share
            dq, dk, dv, *others = gradients
            return dq, summed(dk, k), summed(dv, v), *others
        return gradients

    def _begin(
        self, options: CallOptions, given: list[Any], data: Mapping[str, Any]
    ) -> tuple[Runnable, Library, tuple[int, ...]]:
        """(plan, q's library, addresses of what is given).

        Args:
            options: that the plan depends on.
            given: arrays; those of unknown libraries are replaced by what stands for them.
        """
        lib, kinds, places = read(options.names, given)
        if data or self._needs_data:
            known, call = self._repeats.get(options, _NO_REPEAT)
            if known == kinds and not low_bits(places) & self._unaligned:
                watched = call.watched.again(data, self.held)
                if watched is not None:
                    if watched is not call.watched:
                        call = call.changed(watched)
                        self._repeats[options] = kinds, call
                    return call, lib, places
            bound = self._bind(options, given, data, kinds, places, self._on_device)
        else:
            bound = self._default
        signature = kinds, bound.key, options
        plan: Any  # of the kinds in Planned
        last, plan = self._last
        if signature != last:
            try:
                plan = self._planned(signature, given, bound)
            except (NotAddressable, Unlisted):
                if bound.given is None:
                    raise
                bound = self._bind(options, given, data, kinds, places, False)
                plan = self._planned((kinds, bound.key, options), given, bound)
        if self._unaligned and low_bits(places) & self._unaligned:  # which no signature tells
            self._planner.plan(options, given, bound)
        if bound.given is None:
            return plan, lib, places
        call = plan.called(bound.given)
        if call.watched is not None:
            if len(self._repeats) >= _MOST_REPEATS:
                self._repeats = {}
            self._repeats[options] = kinds, call
        return call, lib, places

    def _planned(self, signature: tuple[Any, ...], given: list[Any], bound: Bound) -> Planned:
        """The plan of a signature that is not the last call's."""
        plan = self._plans.get(signature)
        if plan is None:
            plan = self._planner.plan(signature[-1], given, bound)
            if bound.lasting:
                with self._lock:
                    self._plans.put(signature, plan)
        self._last = (signature, plan) if bound.lasting else (None, None)
        return plan

    def _bind(
        self, options: CallOptions, given: list[Any], data: Mapping[str, Any],
        kinds: tuple[Any, ...], places: tuple[int, ...], listed: bool,
    ) -> Bound:  # fmt: skip
        """Parameters and data; the lengths must be sound before data are compared with them."""
        if not self._needs_data:
            return self._binder.bind(data, 0, 0)
        data = {name: plain(x) for name, x in data.items()}
        sizes, device = self._sound.sizes(given, kinds, places)
        if self.bundle.selections:  # which read q and k
            given = [given[0], *(expanded(x, sizes.batch) for x in given[1:3]), *given[3:]]
        return self._planner.bind(Asked(options, given, data, self.held, sizes, device), listed)

    # -------------------------------------------------------------- kernels

    def warmup(self, features: Iterable[Feature | str] = ()) -> None:
        """Build and load now what calls would build on first use; after it nothing compiles.

        Args:
            features: what the calls will ask for, all together: `softcap`, `alibi`, `sinks`,
                `entmax`, `nan_safe`, `dropout`. Other combinations are other kernels: warm up each.

        Raises:
            BadOption: a feature is unknown (MC407).
            NoDevice: the machine lacks the GPU (MC509).
            ExtraMissing: CuPy or NVRTC is not installed (MC507).
            BuildFailed: a compiler refused the source (MC508).
        """
        names = [features] if isinstance(features, str) else list(features)
        if "dropout" in names:
            self.dropping.warmup(name for name in names if name != "dropout")
        else:
            self._planner.build_all(names)

    @property
    def reports(self) -> Mapping[Features, BuildReport]:
        """Build reports by features: toolchain, flags, registers, spills.

        Where several sources were built for the same features, the report is the forward pass's.
        """
        return self._planner.whole.kernels.reports

    @property
    def all_reports(self) -> Mapping[tuple[str, str, Features], BuildReport]:
        """Build reports by source, mode and features.

        A source is named after its target, with `_small` for smaller tiles, `_choose` for the
        search for chosen keys and `_backward` for a source of its own. Where a mask runs in parts,
        the part's name comes first.
        """
        return self._planner.all_reports

    # -------------------------------------------------------------- copies

    def __copy__(self) -> CompiledMask:
        return self

    def __deepcopy__(self, memo: object) -> CompiledMask:
        return self  # nothing of it ever changes, and kernels are built once

    def __reduce__(self) -> tuple[object, ...]:
        """Bundle and target, and the mask where it is known: a new process builds anew.

        Where the package that reads it is not the one that wrote it, kernels and runtime may not
        fit; then the mask is compiled again, and without it StalePickle is raised.
        """
        recipe = self._report if hasattr(self._report, "compile") else None
        made = self.target.name, recipe, self._in_parts, self.held, self._of_dtypes is not None
        return _restored, (pickled(self.bundle), *made)

    # -------------------------------------------------------------- questions

    @property
    def identity(self) -> str:
        """Text that is equal where two compiled masks compute the same in the same way.

        It does not depend on the process.
        """
        held = "" if self.held is None else self.held.identity
        dtype = "" if self._of_dtypes is None else "any dtype "
        return f"{self.target.name} {self._in_parts} {self.bundle.digest} {dtype}{held}"

    @property
    def last_sources(self) -> tuple[str, ...]:
        """Names of the kernels that the latest call ran, in order, each with its mode.

        They tell which of several sources ran, and how many parts. The tuple is empty where the
        host chose for run-time selections.
        """
        plan = self._last[1]
        return () if plan is None else plan.sources

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
        dtype = problem.dtype.value if self._of_dtypes is None else "any dtype"
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
        """A report: why this plan, what it costs, and when dense attention would be faster."""
        return self._report() if self._report else self.bundle.report

    def layout(
        self, n_q: int, n_kv: int | None = None, *, block: tuple[int, int] | None = None,
        head: int | None = None, batch: int | None = None, **data: Any,
    ) -> BlockLayout:  # fmt: skip
        """The live tiles of the whole mask at these lengths.

        A call may run it in parts or in smaller tiles, see `explain`. Where kernels choose keys one
        by one, it is the mask with all candidates.

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
            OneOfSeveral: heads or sequences differ, and nobody says which one (MC310).
            BadLength: a length is no integer, or out of range (MC306).
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
    any_dtype: bool = False,
) -> CompiledMask:  # fmt: skip
    """What was pickled.

    Raises:
        StalePickle: see CompiledMask.__reduce__.
    """
    bundle = unpickled(kept, "a compiled mask") if recipe is None else unpickled(kept)
    if bundle is None:
        bundle = recipe.compile().bundle
    made = class_for(bundle)(bundle, target, recipe, in_parts=in_parts, held=held)
    return made.of_any_dtype() if any_dtype else made


def class_for(bundle: Bundle) -> type[CompiledMask]:
    """What calls the kernels of a bundle without a formula of the score or dropout."""
    if bundle.problem.page_size:
        from maskc.runtime.paged import PagedMask

        return PagedMask
    if bundle.problem.dtype is not DType.float8_e4m3fn:
        return CompiledMask
    from maskc.runtime.fp8 import FP8Mask

    return FP8Mask


def call_by_head(
    attn: CompiledMask, q: Any, k: Any, v: Any, options: dict[str, Any], deterministic: bool,
    data: Mapping[str, Any],
) -> Any:  # fmt: skip
    """A call whose alpha is an array."""
    alpha, keep_lse = options.pop("alpha"), options.pop("return_lse")
    if options.pop("sink_logits") is not None:
        raise sinks_beside_entmax()
    if torch_of(q) is not None:
        found = entmax_by_head(attn, q, k, v, alpha, options, deterministic, data)
    else:
        refuse_lost_gradient(q, "alpha", alpha)
        runs = runs_of(attn.bundle, alpha, q.shape[1], k.shape[1], options["normalizer"], data)
        found = forward_by_head(attn, runs, q, k, v, options, data)
    return found if keep_lse else found[0]


def _dropping(attn: CompiledMask, *_kernel: Any) -> CompiledMask:
    """The kernel of a call with dropout."""
    return attn.dropping


def _of_dtype(attn: CompiledMask, *kernel: Any) -> CompiledMask:
    """The kernel of a call to a mask without a dtype; the dtype is the last argument but one."""
    return attn.of_dtype(kernel[-2])


def _of_dtype_dropping(attn: CompiledMask, *kernel: Any) -> CompiledMask:
    """Likewise, with dropout."""
    return attn.of_dtype(kernel[-2]).dropping
