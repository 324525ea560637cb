"""The mask of one rank: over some of the queries, and over the keys in a buffer.

The formula of the mask is in q and k of the whole sequence. On a rank, query i is q = i + q0, and
key j of a buffer is k = j + k0, with one k0 for each stretch of keys. The formula of the rank has
these sums in place of q and k. q0 and k0 are arguments of the call if the kernel allows it. If
queries and keys come from many places, tables map them: q = Q[i] and k = K[j].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from maskc.core import expr as E
from maskc.core.captured import Captured
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import NotShared, PlanData
from maskc.core.expr import Expr
from maskc.distributed.reach import Lengths, divides
from maskc.distributed.token_ranges import Stretch
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.slots import with_captured
from maskc.ir.heads import heads_of
from maskc.ir.lower import differs_by_head
from maskc.ir.lowered import lowered
from maskc.layout import bind_arrays
from maskc.questions.mask_at_lengths import bound


@dataclass(frozen=True, eq=False)
class LocalMask:
    """A mask over the queries and the keys of one call, with its data."""

    mask: Mask
    data: Mapping[str, object] = field(default_factory=dict)


def localized(
    mask: Mask, lengths: Lengths, n_heads: int, first: int, rows: int, keys: Sequence[Stretch],
    data: Mapping[str, object],
) -> LocalMask:  # fmt: skip
    """The mask over queries first .. first + rows - 1 and a buffer of keys.

    Args:
        mask: over a whole sequence, whose arrays and parameters `data` gives.
        lengths: its queries and keys.
        n_heads: query heads.
        first: the first query; rows: how many there are.
        keys: the stretches of the buffer, ascending by place.

    Raises:
        PlanData: the mask reads data that are not given (MC702).
        NotShared: keys are chosen in blocks that the stretches cut (MC707).
    """
    whole = len(keys) == 1 and (keys[0].start, keys[0].place, keys[0].count) == (0, 0, lengths[1])
    if whole and first == 0 and rows == lengths[0]:
        return LocalMask(mask, data)
    return _ByNumbers(lengths, n_heads, data, first=first, rows=rows, keys=keys).local(mask)


def tabulated(
    mask: Mask, lengths: Lengths, n_heads: int, queries: np.ndarray, keys: np.ndarray,
    data: Mapping[str, object],
) -> LocalMask:  # fmt: skip
    """The mask over some queries and keys in any order, one at least of each.

    Args:
        mask, lengths, n_heads, data: as in `localized`.
        queries, keys: int64 [rows] and [keys]: which tokens they are.

    Raises:
        PlanData: the mask reads data that are not given (MC702).
        NotShared: the mask chooses keys (MC707).
    """
    return _ByTables(lengths, n_heads, data, queries=queries, keys=keys).local(mask)


@dataclass(eq=False)
class _Localizing(ABC):
    """The arguments of `localized`, and what a call will pass."""

    lengths: Lengths
    n_heads: int
    data: Mapping[str, object]
    passed: dict[str, object] = field(default_factory=dict)

    def local(self, mask: Mask) -> LocalMask:
        """Make the mask of local queries and keys, and what calls pass for it."""
        return LocalMask(self.mask(mask), self.passed)

    @abstractmethod
    def pick(self, of_q: np.ndarray, of_k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pick the ids of the local queries and keys from [.., n_q] and [.., n_kv]; -1 in gaps."""

    @abstractmethod
    def check_blocks(self, mask: N.TopK) -> None:
        """See that chosen blocks keep their keys, and queries their blocks.

        Raises:
            NotShared.
        """

    @abstractmethod
    def moved(self, keep: Expr, arrays: dict[str, np.ndarray]) -> Expr:
        """Make the formula of local queries and keys.

        Args:
            keep: the formula of the sequence.
            arrays: the arrays that it reads; tables of positions are added.
        """

    def mask(self, mask: Mask) -> Mask:
        """The mask with local queries and keys."""
        match mask:
            case N.TopK(of=of):
                self.check_blocks(mask)
                return replace(mask, of=self.mask(of))
            case N.Algebra(op, left, right) if _apart(mask):
                return N.Algebra(op, self.mask(left), self.mask(right), loc=mask.loc)
            case N.Complement(of) if _apart(mask):
                return N.Complement(self.mask(of), loc=mask.loc)
            case N.PerHead(masks):
                return N.PerHead(tuple(map(self.mask, masks)), loc=mask.loc)
            case N.Documents(decl) if decl.name in self.data:
                return self._documents(mask)
            case N.KeyLists():  # calls give the lists, with their keys counted in the buffer
                return mask
        if differs_by_head(mask):
            count = heads_of(mask, None) or self.n_heads
            return N.PerHead(tuple(self._formula(mask, head) for head in range(count)))
        return self._formula(mask, None)

    def _documents(self, mask: N.Documents) -> Mask:
        """A node of the same name, with ids of the queries and of the buffer's keys."""
        decl = mask.decl
        arrays = bind_arrays((decl,), {decl.name: self.data[decl.name]}, *self.lengths)
        of_q, of_k = self.pick(*(arrays[name] for name in decl.arrays))
        self.passed[decl.name] = np.ascontiguousarray(of_q), np.ascontiguousarray(of_k)
        return mask

    def _formula(self, mask: Mask, head: int | None) -> Mask:
        """A formula of q and k as one of local queries and keys."""
        inner, given = with_captured(mask, self.data, self.n_heads, *self.lengths)
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
        asked = bound([ir], *self.lengths, data)
        n_q, n_kv = map(E.const, self.lengths)
        keep = E.substitute(ir.keep, {E.N_Q: n_q, E.N_KV: n_kv})
        self.passed |= {name: asked.params[name] for name in E.params(keep)}
        arrays = {name: asked.arrays[name] for name in E.arrays(keep)}
        keep = self.moved(keep, arrays)
        tables = tuple(
            DataDecl(name, DataKind.constant, (name,), options=(_rank(keep, name),),
                     values=Captured.of(arrays[name]))
            for name in E.arrays(keep)
        )  # fmt: skip
        return N.Where(keep, tables, loc=getattr(mask, "loc", None))


