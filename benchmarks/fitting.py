"""The file of coefficients, cost.toml, written from fits of measured times."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from maskc.core.coefficients import OF_CARD
from maskc.core.cost import Card
from maskc.lab.fitting import GHZ, Fit, Sample


def samples_of(rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The good times among a report's rows."""
    return [Sample(**row["work"], ms=row["ms"]) for row in rows
            if row.get("work") and row["ok"] and row["ms"]]  # fmt: skip


def card(
    name: str, multiprocessors: int, found: Sequence[Fit], bytes_per_cycle: float = 0.0
) -> Card:
    """The card that was measured."""
    return Card(name, multiprocessors, GHZ, found[0].launch_us, bytes_per_cycle)


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
            f"query = {cost.query}"
        )
        key = f"{fit.head_dim}.{cost.mode}"
        test = _test_of(text, prefix, fit.source, key) if fit.test is None else fit.test
        entry += f", test = {test} }}" if test is not None else " }"
        wanted.setdefault(fit.source, {})[key] = entry
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


def _test_of(text: str, prefix: str, source: str, key: str) -> int | None:
    """The earlier `test` of a mode, where no time of the fit tells it."""
    section = text.partition(f"[{prefix}.{source}]")[2].partition("\n[")[0]
    line = re.search(rf"^{re.escape(key)} = .*\btest = (\d+)", section, re.M)
    return None if line is None else int(line[1])


def _finish(lines: list[str], entries: Mapping[str, str]) -> None:
    """Add what a section did not have, before the empty lines behind it."""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    lines[end:end] = [f"{key} = {value}" for key, value in entries.items()]
