"""Coefficients that `maskc calibrate` measured on this machine, in the cache folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from maskc.build.cache import Cache, content_key, open_cache
from maskc.core.coefficients import Gpu, Tables, measured, over

_VERSION = "2"
"""Part of the key: raised when the meaning of a coefficient changes."""


def coefficients(target: str, gpu: Gpu) -> Tables:
    """Return the coefficients that calls on a card choose by.

    Args:
        target: the name of a target.
        gpu: the card.

    Returns:
        The calibrated coefficients. Those that were not calibrated, and those of other cards, come
        from cost.toml.
    """
    return _coefficients(open_cache(), target, gpu)


@cache
def _coefficients(folder: Cache, target: str, gpu: Gpu) -> Tables:
    """Read the coefficients once for each cache folder and card."""
    shipped = measured(target, gpu)
    stored = _stored(folder, target, gpu)
    return shipped if stored is None else over(shipped, stored["tables"])


def calibration(target: str, gpu: Gpu) -> Mapping[str, Any] | None:
    """Return the stored calibration of a card, or None.

    Returns:
        {"day": ISO date, "tables": coefficients as in cost.toml}.
    """
    return _stored(open_cache(), target, gpu)


def _stored(folder: Cache, target: str, gpu: Gpu) -> Mapping[str, Any] | None:
    payload = folder.get(_key(target, gpu))
    if payload is not None:
        with suppress(ValueError):
            stored = json.loads(payload)
            if isinstance(stored, dict) and isinstance(stored.get("tables"), dict):
                return stored
    return None


def remember(target: str, gpu: Gpu, day: str, tables: Tables) -> None:
    """Store the coefficients of a card; masks that are bound later choose by them."""
    payload = json.dumps({"day": day, "tables": tables}, sort_keys=True).encode()
    open_cache().put(_key(target, gpu), payload)
    _coefficients.cache_clear()


def forget(target: str, gpu: Gpu) -> None:
    """Remove the stored coefficients of a card."""
    open_cache().put(_key(target, gpu), b"null")
    _coefficients.cache_clear()


def _key(target: str, gpu: Gpu) -> str:
    return content_key("coefficients", _VERSION, target, gpu.name)
