"""A compiled mask with a formula of the score: its tables and parameters join every call.

Kernels read them from a block that lies behind `struct Attention`. Plans do not depend on it: a
call takes the plan of its mask, and fills the block from what it was given.
"""

from __future__ import annotations

import ctypes
import math
import operator
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.abi import SCORE
from maskc.core.bundle import Bundle
from maskc.core.captured import Held
from maskc.core.data import CALL
from maskc.core.errors import (
    BadOption,
    DataMissing,
    IntegersUnread,
    MixedLibraries,
    ScoreIndex,
    ScoreOption,
    ScoreTable,
    WrongDevice,
    WrongRank,
)
from maskc.core.score import MAX_RANK, Inputs, Slot, of_whole
from maskc.core.tensors import HOST, Array, Device, contiguous, singles, torch_of
from maskc.core.unknown import unknown_keyword
from maskc.dispatch.options import CallOptions
from maskc.layout import check_extremes, check_int32, to_host
from maskc.runtime.arrays.known import (
    LIBRARIES,
    Library,
    array_of,
    library,
    library_of,
    zeros,
)
from maskc.runtime.autograd import kind_of
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.launch.prepared import BlockLaunch, Runnable

_NOTHING: Mapping[str, Any] = {}
_SHARED = (1 << 31) - 1
"""The size of a dimension that has one entry for all."""
_SUM_WORDS = 10
"""Words of 64 bits that an entry's exact sum takes, see templates/common/lib/score_numbers.h."""
_SUMS_ANYWAY = 1 << 20
"""Entries of a gradient up to which CPUs always sum exactly, as their results have the same bits on
every run."""
_MARGIN = 128
"""Sums by distance before the first and behind the last, see templates/sm90a/lib/diagonals.cuh."""
_WIDE = {"int64", "uint32", "uint64"}
"""Integers that may not fit 32 bits."""
_MOST_CHECKED = 256
"""Calls whose indices were found to stay inside of their tables."""


class Table(NamedTuple):
    """What a call gives for a slot."""

    owner: Any
    """Keeps the memory alive."""
    lib: Library | None
    """None: a plain number."""
    view: Array | None
    number: float | int = 0


@dataclass(frozen=True, eq=False)
class _Gradient:
    """What a backward pass adds a table's gradient to."""

    made: Any
    pointer: int
    sums: tuple[Any, int]
    entries: int


class _Given(dict[str, Any]):
    """The keywords of the mask, and the block of the formula."""

    block: bytes = b""


