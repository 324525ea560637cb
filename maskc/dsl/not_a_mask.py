"""Hints that say what to write instead of something that is no mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maskc.core.errors import NotAMask
from maskc.core.source import SourceLoc

_OTHERWISE = "masks come from maskc's combinators: mc.causal(), mc.window(256), mc.where(...)"


def not_a_mask(where: str, value: object, at: SourceLoc | str | None) -> NotAMask:
    """The mistake of giving a value where a mask is expected, with a hint for its kind.

    Args:
        where: who expects a mask.
        value: what was given.
        at: the place.
    """
    return NotAMask(where, _found(value), _hint(value), at=at)


def _found(value: Any) -> str:
    """How the message names it."""
    kind = type(value).__name__
    if kind == "Traced":  # which answers to no attribute
        return "a formula"
    if value is None or isinstance(value, (bool, int, float)):
        return f"{kind} {value}" if value is not None else "None"
    if _is_array(value):
        return f"{kind} of {value.dtype}"
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    return f"{kind} {name}" if isinstance(name, str) else kind


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type)


def _hint(value: Any) -> str:
    """The hint, which says what to write for this kind of value."""
    kind = type(value)
    own = kind.__module__.partition(".")[0] == "maskc"
    match kind.__name__:
        case "NoneType":
            return "mc.full() keeps every pair; mc.from_mask_mod(f) takes a mask_mod"
        case "bool" | "bool_":
            return "mc.full() keeps every pair and ~mc.full() none"
        case "int":
            return f"mc.window({value}) keeps the {value} keys before a query, and the query's own"
        case "str":
            return "mc.parse(text) reads a mask; mc.documents(name) and others name data"
        case "list" | "tuple":
            return "mc.per_head([...]) takes one mask per head; | joins masks"
        case "BlockMask":
            return "mc.from_block_mask(block_mask) is its mask"
        case "Traced" if own:
            return "write the formula inside of mc.where(lambda q, k: ...)"
        case "Pattern" if own:
            return f"call it to get its mask: {value.name}()"
        case "Score" if own:
            return "it changes scores and drops no pairs: a call takes it as score="
        case "CompiledMask" if own:
            return "it is compiled: call it, attn(q, k, v), or pass the mask that it was made of"
    if _is_array(value):
        return _of_array(value)
    return _of_callable(value, own) if callable(value) else _OTHERWISE


def _of_array(value: Any) -> str:
    dtype = str(value.dtype)
    if "float" in dtype:
        return (
            "a bias that is added to scores is no set of pairs; mc.from_bool(bias == 0) is the "
            "mask of a bias of 0 and -inf, score=mc.scores.bias() with bias= adds one, and ALiBi "
            "goes by alibi_slopes="
        )
    return (
        "mc.from_bool(array) is the mask of a matrix [.., queries, keys] of booleans, "
        "mc.block_table(array, block) that of a matrix of blocks, and mc.flags('keep') that of a "
        "vector given at the call"
    )


def _of_callable(value: Callable[..., object], own: bool) -> str:
    module = getattr(value, "__module__", None) or ""
    if own or module.partition(".")[0] == "maskc":
        name = getattr(value, "__name__", type(value).__name__).strip("_").lower()
        return f"call it to get a mask: mc.{name}(...)"
    try:
        count = len(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        count = 0
    if count == 5:
        return (
            "a score_mod changes scores and drops no pairs: a call takes it as "
            "score=mc.from_score_mod(f); mc.from_mask_mod takes a mask_mod, f(b, h, q, k)"
        )
    return "mc.from_mask_mod(f) takes a mask_mod, f(b, h, q, k), and mc.where(f) an f(q, k)"
