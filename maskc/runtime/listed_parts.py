"""Plan passes in parts over the rows of listed tokens: which rows are packed, which kernels run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.abi import ATTENTION, POINTERS
from maskc.core.bundle import OF_KEYS, Bundle, LayoutRecipe, SourceUnit, TileLoop
from maskc.core.data import DataDecl
from maskc.core.errors import NotRecorded
from maskc.core.listed import Listed
from maskc.core.problem import Direction, Feature, Features, TileShape
from maskc.core.sizes import Sizes
from maskc.core.tensors import PAPER, Array, Device, Output, Shape, singles
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.launch_plan import with_workspace
from maskc.dispatch.listed_split import (
    ListedLines,
    is_thin,
    listed_in_turn,
    of_all,
    tokens_of,
    whole_facts,
)
from maskc.dispatch.packing import packed
from maskc.dispatch.programs import Emitted, Facts, Launched, in_parts
from maskc.dispatch.tables import per_head
from maskc.runtime.arrays.known import library_of
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, words_of_results
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.cuda import CudaKernel, host_word
from maskc.runtime.launch.listed import (
    ALIGNED,
    DELTA,
    EMPTY_LSE,
    FLAG_BYTES,
    HIDE,
    NOWHERE,
    PACK,
    UNPACK,
    Address,
    Flags,
    HostMoves,
    ListedRowsPlan,
    Making,
    Moved,
    Part,
    Tensor,
    flags_numbers,
    lists_plan,
    moves,
    packed_strides,
    steps_of,
)

_WHOLE: Features = frozenset({Feature.entmax})
"""Features of passes that run as a whole: results of entmax cannot be merged by log-sum-exp."""
_FORWARD = 3
"""The most outputs of a forward pass."""
_SINGLE = 4
"""Bytes of an fp32 number."""
_SIDES = "qk"
_READ = {
    ("k", Direction.forward): ("k", "v"),
    ("k", Direction.backward): ("k", "v"),
    ("q", Direction.forward): ("q",),
    ("q", Direction.backward): ("q", "dout", "out", "lse"),
}
"""Rows that are packed before all launches, by side and pass."""
_MADE = {
    ("k", Direction.forward): (),
    ("k", Direction.backward): ("dk", "dv"),
    ("q", Direction.forward): ("out", "lse"),
    ("q", Direction.backward): ("dq",),
}
"""Packed rows that a launch writes."""


class _Over(NamedTuple):
    """A part over listed rows at the lengths of a call."""

    number: int
    listed: Listed
    tokens: np.ndarray
    """int32 [sequences or 1, most]; any where the device makes the list."""
    lists: int
    """Sequences with lists of their own, or 1."""

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[1])


class _Run(NamedTuple):
    """A launch of a call that runs over listed rows."""

    built: BuiltBundle
    source: SourceUnit
    """The first of its choice."""
    program: Emitted
    wanted: Pass
    bound: Bound
    place: Place


class ListedParts:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(
        self, whole: BuiltBundle, parts: tuple[BuiltBundle, ...], binder: Binder,
        in_parts: bool | None,
    ) -> None:  # fmt: skip
        self._whole, self._parts, self._in_parts = whole, parts, in_parts
        self._moving = whole.bundle.moving_source(whole.target.name)
        movable = self._moving is not None or whole.target.language == "c"
        self.active = bool(parts) and movable and any(p.listed for p in whole.bundle.parts)
        """Whether the mask has such parts."""
        self._listing = _listing(whole.bundle)
        self._flags = _flags_of(whole.bundle) if self.active and self._moving else {}
        self.on_device = bool(self._flags) and in_parts is not False
        """Whether the device may build the lists, from flags with a declared upper bound."""
        self.alignment = whole.target.alignment(whole.bundle.problem.dtype)
        """Bytes to whose multiples rows are aligned."""
        self._binder = binder
        self._report = cache(host_word)  # of a device
        self._open: dict[int, BuiltBundle] = {}

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters of a call, and its flags; None if the host is to read them.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        whole = asked.options.features & _WHOLE
        if whole or asked.empty or os.environ.get("MASKC_CHECK") == "1":
            return None
        keywords = asked.keywords
        lists_by_side: dict[str, Array | None] = dict.fromkeys(_SIDES)
        for side, decl in self._flags.items():
            lists_by_side[side] = _flags_on(
                asked.device, keywords.get(decl.name), side, decl, asked.sizes
            )
            if lists_by_side[side] is None:
                return None
        given = Flags((lists_by_side["q"], lists_by_side["k"]), Watched.of(asked.data, asked.held))
        params = self._binder.parameters(keywords)
        return Bound(params, {}, (tuple(params.values()), given.key), given)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...], measured: bool | None = None,
    ) -> ListedRowsPlan | None:  # fmt: skip
        """Plan a pass over some tokens, None to run it whole; arguments as in SourceSelector.plan.

        A list has the same tokens for all heads, so flags by head run whole.

        Args:
            measured: whether parts were measured to be faster; None without a measurement.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        sizes = place.sizes
        if wanted.features & _WHOLE or not sizes.n_kv or per_head(bound.arrays, self._listing):
            return None
        over = [
            self._over(number, part.listed, sizes, bound)
            for number, part in enumerate(self._whole.bundle.parts)
            if part.listed is not None
        ]
        planning = _Planning(self, wanted, bound, place, outputs, over)
        if (
            bound.given is None
            and not measured
            and not self._taken(planning, over, unit, wanted, bound, place)
        ):
            return None
        return planning.plan()

    def _over(self, number: int, listed: Listed, sizes: Sizes, bound: Bound) -> _Over:
        """A part at the lengths of a call, with its tokens where the host knows them."""
        if bound.given is None:
            tokens = tokens_of(listed, sizes.n_q, sizes.n_kv, bound.params, bound.arrays)
            return _Over(number, listed, tokens, len(tokens))
        length = sizes.n_q if listed.side == "q" else sizes.n_kv
        array = bound.given.sources[_SIDES.index(listed.side)]
        room = min(self._flags[listed.side].most or length, length)
        lists = 1 if array is None or len(array.shape) == 1 else array.shape[0]
        return _Over(number, listed, np.full((1, room), length - 1, np.int32), lists)

    def making(
        self, kernel: CudaKernel, given: Flags, over: Mapping[str, _Over],
        take: Callable[[int], Address], outputs: tuple[Output, ...], device: int,
    ) -> Making:  # fmt: skip
        """Return how the device builds the lists of a plan, in a workspace allocated by `take`."""
        backward = len(outputs) > _FORWARD
        room = [over[side].rows if side in over else 0 for side in _SIDES]
        lists = [over[side].lists if side in over else 0 for side in _SIDES]
        places = [take(_SINGLE * count * width) for count, width in zip(lists, room, strict=True)]
        results = ("dq", "dk", "dv", "dsink", "dslopes") if backward else ("out", "lse")
        itemsize = self._whole.bundle.problem.dtype.itemsize
        words = words_of_results(outputs, backward, itemsize, len(results))
        numbers = flags_numbers(given, (lists[0], lists[1]), (room[0], room[1]), words)
        return Making(
            next(iter(self._flags.values())).name, kernel,
            steps_of(kernel, "list_tokens", sum(lists)), steps_of(kernel, "spoil_results"), numbers,
            (places[0], places[1]), take(_SINGLE * sum(lists)), self._report(device),
            tuple(map(POINTERS.index, results)),
        )  # fmt: skip

    def _taken(
        self, planning: _Planning, lists: list[_Over], unit: SourceUnit, wanted: Pass,
        bound: Bound, place: Place,
    ) -> bool:  # fmt: skip
        """Decide by predicted time whether a pass runs in parts. If sequences have separate lists,
        the prediction ignores the lists; otherwise the other sequences of a batch could change the
        decision."""
        if self._in_parts is not None:
            return self._in_parts
        sizes = place.sizes
        variants = [part.bundle.variants[0] for part in self._parts]
        read = {name for over in lists for name in E.arrays(variants[over.number].keep)}
        flags = {name: bound.arrays[name] for name in sorted(read & set(bound.arrays))}
        sequences = [over.lists for over in lists] + [len(np.atleast_2d(x)) for x in flags.values()]
        if max(sequences) > 1:
            return is_thin(variants[0].recipe(unit.tile), bound.params, sizes.n_q, sizes.n_kv)
        flags = {name: np.atleast_2d(x)[0] for name, x in flags.items()}
        lines = [
            ListedLines(over.listed, variants[over.number].keep, over.tokens[0]) for over in lists
        ]
        lengths = sizes.n_q, sizes.n_kv, wanted.direction

        def facts(source: SourceUnit) -> Facts:
            return whole_facts(
                variants[0].recipe(source.tile), lines, bound.params, *lengths, flags
            )

        def parts(whole: Emitted) -> Emitted:
            launches = (Launched(run.program) for run in planning.runs.values())
            return in_parts(whole, launches, sizes, wanted.deterministic)

        return self._whole.selector.compare(unit, wanted, place, facts, parts).runs_in_parts

    def built(self, number: int, known: bool = True) -> BuiltBundle:
        """A part's sources; `known` tells whether the host knows the tokens."""
        part = self._parts[number]
        if known or not _reads_tokens(part.bundle):
            return part
        if number not in self._open:
            self._open[number] = BuiltBundle(_undecided(part.bundle), part.target, part.kernels)
        return self._open[number]

    def mover(self, device: int) -> CudaKernel | HostMoves:
        if self._moving is None:
            if device >= PAPER:
                raise NotRecorded("the host moves rows of listed tokens")
            return HostMoves()
        return self._whole.kernels.on_device(self._moving, "default", frozenset(), device)


