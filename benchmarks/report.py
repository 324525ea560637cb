"""A report as text: a table, what it means, and where it was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.runs import notes as notes_of
from maskc.core.errors import MaskcError

Report = Mapping[str, Any]
"""{"environment": {...}, "rows": [{case, impl, direction, ms, live_tflops, error, ok}]}."""

PEERS = {
    "cudnn": "cuDNN", "cudnn_flex": "cuDNN flex", "fa2": "FA2", "flex": "FlexAttention",
    "flex_flash": "Flex FLASH", "fa4": "FA4", "topk": "PyTorch topk", "flex_table": "Flex table",
    "sdpa_causal": "SDPA causal", "sdpa_masked": "SDPA masked",
}  # fmt: skip
"""Rivals that compute the mask, as tables call them; `dense` does not."""
_HIDDEN = ("notes", "cases", "runs")
_SHOWN = 20
"""Notes printed; a report file holds all."""
_FOLDERS = re.compile(r"(?:/[\w.+-]+)+/(?=[\w.+-])")


def reason(error: Exception) -> str:
    """The first line of what was raised, without the folders of this machine."""
    if isinstance(error, MaskcError):
        text = f"{error.code} {error.finding}"
    else:
        text = f"{type(error).__name__}: {error}"
    return _FOLDERS.sub("", text.strip().split("\n")[0])[:200]


def table(report: Report) -> str:
    """Plain text: a line per row, then the summary, the notes and the environment.

    Rows that were only checked, and passed, make one line per pattern.
    """
    checked = [row for row in report["rows"] if row["ok"] and row["ms"] is None]
    rows = [row for row in report["rows"] if not (row["ok"] and row["ms"] is None)]
    lines = _checked(checked)
    if rows:
        heads = ("case", "direction", "impl", "ms", "live TFLOP/s", "error", "")
        cells = [_cells(row) for row in rows]
        if any("predicted_ms" in row for row in rows):
            heads = (*heads[:4], "predicted", *heads[4:])
            cells = [
                (*cell[:4], _number(row.get("predicted_ms"), "{:.4g}"), *cell[4:])
                for cell, row in zip(cells, rows, strict=True)
            ]
        lines += [*aligned([heads, *cells], 3), ""]
    lines += [*summary(report), *_ran(rows), *_phases(rows), *_predicted(rows)]
    environment = report["environment"]
    notes = notes_of(report)
    lines += [f"note: {note}" for note in notes[:_SHOWN]]
    if len(notes) > _SHOWN:
        lines.append(f"and {len(notes) - _SHOWN} more notes")
    known = {k: v for k, v in environment.items() if k not in _HIDDEN and v is not None}
    lines += [""] * bool(lines and lines[-1])
    lines += [", ".join(f"{name} {value}" for name, value in known.items())]
    return "\n".join(lines).strip("\n") + "\n"


def _ran(rows: list[Mapping[str, Any]]) -> list[str]:
    """Which sources ran, where that is more than the target says."""
    return [
        f"{row['case']} {row['direction']} {row.get('variant', '')}".rstrip()
        + f" ran {', '.join(row['sources'])}"
        for row in rows
        if row.get("sources") and row["sources"] != [row.get("target")]
    ]


def _phases(rows: list[Mapping[str, Any]]) -> list[str]:
    """What calls that choose are made of, and how attending compares with blocks known before."""
    lines = []
    for row in rows:
        phases = row.get("phases_ms", {})
        if not row["ok"] or row.get("variant") or set(phases) != {"selection", "attention"}:
            continue
        text = f"{row['case']} {row['direction']}: " + " and ".join(
            f"{name} {ms:.4g} ms" for name, ms in phases.items()
        )
        place = ("case", "direction", "run")
        for other in rows:
            same = all(other.get(name) == row.get(name) for name in place) and other["ok"]
            known = other.get("phases_ms", {}).get("attention")
            if same and other.get("variant") == "static" and known:
                speed = known / phases["attention"]
                text += f"; attention at {speed:.0%} of the speed with blocks known before"
        lines.append(text)
    return lines


NEAR = 0.15
"""The share of a measured time within which a predicted one is near."""


def _predicted(rows: list[Mapping[str, Any]]) -> list[str]:
    """How many predictions are near what was measured, and the farthest."""
    shares = {
        f"{row['case']} {row['direction']}": row["predicted_ms"] / row["ms"]
        for row in rows
        if row["ok"] and row["ms"] and row.get("predicted_ms")
    }
    if not shares:
        return []
    near = sum(abs(share - 1) <= NEAR for share in shares.values())
    far = max(shares, key=lambda name: max(shares[name], 1 / shares[name]))
    return [
        f"predicted within {NEAR:.0%} of measured: {near} of {len(shares)}; the farthest is {far}, "
        f"predicted {shares[far]:.2f} times what it took"
    ]


def _checked(rows: list[Mapping[str, Any]]) -> list[str]:
    """How many results of each pattern passed, and the largest error by dtype."""
    patterns: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        patterns.setdefault(row["case"].split(" ")[0], []).append(row)
    lines = []
    for name, passed in patterns.items():
        worst: dict[str, float] = {}
        for row in passed:
            dtype = row["case"].split(" ")[-1]
            worst[dtype] = max(worst.get(dtype, 0.0), row["error"] or 0.0)
        errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in worst.items())
        lines.append(f"{name}: {len(passed)} results ok; largest errors {errors}")
    return [*lines, ""] if lines else []


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    failed, word = not row["ok"], outcome(row)
    return (
        row["case"], row["direction"], f"{row['impl']} {row.get('variant', '')}".strip(),
        word if failed else _number(row["ms"], "{:.4g}"),
        "" if failed else _number(row["live_tflops"], "{:.4g}"),
        _number(row["error"], "{:.1e}"),
        word.upper() if failed else "ok",
    )  # fmt: skip


def outcome(row: Mapping[str, Any]) -> str:
    """The word that says why a row that is not ok has no time that counts."""
    return "error" if row.get("raised") else "failed"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of columns, of which the first `left` are flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = [x.ljust(w) if i < left else x.rjust(w) for i, (x, w) in enumerate(cells)]
        lines.append("  ".join(padded).rstrip())
    return lines


def summary(report: Report) -> list[str]:
    """One sentence per case and direction that maskc was timed on, and one for all failures."""
    groups: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in report["rows"]:
        if row["ok"] and row["ms"] is not None:
            place = row["case"], row["direction"], row.get("run")
            impl = f"{row['impl']} {row.get('variant', '')}".strip()
            groups.setdefault(place, {})[impl] = row["ms"]
    lines = [
        f"{case} {direction}{'' if run is None else f' (run {run})'}: {sentence}"
        for (case, direction, run), times in groups.items()
        if (sentence := _compared(times))
    ]
    for word, verb in (("failed", "failed"), ("error", "could not run")):
        found = [row for row in report["rows"] if not row["ok"] and outcome(row) == word]
        if found:
            named = [f"{r['impl']} on {r['case']} {r['direction']}" for r in found]
            shown = ", ".join(named[:8]) + (", ..." if len(named) > 8 else "")
            lines.append(f"{len(found)} of {len(report['rows'])} results {verb}: {shown}")
    return lines


def _compared(times: Mapping[str, float]) -> str:
    if "maskc" not in times or len(times) < 2:
        return ""
    own = times["maskc"]
    others = {impl: ms for impl, ms in times.items() if impl in PEERS}
    parts = []
    if others:
        best = min(others, key=others.__getitem__)
        parts.append(f"maskc {_against(own, others[best])} than {best}, the best other")
    if "dense" in times:
        dense = times["dense"]
        if dense < own:
            parts.append(
                f"DENSE IS FASTER: leaving the mask out takes {dense:.3g} ms, "
                f"{own / dense:.2f} times less than maskc's {own:.3g} ms"
            )
        else:
            parts.append(f"{dense / own:.2f} times faster than dense")
    if "maskc deterministic" in times:
        parts.append(f"deterministic costs {times['maskc deterministic'] / own:.2f} times as much")
    if "maskc softmax" in times:
        parts.append(f"entmax takes {own / times['maskc softmax']:.2f} times as long as softmax")
    return "; ".join(parts)


def _against(own: float, other: float) -> str:
    return f"{other / own:.2f} times faster" if own <= other else f"{own / other:.2f} times slower"
