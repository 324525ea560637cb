"""Score formulas: what is traced, what it means, and what the CPU's kernels make of it."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.analysis import score_slopes, sum_slopes
from maskc.analysis.sum_slopes import slope
from maskc.core import score as S
from maskc.core.errors import (
    ArgumentOrder,
    DataMissing,
    DataRange,
    DataUnknown,
    NotAScore,
    ScoreDerivative,
    ScoreHidesPairs,
    ScoreIndex,
    ScoreNotTraceable,
    ScoreOption,
    ScoreTable,
)
from maskc.reference.scores import ScoreOf
from tests.support.scores import FORMULAS, arrays, close, judged_passes, random_formulas

CAUSAL = mc.causal()


def both_passes(score, data, *, mask=CAUSAL, n_q=70, n_kv=70, heads=2, kv_heads=1, batch=2, seed=0,
                dim=16, **options):  # fmt: skip
    """Both passes in fp32 on the CPU against the reference in fp64."""
    rng = np.random.default_rng(seed)
    q, dout = (rng.normal(size=(batch, heads, n_q, dim)).astype(np.float32) for _ in range(2))
    k, v = (rng.normal(size=(batch, kv_heads, n_kv, dim)).astype(np.float32) for _ in range(2))
    attn = mask.compile(dim, dtype="float32", target="cpu", score=score)
    live = mask.dense(n_q, n_kv) if score.mask is None else (mask & score.mask).dense(n_q, n_kv)
    judged_passes(attn, (q, k, v, dout), live, score=score, data=data, **options)
    return attn


# ------------------------------------------------------------------ what it computes


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name):
    score, data = FORMULAS[name](70, 70, 2, 2)
    both_passes(score, data)


def test_queries_and_keys_apart():
    for n_q, n_kv in ((1, 90), (90, 33), (65, 128)):
        score, data = FORMULAS["relative table"](n_q, n_kv, 4, 2)
        both_passes(score, data, mask=mc.full(), n_q=n_q, n_kv=n_kv, heads=4, kv_heads=2)


def test_sinks_and_entmax():
    score, data = FORMULAS["relative table"](70, 70, 2, 2)
    both_passes(score, data, sink_logits=np.array([0.5, -1.0], np.float32))
    both_passes(score, data, normalizer="entmax")


def test_parts_and_data():
    """A mask that runs in parts runs whole with a formula, which speaks of the user's q and k."""
    score, data = FORMULAS["relative table"](160, 160, 2, 2)
    mask = mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4)
    both_passes(score, data, mask=mask, n_q=160, n_kv=160)


def slopes_need_no_sympy(score):
    """Compare derivatives with sympy's; return whether they were found without it."""
    logit = score.formula.logit
    assert sum_slopes.slope(logit) == score_slopes.slope(logit)
    assert sum_slopes.table_slopes(logit) == score_slopes.table_slopes(logit)
    variables = (S.Score(),), tuple(S.reads(logit))
    return all(sum_slopes._of_sum(logit, of) is not None for of in variables)


_TABLE, _OTHER = mc.scores.table("table"), mc.scores.table("other")


@pytest.mark.parametrize(
    ("score", "is_sum"),
    [
        (mc.scores.alibi(), True), (mc.scores.alibi(n_heads=4), True), (mc.scores.bias(), True),
        (mc.scores.relative(furthest=5), True), (mc.scores.t5(), True),
        (mc.score(lambda s, q, k, h: k * _TABLE[h] - (_OTHER[h] - s)), True),
        (mc.score(lambda s, q, k, h: _OTHER[h] * _TABLE[h] - s * _OTHER[k]), True),
        (mc.score(lambda s, q, k, h: s + (q - k) * _TABLE[h] - (q - k) * _OTHER[h]), True),
        (mc.score(lambda s, q, k, h: s - q * _TABLE[h] - q * _OTHER[h]), False),
        (mc.score(lambda s, q, k, h: s * s + _TABLE[h]), False),
        (mc.score(lambda s, q, k, h: s + 2.0 * _TABLE[h]), False),
        (mc.score(lambda s, q, k, h: s + mc.scores.log(s * s + 1.5)), False),
        (mc.scores.soft_cap(3.0), False),
    ],
)  # fmt: skip
def test_sums_are_differentiated_without_sympy(score, is_sum):
    assert slopes_need_no_sympy(score) == is_sum


