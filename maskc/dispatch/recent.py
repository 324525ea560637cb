"""A bounded cache of the latest values."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    """A value that knows its size."""

    @property
    def size(self) -> int:
        """Bytes."""


Value = TypeVar("Value", bound=Kept)


class Recent(Generic[Value]):
    """The latest values by key; bounded in number and in bytes."""

    def __init__(self, most: int = 256, most_bytes: int = 1 << 28) -> None:
        self._values: dict[object, Value] = {}
        self._sizes: dict[object, int] = {}
        self._bytes = 0
        self._most, self._most_bytes = most, most_bytes
        self.get = self._values.get

    def put(self, key: object, value: Value) -> None:
        """Add a value, dropping the oldest where it is too much; the caller holds a lock."""
        values, sizes, size = self._values, self._sizes, value.size
        self._bytes += size - sizes.get(key, 0)
        values[key], sizes[key] = value, size
        while len(values) > 1 and (len(values) > self._most or self._bytes > self._most_bytes):
            oldest = next(iter(values))
            del values[oldest]
            self._bytes -= sizes.pop(oldest)
