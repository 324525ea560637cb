"""Exact costs of a plan at given lengths, as plain values and as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.plan.types import Plan

Costs = dict[str, Any]


def costs(mask: Mask, plan: Plan, n_q: int, n_kv: int, data: dict[str, object]) -> list[Costs]:
    """One head's forward pass for each distinct set of heads.

    Returns:
        Dictionaries with heads (empty: all), n_q, n_kv, live_pairs, pairs, live_share, tile, full,
        partial, empty, executed_pairs, waste, flops and bytes.
    """
    from maskc.viz.picture import numbers_of

    found = numbers_of(
        mask, n_q, n_kv, tile=(plan.tile.q, plan.tile.k), n_heads=plan.problem.n_heads,
        problem=plan.problem, data=data,
    )  # fmt: skip
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
    """The same for people."""
    from maskc.viz import words

    lines = []
    for cost in found:
        head = f"{words.heads(tuple(cost['heads']))}: " if cost["heads"] else ""
        of_all = words.of_all(cost["live_pairs"], cost["pairs"])
        lines += [
            f"live     {head}{words.percent(cost['live_share'])} at {cost['n_q']} x "
            f"{cost['n_kv']}: {of_all} pairs",
            f"tiles    {cost['full']:,} full, {cost['partial']:,} partial, {cost['empty']:,} empty"
            f"; they run {cost['waste']:.2f} x the live pairs",
            f"forward  {words.scaled(cost['flops'], 'FLOP')}, "
            f"{words.scaled(cost['bytes'], 'B')} a head",
        ]
    return lines
