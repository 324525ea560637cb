"""Speed of the network, which predictions of a plan use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from maskc.core.errors import NetworkUnknown


@dataclass(frozen=True)
class Network:
    """One rank's connection to all others."""

    name: str
    gigabytes: float
    """GB/s that a rank sends, and at the same time receives."""
    microseconds: float
    """Latency of a round of messages, in microseconds."""

    def milliseconds(self, sent: float, received: float) -> float:
        """Return the milliseconds of one exchange, by the bytes of its busiest direction."""
        most = max(sent, received)
        return most / (self.gigabytes * 1e6) + self.microseconds / 1e3 if most else 0.0


NETWORKS = {
    "nvlink": Network("nvlink", 320.0, 20.0),
    "400Gb/s": Network("400Gb/s", 45.0, 40.0),
    "800Gb/s": Network("800Gb/s", 90.0, 40.0),
}
"""NVLink as measured on H200: 256 MiB arrive at one of two GPUs in 1.05 ms, 448 MiB at one of eight
in 1.40 ms. The other networks run at nine tenths of their nominal speed."""

_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*(Gb|GB)(?:/s|ps)?")


def network_of(given: str | Network | None, ranks: int) -> Network:
    """A network by its name or its speed; None is NVLink inside a host of eight, else 400 Gb/s.

    Raises:
        NetworkUnknown: the text is neither.
    """
    if isinstance(given, Network):
        return given
    if given is None:
        return NETWORKS["nvlink" if ranks <= 8 else "400Gb/s"]
    for name, known in NETWORKS.items():
        if given.lower().removesuffix("/s") == name.lower().removesuffix("/s"):
            return known
    match = _SPEED.fullmatch(given.strip())
    if match is None or not float(match[1]):
        raise NetworkUnknown(given, ", ".join(NETWORKS), at="network")
    return Network(given, float(match[1]) / (8 if match[2] == "Gb" else 1), 40.0)
