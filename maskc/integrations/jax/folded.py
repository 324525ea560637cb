"""vmap: a mapped axis of q, k and v becomes more sequences; other calls run one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from maskc.integrations.jax.traced_call import TracedCall

_ROWS = {"q", "k", "v", "out", "lse", "dout"}


def batched(
    operation: Any, names_of: Callable[[TracedCall], tuple[str, ...]], of_rows: range,
    arrays: Sequence[Any], axes: Sequence[int | None], *, call: TracedCall,
) -> tuple[Any, Any]:  # fmt: skip
    """The batching rule of an operation.

    Sequences fold where only arrays of rows have the mapped axis and nothing else of the call tells
    sequences apart: data and tables then serve all of them.
    """
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    names = names_of(call)
    in_front = [
        x if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arrays, axes, strict=True)
    ]
    folds = not call.tells_sequences and all(
        axis is None or name in _ROWS for name, axis in zip(names, axes, strict=True)
    )
    if folds and len(of_rows) > 1:  # gradients per head would be added up over the mapped axis
        folds = not (call.slopes or call.sinks)
    if not folds:
        return _one_after_another(operation, in_front, axes, call)
    given = []
    for name, x, axis in zip(names, in_front, axes, strict=True):
        if name not in _ROWS:
            given.append(x)
            continue
        whole = jnp.broadcast_to(x, (size, *x.shape)) if axis is None else x
        given.append(whole.reshape(size * whole.shape[1], *whole.shape[2:]))
    results = operation.bind(*given, call=call)
    sequences = next(
        x.shape[0] if axis is None else x.shape[1]
        for name, x, axis in zip(names, in_front, axes, strict=True)
        if name == "q"
    )
    return [x.reshape(size, sequences, *x.shape[1:]) for x in results], [0] * len(results)


def _one_after_another(
    operation: Any, arrays: Sequence[Any], axes: Sequence[int | None], call: TracedCall
) -> tuple[Any, Any]:
    mapped = [x for x, axis in zip(arrays, axes, strict=True) if axis is not None]

    def run(rows: list[Any]) -> Any:
        rest = iter(rows)
        given = [x if axis is None else next(rest) for x, axis in zip(arrays, axes, strict=True)]
        return operation.bind(*given, call=call)

    results = jax.lax.map(run, mapped)
    return list(results), [0] * len(results)
