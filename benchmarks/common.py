"""What the scripts in this folder share: results on disk after every case, and retries."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))


def say(text: str) -> None:
    """Progress goes to stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def save(path: Path, report: dict) -> None:
    """Replace a result file, never leaving half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(aside, path)


def saved(path: Path) -> dict | None:
    """What `save` wrote last, if anything."""
    return json.loads(path.read_text()) if path.is_file() else None
