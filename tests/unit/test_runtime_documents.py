"""Documents on a device in name only: what is launched, with which arguments, and what is not."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import maskc as mc
from maskc.core.data import CuSeqlens
from maskc.core.errors import DataMissing, DataRange, DataUnknown, MaskcError
from maskc.core.sizes import Sizes
from maskc.runtime import CompiledMask
from maskc.runtime.device_lists import data as lister
from maskc.runtime.device_lists.call import Asked
from maskc.runtime.device_lists.data_given import Reader
from maskc.runtime.device_lists.reports import Reports
from tests.support.fake_cuda import Tensor
from tests.support.fake_hopper import Machine, backward, given

MASK = mc.documents("doc") & mc.causal()
SIZES = Sizes(2, 4, 2, 300, 300)
DEVICE = ("cuda", 0)
DECL = mc.documents("doc").decl


def compiled(mask=MASK) -> CompiledMask:
    return mask.compile(head_dim=64, target="sm_90a")


def ids(shape, dtype="int32", strides=None) -> Tensor:
    return Tensor(shape, strides, pointer=7 << 20, dtype=dtype)


def names(machine: Machine) -> list[str]:
    return [entry for entry, _, _ in machine.launched()]


# ------------------------------------------------------------------ what is given


def given_on(device, value, sizes, decl):
    """Return what kernels read of queries and of keys; None: nothing."""
    asked = Asked(None, (), {decl.name: value}, None, sizes, device)
    found = Reader((decl,), decl.arrays).read(asked)
    return None if found is None else found.sources


@pytest.mark.parametrize(
    ("value", "lists", "ends"),
    [
        (ids((300,)), 1, 0), (ids((1, 300), "int16"), 1, 0), (ids((2, 300), "int64"), 2, 0),
        (CuSeqlens(ids((5,))), 1, 5), (CuSeqlens(ids((2, 9), "int64")), 2, 9),
        ((ids((2, 300)), ids((300,))), 2, 0),
    ],
)  # fmt: skip
def test_what_stays_on_the_device(machine, value, lists, ends):
    found = given_on(DEVICE, value, SIZES, DECL)
    assert found is not None
    assert max(source.shape[0] for source in found) == lists
    assert {source.ends for source in found} == {ends}


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(300, np.int32), [0] * 300, None, ids((299,)), ids((3, 300)), ids((1, 2, 300)),
        ids((300,), "float32"), CuSeqlens(np.array([0, 300])),
        CuSeqlens(ids((0,))), (ids((300,)), np.zeros(300, int)), (ids((300,)),) * 3,
    ],
)  # fmt: skip
def test_what_the_host_reads(machine, value):
    assert given_on(DEVICE, value, SIZES, DECL) is None


def test_what_lies_elsewhere(machine):
    assert given_on(("cuda", 1), ids((300,)), SIZES, DECL) is None
    assert given_on(DEVICE, (ids((300,)), ids((200,))), replace(SIZES, n_kv=200), DECL)


@pytest.mark.parametrize(("align", "first"), [("end", 100), ("start", 0)])
def test_one_array_of_all_tokens_where_queries_are_the_fewer(machine, align, first):
    mask = mc.documents("doc", align=align)
    sizes, pointer = replace(SIZES, n_q=200), 7 << 20
    for value, step in ((ids((300,), "int64"), 1), (ids((2, 300), "int64", (900, 3)), 3)):
        of_q, of_k = given_on(DEVICE, value, sizes, mask.decl)
        assert (of_q.pointer, of_k.pointer) == (pointer + 8 * step * first, pointer)
        assert (of_q.shape[-1], of_k.shape[-1]) == (200, 300)
        assert of_q.strides == of_k.strides
    assert given_on(DEVICE, ids((200,)), sizes, mask.decl) is None
    assert given_on(DEVICE, CuSeqlens(ids((5,))), sizes, mask.decl) is None


# ------------------------------------------------------------------ launches


LISTS, OF_LENGTHS = "make_lists", "lists_of_lengths"
GRADIENTS = ["attention_backward_prepare", "attention_backward", "attention_backward_finish"]


def test_launches_of_a_forward_pass(machine):
    compiled()(*given(n=300, heads=(4, 4)), doc=ids((2, 300)))
    assert machine.launched() == [
        ("make_lists", 2 * (3 + 5) + 2 * 2 * 5, 128),
        ("attention_forward", 2 * 4 * 5, 256),
    ]
    made, block = machine.driver.listed, machine.driver.block
    assert (block.items, block.empty, block.shared_items) == (40, 0, 0)
    assert list(block.array)[:3] == list(made.array)[:3]
    assert list(block.array_batch)[:3] == list(made.array_batch)[:3] == [300, 300, 300]
    assert (block.row_ptr, block.row_tiles) == (made.ptr[0], made.tiles[0])
    assert (block.work, block.counter, block.list_batch) == (made.work, made.counter, 1)


def test_launches_of_backward_passes(machine):
    mask = compiled()
    backward(mask, *given(n=300), doc=ids((300,)))
    assert names(machine) == [LISTS, *GRADIENTS]
    made, block = machine.driver.listed, machine.driver.block
    assert (made.first_side, made.starts, made.array[2], made.ptr[0]) == (1, None, None, None)
    assert (block.col_ptr, block.col_tiles, block.work) == (made.ptr[1], made.tiles[1], made.work)
    assert (made.owners, made.owner_heads, made.item_heads) == (2 * 2, 2, 2)
    assert list(block.array_batch)[:3] == [0, 0, 0]
    backward(mask, *given(n=300), doc=ids((300,)), deterministic=True)
    assert names(machine) == [LISTS, *GRADIENTS]
    made = machine.driver.listed
    assert (made.first_side, made.work) == (0, None)
    assert None not in (made.ptr[0], made.ptr[1])


def test_parts_of_the_memory_do_not_overlap(machine):
    compiled()(*given(n=300), doc=ids((2, 300), "int64"))
    made = machine.driver.listed
    sizes = {
        "array": (600, 600, 600), "bounds": 4 * made.reading_blocks, "starts": 4 * 2 * 3,
        "bits": (2 * 2 * made.bit_words[0],), "counts": (4,), "ptr": (2 * 3,),
        "tiles": (2 * made.room[0],), "work": 16 * 8, "counter": 2, "verdict": 1,
    }  # fmt: skip
    spans = []
    for name, size in sizes.items():
        places = getattr(made, name)
        several = zip(places, size, strict=False) if isinstance(size, tuple) else [(places, size)]
        spans += [(place, place + 4 * count) for place, count in several]
    spans.sort()
    assert all(place % 16 == 0 for place, _ in spans)
    assert all(end <= place for (_, end), (place, _) in pairwise(spans))


def test_lengths_are_laid_out_once(machine, monkeypatch):
    made, mask, make = [], compiled(), lister.make_tables
    monkeypatch.setattr(lister, "make_tables", lambda *args: made.append(args) or make(*args))
    for shape in ((300,), (2, 300), (300,)):
        for dtype in ("int32", "int64"):
            mask(*given(n=300), doc=ids(shape, dtype))
    mask(*given(n=200), doc=ids((200,)))
    assert len(made) == 2


def test_what_may_be_wrong_is_looked_at(machine):
    mask, arrays = compiled(), given(n=300)
    mask(*arrays, doc=ids((300,)))
    assert "spoil_results" not in names(machine)
    assert machine.driver.listed.verdict is None
    # Lists from lengths alone make the pass write NaN
    ends = mc.cu_seqlens(ids((5,)))
    for value, last in ((ends, "attention_forward"), (ids((300,), "int64"), "spoil_results")):
        mask(*arrays, doc=value)
        assert names(machine)[-1] == last
        assert machine.driver.listed.verdict is not None
    made = machine.driver.listed
    assert made.report == ctypes.addressof(machine.driver.words)
    assert list(made.result_words) == [2 * 4 * 300 * 64 // 2, 2 * 4 * 300, 0, 0, 0]
    machine.driver.words[0] = 1
    with pytest.raises(DataRange, match="an earlier call"):
        mask(*arrays, doc=ids((300,)))
    mask(*arrays, doc=ids((300,)))


def test_lists_are_confirmed_by_their_own_ticket(monkeypatch):
    """Places of tickets are used again; nobody knows about lists without one."""
    words = (ctypes.c_int32 * 64)()
    monkeypatch.setattr("maskc.runtime.device_lists.reports.host_words", lambda *_: words)
    reports = Reports(0)
    ticket = reports.ticket()
    assert not reports.fine(ticket)
    _, fine = reports.addresses(ticket)
    ctypes.c_int32.from_address(fine).value = ticket
    assert reports.fine(ticket)
    ctypes.c_int32.from_address(fine).value = ticket + 63
    assert not reports.fine(ticket)
    assert not reports.fine(0)


def test_spoilt_gradients(machine):
    sinks = Tensor((4,), pointer=9 << 20, dtype="float32")
    backward(compiled(), *given(n=300), doc=ids((300,), "int64"), sink_logits=sinks)
    made = machine.driver.listed
    keys = 2 * 2 * 300 * 64 // 2
    assert list(made.result_words) == [2 * keys, keys, keys, 4, 4]
    assert [place is not None for place in made.result] == [True, True, True, True, False]


# ------------------------------------------------------------------ what runs through the host


def test_the_host_makes_these_lists(machine, monkeypatch):
    host = np.zeros(300, np.int32)
    monkeypatch.setattr("maskc.layout.inputs.call_data.to_host", lambda given, name: host)
    mask = compiled()
    monkeypatch.setattr("maskc.runtime.device_lists.data._MAX_TILES", 5)
    mask(*given(n=300), doc=ids((300,)))
    assert names(machine) == ["attention_forward"]
    mask(*given(n=64, n_kv=300), doc=(ids((64,)), ids((300,))))  # one row of tiles
    assert LISTS in names(machine)


def test_other_masks_have_no_such_source():
    assert compiled(mc.causal()).bundle.list_source("sm_90a") is None
    for mask in (MASK | mc.sinks(1), MASK & mc.flags("f")):
        assert compiled(mask).bundle.list_source("sm_90a").form == "data"
    several = mc.per_head([MASK, mc.documents("doc")]).compile(head_dim=64, n_heads=2,
                                                               target="sm_90a")  # fmt: skip
    assert several.bundle.list_source("sm_90a").form == "data"
    bundle = compiled().bundle
    assert bundle.list_source("sm_90a") in bundle.units
    assert bundle.list_source("sm_80") is None
    passes = [unit for unit in bundle.units if unit.directions]
    assert [unit.by_documents for unit in passes] == [True, True, False, False, False]
    assert [unit.form for unit in passes] == ["", "small", "", "small", ""]


@pytest.mark.parametrize("keywords", [{}, {"other": 1}])
def test_keywords_are_checked(machine, keywords):
    with pytest.raises(MaskcError):
        compiled()(*given(n=300), **keywords)


# ------------------------------------------------------------------ the longest document


def promise(most, pointer=7 << 20) -> CuSeqlens:
    return mc.cu_seqlens(Tensor((5,), pointer=pointer, dtype="int32"), max_seqlen=most)


def rows_of(machine: Machine) -> int:
    """Queries of a tile of the last forward pass: half of its rows if two heads are interleaved."""
    return machine.driver.listed.tile[0]


def test_short_documents_run_in_small_tiles(machine):
    mask, arrays = compiled(), given(n=300, heads=(4, 4))
    cases = (promise(80), 64), (promise(None), 64), (promise(16000), 192), (ids((300,)), 64)
    for value, rows in cases:
        mask(*arrays, doc=value)
        assert rows_of(machine) == rows
    mask(*arrays, doc=(promise(80), promise(90, 8 << 20)))
    assert rows_of(machine) == 64
    mask(*arrays, doc=(promise(80), promise(16000)))
    assert rows_of(machine) == 192


def test_host_and_device_choose_alike(machine):
    """And neither asks which documents there are, nor how many, unless a call that need not be
    deterministic promises nothing."""
    mask = compiled()
    for most in (80, 3000, None):
        mask(*given(n=300), doc=promise(most))
        rows = rows_of(machine)
        machine.launched()
        for n, ends in ((300, [0, 70, 150, 230, 300]), (130, [0, 1, 80, 130]), (64, [0, 64])):
            documents = mc.cu_seqlens(np.array(ends), max_seqlen=most)
            mask(*given(n=n), doc=documents, deterministic=most is None)
            ((_, _, threads),) = machine.launched()
            assert threads == {64: 256, 32: 256, 192: 512, 96: 512}[rows], (most, n)


def test_the_exact_promise_goes_to_the_device(machine):
    """Where it is checked; calls whose promises are alike share a plan."""
    mask, arrays = compiled(), given(n=300)
    mask(*arrays, doc=promise(70))
    assert list(machine.driver.listed.most)[:2] == [70, 70]
    plan = mask._last[1]
    mask(*arrays, doc=promise(71))
    assert list(machine.driver.listed.most)[:2] == [71, 71]
    assert mask._last[1] is plan
    mask(*arrays, doc=promise(None))
    assert list(machine.driver.listed.most)[:2] == [2**31 - 1] * 2
    with pytest.raises(DataRange, match="max_seqlen is -3"):
        mask(*arrays, doc=promise(-3))
    host = mc.cu_seqlens(np.array([0, 100, 300]), max_seqlen=150)
    with pytest.raises(DataRange, match="document 1 has 200 tokens"):
        mask(*arrays, doc=host)


def test_a_promise_leaves_out_tiles_that_are_far_away(machine):
    mask, arrays = compiled(mc.documents("doc")), given(n=3000, heads=(4, 4))
    room = {}
    for most in (80, 2000, None):
        mask(*arrays, doc=promise(most))
        room[most] = machine.driver.listed.room[0]
    assert room[80] == 52 * 2  # rows of 64 queries, of five documents at most
    assert room[2000] < room[None]  # in larger tiles
    mask(*arrays, doc=(promise(80), promise(80)))  # other lengths of queries and keys, perhaps
    assert machine.driver.listed.room[0] == room[80]
    backward(mask, *arrays, doc=promise(80))
    assert machine.driver.listed.room[0] < 24 * 24


# ------------------------------------------------------------------ memory of lists


@pytest.fixture
def counted(machine, monkeypatch):
    """A library that counts what is written into its arrays."""
    look = lambda x: (x.array[0], getattr(x, "version", 0), x.array[1:])  # noqa: E731
    monkeypatch.setattr(machine.library, "watch", look, raising=False)
    return machine


def made_in(machine: Machine, mask, value, **options) -> tuple[int, bool]:
    """(where the lists lie that the pass reads, whether they were made in this call)."""
    machine.launched()
    mask(*given(n=300), doc=value, **options)
    made = not {LISTS, OF_LENGTHS}.isdisjoint(names(machine))
    return machine.driver.block.row_ptr, made


def test_lists_are_made_anew_in_place(counted):
    """Arrays that are written into again and again take two memories in turns."""
    mask, value = compiled(), ids((300,))
    places = []
    for version in (0, 0, 1, 1, 2, 3, 4):
        value.version = version
        places.append(made_in(counted, mask, value))
    found, fresh = zip(*places, strict=True)
    assert list(fresh) == [True, False, True, False, True, True, True]
    assert found[0] == found[1] != found[2] == found[3]
    assert found[4:] == (found[0], found[2], found[0])


def test_what_lists_are_made_from_is_told_anew(counted):
    """Other arrays of a memory's second owner, their promise included."""
    mask = compiled()
    values = [promise(80, (7 + number) << 20) for number in range(4)]
    for value in (*values, values[0]):
        assert made_in(counted, mask, value)[1]
        assert counted.driver.listed.source[1] == value.array.array.pointer
    assert not made_in(counted, mask, values[0])[1]


