"""Keywords of scaled_dot_product_attention and flash-attn on `mc.attention`."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

import maskc as mc
from maskc import conventions
from maskc.core.errors import (
    BadOption,
    BadShape,
    DataRange,
    DataShape,
    DataType,
    NotAMask,
    ReservedName,
)

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Softmax over the kept pairs, fp64, heads grouped; q [B, H, N, D]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k.repeat(group, 1), v.repeat(group, 1)))
    scores = np.where(kept, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf)
    top = np.where(np.isinf(m := scores.max(-1, keepdims=True)), 0, m)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total, total, 1) @ v


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("n_q", "n_kv"), [(70, 70), (9, 70), (70, 9)])
def test_is_causal_is_that_of_sdpa(n_q: int, n_kv: int) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, h, n, 16) for h, n in ((4, n_q), (2, n_kv), (2, n_kv)))
    options = {"is_causal": True, "enable_gqa": True}
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(mc.attention(q, k, v, **options), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window_size", [(5, 0), (5, 3), (-1, 0), (3, -1), (-1, -1), (0, 0)])
@pytest.mark.parametrize(("n_q", "n_kv"), [(70, 70), (9, 70)])
def test_window_size_is_that_of_flash_attention(window_size, n_q: int, n_kv: int) -> None:
    q, k, v = draw(1, 2, n_q, 16), draw(1, 2, n_kv, 16), draw(1, 2, n_kv, 16)
    p, j = np.arange(n_q)[:, None] + n_kv - n_q, np.arange(n_kv)
    left, right = (n_kv if side < 0 else side for side in window_size)
    kept = (j >= p - left) & (j <= p + right)
    close(mc.attention(q, k, v, window_size=window_size), dense(q, k, v, kept))


def test_a_pair_must_satisfy_the_mask_and_the_keywords() -> None:
    q = draw(1, 2, 70, 16)
    i = np.arange(70)
    kept = (i[:, None] >= i) & ((i[:, None] - i <= 9) & (i % 3 == 0))
    mask = mc.strided(3)
    close(mc.attention(q, q, q, mask, is_causal=True, window_size=(9, 4)), dense(q, q, q, kept))


def test_keywords_and_combinators_share_a_kernel() -> None:
    from maskc import api

    q = draw(1, 2, 70, 16)
    mc.attention(q, q, q, mc.causal() & mc.window(9, 4))
    made = api._remembered.cache_info().misses
    mc.attention(q, q, q, mc.causal(), window_size=(9, 4))
    mc.attention(q, q, q, mc.window(9, 4), is_causal=False, layout="bhsd", enable_gqa=True)
    assert api._remembered.cache_info().misses == made + 1


def test_layout() -> None:
    q, k, v = draw(2, 70, 4, 16), draw(2, 80, 2, 16), draw(2, 80, 2, 24)
    first = [x.swapaxes(1, 2) for x in (q, k, v)]
    wanted, lse = mc.attention(*first, mc.causal(), return_lse=True)
    out, its = mc.attention(q, k, v, mc.causal(), layout="bshd", return_lse=True)
    np.testing.assert_array_equal(out, wanted.swapaxes(1, 2))
    np.testing.assert_array_equal(its, lse)
    assert mc.attention(q, k, v, mc.causal(), layout="bnhd").shape == (2, 70, 4, 24)
    np.testing.assert_array_equal(mc.attention(*first, mc.causal(), layout="bhsd"), wanted)
    q, k, v = (x.transpose(1, 0, 2, 3).copy() for x in (q, k, v))  # Megatron's
    out, its = mc.attention(q, k, v, mc.causal(), layout="sbhd", return_lse=True)
    np.testing.assert_array_equal(out, wanted.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(its, lse)


def test_a_layout_that_looks_wrong_is_hinted_at() -> None:
    wrong, right = draw(1, 40, 2, 16), draw(1, 2, 40, 16)
    for options in ({}, {"is_causal": True}):
        with pytest.warns(mc.LayoutWarning, match="40 heads and 2 tokens") as caught:
            mc.attention(wrong, wrong, wrong, mc.full(), **options)
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mc.attention(wrong, wrong, wrong, mc.full(), layout="bhsd")
        mc.attention(wrong, wrong, wrong, mc.full(), layout="bshd")
        mc.attention(right, right, right, mc.full())
        mc.attention(draw(1, 8, 1, 16), draw(1, 8, 3, 16), draw(1, 8, 3, 16), mc.full())
        mc.attention(draw(1, 8, 3, 16), draw(1, 2, 3, 16), draw(1, 2, 3, 16), mc.full())


# ------------------------------------------------------------------ packed tokens

OF_Q, OF_K = np.array([0, 20, 21, 50, 50]), np.array([0, 35, 36, 70, 75])


def by_sequence(q, k, v, of_q, of_k, is_causal, sides) -> np.ndarray:
    """Each sequence by itself, its last tokens meeting; q [tokens, H, D]."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for i in range(len(of_q) - 1):
        one, two = slice(of_q[i], of_q[i + 1]), slice(of_k[i], of_k[i + 1])
        n_q, n_kv = of_q[i + 1] - of_q[i], of_k[i + 1] - of_k[i]
        p, j = np.arange(n_q)[:, None] + n_kv - n_q, np.arange(n_kv)
        left, right = (n_kv + n_q if side < 0 else side for side in sides)
        kept = (j >= p - left) & (j <= p + right) & ((j <= p) | (not is_causal))
        parts = (x.swapaxes(0, 1)[None] for x in (q[one], k[two], v[two]))
        if n_q:
            out[one] = dense(*parts, kept)[0].swapaxes(0, 1)
    return out


