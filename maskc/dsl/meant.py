"""Suggestions for names that the mask language does not have."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature

_ELSEWHERE = {
    "attention_sink": "sinks", "bands": "window", "band": "window", "bidirectional": "full",
    "block_mask": "block_table", "block_sparse": "block_table", "cumulative_seqlens": "cu_seqlens",
    "create_block_mask": "from_mask_mod", "dense": "full", "doc": "documents",
    "document_mask": "documents", "global": "global_tokens", "globals": "global_tokens",
    "local": "window", "local_window": "window", "mask_mod": "from_mask_mod",
    "packed": "documents", "padding": "flags", "prefix_lm": "prefix", "segments": "documents",
    "sequence_ids": "documents", "sink": "sinks", "sliding_window": "window",
    "stride": "strided", "top_k": "topk", "tril": "causal",
}  # fmt: skip
"""Names of other libraries and near misses -> ours."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name among `known` that was probably meant; None if nothing is near."""
    known = [name for name in known if not name.startswith("_")]
    plain = name.strip("_").lower()
    if (ours := _ELSEWHERE.get(plain)) in known:
        return ours
    return next(iter(get_close_matches(plain, known, n=1)), None)


_UNEXPECTED = re.compile(
    r"^(?:_(\w+)\.__call__|(\w+))\(\) got an unexpected keyword argument '(\w+)'"
)


def raised_text(error: BaseException) -> str:
    """Return the text of an error. Add a suggestion for a wrong keyword of a combinator, and for a
    combinator called as a method, as in `mc.causal().top_k(4)`.
    """
    text, ours = str(error), sys.modules["maskc"]
    if isinstance(error, TypeError) and (unexpected := _UNEXPECTED.match(text)):
        name, word = (unexpected[1] or unexpected[2]).lower(), unexpected[3]
        combinator = getattr(ours, name, None)
        if callable(combinator) and getattr(combinator, "__module__", "").startswith("maskc."):
            known = [name for name in signature(combinator).parameters if name not in _SELF]
            near = next(iter(get_close_matches(word, known, n=1)), None)
            said = f"did you mean {near!r}? " if near else ""
            takes = f"mc.{name} takes {', '.join(known) or 'no arguments'}"
            return f"{name}() got an unexpected keyword argument {word!r}; {said}{takes}"
    if isinstance(error, AttributeError) and isinstance(error.obj, ours.Mask) and error.name:
        if near := closest(error.name, dir(error.obj)):
            return f"{text}; did you mean {near!r}?"
        if near := closest(error.name, dir(ours)):
            return f"{text}; did you mean 'mc.{near}'?"
    return text


_SELF = ("self", "args", "kwargs")


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'strided'?`, or nothing."""
    if name.startswith("__"):  # Python and its tools look for these
        return ""
    nearest = closest(name, known)
    return f"; did you mean {nearest!r}?" if nearest else ""
