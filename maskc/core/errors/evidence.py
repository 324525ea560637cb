"""Mistakes around what a mask may forget (MC640 to MC644)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class CacheUnbounded(MaskcError):
    """Later queries may see more keys than any number of slots holds."""

    code = "MC640"
    message = "no cache of constant size holds the keys of this mask: {0}"
    hint = (
        "keep some first keys and a window, as mc.causal() & (mc.sinks(4) | mc.window(1023)) does, "
        "or keep all keys"
    )


class CacheReadsData(MaskcError):
    """What later queries see depends on data of later calls."""

    code = "MC641"
    message = "which keys later queries see depends on {0}, which nobody knows ahead"
    hint = "bound what data may reach: ask the part of the mask that reads none, and keep its keys"


class CacheUndecided(MaskcError):
    """Neither a bound on the keys that must be kept nor its absence was proved."""

    code = "MC642"
    message = "isl found no bound on the keys that later queries see within {0} operations"
    hint = "write the mask in fewer pieces, or keep all keys"


class CacheCall(MaskcError):
    """A call has other numbers of tokens than the cache was made for."""

    code = "MC643"
    message = "the cache is for calls of 1 to {0} new tokens; this one has {1} of {2} tokens"
    hint = "make it for the longest call, mask.cache(queries=...), and count the new tokens in n"
