"""Write docs/errors.md, the index of error codes, from the classes of the errors."""

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
after a usage error, and with 3 if generated files differ or a check fails.

Below, … stands for a value that the message fills in. If no action is listed, the message itself
names it. `python docs/error_index.py` writes this page from the classes in `maskc.core.errors`, and
a test compares them.
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
    """Return every class that has its own code, ordered by code."""
    found, todo = set(), [MaskcError]
    while todo:
        kinds = todo.pop().__subclasses__()
        found |= {kind for kind in kinds if kind.__module__.startswith(errors.__name__)}
        todo += kinds
    return sorted(found, key=lambda kind: kind.code)


def filled(template: str) -> str:
    """Return a message with … for each value; empty if it is nothing but values."""
    parts = (
        text + "…" * (name is not None) for text, name, *_ in string.Formatter().parse(template)
    )
    text = "".join(parts)
    return text if re.search(r"[a-z]", text) else ""


def entry(kind: type[MaskcError]) -> list[str]:
    """Return the lines of the page about one class."""
    meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    message, hint = filled(kind.message), filled(kind.hint)
    lines = [f'\n<a id="{kind.code.lower()}"></a>', f"\n### {kind.code} {kind.__name__}\n", meaning]
    if message:
        lines += ["\n```text", message, "```"]
    if hint:
        lines.append(f"\n**What to do:** {hint.replace('<', '&lt;')}")
    if kind.exit_code != 1:
        lines.append(f"\nExit code {kind.exit_code}.")
    return lines


def page() -> str:
    """Return the text of docs/errors.md."""
    lines = [HEAD]
    for start, title in CHAPTERS.items():
        lines.append(f"\n## {title}")
        for kind in classes():
            if kind.code.startswith(start):
                lines += entry(kind)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = page()
    if not PAGE.exists() or PAGE.read_text() != made:  # tests may be reading it
        PAGE.write_text(made)
