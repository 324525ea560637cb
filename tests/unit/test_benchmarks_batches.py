"""Rows of `benchmarks.batches`: a mask and its mask_mod are one."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from benchmarks.batch_rows import ROWS  # noqa: E402

SHORT = [row for row in ROWS if row.data(np.random.default_rng(0), 2, 768) and not row.n_q]


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
        found = keep(torch.tensor(b), torch.tensor(0), tokens[:, None], tokens[None])
        expected = mc.Mask.dense(row.mask(), n, n, **own).reshape(n, n)
        np.testing.assert_array_equal(found.numpy(), expected)
