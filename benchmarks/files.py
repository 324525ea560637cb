"""Reports on disk: written after every case, never left as half of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskc.core.errors import UsageMistake
from maskc.core.plain import laid_out

_COLUMNS = 400
"""A line of results: one record, mostly."""
RESULTS = Path(__file__).resolve().parent / "results"
Report = dict[str, Any]


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
