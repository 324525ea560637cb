"""Intervals and tests against SciPy, statsmodels and numbers from textbooks."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from maskc.core.errors import TooFewValues
from maskc.lab.evaluate import statistics as st
from tests.support.thorough import more


def test_wilson_of_a_textbook():
    """81 of 263: Newcombe (1998), table I, method 3."""
    found = st.wilson(81, 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    nothing = st.wilson(0, 20)
    assert (nothing.low, nothing.high) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_mcnemar_by_definition():
    assert st.mcnemar(0, 0) == 1
    assert st.mcnemar(1, 7) == pytest.approx(2 * sum(comb(8, i) for i in (0, 1)) / 2**8)
    assert st.mcnemar(5, 5) == 1


def test_student_of_a_textbook():
    """Student's sleep data (1908): mean 1.58, t = 4.0621, p = .00283, 0.70 to 2.46 hours."""
    pytest.importorskip("scipy")
    first = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    second = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    found = st.paired_interval(first, second)
    assert (found.value, found.low, found.high) == pytest.approx((1.58, 0.7001, 2.4599), abs=1e-4)
    assert st.paired_p(first, second) == pytest.approx(0.002833, abs=1e-6)
    assert st.equivalence(first, second, 3.0) < 0.05 < st.equivalence(first, second, 2.0)


@pytest.mark.parametrize("seed", [0, *map(more, (1, 2, 3))])
def test_the_same_as_scipy_and_statsmodels(seed: int):
    stats = pytest.importorskip("scipy.stats")
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    from statsmodels.stats.contingency_tables import mcnemar
    from statsmodels.stats.multitest import multipletests
    from statsmodels.stats.weightstats import ttost_paired

    rng = np.random.default_rng(seed)
    first, second = rng.normal(0.2, 1, 6), rng.normal(0, 1, 6)
    right = stats.ttest_rel(first, second)
    assert st.paired_p(first, second) == pytest.approx(right.pvalue)
    low, high = right.confidence_interval(0.95)
    found = st.paired_interval(first, second)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert st.equivalence(first, second, 1.5) == pytest.approx(
        ttost_paired(first, second, -1.5, 1.5)[0]
    )
    trials = int(rng.integers(1, 60))
    hits = int(rng.integers(0, trials + 1))
    share = st.wilson(hits, trials)
    assert (share.low, share.high) == pytest.approx(
        proportion.proportion_confint(hits, trials, method="wilson")
    )
    a, b = map(int, rng.integers(0, 12, 2))
    assert st.mcnemar(a, b) == pytest.approx(mcnemar([[3, a], [b, 4]], exact=True).pvalue)
    values = rng.uniform(size=7) ** 3
    assert st.holm(list(values)) == pytest.approx(multipletests(values, method="holm")[1])


def test_the_bootstrap_of_independent_values_is_the_usual_one():
    """Blocks of one value in one long document: SciPy's percentile interval, and the normal one."""
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).normal(0.1, 1, 400)
    found = st.bootstrap([values], resamples=20_000, block=1).interval()
    right = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(5)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((right.low, right.high), abs=5e-3)
    assert found.value == pytest.approx(values.mean())


def test_blocks_see_what_neighbours_share():
    """The mean of an AR(1) process with rho = .9 has (1 + rho) / (1 - rho) = 19 times the variance
    of independent values; blocks of 64 find most of it, single values find none."""
    rng = np.random.default_rng(0)
    noise, values = rng.normal(size=40_000), np.zeros(40_000)
    for i in range(1, len(values)):
        values[i] = 0.9 * values[i - 1] + noise[i]
    by_block, alone = (st.bootstrap([values], block=size).means.var() for size in (64, 1))
    assert 12 < by_block / alone < 22


def test_every_value_counts_as_often():
    """Documents whose first values differ, as losses under a mask do: no resample is biased."""
    values = np.zeros(512)
    values[:40] = 1.0
    found = st.bootstrap([values] * 6, resamples=20_000)
    assert found.means.mean() == pytest.approx(found.mean, rel=0.02)
    interval = found.interval()
    assert interval.low < interval.value < interval.high


def test_documents_are_drawn_too():
    """Two documents with different means: the interval reaches from one to the other."""
    low, high = np.zeros(640), np.ones(640)
    found = st.bootstrap([low, high]).interval()
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert st.bootstrap([low, high]).p_value > 0.2


def test_how_often_an_interval_holds_the_mean():
    """200 experiments of 12 documents each: between 85 % and 99 % of intervals hold the truth."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        documents = [rng.normal(rng.normal(0, 0.3), 1, 256) for _ in range(12)]
        found = st.bootstrap(documents, resamples=400, seed=int(rng.integers(1 << 30))).interval()
        held += found.low <= 0 <= found.high
    assert 170 <= held <= 198


def test_difference_power_and_equivalence():
    rng = np.random.default_rng(1)
    documents = [rng.normal(0, 0.1, 2048) for _ in range(8)]
    same = st.bootstrap(documents)
    assert same.p_value > 0.05
    assert same.within(0.02)
    assert not same.within(1e-4)
    assert same.detectable == pytest.approx(2.8016 * same.means.std(ddof=1), rel=1e-4)
    more = st.bootstrap([x + 2 * same.detectable for x in documents])
    assert more.p_value == pytest.approx(2 / 2001)
    assert not more.within(same.detectable)
    again = st.bootstrap(documents)
    assert np.array_equal(again.means, same.means)


def test_too_few():
    for wrong in (
        lambda: st.bootstrap([]), lambda: st.wilson(0, 0), lambda: st.paired_p([1.0], [2.0]),
    ):  # fmt: skip
        with pytest.raises(TooFewValues, match="MC735"):
            wrong()


@pytest.mark.parametrize("freedom", [1, 2, 5, 11, 40])
def test_student_tails_are_those_of_scipy(freedom: int):
    stats = pytest.importorskip("scipy.stats")
    for t in (0.0, 0.1, 1.0, -2.3, 5.0, 60.0, 4000.0):
        right = 2 * stats.t.sf(abs(t), freedom)
        assert st.student_tails(t, freedom) == pytest.approx(right, rel=1e-9), t


def test_far_from_zero_the_documents_say_how_far():
    """Resamples that never reach 0 end at their own resolution; documents tell more, never less."""
    rng = np.random.default_rng(0)
    documents = [rng.normal(0.2, 0.5, 4096) for _ in range(12)]
    interval = st.bootstrap(documents, resamples=500)
    t = interval.mean / interval.means.std(ddof=1)
    assert interval.p_value == st.student_tails(t, 11) < 1e-6
    near = st.bootstrap([rng.normal(size=200) for _ in range(4)], resamples=500)
    assert near.p_value > 2 / 501
    two = st.bootstrap(documents[:2], resamples=500)
    assert 1e-4 < two.p_value <= 2 / 501
