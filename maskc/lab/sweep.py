"""Time one mask over a range of lengths: growth of time and memory, and crossovers with rivals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import exp, log
from statistics import linear_regression
from typing import Any

from maskc.core.target import Target
from maskc.lab.bench import Row, bench_mask, short
from maskc.verify.case import Case

_SLOW = 4000.0
"""Milliseconds of a call after which a rival is left out of longer lengths."""


def sweep(
    case_at: Callable[[int], Case], lengths: Sequence[int], target: Target,
    directions: tuple[str, ...] = ("fwd", "bwd"), repeats: int = 20,
    progress: Callable[[str], object] = lambda text: None, *, nvtx: bool = False,
    without: Collection[str] = (),
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """Time and check a mask at each length, see `bench_mask`.

    Args:
        case_at: the case of one length.
        lengths: ascending.
        without: rivals to leave out.

    Returns:
        (rows of all lengths, notes that name the length). A rival with a call of more than four
        seconds is left out of longer lengths, and a note says so.
    """
    rows: list[Row] = []
    notes: list[str] = []
    slow: dict[str, int] = {}
    for n in lengths:

        def told(text: str, at: int = n) -> None:
            progress(f"N = {at:,}: {text}")

        table, said = bench_mask(
            case_at(n), target, directions, repeats, told,
            nvtx=nvtx, without=(*without, *slow),
        )  # fmt: skip
        rows += table
        notes += [f"N = {n:,}: {note}" for note in said]
        for row in table:
            if row["impl"] != "maskc" and row["ms"] > _SLOW and row["impl"] not in slow:
                slow[row["impl"]] = n
    notes += [
        f"{name}: left out beyond N = {n:,}, where a call took more than {_SLOW / 1e3:g} s"
        for name, n in slow.items() if n < lengths[-1]
    ]  # fmt: skip
    return rows, _joined(notes)


def _joined(notes: Iterable[str]) -> list[str]:
    """Notes that differ in the length alone become one."""
    places: dict[str, list[str]] = {}
    for note in notes:
        where, colon, text = note.partition(": ")
        at, what = (where, text) if colon and where.startswith("N = ") else ("", note)
        places.setdefault(what, []).append(at.removeprefix("N = "))
    return [f"N = {', '.join(at)}: {what}" if all(at) else what for what, at in places.items()]


# ------------------------------------------------------------------ what follows from the rows


@dataclass(frozen=True)
class Crossover:
    """The measured length from which a mask is faster than a rival."""

    rival: str
    below: int | None
    """The longest length at which it is not faster; None if it is at all of them."""
    above: int | None
    """The next one, from which on it is; None if it is not at the longest."""
    at: int | None
    """The length where the times would be equal, by interpolation of their logarithms."""

    def __str__(self) -> str:
        if self.above is None:
            return f"not faster than {self.rival} up to N = {self.below:,}"
        if self.below is None or self.at is None:
            return f"faster than {self.rival} at all lengths, from N = {self.above:,} on"
        return (
            f"faster than {self.rival} from about N = {self.at:,} on, between {self.below:,} and "
            f"{self.above:,}"
        )


@dataclass(frozen=True)
class Growth:
    """A sweep of one mask and one direction, in numbers."""

    case: str
    direction: str
    lengths: tuple[int, ...]
    exponents: dict[str, float]
    """The b of ms = a * N ** b of each implementation, by least squares of logarithms."""
    pairs_exponent: float | None
    """The exponent of the exact count of live pairs: the exponent of time if only pairs took
    time."""
    order: str
    """The order of the count's closed form, as O(N*w); empty if there is none."""
    degree: int | None
    """The power of N in it."""
    crossovers: tuple[Crossover, ...]
    speedups: dict[str, dict[int, float]] = field(default_factory=dict)
    """Speedups over each rival, by rival and length."""

    def lines(self) -> Iterator[str]:
        """The sweep as sentences."""
        head = f"{self.case} {self.direction}"
        fitted = {name: f"N^{value:.2f}" for name, value in self.exponents.items()}
        if mine := fitted.pop("maskc", None):
            pairs = f"pairs N^{self.pairs_exponent:.2f}" if self.pairs_exponent is not None else ""
            order = f"{self.order} for long sequences" if self.order else "no closed form"
            predicted = ", ".join(filter(None, (pairs, order)))
            others = "; ".join(f"{name} {value}" for name, value in fitted.items())
            span = f"{self.lengths[0]:,} to {self.lengths[-1]:,}"
            yield f"{head}: time grows as {mine} from {span}, predicted {predicted}; {others}"
        for crossover in self.crossovers:
            yield f"{head}: {crossover}"


