"""Errors that readers raise for a damaged file, or for a file of another format."""

from __future__ import annotations

import lzma
import struct
import zlib
from zipfile import BadZipFile

UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, TypeError, AttributeError, LookupError, EOFError, ArithmeticError,
    RuntimeError, MemoryError, BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip
"""Errors of json and numpy.load. Deep nesting raises RecursionError, an encrypted archive
RuntimeError, an unknown compression method NotImplementedError, a header that claims terabytes
MemoryError."""


def reason(error: Exception) -> str:
    """Describe the error in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
