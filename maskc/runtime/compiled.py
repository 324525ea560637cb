"""CompiledMask: a compiled mask as a callable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, overload

from maskc.build import BuildReport
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
    UnknownDType,
    UnknownTarget,
)
from maskc.core.forms import GRID
from maskc.core.layout import BlockLayout
from maskc.core.problem import Feature, Features
from maskc.core.recorders import refuse_proxy
from maskc.core.score import Inputs
from maskc.core.target import SPARE
from maskc.core.tensors import torch_of
from maskc.dispatch.options import (
    sinks_with_entmax,
)
from maskc.dispatch.recent import Recent
from maskc.runtime.alphas import forward as forward_by_head
from maskc.runtime.alphas import runs_of
from maskc.runtime.arrays.known import (
    dtype_of_call,
)
from maskc.runtime.autograd import (
    UNFIT,
    is_compiling,
    needs_torch,
    refuse_lost_gradient,
    torch_answers,
)
from maskc.runtime.binding import mask_layout
from maskc.runtime.call_path import Passes, Runner
from maskc.runtime.device import default_target
from maskc.runtime.dropout import drawn
from maskc.runtime.launch.listed import ListedRowsPlan
from maskc.runtime.launch.sequence import PartedPlan
from maskc.runtime.pickles import pickled, unpickled
from maskc.runtime.selecting import call_selecting
from maskc.runtime.torch_calls import entmax_by_head, through_torch

_NOTHING: Mapping[str, Any] = {}
_WHOLE = "whole"
"""The key of kernels that run a mask as a whole."""


class CompiledMask(Passes):
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
        super().__init__(bundle, unit, in_parts, held, inputs, runner)
        self._report = report
        self._holding: CompiledMask | None = None
        self._on_host: CompiledMask | None = None
        self._with: dict[str, CompiledMask] = {}
        """Kernels that calls with further options need, which copies share."""
        self._of_dtypes: dict[object, CompiledMask | None] | None = None
        """Kernels for other dtypes of a mask without a dtype; None for its own. Copies share
        them."""

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

    @property
    def _in_no_parts(self) -> CompiledMask:
        """Return the mask without its parts."""
        whole = self._with.get(_WHOLE)
        if whole is None:
            made = CompiledMask(self.bundle, self.target.name, self._report, in_parts=False,
                                held=self.held, inputs=self.inputs)  # fmt: skip
            whole = self._with.setdefault(_WHOLE, made)
        return whole.holding(self.held, self.inputs)

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


def call_by_head(attn: CompiledMask, call: AttentionCall) -> Any:
    """A call whose alpha is an array."""
    if call.order is not None:
        return call.order.with_out(call_by_head(attn, call.heads_first()))
    q, k, _, options, data = call[:5]
    if options.sink_logits is not None:
        raise sinks_with_entmax()
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
