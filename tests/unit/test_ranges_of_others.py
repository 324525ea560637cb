"""FlashMask's and MagiAttention's ranges, against definitions pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.testing.emulator import machine
from tests.support.exact_attention import exact

HEADS, N = 4, 90


def flashmask(rows, causal):
    """By the definition of each number, key by key."""
    batch, heads, keys, numbers = rows.shape
    keep = np.ones((batch, heads, N, keys), bool)
    for place in np.ndindex(batch, heads, keys):
        b, h, k = place
        x = rows[place].tolist()
        if causal:
            keep[b, h, :k, k] = False
            hidden = [(x[0], N if numbers == 1 else x[1])]
        else:
            hidden = [(x[0], N), (0, x[1])] if numbers == 2 else [(x[0], x[1]), (x[2], x[3])]
        for first, end in hidden:
            keep[b, h, first:end, k] = False
    return keep


def drawn(rng, numbers, causal, batch, heads):
    rows = np.sort(rng.integers(0, N + 1, (batch, heads, N, numbers)), -1).astype(np.int32)
    return rows[..., ::-1].copy() if numbers == 2 and not causal else rows


@pytest.mark.parametrize(("numbers", "causal"), [(1, True), (2, True), (2, False), (4, False)])
@pytest.mark.parametrize(("batch", "heads"), [(2, HEADS), (1, 1)])
def test_flashmask(numbers, causal, batch, heads):
    rng = np.random.default_rng(numbers)
    q, k, v = torch.randn(3, 2, HEADS, N, 16, requires_grad=True)
    for _ in range(2):
        rows = drawn(rng, numbers, causal, batch, heads)
        mask = mc.from_flashmask(torch.from_numpy(rows), causal=causal)
        out = mc.attention(q, k, v, mask)
        want = exact(q, k, v, flashmask(rows, causal))[0]
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
        grads = [torch.autograd.grad(x.sum(), (q, k, v), retain_graph=True) for x in (out, want)]
        for got, wanted in zip(*grads, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_new_ranges_build_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    q, k, v = torch.randn(3, 1, HEADS, N, 16)
    masks = [
        lambda: mc.from_flashmask(drawn(rng, 2, True, 1, 1), causal=True),
        lambda: mc.slices(np.sort(rng.integers(0, N, (2, 2))), [[0, 40], [50, 80]], [1, 0], n_q=N),
    ]
    for make in masks:
        mc.attention(q, k, v, make())
    import maskc.runtime.launch.kernels as kernels

    monkeypatch.setattr(kernels, "build", lambda *_, **__: pytest.fail("something is built"))
    for make in masks:
        mc.attention(q, k, v, make())


def of_slices(q_ranges, k_ranges, types, n_q, n_kv):
    keep = np.zeros((n_q, n_kv), bool)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, types, strict=True):
        for q in range(q0, q1):
            for k in range(k0, k1):
                before_last = (q1 - 1 - q) <= (k1 - 1 - k)
                behind_first = (k - k0) >= (q - q0)
                keep[q, k] |= (kind not in (1, 3) or before_last) and (
                    kind not in (2, 3) or behind_first
                )
    return keep


CASES = [
    ([[0, 90]], [[0, 90]], [1]),
    ([[0, 30], [30, 70], [70, 90]], [[0, 50], [20, 60], [10, 100]], [0, 1, 2]),
    ([[0, 40], [0, 40], [40, 90], [50, 90]], [[0, 20], [40, 60], [0, 100], [0, 10]], [3, 1, 3, 0]),
    ([[10, 80]] * 5, [[0, 9], [15, 25], [30, 31], [50, 50], [60, 100]], [0, 1, 2, 3, 3]),
    ([[5, 25]] * 12, [[7 * i, 7 * i + 7] for i in range(12)], [0] * 12),
    ([[0, 60]] * 6, [[40, 50], [0, 10], [5, 20], [20, 30], [44, 46], [90, 100]], [0] * 6),
    ([], [], []),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_slices(case):
    q_ranges, k_ranges, types = case
    mask = mc.slices(torch.tensor(q_ranges), torch.tensor(k_ranges), types, n_q=N)
    want = of_slices(*case, N, 100)
    assert (mask.dense(N, 100) == want).all()
    q, (k, v) = torch.randn(1, HEADS, N, 16), torch.randn(2, 1, HEADS, 100, 16)
    out = mc.attention(q, k, v, mask)
    torch.testing.assert_close(out.double(), exact(q, k, v, want)[0], atol=1e-5, rtol=1e-5)


def test_kernels_of_the_device(monkeypatch):
    """Lists are made on the device."""
    driver = machine.install(monkeypatch)
    rows = drawn(np.random.default_rng(3), 4, False, 1, 1)
    q_ranges, k_ranges, types = CASES[2]
    many = mc.slices(torch.tensor(q_ranges), torch.tensor(k_ranges), types, n_q=N)
    for mask, keep in (
        (mc.from_flashmask(torch.from_numpy(rows)), flashmask(rows, False)),
        (many, of_slices(*CASES[2], N, 100)[:, :N]),
    ):
        attn = mask.compile(head_dim=64, target="sm_90a")
        q, k, v = (torch.randn(1, HEADS, N, 64).bfloat16() for _ in range(3))
        out = attn(q, k, v)
        torch.testing.assert_close(out.double(), exact(q, k, v, keep)[0], atol=3e-2, rtol=3e-2)
    assert "make_lists" in {entry for entry, _ in driver.launches}


def test_what_is_refused():
    rows = np.zeros((1, 1, 4, 4), np.int32)
    for make, why in (
        (lambda: mc.from_flashmask(rows, causal=True), "n_kv, 1 or 2.*causal=True"),
        (lambda: mc.from_flashmask(rows[0]), "must be of shape"),
        (lambda: mc.from_flashmask(rows.astype(float)), "must be integers"),
        (lambda: mc.slices([[0, 4]], [[0, 4], [1, 2]]), "one for each of 1 slices, found 2"),
        (lambda: mc.slices([[0, 4]], [[0, 4]], [4]), "0, 1, 2 or 3"),
        (lambda: mc.slices([0, 4], [[0, 4]]), r"of shape \[slices, 2\]"),
        (lambda: mc.slices([[2, 4]] * 5, [[9 * i, 9 * i + 4] for i in range(5)]), "5 for query 2"),
    ):
        with pytest.raises(MaskcError, match=f"MC664.*{why}"):
            make()
