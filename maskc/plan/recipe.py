"""Convert sets of tiles to loops of plain formulas. Only here do isl objects turn into recipes.

isl's code generator scans the tile columns of one row, the row being a parameter; its loops,
guards and bounds are read off as formulas over ti, n_q, n_kv and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import islpy as isl

from maskc.analysis.tiles import tile_classes
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe, TileLoop
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.core.widths import widest
from maskc.ir.id_lists import veiled
from maskc.ir.sets import TooHard, budget, isl_names, param_of, token_universe, unstopped

_COUNTER = "counter"
"""Name of isl's loop counter; no parameter has it as its own."""


class NotALoop(Exception):
    """isl's code is not a plain loop nest, so tiles are counted at each length instead."""


class TooManyParts(NotALoop):
    """A set is so large that isl would take too long to make loops of it."""


def tile_loops(
    tiles: isl.Set, tile: TileShape, full: bool, defaults: dict[str, int], along: int = 0
) -> list[TileLoop]:
    """Disjoint loops that visit exactly these tiles, ascending in every row.

    They hold for lengths >= 1 and rows inside them: callers visit no others.

    Args:
        tiles: a set of [ti, tj].
        tile: its tile shape.
        full: the class of all of them.
        defaults: of the parameters that occur.
        along: 0 to scan the columns of each row, 1 to scan the rows of each column.

    Raises:
        NotALoop: isl's code has a shape that recipes cannot represent, or would take too long. isl
            cannot be interrupted while it generates code, see `unstopped`.
    """
    if tiles.is_empty():
        return []
    _check_effort(tiles, 1 - along)
    outer = "ti" if along == 0 else "tj"
    count = tiles.dim(isl.dim_type.param)
    scanned = tiles.move_dims(isl.dim_type.param, count, isl.dim_type.set, along, 1)
    scanned = scanned.set_dim_name(isl.dim_type.param, count, outer)
    names = ", ".join(filter(None, scanned.get_var_names(isl.dim_type.param)))
    inside = f"{tile.q}ti < n_q and ti >= 0" if along == 0 else f"{tile.k}tj < n_kv and tj >= 0"
    counts = "".join(f" and {name} >= 0" for name in isl_names(defaults))
    context = isl.Set(f"[{names}] -> {{ : n_q >= 1 and n_kv >= 1 and {inside}{counts} }}")
    schedule = isl.UnionMap.from_map(isl.Map.identity(
        scanned.get_space().map_from_set()).intersect_domain(scanned))  # fmt: skip
    counter = isl.IdList.from_id(isl.Id(_COUNTER))
    builder = isl.AstBuild.from_context(context).set_iterators(counter)
    with unstopped():
        tree = builder.node_from_schedule_map(schedule)
        return list(_Reader(defaults, full).loops(tree, E.ALWAYS, {}))


_EFFORT = 2600
"""Constraints times (floors + 8) of a set that isl makes loops of in less than a second."""

_MAX_LOOPS = 40
"""A longer recipe is slower than the numbers."""

_MAX_PARTS = _MAX_LOOPS * 3 // 2
"""Disjoint conjunctions of a set up to which loops are sought: isl makes about one loop of each,
and its time grows with the square of their number."""

_MAX_FLOORS = 2
"""Floors of the scanned dimension in one conjunction; with more, isl seldom finds loops."""


def _check_effort(tiles: isl.Set, scanned: int) -> None:
    """Reject sets for which isl might generate code for seconds.

    Raises:
        NotALoop: the set is too large, or floors of its scanned dimension are nested too deep.
    """
    parts = tiles.compute_divs().get_basic_sets()
    floors = sum(part.dim(isl.dim_type.div) for part in parts)
    if (floors + 8) * sum(part.n_constraint() for part in parts) > _EFFORT:
        raise TooManyParts("too many constraints and floors")
    _check_floors(tiles, scanned)
    if tiles.make_disjoint().n_basic_set() > _MAX_PARTS:
        raise TooManyParts("too many conjunctions")


def _check_floors(tiles: isl.Set, scanned: int) -> None:
    """Refuse floors of the scanned dimension that are nested too deep.

    Raises:
        NotALoop: they are.
    """
    parts = tiles.compute_divs().get_basic_sets()
    if any(_floors_of(part, scanned) > _MAX_FLOORS for part in parts):
        raise TooManyParts("too many floors of one tile column")


