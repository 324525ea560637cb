"""Exact costs of a plan at given lengths, as plain values and as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskc.core.errors import DataRange, DataShape

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.plan.types import KernelPlan

Costs = dict[str, Any]


def costs(
    mask: Mask, plan: KernelPlan, n_q: int, n_kv: int, data: dict[str, object]
) -> list[Costs]:
    """One head's forward pass for each distinct set of heads.

    Returns:
        Dictionaries with heads (empty: all), n_q, n_kv, live_pairs, pairs, live_share, tile, full,
        partial, empty, executed_pairs, waste, flops and bytes. Where the mask holds a table that
        fits other lengths only, a single one with n_q, n_kv and the reason under "refused".
    """
    from maskc.viz.picture import numbers_of

    tile = plan.tile.q, plan.tile.k
    try:
        found = numbers_of(
            mask, n_q, n_kv, tile=tile, n_heads=plan.problem.n_heads, problem=plan.problem,
            data=data,
        )  # fmt: skip
    except (DataShape, DataRange) as refusal:
        return [{"n_q": n_q, "n_kv": n_kv, "refused": refusal.finding}]
    return [
        {
            "heads": list(heads), "n_q": n_q, "n_kv": n_kv, "live_pairs": numbers.live,
            "pairs": numbers.pairs, "live_share": numbers.live_share, "tile": list(numbers.tile),
            "full": numbers.full, "partial": numbers.partial, "empty": numbers.empty,
            "executed_pairs": numbers.executed, "waste": numbers.waste, "flops": numbers.flops,
            "bytes": numbers.bytes,
        }
        for heads, numbers in found.items()
    ]  # fmt: skip


def cost_lines(found: list[Costs]) -> list[str]:
    """The costs as lines for people."""
    return [line for cost in found for line in _lines(cost)]


def _lines(cost: Costs) -> tuple[str, ...]:
    from maskc.viz import words

    where = f"{cost['n_q']} x {cost['n_kv']}"
    if "refused" in cost:
        return (f"live     unknown at {where}, give --n: {cost['refused']}",)
    head = f"{words.heads(tuple(cost['heads']))}: " if cost["heads"] else ""
    share, counts = words.percent(cost["live_share"]), [f"{cost[kind]:,}" for kind in _KINDS]
    classes = ", ".join(f"{count} {kind}" for count, kind in zip(counts, _KINDS, strict=True))
    of_all = words.of_all(cost["live_pairs"], cost["pairs"])
    flops, traffic = words.scaled(cost["flops"], "FLOP"), words.scaled(cost["bytes"], "B")
    return (
        f"live     {head}{share} at {where}: {of_all} pairs",
        f"tiles    {classes}; they run {cost['waste']:.2f} x the live pairs",
        f"forward  {flops}, {traffic} a head",
    )


_KINDS = ("full", "partial", "empty")
