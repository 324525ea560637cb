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
        partial, empty, executed_pairs, waste, flops, bytes, and naive_bytes, the scores that
        unfused attention stores. If the mask chooses at run time, and no scores are given,
        live_pairs are all candidates, and kept_at_most says how many are kept (None: unknown).
        Where the mask holds a table that fits other lengths only, a single one with n_q, n_kv and
        the reason under "refused".
    """
    from maskc import driver
    from maskc.plan.dense_comparison import kept_at_most
    from maskc.viz.picture import numbers_of

    tile = plan.tile.q, plan.tile.k
    try:
        numbers_by_set = numbers_of(
            mask, n_q, n_kv, tile=tile, n_heads=plan.problem.n_heads, problem=plan.problem,
            data=data,
        )  # fmt: skip
    except (DataShape, DataRange) as refusal:
        return [{"n_q": n_q, "n_kv": n_kv, "refused": refusal.finding}]
    heads = driver.analyse_heads(mask, plan.problem.n_heads)
    choosing = "scores" not in data and any(ir.selections for ir in heads.masks)

    def kept(heads_of_set: tuple[int, ...]) -> dict[str, int | None]:
        if not choosing:
            return {}
        which = heads.of_head[heads_of_set[0]] if heads_of_set and heads.of_head else 0
        return {"kept_at_most": kept_at_most(heads.masks[which], n_q, n_kv)}

    size = plan.problem.dtype.itemsize
    return [
        {
            "heads": list(heads_of_set), "n_q": n_q, "n_kv": n_kv, "live_pairs": numbers.live,
            "pairs": numbers.pairs, "live_share": numbers.live_share, "tile": list(numbers.tile),
            "full": numbers.full, "partial": numbers.partial, "empty": numbers.empty,
            "executed_pairs": numbers.executed, "waste": numbers.waste, "flops": numbers.flops,
            "bytes": numbers.bytes, "naive_bytes": size * numbers.pairs, **kept(heads_of_set),
        }
        for heads_of_set, numbers in numbers_by_set.items()
    ]  # fmt: skip


def cost_lines(priced: list[Costs]) -> list[str]:
    """The costs as lines for people."""
    return [line for cost in priced for line in _lines(cost)]


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
    most = cost.get("kept_at_most")
    live, pairs = cost["live_pairs"], cost["pairs"]
    lines = [f"live     {head}{share} at {where}: {of_all} pairs"]
    if "kept_at_most" in cost:
        lines[0] += ", all that may be chosen"
    if most is not None and most < live:
        share = words.percent(most / pairs)
        lines.append(f"kept     at most {share}: {words.of_all(most, pairs)} pairs")
        live = most
    naive = words.scaled(cost["naive_bytes"], "B")
    least = "at least " if "kept_at_most" in cost else ""
    fewer = f"all pairs are {least}{pairs / live:.3g} x as many; " if live else ""
    return (
        *lines,
        f"tiles    {classes}; they run {cost['waste']:.2f} x the live pairs",
        f"forward  {flops}, {traffic} a head",
        f"unmasked {fewer}unfused attention stores {naive} of scores per head",
    )


_KINDS = ("full", "partial", "empty")
