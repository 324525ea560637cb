"""maskc bench --suite seeds: masks that a block-sparse kernel must win on, each met or missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from maskc.cli.entries import MaskEntry
from maskc.cli.measuring import How, measured, refuse_wrong
from maskc.cli.output import echo, machine_line, told, write_json, write_table
from maskc.lab.rivals import RIVALS
from maskc.lab.seeds import TITLES, Seed, judgements, seeds
from maskc.lab.sweep import Growth, Measurement


def run_seeds(how: How, cap: int | None, as_json: bool) -> None:
    """Measure all seeds, and print whether each reaches its goal.

    Args:
        cap: the longest length; what is asked for beyond it runs there and is not judged.

    Raises:
        CheckFailed: a result of maskc is wrong.
    """
    with told() as progress:
        results = [(seed, _measured(seed, how, cap, progress)) for seed in seeds()]
    judged = [line for seed, result in results for line in judgements(seed, result.rows, cap)]
    about = results[0][1].about
    rows = [row for _, result in results for row in result.rows]
    notes = list(dict.fromkeys(note for _, result in results for note in result.notes))
    growth = [growth for _, result in results for growth in result.growths]
    if as_json:
        plain = [asdict(one) for one in growth]
        write_json({
            "environment": about, "seeds": judged, "growth": plain, "rows": rows, "notes": notes,
        })  # fmt: skip
    else:
        _write(judged, growth, notes, about)
    refuse_wrong(rows)


def _measured(
    seed: Seed, how: How, cap: int | None, progress: Callable[[str], object]
) -> Measurement:
    entry = MaskEntry(seed.name, seed.make(), seed.name)
    asked = sorted({n if cap is None else min(n, cap) for n in seed.lengths})
    without = RIVALS.keys() - {"dense"}

    def data_at(entry: MaskEntry, n_q: int, n_kv: int, **_: object) -> dict[str, object]:
        return seed.data(n_kv)

    return measured([entry], how, asked, None, data_at, progress, without)


def _write(
    judged: Sequence[dict[str, Any]], growth: Sequence[Growth], notes: Sequence[str],
    about: dict[str, object],
) -> None:  # fmt: skip
    said = {True: "met", False: "MISSED", None: "not judged"}
    for table, title in TITLES.items():
        echo(f"{title}\n")
        cells = []
        for row in judged:
            if row["table"] != table:
                continue
            gain, n = row["speed_over_dense"], f"{row['measured_at']:,}"
            where = n if row["measured_at"] == row["n"] else f"{n}, not {row['n']:,}"
            cells.append((
                row["mask"], row["direction"], where, "-" if gain is None else f"{gain:.3g} x",
                f"{row['least']:g} x", said[row["met"]],
            ))  # fmt: skip
        write_table(
            ("mask", "direction", "N", "over dense", "at least", ""), cells, numbers=(2, 3, 4)
        )
        echo("")
    lines = [f"{g.case} {g.direction}: {crossover}" for g in growth for crossover in g.crossovers
             if crossover.rival == "dense"]  # fmt: skip
    echo("\n".join([*lines, *(f"note: {note}" for note in notes), machine_line(about)]))
