"""Turn a plan into a bundle: source text from a template, and the recipes that belong to it.

Nothing is decided here: tile, threads and memory come from the plan. Equal plans give equal bytes,
independent of Python's hash seed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import gcd

from maskc.core import expr as E
from maskc.core.boxes import sub_box
from maskc.core.bundle import (
    OF_KEYS,
    PACK_GQA,
    Bundle,
    Grid,
    Launch,
    Mode,
    PartBundle,
    SourceUnit,
    TensorMap,
    Variant,
)
from maskc.core.data import LISTED, DataDecl, DataKind, positions_of_queries
from maskc.core.expr import NEVER, Expr, arrays, params
from maskc.core.expr_text import to_python
from maskc.core.forms import CHOOSE, GATHER, STEMS, WIDE
from maskc.core.gathering import Span
from maskc.core.listed import TOKEN_K, TOKEN_Q
from maskc.core.problem import Direction
from maskc.core.score import Formula
from maskc.core.source import SourceLoc
from maskc.core.target import PIECE, SPARE, Target
from maskc.core.widths import is_list, largest, reach
from maskc.emit.boxes import box_text
from maskc.emit.data_lists import banner, data_lists_unit, moves_unit, pages_unit
from maskc.emit.environment import render
from maskc.emit.gather import lists_unit
from maskc.emit.predicate import (
    bounds_text,
    comment_of,
    data_rows,
    predicate_lines,
    range_text,
    reach_of,
    reach_of_data,
)
from maskc.emit.score_text import score_text
from maskc.emit.selecting import select_unit
from maskc.emit.spec import (
    Cells,
    Iteration,
    KernelSpec,
    Lists,
    PartRows,
    PredicateLine,
    RowPieces,
    ScoreText,
    Shape,
)
from maskc.ir.types import MaskPart
from maskc.plan.families.table import family_of
from maskc.plan.types import KernelPlan, PlannedMask, selections


def emit(plan: KernelPlan, name: str, part: MaskPart[KernelPlan] | None = None) -> Bundle:
    """Return the bundle of one mask for one target, with all of its sources.

    `name` never reaches a source. `part`: the part of a mask that the plan is for; None: all of it.
    """
    bundle = merged([_emit(part_plan, name, part) for part_plan in (plan, *plan.alternatives)], "")
    parts = (
        PartBundle(
            part.stride,
            emit(part.inner, f"{name}_part{number}", part),
            part.aligned,
            part.keys,
            part.listed,
        )
        for number, part in enumerate(plan.parts)
    )
    if plan.chooser is not None:
        bundle = _with_chooser(bundle, emit(plan.chooser, f"{name}_chosen"))
    return replace(bundle, parts=tuple(parts))


def _with_chooser(bundle: Bundle, chooser: Bundle) -> Bundle:
    """Add the chooser to a bundle: calls pass the data of both."""
    data = {(decl.name, decl.arrays): decl for decl in (*bundle.data, *chooser.data)}
    params = {**dict(chooser.params), **dict(bundle.params)}
    return replace(
        bundle, chooser=chooser, data=tuple(decl for _, decl in sorted(data.items())),
        params=tuple(sorted(params.items())),
        unread=tuple(
            name for name in bundle.unread if name not in {*(name for name, _ in data), *params}
        ),
    )  # fmt: skip


def of_all_targets(bundles: Sequence[Bundle], report: str) -> Bundle:
    """Combine the bundles of one mask for several targets into that of a generated module.

    The first one defines the mask. Bundles that find chosen keys by thresholds have other formulas
    and become siblings, together with all bundles with equal formulas.
    """
    groups: list[list[Bundle]] = []
    for bundle in bundles:
        alike = (group for group in groups if _formulas_of(group[0]) == _formulas_of(bundle))
        group = next(alike, None)
        if group is None:
            groups.append([bundle])
        else:
            group.append(bundle)
    first, *others = (merged(group, "") for group in groups)
    return replace(first, siblings=tuple(others), report=report)


def _formulas_of(bundle: Bundle) -> object:
    """Equal for bundles that differ in their sources alone; None if no thresholds are found."""
    if bundle.chooser is None:
        return None
    variants = tuple(replace(variant, recipes=(), axes=()) for variant in bundle.variants)
    return variants, bundle.arrays, bundle.data, _formulas_of(bundle.chooser)


def merged(bundles: Sequence[Bundle], report: str) -> Bundle:
    """One bundle with the units and recipes of all; they are of one mask."""
    first = bundles[0]
    variants = tuple(
        replace(
            variant,
            recipes=tuple({recipe.tile: recipe for bundle in bundles
                           for recipe in bundle.variants[i].recipes}.values()),
            axes=max((bundle.variants[i].axes for bundle in bundles), key=len),
        )
        for i, variant in enumerate(first.variants)
    )  # fmt: skip
    units = {unit.key: unit for bundle in bundles for unit in bundle.units}
    by_part = zip(*(bundle.parts for bundle in bundles if bundle.parts), strict=True)
    parts = tuple(
        replace(same[0], bundle=merged([part.bundle for part in same], "")) for same in by_part
    )
    choosers = [bundle.chooser for bundle in bundles if bundle.chooser is not None]
    chooser = merged(choosers, "") if choosers else None
    return replace(
        first, variants=variants, units=tuple(units.values()), parts=parts, chooser=chooser,
        report=report,
    )  # fmt: skip


def _emit(plan: KernelPlan, name: str, part: MaskPart[KernelPlan] | None) -> Bundle:
    """One source."""
    formulas = [_formulas(mask) for mask in plan.masks]
    reads = sorted(
        {
            name
            for pair in formulas
            for formula in pair
            for name in arrays(formula)
            if not is_list(name)
        }
    )
    data, reads_of = declarations(plan.masks), tuple(reads)
    listed = None if part is None else part.listed
    if listed is not None and listed.array not in reads:  # logits alone do
        reads.append(listed.array)
        data += (DataDecl(listed.array, DataKind.tokens, (listed.array,)),)
        reads_of = tuple(reads) if plan.target.language == "c" else reads_of
    shapes = list(dict.fromkeys(formulas))
    placed = plan.problem.placed
    if placed is not None and placed.positions not in reads:  # distances alone read it
        reads.append(placed.positions)
        data += (positions_of_queries(placed.positions),)
        reads_of = tuple(reads)
    rows = None if part is None else _rows(part, reads)
    if placed is not None:
        at = reads.index(placed.positions)
        rows = PartRows("listed", len(reads), list=at, of_queries=True)
    spec = kernel_spec(plan, reads_of, rows)
    unit = SourceUnit(
        plan.target.name,
        render(family_of(plan.target).template(_stem(plan), plan.direction), spec),
        plan.tile,
        plan.use_ranges,
        directions=_directions(plan),
        modes=_modes(plan),
        maps=_maps(plan),
        work=plan.schedule.work,
        row_floats=plan.schedule.row_floats,
        key_floats=plan.schedule.key_floats,
        distances=plan.distances,
        tests=plan.tests if plan.costs else 0,
        by_documents=plan.documents,
        form=plan.form,
        costs=plan.costs,
        boxes=plan.boxes,
        thresholds=plan.thresholds or plan.chosen is not None,
        reach=tuple(largest(_reach(plan.masks[formulas.index(shape)], plan)) for shape in shapes),
    )
    unit = _with_origins(unit, plan)
    params = {name: default for mask in plan.masks for name, default in mask.ir.params.items()}
    declared = frozenset[str]().union(*(mask.ir.declared for mask in plan.masks))
    return Bundle(
        name=name,
        problem=plan.problem,
        variants=tuple(
            Variant(
                m.ir.keep,
                shapes.index(_formulas(m)),
                m.lifted.args,
                (m.recipe,),
                m.axes,
                m.lifted.rests,
                m.lifted.lists,
            )
            for m in plan.masks
        ),
        head_variant=plan.of_head,
        arrays=tuple(reads),
        data=data,
        params=tuple(sorted(params.items())),
        units=(unit, *_lists_units(plan, tuple(reads))),
        unread=tuple(sorted(declared - set(params) - {d.name for d in data})),
        selections=selections(plan.masks),
    )


def _rows(part: MaskPart[KernelPlan], reads: list[str]) -> PartRows | None:
    """Which tokens a part has; None: all, or a residue class of both queries and keys."""
    if part.listed is not None:
        at, of_queries = reads.index(part.listed.array), part.listed.side == "q"
        return PartRows("listed", len(reads), list=at, of_queries=of_queries)
    if part.keys is not None:
        return PartRows("strided", len(reads), first=part.keys, step=part.stride)
    return None


def _stem(plan: KernelPlan) -> str:
    """The first part of its template's name."""
    return STEMS[CHOOSE] if plan.chosen is not None else STEMS.get(plan.form, "")


