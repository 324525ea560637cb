"""Describe a plan in words: proofs, costs and reasons."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

import sympy

from maskc.analysis.counts import ClosedForm, closed_form, count_pairs
from maskc.analysis.sum_slopes import slope
from maskc.core.bundle import INTERLEAVED
from maskc.core.coefficients import card_of
from maskc.core.dtypes import DType
from maskc.core.expr_text import to_people
from maskc.core.problem import Direction
from maskc.core.score import Formula, to_score_text
from maskc.core.selection import Score, Selection, Share
from maskc.dispatch.programs import Program
from maskc.ir.decompose import pieces_of
from maskc.ir.types import Piece
from maskc.layout import build
from maskc.layout.tiles.numbers import Numbers
from maskc.plan.cost import USUAL_HEADS, Candidate, choice, most_in_small_tiles, smaller, title
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan, PlannedMask, selections

_LABEL = 9
"""Columns of a label; text begins behind them."""
_WIDTH = 100


def costs(plan: KernelPlan, n_q: int, n_kv: int, head: int = 0) -> Numbers | None:
    """Return exact numbers for the mask of one head; None if it reads data."""
    mask, problem = plan.masks[plan.of_head[head] if plan.of_head else 0], plan.problem
    if mask.ir.data:
        return None
    pairs = count_pairs(mask.ir.keep, n_q, n_kv, {})
    if pairs is None:
        from maskc.layout import count

        pairs = count(mask.recipe, n_q, n_kv, {}, {})
    layout, dims = build(mask.recipe, n_q, n_kv, {}, {}), problem.head_dim + problem.head_dim_v
    return Numbers.of(layout, pairs, dims, problem.row_bytes)


def explain(plan: KernelPlan, n_q: int | None = None, n_kv: int | None = None) -> str:
    """Return the report of one plan; with lengths, also the exact numbers at these lengths."""
    return "\n".join(_lines(plan, n_q, n_q if n_kv is None else n_kv)) + "\n"


def _lines(plan: KernelPlan, n_q: int | None, n_kv: int | None) -> Iterator[str]:
    problem = plan.problem
    yield f"target   {plan.target.name}, {problem.dtype.value}, head_dim {problem.head_dim}" + (
        f"/{problem.head_dim_v}" if problem.head_dim_v != problem.head_dim else ""
    )
    for index, mask in enumerate(plan.masks):
        if len(plan.masks) > 1:
            heads = [h for h, which in enumerate(plan.of_head) if which == index]
            yield f"heads    {', '.join(map(str, heads))}"
        yield from _mask_lines(plan, index, mask)
    if problem.score is not None:
        yield from _score_lines(problem.score)
    for selection in selections(plan.masks):
        yield from wrapped("chosen", _selection_text(selection))
    for reason in plan.reasons:
        yield from wrapped("plan", reason)
    if INTERLEAVED in dict(plan.schedule.modes):
        modes = "where 2 to 64 query heads share keys, all heads of a query may share a tile"
        yield from wrapped("plan", f"interleaved: {modes}")
    yield from _document_lines(plan)
    yield from _part_lines(plan)
    if n_q is not None and n_kv is not None:
        yield from _cost_lines(plan, n_q, n_kv)


def _score_lines(formula: Formula) -> Iterator[str]:
    """The score formula, where it was written, and its derivative."""
    place = "" if formula.loc is None else f"  (line {formula.loc.line})"
    yield from wrapped("score", f"{to_score_text(formula.logit)}{place}")
    slope_of_score = slope(formula.logit)
    text = to_score_text(slope_of_score.results[0])
    shared = ", ".join(f"x{n} = {to_score_text(x)}" for n, x in enumerate(slope_of_score.shared))
    yield from wrapped("slope", f"{text}, with {shared}" if shared else text)


def _mask_lines(plan: KernelPlan, index: int, mask: PlannedMask) -> Iterator[str]:
    yield from wrapped("mask", to_people(mask.ir.keep))
    yield from _piece_lines(pieces_of(mask.ir))
    for fact in plan.facts[index]:
        yield from wrapped("proof", str(fact))
    form = closed_form(mask.ir.keep)
    if form is None:
        yield "pairs    no closed form: exact numbers at given lengths"
        return
    yield from _formula_lines(form, plan)


SCORES = {
    Score.qk: "q . k",
    Score.block_mean: "mean q . mean k",
    Score.indexer: "the sum over index heads of index_w * relu(index_q . index_k)",
    Score.given: "scores",
}
_WHO = {
    Share.head: "every head for itself",
    Share.group: "the heads of a key/value head together",
    Share.all: "all heads together",
}


def _selection_text(one: Selection) -> str:
    """Describe the choice of a selection for known q and k."""
    keys = "keys" if one.block == 1 else f"blocks of {one.block} keys"
    queries = "each query" if one.q_block == 1 else f"each {one.q_block} queries"
    if one.at:
        keys += ", counted from positions,"
    among = "; ".join(dict.fromkeys(map(to_people, one.allowed)))
    return (
        f"{one.name}: the {one.k} best {keys} for {queries} by {SCORES[one.score]} in fp32, "
        f"{_WHO[one.share]}, ties to the lower index; among {among}"
    )


def _document_lines(plan: KernelPlan) -> Iterator[str]:
    """Yield lines for a mask of documents with terms that read no data; nothing for other masks."""
    most = most_in_small_tiles(plan)
    if most is not None:
        small = next(smaller(plan))
        short = f"documents of at most {most} tokens, as max_seqlen says: {title(small)}; other "
        yield from wrapped("choice", f"{short if most else ''}documents: {title(plan)}")


_LONGEST_PART = 200
"""Limit on the characters of a part's formula; for longer ones, pieces are counted."""