def _floors_of(part: isl.BasicSet, dim: int) -> int:
    """Return the number of floors of a conjunction that depend on one of its dimensions."""
    space = part.get_local_space()
    floors: set[int] = set()
    for index in range(space.dim(isl.dim_type.div)):
        floor = space.get_div(index)
        inner = any(floor.involves_dims(isl.dim_type.div, other, 1) for other in floors)
        if floor.is_nan() or inner or floor.involves_dims(isl.dim_type.in_, dim, 1):
            floors.add(index)
    return len(floors)


_OPERATIONS = 320_000
"""isl operations worth spending on a closed form: the numbers are fast too."""

_HUGE = 1 << 31
"""Numbers up to which lengths and tiles times them fit 64 bits."""

_USUAL = TileShape(128, 128)
"""The tile that is tried first: where it has no closed form, others would need as long to fail."""


@lru_cache(maxsize=1 << 10)
def layout_recipe(keep: Expr, tile: TileShape) -> LayoutRecipe:
    """Return a recipe from lengths to tiles: closed forms if isl finds them within its budget.

    It tries all lengths with symbolic parameters, then with default ones, then equal lengths in the
    same way.
    """
    if not E.arrays(veiled(keep)):
        defaults = E.params(keep)
        if tile != _USUAL and layout_recipe(keep, _USUAL).loops is None:
            return LayoutRecipe(tile, keep, None)
        for square in (False, True):
            for fixed in ((), tuple(defaults.items())) if defaults else ((),):
                try:
                    loops = _loops(keep, tile, square, fixed)
                except (TooHard, TooManyParts):
                    if tile == _USUAL and len(fixed) == len(defaults):
                        return LayoutRecipe(tile, keep, None)  # equal lengths would fail likewise
                    continue
                if loops is not None and not any(map(_is_huge, loops)):
                    return LayoutRecipe(tile, keep, loops, fixed, square)
    return LayoutRecipe(tile, keep, None)


def _full_and_partial(formula: Expr, tile: TileShape, square: bool) -> tuple[isl.Set, isl.Set]:
    """The full tiles and the partial ones.

    Raises:
        NotALoop: see `_check_floors`. TooHard: through the budget around it.
    """
    classes = tile_classes(formula, tile, token_universe(formula), square)
    _check_floors(classes.live, 1)  # before isl tells full ones from partial ones for seconds
    _check_floors(classes.full, 1)
    return classes.full, classes.partial


def _is_huge(loop: TileLoop) -> bool:
    """Whether 64 bits might not hold what closed forms compute: bounds on the mask tell then."""
    formulas = (loop.guard, loop.first, loop.last)
    return any(abs(widest(node)) > _HUGE for formula in formulas for node in E.walk(formula))


def difficulty(keep: Expr) -> tuple[str, ...]:
    """Return the features that make closed forms of a mask hard to find, independent of its
    constants; heads that differ in a phase have equal ones."""
    reasons = []
    for node in E.walk(keep):
        if isinstance(node, (E.FloorDiv, E.Mod)):
            reasons.append(f"{type(node).__name__} {node.den}")
        elif isinstance(node, (E.All, E.Any, E.Cmp, E.Member)):
            reasons.append(type(node).__name__)
    return tuple(sorted(reasons))


def _loops(
    keep: Expr, tile: TileShape, square: bool, fixed: tuple[tuple[str, int], ...]
) -> tuple[TileLoop, ...] | None:
    """The loops of all live tiles; None where isl's are not plain, or are too many.

    Raises:
        TooHard, TooManyParts: isl would need too long.
    """
    known: dict[Expr, Expr] = {E.Param(name, value): E.const(value) for name, value in fixed}
    if square:
        known[E.N_KV] = E.N_Q
    formula = E.substitute(keep, known) if known else keep
    with budget(_OPERATIONS):
        full, partial = _full_and_partial(formula, tile, square)
        defaults = E.params(formula)
        try:
            loops = tile_loops(full, tile, True, defaults)
            loops += tile_loops(partial, tile, False, defaults)
        except TooManyParts:
            raise
        except NotALoop:
            return None
    return tuple(loops) if len(loops) <= _MAX_LOOPS else None


def _name_of(kind: object) -> str:
    """The name of a kind of nodes or operations: islpy's own types call these integers."""
    name: str = getattr(kind, "name", "")
    return name


_TESTS = {"eq": E.eq, "le": E.le, "lt": E.lt, "ge": E.ge, "gt": E.gt}
_SIMPLE: dict[str, Callable[..., Expr]] = {
    "add": E.add, "sub": E.sub, "min": E.minimum, "max": E.maximum,
}  # fmt: skip