def _formulas(mask: PlannedMask) -> tuple[Expr, ...]:
    """Return the formulas of a mask in a source; masks with equal formulas share them."""
    return (mask.lifted.shape, *(() if mask.always_kept is None else (mask.always_kept,)))


def _reach(mask: PlannedMask, plan: KernelPlan) -> Iterator[Expr]:
    """Bounds on everything that a source computes of a mask."""
    for formula in _formulas(mask):
        yield from reach(formula)
    for row in mask.ranges if plan.use_ranges and mask.ranges else ():
        for span in (row.live, row.full):
            yield from reach_of(span)
    tokens: dict[Expr, Expr] = {E.Sym("ti"): E.Q, E.Sym("tj"): E.K}
    intervals = (*(mask.intervals or ()), *(mask.always_kept_intervals or ()))
    spans = chain.from_iterable((interval.keys, interval.queries) for interval in intervals)
    for bound in dict.fromkeys(chain.from_iterable(map(reach_of, spans))):
        yield E.substitute(bound, tokens)
    for data in filter(None, plan.of_data):
        yield from reach_of_data(data)


def _lists_units(plan: KernelPlan, reads: tuple[str, ...]) -> tuple[SourceUnit, ...]:
    """Return the sources that build lists on the device, and move rows of listed tokens."""
    moves = plan.target.language == "cuda" and any(part.listed for part in plan.parts)
    moving = (moves_unit(plan),) if moves else ()
    if plan.problem.placed is not None and plan.target.language == "cuda":
        moving = (*moving, pages_unit(plan))
    if plan.data_lists:
        return (data_lists_unit(plan, reads), *moving)
    if plan.gathering is not None:
        return (lists_unit(plan, plan.gathering),)
    if plan.documents:
        return (data_lists_unit(plan, reads), *moving)
    return (select_unit(plan),) if plan.selecting else moving