class _Planning:
    """One plan while it is made."""

    def __init__(
        self, owner: ListedParts, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...], lists: list[_Over],
    ) -> None:  # fmt: skip
        self.owner, self.wanted, self.bound = owner, wanted, bound
        self.place, self.outputs = place, outputs
        self.sizes, self.direction = place.sizes, wanted.direction
        self.over = {over.listed.side: over for over in lists if over.rows}
        problem = owner.built(0).bundle.problem
        self.dim, self.dim_v = problem.head_dim, problem.head_dim_v
        self.itemsize = problem.dtype.itemsize
        self.room = 0
        """Bytes of the workspace that packed rows take."""
        self.rows: dict[tuple[str, str], Tensor] = {}
        """Packed rows by side and tensor."""
        self.hidden: Tensor | None = None
        """An lse in which listed queries have no key."""

    def plan(self) -> ListedRowsPlan:
        backward = self.direction is Direction.backward
        for side in self.over:
            for name in (*_READ[side, self.direction], *_MADE[side, self.direction]):
                self.rows[side, name] = self._packed(side, name)
        if backward and "q" in self.over:
            self.hidden = Tensor(self._take(_SINGLE * self._count("lse")), self._strides("lse"))
        kernel = self.owner.mover(self.wanted.device[1])
        unit = self.owner.alignment
        making = None
        if self.bound.given is not None and isinstance(kernel, CudaKernel):
            making = self.owner.making(
                kernel, self.bound.given, self.over, self._take, self.outputs, self.wanted.device[1]
            )
        lists = [self.over[side].tokens if side in self.over else np.zeros((1, 0), np.int32)
                 for side in _SIDES]  # fmt: skip
        shared = tuple(side not in self.over or self.over[side].lists == 1 for side in _SIDES)
        steps: list[Part | list[Moved]] = [self._before()]
        for side, run in self.runs.items():
            if backward and side == "k":  # what the other launches gave these keys is added to
                steps.append([self._moved(PACK, "k", name) for name in _MADE["k", self.direction]])
            steps.append(self._launch(side, run))
        steps.append([
            self._moved(UNPACK, side, name)
            for side in self.over for name in _MADE[side, self.direction]
        ])  # fmt: skip
        made = tuple(
            step if isinstance(step, Part) else moves(step, self.sizes, shared, kernel, unit)
            for step in steps
            if step
        )
        at = 3 if backward else 2
        spaces = [
            step.plan.outputs[at].shape[0]
            for step in made
            if isinstance(step, Part) and len(step.plan.outputs) > at
        ]
        floats = self.room // _SINGLE + max(spaces, default=0)
        outputs = (
            with_workspace(self.outputs, floats) if backward
            else (*self.outputs[:2], singles(floats))
        )  # fmt: skip
        plans = lists_plan(self.direction, kernel, self.wanted.device, lists)
        return ListedRowsPlan(plans, made, outputs, making)

    @cached_property
    def runs(self) -> dict[str, _Run]:
        """The launches in order, by the side of their rows; "" is the one over all rows."""
        order = listed_in_turn(self.direction)
        return {
            side: self._run(side, adds) for side, adds in order if not side or side in self.over
        }

    # ------------------------------------------------------------ memory

    def _take(self, size: int) -> Address:
        start = self.room
        self.room += -(-size // ALIGNED) * ALIGNED
        return Address(DELTA, start)

    def _width(self, name: str) -> int:
        """Elements of a tensor's row."""
        if name == "lse":
            return 1
        return self.dim_v if name in ("v", "dv", "out", "dout") else self.dim

    def _bytes(self, name: str) -> int:
        return _SINGLE if name == "lse" else self.itemsize

    def _heads(self, name: str) -> int:
        return self.sizes.heads_kv if name in OF_KEYS else self.sizes.heads_q

    def _count(self, name: str) -> int:
        """Rows of a tensor of the call, in all."""
        tokens = self.sizes.n_kv if name in OF_KEYS else self.sizes.n_q
        return self.sizes.batch * self._heads(name) * tokens

    def _packed(self, side: str, name: str) -> Tensor:
        rows, heads, width = self.over[side].rows, self._heads(name), self._width(name)
        size = self.sizes.batch * heads * rows * width * self._bytes(name)
        return Tensor(self._take(size), packed_strides(heads, rows, width))

    def _strides(self, name: str) -> Shape:
        return self.place.strides[name][:3]

    def _given(self, name: str) -> Tensor:
        return Tensor(Address(POINTERS.index(name)), self._strides(name))

    # ------------------------------------------------------------ steps

    def _moved(self, way: int, side: str, name: str, empty: bool = False) -> Moved:
        """Rows between a tensor of the call and packed ones."""
        whole, rows = self._given(name), self.rows[side, name]
        source, to = (rows, whole) if way == UNPACK else (whole, rows)
        count = self.over[side].rows
        return Moved(
            way, Tensor(NOWHERE, source.strides) if empty else source, to, _SIDES.index(side),
            self._heads(name), count, count, self._width(name) * self._bytes(name),
            self._bytes(name), EMPTY_LSE if name == "lse" else 0,
        )  # fmt: skip

    def _before(self) -> list[Moved]:
        """Return the rows to pack first."""
        moves = [
            self._moved(PACK, side, name)
            for side in self.over for name in _READ[side, self.direction]
        ]  # fmt: skip
        if self.hidden is not None:
            moves.append(self._moved(PACK, "q", "dq", empty=True))  # is added to
            moves.append(Moved(
                HIDE, self._given("lse"), self.hidden, 0, self.sizes.heads_q, self.sizes.n_q,
                self.over["q"].rows, _SINGLE, _SINGLE, EMPTY_LSE,
            ))  # fmt: skip
        return moves

    def _run(self, side: str, accumulates: bool) -> _Run:
        """The launch over the packed rows of one side, or over all rows, by its best program."""
        over = self.over.get(side)
        features: Features = self.wanted.features - ({Feature.sinks} if side == "k" else set())
        wanted = replace(self.wanted, features=features)
        sizes, strides, arrays = self.sizes, dict(self.place.strides), self.bound.arrays
        if over is not None:
            sizes = replace(sizes, **{"n_q" if side == "q" else "n_kv": over.rows})
            tokens = over.tokens if len(over.tokens) > 1 else over.tokens[0]  # sequences alike
            arrays = {**arrays, over.listed.array: tokens}
            for name in (*_READ[side, self.direction], *_MADE[side, self.direction]):
                strides[name] = packed_strides(self._heads(name), over.rows, self._width(name))
        n_q, n_kv = self.sizes.n_q, self.sizes.n_kv
        params: Mapping[str, int] = {**self.bound.params, **of_all(n_q, n_kv)}
        bound = replace(self.bound, params=params, arrays=arrays, key=(self.bound.key, n_q, n_kv))
        number, known = 0 if over is None else over.number, self.bound.given is None
        built = self.owner.built(number, known)
        source = built.selector.source(self.direction, features)
        place = Place(
            sizes, strides, shift=None if over is None else n_kv - n_q, accumulates=accumulates
        )
        program = built.selector.choose(source, wanted, bound, place)
        return _Run(built, source, program, wanted, bound, place)

    def _launch(self, side: str, run: _Run) -> Part:
        """The plan of a launch, with where its tensors are."""
        over, (built, source, program, wanted, bound, place) = self.over.get(side), run
        fit = packed(built.bundle, source, wanted, bound, place) if side == "q" else None
        program, place = fit or (program, place)
        instead = {DELTA: Address(DELTA, self.room)}
        for (owner, name), rows in self.rows.items():
            if owner == side:
                instead[POINTERS.index(name)] = rows.at
        if side != "q" and self.hidden is not None:
            instead[POINTERS.index("lse")] = self.hidden.at
        if side == "k":
            instead |= {POINTERS.index(name): NOWHERE for name in ("sink_logits", "dsink")}
        part_outputs = self.outputs
        if self.direction is Direction.forward:
            part_outputs = (self.outputs[0], singles(0))
        plan = built.plan(program, wanted, bound, place, part_outputs)
        reads = None if over is None else _SIDES.index(side)
        if self.bound.given is not None and over is not None and over.lists > 1:
            block = ATTENTION.from_buffer_copy(plan.numbers)
            block.array_batch[built.bundle.arrays.index(over.listed.array)] = over.rows
            plan = replace(plan, numbers=bytes(block))
        return Part(plan, tuple(sorted(instead.items())), reads)


def _listing(bundle: Bundle) -> tuple[DataDecl, ...]:
    """Return the data that list the tokens."""
    read = {name for part in bundle.parts if part.listed for name in E.arrays(part.listed.among)}
    return tuple(decl for decl in bundle.data if read.intersection(decl.arrays))


def _flags_of(bundle: Bundle) -> dict[str, DataDecl]:
    """By side the flags that a list is made of; empty if not all of them promise how many there
    are."""
    flags = {}
    for part in bundle.parts:
        if part.listed is not None:
            read = E.arrays(part.listed.among)
            decls = [decl for decl in bundle.data if set(read).intersection(decl.arrays)]
            if len(decls) != 1 or decls[0].most is None:
                return {}
            flags[part.listed.side] = decls[0]
    return flags


def _flags_on(device: Device, value: Any, side: str, decl: DataDecl, sizes: Sizes) -> Array | None:
    """Flags that kernels can read where they are, of the queries or keys of a call."""
    library = library_of(type(value))
    if library is None or type(value) is np.ndarray:
        return None
    array = library.view(value, decl.name)
    length = sizes.n_q if side == "q" else sizes.n_kv
    known = {length, max(sizes.n_q, sizes.n_kv)} if side == "q" else {length}
    shape = array.shape
    if array.device != device or array.dtype not in FLAG_BYTES or len(shape) not in (1, 2):
        return None
    if shape[-1] not in known or (len(shape) == 2 and shape[0] != sizes.batch):
        return None
    first = 0 if decl.from_start else shape[-1] - length
    start = array.pointer + first * array.strides[-1] * FLAG_BYTES[array.dtype]
    return array._replace(pointer=start, shape=(*shape[:-1], length))


def _undecided(bundle: Bundle) -> Bundle:
    """The mask with every tile live and partial: any tokens may be listed."""
    variants = tuple(
        replace(variant, recipes=tuple(
            LayoutRecipe(recipe.tile, E.ALWAYS, (_all_tiles(recipe.tile),))
            for recipe in variant.recipes
        ))
        for variant in bundle.variants
    )  # fmt: skip
    return replace(bundle, variants=variants)


def _reads_tokens(bundle: Bundle) -> bool:
    """Whether the live tiles depend on the listed tokens."""
    return any(E.arrays(variant.keep) for variant in bundle.variants)


def _all_tiles(tile: TileShape) -> TileLoop:
    last = E.floordiv(E.sub(E.N_KV, E.const(1)), tile.k) if tile.k > 1 else E.N_KV
    return TileLoop(E.ALWAYS, E.ZERO, last, 1, False)