class _Reader:
    """Reads isl's syntax tree, as loops over full tiles or over partial ones."""

    def __init__(self, defaults: dict[str, int], full: bool) -> None:
        self.defaults, self.full = defaults, full

    def loops(
        self, node: isl.AstNode, guard: Expr, bound: dict[str, TileLoop]
    ) -> Iterator[TileLoop]:
        kind = _name_of(node.get_type())
        if kind == "block":
            children = node.block_get_children()
            for index in range(children.n_ast_node()):
                yield from self.loops(children.get_at(index), guard, bound)
        elif kind == "if_":
            test = self.condition(node.if_get_cond())
            yield from self.loops(node.if_get_then_node(), E.conj(guard, test), bound)
            if node.if_has_else_node():
                other = E.conj(guard, E.negate(test))
                yield from self.loops(node.if_get_else_node(), other, bound)
        elif kind == "for_":
            if bound:
                raise NotALoop("two nested loops scan one row")
            name = node.for_get_iterator().get_id().get_name()
            yield from self.loops(node.for_get_body(), guard, {name: self._range(node, guard)})
        elif kind == "user":
            yield self._user(node, guard, bound)
        else:
            raise NotALoop(f"unexpected node {kind}")

    def _user(self, node: isl.AstNode, guard: Expr, bound: dict[str, TileLoop]) -> TileLoop:
        call = node.user_get_expr()
        index = call.get_op_arg(1)
        if _name_of(index.get_type()) == "id" and index.get_id().get_name() in bound:
            return replace(bound[index.get_id().get_name()], guard=guard)
        if bound:
            raise NotALoop("a loop visits something other than its counter")
        only = self.integer(index)
        return TileLoop(guard, only, only, 1, self.full)

    def _range(self, node: isl.AstNode, guard: Expr) -> TileLoop:
        first = self.integer(node.for_get_init())
        if node.for_is_degenerate():
            return TileLoop(guard, first, first, 1, self.full)
        test = node.for_get_cond()
        limit = self.integer(test.get_op_arg(1))
        op = _name_of(test.get_op_type())
        if op == "lt":
            limit = E.sub(limit, E.const(1))
        elif op != "le":
            raise NotALoop("a loop does not count up")
        step = E.as_const(self.integer(node.for_get_inc()))
        if step is None or step < 1:
            raise NotALoop("a loop's step is not a constant")
        return TileLoop(guard, first, limit, step, self.full)

    def _args(self, expr: isl.AstExpr) -> list[isl.AstExpr]:
        return [expr.get_op_arg(i) for i in range(expr.get_op_n_arg())]

    def condition(self, expr: isl.AstExpr) -> Expr:
        """A guard."""
        if _name_of(expr.get_type()) != "op":
            value = self.integer(expr)
            return E.ne(value, E.ZERO)
        op = _name_of(expr.get_op_type())
        args = self._args(expr)
        if op in ("and_", "and_then"):
            return E.conj(*map(self.condition, args))
        if op in ("or_", "or_else"):
            return E.disj(*map(self.condition, args))
        if op not in _TESTS:
            raise NotALoop(f"unexpected condition {expr}")
        return _TESTS[op](*map(self.integer, args))

    def integer(self, expr: isl.AstExpr) -> Expr:
        """A bound."""
        kind = _name_of(expr.get_type())
        if kind == "int":
            return E.const(int(expr.get_val().to_python()))
        if kind == "id":
            name = expr.get_id().get_name()
            if (param := param_of(name)) is not None:
                return E.Param(param, self.defaults[param])
            if name == _COUNTER:
                raise NotALoop("a guard inside a loop depends on its counter")
            return E.Sym(name)
        op = _name_of(expr.get_op_type())
        args = [self.integer(arg) for arg in self._args(expr)]
        if op in _SIMPLE:
            return _SIMPLE[op](*args)
        if op == "minus":
            return E.scale(-1, args[0])
        if len(args) != 2:
            raise NotALoop(f"unexpected expression {expr}")
        numbers = [E.as_const(arg) for arg in args]
        if op == "mul" and numbers[0] is not None:
            return E.scale(numbers[0], args[1])
        if op == "mul" and numbers[1] is not None:
            return E.scale(numbers[1], args[0])
        if op in ("div", "fdiv_q", "pdiv_q") and numbers[1]:
            return E.floordiv(args[0], numbers[1])
        if op in ("pdiv_r", "zdiv_r") and numbers[1]:
            return E.mod(args[0], numbers[1])
        raise NotALoop(f"unexpected expression {expr}")
