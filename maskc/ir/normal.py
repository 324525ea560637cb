"""One spelling for comparisons that say the same in several ways.

| written                                | becomes                    |
|----------------------------------------|----------------------------|
| `abs(q - k) <= w`, `k < min(q, n)`     | a comparison for each side |
| `q - q % 64`, `q - 64 * (q // 64)`     | `64 * (q // 64)`, `q % 64` |
| `k >= 64 * (q // 64)`                  | `k // 64 >= q // 64`       |
| `q % 4 == k % 4`                       | `(q - k) % 4 == 0`         |
| `k < 64 & k % 64 <= q`                 | `k < 64 & k <= q`          |

Every rule is an equality of integers; the last one holds where other conditions bound a token.
What forms and kernels look for then does not depend on how a mask was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maskc.core import expr as E
from maskc.core.expr import Expr


def normal(keep: Expr) -> Expr:
    """The formula with each comparison in its normal spelling."""
    return E.transform(keep, _rewritten)


def _rewritten(node: Expr) -> Expr | None:
    match node:
        case E.All(terms):
            settled = _bounded(terms)
            bounded = E.conj(*(_outside_reads(term, settled) for term in terms))
            return None if bounded == node else normal(bounded)
        case E.Sum(constant, terms):
            return _residues(E.linear(constant, ((c, normal(term)) for c, term in terms)))
        case E.Cmp(">=", lhs):
            return E.conj(*map(_in_blocks, _sides(normal(lhs))))
        case E.Cmp("==", lhs):
            return E.equals_zero(_one_residue(normal(lhs)))
        case E.Cmp(_, lhs):
            return E.negate(E.equals_zero(_one_residue(normal(lhs))))
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
        whole, den = term.num, term.den
        at, linear = E.split_linear(whole)
        if at or len(linear) != 1 or linear[0][0] != 1:
            continue
        rest, floor = E.Mod(whole, den), E.FloorDiv(whole, den)
        ones, rests, floors = (count.get(x, 0) for x in (whole, rest, floor))
        if bool(ones) + bool(rests) + bool(floors) < 2:
            continue
        # t % d is t - d * (t // d)
        alone, behind = ones + rests, floors - den * rests
        if not alone:
            made: list[tuple[int, Expr]] = [(behind, floor)]
        elif behind == -den * alone:
            made = [(alone, rest)]
        elif not behind:
            made = [(alone, whole)]
        else:
            continue
        others = ((c, t) for c, t in terms if t not in (whole, rest, floor))
        return _residues(E.linear(constant, (*others, *made)))
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
    for den in sorted({t.den for _, t in terms if isinstance(t, E.FloorDiv)}, reverse=True):
        alone = [(c, t) for c, t in terms if c % den]
        if len(alone) != 1:
            continue
        ((sign, token),) = alone
        if token not in (E.Q, E.K) or abs(sign) != 1:
            continue
        if (constant if sign > 0 else constant + 1) % den:
            continue
        # t >= d * m says t // d >= m, and t < d * m says t // d < m
        blocks = ((c // den, t) for c, t in terms if c % den == 0)
        whole = constant if sign > 0 else constant + 1 - den
        inner = E.linear(whole // den, (*blocks, (sign, E.floordiv(token, den))))
        return _in_blocks(inner)
    return E.at_least_zero(lhs)


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
