"""A mask as one rank sees it: over some of the queries, and over keys that lie in a buffer.

The formula of the mask speaks of the sequence's q and k. On a rank, query i is q = i + q0, and key
j of a buffer is k = j + k0, with one k0 for each stretch of keys. So the formula is the same one
with sums in place of q and k: numbers of a call where that leaves the kernel as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import Captured
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import NotShared, PlanData
from maskc.core.expr import Expr
from maskc.distributed.reach import divides
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.slots import with_captured
from maskc.ir.heads import heads_of
from maskc.ir.lower import differs_by_head
from maskc.ir.lowered import lowered
from maskc.layout import bind_arrays
from maskc.questions.mask_at_lengths import bound


@dataclass(frozen=True)
class Stretch:
    """Keys start .. start + count - 1 of the sequence, from `place` on in a buffer."""

    start: int
    place: int
    count: int


@dataclass(frozen=True, eq=False)
class LocalMask:
    """A mask over the queries and the keys of one call, and what the call passes for it."""

    mask: Mask
    data: Mapping[str, object] = field(default_factory=dict)


def localized(
    mask: Mask, n: int, n_heads: int, first: int, rows: int, keys: Sequence[Stretch],
    data: Mapping[str, object],
) -> LocalMask:  # fmt: skip
    """The mask over queries first .. first + rows - 1 and a buffer of keys.

    Args:
        mask: over the whole sequence of n tokens, whose arrays and parameters `data` gives.
        n_heads: query heads.
        first: the first query; rows: how many there are.
        keys: the stretches of the buffer, ascending by place.

    Raises:
        PlanData: the mask reads data that are not given (MC702).
        NotShared: keys are chosen in blocks that the stretches cut (MC707).
    """
    whole = len(keys) == 1 and (keys[0].start, keys[0].place, keys[0].count) == (0, 0, n)
    if whole and first == 0 and rows == n:
        return LocalMask(mask, data)
    made = _Localizing(n, n_heads, first, rows, keys, data)
    return LocalMask(made.mask(mask), made.passed)


@dataclass(eq=False)
class _Localizing:
    """The arguments of `localized`, and what a call will pass."""

    n: int
    n_heads: int
    first: int
    rows: int
    keys: Sequence[Stretch]
    data: Mapping[str, object]
    passed: dict[str, object] = field(default_factory=dict)

    def mask(self, mask: Mask) -> Mask:
        """The mask with local queries and keys."""
        match mask:
            case N.TopK(of=of):
                self._check_blocks(mask)
                return replace(mask, of=self.mask(of))
            case N.Algebra(op, left, right) if _apart(mask):
                return N.Algebra(op, self.mask(left), self.mask(right), loc=mask.loc)
            case N.Complement(of) if _apart(mask):
                return N.Complement(self.mask(of), loc=mask.loc)
            case N.PerHead(masks):
                return N.PerHead(tuple(map(self.mask, masks)), loc=mask.loc)
            case N.Documents(decl) if decl.name in self.data:
                return self._documents(mask)
        if differs_by_head(mask):
            count = heads_of(mask, None) or self.n_heads
            return N.PerHead(tuple(self._formula(mask, head) for head in range(count)))
        return self._formula(mask, None)

    def _documents(self, mask: N.Documents) -> Mask:
        """A node of the same name, with ids of the queries and of the buffer's keys."""
        decl = mask.decl
        arrays = bind_arrays((decl,), {decl.name: self.data[decl.name]}, self.n, self.n)
        of_q, of_k = (arrays[name] for name in decl.arrays)
        queries = of_q[..., self.first : self.first + self.rows]
        size = self.keys[-1].place + self.keys[-1].count if self.keys else 0
        keys = np.full((*of_k.shape[:-1], size), -1, np.int32)  # gaps are in no document
        for stretch in self.keys:
            part = of_k[..., stretch.start : stretch.start + stretch.count]
            keys[..., stretch.place : stretch.place + stretch.count] = part
        self.passed[decl.name] = np.ascontiguousarray(queries), keys
        return mask

    def _check_blocks(self, mask: N.TopK) -> None:
        """Chosen blocks keep their keys, and queries their blocks.

        Raises:
            NotShared.
        """
        shift = self.keys[0].start if self.keys else 0
        if mask.score == "given":
            why = "its scores are given for the whole sequence"
        elif mask.at is not None:
            why = "its blocks count from positions of the whole sequence"
        elif len(self.keys) != 1 or self.keys[0].place:
            why = "its candidates lie in several stretches of keys"
        elif shift % mask.block or self.first % mask.q_block:
            why = f"keys from {shift} and queries from {self.first} on cut its blocks"
        else:
            return
        hint = f"choose shards of multiples of {mask.block} keys, or run it on one rank"
        raise NotShared(str(mask), why, hint, at=mask.loc or "mask")

    def _formula(self, mask: Mask, head: int | None) -> Mask:
        """A formula of q and k as one of local queries and keys."""
        inner, given = with_captured(mask, self.data, self.n_heads, self.n, self.n)
        ir = lowered(inner, head, self.n_heads if head is not None else None)
        names = {decl.name for decl in ir.data if decl.from_caller} | set(ir.params) | {"_captured"}
        data = {name: value for name, value in given.items() if name in names}
        missing = [decl.name for decl in ir.data if decl.from_caller and decl.name not in data]
        if missing:
            listed = ", ".join(missing)
            raise PlanData(
                f"the mask reads {listed}, which the plan was not given",
                f"call plan.given({missing[0]}=...) with the data of all tokens, step by step",
                at="plan",
            )
        if lists := [decl.name for decl in ir.data if decl.kind is DataKind.key_lists]:
            hint = "run it on one rank, or give a mask_mod or a table of blocks"
            why = f"{lists[0]} names keys of the whole sequence"
            raise NotShared(str(mask), why, hint, at=getattr(mask, "loc", None) or "mask")
        asked = bound([ir], self.n, self.n, data)
        keep = E.substitute(ir.keep, {E.N_Q: E.const(self.n), E.N_KV: E.const(self.n)})
        self.passed |= {name: asked.params[name] for name in E.params(keep)}
        tables = tuple(
            DataDecl(name, DataKind.constant, (name,), options=(_rank(keep, name),),
                     values=Captured.of(asked.arrays[name]))
            for name in E.arrays(keep)
        )  # fmt: skip
        return N.Where(self._moved(keep), tables, loc=getattr(mask, "loc", None))

    def _moved(self, keep: Expr) -> Expr:
        if (len(self.keys) == 1 or self.data) and not divides(keep):
            return self._by_parameters(keep)
        return self._shifted(keep, lambda name, value: E.const(value), _of_distances(keep))

    def _by_parameters(self, keep: Expr) -> Expr:
        """All ranks, and all steps, have the same formula: its numbers are passed by calls.

        A mask without data has the same stretches at every step. Several of them are numbers of
        the formula then, which makes for fewer intervals in a row.
        """
        taken, values = E.params(keep), {}

        def number(name: str, value: int) -> Expr:
            name = _free(name, taken)
            values[name] = value
            return E.Param(name, 0)

        made = self._shifted(keep, number)
        read = E.params(made)
        self.passed |= {name: value for name, value in values.items() if name in read}
        return made

    def _shifted(
        self, keep: Expr, number: Callable[[str, int], Expr], from_the_end: bool = False
    ) -> Expr:
        """The formula of local queries and keys, its new numbers as `number` makes them.

        Args:
            from_the_end: whether queries are counted as kernels over residue classes need it.
        """
        q = E.add(E.Q, number("first_q", self.first))
        if from_the_end and len(self.keys) == 1:
            size = self.keys[0].place + self.keys[0].count
            q = E.add(E.Q, E.N_KV, E.scale(-1, E.N_Q), E.const(self.first - size + self.rows))
        last, parts = len(self.keys) - 1, []
        for at, stretch in enumerate(self.keys):
            suffix = f"_{at}" if at else ""
            k = E.add(E.K, number(f"first_k{suffix}", stretch.start - stretch.place))
            inside = []
            if at:
                inside.append(E.ge(E.K, number(f"place{suffix}", stretch.place)))
            if at < last:
                inside.append(E.lt(E.K, number(f"stop{suffix}", stretch.place + stretch.count)))
            parts.append(E.conj(*inside, _substituted(keep, q, k, self.n if inside else None)))
        return E.disj(*parts)


