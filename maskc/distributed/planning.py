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

from maskc import driver
from maskc.core.captured import Held
from maskc.core.data import CuSeqlens, Parents
from maskc.core.dtypes import DType
from maskc.core.errors import LayerUnknown, PlanArgument, PlanData
from maskc.core.layout import MAX_LENGTH
from maskc.core.selection import SCORING, TOKENS
from maskc.core.selection import Score as ByScore
from maskc.core.source import caller
from maskc.core.widths import plain_integer
from maskc.distributed import layouts, shards
from maskc.distributed import plan_report as report
from maskc.distributed.costs import shares
from maskc.distributed.layouts import GIVEN, LAYOUTS, TokenLayout
from maskc.distributed.moving import moved
from maskc.distributed.network import Network, network_of
from maskc.distributed.pieces import FEW
from maskc.distributed.reach import Reach, granularity, reach_of
from maskc.distributed.setting import HeadSizes, Setting
from maskc.distributed.times import Times, by_calls, by_tiles
from maskc.distributed.token_ranges import RangeSets, meetings, union
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import KeyLists, TopK, data_of_calls, default_parameters, structure, walk
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.slots import emptied
from maskc.layout import to_host

if TYPE_CHECKING:
    from maskc.distributed.work import RankWork

T = TypeVar("T")
_WORTH = 0.95
"""A layout with more pieces is chosen if its time is below this share of a simpler one's."""


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
class BlockParts:
    """Parts of blocks of queries, ascending; each lies in one block and in one chunk."""

    first: np.ndarray
    """int64 [parts]: the first query of each."""
    block: np.ndarray
    """int64 [parts]: its block."""
    rank: np.ndarray
    """int64 [parts]: the rank that holds it."""
    share: np.ndarray
    """float [parts]: its share of the queries of the block."""


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """One mask on one layout of tokens."""

    mask: Mask
    layout: TokenLayout
    """Layout of the queries."""
    key_layout: TokenLayout
    """Layout of the keys; the same object where these are the same tokens."""
    block: int
    reach: Reach
    moved: tuple[int, ...] = ()
    """Blocks of queries that go to their keys, ascending; the keys of all others come to them."""
    held: Held | None = None
    """The content of the tensors that the mask captured, as `reach` has it; None if nobody can
    write into them."""

    @cached_property
    def choosing(self) -> dict[str, int]:
        """The tensors that choose keys, with their dimension of tokens; each call passes its rank's
        tokens."""
        return _choosing(self.mask)

    @cached_property
    def parts(self) -> BlockParts:
        """The parts of blocks of queries that ranks hold; whole blocks where these make chunks."""
        blocks, edges = len(self.reach.keys), self.layout.edges
        first = np.union1d(np.arange(blocks) * self.block, edges[:-1])
        block = first // self.block
        counts = np.diff(np.append(first, self.layout.n))
        share = counts / np.bincount(block, counts, minlength=blocks)[block]
        return BlockParts(first, block, self.layout.owner[self.layout.chunk(first)], share)

    @cached_property
    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        """(part of a block, range of keys of `reach` that the block sees), int64 [pairs] each."""
        block, keys = self.parts.block, self.reach.keys
        return meetings(block, block + 1, keys.owner, keys.owner + 1)

    def by_rank(self, values: np.ndarray, parts: np.ndarray | None = None) -> np.ndarray:
        """Sum a value of each block, such as its cost, over the ranks: float [ranks].

        Args:
            values: float [blocks]; ranks with a part of a block have that share of its value.
            parts: bool [parts]: those that count; None is all.
        """
        of = self.parts
        share = of.share if parts is None else of.share * parts
        return np.bincount(of.rank, share * values[of.block], minlength=self.layout.ranks)

    @cached_property
    def by_tables(self) -> bool:
        """Whether a rank calls one kernel for all of its rows, with tables that map rows and keys
        to tokens, instead of one kernel per stretch."""
        scattered = self.layout.is_scattered or self.key_layout.is_scattered
        return scattered and not driver.selects(self.mask)

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
        hosts, chunk = {}, self.key_layout.chunk
        for home in dict.fromkeys(visit.home for visit in self.visits):
            visits_home = [visit for visit in self.visits if visit.home == home]
            keys = [x for visit in visits_home for x in visit.keys]
            chunks = (slice(int(chunk(low)), int(chunk(high - 1)) + 1) for low, high in keys)
            held = np.unique(np.concatenate([self.key_layout.owner[piece] for piece in chunks]))
            hosts[home] = sum(visit.stop - visit.start for visit in visits_home), held
        return hosts

    def hosted(self, cycles: np.ndarray) -> np.ndarray:
        """float [ranks]: what hosts have of the moved blocks' cycles [blocks], by their keys."""
        cycles_by_rank = np.zeros(self.layout.ranks)
        edges, owner = self.key_layout.edges, self.key_layout.owner
        for visit in self.visits:
            held = np.zeros(self.layout.ranks)
            for low, high in visit.keys:
                tokens = np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1])
                held += np.bincount(owner, tokens.clip(0), len(held))
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
        """The keys that each rank's queries see, without moved queries."""
        keys, (part, seen) = self.reach.keys, self._seen
        if self.moved:
            stays = self.stays[self.parts.block[part]]
            part, seen = part[stays], seen[stays]
        ranges = keys.start[seen], keys.stop[seen]
        return union(keys.n, self.layout.ranks, self.parts.rank[part], *ranges)

    @cached_property
    def halo(self) -> RangeSets:
        """The keys of `needs` that a rank does not hold: they travel to it, and their gradients
        back."""
        return self.needs.without(self.key_layout.own)

    @property
    def scattered(self) -> np.ndarray:
        """bool [ranks]: whether received keys have so many stretches that they are scattered into a
        zeroed buffer."""
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
        """bool [parts]: whether the stretch of tokens that a part of a block is in has all keys of
        the block."""
        first, rank = self.parts.first, self.parts.rank
        if self.by_tables or self.key_layout is not self.layout:
            return np.zeros(len(first), bool)
        keys, (part, seen), n = self.reach.keys, self._seen, self.layout.n
        ranges, _ = self.layout.stretches
        start, stop = ranges.on_one_line()
        home = np.searchsorted(start, first + rank * (n + 1), side="right") - 1
        shift = rank[part] * (n + 1)
        away = start[home[part]] > keys.start[seen] + shift
        away |= stop[home[part]] < keys.stop[seen] + shift
        is_inner: np.ndarray = np.bincount(part, away, minlength=len(first)) == 0
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

        ranges = self.key_layout.own
        sums = np.concatenate([[0], np.cumsum(covered(ranges.stop) - covered(ranges.start))])
        counts: np.ndarray = sums[ranges.ptr[1:]] - sums[ranges.ptr[:-1]]
        return counts

    @property
    def received(self) -> np.ndarray:
        """int64 [ranks]: tokens of each rank's halo."""
        return self.halo.tokens

    def receives(self, rank: int) -> list[Transfer]:
        """Return the transfers that a rank receives, by senders and then by tokens."""
        held, (begin, end) = self.key_layout, self.halo.columns(rank)
        number, chunk = meetings(begin, end, held.edges[:-1], held.edges[1:])
        start = np.maximum(begin[number], held.edges[chunk])
        stop = np.minimum(end[number], held.edges[chunk + 1])
        return _joined(held.owner[chunk], np.full(len(chunk), rank), start, stop)

    def sends(self, rank: int) -> list[Transfer]:
        """Return the transfers that a rank sends, by receivers and then by tokens."""
        halo, (begin, end) = self.halo, self.key_layout.own.columns(rank)
        number, at = meetings(halo.start, halo.stop, begin, end)
        start = np.maximum(halo.start[number], begin[at])
        stop = np.minimum(halo.stop[number], end[at])
        return _joined(np.full(len(at), rank), halo.owner[number], start, stop)

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


