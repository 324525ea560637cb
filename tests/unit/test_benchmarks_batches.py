"""Rows of `benchmarks.batches`: a mask and its mask_mod are one, and peers compute it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from benchmarks import batches
from benchmarks.batch_rows import ROWS
from maskc.core.dtypes import DType
from maskc.reference.attention import attention
from maskc.verify.case import Case
from maskc.verify.case_tensors import host, make_tensors
from tests.support.thorough import without_inductor

SHORT = [row for row in ROWS if not row.n_q and row.data(np.random.default_rng(0), 2, 768)]


@pytest.mark.parametrize("row", SHORT, ids=[row.name for row in SHORT])
def test_the_mask_is_its_mask_mod(row):
    n, batch = 768, 2
    data = row.data(np.random.default_rng(0), batch, n)
    given = {
        name: tuple(map(torch.tensor, x)) if isinstance(x, tuple) else torch.tensor(x)
        for name, x in data.items()
    }
    keep = row.mask_mod(given)
    tokens = torch.arange(n)
    for b in range(batch):
        own = {
            name: tuple(part[b] for part in x) if isinstance(x, tuple) else x[b]
            for name, x in data.items()
        }
        kept = keep(torch.tensor(b), torch.tensor(0), tokens[:, None], tokens[None])
        expected = mc.Mask.dense(row.mask(), n, n, **own)
        np.testing.assert_array_equal(kept.numpy(), expected.reshape(-1, n, n)[0])
    if row.promised:
        (ids,), (name,) = data.values(), data
        by_lengths = batches._by_lengths(ids, "cpu")
        live = row.mask().dense(n, n, **{name: by_lengths})
        np.testing.assert_array_equal(live, row.mask().dense(n, n, **data))
        counts = [np.unique(one, return_counts=True)[1] for one in ids]
        assert by_lengths.max_seqlen == max(map(max, counts))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padding, intervals", "decoding, window 4096 of 32k"])
def test_peers_compute_the_row(name: str, monkeypatch: pytest.MonkeyPatch):
    """Peers of a CPU do; the others say why they do not run."""
    without_inductor(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    row = next(row for row in ROWS if row.name == name)
    n = 4224 if row.last else 160
    row = replace(row, sizes=(2, 4, 2, n, 16))
    if row.last:  # its formula is of 32k keys
        row = replace(row, mask_mod=lambda d: lambda b, h, q, k: k >= n - 4096 + 0 * q)
    drawn, (n_q, _) = row.data(np.random.default_rng(0), 2, n), row.lengths
    case = Case(row.name, row.mask(), 2, 4, 2, n_q, n, 16, DType.float32, drawn, row.mask_mod)
    tensors, said = make_tensors(case, "cpu"), dict[str, str]()
    found = batches._peers(row, case, tensors, "fwd", said)
    assert set(found) >= {"flex"}
    assert {"flex_flash", "cudnn_flex"} <= set(said)
    keep = case.mask.dense(n_q, n, **drawn)
    right, _ = attention(*map(host, tensors.qkv), keep[:, None] if keep.ndim == 3 else keep)
    for peer in found.values():
        with peer.scope():
            np.testing.assert_allclose(host(peer.run()), right, atol=1e-5)
