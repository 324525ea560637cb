"""Short documents in small tiles, on an emulated Hopper: lists made there, results, and bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DataRange
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.testing.emulator import machine
from tests.support import cases
from tests.support.documents import (
    ends,
    lengths_on_device,
    lengths_on_host,
    neighbours_change_no_bit,
)
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, exact, exact_and_rough, tensors, wrong
from tests.support.hopper import compiled as with_mode
from tests.support.hopper import with_rules
from tests.support.judged_lists import near

DOCUMENTS = mc.documents("doc")
MASKS = cases.masks(cases.DOCUMENTS, cases.EMULATOR)
LENGTHS = [64, 3, 80, 1, 0, 77, 20, 65]


def compiled(mask, dim=64):
    return mask.compile(head_dim=dim, target="sm_90a")


def made(n, seed=0, dim=64):
    return tensors(n, n, dim, torch.bfloat16, seed, batch=1, heads=2, kv_heads=1, device="cpu")


on_device = partial(lengths_on_device, most=80, device="cpu")
on_host = partial(lengths_on_host, most=80)


@pytest.mark.parametrize(
    ("name", "dim"), [*((name, 64) for name in MASKS), ("causal", 96), ("causal", 128)]
)
def test_results(name, dim):
    """Lists of the device and of the host give the same bits, near fp64's. A key that is
    NaN reaches the queries that see it, and no others."""
    attn, given = compiled(MASKS[name], dim), made(sum(LENGTHS), dim=dim)
    given[1][0, 0, 150] = torch.nan  # in the document of 77 tokens
    computed = called(attn, *given, {"doc": on_device(LENGTHS)}, deterministic=True)
    assert isinstance(attn._last[1], ListsPlan)
    want = called(attn, *given, {"doc": on_host(LENGTHS)}, deterministic=True)
    assert not isinstance(attn._last[1], ListsPlan)
    for key, x in want.items():
        assert torch.equal(x.nan_to_num(7.0), computed[key].nan_to_num(7.0)), key

    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    live = torch.tensor(MASKS[name].dense(len(ids), doc=ids))
    touched = live[:, 150]
    right, _ = exact(*given[:3], live)
    assert torch.equal(computed["out"].isnan().any(-1), touched.expand(1, 2, -1))
    torch.testing.assert_close(
        computed["out"][:, :, ~touched].double(), right[:, :, ~touched], atol=2e-2, rtol=2e-2
    )


@pytest.mark.parametrize("options", [{"nan_safe": True}, {"normalizer": "entmax", "alpha": 1.5}])
def test_other_normalizers_and_safe_values(options):
    """The device makes the lists of sources that have these as well."""
    attn, (q, k, v, _) = compiled(MASKS["causal"]), made(sum(LENGTHS))
    computed = attn(q, k, v, return_lse=True, **options, doc=on_device(LENGTHS))
    assert isinstance(attn._last[1], ListsPlan)
    want = attn(q, k, v, return_lse=True, **options, doc=on_host(LENGTHS))
    assert not isinstance(attn._last[1], ListsPlan)
    assert all(map(torch.equal, computed, want))


def test_more_tiles_than_a_block_keeps_while_it_waits(monkeypatch):
    """A block finds the tiles of a long row again when its place is known."""

    def short(unit, *rest, **options):
        text = unit.text.replace("STASH_WORDS = 1024", "STASH_WORDS = 3")
        return machine.build(replace(unit, text=text), *rest, **options)

    monkeypatch.setattr("maskc.runtime.launch.kernels.build", short)
    attn, given = compiled(DOCUMENTS), made(300)
    lengths = [7, 3, 90, 11, 2, 9, 70, 108]
    computed = called(attn, *given, {"doc": on_device(lengths, most=None)}, deterministic=True)
    assert isinstance(attn._last[1], ListsPlan)
    want = called(attn, *given, {"doc": on_host(lengths, most=None)}, deterministic=True)
    assert all(torch.equal(x, computed[name]) for name, x in want.items())


def test_columns_are_not_cut_where_order_matters():
    """The host would have several blocks make shares of a long column, which are added in another
    order. Sums over the first half and the second cancel almost, so the order shows."""
    attn, given = with_rules(compiled(MASKS["short sinks"]), {}, {"most_tiles": 1}), made(640)
    given[0].zero_()
    given[3][:, :, 64:320] += 2.0**14
    given[3][:, :, 320:576] -= 2.0**14
    of_host, of_device = (
        called(attn, *given, {"doc": where([640], most=None)}, deterministic=True)
        for where in (on_host, on_device)
    )
    assert all(torch.equal(of_device[name], x) for name, x in of_host.items())


def test_the_promise_decides_the_tiles():
    attn, given = compiled(DOCUMENTS), made(300)
    for most in (80, None):
        for where in (on_device, on_host):
            attn(*given[:3], doc=where([60] * 5, most=most))
    assert {name for name, _, _ in attn.all_reports} == {
        "sm_90a", "sm_90a_small", "sm_90a_documents",
    }  # fmt: skip


@pytest.mark.parametrize("make", [np.array, list, torch.tensor])
def test_lengths_on_the_host_decide_the_tiles(make, hopper):
    """Without a promise, except in deterministic passes, which may not depend on the batch; tensors
    stand for those of a card, which nobody reads."""
    attn, given = compiled(DOCUMENTS), made(300)
    runs = []
    for deterministic in (False, True):
        ends = mc.cu_seqlens(make([60 * i for i in range(6)]))
        attn(*given[:3], doc=ends, deterministic=deterministic)
        runs.append(attn.last_sources[-1].split()[0])
    on_host = make is not torch.tensor
    assert runs == ["sm_90a_small" if on_host else "sm_90a", "sm_90a"]


def test_neighbours_change_no_bit():
    neighbours_change_no_bit(
        compiled(MASKS["causal"]), 64, (1, 37, 80), lambda own: on_device([own]),
        [([30], [5, 60]), ([64, 65, 66], []), ([79, 64, 70], [33, 80])], [on_device, on_host],
        heads=2, kv_heads=1, device="cpu",
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mode", ["default", "persistent", "interleaved"])
def test_a_broken_promise_is_spoilt_and_said(mode, batch):
    """Though each document but one keeps it; the longest possible does. Calls that use the lists
    again are spoilt, too."""
    attn = with_mode(MASKS["causal"], 64, mode=mode)
    q, k, v, _ = tensors(
        300, 300, 64, torch.bfloat16, 0, batch=batch, heads=4, kv_heads=2, device="cpu"
    )
    fine = attn(q, k, v, doc=on_device([80, 80, 80, 60]))
    assert not fine.isnan().any()
    broken = on_device([80, 81, 79, 60])
    computed = attn(q, k, v, return_lse=True, doc=broken)
    assert all(x.isnan().all() for x in computed)
    with pytest.raises(DataRange, match="more tokens than max_seqlen promised"):
        attn(q, k, v, doc=on_device([80, 80, 80, 60]))
    assert torch.equal(attn(q, k, v, doc=on_device([80, 80, 80, 60])), fine)
    assert attn(q, k, v, doc=broken).isnan().all()


@pytest.mark.parametrize("most", [1, 16, 50, 200])
def test_random_lengths(most):
    """Sequences with documents of their own: lists that leave out what is far away give the bits of
    the host's, which do not."""
    rng = np.random.default_rng(most)
    attn = compiled(MASKS["causal"])
    for n in (61, 230):
        ends = [[0], [0]]
        for end in ends:
            while end[-1] < n:
                end.append(min(n, end[-1] + int(rng.integers(1, most + 1))))
        count = max(map(len, ends))
        both = np.array([end + [n] * (count - len(end)) for end in ends])  # the last are empty
        x = tensors(n, n, 64, torch.bfloat16, most, batch=2, heads=2, kv_heads=1, device="cpu")
        want, found = (
            called(attn, *x, {"doc": mc.cu_seqlens(given, max_seqlen=most)}, deterministic=True)
            for given in (both, torch.tensor(both))
        )
        for key, value in want.items():
            assert torch.equal(value, found[key]), (n, key)
        assert not want["out"].isnan().any()