def _maps(plan: KernelPlan) -> tuple[TensorMap, ...]:
    """Return the tensor maps, with boxes if tiles are boxes."""
    maps, boxes = plan.schedule.maps, plan.boxes
    if plan.problem.page_size:
        return tuple(_of_granules(maps, granule(plan.problem.page_size, plan.tile.k)))
    if boxes is None:
        return maps
    return tuple(
        replace(
            tensor_map,
            box=sub_box(boxes.k if tensor_map.tensor in OF_KEYS else boxes.q, tensor_map.rows)
            or (),
        )
        for tensor_map in maps
    )


def granule(page_size: int, tile_k: int) -> int:
    """Return the number of keys that share a page wherever a tile of keys begins."""
    return gcd(page_size, tile_k)


def _of_granules(maps: tuple[TensorMap, ...], rows: int) -> Iterator[TensorMap]:
    """Maps of keys and values in granules, and of single rows of values."""
    for tensor_map in maps:
        yield replace(tensor_map, rows=rows) if tensor_map.tensor in OF_KEYS else tensor_map
        if tensor_map.tensor == "v":
            yield replace(tensor_map, rows=1)


def _directions(plan: KernelPlan) -> tuple[Direction, ...]:
    """Return the passes of a source: all of the target, or one if each pass has a separate
    source."""
    one = family_of(plan.target).one_source or plan.target.directions == (Direction.forward,)
    return plan.target.directions if one else (plan.direction,)


def _modes(plan: KernelPlan) -> tuple[tuple[str, Mode], ...]:
    """Return the modes of a CUDA source with their launches."""
    if plan.target.language == "c":
        return ()
    schedule = plan.schedule
    if schedule.modes:
        return tuple((n, mode) for n, mode in schedule.modes if n != PACK_GQA or not plan.boxes)
    entry = "attention_forward" if plan.chosen is None else "attention_choose"
    launch = Launch(entry, Grid.rows, 32 * schedule.warps, schedule.shared_bytes)
    return (("default", Mode((launch,))),)


