"""Keywords of scaled_dot_product_attention and flash-attn, in maskc's words.

`mc.attention` accepts them together with its mask. This module translates them to a mask and its
data, and views tensors in other layouts as [B, H, N, D].
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from functools import lru_cache, reduce
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from maskc.core.data import BROUGHT, CALL, CONVENTIONS, CuSeqlens, check_ends
from maskc.core.errors import BadOption, DataShape, DataType, NotAMask
from maskc.core.source import caller
from maskc.core.tensors import refuse_masked, torch_of
from maskc.core.unknown import meant_keyword
from maskc.dsl.combinators import causal, full, window
from maskc.dsl.data_atoms import documents, flags, intervals
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import END, START
from maskc.dsl.not_a_mask import not_a_mask
from maskc.layout.inputs.host import to_host
from maskc.layout.inputs.max_seqlen import check_lengths_promised

EVERYTHING = full()
_DOCUMENTS, _REAL = "cu_seqlens", "cu_seqlens_real"
_STORED = "cu_seqlens_q_padded"
"""Sequences that are padded where they are stored."""


class LayoutWarning(UserWarning):
    """Tensors have more heads than tokens: they may be [B, N, H, D]."""


class Restriction(NamedTuple):
    """Effect of the keywords on a mask; hashable, so that it can be part of a cache key."""

    is_causal: bool
    window_size: tuple[int, int] | None
    align: str
    """Alignment of `is_causal`; windows are aligned at the last tokens, as in flash-attn."""
    packed: str | None
    """The name of the data that say which tokens belong together."""


def restricted(mask: Mask, to: Restriction) -> Mask:
    """Return the mask intersected with the masks of keywords; cached.

    Equal masks share the result, unless they capture arrays, which may be written later.
    """
    if not getattr(mask, "captures", False):
        return _shared(mask, to)
    known: dict[Restriction, Mask] = vars(mask).setdefault("_restricted", {})
    if to not in known:
        known[to] = _joined(mask, to)
    return known[to]


def _joined(mask: Mask, to: Restriction) -> Mask:
    parts = [] if mask == EVERYTHING else [mask]
    if to.packed == BROUGHT:  # which hold the others
        return intervals(BROUGHT)
    if to.is_causal:
        parts.append(causal(align=to.align))
    if to.window_size is not None and to.window_size != (-1, -1):
        parts.append(window.flash(*to.window_size))
    if to.packed is not None:
        parts.append(documents(_DOCUMENTS))
    if to.packed == _STORED:
        parts.append(flags(_REAL, on="q"))
    return reduce(operator.and_, parts) if parts else EVERYTHING


_shared = lru_cache(maxsize=256)(_joined)


_TAKEN = frozenset(CONVENTIONS)


class Keywords(NamedTuple):
    """The keywords as they were given."""

    is_causal: bool = False
    window_size: Any = None
    enable_gqa: bool | None = None
    layout: str | None = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    cu_seqlens_q_padded: Any = None
    cu_seqlens_k_padded: Any = None
    max_seqlen: Any = None

    @classmethod
    def taken(cls, keywords: dict[str, Any]) -> Keywords | None:
        """Take them out of the keywords of a call; None if all have their defaults."""
        if _TAKEN.isdisjoint(keywords):
            return None
        own_keywords, defaults = {}, cls._field_defaults
        for name in CONVENTIONS:
            if name in keywords:
                x = keywords.pop(name)
                if x is not defaults[name]:
                    own_keywords[name] = x
        return cls(**own_keywords) if own_keywords else None

    def check_heads(self, heads: int, heads_kv: int) -> None:
        """Raise an error for grouped heads with enable_gqa=False.

        Raises:
            BadOption.
        """
        if self.enable_gqa is False and heads != heads_kv:
            wanted = f"True, as q has {heads} heads and k {heads_kv}"
            raise BadOption("enable_gqa", wanted, False, at="enable_gqa")

    def restriction(self, n_q: int, n_kv: int, masked: bool, data: dict[str, Any]) -> Restriction:
        """Return the restriction by the keywords; adds the data of packed tokens to `data`.

        Args:
            n_q: queries; n_kv: keys.
            masked: whether there is also a mask.

        Raises:
            BadOption: keywords contradict each other, or one has another form.
        """
        is_causal = _truth("is_causal", self.is_causal)
        sides = _window(self.window_size)
        packed = self._packed(n_q, n_kv, is_causal, sides, masked, data)
        differ = is_causal and packed is None and n_q != n_kv
        if differ and sides is not None:
            wanted = (
                "left out with window_size if there are fewer queries than keys (SDPA lets "
                "the first tokens meet, flash-attn the last ones): window_size=(left, 0) is causal"
            )
            raise BadOption("is_causal", wanted, True, at="is_causal")
        return Restriction(is_causal, sides, START if differ else END, packed)

    def check_distances(self, to: Restriction, n_q: int, n_kv: int, name: str) -> None:
        """Raise an error if distances p - k would not be those inside of each sequence.

        Kernels take p = q + n_kv - n_q, which is a position of the whole row. Without a gap between
        sequences of equal lengths it serves all of them.

        Args:
            to: the restriction by these keywords.
            n_q: queries; n_kv: keys.
            name: what computes with distances.

        Raises:
            BadOption.
        """
        pairs = (self.cu_seqlens_q, self.cu_seqlens_k), (
            self.cu_seqlens_q_padded, self.cu_seqlens_k_padded
        )  # fmt: skip
        if to.packed != BROUGHT or (n_q == n_kv and all(starmap(_equal_on_host, pairs))):
            return
        wanted = (
            "left out where cu_seqlens_q and cu_seqlens_k are two arrays: it would count distances "
            "along all packed tokens, and not inside of each sequence"
        )
        hint = (
            "if lengths are equal, pass one array as both; otherwise mc.paged counts positions in "
            "each sequence"
        )
        raise BadOption(name, wanted, "it", hint, at=name)

    def _packed(
        self, n_q: int, n_kv: int, is_causal: bool, sides: tuple[int, int] | None, masked: bool,
        data: dict[str, Any],
    ) -> str | None:  # fmt: skip
        of_q, of_k = self.cu_seqlens_q, self.cu_seqlens_k
        if of_q is None:
            for name in (
                "cu_seqlens_k",
                "cu_seqlens_q_padded",
                "cu_seqlens_k_padded",
                "max_seqlen",
            ):
                if getattr(self, name) is not None:
                    wanted = "given with cu_seqlens_q, the cumulative lengths of queries"
                    raise BadOption(name, wanted, "it alone", at=name)
            return None
        for name in (_DOCUMENTS, _REAL, BROUGHT):
            if name in data:
                raise BadOption(name, "left out with cu_seqlens_q", "it", at=name)
        stored_q = of_q if self.cu_seqlens_q_padded is None else self.cu_seqlens_q_padded
        of_k, stored_k = self._of_keys(of_q, stored_q)
        if of_k is of_q and stored_k is stored_q:
            if n_q != n_kv:
                wanted = f"an array of its own, as there are {n_q} queries and {n_kv} keys"
                kind = "None" if self.cu_seqlens_k is None else "cu_seqlens_q"
                raise BadOption("cu_seqlens_k", wanted, kind, at="cu_seqlens_k")
            if stored_q is of_q:
                data[_DOCUMENTS] = CuSeqlens(of_q, self.max_seqlen)
                return _DOCUMENTS
            ends, data[_REAL] = _with_padding(of_q, stored_q, n_q)
            data[_DOCUMENTS] = CuSeqlens(ends, None)
            return _STORED
        if masked:
            wanted = (
                "left out where cu_seqlens_q and cu_seqlens_k are two arrays: is_causal and "
                "window_size then count inside of each sequence"
            )
            raise BadOption("mask", wanted, "a mask", at="mask")
        tokens = n_q, n_kv
        data[BROUGHT] = _keys_of_queries(
            (of_q, stored_q), (of_k, stored_k), tokens, is_causal, sides, self.max_seqlen
        )
        return BROUGHT

    def _of_keys(self, of_q: Any, stored_q: Any) -> tuple[Any, Any]:
        """Return the lengths of keys, and where their sequences begin; by default those of queries.

        Without an array of their own, padded keys of sequences of other lengths begin where their
        cumulative lengths say.
        """
        of_k = of_q if self.cu_seqlens_k is None else self.cu_seqlens_k
        if self.cu_seqlens_k_padded is not None:
            return of_k, self.cu_seqlens_k_padded
        return of_k, stored_q if of_k is of_q else of_k


def _truth(name: str, value: object) -> bool:
    if value not in (True, False):
        raise BadOption(name, "True or False", repr(value), at=name)
    return bool(value)


def _window(given: Any) -> tuple[int, int] | None:
    """(left, right), -1 where unbounded."""
    if given is None:
        return None
    try:
        left, right = map(operator.index, given)
    except (TypeError, ValueError):
        left = right = -2
    if min(left, right) < -1:
        wanted = "two integers (keys before, keys behind), -1 where unbounded"
        raise BadOption("window_size", wanted, repr(given), at="window_size")
    return left, right


def _equal_on_host(one: Any, other: Any) -> bool:
    """Whether two arrays are equal, as far as can be told without waiting for a device."""
    if one is None or other is None:
        return one is other
    one, other = _array(one), _array(other)
    if not (_on_host(one) and _on_host(other)):
        return False
    return np.array_equal(np.asarray(one), np.asarray(other))


def _on_host(x: Any) -> bool:
    """Whether the host can read an array now, outside of compiled graphs."""
    torch = torch_of(x)
    if torch is None:
        return isinstance(x, np.ndarray)
    return type(x) is torch.Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()


def _on_gpu(x: Any) -> bool:
    """Whether the host can copy an array from a GPU."""
    torch = torch_of(x)
    if torch is None:
        return hasattr(x, "__cuda_array_interface__")
    return type(x) is torch.Tensor and x.is_cuda


def _array(ends: Any) -> Any:
    return np.asarray(ends) if isinstance(ends, list | tuple) else ends


def _check_ends(name: str, ends: Any, tokens: int, max_seqlen: Any = None) -> None:
    """Check cumulative lengths. Values on a GPU are read with MASKC_CHECK=1 only, and those in a
    compiled graph never.

    Args:
        max_seqlen: length that no sequence exceeds; compared with MASKC_CHECK=1 only.

    Raises:
        DataShape, DataType: they are no vector of integers (MC303, MC304).
        DataRange: see `check_ends`, `check_lengths_promised` (MC305).
    """
    torch = torch_of(ends)
    if torch is not None and torch.compiler.is_compiling():
        return
    refuse_masked(ends, name)
    shape = tuple(ends.shape)
    if len(shape) != 1 or shape[0] == 0:
        raise DataShape(name, shape, "[documents + 1]", at=name)
    if "int" not in str(ends.dtype):
        raise DataType(name, str(ends.dtype).removeprefix("torch."), "integers", at=name)
    checked = os.environ.get("MASKC_CHECK") == "1"
    if _on_host(ends) or (checked and _on_gpu(ends)):
        host = to_host(ends, name)
        check_ends(name, host, tokens)
        if checked:
            lengths = np.diff(host.astype(np.int64))
            check_lengths_promised(name, CuSeqlens(ends, max_seqlen), lengths)


class _Places(NamedTuple):
    """The sequence of each query, and its place there; computed where the arrays are."""

    xp: Any
    """The library of the arrays."""
    sequence: Any
    end: Any
    """Index of the sequence's end; without sequences, [0], that of its begin."""
    place: Any
    length: Any
    """Queries of the sequence."""
    is_real: Any
    """Whether the query belongs to a sequence, and is not padding."""

    @classmethod
    def of(cls, lengths: Any, stored: Any, n: int) -> _Places:
        """Read cumulative lengths, and where sequences begin, both [sequences + 1]."""
        library = type(lengths).__module__.partition(".")[0]
        xp: Any = torch_of(lengths) or sys.modules[library]
        here = {"device": lengths.device} if library == "torch" else {}
        token = xp.arange(n, **here)
        sequence = xp.searchsorted(stored[1:], token, side="right").clip(0, max(len(stored) - 2, 0))
        end = sequence + min(1, len(stored) - 1)
        place = token - stored[sequence]
        length = lengths[end] - lengths[sequence]
        is_real = (place < length) & (token < stored[-1])
        return cls(xp, sequence, end, place, length, is_real)