PACKED = [(False, None), (True, None), (False, (6, 2)), (True, (6, 2)), (True, (6, -1))]


@pytest.mark.parametrize(("is_causal", "window_size"), PACKED)
@pytest.mark.parametrize("place", ["numpy", "torch"])
def test_sequences_of_different_lengths_of_queries_and_keys(is_causal, window_size, place) -> None:
    q, k, v = draw(50, 4, 16), draw(75, 2, 16), draw(75, 2, 16)
    given = [q, k, v, OF_Q, OF_K]
    if place == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(x) for x in given]
    *tensors, of_q, of_k = given
    out, lse = mc.attention(
        *tensors, cu_seqlens_q=of_q, cu_seqlens_k=of_k, max_seqlen=35, is_causal=is_causal,
        window_size=window_size, return_lse=True,
    )  # fmt: skip
    close(np.asarray(out), by_sequence(q, k, v, OF_Q, OF_K, is_causal, window_size or (-1, -1)))
    assert out.shape == (50, 4, 16)
    assert lse.shape == (4, 50)


@pytest.mark.parametrize(("is_causal", "window_size"), PACKED)
def test_one_array_of_cumulative_lengths(is_causal, window_size) -> None:
    q, k = draw(75, 4, 16), draw(75, 2, 16)
    wanted = by_sequence(q, k, k, OF_K, OF_K, is_causal, window_size or (-1, -1))
    options = {"is_causal": is_causal, "window_size": window_size, "max_seqlen": 35}
    close(mc.attention(q, k, k, cu_seqlens_q=OF_K, **options), wanted)
    close(mc.attention(q, k, k, cu_seqlens_q=OF_K, cu_seqlens_k=OF_K, **options), wanted)
    close(mc.attention(q, k, k, cu_seqlens_q=OF_K, cu_seqlens_k=OF_K.copy(), **options), wanted)
    first = [x[None] for x in (q, k, k)]
    out = mc.attention(*first, cu_seqlens_q=OF_K, layout="bshd", **options)
    close(out, wanted[None])


def padded_rows(x, cumulative, stored):
    """The rows [tokens, heads, D] of sequences, with 99 between them."""
    rows = np.full((stored[-1] + 3, *x.shape[1:]), 99, np.float32)
    for first, end, to in zip(cumulative[:-1], cumulative[1:], stored[:-1], strict=True):
        rows[to : to + end - first] = x[first:end]
    return rows


