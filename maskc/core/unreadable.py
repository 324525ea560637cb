"""What readers of files raise where a file is damaged, or not what its name says."""

from __future__ import annotations

import lzma
import struct
import zlib
from zipfile import BadZipFile

UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, TypeError, AttributeError, LookupError, EOFError, ArithmeticError,
    RuntimeError, MemoryError, BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip
"""Of json and of numpy.load: deep nesting is a RecursionError, an encrypted archive a RuntimeError,
an unknown method of compression a NotImplementedError, a header that claims terabytes a
MemoryError."""


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
