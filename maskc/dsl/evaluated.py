"""mask_mods that cannot be traced: evaluated for the lengths of a call, as FlexAttention does.

The function runs under torch.vmap over ranges of queries, on the device of the tensors that it
reads. Its pairs are compressed to tiles, as in `from_bool`. Plans and kernels know the mask as a
formula over two arrays of tiles. Their content is computed for the sequences, heads and lengths of
a call, and again after a write to an array that the function reads.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maskc.core.captured import Computed
from maskc.core.data import constant
from maskc.core.errors import (
    BatchUsed,
    DataRange,
    HeadsUnknown,
    IntegerTooWide,
    MaskcError,
    MaskModFailed,
    MaskUsedAsBool,
    NotTraceable,
    SequencesUnknown,
)
from maskc.core.source import SourceLoc, outside
from maskc.dsl import nodes
from maskc.dsl.bit_tiles import TILE, kept_by_tiles, tiles_of
from maskc.dsl.evaluation import Evaluated

BEYOND_TRACING = (BatchUsed, DataRange, IntegerTooWide, MaskUsedAsBool, NotTraceable)
"""The reason for a refused function that torch may still be able to run."""
_PAIRS = 1 << 22
"""Pairs that are evaluated at once."""


class EvaluatedMaskWarning(UserWarning):
    """A mask_mod cannot be traced: it is evaluated for the lengths of each call."""


def evaluated(
    mask_mod: Callable[..., object], refused: MaskcError, at: SourceLoc | None
) -> nodes.Where | None:
    """Return the mask of a mask_mod that cannot be traced; None if it cannot be evaluated either.

    Args:
        refused: why it cannot be traced.
        at: where the mask is made.
    """
    if not isinstance(refused, BEYOND_TRACING):
        return None
    place = refused.at if isinstance(refused.at, SourceLoc) else at
    answers = _tried(mask_mod, place)
    if answers is None:
        return None
    warnings.warn(
        f"{place}: {refused.finding}. The mask is evaluated for the lengths of each call instead: "
        "its pairs are exact, but nothing is proved of it at other lengths, and new lengths, or "
        "tensors that were written into, evaluate all pairs again. exact=True refuses it.",
        EvaluatedMaskWarning,
        stacklevel=outside(),
    )
    names = "table0", "table1"
    tables = tuple(constant(name, 2, Computed(answers, n, 2)) for n, name in enumerate(names))
    return nodes.Where(kept_by_tiles(*names), tables, loc=at)


# ------------------------------------------------------------------ what a function reads


@dataclass
class _Reading:
    """Tensors that a function reads while it runs once, with two sequences and two heads."""

    places: dict[str, Any] = field(default_factory=dict)
    """The values that stand for b and h."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Numbers of sequences and heads of the tensors that b and h index."""
    tensors: dict[int, Any] = field(default_factory=dict)

    def call(self, function: Any, args: Any, named: Any) -> Any:
        """Note the tensors among the arguments of a function of torch."""
        for argument in _flat((args, named)):
            if _is_plain(argument):
                self.tensors[id(argument)] = argument
        if getattr(function, "__name__", "") == "__getitem__" and _is_plain(args[0]):
            self._indexed(*args)
        return function(*args, **(named or {}))

    def _indexed(self, tensor: Any, index: Any) -> None:
        for axis, part in enumerate(index if type(index) is tuple else (index,)):
            if part is None or part is Ellipsis:
                return
            for name, place in self.places.items():
                if part is place:
                    self.sizes[name] = max(self.sizes.get(name, 1), tensor.shape[axis])


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(tuple(value.values()))
    else:
        yield value


def _is_plain(value: Any) -> bool:
    """Whether it is an ordinary tensor with memory, not one batched by vmap."""
    if not isinstance(value, sys.modules["torch"].Tensor):
        return False
    try:
        value.data_ptr()
    except RuntimeError:
        return False
    return True