@pytest.mark.parametrize(("is_causal", "window_size"), PACKED)
@pytest.mark.parametrize("place", ["numpy", "torch"])
@pytest.mark.parametrize("cross", [False, True])
def test_sequences_with_padding_behind_them(is_causal, window_size, place, cross) -> None:
    """Sequences as TransformerEngine stores them; rows of padding are 0."""
    of_q, of_k = (OF_Q, OF_K) if cross else (OF_K, OF_K)
    q, k, v = draw(of_q[-1], 4, 16), draw(of_k[-1], 2, 16), draw(of_k[-1], 2, 16)
    at_q = of_q + np.arange(5) * 4
    at_k = of_k + np.arange(5) ** 2 if cross else at_q
    want = by_sequence(q, k, v, of_q, of_k, is_causal, window_size or (-1, -1))
    want = padded_rows(want, of_q, at_q)
    want[want == 99] = 0
    tensors = padded_rows(q, of_q, at_q), padded_rows(k, of_k, at_k), padded_rows(v, of_k, at_k)
    arrays = [of_q, at_q, *((of_k, at_k) if cross else ())]
    if place == "torch":
        torch = pytest.importorskip("torch")
        tensors, arrays = map(torch.from_numpy, tensors), map(torch.from_numpy, arrays)
    names = "cu_seqlens_q", "cu_seqlens_q_padded", "cu_seqlens_k", "cu_seqlens_k_padded"
    options = dict(zip(names, arrays, strict=False))
    out = mc.attention(*tensors, is_causal=is_causal, window_size=window_size, **options)
    close(np.asarray(out), want)


@pytest.mark.parametrize("formula", ["alibi_slopes", "score"])
def test_distances_count_inside_of_each_sequence_or_are_refused(formula: str) -> None:
    """Kernels have one position p = q + n_kv - n_q for a row, which is not that of a sequence."""
    q, k, v = draw(50, 2, 16), draw(75, 2, 16), draw(75, 2, 16)
    slopes = np.array([0.5, 0.25], np.float32)
    options = {"alibi_slopes": slopes}
    if formula == "score":
        options = {"score": mc.scores.alibi(), "slopes": slopes}
    with pytest.raises(BadOption, match=f"{formula} must be left out.*two arrays"):
        mc.attention(q, k, v, cu_seqlens_q=OF_Q, cu_seqlens_k=OF_K, **options)
    both = {"cu_seqlens_q": OF_Q, "cu_seqlens_k": OF_Q.copy()}
    with pytest.raises(BadOption, match=formula):
        mc.attention(q, k[:50], v[:50], cu_seqlens_k_padded=OF_Q, **both, **options)
    out = mc.attention(q, k[:50], v[:50], **both, **options)
    for begin, end in pairwise(OF_Q):
        one = [x[begin:end].swapaxes(0, 1)[None] for x in (q, k, v)]
        distance = np.abs(np.arange(end - begin)[:, None] - np.arange(end - begin))
        bias = (-slopes[:, None, None] * distance).astype(np.float32)
        wanted = mc.attention(*one, mc.full(), score=mc.scores.bias(), bias=bias)
        close(out[begin:end], wanted[0].swapaxes(0, 1))


def test_padded_sequences_alongside_a_mask() -> None:
    at = OF_K + np.arange(5) * 4
    q = draw(at[-1] + 3, 2, 16)
    i = np.arange(len(q))
    document = np.searchsorted(at[1:], i, side="right")
    real = (document < 4) & (i - at[document] < np.append(np.diff(OF_K), 0)[document])
    kept = (document[:, None] == document) & (i[:, None] >= i) & (i % 2 == 0)
    options = {"cu_seqlens_q": OF_K, "cu_seqlens_q_padded": at, "is_causal": True}
    out = mc.attention(q, q, q, mc.strided(2), **options)
    x = q.swapaxes(0, 1)[None]
    close(out, dense(x, x, x, kept & real & real[:, None])[0].swapaxes(0, 1))


