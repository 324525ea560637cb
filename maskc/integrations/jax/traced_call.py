"""A call under JAX's tracing: one hashable value with everything static, and a list of arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from maskc.api import _compiled
from maskc.core import expr as E
from maskc.core.data import CuSeqlens, Parents
from maskc.core.dropout import RATE, SEED
from maskc.core.errors import DataRange, NotTraced
from maskc.core.score import B, Formula, Inputs
from maskc.core.tensors import PAPER, Device, contiguous
from maskc.dsl.mask import Mask
from maskc.dsl.score_tracer import Score
from maskc.dsl.slots import emptied
from maskc.integrations.jax.jax_keywords import is_elsewhere, keyword_hint
from maskc.runtime import CompiledMask
from maskc.runtime.launch.recording import Blank

LAYOUTS = {"bnhd": (0, 2, 1, 3), "bhnd": (0, 1, 2, 3)}
"""The axis orders of the caller's arrays (sequences, heads, tokens, dimensions); each is its own
inverse."""
_QKV = ("q", "k", "v")
_OF_ROWS = {*_QKV, "out", "dout"}


class GivenArray(NamedTuple):
    """An array of the caller's data."""


class GivenNumber(NamedTuple):
    """A number of the caller's data."""

    value: int | float | bool


class GivenTogether(NamedTuple):
    """Several arrays passed under one keyword."""

    parts: tuple[Any, ...]


class GivenLengths(NamedTuple):
    """See `mc.cu_seqlens`."""

    inside: Any
    most: int | None


class GivenParents(NamedTuple):
    """See `mc.parents`."""

    inside: Any


class TracedScore(NamedTuple):
    """A score formula without its arrays, which are given like all others."""

    formula: Formula
    names: tuple[str, ...]
    defaults: tuple[tuple[str, float | int], ...]
    text: str
    mask: Mask | None

    @classmethod
    def of(cls, score: Score) -> TracedScore:
        inputs = score.inputs
        return cls(
            inputs.formula, inputs.names, tuple(inputs.defaults.items()), inputs.text, score.mask
        )

    @property
    def score(self) -> Score:
        inputs = Inputs(self.formula, self.names, dict(self.defaults), {}, self.text)
        return Score(inputs, self.mask)

    @property
    def trainable(self) -> tuple[str, ...]:
        return Inputs(self.formula, self.names).trainable


@dataclass(frozen=True)
class TracedCall:
    """All of a call except its arrays."""

    mask: Mask
    score: TracedScore | None
    layout: str
    scale: float | None
    softcap: float | None
    deterministic: bool
    rate: int | None
    """The dropout probability; None for a call without dropout."""
    slopes: bool
    sinks: bool
    data: tuple[tuple[str, Any], ...]
    """Keywords, and how arrays and numbers lie in each."""

    @property
    def reads_data(self) -> bool:
        """Whether arrays of data are given, not counting tables of a formula."""
        return any(name not in self.tables and _leaves(value) for name, value in self.data)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables of the formula that may have a gradient."""
        return () if self.score is None else self.score.trainable

    @property
    def tells_sequences(self) -> bool:
        """Whether sequences of a call may be treated differently, by their numbers or by data."""
        _, held = emptied(self.mask)
        formula = () if self.score is None else E.walk(self.score.formula.logit)
        by_number = B in formula or (held is not None and held.sequences > 1)
        return by_number or self.rate is not None or bool(self.data)

    @property
    def trained(self) -> tuple[str, ...]:
        """Tables that are given as arrays, in the order in which the formula reads them."""
        given = {name for name, value in self.data if _leaves(value)}
        return tuple(name for name in self.tables if name in given)

    @property
    def with_gradients(self) -> tuple[str, ...]:
        """Further arrays with gradients, in the order in which a backward pass returns them."""
        return (*["sink_logits"] * self.sinks, *["alibi_slopes"] * self.slopes, *self.trained)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays behind q, k and v; one name of data may stand for several."""
        names = ["alibi_slopes"] * self.slopes + ["sink_logits"] * self.sinks
        for name, value in self.data:
            names += [name] * _leaves(value)
        return (*names, *[SEED] * (self.rate is not None))

    def compiled(
        self, head_dim: int, head_dim_v: int, heads: int, dtype: str, device: Device
    ) -> Any:
        """The compiled mask of such a call."""
        score_option = {} if self.score is None else {"score": self.score.score}
        compiled: CompiledMask = _compiled(
            self.mask, head_dim, head_dim_v, heads, dtype, device, **score_option
        )
        return compiled if self.rate is None else compiled.dropping

    def arrays_among(self, names: Iterable[str]) -> list[str]:
        """Return the names for which the call has arrays."""
        data = dict(self.data)
        return [name for name in names if name in data and _leaves(data[name])]

    def keywords(self, arrays: Sequence[Any]) -> tuple[Any, Any, dict[str, Any]]:
        """(slopes, sinks, data) of a call whose arrays behind q, k and v are these."""
        rest = iter(arrays)
        slopes = next(rest) if self.slopes else None
        sinks = next(rest) if self.sinks else None
        data = {name: _filled(value, rest) for name, value in self.data}
        if self.rate is not None:
            data |= {RATE: self.rate, SEED: next(rest)}
        return slopes, sinks, data


