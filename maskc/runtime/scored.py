"""The score formula in calls: its tables and parameters.

Kernels read them from a block after `struct Attention`. Plans do not depend on this block: a call
uses the plan of its mask and fills the block from its arguments.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.abi import SCORE, TABLES_LEFT
from maskc.core.attention_call import AttentionCall
from maskc.core.bundle import Bundle
from maskc.core.captured import present
from maskc.core.data import CALL
from maskc.core.dtypes import dtype_name
from maskc.core.errors import (
    BadOption,
    DataMissing,
    IntegersUnread,
    MixedLibraries,
    ScoreIndex,
    ScoreOption,
    ScoreTable,
    WrongDevice,
)
from maskc.core.problem import Direction
from maskc.core.score import MAX_RANK, Inputs, Slot, of_whole
from maskc.core.target import Target
from maskc.core.tensors import HOST, Array, Device, Output, contiguous, singles, torch_of
from maskc.core.unknown import unknown_keyword
from maskc.core.widths import plain_integer
from maskc.dispatch.checks import place_of
from maskc.layout import check_extremes, check_int32, to_host
from maskc.runtime.arrays.known import (
    LIBRARIES,
    TORCH,
    Library,
    array_of,
    check_ranks,
    library,
    library_of,
    zeros,
)
from maskc.runtime.autograd import kind_of
from maskc.runtime.launch.prepared import OpenedCall

_SHARED = (1 << 31) - 1
"""The size of a dimension that has one entry for all."""
_SUM_WORDS = 10
"""Words of 64 bits that an entry's exact sum takes, see templates/common/lib/score_numbers.h."""
_SUMS_ANYWAY = 1 << 20
"""CPUs always sum gradients of up to this many entries exactly, so that results are bitwise
deterministic."""
_MARGIN = 128
"""Sums by distance before the first and behind the last, see templates/sm90a/lib/diagonals.cuh."""
_WIDE = {"int64", "uint32", "uint64"}
"""Integers that may not fit 32 bits."""
_TENSOR_CORES = ("sm_80", "sm_90a")
"""Targets whose kernels read the table of pairs in storage precision too."""
_HALVES, _TWOS, _EIGHTS, _ALONE, _HALF_GRADIENT = 1, 2, 4, 8, 16
"""Flags of `score_pairs`, see templates/common/gen/score.h.j2. The next one is TABLES_LEFT."""
_MAX_TEMPLATES = 256
"""Blocks that are kept to be used again."""
_ALIGNED = 16
"""Bytes: kernels know how a table is aligned up to these."""


class Table(NamedTuple):
    """The value of a slot in a call."""

    owner: Any
    """Keeps the memory alive."""
    lib: Library | None
    """None: a plain number."""
    view: Array | None
    number: float | int = 0


@dataclass(frozen=True, eq=False)
class _Gradient:
    """Destination of a table's gradient in a backward pass."""

    made: Any
    pointer: int
    sums: tuple[Any, int]
    entries: int
    halved: bool
    """Whether it is in storage precision."""


class _Remembered(NamedTuple):
    """The block of calls that only differ in where their tables lie."""

    block: bytes
    read: tuple[tuple[int, str], ...]
    """Tables: number of the slot, and name in the data of a call."""
    rest: tuple[str, ...]
    """The data of the mask."""
    blocks: dict[tuple[int, ...], bytes]
    """The blocks of the latest calls, by the addresses of tables."""

    def opened(self, call: AttentionCall) -> OpenedCall:
        """Fill in the block for a call."""
        data = call.data
        places = tuple([data[name].data_ptr() for _, name in self.read])
        block = self.blocks.get(places)
        if block is None:
            block = self._filled(places)
        rest = {name: data[name] for name in self.rest} if self.rest else _NOTHING
        return OpenedCall(call.with_data(rest), block, data)

    def _filled(self, places: tuple[int, ...]) -> bytes:
        """The block for tables at these addresses."""
        block = bytearray(self.block)
        for (number, _), place in zip(self.read, places, strict=True):
            _ADDRESS.pack_into(block, _TABLES + _ADDRESS.size * number, place)
        if len(self.blocks) >= _MAX_TEMPLATES:
            self.blocks.clear()
        made = self.blocks[places] = bytes(block)
        return made


