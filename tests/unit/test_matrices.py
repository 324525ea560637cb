"""`from_bool`: matrices of booleans, of every shape and structure, against the matrix itself."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core.errors import BadMatrix, DataRange, DataShape
from maskc.core.target import Target
from tests.support.thorough import examples

pytestmark = pytest.mark.filterwarnings("ignore::maskc.DenseWarning")

N = 150  # two whole tiles of 64 and a part of one
TOKENS = np.arange(N)
TRIL = TOKENS[:, None] >= TOKENS
BLOCKS = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0]], bool).repeat(64, 0).repeat(64, 1)[:N, :N]
MIXED = (BLOCKS & TRIL) | (TOKENS % 70 == 3)

MATRICES = {
    "causal": TRIL,
    "window": TRIL & (TOKENS[:, None] - TOKENS < 20),
    "blocks": BLOCKS,
    "mixed": MIXED,
    "nothing": np.zeros((N, N), bool),
    "everything": np.ones((N, N), bool),
    "rectangular": TRIL[:70],
    "tall": MIXED[:, :70],
    "wide_tail": np.eye(N, dtype=bool)[:, :129],
    "heads": np.stack([TRIL, MIXED, ~MIXED]),
    "heads_of_runs": np.stack([TRIL, TRIL.T, TRIL & ~BLOCKS]),
    "sequences": np.stack([TRIL, MIXED])[:, None],
    "sequences_and_heads": np.stack([[TRIL, MIXED, BLOCKS], [BLOCKS, TRIL, TRIL.T]]),
    "one_of_each": TRIL[None, None],
    "keys": (TOKENS < 90)[None],
    "queries": (TOKENS % 3 == 0)[:, None],
    "padding": np.stack([TOKENS < 90, TOKENS > 20])[:, None, None],
    "padded_queries": np.stack([TOKENS < 90, TOKENS > 20])[:, None, :, None],
    "keys_of_heads": np.stack([TOKENS < 90, TOKENS > 20, TOKENS % 2 == 0])[:, None],
    "one": np.ones((1, 1), bool),
}  # fmt: skip


def compare(matrix: np.ndarray, n_q: int = N, n_kv: int = N) -> mc.Mask:
    """The dense form, sequence by sequence and head by head, and the number of pairs."""
    n_q, n_kv = (
        n if size == 1 else size for n, size in zip((n_q, n_kv), matrix.shape[-2:], strict=True)
    )
    mask = mc.from_bool(matrix)
    wanted = np.broadcast_to(matrix, (*matrix.shape[:-2], n_q, n_kv))
    dense = mask.dense(n_q, n_kv)
    assert dense.size == wanted.size
    np.testing.assert_array_equal(dense.reshape(wanted.shape), wanted)
    assert mask.count(n_q, n_kv) == wanted.sum()
    assert mc.parse(str(mask)) == mask
    return mask


@pytest.mark.parametrize("name", MATRICES)
def test_the_mask_of_a_matrix(name: str) -> None:
    mask = compare(MATRICES[name])
    assert pickle.loads(pickle.dumps(mask)) == mask == copy.deepcopy(mask)


@settings(max_examples=examples(40))
@given(st.data())
def test_random_matrices(data: st.DataObject) -> None:
    front = data.draw(st.sampled_from([(), (2,), (2, 1), (1, 2), (2, 2)]))
    n_q, n_kv = (data.draw(st.sampled_from([2, 63, 64, 65, 130])) for _ in range(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    tiles = rng.integers(0, 3, (*front, 3, 3)).repeat(64, -1).repeat(64, -2)[..., :n_q, :n_kv]
    compare((tiles == 1) | ((tiles == 2) & (rng.random((n_q, n_kv)) < 0.3)))


def test_layouts_have_the_kinds_of_the_matrix() -> None:
    for matrix in (TRIL, BLOCKS, MIXED):
        tiles = mc.from_bool(matrix).layout(N, block=(64, 64)).to_dense()
        for i, j in np.ndindex(3, 3):
            tile = matrix[64 * i : 64 * i + 64, 64 * j : 64 * j + 64]
            assert tiles[i, j] == (2 if tile.all() else 1 if tile.any() else 0)


def test_it_is_compressed() -> None:
    """A causal matrix becomes two numbers a query; equal tiles are kept once."""
    stored = {
        name: sum(decl.array.size for decl in mc.from_bool(MATRICES[name]).tables)
        for name in ("causal", "window", "blocks", "rectangular")
    }
    assert stored == {"causal": 2 * N, "window": 2 * N, "blocks": 9, "rectangular": 2 * 70}
    repeated = np.tile(MIXED[:64, :64], (4, 4))
    kinds, tiles = mc.from_bool(repeated).tables
    assert {kinds.array.size, tiles.array.size} == {16, 3 * 64 * 64}


def test_masks_of_equal_shape_share_a_kernel() -> None:
    from maskc.dsl.slots import emptied

    other = MIXED[::-1].copy()
    one, two, three = map(mc.from_bool, (MIXED, other, MIXED[:100]))
    assert one != two
    assert emptied(one)[0] == emptied(two)[0] == emptied(three)[0]


def test_a_matrix_that_leaves_little_out_is_warned_about() -> None:
    with pytest.warns(mc.DenseWarning, match=r"100% of the blocks of 64 x 64") as caught:
        mc.from_bool(np.ones((N, N), bool))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mc.from_bool(TRIL)
        mc.from_bool((TOKENS < 90)[None])


@pytest.mark.parametrize("lengths", [(N, N + 1), (N + 1, N), (N - 1, N), (N, N - 64), (1, 1)])
@pytest.mark.parametrize("name", ["causal", "blocks", "mixed", "nothing"])
def test_other_lengths_are_refused(name: str, lengths: tuple[int, int]) -> None:
    mask = mc.from_bool(MATRICES[name])
    for ask in (mask.dense, mask.count, mask.layout):
        with pytest.raises(DataShape, match=r"shape \(150, 150\), expected"):
            ask(*lengths)
    q, k = (np.zeros((1, 1, n, 16), np.float32) for n in lengths)
    with pytest.raises(DataShape):
        mc.attention(q, k, k, mask | mc.sinks(1))


def test_a_dimension_of_1_has_no_length() -> None:
    keys = mc.from_bool((TOKENS < 90)[None])
    assert keys.count(7, N) == 7 * 90
    with pytest.raises(DataShape, match=r"\('any', 150\)"):
        keys.count(7, N + 1)


def test_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, N, 16), np.float32) for _ in range(3))
    for name in ("sequences_and_heads", "padding"):
        matrix = np.broadcast_to(MATRICES[name], (2, 3, N, N))
        scores = np.where(matrix, q @ k.swapaxes(-1, -2) / 4, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = weights / weights.sum(-1, keepdims=True) @ v
        out = mc.attention(q, k, v, mc.from_bool(MATRICES[name]))
        np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_torch_matrices() -> None:
    torch = pytest.importorskip("torch")
    assert mc.from_bool(torch.from_numpy(MIXED)) == mc.from_bool(MIXED)


def test_questions_at_the_lengths_of_the_matrix() -> None:
    mask = mc.from_bool(TRIL)
    assert mc.diff(mask, mc.causal(), n=N) is None
    difference = mc.diff(mask, mc.window(9), n=N)
    assert difference is not None
    assert (difference.q, difference.k) == (10, 0)


REFUSED = {
    "floats": (np.zeros((3, 3)), "float64 of shape"),
    "a bias": (np.zeros((3, 3)), "as in matrix == 0 for a bias"),
    "integers": (np.zeros((3, 3), int), "int64 of shape"),
    "ones": (np.tri(3, dtype=np.uint8), "matrix != 0 keeps the pairs of ones"),
    "ragged": ([[True], [True, False]], "rows of different lengths"),
    "missing values": (np.array([[True, None]]), "object of shape"),
    "vector": (np.ones(3, bool), r"shape \(3,\)"),
    "five": (np.ones((1, 1, 1, 3, 3), bool), "shape"),
    "empty": (np.ones((0, 3), bool), r"shape \(0, 3\)"),
    "a mask": (mc.causal(), "Causal"),
    "None": (None, "NoneType"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_matrix_of_booleans_is_refused(name: str) -> None:
    given, found = REFUSED[name]
    with pytest.raises(BadMatrix, match=found):
        mc.from_bool(given)


def test_matrices_of_other_kinds() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadMatrix, match=r"layout torch.sparse_coo[\s\S]*to_dense\(\)"):
        mc.from_bool(torch.from_numpy(TRIL).to_sparse())
    for other in (TRIL.tolist(), TRIL.view(np.matrix), np.ma.masked_array(TRIL)):
        np.testing.assert_array_equal(mc.from_bool(other).dense(N), TRIL)


def test_modules_serve_all_lengths() -> None:
    mask = mc.from_bool(TRIL)
    plan = driver.plan_module(mask, driver.problem(16, None, None, "float32"), Target.named("cpu"))
    with pytest.raises(DataRange, match="a module serves all lengths"):
        driver.generate(mask, "tril", [plan], "x")
