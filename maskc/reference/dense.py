"""Every mask as a matrix of booleans, straight from its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import (
    BadLength,
    DataRange,
    DataShape,
    DataType,
    HeadsUnknown,
    NameClash,
    NoSuchHead,
    WrongHeads,
)
from maskc.core.layout import MAX_LENGTH
from maskc.core.widths import plain_integer
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.slots import at_lengths
from maskc.reference import given
from maskc.reference.formula import Scope
from maskc.reference.pairs import PairPlace, keep, leading
from maskc.reference.ranking import TENSORS, needs, scores_of


def dense(
    mask: Mask,
    n_q: int,
    n_kv: int | None = None,
    *,
    n_heads: int | None = None,
    heads_kv: int | None = None,
    scores: object = None,
    head: int | None = None,
    batch: int | None = None,
    **data: object,
) -> np.ndarray:
    """The mask as booleans, True where the query sees the key.

    Args:
        mask: any mask, run-time selections included.
        n_q: queries; n_kv: keys, n_q when None.
        n_heads: query heads; needed where the mask differs between heads by a formula or by
            `heads`. If it has a mask per head, that many are there; where only arrays or the
            scores differ, their own dimension of heads tells.
        heads_kv: key/value heads, for topk(share="group"); n_heads when None.
        scores: what every topk ranks: float [n_q, n_kv], [heads, n_q, n_kv] or [batch, heads,
            n_q, n_kv]; or per block already, with [query blocks, key blocks] at the end. If
            `data` holds what a selection's own score is made of (`q` and `k`, or `index_q`,
            `index_k` and `index_w`), it ranks by that instead.
        head, batch: one head and one sequence only; all of them when None.
        data: the arrays and parameters the mask names.

    Returns:
        bool [n_q, n_kv]; [heads, n_q, n_kv] where heads differ and none is asked for; a dimension
        of sequences in front where an array or the scores have one, and none is asked for.

    Raises:
        BadLength, NameClash, DataMissing, DataUnknown, DataShape, DataType, DataRange,
        NotAnArray, HeadsUnknown, NoSuchHead.
    """
    n_q = _length("n_q", n_q)
    n_kv = n_q if n_kv is None else _length("n_kv", n_kv)
    mask = at_lengths(mask, n_q, n_kv, n_heads)
    at = _at(mask, n_q, n_kv, n_heads, heads_kv, scores, data)
    _check_index("head", head, at.heads)
    _check_index("batch", batch, at.sequences)
    masks = []
    for b in range(at.sequences or 1) if batch is None else (batch,):
        here = replace(at.sequence(b), own_head=0 if at.heads is None else head or 0)
        heads = [keep(mask, here)]
        if by_head := at.differs_by_head() and head is None:
            heads += [keep(mask, replace(here, own_head=h)) for h in range(1, here.n_heads)]
        masks.append(np.stack(heads) if by_head else heads[0])
    alone = at.sequences is None or batch is not None
    return masks[0] if alone else np.stack(masks)


def row(
    mask: Mask, q: int, n_q: int, n_kv: int, *, n_heads: int | None = None, head: int = 0,
    batch: int = 0, **data: Any,
) -> np.ndarray:  # fmt: skip
    """One query's row of `dense`, bool [n_kv], without the others.

    Arguments and errors are those of `dense`. A run-time selection looks at all rows, so the whole
    of its mask is made.
    """
    if N.selects(mask):
        rows = dense(mask, n_q, n_kv, n_heads=n_heads, head=head, batch=batch, **data)
        of_query: np.ndarray = rows[q]
        return of_query
    mask = at_lengths(mask, n_q, n_kv, n_heads)
    at = _at(mask, n_q, n_kv, n_heads, None, None, data)
    here = at.sequence(batch)
    scope = {**here.scope, "q": np.array([[q]], dtype=np.int64)}
    only: np.ndarray = keep(mask, replace(here, own_head=head, scope=scope))[0]
    at.differs_by_head()
    return only


def axes_given(mask: Mask, data: Mapping[str, object]) -> tuple[int, int]:
    """Return the numbers of sequences and heads that differ in arrays and scores.

    Every array counts, even if the set does not depend on it. A number is 1 if no array has the
    dimension.
    """
    nodes = list(N.walk(mask))
    named, _ = _named(nodes)
    wanted = {name: decl for name, decl in named.items() if data.get(name) is not None}
    arrays = {name: given.read(decl, data[name]) for name, decl in wanted.items()}
    ranking = {} if data.get("scores") is None else _rankings(nodes, data["scores"], data)
    told = (count for node in nodes for count in _heads_told(node, arrays, ranking))
    return _sequences(nodes, wanted, arrays, ranking) or 1, max(told, default=1)


@dataclass(frozen=True, eq=False)
class _At:
    """A mask with everything that it reads."""

    place: PairPlace
    """The place of head 0, with the arrays of all sequences."""
    wanted: dict[str, DataDecl]
    sequences: int | None
    """The number of sequences; None if no array has a batch dimension."""
    heads: int | None
    """The number of heads; None if nothing says."""

    def differs_by_head(self) -> bool:
        """Whether a node of the mask read the head, once one head was evaluated.

        Raises:
            HeadsUnknown: one did, and nothing says how many heads there are.
        """
        reads = self.place.reads_of_head
        if reads and self.heads is None:
            raise HeadsUnknown(at=reads[0])
        return bool(reads)

    def sequence(self, b: int) -> PairPlace:
        """The place of one sequence."""
        arrays = self.place.data
        part = {name: given.for_sequence(d, arrays[name], b) for name, d in self.wanted.items()}
        ranks = {node: _of_sequence(ranking, b) for node, ranking in self.place.scores.items()}
        return replace(self.place, data=part, scores=ranks, sequence=b, selected={})


def _at(
    mask: Mask, n_q: int, n_kv: int, n_heads: int | None, heads_kv: int | None,
    scores: object, data: Mapping[str, object],
) -> _At:  # fmt: skip
    nodes = list(N.walk(mask))
    wanted, params = _named(nodes)
    ranking = _rankings(nodes, scores, data)
    if ranking:
        data = {name: value for name, value in data.items() if name not in TENSORS}
    given.check_names(wanted, params, data)
    arrays = {name: given.read(decl, data[name]) for name, decl in wanted.items()}
    heads = _heads(nodes, arrays, ranking, n_heads)
    scope = _scope(n_q, n_kv, params, data)
    place = PairPlace(n_q, n_kv, 0, heads or 1, heads_kv, arrays, scope, ranking)
    return _At(place, wanted, _sequences(nodes, wanted, arrays, ranking), heads)


def _sequences(
    nodes: list[N.Node], wanted: dict[str, DataDecl], arrays: Arrays, ranking: Rankings
) -> int | None:
    """The number of sequences; None if no array has a dimension for them."""
    count = given.batch_of(wanted, arrays)
    captured = [leading(decl)[0] for node in nodes for decl in _captured(node)]
    if any(sequences > 1 for sequences in captured):
        count = max(count or 1, *captured)
    for scores in ranking.values():
        count = max(count or 1, len(scores)) if scores.ndim == 4 else count
    return count


def _captured(node: N.Node) -> tuple[DataDecl, ...]:
    """The arrays that a formula captured."""
    return node.tables if isinstance(node, N.Where) else ()


def _check_index(name: str, index: int | None, known: int | None) -> None:
    """Check the head, or the sequence, that is asked for.

    Args:
        name: "head" or "batch", for messages.
        index: None: all.
        known: how many there are, where that is known.

    Raises:
        NoSuchHead: there is no head of that index.
        DataRange: there is no sequence of that index.
    """
    if index is None or 0 <= index < (index + 1 if known is None else known):
        return
    if name == "head":
        raise NoSuchHead(index, known, at=name)
    fault = f"no sequence {index} among {known or 'all'}"
    raise DataRange(name, fault, "sequences count from 0", at=name)


Arrays = Mapping[str, given.Read]
"""Arguments of calls, by name."""
Rankings = Mapping[N.TopK, np.ndarray]
"""The scores by which each selection ranks."""


def _rankings(nodes: list[N.Node], scores: object, data: Mapping[str, object]) -> Rankings:
    """The scores of each selection, by its definition where possible, else by the tensor for all.

    Raises:
        DataMissing: neither is possible.
    """
    rankings = {}
    for node in nodes:
        if isinstance(node, N.TopK):
            has_own = all(data.get(name) is not None for name in needs(node))
            if scores is None or (has_own and needs(node)):
                rankings[node] = scores_of(node, data)
            else:
                rankings[node] = np.asarray(scores, dtype=np.float64)
    return rankings


def _of_sequence(scores: np.ndarray, index: int) -> np.ndarray:
    return scores[index if len(scores) > 1 else 0] if scores.ndim == 4 else scores


def _ranked_heads(scores: np.ndarray) -> int | None:
    """Return the number of heads with scores of their own; None if all share theirs."""
    return scores.shape[-3] if scores.ndim > 2 and scores.shape[-3] > 1 else None


def _length(name: str, value: Any) -> int:
    length = plain_integer(value)
    if length is None or not 0 <= length <= MAX_LENGTH:
        raise BadLength(name, MAX_LENGTH, repr(value), at=name)
    return length


# ------------------------------------------------------------------ what a mask is made of


def _named(nodes: list[N.Node]) -> tuple[dict[str, DataDecl], set[str]]:
    """The arrays a call must give, and the names of the parameters.

    Raises:
        NameClash: one name for two things.
    """
    wanted: dict[str, DataDecl] = {}
    defaults: dict[str, int] = {}
    for node in nodes:
        for decl in () if isinstance(node, N.Where) else node.decls:
            known = wanted.setdefault(decl.name, decl)
            if known != decl and not known.kind is decl.kind is DataKind.flags:
                raise NameClash(decl.name, known.kind.value, decl.kind.value, at=node.loc)
        for name, default in (pair for f in node.formulas for pair in E.params(f).items()):
            if defaults.setdefault(name, default) != default:
                both = f"a parameter of default {defaults[name]}", f"one of {default}"
                raise NameClash(name, *both, at=node.loc)
            if name in wanted:
                raise NameClash(name, "data", "a parameter", at=node.loc)
    return {name: decl for name, decl in wanted.items() if decl.from_caller}, set(defaults)


def _heads_told(node: N.Node, data: Arrays, scores: Rankings) -> Iterator[int]:
    """Return the number of heads that differ in the arrays and scores of a node."""
    yield from (leading(decl)[1] for decl in _captured(node))
    yield from (count for _, count in _heads_of_data(node, data))
    if isinstance(node, N.TopK) and node in scores and node.share != "all":
        yield _ranked_heads(scores[node]) or 1


def _heads_of_data(node: N.Node, data: Arrays) -> Iterator[tuple[DataDecl, int]]:
    """The data of calls and the tables that a node reads, and the heads that these tell apart."""
    for decl in () if isinstance(node, N.Where) else node.decls:
        if decl.from_caller:
            if decl.name in data:
                yield decl, given.heads_of(decl, data[decl.name])
        elif decl.kind is DataKind.table:
            yield decl, decl.shape[-3] if len(decl.shape) > 2 else 1


def _heads(nodes: list[N.Node], data: Arrays, scores: Rankings, n_heads: int | None) -> int | None:
    """The number of query heads; None if nothing says."""
    heads = n_heads
    for node in nodes:
        if (count := node.own_heads) is not None and not node.decls:
            if heads is not None and count != heads:
                who = f"n_heads is {n_heads}" if n_heads else f"a part of it for {heads}"
                raise WrongHeads(count, who, at=node.loc)
            heads = count
    ranked: int | None
    for node in nodes:
        for decl, count in _heads_of_data(node, data):
            heads = heads or (count if count > 1 else None)
            if count not in (1, heads):
                raise DataShape(decl.name, f"{count} heads", f"{heads} heads")
        for decl in _captured(node):
            if (count := leading(decl)[1]) > 1:
                heads = heads or count
                if count < heads:
                    raise DataShape(
                        "a captured array", decl.array.shape, f"{heads} heads", at=node.loc
                    )
        if isinstance(node, N.TopK) and (ranked := _ranked_heads(scores[node])):
            heads = heads or ranked
            if ranked != heads:
                raise DataShape("scores", scores[node].shape, f"[{heads}, n_q, n_kv]", at="scores")
    for node in nodes:
        if heads is not None and node.last_head >= heads:
            raise NoSuchHead(node.last_head, heads, at=node.loc)
    return heads


def _scope(n_q: int, n_kv: int, params: set[str], data: Mapping[str, object]) -> Scope:
    scope: Scope = {
        "q": np.arange(n_q, dtype=np.int64)[:, None],
        "k": np.arange(n_kv, dtype=np.int64)[None, :],
        "n_q": np.asarray(n_q, dtype=np.int64),
        "n_kv": np.asarray(n_kv, dtype=np.int64),
    }
    for name in params.intersection(data):
        scope[name] = np.asarray(_parameter(name, data[name]), dtype=np.int64)
    return scope


def _parameter(name: str, value: Any) -> int:
    """Return the value of a parameter, with the limits of a literal.

    Raises:
        DataType, DataRange: no integer, or not in 0..2^30.
    """
    number = plain_integer(value)
    if number is None:
        raise DataType(name, type(value).__name__, "an integer", at=name)
    if not 0 <= number <= MAX_LENGTH:
        hint = "parameters count tokens; None in the pattern means unbounded"
        raise DataRange(name, f"{number} is outside 0..{MAX_LENGTH}", hint, at=name)
    return number
