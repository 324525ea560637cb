"""Tile lists and work items that an emulated card makes, on random data: against pairs, against the
host's lists of documents, and against a sorted list of items."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core.abi import STATE_OF_LIST, STATE_WORDS, WORK_FIELDS
from maskc.core.bundle import INTERLEAVED, LayoutRecipe
from maskc.core.problem import TileShape
from maskc.layout import Cutting, build, document_lists, without_documents
from maskc.runtime.device_lists import making
from maskc.runtime.device_lists.lists_launch import LISTS, PARTS, ListsPlan
from maskc.runtime.launch.cuda import CudaKernel
from maskc.testing.emulator import machine
from tests.support.hopper import compiled

CAUSAL, HEADS, N = mc.causal(), 4, 450
SEEDS = st.integers(0, 1 << 30)


def words(pointer: int, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(pointer)).reshape(shape) + 0


class Made:
    """The lists of one pass, read where it would begin to run."""

    def __init__(self, plan: ListsPlan, lists) -> None:
        self.numbers = LISTS.from_buffer_copy(plan.numbers)
        self.places = dict(zip(PARTS, lists.places[8:], strict=False))
        self.spent = lists.states[0]
        self.entry = plan.before[0].function[1]

    def counts_and_words(self, side: int) -> list[list[list[int]]]:
        """For every list and line its words; lines lie one behind another."""
        line, numbers = ("row", "col")[side], self.numbers
        ptr = words(self.places[f"{line}_ptr"], numbers.lists, numbers.tile_count[side] + 1)
        assert (ptr[:, 0] == np.arange(numbers.lists) * numbers.room[side]).all()
        assert (ptr[:, -1] - ptr[:, 0] <= numbers.room[side]).all()
        entries = words(self.places[f"{line}_tiles"], numbers.lists * numbers.room[side])
        return [[entries[a:b].tolist() for a, b in pairwise(of_list)] for of_list in ptr]

    def at_rest(self) -> bool:
        """Whether what blocks tell each other is zero again for the next launch."""
        return not words(self.spent, STATE_WORDS + STATE_OF_LIST * self.numbers.lists).any()

    def items(self) -> np.ndarray:
        numbers = self.numbers
        count = numbers.lists * numbers.owners * numbers.tile_count[numbers.work_side]
        return words(self.places["work"], count, len(WORK_FIELDS))


@pytest.fixture(scope="module")
def passes():
    """Runs the lists of a pass, and nothing else."""
    with pytest.MonkeyPatch.context() as patch, machine.emulated():
        found, enqueue = [], ListsPlan.enqueue

        def remember(plan, given_, lists, *rest):
            enqueue(plan, given_, lists, *rest)
            found.append(Made(plan, lists))

        patch.setattr(ListsPlan, "enqueue", remember)
        patch.setattr(making, "_LINES", 0)  # warps have lines, or blocks where they are not grouped
        patch.setattr(CudaKernel, "run", lambda *_: None)

        def made(attn, n_q, batch, data, backward=False, n_kv=N, **options) -> Made:
            q = torch.zeros(batch, HEADS, n_q, 64, dtype=torch.bfloat16)
            k = torch.zeros(batch, HEADS // 2, n_kv, 64, dtype=torch.bfloat16)
            forward = {} if backward else options
            out, lse = attn(q, k, k, return_lse=True, **forward, **data)
            if backward:
                attn.backward(q, k, k, out, lse, q, **options, **data)
            return found[-1]

        yield made


def wrong_tiles(made: Made, side: int, live: np.ndarray) -> list[str]:
    """Return the mistakes in lists of `live` bool [lists, n_q, n_kv], whose tiles are tile
    columns."""
    found, tile = [], tuple(made.numbers.tile)
    lines = made.counts_and_words(side)
    pairs, (own, other) = (live, tile) if side == 0 else (live.swapaxes(1, 2), tile[::-1])
    for (number, of_list), of_pairs in zip(enumerate(lines), pairs, strict=True):
        for line, entries in enumerate(of_list):
            part = of_pairs[line * own : (line + 1) * own]
            index = [word >> 1 for word in entries]
            if index != sorted(set(index)):
                found.append(f"order of {number}, {line}")
            for across in range(-(-part.shape[1] // other)):
                own_pairs = part[:, across * other : (across + 1) * other]
                if own_pairs.any() and across not in index:
                    found.append(f"{number}, {line} lacks {across}")
                if 2 * across + 1 in entries and not own_pairs.all():
                    found.append(f"{number}, {line}: {across} is not full")
    return found


def ordered_lines(made: Made) -> list[list[int]]:
    """Tile, owner, first tile and number of tiles of each line and owner, in the order of items.

    Groups of lists, and of owners, follow one another. In each, the longest lines come first. Lines
    without tiles come last, as they lie.
    """
    numbers, side = made.numbers, made.numbers.work_side
    lines, tiles = made.counts_and_words(side), numbers.tile_count[side]
    live, dead = [], []
    for number, tile, owner in product(range(numbers.lists), range(tiles), range(numbers.owners)):
        count = len(lines[number][tile])
        first = number * numbers.room[side] + sum(map(len, lines[number][:tile]))
        batch, head = divmod(number, numbers.heads)
        whose = (batch * numbers.owners + owner) * numbers.owner_heads + head
        group = number // numbers.group_lists, owner // numbers.group_owners
        key = (*group, -count, number, tile, owner) if count else (number, tile, owner)
        (live if count else dead).append((key, [tile, whose, first, count]))
    return [line for _, line in (*sorted(live), *sorted(dead))]


def wanted_items(made: Made) -> list[list[int]]:
    numbers, side, items = made.numbers, made.numbers.work_side, []
    tiles, size, n = numbers.tile_count[side], numbers.tile[side], numbers.n[side]
    for tile, whose, first, count in ordered_lines(made):
        shared = 1 + whose // numbers.sharing * tiles + tile if numbers.sharing and count else 0
        tokens = tile * size, min((tile + 1) * size, n)
        items.append([tile, whose, first, count, *tokens, numbers.item_heads, shared])
    return items


MASKS = {
    "flags and a window": mc.flags("x") & CAUSAL | mc.window(40),
    "tables of heads": mc.block_table("x", 64) & CAUSAL,
    "intervals": mc.intervals("x") | CAUSAL,
}


def drawn(name: str, rng: np.random.Generator, batch: int):
    match name:
        case "flags and a window":
            return rng.random((batch, N)) < rng.choice([0.003, 0.02, 0.97])
        case "tables of heads":
            return rng.random((batch, HEADS, 8, 8)) < rng.choice([0.05, 0.4])
    low = rng.integers(0, N, (batch, N))
    return low, low + rng.integers(0, 60, (batch, 1))


@cache
def attention(mask, interleaved, alone=False):
    """A compiled mask; those whose heads do not share the cache have plans of their own."""
    if interleaved:
        return compiled(mask, mode=INTERLEAVED)
    return mask.compile(head_dim=64, target="sm_90a")


FEWER_QUERIES = 96
"""Queries of a tile row of 192 rows with two interleaved heads."""


@pytest.mark.parametrize("name", MASKS)
@settings(max_examples=12)
@given(
    seed=SEEDS, batch=st.integers(1, 3), way=st.sampled_from(["", "backward", INTERLEAVED]),
    alone=st.booleans(),
)  # fmt: skip
def test_data(passes, name, seed, batch, way, alone):
    """`alone`: keys of one head fill the cache, as long ones do."""
    rng = np.random.default_rng(seed)
    mask, data = MASKS[name], drawn(name, rng, batch)
    there = tuple(map(torch.tensor, data)) if isinstance(data, tuple) else torch.tensor(data)
    if name == "tables of heads" and seed % 2:  # the same entries, by columns
        there = there.mT.contiguous().mT
    attn = attention(mask, way == INTERLEAVED, alone)
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(making, "heads_per_group", lambda *_: 1)
        made = passes(attn, N, batch, {"x": there}, way == "backward")
    if way == INTERLEAVED:
        assert (made.numbers.tile[0] == FEWER_QUERIES) == (name != "tables of heads")
    live = mask.dense(N, x=data).reshape(-1, N, N)
    assert made.numbers.lists == len(live)
    sides = {made.numbers.first_side, made.numbers.work_side}
    for side in sides:
        assert not wrong_tiles(made, side, live)
    grouped = not any(made.numbers.tile_count[side] % 4 for side in sides)
    assert made.numbers.line_threads == (32 if grouped else 128)
    assert made.items().tolist() == wanted_items(made)
    assert made.at_rest()


DOCUMENTS = [
    mc.documents("x"), mc.documents("x") & CAUSAL, mc.documents("x") & mc.window(90, 20),
    mc.documents("x") & CAUSAL & (mc.window(20) | mc.sinks(5)),
]  # fmt: skip
GAPS = 3
"""The number of the mask whose rows have gaps."""


def ids(rng: np.random.Generator, longest: int) -> np.ndarray:
    """Packed documents, runs of ids in any order, or more documents than tiles begin with."""
    kind = rng.choice(["packed", "packed", "runs", "short"])
    most = 3 if kind == "short" else longest
    own = np.arange(N) if kind != "runs" else rng.integers(-2, 4, N)
    return np.repeat(own, rng.integers(1, most + 1, N))[:N].astype(np.int32)


def cumulative(rng: np.random.Generator, longest: int) -> np.ndarray:
    """Ends of documents, some of no tokens; perhaps tokens behind the last."""
    ends = np.cumsum(rng.integers(0, longest + 1, 3 * N))
    ends = np.concatenate([[0], np.minimum(ends, N)])
    return ends[: np.searchsorted(ends, N) + 3] if rng.random() < 0.7 else ends[:4]


def ids_of(ends: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents of queries and of keys, from cumulative lengths of one sequence."""
    of_k = np.searchsorted(ends, np.arange(n), "right") - 1
    behind = of_k == len(ends) - 1
    return np.where(behind, (1 << 30) - 1, of_k), np.where(behind, 1 << 30, of_k)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
