"""Choices that were measured, in the cache folder: one entry for each mask and card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from maskc.build.cache import content_key, open_cache
from maskc.build.toolchain import gpus
from maskc.core.bundle import Bundle
from maskc.core.target import Target

_ANY = content_key("tuned")
"""The entry of a folder with choices. Most have none, and the digest of a bundle takes as long as a
tenth of planning it."""


def stored(bundle: Bundle, target: Target) -> dict[str, str]:
    """Return the stored choices of a mask on this card: pass and lengths -> program."""
    cache = open_cache()
    if cache.get(_ANY) is None:
        return {}
    payload = cache.get(_key(bundle, target))
    if payload is None:
        return {}
    with suppress(ValueError):  # written by another version
        choices = json.loads(payload)
        if isinstance(choices, dict):
            return {str(key): str(name) for key, name in choices.items()}
    return {}


def remember(bundle: Bundle, target: Target, choices: Mapping[str, str]) -> None:
    """Store the choices of a mask on this card."""
    payload = json.dumps(dict(choices), sort_keys=True).encode()
    cache = open_cache()
    cache.put(_key(bundle, target), payload)
    cache.put(_ANY, b"")


def _key(bundle: Bundle, target: Target) -> str:
    cards = gpus() if target.language == "cuda" else ()
    return content_key("tuned", bundle.digest, target.name, cards[0].name if cards else "")
