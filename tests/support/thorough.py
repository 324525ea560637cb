"""Choose how much is tried: in CI what finds a mistake soon, with `pytest --thorough` all of it.

`make matrix` is thorough: as many random examples as a test names, and C kernels with the flags
that the package gives its compiler.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "MASKC_THOROUGH"
"""The environment variable that `--thorough` sets, before tests are imported."""
THOROUGH = VARIABLE in os.environ
OPTIMISED = "-O3" if THOROUGH else "-O0"
"""Optimisation of C kernels: by -O3, the package's own, in six times as long. Their text and
all other flags are the same. Tests marked `shipped_flags` compile with -O3 always, and so do
processes that a test starts without the fixture `soon_elsewhere`."""


def soon(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The compiler's flags with as much optimisation as `OPTIMISED` says. Without any, no function
    is inlined: an eighth less time to compile."""
    plain = () if THOROUGH else ("-Dalways_inline=unused",)
    return tuple(OPTIMISED if flag == "-O3" else flag for flag in flags) + plain


def compile_soon_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that start from now on optimise C kernels as `OPTIMISED` says."""
    if not THOROUGH:
        monkeypatch.setenv("CC", shlex.quote(str(Path(__file__).with_name("soon_cc"))))


def examples(count: int) -> int:
    """Examples of a property: `count` where a run is thorough, else a quarter, at least three."""
    return count if THOROUGH else min(count, max(3, count // 4))


def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run is not thorough, torch.compile makes its graphs and runs them as they are: to
    compile one of FlexAttention in C++ takes half a minute."""
    import torch

    if not THOROUGH:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def more(*values: Any) -> Any:
    """A parameter that only `make matrix` tries: others reach every branch of the text that it
    runs, which differs from theirs in constants."""
    return pytest.param(*values, marks=pytest.mark.matrix)


def chiefly(values: Sequence[Any], *usual: Any) -> list[Any]:
    """The values as parameters: CI tries the `usual` ones, which reach what the others reach;
    `make matrix` tries all."""
    missing = [value for value in usual if value not in values]
    if missing:
        raise ValueError(f"not among the values: {missing}")
    return [value if value in usual else more(value) for value in values]


def alternating(*axes: Sequence[Any]) -> list[Any]:
    """Every other combination of the axes' values, as parameters, like the dark fields of a board.

    Of two axes each value of one meets every other value of the other; of three, any two values
    meet. `make matrix` tries the rest, and values that are `more`.
    """
    made = []
    for place in product(*map(enumerate, axes)):
        rare = sum(number for number, _ in place) % 2 > 0
        values = []
        for _, value in place:
            if marks := getattr(value, "marks", ()):
                (value,) = value.values
            rare = rare or bool(marks)
            values.append(value)
        made.append(more(*values) if rare else pytest.param(*values))
    return made


def each(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of the axes' values, as parameters: CI tries each value of the first axis
    once, with those of the others in turn; `make matrix` tries the rest."""
    turns = {
        (value, *(axis[place // step % len(axis)] for step, axis in enumerate(axes[1:], 1)))
        for place, value in enumerate(axes[0])
    }
    return [pytest.param(*x) if x in turns else more(*x) for x in product(*axes)]


def pairwise(
    *axes: Sequence[Any], never: Sequence[Any] = (), tried: Sequence[Any] | None = None
) -> list[Any]:
    """All combinations of the axes' values, as parameters, but those with both values of a pair of
    `never`.

    CI tries enough of them that any value of one axis meets any of another; `make matrix` tries
    the rest. So what goes wrong for two values together shows in CI, and what takes three there.
    Where values need not meet, as what they decide lies apart, CI has those of `tried` alone.
    """
    every = [
        place for place in product(*map(range, map(len, axes)))
        if not any(
            {one, other} <= {axis[i] for axis, i in zip(axes, place, strict=True)}
            for one, other in never
        )
    ]  # fmt: skip
    values = {place: tuple(axis[i] for axis, i in zip(axes, place, strict=True)) for place in every}
    if tried is None:
        met = {place: set(combinations(enumerate(place), 2)) for place in every}
        missing, tried = set().union(*met.values()), []
        while missing:
            best = max(every, key=lambda place: len(met[place] & missing))
            tried.append(values[best])
            missing -= met[best]
    elif unknown := [each for each in tried if each not in values.values()]:
        raise ValueError(f"no such combinations: {unknown}")
    return [pytest.param(*x) if x in tried else more(*x) for x in values.values()]
