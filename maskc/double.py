"""Attention in double precision on a CPU: the reference, row by row.

Kernels store at most fp32. Calls in float64 are made to check derivatives
(torch.autograd.gradcheck), where sizes are small and digits count.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskc.core.dropout import PARTS, RATE, SEED
from maskc.core.errors import WrongDType
from maskc.core.score import Inputs
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


class DoubleMask(CompiledMask):
    """A compiled mask whose calls are in float64; results, lse too, are of float64."""

    inputs: Inputs | None = None

    def __init__(self, single: CompiledMask, inputs: Inputs | None = None) -> None:
        """Nothing is built.

        Args:
            single: the same mask in fp32 on the CPU: it knows the mask's pairs and data.
            inputs: what a formula of the score reads.
        """
        super().__init__(single.bundle, "cpu", single._report, held=single.held)
        self._single, self.inputs = single, inputs
        self._said: list[str] = []  # which copies share

    def reading(self, inputs: Inputs) -> DoubleMask:
        """Return a copy with other inputs of the formula."""
        found: DoubleMask = self._like(inputs=inputs)
        return found

    @property
    def trainable(self) -> tuple[str, ...]:
        """Tables of the formula that may require grad."""
        return () if self.inputs is None else self.inputs.trainable

    @property
    def identity(self) -> str:
        """Identity of the compiled mask, see `CompiledMask.identity`."""
        names = "" if self.inputs is None else (self.inputs.names, dict(self.inputs.defaults))
        return f"double {super().identity} {names}"

    @property
    def dropping(self) -> CompiledMask:
        """The reference drops weights, too."""
        return self

    def __repr__(self) -> str:
        return super().__repr__().replace("float32", DOUBLE)

    def __reduce__(self) -> tuple[object, ...]:
        return DoubleMask, (self._single.holding(self.held), self.inputs)

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """Compute attention in float64; takes the arguments of `CompiledMask`."""
        captured = {} if self.inputs is None else self.inputs.captured
        given = {name: x for name, x in captured.items() if hasattr(x, "data_ptr")}
        return super().__call__(q, k, v, **{**given, **options})

    def launch(
        self, q: Any, k: Any, v: Any, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        data: Mapping[str, Any] = {}, into: Any = None,
    ) -> Any:  # fmt: skip
        """The forward pass; see CompiledMask."""
        call = self._call(q, k, v, scale, softcap, alibi_slopes, sink_logits, normalizer, alpha,
                          data)  # fmt: skip
        out, lse = call.attention()
        made = call.like(q, out) if into is None else into.copy_(call.like(q, out))
        return (made, call.like(None, lse)) if return_lse else made

    def launch_backward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, scale: float | None = None,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, deterministic: bool = False,
        nan_safe: bool = False, data: Mapping[str, Any] = {}, into: Any = None,
        wanted: Sequence[str] | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The backward pass; see CompiledMask and ScoredMask."""
        call = self._call(q, k, v, scale, softcap, alibi_slopes, sink_logits, normalizer, alpha,
                          data)  # fmt: skip
        given, own = (np.asarray(to_host(x), np.float64) for x in (out, dout))
        made, _ = call.attention()
        # A caller who changed `out` asks for the gradient through lse, see gradients.py of torch.
        dlse = ((made - given) * own).sum(-1) if normalizer == "softmax" else None
        found = call.gradients(own, dlse)
        names = ["dq", "dk", "dv"]
        names += ["dsink"] if sink_logits is not None else []
        names += ["dalibi"] if alibi_slopes is not None else []
        if wanted is None:
            wanted = [name for name in self.trainable if hasattr(data.get(name), "shape")]
        results = [found[name] for name in names]
        for place, x in enumerate((q, k, v)):
            if x.shape[0] != q.shape[0]:
                results[place] = results[place].sum(0, keepdims=True)
        results += [found.get(f"d {name}", np.zeros(tuple(data[name].shape))) for name in wanted]
        likes = (q, k, v, *(None for _ in results[3:]))
        return tuple(call.like(like, x) for like, x in zip(likes, results, strict=True))

    def _call(
        self, q: Any, k: Any, v: Any, scale: Any, softcap: Any, slopes: Any, sinks: Any,
        normalizer: str, alpha: float | None, data: Mapping[str, Any],
    ) -> _Call:  # fmt: skip
        """Check a call, and read what it gives.

        Raises:
            As CompiledMask.launch.
        """
        self._warn()
        views = of_every_sequence(_view(q, "q"), _view(k, "k"), _view(v, "v"))
        sizes = check_inputs(*views, self.bundle.problem, self.target)
        arrays = [np.asarray(to_host(x, n)) for x, n in zip((q, k, v), "qkv", strict=True)]
        arrays = [np.broadcast_to(x, (sizes.batch, *x.shape[1:])) for x in arrays]
        q32, k32, v32 = (x.astype(np.float32, order="C") for x in arrays)
        data = dict(data)
        rate, seed = data.pop(RATE, 0), data.pop(SEED, 0)
        tables = {} if self.inputs is None else dict.fromkeys(self.inputs.names)
        own = {name: x for name, x in data.items() if name not in tables}
        pairs = pairs_of_call(self._single.holding(self.held), q32, k32, v32, own)
        scale, softcap = numbers(scale, softcap)
        options: dict[str, Any] = {
            "scale": scale, "softcap": softcap, "alpha": 1 + alpha_less_1(normalizer, alpha)
        }  # fmt: skip
        for name, x in (("alibi_slopes", slopes), ("sink_logits", sinks)):
            options[name] = None if x is None else np.asarray(to_host(x, name), np.float64)
        if self.inputs is not None:
            read = {name: data[name] for name in tables if name in data}
            options["score"] = ScoreOf(self.inputs, read, sizes.n_q, sizes.n_kv)
        if rate:
            number = int(np.asarray(to_host(seed)).reshape(())) % (1 << 64)
            options["dropout"] = factors(
                rate / PARTS, number, sizes.batch, sizes.heads_q, sizes.n_q, sizes.n_kv
            )
        return _Call(q, arrays, pairs.rows(0, sizes.n_q), options)

    def _warn(self) -> None:
        if not self._said:
            self._said.append("float64 runs by the reference, slowly: kernels store at most fp32")
            warnings.warn(self._said[0], ReferenceWarning, stacklevel=outside())


class _Call:
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
        WrongDType.
    """
    view = array_of(x, name)
    if view.dtype != DOUBLE:
        raise WrongDType(
            name, view.dtype, f"was compiled for {DOUBLE}", f"convert it to {DOUBLE}", at=name
        )
    return view._replace(dtype="float32")