# ------------------------------------------------------------------ data


def taken_apart(data: Mapping[str, Any]) -> tuple[tuple[tuple[str, Any], ...], list[Any]]:
    """(how arrays and numbers lie in each keyword, the arrays).

    Raises:
        NotTraced: something that is neither.
    """
    arrays: list[Any] = []
    return tuple((name, _apart(name, x, arrays)) for name, x in data.items()), arrays


def _apart(name: str, x: Any, arrays: list[Any]) -> Any:
    if isinstance(x, (bool, int, float)):
        return GivenNumber(x)
    if isinstance(x, (np.bool_, np.integer, np.floating)):
        return GivenNumber(x.item())
    if isinstance(x, CuSeqlens):
        most = None if x.max_seqlen is None else _index(f"max_seqlen of {name}", x.max_seqlen)
        return GivenLengths(_apart(name, x.array, arrays), most)
    if isinstance(x, Parents):
        return GivenParents(_apart(name, x.array, arrays))
    if isinstance(x, (tuple, list)):
        return GivenTogether(tuple(_apart(name, part, arrays) for part in x))
    if isinstance(x, (jax.Array, np.ndarray)) and not _is_key(x):
        arrays.append(_of_jax(name, x))
        return GivenArray()
    finding = f"a {type(x).__name__}"
    hint = keyword_hint(name) if is_elsewhere(name) else "pass an array of JAX or NumPy"
    raise NotTraced(name, finding, hint, at=name)


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _of_jax(name: str, x: Any) -> jax.Array:
    """An array of JAX, which may have no integers of 64 bits.

    Raises:
        DataRange: JAX would cut a value off.
    """
    made = jnp.asarray(x)
    cut = made.dtype.itemsize < x.dtype.itemsize and np.issubdtype(x.dtype, np.integer)
    if cut and not np.array_equal(np.asarray(x).astype(made.dtype), x):
        finding = f"values reach {x.min()} and {x.max()}, and JAX has integers of 32 bits"
        raise DataRange(name, finding, "number from 0, or set jax_enable_x64", at=name)
    return made


def _index(name: str, x: Any) -> int:
    try:
        return operator.index(x)
    except (TypeError, jax.errors.ConcretizationTypeError):
        raise NotTraced(name, "traced", "pass a plain integer", at=name) from None


def _leaves(value: Any) -> int:
    match value:
        case GivenArray():
            return 1
        case GivenTogether(parts):
            return sum(map(_leaves, parts))
        case GivenLengths(inside, _) | GivenParents(inside):
            return _leaves(inside)
    return 0


def _filled(place: Any, arrays: Iterator[Any]) -> Any:
    match place:
        case GivenNumber(value):
            return value
        case GivenTogether(parts):
            return tuple(_filled(part, arrays) for part in parts)
        case GivenLengths(inside, most):
            return CuSeqlens(_filled(inside, arrays), most)
        case GivenParents(inside):
            return Parents(_filled(inside, arrays))
    return next(arrays)


# ------------------------------------------------------------------ arrays for kernels


def heads_first(x: Any, layout: str) -> Any:
    """An array of the caller's as [B, H, N, D], and back."""
    return x.transpose(LAYOUTS[layout])


def shape_first(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape [B, H, N, D] of such an array, and back."""
    return tuple(shape[axis] for axis in LAYOUTS[layout])


def blanks(names: Sequence[str], arrays: Sequence[Any], layout: str, platform: str) -> list[Any]:
    """Arrays without memory that stand for those of a call, which are in C order.

    Args:
        names: of the arrays; those of rows are [B, N, H, D] or [B, H, N, D], as the layout says.
        arrays: what has a shape and a dtype.
    """
    device = ("cpu" if platform == "cpu" else "cuda", PAPER)
    made = []
    for number, (name, x) in enumerate(zip(names, arrays, strict=True)):
        shape, dtype = tuple(x.shape), np.dtype(x.dtype).name
        strides = contiguous(shape)
        if name in _OF_ROWS:
            shape, strides = shape_first(shape, layout), shape_first(strides, layout)
        elif name == SEED:
            shape, strides, dtype = (1,), (1,), "int64"
        made.append(Blank(number, shape, strides, dtype, device))
    return made