def _joined(
    sender: np.ndarray, receiver: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> list[Transfer]:
    """Sort transfers by ranks and tokens, and join ranges that touch.

    Args:
        sender, receiver, start, stop: int64 [ranges].
    """
    order = np.lexsort((start, receiver, sender))
    sender, receiver, start, stop = (x[order] for x in (sender, receiver, start, stop))
    new = np.ones(len(order), bool)
    new[1:] = (sender[1:] != sender[:-1]) | (receiver[1:] != receiver[:-1])
    new[1:] |= start[1:] != stop[:-1]
    last = np.append(new[1:], True)[: len(order)]
    columns = sender[new], receiver[new], start[new], stop[last]
    return [Transfer(*x) for x in zip(*(column.tolist() for column in columns), strict=True)]


@dataclass(frozen=True, eq=False)
class Plan(Setting):
    """Distribution of a sequence over ranks for one mask, or for several that alternate by layer.

    `mc.distributed.plan` makes one. It is a value: every rank makes the same one.
    """

    layers: Mapping[str, LayerPlan]
    """By the names that the masks were given; a single mask is `mask`."""
    layout: TokenLayout
    """Layout of the queries."""
    key_layout: TokenLayout
    """Layout of the keys; the same object where these are the same tokens."""
    block: int
    """Queries that count together. Chunks of named layouts are multiples of it."""
    data: Mapping[str, object]
    tried: Mapping[str, float]
    """Predicted milliseconds, forward and backward of all masks, of each layout."""
    move_rows: bool | None = None
    """The argument of `plan`."""

    @property
    def n(self) -> int:
        """Tokens of the sequence: queries."""
        return self.layout.n

    @property
    def n_kv(self) -> int:
        """The number of keys; `n` unless the plan is for cross attention."""
        return self.key_layout.n

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.layout.ranks

    def layout_of(self, of: str) -> TokenLayout:
        """Return the layout of the queries, "q", or of the keys, "k".

        Raises:
            PlanArgument: `of` is neither (MC700).
        """
        if of not in ("q", "k"):
            raise PlanArgument("of", repr(of), '"q" or "k"', at="of")
        return self.layout if of == "q" else self.key_layout

    def tokens(self, rank: int, of: str = "q") -> int:
        """Return the number of tokens of a rank; 0 if there are more ranks than blocks.

        Args:
            rank: the rank.
            of: "q", or "k" for the keys of cross attention.
        """
        return int(self.layout_of(of).tokens[rank])

    def indices(self, rank: int, of: str = "q") -> np.ndarray:
        """Return the tokens of a rank, in its order: int64 [tokens].

        Args:
            rank: the rank.
            of: "q", or "k" for the keys of cross attention.
        """
        return self.layout_of(of).indices(rank)

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
        """Bind the plan to data in the same layout. It then sends exactly the rows that these data
        need.

        Args:
            data: the arrays and parameters that the masks name, for all tokens. The plan copies
                them, so later writes have no effect.

        Raises:
            PlanData: no mask reads data of such a name (MC702).
            MaskcError: a mistake in data (MC301 to MC305).
        """
        _check_names((layer.mask for layer in self.layers.values()), data)
        read = _copied(data)
        made = {name: self._over(layer, read) for name, layer in self.layers.items()}
        return replace(self, data=read, layers=made)

    def now(self) -> Plan:
        """Return the plan for the current content of captured tensors; itself if nothing was
        written.

        Every rank must have the same content. The new plan is exact, as with `given`.
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
        reach = _reach(layer.mask, (self.n, self.n_kv), self.block, self.heads.q, data)
        made = replace(layer, reach=reach, moved=(), held=held)
        return moved(made, self.move_rows, self)

    def data_of(self, layer: LayerPlan) -> dict[str, object]:
        """Return the data that one mask reads."""
        known = _names(layer.mask)
        return {name: value for name, value in self.data.items() if name in known}

    def work(
        self, rank: int, layer: str | None = None, one_stretch: bool = False, at_home: bool = False
    ) -> RankWork:
        """Return a rank's messages and calls in one layer; cached.

        Args:
            one_stretch: whether the rank's buffer is one contiguous range of keys, with gaps.
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

        They are predictions for the kernels that run, if their tiles do not depend on data;
        otherwise for the tiles of the mask.
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

        `all-gather` first sends all keys to all ranks. `ring` passes the keys of one rank at a
        time, while tiles of the received keys run; the time for merging is left out.
        """
        times, _ = self._times_in(self.layer(layer).at_home)
        kept = float(self.key_layout.tokens.max(initial=0)) * self.token_bytes
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
        for layout in (self.layout, self.key_layout):
            for array in (layout.edges, layout.owner, layout.slot):
                digest.update(array.tobytes())
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
    """Copy the data of a plan, so that the caller can reuse the arrays."""
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
    """Return the current content of captured arrays; None if they never change."""
    _, held = emptied(mask)
    return None if held is None or held.fixed else held.now()


def _check_names(masks: Iterable[Mask], data: Mapping[str, object]) -> None:
    """Refuse data that no mask reads."""
    asked = tuple(masks)
    known = {name for mask in asked for name in _names(mask)}
    for name in data:
        if any(name in _choosing(mask) for mask in asked):
            fault = f"{name} chooses keys: calls give it, a plan reads none of it"
            hint = f"mc.distributed.attention(q, k, v, plan, {name}=...), this rank's tokens of it"
            raise PlanData(fault, hint, at=name)
        if name not in known:
            listed = ", ".join(sorted(known)) or "nothing"
            raise PlanData(f"no mask reads {name!r}", f"they read {listed}", at=name)


def _choosing(mask: Mask) -> dict[str, int]:
    """The tensors that calls pass for the mask to choose keys by, and where their tokens are."""
    chosen: dict[str, int] = {}
    for node in walk(mask):
        if isinstance(node, TopK):
            chosen |= {name: TOKENS.get(name, -2) for name in SCORING[ByScore(node.score)]}
        elif isinstance(node, KeyLists):
            chosen[node.decl.name] = -2
    return chosen


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
    layout: Any = "auto",
    n_kv: int | None = None,
    key_layout: Any = None,
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
            the least predicted time. Or the tokens in the slots of each rank, where something else
            has placed them: integers [ranks, tokens]; [n] or [1, n], cut into equal parts; or a
            list of one array for each rank, of any lengths. See `zigzag`.
        n_kv: keys, if these are other tokens than the queries (cross attention). Positions count
            as in one process: masks align the last query with the last key unless told otherwise.
        key_layout: "contiguous", "zigzag", "striped" or positions, if keys lie on other ranks than
            the queries do. None: where the queries lie, or contiguous if there are other keys.
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
        LayoutPositions: a layout does not place every token once (MC710).
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
    if move_rows not in (None, True, False):
        raise PlanArgument("move_rows", repr(move_rows), "True, False or None", at="move_rows")
    lengths = n, n if n_kv is None else _number("n_kv", n_kv, 0, MAX_LENGTH)
    outside = _outside(layout, n, ranks, "layout")
    multiple = lcm(*map(granularity, named.values()))
    if block is None:
        block = layouts.block_size(n, ranks, multiple if multiple <= 1024 else 1)
        block = block if outside is None else layouts.block_within(outside, block)
    else:
        block = _number("block", block, 1, 1 << 16)
    keys: TokenLayout | None = None
    if lengths[1] != n or key_layout is not None:
        key_layout = "contiguous" if key_layout is None else key_layout
        keys = _outside(key_layout, lengths[1], ranks, "key_layout")
        if keys is None:
            size = layouts.block_size(lengths[1], ranks)
            keys = layouts.make(key_layout, lengths[1], ranks, size, np.zeros(0))
    setting = Setting(sizes, DType.parse(dtype), batch, network_of(network, ranks))
    _check_names(named.values(), data or {})
    given = _copied(data or {})
    held = {name: _held(mask) for name, mask in named.items()}
    reaches = {name: _reach(mask, lengths, block, sizes.q, given) for name, mask in named.items()}
    if not given:
        reaches = {
            name: replace(reach, shares=shares(named[name], reach, lengths, setting))
            for name, reach in reaches.items()
        }
    names: tuple[str, ...] = LAYOUTS if ranks > 1 else LAYOUTS[:1]
    if outside is not None or layout != "auto":
        names = (GIVEN if outside is not None else layout,)
    best: tuple[float, TokenLayout, TokenLayout, dict[str, LayerPlan]] | None = None
    tried = {}
    forward, _ = setting.passes
    weights = sum((x.shares[0] * forward.of_blocks(x, block) for x in reaches.values()), 0.0)
    for name in names:
        tokens = outside or layouts.make(name, n, ranks, block, np.asarray(weights))
        sides = tokens, keys or tokens
        made = {
            key: LayerPlan(mask, *sides, block, reaches[key], held=held[key])
            for key, mask in named.items()
        }
        made = {key: moved(layer, move_rows, setting) for key, layer in made.items()}
        tried[name] = sum(x.total for layer in made.values() for x in by_tiles(layer, setting))
        if best is None or tried[name] < _WORTH * best[0]:
            best = tried[name], *sides, made
    if best is None:
        raise PlanArgument("masks", "an empty dict", "one mask or more", at="masks")
    return Plan(
        sizes, setting.dtype, batch, setting.network, best[3], best[1], best[2], block, given,
        tried, move_rows,
    )  # fmt: skip


def _outside(layout: Any, n: int, ranks: int, name: str) -> TokenLayout | None:
    """Return the layout that a caller brings; None for a name of one.

    Raises:
        PlanArgument: an unknown name.
        LayoutPositions: not every token is in it once.
    """
    if not isinstance(layout, str):
        return layouts.of_positions(layout, n, ranks, name)
    known = ("auto", *LAYOUTS) if name == "layout" else ("contiguous", "zigzag", "striped")
    if layout not in known:
        wanted = f"{', '.join(known)}, or the tokens in the slots of each rank"
        raise PlanArgument(name, repr(layout), wanted, at=name)
    return None


def _reach(
    mask: Mask, lengths: tuple[int, int], block: int, n_heads: int, data: Mapping[str, object]
) -> Reach:
    data_of_mask = {name: value for name, value in data.items() if name in _names(mask)}
    return reach_of(mask, lengths, block, n_heads, data_of_mask)


def _number(name: str, value: Any, least: int, most: int) -> int:
    number = plain_integer(value)
    if number is None or not least <= number <= most:
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
