"""Backward passes whose tile rows and tile columns begin with documents, on an emulated Hopper:
against fp64, and what runs where they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.core.bundle import DOCUMENT_ROWS
from maskc.core.errors import DataRange
from maskc.core.problem import Direction
from maskc.runtime.device_lists import making
from tests.support import cases
from tests.support.documents import ends, lengths_on_device
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import (
    GRADIENTS,
    called,
    exact_and_rough,
    tensors,
    vectors,
    wrong,
)
from tests.support.hopper import compiled as with_mode
from tests.support.hopper import nan_memory

MASKS = cases.masks(cases.DOCUMENTS, cases.EMULATOR)
FULL, CAUSAL = mc.documents("doc"), mc.documents("doc") & mc.causal()
WINDOW = mc.documents("doc") & mc.window(100, 30)
LENGTHS = [64, 3, 280, 1, 200, 130, 300, 0, 202]
FEW = [128, 1, 0, 131, 64, 5]
"""In tiles of 64 queries."""


@pytest.fixture(autouse=True)
def shorter_documents(monkeypatch):
    """Documents of a tile in the mean begin tile rows, so that few tokens have many documents."""
    monkeypatch.setattr(making, "_MEAN_TILES", 1)


def compiled(mask, dim=64):
    return mask.compile(head_dim=dim, target="sm_90a")


def made(n, dim=64, batch=1, heads=2, kv_heads=1, n_kv=None):
    return tensors(n, n_kv or n, dim, torch.bfloat16, n, batch=batch, heads=heads,
                   kv_heads=kv_heads, device="cpu")  # fmt: skip


def live_pairs(mask, lengths, n):
    """The mask with tokens behind the last document."""
    live, used = torch.zeros(n, n, dtype=torch.bool), sum(lengths)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    live[:used, :used] = torch.tensor(mask.dense(used, doc=ids))
    return live


def checked(attn, given, live, data, mode=DOCUMENT_ROWS, **features):
    """Both passes against fp64, in memory full of NaN; the backward one runs in a mode."""
    with nan_memory():
        computed = called(attn, *given, {"doc": data}, **features)
    assert attn.last_sources[-1].split()[-1] == mode
    assert not wrong(computed, *exact_and_rough(*given, live, **features))
    return computed


def behind_are_zero(computed, used):
    """Tokens outside of all documents have no gradient."""
    for name in GRADIENTS:
        assert not computed[name][:, :, used:].any(), name


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("mask", [FULL, CAUSAL, WINDOW], ids=str)
def test_masks(mask, monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    n = sum(LENGTHS) + 20
    computed = checked(
        compiled(mask), made(n), live_pairs(mask, LENGTHS, n), lengths_on_device(LENGTHS)
    )
    behind_are_zero(computed, sum(LENGTHS))


@pytest.mark.parametrize(
    ("dim", "form"),
    [(64, "small"), (72, "large"), (128, "small"), (128, "large"), (192, "large"), (256, "large")],
)
def test_tiles(dim, form):
    """They have 128 or 64 tokens; warpgroups divide the keys of a tile, or the columns."""
    n = sum(FEW) + 60
    attn = with_mode(CAUSAL, dim, mode=form)
    computed = checked(attn, made(n, dim), live_pairs(CAUSAL, FEW, n), lengths_on_device(FEW))
    behind_are_zero(computed, sum(FEW))


@pytest.mark.parametrize("heads", [(2, 2), (6, 2)])
def test_sequences_with_documents_of_their_own(heads, monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    lengths, n = [[128, 1, 0, 131, 64], [300, 24, 0, 0, 0], [0, 60, 60, 60, 60]], 324
    given = made(n, 128, 3, *heads)
    doc = mc.cu_seqlens(torch.tensor([ends(x) for x in lengths], dtype=torch.int32))
    live = torch.stack([live_pairs(CAUSAL, x, n) for x in lengths])[:, None]
    checked(with_mode(CAUSAL, 128, mode="large"), given, live.expand(-1, heads[0], -1, -1), doc)


@pytest.mark.parametrize("mask", [FULL, WINDOW], ids=str)
def test_queries_and_keys_with_lengths_of_their_own(mask, monkeypatch):
    """Some documents have no queries, or no keys; queries and keys of the last ones are padding."""
    monkeypatch.setenv("MASKC_CHECK", "1")
    of_q, of_k, n_q, n_kv = [70, 0, 200, 9, 140], [20, 100, 130, 0, 190, 30], 430, 480
    q, _, _, dout = made(n_q, 128)
    _, k, v, _ = made(n_kv, 128)
    doc = tuple(mc.cu_seqlens(torch.tensor(ends(x), dtype=torch.int64)) for x in (of_q, of_k))
    ids_q, ids_k = (np.repeat(np.arange(len(x)), x) for x in (of_q, of_k))
    live = torch.zeros(n_q, n_kv, dtype=torch.bool)
    alongside = np.ones((n_q, n_kv), bool) if mask is FULL else mc.window(100, 30).dense(n_q, n_kv)
    same = ids_q[:, None] == ids_k
    live[: len(ids_q), : len(ids_k)] = torch.tensor(same & alongside[: len(ids_q), : len(ids_k)])
    checked(with_mode(mask, 128, mode="large"), (q, k, v, dout), live, doc)


@pytest.mark.parametrize(
    "names", [{"sink_logits"}, {"alibi_slopes"}, {"sink_logits", "alibi_slopes"}, {"softcap"}]
)
def test_options(names):
    n = sum(FEW) + 60
    options = {**vectors(names - {"softcap"}, 2, device="cpu")}
    if "softcap" in names:
        options["softcap"] = 3.0
    attn = with_mode(CAUSAL, 128, mode="large")
    checked(attn, made(n, 128), live_pairs(CAUSAL, FEW, n), lengths_on_device(FEW), **options)


def test_few_pairs():
    """A launch of its own makes delta of them."""
    lengths, n = [70, 40], 128
    attn = with_mode(CAUSAL, 128, mode="large")
    given = made(n, 128, heads=1)
    computed = checked(attn, given, live_pairs(CAUSAL, lengths, n), lengths_on_device(lengths))
    behind_are_zero(computed, sum(lengths))


@pytest.mark.parametrize("batch", [1, 2])
def test_wrong_lengths(batch):
    """Every gradient is NaN, and a later call says so."""
    n = sum(FEW) + 60
    attn = with_mode(CAUSAL, 128, mode="large")
    q, k, v, dout = made(n, 128, batch)
    vector = vectors({"sink_logits"}, 2, device="cpu")
    doc = lengths_on_device(FEW, most=131)
    out, lse = attn(q, k, v, return_lse=True, doc=doc, **vector)
    with nan_memory():
        broken = attn.backward(
            q, k, v, out, lse, dout, doc=lengths_on_device(FEW, most=130), **vector
        )
    assert attn.last_sources[-1].split()[-1] == DOCUMENT_ROWS
    assert all(x.isnan().all() for x in broken)
    with pytest.raises(DataRange, match="more tokens than max_seqlen promised"):
        attn(q, k, v, doc=doc)


# ------------------------------------------------------------------ what runs in other modes


@pytest.mark.parametrize(
    ("mask", "doc", "options", "mode"),
    [
        (CAUSAL, lengths_on_device(FEW), {"deterministic": True}, "deterministic"),
        (CAUSAL, torch.arange(sum(FEW) + 60) // 90, {}, "default"),  # ids
        (CAUSAL, lengths_on_device([42] * 9), {}, "default"),  # documents are too short
        (MASKS["short sinks"], lengths_on_device(FEW), {}, "default"),  # rows have gaps
        (CAUSAL, lengths_on_device(FEW), {"normalizer": "entmax", "alpha": 1.5}, "default"),
    ],
    ids=["in order", "ids", "short", "gaps", "entmax"],
)
def test_other_modes(mask, doc, options, mode):
    n = sum(FEW) + 60
    q, k, v, dout = made(n, 128)
    attn = with_mode(mask, 128, mode="large")
    both = {x: y for x, y in options.items() if x != "deterministic"}
    out, lse, *rest = attn(q, k, v, return_lse=True, doc=doc, **both)
    attn.backward(q, k, v, out, lse, dout, *rest, doc=doc, **options)
    assert attn.last_sources[-1].split()[-1] == mode


def modes_of(attn):
    """The modes of all backward passes."""
    units = (unit for unit in attn.bundle.units if Direction.backward in unit.directions)
    return {name for unit in units if unit.target == "sm_90a" for name, _ in unit.modes}


def test_masks_that_have_the_mode():
    assert DOCUMENT_ROWS in modes_of(compiled(CAUSAL))
    assert DOCUMENT_ROWS not in modes_of(compiled(mc.causal()))
    assert DOCUMENT_ROWS not in modes_of(compiled(CAUSAL & mc.flags("f")))
    score = mc.score(lambda s, q, k: s - 0.1 * (q - k))
    assert DOCUMENT_ROWS not in modes_of(CAUSAL.compile(head_dim=64, target="sm_90a", score=score))
    dropping = driver.compile(CAUSAL, head_dim=64, dtype="bfloat16", target="sm_90a", dropout=True)
    assert DOCUMENT_ROWS not in modes_of(dropping)
