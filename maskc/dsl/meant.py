"""What somebody meant who wrote a name that the mask language does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

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
    """The name among `known` that was probably meant; None where nothing is near."""
    known = [each for each in known if not each.startswith("_")]
    plain = name.strip("_").lower()
    if (ours := _ELSEWHERE.get(plain)) in known:
        return ours
    return next(iter(get_close_matches(plain, known, n=1)), None)


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'strided'?`, or nothing."""
    if name.startswith("__"):  # Python and its tools look for these
        return ""
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else ""