@dataclass(frozen=True)
class Measurement:
    """Measurements of some masks."""

    rows: list[Row]
    notes: list[str]
    growths: list[Growth]
    """The exponents of sweeps."""
    about: dict[str, object]
    """The machine, and the rivals."""
    command: str = ""
    """The command that repeats it; empty if nothing was timed."""

    def plain(self) -> dict[str, Any]:
        """The value as JSON has it."""
        fields: dict[str, Any] = {"environment": self.about, "rows": self.rows, "notes": self.notes}
        if self.growths:
            fields["growth"] = [asdict(growth) for growth in self.growths]
        return fields


def growths(rows: Sequence[Row], orders: dict[str, tuple[str, int] | None]) -> list[Growth]:
    """Return the growth of each mask and direction in a sweep; wrong results are left out.

    Args:
        rows: of `sweep`, of several masks perhaps.
        orders: by case what `driver.order` says of its mask.
    """
    growths_of = []
    for case, direction in dict.fromkeys((row["case"], row["direction"]) for row in rows):
        timed = [r for r in rows if (r["case"], r["direction"]) == (case, direction) and r["ok"]]
        times: dict[str, dict[int, float]] = {}
        for row in timed:
            times.setdefault(row["impl"], {})[row["n_q"]] = row["ms"]
        pairs = {row["n_q"]: float(row["pairs"]) for row in timed if row["impl"] == "maskc"}
        mine = times.get("maskc", {})
        rivals = [name for name in times if name != "maskc" and times[name].keys() & mine.keys()]
        order = orders.get(case)
        growths_of.append(Growth(
            case, direction, tuple(sorted(mine)),
            {name: b for name, at in times.items() if (b := exponent(at)) is not None},
            exponent(pairs), order[0] if order else "", order[1] if order else None,
            tuple(crossover(name, mine, times[name]) for name in rivals),
            {
                name: {n: short(ms / mine[n]) for n, ms in times[name].items() if n in mine}
                for name in rivals
            },
        ))  # fmt: skip
    return growths_of


def exponent(values: dict[int, float]) -> float | None:
    """The slope of log value over log length by least squares; None with less than two lengths."""
    points = {log(n): log(value) for n, value in values.items() if n > 0 and value > 0}
    if len(points) < 2:
        return None
    return float(f"{linear_regression(list(points), list(points.values())).slope:.4g}")


def crossover(rival: str, mine: dict[int, float], others: dict[int, float]) -> Crossover:
    """Find where a mask begins to be faster, and stays so to the longest length.

    Args:
        mine, others: milliseconds by length, with at least one length in both.
    """
    gain = {n: log(others[n] / mine[n]) for n in sorted(mine.keys() & others.keys())}
    lengths = list(gain)
    losing = [n for n in lengths if gain[n] <= 0]
    if not losing:
        return Crossover(rival, None, lengths[0], None)
    if losing[-1] == lengths[-1]:
        return Crossover(rival, lengths[-1], None, None)
    below, above = next((a, b) for a, b in pairwise(lengths) if a == losing[-1])
    part = -gain[below] / (gain[above] - gain[below])
    at = exp(log(below) + part * (log(above) - log(below)))
    return Crossover(rival, below, above, round(at))
