"""Checks of a compiled kernel against the dense oracle: random inputs, and exact probes.

With q = 0 every live key weighs the same, so one-hot rows of v read the mask back. A NaN planted
in a key must reach the queries that see it, and change no bit of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.problem import Direction
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, device_of, host, make_tensors
from maskc.verify.full_judge import FullJudge
from maskc.verify.random_cases import reached_wrongly

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_PLANTED = 5
"""Keys that get a NaN."""
_GROUPS = 16
"""Groups of keys that are read back, a call each."""
_ROUNDING = {DType.float32: 1e-6, DType.float16: 2**-10, DType.bfloat16: 2**-7}
"""Relative error of 1 / count after rounding."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One line of the report."""

    case: str
    """Lengths."""
    check: str
    """The name of the check."""
    error: float
    """The largest; of exact checks the number of wrong entries."""
    allowed: float
    ok: bool


@dataclass(frozen=True, eq=False)
class Probe:
    """A compiled mask at given lengths, with its dense truth."""

    attn: CompiledMask
    case: Case
    keep: np.ndarray
    """bool [heads, n_q, n_kv]."""
    seed: int
    note: str = ""
    """The way in which the mask ran, if there are several."""

    @property
    def label(self) -> str:
        """Return the name of the lengths in the report."""
        return f"{self.case.n_q} x {self.case.n_kv}{self.note}"

    @property
    def backward(self) -> bool:
        """Whether the target has a backward pass."""
        return Direction.backward in self.attn.target.directions

    def checks(self) -> Iterator[ProbeResult]:
        """Run all checks, the cheapest first.

        Where q and k decide the mask no other q and k can be tried.
        """
        device = device_of(self.attn.target)
        tensors = make_tensors(self.case, device)
        if self.case.ranks_by_qk:
            yield from self._random(tensors)
            return
        yield self._reads_back(tensors)
        yield from self._random(tensors)
        yield self._planted(tensors, "K")
        if device == "cpu":
            yield self._planted(tensors, "V")

    def _call(self, tensors: CaseTensors, **more: Any) -> Any:
        options: dict[str, Any] = {**self.case.data, **more}
        return self.attn(*tensors.qkv, **options)

    # -------------------------------------------------------------- random inputs

    def _random(self, tensors: CaseTensors) -> Iterator[ProbeResult]:
        out, lse = self._call(tensors, return_lse=True)
        outputs = {"forward": {"out": host(out), "lse": host(lse)}}
        if self.backward:
            parts = self.attn.backward(*tensors.qkv, out, lse, tensors.dout, **self.case.data)
            outputs["backward"] = dict(zip(("dq", "dk", "dv"), map(host, parts), strict=False))
        q, k, v = map(host, tensors.qkv)
        dout = host(tensors.dout) if self.backward else None
        judge = FullJudge(q, k, v, self.keep[None], dout, self.case.dtype)
        for what, results in outputs.items():
            judged = [judge.error(part, values) for part, values in results.items()]
            error, allowed = max(judged, key=lambda pair: _share(*pair))
            yield ProbeResult(self.label, what, error, allowed, error <= allowed)

    # -------------------------------------------------------------- exact probes

    def _reads_back(self, tensors: CaseTensors) -> ProbeResult:
        """Read the mask back: with q = 0 and one-hot v, out is 1 / count at live keys, else 0."""
        n_kv, width = self.case.n_kv, self.case.head_dim
        count = self.keep.sum(axis=2, keepdims=True)
        expected = self.keep / np.maximum(count, 1)
        wrong, silent = 0, tensors.q * 0
        allowed = np.full_like(expected, _ROUNDING[self.case.dtype])
        if (
            self.note
        ):  # parts weigh exp(lse of the part - lse), each with three roundings of its own
            merged = 2**-24 * (6 * np.log(np.maximum(count, 1)) + 14)
            allowed = np.maximum(allowed, merged)
        for first in _groups(n_kv, width):
            keys = np.arange(first, min(first + width, n_kv))
            hot = np.zeros(tensors.v.shape, dtype=np.float32)
            hot[:, :, keys, keys - first] = 1
            here = CaseTensors(
                silent, tensors.k, _like(tensors.v, hot), tensors.dout, tensors.device
            )
            read = host(self._call(here))[0][:, :, : len(keys)]
            right = expected[:, :, keys]
            near = np.abs(read - right) <= allowed[:, :, keys] * right
            wrong += int(np.count_nonzero(~near))
        return ProbeResult(self.label, "reads the mask back", wrong, 0, wrong == 0)

    def _planted(self, tensors: CaseTensors, where: str) -> ProbeResult:
        """Plant NaN in rows of k or v: exactly the queries that see the key must have NaN
        results."""
        rng = np.random.default_rng(self.seed)
        n_kv = self.case.n_kv
        keys = rng.choice(n_kv, min(_PLANTED, n_kv), replace=False)
        clean = host(self._call(tensors))
        spoilt = host(tensors.k if where == "K" else tensors.v).copy()
        spoilt[:, :, keys] = np.nan
        q, k, v = tensors.qkv
        parts = (_like(k, spoilt), v) if where == "K" else (k, _like(v, spoilt))
        results = host(self._call(CaseTensors(q, *parts, tensors.dout, tensors.device)))
        sees = np.asarray(self.keep[:, :, keys].any(axis=2))
        wrong = reached_wrongly(clean, results, sees)
        return ProbeResult(self.label, f"NaN in {where} stays with its key", wrong, 0, wrong == 0)


def _share(error: float, allowed: float) -> float:
    """Return the error as a fraction of the allowance; NaN exceeds it."""
    return error / allowed if np.isfinite(error) else np.inf


def _groups(n_kv: int, width: int) -> list[int]:
    """The first keys of groups of `width`: all groups, or some of many, both ends among them."""
    firsts = range(0, max(n_kv, 1), width)
    if len(firsts) <= _GROUPS:
        return list(firsts)
    return [firsts[i] for i in np.linspace(0, len(firsts) - 1, _GROUPS).astype(int)]


def _like(tensor: Any, values: np.ndarray) -> Any:
    """The values in the library, dtype and device of a tensor."""
    if hasattr(tensor, "new_tensor"):
        return tensor.new_tensor(values)
    return values.astype(tensor.dtype)
