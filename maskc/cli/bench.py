"""maskc bench: a mask's kernel beside dense attention, masked SDPA and FlexAttention, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import Entry
from maskc.cli.options import (
    HEADS,
    LENGTH,
    Asked,
    data_options,
    json_option,
    length_options,
    mask_source,
    problem_options,
)
from maskc.cli.output import echo, told, write_json, write_table
from maskc.core.errors import CheckFailed

if TYPE_CHECKING:
    from maskc.cli.given import Arrays

Row = dict[str, Any]


@click.command(short_help="Time the kernel beside what torch has, checked.")
@mask_source
@problem_options
@length_options("that of --data, else 4096")
@click.option(
    "--kv-heads", type=click.IntRange(1), metavar="H",
    help="Key/value heads; as --heads, if not given.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, metavar="B")
@click.option(
    "--direction", type=click.Choice(("fwd", "bwd", "both")), default="both", show_default=True
)
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True)
@data_options(LENGTH)
@json_option
def bench(
    found: list[Entry], asked: Asked, n: int, n_kv: int, kv_heads: int | None, batch: int,
    direction: str, repeats: int, arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Time the mask of FILE, where torch is installed beside its attention; check every result.

    Exits with 3 where a result of maskc is wrong.
    """
    from maskc.verify.bench import RIVALS, bench_mask
    from maskc.verify.case import Case
    from maskc.verify.environment import environment
    from maskc.verify.tensors import device_of

    directions = ("fwd", "bwd") if direction == "both" else (direction,)
    rows: list[Row] = []
    notes: list[str] = []
    about: dict[str, object] = {}
    with told() as progress:
        for entry in found:
            heads = asked.heads_for(entry.mask) or HEADS
            problem = asked.problem(entry.mask)
            case = Case(
                entry.name, entry.mask, batch, heads, kv_heads or heads, n, n_kv, asked.head_dim,
                problem.dtype, arrays.of(entry, n, n_kv),
            )  # fmt: skip
            target = asked.chosen(problem)
            about = about or environment(device_of(target))
            timed, said = bench_mask(case, target, directions, repeats, progress)
            rows += [row | {"target": target.name} for row in timed]
            notes += said
    about |= {"rivals": RIVALS, "repeats": repeats}
    if as_json:
        write_json({"environment": about, "rows": rows, "notes": notes})
    else:
        _write(rows, notes, about)
    wrong = [row for row in rows if row["impl"] == "maskc" and not row["ok"]]
    if wrong:
        cases = ", ".join(f"{row['case']} {row['direction']}" for row in wrong)
        raise CheckFailed(f"{len(wrong)} results of maskc are wrong: {cases}")


def _write(rows: list[Row], notes: list[str], about: dict[str, object]) -> None:
    heads = ("mask", "direction", "implementation", "ms", "live TFLOP/s", "error", "")
    write_table(heads, [tuple(_cells(row)) for row in rows], numbers=(3, 4, 5))
    rivals = about.pop("rivals")
    lines = [f"{name}: {text}" for name, text in rivals.items() if any(
        row["impl"] == name for row in rows)] if isinstance(rivals, dict) else []  # fmt: skip
    known = ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    lines += [*(f"note: {note}" for note in notes), known]
    echo("\n" + "\n".join(lines))


def _cells(row: Row) -> Iterator[str]:
    """A wrong result has no time that counts."""
    yield from (row["case"], row["direction"], row["impl"])
    numbers: tuple[Callable[[], str], ...] = (
        lambda: f"{row['ms']:.4g}", lambda: f"{row['live_tflops']:.4g}",
    )  # fmt: skip
    yield from (number() if row["ok"] else "" for number in numbers)
    yield "-" if row["error"] is None else f"{row['error']:.1e}"
    yield "ok" if row["ok"] else "FAILED"