def _reading(torch: Any, seen: _Reading) -> AbstractContextManager[Any]:
    """While the function's calls of torch are noted."""

    def answer(_: object, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        return seen.call(function, args, named)

    mode: Callable[..., type] = type
    bases = (torch.overrides.TorchFunctionMode,)
    made: AbstractContextManager[Any] = mode("Reading", bases, {"__torch_function__": answer})()
    return made


def _tried(mask_mod: Callable[..., object], at: SourceLoc | None) -> EvaluatedMod | None:
    """Return a way to evaluate the function, or None if it fails or does not return booleans."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    values, seen = None, [_Reading(), _Reading()]
    for device in ("cpu", None):
        if device is None:
            others = [x.device for x in seen[0].tensors.values() if x.device.type != "cpu"]
            if not others:
                break
            device, seen = others[0], [_Reading(), _Reading()]
        try:
            for reading in seen:  # tensors that the function makes are others each time
                values = _once(torch, mask_mod, reading, device)
        except Exception:  # the error to raise is `refused`: why it was not traced
            values = None
            continue
        read = seen[0].tensors.keys() & seen[1].tensors.keys()
        tensors = tuple(seen[1].tensors[number] for number in read)
        elsewhere = [x.device for x in tensors if x.device.type != "cpu"]
        if device == "cpu" and elsewhere:
            continue
        if not isinstance(values, torch.Tensor) or values.dtype is not torch.bool:
            return None
        by = tuple(step != 0 for step in values.stride()[:2])
        sizes = tuple(seen[1].sizes.get(name) for name in "bh")
        return EvaluatedMod(mask_mod, tensors, str(device), by, sizes, at)
    return None


def _once(torch: Any, mask_mod: Callable[..., object], seen: _Reading, device: Any) -> Any:
    def noting(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen.places = {"b": b, "h": h}
        return mask_mod(b, h, q, k)

    first = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.no_grad(), _reading(torch, seen):
        return _on_all_pairs(torch, noting)(first, first, first, first)


def _on_all_pairs(torch: Any, mask_mod: Callable[..., object]) -> Callable[..., Any]:
    """The function of vectors of sequences, heads, queries and keys, as [b, h, q, k]."""
    mapped: Any = mask_mod
    for place in (3, 2, 1, 0):
        mapped = torch.vmap(mapped, in_dims=tuple(0 if n == place else None for n in range(4)))
    return mapped  # type: ignore[no-any-return]


# ------------------------------------------------------------------ evaluation


class EvaluatedMod(Evaluated):
    """A mask_mod with the tensors that it reads."""

    def __init__(
        self, mask_mod: Callable[..., object], tensors: tuple[Any, ...], device: str,
        by: tuple[bool, ...], sizes: tuple[int | None, ...], at: SourceLoc | None,
    ) -> None:  # fmt: skip
        """Evaluate nothing yet.

        Args:
            mask_mod: the function.
            tensors: the tensors that the function reads but does not create.
            device: where it runs.
            by: whether its pairs differ by sequence, and by head.
            sizes: the numbers of sequences and heads, if its tensors determine them.
            at: the source line of the part that cannot be traced.
        """
        super().__init__(tensors, at)
        self._mask_mod, self._device, self._by, self._sizes = mask_mod, device, by, sizes

    @property
    def sequences(self) -> int:
        """The number of sequences with pairs of their own.

        Raises:
            SequencesUnknown: their number is unknown (MC134).
        """
        if self._by[0] and self._sizes[0] is None:
            raise SequencesUnknown(at=self.at)
        return (self._sizes[0] or 1) if self._by[0] else 1

    @property
    def heads(self) -> int:
        """The number of heads with pairs of their own.

        Raises:
            HeadsUnknown: their number is unknown.
        """
        if self._by[1] and self._sizes[1] is None:
            raise HeadsUnknown(at=self.at)
        return (self._sizes[1] or 1) if self._by[1] else 1

    def what_decides(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[int, ...]:
        """The lengths, and the numbers of sequences and heads if pairs differ between them."""
        return batch if self._by[0] else 1, heads if self._by[1] else 1, n_q, n_kv

    def evaluate(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
        """Numbers of tiles [sequences, heads, rows, columns], and rows of the tiles [.., 64].

        Raises:
            MaskModFailed: the function raised (MC135).
        """
        if 0 in (batch, heads, n_q, n_kv):
            return np.zeros((1, 1, 1, 1), np.int32), np.zeros((2 * TILE, TILE), np.int32)
        call = self.what_decides(batch, heads, n_q, n_kv)
        try:
            kinds, tiles = tiles_of(self._stretches(*call))
        except Exception as error:
            finding = f"{type(error).__name__}: {error}".splitlines()[0]
            raise MaskModFailed(finding, batch, heads, n_q, n_kv, at=self.at) from error
        return kinds, tiles.reshape(-1, TILE)

    def _stretches(self, batch: int, heads: int, n_q: int, n_kv: int) -> Iterator[np.ndarray]:
        """Booleans [sequences, heads, queries, n_kv] of one stretch of queries after the other."""
        torch = sys.modules["torch"]
        b, h, k = (torch.arange(size, device=self._device) for size in (batch, heads, n_kv))
        step = max(1, _PAIRS // (batch * heads * n_kv) // TILE) * TILE
        run = _on_all_pairs(torch, self._mask_mod)
        with torch.no_grad():
            for first in range(0, n_q, step):
                q = torch.arange(first, min(first + step, n_q), device=self._device)
                yield run(b, h, q, k).cpu().numpy()
