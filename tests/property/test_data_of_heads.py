"""Arrays of one sequence, of every sequence, and of every head of every sequence: what they mean,
against NumPy, and both passes of the CPU kernel against dense attention in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from tests.support import exact_attention
from tests.support.thorough import examples

B, H, HKV, DIM = 2, 4, 2, 8
AT = mc.positions(q="pq", k="pk")
MASKS = {
    "documents": mc.documents("d") & mc.causal(),
    "documents of pairs": mc.documents("d") | mc.sinks(1),
    "flags": mc.causal() & (mc.flags("f") | mc.window(3)),
    "flags on both sides": mc.global_tokens("f") | mc.window(2, 2),
    "flagged queries": mc.flags("f", on="q") & mc.causal(),
    "intervals": mc.intervals("i"),
    "positions": mc.causal(at=AT) & mc.window(9, at=AT),
    "table": mc.block_table("t", 4) & mc.causal(),
    "key lists": mc.key_lists("l"),
    "key lists and others": (mc.key_lists("l") & mc.causal()) | mc.window(2),
    "all": (mc.documents("d") & mc.causal(at=AT)) | (mc.flags("f") & mc.intervals("i")),
}


def drawn(name: str, lead: tuple[int, ...], n_q: int, n: int, seed: int) -> dict[str, object]:
    """Random data of a mask, with `lead` in front."""
    rng = np.random.default_rng(seed)
    rows = -(-n_q // 4), -(-n // 4)
    low = rng.integers(0, n + 1, (*lead, n_q))
    ids = np.sort(rng.integers(0, 4, (*lead, n)), -1)
    made = {
        "d": ids if name == "documents" else (ids[..., n - n_q :], ids),
        "f": rng.random((*lead, n)) < 0.3,
        "i": (low, low + rng.integers(0, 9, low.shape)),
        "pq": rng.integers(0, n + 3, (*lead, n_q)),
        "pk": rng.integers(0, n + 3, (*lead, n)),
        "t": rng.random(((lead[0], 1) if len(lead) == 1 else lead) + rows) < 0.6,
        "l": rng.integers(-1, n, ((lead[0], 1) if len(lead) == 1 else lead) + (n_q, seed % 7)),
    }
    read = {
        "documents": "d", "documents of pairs": "d", "flags": "f", "flags on both sides": "f",
        "flagged queries": "f", "intervals": "i", "positions": ("pq", "pk"), "table": "t",
        "key lists": "l", "key lists and others": "l",
        "all": ("d", "f", "i", "pq", "pk"),
    }[name]  # fmt: skip
    return {key: made[key] for key in ((read,) if isinstance(read, str) else read)}


def meaning(name: str, data: dict[str, object], n_q: int, n: int) -> np.ndarray:
    """bool [B, H, n_q, n], by broadcasting alone."""

    def wide(array: object, at: int) -> np.ndarray:
        x = np.asarray(array)
        x = x if x.ndim == 3 else x[:, None] if x.ndim == 2 else x[None, None]
        return np.expand_dims(x, at)

    rows, keys = np.arange(n_q)[:, None] + n - n_q, np.arange(n)
    causal, ids = keys <= rows, data.get("d")
    of_q, of_k = (
        ids if isinstance(ids, tuple) else (None if ids is None else ids[..., n - n_q :], ids)
    )
    same = None if ids is None else wide(of_q, -1) == wide(of_k, -2)
    flagged = data.get("f")
    on_k = None if flagged is None else wide(flagged, -2)
    on_q = None if flagged is None else wide(flagged[..., n - n_q :], -1)
    inside = None
    if "i" in data:
        inside = (wide(data["i"][0], -1) <= keys) & (keys < wide(data["i"][1], -1))
    apart = wide(data["pq"], -1) - wide(data["pk"], -2) if "pq" in data else None
    listed = None
    if "l" in data:
        lists = data["l"].reshape((1,) * (4 - data["l"].ndim) + data["l"].shape)
        listed = (lists[..., None] == keys).any(-2)
    match name:
        case "documents":
            live = same & causal
        case "documents of pairs":
            live = same | (keys < 1)
        case "flags":
            live = causal & (on_k | (rows - keys <= 3))
        case "flags on both sides":
            live = on_k | on_q | (abs(rows - keys) <= 2)
        case "flagged queries":
            live = on_q & causal
        case "intervals":
            live = inside
        case "positions":
            live = (apart >= 0) & (apart <= 9)
        case "table":
            table = data["t"].reshape((1,) * (4 - data["t"].ndim) + data["t"].shape)
            live = table[..., np.arange(n_q)[:, None] // 4, keys // 4] & causal
        case "key lists":
            live = listed
        case "key lists and others":
            live = (listed & causal) | (causal & (rows - keys <= 2))
        case _:
            live = (same & (apart >= 0)) | (on_k & inside)
    return np.broadcast_to(live, (B, H, n_q, n))


@pytest.mark.parametrize("name", MASKS)
@settings(max_examples=examples(12))
@given(
    st.sampled_from([(), (1,), (B,), (B, H), (1, H), (B, 1)]), st.integers(1, 40),
    st.integers(0, 9), st.integers(0, 1 << 16),
)  # fmt: skip
def test_arrays_of_sequences_and_heads(name, lead, n_q, further, seed):
    mask, n = MASKS[name], n_q + further
    data = drawn(name, lead, n_q, n, seed)
    live = meaning(name, data, n_q, n)
    shown = live[: lead[0]] if lead else live[0]
    shown = shown if len(lead) > 1 and lead[1] > 1 else shown[..., 0, :, :]
    np.testing.assert_array_equal(mask.dense(n_q, n, **data), shown)
    assert mask.count(n_q, n, **data) == shown.sum()

    batch, head = lead[0] - 1 if lead else None, 2 if len(lead) > 1 and lead[1] > 1 else None
    tiles = mask.layout(n_q, n, block=(8, 8), batch=batch, head=head, **data).to_dense()
    one = np.zeros((-(-n_q // 8) * 8, -(-n // 8) * 8), bool)
    one[:n_q, :n] = live[batch or 0, head or 0]
    np.testing.assert_array_equal(tiles > 0, one.reshape(-(-n_q // 8), 8, -1, 8).any((1, 3)))

    generator = torch.Generator().manual_seed(seed)
    sizes = ((B, H, n_q, DIM), (B, HKV, n, DIM), (B, HKV, n, DIM))
    given = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
    out = mc.attention(*given, mask, **data)
    exact = [x.detach().double().requires_grad_() for x in given]
    right, _ = exact_attention.exact(*exact, live)
    dout = torch.randn(out.shape, generator=generator)
    mine = torch.autograd.grad(out, given, dout)
    best = torch.autograd.grad(right, exact, dout.double())
    for found, wanted in zip((out, *mine), (right, *best), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=B), st.integers(0, 12),
    st.integers(0, 5), st.sampled_from(["one", "pair", "mixed"]), st.integers(0, 1 << 16),
)  # fmt: skip
def test_cumulative_lengths_that_end_before_the_tokens(rows, further, fewer, kind, seed):
    """Batches padded to a number of tokens, with documents without tokens: what lies behind the
    last document sees nothing, and nothing sees it."""
    width = max(map(len, rows))
    sizes = np.zeros((len(rows), width), np.int64)
    for own, row in zip(sizes, rows, strict=True):
        own[: len(row)] = row
    ends = np.pad(np.cumsum(sizes, -1), ((0, 0), (1, 0)))
    n = int(ends.max()) + further
    n_q = max(1, n - fewer) if kind == "one" else n + fewer
    rng = np.random.default_rng(seed)
    of_k, data = ends, mc.cu_seqlens(ends)
    at_q = np.arange(n_q) + (n - n_q if kind == "one" else 0)
    of_q = [np.searchsorted(row[1:], at_q, "right") for row in ends]
    if kind == "mixed":
        of_q = [rng.choice([-7, 0, 1, 2, 2**30 - 1, 2**30, 2**40], n_q) for _ in ends]
        data = np.array(of_q), mc.cu_seqlens(ends)
    elif kind == "pair":
        data = mc.cu_seqlens(ends), mc.cu_seqlens(ends)
    live = np.array([
        [
            [k < row[-1] and own == np.searchsorted(row[1:], k, "right") for k in range(n)]
            for own in numbers
        ]
        for numbers, row in zip(of_q, of_k, strict=True)
    ]).reshape(len(ends), n_q, n)  # fmt: skip
    mask = mc.documents("d")
    np.testing.assert_array_equal(mask.dense(n_q, n, d=data), live)
    assert mask.count(n_q, n, d=data) == live.sum()
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, n_q, DIM), (B, HKV, n, DIM), (B, HKV, n, DIM))
    given = [torch.randn(size, generator=generator).requires_grad_() for size in shapes]
    exact = [x.detach().double().requires_grad_() for x in given]
    out, lse = mc.attention(*given, mask, d=data, return_lse=True)
    seen = torch.from_numpy(live)[:, None].expand(B, H, n_q, n)
    assert torch.equal(lse == -torch.inf, ~seen.any(-1))
    if n:
        right, _ = exact_attention.exact(*exact, seen)
        mine, best = (
            torch.autograd.grad(x.pow(2).sum(), y) for x, y in ((out, given), (right, exact))
        )
        for found, wanted in zip((out, *mine), (right, *best), strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
