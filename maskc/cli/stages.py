"""The text that `--emit STAGE` prints: the value at one arrow of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from maskc.cli.entries import MaskEntry
from maskc.cli.options import KernelOptions

if TYPE_CHECKING:
    from maskc.analysis.head_groups import HeadGroups
    from maskc.ir.types import MaskIR

STAGES = ("mask", "ir", "facts", "plan", "loops", "source")


def stage_text(
    entry: MaskEntry,
    asked: KernelOptions,
    stage: str,
    n_q: int,
    n_kv: int,
    standalone: bool = False,
) -> str:
    """The value of one stage as text.

    Args:
        stage: one of STAGES.
        n_q, n_kv: where the plan's costs are computed, and its loops are written out.
        standalone: a source has the text of the static files that it includes.

    Raises:
        MaskcError: an earlier stage refuses the mask or the problem.
    """
    from maskc import driver
    from maskc.plan.explain import explain

    if stage == "mask":
        return f"{entry.mask}\n"
    if stage in ("ir", "facts"):
        heads = driver.analyse_heads(entry.mask, asked.heads_for(entry.mask))
        return "\n".join(_per_set(heads, stage)) + "\n"
    plan = asked.plan(entry.mask)
    if stage == "plan":
        return explain(plan, n_q, n_kv)
    if stage == "loops":
        from maskc.plan.loops import loop_nest

        return loop_nest(plan, n_q, n_kv)
    unit = driver.emit_bundle(plan, entry.name).units[0]
    return unit.source if standalone else unit.text


def _per_set(heads: HeadGroups, stage: str) -> Iterator[str]:
    from maskc.viz import words

    for index, (ir, facts) in enumerate(zip(heads.masks, heads.facts, strict=True)):
        if heads.of_head:
            mine = tuple(h for h, which in enumerate(heads.of_head) if which == index)
            yield f"{words.heads(mine)}:"
        yield from _formulas(ir) if stage == "ir" else map(str, facts)


def _formulas(ir: MaskIR) -> Iterator[str]:
    from maskc.core.expr_text import to_people
    from maskc.ir.decompose import pieces_of

    yield f"keep  {to_people(ir.keep)}"
    for piece in pieces_of(ir):
        yield f"piece {piece.kind}: {to_people(piece.keep)}"
    for name, default in ir.params.items():
        yield f"param {name} = {default}"
    for decl in ir.data:
        yield f"data  {decl.name}: {decl.kind.value}"
