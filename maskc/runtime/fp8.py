"""Attention in E4M3: q, k and v of one byte an element, with a factor for each head.

The kernels are Hopper's. Everywhere else the numbers are multiplied out first, and the usual
kernels run: in fp32 on a CPU, in bfloat16 on other cards.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from maskc.core.dtypes import E4M3, DType
from maskc.core.errors import BadOption, BadShape, TargetNotBuilt, WrongDevice, WrongDType
from maskc.core.problem import Feature
from maskc.core.tensors import contiguous, singles, torch_of
from maskc.dispatch.options import CallOptions, features_named
from maskc.runtime.arrays.known import Library, array_of, library
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.launch.prepared import BlockLaunch, Runnable

FACTORS = ("q_descale", "k_descale", "v_descale")
_BLOCK = struct.Struct("PPPP")
"""core/abi.FP8_FIELDS."""
_OWN = "e4m3 factors"
"""Under this name `launch` hands them to `_begin`."""
_REMEDY = "convert q, k and v first: q.to(torch.bfloat16) * q_descale"


class FP8Mask(CompiledMask):
    """A compiled mask whose q, k and v are in E4M3, and out in bfloat16."""

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """softmax(scale * q_descale * k_descale * q k^T, restricted to the mask) v * v_descale.

        There is no gradient. Weights are rounded to E4M3 before they are multiplied by v:
        docs/kernels.md says how accurate results are.

        Args:
            q: queries [B, Hq, Nq, D] in E4M3 (`torch.float8_e4m3fn`); D is 64, 128 or 256.
            k: keys [B, Hkv, Nkv, D]; v: values [B, Hkv, Nkv, D].
            options: `q_descale`, `k_descale` and `v_descale`: positive fp32 [B, Hkv] (q's heads
                share that of their keys) or what spreads to it, or numbers; 1 when left out. And
                as of CompiledMask: `scale`, `return_lse`, `softcap`, `alibi_slopes`, `sink_logits`,
                and the mask's data.

        Returns:
            out [B, Hq, Nq, D] in bfloat16, or (out, lse) with return_lse=True.

        Raises:
            TargetNotBuilt: a gradient is wanted, or an option that kernels in E4M3 lack (MC503).
            MaskcError: as of CompiledMask.
        """
        refuse_gradients(self.target.name, q, k, v, options)
        given = {name: options.pop(name, usual) for name, usual in _LACKED.items()}
        for name, usual in _LACKED.items():
            if given[name] != usual and name not in ("deterministic", "dropout_seed"):
                raise _lacks(self.target.name, name)
        own = {name: options.pop(name, None) for name in _TAKEN}
        own["return_lse"] = bool(own["return_lse"])
        return self.launch(q, k, v, **own, data=options)

    def launch(
        self, q: Any, k: Any, v: Any, scale: float | None = None, return_lse: bool = False,
        softcap: float | None = None, alibi_slopes: Any = None, sink_logits: Any = None,
        normalizer: str = "softmax", alpha: float | None = None, nan_safe: bool = False,
        data: Mapping[str, Any] = {}, into: Any = None,
    ) -> Any:  # fmt: skip
        """As of CompiledMask; factors are among the data."""
        if nan_safe or normalizer != "softmax":
            raise _lacks(self.target.name, "nan_safe" if nan_safe else "normalizer")
        rest = dict(data)
        rest[_OWN] = [rest.pop(name, None) for name in FACTORS]
        return super().launch(
            q, k, v, scale, return_lse, softcap, alibi_slopes, sink_logits, data=rest, into=into
        )

    def warmup(self, features: Iterable[Feature | str] = ()) -> None:
        """As of CompiledMask; entmax is not among the features."""
        wanted = [features] if isinstance(features, str) else list(features)
        if Feature.entmax in features_named(name for name in wanted if name != "dropout"):
            raise _lacks(self.target.name, "normalizer")
        super().warmup(wanted)

    def _begin(
        self, options: CallOptions, given: list[Any], data: Any
    ) -> tuple[Runnable, Library, tuple[int, ...]]:
        if _OWN not in data:  # a backward pass, which there is none of: refused with the reason
            return super()._begin(options, given, data)
        factors = data.pop(_OWN)
        plan, lib, places = super()._begin(options, given, data)
        batch, heads, n_kv, dim = given[1].shape
        held = [_placed(given[0], x, name, (batch, heads))
                for name, x in zip(FACTORS, factors, strict=True)]  # fmt: skip
        columns = -(-n_kv // self.unit.tile.k)
        floats = batch * heads * columns * self.unit.tile.k * dim // 4
        values = lib.empty(given[0], singles(floats))
        block = _BLOCK.pack(values[1], *(pointer for _, pointer in held))
        return BlockLaunch(plan, block, (values, held)), lib, places


_TAKEN = ("scale", "return_lse", "softcap", "alibi_slopes", "sink_logits")
_LACKED: dict[str, Any] = {
    "normalizer": "softmax", "alpha": None, "nan_safe": False, "dropout_p": 0.0,
    "return_selection": False, "indexer_loss": False, "deterministic": False, "dropout_seed": None,
}  # fmt: skip
"""Options that kernels in E4M3 do not have, and the two that say nothing of a forward pass."""


def _lacks(target: str, name: str) -> TargetNotBuilt:
    why = "kernels in E4M3 have softmax, soft-cap, ALiBi and sinks"
    hint = f"leave {name} out, or {_REMEDY}"
    return TargetNotBuilt(target, f"{E4M3} {name}", why, hint, at=name)


def refuse_gradients(target: str, q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> None:
    """There are none through E4M3.

    Raises:
        TargetNotBuilt: a gradient is wanted (MC503).
    """
    torch = torch_of(q)
    if torch is None or not torch.is_grad_enabled():
        return
    for name, x in {"q": q, "k": k, "v": v, **options}.items():
        if getattr(x, "requires_grad", False) is True:
            why = f"{name} requires grad, and E4M3 has a forward pass alone"
            hint = f"call it under torch.no_grad(), or pass {name}.detach()"
            raise TargetNotBuilt(target, f"{E4M3} backward", why, hint, at=name)


def _placed(q: Any, x: Any, name: str, shape: tuple[int, int]) -> tuple[Any, int]:
    """(what holds the factors of all heads on the device of q, their address); 0: all are 1."""
    if x is None:
        return None, 0
    torch = torch_of(q)
    if isinstance(x, Real) and not isinstance(x, bool):
        x = float(x)
        if not (math.isfinite(x) and x > 0 and torch is not None):
            wanted = "a positive number" if torch is not None else "an array, or left out"
            raise BadOption(name, wanted, repr(x), at=name)
        x = torch.full(shape, x, device=q.device)
    elif torch is not None and isinstance(x, torch.Tensor) and x.dtype == torch.float32:
        try:
            x = x.detach().expand(shape).contiguous()
        except RuntimeError:
            raise BadShape(name, tuple(x.shape), f"{shape}: [B, Hkv]", at=name) from None
    x = library(x, name)
    view, device = array_of(x, name), array_of(q, "q").device
    if view.dtype != DType.float32.value:
        raise WrongDType(name, view.dtype, "reads float32 here", "convert it to fp32", at=name)
    if view.device != device:
        raise WrongDevice(name, view.device[0], "this call", device[0], at=name)
    if view.shape != shape or view.strides != contiguous(shape):
        raise BadShape(name, view.shape, f"{shape}: [B, Hkv], contiguous", at=name)
    return x, view.pointer


def multiplied_out(
    q: Any, k: Any, v: Any, options: dict[str, Any], dtype: Any
) -> tuple[Any, Any, Any]:
    """q, k and v of torch in another dtype; their factors leave the options."""
    found = []
    for x, name in zip((q, k, v), FACTORS, strict=True):
        factor = options.pop(name, None)
        x = x.to(dtype)
        if factor is not None:
            if getattr(factor, "ndim", 0):
                factor = factor.expand(k.shape[0], k.shape[1])
                factor = factor.repeat_interleave(x.shape[1] // k.shape[1], 1)[..., None, None]
            x = (x * factor).to(dtype)
        found.append(x)
    return found[0], found[1], found[2]
