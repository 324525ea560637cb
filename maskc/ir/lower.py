"""Combinators become one formula over q, k and the lengths.

Does not simplify beyond the normal form of core.expr, and never looks at lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import HeadsUnknown, NameClash, NoSuchHead, WrongHeads
from maskc.core.expr import Expr
from maskc.core.selection import Score, Selection, Share
from maskc.dsl import nodes as N
from maskc.dsl.data_atoms import captured
from maskc.dsl.mask import Mask
from maskc.dsl.printer import print_mask
from maskc.dsl.slots import emptied
from maskc.ir.names import declared_names
from maskc.ir.selecting import chosen, needed, scoring_of, table_of
from maskc.ir.types import MaskIR, Origin, segment


def lower(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """Lower the mask of one query head to a formula.

    Args:
        head: which head; None if heads do not differ.
        n_heads: how many there are, for checking.

    Raises:
        HeadsUnknown, NoSuchHead, NameClash.
    """
    state = _Lowering(head, n_heads, _on_both_sides(mask))
    keep = state.formula(mask)
    if head is None and state.reads_head:
        raise HeadsUnknown(at=getattr(mask, "loc", None))
    selections = needed(keep, state.selections)
    formulas = [keep, *(formula for selection in selections for formula in selection.allowed)]
    used = {name for formula in formulas for name in E.arrays(formula)}
    used |= {decl.name for selection in selections for decl in scoring_of(selection)}
    used |= {name for selection in selections for name in selection.at}
    data = [d for d in state.data.values() if used.intersection((d.name, *d.arrays))]
    live = set(E.walk(keep))
    origins = tuple((atom, origin) for atom, origin in state.origins.items() if atom in live)
    _check_names(mask, data, formulas)
    ordered = tuple(sorted(data, key=lambda decl: (decl.name, decl.arrays)))
    return MaskIR(keep, ordered, origins, declared_names(mask), selections=selections)


def differs_by_head(mask: Mask) -> bool:
    """Whether lowering the mask reads the head, so that it may keep different pairs on others."""
    return _head_use(mask)[0]


def computes_with_head(mask: Mask) -> bool:
    """Whether some formula computes with h, so that no number of heads shows all its sets."""
    return _head_use(mask)[1]


def _head_use(mask: Mask) -> tuple[bool, bool]:
    known: tuple[bool, bool] | None = vars(mask).get("_head_use")
    if known is None:
        state = _Lowering(None, None, _on_both_sides(mask))
        state.formula(emptied(mask)[0])
        known = vars(mask)["_head_use"] = state.reads_head, state.computes_with_head
    return known


def terms(mask: Mask, head: int, n_heads: int | None) -> Iterator[tuple[int, Mask, Expr]]:
    """Every mask that a mask is made of on one head, with itself: (depth, term, formula).

    The formulas are as written, and read the arrays that the whole mask's formula reads.
    """
    state = _Lowering(head, n_heads, _on_both_sides(mask))

    def within(term: Mask, depth: int) -> Iterator[tuple[int, Mask, Expr]]:
        if isinstance(term, N.PerHead):
            yield from within(term.masks[head], depth)
            return
        yield depth, term, state.formula(term)
        for child in getattr(term, "children", ()):
            yield from within(child, depth + 1)

    yield from within(mask, 0)


def _check_names(mask: Mask, data: list[DataDecl], formulas: list[Expr]) -> None:
    at = getattr(mask, "loc", None)
    defaults: dict[str, int] = {}
    names = {decl.name for decl in data}
    for node in (node for formula in formulas for node in E.walk(formula)):
        if not isinstance(node, E.Param):
            continue
        if node.name in names:
            raise NameClash(node.name, "data", "a parameter", at=at)
        if defaults.setdefault(node.name, node.default) != node.default:
            both = f"a parameter of default {defaults[node.name]}", f"one of {node.default}"
            raise NameClash(node.name, *both, at=at)


class _Lowering:
    """Carries the data declarations and origins met on the way."""

    def __init__(self, head: int | None, n_heads: int | None, on_both: frozenset[str]) -> None:
        """`head`: None to find out whether anything reads it."""
        self._head = head
        self.reads_head = self.computes_with_head = False
        self.n_heads = n_heads
        self.on_both = on_both
        """Flags that queries read as well as keys."""
        self.data: dict[tuple[str, ...], DataDecl] = {}
        self.origins: dict[Expr, Origin] = {}
        self.selections: dict[str, Selection] = {}

    @property
    def head(self) -> int:
        """The head, for what differs by head."""
        self.reads_head = True
        return self._head or 0

    def formula(self, mask: Mask) -> Expr:
        node = N.as_node(mask)
        match node:
            case N.Algebra(op, left, right):
                return _ALGEBRA[op](self.formula(left), self.formula(right))
            case N.Complement(of):
                return self._noted(mask, E.negate(self.formula(of)))
            case N.GlobalFlags():
                return E.disj(*map(self.formula, node.children))
            case N.PerHead(masks):
                return self._per_head(node, masks)
            case N.TopK(of=of):
                allowed = self.formula(of)
                return E.conj(allowed, self._noted(node, self._chosen(node, allowed)))
            case (
                N.RandomBlocks() | N.BlockTable() | N.Flags() | N.Intervals() | N.Documents()
                | N.AtPositions() | N.Tree() | N.KeyLists()
            ):  # fmt: skip
                return self._noted(node, self._data_atom(node))
            case N.Combinator():
                return self._combinator(node)
        return N.no_case(node)

    def _combinator(self, node: N.Combinator) -> Expr:
        """The formula of a combinator on this head."""
        if node.own_heads is not None:
            self._check_head(node.own_heads, node)
        if self.n_heads is not None and node.last_head >= self.n_heads:
            raise NoSuchHead(node.last_head, self.n_heads, at=node.loc)
        for decl in node.decls:
            self._declare(decl, node)
        formula = node.keeps
        if "h" in E.symbols(formula):
            self.computes_with_head |= node.own_heads is None and node.last_head < 0
            formula = E.substitute(formula, {E.H: E.const(self.head)})
        return self._noted(node, formula)

    def _per_head(self, node: N.PerHead, masks: tuple[Mask, ...]) -> Expr:
        self._check_head(len(masks), node)
        if all(mask == masks[0] for mask in masks):
            return self.formula(masks[0])
        if self._head is None:  # the other masks may compute with it
            self.computes_with_head |= any(map(computes_with_head, masks))
        return self.formula(masks[self.head])

    def _chosen(self, mask: N.TopK, allowed: Expr) -> Expr:
        """The atom of a selection among `allowed` on this head, and its like on the others."""
        if _name_of(mask) not in self.selections:
            selection = _selection_of(mask, self._on_all_heads(mask.of, allowed))
            for decl in (table_of(selection), *scoring_of(selection), *mask.decls):
                self._declare(decl, mask)
            self.selections[selection.name] = selection
        return chosen(self.selections[_name_of(mask)])

    def _on_all_heads(self, of: Mask, formula: Expr) -> tuple[Expr, ...]:
        if self._head is None or not differs_by_head(of):
            return (formula,)
        count = self.n_heads or N.fixed_heads(of)
        if count is None:
            raise HeadsUnknown(at=getattr(of, "loc", None))
        formulas = []
        for head in range(count):
            state = _Lowering(head, count, self.on_both)
            formulas.append(state.formula(of))
            for decl in state.data.values():
                self._declare(decl, of)
            self.selections |= state.selections
        return tuple(formulas)

    def _noted(self, mask: Mask, keep: Expr) -> Expr:
        """Remember which term the comparisons came from; the first writer of one keeps it."""
        for atom in E.walk(keep):
            if isinstance(atom, (E.Cmp, E.Member)) and atom not in self.origins:
                self.origins[atom] = self.origins.get(
                    E.negate(atom), Origin(getattr(mask, "loc", None), _short(mask))
                )
        return keep

    def _check_head(self, count: int, mask: Mask) -> None:
        if self.n_heads is not None and self.n_heads != count:
            raise WrongHeads(count, f"n_heads is {self.n_heads}", at=getattr(mask, "loc", None))
        if self._head is not None and self._head >= count:
            raise NoSuchHead(self._head, count, at=getattr(mask, "loc", None))

    def _data_atom(self, mask: N.OfData) -> Expr:
        match mask:
            case N.RandomBlocks(block, per_row, seed, align):
                seed %= 1 << 64
                name = f"random_{block}_{per_row}_{seed}" + ("_start" if align == N.START else "")
                options = (per_row, seed, int(align == N.END))
                self._declare(DataDecl(name, DataKind.random, (name,), block, options), mask)
                first = E.floordiv(N.shift(align), block)
                row = E.sub(E.floordiv(N.position(align), block), first)
                return E.ne(E.Load(name, (row, E.floordiv(E.K, block))), E.ZERO)
            case N.BlockTable(decl):
                decl = self._declare(self._own_head(decl, mask), mask)
                row, col = E.floordiv(E.Q, decl.block), E.floordiv(E.K, decl.block)
                return E.ne(E.Load(decl.name, (row, col)), E.ZERO)
            case N.KeyLists(decl):
                self._declare(decl, mask)
                return E.ne(E.Load(decl.name, (E.Q, E.K)), E.ZERO)
            case N.Flags(decl, on):
                if on == "q" and decl.name in self.on_both:
                    decl = replace(decl, arrays=(f"{decl.arrays[0]}.q",))
                self._declare(decl, mask)
                return E.ne(E.Load(decl.arrays[0], (E.Q if on == "q" else E.K,)), E.ZERO)
            case N.Documents(decl) | N.Intervals(decl) | N.Tree(decl):
                return E.conj(*segment(self._declare(decl, mask)))
            case N.AtPositions(of):
                places = zip(mask.decls, (E.Q, E.K), strict=True)
                stands: dict[Expr, Expr] = {
                    token: E.Load(decl.name, (token,)) for decl, token in places
                }
                for decl in mask.decls:
                    self._declare(decl, mask)
                return E.substitute(of.keeps, stands)
        return N.no_case(mask)

    def _own_head(self, decl: DataDecl, mask: N.BlockTable) -> DataDecl:
        """A table given per head becomes this head's slice."""
        if len(decl.shape) != 3:
            return decl
        self._check_head(decl.shape[0], mask)
        return captured(decl.array[self.head], DataKind.table, decl.block)

    def _declare(self, decl: DataDecl, mask: Mask) -> DataDecl:
        for known in self.data.values():
            same = known.kind is DataKind.flags is decl.kind or known == decl
            if known.name == decl.name and not same:
                raise NameClash(
                    decl.name, known.kind.value, decl.kind.value, at=getattr(mask, "loc", None)
                )
        return self.data.setdefault(decl.arrays, decl)