@dataclass(eq=False, kw_only=True)
class _ByNumbers(_Localizing):
    """Queries are one stretch, and keys a few."""

    first: int
    rows: int
    keys: Sequence[Stretch]

    def pick(self, of_q: np.ndarray, of_k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `_Localizing.pick`."""
        size = self.keys[-1].place + self.keys[-1].count if self.keys else 0
        keys = np.full((*of_k.shape[:-1], size), -1, np.int32)
        for stretch in self.keys:
            part = of_k[..., stretch.start : stretch.start + stretch.count]
            keys[..., stretch.place : stretch.place + stretch.count] = part
        return of_q[..., self.first : self.first + self.rows], keys

    def check_blocks(self, mask: N.TopK) -> None:
        """See `_Localizing.check_blocks`."""
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

    def moved(self, keep: Expr, arrays: dict[str, np.ndarray]) -> Expr:
        """See `_Localizing.moved`."""
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
            parts.append(
                E.conj(*inside, _substituted(keep, q, k, self.lengths[1] if inside else None))
            )
        return E.disj(*parts)


@dataclass(eq=False, kw_only=True)
class _ByTables(_Localizing):
    """Tables say which tokens the queries and keys are."""

    queries: np.ndarray
    keys: np.ndarray

    def pick(self, of_q: np.ndarray, of_k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `_Localizing.pick`."""
        return of_q[..., self.queries], of_k[..., self.keys]

    def check_blocks(self, mask: N.TopK) -> None:
        """See `_Localizing.check_blocks`."""
        hint = "use a layout with few stretches of tokens for each rank, or run it on one rank"
        raise NotShared(str(mask), "its candidates come from many places", hint,
                        at=mask.loc or "mask")  # fmt: skip

    def moved(self, keep: Expr, arrays: dict[str, np.ndarray]) -> Expr:
        """See `_Localizing.moved`; what is read by query or key alone is looked up here."""
        sides: dict[Expr, np.ndarray] = {E.Q: self.queries, E.K: self.keys}

        picked: dict[tuple[str, Expr], str] = {}

        def load(name: str, side: Expr, values: np.ndarray) -> E.Load:
            key = name, side
            if key not in picked:
                picked[key] = _free(f"{name}_of_{'q' if side == E.Q else 'k'}", arrays)
                arrays[picked[key]] = np.ascontiguousarray(values, np.int32)
            return E.Load(picked[key], (side,))

        def leaf(node: Expr) -> Expr | None:
            if isinstance(node, E.Load) and len(node.index) == 1 and node.index[0] in sides:
                (side,) = node.index
                return load(node.array, side, arrays[node.array][sides[side]])
            return load("token", node, sides[node]) if node in sides else None

        return E.transform(keep, leaf)


def _substituted(keep: Expr, q: Expr, k: Expr, n_kv: int | None) -> Expr:
    """The formula with other queries and keys; arrays are read at keys below n_kv."""

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, E.Load) and n_kv is not None:
            last = E.minimum(k, E.const(n_kv - 1))
            return E.Load(node.array, tuple(_substituted(x, q, last, None) for x in node.index))
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


def _free(name: str, taken: Mapping[str, object]) -> str:
    while name in taken:
        name += "_"
    return name


def _apart(mask: Mask) -> bool:
    """Whether the mask contains a node that cannot become a formula."""
    kinds = N.Documents, N.KeyLists, N.TopK, N.PerHead
    return any(isinstance(node, kinds) for node in N.walk(mask))
