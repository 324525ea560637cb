"""Coefficients of the cost model from measured times, and the file that keeps them.

The model says that a pass with `rows` tile rows, `tiles` tiles, `masked` tiles with dead pairs,
`lone` rows with one tile and `queries` tile rows of dq takes

    launches * launch + (row * rows + tile * tiles + more * masked + alone * lone + query * queries)
        / (multiprocessors * clock).

They are found by least squares of relative errors, none of them negative. What a launch takes is
the card's and not a source's: the same in all fits, where the sum of all squares is least.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import one_run
from maskc.core.coefficients import OF_CARD
from maskc.core.cost import Card, Cost
from maskc.core.errors import UsageMistake

GHZ = 1.7
"""The clock in which cycles are counted, whatever a card's own does: only products with times
mean anything."""
_LAUNCHES = tuple(i / 10 for i in range(500))
"""Microseconds among which those of a launch are looked for."""
_FEWEST = 5
"""Times from which coefficients of a mode are found."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time."""

    source: str
    """`large`, `small` or `backward`."""
    head_dim: int
    mode: str
    rows: int
    tiles: int
    masked: int
    launches: int
    ms: float
    lone: int = 0
    queries: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of one mode of a source."""

    source: str
    head_dim: int
    cost: Cost
    launch_us: float
    worst: float
    """The greatest relative error of a time."""
    squares: float = 0.0
    """The sum of the squares of all."""


def samples_of(rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The good times among a report's rows."""
    return [Sample(**row["work"], ms=row["ms"]) for row in rows
            if row.get("work") and row["ok"] and row["ms"]]  # fmt: skip


def fits(samples: Sequence[Sample], multiprocessors: int) -> list[Fit]:
    """The fits of every mode that was measured on enough masks, in the order of the samples.

    Raises:
        UsageMistake: there is none.
    """
    groups: dict[tuple[str, int, str], list[Sample]] = {}
    for each in samples:
        groups.setdefault((each.source, each.head_dim, each.mode), []).append(each)
    enough = [own for own in groups.values() if len(own) >= _FEWEST]
    if not enough:
        hint = "run all of the suite `calibration`, without --cases"
        raise UsageMistake(f"fewer than {_FEWEST} times of each source and mode", hint)

    def squares(launch_us: float) -> float:
        return sum(_fit(own, multiprocessors, launch_us).squares for own in enough)

    launch = min(_LAUNCHES, key=squares)
    return [_fit(own, multiprocessors, launch) for own in enough]


def _fit(samples: Sequence[Sample], multiprocessors: int, launch_us: float) -> Fit:
    """The coefficients of one mode, beside what a launch costs."""
    per_cycle = 1 / (multiprocessors * GHZ * 1e6)
    ms = np.array([each.ms for each in samples])
    counts = [[each.rows, each.tiles, each.masked, each.lone, each.queries] for each in samples]
    launches = np.array([each.launches / 1e3 for each in samples])
    shares = np.column_stack([launches, per_cycle * np.array(counts, float)]) / ms[:, None]
    found = [round(x) for x in non_negative(shares[:, 1:], 1 - launch_us * shares[:, 0])]
    errors = shares @ np.array([launch_us, *found]) - 1
    first, cost = samples[0], Cost(samples[0].mode, *found)
    worst, squares = float(np.abs(errors).max()), float(errors @ errors)
    return Fit(first.source, first.head_dim, cost, launch_us, worst, squares)