_NOTHING: Mapping[str, Any] = {}
_ADDRESS, _TABLES = struct.Struct("Q"), SCORE.score_table.offset


class ScoreReader:
    """Gives kernels with a score formula its tables and parameters, see `mc.score`.

    Calls pass them by name, like the data of the mask: numbers, and arrays on the device of q of
    any floating dtype (kernels compute in fp32). Dimensions of size 1 and missing leading
    dimensions broadcast. Torch tensors that require grad get their gradient; a backward pass
    returns the gradients of all arrays that the call passed.
    """

    def __init__(self, inputs: Inputs, bundle: Bundle, target: Target, reads_data: bool) -> None:
        """`reads_data`: whether the mask reads data, and so says which of a call's are unknown."""
        self._target, self._reads_data = target, reads_data
        params = (name for name, _ in bundle.params)
        self._own = {decl.name for decl in bundle.data}.union(params, bundle.unread)
        self._reads = _indices(inputs.formula)
        pair, dtype = S.pair_read(inputs.formula.logit), bundle.problem.dtype
        self._pair = pair and next(x for x in inputs.formula.slots if x.name == pair.slot)
        """The table with an entry for each pair."""
        self._halves = dtype.value if target.name in _TENSOR_CORES and dtype.itemsize == 2 else ""
        """The dtype in which kernels read that table, apart from float32."""
        backward = [u for u in bundle.units if Direction.backward in u.directions]
        self._main_adds = (
            self._pair is not None
            and not bundle.parts
            and all(
                "#define ADDS_PAIRS 1" in unit.text
                for unit in backward
                if unit.target == target.name
            )
        )
        """Whether the main launch of any backward pass adds the gradients of that table."""
        self.by_distance = S.shift(inputs.formula.logit) is not None
        """Whether the formula reads tables by the distance of key and query alone."""
        self._templates: dict[object, bytes] = {}
        self._read(inputs)

    def _read(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._slots = dict(zip(inputs.names, inputs.formula.slots, strict=True))
        self._copies: dict[tuple[str, Device], tuple[np.ndarray, Any, int]] = {}
        self._narrow: dict[str, tuple[Any, object, Any]] = {}
        self._known: dict[object, _Remembered] = {}
        self.tensors = {name: x for name, x in inputs.captured.items() if hasattr(x, "data_ptr")}
        """Tensors of torch that the formula holds, by name."""

    def reading(self, inputs: Inputs) -> ScoreReader:
        """Return the formula with other names and arrays."""
        reader = copy(self)
        reader._read(inputs)
        return reader

    def present_tensors(self) -> dict[str, Any]:
        """`tensors` with their present content."""
        return {name: present(x) for name, x in self.tensors.items()}

    @property
    def identity(self) -> str:
        """A text that identifies the formula, see `CompiledMask.identity`.

        Captured arrays are identified by their address, because their contents may change.
        """
        held = [id(x) for name, x in self.inputs.captured.items() if name not in self.tensors]
        return str((self.inputs.names, dict(self.inputs.defaults), held))

    def opened(self, call: AttentionCall) -> OpenedCall:
        """Open a call, see `CallBlock`. Gradients have the shapes of the tables, in the order in
        which the formula reads them. They are fp32. The gradient of a bf16 table of pairs is bf16
        if no two pairs share an entry.

        Raises:
            DataMissing: a table is missing (MC301).
            DataUnknown: a keyword is neither an option nor named by mask or formula (MC302).
            ScoreTable: a table does not fit the formula (MC416).
            ScoreIndex: an index certainly exceeds its table (MC417).
            ScoreOption: softcap or alibi_slopes together with a formula (MC418).
        """
        if call.options.softcap is not None:
            raise ScoreOption("softcap=", "cap * tanh(s / cap)", at="softcap")
        if call.options.alibi_slopes is not None:
            raise ScoreOption("alibi_slopes=", "s - slopes[h] * abs(q - k)", at="alibi_slopes")
        q, k = call.q, call.k
        key = self._key(call)
        known = None if key is None else self._known.get(key)
        if known is not None:
            return known.opened(call)
        rest, tables = self._split(q, k, call.data)
        extents = _extents(q, k)
        made, sums = {}, (None, 0)
        if call.lse is not None:
            exactly = call.options.deterministic
            wanted = call.wanted
            if wanted is None:
                wanted = self._arrays(call.data, tables)
            made = {name: self._gradient(q, name, tables[name], extents, exactly)
                    for name in wanted}  # fmt: skip
            if made and not exactly:
                sums = self._diagonals(q, extents)
        block = self._block(extents, tables, made, sums[1])
        gradients = tuple(x.made for x in made.values())
        if key is not None and not made:
            self._remember(key, call.data, rest, tables, block)
        return OpenedCall(call.with_data(rest), block, (tables, made, sums), gradients)

    def _key(self, call: AttentionCall) -> object:
        """Everything that the block of a call depends on, except where its tables lie; None where
        that takes longer to tell than to fill in the block, and if tables get gradients."""
        q, k, data = call.q, call.k, call.data
        torch = torch_of(q)
        if torch is None or self.inputs.placed is not None:
            return None
        if call.lse is not None and (call.wanted or call.wanted is None):
            return None
        plain = torch.Tensor, torch.nn.Parameter
        if type(q) not in plain or type(k) not in plain:
            return None
        key: list[object] = [q.shape, k.shape, q.device]
        for name, x in data.items():
            key.append(name)
            if name not in self._slots:
                continue
            if type(x) is float or type(x) is int:
                key += type(x), x or repr(x)  # zeros have signs
            elif type(x) not in plain:
                return None
            else:
                try:
                    place = x.data_ptr() % _ALIGNED
                except RuntimeError:  # without memory, which is refused later
                    return None
                key += x.shape, x.stride(), x.dtype, x.device, place, x.is_neg()
        return tuple(key)

    def _remember(
        self, key: object, data: Mapping[str, Any], rest: Mapping[str, Any],
        tables: Mapping[str, Table], block: bytes,
    ) -> None:  # fmt: skip
        """Remember the block of a call whose kernels read its tables where they lie."""
        read: list[tuple[int, str]] = []
        for number, (name, table) in enumerate(tables.items()):
            if table.view is None:
                continue
            x: Any = data.get(name)
            if not hasattr(x, "data_ptr") or x.data_ptr() != table.view.pointer:
                return  # a copy, or an array of the formula's own
            read.append((number, name))
        if len(self._known) >= _MAX_TEMPLATES:
            self._known.clear()
        self._known[key] = _Remembered(block, tuple(read), tuple(rest), {})

    def wanted(self, call: AttentionCall) -> Sequence[str]:
        """Tables whose gradients a backward pass gives."""
        if call.wanted is not None:
            return call.wanted
        return self._arrays(call.data, self._split(call.q, call.k, call.data)[1])

    def _arrays(self, data: Mapping[str, Any], tables: Mapping[str, Table]) -> list[str]:
        """Tables that may be trained, of those that a call passes as arrays."""
        return [x for x in self.inputs.trainable if x in data and tables[x].view is not None]

    # -------------------------------------------------------------- what a call gives

    def _split(
        self, q: Any, k: Any, data: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Table]]:
        """The keywords of the mask, and the tables by the names of slots."""
        given = {name: x for name, x in data.items() if name not in self._slots}
        for name in given:
            if name not in self._own and not self._reads_data:
                raise unknown_keyword(name, [*self._slots, *self._own], CALL)
        for name in self._slots:
            if name in self._own and name in data:  # the mask reads it, too
                given[name] = data[name]
        held = self.inputs.captured
        if self.inputs.placed is not None:
            of_call = _extents(q, k)
            held = self.inputs.held(of_call["b"], of_call["h"], of_call["q"], of_call["k"])
        values = {**self.inputs.defaults, **held, **data}
        tables, here = {}, array_of(q, "q").device
        for name, slot in self._slots.items():
            if name not in values:
                raise DataMissing(name, f"the score formula reads {self.inputs.text}", at=name)
            tables[name] = self._table(q, k, here, name, slot, values[name])
        return given, tables

    def _table(self, q: Any, k: Any, here: Device, name: str, slot: Slot, x: Any) -> Table:
        if slot.rank == 0 and isinstance(x, (int, float, Real)) and not hasattr(x, "data_ptr"):
            return Table(x, None, None, _number(name, slot, x))
        if slot.rank == 0 and _is_number_of_host(x) and here != HOST:
            return Table(x, None, None, _number(name, slot, x.item()))
        if slot.integer and dtype_name(x) in _WIDE and array_of(x, name).device != HOST:
            x = self._narrowed(name, x)
        # Captured arrays of NumPy are copied to the device as words of four bytes.
        as_is = slot == self._pair and dtype_name(x) == self._halves and torch_of(x) is not None
        table = library(x.detach() if as_is else _converted(name, x, slot.integer), name)
        lib = LIBRARIES[type(table)]
        if getattr(x, "requires_grad", False) and lib is not library_of(type(q)):
            raise MixedLibraries("q", kind_of(q), name, kind_of(x), at=name)
        view = lib.view(table, name)
        wanted = "int32" if slot.integer else self._halves if as_is else "float32"
        text = self.inputs.text
        if view.dtype != wanted:
            raise ScoreTable(name, f"of {view.dtype}", wanted, text, at=name)
        if slot.rank == 0 and math.prod(view.shape) != 1:
            raise ScoreTable(name, f"of shape {view.shape}", "a single number", text, at=name)
        if len(view.shape) > slot.rank and slot.rank:
            expected = f"at most {slot.rank} dimensions"
            raise ScoreTable(name, f"of shape {view.shape}", expected, text, at=name)
        if 0 in view.shape and all(_extents(q, k).values()):
            raise ScoreTable(name, f"of shape {view.shape}", "entries", text, at=name)
        if name in self.inputs.captured and view.device == HOST != here and hasattr(x, "astype"):
            return self._moved(q, name, table, view, here)
        if view.device != here:
            raise WrongDevice(
                name, place_of(view.device), self._target.name, place_of(here), at=name
            )
        return Table(table, lib, view)

    def _narrowed(self, name: str, x: Any) -> Any:
        """Return integers on a device as int32. For a new tensor the host reads the minimum and
        maximum, and waits; not for the same tensor without writes in between.

        Raises:
            DataRange: one does not fit.
            IntegersUnread: nobody counts what is written into x, or the host cannot wait.
        """
        seen = LIBRARIES[type(library(x, name))].watch(x)
        known = self._narrow.get(name)
        if known is not None and known[0]() is x and known[1] == seen is not None:
            return known[2]
        torch, dtype = torch_of(x), dtype_name(x)
        waits = x.is_cuda and TORCH.lends(TORCH.stream(x.device.index)) if torch else False
        uncounted = seen is None or type(seen[1]) is not int
        if torch is None or uncounted or dtype == "uint64" or waits:
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
        if known is None or (known[0] is not x and not np.array_equal(known[0], x)):
            lib = LIBRARIES[type(library(q, "q"))]
            words = np.ascontiguousarray(x).view(np.int32).reshape(-1)
            kept = x.copy() if x.flags.writeable else x
            known = kept, *lib.send(q, words)
            if here[0] == "cpu" or not lib.lends(lib.stream(here[1])):
                self._copies[name, here] = known
        steps = contiguous(view.shape)
        return Table(known[1], None, Array(known[2], view.shape, steps, view.dtype, here))

    def _gradient(
        self, q: Any, name: str, table: Table, extents: Mapping[str, int], deterministic: bool
    ) -> _Gradient:
        """Cleared memory for the gradient of a table."""
        if table.view is None:
            raise BadOption(name, "an array, for its gradient", "a number", at=name)
        known = library(q, "q")
        lib, shape = LIBRARIES[type(known)], table.view.shape
        entries, alone = math.prod(shape), self._alone(name, shape, extents)
        # Gradients of pairs have this precision before they are added.
        halved = alone and self._main_adds and self._slots[name] == self._pair
        halved = halved and table.view.dtype == "bfloat16" and torch_of(known) is not None
        output = Output(shape, dtype="bfloat16") if halved else singles(*shape)
        made, pointer = zeros(lib, known, output)
        exactly = deterministic or (self._target.language == "c" and entries <= _SUMS_ANYWAY)
        sums: tuple[Any, int] = (None, 0)
        if exactly and not alone:
            sums = zeros(lib, known, singles(2 * _SUM_WORDS * entries))
        return _Gradient(made, pointer, sums, entries, halved)

    def _diagonals(self, q: Any, extents: Mapping[str, int]) -> tuple[Any, int]:
        """Return zeros for sums by distance, if tables get gradients by distance only."""
        if not self.by_distance or self._target.name != "sm_90a":
            return None, 0
        known, lines = library(q, "q"), extents["b"] * extents["h"]
        count = lines * (extents["n_q"] + extents["n_kv"] + 2 * _MARGIN)
        return zeros(LIBRARIES[type(known)], known, singles(count))

    def _alone(self, name: str, shape: tuple[int, ...], extents: Mapping[str, int]) -> bool:
        """Whether no two pairs add to the same entry: the table is read once, and each of q, k, h,
        b with several values is a plain index of its own dimension."""
        slot = self._slots[name]
        indices = [index for read, index in self._reads if read == slot.name]
        if len(indices) != 1:
            return False
        sizes = (1,) * (slot.rank - len(shape)) + shape
        bare = {symbol for symbol, size in zip(indices[0], sizes, strict=True) if size > 1}
        return all(extents[sym.name] <= 1 or sym in bare for sym in (E.Q, E.K, E.H, S.B))

    # -------------------------------------------------------------- the block

    def _block(
        self, extents: Mapping[str, int], tables: Mapping[str, Table],
        gradients: Mapping[str, _Gradient], diagonals: int,
    ) -> bytes:  # fmt: skip
        views = [table.view for table in tables.values()]
        key = (
            *extents.values(),
            *(
                view and (view.shape, view.strides, view.dtype, view.pointer % _ALIGNED)
                for view in views
            ),
        )
        template = self._templates.get(key)
        if template is None:
            template = bytes(self._template(extents, tables))
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        block = SCORE.from_buffer_copy(template)
        for number, (table, slot) in enumerate(
            zip(tables.values(), self._slots.values(), strict=True)
        ):
            if table.view is not None:
                block.score_table[number] = table.view.pointer
            elif slot.integer:
                block.score_integer[number] = int(table.number)
            else:
                block.score_number[number] = table.number
        if gradients:
            self._add_gradients(block, extents, tables, gradients)
            block.score_diagonals = diagonals
        return bytes(block)

    def _template(self, extents: Mapping[str, int], tables: Mapping[str, Table]) -> Any:
        """The block of calls whose tables have the same shapes and strides, without pointers and
        numbers."""
        block = SCORE()
        shapes: list[tuple[int, ...]] = []
        for number, (name, slot) in enumerate(self._slots.items()):
            view = tables[name].view
            if view is None:
                shapes.append(())
                continue
            missing = (1,) * (slot.rank - len(view.shape))
            shape = missing + view.shape if slot.rank else ()
            steps = (0,) * len(missing) + view.strides
            strides = (0,) * len(missing) + contiguous(view.shape)
            for axis, size in enumerate(shape):
                place = MAX_RANK * number + axis
                block.score_size[place] = _SHARED if size == 1 else size
                block.score_step[place] = 0 if size == 1 else steps[axis]
                block.score_gradient_step[place] = 0 if size == 1 else strides[axis]
            if slot == self._pair:
                block.score_pairs = self._pairs(view)
            shapes.append(shape)
        self._check_indices(extents, tuple(shapes))
        return block

    def _add_gradients(
        self,
        block: Any,
        extents: Mapping[str, int],
        tables: Mapping[str, Table],
        gradients: Mapping[str, _Gradient],
    ) -> None:
        for number, (name, slot) in enumerate(self._slots.items()):
            gradient, view = gradients.get(name), tables[name].view
            if gradient is None or view is None:
                continue
            block.score_gradient[number] = gradient.pointer
            block.score_sums[number] = gradient.sums[1]
            block.score_entries[number] = gradient.entries
            if slot == self._pair and self._alone(name, view.shape, extents):
                block.score_pairs |= _ALONE + _HALF_GRADIENT * gradient.halved
            if not (slot == self._pair and self._main_adds) or gradient.sums[1]:
                block.score_pairs |= TABLES_LEFT

    def _pairs(self, view: Array) -> int:
        """The flags that say how kernels read the table with an entry for each pair."""
        halves = view.dtype == self._halves
        if view.strides[-1:] != (1,) or view.shape[-1] == 1:
            return _HALVES * halves
        size, outer = (2 if halves else 4), view.strides[:-1]

        def aligned(entries: int) -> bool:
            even = view.pointer % (entries * size) == 0
            return even and not any(step % entries for step in outer)

        return _HALVES * halves + _TWOS * aligned(2) + _EIGHTS * (halves and aligned(8))

    def _check_indices(
        self, extents: Mapping[str, int], shapes: tuple[tuple[int, ...], ...]
    ) -> None:
        """Raise an error for indices that exceed their table whatever the mask keeps: indices that
        depend on q, k, h or b alone take all values in every call.
        """
        numbers = {slot.name: n for n, slot in enumerate(self.inputs.formula.slots)}
        names = dict(zip(numbers, self.inputs.names, strict=True))
        if all(extents[symbol] for symbol in "qkhb"):
            for slot, index in self._reads:
                for axis, index_expr in enumerate(index):
                    size = shapes[numbers[slot]][axis]
                    if size == 1 or len(_symbols(index_expr)) > 1:
                        continue
                    low, high = of_whole(index_expr, extents)
                    if math.isfinite(high) and not -size <= low <= high < size:
                        text = S.to_score_text(index_expr)
                        reach = f"{low:.0f} to {high:.0f}"
                        raise ScoreIndex(names[slot], size, axis, text, reach, at=names[slot])


