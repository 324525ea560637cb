"""Numbers of a call that formulas may use: its lengths and named parameters."""

from __future__ import annotations

from typing import Any

from maskc.core import expr as E
from maskc.core.data import check_name
from maskc.core.errors import IntegerTooWide, NotAnInteger
from maskc.core.source import caller
from maskc.core.widths import INT64, plain_integer
from maskc.dsl.score_values import Parameter
from maskc.dsl.traced import Traced

n_q = Traced(E.N_Q)
n_kv = Traced(E.N_KV)


def param(name: str, default: int | float) -> Any:
    """A named number that may be changed at every call without recompiling.

    Use it for an integer that is data: the width of a window, a number of sinks, a limit in
    `where`. `attn(q, k, v, name=value)` then passes another value. With a float default it is a
    real number for score formulas (`mc.score`); torch tensors that require grad get their
    gradient.

    Args:
        name: the keyword under which calls pass the value.
        default: the value where a call passes none.

    Returns:
        A formula, to be used in masks, `where` and score formulas.

    Raises:
        NotAnInteger: the default is not an integer (MC103).
        IntegerTooWide: the default does not fit 64 bits (MC120).
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
    """
    at = caller()
    if isinstance(default, float):
        return Parameter(check_name(name, at), default)
    value = plain_integer(default)
    if value is None:
        raise NotAnInteger("param", "default", repr(default), at=at)
    if abs(value) > INT64:
        raise IntegerTooWide("param", value, at=at)
    return Traced(E.Param(check_name(name, at), value))
