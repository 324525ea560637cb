"""One spelling for comparisons that say the same in several ways.

| written                                | becomes                    |
|----------------------------------------|----------------------------|
| `abs(q - k) <= w`, `k < min(q, n)`     | a comparison for each side |
| `q - q % 64`, `q - 64 * (q // 64)`     | `64 * (q // 64)`, `q % 64` |
| `k >= 64 * (q // 64)`                  | `k // 64 >= q // 64`       |
| `q % 4 == k % 4`                       | `(q - k) % 4 == 0`         |
| `(511 - k) // 512`                     | `-(k // 512)`              |
| `k < q | k == q`, `k <= q & k != q`    | `k <= q`, `k < q`          |
| `k < 64 & k % 64 <= q`                 | `k < 64 & k <= q`          |
| `q % 4 == k % 4 & q // 4 >= k // 4`    | `q % 4 == k % 4 & q >= k`  |
| `q == k | q == k + 4 | q == k + 8`     | `(q - k) % 4 == 0`, bounds |

Every rule is an equality of integers; the last two hold where other conditions do.
What forms and kernels look for then does not depend on how a mask was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import pairwise
from math import inf

from maskc.core import expr as E
from maskc.core.expr import Expr


def normal(keep: Expr) -> Expr:
    """The formula with each comparison in its normal spelling."""
    return E.transform(_normal(keep), _dilated)


def _normal(keep: Expr) -> Expr:
    """The formula before `_dilated`, after which conditions on one number no longer merge."""
    return E.transform(keep, _rewritten)


def _dilated(node: Expr) -> Expr | None:
    """Write distances with equal steps as a dilated window, which has programs for its residues.

    The step is a constant of these programs. Two distances stay arguments of a program: any two
    have one step, and other distances would build other programs.
    """
    if not isinstance(node, E.Member) or not E.symbols(node.value) >= {"q", "k"}:
        return None
    ids = [low for low, high in node.ranges if low == high]
    steps = {after - before for before, after in pairwise(ids)}
    if len(ids) < max(len(node.ranges), 3) or len(steps) != 1:
        return None
    first, last, (step,) = ids[0], ids[-1], steps
    residue = E.mod(E.sub(node.value, E.const(first)), step)
    window = E.conj(_within(node.value, ((first, last),)), E.equals_zero(residue))
    return _normal(window if node.inside else E.negate(window))


def _rewritten(node: Expr) -> Expr | None:
    match node:
        case E.All(terms):
            settled = _bounded(terms)
            bounded = E.conj(*(_outside_reads(term, settled) for term in terms))
            if bounded != node:
                return _normal(bounded)
            spelled = E.conj(*map(_normal, terms))
            divided = _in_one_class(spelled)
            return _normal(divided) if divided != spelled else _on_lines(_by_blocks(spelled))
        case E.Any(terms):
            return _on_lines(_by_blocks(E.disj(*map(_normal, terms))))
        case E.FloorDiv(num, den):
            return _rising(_normal(num), den)
        case E.Sum(constant, terms):
            return _residues(E.linear(constant, ((c, _normal(term)) for c, term in terms)))
        case E.Cmp(">=", lhs):
            return E.conj(*map(_in_blocks, _sides(_normal(lhs))))
        case E.Cmp("==", lhs):
            return _equal(_one_residue(_normal(lhs)))
        case E.Cmp(_, lhs):
            return E.negate(_equal(_one_residue(_normal(lhs))))
    return None


def _outside_reads(term: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """Replace subformulas, but not in indices: arrays are read, and checked, at all pairs."""
    return E.transform(term, lambda node: node if isinstance(node, E.Load) else values.get(node))


def _bounded(terms: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Quotients and residues of tokens that conditions keep inside one block, without division."""
    least: dict[Expr, int] = {E.Q: 0, E.K: 0}
    most: dict[Expr, int] = {}
    for term in terms:
        match term:
            case E.Cmp(">=", E.Sum(constant, ((1, (E.Sym("q") | E.Sym("k")) as token),))):
                least[token] = max(least[token], -constant)
            case E.Cmp(">=", E.Sum(constant, ((-1, (E.Sym("q") | E.Sym("k")) as token),))):
                most[token] = min(most.get(token, constant), constant)
    if not most:
        return {}
    known: dict[Expr, Expr] = {}
    for node in (node for term in terms for node in E.walk(term)):
        if isinstance(node, (E.FloorDiv, E.Mod)) and node.num in most:
            of, den = node.num, node.den
            block = least[of] // den
            if least[of] <= most[of] < den * (block + 1):
                inside = E.sub(of, E.const(den * block))
                known[node] = E.const(block) if isinstance(node, E.FloorDiv) else inside
    return known


