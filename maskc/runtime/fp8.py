"""Attention in E4M3: q, k and v of one byte an element, with a factor for each head.

Only Hopper has E4M3 kernels. On other targets q, k and v are first converted and scaled, and the
default kernels run: in fp32 on a CPU, in bfloat16 on other cards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from maskc.core.abi import FP8_FIELDS, packer
from maskc.core.attention_call import DEFAULTS, AttentionCall, CallOptions
from maskc.core.dtypes import E4M3, DType
from maskc.core.errors import BadOption, BadShape, TargetNotBuilt, WrongDevice, WrongDType
from maskc.core.problem import Feature
from maskc.core.tensors import contiguous, singles, torch_of
from maskc.dispatch.options import features_named
from maskc.runtime.arrays.known import LIBRARIES, array_of, check_ranks, library
from maskc.runtime.launch.prepared import OpenedCall

FACTORS = ("q_descale", "k_descale", "v_descale")
_BLOCK = packer(FP8_FIELDS)
_REMEDY = "convert q, k and v first: q.to(torch.bfloat16) * q_descale"


class E4M3Factors:
    """Gives kernels in E4M3 the factors of all heads, which are among the data of a call.

    Calls give `q_descale`, `k_descale` and `v_descale`: positive fp32 [B, Hkv] (q's heads share
    that of their keys) or arrays that spread to it, or numbers; 1 when left out. Weights are
    rounded to E4M3 before they are multiplied by v: docs/kernels.md says how accurate results are.
    """

    def __init__(self, target: str, columns: int) -> None:
        """`columns`: keys of a tile."""
        self._target, self._columns = target, columns

    def admit(self, call: AttentionCall) -> None:
        """Refuse a call that kernels in E4M3 do not answer.

        Raises:
            TargetNotBuilt: a gradient is wanted, or an option that they lack (MC503).
        """
        options = call.options
        refuse_gradients(self._target, call.q, call.k, call.v, options, call.data)
        for name in _LACKED:
            if getattr(options, name) != getattr(DEFAULTS, name):
                raise self._lacks(name)

    def admit_features(self, features: Iterable[Feature | str]) -> None:
        """Raise an error for features without E4M3 kernels.

        Raises:
            TargetNotBuilt: entmax is among the features (MC503).
        """
        if Feature.entmax in features_named(name for name in features if name != "dropout"):
            raise self._lacks("normalizer")

    def opened(self, call: AttentionCall) -> OpenedCall:
        """See `CallBlock`; a backward pass, which there is none of, is refused by its plan."""
        options = call.options
        if call.lse is not None:
            return OpenedCall(call, b"")
        if options.nan_safe or options.normalizer != "softmax":
            raise self._lacks("nan_safe" if options.nan_safe else "normalizer")
        rest = dict(call.data)
        factors = [rest.pop(name, None) for name in FACTORS]
        check_ranks(call.q, call.k)
        batch, heads, n_kv, dim = call.k.shape
        held = [_placed(call.q, x, name, (batch, heads))
                for name, x in zip(FACTORS, factors, strict=True)]  # fmt: skip
        array_of = library(call.q, "q")
        floats = batch * heads * -(-n_kv // self._columns) * self._columns * dim // 4
        values = LIBRARIES[type(array_of)].empty(array_of, singles(floats))
        block = _BLOCK.pack(values[1], *(pointer for _, pointer in held))
        return OpenedCall(call.with_data(rest), block, (values, held))

    def _lacks(self, name: str) -> TargetNotBuilt:
        why = "kernels in E4M3 have softmax, soft-cap, ALiBi and sinks"
        hint = f"leave {name} out, or {_REMEDY}"
        return TargetNotBuilt(self._target, f"{E4M3} {name}", why, hint, at=name)


_LACKED = ("normalizer", "alpha", "nan_safe", "dropout_p", "return_selection", "indexer_loss")
"""Options that kernels in E4M3 do not have."""


def refuse_gradients(
    target: str, q: Any, k: Any, v: Any, options: CallOptions, data: Mapping[str, Any]
) -> None:
    """Raise an error if a gradient is required: E4M3 has no backward pass.

    Raises:
        TargetNotBuilt: a gradient is wanted (MC503).
    """
    torch = torch_of(q)
    if torch is None or not torch.is_grad_enabled():
        return
    for name, x in {"q": q, "k": k, "v": v, **options._asdict(), **data}.items():
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
    q: Any, k: Any, v: Any, data: dict[str, Any], dtype: Any
) -> tuple[Any, Any, Any]:
    """Convert q, k and v (torch) to another dtype, multiplied by their factors."""
    products = []
    for x, name in zip((q, k, v), FACTORS, strict=True):
        factor = data.pop(name, None)
        x = x.to(dtype)
        if factor is not None:
            if getattr(factor, "ndim", 0):
                factor = factor.expand(k.shape[0], k.shape[1])
                factor = factor.repeat_interleave(x.shape[1] // k.shape[1], 1)[..., None, None]
            x = (x * factor).to(dtype)
        products.append(x)
    return products[0], products[1], products[2]
