"""Intervals and tests; the test suite checks each against SciPy's or statsmodels' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core.errors import TooFewValues, not_imported
from maskc.lab.evaluate.results import Interval

BLOCK = 64
"""Tokens of a block of the bootstrap: losses of neighbours depend on each other."""
_POWER = 0.8


def distributions() -> Any:
    """scipy.stats.

    Raises:
        ExtraMissing: SciPy is not installed (MC507).
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise not_imported(error, "this statistic", "scipy", "evaluate") from error
    return stats


# ------------------------------------------------------------------ many dependent values


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The mean of values by token, and what it would be in other texts like these."""

    mean: float
    means: np.ndarray
    """float64 [resamples], in no order."""
    documents: int = 1

    def interval(self, level: float = 0.95) -> Interval:
        """Percentiles of the resampled means."""
        tail = (1 - level) / 2
        low, high = np.quantile(self.means, (tail, 1 - tail))
        return Interval(self.mean, float(low), float(high), level)

    @property
    def p_value(self) -> float:
        """Two-sided, of a mean of 0: how often the resampled mean lies beyond 0.

        Resamples count themselves, so that it never is 0. If none lies beyond, and there are
        several documents, Student's tail with documents - 1 degrees of freedom says how far away 0
        is, at most as much: 2000 resamples alone could tell nothing apart after a correction for
        many masks.
        """
        beyond = min(int((self.means <= 0).sum()), int((self.means >= 0).sum()))
        share = min(1.0, 2 * (beyond + 1) / (len(self.means) + 1))
        error = float(self.means.std(ddof=1))
        if beyond or self.documents < 2 or error == 0:
            return share
        return min(share, student_tails(self.mean / error, self.documents - 1))

    @property
    def detectable(self) -> float:
        """The smallest mean that a two-sided test at 5 % finds with a power of 80 %."""
        from statistics import NormalDist

        normal = NormalDist()
        factor = normal.inv_cdf(0.975) + normal.inv_cdf(_POWER)
        return factor * float(self.means.std(ddof=1))

    def within(self, margin: float) -> bool:
        """Whether the 90 % interval lies inside of +- margin: two one-sided tests at 5 %."""
        inner = self.interval(0.9)
        return -margin < inner.low and inner.high < margin


def bootstrap(
    documents: Sequence[np.ndarray], *, resamples: int = 2000, seed: int = 0, block: int = BLOCK
) -> Bootstrap:
    """Resample the mean of values that depend on their neighbours and on their document.

    A resample draws as many documents as there are, with replacement, and in each of them blocks of
    `block` neighbouring values until it is full. Blocks begin anywhere and wrap around to the
    beginning of the document (Politis and Romano 1992). Blocks that stop at its ends (Künsch 1989)
    draw the first values too seldom, and those are where masks lose nothing. A document that is no
    longer than a block stays as it is.

    Args:
        documents: float [tokens of the document] each; no document is empty.
        resamples: how many means are drawn.
        seed: of the draw; results depend on it alone.

    Raises:
        TooFewValues: there is no document (MC735).
    """
    if not documents:
        raise TooFewValues("a bootstrap", "one document", "none")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(documents), size=(resamples, len(documents)))
    sums, sizes = np.zeros(resamples), np.zeros(resamples)
    for index, values in enumerate(documents):
        times = (drawn == index).sum(axis=1)
        total = int(times.sum())
        block_sums, size = _blocks(np.asarray(values, dtype=np.float64), total, block, rng)
        owner = np.repeat(np.arange(resamples), times)
        np.add.at(sums, owner, block_sums)
        np.add.at(sizes, owner, float(size))
    everything = np.concatenate([np.asarray(x, dtype=np.float64) for x in documents])
    return Bootstrap(float(everything.mean()), sums / sizes, len(documents))


def student_tails(t: float, freedom: int) -> float:
    """Return the probability that Student's t is further from 0 than this.

    The series of the incomplete beta function, which converges fast where t is not small.
    """
    from math import exp, lgamma, log, sqrt

    if t == 0:
        return 1.0
    a, x = freedom / 2, freedom / (freedom + t * t)
    term = total = 1.0
    count = 0
    while term > 1e-16 * total:
        term *= (a + 0.5 + count) / (a + 1 + count) * x
        total += term
        count += 1
    front = lgamma(a + 0.5) - lgamma(a) - lgamma(0.5) + a * log(x) - log(a)
    return min(1.0, exp(front) * sqrt(1 - x) * total)


def _blocks(
    values: np.ndarray, times: int, block: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """(sums of `times` resamples of one document, how many values each has)."""
    n = len(values)
    if n <= block:
        return np.full(times, values.sum()), n
    count = -(-n // block)
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block - 1]]))])
    starts = rng.integers(n, size=(times, count))
    sums: np.ndarray = (upto[block:] - upto[:-block])[starts].sum(axis=1)
    return sums, count * block


# ------------------------------------------------------------------ many comparisons


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """p-values after Holm's correction (1979), in the order in which they came."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return tuple(corrected)


# ------------------------------------------------------------------ counts


def wilson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """The share of successes with Wilson's interval (1927).

    Raises:
        TooFewValues: there is no trial (MC735).
    """
    from math import sqrt
    from statistics import NormalDist

    if trials < 1:
        raise TooFewValues("a share", "one trial", str(trials))
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(share * (1 - share) / trials + (z / trials / 2) ** 2)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half), level)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value that both are right equally often, from where they differ."""
    from math import comb

    differ = only_first + only_second
    tail = sum(comb(differ, i) for i in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * tail / 2**differ))


# ------------------------------------------------------------------ few independent values


def paired_interval(
    first: Sequence[float], second: Sequence[float], level: float = 0.95
) -> Interval:
    """The mean of first - second with Student's interval.

    Raises:
        TooFewValues: there are fewer than two pairs (MC735).
        ExtraMissing: SciPy is not installed (MC507).
    """
    mean, error, freedom = _paired(first, second)
    half = float(distributions().t.ppf(0.5 + level / 2, freedom)) * error
    return Interval(mean, mean - half, mean + half, level)


def paired_p(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of the paired t-test; errors as `paired_interval`."""
    mean, error, freedom = _paired(first, second)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * distributions().t.sf(abs(mean) / error, freedom))


def equivalence(first: Sequence[float], second: Sequence[float], margin: float) -> float:
    """The p-value of |mean(first - second)| >= margin: two one-sided paired t-tests.

    A small value says that the two are the same up to the margin. A large one says nothing.

    Raises:
        TooFewValues: there are fewer than two pairs (MC735).
        ExtraMissing: SciPy is not installed (MC507).
    """
    mean, error, freedom = _paired(first, second)
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    student = distributions().t
    above = student.sf((mean + margin) / error, freedom)
    below = student.cdf((mean - margin) / error, freedom)
    return float(max(above, below))


def _paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, int]:
    """(mean of the differences, its standard error, degrees of freedom)."""
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = len(differences)
    if count < 2:
        raise TooFewValues("a paired test", "two pairs", str(count))
    return float(differences.mean()), float(differences.std(ddof=1) / count**0.5), count - 1
