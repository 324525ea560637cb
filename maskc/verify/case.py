"""The subject of a measurement: a mask, sizes, a dtype, and the arrays that the mask reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maskc.core.dtypes import DType
from maskc.core.errors import HeadsDoNotDivide, UsageMistake
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import walk

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

MaskMod = Callable[[Any, Any, Any, Any], Any]
"""A function from integer tensors b, h, q, k that broadcast to a tensor of booleans."""
Formula = Callable[[Mapping[str, Any]], MaskMod]
"""A function from the mask's arrays, as tensors on the device, by name."""


def ranks_by_qk(mask: Mask) -> bool:
    """Whether q and k decide which pairs a mask keeps."""
    scores = (node.score for node in walk(mask) if isinstance(node, N.TopK))
    return any(score in ("qk", "block_mean") for score in scores)


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
    data: Mapping[str, Any] = field(default_factory=dict)
    """Arrays and parameters the mask reads, by name; arrays on the host."""
    formula: Formula | None = None
    """The mask written a second time, by hand; if present, results are compared with it."""
    alpha: float = 1.0
    """Entmax's alpha, by which scores become weights; 1 is softmax."""
    tile: tuple[int, int] | None = None
    """Queries and keys of the forward pass's tile; None: as planned."""
    stages: int | None = None
    """Tiles of keys in flight, likewise."""
    head_dim_v: int | None = None
    """Elements of a row of v and out; None: as many as of q and k."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "n_q", "n_kv"):
            if getattr(self, name) < 1:
                hint = "use at least one sequence, head, query and key"
                raise UsageMistake(
                    f"{name} = {getattr(self, name)}: there is nothing to compute", hint, at=name
                )
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise HeadsDoNotDivide(self.heads, self.kv_heads, at="kv_heads")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def width_v(self) -> int:
        """Elements of a row of v and out."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def ranks_by_qk(self) -> bool:
        """Whether q and k decide which pairs the mask keeps."""
        return ranks_by_qk(self.mask)

    @property
    def scale(self) -> float:
        """Factor of q . k."""
        factor: float = self.head_dim**-0.5
        return factor

    def compile(self, target: str) -> CompiledMask:
        """The mask for this problem on a target.

        Raises:
            MaskcError: the mask or the sizes are refused.
        """
        return self.mask.compile(
            self.head_dim, self.head_dim_v, n_heads=self.heads, dtype=self.dtype, target=target,
            tile=self.tile, stages=self.stages,
        )  # fmt: skip

    def warm(self, target: str) -> CompiledMask:
        """The mask, compiled, built and loaded; errors as of `compile`."""
        attn = self.compile(target)
        attn.warmup(("entmax",) if self.alpha > 1 else ())
        return attn

    def flops(self, pairs: int, direction: str) -> int:
        """Floating-point operations of `pairs` (query, key) pairs: two products, or five."""
        of_qk, of_v = (1, 1) if direction == "fwd" else (3, 2)
        return 2 * (of_qk * self.head_dim + of_v * self.width_v) * pairs
