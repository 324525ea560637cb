"""Bundles on disk: a mask that some process has planned is not planned again."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version

from maskc.build.cache import content_key, open_cache
from maskc.core.bundle import Bundle
from maskc.core.package import state
from maskc.core.plain import from_text, to_text

_MADE_BY = ("islpy", "jinja2")
"""Packages on which the content of a bundle depends."""


def remembered(parts: tuple[object, ...], make: Callable[[], Bundle]) -> Bundle:
    """The bundle of a mask.

    Args:
        parts: all inputs of the bundle, except the code of this package.
        make: plans and emits the bundle; only called if no process has done so before.
    """
    cache, key = open_cache(), content_key("bundle", state(), *map(version, _MADE_BY), *parts)
    kept = cache.get(key)
    if kept is not None:
        with suppress(ValueError, zlib.error):  # else it was written by hand
            bundle = from_text(zlib.decompress(kept).decode())
            if isinstance(bundle, Bundle):
                return bundle
    made = make()
    cache.put(key, zlib.compress(to_text(made).encode(), 1))
    return made
