"""MASKC_CHECK=1 compares lists that a card made with the host's: right ones pass, and every kind of
wrong one is refused, by name. The lists run in the emulator; the passes behind them do not."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import CheckFailed, ListsNotRead, WrongDeviceLists
from maskc.runtime.device_lists.lists_check import ListsCheck
from maskc.runtime.launch.cuda import CudaKernel
from maskc.testing.emulator import machine
from tests.support.cases import LISTS_BY_HEAD, LISTS_OF_TARGETS, N
from tests.support.judged_lists import on_device


@pytest.fixture
def card(monkeypatch):
    """A card that makes lists and runs nothing else, with checks on."""
    monkeypatch.setenv("MASKC_CHECK", "1")
    monkeypatch.setattr(CudaKernel, "run", lambda *_: None)
    return machine.install(monkeypatch)


def call(mask, data, *, backward=False, n_q=N, batch=2, target="sm_90a"):
    attn = mask.compile(head_dim=64, target=target)
    q = torch.zeros(batch, 4, n_q, 64, dtype=torch.bfloat16)
    k = torch.zeros(batch, 2, N, 64, dtype=torch.bfloat16)
    held = {name: on_device(value) for name, value in data.items()}
    if backward:
        lse = torch.zeros(batch, 4, n_q)
        attn.backward(q, k, k, q, lse, q, **held)
    else:
        attn(q, k, k, **held)
    return attn


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", [*LISTS_OF_TARGETS, *LISTS_BY_HEAD])
def test_lists_of_the_device_are_checked(card, monkeypatch, name, backward):
    compared, compare = [], ListsCheck.compare

    def count(check, *given):
        compare(check, *given)
        compared.append(check.making.lists)

    monkeypatch.setattr(ListsCheck, "compare", count)
    attn = call(*(LISTS_OF_TARGETS | LISTS_BY_HEAD)[name].drawn(5), backward=backward)
    assert len(compared) == 1
    assert set(attn.last_layouts) == {"device lists"}
    assert len(attn.last_layouts) == len(attn.last_sources)


def test_no_tile_begins_behind_a_last_document_of_one_token(card):
    call(mc.documents("x"), {"x": np.repeat([0, 1, 2], [90, N - 91, 1])})


def test_every_call_is_checked_against_its_own_arrays(card, monkeypatch):
    compared, compare = [], ListsCheck.compare
    monkeypatch.setattr(ListsCheck, "compare", lambda *x: compared.append(compare(*x)))
    attn, q = PADDED.compile(head_dim=64, target="sm_90a"), torch.zeros(2, 4, N, 64).bfloat16()
    for number in range(3):
        attn(q, q, q, x=torch.tensor(np.arange(N) < 100 * number + 50))
        assert len(compared) == number + 1


FLAGS = np.arange(N) < np.array([[100], [250]])
PADDED = mc.flags("x") & mc.causal()
DOCS = np.repeat([0, 1, 2, 3, 4], [90, 30, 80, 60, 40])


def write(part, at, value):
    """Change a word of a part of the lists' memory."""

    def change(places):
        word = ctypes.c_int32.from_address(places[part] + 4 * at)
        word.value = value(word.value) if callable(value) else value

    return change


