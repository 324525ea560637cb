"""The oracle itself: against finite differences, plain softmax, and small cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadLength,
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    DataUnknown,
    HeadsUnknown,
    MaskcError,
    NameClash,
    NoSuchHead,
    NotAnArray,
)
from maskc.reference.attention import attention, gradients, merge
from maskc.reference.dense import dense
from maskc.reference.ranking import blocks_of, select

OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0])},
    "sinks": {"sink_logits": np.array([0.3, -1.0, 2.0, 0.0])},
}
OPTIONS["all"] = {name: value for part in OPTIONS.values() for name, value in part.items()}


def tensors(n_q: int = 5, n_kv: int = 6, seed: int = 0) -> tuple[np.ndarray, ...]:
    """q [2, 4, n_q, 3], k [2, 2, n_kv, 3], v [2, 2, n_kv, 2], mask [4, n_q, n_kv], dout."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, 4, n_q, 3)), rng.standard_normal((2, 2, n_kv, 3))
    v, dout = rng.standard_normal((2, 2, n_kv, 2)), rng.standard_normal((2, 4, n_q, 2))
    mask = rng.random((4, n_q, n_kv)) < 0.5
    mask[0, 1] = False
    return q, k, v, mask, dout


# ------------------------------------------------------------------ attention


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_softmax_over_the_set(name: str) -> None:
    q, k, v, mask, _ = tensors()
    options = OPTIONS[name]
    out, lse = attention(q, k, v, mask, **options)
    wide_k, wide_v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    scores = options.get("scale", 3**-0.5) * q @ wide_k.swapaxes(-1, -2)
    if cap := options.get("softcap"):
        scores = cap * np.tanh(scores / cap)
    if "alibi_slopes" in options:
        distance = np.abs(np.arange(5)[:, None] + 1 - np.arange(6))
        scores = scores - options["alibi_slopes"][:, None, None] * distance
    powers = np.exp(np.where(mask, scores, -np.inf))
    total = powers.sum(-1)
    if "sink_logits" in options:
        total = total + np.exp(options["sink_logits"])[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        assert np.allclose(lse, np.log(total))
        expected = np.nan_to_num((powers / total[..., None]) @ wide_v)
    assert np.allclose(out, expected)
    assert not out[:, 0, 1].any()


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_finite_differences(name: str) -> None:
    q, k, v, mask, dout = tensors()
    options = OPTIONS[name]
    results = gradients(q, k, v, mask, dout, **options)
    inputs = {"dq": q, "dk": k, "dv": v}
    if "sink_logits" in options:
        inputs["dsink"] = options["sink_logits"].copy()
    if "alibi_slopes" in options:
        inputs["dalibi"] = options["alibi_slopes"].copy()
    assert set(results) == set(inputs)

    def loss() -> float:
        given = dict(options)
        if "dsink" in inputs:
            given["sink_logits"] = inputs["dsink"]
        if "dalibi" in inputs:
            given["alibi_slopes"] = inputs["dalibi"]
        return float((attention(q, k, v, mask, **given)[0] * dout).sum())

    rng = np.random.default_rng(1)
    for label, array in inputs.items():
        assert results[label].shape == array.shape
        for _ in range(12):
            at = tuple(rng.integers(0, size) for size in array.shape)
            before, step = array[at], 1e-6
            array[at] = before + step
            upper = loss()
            array[at] = before - step
            lower = loss()
            array[at] = before
            assert results[label][at] == pytest.approx((upper - lower) / (2 * step), abs=1e-7)


def test_a_query_without_keys() -> None:
    q, k, v, _, dout = tensors()
    none = np.zeros((5, 6), dtype=bool)
    out, lse = attention(q, k, v, none)
    assert not out.any()
    assert (lse == -np.inf).all()
    assert all(not grad.any() for grad in gradients(q, k, v, none, dout).values())
    sinks = np.array([0.5, -np.inf, 1.0, 2.0])
    out, lse = attention(q, k, v, none, sink_logits=sinks)
    assert not out.any()
    assert np.array_equal(lse, np.broadcast_to(sinks[:, None], (2, 4, 5)))
    assert not gradients(q, k, v, none, dout, sink_logits=sinks)["dsink"].any()


def test_no_keys_and_no_queries() -> None:
    q, k, v, mask, _ = tensors(n_kv=0)
    out, lse = attention(q, k, v, mask)
    assert not out.any()
    assert (lse == -np.inf).all()
    q, k, v, mask, _ = tensors()
    assert attention(q[:, :, :0], k, v, mask[:, :0])[0].shape == (2, 4, 0, 2)


def test_what_a_query_does_not_see_never_touches_it() -> None:
    q, k, v, mask, dout = tensors()
    mask[:, :, 2] = False
    mask[1, 3, 2] = True
    for poison in (np.nan, np.inf):
        dirty_k, dirty_v = k.copy(), v.copy()
        dirty_k[:, :, 2] = dirty_v[:, :, 2] = poison
        clean, lse = attention(q, k, v, mask)
        out, dirty_lse = attention(q, dirty_k, dirty_v, mask)
        others = np.ones((4, 5), dtype=bool)
        others[1, 3] = False
        assert np.array_equal(out[:, others], clean[:, others])
        assert np.array_equal(dirty_lse[:, others], lse[:, others])
        assert not np.isfinite(out[:, 1, 3]).any()
        dq = gradients(q, dirty_k, dirty_v, mask, dout)["dq"]
        assert np.isfinite(dq[:, others]).all()


def test_masks_broadcast() -> None:
    q, k, v, mask, _ = tensors()
    one = attention(q, k, v, mask[0])[0]
    assert np.array_equal(one, attention(q, k, v, np.broadcast_to(mask[0], mask.shape))[0])
    by_batch = np.stack([mask[0], mask[1]])[:, None]
    assert np.array_equal(attention(q, k, v, by_batch)[0][0], one[0])


@pytest.mark.parametrize("sinks", [None, np.array([0.3, -1.0, 2.0, 0.0])])
def test_merging_pieces_is_attention_over_their_union(sinks: np.ndarray | None) -> None:
    q, k, v, mask, _ = tensors()
    owner = np.random.default_rng(3).integers(0, 3, mask.shape)
    pieces = [
        attention(q, k, v, mask & (owner == i), sink_logits=sinks if i == 0 else None)
        for i in range(3)
    ]
    out, lse = merge([out for out, _ in pieces], [lse for _, lse in pieces])
    expected, expected_lse = attention(q, k, v, mask, sink_logits=sinks)
    assert np.allclose(out, expected)
    assert np.allclose(lse, expected_lse)
    assert not out[:, 0, 1].any()
    left = merge([pieces[0][0], pieces[1][0]], [pieces[0][1], pieces[1][1]])
    again, _ = merge([left[0], pieces[2][0]], [left[1], pieces[2][1]])
    assert np.allclose(again, expected)


# ------------------------------------------------------------------ selection


def pairs_of(allowed: np.ndarray, size: int = 1) -> list[list[slice]]:
    """Blocks of queries, and of keys, of one size."""
    return [[slice(i, i + size) for i in range(0, n, size)] for n in allowed.shape[1:]]


def chosen(scores: list[float], k: int, allowed: list[int] | None = None) -> list[int]:
    """The keys one query selects."""
    matrix = np.ones((1, 1, len(scores)), dtype=bool)
    if allowed is not None:
        matrix[:] = False
        matrix[..., allowed] = True
    found = select(matrix, np.array(scores)[None, None], k, *pairs_of(matrix)) & matrix[0]
    return np.flatnonzero(found[0]).tolist()


@pytest.mark.parametrize(
    ("scores", "k", "expected"),
    [
        ([1, 3, 2, 4], 2, [1, 3]),
        ([1, 1, 1, 1], 2, [0, 1]),
        ([0.0, -0.0, 0.0], 1, [0]),
        ([1, 2], 0, []),
        ([1, 2], 5, [0, 1]),
        ([np.nan, 1, np.nan, -np.inf], 2, [1, 3]),
        ([np.nan, 1, np.nan, -np.inf], 3, [0, 1, 3]),
        ([np.nan] * 4, 2, [0, 1]),
        ([-np.inf] * 3, 1, [0]),
        ([np.inf, np.nan, np.inf], 2, [0, 2]),
    ],
)
def test_select(scores: list[float], k: int, expected: list[int]) -> None:
    assert chosen(scores, k) == expected


def test_only_what_the_mask_allows_is_ranked() -> None:
    assert chosen([9, 1, 2, 8], 1, [1, 2]) == [2]
    assert chosen([9, 1, 2, 8], 3, [1, 2]) == [1, 2]
    assert chosen([9, 1, 2, 8], 3, []) == []


@pytest.mark.parametrize("k", [0, 1, 5, 40])
def test_two_heads_that_are_alike_select_what_one_does(k: int) -> None:
    """Their mean is the score itself, and takes the way of blocks."""
    rng = np.random.default_rng(k)
    scores = rng.integers(-3, 4, (1, 30, 40)) / 2.0
    scores[rng.random(scores.shape) < 0.2] = np.nan
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    scores[rng.random(scores.shape) < 0.1] = -0.0
    allowed = rng.random(scores.shape) < 0.7
    allowed[0, 3] = False
    both = (np.repeat(x, 2, axis=0) for x in (allowed, scores))
    np.testing.assert_array_equal(
        select(allowed, scores, k, *pairs_of(allowed)), select(*both, k, *pairs_of(allowed))
    )


def test_blocks_of_keys_and_queries_select_together() -> None:
    allowed = np.tril(np.ones((1, 4, 5), dtype=bool), 1)
    scores = np.array([
        [5, 0, 9, 9, 9], [0, 0, 0, 9, 9],  # together: block 0 has mean 1, block 1 mean 0
        [0, 0, 3, 3, 9], [0, 0, 1, 1, 8],  # block 1 has mean 2, block 2 mean 8
    ], dtype=float)[None]  # fmt: skip
    found = select(allowed, scores, 1, *pairs_of(allowed, 2)) & allowed[0]
    assert [np.flatnonzero(row).tolist() for row in found] == [[0, 1], [0, 1], [], [4]]
    blocks = np.array([[[1.0, 0.0, 7.0], [0.0, 2.0, 1.0]]])
    found = select(allowed, blocks, 1, *pairs_of(allowed, 2)) & allowed[0]
    assert [np.flatnonzero(row).tolist() for row in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    single_keys = np.array([[[5.0, 0.0], [0.0, 2.0], [1.0, 3.0], [4.0, 2.0]]])
    down, across = pairs_of(allowed, 2)[0], pairs_of(allowed[..., :2])[1]
    chosen_keys = select(allowed[..., :2], single_keys, 1, down, across)
    assert [np.flatnonzero(row).tolist() for row in chosen_keys] == [[0], [0], [0], [0]]


def test_blocks_of_positions_end_where_positions_do_not_ascend() -> None:
    positions = np.array([0, 1, 2, 0, 1, 5])
    ends = [(block.start, block.stop) for block in blocks_of(positions, 2, 6)]
    assert ends == [(0, 2), (2, 3), (3, 5), (5, 6)]


def test_topk_shares_between_heads() -> None:
    scores = np.array([[[1, 5, 0]], [[2, 0, 6]], [[0, 1, 2]], [[9, 1, 0]]], dtype=float)

    def keys(share: str) -> list[list[int]]:
        mask = mc.topk(1, mc.full(), score="given", share=share)
        dense_mask = dense(mask, 1, 3, scores=scores, heads_kv=2)
        return [np.flatnonzero(row).tolist() for row in dense_mask.reshape(-1, 3)]

    assert keys("head") == [[1], [2], [2], [0]]
    assert keys("group") == [[2], [2], [0], [0]]
    assert keys("all") == [[0]]


def test_topk_is_a_subset_and_joins_other_masks() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((2, 3, 12, 12))
    of = mc.causal() & mc.documents("doc")
    ids = np.repeat([0, 1], 6)
    dense_mask = dense(mc.topk(2, of), 12, scores=scores, doc=ids)
    allowed = dense(of, 12, doc=ids)
    assert dense_mask.shape == (2, 3, 12, 12)
    assert not (dense_mask & ~allowed).any()
    assert np.array_equal(
        dense_mask.sum(-1), np.broadcast_to(np.minimum(2, allowed.sum(-1)), (2, 3, 12))
    )
    joined = dense(mc.topk(2, of) | mc.window(0), 12, scores=scores, doc=ids)
    assert np.array_equal(joined, dense_mask | np.eye(12, dtype=bool))
    shared = dense(mc.topk(2, of, q_block=3, block=2), 12, scores=scores[0], doc=ids)
    assert not (shared & ~allowed).any()


# ------------------------------------------------------------------ refusals

DOC = mc.documents("doc")
REFUSED: dict[str, tuple[Callable[[], object], type[MaskcError]]] = {
    "negative length": (lambda: dense(mc.full(), -1), BadLength),
    "length of another type": (lambda: dense(mc.full(), 2.0), BadLength),
    "missing data": (lambda: dense(DOC, 4), DataMissing),
    "unknown data": (lambda: dense(mc.full(), 4, doc=[0] * 4), DataUnknown),
    "wrong length": (lambda: dense(DOC, 4, doc=[0] * 5), DataShape),
    "one array for two lengths": (lambda: dense(DOC, 4, 5, doc=[0] * 4), DataShape),
    "floats": (lambda: dense(DOC, 4, doc=np.zeros(4)), DataType),
    "cu_seqlens that fall": (lambda: dense(DOC, 4, doc=mc.cu_seqlens([0, 3, 2, 4])), DataRange),
    "a single interval end": (
        lambda: dense(mc.intervals("s"), 3, s=np.array([0, 1, 2])), DataShape,
    ),
    "booleans as ids": (lambda: dense(DOC, 2, doc=np.array([True, False])), DataType),
    "no array": (lambda: dense(DOC, 2, doc=[[1], [1, 2]]), NotAnArray),
    "one name, two kinds": (lambda: dense(DOC & mc.flags("doc"), 2, doc=[0, 1]), NameClash),
    "one name, two defaults": (
        lambda: dense(mc.window(mc.param("w", 3)) | mc.sinks(mc.param("w", 4)), 2), NameClash,
    ),
    "data named like a parameter": (
        lambda: dense(DOC & mc.sinks(mc.param("doc", 4)), 2, doc=[0, 1]), NameClash,
    ),
    "a table of another size": (
        lambda: dense(mc.block_table("t", 2), 4, t=np.ones((3, 2), dtype=bool)), DataShape,
    ),
    "a fixed table of another size": (
        lambda: dense(mc.block_table([[1, 0], [1, 1]], 2), 6), DataShape,
    ),
    "unequal batches": (
        lambda: dense(DOC & mc.flags("f"), 2, doc=np.zeros((2, 2), int), f=np.ones((3, 2), bool)),
        DataShape,
    ),
    "a parent outside": (lambda: dense(mc.tree("t"), 2, t=mc.parents([-1, 5])), DataRange),
    "unknown heads": (lambda: dense(mc.heads(1), 4), HeadsUnknown),
    "heads of a formula": (lambda: dense(mc.where(lambda h, q, k: q >= h), 4), HeadsUnknown),
    "per_head of another count": (
        lambda: dense(mc.per_head([mc.full(), mc.causal()]), 4, n_heads=3), NoSuchHead,
    ),
    "tables of unequal heads": (
        lambda: dense(mc.block_table(np.ones((2, 1, 1), int), 4), 4, n_heads=3), DataShape,
    ),
    "a parameter of another type": (
        lambda: dense(mc.window(mc.param("w", 3)), 4, w=2.5), DataType,
    ),
    "no scores": (lambda: dense(mc.topk(2, mc.full()), 4), DataMissing),
    "scores of another shape": (
        lambda: dense(mc.topk(2, mc.full()), 4, scores=np.zeros((3, 4))), DataShape,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, mistake = REFUSED[name]
    with pytest.raises(mistake):
        call()
