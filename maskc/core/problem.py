"""The problem that a kernel is compiled for; lengths are arguments and not part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from maskc.core.dtypes import DType
from maskc.core.score import Formula


class Feature(Enum):
    """A part of attention that a call may ask for; each is a macro of the kernel source."""

    softcap = "softcap"
    """Scores become softcap * tanh(score / softcap) before anything else."""
    alibi = "alibi"
    """-slope[h] * |p - k| is added to the scores (Press et al., 2022)."""
    sinks = "sinks"
    """One extra logit per head in the softmax denominator."""
    entmax = "entmax"
    """alpha-entmax instead of softmax (Peters, Niculae and Martins, 2019)."""
    nan_safe = "nan_safe"
    """Non-finite rows of V never reach a query that does not see them, at a price (GPU only)."""

    wide = "wide"
    """The mask's formulas in 64 bits: calls take it where lengths, numbers or data need it."""

    @property
    def macro(self) -> str:
        """The name of its switch in generated C."""
        return f"WITH_{self.name.upper()}"


Features = frozenset[Feature]
BY_DISTANCE: Features = frozenset({Feature.alibi})
"""Features to which the positions of a pair's query and key matter."""
OF_HEADS: Features = BY_DISTANCE | {Feature.sinks}
"""Features with a number of each head that has a gradient."""


class Direction(Enum):
    """The pass that a kernel computes."""

    forward = "forward"
    backward = "backward"


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows (queries) and columns (keys) of one tile of the score matrix."""

    q: int
    k: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Positions and addresses of tokens that do not follow from lengths and strides."""

    positions: str
    """The data array with the position of each query among its sequence's keys."""
    page_size: int = 0
    """Keys of a page, if k and v are pools of pages; 0: keys are contiguous."""
    pool: DType | None = None
    """Storage type of pools whose numbers kernels convert on load; None: that of q."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Shapes and types known when code is generated."""

    head_dim: int
    """Elements of a row of q and k."""
    head_dim_v: int
    """Elements of a row of v and out."""
    dtype: DType
    """Storage type of q, k, v and, unless its `of_out` says otherwise, out."""
    n_heads: int | None = None
    """Query heads; needed only where heads have different masks."""
    score: Formula | None = None
    """The score formula; None: the score itself, with the features that a call requests."""
    dropout: bool = False
    """Whether weights are dropped; rate and seed are arguments of a call."""
    tile: TileShape | None = None
    """The forward tile if the user requests one; None: the planner chooses."""
    stages: int | None = None
    """Tiles of keys in flight in the forward pass, likewise."""

    placed: Placed | None = None
    """None: positions follow from lengths, and addresses from strides."""

    @property
    def page_size(self) -> int:
        """Keys of a page; 0 if keys are contiguous."""
        return 0 if self.placed is None else self.placed.page_size

    @property
    def of_keys(self) -> DType:
        """The storage type of k and v."""
        pool = None if self.placed is None else self.placed.pool
        return self.dtype if pool is None else pool

    @property
    def converts(self) -> bool:
        """Whether k and v are numbers of pools that kernels convert on load."""
        return self.of_keys is not self.dtype

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of a token: of its rows of q and out, and of those of k and v."""
        size, of_out = self.dtype.itemsize, self.dtype.of_out.itemsize
        dims = self.head_dim + self.head_dim_v
        return self.head_dim * size + self.head_dim_v * of_out, dims * self.of_keys.itemsize

    @property
    def names_tile(self) -> bool:
        """Whether the user names a tile or a number of stages."""
        return self.tile is not None or self.stages is not None

    @property
    def planned(self) -> Problem:
        """The problem with tile and stages left to the planner."""
        return replace(self, tile=None, stages=None)
