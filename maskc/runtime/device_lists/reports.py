"""Reports about data from kernels to the host, without synchronization."""

from __future__ import annotations

import ctypes
from itertools import count

from maskc.runtime.launch.cuda import host_words

_PLACES = 63
"""Number of lists that can be confirmed to the host at a time."""


class Reports:
    """Words in host memory that kernels of one device write.

    The first word is set if any data were wrong, and stays set. Each other word holds the ticket of
    the latest lists with valid data. If a reader finds another ticket than its own, nothing is
    known about its data.
    """

    def __init__(self, device: int) -> None:
        self.words = host_words(device, 1 + _PLACES)
        """See the class."""
        self._tickets = count(1)

    def wrong(self) -> bool:
        """Whether something was wrong since this was last asked."""
        if not self.words[0]:
            return False
        self.words[0] = 0
        return True

    def ticket(self) -> int:
        """A ticket of lists that are made."""
        return next(self._tickets) % (1 << 31)

    def fine(self, ticket: int) -> bool:
        """Whether the host knows that nothing is wrong with lists; 0: they have no ticket."""
        return ticket > 0 and self.words[1 + ticket % _PLACES] == ticket

    def addresses(self, ticket: int) -> tuple[int, int]:
        """Addresses of the words for wrong data and for valid data; 0 without a ticket."""
        start = ctypes.addressof(self.words)
        return start, start + 4 * (1 + ticket % _PLACES) if ticket else 0