def _substituted(keep: Expr, q: Expr, k: Expr, n: int | None) -> Expr:
    """The formula with other queries and keys; indices of arrays stay below n."""

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, E.Load) and n is not None:
            index = (E.minimum(_substituted(x, q, k, n), E.const(n - 1)) for x in node.index)
            return E.Load(node.array, tuple(index))
        return q if node == E.Q else k if node == E.K else None

    return E.transform(keep, leaf)


def _of_distances(keep: Expr) -> bool:
    """Whether remainders are those of distances between queries and keys."""
    divided = [node for node in E.walk(keep) if isinstance(node, (E.FloorDiv, E.Mod))]
    leaves = [{E.Q, E.K}.intersection(E.walk(node)) for node in divided]
    return {E.Q, E.K} in leaves and {E.Q} not in leaves


def _rank(keep: Expr, name: str) -> int:
    loads = (node for node in E.walk(keep) if isinstance(node, E.Load) and node.array == name)
    return len(next(loads).index)


def _free(name: str, taken: Mapping[str, int]) -> str:
    while name in taken:
        name += "_"
    return name


def _apart(mask: Mask) -> bool:
    """Whether the mask contains what has to stay a node of its own."""
    return any(isinstance(node, (N.Documents, N.TopK, N.PerHead)) for node in N.walk(mask))