def _alike(name: str, x: Any, like: Any) -> None:
    """Refuse an array of another library, shape or device than cu_seqlens_q has.

    Raises:
        BadOption.
    """
    library = type(like).__module__.partition(".")[0]
    if type(x).__module__.partition(".")[0] != library or tuple(x.shape) != tuple(like.shape):
        wanted = f"{library} integers {list(like.shape)}, as cu_seqlens_q is"
        raise BadOption(name, wanted, f"{type(x).__name__} {list(x.shape)}", at=name)
    places = [str(getattr(array, "device", "")) for array in (x, like)]
    if places[0] != places[1]:
        wanted = f"on {places[1]}, as cu_seqlens_q is"
        raise BadOption(name, wanted, f"an array on {places[0]}", at=name)


def _with_padding(lengths: Any, stored: Any, n: int) -> tuple[Any, Any]:
    """Return cumulative lengths of documents that are a sequence or the padding behind it, and
    which tokens are not padding.

    Raises:
        BadOption: the arrays come from different libraries, or have different shapes.
        MaskcError: see `_check_ends`.
    """
    lengths, stored = _array(lengths), _array(stored)
    _alike("cu_seqlens_q_padded", stored, lengths)
    _check_ends("cu_seqlens_q", lengths, n)
    _check_ends("cu_seqlens_q_padded", stored, n)
    places = _Places.of(lengths, stored, n)
    ends = stored[:-1] + (lengths[1:] - lengths[:-1])
    both = places.xp.stack([stored[:-1], ends], -1).reshape(-1)
    return places.xp.concatenate([both, stored[-1:]]), places.is_real


