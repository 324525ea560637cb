"""Texts of errors in files of tests/messages: a line `==== case`, then what the error says."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "messages"
MARK = "\n==== "


def read(name: str) -> dict[str, str]:
    """Return the text of each case of a file."""
    blocks = (FOLDER / f"{name}.txt").read_text().split(MARK)[1:]
    return {
        case: text.rstrip("\n") for case, _, text in (block.partition("\n") for block in blocks)
    }


def write(name: str, texts: dict[str, str]) -> None:
    """Replace the cases of a file; what stands before the first one stays."""
    path = FOLDER / f"{name}.txt"
    head = path.read_text().partition(MARK)[0]
    path.write_text(head + "".join(f"{MARK}{case}\n{text}\n" for case, text in texts.items()))
