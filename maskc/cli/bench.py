"""maskc bench: time a mask's kernel against PyTorch and cuDNN, and check every result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.measuring import How, Row, measured, refuse_wrong
from maskc.cli.options import (
    LENGTH,
    LENGTH_TYPE,
    LENGTHS_TYPE,
    KernelOptions,
    data_options,
    json_option,
    kernel_options,
    mask_source,
)
from maskc.cli.output import FilePath, echo, machine_line, told, unwritable, write_json, write_table
from maskc.core.errors import UsageMistake

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.lab.sweep import Measurement


@click.command(short_help="Time the kernel against SDPA and FlexAttention; check outputs.")
@mask_source
@kernel_options
@click.option(
    "--n", type=LENGTHS_TYPE, metavar="N[,N...]",
    help="Queries: 4096, 1e6, 128k (k = 1024), 1M; several are a sweep: 1k,2k,4k.  "
    "[default: that of --data, else 4096]",
)  # fmt: skip
@click.option("--n-kv", type=LENGTH_TYPE, metavar="N", help="Keys.  [default: --n]")
@click.option(
    "--kv-heads", type=click.IntRange(1), metavar="H",
    help="Key/value heads.  [default: --heads]",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, metavar="B", help="Sequences."
)
@click.option(
    "--direction", type=click.Choice(("fwd", "bwd", "both")), default="both", show_default=True,
    help="Forward pass, backward pass, or both.",
)  # fmt: skip
@click.option(
    "--repeats", type=click.IntRange(1), default=20, show_default=True, metavar="N",
    help="Rounds of timing.",
)  # fmt: skip
@click.option(
    "--tiles", is_flag=True,
    help="Time the forward pass in every tile of the target, or in those with --tile or --stages; "
    "no other libraries.",
)  # fmt: skip
@click.option("--nvtx", is_flag=True, help="Mark the calls as ranges for Nsight, on a GPU.")
@click.option(
    "--plot", type=FilePath(dir_okay=False), metavar="FILE",
    help="Draw a sweep as PNG or SVG: time and memory over N.",
)  # fmt: skip
@click.option(
    "--suite", type=click.Choice(("seeds",)),
    help="Time a set of known masks instead of FILE, each with a goal; --n caps the lengths.",
)  # fmt: skip
@data_options(LENGTH)
@json_option
def bench(
    entries: list[MaskEntry], asked: KernelOptions, n: int | tuple[int, ...], n_kv: int | None,
    kv_heads: int | None, batch: int, direction: str, repeats: int, nvtx: bool, plot: str | None,
    suite: str | None, tiles: bool, arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Time the mask of FILE against attention of PyTorch and cuDNN, where they are installed.

    Every result is checked in the same run. With several lengths (a sweep), the output also shows
    how time grows compared with the number of pairs, and from which length the mask is faster.
    Exits with 3 if a result of maskc is wrong.
    """
    directions = ("fwd", "bwd") if direction == "both" else (direction,)
    how = How(asked, kv_heads, batch, directions, repeats, nvtx)
    if suite:
        from maskc.cli.seeds import run_seeds

        given = {
            "--tiles": tiles,
            "FILE or --expr": entries,
            "--plot": plot,
            "--data": arrays.given,
        }
        for name, value in given.items():
            if value:
                hint = "leave one of them out"
                raise UsageMistake(
                    f"--suite has its own masks, so {name} cannot be given", hint, at="--suite"
                )
        cap = click.get_current_context().params["n"]
        run_seeds(how, cap[-1] if cap else None, as_json)
        return
    lengths = n if isinstance(n, tuple) else (n,)
    if tiles:
        from maskc.cli.tiles import run_tiles

        run_tiles(entries, how, lengths, n_kv, arrays, plot, as_json)
        return
    if plot is not None:
        _check_plot(plot, lengths)
    with told() as progress:
        result = measured(entries, how, lengths, n_kv, arrays.of, progress)
    if plot is not None:
        _draw(result, plot)
    if as_json:
        write_json(result.plain())
    else:
        write(result, len(lengths) > 1)
    refuse_wrong(result.rows)


def _check_plot(plot: str, lengths: Sequence[int]) -> None:
    """Before anything is timed."""
    from maskc.viz.canvas import format_of, style

    format_of(plot)
    with style():
        pass  # matplotlib is there
    if len(lengths) < 2:
        hint = "give several lengths, such as --n 1k,2k,4k"
        raise UsageMistake("--plot draws a sweep and needs several lengths", hint, at="--plot")


def _draw(result: Measurement, plot: str) -> None:
    from pathlib import Path

    from maskc.viz.growth import growth_plot

    where = result.about.get("gpu") or result.about.get("cpu")
    try:
        growth_plot(result.rows, plot, title=f"{where}, every result checked")
    except OSError as error:
        raise unwritable(Path(plot), error) from None


# ------------------------------------------------------------------ as text


def write(result: Measurement, swept: bool) -> None:
    """The rows as a table, then what they say, notes and the machine."""
    lengths = ("N",) if swept else ()
    heads = (
        "mask", "direction", "implementation", *lengths, "ms", "tokens/s", "live TFLOP/s", "peak",
        "relative", "error", "",
    )  # fmt: skip
    mine = {
        (r["case"], r["direction"], r["n_q"]): r["ms"] for r in result.rows if r["impl"] == "maskc"
    }
    ordered = sorted(result.rows, key=_place(result.rows)) if swept else result.rows
    table = [tuple(_cells(row, mine, swept)) for row in ordered]
    write_table(heads, table, numbers=range(3, len(heads) - 1))
    rivals = result.about["rivals"]
    ran = {row["impl"] for row in result.rows}
    texts = rivals.items() if isinstance(rivals, dict) else ()
    lines = [f"{name}: {text}" for name, text in texts if name in ran]
    said = [line for growth in result.growths for line in growth.lines()]
    lines = [*said, *lines, *(f"note: {note}" for note in result.notes), machine_line(result.about)]
    echo("\n" + "\n".join(lines))


def _place(rows: Sequence[Row]) -> Callable[[Row], tuple[int, ...]]:
    """Masks, directions, lengths and implementations in the order in which they came."""
    names = {key: list(dict.fromkeys(row[key] for row in rows)) for key in _ORDER}
    return lambda row: tuple(names[key].index(row[key]) for key in _ORDER)


_ORDER = ("case", "direction", "n_q", "impl")


def _cells(row: Row, mine: dict[tuple[str, str, int], float], swept: bool) -> Iterator[str]:
    """A wrong result has no time that counts."""
    from maskc.viz.words import scaled

    yield from (row["case"], row["direction"], row["impl"])
    if swept:
        yield f"{row['n_q']:,}"
    if row["ok"]:
        timing = mine.get((row["case"], row["direction"], row["n_q"]))
        peak = row["peak_bytes"]
        yield from (
            f"{row['ms']:.4g}", _thousands(row["tokens_per_s"]), f"{row['live_tflops']:.4g}",
            "-" if peak is None else scaled(peak, "B"),
            f"{row['ms'] / timing:.3g}" if timing and row["impl"] != "maskc" else "",
        )  # fmt: skip
    else:
        yield from [""] * 5
    yield "-" if row["error"] is None else f"{row['error']:.1e}"
    yield "ok" if row["ok"] else "FAILED"


def _thousands(rate: float) -> str:
    """Four digits and a unit: 12.3k, 4.56M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if rate >= size:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"