def _extents(q: Any, k: Any) -> dict[str, int]:
    """Queries, keys, heads and sequences of a call."""
    check_ranks(q, k)
    batch, heads, n_q, _ = map(int, q.shape)
    n_kv = int(k.shape[2])
    return {"q": n_q, "k": n_kv, "h": heads, "b": batch, "n_q": n_q, "n_kv": n_kv}


def _indices(formula: S.Formula) -> tuple[tuple[str, tuple[E.Expr, ...]], ...]:
    """Every entry that a formula reads: slot and index, each once."""
    nodes = (node for node in E.walk(formula.logit) if isinstance(node, (S.Read, S.Entry)))
    return tuple((node.slot, node.index) for node in dict.fromkeys(nodes) if node.index)


def _symbols(index: E.Expr) -> set[object]:
    """Return the variables that an index depends on, lengths aside."""
    kinds = (E.Sym, S.Entry, S.Score, S.Read)
    return {
        node for node in E.walk(index) if isinstance(node, kinds) and node not in (E.N_Q, E.N_KV)
    }


def _number(name: str, slot: Slot, x: Any) -> float | int:
    if slot.integer:
        number = plain_integer(x)
        if number is None:
            raise BadOption(name, "an integer", repr(x), at=name)
        if abs(number) > _SHARED:
            raise BadOption(name, "an integer of 32 bits", repr(x), at=name)
        return number
    if not math.isfinite(x) or not math.isfinite(ctypes.c_float(float(x)).value):
        raise BadOption(name, "a finite number", repr(x), at=name)
    return float(x)


def _is_number_of_host(x: Any) -> bool:
    """Whether it is a torch tensor without dimensions that the host holds, as compilers make of
    numbers; it has no gradient there."""
    on_host = getattr(getattr(x, "device", None), "type", "") == "cpu"
    return on_host and x.ndim == 0 and not getattr(x, "requires_grad", True)


def _converted(name: str, x: Any, integer: bool) -> Any:
    """The array in the dtype that kernels read; itself where it has that.

    Raises:
        DataRange: an integer on the host does not fit 32 bits.
    """
    dtype = dtype_name(x)
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