def non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Find float64 [columns], x >= 0, that brings matrix @ x nearest to target.

    Args:
        matrix: float64 [rows, columns]; columns are few, so all subsets of them are tried.
        target: float64 [rows].
    """
    size, columns = matrix.shape[1], np.flatnonzero(matrix.any(axis=0))
    best, least = np.zeros(size), float(np.inf)
    for chosen in chain.from_iterable(combinations(columns, n) for n in range(1, len(columns) + 1)):
        found = np.zeros(size)
        found[list(chosen)] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
        error = float(((matrix @ found - target) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = found, error
    return best


def card(
    name: str, multiprocessors: int, found: Sequence[Fit], bytes_per_cycle: float = 0.0
) -> Card:
    """The card that was measured."""
    return Card(name, multiprocessors, GHZ, found[0].launch_us, bytes_per_cycle)


# ------------------------------------------------------------------ the file


def calibrate(report: Mapping[str, Any], path: str) -> str:
    """Fit what a report of the suite `calibration` measured, and write it to a file.

    Args:
        report: or a file of several, of which the latest one counts.
        path: a cost.toml, changed in place; the package's own is copied where there is none.

    Returns:
        A line per fit, for people.

    Raises:
        UsageMistake: it measured something else, or too little.
    """
    about = report["environment"]
    if runs := about.get("runs"):
        report = one_run(report, max(map(int, runs))) or report
        about = report["environment"]
    counts = {
        (case["multiprocessors"], case.get("bytes_per_cycle", 0.0))
        for case in about.get("cases", {}).values() if "multiprocessors" in case
    }  # fmt: skip
    if about.get("suite") != "calibration" or len(counts) != 1:
        raise UsageMistake("these are no results of the suite `calibration`", "run it first")
    ((multiprocessors, per_cycle),) = counts
    found = fits(samples_of(report["rows"]), multiprocessors)
    measured = card(about["gpu"], multiprocessors, found, per_cycle)
    file = Path(path)
    before = file if file.is_file() else files("maskc.core") / "cost.toml"
    file.write_text(with_fits(before.read_text("utf-8"), about["target"], found, measured))
    return "".join(f"{line_of(fit)}\n" for fit in found)


def line_of(fit: Fit) -> str:
    """A fit in words."""
    cost = fit.cost
    return (
        f"{fit.source} {fit.head_dim} {cost.mode}: row {cost.row}, tile {cost.tile}, masked "
        f"{cost.masked} cycles, launch {fit.launch_us:.1f} us; right to {fit.worst:.0%}"
    )


BY_HAND = ("tiny", "tiny_backward")
"""Sources whose numbers are never written: what they take is memory's time, which the others are
not fitted to, so that a fit would say nothing about which of them is faster."""


def with_fits(text: str, target: str, found: Sequence[Fit], measured: Card) -> str:
    """cost.toml with these coefficients in place of older ones; everything else stays. A card other
    than the first has tables of its own."""
    first = tomllib.loads(text).get(target, {}).get("card", {}).get("name", measured.name)
    prefix = target if measured.name == first else f'"{target} {OF_CARD} {measured.name}"'
    wanted: dict[str, dict[str, str]] = {
        "card": {
            "name": f'"{measured.name}"', "multiprocessors": str(measured.multiprocessors),
            "ghz": str(measured.ghz), "launch_us": f"{measured.launch_us:g}",
            "bytes_per_cycle": f"{measured.bytes_per_cycle:.1f}",
        },
    }  # fmt: skip
    for fit in found:
        if fit.source in BY_HAND:
            continue
        cost = fit.cost
        entry = (
            f"{{ row = {cost.row}, tile = {cost.tile}, masked = {cost.masked}, lone = {cost.lone}, "
            f"query = {cost.query} }}"
        )
        wanted.setdefault(fit.source, {})[f"{fit.head_dim}.{cost.mode}"] = entry
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            _finish(lines, wanted.pop(section, {}))
            header = re.match(rf"\[{re.escape(prefix)}\.(\w+)\]", line)
            section = header[1] if header else ""
        key, equals, _ = line.partition(" = ")
        known = wanted.get(section, {})
        lines.append(f"{key} = {known.pop(key)}" if equals and key in known else line)
    _finish(lines, wanted.pop(section, {}))
    for name, entries in wanted.items():
        lines += ["", f"[{prefix}.{name}]", *(f"{key} = {value}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def _finish(lines: list[str], entries: Mapping[str, str]) -> None:
    """Add what a section did not have, before the empty lines behind it."""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    lines[end:end] = [f"{key} = {value}" for key, value in entries.items()]
