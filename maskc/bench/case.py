"""What is measured: a mask, sizes, a dtype, and the arrays the mask reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maskc.bench.formulas import Formula
from maskc.core import expr as E
from maskc.core.dtypes import DType
from maskc.core.errors import HeadsDoNotDivide, UsageMistake
from maskc.dsl import nodes as N
from maskc.dsl.combinators import causal, full
from maskc.dsl.mask import Mask
from maskc.reference.dense import walk


@dataclass(frozen=True, eq=False)
class Case:
    """One attention problem."""

    name: str
    mask: Mask
    batch: int
    heads: int
    kv_heads: int
    n_q: int
    n_kv: int
    head_dim: int
    dtype: DType
    data: Mapping[str, object] = field(default_factory=dict)
    """Arrays and parameters the mask reads, by name; arrays on the host."""
    formula: Formula | None = None
    """The mask written a second time, by hand; results are judged by it where there is one."""
    alpha: float = 1.0
    """Of entmax, by which scores become weights; 1 is softmax."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "n_q", "n_kv"):
            if getattr(self, name) < 1:
                hint = "use at least one sequence, head, query and key"
                raise UsageMistake(
                    f"{name} = {getattr(self, name)}: there is nothing to time", hint, at=name
                )
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise HeadsDoNotDivide(self.heads, self.kv_heads, at="kv_heads")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def ranks_by_qk(self) -> bool:
        """Whether q and k decide which pairs the mask keeps."""
        scores = (node.score for node in walk(self.mask) if isinstance(node, N.TopK))
        return any(score in ("qk", "block_mean") for score in scores)

    @property
    def scale(self) -> float:
        """Factor of q . k."""
        return self.head_dim**-0.5

    def flops(self, pairs: int, direction: str) -> int:
        """Floating-point operations of `pairs` (query, key) pairs: two products, or five."""
        return (4 if direction == "fwd" else 10) * self.head_dim * pairs


@dataclass(frozen=True)
class Form:
    """A mask that libraries know by name."""

    name: str
    """`full`, `causal`, `window`, or `other`."""
    left: int | None = None
    right: int | None = None
    """Of a window; None is unbounded."""


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