def _name_of(mask: N.TopK) -> str:
    """The array of a selection: equal ones share it."""
    return f"topk_{sha256(print_mask(mask).encode()).hexdigest()[:12]}"


def _selection_of(mask: N.TopK, allowed: tuple[Expr, ...]) -> Selection:
    """The selection among the pairs that `allowed` holds for, per head or on all."""
    return Selection(
        _name_of(mask), mask.k, Score(mask.score), mask.block, mask.q_block, Share(mask.share),
        allowed, tuple(decl.arrays[0] for decl in mask.decls),
    )  # fmt: skip


def _on_both_sides(mask: Mask) -> frozenset[str]:
    """The names of flags that both keys and queries read."""
    sides: dict[str, set[str]] = {"q": set(), "k": set()}

    def collect(node: Mask) -> None:
        if isinstance(node, N.Flags):
            sides[node.on].add(node.decl.name)
        for child in node.children if isinstance(node, N.Node) else ():
            collect(child)

    collect(mask)
    return frozenset(sides["q"] & sides["k"])


_LONGEST = 72
"""Letters of a term as comments and messages show it."""

_ALGEBRA: dict[str, Callable[[Expr, Expr], Expr]] = {
    "&": E.conj,
    "|": E.disj,
    "-": lambda a, b: E.conj(a, E.negate(b)),
    "^": lambda a, b: E.disj(E.conj(a, E.negate(b)), E.conj(E.negate(a), b)),
}


def _short(mask: Mask) -> str:
    text = print_mask(mask)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
