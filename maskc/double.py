"""Attention in double precision on a CPU: the reference, row by row.

Kernels store at most fp32. Calls in float64 are made to check derivatives
(torch.autograd.gradcheck), where sizes are small and digits count.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from maskc.core.attention_call import AttentionCall
from maskc.core.dropout import PARTS, RATE, SEED
from maskc.core.errors import DTypesDiffer, WrongDType
from maskc.core.source import outside
from maskc.core.tensors import Array, order_of
from maskc.dispatch.checks import check_inputs, of_every_sequence
from maskc.dispatch.options import alpha_less_1, numbers
from maskc.layout import to_host
from maskc.reference import attention as reference
from maskc.reference.dropout import factors
from maskc.reference.scores import ScoreOf
from maskc.runtime import CompiledMask
from maskc.runtime.arrays.known import array_of, module_of
from maskc.runtime.selecting import pairs_of_call

DOUBLE = "float64"


class ReferenceWarning(UserWarning):
    """A call in float64 runs by the reference, row by row, which is slow."""


def is_double(dtype: object) -> bool:
    """Whether a dtype, as text or of any library, is float64."""
    text = str(getattr(dtype, "__name__", None) or dtype).removeprefix("torch.")
    return text in (DOUBLE, "double", "fp64", "f64")


class Reference:
    """Runs the calls of a compiled mask in float64; results, lse too, are of float64."""

    dtype = DOUBLE

    def __init__(self, single: CompiledMask) -> None:
        """`single`: the same mask in fp32 on the CPU, which knows the mask's pairs and data."""
        self._single = single
        self._said: list[str] = []

    def __reduce__(self) -> tuple[object, ...]:
        return Reference, (self._single,)

    def run(self, attn: CompiledMask, call: AttentionCall) -> Any:
        """The forward pass; see `CompiledMask.run`."""
        q, into = call.q, call.into
        terms = self._terms(attn, call)
        out, lse = terms.attention()
        made = terms.like(q, out) if into is None else into.copy_(terms.like(q, out))
        return (made, terms.like(None, lse)) if call.options.return_lse else made

    def differentiate(self, attn: CompiledMask, call: AttentionCall) -> tuple[Any, ...]:
        """The backward pass; see `CompiledMask.differentiate`."""
        q, k, v, options, data, *_ = call
        terms = self._terms(attn, call)
        given, dout = (np.asarray(to_host(x), np.float64) for x in (call.out, call.dout))
        made, _ = terms.attention()
        # A caller who changed `out` wants the gradient through lse, see gradients.py of torch.
        dlse = ((made - given) * dout).sum(-1) if options.normalizer == "softmax" else None
        gradients = terms.gradients(dout, dlse)
        names = ["dq", "dk", "dv"]
        names += ["dsink"] if options.sink_logits is not None else []
        names += ["dalibi"] if options.alibi_slopes is not None else []
        wanted = call.wanted
        if wanted is None:
            wanted = [name for name in attn.trainable if hasattr(data.get(name), "shape")]
        results = [gradients[name] for name in names]
        for place, x in enumerate((q, k, v)):
            if x.shape[0] != q.shape[0]:
                results[place] = results[place].sum(0, keepdims=True)
        results += [
            gradients.get(f"d {name}", np.zeros(tuple(data[name].shape))) for name in wanted
        ]
        likes = (q, k, v, *(None for _ in results[3:]))
        return tuple(terms.like(like, x) for like, x in zip(likes, results, strict=True))

    def _terms(self, attn: CompiledMask, call: AttentionCall) -> _Terms:
        """Check a call, and read what it gives.

        Raises:
            As CompiledMask.run.
        """
        q, k, v, of_call, *_ = call
        views = of_every_sequence(_view(q, "q"), _view(k, "k"), _view(v, "v"))
        sizes = check_inputs(*views, attn.bundle.problem, attn.target)
        self._warn()
        arrays = [np.asarray(to_host(x, n)) for x, n in zip((q, k, v), "qkv", strict=True)]
        arrays = [np.broadcast_to(x, (sizes.batch, *x.shape[1:])) for x in arrays]
        q32, k32, v32 = (x.astype(np.float32, order="C") for x in arrays)
        data = dict(call.data)
        rate, seed = data.pop(RATE, 0), data.pop(SEED, 0)
        inputs = attn.inputs
        tables = {} if inputs is None else dict.fromkeys(inputs.names)
        of_mask = {name: x for name, x in data.items() if name not in tables}
        pairs = pairs_of_call(self._single.holding(attn.held), q32, k32, v32, of_mask)
        scale, softcap = numbers(of_call.scale, of_call.softcap)
        alpha = 1 + alpha_less_1(of_call.normalizer, of_call.alpha)
        options: dict[str, Any] = {"scale": scale, "softcap": softcap, "alpha": alpha}
        for name in ("alibi_slopes", "sink_logits"):
            x = getattr(of_call, name)
            options[name] = None if x is None else np.asarray(to_host(x, name), np.float64)
        if inputs is not None:
            read = {name: data[name] for name in tables if name in data}
            options["score"] = ScoreOf(
                inputs, read, sizes.n_q, sizes.n_kv, sizes.heads_q, sizes.batch
            )
        if rate:
            number = int(np.asarray(to_host(seed)).reshape(())) % (1 << 64)
            options["dropout"] = factors(
                rate / PARTS, number, sizes.batch, sizes.heads_q, sizes.n_q, sizes.n_kv
            )
        return _Terms(q, arrays, pairs.rows(0, sizes.n_q), options)

    def _warn(self) -> None:
        if not self._said:
            self._said.append("float64 runs by the reference, slowly: kernels store at most fp32")
            warnings.warn(self._said[0], ReferenceWarning, stacklevel=outside())