@settings(max_examples=8)
@given(seed=SEEDS, batch=st.integers(1, 3), longest=st.sampled_from([5, 60, 200]),
       promise=st.booleans(), as_lengths=st.booleans(), interleaved=st.booleans())  # fmt: skip
def test_documents(passes, number, seed, batch, longest, promise, as_lengths, interleaved):
    rng, mask = np.random.default_rng(seed), DOCUMENTS[number]
    if as_lengths:
        several = [cumulative(rng, longest) for _ in range(batch)]
        count = max(map(len, several))
        ends = np.stack([np.pad(own, (0, count - len(own)), "edge") for own in several])
        data = mc.cu_seqlens(torch.tensor(ends), max_seqlen=longest if promise else None)
        of_q, of_k = zip(*(ids_of(own, N) for own in ends), strict=True)
    else:
        of_k = of_q = [ids(rng, longest) for _ in range(batch)]
        data = torch.tensor(np.stack(of_k), dtype=torch.int64 if seed % 2 else torch.int32)
    made = passes(attention(mask, interleaved), N, batch, {"x": data})
    assert not interleaved or made.numbers.tile[0] == FEWER_QUERIES
    if made.entry == "lists_of_lengths":
        check_rows(made, number, [ends], N)
    else:
        check_documents(made, mask, of_q, of_k)


