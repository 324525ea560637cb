"""Several runs on one card in one file; a run is the unit inside which times may be compared.

In a file, environment["runs"][number] holds what a run says for itself (target, notes, cases, and
versions where they differ), and every row has its "run".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskc.core.errors import UsageMistake
from maskc.core.plain import laid_out

Report = Mapping[str, Any]
_OWN = ("cases", "notes", "running", "target", "repeats", "seconds")
"""Said by each run for itself."""
_CARD = ("gpu", "driver", "cpu")
"""What has to agree."""


def next_number(file: Report | None) -> int:
    """The number of a run that is not in the file yet."""
    return 1 + max(map(int, file["environment"]["runs"]), default=0) if file else 1


def added(file: Report | None, report: Report, number: int) -> dict[str, Any]:
    """The file with a run in it, instead of what it held under that number.

    Raises:
        UsageMistake: the run was on another machine.
    """
    about = report["environment"]
    shared = {name: value for name, value in about.items() if name not in _OWN}
    runs: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    if file is not None:
        shared = {k: v for k, v in file["environment"].items() if k != "runs"}
        other = [name for name in _CARD if shared.get(name) != about.get(name)]
        if other:
            found = ", ".join(f"{shared.get(name)} and {about.get(name)}" for name in other)
            hint = "write to another file: times of different cards are not compared"
            raise UsageMistake(f"the file is of another machine: {found}", hint)
        runs |= file["environment"]["runs"]
        rows += [row for row in file["rows"] if row["run"] != number]
    runs[str(number)] = {
        k: v for k, v in about.items() if k in _OWN or (k not in shared or shared[k] != v)
    }
    rows += [{**row, "run": number} for row in report["rows"]]
    ordered = {key: runs[key] for key in sorted(runs, key=int)}
    return {"environment": shared | {"runs": ordered}, "rows": rows}


def one_run(file: Report | None, number: int) -> dict[str, Any] | None:
    """A run as it was added; None where it is not in the file."""
    if file is None or str(number) not in file["environment"]["runs"]:
        return None
    shared = {k: v for k, v in file["environment"].items() if k != "runs"}
    rows = [row for row in file["rows"] if row["run"] == number]
    plain = [{k: v for k, v in row.items() if k != "run"} for row in rows]
    return {"environment": shared | file["environment"]["runs"][str(number)], "rows": plain}


def notes(report: Report) -> list[str]:
    """The notes of a report, or of all runs of a file, each once."""
    about = report["environment"]
    found = list(about.get("notes", ()))
    for run in about.get("runs", {}).values():
        found += run.get("notes", ())
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------ files


_COLUMNS = 400
"""A line of results: one record, mostly."""
RESULTS = Path(__file__).resolve().parent / "results"


def save(path: Path, report: Report) -> None:
    """Replace a file as a whole: a reader, or whoever ends this process, never finds a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(laid_out(report, _COLUMNS) + "\n")
    beside.replace(path)


def saved(path: Path) -> Report | None:
    """What `save` wrote last; None where there is no file.

    Raises:
        UsageMistake: the file holds something else.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageMistake(f"{path}: {error}", "give a file that a suite wrote") from None
    if not isinstance(found, dict) or not {"environment", "rows"} <= set(found):
        raise UsageMistake(f"{path} holds no results", "give a file that a suite wrote")
    return found
