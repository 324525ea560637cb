"""maskc bench --tiles: a mask's forward pass in all tiles that its target has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from maskc.cli.output import echo, machine_line, told, write_json, write_table
from maskc.core.errors import CheckFailed, UsageMistake

if TYPE_CHECKING:
    from maskc.cli.entries import MaskEntry
    from maskc.cli.given import Arrays
    from maskc.cli.measuring import How, Row


def run_tiles(
    entries: Sequence[MaskEntry], how: How, lengths: Sequence[int], n_kv: int | None,
    arrays: Arrays, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Time, check and print all tiles of all masks at one length.

    Raises:
        UsageMistake: several lengths, or a picture of a sweep.
        CheckFailed: a result is wrong.
    """
    from maskc.lab.bench import bench_tiles
    from maskc.lab.environment import environment
    from maskc.verify.case_tensors import device_of

    if len(lengths) > 1 or plot is not None:
        hint = "give one length, and leave --plot out"
        raise UsageMistake("--tiles compares tiles at one length", hint, at="--tiles")
    (n,) = lengths
    keys = n if n_kv is None else n_kv
    rows: list[Row] = []
    about: dict[str, object] = {}
    with told() as progress:
        for entry in entries:
            target = how.asked.target_for(entry.mask)
            about = about or environment(device_of(target))
            case = how.case(entry, n, keys, arrays.of(entry, n, keys))
            timed = bench_tiles(case, target, how.repeats, progress)
            rows += [row | {"target": target.name, "n_q": n, "n_kv": keys} for row in timed]
    if as_json:
        write_json({"environment": about | {"repeats": how.repeats}, "rows": rows})
    else:
        _write(rows, about)
    wrong = [f"{row['case']} {row['arguments']}" for row in rows if not row["ok"]]
    if wrong:
        raise CheckFailed(f"{len(wrong)} tiles are wrong: {', '.join(wrong)}")


def _write(rows: Sequence[Row], about: dict[str, object]) -> None:
    """A table, the fastest first, and what to write for it."""
    heads = ("mask", "queries x keys", "stages", "ms", "relative", "error", "")
    write_table(heads, [tuple(_cells(row)) for row in rows], numbers=range(3, 6))
    echo("\n" + "\n".join([*_fastest(rows), machine_line(about)]))


def _cells(row: Row) -> Iterator[str]:
    """A wrong result has no time that counts."""
    yield row["case"]
    yield " x ".join(map(str, row["tile"])) + (", as planned" if row["planned"] else "")
    yield "" if row["stages"] is None else str(row["stages"])
    yield from (f"{row['ms']:.4g}", f"{row['relative']:.3g}") if row["ok"] else ("", "")
    yield f"{row['error']:.1e}"
    yield "ok" if row["ok"] else "FAILED"


def _fastest(rows: Sequence[Row]) -> Iterator[str]:
    """The fastest right tile of every mask."""
    for case in dict.fromkeys(row["case"] for row in rows):
        best = next((row for row in rows if row["case"] == case and row["ok"]), None)
        if best is None:
            continue
        if best["planned"]:
            yield f"{case}: no tile is faster than what the planner chooses"
        else:
            yield f"{case}: {best['arguments']} takes {best['relative']:.3g} of the planner's time"