def test_packed_tokens_beside_a_mask() -> None:
    q = draw(1, 2, 75, 16)
    document = np.repeat(np.arange(4), np.diff(OF_K))
    i = np.arange(75)
    kept = (document[:, None] == document) & (i[:, None] >= i) & (i % 2 == 0)
    out = mc.attention(q, q, q, mc.strided(2), cu_seqlens_q=OF_K, is_causal=True)
    close(out, dense(q, q, q, kept))


def test_tokens_behind_the_last_sequence_see_nothing() -> None:
    q = draw(60, 2, 16)
    out = mc.attention(q, q, q, cu_seqlens_q=OF_Q, cu_seqlens_k=OF_Q + 0, is_causal=True)
    assert out[:50].any()
    assert not out[50:].any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_sequences_and_plain_lists(library: str) -> None:
    """Two arrays may hold no sequence at all, as an idle step of a server does, or be lists."""
    q = draw(60, 2, 16)
    if library == "torch":
        q = pytest.importorskip("torch").from_numpy(q)
    nothing = mc.attention(q, q, q, cu_seqlens_q=[0], cu_seqlens_k=(0,), is_causal=True)
    assert not np.asarray(nothing).any()
    if library == "numpy":
        listed = OF_Q.tolist()
        out = mc.attention(q, q, q, cu_seqlens_q=listed, cu_seqlens_k=tuple(listed))
        close(out, mc.attention(q, q, q, cu_seqlens_q=OF_Q))


# ------------------------------------------------------------------ torch


def test_gradients_and_compilation() -> None:
    torch = pytest.importorskip("torch")
    q = torch.randn(2, 70, 4, 16, requires_grad=True)

    def attend(x):
        return mc.attention(x, x, x, is_causal=True, window_size=(9, 0), layout="bshd")

    attend(q).square().sum().backward()
    first, q.grad = q.grad, None
    x = q.transpose(1, 2)
    mc.attention(x, x, x, mc.window(9)).square().sum().backward()
    torch.testing.assert_close(q.grad, first)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), attend(q))


# ------------------------------------------------------------------ what is refused


def test_lengths_on_a_gpu_and_promises_are_read_if_calls_are_checked(monkeypatch) -> None:
    """Two arrays become intervals where they are, and nothing else looks at them."""
    x, right, wrong = draw(24, 2, 16), np.array([0, 20, 24]), np.array([0, 24, 20])
    monkeypatch.setattr(conventions, "_on_host", lambda _: False)
    monkeypatch.setattr(conventions, "_on_gpu", lambda _: True)
    for check in ("", "1"):
        monkeypatch.setenv("MASKC_CHECK", check)
        for of_k, most, found in ((right + 0, 16, "promises 16 at most"), (wrong, 24, "fall from")):
            refused = pytest.raises(DataRange, match=found) if check else nullcontext()
            with refused:
                mc.attention(x, x, x, cu_seqlens_q=right, cu_seqlens_k=of_k, max_seqlen=most)


def test_lengths_on_two_devices_are_refused() -> None:
    torch = pytest.importorskip("torch")
    x, ends = torch.from_numpy(draw(24, 2, 16)), torch.tensor([0, 24])
    with pytest.raises(BadOption, match="on cpu, as cu_seqlens_q is, found an array on meta"):
        mc.attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends.to("meta"))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("ends", "error", "found"),
    [
        ([3, 24], DataRange, "start at 3, not 0"),
        ([0, 30], DataRange, "end at 30, behind the 24 tokens"),
        ([0, 24, 5], DataRange, "fall from 24 to 5 at position 2"),
        ([0, -3, 24], DataRange, "-3 at position 1, is not in 0..24"),
        ([[0, 24]], DataShape, r"has shape \(1, 2\), expected \[documents \+ 1\]"),
        (24, DataShape, r"has shape \(\), expected"),
        ([0.0, 24.0], DataType, "expected integers"),
        ([False, True], DataType, "has dtype bool, expected integers"),
    ],
)
def test_wrong_cumulative_lengths_are_refused(ends, error, found: str, library: str) -> None:
    """The lengths of queries and of keys are checked alike, whether they are one array or two."""
    x, right, wrong = draw(24, 2, 16), np.array([0, 24]), np.array(ends)
    right = np.pad(right, (0, max(wrong.size - 2, 0)), mode="edge")
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, right, wrong = (torch.from_numpy(np.asarray(given)) for given in (x, right, wrong))
    for of_q, of_k, name in (
        (wrong, wrong + wrong * 0, "cu_seqlens_q"),
        (right, wrong, "cu_seqlens_k"),
    ):
        if tuple(of_q.shape) == tuple(of_k.shape):
            with pytest.raises(error, match=rf"'{name}'.*{found}"):
                mc.attention(x, x, x, cu_seqlens_q=of_q, cu_seqlens_k=of_k)


