"""Print a plan as the loop nest of a call, in a few lines of pseudocode.

The text is about given lengths, at which closed forms are short. Rows in which a loop is empty are
left out, and a bound that is linear over the rows is written as a linear formula.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.core.layout import FULL
from maskc.core.listed import Listed
from maskc.core.problem import Direction
from maskc.dispatch.residue_split import obstacle
from maskc.ir.types import MaskPart
from maskc.layout import views
from maskc.layout.work.tile_counts import adders_of
from maskc.plan.cost import choice, layout_at, runs_in_parts
from maskc.plan.families.table import family_of
from maskc.plan.types import Gathering, KernelPlan, PlannedMask

_P = E.Sym("p")
_POSITION = "p = q + n_kv - n_q"
_MAX_LOOPS = 8
"""Closed forms of one mask that are printed; the others are counted."""


@dataclass(frozen=True, slots=True)
class _At:
    """Lengths, and values of parameters that are not at their defaults."""

    n_q: int
    n_kv: int
    params: Mapping[str, int]

    def rows(self, plan: KernelPlan) -> int:
        return -(-self.n_q // plan.tile.q)

    def columns(self, plan: KernelPlan) -> int:
        return -(-self.n_kv // plan.tile.k)

    def fixed(self, formula: Expr) -> Expr:
        """The formula with numbers for lengths and parameters."""
        lengths = {"n_q": self.n_q, "n_kv": self.n_kv}
        return E.with_values(formula, {**E.params(formula), **self.params, **lengths})


def loop_nest(plan: KernelPlan, n_q: int, n_kv: int) -> str:
    """The loops of both passes of a call at these lengths, as pseudocode.

    Args:
        plan: of the forward pass, with those that go along.
        n_q, n_kv: lengths; parameters are at their defaults.

    Returns:
        Lines of text, which also say what depends on data of a call.
    """
    at = _At(n_q, n_kv, {})
    passes = (_pass(plan, at, direction) for direction in Direction)
    return "\n\n".join("\n".join(map(_page, lines)) for lines in passes if lines) + "\n"


def _pass(plan: KernelPlan, at: _At, direction: Direction) -> list[str]:
    """One pass; nothing where the target does not have it for this mask."""
    if runs_in_parts(plan, at.n_q, at.n_kv, direction):
        return list(_in_parts(plan, at, direction))
    taken = _taken(plan, at, direction)
    if taken is None:
        return []
    if plan.gathering is not None:
        return list(_gathered(plan.gathering, taken, at, direction))
    lines = list(_nest(plan, taken, at, direction))
    if plan.parts and plan.masks[0].ir.data and not obstacle(plan.parts, at.n_q, at.n_kv):
        lines.append(f"# or in {len(plan.parts)} parts, as data that arrive with a call decide")
    return lines


def _taken(plan: KernelPlan, at: _At, direction: Direction) -> KernelPlan | None:
    """The source that a call at these lengths runs; None if there is none of this pass."""
    if direction is plan.direction or family_of(plan.target).one_source:
        first: KernelPlan | None = plan
    else:
        others = (
            e for e in plan.alternatives if e.direction is direction and e.target == plan.target
        )
        first = next(others, None)
    if first is None or at.params or not at.n_q or not at.n_kv:
        return first
    best = choice(replace(first, alternatives=plan.alternatives, parts=()), at.n_q, at.n_kv)
    return first if best is None else best[0].unit.plan


def _in_parts(plan: KernelPlan, at: _At, direction: Direction) -> Iterator[str]:
    for number, part in enumerate(plan.parts, start=1):
        where, part_of = _of_part(part, at)
        taken = _taken(part.inner, part_of, direction)
        if taken is not None:
            yield f"# part {number} of {len(plan.parts)}: {where}"
            yield from _nest(part.inner, taken, part_of, direction)
    if len(plan.parts) > 1 and direction is Direction.forward:
        yield "out, lse = those of the parts, joined as softmax joins tiles"
    elif len(plan.parts) > 1:
        yield "dQ, dK, dV = the sums over the parts"


def _of_part(part: MaskPart[KernelPlan], at: _At) -> tuple[str, _At]:
    """(which tokens a part runs over, their lengths)."""
    params = {N_KV_OF_ALL: at.n_kv}
    if part.listed is not None:
        side = "queries" if part.listed.side == "q" else "keys"
        where = f"packed copies of the {side} with {to_people(at.fixed(part.listed.among))}"
        count = _listed(part.listed, at)
        lengths = (count, at.n_kv) if part.listed.side == "q" else (at.n_q, count)
        return where, _At(*lengths, params)
    first = next(view for view in views(part.stride, part.keys, at.n_q, at.n_kv) if view.n_kv)
    if part.keys is not None:
        where = f"all queries, keys {part.keys}, {part.keys + part.stride}, ... as k = 0, 1, ..."
    elif part.stride > 1:
        where = f"each residue class of tokens modulo {part.stride}, as q and k = 0, 1, ..."
    else:
        where = "tokens as they are"
    return where, _At(first.n_q, first.n_kv, params)


def _listed(listed: Listed, at: _At) -> int:
    """Return the number of listed tokens; predicted parts read no data."""
    size = at.n_q if listed.side == "q" else at.n_kv
    is_listed = evaluate(at.fixed(listed.among), {listed.side: np.arange(size)})
    return int(np.broadcast_to(is_listed, size).sum())


# ------------------------------------------------------------------ nests


def _said(code: str, comment: str) -> str:
    """A line with a comment."""
    return f"{code:<60}  # {comment}"


def _nest(main: KernelPlan, plan: KernelPlan, at: _At, direction: Direction) -> Iterator[str]:
    """The loops of one source, `main` being what the forward pass was planned as."""
    tile, boxes = plan.tile, plan.boxes
    sizes = f"{tile.q} queries x {tile.k} keys"
    if boxes is not None:
        sizes = f"{' x '.join(map(str, boxes.q))} queries and {' x '.join(map(str, boxes.k))} keys"
    what = "tiles" if boxes is None else "boxes"
    lengths = f"{at.n_q} x {at.n_kv}"
    yield f"# {direction.value} pass, {lengths}, on {plan.target.name}; {what} of {sizes}"
    forward = direction is Direction.forward
    if main.thresholds:
        yield _said(
            f"for each sequence b, query head h, ti in {_upto(at.rows(plan))}:", "in parallel"
        )
        yield _said("    least[q] = the score of the last key that q chooses", "passes over scores")
    yield from _forward_body(main, plan, at) if forward else _backward_body(main, plan, at)
    yield "where"
    positions = False
    for index, mask in enumerate(plan.masks):
        head = ""
        if len(plan.masks) > 1:
            heads = [str(h) for h, which in enumerate(plan.of_head) if which == index]
            head = f" on head{'s' * (len(heads) > 1)} {', '.join(heads)}"
        for line in _tiles(main, plan, mask, at, direction, head):
            yield f"    {line}"
        keep = mask.ir.keep
        text, moved = _text(at.fixed(keep) if N_KV_OF_ALL in E.params(keep) else keep)
        positions |= moved
        chosen = " and s[q, k] reaches least[q]" if main.thresholds else ""
        yield f"    mask(q, k){head} = {text}{chosen}"
        if mask.always_kept not in (None, E.NEVER) and main.thresholds:
            always_kept, moved = _text(_restored(mask.always_kept, mask.lifted.args))
            positions |= moved
            yield f"        or whatever is chosen {always_kept}"
    if positions:
        yield f"    {_POSITION}"
    if plan.distances:
        yield "    in a partial tile mask(q, k) is read as bits over k - q, made once per call"
    elif all(m.intervals is not None for m in plan.masks):
        yield "    in a partial tile mask(q, k) is tested as intervals of keys, query by query"
    elif (data := plan.of_data[not forward]) is not None:
        rows, columns = ("query", "keys") if forward else ("key", "queries")
        runs = f", in runs of {columns} whose data are alike" if data.alike else ""
        yield f"    in a partial tile mask(q, k) is tested as intervals, {rows} by {rows}{runs}"


def _upto(count: int) -> str:
    return f"0..{count - 1}" if count else "no tiles"


def _forward_body(main: KernelPlan, plan: KernelPlan, at: _At) -> Iterator[str]:
    test = "" if main.thresholds else "if (ti, tj) is partial: "
    rows = _upto(at.rows(plan))
    yield _said(f"for each sequence b, query head h, ti in {rows}:", "in parallel")
    yield _said("    m, l, acc = -inf, 0, 0", "of each query of ti")
    yield "    for tj in tiles(ti):"
    yield "        s = scale * Q[b, h, ti] @ K[b, h // group, tj].T"
    yield f"        {test}s[q, k] = -inf where not mask(q, k)"
    yield "        m, l, acc = online softmax of s, with V[b, h // group, tj]"
    yield "    out[b, h, ti], lse[b, h, ti] = acc / l, m + log(l)"


def _backward_body(main: KernelPlan, plan: KernelPlan, at: _At) -> Iterator[str]:
    """The loops over tile columns, and how dq is added up."""
    test = "" if main.thresholds else "if (ti, tj) is partial: "
    columns = _upto(at.columns(plan))
    exclusive_dq = "exclusive_dq" in dict(plan.schedule.modes) and not any(
        mask.ir.data for mask in plan.masks
    )
    if exclusive_dq and at.n_q and at.n_kv:
        tiles = (layout_at(plan, mask, at.n_q, at.n_kv, at.params) for mask in plan.masks)
        exclusive_dq = adders_of(tiles).most <= 1
    yield "delta[q] = dout[q] . out[q]"
    yield _said(f"for each sequence b, key/value head g, tj in {columns}:", "in parallel")
    yield _said("    dk, dv = 0, 0", "of each key of tj")
    yield "    for h in the query heads of g, for ti in rows(tj):"
    yield "        w = exp(scale * Q[b, h, ti] @ K[b, g, tj].T - lse[b, h, ti])"
    yield f"        {test}w[q, k] = 0 where not mask(q, k)"
    yield "        ds = scale * w * (dout[b, h, ti] @ V[b, g, tj].T - delta[ti])"
    yield "        dv, dk = dv + w.T @ dout[b, h, ti], dk + ds.T @ Q[b, h, ti]"
    if exclusive_dq:
        yield _said("        dQ[b, h, ti] = ds @ K[b, g, tj]", "its only tile")
    elif plan.target.language == "c":
        yield _said("        dQ[b, h, ti] += ds @ K[b, g, tj]", "in the order of its tiles")
    else:
        yield _said("        dQ[b, h, ti] += ds @ K[b, g, tj]", "in order if deterministic")
    yield "    dK[b, g, tj], dV[b, g, tj] = dk, dv"


def _gathered(lists: Gathering, plan: KernelPlan, at: _At, direction: Direction) -> Iterator[str]:
    """The loops over keys that are chosen one by one and gathered."""
    chosen, lengths = lists.selection, f"{at.n_q} x {at.n_kv}"
    keep = _restored(lists.allowed.lifted.shape, lists.constants)
    rest = _restored(lists.alongside.lifted.shape, lists.constants)
    among, positions = _text(keep)
    yield f"# {direction.value} pass, {lengths}, on {plan.target.name}; {plan.tile.k} gathered keys"
    yield _said("for each sequence b, query q:", "in parallel, some rows at a time")
    yield f"    keys(q) = the {chosen.k} best by {chosen.score.value} with {among}"
    if rest != E.NEVER:
        text, moved = _text(rest)
        positions |= moved
        yield f"    keys(q) += the others with {text}"
    if direction is Direction.backward:
        yield "delta[q] = dout[q] . out[q]"
    yield _said("for each sequence b, key/value head g, query q:", "in parallel")
    if direction is Direction.forward:
        yield _said("    m, l, acc = -inf, 0, 0", "of each query head of g")
    yield f"    for t in keys(q), {plan.tile.k} at a time:"
    if direction is Direction.forward:
        yield _said("        s = scale * Q[b, heads of g, q] @ K[b, g, t].T", "rows are gathered")
        yield "        m, l, acc = online softmax of s, with V[b, g, t]"
        yield "    out[b, heads of g, q], lse[b, heads of g, q] = acc / l, m + log(l)"
    else:
        yield "        w = exp(scale * Q[b, heads of g, q] @ K[b, g, t].T - lse[b, heads of g, q])"
        yield "        ds = scale * w * (dout[b, heads of g, q] @ V[b, g, t].T - delta[q])"
        yield "        dQ[b, heads of g, q] += ds @ K[b, g, t]"
        yield _said(
            "        dK[b, g, t] += ds.T @ Q[b, heads of g, q]", "sums in memory, any order"
        )
        yield "        dV[b, g, t] += w.T @ dout[b, heads of g, q]"
    if positions:
        yield f"where {_POSITION}"


def _restored(shape: Expr, constants: tuple[Expr, ...]) -> Expr:
    """A lifted formula with its constants in place."""
    return E.substitute(shape, {E.Sym(f"c{i}"): value for i, value in enumerate(constants)})


# ------------------------------------------------------------------ tiles and tests


def _tiles(
    main: KernelPlan, plan: KernelPlan, mask: PlannedMask, at: _At, direction: Direction, head: str
) -> Iterator[str]:
    """The lists of tiles: closed forms at these lengths, or who makes them."""
    forward = direction is Direction.forward
    name = f"tiles(ti){head}"
    loops: dict[tuple[str, str], _Loop] = {}

    def add(kind: str, closed_form: tuple[Expr, Expr, Expr, int], by_row: bool) -> None:
        loop = _loop(closed_form, plan, at, by_row)
        if loop is not None:
            known = loops.get((kind, loop.text))
            loops[kind, loop.text] = known.joined(loop) if known else loop

    if plan.use_ranges and mask.ranges is not None and plan.boxes is None:
        ranges = mask.ranges[0 if forward else 1]
        for kind, one in (("live", ranges.live), ("full", ranges.full)):
            guard, first, end = (
                _restored(x, mask.lifted.args) for x in (one.guard, one.first, one.last)
            )
            add(kind, (guard, first, E.sub(end, E.const(1)), 1), forward)
        name = name if forward else f"rows(tj){head}"
        yield f"{name} = closed forms" + (":" if loops else " without a tile")
    else:
        if not forward:
            yield f"rows(tj){head} = every ti with tj in tiles(ti)"
        recipe = mask.recipe
        usable = recipe.loops is not None and not (recipe.square and at.n_q != at.n_kv)
        if plan.boxes is not None or mask.ir.data or not usable:
            yield f"{name} = {_who_lists(main, plan, mask, at)}"
            return
        for loop in recipe.loops or ():
            kind = "full" if loop.full else "partial"
            add(kind, (loop.guard, loop.first, loop.last, loop.step), True)
        yield f"{name} = a list in memory of" + ("" if loops else " no tile")
    for (kind, _), printed in list(loops.items())[:_MAX_LOOPS]:
        yield f"    {kind:<8} {printed}"
    if len(loops) > _MAX_LOOPS:
        yield f"    and {len(loops) - _MAX_LOOPS} more closed forms"


def _who_lists(main: KernelPlan, plan: KernelPlan, mask: PlannedMask, at: _At) -> str:
    """Describe what a list without closed forms depends on, and where it is built."""
    if plan.boxes is not None:
        return "the boxes of keys in which a query of ti sees a key, from a list of each axis"
    if mask.ir.data:
        device = main.selecting or main.documents or main.data_lists
        what = "the mask's own tables"
        if mask.ir.selections:
            what = "what is chosen"
        elif any(decl.from_caller or decl.held for decl in mask.ir.data):
            what = "the data of the call"
        who = "device if it has them" if device else "host"
        return f"a list in memory from {what}, made on the {who}"
    if not at.n_q or not at.n_kv:
        return "a list in memory of no tile"
    lists = layout_at(plan, mask, at.n_q, at.n_kv, at.params)
    full, longest = int((lists.kind == FULL).sum()), int(np.diff(lists.row_ptr).max(initial=0))
    return (
        f"a list in memory of {full} full and {lists.nnz - full} partial tiles, made by exact "
        f"numbers; at most {longest} a row"
    )


@dataclass(frozen=True)
class _Loop:
    """A closed form as printed text, with the rows that have its tiles."""

    text: str
    """The bounds of its tiles."""
    outer: str
    """The name of a row."""
    rows: np.ndarray
    """bool: the rows it is about."""
    bounded: np.ndarray
    """bool: the rows in which there are tiles between the bounds."""
    guard: Expr

    def joined(self, other: _Loop) -> _Loop:
        """This loop over the rows of another one with the same text as well."""
        guard = E.disj(self.guard, other.guard)
        return replace(self, rows=self.rows | other.rows, guard=guard)

    def __str__(self) -> str:
        if np.array_equal(self.rows, self.bounded):
            return self.text
        rows = np.flatnonzero(self.rows)
        if rows[-1] - rows[0] + 1 == rows.size:
            last = f"..{rows[-1]}" if rows.size > 1 else ""
            return f"{self.text}, for {self.outer} = {rows[0]}{last}"
        return f"{self.text}, where {to_people(self.guard)}"


def _loop(
    loop: tuple[Expr, Expr, Expr, int], plan: KernelPlan, at: _At, by_row: bool
) -> _Loop | None:
    """(guard, first, last, step) of a closed form as text; None if no row has a tile.

    Args:
        by_row: whether the loop is over tj for each ti, and not the other way round.
    """
    guard, first, last = map(at.fixed, loop[:3])
    outer, inner = ("ti", "tj") if by_row else ("tj", "ti")
    line = np.arange(at.rows(plan) if by_row else at.columns(plan))
    held, low, high = (
        np.broadcast_to(evaluate(bound, {outer: line}), line.shape)
        for bound in (guard, first, last)
    )
    some = held & (low <= high)
    if not some.any():
        return None
    bounds = [_Bound.of(outer, line, some, x, y) for x, y in ((low, first), (high, last))]
    start, end = (bound.text for bound in bounds)
    single = np.array_equal(low[some], high[some])
    text = f"{inner} = {start}" if single else f"{inner} = {start}..{end}"
    text += f" in steps of {loop[3]}" if loop[3] > 1 else ""
    bounded = single | (bounds[0].values <= bounds[1].values)
    return _Loop(text, outer, some, bounded, guard)


class _Bound(NamedTuple):
    """A bound of a loop as printed text, with its value on every row."""

    text: str
    values: np.ndarray

    @staticmethod
    def of(
        name: str, line: np.ndarray, some: np.ndarray, values: np.ndarray, formula: Expr
    ) -> _Bound:
        """A number or a straight line where the bound is one on the rows that count."""
        rows, bounds = line[some], values[some]
        slope, rest = divmod(int(bounds[-1] - bounds[0]), max(1, int(rows[-1] - rows[0])))
        drawn = bounds[0] + slope * (line - rows[0])
        if rest or not np.array_equal(bounds, drawn[some]):
            return _Bound(to_people(formula), values)
        offset = E.const(int(bounds[0] - slope * rows[0]))
        return _Bound(to_people(E.add(E.scale(slope, E.Sym(name)), offset)), drawn)


def _text(keep: Expr) -> tuple[str, bool]:
    """Return the formula and whether it uses the position p, which replaces q + n_kv - n_q."""
    moved: dict[Expr, Expr] = {E.Q: E.add(_P, E.N_Q, E.scale(-1, E.N_KV))}

    def by_position(node: Expr) -> Expr | None:
        if not isinstance(node, (E.Cmp, E.Member)) or not E.symbols(node) & {"n_q", "n_kv"}:
            return None
        placed = E.substitute(node, moved)
        return None if E.symbols(placed) & {"n_q", "n_kv"} else placed

    text = E.transform(keep, by_position)
    return to_people(text), "p" in E.symbols(text)


def _page(line: str) -> str:
    """Wrap a line that is wider than the page."""
    deeper = " " * (len(line) - len(line.lstrip()) + 4)
    return "\n".join(
        textwrap.wrap(
            line, 100, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False
        )
    )