def as_lengths(sides: list[np.ndarray]):
    """Cumulative lengths as a call takes them: of queries and of keys, or of both at once."""
    lengths = tuple(mc.cu_seqlens(torch.tensor(x, dtype=torch.int32)) for x in sides)
    return lengths if len(lengths) > 1 else lengths[0]


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
@settings(max_examples=20)
@given(seed=SEEDS, batch=st.integers(1, 3), own_keys=st.booleans(), interleaved=st.booleans(),
       n=st.sampled_from([N, 768]), alone=st.booleans())  # fmt: skip
def test_lists_of_lengths(passes, number, seed, batch, own_keys, interleaved, n, alone):
    """Few documents, some of no tokens or of one, of any length, perhaps with padding behind."""
    rng, mask = np.random.default_rng(seed), DOCUMENTS[number]
    sides = []
    for _ in range(1 + own_keys):
        most = n + 100 * int(rng.integers(-1, 2))  # padding, or the last documents are empty
        ends = rng.integers(0, most, (batch, int(rng.integers(1, 14)))).clip(0, n)
        ends = np.sort(np.concatenate([ends[:, :1] * 0, ends, ends[:, -1:]], 1))
        sides.append(ends if rng.random() < 0.8 else ends[:1])
    data = {"x": as_lengths(sides)}
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(making, "heads_per_group", lambda *_: 1)
        made = passes(attention(mask, interleaved, alone), n, batch, data, n_kv=n)
    assert made.entry == ("make_lists" if number == GAPS else "lists_of_lengths")
    if number != GAPS:
        check_rows(made, number, sides, n)


ONE_INTERVAL = [
    mc.intervals("x"), mc.intervals("x") & CAUSAL, mc.intervals("x") & mc.window(3000),
    mc.intervals("x") & mc.intervals("y") & CAUSAL,
]  # fmt: skip
"""Masks with which data bound the keys of a query as one interval."""


BLOCKS = making.Making.blocks


