"""Runtime of a generated module: a bundle, and the right kernel for each call's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.coefficients import priced
from maskc.core.dtypes import DType
from maskc.core.errors import BadPlan, WrongDevice
from maskc.core.layout import BlockLayout
from maskc.core.library import library_of
from maskc.core.plain import from_text
from maskc.core.problem import TileShape
from maskc.core.recorders import refuse_proxy
from maskc.core.target import Target
from maskc.layout import check_lengths
from maskc.runtime.arrays.known import array_of
from maskc.runtime.autograd import needs_torch, torch_answers
from maskc.runtime.binding import Binder, mask_layout, variant_of
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.device import CUDA, on_this_card, runs
from maskc.runtime.pickles import Kept, pickled, unpickled
from maskc.runtime.selecting import Pairs
from maskc.runtime.torch_calls import through_torch

_NO_FILES: Mapping[str, str] = MappingProxyType({})


class GeneratedMask:
    """A compiled mask for all of its targets: arrays on the CPU run there, others on their GPU."""

    def __init__(self, bundle: Bundle, source: Mapping[str, str] = _NO_FILES) -> None:
        """Nothing is built before the first call."""
        self.bundle = bundle
        self.source = source
        """The text of the files with kernels, by target; of several files one after the other."""
        self._binder = Binder(bundle)
        self._on = cache(self._compiled_for)

    @classmethod
    def of_module(cls, module: str, report: str = "") -> GeneratedMask:
        """Load the mask of a generated module from the plan and the sources next to it.

        Args:
            module: the module's `__file__`.
            report: text that explain() returns.

        Raises:
            BadPlan: the plan is missing, or it or its sources were written by another version.
        """
        file = Path(module)
        files: _Files = {}
        bundle = _with_sources(_plan_of(file.with_suffix(".plan.json")), file.parent, files)
        source = {target: "".join(texts.values()) for target, texts in files.items()}
        return cls(replace(on_this_card(priced(bundle)), report=report), MappingProxyType(source))

    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """See CompiledMask.__call__."""
        asked, data = CallOptions.read(options)
        dtype = self.bundle.problem.dtype
        if asked.is_one_pass and dtype is not DType.float8_e4m3fn and (
            needs_torch(q, k, v, asked.alibi_slopes, asked.sink_logits, data) or torch_answers(q)
        ):  # fmt: skip
            return through_torch(_placed, self, AttentionCall(q, k, v, asked, data), dtype.value)
        refuse_proxy(q)
        return self.on(q).attend(AttentionCall(q, k, v, asked, data))

    def backward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, **options: Any
    ) -> tuple[Any, ...]:
        """See CompiledMask.backward."""
        return self.on(q).backward(q, k, v, out, lse, dout, **options)

    def on(self, q: Any) -> CompiledMask:
        """The callable for the device that q is on.

        Raises:
            NotAnArray: q is none.
            WrongDevice: no target of this module runs there.
        """
        return self._on(array_of(q, "q").device)

    def _compiled_for(self, device: tuple[str, int]) -> CompiledMask:
        kind, index = device
        targets = self.bundle.targets
        if kind == "meta":
            return CompiledMask(self.bundle.serving(targets[0]), targets[0])
        for name in sorted(targets, key=_preference):
            target = Target.named(name)
            if kind == "cpu" if target.language == "c" else kind == "cuda" and runs(target, index):
                return CompiledMask(self.bundle.serving(name), name)
        known = ", ".join(targets)
        raise WrongDevice("q", f"{kind}:{index}", "this module", known, at="q")

    def layout(
        self, n_q: int, n_kv: int | None = None, *, block: tuple[int, int] | None = None,
        head: int | None = None, batch: int | None = None, **data: Any,
    ) -> BlockLayout:  # fmt: skip
        """See CompiledMask.layout; `block` is the first target's when None."""
        return mask_layout(
            self.bundle, self._binder, self._tile, n_q, n_kv, block, head, batch, data
        )

    @property
    def _tile(self) -> TileShape:
        """The tile of the first kernel."""
        bundle = self.bundle.serving(self.bundle.targets[0])
        return bundle.units[0].tile

    def dense(self, n_q: int, n_kv: int | None = None, **data: Any) -> np.ndarray:
        """The mask itself: bool [n_q, n_kv], after batch and heads where it depends on them.

        Args:
            n_q, n_kv: lengths; n_kv = n_q when None.
            **data: the mask's data and parameters by name.

        Raises:
            BadLength, and MC3xx for data.
        """
        n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
        params, arrays = self._binder.ranked(data, n_q, n_kv)
        formulas = tuple(variant.keep for variant in self.bundle.variants)
        pairs = Pairs(formulas, self.bundle.head_variant, arrays, params, n_q, n_kv)
        variant_of(self.bundle, pairs.heads - 1)  # as many heads as masks
        front = tuple(n for n in (pairs.batch, pairs.heads) if n > 1)
        return pairs.rows(0, n_q).reshape(*front, n_q, n_kv)

    def __copy__(self) -> GeneratedMask:
        return self

    def __deepcopy__(self, memo: object) -> GeneratedMask:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle its bundle, like a CompiledMask."""
        return _restored, (pickled(self.bundle), dict(self.source))

    def explain(self) -> str:
        """See CompiledMask.explain."""
        return self.bundle.report


def _restored(kept: Kept, source: Mapping[str, str] = _NO_FILES) -> GeneratedMask:
    return GeneratedMask(unpickled(kept, "a generated module"), source)


def _placed(mask: GeneratedMask, *kernel: Any) -> CompiledMask:
    """The callable for the device that ends what a call is made of."""
    return mask._on(kernel[-1])


def _preference(target: str) -> int:
    return CUDA.index(target) if target in CUDA else len(CUDA)


def _plan_of(file: Path) -> Bundle:
    """Read the bundle in a plan's file."""
    try:
        plan = from_text(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadPlan(file.name, error, at=str(file)) from None
    if not isinstance(plan, Bundle):
        raise BadPlan(file.name, f"it holds a {type(plan).__name__}", at=str(file))
    return plan


_OTHER_KERNELS = "another version of maskc wrote it, for other kernels than this one has"
_Files = dict[str, dict[str, str]]
"""The text of files by target, then by name."""


def _with_sources(bundle: Bundle, folder: Path, files: _Files) -> Bundle:
    """The bundle with the text of files in place of their names; what is read joins `files`."""

    def read(unit: SourceUnit) -> SourceUnit:
        name = Path(unit.text).name
        text = (folder / name).read_text("utf-8")
        files.setdefault(unit.target, {})[name] = text
        if library_of(text) != unit.library:
            raise BadPlan(name, _OTHER_KERNELS, at=str(folder / name))
        return replace(unit, text=text, library="")

    try:
        units = tuple(map(read, bundle.units))
    except OSError as error:
        raise BadPlan(f"{bundle.name}.plan.json", error, at=str(folder)) from None
    inner = partial(_with_sources, folder=folder, files=files)
    return replace(bundle, units=units).with_inner(inner)
