"""The constants of a mask's formulas for one call: their values, their width, and lists of ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from maskc.core import widths
from maskc.core.bundle import Bundle, IdList, SourceUnit, Variant
from maskc.core.errors import DataRange
from maskc.core.expr import Expr

_MAX_BITS = 1 << 33
"""Limit on the values of a list of ids."""

FORESEEN = 1 << 20
"""The longest sequences, and the largest values of data, that kernels are built ahead for."""

Values = Mapping[str, int]
"""The values of n_q, n_kv and every parameter."""


Extremes = Callable[[str], int]
"""The largest magnitude in an array, by its name."""


def any_int32(_: str) -> int:
    """The largest magnitude in an array that the host does not see."""
    return widths.INT32 + 1


def extremes_of(arrays: Mapping[str, object]) -> Extremes:
    """The largest magnitude in each of a call's arrays; of those that the host never sees, any."""

    def extreme(name: str) -> int:
        array = arrays.get(name)
        if not isinstance(array, np.ndarray):
            return any_int32(name) if array is None else 1  # run-time selections are bits
        return max(-int(array.min()), int(array.max())) if array.size else 0

    return extreme


@dataclass(frozen=True, eq=False)
class Constants:
    """Constants that a kernel reads as `mask_args`."""

    words: np.ndarray
    """int32: for each mask its formula's number, where its lists begin, and its constants, of one
    word each or, if wide, of two; behind them the lists."""
    wide: bool
    """Whether formulas are computed in 64 bits."""


def constants(
    bundle: Bundle, unit: SourceUnit, variants: Sequence[Variant], values: Values,
    extremes: Extremes, large: bool = False,
) -> Constants:  # fmt: skip
    """The constants of a call's distinct masks.

    Args:
        bundle, unit: what was compiled.
        variants: the masks, in the order of the kernel's lists.
        values: lengths and parameters.
        extremes: the largest magnitude in an array, by its name.
        large: whether something else than the formulas' values needs 64 bits.

    Raises:
        DataRange: something that the mask computes does not fit 64 bits.
    """
    arguments = [arguments_of(v.args, v.rests, values, extremes) for v in variants]
    rows, columns = unit.tiles(values["n_q"], values["n_kv"])
    named = {**values, "ti": rows, "tj": columns}
    most = max(
        reached(unit.reach[v.shape : v.shape + 1], named, args, extremes)
        for v, args in zip(variants, arguments, strict=True)
    )
    wide = large or most > widths.INT32
    n_args = max(len(variant.args) for variant in bundle.variants)
    n_lists = max(len(variant.lists) for variant in bundle.variants)
    table = np.zeros((len(variants), 1 + n_lists + n_args * (1 + wide)), np.int32)
    kept: dict[tuple[IdList, ...], list[int]] = {}
    lists: list[np.ndarray] = []
    end = table.size
    for row, variant, args in zip(table, variants, arguments, strict=True):
        row[0] = variant.shape
        places = kept.get(variant.lists)
        if places is None:
            places = kept[variant.lists] = []
            for bounds in variant.lists:
                lists.append(_bits(bounds, values))
                places.append(end)
                end += len(lists[-1])
        row[1 : 1 + len(places)] = places
        words = np.array(args, np.int64 if wide else np.int32).view(np.int32)
        row[1 + n_lists : 1 + n_lists + len(words)] = words
    return Constants(table if not lists else np.concatenate([table.ravel(), *lists]), wide)


def lengths_widen(bundle: Bundle, unit: SourceUnit) -> bool:
    """Whether some of the lengths that are foreseen make a formula leave 32 bits."""
    values = {**dict(bundle.params), "n_q": FORESEEN, "n_kv": FORESEEN}
    rows, columns = unit.tiles(FORESEEN, FORESEEN)
    named = {**values, "ti": rows, "tj": columns}
    arguments = [(v, arguments_of(v.args, v.rests, values, _foreseen)) for v in bundle.variants]
    try:
        return any(
            reached(unit.reach[v.shape : v.shape + 1], named, args, _foreseen) > widths.INT32
            for v, args in arguments
        )
    except DataRange:  # of lengths that are refused; shorter ones are not
        return True


def _foreseen(_: str) -> int:
    return FORESEEN


def arguments_of(
    args: Sequence[Expr], rests: Sequence[Expr | None], values: Values, extremes: Extremes
) -> list[int]:
    """The values of a formula's constants. One that is only compared with something else is not
    a farther from it than it must be: windows of 2^40 keys then fit 32 bits."""
    raw = [widths.number(arg, values) for arg in args]
    env = _Magnitudes(values, raw, extremes)
    numbers = []
    for value, rest in zip_longest(raw, rests[: len(raw)]):
        if rest is not None:
            most = widths.number(rest, env) + 1
            value = max(-most, min(value, most))
        numbers.append(value)
    return numbers


def reached(
    bounds: Sequence[Expr], values: Values, args: Sequence[int], extremes: Extremes = any_int32
) -> int:
    """The largest magnitude among what is computed, and among the constants.

    Raises:
        DataRange: it does not fit 64 bits.
    """
    env = _Magnitudes(values, args, extremes)
    reaches = (widths.number(bound, env) for bound in bounds)
    most = max(0, *reaches, *map(abs, args)) if bounds or args else 0
    if most > widths.SAFE:
        raise too_wide(most, values)
    return most


def too_wide(most: int, values: Values, limit: int = widths.SAFE) -> DataRange:
    """Return the error for values beyond 64 bits, or beyond 32 if kernels have no wider
    integers."""
    given = sorted((name, value) for name, value in values.items() if name not in ("ti", "tj"))
    named = ", ".join(f"{name}={value}" for name, value in given)
    return DataRange(
        "the mask", f"its formula may reach {most} at {named}, beyond {limit}",
        "use smaller coefficients, parameters or data",
    )  # fmt: skip


class _Magnitudes(dict[str, int]):
    """The largest magnitude of every symbol; of arrays it is found when asked for."""

    def __init__(self, values: Values, args: Sequence[int], extremes: Extremes) -> None:
        super().__init__({name: abs(value) for name, value in values.items()})
        self["q"], self["k"] = (max(0, values[name] - 1) for name in ("n_q", "n_kv"))
        self.update({f"c{number}": abs(value) for number, value in enumerate(args)})
        self._extremes = extremes

    def __missing__(self, name: str) -> int:
        self[name] = pair = self._extremes(name)
        return pair


def _bits(ids: IdList, values: Values) -> np.ndarray:
    """int32 words: a bit for each value from the least one on."""
    low, high = (widths.number(end, values) for end in (ids.low, ids.high))
    count = max(0, high - low + 1)
    if count > _MAX_BITS:
        finding = f"its list of ids is looked up at {low}..{high}"
        raise DataRange("the mask", finding, "use shorter lengths, or smaller coefficients")
    bits = np.zeros(32 * -(-(count + 1) // 32), dtype=bool)
    for first, last in ids.ranges:
        bits[max(0, first - low) : max(0, min(last, high) - low + 1)] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
