"""Report all mistakes of one file together.

Inside `collecting()` a mistake is noted and a stand-in value returned, so that the rest of the
file is read too; outside it is raised at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from maskc.core.errors import MaskcError, SeveralErrors
from maskc.dsl.followed import during

T = TypeVar("T")

_noted: ContextVar[list[MaskcError] | None] = ContextVar("maskc_mistakes", default=None)


def mistake(error: MaskcError, stand_in: T) -> T:
    """Raise the error; while collecting, note it (once per place) and return the stand-in."""
    noted = _noted.get()
    if noted is None:
        raise error
    if str(error) not in map(str, noted):
        noted.append(error)
    return stand_in


@contextmanager
def collecting() -> Iterator[list[MaskcError]]:
    """Note mistakes instead of raising them, and raise them all at the end, in source order.

    Raises:
        SeveralErrors: there was more than one mistake (MC001).
    """
    with during(_noted, list[MaskcError]()) as noted:
        yield noted
    if len(noted) == 1:
        raise noted[0]
    if noted:
        raise SeveralErrors(tuple(sorted(noted, key=lambda error: getattr(error.at, "line", 0))))
