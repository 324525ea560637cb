"""The plan of a sequence that several ranks share: who holds what, and who sends what to whom.

No GPU and no torch: a plan for 4096 ranks is made on a laptop. Everything follows from the mask:
the keys that a rank's queries see, less those that it holds, are its halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import lcm
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from maskc.core.captured import Held
from maskc.core.data import CuSeqlens, Parents
from maskc.core.dtypes import DType
from maskc.core.errors import LayerUnknown, PlanArgument, PlanData
from maskc.core.layout import MAX_LENGTH
from maskc.core.selection import SCORING
from maskc.core.selection import Score as ByScore
from maskc.core.source import caller
from maskc.distributed import layouts, shards
from maskc.distributed import plan_report as report
from maskc.distributed.costs import shares
from maskc.distributed.layouts import LAYOUTS, TokenLayout
from maskc.distributed.moving import moved
from maskc.distributed.network import Network, network_of
from maskc.distributed.pieces import FEW
from maskc.distributed.reach import Reach, granularity, reach_of
from maskc.distributed.setting import HeadSizes, Setting
from maskc.distributed.times import Times, by_calls, by_tiles
from maskc.distributed.token_ranges import RangeSets, union
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK, data_of_calls, default_parameters, structure, walk
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.slots import emptied
from maskc.layout import to_host

if TYPE_CHECKING:
    from maskc.distributed.work import RankWork

T = TypeVar("T")
_WORTH = 0.95
"""A layout with more pieces is taken where it takes less than this share of a simpler one's."""


@dataclass(frozen=True)
class Transfer:
    """Tokens start .. stop - 1, whose keys and values one rank sends to another."""

    sender: int
    receiver: int
    start: int
    stop: int


