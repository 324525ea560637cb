"""maskc visualize: the mask as a picture, in the terminal or in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
    from maskc.viz.weights import WeightMap

_JSON_CELLS = 64
"""Cells across the raster in JSON, at most."""
_RANKED = ("scores", "index_q", "index_k", "index_w")
"""Inputs of selections; pictures make up scores instead."""
_TENSORS = ("q", "k")
"""Arrays of --data that weights are computed from."""
_AXIS_COLUMNS = 48
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
@length_options("long enough to show the mask's shape")
@click.option(
    "--range", "span", type=Parsed("range", _span), metavar="Q0:Q1,K0:K1",
    help="Draw only this part; single pairs up to 256 x 256 tokens.",
)  # fmt: skip
@click.option(
    "--tile",
    type=Parsed("tile", _tile),
    metavar="Q,K",
    help="Tokens of a tile.  [default: the kernel's; doubled while a side has over 2048 tiles]",
)
@click.option(
    "--weights", is_flag=True,
    help="Draw a heatmap of attention weights, of --data q=FILE and k=FILE or of random q and k.",
)  # fmt: skip
@click.option(
    "--head", type=click.IntRange(0), default=0, show_default=True, metavar="H",
    help="With --weights: the query head.",
)  # fmt: skip
@click.option(
    "--reduce", type=click.Choice(("mean", "max")), default="mean", show_default=True,
    help="With --weights: what a cell of several pairs shows.",
)  # fmt: skip
@problem_options
@data_options(None, extra=_TENSORS)
@json_option
def visualize(
    entries: list[MaskEntry], output: str | None, n: int | None, n_kv: int | None,
    span: tuple[int, int, int, int] | None, tile: tuple[int, int] | None, weights: bool, head: int,
    reduce: str, asked: KernelOptions, arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Draw the mask of FILE tile by tile, or pair by pair if it is small.

    Tiles are those of the kernel for --target. A partial tile is paler if fewer of its pairs are
    live. Run-time selections use random scores from --seed. Without -o the picture is drawn in the
    terminal. If FILE has several patterns, -o writes one file for each, with the pattern's name
    before the suffix. Except for random scores, nothing of size N x N is computed.

    With --weights the picture is a heatmap of softmax(q k^T) of one head, in float64. Masked pairs
    are grey.
    """
    from maskc.viz.canvas import format_of

    if output is not None:
        format_of(output)
    if weights:
        _check_weights(span, tile, asked)
        maps = [
            _weight_map(entry, asked, n, n_kv, head, reduce, arrays)
            for entry in one_by_one(entries, "computing weights of")
        ]
        if output is not None:
            _write({shown.name: shown.save for shown in maps}, Path(output), as_json)
        elif as_json:
            write_json({"weights": [_plain_weights(shown) for shown in maps]})
        else:
            _draw_weights(maps)
        return
    if without := [name for name in _TENSORS if name in arrays.given]:
        raise UsageMistake(
            f"{' and '.join(without)} given, which only a heatmap of weights reads",
            "add --weights", at="--data",
        )  # fmt: skip
    pictures = [
        _picture(entry, asked, n, n_kv, span, tile, arrays)
        for entry in one_by_one(entries, "drawing")
    ]
    if output is not None:
        from maskc.viz.figure import write

        _write({shown.name: partial(write, shown) for shown in pictures}, Path(output), as_json)
    elif as_json:
        write_json({"pictures": [_plain(shown) for shown in pictures]})
    else:
        _draw(pictures)


def _check_weights(
    span: tuple[int, int, int, int] | None, tile: tuple[int, int] | None, asked: KernelOptions
) -> None:
    """Refuse options that a heatmap of weights has no use for.

    Raises:
        UsageMistake: --range, --tile or --target was given (MC603).
    """
    given = {"--range": span, "--tile": tile, "--target": asked.targets}
    for option, value in given.items():
        if value:
            raise UsageMistake(
                f"{option} has no meaning with --weights, which draws all pairs and no tiles",
                "leave one of both out", at=option,
            )  # fmt: skip


def _weight_map(
    entry: MaskEntry, asked: KernelOptions, n: int | None, n_kv: int | None, head: int,
    reduce: str, arrays: Arrays,
) -> WeightMap:  # fmt: skip
    from maskc.viz.weights import tensor_lengths, weight_lengths, weights

    heads = asked.heads_for(entry.mask)
    q, k = (arrays.given.get(name) for name in _TENSORS)
    if n is None and (lengths := tensor_lengths(q, k)):
        n, n_kv = lengths
    if n is None or n_kv is None:
        n, n_kv = weight_lengths(entry.mask, heads, entry.params)
    return weights(
        entry.mask, n, n_kv, q=q, k=k, name=entry.name, head=head, n_heads=heads, reduce=reduce,
        data=arrays.of(entry, n, n_kv, leave=_RANKED), seed=arrays.seed,
    )  # fmt: skip


def _draw_weights(maps: list[WeightMap]) -> None:
    from maskc.viz.weight_drawings import text

    width = min(max(columns() - 12, 24), 64)
    for index, shown in enumerate(maps):
        echo("\n" * bool(index) + text(shown, width), nl=False)


def _plain_weights(shown: WeightMap) -> dict[str, Any]:
    """The cells of a heatmap; null where the mask keeps no pair."""
    cells = shown.cells(_JSON_CELLS, _JSON_CELLS)
    return {
        "name": shown.name, "formula": shown.formula, "n_q": shown.n_q, "n_kv": shown.n_kv,
        "head": shown.head, "source": shown.source, "reduce": shown.reduce,
        "pairs_per_cell": list(cells.covers),
        "cells": [
            [None if out else float(f"{value:.6g}") for value, out in zip(*row, strict=True)]
            for row in zip(cells.values.tolist(), cells.masked.tolist(), strict=True)
        ],
    }  # fmt: skip


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
    """The tiles of the kernel; None if no target was named and this machine's has none."""
    from maskc.viz.picture import KernelTiles

    try:
        plan = asked.plan(entry.mask)
    except MaskcError:
        if asked.targets:
            raise
        return None
    boxes = [
        kernel.boxes
        for kernel in plan.alternatives
        if kernel.boxes and kernel.direction is plan.direction
    ]
    alternatives = [f"or boxes of {' x '.join(map(str, box.q))} queries" for box in boxes[:1]]
    alternatives += [f"or in {len(plan.parts)} parts, with other tiles"] * bool(plan.parts)
    return KernelTiles(plan.target.name, plan.tile, tuple(alternatives))


def _draw(pictures: list[Picture]) -> None:
    from maskc.viz.terminal import render

    width = min(max(columns() - _AXIS_COLUMNS, 24), 64)
    for index, shown in enumerate(pictures):
        echo("\n" * bool(index) + render(shown, width, wants_color()), nl=False)


def _write(drawings: Mapping[str, Callable[[Path], None]], path: Path, as_json: bool) -> None:
    """Write drawings, each by a function that takes a path, under the names of their masks."""
    paths = [path]
    if len(drawings) > 1:
        paths = [path.with_name(f"{path.stem}.{name}{path.suffix}") for name in drawings]
    for write, place in zip(drawings.values(), paths, strict=True):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write(place)
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
        "kernel_also": list(shown.alternatives), "panels": panels,
    }  # fmt: skip