def _part_lines(plan: KernelPlan) -> Iterator[str]:
    """Yield lines about the parts of a mask; nothing for a mask that always runs as a whole."""
    for part in plan.parts:
        part_plan, mask = part.inner, part.inner.masks[0]
        lists = "closed-form tile ranges" if part_plan.use_ranges else "tile lists in memory"
        where = f"residue classes modulo {part.stride}" if part.stride > 1 else "tokens as they are"
        if part.keys is not None:
            where = f"keys {part.keys}, {part.keys + part.stride}, ... as k = 0, 1, ..."
        if part.listed is not None:
            rows = "queries" if part.listed.side == "q" else "keys"
            where = f"copies of the listed {rows}, {part.listed.array} says which"
        text = to_people(mask.ir.keep)
        if len(text) > _LONGEST_PART:
            kinds = Counter(str(piece.kind) for piece in pieces_of(mask.ir))
            text = ", ".join(k if n == 1 else f"{n} x {k}" for k, n in kinds.items())
        yield from wrapped("part", f"{where}: {text}; {title(part_plan)}, {lists}")
    if plan.parts:
        when = "used if their tiles take less time than those of the whole mask"
        if strides := [str(part.stride) for part in plan.parts if part.aligned]:
            verb = "divide" if len(strides) > 1 else "divides"
            when += f"; only where {' and '.join(strides)} {verb} n_kv - n_q"
        yield from wrapped("parts", when)


_MAX_PIECES = 8
"""Pieces that are printed; the others are counted."""


def _piece_lines(pieces: tuple[Piece, ...]) -> Iterator[str]:
    """Yield the pieces of a mask; nothing for a single piece, which equals the formula above."""
    if len(pieces) < 2:
        return
    for piece in pieces[:_MAX_PIECES]:
        yield from wrapped("piece", f"{piece.kind}: {to_people(piece.keep)}")
    more = Counter(str(piece.kind) for piece in pieces[_MAX_PIECES:])
    for kind, count in more.items():
        yield f"piece    {kind}: {count} more"


def _formula_lines(form: ClosedForm, plan: KernelPlan) -> Iterator[str]:
    """Live pairs, FLOPs and bytes of one head at n_q = n_kv = N."""
    size = sympy.Symbol("N", integer=True, positive=True)
    of_qk, of_v = plan.problem.head_dim, plan.problem.head_dim_v
    yield from wrapped("pairs", str(form))
    forward = sympy.expand(2 * (of_qk + of_v) * form.pairs)
    backward = (3 * of_qk + 2 * of_v) / (of_qk + of_v)  # scores, dq and dk; dp and dv
    yield from wrapped("flops", f"forward {forward}, backward {backward:.3g} x")
    least = sum(plan.problem.row_bytes) * size
    yield from wrapped("bytes", f"at least {least} (q, k, v and out once)")


