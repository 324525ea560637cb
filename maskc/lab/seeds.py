"""Masks that a block-sparse kernel must win on, with the speed that each must reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from maskc.dsl.mask import Mask
    from maskc.lab.bench import Row

_BLOCK = 128


@dataclass(frozen=True)
class Seed:
    """A mask, the lengths at which it is timed, and what it must reach there."""

    table: str
    name: str
    make: Callable[[], Mask]
    lengths: tuple[int, ...]
    least: float
    """The least speed over dense attention at each of the lengths."""
    data: Callable[[int], dict[str, object]] = lambda n: {}
    """The arrays that it reads at a length."""


def seeds() -> tuple[Seed, ...]:
    """All of them, in tables."""
    import maskc as mc

    def block_diagonal() -> Mask:
        return mc.block_diagonal(64)

    def streaming() -> Mask:
        return mc.causal() & (mc.sinks(16) | mc.window.hf(64))

    long, short = (128 << 10,), (128, 256, 512, 1024, 2048, 4096)
    made: list[Seed] = [
        Seed("long", "window", lambda: mc.causal() & mc.window.hf(1024), long, 5.0),
        Seed("long", "bigbird", lambda: mc.patterns.bigbird_itc(), long, 5.0),
        Seed("long", "dilated", lambda: mc.dilated(511, stride=4), long, 5.0),
        Seed("short", "block_diagonal", block_diagonal, short, 1.0),
        Seed("short", "streaming", streaming, short, 1.0),
    ]
    for share, n, least in ((0.5, 4096, 1.5), (0.25, 8192, 2.5), (0.1, 16384, 5.0)):
        made.append(Seed(
            "shares", f"{share:.0%} live", lambda: mc.block_table("table", _BLOCK), (n,), least,
            partial(_table, share),
        ))  # fmt: skip
    return tuple(made)


def _table(share: float, n: int) -> dict[str, object]:
    return {"table": table_of(n, share)}


def table_of(n: int, share: float) -> np.ndarray:
    """bool [blocks, blocks]: each block with probability `share`, and the diagonal; always the
    same."""
    import numpy as np

    blocks = -(-n // _BLOCK)
    drawn = np.random.default_rng(blocks).random((blocks, blocks)) < share
    return drawn | np.eye(blocks, dtype=bool)


TITLES = {
    "long": "Speed over dense attention at 128k tokens: at least 5 x",
    "short": "Short sequences, 128 to 4,096 tokens: at least as fast as dense attention",
    "shares": "Random blocks of 128, by the share that is live: 1.5 x, 2.5 x and 5 x over dense",
}


def judgements(seed: Seed, rows: Sequence[Row], cap: int | None) -> list[dict[str, Any]]:
    """A row for each length and direction: the speed over dense attention, and whether it is
    met; None if it was not measured at that length."""
    judged = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        for n in seed.lengths:
            at = n if cap is None else min(n, cap)
            gain = _gain(rows, direction, at)
            known = gain is not None and at == n
            judged.append({
                "table": seed.table, "mask": seed.name, "direction": direction, "n": n,
                "measured_at": at, "speed_over_dense": gain, "least": seed.least,
                "met": gain >= seed.least if gain is not None and known else None,
            })  # fmt: skip
    return list({(e["direction"], e["measured_at"]): e for e in reversed(judged)}.values())[::-1]


def _gain(rows: Sequence[Row], direction: str, n: int) -> float | None:
    from maskc.lab.bench import short

    at = {
        row["impl"]: row["ms"]
        for row in rows if row["n_q"] == n and row["direction"] == direction and row["ok"]
    }  # fmt: skip
    return short(at["dense"] / at["maskc"]) if {"dense", "maskc"} <= set(at) else None
