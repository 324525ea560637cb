"""Selections by the q and k of a call, on the host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core.bundle import Bundle
from maskc.core.dtypes import DType
from maskc.core.errors import NotAnArray
from maskc.core.forks import new_lock
from maskc.core.tensors import HOST, Array
from maskc.dispatch import checks
from maskc.dispatch.call import Bound
from maskc.dispatch.recent import Recent
from maskc.layout import Rank, choose, scores_of
from maskc.layout.topk.scores import Scores, floats
from maskc.runtime.arrays.foreign import Foreign
from maskc.runtime.arrays.known import array_of
from maskc.runtime.arrays.memory import CODES, at, load
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked


@dataclass(frozen=True, eq=False, slots=True)
class Remembered:
    """The cached selection of a call."""

    bound: Bound
    size: int
    """Bytes that this keeps alive, about."""


class TopKOnHost:
    """Chooses for the calls of one mask; safe to use from several threads.

    The choices of the latest calls are cached by the content of their ranking tensors. A backward
    pass with the same q and k therefore does not choose again.
    """

    def __init__(self, bundle: Bundle, binder: Binder) -> None:
        self._bundle, self._binder = bundle, binder
        self._known: Recent[Remembered] = Recent(most=64, most_bytes=1 << 26)
        self._lock = new_lock()

    def bind(self, asked: Asked, rank: Callable[[], Rank]) -> Bound:
        """Parameters and data of a call, with what its selections choose.

        Args:
            asked: from a device its q and k are copied, which waits for it.
            rank: gives what ranks, built when everything is known to fit.

        Raises:
            BadShape: q has not the heads that the mask was compiled for. MC3xx for data.
        """
        bundle, binder, sizes = self._bundle, self._binder, asked.sizes
        of_qk = [(n, x, array_of(x, n)) for n, x in zip("qk", asked.given, strict=False)]
        checks.check_heads(of_qk[0][2], len(bundle.head_variant) or sizes.heads_q)
        data = asked.keywords_of_call
        bound = binder.bind(data, sizes.n_q, sizes.n_kv)
        q, k = (_floats(*pair, bundle.problem.dtype) for pair in of_qk)
        arrays = binder.completed(bound, sizes.n_q, sizes.n_kv).arrays
        scores = [scores_of(selection, data, q, k, arrays) for selection in bundle.selections]
        key = (sizes, bound.key, _digest(scores))
        known = self._known.get(key)
        if known is None:
            arrays_now: dict[str, Any] = {**arrays}
            with np.errstate(all="ignore"):
                for selection, ranked in zip(bundle.selections, scores, strict=True):
                    arrays_now[selection.name] = choose(
                        selection, ranked, sizes, bound.params, arrays_now, rank()
                    )
            made = Bound(bound.params, arrays_now, object(), lasting=False)
            known = Remembered(made, sum(array.nbytes for array in arrays_now.values()))
            with self._lock:
                self._known.put(key, known)
        return known.bound


def _digest(scores: Sequence[Scores]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    arrays = {id(array): array for scores_of_one in scores for array in scores_of_one.content}
    for array in arrays.values():
        digest.update(f"{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _floats(name: str, x: Any, view: Array, dtype: DType) -> np.ndarray:
    """float32 values of a tensor, on the host."""
    if view.device == HOST:
        return load(at(view.pointer, view.shape, view.strides, CODES[dtype]), dtype)
    if isinstance(x, Foreign):
        finding = f"{type(x.source).__name__} on a GPU, from which nothing can be chosen there yet"
        raise NotAnArray(name, finding, at=name)
    return floats(name, {name: x})
