"""Read the options of a call, and derive the features that they need."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

from maskc.core.errors import BadOption
from maskc.core.problem import Direction, Feature, Features
from maskc.core.tensors import Order


class Pages(NamedTuple):
    """Memory layout of the pools of a call."""

    in_pool: int
    """Pages of a pool."""
    k: tuple[int, int, int]
    """Elements from one page, head and token to the next."""
    v: tuple[int, int, int]


class PlanOptions(NamedTuple):
    """The options of a call that its plan depends on."""

    names: tuple[str, ...]
    """The names of the arrays that are given, in order."""
    no_softcap: bool
    alpha_minus_1: float
    """Entmax's alpha - 1; 0.0 is softmax."""
    nan_safe: bool
    deterministic: bool = False
    pages: Pages | None = None
    """Layout of keys and values in pages; None if tokens lie one after another."""
    accumulates: bool = False
    """Whether results are merged with results over other keys, which are already in the output."""
    order: Order | None = None
    """Order of the axes of the caller's tensors; None: as kernels take them."""

    @property
    def direction(self) -> Direction:
        """The pass."""
        return Direction.backward if "lse" in self.names else Direction.forward

    @property
    def features(self) -> Features:
        """Return the features to compile.

        Raises:
            BadOption: sink logits with entmax.
        """
        asked = {
            Feature.softcap: not self.no_softcap,
            Feature.alibi: "alibi_slopes" in self.names,
            Feature.sinks: "sink_logits" in self.names,
            Feature.entmax: self.alpha_minus_1 > 0,
            Feature.nan_safe: self.nan_safe,
        }
        if asked[Feature.entmax] and asked[Feature.sinks]:
            raise sinks_with_entmax()
        return frozenset(feature for feature, wanted in asked.items() if wanted)


plan_options = lru_cache(maxsize=1024)(PlanOptions)
"""Equal options as one object: looking it up takes less than making it."""


@lru_cache(maxsize=1024)
def over_pages(options: PlanOptions, pages: Pages) -> PlanOptions:
    """The options of a call whose keys lie in pages."""
    return options._replace(pages=pages)


@lru_cache(maxsize=1024)
def joining(options: PlanOptions) -> PlanOptions:
    """The options of a call that joins its results with earlier ones."""
    return options._replace(accumulates=True)


def alpha_less_1(normalizer: str, alpha: Any) -> float:
    """alpha - 1 of a call, as the fp32 value a kernel gets; 0 is softmax.

    Raises:
        BadOption: an unknown normalizer; an alpha of softmax, or one that is not in 1 .. 2.
    """
    if normalizer == "softmax":
        if alpha is not None:
            raise BadOption("alpha", "left out with normalizer='softmax'", alpha, at="alpha")
        return 0.0
    if normalizer != "entmax":
        wanted = "'softmax' or 'entmax'"
        raise BadOption("normalizer", wanted, repr(normalizer), at="normalizer")
    if alpha is None:
        return 0.5
    real = isinstance(alpha, Real) and not isinstance(alpha, bool)
    if not real or not 1 <= alpha <= 2:
        raise BadOption("alpha", "a number in 1 .. 2", repr(alpha), at="alpha")
    return ctypes.c_float(float(alpha) - 1).value


def sinks_with_entmax() -> BadOption:
    """Return the error for sink logits with entmax."""
    wanted = "left out with normalizer='entmax', which has no denominator"
    return BadOption("sink_logits", wanted, "sink logits", at="sink_logits")


SOFTCAPS = 1e-30, 1e30
"""The least and the largest soft-cap: beyond, its inverse or its double is not a fp32 number."""


def number(name: str, value: object, positive: bool) -> float:
    """An option as the fp32 value a kernel gets.

    Raises:
        BadOption: not a finite number in fp32, or not one of SOFTCAPS where it must be positive.
    """
    least, most = SOFTCAPS
    wanted = f"a number in {least:g} .. {most:g}" if positive else "a finite number"
    # Most are floats, which are spared the look at Real.
    if not isinstance(value, float) and (isinstance(value, bool) or not isinstance(value, Real)):
        kind = f"{type(value).__name__} {value!r}"
        raise BadOption(name, wanted, kind, f"pass a plain number: {name}=0.5", at=name)
    try:
        given = float(value)
        rounded = ctypes.c_float(given).value
    except OverflowError:  # an integer or a fraction beyond 64 bits of floating point
        raise BadOption(name, wanted, f"one beyond {sys.float_info.max:.2g}", at=name) from None
    if not math.isfinite(rounded) or (positive and not least <= given <= most):
        raise BadOption(name, wanted, value, f"leave {name} out for its default", at=name)
    return rounded


def numbers(scale: object, softcap: object) -> tuple[float | None, float | None]:
    """Both options as kernels get them; None stays.

    Raises:
        BadOption: see `number`; or their quotient, which kernels multiply by, leaves fp32.
    """
    factor = None if scale is None else number("scale", scale, positive=False)
    cap = None if softcap is None else number("softcap", softcap, positive=True)
    if factor is not None and cap is not None and abs(factor) > cap * SOFTCAPS[1]:
        wanted = f"at least {abs(factor) / SOFTCAPS[1]:.3g} with scale={factor:g}"
        raise BadOption("softcap", wanted, softcap, at="softcap")
    return factor, cap


def features_named(names: Iterable[Feature | str]) -> frozenset[Feature]:
    """Features by name.

    Raises:
        BadOption: an unknown name.
    """
    if isinstance(names, str):
        names = (names,)
    features = set()
    for name in names:
        if not isinstance(name, Feature) and name not in Feature.__members__:
            known = ", ".join(Feature.__members__)
            raise BadOption("features", f"names from {known}", repr(name), at="features")
        features.add(name if isinstance(name, Feature) else Feature[name])
    return frozenset(features)
