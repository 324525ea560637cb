"""Short documents in small tiles, on an emulated Hopper: lists made there, results, and bits."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DataRange
from maskc.runtime.listed import ListedPlan
from tests.emulator import machine
from tests.support.exact_attention import called, tensors

DOCUMENTS = mc.documents("doc")
MASKS = {
    "full": DOCUMENTS,
    "causal": DOCUMENTS & mc.causal(),
    "sinks": DOCUMENTS & mc.causal() & (mc.window(20) | mc.sinks(5)),
}
LENGTHS = [64, 3, 80, 1, 0, 77, 20, 65]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    return machine.install(monkeypatch)


def compiled(mask):
    return mask.compile(head_dim=64, target="sm_90a")


def made(n, seed=0):
    return tensors(n, n, 64, torch.bfloat16, seed, batch=1, heads=2, kv_heads=1, device="cpu")


def ends(lengths):
    return [0, *accumulate(lengths)]


def on_device(lengths, most=80):
    return mc.cu_seqlens(torch.tensor(ends(lengths), dtype=torch.int32), max_seqlen=most)


def on_host(lengths, most=80):
    return mc.cu_seqlens(np.array(ends(lengths)), max_seqlen=most)


@pytest.mark.parametrize("name", MASKS)
def test_results(hopper, name):
    """Of the device's lists and of the host's the same bits, and those near fp64's. A key that is
    NaN reaches the queries that see it, and no others."""
    attn, given = compiled(MASKS[name]), made(sum(LENGTHS))
    given[1][0, 0, 150] = torch.nan  # in the document of 77 tokens
    found = called(attn, *given, {"doc": on_device(LENGTHS)}, deterministic=True)
    assert isinstance(attn._last[1], ListedPlan)
    want = called(attn, *given, {"doc": on_host(LENGTHS)}, deterministic=True)
    assert not isinstance(attn._last[1], ListedPlan)
    for key, x in want.items():
        assert torch.equal(x.nan_to_num(7.0), found[key].nan_to_num(7.0)), key

    ids = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    live = torch.tensor(MASKS[name].dense(len(ids), doc=ids))
    q, k, v, _ = (x.double() for x in given)
    scores = (q @ k.transpose(-1, -2) / 8).masked_fill(~live, -torch.inf)
    touched = live[:, 150]
    exact = torch.softmax(scores, -1) @ v
    assert torch.equal(found["out"].isnan().any(-1), touched.expand(1, 2, -1))
    torch.testing.assert_close(
        found["out"][:, :, ~touched].double(), exact[:, :, ~touched], atol=2e-2, rtol=2e-2
    )


def test_the_promise_decides_the_tiles(hopper):
    attn, given = compiled(DOCUMENTS), made(300)
    for most in (80, None):
        for where in (on_device, on_host):
            attn(*given[:3], doc=where([60] * 5, most))
    assert {name for name, _, _ in attn.all_reports} == {
        "sm_90a", "sm_90a_small", "sm_90a_documents",
    }  # fmt: skip


def test_neighbours_change_no_bit(hopper):
    attn = compiled(MASKS["causal"])
    for own in (1, 37, 80):
        alone_in = made(own, own)[:3]
        alone = attn(*alone_in, return_lse=True, doc=on_device([own]))
        for before, behind in (([30], [5, 60]), ([64, 65, 66], []), ([79, 64, 70], [33, 80])):
            lengths, start = [*before, own, *behind], sum(before)
            rest = made(sum(lengths), 1)[:3]
            for x, y in zip(rest, alone_in, strict=True):
                x *= 4
                x[:, :, start : start + own] = y
            for where in (on_device, on_host):
                found = attn(*rest, return_lse=True, doc=where(lengths))
                for x, y in zip(found, alone, strict=True):
                    assert torch.equal(x[:, :, start : start + own], y), (own, before, behind)


def test_a_broken_promise_is_spoilt_and_said(hopper):
    """Though each document but one keeps it; the longest possible does."""
    attn, given = compiled(MASKS["causal"]), made(300)
    fine = attn(*given[:3], doc=on_device([80, 80, 80, 60]))
    assert not fine.isnan().any()
    found = attn(*given[:3], return_lse=True, doc=on_device([80, 81, 79, 60]))
    assert all(x.isnan().all() for x in found)
    with pytest.raises(DataRange, match="more tokens than max_seqlen promised"):
        attn(*given[:3], doc=on_device([80, 80, 80, 60]))
    assert torch.equal(attn(*given[:3], doc=on_device([80, 80, 80, 60])), fine)