@settings(max_examples=25)
@given(random_formulas(), st.integers(0, 999))
def test_random_formulas_differentiate(formula, seed):
    """The reference's dual numbers against finite differences, and sympy's slopes as printed."""
    function, tables = formula
    score = mc.score(function)
    data = arrays(tables, 12, 12, 2, 2, seed)
    made = ScoreOf(score.inputs, data, 12, 12)
    rng = np.random.default_rng(seed)
    s, q, k = rng.normal(size=40), rng.integers(0, 12, 40), rng.integers(0, 12, 40)
    step = 1e-6
    slope = (made(s + step, q, k, 1, 1).value - made(s - step, q, k, 1, 1).value) / (2 * step)
    here = made(s, q, k, 1, 1)
    slopes_need_no_sympy(score)
    kinks = np.abs(made(s + step, q, k, 1, 1).slope - made(s - step, q, k, 1, 1).slope) > 1e-3
    np.testing.assert_allclose(np.where(kinks, 0, here.slope), np.where(kinks, 0, slope), atol=1e-4,
                               rtol=1e-4)  # fmt: skip


def test_the_reference_chooses_and_joins():
    """Integers that conditions choose, products of two, and conditions on s among others."""
    table = np.arange(10)
    score = mc.score(
        lambda s, q, k: (
            np.where((q > k) | (s < 0.2), (q - k) * 0.1, table[(q * k) % 10] * 1.0)
            + np.where(q > 3, q, 2 * k) * np.where((q < 2) | (k == 5), s, 3.0)
        )
    )
    rng = np.random.default_rng(0)
    s, q, k = rng.normal(size=40), rng.integers(0, 12, 40), rng.integers(0, 12, 40)
    wanted = np.where((q > k) | (s < 0.2), (q - k) * 0.1, table[(q * k) % 10])
    wanted = wanted + np.where(q > 3, q, 2 * k) * np.where((q < 2) | (k == 5), s, 3.0)
    np.testing.assert_allclose(ScoreOf(score.inputs, {}, 12, 12)(s, q, k, 0, 0).value, wanted)


_erf = np.vectorize(math.erf)
_NAMES = {
    "min": np.minimum, "max": np.maximum, "abs": np.abs, "exp": np.exp, "log": np.log,
    "tanh": np.tanh, "sqrt": np.sqrt, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": _erf,
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2, "sin": np.sin, "cos": np.cos,
    "floor": np.floor, "sign": np.sign, "step": lambda x: np.heaviside(x, 0.5), "where": np.where,
}  # fmt: skip


@pytest.mark.parametrize("function", S.FUNCTIONS)
def test_functions_differentiate(function):
    """Return what kernels print as the slope of every function, against finite differences."""
    arguments = S.Call("mul", (S.Score(), S.Number(1.5))), S.Call("sub", (S.Number(5.0), S.Score()))
    s, step = np.linspace(0.313, 4.719, 45), 1e-6
    for args in (arguments, arguments[::-1]) if S.FUNCTIONS[function] > 1 else (arguments[:1],):
        node = S.Call(function, args)
        text, found, names = S.to_score_text(node), slope(node), dict(_NAMES, s=s)
        after, before = (eval(text, dict(_NAMES, s=s + by)) for by in (step, -step))
        for number, part in enumerate(found.shared):
            names[f"x{number}"] = eval(S.to_score_text(part), names)
        right = (after - before) / (2 * step)
        own = eval(S.to_score_text(found.results[0]), names) + 0 * s
        np.testing.assert_allclose(own, right, rtol=1e-6, atol=1e-8)


def test_collisions_and_the_same_bits():
    """Thousands of pairs share eight entries; any number of threads gives the same bits."""
    score, data = FORMULAS["buckets"](200, 200, 2, 2)
    both_passes(score, data, n_q=200, n_kv=200)
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.normal(size=(2, 2, 200, 16)).astype(np.float32) for _ in range(4))
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    out, lse = attn(q, k, v, return_lse=True, **data)
    runs = [attn.backward(q, k, v, out, lse, dout, **data) for _ in range(3)]
    for again in runs[1:]:
        assert all((a == b).all() for a, b in zip(runs[0], again, strict=True))