@pytest.mark.parametrize(
    ("of_q", "of_k"),
    [([0, 80, 90], [0, 10, 90, 170]), (ends([8, 3] * 8 + [2]), ends([20, 0] * 8 + [10]))],
)
def test_queries_and_keys_with_lengths_of_their_own(of_q, of_k):
    """Their documents may lie anywhere: nothing is left out then. Some have no keys."""
    attn = compiled(DOCUMENTS)
    q, _, _, _ = made(90)
    _, k, v, _ = made(170, 1)
    made_on = {
        "host": (np.array(of_q), np.array(of_k)),
        "device": (torch.tensor(of_q), torch.tensor(of_k)),
    }
    outs = [
        attn(q, k, v, doc=tuple(mc.cu_seqlens(x, max_seqlen=160) for x in pair))
        for pair in made_on.values()
    ]
    ids = [np.repeat(np.arange(len(x) - 1), np.diff(x)) for x in (of_q, of_k)]
    live = torch.tensor(ids[0][:, None] == ids[1])
    assert torch.equal(*outs)
    near(outs[0], exact(q, k, v, live)[0])


@pytest.mark.parametrize("align", ["end", "start"])
def test_one_array_of_all_tokens(align):
    """Fewer queries than keys: the device's lists take the queries' part of the array."""
    ids = np.repeat(np.arange(4), [70, 3, 50, 37])
    mask = mc.documents("doc", align=align) & mc.causal(align=align)
    q, k, v, _ = tensors(
        60, 160, 64, torch.bfloat16, 0, batch=1, heads=2, kv_heads=1, device="cpu"
    )  # fmt: skip
    attn = compiled(mask)
    out = attn(q, k, v, doc=torch.tensor(ids, dtype=torch.int32))
    assert isinstance(attn._last[1], ListsPlan)
    assert torch.equal(out, attn(q, k, v, doc=ids))
    first = 0 if align == "start" else 100
    live = np.array([[ids[q + first] == ids[k] and k <= q + first for k in range(160)]
                     for q in range(60)])  # fmt: skip
    near(out, exact(q, k, v, live)[0])


