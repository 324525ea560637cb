"""Two operations of JAX, forward and backward, and what XLA runs for them.

How a call runs is decided when XLA's program is made: then the platform is known, and all shapes.
The call is made on paper, and what it launches becomes one custom call. If that cannot be, on
CPUs, the host calls the compiled mask with NumPy arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.dropout import RATE, SEED
from maskc.core.errors import (
    DataUnknown,
    MaskcError,
    NoCompiler,
    NotAnArray,
    NotExported,
    NotRecorded,
    NotTraced,
    OnlyOneDerivative,
)
from maskc.core.sizes import Sizes
from maskc.integrations.jax import native
from maskc.integrations.jax.folded import batched
from maskc.integrations.jax.jax_keywords import unknown_here
from maskc.integrations.jax.traced_call import TracedCall, blanks, heads_first, shape_first
from maskc.runtime.launch.recording import MADE, Recording, recording

_QKV = ("q", "k", "v")
_BACKWARD = (*_QKV, "out", "lse", "dout")
HEAD = {"forward": len(_QKV), "backward": len(_BACKWARD)}
"""Arrays of each operation before slopes, sinks, data and the seed."""


# ------------------------------------------------------------------ one pass over arrays


def _names(which: str, call: TracedCall) -> tuple[str, ...]:
    return (*(_QKV if which == "forward" else _BACKWARD), *call.names)


def _run(which: str, call: TracedCall, attn: Any, arrays: list[Any]) -> Any:
    """The pass of a compiled mask, of arrays [B, H, N, D]."""
    head = HEAD[which]
    slopes, sinks, data = call.keywords(arrays[head:])
    q, k, v, *results = arrays[:head]
    options = CallOptions(
        call.scale, True, call.softcap, slopes, sinks, deterministic=call.deterministic
    )
    given = AttentionCall(q, k, v, options, data)
    if which == "forward":
        return attn.run(given)
    out, lse, dout = results
    return attn.differentiate(
        given._replace(out=out, lse=lse, dout=dout, wanted=tuple(call.trained))
    )


def _compiled(call: TracedCall, q: Any, v: Any, dtype: str, device: tuple[str, int]) -> Any:
    return call.compiled(q.shape[3], v.shape[3], q.shape[1], dtype, device)


def _recorded(
    which: str, call: TracedCall, platform: str, arrays: Sequence[Any]
) -> tuple[Recording, list[int]]:
    """(what a call launches, which of the buffers that it makes are its results).

    Raises:
        NotRecorded: it reads something on the host.
        NotTraced: a parameter of the mask is an array.
    """
    given = blanks(_names(which, call), arrays, call.layout, platform)
    attn = _compiled(call, given[0], given[2], given[0].dtype, given[0].array.device)
    for name in call.arrays_among(name for name, _ in attn.bundle.params):
        hint = "on GPUs a parameter of a mask is known when JAX traces: pass a plain integer"
        raise NotTraced(name, "an array", hint, at=name)
    with recording() as recorded:
        try:
            results = _run(which, call, attn, given)
        except NotAnArray as error:
            _check_data(which, call, platform, arrays)  # the host also reads what does not fit
            raise NotRecorded(f"the host reads {error.args[0]!r}") from error
    return recorded, [x.number - MADE for x in results]


def _custom_call(
    recorded: Recording, results: list[int], platform: str, call: TracedCall, arrays: Sequence[Any]
) -> list[Any]:
    """The results of a recorded call, [B, H, N, D] in the caller's order."""
    if platform == "cuda":
        native.opened()
    key = native.register(recorded, len(arrays))
    shapes = [
        jax.ShapeDtypeStruct(output.in_memory[0], jnp.dtype(dtype))
        for output, dtype in recorded.made
    ]
    made = jax.ffi.ffi_call(native.TARGETS[platform], shapes)(*arrays, program=key)
    ordered = []
    for number in results:
        output, x = recorded.made[number][0], made[number]
        axes = output.in_memory[1]
        ordered.append(x.transpose(axes) if axes else x)
    return ordered


def _on_host(
    which: str, call: TracedCall, avals: Sequence[Any], arrays: Sequence[Any]
) -> list[Any]:
    """The results of a call that the host makes with NumPy arrays."""
    names = _names(which, call)

    def run(*given: Any) -> Any:
        on_host = [np.asarray(x) for x in given]
        rows = {*_BACKWARD} - {"lse"}
        for number, name in enumerate(names):
            if name in rows:
                on_host[number] = heads_first(on_host[number], call.layout)
            elif name == SEED:
                on_host[number] = on_host[number].view(np.int64).reshape(1)
        attn = _compiled(call, on_host[0], on_host[2], on_host[0].dtype.name, ("cpu", 0))
        try:
            results_of_run = _run(which, call, attn, on_host)
        except MaskcError as mistake:
            _mistakes.append(mistake)
            raise
        return tuple(
            np.ascontiguousarray(_as_declared(x, aval, call.layout), aval.dtype)
            for x, aval in zip(results_of_run, avals, strict=True)
        )

    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return list(jax.pure_callback(run, tuple(shapes), *arrays))