class ScoredMask(CompiledMask):
    """A CompiledMask whose softmax sees a formula of the score, see `mc.score`.

    Calls take the formula's tables and parameters by name, beside the data of the mask: arrays on
    the device of q, of any floating dtype (kernels compute in fp32), and numbers. A dimension of
    one entry is shared by all, and missing ones in front are, too. Torch tensors that require grad
    get their gradient; `backward` returns those of all arrays that a call gives.
    """

    inputs: Inputs

    def __init__(
        self, bundle: Bundle, target: str | None = None, report: Callable[[], str] | None = None,
        *, in_parts: bool | None = None, held: Held | None = None, inputs: Inputs,
    ) -> None:  # fmt: skip
        """The arguments are CompiledMask's; `inputs` are the formula's."""
        super().__init__(bundle, target, report, in_parts=in_parts, held=held)
        self._read(inputs)
        params = (name for name, _ in bundle.params)
        self._own = {decl.name for decl in bundle.data}.union(params, bundle.unread)
        self._reads = _indices(inputs.formula)
        self._shifts = S.shift(inputs.formula.logit) is not None
        self._checked: set[object] = set()
        self._copies: dict[tuple[str, Device], tuple[np.ndarray, Any, int]] = {}
        self._narrow: dict[str, tuple[Any, object, Any]] = {}

    def _read(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._slots = dict(zip(inputs.names, inputs.formula.slots, strict=True))
        self._given_always = {
            name: x for name, x in inputs.captured.items() if hasattr(x, "data_ptr")
        }

    def _sharing(self, other: CompiledMask) -> CompiledMask:
        other = super()._sharing(other)
        reads: Any = other  # a formula of the score, too
        shared: CompiledMask = reads.reading(self.inputs)
        return shared

    def reading(self, inputs: Inputs) -> ScoredMask:
        """These kernels with other names and arrays; plans and binaries are shared."""
        if inputs is self.inputs:
            return self
        found = self._like(_copies={}, _narrow={})
        found._read(inputs)
        return found

    @property
    def dropping(self) -> CompiledMask:
        """As of CompiledMask, with the formula's names and arrays."""
        found = super().dropping
        return found.reading(self.inputs) if isinstance(found, ScoredMask) else found

    @property
    def trainable(self) -> tuple[str, ...]:
        """Tables and parameters that may require grad."""
        return self.inputs.trainable

    @property
    def identity(self) -> str:
        """As of CompiledMask; of arrays that the formula holds those that calls do not give are
        told apart by where they are, as their contents may change."""
        held = [id(x) for x in self.inputs.captured.values() if not hasattr(x, "data_ptr")]
        own = self.inputs.names, dict(self.inputs.defaults), held
        return f"{super().identity} {own}"

    # -------------------------------------------------------------- calls

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """softmax(formula(scale * q k^T), restricted to the mask) v.

        Args:
            q, k, v: as of CompiledMask.
            options: as of CompiledMask, without softcap and alibi_slopes; and the tables and
                parameters of the formula by name.

        Returns:
            As of CompiledMask.

        Raises:
            DataMissing: a table is missing (MC301).
            DataUnknown: a keyword is neither an option nor named by mask or formula (MC302).
            ScoreTable: a table is not what the formula reads (MC416).
            ScoreIndex: an index leaves its table for certain (MC417).
            ScoreOption: softcap or alibi_slopes beside a formula (MC418).
            MaskcError: as of CompiledMask.
        """
        return super().__call__(q, k, v, **{**self._given_always, **options})

    def launch(
        self, q: Any, k: Any, v: Any, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        data: Mapping[str, Any] = _NOTHING, into: Any = None,
    ) -> Any:  # fmt: skip
        """The forward pass alone; see CompiledMask."""
        if self._of_dtypes is not None and (attn := self.serving(q)) is not self:
            return attn.launch(
                q, k, v, scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha,
                nan_safe, data, into,
            )  # fmt: skip
        self._check_options(softcap, alibi_slopes)
        given, tables = self._split(q, k, data)
        given.block = self._block(q, k, tables, {})
        return super().launch(
            q, k, v, scale, return_lse, None, None, sink_logits, normalizer, alpha, nan_safe, given,
            into,
        )  # fmt: skip

    def launch_backward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, scale: float | None = None,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, deterministic: bool = False,
        nan_safe: bool = False, data: Mapping[str, Any] = _NOTHING, into: Any = None,
        wanted: Sequence[str] | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The backward pass; see CompiledMask.

        Args:
            wanted: tables whose gradients follow the others; None: all that `data` gives as arrays.

        Returns:
            (dq, dk, dv), dsink_logits where sinks are given, then fp32 gradients in the shapes of
            the tables, in the order in which the formula reads them.
        """
        if self._of_dtypes is not None and (attn := self.serving(q)) is not self:
            same: Any = attn  # has this formula, too
            results: tuple[Any, ...] = same.launch_backward(
                q, k, v, out, lse, dout, scale, softcap, alibi_slopes, sink_logits, normalizer,
                alpha, deterministic, nan_safe, data, into, wanted,
            )  # fmt: skip
            return results
        self._check_options(softcap, alibi_slopes)
        given, tables = self._split(q, k, data)
        if wanted is None:
            wanted = [name for name in self.trainable if name in data and tables[name].view]
        if wanted and self._sums_diagonals:
            return self._in_no_parts.reading(self.inputs).launch_backward(
                q, k, v, out, lse, dout, scale, None, None, sink_logits, normalizer, alpha,
                deterministic, nan_safe, data, into, wanted,
            )  # fmt: skip
        made = {name: self._gradient(q, k, name, tables[name], deterministic) for name in wanted}
        sums = self._diagonals(q, k, made, deterministic)  # alive until all is queued
        given.block = self._block(q, k, tables, made, sums[1])
        found = super().launch_backward(
            q, k, v, out, lse, dout, scale, None, None, sink_logits, normalizer, alpha,
            deterministic, nan_safe, given, into,
        )  # fmt: skip
        return (*found, *(made[name].made for name in wanted))

    @property
    def _sums_diagonals(self) -> bool:
        """Whether a mask with parts had better run whole where tables get gradients: of tables that
        are read by distance kernels of whole tiles add up diagonals, and parts add pair by pair
        (window 128 and 16 scattered ids, T5's buckets, H100: 1.8 and 21.7 ms)."""
        own = self._in_parts is None and self._shifts and bool(self.bundle.parts)
        return own and self.target.language == "cuda"

    @cached_property
    def _in_no_parts(self) -> ScoredMask:
        """The same, in no parts."""
        return type(self)(
            self.bundle, self.target.name, self._report, in_parts=False, held=self.held,
            inputs=self.inputs,
        )  # fmt: skip

    def _begin(
        self, options: CallOptions, given: list[Any], data: Any
    ) -> tuple[Runnable, Library, tuple[int, ...]]:
        plan, lib, places = super()._begin(options, given, data)
        return BlockLaunch(plan, data.block), lib, places

    def _check_options(self, softcap: Any, slopes: Any) -> None:
        if softcap is not None:
            raise ScoreOption("softcap=", "cap * tanh(s / cap)", at="softcap")
        if slopes is not None:
            raise ScoreOption("alibi_slopes=", "s - slopes[h] * abs(q - k)", at="alibi_slopes")

    # -------------------------------------------------------------- what a call gives

    def _split(self, q: Any, k: Any, data: Mapping[str, Any]) -> tuple[_Given, dict[str, Table]]:
        """The keywords of the mask, and the tables by the names of slots."""
        given = _Given({name: x for name, x in data.items() if name not in self._slots})
        for name in given:
            if name not in self._own and not self._needs_data:
                raise unknown_keyword(name, [*self._slots, *self._own], CALL)
        for name in self._slots:
            if name in self._own and name in data:  # the mask reads it, too
                given[name] = data[name]
        values = {**self.inputs.defaults, **self.inputs.captured, **data}
        tables = {}
        for name, slot in self._slots.items():
            if name not in values:
                raise DataMissing(
                    name, f"the formula of the score reads {self.inputs.text}", at=name
                )
            tables[name] = self._table(q, k, name, slot, values[name])
        return given, tables

    def _table(self, q: Any, k: Any, name: str, slot: Slot, x: Any) -> Table:
        if slot.rank == 0 and isinstance(x, (int, float, Real)) and not hasattr(x, "data_ptr"):
            return Table(x, None, None, _number(name, slot, x))
        if slot.rank == 0 and _is_number_of_host(x) and array_of(q, "q").device != HOST:
            return Table(x, None, None, _number(name, slot, x.item()))
        if slot.integer and _dtype(x) in _WIDE and array_of(x, name).device != HOST:
            x = self._narrowed(name, x)
        found = library(_converted(name, x, slot.integer), name)
        lib = LIBRARIES[type(found)]
        if getattr(x, "requires_grad", False) and lib is not library_of(type(q)):
            raise MixedLibraries("q", kind_of(q), name, kind_of(x), at=name)
        view = lib.view(found, name)
        wanted = "int32" if slot.integer else "float32"
        text = self.inputs.text
        if view.dtype != wanted:
            raise ScoreTable(name, f"of {view.dtype}", wanted, text, at=name)
        if slot.rank == 0 and math.prod(view.shape) != 1:
            raise ScoreTable(name, f"of shape {view.shape}", "a single number", text, at=name)
        if len(view.shape) > slot.rank and slot.rank:
            expected = f"at most {slot.rank} dimensions"
            raise ScoreTable(name, f"of shape {view.shape}", expected, text, at=name)
        if 0 in view.shape and all(self._extents(q, k).values()):
            raise ScoreTable(name, f"of shape {view.shape}", "entries", text, at=name)
        here = array_of(q, "q").device
        if name in self.inputs.captured and view.device == HOST != here and hasattr(x, "astype"):
            return self._moved(q, name, found, view, here)
        if view.device != here:
            raise WrongDevice(name, _shown(view.device), self.target.name, _shown(here), at=name)
        return Table(found, lib, view)

    def _narrowed(self, name: str, x: Any) -> Any:
        """Integers of a device as int32. The host reads their extremes, and waits for them, where
        they are new: not where a call gives the same tensor, which nobody has written into.

        Raises:
            DataRange: one does not fit.
            IntegersUnread: nobody counts what is written into x, or the host cannot wait.
        """
        seen = LIBRARIES[type(library(x, name))].watch(x)
        known = self._narrow.get(name)
        if known is not None and known[0]() is x and known[1] == seen is not None:
            return known[2]
        torch, dtype = torch_of(x), _dtype(x)
        waits = x.is_cuda and torch.cuda.is_current_stream_capturing() if torch else False
        if torch is None or seen is None or dtype == "uint64" or waits:
            raise IntegersUnread(name, dtype, at=name)
        whole = x.detach().long()
        if whole.numel():
            check_extremes(name, *(int(end) for end in torch.stack(whole.aminmax()).tolist()))
        made = whole.int()
        self._narrow[name] = weakref.ref(x), seen, made
        return made

    def _moved(self, q: Any, name: str, x: np.ndarray, view: Array, here: Device) -> Table:
        """A captured NumPy array on the device of q; copied when its content is another one."""
        known = self._copies.get((name, here))
        if known is None or not np.array_equal(known[0], x):
            lib = LIBRARIES[type(library(q, "q"))]
            words = np.ascontiguousarray(x).view(np.int32).reshape(-1)
            known = self._copies[name, here] = x.copy(), *lib.send(q, words)
        steps = contiguous(view.shape)
        return Table(known[1], None, Array(known[2], view.shape, steps, view.dtype, here))

    def _extents(self, q: Any, k: Any) -> dict[str, int]:
        """Queries, keys, heads and sequences of a call."""
        of_q, of_k = (tuple(getattr(x, "shape", ())) for x in (q, k))
        for name, shape in (("q", of_q), ("k", of_k)):
            if len(shape) != 4:
                raise WrongRank(name, shape, at=name)
        n_q, n_kv = int(of_q[2]), int(of_k[2])
        return {
            "q": n_q, "k": n_kv, "h": int(of_q[1]), "b": int(of_q[0]), "n_q": n_q, "n_kv": n_kv
        }  # fmt: skip

    def _gradient(self, q: Any, k: Any, name: str, table: Table, deterministic: bool) -> _Gradient:
        """Cleared memory for the gradient of a table."""
        if table.view is None:
            raise BadOption(name, "an array, for its gradient", "a number", at=name)
        known = library(q, "q")
        lib, shape = LIBRARIES[type(known)], table.view.shape
        entries = math.prod(shape)
        made, pointer = zeros(lib, known, singles(*shape))
        exactly = deterministic or (self.target.language == "c" and entries <= _SUMS_ANYWAY)
        sums: tuple[Any, int] = (None, 0)
        if exactly and not self._alone(name, shape, self._extents(q, k)):
            sums = zeros(lib, known, singles(2 * _SUM_WORDS * entries))
        return _Gradient(made, pointer, sums, entries)

    def _diagonals(
        self, q: Any, k: Any, made: Mapping[str, _Gradient], deterministic: bool
    ) -> tuple[Any, int]:
        """Zeros for what is at one distance, where tables get gradients by distance alone."""
        known, extents = library(q, "q"), self._extents(q, k)
        if not made or deterministic or not self._shifts or self.target.name != "sm_90a":
            return None, 0
        lines = extents["b"] * extents["h"]
        count = lines * (extents["n_q"] + extents["n_kv"] + 2 * _MARGIN)
        return zeros(LIBRARIES[type(known)], known, singles(count))

    def _alone(self, name: str, shape: tuple[int, ...], extents: Mapping[str, int]) -> bool:
        """Whether no two pairs add to the same entry: every index that a call has several of is one
        of a dimension by itself, and the table is read once."""
        slot = self._slots[name]
        found = [index for read, index in self._reads if read == slot.name]
        if len(found) != 1:
            return False
        sizes = (1,) * (slot.rank - len(shape)) + shape
        bare = {each for each, size in zip(found[0], sizes, strict=True) if size > 1}
        return all(extents[sym.name] <= 1 or sym in bare for sym in (E.Q, E.K, E.H, S.B))

    # -------------------------------------------------------------- the block

    def _block(
        self, q: Any, k: Any, tables: Mapping[str, Table], gradients: Mapping[str, _Gradient],
        diagonals: int = 0,
    ) -> bytes:  # fmt: skip
        block = SCORE()
        block.score_diagonals = diagonals
        shapes: list[tuple[int, ...]] = []
        for number, (name, slot) in enumerate(self._slots.items()):
            view = tables[name].view
            if view is None:
                given = tables[name].number
                block.score_number[number] = 0.0 if slot.integer else given
                block.score_integer[number] = int(given) if slot.integer else 0
                shapes.append(())
                continue
            block.score_table[number] = view.pointer
            missing = (1,) * (slot.rank - len(view.shape))
            shape = missing + view.shape if slot.rank else ()
            steps = (0,) * len(missing) + view.strides
            own = (0,) * len(missing) + contiguous(view.shape)
            for axis, size in enumerate(shape):
                place = MAX_RANK * number + axis
                block.score_size[place] = _SHARED if size == 1 else size
                block.score_step[place] = 0 if size == 1 else steps[axis]
                block.score_gradient_step[place] = 0 if size == 1 else own[axis]
            shapes.append(shape)
            gradient = gradients.get(name)
            if gradient is not None:
                block.score_gradient[number] = gradient.pointer
                block.score_sums[number] = gradient.sums[1]
                block.score_entries[number] = gradient.entries
        self._check_indices(self._extents(q, k), tuple(shapes))
        return bytes(block)

    def _check_indices(
        self, extents: Mapping[str, int], shapes: tuple[tuple[int, ...], ...]
    ) -> None:
        """Refuse indices that leave their table whatever the mask keeps: those of q, k, h or b
        alone, of which every call has all.

        Raises:
            ScoreIndex.
        """
        key = (tuple(extents.values()), shapes)
        if key in self._checked:
            return
        numbers = {slot.name: n for n, slot in enumerate(self.inputs.formula.slots)}
        names = dict(zip(numbers, self.inputs.names, strict=True))
        if all(extents[each] for each in "qkhb"):
            for slot, index in self._reads:
                for axis, each in enumerate(index):
                    size = shapes[numbers[slot]][axis]
                    if size == 1 or len(_symbols(each)) > 1:
                        continue
                    low, high = of_whole(each, extents)
                    if math.isfinite(high) and not -size <= low <= high < size:
                        text = S.to_score_text(each)
                        reach = f"{low:.0f} to {high:.0f}"
                        raise ScoreIndex(names[slot], size, axis, text, reach, at=names[slot])
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()
        self._checked.add(key)

    # -------------------------------------------------------------- copies

    def __reduce__(self) -> tuple[object, ...]:
        """As of CompiledMask, with the formula's names and arrays."""
        return _restored, (super().__reduce__(), self.inputs)


def _restored(kept: tuple[Callable[..., CompiledMask], tuple[Any, ...]], inputs: Inputs) -> Any:
    make, args = kept
    plain = make(*args)
    made = ScoredMask(
        plain.bundle, plain.target.name, plain._report, in_parts=plain._in_parts, held=plain.held,
        inputs=inputs,
    )  # fmt: skip
    return made if plain._of_dtypes is None else made.of_any_dtype()


def _indices(formula: S.Formula) -> tuple[tuple[str, tuple[E.Expr, ...]], ...]:
    """Every entry that a formula reads: slot and index, each once."""
    found = (each for each in E.walk(formula.logit) if isinstance(each, (S.Read, S.Entry)))
    return tuple((each.slot, each.index) for each in dict.fromkeys(found) if each.index)


def _symbols(index: E.Expr) -> set[object]:
    """What an index depends on, lengths aside."""
    own = (E.Sym, S.Entry, S.Score, S.Read)
    return {
        each for each in E.walk(index)
        if isinstance(each, own) and each not in (E.N_Q, E.N_KV)
    }  # fmt: skip


def _number(name: str, slot: Slot, x: Any) -> float | int:
    if slot.integer:
        try:
            found = operator.index(x)
        except TypeError:
            raise BadOption(name, "an integer", repr(x), at=name) from None
        if abs(found) > _SHARED:
            raise BadOption(name, "an integer of 32 bits", repr(x), at=name)
        return found
    if not math.isfinite(x) or not math.isfinite(ctypes.c_float(float(x)).value):
        raise BadOption(name, "a finite number", repr(x), at=name)
    return float(x)


def _is_number_of_host(x: Any) -> bool:
    """Whether it is a torch tensor without dimensions that the host holds, as compilers make of
    numbers; it has no gradient there."""
    on_host = getattr(getattr(x, "device", None), "type", "") == "cpu"
    return on_host and x.ndim == 0 and not getattr(x, "requires_grad", True)


def _dtype(x: Any) -> str:
    """The name of the dtype of an array; empty for anything else."""
    return str(getattr(x, "dtype", "")).rpartition(".")[2]


def _converted(name: str, x: Any, integer: bool) -> Any:
    """The array in the dtype that kernels read; itself where it has that.

    Raises:
        DataRange: an integer on the host does not fit 32 bits.
    """
    dtype = _dtype(x)
    wanted = "int32" if integer else "float32"
    fits = (
        dtype.startswith(("int", "uint", "bool")) if integer else dtype.startswith(("float", "bfl"))
    )
    if dtype == wanted or not fits:
        return x
    if integer and array_of(x, name).device == HOST:
        check_int32(name, to_host(x, name))
    if hasattr(x, "astype"):
        return x.astype(wanted)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.detach().to(getattr(torch, wanted))
    return x


def _shown(device: Device) -> str:
    return device[0] if device[0] == "cpu" else f"{device[0]}:{device[1]}"
