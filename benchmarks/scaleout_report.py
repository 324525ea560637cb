"""What benchmarks.scaleout measured, as a table of Markdown and as bars.

python -m benchmarks.scaleout_report results.json ... [--draw bars.png]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import maskc as mc

RIVALS = {
    "all-gather": "all-gather", "all-gather, FA4": "and FA4", "ulysses": "Ulysses", "ring": "ring",
    "flex": "torch's Flex",
}  # fmt: skip
"""The heads of rivals' columns, by their names in results."""

_MAX_DRAWN = 8.0
"""Bars of a mask beyond it would leave no room for the others': it is left out."""
Row = Mapping[str, Any]


def rows_of(paths: Sequence[Path]) -> list[Row]:
    """The rows of several files, by ranks, tokens and the order of the files."""
    found = [row for path in paths for row in json.loads(path.read_text())["rows"]]
    return sorted(found, key=lambda row: (row["ranks"], row["tokens"]))


def predicted(row: Row) -> list[float]:
    """Milliseconds, forward and backward, as a plan says them today."""
    from benchmarks.scaleout import MASKS, documents

    n = row["tokens"] * row["ranks"]
    data = {"doc": documents(n)} if row["mask"] == "documents" else {}
    plan = mc.distributed.plan(
        MASKS[row["mask"]](n), n, row["ranks"], heads=row["heads"], data=data, network="nvlink",
        layout=row["layout"], move_rows=None if "moved" in row else False,
    )  # fmt: skip
    return [x.total for x in plan.times()]


def table(rows: Sequence[Row]) -> str:
    """Both passes of each row; behind a rival, how many times its speed the plan has."""
    rivals = [name for name in RIVALS if any(name in row["times_ms"] for row in rows)]
    heads = ["mask", "tokens", "ms", "predicted", "efficiency", *(RIVALS[x] for x in rivals),
             "kept, MiB"]  # fmt: skip
    lines = [" | ".join(heads), " | ".join(["---", *["---:"] * (len(heads) - 1)])]
    for row in rows:
        own = row["times_ms"]["planned"]
        shares = [a / (row["ranks"] * b) for a, b in zip(row["one_gpu"], own, strict=True)]
        cells = [row["mask"], f"{row['tokens'] // 1024}k", _pair(own), _pair(predicted(row)),
                 " / ".join(f"{x:.0%}" for x in shares)]  # fmt: skip
        for name in rivals:
            other = row["times_ms"].get(name)
            ratios = [a / b for a, b in zip(other, own, strict=True)] if other else []
            cells.append(" / ".join(f"{x:.2f}" for x in ratios))
        kept = (f"{row['memory'][name]['kept_MiB']:.0f}" for name in ("planned", "all-gather"))
        cells.append(" of ".join(kept))
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _pair(values: Sequence[float]) -> str:
    return " / ".join(f"{x:.3g}" for x in values)


def off(rows: Sequence[Row]) -> str:
    """How far predictions are from what was measured, by pass."""
    found = []
    for number, name in enumerate(("forward", "backward")):
        ratios = [predicted(row)[number] / row["times_ms"]["planned"][number] for row in rows]
        found.append(f"{name}: predicted over measured {min(ratios):.2f} to {max(ratios):.2f}, "
                     f"median {np.median(ratios):.2f}")  # fmt: skip
    return "\n".join(found)


def _fits(row: Row) -> bool:
    times = row["times_ms"]
    return all(
        _MAX_DRAWN * value > base
        for each in times.values() for value, base in zip(each, times["all-gather"], strict=True)
    )  # fmt: skip


def draw(rows: Sequence[Row], path: Path, tokens: int) -> None:
    """Speeds beside all-gather with the same kernels, at one length; one panel a pass."""
    from benchmarks.bars import Group, bars

    first = [row for row in rows if row["tokens"] == tokens and _fits(row)]
    panels = {}
    for number, name in enumerate(("forward", "backward")):
        groups = []
        for row in first:
            times = {key: value[number] for key, value in row["times_ms"].items()}
            speeds = {key: times["all-gather"] / value for key, value in times.items()}
            groups.append(Group(row["mask"], speeds, f"{speeds['planned']:.2f}"))
        panels[f"{name}, {first[0]['ranks']} GPUs, {first[0]['tokens']} tokens each"] = groups
    bars(panels, path, unit="times the speed of all-gather with the same kernels",
         title="One sequence on several GPUs", order=("planned", *RIVALS))  # fmt: skip


def main() -> None:
    """Read the files, print the tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--draw", type=Path, metavar="FILE")
    parser.add_argument("--at", type=int, default=16384, metavar="TOKENS", help="of a rank, drawn")
    asked = parser.parse_args()
    rows = rows_of(asked.files)
    for ranks in sorted({row["ranks"] for row in rows}):
        own = [row for row in rows if row["ranks"] == ranks]
        print(f"\n{ranks} GPUs\n\n{table(own)}\n\n{off(own)}")
    if asked.draw:
        most = max(row["ranks"] for row in rows)
        draw([row for row in rows if row["ranks"] == most], asked.draw, asked.at)


if __name__ == "__main__":
    main()
