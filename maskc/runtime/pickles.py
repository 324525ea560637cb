"""Bundles inside of pickles: as text that makes plain values and runs no code."""

from __future__ import annotations

import zlib
from typing import overload

from maskc.core.bundle import Bundle
from maskc.core.errors import StalePickle
from maskc.core.package import contents
from maskc.core.plain import from_text, to_text

Kept = tuple[str, bytes]
"""Digest of the package that wrote it, and the compressed text."""


def pickled(bundle: Bundle) -> Kept:
    """A bundle as pickles keep it."""
    return contents(), zlib.compress(to_text(bundle).encode(), 1)


@overload
def unpickled(kept: Kept) -> Bundle | None: ...
@overload
def unpickled(kept: Kept, what: str) -> Bundle: ...
def unpickled(kept: Kept, what: str = "") -> Bundle | None:
    """The bundle; None if another state of this package wrote it.

    Args:
        kept: what `pickled` gave.
        what: whose it is; then there is no other way to have it.

    Raises:
        StalePickle: another state of this package wrote it, and `what` is given.
    """
    written_by, text = kept
    if written_by == contents():
        bundle: Bundle = from_text(zlib.decompress(text).decode())
        return bundle
    if what:
        raise StalePickle(what)
    return None
