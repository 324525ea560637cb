"""Plain values as JSON: numbers, text, bytes, tuples, and the dataclasses and enums of core.

Reading makes nothing but such values: a text can name no other class, and runs no code.
"""

from __future__ import annotations

import json
from base64 import b85decode, b85encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

from maskc.core.errors import MaskcError

_ROOM = "maskc.core."
_NOT_WRITTEN_HERE = (
    AttributeError, ImportError, KeyError, MaskcError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What reading a text raises that `to_text` did not make."""


def to_text(value: object) -> str:
    """The value as JSON: tuples are lists, all else that JSON lacks is an object of one key.

    Raises:
        TypeError: it holds something that is not plain.
    """
    return json.dumps(_plain(value), separators=(",", ":"))


def from_text(text: str) -> Any:
    """What `to_text` was given.

    Raises:
        ValueError: the text is not what `to_text` of this version writes.
    """
    try:
        return _value(json.loads(text))
    except _NOT_WRITTEN_HERE as error:
        raise ValueError(f"not plain values: {error}") from error


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": b85encode(value).decode()}
    kind = type(value)
    if not kind.__module__.startswith(_ROOM):
        raise TypeError(f"a {kind.__name__} is no plain value")
    name = f"{kind.__module__.removeprefix(_ROOM)}.{kind.__name__}"
    if isinstance(value, Enum):
        return {name: value.name}
    return {name: [_plain(getattr(value, field)) for field in _fields(kind)]}


def _value(found: object) -> object:
    if isinstance(found, list):
        return tuple(map(_value, found))
    if not isinstance(found, Mapping):
        return found
    ((name, content),) = found.items()
    if name == "bytes":
        return b85decode(content)
    kind = _class(name)
    if issubclass(kind, Enum):
        return kind[content]
    return kind(**dict(zip(_fields(kind), map(_value, content), strict=True)))


@cache
def _class(name: str) -> type:
    module, _, own = name.rpartition(".")
    kind = getattr(import_module(_ROOM + module), own)
    if not (isinstance(kind, type) and kind.__module__ == _ROOM + module):
        raise TypeError(f"{name} is no class")
    _fields(kind)
    return kind


@cache
def _fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, Enum):
        return ()
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is neither a dataclass nor an enum")
    return tuple(field.name for field in fields(kind) if field.init)
