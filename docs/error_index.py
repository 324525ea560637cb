"""Writes docs/errors.md, the index of error codes, from the classes that raise them."""

from __future__ import annotations

import re
import string
from pathlib import Path

from maskc.core import errors
from maskc.core.errors import MaskcError

PAGE = Path(__file__).with_name("errors.md")

HEAD = """\
# Error codes

Look up the code at the beginning of an error message. A code keeps its meaning across releases.

A message has four parts: the code, the place (file, line and column, or the name of an argument),
what was found, and a hint.

    MC101 bad.py:3:22  window(-3): left must be >= 0, found -3
        mask = mc.causal() & mc.window(-3)
                             ^^^^^^^^^^^^^
        hint: counts are inclusive and never negative; None means unbounded where it is allowed

To catch any of them, write `except maskc.MaskcError`. The attributes are `code`, `at` (the place),
`finding` and `exit_code`. The command line exits with 1 if the pattern or the build failed, with 2
after a usage error, and with 3 after drift or a failed check.

In the tables, … stands for a value that the message fills in. `python docs/error_index.py` writes
this page from the classes in `maskc.core.errors`, and a test compares them.
"""

CHAPTERS = {
    "MC0": "All mistakes of a file",
    "MC1": "The mask language",
    "MC2": "Pattern files",
    "MC3": "Lengths and data",
    "MC4": "Tensors and options of a call",
    "MC5": "Targets and builds",
    "MC6": "The command line, other libraries, and caches",
    "MC7": "Several GPUs, the explorer, evaluations and reports",
}


def classes() -> list[type[MaskcError]]:
    """Every class with a code of its own, in the order of codes."""
    found, todo = set(), [MaskcError]
    while todo:
        kinds = todo.pop().__subclasses__()
        found |= {kind for kind in kinds if kind.__module__.startswith(errors.__name__)}
        todo += kinds
    return sorted(found, key=lambda kind: kind.code)


def filled(template: str) -> str:
    """A message with … in place of what it fills in; empty where nothing else is left."""
    parts = (
        text + "…" * (name is not None) for text, name, *_ in string.Formatter().parse(template)
    )
    text = "".join(parts).replace("|", "\\|")
    return text if re.search(r"[a-z]", text) else ""


def quoted(message: str) -> str:
    """A message in the font of code, on a line of its own."""
    ticks = "``" if "`" in message else "`"
    return f"<br>{ticks}{message}{ticks}" if message else ""


def page() -> str:
    """The text of docs/errors.md."""
    lines = [HEAD]
    for start, title in CHAPTERS.items():
        lines += [
            f"\n## {title}\n",
            "| code | class | what happened | what to do |",
            "|---|---|---|---|",
        ]
        for kind in classes():
            if kind.code.startswith(start):
                meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
                message = quoted(filled(kind.message))
                hint = filled(kind.hint) or "see the message"
                anchor = f'<a id="{kind.code.lower()}"></a>{kind.code}'
                exits = f" (exit {kind.exit_code})" if kind.exit_code != 1 else ""
                lines.append(
                    f"| {anchor}{exits} | `{kind.__name__}` | {meaning}{message} | {hint} |"
                )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = page()
    if not PAGE.exists() or PAGE.read_text() != made:  # tests may be reading it
        PAGE.write_text(made)
