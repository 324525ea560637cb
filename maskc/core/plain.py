"""Plain values as JSON: numbers, text, bytes, tuples, and the dataclasses and enums of core.

Reading makes nothing but such values: a text can name no other class, and runs no code.

There are two forms. The cache's is short: the fields of a class follow each other. The one in
generated modules is for people: fields have names, those at their defaults are left out, and
formulas are texts in Python behind "= ". `from_text` reads both.
"""

from __future__ import annotations

import json
from base64 import b85decode, b85encode
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

from maskc.core.errors import MaskcError
from maskc.core.expr import Expr
from maskc.core.expr_text import parse_expr, to_python

_ROOM = "maskc.core."
_FORMULA = "= "
"""Starts the text of a formula."""
_NOT_WRITTEN_HERE = (
    AttributeError, ImportError, KeyError, MaskcError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""Errors of reading a text that `to_text` did not make."""


def to_text(value: object) -> str:
    """Return the value as JSON. Tuples become lists; other types that JSON lacks become an object
    with one key.

    Raises:
        TypeError: it holds something that is not plain.
    """
    return json.dumps(_plain(value), separators=(",", ":"))


def to_readable_text(value: object) -> str:
    """Text as of `to_text`, but to be read: named fields, formulas as Python, lines.

    Raises:
        TypeError: the value holds something that is not plain.
    """
    return laid_out(_named(value)) + "\n"


def laid_out(value: object, columns: int = 100, indent: str = "") -> str:
    """JSON in lines of so many columns, each with as many short items as it has room for."""
    short = json.dumps(value)
    if len(indent) + len(short) < columns or not isinstance(value, (list, dict)):
        return short
    if isinstance(value, dict) and len(value) == 1:
        ((name, content),) = value.items()
        if isinstance(content, (list, dict)):
            return f"{{{json.dumps(name)}: {laid_out(content, columns, indent)}}}"
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        return f"[{json.dumps(value[0])}, {laid_out(value[1], columns, indent)}]"
    deeper = indent + "  "
    if isinstance(value, list):
        items = [laid_out(item, columns, deeper) for item in value]
        opening, closing = "[]"
    else:
        items = [f"{json.dumps(key)}: {laid_out(x, columns, deeper)}" for key, x in value.items()]
        opening, closing = "{}"
    lines: list[str] = []
    for item in items:
        joined = f"{lines[-1]}, {item}" if lines else item
        if lines and "\n" not in joined and len(deeper) + len(joined) < columns:
            lines[-1] = joined
        else:
            lines.append(item)
    inner = ",".join(f"\n{deeper}{line}" for line in lines)
    return f"{opening}{inner}{closing}"


def from_text(text: str) -> Any:
    """The value that was given to `to_text`.

    Raises:
        ValueError: the text is not what `to_text` of this version writes.
    """
    try:
        return _value(json.loads(text))
    except _NOT_WRITTEN_HERE as error:
        raise ValueError(f"not plain values: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        raise TypeError(f"a text that starts with {_FORMULA!r} would be read as a formula")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": b85encode(value).decode()}
    kind: type = type(value)
    if isinstance(value, Enum):
        return {_name(kind): value.name}
    return {_name(kind): [_plain(getattr(value, field)) for field in _fields(kind)]}


def _name(kind: type) -> str:
    """The name of a class of core in the text."""
    if not kind.__module__.startswith(_ROOM):
        raise TypeError(f"a {kind.__name__} is not a plain value")
    return f"{kind.__module__.removeprefix(_ROOM)}.{kind.__name__}"


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _named(value: object) -> object:
    if isinstance(value, tuple):
        return [_named(item) for item in value]
    if isinstance(value, Expr):
        return f"{_FORMULA}{to_python(value)}"
    if not is_dataclass(value):
        return _plain(value)
    content = {
        field.name: _named(getattr(value, field.name))
        for field in fields(value)
        if field.init and getattr(value, field.name) != _default(field)
    }
    return {_name(type(value)): content}


def _value(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_value, value))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return parse_expr(value.removeprefix(_FORMULA))
    if not isinstance(value, Mapping):
        return value
    ((name, content),) = value.items()
    if name == "bytes":
        return b85decode(content)
    kind = _class(name)
    if issubclass(kind, Enum):
        return kind[content]
    if isinstance(content, Mapping):
        return kind(**{field: _value(item) for field, item in content.items()})
    return kind(**dict(zip(_fields(_class(name)), map(_value, content), strict=True)))


@cache
def _class(name: str) -> type:
    module, _, class_name = name.rpartition(".")
    kind = getattr(import_module(_ROOM + module), class_name)
    if not (isinstance(kind, type) and kind.__module__ == _ROOM + module):
        raise TypeError(f"{name} is not a class")
    _fields(kind)
    return kind


@cache
def _fields(kind: type) -> tuple[str, ...]:
    if issubclass(kind, Enum):
        return ()
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is neither a dataclass nor an enum")
    return tuple(field.name for field in fields(kind) if field.init)
