"""Arrays of JAX on the host, without importing JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.errors import NotTraced
from maskc.core.source import SourceLoc

_BY_NAME = (
    "make the mask outside of the function that JAX traces; arrays that change go by name, "
    "to mc.documents, mc.flags, mc.intervals, mc.block_table or mc.table"
)


def is_jax_array(value: object) -> bool:
    """Whether a value is an array of JAX, traced or not."""
    library = type(value).__module__.partition(".")[0]
    return library in ("jax", "jaxlib") and hasattr(value, "aval")


def jax_values(what: str, array: Any, at: SourceLoc | str | None) -> np.ndarray:
    """Return an array of JAX as one of NumPy, which is read-only.

    Args:
        what: the array in messages.
        array: the array.
        at: the place.

    Raises:
        NotTraced: JAX traces it, so that it has no values yet.
    """
    try:
        return np.asarray(array)
    except TypeError:
        raise NotTraced(what, "traced by JAX, and has no values yet", _BY_NAME, at=at) from None