def test_lengths_zero():
    score, data = FORMULAS["relative table"](8, 8, 2, 2)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    q, k = np.zeros((1, 2, 0, 16), np.float32), np.zeros((1, 2, 5, 16), np.float32)
    assert attn(q, k, k, **data).shape == q.shape
    out, lse = attn(k, q, q, return_lse=True, **data)
    assert not out.any()
    *_, dbias = attn.backward(k, q, q, out, lse, k, **data)
    assert dbias.shape == data["bias"].shape
    assert not dbias.any()


# ------------------------------------------------------------------ tables


def test_tables_of_other_dtypes_and_strides():
    n = 40
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, q - k])
    attn = mc.full().compile(16, dtype="float32", target="cpu", score=score)
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(1, 2, n, 16)).astype(np.float32) for _ in range(3))
    bias = rng.normal(size=(2 * n, 2))
    usual = attn(q, k, v, bias=np.ascontiguousarray(bias.T).astype(np.float32))
    assert (attn(q, k, v, bias=bias.T) == usual).all()
    assert (attn(q, k, v, bias=bias.astype(np.float32).T) == usual).all()


def test_broadcasting():
    """A dimension of one entry is shared, and so are those that are missing in front."""
    n = 33
    score = mc.score(lambda s, q, k, h, b: s + mc.table("bias")[b, h, q, k])
    rng = np.random.default_rng(2)
    for shape in ((2, 2, n, n), (1, 2, n, n), (2, 1, 1, n), (n, n), (2, n, 1), (1, 1, 1, 1)):
        data = {"bias": rng.normal(size=shape).astype(np.float32)}
        both_passes(score, data, n_q=n, n_kv=n)


def test_an_index_outside_is_not_a_number():
    score = mc.score(lambda s, q, k: s + mc.table("bias")[q - k])
    attn = mc.full().compile(16, dtype="float32", target="cpu", score=score)
    causal = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    x = np.ones((1, 1, 20, 16), np.float32)
    bias = np.zeros(15, np.float32)
    out = attn(x, x, x, bias=bias)
    assert np.isnan(out).any()
    inside = mc.window(14).compile(16, dtype="float32", target="cpu", score=score)
    assert np.isfinite(inside(x, x, x, bias=bias)).all()  # hidden pairs do not count
    assert np.isnan(causal(x, x, x, bias=bias)[0, 0, 15:]).all()