def _keys_of_queries(
    of_q: tuple[Any, Any], of_k: tuple[Any, Any], tokens: tuple[int, int], is_causal: bool,
    sides: tuple[int, int] | None, max_seqlen: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """(first key, the one after the last) of every query, where the last tokens of each sequence
    meet, as in flash-attn. It is computed where the arrays are.

    Args:
        of_q, of_k: cumulative lengths, and where sequences begin.
        tokens: queries and keys.
        max_seqlen: length that no sequence exceeds.

    Raises:
        BadOption: the arrays come from different libraries or devices, or have different shapes.
        MaskcError: see `_check_ends`.
    """
    n_q, n_kv = tokens
    lengths_q, stored_q, lengths_k, stored_k = map(_array, (*of_q, *of_k))
    arrays = {
        "cu_seqlens_q": (lengths_q, n_q),
        "cu_seqlens_q_padded": (stored_q, n_q),
        "cu_seqlens_k": (lengths_k, n_kv),
        "cu_seqlens_k_padded": (stored_k, n_kv),
    }
    if of_q[1] is of_q[0]:
        del arrays["cu_seqlens_q_padded"]
    if of_k[1] is of_k[0]:
        del arrays["cu_seqlens_k_padded"]
    for name, (ends, _) in arrays.items():
        _alike(name, ends, lengths_q)
    for name, (ends, count) in arrays.items():
        _check_ends(name, ends, count, None if name.endswith("padded") else max_seqlen)
    query = _Places.of(lengths_q, stored_q, n_q)
    xp, which = query.xp, query.sequence
    low = stored_k[which] + 0 * query.place
    high = low + lengths_k[query.end] - lengths_k[which]
    position = high - query.length + query.place
    left, right = sides or (-1, -1)
    right = 0 if is_causal and right != 0 else right
    first = low if left < 0 else xp.maximum(low, position - left)
    last = high if right < 0 else xp.minimum(high, position + right + 1)
    return first, xp.where(query.is_real, xp.maximum(first, last), first)


# ------------------------------------------------------------------ calls without a mask

_OF_MASKS = ("attn_mask", "attn_bias", "block_mask", "mask_mod")
"""Keywords under which other libraries take what their masks are."""


def without_mask(mask: object, data: Mapping[str, object]) -> NotAMask:
    """Return the error for a call without a mask, with a hint for the value in its place.

    Args:
        mask: what the call passes as its mask.
        data: its keywords that are no options.
    """
    where, at = "mc.attention", caller() or "mask"
    if mask is not None:
        return not_a_mask(where, mask, at)
    for name, value in data.items():
        if isinstance(value, Mask):
            hint = f"mask= takes it: mc.attention(q, k, v, mask={name})"
            return NotAMask(where, f"it under another name, {name}=", hint, at=at)
        if name in _OF_MASKS and value is not None:
            return not_a_mask(where, value, at)
        hint = meant_keyword(name, (), (*CALL, *CONVENTIONS))
        hint = hint or f'data belong to a mask that names them, as mc.documents("{name}") does'
        return NotAMask(where, f"None, and {name}=", hint, at=at)
    return not_a_mask(where, None, at)


# ------------------------------------------------------------------ layouts of tensors


def may_be_tokens_first(q: Any, k: Any) -> bool:
    """Whether tensors look like [B, N, H, D]: both have as many heads, and more than tokens.

    Grouped heads never count, because few tokens are normal for them.
    """
    of_k: tuple[int, ...] = tuple(getattr(k, "shape", ()))
    return len(of_k) == 4 and q.shape[1] == of_k[1] > of_k[2] > 1
