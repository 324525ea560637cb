"""maskc explain: what was proved about a mask, what it costs, and why it runs the way it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.options import (
    LENGTH,
    KernelOptions,
    data_options,
    json_option,
    length_options,
    mask_source,
    source_options,
)
from maskc.cli.output import columns, echo, one_by_one, write_json

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.plan.types import KernelPlan


@click.command(short_help="Print proofs, costs, and the plan with its reasons.")
@mask_source
@source_options
@length_options("that of --data, else 4096")
@data_options(LENGTH)
@json_option
def explain(
    entries: list[MaskEntry], asked: KernelOptions, n: int, n_kv: int, arrays: Arrays, as_json: bool
) -> None:
    """Print the pieces of the mask, proved facts, costs as formulas and at --n tokens, and the
    plan.

    If the mask reads data, costs are for the arrays of --data, or for random ones.
    """
    from maskc import driver
    from maskc.cli.costs import cost_lines, costs
    from maskc.plan import explain as plan_report

    reports = []
    for entry in one_by_one(entries, "explaining"):
        plan = asked.plan(entry.mask)
        cost = costs(entry.mask, plan, n, n_kv, arrays.of(entry, n, n_kv))
        if as_json:
            milliseconds = plan_report.predicted(plan, n, n_kv)
            reports.append({**_plain(entry, plan), "costs": cost, "predicted_ms": milliseconds})
            continue
        comparison = driver.compared_with_dense(entry.mask, plan)
        text = [f"{entry.name}: {entry.mask}", plan_report.explain(plan).rstrip("\n"), *comparison]
        chosen = plan_report.choice_lines(plan, n, n_kv)
        times = plan_report.time_lines(plan, n, n_kv)
        lines = "\n".join([*text, *cost_lines(cost), *chosen, *times]).split("\n")
        echo("\n".join([*plan_report.narrowed(lines, columns()), ""]))
    if as_json:
        write_json({"patterns": reports})


def _plain(entry: MaskEntry, plan: KernelPlan) -> dict[str, Any]:
    """The report as plain values."""
    from maskc.analysis.counts import closed_form
    from maskc.core.expr_text import to_people
    from maskc.ir.decompose import pieces_of

    sets = []
    for index, (mask, facts) in enumerate(zip(plan.masks, plan.facts, strict=True)):
        form = closed_form(mask.ir.keep)
        sets.append({
            "heads": [head for head, which in enumerate(plan.of_head) if which == index],
            "keep": to_people(mask.ir.keep),
            "pieces": [
                {"kind": piece.kind, "keep": to_people(piece.keep)} for piece in pieces_of(mask.ir)
            ],
            "facts": [
                {"name": f.name, "holds": f.holds, "where": f.where, "proof": f.proof}
                for f in facts
            ],
            "live_pairs": None if form is None else {
                "formula": str(form.pairs), "least": form.least, "period": form.period,
            },
        })  # fmt: skip
    return {
        "name": entry.name, "formula": str(entry.mask), "target": plan.target.name,
        "dtype": plan.problem.dtype.value, "head_dim": plan.problem.head_dim,
        "head_dim_v": plan.problem.head_dim_v,
        "tile": [plan.tile.q, plan.tile.k], "reasons": list(plan.reasons), "sets": sets,
    }  # fmt: skip
