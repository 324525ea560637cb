"""Run-time selections as booleans on a device, for some queries of all heads of a sequence."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from operator import and_, or_, xor
from typing import Any, NamedTuple

from maskc.dsl.mask import Mask
from maskc.dsl.nodes import Algebra, TopK, selects, walk
from maskc.lab.evaluate.tensors import torch_module

Made = Callable[[Mask], Any]
"""From a mask that selects nothing to bool [n, n] or [heads, n, n]."""


class Queries(NamedTuple):
    """Some queries of all heads of a sequence."""

    q: Any
    """[Hq, n, D], all of them."""
    k: Any
    """[Hkv, n, D]."""
    first: int
    last: int
    scores: Any = None
    """fp32 [Hq, last - first, n], -inf where the mask `of` hides; q . k of all keys when None."""
    ranked: Any = None
    """The scores in descending order, where they are known."""
    of: Mask | None = None
    """The mask under which scores were ranked."""

    def products(self) -> Any:
        """fp32 [Hq, last - first, n]."""
        if self.scores is not None:
            return self.scores
        k = self.k.float().repeat_interleave(self.q.shape[0] // self.k.shape[0], dim=0)
        return self.q[:, self.first : self.last].float() @ k.transpose(1, 2)


def block_of(mask: Mask) -> int:
    """The least number that the blocks of all selections of the mask divide."""
    blocks = [(node.block, node.q_block) for node in walk(mask) if isinstance(node, TopK)]
    return math.lcm(*chain.from_iterable(blocks))


def can_select(mask: Mask) -> bool:
    """Whether `selected` knows all selections of the mask."""
    if not selects(mask):
        return True
    if isinstance(mask, Algebra):
        return can_select(mask.left) and can_select(mask.right)
    known = isinstance(mask, TopK) and mask.share == "head" and mask.at is None
    if not isinstance(mask, TopK) or not known or selects(mask.of):
        return False
    return mask.score == "block_mean" or (mask.score, mask.block, mask.q_block) == ("qk", 1, 1)


def selected(mask: Mask, made: Made, queries: Queries) -> Any:
    """Return bool [rows, n] or [heads, rows, n]: the keys of some queries under a mask.

    Args:
        mask: a mask for which `can_select` is true.
        made: gives the parts that select nothing.
        queries: the queries of the rows.
    """
    rows = slice(queries.first, queries.last)
    if not selects(mask):
        return made(mask)[..., rows, :]
    if isinstance(mask, Algebra):
        left, right = (selected(operand, made, queries) for operand in (mask.left, mask.right))
        return combined(mask.op, left, right)
    chosen: Any = mask
    allowed = made(chosen.of)
    if chosen.score == "block_mean":
        return _best_blocks(chosen, allowed, queries) & allowed[..., rows, :]
    ranked = queries.ranked if queries.of == chosen.of else None
    return best(queries.products(), allowed[..., rows, :], chosen.k, ranked)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "&": and_,
    "|": or_,
    "^": xor,
    "-": lambda left, right: left & ~right,
}


def combined(op: str, left: Any, right: Any) -> Any:
    """Apply an operator of the mask algebra to booleans."""
    return _OPERATORS[op](left, right)


def _best_blocks(mask: TopK, allowed: Any, queries: Queries) -> Any:
    """bool [heads, rows, n]: the best blocks of keys of each block of queries."""
    torch = torch_module()
    q, k, first, last = queries[:4]
    above, below = first // mask.q_block, (last - 1) // mask.q_block + 1
    high = slice(above * mask.q_block, below * mask.q_block)
    live = cells(allowed[..., high, :], mask.q_block, mask.block)
    tall, wide = means(q[:, high].float(), mask.q_block), means(k.float(), mask.block)
    wide = wide.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    chosen = best(tall @ wide.transpose(1, 2), live, mask.k)
    rows = torch.arange(first, last, device=q.device) // mask.q_block - above
    columns = torch.arange(k.shape[1], device=q.device) // mask.block
    return chosen[:, rows][:, :, columns]


def best(scores: Any, allowed: Any, count: int, ranked: Any = None) -> Any:
    """The `count` greatest scores of each row among the allowed ones; of equals the first.

    `ranked` are the allowed scores in descending order, where they are known.
    """
    torch = torch_module()
    allowed = allowed & (scores > -torch.inf)
    if count >= scores.shape[-1]:
        return allowed
    if count == 0:
        return torch.zeros_like(allowed)
    if ranked is None:
        hidden = scores.masked_fill(~allowed, -torch.inf)
        least = hidden.kthvalue(scores.shape[-1] - count + 1, dim=-1, keepdim=True).values
    else:
        least = ranked[..., count - 1 : count]
    above, equal = allowed & (scores > least), allowed & (scores == least)
    room = count - above.sum(dim=-1, keepdim=True)
    if bool((equal.sum(dim=-1, keepdim=True) > room).any()):
        equal &= equal.cumsum(dim=-1) <= room
    return above | equal


def means(x: Any, block: int) -> Any:
    """[heads, ceil(n / block), D]: means of blocks of rows; the last block may have fewer."""
    torch = torch_module()
    if block == 1:
        return x
    over = -x.shape[1] % block
    sums = torch.nn.functional.pad(x, (0, 0, 0, over)).unflatten(1, (-1, block)).sum(dim=2)
    counts = torch.full((sums.shape[1], 1), float(block), device=x.device)
    counts[-1] = block - over
    return sums / counts


def cells(allowed: Any, rows: int, columns: int) -> Any:
    """bool [..., ceil(n / rows), ceil(n / columns)]: which blocks have an allowed pair."""
    torch = torch_module()
    over = (0, -allowed.shape[-1] % columns, 0, -allowed.shape[-2] % rows)
    padded = torch.nn.functional.pad(allowed, over)
    return padded.unflatten(-1, (-1, columns)).any(dim=-1).unflatten(-2, (-1, rows)).any(dim=-2)