_mistakes: deque[MaskcError] = deque(maxlen=8)
"""The last mistakes that host calls found: XLA hands on their texts only."""


def _mistake_of(error: Exception) -> MaskcError | None:
    """The mistake of a host call that an error of XLA reports."""
    text = str(error)
    return next((mistake for mistake in _mistakes if mistake.finding in text), None)


def _check_data(which: str, call: TracedCall, platform: str, arrays: Sequence[Any]) -> None:
    """Check names, shapes and dtypes of data that the host will read.

    Raises:
        DataUnknown, DataMissing, DataShape, DataType.
    """
    q, k, v = blanks(_QKV, arrays[:3], call.layout, platform)
    attn = _compiled(call, q, v, q.dtype, q.array.device)
    _, _, data = call.keywords([_zeros(x) for x in arrays[HEAD[which] :]])
    sizes = Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])
    attn.check_data({name: x for name, x in data.items() if name not in (RATE, SEED)}, sizes)


def _zeros(x: Any) -> np.ndarray:
    return np.zeros(x.shape, x.dtype)


def _as_declared(x: Any, aval: Any, layout: str) -> Any:
    """A result in the caller's layout: rows have four dimensions there as here."""
    return heads_first(x, layout) if x.ndim == 4 and aval.shape[-1] != 1 else x.reshape(aval.shape)


def _lowered(which: str, platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    """The lowering rule of an operation on a platform.

    Raises:
        NotExported: jax.export would keep the program beyond the process (MC420).
    """
    if getattr(ctx.module_context.lowering_parameters, "for_export", False):
        why = "its kernels are built for this machine and live in this process"
        raise NotExported("a program of jax.export", why, "export what is around it", at="q")
    avals = ctx.avals_out

    def run(*arrays: Any, call: TracedCall) -> list[Any]:
        try:
            if platform == "cpu" and call.reads_data:
                _check_data(which, call, platform, arrays)
                raise NotRecorded("the host makes lists from data")
            if platform == "cpu":
                native.runner()
            recorded, results = _recorded(which, call, platform, arrays)
        except DataUnknown as error:
            raise unknown_here(error) from None
        except (NotRecorded, NoCompiler):
            if platform != "cpu":
                raise
            return _on_host(which, call, avals, arrays)
        made = _custom_call(recorded, results, platform, call, arrays)
        return [
            heads_first(x, call.layout)
            if x.ndim == 4 and number in _of_rows(which)
            else x.reshape(aval.shape)
            for number, (x, aval) in enumerate(zip(made, avals, strict=True))
        ]

    return mlir.lower_fun(run, multiple_results=True)(ctx, *operands, **params)


def _of_rows(which: str) -> range:
    """The results that have rows: out, or dq, dk and dv."""
    return range(1 if which == "forward" else 3)


# ------------------------------------------------------------------ the operations


def _forward_shapes(q: Any, k: Any, v: Any, *rest: Any, call: TracedCall) -> Any:
    batch, heads, n_q, _ = shape_first(q.shape, call.layout)
    rows = shape_first((batch, heads, n_q, shape_first(v.shape, call.layout)[3]), call.layout)
    return q.update(shape=rows, weak_type=False), q.update(
        shape=(batch, heads, n_q, 1), dtype=np.dtype(np.float32), weak_type=False
    )


def _backward_shapes(*avals: Any, call: TracedCall) -> Any:
    q, k, v, *_ = avals
    single = np.dtype(np.float32)
    by_name = dict(zip(_names("backward", call), avals, strict=True))
    shapes = [x.update(dtype=q.dtype, weak_type=False) for x in (q, k, v)]
    for name in call.with_gradients:
        shapes.append(by_name[name].update(dtype=single, weak_type=False))
    return tuple(shapes)


def _operation(which: str, shapes: Any) -> Primitive:
    made = Primitive(f"maskc_{which}")
    made.multiple_results = True
    made.def_abstract_eval(shapes)

    @lru_cache(maxsize=1024)
    def compiled(call: TracedCall) -> Any:
        return jax.jit(partial(made.bind, call=call))

    def run(*arrays: Any, call: TracedCall) -> Any:
        config: Any = jax.config
        try:
            if config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs:
                # JAX would run the operation alone, which is this function again.
                with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
                    return compiled(call)(*arrays)
            return compiled(call)(*arrays)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            mistake = _mistake_of(error)
            if mistake is None:
                raise
            raise mistake from None

    made.def_impl(run)
    for platform in native.TARGETS:
        mlir.register_lowering(made, partial(_lowered, which, platform), platform=platform)

    def refused(*_: Any, **__: Any) -> Any:
        raise OnlyOneDerivative(at="q")  # forward mode alone is refused by custom_vjp

    ad.primitive_jvps[made] = refused
    batching.primitive_batchers[made] = partial(batched, made, _names_of(which), _of_rows(which))
    return made


def _names_of(which: str) -> Any:
    return partial(_names, which)


FORWARD = _operation("forward", _forward_shapes)
BACKWARD = _operation("backward", _backward_shapes)
