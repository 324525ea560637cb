"""How maskc stands against its rivals, case by case; ratios are formed inside a run only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.anchors import ANCHORS
from benchmarks.report import PEERS, outcome
from benchmarks.runs import Report
from benchmarks.runs import notes as notes_of

Row = Mapping[str, Any]


@dataclass(eq=False)
class Standing:
    """One case in one direction."""

    case: str
    direction: str
    own: Row | None = None
    """maskc's row, of the last run that has a good one."""
    peers: dict[str, Row] = field(default_factory=dict)
    """The last row of each rival, a good one if there is any."""
    ratios: dict[str, float] = field(default_factory=dict)
    """Milliseconds of each rival per maskc's, of one run: above 1, maskc is faster."""
    deterministic: float | None = None
    """What repeatable gradients cost: milliseconds per the usual ones', of one run."""

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest rival and its ratio."""
        if not self.ratios:
            return None
        impl = min(self.ratios, key=self.ratios.__getitem__)
        return impl, self.ratios[impl]


def good(row: Row | None) -> bool:
    """Whether a row has a time and a right result."""
    return row is not None and row["ok"] and row["ms"] is not None


def standings(report: Report) -> list[Standing]:
    """Every case and direction of a report or of a file of runs, anchors in their order."""
    found: dict[tuple[str, str], Standing] = {}
    for rows in _by_run(report["rows"]):
        for row in rows:
            place = row["case"], row["direction"]
            found.setdefault(place, Standing(*place))
        for (case, direction), standing in found.items():
            here = [r for r in rows if r["case"] == case and r["direction"] == direction]
            _enter(standing, here)
    order = {anchor.name: number for number, anchor in enumerate(ANCHORS)}
    return sorted(found.values(), key=lambda s: order.get(s.case, len(order)))


def _by_run(rows: list[Row]) -> Iterator[list[Row]]:
    for run in sorted({row.get("run", 0) for row in rows}):
        yield [row for row in rows if row.get("run", 0) == run]


def _enter(standing: Standing, rows: list[Row]) -> None:
    """What one run found."""
    usual = {row["impl"]: row for row in rows if not row.get("variant")}
    own = usual.get("maskc")
    if own is not None and (good(own) or not good(standing.own)):
        standing.own = own
    for impl, row in usual.items():
        if impl not in PEERS:
            continue
        if good(row) or not good(standing.peers.get(impl)):
            standing.peers[impl] = row
        if good(own) and good(row):
            standing.ratios[impl] = row["ms"] / own["ms"]
    for row in rows:
        if row.get("variant") == "deterministic" and good(row) and good(own):
            standing.deterministic = row["ms"] / own["ms"]


# ------------------------------------------------------------------ Markdown


def markdown(report: Report) -> str:
    """A table with a line per case and direction, what could not run, and the machine."""
    found = standings(report)
    peers = [impl for impl in PEERS if any(impl in standing.peers for standing in found)]
    heads = ["case", "direction", "maskc ms", "live TFLOP/s", "of matmul", "best rival"]
    heads += [PEERS[impl] for impl in peers]
    if any(standing.deterministic for standing in found):
        heads.append("deterministic")
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join(["---", "---", *["---:"] * (len(heads) - 2)]) + "|")
    for standing in found:
        cells = [standing.case, standing.direction, *_own(standing.own), _best(standing)]
        cells += [_peer(standing, impl) for impl in peers]
        if heads[-1] == "deterministic":
            cost = standing.deterministic
            cells.append("" if cost is None else f"{cost:.2f}x")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *_legend(), "", *_causes(report), _machine(report["environment"])]
    return "\n".join(lines) + "\n"


def _own(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    if not good(row):
        return [outcome(row), "", ""]
    share = row.get("matmul_share")
    return [
        f"{row['ms']:.4g}", f"{row['live_tflops']:.3g}", "" if share is None else f"{share:.0%}"
    ]  # fmt: skip


def _best(standing: Standing) -> str:
    if standing.best is None:
        return ""
    impl, ratio = standing.best
    return f"**{ratio:.2f}** {PEERS[impl]}"


def _peer(standing: Standing, impl: str) -> str:
    row = standing.peers.get(impl)
    if row is None:
        return ""
    if not good(row):
        return outcome(row)
    ratio = standing.ratios.get(impl)
    return f"{row['ms']:.4g}" + ("" if ratio is None else f" ({ratio:.2f})")


def _legend() -> list[str]:
    return [
        "Times are medians of bursts that take turns. In brackets, and for the best rival: its "
        "time per maskc's, both of one run; above 1 maskc is faster. TFLOP/s count live pairs: "
        "4 D per pair and head forward, 10 D backward. `of matmul` is their share of what a bf16 "
        "matrix product reached in the same rounds. Every time is of a result that was checked; "
        "`failed` is a wrong result, `error` one that did not come."
    ]


def _causes(report: Report) -> list[str]:
    """Why rows are missing, equal reasons once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in report["rows"]:
        if not row["ok"]:
            wrong = f"failed its check, error {row['error']}"
            key = row["impl"], str(row.get("raised") or wrong)
            reasons.setdefault(key, []).append(f"{row['case']} {row['direction']}")
    lines = []
    for (impl, text), places in reasons.items():
        places = list(dict.fromkeys(places))
        shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if places[4:] else "")
        lines.append(f"- {impl} on {shown}: {text}")
    lines += [f"- {note}" for note in notes_of(report) if "not installed" in note]
    return [*lines, ""] if lines else []


def _machine(environment: Mapping[str, Any]) -> str:
    hidden = ("notes", "cases", "runs", "load_before")
    known = {k: v for k, v in environment.items() if k not in hidden and v is not None}
    parts = [f"{name} {value}" for name, value in known.items()]
    runs = environment.get("runs", {})
    return ", ".join([*parts, *([f"{len(runs)} runs"] if runs else [])])


# ------------------------------------------------------------------ the picture


def draw(report: Report, path: str | Path) -> None:
    """Bars of live TFLOP/s per case, forward and backward side by side, as PNG or SVG."""
    from benchmarks.bars import Group, bars

    names = {"maskc": "maskc", **PEERS}
    panels: dict[str, list[Group]] = {}
    for standing in standings(report):
        rows = {"maskc": standing.own, **standing.peers}
        values = {names[i]: r["live_tflops"] for i, r in rows.items() if good(r)}
        best = standing.best
        label = "" if best is None else f"{best[1]:.2f}x"
        panels.setdefault(standing.direction, []).append(Group(standing.case, values, label))
    titles = {"fwd": "forward", "bwd": "backward"}
    gpu = report["environment"].get("gpu") or report["environment"].get("cpu") or ""
    bars(
        {titles[d]: panels[d] for d in ("fwd", "bwd") if d in panels}, path,
        unit="TFLOP/s, live pairs only", title=f"{gpu}; labels: best rival's time per maskc's",
        order=list(names.values()),
    )  # fmt: skip