WRONG = {
    # tiles of 64 x 64, five rows; of a causal mask a list has room for 15
    "full": (PADDED, {"x": FLAGS}, False, write("row_tiles", 0, 1),
             "sequence 0, tile row 0, tile 0: full on the GPU, partial on the host"),
    "missing": (PADDED, {"x": FLAGS}, False, write("row_tiles", 0, 2),
                "sequence 0, tile row 0, tile 0: empty on the GPU, partial on the host"),
    "none": (PADDED, {"x": FLAGS}, False, write("row_ptr", 1, 0),
             "sequence 0, tile row 0, tile 0: empty on the GPU, partial on the host"),
    "twice": (mc.flags("x"), {"x": FLAGS | True}, False, write("row_tiles", 1, 1),
              "sequence 0, tile row 0, tile 0: full, out of order on the GPU, full on the host"),
    "elsewhere": (PADDED, {"x": FLAGS}, False, write("row_ptr", 6, 0),
                  "sequence 1, tile row 0: its tiles begin at entry 0 on the GPU, they lie in "
                  "order in entries 15 to 30 on the host"),
    "column": (PADDED, {"x": FLAGS}, True, write("col_tiles", 0, lambda word: word | 1),
               "sequence 0, tile column 0, tile 0: full on the GPU, partial on the host"),
    "item": (PADDED, {"x": FLAGS}, False, write("work", 3, lambda word: word + 1),
             "the work of query head 4 of all, tile row 3: entries 21 to 26 on the GPU, "
             "entries 21 to 25 on the host"),
    "no item": (PADDED, {"x": FLAGS}, False, write("work", 1, 99), "no item"),
    "document": (mc.documents("x"), {"x": DOCS}, False, write("row_tiles", 0, 1),
                 "all sequences, tile row 0, the tile that begins with key 0: full on the GPU, "
                 "partial on the host"),
    "its end": (mc.documents("x"), {"x": DOCS}, False, write("array2", 90, 121),
                "all sequences, the tile that begins with key 90: its document ends before key "
                "121 on the GPU, it ends before key 120 on the host"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_list_is_refused(card, monkeypatch, kind):
    mask, data, backward, change, text = WRONG[kind]
    compare, seen = ListsCheck.compare, []

    def planted(check, asked, places, read):
        compare(check, asked, places, read)  # as the card made it, it is right
        seen.append(check)
        change(places)
        compare(check, asked, places, read)

    monkeypatch.setattr(ListsCheck, "compare", planted)
    with pytest.raises(WrongDeviceLists) as raised:
        call(mask, data, backward=backward)
    assert seen
    assert text in str(raised.value)
    assert isinstance(raised.value, CheckFailed)


def test_a_full_tile_may_be_called_partial(card, monkeypatch):
    """Kernels then test its pairs, and no result is wrong."""
    compare, words = ListsCheck.compare, []

    def planted(check, asked, places, read):
        write("row_tiles", 0, lambda word: words.append(word) or word & ~1)(places)
        compare(check, asked, places, read)

    monkeypatch.setattr(ListsCheck, "compare", planted)
    call(mc.flags("x"), {"x": FLAGS | True})
    assert words == [1]


def test_rows_of_packed_heads(card):
    """Their work is parts of rows; lengths from no key to all."""
    for keys in ([[0], [1], [130], [N], [64]], [[N]]):
        attn = call(PADDED, {"x": np.arange(N) < np.array(keys)}, n_q=2, batch=5)
        assert attn.last_sources[-1].endswith("pack_gqa")
        assert attn.last_layouts[-1] == "device lists"


def test_data_of_fewer_queries_than_keys(card):
    queries = np.arange(128) < np.array([[100], [120]])
    attn = call(mc.flags("x", on="q") & mc.causal(), {"x": queries}, n_q=128)
    assert set(attn.last_layouts) == {"device lists"}


def test_layouts_of_other_calls(card):
    q = torch.zeros(1, 4, N, 64, dtype=torch.bfloat16)
    for mask, data, layout in (
        (mc.causal(), {}, "closed form"),
        (mc.causal() & mc.strided(3), {}, "host lists"),
        (PADDED, {"x": FLAGS[:1]}, "host lists"),
    ):
        attn = mask.compile(head_dim=64, target="sm_90a")
        assert attn.last_layouts == ()
        attn(q, q, q, **data)
        assert set(attn.last_layouts) == {layout}


def test_lists_of_later_cannot_be_checked(card, monkeypatch):
    monkeypatch.setattr(machine.Driver, "capturing", lambda *_: True)
    with pytest.raises(ListsNotRead, match="MC691"):
        call(PADDED, {"x": FLAGS})


def test_unset_nothing_is_compared(card, monkeypatch):
    monkeypatch.delenv("MASKC_CHECK")
    monkeypatch.setattr(ListsCheck, "compare", None)
    call(PADDED, {"x": FLAGS})