@pytest.mark.parametrize("name", ["tree", "intervals", "flags"])
def test_other_data_of_all_tokens(name):
    """A draft of nine tokens behind a cache, with what else may have an entry per token."""
    n_q, n_kv, rng = 9, 140, np.random.default_rng(0)
    parents = np.array([rng.integers(-1, t) if t else -1 for t in range(n_kv)])
    low = rng.integers(0, 70, n_kv)
    mask, given = {
        "tree": (mc.tree("x"), mc.parents(parents)),
        "intervals": (mc.intervals("x"), (low, low + 70)),
        "flags": (mc.flags("x", on="q") | mc.sinks(2), rng.random(n_kv) < 0.5),
    }[name]
    q, k, v, _ = tensors(
        n_q, n_kv, 64, torch.bfloat16, 0, batch=1, heads=2, kv_heads=1, device="cpu"
    )  # fmt: skip
    out = compiled(mask)(q, k, v, x=given)
    near(out, exact(q, k, v, mask.dense(n_q, n_kv, x=given))[0])


@pytest.mark.parametrize("mask", [DOCUMENTS & mc.causal(), mc.flags("doc") & mc.causal()], ids=str)
def test_data_of_every_head(mask):
    """Heads with documents, or flags, of their own: the host reads them, wherever they lie."""
    given = tensors(150, 150, 64, torch.bfloat16, batch=2, heads=2, kv_heads=1, device="cpu")
    ids = torch.randint(0, 4, (2, 2, 150), generator=torch.Generator().manual_seed(0)).sort().values
    live = torch.tensor(mask.dense(150, doc=ids))
    assert live.shape == (2, 2, 150, 150)
    computed = called(compiled(mask), *given, {"doc": ids})
    sides = exact_and_rough(*given, live)
    assert not wrong(computed, *sides)


FLAGGED = DOCUMENTS & mc.flags("f")


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        *((mask, [64, 3, 0, 70, 0, 0]) for mask in (*MASKS.values(), FLAGGED)),
        (MASKS["causal"], [0, 0]), (FLAGGED, []),
    ],
)  # fmt: skip
def test_tokens_behind_the_last_document_see_nothing(mask, lengths):
    """Batches are padded to a number of tokens and a number of documents."""
    attn, given, used = compiled(mask), made(200), sum(lengths)
    others = {"f": torch.arange(200) % 3 > 0} if mask is FLAGGED else {}
    ids = np.repeat(np.arange(len(lengths)), lengths)
    live = torch.zeros(200, 200, dtype=torch.bool)
    if used:
        own = {"f": others["f"][:used]} if others else {}
        live[:used, :used] = torch.tensor(mask.dense(used, doc=ids, **own))
    runs = [
        called(attn, *given, {"doc": where(lengths, most=None), **others}, deterministic=True)
        for where in (on_device, on_host)
    ]
    sides = exact_and_rough(*given, live)
    for result in runs:
        assert not wrong(result, *sides)
        assert not result["out"][:, :, used:].any()
    if mask is not FLAGGED:
        assert all(torch.equal(x, runs[1][name]) for name, x in runs[0].items())


@pytest.mark.parametrize("heads", [1, 2])
def test_lists_of_keys(heads):
    lists = torch.randint(-1, 150, (2, heads, 150, 9), generator=torch.Generator().manual_seed(0))
    mask = mc.key_lists("keys") & mc.causal()
    given = tensors(150, 150, 64, torch.bfloat16, batch=2, heads=2, kv_heads=1, device="cpu")
    live = torch.tensor(mask.dense(150, keys=lists)).reshape(2, heads, 150, 150)
    live = live.expand(2, 2, 150, 150)
    computed = called(compiled(mask), *given, {"keys": lists.int()})
    sides = exact_and_rough(*given, live)
    assert not wrong(computed, *sides)


def test_blocks_that_count_from_each_document():
    """The host chooses them; kernels read which pairs of query and key were chosen."""
    lengths = [50, 13, 87]
    mask, given = mc.patterns.moba(block=16, top=3, packed=True), made(sum(lengths))
    place = torch.cat([torch.arange(length) for length in lengths])
    data = {"doc": on_device(lengths, most=None), "q_position": place, "k_position": place}
    q, k = (x.float() for x in given[:2])
    live = torch.tensor(mask.dense(len(place), n_heads=2, heads_kv=1, q=q, k=k, **data))
    computed = called(compiled(mask), *given, data)
    sides = exact_and_rough(*given, live)
    assert not wrong(computed, *sides)
