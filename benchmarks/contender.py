"""What is timed: an implementation with its inputs, and which masks a library knows by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from maskc.core import expr as E
from maskc.dsl import nodes as N
from maskc.dsl.combinators import causal, full
from maskc.verify.case import Case
from maskc.verify.tensors import Tensors

GPU_ONLY = (
    "fa2", "cudnn", "cudnn_flex", "fa4", "flex_flash", "flex_table",
)  # fmt: skip

Key = tuple[str, str]
"""Implementation and variant."""


class Unavailable(Exception):
    """This implementation cannot run this case; the text says why."""


class Missing(Unavailable):
    """It is not installed, so it cannot run any case."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One implementation with its inputs."""

    impl: str
    forward: Callable[[], Any] | None
    """Gives out, or (out, lse)."""
    backward: Callable[[Any], tuple[Any, ...]] | None
    """A function from dout to (dq, dk, dv)."""
    keeps_all: bool = False
    """Whether it computes attention to every key, whatever the mask."""
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Calls run inside of this context."""
    variant: str = ""
    """This names which of several things it is asked for; nothing: what the case says."""
    alpha: float | None = None
    """Entmax's alpha, where it is not the case's; 1 is softmax."""
    also: tuple[Contender, ...] = ()
    """The variants of this contender."""
    sources: Callable[[], tuple[str, ...]] = tuple
    """Names what the latest call ran."""
    attended: Callable[[], Any] | None = None
    """Gives the out, or (out, lse), that `backward` reads where there is no `forward`."""

    @property
    def key(self) -> Key:
        """What it is known by among the others."""
        return self.impl, self.variant

    def runs(self, direction: str) -> bool:
        """Whether it has this direction."""
        return (self.forward if direction == "fwd" else self.backward) is not None


def named(sources: Iterable[str]) -> tuple[str, ...]:
    """Names of what ran, those that ran several times once."""
    return tuple(name if n == 1 else f"{n} x {name}" for name, n in Counter(sources).items())


def tokens_first(
    impl: str, attend: Callable[..., Any], tensors: Tensors, backward: bool
) -> Contender:
    """Attention of tensors in an order of its own, [B, N, H, D]: turning them takes no part."""
    import torch

    own = [x.transpose(1, 2).contiguous() for x in tensors.qkv]

    def forward() -> Any:
        with torch.no_grad():
            return attend(*own).transpose(1, 2)

    @cache
    def graph() -> tuple[Any, list[Any]]:
        leaves = [x.detach().requires_grad_() for x in own]
        return attend(*leaves), leaves

    turned: dict[int, tuple[Any, Any]] = {}  # gradients come in another order than it takes

    def gradient(dout: Any) -> tuple[Any, ...]:
        if id(dout) not in turned:
            turned.clear()
            turned[id(dout)] = dout, dout.transpose(1, 2).contiguous()
        out, leaves = graph()
        found = torch.autograd.grad(out, leaves, turned[id(dout)][1], retain_graph=True)
        return tuple(x.transpose(1, 2) for x in found)

    return Contender(impl, forward, gradient if backward else None)


@dataclass(frozen=True)
class Form:
    """A mask that libraries know by name."""

    name: str
    """`full`, `causal`, `window`, or `other`."""
    left: int | None = None
    right: int | None = None
    """These are the reaches of a window; None is unbounded."""


def form_of(case: Case) -> Form:
    """How a library without a mask language could be asked for this mask."""
    mask, square = case.mask, case.n_q == case.n_kv
    if mask.equals(full()) is True:
        return Form("full")
    if square and mask.equals(causal()) is True:
        return Form("causal")
    if square and isinstance(mask, N.Window):
        sides = [side if side is None else E.as_const(side) for side in (mask.left, mask.right)]
        known = [
            s is None or c is not None for s, c in zip((mask.left, mask.right), sides, strict=True)
        ]
        if all(known):
            return Form("window", *sides)
    return Form("other")