def _residues(total: Expr) -> Expr:
    """Combine the multiples of t, t % d and t // d in a sum into one term, if one suffices."""
    constant, terms = E.split_linear(total)
    count = {term: factor for factor, term in terms}
    for _, term in terms:
        if not isinstance(term, (E.FloorDiv, E.Mod)):
            continue
        den = term.den
        at, parts = E.split_linear(term.num)
        if len(parts) != 1 or parts[0][0] != 1:
            continue
        ((_, whole),) = parts
        rest, floor = E.Mod(term.num, den), E.FloorDiv(term.num, den)
        ones, rests, floors = (count.get(x, 0) for x in (whole, rest, floor))
        if bool(ones) + bool(rests) + bool(floors) < 2:
            continue
        # t % d is t - d * (t // d), where t is the whole and a constant
        alone, behind = ones + rests, floors - den * rests
        shift = -ones * at
        if not alone:
            made: list[tuple[int, Expr]] = [(behind, floor)]
        elif behind == -den * alone:
            made = [(alone, rest)]
        elif not behind:
            made = [(alone, whole)]
            shift += alone * at
        else:
            continue
        others = ((c, t) for c, t in terms if t not in (whole, rest, floor))
        return _residues(E.linear(constant + shift, (*others, *made)))
    return total


def _sides(lhs: Expr) -> Iterator[Expr]:
    """Integers that are all at least 0 where `lhs` is: those of each argument of an extreme."""
    constant, terms = E.split_linear(lhs)
    for index, (factor, term) in enumerate(terms):
        if isinstance(term, E.Min if factor > 0 else E.Max):
            others = terms[:index] + terms[index + 1 :]
            for side in term.args:
                yield from _sides(_residues(E.linear(constant, (*others, (factor, side)))))
            return
    yield lhs