def test_contradictions_are_refused() -> None:
    q, k, one = draw(1, 4, 9, 16), draw(1, 2, 70, 16), np.array([0, 9])
    for options, found in (
        ({"is_causal": True, "window_size": (3, 3)}, "is_causal must be left out with"),
        ({"is_causal": True, "enable_gqa": False}, "as q has 4 heads and k 2"),
        ({"is_causal": "yes"}, "is_causal must be True or False, found 'yes'"),
        ({"window_size": 5}, "window_size must be two integers"),
        ({"window_size": (5, -2)}, "window_size must be two integers"),
        ({"window_size": (5, 0.5)}, "window_size must be two integers"),
        ({"is_causal": True, "layout": "hbsd"}, "layout must be 'bhsd', 'bshd' or 'sbhd'"),
        ({"is_causal": True, "cu_seqlens_k": one}, "given with cu_seqlens_q"),
        ({"is_causal": True, "max_seqlen": 9}, "given with cu_seqlens_q"),
        ({"is_causal": True, "cu_seqlens_q_padded": one}, "given with cu_seqlens_q"),
        (
            {"cu_seqlens_q": one, "cu_seqlens_k_padded": one[1:]},
            "cu_seqlens_k_padded must be numpy",
        ),
        (
            {"cu_seqlens_q": one, "cu_seqlens_k": one[1:]},
            r"cu_seqlens_k must be numpy integers \[2\], .* found ndarray \[1\]",
        ),
    ):
        with pytest.raises(BadOption, match=found):
            mc.attention(q, k, k, **options)
    with pytest.raises(BadOption, match="mask must be left out"):
        mc.attention(q, k, k, mc.causal(), cu_seqlens_q=one, cu_seqlens_k=np.array([0, 70]))
    with pytest.raises(BadOption, match="cu_seqlens must be left out"):
        mc.attention(q, q, q, mc.documents("cu_seqlens"), cu_seqlens_q=one,
                     cu_seqlens=one)  # fmt: skip
    packed = {"cu_seqlens_q": one, "cu_seqlens_k": one}
    for layout, found in (
        ("bhsd", "left out for packed tokens"),
        ("thd", "need no layout"),
    ):
        with pytest.raises(BadOption, match=found):
            mc.attention(*3 * [draw(9, 2, 16)], layout=layout, **packed)
    with pytest.raises(NotAMask, match="found None"):
        mc.attention(q, k, k, is_causal=False, layout="bhsd")
    with pytest.raises(NotAMask, match="found ndarray of bool"):
        mc.attention(q, k, k, np.ones((9, 70), bool), is_causal=True)
    with pytest.raises(BadShape, match="four dimensions"):
        mc.attention(q[0], k[0], k[0], is_causal=True)
    with pytest.raises(BadOption, match="an array of its own, as there are 9 queries and 70 keys"):
        mc.attention(q, k, k, cu_seqlens_q=one)
    with pytest.raises(DataRange, match="lengths end at 10, behind the 9 tokens"):
        mc.attention(q, q, q, cu_seqlens_q=one + one // 9)
    with pytest.raises(ReservedName):
        mc.flags("layout")
