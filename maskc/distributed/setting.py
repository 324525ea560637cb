"""Inputs of a plan's predictions: tensors, the kernels' passes, and the network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskc.core.dtypes import DType
from maskc.core.problem import Problem
from maskc.distributed.costs import PassCost, pass_costs
from maskc.distributed.network import Network

if TYPE_CHECKING:
    from maskc.distributed.planning import LayerPlan


@dataclass(frozen=True)
class HeadSizes:
    """Heads and head dimensions of q, k and v."""

    q: int
    kv: int
    dim: int
    dim_v: int


class Traffic(NamedTuple):
    """Bytes that ranks send and receive in a pass, int64 [ranks] each."""

    sent: np.ndarray
    received: np.ndarray


@dataclass(frozen=True)
class Setting:
    """The tensors of a sequence that ranks share, and how fast the ranks talk."""

    heads: HeadSizes
    dtype: DType
    """The dtype of keys and values."""
    batch: int
    network: Network

    @property
    def problem(self) -> Problem:
        """Return the problem that kernels are compiled for, without heads."""
        return Problem(self.heads.dim, self.heads.dim_v, self.dtype)

    @cached_property
    def passes(self) -> tuple[PassCost, PassCost]:
        """The costs of the forward and the backward pass."""
        return pass_costs(self.problem)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        of = self.heads
        return of.kv * (of.dim + of.dim_v) * self.dtype.itemsize * self.batch

    @property
    def visit_bytes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(bytes that a row takes to a host, and back) of both passes; see
        maskc.distributed.passes."""
        of, queries = self.heads, self.heads.q * self.batch
        forward = queries * of.dim * self.dtype.itemsize, queries * (of.dim_v + 1) * 4
        return forward, (queries * (of.dim + 2 * of.dim_v + 1) * 4, queries * of.dim * 4)

    def traffic(self, layer: LayerPlan) -> tuple[Traffic, Traffic]:
        """The bytes of both passes: keys or their gradients, and rows that visit their keys."""
        size = self.token_bytes
        forward, backward = (
            Traffic(layer.sent * size + there, layer.received * size + back)
            for there, back in map(layer.visiting, self.visit_bytes)
        )
        return forward, backward
