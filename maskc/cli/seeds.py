"""maskc bench --suite seeds: masks that a block-sparse kernel must win on, each met or missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from maskc.cli.bench import How, Measured, Row, measured, refuse_wrong
from maskc.cli.entries import Entry
from maskc.cli.output import echo, told, write_json, write_table

if TYPE_CHECKING:
    import numpy as np

    from maskc.dsl.mask import Mask
    from maskc.verify.sweep import Growth

_BLOCK = 128


@dataclass(frozen=True)
class Seed:
    """A mask, the lengths at which it is timed, and what it must reach there."""

    table: str
    name: str
    make: Callable[[], Mask]
    lengths: tuple[int, ...]
    least: float
    """The least speed over dense attention at each of the lengths."""
    data: Callable[[int], dict[str, object]] = lambda n: {}
    """The arrays that it reads at a length."""


def seeds() -> tuple[Seed, ...]:
    """All of them, in tables."""
    import maskc as mc

    def block_diagonal() -> Mask:
        return mc.block_diagonal(64)

    def streaming() -> Mask:
        return mc.causal() & (mc.sinks(16) | mc.window.hf(64))

    long, short = (128 << 10,), (128, 256, 512, 1024, 2048, 4096)
    made: list[Seed] = [
        Seed("long", "window", lambda: mc.causal() & mc.window.hf(1024), long, 5.0),
        Seed("long", "bigbird", lambda: mc.patterns.bigbird_itc(), long, 5.0),
        Seed("long", "dilated", lambda: mc.dilated(511, stride=4), long, 5.0),
        Seed("short", "block_diagonal", block_diagonal, short, 1.0),
        Seed("short", "streaming", streaming, short, 1.0),
    ]
    for share, n, least in ((0.5, 4096, 1.5), (0.25, 8192, 2.5), (0.1, 16384, 5.0)):
        made.append(Seed(
            "shares", f"{share:.0%} live", lambda: mc.block_table("table", _BLOCK), (n,), least,
            partial(_table, share),
        ))  # fmt: skip
    return tuple(made)


def _table(share: float, n: int) -> dict[str, object]:
    return {"table": table_of(n, share)}


def table_of(n: int, share: float) -> np.ndarray:
    """bool [blocks, blocks]: each block with probability `share`, and the diagonal; always the
    same."""
    import numpy as np

    blocks = -(-n // _BLOCK)
    drawn = np.random.default_rng(blocks).random((blocks, blocks)) < share
    return drawn | np.eye(blocks, dtype=bool)


_TITLES = {
    "long": "Speed over dense attention at 128k tokens: at least 5 x",
    "short": "Short sequences, 128 to 4,096 tokens: at least as fast as dense attention",
    "shares": "Random blocks of 128, by the share that is live: 1.5 x, 2.5 x and 5 x over dense",
}


def run_seeds(how: How, cap: int | None, as_json: bool) -> None:
    """Measure all of them and say of each whether it is met.

    Args:
        cap: the longest length; what is asked for beyond it runs there and is not judged.

    Raises:
        CheckFailed: a result of maskc is wrong.
    """
    with told() as progress:
        results = [(seed, _measured(seed, how, cap, progress)) for seed in seeds()]
    judged = [line for seed, result in results for line in judgements(seed, result, cap)]
    about = results[0][1].about
    rows = [row for _, result in results for row in result.rows]
    notes = list(dict.fromkeys(note for _, result in results for note in result.notes))
    growth = [each for _, result in results for each in result.growths]
    if as_json:
        plain = [asdict(each) for each in growth]
        write_json({
            "environment": about, "seeds": judged, "growth": plain, "rows": rows, "notes": notes,
        })  # fmt: skip
    else:
        _write(judged, growth, notes, about)
    refuse_wrong(rows)


def _measured(seed: Seed, how: How, cap: int | None, progress: Callable[[str], object]) -> Measured:
    from maskc.verify.rivals import RIVALS

    entry = Entry(seed.name, seed.make(), seed.name)
    asked = sorted({n if cap is None else min(n, cap) for n in seed.lengths})
    without = RIVALS.keys() - {"dense"}

    def data_at(entry: Entry, n_q: int, n_kv: int, **_: object) -> dict[str, object]:
        return seed.data(n_kv)

    return measured([entry], how, asked, None, data_at, progress, without)


def judgements(seed: Seed, result: Measured, cap: int | None) -> list[dict[str, Any]]:
    """A row for each length and direction: the speed over dense attention, and whether it is
    met; None where it was not measured at that length."""
    found = []
    for direction in dict.fromkeys(row["direction"] for row in result.rows):
        for n in seed.lengths:
            at = n if cap is None else min(n, cap)
            gain = _gain(result.rows, direction, at)
            known = gain is not None and at == n
            found.append({
                "table": seed.table, "mask": seed.name, "direction": direction, "n": n,
                "measured_at": at, "speed_over_dense": gain, "least": seed.least,
                "met": gain >= seed.least if gain is not None and known else None,
            })  # fmt: skip
    return list({(e["direction"], e["measured_at"]): e for e in reversed(found)}.values())[::-1]


def _gain(rows: Sequence[Row], direction: str, n: int) -> float | None:
    from maskc.verify.bench import short

    at = {
        row["impl"]: row["ms"]
        for row in rows if row["n_q"] == n and row["direction"] == direction and row["ok"]
    }  # fmt: skip
    return short(at["dense"] / at["maskc"]) if {"dense", "maskc"} <= set(at) else None


def _write(
    judged: Sequence[dict[str, Any]], growth: Sequence[Growth], notes: Sequence[str],
    about: dict[str, object],
) -> None:  # fmt: skip
    said = {True: "met", False: "MISSED", None: "not judged"}
    for table, title in _TITLES.items():
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
    lines = [f"{g.case} {g.direction}: {each}" for g in growth for each in g.crossovers
             if each.rival == "dense"]  # fmt: skip
    known = (f"{k} {v}" for k, v in about.items() if k != "rivals" and v is not None)
    echo("\n".join([*lines, *(f"note: {note}" for note in notes), ", ".join(known)]))
