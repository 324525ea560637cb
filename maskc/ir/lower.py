"""Combinators become one formula over q, k and the lengths.

Does not simplify beyond the normal form of core.expr, and never looks at lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import HeadsUnknown, NameClash, NoSuchHead, WrongHeads
from maskc.core.expr import Expr
from maskc.core.selection import Selection
from maskc.dsl import nodes as N
from maskc.dsl.data_atoms import captured
from maskc.dsl.mask import Mask
from maskc.dsl.printer import print_mask
from maskc.ir.heads import differs_by_head, fixed_heads
from maskc.ir.names import declared_names
from maskc.ir.pieces_data import segment
from maskc.ir.selecting import chosen, name_of, needed, scoring_of, selection_of, table_of
from maskc.ir.types import MaskIR, Origin


def lower(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """The mask of one query head as a formula.

    Args:
        head: which head; None where heads do not differ.
        n_heads: how many there are, for checking.

    Raises:
        HeadsUnknown, NoSuchHead, NameClash.
    """
    if head is None and differs_by_head(mask):
        raise HeadsUnknown(at=getattr(mask, "loc", None))
    state = _Lowering(head or 0, n_heads, _on_both_sides(mask))
    keep = state.formula(mask)
    selections = needed(keep, state.selections)
    formulas = [keep, *(formula for each in selections for formula in each.allowed)]
    used = {name for formula in formulas for name in E.arrays(formula)}
    used |= {decl.name for each in selections for decl in scoring_of(each)}
    used |= {name for each in selections for name in each.at}
    data = [d for d in state.data.values() if used.intersection((d.name, *d.arrays))]
    live = set(E.walk(keep))
    origins = tuple((atom, origin) for atom, origin in state.origins.items() if atom in live)
    _check_names(mask, data, formulas)
    ordered = tuple(sorted(data, key=lambda decl: (decl.name, decl.arrays)))
    return MaskIR(keep, ordered, origins, declared_names(mask), selections=selections)


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


def _offset(align: str) -> Expr:
    return E.sub(E.N_KV, E.N_Q) if align == N.END else E.ZERO


def _position(align: str) -> Expr:
    """The query's position p among the keys."""
    return E.add(E.Q, _offset(align))


def _within(value: Expr, low: Expr | None, high: Expr | None) -> Expr:
    above = E.ALWAYS if low is None else E.ge(value, low)
    return E.conj(above, E.ALWAYS if high is None else E.le(value, high))


