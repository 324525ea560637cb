"""The callable that a compiled mask is."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from maskc.build import BuildReport, build
from maskc.core.bundle import Bundle
from maskc.core.errors import NoCompiler, UnknownTarget
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, Feature, Features
from maskc.core.target import Target
from maskc.runtime import checks
from maskc.runtime.arrays import LIBRARIES, Library, library
from maskc.runtime.binding import Binder, Bound, mask_layout
from maskc.runtime.checks import Sizes
from maskc.runtime.device import default_target
from maskc.runtime.fallback import FallbackWarning, NumPyKernel
from maskc.runtime.launch_cpu import CpuKernel
from maskc.runtime.launch_cuda import CudaKernel, current_device, device_arch
from maskc.runtime.plans import Kernel, Plan, Recent
from maskc.runtime.prepare import check_call, launches, make_plan
from maskc.runtime.tables import NOTHING, Tables, make_tables

_BACKWARD = ("q", "k", "v", "out", "dout", "lse")


class CompiledMask:
    """Attention restricted to a mask, for one target; safe to call from several threads.

    Kernels are built on first use, or by `warmup`; later calls only launch, on the caller's
    current stream, and nothing waits. Arrays may be torch, CuPy or NumPy arrays, or anything with
    DLPack or `__cuda_array_interface__`; results follow q in library, device and dtype.

    To capture a call in a CUDA graph, make one with the same shapes and data before.
    """

    def __init__(
        self, bundle: Bundle, target: str | None = None, report: Callable[[], str] | None = None
    ) -> None:
        """Choose the source; nothing is built yet.

        Args:
            bundle: what compilation gave.
            target: one of its targets; None takes what this machine has.
            report: writes what explain() returns; None takes the bundle's own text.

        Raises:
            UnknownTarget: the bundle has no source for it.
            DTypeUnsupported, HeadDimUnsupported, TargetNotBuilt.
        """
        targets = [unit.target for unit in bundle.units]
        if target is None:
            usual = default_target(bundle.problem)
            target = usual if usual in targets else targets[0]
        unit = bundle.unit(target)
        if unit is None:
            raise UnknownTarget(target, ", ".join(targets), at="target")
        self.bundle, self.unit, self.target = bundle, unit, Target.named(target)
        self._report = report
        self.target.check(bundle.problem)
        self._binder = Binder(bundle)
        self._plans: Recent[Plan] = Recent()
        self._tables: Recent[Tables] = Recent()
        self._kernels: dict[tuple[Features, int], Kernel] = {}
        self._reports: dict[Features, BuildReport] = {}
        self._lock = threading.Lock()
        self._unaligned = checks.ALIGNMENT - 1 if self.target.language == "cuda" else 0

    # -------------------------------------------------------------- calls

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
        nan_safe: bool = False,
        **data: Any,
    ) -> Any:
        """softmax(scale * q k^T, restricted to the mask) v.

        Args:
            q: [B, Hq, Nq, D]; any strides with a contiguous last dimension, as for k and v.
            k: [B, Hkv, Nkv, D], Hq a multiple of Hkv.
            v: [B, Hkv, Nkv, Dv].
            scale: factor of q . k; D^-1/2 when None.
            return_lse: also return the log-sum-exp of every row.
            softcap: scores become softcap * tanh(score / softcap) first; > 0.
            alibi_slopes: fp32 [Hq]; -slope * |p - k| joins the scores.
            sink_logits: fp32 [Hq]; one more logit per head in the denominator.
            nan_safe: on GPUs, non-finite rows of v never reach a query that does not see them,
                at a price; the CPU is always exact.
            **data: the mask's data and parameters by name. Data are known by content: layouts
                are built again whenever it changes, and for GPU arrays that means a copy to the
                host, which waits for the device.

        Returns:
            out [B, Hq, Nq, Dv], or (out, lse) with lse fp32 [B, Hq, Nq], natural log. A query
            without a key has out 0 and lse -inf (or its sink logit).

        Raises:
            MaskcError: MC3xx for data, MC4xx for tensors and options, MC5xx for builds.
        """
        given = {"q": q, "k": k, "v": v}
        plan, lib, q, block, stream = self._begin(
            given, scale, softcap, alibi_slopes, sink_logits, nan_safe, data
        )
        out, block.out = plan.outputs[0].make(lib, q)
        if not return_lse and plan.spare_lse:
            plan.run(block, stream)
            return out
        lse, block.lse = plan.outputs[1].make(lib, q, True)
        plan.run(block, stream)
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
        deterministic: bool = False,
        nan_safe: bool = False,
        **data: Any,
    ) -> tuple[Any, ...]:
        """Gradients of a call, from its inputs and results; other arguments as there.

        Args:
            out, lse: what the call returned; out in any strides with contiguous rows.
            dout: gradient of out, same shape and dtype.
            deterministic: the same bits on every run; the CPU always gives them.

        Returns:
            (dq, dk, dv), then dsink_logits and dalibi_slopes (fp32 [Hq]) for those given.

        Raises:
            TargetNotBuilt: this target has no backward kernels; and as in the call.
        """
        del deterministic  # no kernel of today adds in an order that varies
        self.target.check(self.bundle.problem, Direction.backward)
        given = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse}
        plan, lib, q, block, stream = self._begin(
            given, scale, softcap, alibi_slopes, sink_logits, nan_safe, data
        )
        *tensors, workspace, heads = plan.outputs
        made = [t.zeros(lib, q) if plan.kernel is None else t.make(lib, q) for t in tensors]
        (_, block.dq), (_, block.dk), (_, block.dv) = made
        delta, block.delta = workspace.make(lib, q, True)
        for name, asked in (("dsink", sink_logits), ("dalibi", alibi_slopes)):
            if asked is not None:
                made.append(heads.zeros(lib, q, True))
                setattr(block, name, made[-1][1])
        plan.run(block, stream)
        del delta  # what reuses its memory comes later in the stream
        return tuple(gradient for gradient, _ in made)

    def _begin(
        self, given: dict[str, Any], scale: float | None, softcap: float | None, alibi: Any,
        sinks: Any, nan_safe: bool, data: Mapping[str, Any],
    ) -> tuple[Plan, Library, Any, Any, int]:  # fmt: skip
        """(plan, q's library, q, argument block with all inputs, stream)."""
        if scale is not None:
            scale = checks.number("scale", scale, positive=False)
        if softcap is not None:
            softcap = checks.number("softcap", softcap, positive=True)
        if alibi is not None:
            given["alibi_slopes"] = alibi
        if sinks is not None:
            given["sink_logits"] = sinks
        signature: list[object] = [tuple(given), softcap is None, bool(nan_safe)]
        places = []
        for name, x in given.items():
            lib = LIBRARIES.get(type(x))
            if lib is None:
                x = given[name] = library(x, name)
                lib = LIBRARIES[type(x)]
            try:
                kind, place = lib.read(x)
            except RuntimeError:
                lib.view(x, name)  # says what is wrong with it
                raise
            signature.append(kind)
            places.append(place)
        if data or self._binder.needs_data:
            bound = self._bind(given, data)
        else:
            bound = self._binder.default
        signature.append(bound.key)
        key = tuple(signature)
        plan = self._plans.get(key)
        if plan is None or (self._unaligned and self._misaligned(places)):
            plan = self._plan(key, given, _features(given, softcap, nan_safe), bound)
        q = given["q"]
        lib = LIBRARIES[type(q)]
        block, stream = plan.arguments(lib, q)
        block.q, block.k, block.v, *others = places
        if others:
            for name, place in zip(list(given)[3:], others, strict=True):
                setattr(block, name, place)
        if scale is not None:
            block.scale = scale
        if softcap is not None:
            block.softcap = softcap
        return plan, lib, q, block, stream

    def _misaligned(self, places: list[int]) -> bool:
        """Whether a tensor starts off the grid, which its signature does not tell."""
        tensors = places[:5] if len(places) >= len(_BACKWARD) else places[:3]
        return bool(reduce(or_, tensors) & self._unaligned)

    def _bind(self, given: Mapping[str, Any], data: Mapping[str, Any]) -> Bound:
        """Parameters and data; the lengths must be sound before data are compared with them."""
        n_q = n_kv = 0
        if self._binder.needs_data:
            views = (LIBRARIES[type(given[name])].view(given[name], name) for name in "qkv")
            sizes = checks.check_inputs(*views, self.bundle.problem, self.target)
            n_q, n_kv = sizes.n_q, sizes.n_kv
        return self._binder.bind(data, n_q, n_kv)

    def _plan(
        self, key: object, given: Mapping[str, Any], features: Features, bound: Bound
    ) -> Plan:
        """Check everything, build what is missing, prepare and remember."""
        views = {name: LIBRARIES[type(x)].view(x, name) for name, x in given.items()}
        direction = Direction.backward if "lse" in views else Direction.forward
        sizes = check_call(views, self.bundle, self.unit)
        kernel, tables, lists = None, NOTHING, not self.unit.ranges
        if launches(sizes, direction):
            tables = self._bound_tables(sizes, bound, direction, lists)
            kernel = self._kernel(features, views["q"].device[1])
            if isinstance(kernel, NumPyKernel) and not lists:
                tables = self._bound_tables(sizes, bound, direction, True)
        ordered = LIBRARIES[type(given["q"])].ordered
        plan = make_plan(
            self.bundle, self.unit, direction, kernel, views, sizes, bound.params, tables, ordered
        )
        with self._lock:
            self._plans.put(key, plan)
        return plan

    def _bound_tables(
        self, sizes: Sizes, bound: Bound, direction: Direction, lists: bool
    ) -> Tables:
        """The mask at these lengths; calls that differ only in strides or features share it."""
        others = (sizes.batch, sizes.heads_q) if self._binder.needs_data else ()
        key = (sizes.n_q, sizes.n_kv, others, bound.key, direction, lists)
        tables = self._tables.get(key)
        if tables is None:
            arrays = self._binder.arrays(bound, sizes.n_q, sizes.n_kv)
            tables = make_tables(
                self.bundle, self.unit, sizes, bound.params, arrays, direction, lists
            )
            with self._lock:
                self._tables.put(key, tables)
        return tables

    # -------------------------------------------------------------- kernels

    def _kernel(self, features: Features, device: int) -> Kernel:
        """Built and loaded for a device; once, whoever asks first."""
        if self.target.language == "c":
            features = features - {Feature.nan_safe}  # C is exact as it is
        with self._lock:
            kernel = self._kernels.get((features, device))
            if kernel is None:
                kernel = self._kernels[features, device] = self._make_kernel(features, device)
        return kernel

    def _make_kernel(self, features: Features, device: int) -> Kernel:
        unit, passes = self.unit, self.target.directions
        if self.target.language == "cuda":
            arch = device_arch(unit.target, device)
            binary = build(unit, features, passes, arch)
            self._reports[features] = binary.report
            return CudaKernel(unit, binary, device)
        try:
            binary = build(unit, features, passes)
        except NoCompiler as error:
            warnings.warn(
                f"{error.finding}: this mask runs in NumPy, slower", FallbackWarning, stacklevel=6
            )
            return NumPyKernel(self.bundle, unit.tile, features)
        self._reports[features] = binary.report
        return CpuKernel(binary)

    def warmup(self, features: Iterable[Feature | str] = ()) -> None:
        """Build and load now what calls would build on first use; after it nothing compiles.

        Args:
            features: what the calls will ask for, all together: `softcap`, `alibi`, `sinks`,
                `nan_safe`. Other combinations are other kernels: warm up each.

        Raises:
            BadOption: an unknown feature.
            NoDevice, ExtraMissing, BuildFailed.
        """
        device = current_device() if self.target.language == "cuda" else 0
        self._kernel(checks.features_named(features), device)

    @property
    def reports(self) -> Mapping[Features, BuildReport]:
        """What was built so far, by features: toolchain, flags, registers, spills."""
        return dict(self._reports)

    # -------------------------------------------------------------- questions

    def explain(self) -> str:
        """Why this plan, what it costs, and when dense attention would be faster."""
        return self._report() if self._report else self.bundle.report

    def layout(
        self, n_q: int, n_kv: int | None = None, *, block: tuple[int, int] | None = None,
        head: int = 0, batch: int = 0, **data: Any,
    ) -> BlockLayout:  # fmt: skip
        """The live tiles that a call with these lengths visits.

        Args:
            n_q, n_kv: lengths; n_kv = n_q when None.
            block: (queries, keys) per tile; the kernel's own tile when None.
            head, batch: whose, where masks or data differ.
            **data: the mask's data and parameters by name.

        Raises:
            BadLength, BadBlock, NoSuchHead, and MC3xx for data.
        """
        return mask_layout(self.bundle, self._binder, self.unit.tile, n_q, n_kv, block, head, batch,
                           data)  # fmt: skip


def _features(given: Mapping[str, Any], softcap: object, nan_safe: bool) -> Features:
    asked = {
        Feature.softcap: softcap is not None,
        Feature.alibi: "alibi_slopes" in given,
        Feature.sinks: "sink_logits" in given,
        Feature.nan_safe: nan_safe,
    }
    return frozenset(feature for feature, wanted in asked.items() if wanted)