def in_double(single: CompiledMask) -> CompiledMask:
    """A compiled mask for calls in float64.

    Args:
        single: the same mask in fp32 on the CPU.
    """
    return CompiledMask(single.bundle, "cpu", single._report, held=single.held,
                        inputs=single.inputs, runner=Reference(single))  # fmt: skip


class _Terms:
    """Arguments of a call, on the host."""

    def __init__(
        self, q: Any, arrays: list[np.ndarray], live: np.ndarray, options: dict[str, Any]
    ) -> None:
        self._q, self._arrays, self._live, self._options = q, arrays, live, options

    def attention(self) -> tuple[np.ndarray, np.ndarray]:
        """(out, lse)."""
        q, k, v = self._arrays
        return reference.attention(q, k, v, self._live, **self._options)

    def gradients(self, dout: np.ndarray, dlse: np.ndarray | None) -> dict[str, np.ndarray]:
        """By the names that the reference has for them."""
        q, k, v = self._arrays
        return reference.gradients(q, k, v, self._live, dout, dlse=dlse, **self._options)

    def like(self, x: Any, values: np.ndarray) -> Any:
        """A result in the library of q, in the order of x [B, H, N, D] in memory."""
        values = np.ascontiguousarray(values)
        if x is not None:
            view = array_of(x, "x")
            order = order_of(view.shape, view.strides)
            back = (*(order.index(axis) for axis in range(3)), 3)
            values = np.ascontiguousarray(values.transpose(*order, 3)).transpose(back)
        module = module_of(self._q)
        return values if module is np else module.from_numpy(values)


def _view(x: Any, name: str) -> Array:
    """An array of float64 as checks know those of fp32.

    Raises:
        WrongDType: q is something else.
        DTypesDiffer: k or v is.
    """
    view = array_of(x, name)
    if view.dtype != DOUBLE and name != "q":
        raise DTypesDiffer(DOUBLE, name, view.dtype, at=name)
    if view.dtype != DOUBLE:
        raise WrongDType(
            name, view.dtype, f"was compiled for {DOUBLE}", f"convert it to {DOUBLE}", at=name
        )
    return view._replace(dtype="float32")
