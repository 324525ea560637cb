"""One mask, timed in every tile that its target has, every result checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from maskc import driver
from maskc.core.target import Target
from maskc.verify.bench import keep_and_live, short
from maskc.verify.case import Case
from maskc.verify.judge import judged_forward, make_judge, sample_rows
from maskc.verify.tensors import device_of, make_tensors
from maskc.verify.timing import Timed, take_turns

if TYPE_CHECKING:
    pass

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A tile and a number of stages, or what the planner chooses."""

    tile: tuple[int, int]
    stages: int | None
    planned: bool = False
    """Whether it is the planner's choice, with all the sources that a call chooses between."""

    @property
    def text(self) -> str:
        """The arguments of `compile`."""
        if self.planned:
            return "as planned"
        stages = "" if self.stages is None else f", stages={self.stages}"
        return f"tile=({self.tile[0]}, {self.tile[1]}){stages}"


def bench_tiles(
    case: Case, target: Target, repeats: int = 20,
    progress: Callable[[str], object] = lambda text: None,
    turns: Callable[..., dict[Way, float]] = take_turns,
) -> list[Row]:  # fmt: skip
    """Time a mask's forward pass in all tiles, in turns, and check each.

    Args:
        case: mask, sizes, dtype and data; a tile or stages in it leave only ways that have these.
        target: what the mask is compiled for; it decides where everything runs.
        repeats: rounds of the timing, at least 1.
        progress: told, in a few words, what happens next.
        turns: what times them, see `take_turns`.

    Returns:
        Rows, the fastest right one first: case, tile (queries and keys), stages (None where the
        kernels have none), planned, arguments (of `compile`), ms (of a call), relative (to the
        planner's choice), error (the largest of sampled rows against fp64) and ok.

    Raises:
        MaskcError: the mask, its data or the sizes are refused.
    """
    planned = replace(case, tile=None, stages=None)
    first = planned.compile(target.name)
    tile = first.bundle.units[0].tile
    named = case.head_dim, case.head_dim_v, None, case.dtype, None, case.tile, case.stages
    choices = driver.tile_choices(driver.problem(*named), first.target)
    made = {Way((tile.q, tile.k), None, planned=True): first}
    for way in (Way((x.tile.q, x.tile.k), x.stages) for x in choices if x.tile):
        progress(f"{case.name}: building {way.text}")
        made[way] = replace(case, tile=way.tile, stages=way.stages).warm(target.name)
    tensors, rows = make_tensors(case, device_of(target)), sample_rows(case.n_q, case.n_kv)
    progress(f"{case.name}: counting pairs")
    keep, _ = keep_and_live(case, tensors)
    judge = make_judge(case, tensors, rows, lambda b, h: keep(b, h, rows), False)
    calls = {
        way: partial(attn, *tensors.qkv, return_lse=True, **case.data)
        for way, attn in made.items()
    }  # fmt: skip
    verdicts = {way: judged_forward(judge, rows, call()) for way, call in calls.items()}
    progress(f"{case.name}: timing {len(calls)} tiles")
    times = turns({way: Timed(call) for way, call in calls.items()}, repeats, tensors.device)
    own = next(ms for way, ms in times.items() if way.planned)
    found = [
        {
            "case": case.name, "tile": list(way.tile), "stages": way.stages,
            "planned": way.planned, "arguments": way.text, "ms": short(ms),
            "relative": short(ms / own), "error": short(verdicts[way].error),
            "ok": verdicts[way].ok,
        }
        for way, ms in times.items()
    ]  # fmt: skip
    return sorted(found, key=lambda row: (not row["ok"], row["ms"]))