def test_quotients_of_64_bits():
    both_passes(mc.score(lambda s, q, k: s + 0.5 * ((q * 4_000_000_001 + k) // 5 % 3)), {})


def test_parameters():
    score = mc.score(lambda s, q, k: s - mc.param("decay", 0.25) * abs(q - k))
    attn = both_passes(score, {})
    x = np.random.default_rng(3).normal(size=(1, 1, 30, 16)).astype(np.float32)
    assert (attn(x, x, x) == attn(x, x, x, decay=0.25)).all()
    assert (attn(x, x, x) != attn(x, x, x, decay=0.5)).any()
    both_passes(score, {"decay": np.array(0.4, np.float32)})


def test_real_parameters_are_not_for_masks():
    for make in (
        lambda: mc.window(mc.param("rate", 2.5)),
        lambda: mc.where(lambda q, k: q - k < mc.param("rate", 2.5)),
    ):
        with pytest.raises(mc.MaskcError, match="masks compute with integers"):
            make()


def test_integer_tables_and_parameters():
    """Tables of integers choose entries of others; integer parameters move them."""
    relative = np.random.default_rng(4).integers(0, 9, (70, 70))
    score = mc.score(
        lambda s, q, k, h: s + mc.table("bias")[h, (relative[q, k] + mc.param("shift", 0)) % 9]
    )
    data = {"bias": np.random.default_rng(5).normal(size=(2, 9)).astype(np.float32)}
    both_passes(score, data)
    both_passes(score, {**data, "shift": 3})


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_integers_of_tables_that_do_not_fit_are_refused(library):
    """Kernels read int32: 2**32 + 1 would be taken for 1."""
    torch = pytest.importorskip("torch")
    ids = np.array([0, 1, 2**32 + 1, 3])
    score = mc.score(lambda s, q, k: s + mc.table("bias")[mc.table("ids", integer=True)[k] % 4])
    x = np.zeros((1, 1, 4, 16), np.float32)
    bias = np.zeros(4, np.float32)
    if library == "torch":
        ids, bias, x = map(torch.from_numpy, (ids, bias, x))
    with pytest.raises(DataRange, match=r"ids.*reach from 0 to 4294967297, beyond 32 bits"):
        mc.attention(x, x, x, mc.full(), score=score, ids=ids, bias=bias)


# ------------------------------------------------------------------ what is said


def test_text():
    bias = mc.table("bias")
    score = mc.score(lambda s, q, k, h: 30 * np.tanh(s / 30) + bias[h, q - k])
    assert repr(score) == "score(30 * tanh(s / 30) + bias[h, q - k])"
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    assert "30 * tanh(s / 30) + table0[h, q - k]" in attn.unit.source
    assert "bias" not in attn.unit.source
    assert "30 * tanh(s / 30) + table0[h, q - k]" in attn.explain()


def test_equal_formulas_share_their_kernel():
    one = mc.score(lambda s, q, k: s + mc.table("a")[q - k])
    two = mc.score(lambda s, q, k: s + mc.table("c")[q - k])
    assert one.formula == two.formula
    texts = {CAUSAL.compile(16, target="cpu", score=x).unit.digest for x in (one, two)}
    assert len(texts) == 1


def test_a_mask_without_a_formula_stays_as_it_was():
    assert "score_logit" not in CAUSAL.compile(16, target="cpu").unit.source


HIDING = {
    "a choice": lambda s, q, k: np.where(k <= q, s * 0.5, -np.inf),
    "a choice that is added": lambda s, q, k: s * 0.5 + np.where(q < k, -np.inf, 0.0),
    "what is taken away": lambda s, q, k: s - np.where(q < k, np.inf, 0.0),
    "a factor": lambda s, q, k: 0.5 * np.where(k <= q, s, -np.inf),
    "a negative factor": lambda s, q, k: np.where(k <= q, s, np.inf) * -0.5,
    "a sign": lambda s, q, k: -np.where(k <= q, s, np.inf),
    "a logarithm of a condition": lambda s, q, k: s + np.log((k <= q) * 1.0),
    "a logarithm of a choice": lambda s, q, k: s + np.log(np.where(k > q, 0.0, 2.0)),
    "both sides": lambda s, q, k: np.where(k > q, -np.inf, np.where(k <= q, s, -np.inf)),
    "either branch": lambda s, q, k: np.where(
        q < 9, np.where(k <= q, s, -np.inf), np.where(k > q, -np.inf, 2 * s)
    ),
}


@pytest.mark.parametrize("name", HIDING)
def test_however_pairs_are_hidden(name):
    with pytest.warns(mc.ScoreMaskWarning, match="k"):
        score = mc.score(HIDING[name])
    assert score.mask.equals(mc.causal(align="start"))
    assert "inf" not in str(score).partition("hides")[0]
    both_passes(score, {}, mask=mc.full())


IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3], np.int64).repeat(7)
PREFIX = np.array([5, 30])
EVEN = np.arange(70) % 2 == 0
BY_TABLE = {
    "documents": lambda s, b, h, q, k: np.where((q >= k) & (IDS[q] == IDS[k]), s, -np.inf),
    "the other order": lambda s, b, h, q, k: np.where(IDS[q] != IDS[k], -np.inf, 2 * s),
    "nested": lambda s, b, h, q, k: np.where(
        q >= k, np.where(IDS[q] == IDS[k], s, -np.inf) + 0.1 * q, -np.inf
    ),
    "by sequence": lambda s, b, h, q, k: np.where((k < PREFIX[b]) | (q >= k), s, -np.inf),
    "by head": lambda s, b, h, q, k: np.where(q - k < PREFIX[h], s, -np.inf),
    "booleans": lambda s, b, h, q, k: np.where(EVEN[k] & EVEN[q], s, -np.inf),
    "added": lambda s, b, h, q, k: s + np.where(EVEN[k], 0.0, -np.inf) + 0.5 * h,
    "chosen": lambda s, b, h, q, k: np.where(np.where(EVEN[k], 3, IDS[q]) == 3, s, -np.inf),
    "a table by a table": lambda s, b, h, q, k: np.where(PREFIX[IDS[k] % 2] > q, s, -np.inf),
    "against a real number": lambda s, b, h, q, k: np.where(
        (q - k < 20.5) & (k - q < 4.5), s, -np.inf
    ),
    "a parameter": lambda s, b, h, q, k: np.where(q - k < mc.param("far", 30), s, -np.inf),
}  # fmt: skip


def by_number(s, b, h, q, k):
    return np.where(q - k < 30, s, -np.inf)


def of_all_pairs(function, batch=2, heads=2, n=70):
    """The function's condition on all pairs: where a score of 0 is not -inf."""
    places = np.meshgrid(*map(np.arange, (batch, heads, n, n)), indexing="ij")
    return ~np.isneginf(function(np.zeros((batch, heads, n, n)), *places))


@pytest.mark.parametrize("name", BY_TABLE)
def test_pairs_hidden_by_what_a_function_holds_become_a_mask(name):
    function = BY_TABLE[name]
    with pytest.warns(mc.ScoreMaskWarning):
        score = mc.from_score_mod(function)
    assert "inf" not in str(score).partition("hides")[0]
    right = of_all_pairs(function if name != "a parameter" else by_number)
    dense = score.mask.dense(70, n_heads=2)
    if dense.ndim == 3:
        dense = dense[:, None] if (right == right[:, :1]).all() else dense[None]
    np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
    function = by_number if name == "a parameter" else function
    q, k, v = (np.random.default_rng(i).normal(size=(2, 2, 70, 8)) for i in range(3))
    places = np.meshgrid(*map(np.arange, (2, 2, 70, 70)), indexing="ij")
    logits = function(q @ k.swapaxes(-1, -2) / 8**0.5, *places)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isneginf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    out = mc.attention(*(x.astype(np.float32) for x in (q, k, v)), mc.full(), score=score)
    close(out, weights @ v / np.where(total == 0, 1, total))


BY_VALUE = {
    "of the score": lambda s: np.where(s > 0, s, -np.inf),
    "of a table of a call": lambda s, q, k: np.where(mc.table("t")[q, k] > 0, s, -np.inf),
    "of b": lambda s, q, k, h, b: np.where((b == 1) | (k <= q), s, -np.inf),
    "of products": lambda s, q, k: np.where(q * k % 3 == 0, s, -np.inf),
    "under another function": lambda s, q, k: np.exp(np.where(k <= q, s, -np.inf)),
    "of two": lambda s, q, k: np.maximum(s, np.where(k <= q, 0.0, -np.inf)),
    "nothing is left": lambda s, q, k: np.where((s > 100) & (q > k), s, -np.inf),
    "both": lambda s, q, k: np.where((k <= q) & (s > 0), s, -np.inf),
    "the least number": lambda s, q, k: s + np.where(q < k, np.finfo(np.float32).min, 0.0),
    "a huge factor": lambda s, q, k: s + (k > q) * -1e38,
}


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", BY_VALUE)
def test_scores_of_minus_infinity_have_no_weight(name):
    """Whatever made them: such pairs have no gradient, and rows of them are empty."""
    score = mc.score(BY_VALUE[name])
    table = np.random.default_rng(3).normal(size=(70, 70)).astype(np.float32)
    table[7] = -1
    data = {"t": table} if "table" in name else {}
    both_passes(score, data, mask=mc.full())


def test_both_a_mask_and_values():
    """A mask says what it can, and skips tiles; values say the rest."""
    with pytest.warns(mc.ScoreMaskWarning, match="k <= q"):
        score = mc.score(BY_VALUE["both"])
    assert score.mask.equals(mc.causal(align="start"))
    assert str(score).startswith("score(where(0 < s, s, -inf), which hides")


NOT_A_MASK = {
    "a product": lambda s, q, k: s + (k > q) * -np.inf,
    "everything": lambda s: s - np.inf,
    "the other infinity": lambda s, q, k: np.where(k <= q, s, np.inf),
    "not a number": lambda s, q, k: np.where(k <= q, s, np.nan),
}


@pytest.mark.parametrize("name", NOT_A_MASK)
def test_infinities_without_a_plain_meaning(name):
    with pytest.raises(ScoreHidesPairs) as caught:
        mc.score(NOT_A_MASK[name])
    assert "where(condition, s, -inf)" in str(caught.value)
    assert "test_scores.py" in str(caught.value)


def test_rows_of_a_bias_that_hide_pairs():
    """Tables may hold -inf: such pairs have no weight and no gradient, and rows may be empty."""
    rng = np.random.default_rng(0)
    bias = rng.normal(size=(2, 40, 40)).astype(np.float32)
    bias[:, :, 5], bias[:, 7] = -np.inf, -np.inf
    score = mc.scores.bias()
    q, k, v = (rng.normal(size=(1, 2, 40, 16)).astype(np.float32) for _ in range(3))
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    out, lse = attn(q, k, v, bias=bias, return_lse=True)
    assert (out[:, :, 7] == 0).all()
    assert (lse[:, :, 7] == -np.inf).all()
    gradients = attn.backward(q, k, v, out, lse, np.ones_like(out), bias=bias)
    assert all(np.isfinite(x).all() for x in gradients)
    hidden = np.isneginf(bias)
    assert (gradients[3][hidden] == 0).all()
    assert (gradients[3][~hidden & np.tril(np.ones((40, 40), bool))] != 0).any()


REFUSED = {
    "a branch": (lambda s: s if s > 0 else 0 * s, ScoreNotTraceable),
    "log": (lambda s: np.log(s), ScoreDerivative),
    "a root": (lambda s: np.sqrt(abs(s)), ScoreDerivative),
    "a quotient": (lambda s: 1 / s, ScoreDerivative),
    "no number": (lambda s: "s", ScoreNotTraceable),
    "float()": (lambda s: float(s), ScoreNotTraceable),
    "a sum": (lambda s: np.sum(s), ScoreNotTraceable),
    "names": (lambda s, k, q: s, ArgumentOrder),
    "too many": (lambda s, q, k, h, b, x: s, ScoreNotTraceable),
    "ranks": (lambda s, q, k: s + mc.table("t")[q] + mc.table("t")[q, k], ScoreNotTraceable),
    "a power": (lambda s, q: s**q, ScoreNotTraceable),
    "a shift by all bits": (lambda s, q: s * (q >> 31), ScoreNotTraceable),
    "a negative shift": (lambda s, q: s * (q << -1), ScoreNotTraceable),
    "an error": (lambda s: s + {}["x"], ScoreNotTraceable),
    "bits of far numbers": (lambda s, q, k: s + (q * 2**40 & k * 2**41), ScoreNotTraceable),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, kind = REFUSED[name]
    with pytest.raises(kind) as caught:
        mc.score(function)
    assert "test_scores.py" in str(caught.value)


SMOOTH = (
    lambda s: np.log(1 + np.exp(s)), lambda s: np.sqrt(s * s + 1e-3), lambda s: s / (1 + abs(s)),
    lambda s: np.log(np.maximum(s, 1e-3)), lambda s: 1 / (2 + np.tanh(s)),
)  # fmt: skip


@pytest.mark.parametrize("function", SMOOTH)
def test_smooth_ones_are_not(function):
    both_passes(mc.score(function), {})


def test_calls_that_are_refused():
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, q])
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    x = np.ones((1, 2, 20, 16), np.float32)
    right = np.zeros((2, 20), np.float32)
    attn(x, x, x, bias=right)
    for kind, options in (
        (DataMissing, {}),
        (DataUnknown, {"bias": right, "other": right}),
        (ScoreTable, {"bias": np.zeros((1, 2, 20), np.float32)}),
        (ScoreTable, {"bias": np.zeros((2, 20), np.int32)}),
        (ScoreIndex, {"bias": np.zeros((2, 19), np.float32)}),
        (ScoreOption, {"bias": right, "softcap": 2.0}),
        (ScoreOption, {"bias": right, "alibi_slopes": np.ones(2, np.float32)}),
    ):
        with pytest.raises(kind):
            attn(x, x, x, **options)
    squares = CAUSAL.compile(
        16, dtype="float32", target="cpu", score=mc.score(lambda s, q: s + mc.table("bias")[q * q])
    )
    with pytest.raises(ScoreIndex, match="0 to 361"):
        squares(x, x, x, bias=np.zeros(361, np.float32))
    with pytest.raises(NotAScore):
        CAUSAL.compile(16, target="cpu", score=lambda s: s)