def _cost_lines(plan: KernelPlan, n_q: int, n_kv: int) -> Iterator[str]:
    for index in range(len(plan.masks)):
        head = plan.of_head.index(index) if plan.of_head else 0
        price = costs(plan, n_q, n_kv, head)
        if price is None:
            yield "cost     depends on data given at call time"
            continue
        yield (
            f"cost     {n_q} x {n_kv}: {price.live} live pairs ({price.live_share:.2%}), "
            f"{price.full} full and {price.partial} partial of "
            f"{price.full + price.partial + price.empty} tiles"
        )
        yield (
            f"         {price.flops / 1e9:.3g} GFLOP, {price.bytes / 1e6:.3g} MB per head; "
            f"tiles run {price.waste:.2f} x the live pairs"
        )
    yield from choice_lines(plan, n_q, n_kv)
    yield from time_lines(plan, n_q, n_kv)


def choice_lines(plan: KernelPlan, n_q: int, n_kv: int) -> Iterator[str]:
    """Yield a table of every program of a call at these lengths, and which one the call takes."""
    for direction in Direction:
        chosen = choice(plan, n_q, n_kv, direction)
        if chosen is not None:
            which = "backward, " if direction is Direction.backward else ""
            yield from _program_lines(*chosen, f"{which}{n_q} x {n_kv}")


def _program_lines(
    taken: Program[Candidate], programs: list[Program[Candidate]], which: str
) -> Iterator[str]:
    """Yield every way a call could run: predicted cycles of one head, or why it cannot."""
    yield f"choice   {which}: {taken.name}; cycles of one head by program:"
    for row in sorted(programs, key=lambda row: (bool(row.obstacle), row.time)):
        what = f"not: {row.obstacle}" if row.obstacle else f"{row.time:,.0f}"
        yield f"         {row.name:<28} {what}"


def predicted(plan: KernelPlan, n_q: int, n_kv: int) -> dict[str, float]:
    """Predict milliseconds by pass, for the compiled number of heads or 16; empty if there are no
    coefficients or the mask reads data."""
    heads = plan.problem.n_heads or USUAL_HEADS
    fp8 = plan.problem.dtype is DType.float8_e4m3fn
    if plan.chooser is not None or plan.gathering is not None or fp8:
        return {}  # the cost model knows nothing of choosing, or of E4M3
    return {
        direction.value: ms
        for direction in Direction
        if (ms := milliseconds(plan, direction, n_q, n_kv, heads)) is not None
    }


def time_lines(plan: KernelPlan, n_q: int, n_kv: int) -> list[str]:
    """The times as text."""
    heads, by_pass = plan.problem.n_heads or USUAL_HEADS, predicted(plan, n_q, n_kv)
    card = card_of(plan.target.name)
    if card is None or not by_pass:
        return []
    times = ", ".join(f"{ms:.3g} ms {name}" for name, ms in by_pass.items())
    text = f"{n_q} x {n_kv}, {heads} heads, predicted for an {card.name}: {times}"
    return wrapped("time", text)


def wrapped(label: str, text: str) -> list[str]:
    """An entry of the report: a label, and text that continues below itself."""
    return _wrapped(f"{label:<{_LABEL}}{text}", _WIDTH)


def _wrapped(entry: str, width: int) -> list[str]:
    return textwrap.wrap(
        entry, width, subsequent_indent=" " * _LABEL,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def narrowed(lines: Iterable[str], width: int) -> list[str]:
    """Wrap a report for a terminal of `width` columns; a wide one shows the lines as they are."""
    if width >= _WIDTH:
        return list(lines)
    entries: list[str] = []
    before = ""
    for line in lines:
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        full = len(before) <= _WIDTH < len(before) + 1 + len(word)
        if full and line[:_LABEL].isspace():
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
        before = line
    return [part for entry in entries for part in _wrapped(entry, max(width, 40)) or [""]]
