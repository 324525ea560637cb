"""Measured choices: time every program of a call on this machine, and remember the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from maskc.core.bundle import DEFAULT, PACK_GQA, Bundle
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction
from maskc.dispatch.programs import PARTS
from maskc.dispatch.selector import tuning_key
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.tuned import remember
from maskc.verify.timing import Timed, take_turns

_ROUNDS, _SECONDS = 10, 0.2
"""Rounds of the timing, and seconds for one program in all rounds."""
_TOLERANCE = 2e-2
"""Relative difference from which two results are called different."""


@dataclass(frozen=True)
class TunedPass:
    """Measurements of one pass."""

    direction: str
    """`forward` or `backward`."""
    milliseconds: Mapping[str, float]
    """Median time of every program that can run the call, by name."""
    chosen: str
    """The program that the cost model chose."""
    fastest: str
    """The program that calls of these lengths take from now on."""

    def __str__(self) -> str:
        lines = [f"{self.direction}:"]
        for name, ms in sorted(self.milliseconds.items(), key=lambda item: item[1]):
            notes = [note for note, best in (("fastest", self.fastest), ("predicted", self.chosen))
                     if best == name]  # fmt: skip
            lines.append(f"  {name:<36} {ms:9.4f} ms  {', '.join(notes)}".rstrip())
        return "\n".join(lines)


def tune(
    attn: CompiledMask, q: Any, k: Any, v: Any, *, backward: bool = False, **options: Any
) -> tuple[TunedPass, ...]:
    """Time every program that can run a call, and let calls of these lengths take the fastest.

    The choice is stored in the cache folder for this card, so later processes take it too. It
    depends on lengths and options alone: results never depend on the other sequences of a batch. A
    program is excluded if its output differs from that of the predicted one.

    Args:
        attn: a compiled mask.
        q: queries [B, Hq, Nq, D], as in a call.
        k: keys [B, Hkv, Nkv, D].
        v: values [B, Hkv, Nkv, Dv].
        backward: also tune the backward pass, with out as dout.
        **options: further options and data of the call, such as `softcap=` or `doc=`. With
            `deterministic=True` the programs of deterministic backward passes are compared.

    Returns:
        One report for each pass; print it to see all times.

    Raises:
        MaskcError: whatever the call itself raises.
    """
    deterministic = bool(options.pop("deterministic", False))
    q, k, v = (x.detach() if hasattr(x, "detach") else x for x in (q, k, v))
    out, lse = attn(q, k, v, return_lse=True, **options)

    def forward(compiled: CompiledMask) -> Any:
        return compiled(q, k, v, return_lse=True, **options)

    def gradients(compiled: CompiledMask) -> Any:
        return compiled.backward(q, k, v, out, lse, out, deterministic=deterministic, **options)

    lengths = q.shape[2], k.shape[2]
    passes = [
        _tuned(attn, Direction.forward, forward, tuning_key(Direction.forward, False, *lengths))
    ]
    if backward:
        key = tuning_key(Direction.backward, deterministic, *lengths)
        passes.append(_tuned(attn, Direction.backward, gradients, key))
    remember(attn.bundle, attn.target, attn.tuned)
    return tuple(passes)


def _tuned(
    attn: CompiledMask, direction: Direction, call: Callable[[CompiledMask], Any], key: str
) -> TunedPass:
    """Time the programs of one pass, and let `attn` take the fastest."""
    predicted = _with_choices(attn, {})
    want = call(predicted)
    chosen = _ran(predicted, direction)
    timed = {chosen: Timed(partial(call, predicted))}
    for name in _names(attn.bundle, attn.target.name, direction):
        tuned = _with_choices(attn, {key: name})
        with suppress(MaskcError):  # a program that cannot run this call
            got = call(tuned)
            if name != chosen and _ran(tuned, direction) == name and _alike(got, want):
                timed[name] = Timed(partial(call, tuned))
    device = "cpu" if attn.target.language == "c" else "cuda"
    ms = take_turns(timed, _ROUNDS, device, _SECONDS)
    fastest = min(ms, key=lambda name: ms[name])
    attn.tuned[key] = fastest
    attn.forget_plans()
    return TunedPass(direction.value, ms, chosen, fastest)


def _names(bundle: Bundle, target: str, direction: Direction) -> list[str]:
    """The names of all programs of a pass."""
    names = [
        f"{unit.key} {mode}"
        for unit in bundle.choice(target, direction)
        for mode in dict(unit.modes) or (DEFAULT,)
        if mode != PACK_GQA
    ]
    return [*names, PARTS] if bundle.parts else names


def _with_choices(attn: CompiledMask, choices: Mapping[str, str]) -> CompiledMask:
    """Return a copy of the mask with its own measured choices."""
    chosen = CompiledMask(attn.bundle, attn.target.name, held=attn.held, inputs=attn.inputs)
    chosen.tuned.clear()
    chosen.tuned.update(choices)
    return chosen


def _ran(attn: CompiledMask, direction: Direction) -> str:
    """The program of the last call."""
    if attn.ran_in_parts:
        return PARTS
    keys = {unit.key for unit in attn.bundle.choice(attn.target.name, direction)}
    names = [name if " " in name else f"{name} {DEFAULT}" for name in attn.last_sources]
    return next((name for name in names if name.rpartition(" ")[0] in keys), "")


def _alike(one: Any, other: Any) -> bool:
    """Whether two results are equal up to rounding."""
    return all(_difference(a, b) < _TOLERANCE for a, b in zip(one, other, strict=True))


def _difference(a: Any, b: Any) -> float:
    """Relative difference of two arrays, where the second one is finite."""
    finite = abs(b) < math.inf
    size, error = (float((x[finite] ** 2).sum()) for x in (b, a - b))
    return math.sqrt(error / max(size, 1e-30))


def clear_tuned(attn: CompiledMask) -> None:
    """Delete the measurements of `tune` for a mask on this card; calls follow the cost model again.

    Args:
        attn: the compiled mask that `tune` was called with.
    """
    attn.tuned.clear()
    attn.forget_plans()
    remember(attn.bundle, attn.target, {})