@dataclass(frozen=True)
class Visit:
    """Queries start .. stop - 1, which go to the ranks that hold their keys."""

    home: int
    """The rank whose keys they are."""
    start: int
    stop: int
    keys: tuple[tuple[int, int], ...]
    """The keys that they see, as ranges."""


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """One mask on one layout of tokens."""

    mask: Mask
    layout: TokenLayout
    block: int
    reach: Reach
    moved: tuple[int, ...] = ()
    """Blocks of queries that go to their keys, ascending; the keys of all others come to them."""
    held: Held | None = None
    """The content of the tensors that the mask captured, as `reach` has it; None where nobody can
    write into them."""

    @cached_property
    def ranking(self) -> tuple[str, ...]:
        """The tensors by which the mask chooses keys: each call gives its rank's tokens of them."""
        return _ranking(self.mask)

    @cached_property
    def block_rank(self) -> np.ndarray:
        """int64 [blocks]: who holds each block of queries."""
        first = np.arange(len(self.reach.keys)) * self.block
        return np.asarray(self.layout.owner[self.layout.chunk(first)])

    @cached_property
    def stays(self) -> np.ndarray:
        """bool [blocks]: whether the keys of a block of queries come to it."""
        stays = np.ones(len(self.reach.keys), bool)
        stays[list(self.moved)] = False
        return stays

    @cached_property
    def visits(self) -> tuple[Visit, ...]:
        """The moved blocks, those next to each other together."""
        visits, keys, edges = [], self.reach.keys, self.layout.edges.tolist()
        for run in _runs(self.moved):
            start, stop = run[0] * self.block, min((run[-1] + 1) * self.block, self.layout.n)
            part = slice(int(keys.ptr[run[0]]), int(keys.ptr[run[-1] + 1]))
            seen = keys.start[part], keys.stop[part]
            ranges = union(keys.n, 1, np.zeros_like(seen[0]), *seen).of(0)
            for low, high, home in zip(edges, edges[1:], self.layout.owner.tolist(), strict=False):
                first, last = max(start, low), min(stop, high)
                if first < last:
                    visits.append(Visit(home, first, last, tuple(ranges)))
        return tuple(visits)

    @cached_property
    def hosts(self) -> dict[int, tuple[int, np.ndarray]]:
        """Which ranks the queries that move go to, by home: (how many queries, int64 [hosts], the
        ranks that hold keys of them, which may include the home)."""
        hosts, chunk = {}, self.layout.chunk
        for home in dict.fromkeys(visit.home for visit in self.visits):
            visits_home = [visit for visit in self.visits if visit.home == home]
            keys = [x for visit in visits_home for x in visit.keys]
            chunks = (slice(int(chunk(low)), int(chunk(high - 1)) + 1) for low, high in keys)
            held = np.unique(np.concatenate([self.layout.owner[piece] for piece in chunks]))
            hosts[home] = sum(visit.stop - visit.start for visit in visits_home), held
        return hosts

    def hosted(self, cycles: np.ndarray) -> np.ndarray:
        """float [ranks]: what hosts have of the moved blocks' cycles [blocks], by their keys."""
        cycles_by_rank = np.zeros(self.layout.ranks)
        edges = self.layout.edges
        for visit in self.visits:
            held = np.zeros(self.layout.ranks)
            for low, high in visit.keys:
                tokens = np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1])
                held += np.bincount(self.layout.owner, tokens.clip(0), len(held))
            cost = cycles[visit.start // self.block : -(-visit.stop // self.block)].sum()
            cycles_by_rank += cost * held / max(1.0, held.sum())
        return cycles_by_rank

    def visiting(self, row_bytes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """int64 [ranks] each: bytes that ranks send and receive for visits, from those that a row
        takes to a host and back."""
        sent, received = np.zeros((2, self.layout.ranks), np.int64)
        there, back = row_bytes
        for home, (rows, hosts) in self.hosts.items():
            others = hosts[hosts != home]
            sent[others] += rows * back
            received[others] += rows * there
            sent[home] += len(others) * rows * there
            received[home] += len(others) * rows * back
        return sent, received

    @cached_property
    def needs(self) -> RangeSets:
        """The keys that each rank's queries see, without those that go to their keys."""
        keys = self.reach.keys
        stays = self.stays[keys.owner]
        owner = self.block_rank[keys.owner[stays]]
        ranges = keys.start[stays], keys.stop[stays]
        return union(self.layout.n, self.layout.ranks, owner, *ranges)

    @cached_property
    def halo(self) -> RangeSets:
        """The keys of `needs` that a rank does not hold: they travel to it, and their gradients
        back."""
        return self.needs.without(self.layout.own)

    @property
    def scattered(self) -> np.ndarray:
        """bool [ranks]: whether what comes is in so many stretches that they are put in place one
        by one, into a buffer that is cleared."""
        return np.diff(self.halo.ptr) > FEW

    @property
    def span(self) -> np.ndarray:
        """int64 [ranks]: tokens from the first to the last one that a rank needs."""
        needs, some = self.needs, np.diff(self.needs.ptr) > 0
        spans = np.zeros(self.layout.ranks, np.int64)
        spans[some] = needs.stop[needs.ptr[1:][some] - 1] - needs.start[needs.ptr[:-1][some]]
        return spans

    @cached_property
    def inner(self) -> np.ndarray:
        """bool [blocks]: whether the stretch of tokens that a block is in has all its keys."""
        keys, ranges = self.reach.keys, self.layout.own
        start, stop = ranges._flat()
        first = np.arange(len(keys)) * self.block + self.block_rank * (self.layout.n + 1)
        place = np.searchsorted(start, first, side="right") - 1
        shift = self.block_rank[keys.owner] * (self.layout.n + 1)
        home = place[keys.owner]
        away = (start[home] > keys.start + shift) | (stop[home] < keys.stop + shift)
        is_inner: np.ndarray = np.bincount(keys.owner, away, minlength=len(keys)) == 0
        return is_inner

    @cached_property
    def sent(self) -> np.ndarray:
        """int64 [ranks]: tokens that each rank sends, once for every receiver."""
        ends = np.sort(self.halo.stop)
        begins = np.sort(self.halo.start)
        begun = np.concatenate([[0], np.cumsum(begins)])
        ended = np.concatenate([[0], np.cumsum(ends)])

        def covered(x: np.ndarray) -> np.ndarray:
            """Tokens below x of all ranges together."""
            first, last = np.searchsorted(begins, x), np.searchsorted(ends, x)
            covered: np.ndarray = (first * x - begun[first]) - (last * x - ended[last])
            return covered

        ranges = self.layout.own
        sums = np.concatenate([[0], np.cumsum(covered(ranges.stop) - covered(ranges.start))])
        counts: np.ndarray = sums[ranges.ptr[1:]] - sums[ranges.ptr[:-1]]
        return counts

    @property
    def received(self) -> np.ndarray:
        """int64 [ranks]: tokens of each rank's halo."""
        return self.halo.tokens

    def receives(self, rank: int) -> list[Transfer]:
        """Return the transfers that a rank receives, by senders and then by tokens."""
        transfers = []
        edges, owner = self.layout.edges, self.layout.owner
        for start, stop in self.halo.of(rank):
            first = int(self.layout.chunk(start))
            while start < stop:
                end = min(stop, int(edges[first + 1]))
                transfers.append(Transfer(int(owner[first]), rank, start, end))
                start, first = end, first + 1
        return _joined(transfers)

    def sends(self, rank: int) -> list[Transfer]:
        """Return the transfers that a rank sends, by receivers and then by tokens."""
        transfers = []
        halo, owners = self.halo, self.halo.owner
        for begin, end in self.layout.own.of(rank):
            for place in np.flatnonzero((halo.start < end) & (halo.stop > begin)).tolist():
                start, stop = int(halo.start[place]), int(halo.stop[place])
                transfers.append(
                    Transfer(rank, int(owners[place]), max(start, begin), min(stop, end))
                )
        return _joined(transfers)

    @property
    def travels(self) -> bool:
        """Whether any rank needs anything of another."""
        return len(self.halo.start) > 0 or bool(self.moved)

    @cached_property
    def at_home(self) -> LayerPlan:
        """This layer with every query at home."""
        return replace(self, moved=()) if self.moved else self


def _runs(blocks: Sequence[int]) -> list[list[int]]:
    """Ascending numbers, those next to each other together."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][-1] == block - 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def _joined(transfers: list[Transfer]) -> list[Transfer]:
    """Sort transfers and join ranges that touch."""
    made: list[Transfer] = []
    for transfer in sorted(transfers, key=lambda x: (x.sender, x.receiver, x.start)):
        last = made[-1] if made else None
        pair = last is not None and (last.sender, last.receiver) == (
            transfer.sender,
            transfer.receiver,
        )
        if last is not None and pair and last.stop == transfer.start:
            made[-1] = replace(last, stop=transfer.stop)
        else:
            made.append(transfer)
    return made


@dataclass(frozen=True, eq=False)
class Plan(Setting):
    """Distribution of a sequence over ranks for one mask, or for several that alternate by layer.

    `mc.distributed.plan` makes one. It is a value: every rank makes the same one.
    """

    layers: Mapping[str, LayerPlan]
    """By the names that the masks were given; a single mask is `mask`."""
    layout: TokenLayout
    block: int
    """Tokens that chunks are multiples of."""
    data: Mapping[str, object]
    tried: Mapping[str, float]
    """Predicted milliseconds, forward and backward of all masks, of each layout."""
    move_rows: bool | None = None
    """The argument of `plan`."""

    @property
    def n(self) -> int:
        """Tokens of the sequence."""
        return self.layout.n

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.layout.ranks

    def tokens(self, rank: int) -> int:
        """Return the number of tokens of a rank; 0 if there are more ranks than blocks."""
        return int(self.layout.tokens[rank])

    def indices(self, rank: int) -> np.ndarray:
        """Return the tokens of a rank, in its order: int64 [tokens]."""
        return self.layout.indices(rank)

    def layer(self, name: str | None = None) -> LayerPlan:
        """Return the plan of one mask; its name may be omitted if there is only one.

        Raises:
            LayerUnknown: there are several, or none of this name (MC701).
        """
        if name is None and len(self.layers) == 1:
            return next(iter(self.layers.values()))
        if name is None or name not in self.layers:
            raise LayerUnknown(name, ", ".join(self.layers), at="layer")
        return self.layers[name]

    def given(self, **data: object) -> Plan:
        """Bind the plan to other data in the same layout: what travels is found anew, and is exact.

        Args:
            data: the arrays and parameters that the masks name, for all tokens. The plan keeps
                copies: what is written into them later changes nothing.

        Raises:
            PlanData: no mask reads data of such a name (MC702).
            MaskcError: a mistake in data (MC301 to MC305).
        """
        _check_names((layer.mask for layer in self.layers.values()), data)
        read = _copied(data)
        made = {name: self._over(layer, read) for name, layer in self.layers.items()}
        return replace(self, data=read, layers=made)

    def now(self) -> Plan:
        """Return the plan for what captured tensors hold now; itself where nobody wrote into them.

        Every rank must have the same content. Reading it again is exact, as `given` is.
        """
        if not self._watches:
            return self
        present: Plan = self.__dict__.get("_present", self)
        changed = {
            name: layer for name, layer in present.layers.items() if _held(layer.mask) != layer.held
        }
        if not changed:
            return present
        made = {name: present._over(layer, self.data) for name, layer in changed.items()}
        present = replace(present, layers={**present.layers, **made})
        self.__dict__["_present"] = present
        return present

    @cached_property
    def _watches(self) -> bool:
        """Whether somebody may write into what a mask captured."""
        return any(layer.held is not None for layer in self.layers.values())

    def _over(self, layer: LayerPlan, data: Mapping[str, object]) -> LayerPlan:
        """A layer in the same layout, with other data or other content of captured tensors."""
        held = _held(layer.mask)
        reach = _reach(layer.mask, self.n, self.block, self.heads.q, data)
        made = LayerPlan(layer.mask, self.layout, self.block, reach, held=held)
        return moved(made, self.move_rows, self)

    def data_of(self, layer: LayerPlan) -> dict[str, object]:
        """Return the data that one mask reads."""
        known = _names(layer.mask)
        return {name: value for name, value in self.data.items() if name in known}

    def work(
        self, rank: int, layer: str | None = None, one_stretch: bool = False, at_home: bool = False
    ) -> RankWork:
        """A rank's messages and calls in one layer; made once.

        Args:
            one_stretch: whether what the rank's buffer holds are keys one after another, and gaps.
            at_home: whether no query moves.

        Raises:
            PlanData: the mask reads data that the plan was not given (MC702).
            NotShared: a selection that shards would cut (MC707).
        """
        layer_plan = self.layer(layer)
        return self.work_in(layer_plan.at_home if at_home else layer_plan, rank, one_stretch)

    def ends_alike(
        self, layer: str | None = None, one_stretch: bool = False, at_home: bool = False
    ) -> bool:
        """Whether the last row and the last key coincide in each call of each rank; cached.

        Args and errors are those of `work`.
        """
        asked = layer, one_stretch, at_home
        return self.once(("ends alike", *asked), lambda: all(
            call.positions for rank in range(self.ranks) for call in self.work(rank, *asked).calls
        ))  # fmt: skip

    def work_in(self, layer: LayerPlan, rank: int, one_stretch: bool = False) -> RankWork:
        """Return a rank's messages and calls in one layer plan; cached."""
        from maskc.distributed.work import work_of

        asked = layer, rank, one_stretch
        return self.once(("work", *asked), lambda: work_of(self, *asked))

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the result of `make`, cached by a key for the life of the plan; copies compute it
        again."""
        known: dict[object, Any] = self.__dict__.setdefault("_known", {})
        if key not in known:
            known[key] = make()
        value: T = known[key]
        return value

    def received_bytes(self, rank: int, layer: str | None = None) -> int:
        """Return the bytes that a rank receives in a forward pass; gradients return likewise."""
        return int(self.traffic(self.layer(layer))[0].received[rank])

    def sent_bytes(self, rank: int, layer: str | None = None) -> int:
        """Return the bytes that a rank sends in a forward pass; gradients return likewise."""
        return int(self.traffic(self.layer(layer))[0].sent[rank])

    def times(self, layer: str | None = None) -> tuple[Times, Times]:
        """Return the predicted times of the forward and the backward pass of one layer.

        They are those of the kernels that run, where no data of a step decide which tiles these
        have; else those of the mask's tiles.
        """
        return self._times_in(self.layer(layer))

    def _times_in(self, layer: LayerPlan) -> tuple[Times, Times]:
        return self.once(("times", layer), lambda: by_calls(self, layer, by_tiles(layer, self)))

    def imbalance(self, layer: str | None = None) -> float:
        """Return the slowest rank's forward tiles divided by the mean; 1 is perfect balance."""
        tiles = self.times(layer)[0].tiles
        mean = float(tiles.mean()) if len(tiles) else 0.0
        return float(tiles.max()) / mean if mean else 1.0

    def others(self, layer: str | None = None) -> dict[str, float]:
        """Return predicted milliseconds of a forward pass by other methods, with the same kernels.

        `all-gather` brings all keys to all ranks first. `ring` passes them around, one rank's at
        a time, under the tiles of those that have come; what it takes to merge is left out.
        """
        times, _ = self._times_in(self.layer(layer).at_home)
        kept = float(self.layout.tokens.max(initial=0)) * self.token_bytes
        most = float(times.compute.max(initial=0.0))
        rounds = self.ranks - 1
        gathered = self.network.milliseconds(kept * rounds, kept * rounds) if rounds else 0.0
        step = self.network.milliseconds(kept, kept) if rounds else 0.0
        ring = most / self.ranks + rounds * max(step, most / self.ranks)
        return {"all-gather": gathered + most, "ring": ring}

    @cached_property
    def digest(self) -> str:
        """sha256, hexadecimal: equal where ranks have the same plan."""
        digest = sha256()
        digest.update(repr((self.n, self.ranks, self.block, self.heads, self.dtype.value)).encode())
        digest.update(self.layout.edges.tobytes() + self.layout.owner.tobytes())
        for name, layer in self.layers.items():
            digest.update(repr((name, structure(layer.mask))).encode())
            for array in (layer.needs.ptr, layer.needs.start, layer.needs.stop):
                digest.update(array.tobytes())
            digest.update(repr(layer.moved).encode())
            for _, _, values in () if layer.held is None else layer.held.tables:
                digest.update(values.digest)
        for name in sorted(self.data):
            digest.update(name.encode())
            _content(name, self.data[name], digest.update)
        return digest.hexdigest()

    explain = report.explain

    def __getstate__(self) -> dict[str, object]:
        """A copy finds its groups, and makes its work, anew."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __repr__(self) -> str:
        names = ", ".join(self.layers)
        return f"Plan({names}: {self.n} tokens on {self.ranks} ranks, {self.layout.name})"

    shard = shards.shard
    unshard = shards.unshard
    roll = shards.roll
    position_ids = shards.position_ids


def _content(name: str, value: Any, update: Callable[[bytes], object]) -> None:
    """Feed the content of data, as calls take them, to a digest."""
    if isinstance(value, (tuple, list)) and not all(isinstance(x, int) for x in value):
        for part in value:
            _content(name, part, update)
    elif isinstance(value, (CuSeqlens, Parents)):
        _content(name, value.array, update)
    else:
        array = np.ascontiguousarray(to_host(value, name))
        update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())


def _copied(data: Mapping[str, object]) -> dict[str, object]:
    """Data of a plan, into which nobody else can write."""
    return {name: _copy(name, value) for name, value in data.items()}


def _copy(name: str, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_copy(name, part) for part in value)
    if isinstance(value, (CuSeqlens, Parents)):
        return replace(value, array=_copy(name, value.array))
    if hasattr(value, "detach"):
        return value.detach().clone()
    if hasattr(value, "shape") or hasattr(value, "__dlpack__"):
        return value.copy() if hasattr(value, "copy") else to_host(value, name).copy()
    return value


def _held(mask: Mask) -> Held | None:
    """The present content of what a mask captured; None where nobody can write into it."""
    _, held = emptied(mask)
    return None if held is None or held.fixed else held.now()


def _check_names(masks: Iterable[Mask], data: Mapping[str, object]) -> None:
    """Refuse data that no mask reads.

    Raises:
        PlanData.
    """
    asked = tuple(masks)
    known = {name for mask in asked for name in _names(mask)}
    for name in data:
        if any(name in _ranking(mask) for mask in asked):
            fault = f"{name} ranks keys: calls give it, a plan reads none of it"
            hint = f"mc.distributed.attention(q, k, v, plan, {name}=...), this rank's tokens of it"
            raise PlanData(fault, hint, at=name)
        if name not in known:
            listed = ", ".join(sorted(known)) or "nothing"
            raise PlanData(f"no mask reads {name!r}", f"they read {listed}", at=name)


def _ranking(mask: Mask) -> tuple[str, ...]:
    """The tensors that calls give for the mask to choose keys by."""
    chosen = (node for node in walk(mask) if isinstance(node, TopK))
    return tuple(dict.fromkeys(name for node in chosen for name in SCORING[ByScore(node.score)]))


def _names(mask: Mask) -> set[str]:
    """Parameters and data that calls of a mask may give."""
    return {decl.name for decl in data_of_calls(mask)} | set(default_parameters(mask))


# ------------------------------------------------------------------ making a plan


def plan(
    masks: Mask | Mapping[str, Mask],
    n: int,
    ranks: int,
    *,
    heads: Sequence[int] = (32, 8, 128, 128),
    dtype: object = "bfloat16",
    layout: str = "auto",
    network: str | Network | None = None,
    batch: int = 1,
    block: int | None = None,
    data: Mapping[str, object] | None = None,
    move_rows: bool | None = None,
) -> Plan:
    """Plan how ranks share a sequence. Needs neither a GPU nor torch.

    Args:
        masks: one mask, or several by name if layers alternate. All share one layout: the one with
            the least total predicted time.
        n: tokens of the whole sequence; ranks need not divide it.
        ranks: number of ranks.
        heads: (Hq, Hkv, D) or (Hq, Hkv, D, Dv).
        dtype: of keys and values.
        layout: "contiguous"; "zigzag", one chunk from the front and one from the back; "striped",
            chunks in turn; "balanced", chunks by the cost of their queries. "auto" is the one with
            the least predicted time.
        network: "nvlink", "400Gb/s", "800Gb/s" or another speed per rank; None is NVLink up to
            eight ranks and 400 Gb/s beyond.
        batch: sequences.
        block: tokens that every chunk is a multiple of; None is 128, less for short sequences.
        data: parameters and arrays that the masks name, for all tokens. Without arrays the plan
            holds for any content; `Plan.given` makes it exact, step by step.
        move_rows: whether queries that see far more keys than others travel to these keys, instead
            of the keys to them. None: if that needs fewer bytes and less predicted time. True:
            whenever it needs fewer bytes.

    Returns:
        The plan; equal arguments give equal plans, on every machine.

    Raises:
        PlanArgument: a number is out of range (MC700).
        PlanData: arrays were given for some names only (MC702).
        NetworkUnknown: no such network (MC708).
        MaskcError: a mistake in masks or data.
    """
    named = dict(masks) if isinstance(masks, Mapping) else {"mask": masks}
    for mask in named.values() or (None,):
        if not isinstance(mask, Mask):
            raise not_a_mask("mc.distributed.plan", mask, caller() or "masks")
    n = _number("n", n, 0, MAX_LENGTH)
    ranks = _number("ranks", ranks, 1, 1 << 20)
    batch = _number("batch", batch, 1, 1 << 20)
    sizes = _heads(heads)
    multiple = lcm(*map(granularity, named.values()))
    if block is None:
        block = layouts.block_size(n, ranks, multiple if multiple <= 1024 else 1)
    else:
        block = _number("block", block, 1, 1 << 16)
    if layout not in ("auto", *LAYOUTS):
        wanted = f"auto or one of {', '.join(LAYOUTS)}"
        raise PlanArgument("layout", repr(layout), wanted, at="layout")
    setting = Setting(sizes, DType.parse(dtype), batch, network_of(network, ranks))
    _check_names(named.values(), data or {})
    given = _copied(data or {})
    held = {name: _held(mask) for name, mask in named.items()}
    reaches = {name: _reach(mask, n, block, sizes.q, given) for name, mask in named.items()}
    if not given:
        reaches = {
            name: replace(reach, shares=shares(named[name], reach, n, setting))
            for name, reach in reaches.items()
        }
    names = LAYOUTS if layout == "auto" else (layout,)
    if ranks == 1:
        names = ("contiguous",) if layout == "auto" else (layout,)
    best: tuple[float, TokenLayout, dict[str, LayerPlan]] | None = None
    tried = {}
    forward, _ = setting.passes
    weights = sum((x.shares[0] * forward.of_blocks(x, block) for x in reaches.values()), 0.0)
    for name in names:
        tokens = layouts.make(name, n, ranks, block, np.asarray(weights))
        made = {
            key: moved(
                LayerPlan(named[key], tokens, block, reaches[key], held=held[key]), move_rows,
                setting,
            )
            for key in named
        }  # fmt: skip
        tried[name] = sum(x.total for layer in made.values() for x in by_tiles(layer, setting))
        if best is None or tried[name] < _WORTH * best[0]:
            best = tried[name], tokens, made
    if best is None:
        raise PlanArgument("masks", "an empty dict", "one mask or more", at="masks")
    return Plan(
        sizes, setting.dtype, batch, setting.network, best[2], best[1], block, given, tried,
        move_rows,
    )  # fmt: skip


def _reach(mask: Mask, n: int, block: int, n_heads: int, data: Mapping[str, object]) -> Reach:
    data_of_mask = {name: value for name, value in data.items() if name in _names(mask)}
    return reach_of(mask, n, block, n_heads, data_of_mask)


def _number(name: str, value: Any, least: int, most: int) -> int:
    from operator import index

    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        raise PlanArgument(name, repr(value), f"an integer in {least}..{most}", at=name)
    return number


def _heads(heads: Sequence[int]) -> HeadSizes:
    given = tuple(heads) if isinstance(heads, Sequence) else ()
    if len(given) == 3:
        given = (*given, given[2])
    if len(given) != 4:
        raise PlanArgument("heads", repr(heads), "(Hq, Hkv, D) or (Hq, Hkv, D, Dv)", at="heads")
    sizes = HeadSizes(*(_number("heads", size, 1, 1 << 16) for size in given))
    if sizes.q % sizes.kv:
        raise PlanArgument("heads", repr(heads), "Hq a multiple of Hkv", at="heads")
    return sizes