def test_arrays_in_the_place_of_others_have_lists_of_their_own(counted):
    """Neither a new array at the address of a dead one nor another promise finds old lists."""
    mask, promised = compiled(), promise(80)
    values = [ids((300,)), ids((300,)), promised, CuSeqlens(promised.array, 79)]
    for number in (0, 1, 0, 2, 3, 2):
        assert made_in(counted, mask, values[number])[1], number
    assert not made_in(counted, mask, values[2])[1]


def test_keywords_of_later_calls_are_looked_at(counted):
    """Their number, types and layouts, in calls whose tensors are alike."""
    mask, value = compiled(), ids((300,))
    assert made_in(counted, mask, value)[1]
    with pytest.raises(DataUnknown):
        made_in(counted, mask, value, more=value)
    assert made_in(counted, mask, (value, value))[1]
    assert made_in(counted, mask, ids((1, 300)))[1]
    with pytest.raises(DataMissing):
        mask(*given(n=300))
    assert made_in(counted, mask, value)[1]
    assert not made_in(counted, mask, value)[1]


def test_streams_and_graphs_have_lists_of_their_own(counted):
    mask, value = compiled(), ids((300,))
    places = {}
    for stream in (7, 8, 3, 3, 2, 2):  # captured is what runs on 3; 2 is each thread's own
        counted.library.current = stream
        place, fresh = made_in(counted, mask, value)
        assert fresh
        places.setdefault(place, stream)
    assert len(places) == 6
    for stream in (7, 8):
        counted.library.current = stream
        place, fresh = made_in(counted, mask, value)
        assert not fresh
        assert places[place] == stream


def test_a_call_under_way_has_its_lists_alone(counted):
    """Another thread that comes in between, with the same arrays or not, takes others."""
    mask, value = compiled(), ids((300,))
    made_in(counted, mask, value)
    ((call, _),) = mask._repeats.values()
    q = given(n=300)[0]
    mine, stream = call.place(counted.library, q)
    assert not mine.fresh
    other, fresh = made_in(counted, mask, value)
    assert fresh
    call.run(mine, tuple(range(16, 96, 16)), None, stream)
    assert counted.driver.block.row_ptr not in (0, other)


def test_a_failed_launch_leaves_no_lists_behind(counted):
    mask, value = compiled(), ids((300,))
    counted.driver.status = 719
    with pytest.raises(RuntimeError, match="719"):
        mask(*given(n=300), doc=value)
    counted.driver.status = 0
    assert made_in(counted, mask, value)[1]
    assert not made_in(counted, mask, value)[1]