class _Lowering:
    """Carries the data declarations and origins met on the way."""

    def __init__(self, head: int, n_heads: int | None, on_both: frozenset[str]) -> None:
        self.head = head
        self.n_heads = n_heads
        self.on_both = on_both
        """Flags that queries read as well as keys."""
        self.data: dict[tuple[str, ...], DataDecl] = {}
        self.origins: dict[Expr, Origin] = {}
        self.selections: dict[str, Selection] = {}

    def formula(self, mask: Mask) -> Expr:
        match mask:
            case N.Algebra(op, left, right):
                return _ALGEBRA[op](self.formula(left), self.formula(right))
            case N.Complement(of):
                return self._noted(mask, E.negate(self.formula(of)))
            case N.GlobalFlags():
                return E.disj(*map(self.formula, mask.children))
            case N.PerHead(masks):
                self._check_head(len(masks), mask)
                return self.formula(masks[self.head])
            case N.TopK(of=of):
                allowed = self.formula(of)
                return E.conj(allowed, self._noted(mask, self._chosen(mask, allowed)))
        return self._noted(mask, self._atom(mask))

    def _chosen(self, mask: N.TopK, allowed: Expr) -> Expr:
        """The atom of a selection among `allowed` on this head, and its like on the others."""
        if name_of(mask) not in self.selections:
            found = selection_of(mask, self._on_all_heads(mask.of, allowed))
            for decl in (table_of(found), *scoring_of(found), *mask.decls):
                self._declare(decl, mask)
            self.selections[found.name] = found
        return chosen(self.selections[name_of(mask)])

    def _on_all_heads(self, of: Mask, own: Expr) -> tuple[Expr, ...]:
        if not differs_by_head(of):
            return (own,)
        count = self.n_heads or fixed_heads(of)
        if count is None:
            raise HeadsUnknown(at=getattr(of, "loc", None))
        found = []
        for head in range(count):
            state = _Lowering(head, count, self.on_both)
            found.append(state.formula(of))
            for decl in state.data.values():
                self._declare(decl, of)
            self.selections |= state.selections
        return tuple(found)

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
        if self.head >= count:
            raise NoSuchHead(self.head, count, at=getattr(mask, "loc", None))

    def _atom(self, mask: Mask) -> Expr:
        match mask:
            case N.Full():
                return E.ALWAYS
            case N.Causal(align):
                return E.le(E.K, _position(align))
            case N.Window(left, right, align):
                return _window(left, right, align)
            case N.Dilated(left, right, stride, align):
                band = _window(E.scale(stride, left), E.scale(stride, right), align)
                residue = E.mod(E.sub(_position(align), E.K), stride)
                return E.conj(band, E.equals_zero(residue))
            case N.Offsets(ids, align):
                return E.member(E.sub(_position(align), E.K), ids)
            case N.Strided(stride, phase):
                return E.eq(E.mod(E.K, stride), E.const(phase))
            case N.Sinks(n) | N.Prefix(n):
                return E.lt(E.K, n)
            case N.GlobalTokens():
                return _global_tokens(mask)
            case N.BlockDiagonal(size, causal, align):
                p = _position(align)
                same = E.eq(E.floordiv(p, size), E.floordiv(E.K, size))
                return E.conj(same, E.le(E.K, p)) if causal else same
            case N.Heads(ids):
                if ids and self.n_heads is not None and ids[-1] >= self.n_heads:
                    raise NoSuchHead(ids[-1], self.n_heads, at=mask.loc)
                return E.Truth(self.head in ids)
            case N.Where(formula, tables):
                for decl in tables:
                    self._declare(decl, mask)
                return E.substitute(formula, {E.H: E.const(self.head)})
        return self._data_atom(mask)

    def _data_atom(self, mask: Mask) -> Expr:
        match mask:
            case N.RandomBlocks(block, per_row, seed, align):
                name = f"random_{block}_{per_row}_{seed}" + ("_start" if align == N.START else "")
                options = (per_row, seed, int(align == N.END))
                self._declare(DataDecl(name, DataKind.random, (name,), block, options), mask)
                first = E.floordiv(_offset(align), block)
                row = E.sub(E.floordiv(_position(align), block), first)
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
                return E.substitute(self._atom(of), stands)
        raise TypeError(f"no lowering for {type(mask).__name__}")

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


def _window(left: Expr | None, right: Expr | None, align: str) -> Expr:
    p = _position(align)
    low = None if left is None else E.sub(p, left)
    return _within(E.K, low, None if right is None else E.add(p, right))


def _global_tokens(mask: N.GlobalTokens) -> Expr:
    p = _position(mask.align)
    sides = {"rows": (p,), "columns": (E.K,), "both": (p, E.K)}[mask.side]
    if isinstance(mask.ids, Expr):
        last = E.sub(mask.ids, E.const(1))
        return E.disj(*(_within(x, E.ZERO if x is p else None, last) for x in sides))
    return E.disj(*(E.member(x, mask.ids) for x in sides))


_ALGEBRA: dict[str, Callable[[Expr, Expr], Expr]] = {
    "&": E.conj,
    "|": E.disj,
    "-": lambda a, b: E.conj(a, E.negate(b)),
    "^": lambda a, b: E.disj(E.conj(a, E.negate(b)), E.conj(E.negate(a), b)),
}


def _short(mask: Mask, limit: int = 72) -> str:
    text = print_mask(mask)
    return text if len(text) <= limit else text[: limit - 3] + "..."
