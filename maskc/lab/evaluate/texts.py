"""Texts to evaluate on, and sequences of tokens of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskc.core.errors import TextTooShort, UsageMistake
from maskc.core.unreadable import UNREADABLE, reason

_MODULES = ("argparse", "decimal", "doctest", "pathlib", "tarfile", "tokenize", "typing", "zipfile")


def demo_texts() -> dict[str, str]:
    """Texts that come with Python itself: its language reference in English, and library code."""
    from importlib import import_module
    from importlib.util import find_spec

    topics = import_module("pydoc_data.topics").topics
    english = "\n\n".join(topics[name] for name in sorted(topics))
    places = (find_spec(name) for name in _MODULES)
    files = [Path(spec.origin) for spec in places if spec is not None and spec.origin]
    code = "\n\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix == ".py")
    return {"english": english, "code": code}


def read_text(path: str) -> str:
    """A file of text; *.dz and *.gz are unpacked.

    Raises:
        UsageMistake: it cannot be read (MC603).
    """
    import gzip

    try:
        data = Path(path).read_bytes()
        if path.endswith((".dz", ".gz")):
            data = gzip.decompress(data)
    except UNREADABLE as error:
        hint = "give a file of text, such as --text book.txt"
        raise UsageMistake(f"cannot read {path}: {reason(error)}", hint, at="--text") from None
    return data.decode("utf-8", errors="replace")


def sequences(
    tokenizer: Any, texts: Mapping[str, str], n: int, count: int
) -> tuple[Any, list[str]]:
    """Sequences of n tokens, as many of each text, from places spread over it evenly.

    Args:
        tokenizer: of transformers.
        texts: by name.
        n: tokens of each sequence.
        count: sequences of each text; fewer where it is too short for so many that do not overlap.

    Returns:
        (int64 [sequences, n] on the CPU, the name of each sequence's text).

    Raises:
        TextTooShort: a text has fewer than n tokens (MC734).
    """
    import torch

    rows: list[Sequence[int]] = []
    names: list[str] = []
    for name, text in texts.items():
        room = 12 * n * count  # characters: no text of people has so many to a token
        step = max(1, (len(text) - room) // count)
        pieces = [text] if len(text) <= room else [text[i * step :][: 12 * n] for i in range(count)]
        ids = [_ids(tokenizer, piece) for piece in pieces]
        if len(pieces) == 1:
            fit = len(ids[0]) // n
            cut = [ids[0][i * n : (i + 1) * n] for i in range(min(fit, count))]
        else:
            cut = [text_ids[:n] for text_ids in ids if len(text_ids) >= n]
        if not cut:
            raise TextTooShort(name, max(map(len, ids)), n, at=name)
        rows += cut
        names += [name] * len(cut)
    return torch.tensor(rows), names


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids without special tokens; a long text raises no warning about the model's length."""
    tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return tokens