def _in_blocks(lhs: Expr) -> Expr:
    """The condition lhs >= 0; of a token and the first or last one of a block about blocks."""
    constant, terms = E.split_linear(lhs)
    floors = {
        (t.den, E.split_linear(t.num)[0] % t.den) for _, t in terms if isinstance(t, E.FloorDiv)
    }
    for den, start in sorted(floors, reverse=True):
        alone = [(c, t) for c, t in terms if c % den]
        if len(alone) != 1:
            continue
        ((sign, token),) = alone
        if token not in (E.Q, E.K) or abs(sign) != 1:
            continue
        whole = constant - start if sign > 0 else constant + start + 1 - den
        if whole % den:
            continue
        # t >= d * m says t // d >= m, and t < d * m says t // d < m, where t is token + start
        blocks = ((c // den, t) for c, t in terms if c % den == 0)
        block = E.floordiv(E.add(token, E.const(start)), den)
        return _in_blocks(E.linear(whole // den, (*blocks, (sign, block))))
    return _undivided_bound(E.at_least_zero(lhs))


def _undivided_bound(bound: Expr) -> Expr:
    """The condition that a number is at least 0; of one quotient about what is divided."""
    if isinstance(bound, E.Cmp):
        match E.split_linear(bound.lhs):
            case constant, ((1, E.FloorDiv(num, den)),):
                return _in_blocks(E.add(num, E.const(den * constant)))
            case constant, ((-1, E.FloorDiv(num, den)),):
                return _in_blocks(E.sub(E.const(den * (constant + 1) - 1), num))
    return bound


def _equal(lhs: Expr) -> Expr:
    """The condition lhs == 0; of one quotient two bounds."""
    equal = E.equals_zero(lhs)
    match equal:
        case E.Cmp("==", E.Sum(_, ((1, E.FloorDiv()),))) | E.Cmp("==", E.FloorDiv()):
            return E.conj(*map(_undivided_bound, (
                E.at_least_zero(equal.lhs), E.at_least_zero(E.scale(-1, equal.lhs)),
            )))  # fmt: skip
    return equal


def _one_residue(lhs: Expr) -> Expr:
    """Replace a difference of two residues by the residue of a difference, 0 at the same places."""
    constant, terms = E.split_linear(lhs)
    if constant or len(terms) != 2:
        return lhs
    (first, left), (second, right) = terms
    if not (isinstance(left, E.Mod) and isinstance(right, E.Mod)):
        return lhs
    if left.den != right.den or first + second or abs(first) != 1:
        return lhs
    return E.mod(E.sub(left.num, right.num), left.den)


def _rising(num: Expr, den: int) -> Expr:
    """The quotient; of a falling term the negated quotient of a rising one."""
    constant, terms = E.split_linear(num)
    if len(terms) != 1 or terms[0][0] > 0:
        return E.floordiv(num, den)
    ((factor, term),) = terms
    return E.scale(-1, E.floordiv(E.linear(den - 1 - constant, [(-factor, term)]), den))


def _in_one_class(node: Expr) -> Expr:
    """Compare numbers themselves where a conjunction compares quotients of equal residues."""
    equal = {
        (of, term.lhs.den)
        for term in E.conjuncts(node)
        if isinstance(term, E.Cmp) and term.op == "==" and isinstance(term.lhs, E.Mod)
        for of in (term.lhs.num, E.scale(-1, term.lhs.num))
    }
    return E.conj(*(_undivided(term, equal) for term in E.conjuncts(node))) if equal else node


def _undivided(term: Expr, equal: set[tuple[Expr, int]]) -> Expr:
    """The comparison without the quotients of two numbers whose difference a divisor divides.

    Args:
        term: a condition.
        equal: differences, and the divisor of each.
    """
    if not isinstance(term, E.Cmp):
        return term
    constant, terms = E.split_linear(term.lhs)
    floors = [(factor, floor) for factor, floor in terms if isinstance(floor, E.FloorDiv)]
    if len(floors) != 2:
        return term
    (factor, left), (other, right) = floors
    difference, den = E.sub(left.num, right.num), left.den
    if factor + other or den != right.den or (difference, den) not in equal:
        return term
    rest = ((den * count, number) for count, number in terms if (count, number) not in floors)
    lhs = E.linear(den * constant, (*rest, (factor, difference)))
    if term.op == ">=":
        return E.at_least_zero(lhs)
    return E.equals_zero(lhs) if term.op == "==" else E.negate(E.equals_zero(lhs))


def _by_blocks(node: Expr) -> Expr:
    """Compare blocks by order where one term compares tokens, and another says that their blocks
    are equal (of an `or`) or differ (of an `and`)."""
    if not isinstance(node, (E.All, E.Any)):
        return node
    lines = {term.lhs for term in node.terms if isinstance(term, E.Cmp) and term.op == ">="}
    if isinstance(node, E.All):
        return E.conj(*(_in_order(term, "!=", lines) for term in node.terms))
    return E.disj(*(_in_order(term, "==", lines) for term in node.terms))


def _in_order(term: Expr, op: str, lines: set[Expr]) -> Expr:
    """With x >= y or x > y, equal blocks say x // d >= y // d, and others say x // d > y // d.

    Args:
        term, op: the comparison of two blocks.
        lines: what other terms say is at least 0.
    """
    if not isinstance(term, E.Cmp) or term.op != op:
        return term
    constant, terms = E.split_linear(term.lhs)
    match terms:
        case (1, E.FloorDiv(left, den)), (-1, E.FloorDiv(right, same)) if den == same:
            difference = E.linear(den * constant, ((1, left), (-1, right)))
            for sign in (1, -1):
                ahead = E.scale(sign, difference)
                if lines & {ahead, E.sub(ahead, E.const(1))}:
                    blocks = E.scale(sign, term.lhs)
                    return E.at_least_zero(blocks if op == "==" else E.sub(blocks, E.const(1)))
    return term


# ------------------------------------------------------------------ conditions on one number

_Ranges = tuple[tuple[float, float], ...]
"""Closed ranges of integers that ascend and do not touch; the outer ends may be infinite."""


def _on_lines(node: Expr) -> Expr:
    """Merge the terms of an `and` or an `or` that bound the same number."""
    if not isinstance(node, (E.All, E.Any)):
        return node
    lines: dict[Expr, list[_Ranges]] = {}
    rest: list[Expr] = []
    for term in node.terms:
        line = _line(term)
        if line is None:
            rest.append(term)
        else:
            lines.setdefault(line[0], []).append(line[1])
    if all(len(ranges) == 1 for ranges in lines.values()):
        return node
    merge, join = (_shared, E.conj) if isinstance(node, E.All) else (_united, E.disj)
    merged = join(*rest, *(_within(of, reduce(merge, ranges)) for of, ranges in lines.items()))
    return merged if E.arrays(merged) == E.arrays(node) else node  # arrays are read and checked


def _line(term: Expr) -> tuple[Expr, _Ranges] | None:
    """The number that a condition is about, without a constant, and its values; None if a condition
    is about several numbers, or a residue."""
    if isinstance(term, (E.All, E.Any)):
        lines = [_line(inner) for inner in term.terms]
        if None in lines or len({line[0] for line in lines if line}) > 1:
            return None
        merge = _shared if isinstance(term, E.All) else _united
        return lines[0] and (lines[0][0], reduce(merge, (line[1] for line in lines if line)))
    match term:
        case E.Member(number, ranges, inside):
            values: _Ranges = ranges
        case E.Cmp(op, number):
            inside, values = op != "!=", ((0, inf if op == ">=" else 0),)
        case _:
            return None
    constant, terms = E.split_linear(number)
    if not terms or (len(terms) == 1 and isinstance(terms[0][1], E.Mod)):
        return None
    values = tuple((low - constant, high - constant) for low, high in values)
    if terms[0][0] < 0:
        terms = tuple((-factor, part) for factor, part in terms)
        values = tuple((-high, -low) for low, high in reversed(values))
    return E.linear(0, terms), values if inside else _outside(values)


def _united(left: _Ranges, right: _Ranges) -> _Ranges:
    merged: list[tuple[float, float]] = []
    for low, high in sorted((*left, *right)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def _outside(ranges: _Ranges) -> _Ranges:
    ends = [(-inf, -inf), *ranges, (inf, inf)]
    gaps = ((before[1] + 1, after[0] - 1) for before, after in pairwise(ends))
    return tuple((low, high) for low, high in gaps if low <= high and low < inf and high > -inf)


def _shared(left: _Ranges, right: _Ranges) -> _Ranges:
    return _outside(_united(_outside(left), _outside(right)))


def _within(number: Expr, ranges: _Ranges) -> Expr:
    """The condition that a number lies in one of these ranges."""
    if not ranges:
        return E.NEVER
    if ranges[0][0] == -inf and ranges[-1][1] == inf:
        return E.negate(_listed(number, _outside(ranges)))
    finite = [(low, high) for low, high in ranges if low > -inf and high < inf]
    below = (E.le(number, E.const(int(high))) for low, high in ranges if low == -inf)
    above = (E.ge(number, E.const(int(low))) for low, high in ranges if high == inf)
    return E.disj(_listed(number, finite), *below, *above)


def _listed(number: Expr, ranges: Iterable[tuple[float, float]]) -> Expr:
    """Likewise, of finite ranges."""
    bounds = tuple((int(low), int(high)) for low, high in ranges)
    if len(bounds) != 1:
        return E.Member(number, bounds) if bounds else E.NEVER
    ((low, high),) = bounds
    if low == high:
        return E.eq(number, E.const(low))
    return E.conj(E.ge(number, E.const(low)), E.le(number, E.const(high)))