def on_three_multiprocessors(lists: making.Making, launch, _multiprocessors: int) -> int:
    """The blocks of a launch on a small card."""
    return BLOCKS(lists, launch, 3)


@cache
def decoding(number: int, _entry: str):
    """A compiled mask for each way to make lists, because plans are kept."""
    return ONE_INTERVAL[number].compile(head_dim=64, target="sm_90a")


def parts_by_definition(made: Made) -> list[int]:
    """Tiles of all parts of all rows, the longest first, cut as on the host."""
    numbers = made.numbers
    count = np.array([len(line) for of_list in made.counts_and_words(0) for line in of_list])
    count = np.repeat(count, numbers.owners)
    cutting = Cutting(
        numbers.part_tiles, numbers.fixed_tiles, numbers.blocks, numbers.item_cost,
        numbers.part_cost,
    )  # fmt: skip
    parts = np.maximum(-(-count // cutting.sizes(count)), 1)
    tiles = []
    for all_tiles, pieces in zip(count.tolist(), parts.tolist(), strict=True):
        size = -(-all_tiles // pieces)
        tiles += [min(size, all_tiles - i) for i in range(0, all_tiles, max(size, 1))]
    return sorted(tiles, reverse=True)


def drawn_intervals(rng: np.random.Generator, batch: int, n: int) -> tuple[torch.Tensor, ...]:
    """The keys of one query for each sequence, or for all, some of them out of range or empty."""
    kind, shared = rng.choice(["int32", "int64", "int16"]), rng.random() < 0.2
    low = rng.choice([0, 1, 64, n // 2, n, -5, -30000], (batch, 1))
    high = low + rng.integers(-50, rng.choice([70, n, 2 * n]), (batch, 1))
    kept = [torch.tensor(x.clip(-32768, 32767).astype(kind)) for x in (low, high)]
    if rng.random() < 0.3:  # one array with both, whose entries do not follow one another
        kept = list(torch.stack(kept, -1).unbind(-1))
    return tuple(x[:1] if shared else x for x in kept)


@pytest.mark.parametrize("number", range(len(ONE_INTERVAL)))
@settings(max_examples=20)
@given(seed=SEEDS, batch=st.sampled_from([1, 2, 5, 40]), n=st.sampled_from([300, 2111, 8192]),
       invariant=st.booleans(), few_blocks=st.booleans())  # fmt: skip
def test_lists_of_queries(passes, number, seed, batch, n, invariant, few_blocks):
    """All that the pass reads is as blocks make it that wait for one another.

    `few_blocks`: there are more lists than multiprocessors.
    """
    rng, mask = np.random.default_rng(seed), ONE_INTERVAL[number]
    data = {name: drawn_intervals(rng, batch, n) for name in ("x", "y")[: 1 + (number == 3)]}
    outcomes = []
    for entry in ("lists_of_queries", "make_lists"):
        with pytest.MonkeyPatch.context() as patch:
            if entry == "make_lists":
                patch.setattr(making.Making, "by_queries", False)
            elif few_blocks:
                patch.setattr(making.Making, "blocks", on_three_multiprocessors)
            attn = decoding(number, f"{entry} {few_blocks}")
            made = passes(attn, 1, batch, data, n_kv=n, deterministic=invariant)
        numbers, places = made.numbers, made.places
        cut = numbers.part_tiles > 0
        assert made.entry == (entry if cut else "make_lists")
        rows = numbers.items + numbers.lists * numbers.owners * cut
        outcomes.append((
            made.counts_and_words(0), words(places["work"], rows, len(WORK_FIELDS)).tolist(),
            [words(places[f"array{i}"], numbers.batches[i]).tolist() for i in range(len(data))],
            words(places["counter"], numbers.counters).tolist(),
        ))  # fmt: skip
        assert made.at_rest()
    assert outcomes[0] == outcomes[1]
    if cut:
        _, items, *_ = outcomes[0]
        tiles = [item[3] for item in items[: numbers.items] if item[3]]
        assert sorted(tiles, reverse=True) == parts_by_definition(made)
    live = mask.dense(1, n, **{name: tuple(map(np.asarray, x)) for name, x in data.items()})
    assert not wrong_tiles(made, 0, np.broadcast_to(live, (numbers.lists, 1, n)))


def test_lists_that_blocks_do_not_find_alone(passes):
    """Several queries, more lists than a block has room for, or keys that are no interval."""
    mask, flags = decoding(0, "others"), mc.intervals("x") & mc.flags("y")
    low, high = torch.zeros(2, 2, dtype=torch.int32), torch.full((2, 2), 2000, dtype=torch.int32)
    one = {"x": (low[:, :1], high[:, :1])}
    assert passes(mask, 1, 2, one, n_kv=2111).entry == "lists_of_queries"
    assert passes(mask, 2, 2, {"x": (low, high)}, n_kv=2111).entry == "make_lists"
    attn = flags.compile(head_dim=64, target="sm_90a")
    more = one | {"y": torch.ones(2, 2111, dtype=torch.bool)}
    assert passes(attn, 1, 2, more, n_kv=2111).entry == "make_lists"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "MAX_QUERIES", 1)
        fresh = decoding(0, "few")
        assert passes(fresh, 1, 2, one, n_kv=2111).entry == "make_lists"


@pytest.mark.parametrize("number", range(GAPS))
@settings(max_examples=20)
@given(seed=SEEDS, batch=st.integers(1, 3), own_keys=st.booleans(), alone=st.booleans())
def test_lists_of_lengths_by_keys(passes, number, seed, batch, own_keys, alone):
    """In a backward pass tile columns begin with documents as well."""
    n, rng, sides = 1300, np.random.default_rng(seed), []
    for _ in range(1 + own_keys):
        ends = rng.integers(0, n + 100, (batch, int(rng.integers(1, 9)))).clip(0, n)
        ends = np.sort(np.concatenate([ends[:, :1] * 0, ends], 1))
        sides.append(ends if rng.random() < 0.8 else ends[:1])
    data = {"x": as_lengths(sides)}
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(making, "heads_per_group", lambda *_: 1)
        patch.setattr(making, "_MEAN_TILES", 1)
        made = passes(attention(DOCUMENTS[number], False, alone), n, batch, data, True, n_kv=n)
    assert (made.entry, made.numbers.work_side) == ("lists_of_lengths", 1)
    check_columns(made, number, sides, n)


BANDS = (-(1 << 30), 1 << 30), (-(1 << 30), 1), (-90, 21)
"""Keys of a query q, from q + the first number to q + the other - 1, by the mask's number."""


def rows_by_definition(
    made: Made, number: int, of_q: np.ndarray, of_k: np.ndarray, n: int
) -> list[list[int]]:
    """The tile rows of a sequence from its cumulative lengths: first query, past the last one,
    and the words of tiles with a live pair."""
    (queries, keys), (low, high), rows = made.numbers.tile, BANDS[number], []
    for i, (begin, stop) in enumerate(pairwise([*of_q.tolist(), n])):
        whole = i + 1 < min(len(of_q), len(of_k))  # or behind the last document
        for first in range(begin, stop, queries):
            row = [first, min(first + queries, stop)]
            for key in range(of_k[i], of_k[i + 1], keys) if whole else ():
                q, k = np.ogrid[row[0] : row[1], key : min(key + keys, of_k[i + 1])]
                live = (k >= q + low) & (k < q + high)
                if live.any():
                    row.append(2 * key + bool(live.all() and live.shape[1] == keys))
            rows.append(row)
    return rows


def check_rows(made: Made, number: int, sides: list[np.ndarray], n: int) -> None:
    """Compare tile rows that begin with documents, and their tiles, with the definition."""
    numbers, items, lines = made.numbers, made.items(), made.counts_and_words(0)
    stops = words(made.places["array2"], numbers.lists, n)
    of_q, of_k = (np.broadcast_to(x, (numbers.lists, x.shape[1])) for x in (sides[0], sides[-1]))
    for own, (ends, keys) in enumerate(zip(of_q, of_k, strict=True)):
        want = rows_by_definition(made, number, ends, keys, n)
        for owner in range(own * numbers.owners, (own + 1) * numbers.owners):
            of_owner = items[(items[:, 1] == owner) & (items[:, 0] >= 0)]
            rows = []
            for tile, _, first, count, begin, end, *_ in of_owner.tolist():
                start = own * numbers.room[0] + sum(map(len, lines[own][:tile]))
                assert (first, count) == (start, len(lines[own][tile]))
                rows.append([begin, end, *lines[own][tile]])
            assert sorted(rows) == want
        begins = [word >> 1 for _, _, *row in want for word in row]
        assert (stops[own, begins] == keys[np.searchsorted(keys, begins, "right")]).all()
    # All lines in their order, also those that do not exist
    assert items[:, 1:4].tolist() == [line[1:] for line in ordered_lines(made)]
    assert made.at_rest()


def check_columns(made: Made, number: int, sides: list[np.ndarray], n: int) -> None:
    """Compare tile rows and tile columns that begin with documents with the definition."""
    numbers, items = made.numbers, made.items()
    entries = words(made.places["col_tiles"], numbers.lists * numbers.room[1])
    begins = words(made.places["row_ptr"], numbers.lists, numbers.tile_count[0] + 1)
    of_q, of_k = (np.broadcast_to(x, (numbers.lists, x.shape[1])) for x in (sides[0], sides[-1]))
    for which, (ends, keys) in enumerate(zip(of_q, of_k, strict=True)):
        rows = spans_of(ends, numbers.tile[0], n)
        firsts = [first for first, _, _ in rows]
        assert begins[which].tolist() == firsts + [n] * (begins.shape[1] - len(rows))
        want = columns_by_definition(made, number, rows, spans_of(keys, numbers.tile[1], n),
                                     min(len(ends), len(keys)) - 1)  # fmt: skip
        for owner in range(which * numbers.owners, (which + 1) * numbers.owners):
            mine = items[(items[:, 1] == owner * numbers.owner_heads) & (items[:, 0] >= 0)]
            columns = []
            for key, _, first, count, shift, end, heads, wrong in sorted(mine.tolist()):
                assert (heads, wrong) == (numbers.item_heads, 0)
                column = entries[first : first + count].tolist()
                assert all(
                    numbers.tile[0] * (word >> 1) + shift == firsts[word >> 1] for word in column
                )
                columns.append([key, end, *column])
            assert columns == want
    assert items[:, 1:4].tolist() == [line[1:] for line in ordered_lines(made)]
    assert made.at_rest()


def spans_of(ends: np.ndarray, size: int, n: int) -> list[tuple[int, int, int]]:
    """First token, past the last one, and document of each line of a side."""
    return [
        (first, min(first + size, stop), document)
        for document, (begin, stop) in enumerate(pairwise([*ends.tolist(), n]))
        for first in range(begin, stop, size)
    ]


def columns_by_definition(
    made: Made, number: int, rows: list[tuple[int, int, int]],
    columns: list[tuple[int, int, int]], documents: int,
) -> list[list[int]]:  # fmt: skip
    """First key, past the last one, and the words of tile rows with a live pair of each column.

    Full are those whose pairs would be live if the queries and keys of a whole tile existed.
    """
    (low, high), size, listed = BANDS[number], made.numbers.tile[0], []
    for key, end, document in columns:
        words_of = []
        for row, (first, past, of) in enumerate(rows):
            if of != document or document >= documents:
                continue
            ahead = np.arange(key, end) - np.arange(first, past)[:, None]
            if ((ahead >= low) & (ahead < high)).any():
                whole = np.arange(key, end) - np.arange(first, first + size)[:, None]
                words_of.append(2 * row + bool(((whole >= low) & (whole < high)).all()))
        listed.append([key, end, *words_of])
    return listed


def check_documents(made: Made, mask, of_q: list[np.ndarray], of_k: list[np.ndarray]) -> None:
    """Compare the lists of documents of one or several sequences with the host's."""
    tile, n, batch = TileShape(*made.numbers.tile), len(of_k[0]), len(of_k)
    variant = mask.compile(head_dim=64, target="cpu").bundle
    keep = without_documents(variant.variants[0].keep, variant.data)
    layout = build(LayoutRecipe(tile, keep, None), n, n, {}, {})
    lines = made.counts_and_words(0)
    assert len(lines) == made.numbers.lists == batch
    stops = words(made.places["array2"], batch, n)
    for own, found, q, k in zip(lines, stops, of_q, of_k, strict=True):
        want = document_lists(layout, q.astype(np.int32), k.astype(np.int32))
        rows = pairwise(want.row_ptr)
        assert own == [want.words[a:b].tolist() for a, b in rows]
        begins = sorted({word >> 1 for line in own for word in line})
        assert (found[begins] == want.stops[begins]).all()
    assert made.items().tolist() == wanted_items(made)
    assert made.at_rest()


@pytest.mark.parametrize("first", [100, 9000])
def test_documents_that_take_several_turns_to_find(passes, first):
    """A block tests 128 places a turn; the two ends of a document take different numbers."""
    n, mask = 17000, mc.documents("x") & mc.window(90, 20)
    documents = np.searchsorted([first, first + 40, n - 5], np.arange(n), "right").astype(np.int32)
    made = passes(attention(mask, False), n, 1, {"x": torch.tensor(documents[None])}, n_kv=n)
    check_documents(made, mask, [documents], [documents])