def declarations(masks: tuple[PlannedMask, ...]) -> tuple[DataDecl, ...]:
    """All data the masks read, by name."""
    decls = {(decl.name, decl.arrays): decl for mask in masks for decl in mask.ir.data}
    return tuple(decl for _, decl in sorted(decls.items()))


def kernel_spec(
    plan: KernelPlan, reads: tuple[str, ...], rows: PartRows | None = None
) -> KernelSpec:
    """The template's holes, filled from the plan."""
    shapes: dict[tuple[Expr, ...], Shape] = {}
    for mask in plan.masks:
        if _formulas(mask) not in shapes:
            shapes[_formulas(mask)] = _shape(mask, plan, reads)
    n_args = max(len(mask.lifted.args) for mask in plan.masks)
    by_query, by_key = plan.of_data
    decl_of = {name: decl for decl in declarations(plan.masks) for name in decl.arrays}
    for name in {TOKEN_Q, TOKEN_K} - set(decl_of):
        decl_of[name] = DataDecl(name, DataKind.tokens, (name,))
    if plan.problem.placed is not None:
        at = plan.problem.placed.positions
        decl_of[at] = positions_of_queries(at)
    score = plan.problem.score
    return KernelSpec(
        target=plan.target,
        dtype=plan.problem.dtype,
        head_dim=plan.padded.head_dim,
        head_dim_v=plan.padded.head_dim_v,
        pieces=None
        if plan.padded == plan.problem and plan.problem.head_dim == plan.problem.head_dim_v
        else RowPieces(plan.problem.head_dim // PIECE, plan.problem.head_dim_v // PIECE),
        tile=plan.tile,
        iteration=Iteration.range if plan.use_ranges else Iteration.csr,
        shapes=tuple(shapes.values()),
        n_args=n_args,
        n_lists=max(len(mask.lifted.lists) for mask in plan.masks),
        arg_notes=tuple(_arg_note(plan.masks, i) for i in range(n_args)),
        table_ranks=tuple(decl_of[name].rank for name in reads),
        array_notes=tuple(_array_note(decl_of[name], name) for name in reads),
        selections=tuple(
            Lists(slot, decl_of[name].options[0], decl_of[name].block)
            for slot, name in enumerate(reads)
            if decl_of[name].kind in LISTED and _reads_lists(plan)
        ),
        cells=_cells(plan, reads),
        by_query=None if by_query is None else data_rows(by_query, reads, "k"),
        by_key=None if by_key is None else data_rows(by_key, reads, "q"),
        distances=plan.distances,
        document_arrays=tuple(map(reads.index, plan.masks[0].ir.data[0].arrays))
        if plan.documents
        else (),
        boxes=None if plan.boxes is None else box_text(plan.boxes, plan.direction),
        key_run=gcd(plan.runs[0], plan.tile.k),
        query_run=gcd(plan.runs[1], plan.tile.q),
        gathered=plan.form in (GATHER, WIDE),
        thresholds=plan.thresholds,
        has_always_kept=any(mask.always_kept not in (None, NEVER) for mask in plan.masks),
        backward=plan.direction is Direction.backward,
        chosen=plan.chosen,
        schedule=plan.schedule,
        banner=banner("Attention for one mask", plan, _size(plan)),
        page_size=plan.problem.page_size,
        granule=granule(plan.problem.page_size, plan.tile.k),
        converts=plan.problem.converts,
        dropout=plan.problem.dropout,
        score=None if score is None else _score_text(score, plan.target),
        rows=rows,
    )


def _score_text(score: Formula, target: Target) -> ScoreText:
    line = None if score.loc is None else score.loc.line
    fast = target.language == "cuda" and target.name != SPARE
    return score_text(score, target.language, line, fast)


def _shape(mask: PlannedMask, plan: KernelPlan, reads: tuple[str, ...]) -> Shape:
    rows, columns = mask.ranges if plan.use_ranges and mask.ranges else (None, None)
    always_kept = mask.always_kept_intervals or ()
    lines: tuple[PredicateLine, ...] = ()
    if mask.always_kept is not None:
        anyway = replace(mask.lifted, shape=mask.always_kept)
        lines = predicate_lines(mask.ir, anyway, reads, tiled=False)
    return Shape(
        predicate_lines(mask.ir, mask.lifted, reads, tiled=_reads_lists(plan)),
        range_text(rows) if rows else None,
        range_text(columns) if columns else None,
        _bounds([i.keys for i in mask.intervals]) if mask.intervals is not None else None,
        _bounds([i.queries for i in mask.intervals]) if mask.intervals is not None else None,
        lines,
        _bounds([i.keys for i in always_kept]),
        _bounds([i.queries for i in always_kept]),
    )


def _cells(plan: KernelPlan, reads: tuple[str, ...]) -> Cells | None:
    """Return the selection that intervals depend on: only for a single formula."""
    mask = plan.masks[0]
    asked = [interval.chosen for interval in mask.intervals or ()]
    if plan.boxes is not None or asked.count(None) == len(asked):
        return None
    (one,) = mask.ir.selections
    chosen, others = (sum((x is kind) << i for i, x in enumerate(asked)) for kind in (True, False))
    across = gcd(one.block, plan.tile.k)
    down = gcd(one.q_block, plan.schedule.score_rows)
    return Cells(reads.index(one.name), one.q_block, one.block, across, down, chosen, others)


def _reads_lists(plan: KernelPlan) -> bool:
    """Whether selections are lists of blocks; for GPUs they are bits of a table."""
    return plan.target.language == "c"


def _bounds(spans: list[Span]) -> tuple[tuple[str, str], ...]:
    return tuple(bounds_text(span, f"bounds[{i}].first") for i, span in enumerate(spans))


def _arg_note(masks: tuple[PlannedMask, ...], index: int) -> str:
    """Return a comment on argument `index` with its distinct values, without the user's names."""
    values = dict.fromkeys(
        to_python(mask.lifted.args[index]) for mask in masks if index < len(mask.lifted.args)
    )
    texts = [_anonymous(text, masks) for text in values]
    return textwrap.shorten("; ".join(texts), 80, placeholder=" ...")


def _anonymous(text: str, masks: tuple[PlannedMask, ...]) -> str:
    names = sorted({name for mask in masks for name in params(mask.ir.keep)})
    for number, name in enumerate(names):
        text = text.replace(f"param('{name}', ", f"param({number}, ")
    return text


_NOTES = {
    DataKind.documents: "document ids",
    DataKind.flags: "flags",
    DataKind.positions: "positions",
    DataKind.intervals: "bounds of a query's keys",
    DataKind.tree: "times of a depth-first walk",
    DataKind.table: "block table",
    DataKind.key_lists: "keys of each query",
    DataKind.random: "drawn block table",
    DataKind.constant: "captured table",
    DataKind.selection: "chosen blocks of keys",
    DataKind.tokens: "which tokens the rows are",
}


def _array_note(decl: DataDecl, array: str) -> str:
    _, _, part = array.partition(".")
    return f"{_NOTES[decl.kind]}{f', {part}' if part else ''}"


def _size(plan: KernelPlan) -> str:
    p, tile = plan.problem, plan.tile
    dims = f"{p.head_dim}/{p.head_dim_v}" if p.head_dim_v != p.head_dim else str(p.head_dim)
    return f", {p.dtype.value}, head_dim {dims}, tiles of {tile.q} queries x {tile.k} keys"


def _with_origins(unit: SourceUnit, plan: KernelPlan) -> SourceUnit:
    """Map the predicate's lines to the user's positions, for compiler messages."""
    where: dict[str, tuple[SourceLoc, str]] = {}
    for mask in plan.masks:
        for _, origin in mask.ir.origins:
            if origin.loc:
                where.setdefault(f"// {comment_of(origin)}", (origin.loc, origin.term))
    origins = tuple(
        (number, *where[line.strip()])
        for number, line in enumerate(unit.text.splitlines(), start=1)
        if line.strip() in where
    )
    return replace(unit, origins=origins)
