"""A call of attention: options with defaults, and all arguments.

A public function reads its keywords once, into these records. Later stages only take the records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_overloads

import numpy as np

from maskc.core.tensors import Order

Function = TypeVar("Function", bound=Callable[..., Any])


class CallOptions(NamedTuple):
    """Options of a call, as its keywords give them; `CompiledMask.__call__` explains each."""

    scale: float | None = None
    return_lse: bool = False
    softcap: float | None = None
    alibi_slopes: Any = None
    sink_logits: Any = None
    normalizer: str = "softmax"
    alpha: Any = None
    nan_safe: bool = False
    deterministic: bool = False
    dropout_p: float = 0.0
    dropout_seed: Any = None
    return_selection: bool = False
    indexer_loss: bool = False

    @classmethod
    def read(cls, keywords: dict[str, Any]) -> tuple[CallOptions, dict[str, Any]]:
        """(the options among the keywords of a call, all other keywords: the data). The dict may be
        `keywords` itself."""
        if _NAMES.isdisjoint(keywords):
            return DEFAULTS, keywords
        if _NAMES.issuperset(keywords):
            return WITH_LSE if keywords == _ONLY_LSE else cls(**keywords), {}
        options, data = {}, {}
        for name, x in keywords.items():
            if name in _NAMES:
                options[name] = x
            else:
                data[name] = x
        return WITH_LSE if options == _ONLY_LSE else cls(**options), data

    @property
    def is_one_pass(self) -> bool:
        """Whether the mask's own kernels answer the call by one pass: it drops no weights, returns
        nothing of selections, and has no alpha for each head."""
        return not (
            self.dropout_p or self.return_selection or self.indexer_loss
            or (self.alpha is not None and self.alpha_by_head)
        )  # fmt: skip

    @property
    def alpha_by_head(self) -> bool:
        """Whether alpha is an array, and not a number."""
        return hasattr(self.alpha, "shape") and not isinstance(self.alpha, np.generic)

    def with_heads(self, alibi_slopes: Any, sink_logits: Any) -> CallOptions:
        """The options of a pass that returns lse, with these vectors per head."""
        if alibi_slopes is None and sink_logits is None and self is DEFAULTS:
            return WITH_LSE
        return CallOptions(self.scale, True, self.softcap, alibi_slopes, sink_logits, *self[5:])

    def undropped(self) -> CallOptions:
        """The options without dropout."""
        return CallOptions(*self[:9], 0.0, None, *self[11:])


DEFAULTS = CallOptions()
"""The default options."""
WITH_LSE = CallOptions(return_lse=True)
"""The options of a call that only wants lse too: the same plans serve it."""
_ONLY_LSE = {"return_lse": True}
_NAMES = frozenset(CallOptions._fields)


class AttentionCall(NamedTuple):
    """All arguments of one pass."""

    q: Any
    k: Any
    v: Any
    options: CallOptions = DEFAULTS
    data: Mapping[str, Any] = {}
    """The mask's and the score's data and parameters by name, and what dropout drew."""
    into: Any = None
    """A torch tensor that out, or dq, is written to, of the strides that it would have."""
    out: Any = None
    lse: Any = None
    """Results of the forward pass, for the backward pass; None in the forward pass."""
    dout: Any = None
    wanted: Sequence[str] | None = None
    """Tables of the score whose gradients follow the others; None: all that are given as arrays."""
    earlier: tuple[Any, Any] | None = None
    """Forward pass: (out, lse) of the same queries over other keys, which the results are joined
    with; gradients are not recorded."""
    backward: CallOptions | None = None
    """Forward pass: the options of the backward pass that will follow; None if none is known to."""
    order: Order | None = None
    """Order of the axes of q, k, v, out and dout, and of gradients; None: [B, H, N, D]. That of
    log-sum-exps is [B, H, N]."""

    def heads_first(self) -> AttentionCall:
        """The call with views [B, H, N, D]."""
        order = self.order
        if order is None:
            return self
        q, k, v, out, dout = (
            None if x is None else order.heads_first(x) for x in (*self[:3], self.out, self.dout)
        )
        return self._replace(q=q, k=k, v=v, out=out, dout=dout, order=None)

    def with_data(self, data: Mapping[str, Any]) -> AttentionCall:
        """The call with other data."""
        return AttentionCall(*self[:4], data, *self[5:])


def shown_by_overload(function: Function) -> Function:
    """Let `help` and `inspect.signature` show the last overload of a function.

    The function itself takes `**keywords` and reads them into `CallOptions`. So the keywords are
    spelled once, where type checkers and readers look.
    """
    shown = inspect.signature(get_overloads(function)[-1])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function