def test_data_that_fall_out_of_a_mask_are_taken_as_without_a_formula():
    """A mask may declare inputs that its formula does not need."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, 20, 16)).astype(np.float32) for _ in range(3))
    for mask, data in (
        (mc.full() | mc.flags("keep"), {"keep": np.ones(20, bool)}),
        (mc.causal() | (mc.causal() & mc.documents("doc")), {"doc": np.zeros(20, np.int32)}),
        (mc.causal() & (mc.full() | mc.window(mc.param("far", 3))), {"far": 5}),
        (mc.causal() | mc.tree("walk") - mc.full(), {"walk": mc.parents(np.zeros(20, int) - 1)}),
    ):
        plain = mc.attention(q, k, v, mask, **data)
        score = mc.score(lambda s, q: s + 0 * mc.table("t")[q])
        close(mc.attention(q, k, v, mask, score=score, t=np.ones(20, np.float32), **data), plain)
        with pytest.raises(DataUnknown, match="named 'other'"):
            mc.attention(q, k, v, mask, score=score, t=np.ones(20, np.float32), other=1)


def test_pickles_and_copies():
    score, data = FORMULAS["relative table"](20, 20, 2, 1)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu", score=score)
    x = np.random.default_rng(6).normal(size=(1, 2, 20, 16)).astype(np.float32)
    again = pickle.loads(pickle.dumps(attn))
    assert (again(x, x, x, **data) == attn(x, x, x, **data)).all()


# ------------------------------------------------------------------ what kernels make use of


@pytest.mark.parametrize(
    ("function", "shifts"),
    [
        (lambda s, q, k, h: s - mc.table("m")[h] * abs(q - k), True),
        (lambda s, q, k: mc.table("t")[(q - k) // 3] + (s + 1), True),
        (lambda s, q, k: s + np.where(q - k > 3, 0.5, mc.table("t")[q - k]), True),
        (lambda s, q, k: s + mc.table("t")[q - k] * mc.table("u")[k], False),
        (lambda s, q, k: s + s * (q - k), False),
        (lambda s, q, k: (q - k) - s, False),
        (lambda s, q, k: s + mc.table("t")[q // 3 - k // 3], False),
    ],
)
def test_what_is_added_by_distance(function, shifts):
    assert (S.shift(mc.score(function).formula.logit) is not None) == shifts


@pytest.mark.parametrize(("function", "numbers"), [
    (lambda s: 30 * np.tanh(s / 30), (30, 1 / 30)), (lambda s: np.tanh(2 * s) * 3 / 4, (0.75, 2)),
    (lambda s: np.tanh(s), (1, 1)), (lambda s: s, None), (lambda s: np.tanh(s) + s, None),
    (lambda s: np.tanh(s + 1), None), (lambda s, q: np.tanh(s * mc.table("t")[q]), None),
    (lambda s: np.tanh(s) * np.tanh(s), None),
])  # fmt: skip
def test_caps(function, numbers):
    """Height and rate of a soft-cap."""
    found = S.cap(mc.score(function).formula.logit)
    values = found and [eval(S.to_score_text(each)) for each in found]
    assert values == (numbers and pytest.approx(list(numbers)))


@pytest.mark.parametrize(("function", "numbers"), [
    (lambda s: s, (None, 1, 0)), (lambda s: 3 - (1 - 2 * s / 3), (None, 2 / 3, 2)),
    (lambda s: 30 * np.tanh(s / 20) - 1, (30, 1.5, -1)), (lambda s: -3 * np.tanh(s), None),
    (lambda s: s * 0, None), (lambda s: s * s, None), (lambda s: np.tanh(s) + s, None),
    (lambda s: np.tanh(s + 1), None), (lambda s: s + mc.param("x", 1.0), None),
    (lambda s, q: s + q, None), (lambda s: np.tanh(s) * np.tanh(s), None),
])  # fmt: skip
def test_formulas_of_numbers(function, numbers):
    """Soft-cap, factor and what is added."""
    found = S.capped(mc.score(function).formula.logit)
    assert found == (numbers and (numbers[0], *map(pytest.approx, numbers[1:])))


def test_logarithms_of_subnormal_numbers():
    rates = np.array([1e-40, 2e-38], np.float32)
    rate = mc.table("rate")
    score = mc.score(lambda s, q, k: s + mc.scores.log(rate[k]))
    q, k = np.zeros((1, 1, 1, 8), np.float32), np.zeros((1, 1, 2, 8), np.float32)
    attn = mc.full().compile(8, dtype="float32", target="cpu", score=score)
    _, lse = attn(q, k, k, return_lse=True, rate=rates)
    np.testing.assert_allclose(lse, np.log(rates.astype(np.float64).sum()), rtol=1e-5)
