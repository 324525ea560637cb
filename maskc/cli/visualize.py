"""maskc visualize: the mask as a picture, in the terminal or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.options import (
    KernelOptions,
    Parsed,
    data_options,
    json_option,
    length_options,
    mask_source,
    problem_options,
)
from maskc.cli.output import (
    columns,
    echo,
    now,
    one_by_one,
    unwritable,
    wants_color,
    write_json,
)
from maskc.core.errors import MaskcError, UsageMistake

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.viz.picture import KernelTiles, Picture

_JSON_CELLS = 64
"""Cells across the raster in JSON, at most."""
_RANKED = ("scores", "index_q", "index_k", "index_w")
"""Inputs of selections; pictures make up scores instead."""
_BESIDE = 48
"""Columns of a terminal that axes and numbers take."""


def _span(text: str) -> tuple[int, int, int, int]:
    """Q0:Q1,K0:K1; one range means both."""
    try:
        ends = [tuple(map(int, part.split(":"))) for part in text.split(",")]
        ((q0, q1), (k0, k1)) = ends * 2 if len(ends) == 1 else ends
    except ValueError:
        raise ValueError(f"{text!r} is not Q0:Q1,K0:K1, for example 0:256,768:1024") from None
    if min(q0, k0) < 0 or q0 > q1 or k0 > k1:
        raise ValueError(f"{text!r} does not ascend from 0 on")
    return q0, q1, k0, k1


def _tile(text: str) -> tuple[int, int]:
    """Q,K; one number means both."""
    try:
        sides = [int(part) for part in text.split(",")]
        first, second = sides * 2 if len(sides) == 1 else sides
    except ValueError:
        raise ValueError(f"{text!r} is not Q,K, for example 128,64") from None
    return first, second


@click.command(short_help="Draw the mask in the terminal, or as PNG or SVG.")
@mask_source
@click.option("-o", "--output", metavar="PICTURE", help="Write a *.png or *.svg file.")
@length_options("where the mask has its shape")
@click.option(
    "--range", "span", type=Parsed("range", _span), metavar="Q0:Q1,K0:K1",
    help="Draw this part only; up to 256 x 256 tokens its elements.",
)  # fmt: skip
@click.option(
    "--tile",
    type=Parsed("tile", _tile),
    metavar="Q,K",
    help="Tokens of the tiles; those of the kernel, if not given. Doubled while over 2048 a side.",
)
@problem_options
@data_options(None)
@json_option
def visualize(
    found: list[MaskEntry], output: str | None, n: int | None, n_kv: int | None,
    span: tuple[int, int, int, int] | None, tile: tuple[int, int] | None, asked: KernelOptions,
    arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Draw the mask of FILE: tiles by class, elements where the range is small.

    Tiles are those of the kernel for --target. A partial tile is the paler, the fewer of its pairs
    are live. Run-time selections choose by made-up scores of --seed. Without -o it is drawn in the
    terminal. Several patterns into one -o give one file each, with the pattern's name before the
    suffix. Without made-up scores nothing of size N x N is made, whatever N is.
    """
    from maskc.viz.canvas import format_of

    if output is not None:
        format_of(output)
    pictures = [
        _picture(entry, asked, n, n_kv, span, tile, arrays)
        for entry in one_by_one(found, "drawing")
    ]
    if output is not None:
        _write(pictures, Path(output), as_json)
    elif as_json:
        write_json({"pictures": [_plain(shown) for shown in pictures]})
    else:
        _draw(pictures)


def _picture(
    entry: MaskEntry, asked: KernelOptions, n: int | None, n_kv: int | None,
    span: tuple[int, int, int, int] | None, tile: tuple[int, int] | None, arrays: Arrays,
) -> Picture:  # fmt: skip
    from maskc.viz.picture import picture
    from maskc.viz.shown_lengths import showing

    heads = asked.heads_for(entry.mask)
    now(f"planning {entry.name}: its kernel's tiles")
    kernel = None if tile else _kernel(entry, asked)
    if n is None or n_kv is None:
        n, n_kv = showing(entry.mask, heads, entry.params)
        if span is not None:
            n, n_kv = max(n, span[1]), max(n_kv, span[3])
    now(f"drawing {entry.name} at {n} x {n_kv}")
    if span is not None and (span[1] > n or span[3] > n_kv):
        raise UsageMistake(
            f"the range reaches {span[1]} queries and {span[3]} keys, there are {n} and {n_kv}",
            "give the lengths with --n and --n-kv", at="--range",
        )  # fmt: skip
    return picture(
        entry.mask, n, n_kv, name=entry.name, span=span, tile=tile, kernel=kernel, n_heads=heads,
        head_dim=asked.head_dim, dtype=asked.dtype,
        data=arrays.of(entry, n, n_kv, leave=_RANKED), seed=arrays.seed,
    )  # fmt: skip


def _kernel(entry: MaskEntry, asked: KernelOptions) -> KernelTiles | None:
    """The tiles of the kernel; None where no target was named and this machine's has none."""
    from maskc.viz.picture import KernelTiles

    try:
        plan = asked.plan(entry.mask)
    except MaskcError:
        if asked.targets:
            raise
        return None
    boxes = [each.boxes for each in plan.also if each.boxes and each.direction is plan.direction]
    also = [f"or boxes of {' x '.join(map(str, each.q))} queries" for each in boxes[:1]]
    also += [f"or in {len(plan.parts)} parts, with other tiles"] * bool(plan.parts)
    return KernelTiles(plan.target.name, plan.tile, tuple(also))


def _draw(pictures: list[Picture]) -> None:
    from maskc.viz.terminal import render

    width = min(max(columns() - _BESIDE, 24), 64)
    for index, shown in enumerate(pictures):
        echo("\n" * bool(index) + render(shown, width, wants_color()), nl=False)


def _write(pictures: list[Picture], path: Path, as_json: bool) -> None:
    from maskc.viz.figure import write

    paths = [path]
    if len(pictures) > 1:
        paths = [path.with_name(f"{path.stem}.{shown.name}{path.suffix}") for shown in pictures]
    for shown, place in zip(pictures, paths, strict=True):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write(shown, place)
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            raise unwritable(place, error) from None
        if not as_json:
            echo(str(place))
    if as_json:
        write_json({"written": [str(place) for place in paths]})


def _plain(shown: Picture) -> dict[str, Any]:
    """The picture's numbers, and its raster as rows of digits: 0 empty, 1 partial, 2 full; and the
    share of each cell's pairs that are live."""
    import numpy as np

    span = shown.span
    panels = []
    for panel in shown.panels:
        cells, numbers = panel.raster.fit(_JSON_CELLS, _JSON_CELLS), panel.numbers
        panels.append({
            "heads": list(panel.heads), "live_pairs": numbers.live, "pairs": numbers.pairs,
            "live_share": numbers.live_share, "tile": list(numbers.tile), "full": numbers.full,
            "partial": numbers.partial, "empty": numbers.empty, "waste": numbers.waste,
            "flops": numbers.flops, "bytes": numbers.bytes,
            "unit": list(panel.raster.unit), "units_per_cell": list(cells.covers),
            "cells": ["".join(map(str, row)) for row in cells.classes.tolist()],
            "shares": np.round(cells.share, 4).tolist(), "shares_by": panel.raster.step,
        })  # fmt: skip
    return {
        "name": shown.name, "formula": shown.formula, "n_q": shown.n_q, "n_kv": shown.n_kv,
        "range": [span.q0, span.q1, span.k0, span.k1], "kernel": shown.kernel,
        "kernel_also": list(shown.also), "panels": panels,
    }  # fmt: skip
