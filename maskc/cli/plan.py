"""maskc plan: how ranks share a sequence, their messages, and predicted times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.options import LENGTH_TYPE, KernelOptions, cost_options, json_option, mask_source
from maskc.cli.output import echo, one_by_one, write_json

if TYPE_CHECKING:
    from maskc.distributed.planning import Plan


@click.command(short_help="Plan how several ranks share one sequence.")
@mask_source
@click.option(
    "--n", type=LENGTH_TYPE, required=True, metavar="N",
    help="Tokens of the sequence: 131072, 128k (k = 1024), 1M.",
)  # fmt: skip
@click.option(
    "--ranks", type=click.IntRange(1), required=True, metavar="P",
    help="Number of ranks (GPUs) that share the sequence.",
)  # fmt: skip
@click.option(
    "--network", metavar="NET",
    help="nvlink, 400Gb/s, 800Gb/s, or another speed per rank; NVLink up to eight ranks.",
)  # fmt: skip
@click.option(
    "--layout", default="auto", show_default=True, metavar="L",
    help="contiguous, zigzag, striped, balanced, or auto.",
)  # fmt: skip
@click.option("--kv-heads", type=click.IntRange(1), metavar="H", help="Key/value heads.")
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, metavar="B", help="Sequences."
)
@click.option(
    "--data", "files", multiple=True, metavar="NAME=FILE",
    help="Data of the mask, for all tokens. Without it the plan holds for any data.",
)  # fmt: skip
@click.option(
    "--together",
    is_flag=True,
    help="One layout for all masks of the file, for models with several kinds of layers.",
)
@cost_options
@json_option
def plan(
    entries: list[MaskEntry], n: int, ranks: int, network: str | None, layout: str,
    kv_heads: int | None, batch: int, files: tuple[str, ...], together: bool, asked: KernelOptions,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan how ranks share a sequence of --n tokens under a mask.

    Prints the tokens of each rank, the keys that are sent, the balance of tiles, and the predicted
    times of both passes, compared with all-gather and a ring.
    """
    from maskc import distributed
    from maskc.cli.given import read_all

    given = read_all(files, entries)
    heads_q = asked.heads or 32
    heads_kv = kv_heads or max(h for h in (1, 2, 4, 8) if heads_q % h == 0)
    sizes = heads_q, heads_kv, asked.head_dim

    def planned(group: list[MaskEntry]) -> Plan:
        named = {entry.name: entry.mask for entry in group}
        params = {key: value for entry in group for key, value in entry.params.items()}
        return distributed.plan(
            named, n, ranks, heads=sizes, dtype=asked.dtype, layout=layout, network=network,
            batch=batch, data={**given, **params},
        )  # fmt: skip

    reports = []
    for group in [entries] if together else [[entry] for entry in one_by_one(entries, "planning")]:
        made = planned(group)
        if as_json:
            reports.append(_plain(made))
        else:
            echo(made.explain())
    if as_json:
        write_json({"plans": reports})


def _plain(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    layers = []
    for name, layer in plan.layers.items():
        forward, backward = plan.times(name)
        travels, _ = plan.traffic(layer)
        layers.append({
            "name": name, "formula": str(layer.mask), "granule": layer.reach.granule,
            "hull_of": list(layer.reach.hull), "imbalance": plan.imbalance(name),
            "received_bytes": travels.received.tolist(),
            "sent_bytes": travels.sent.tolist(),
            "moved_queries": [[visit.start, visit.stop] for visit in layer.visits],
            "forward_ms": forward.total, "backward_ms": backward.total,
            "other_forward_ms": plan.others(name),
        })  # fmt: skip
    return {
        "n": plan.n, "ranks": plan.ranks, "layout": plan.layout.name, "block": plan.block,
        "tokens": plan.layout.tokens.tolist(), "network": plan.network.name,
        "tried_ms": dict(plan.tried), "layers": layers, "digest": plan.digest,
    }  # fmt: skip
