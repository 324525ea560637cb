"""What a call that chooses is made of: choosing and attending; and attending to blocks that are
known before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.chosen import ChosenPairs
from benchmarks.rivals import named
from benchmarks.selection import one_selection
from maskc.core.target import Target
from maskc.dsl.data_atoms import block_table
from maskc.lab.rivals import Contender
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, host

_CALLS = 5
_CHOOSES = ("select_", "gather_", "make_lists", "lists_of_lengths", "attention_choose")
"""How names of kernels begin that choose, or make lists of what is chosen."""
_ATTENDS = "attention_"


def static_contender(
    case: Case, tensors: CaseTensors, pairs: ChosenPairs, target: Target
) -> Contender | None:
    """maskc with a mask that has the chosen blocks in a table, laid out before it is timed; None
    for masks that are no such table.

    On a GPU its calls are replayed as a CUDA graph: the host would look at the table every time.
    """
    one = one_selection(case)
    if one is None or case.batch > 1 or one.node.block == 1:
        return None
    if one.node.block != one.node.q_block:
        return None
    table = np.repeat(host(pairs.table(0)) > 0, case.heads // one.owners, axis=0)
    mask = block_table("chosen", one.node.block) & one.node.of
    mask = mask if one.static is None else mask | one.static
    attn = replace(case, mask=mask).compile(target.name)
    attn.warmup()
    call = partial(attn, *tensors.qkv, return_lse=True, chosen=table)
    call()
    names = named(attn.last_sources)
    forward = _captured(call) if tensors.device == "cuda" else call
    return Contender("maskc", forward, None, variant="static", sources=lambda: names)


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph; it was made before."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def measured(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds that the kernels of a call on a GPU run by phase, by PyTorch's profiler; empty
    where it sees none of maskc's."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(_CALLS):
            call()
        torch.cuda.synchronize()
    return by_phase(times_of(seen), _CALLS)


def times_of(seen: Any) -> list[tuple[str, float]]:
    """(name, microseconds on the device) of everything a profile saw."""
    return [(each.key, each.self_device_time_total) for each in seen.key_averages()]


def by_phase(times: Iterable[tuple[str, float]], calls: int) -> dict[str, float]:
    """Milliseconds of a call by phase, `selection` and `attention`.

    Args:
        times: names of kernels, and microseconds of all calls together.
    """
    found: dict[str, float] = {}
    for name, us in times:
        phase = "selection" if name.startswith(_CHOOSES) else "attention"
        if name.startswith((*_CHOOSES, _ATTENDS)):
            found[phase] = found.get(phase, 0.0) + us / calls / 1e3
    return found
