"""Query heads that share keys, as rows of one tile: for decoding with few queries (PACK_GQA), and
for masks whose tiles are narrower then (INTERLEAVED)."""

from __future__ import annotations

from dataclasses import replace

from maskc.core.bundle import INTERLEAVED, NOT_INTERLEAVED, PACK_GQA, Bundle, Launch, SourceUnit
from maskc.core.problem import BY_DISTANCE, Direction, Feature, TileShape
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.programs import Emitted, Program
from maskc.dispatch.tables import per_head
from maskc.layout.work.work_list import blocks_at_once

_FEW = 8
"""Queries per head, up to which heads that share keys with no other are packed. This mode merges
the parts of a row in the same launch, and computes a score formula for existing rows only."""
_PACKED = ("q", "out", "lse")
_MAX_INTERLEAVED = 64
"""Most heads that are interleaved: the rows of a warpgroup, which stores whole queries."""


def packed(
    bundle: Bundle, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place
) -> tuple[Emitted, Place] | None:
    """Return the program and the tokens of a forward pass with pack_gqa: the query heads of one
    key/value head are rows of one tile. None if heads cannot be packed or packing is disabled. With
    a score formula, a few queries of one head are enough.

    Keys and values are then read once for all of these heads. The heads must share a mask, and have
    equal distances in memory. The decision does not depend on the batch or the number of heads.

    Args:
        unit: of the pass, the first where there is a choice; of documents the chosen one.
        place: checked.
    """
    sizes = place.sizes
    heads = sizes.heads_q // max(1, sizes.heads_kv)
    choice = (unit,) if unit.by_documents else bundle.choice(unit.target, wanted.direction)
    units = [
        unit
        for unit in choice
        if PACK_GQA in dict(unit.modes) and not unit.boxes and _fits(unit, sizes.n_q, heads)
    ]
    if (
        wanted.direction is Direction.backward
        or (unit.form and not unit.by_documents)
        or not units
        or (heads < 2 and sizes.n_q > _FEW)
        or not sizes.n_kv
        or bundle.head_variant
        or Feature.entmax in wanted.features  # which looks at whole rows
        or (units[0].work is None and _whole_only(bundle, wanted, place))
        or (units[0].work is None and wanted.deterministic)  # the batch decides the parts
        or not all(_in_line(place, name) for name in _PACKED)
        or per_head({n: x for n, x in bound.arrays.items() if n in bundle.arrays}, bundle.data)
    ):
        return None
    strides = dict(place.strides)
    for name in _PACKED:
        batch, head, token = strides[name][:3]
        strides[name] = (batch, heads * head, head if sizes.n_q == 1 else token)
    grouped = replace(sizes, heads_q=sizes.heads_kv)
    smallest = min(units, key=lambda unit: unit.tile.q)
    if smallest.work is not None:
        rule = replace(smallest.work, heads=heads, invariant=wanted.deterministic)
        launch, rows = smallest.mode(PACK_GQA).launches[0], sizes.batch * sizes.heads_kv
        smallest = replace(smallest, work=replace(rule, resident=_resident(launch, rows)))
    packed_place = replace(place, sizes=grouped, strides=strides, packed=heads)
    return Program(smallest, PACK_GQA), packed_place


def _resident(launch: Launch, rows: int) -> int:
    """Return how many blocks of packed heads run at once on a multiprocessor.

    A launch may be able to run one block less. Rows then take the number with the fewest places in
    all waves of blocks, as the last wave may leave some of them idle; the larger of equal ones.
    """
    most = launch.resident
    if not launch.roomy_bytes:
        return most
    fewer, all_blocks = (n * -(-rows // blocks_at_once(n)) for n in (most - 1, most))
    return most if all_blocks <= fewer else most - 1


def interleaved(
    bundle: Bundle, units: tuple[SourceUnit, ...], wanted: Pass, bound: Bound, place: Place
) -> tuple[tuple[SourceUnit, ...], Place]:
    """Return the sources that can run a forward pass in the mode INTERLEAVED, and the tokens; no
    source if the heads cannot be rows of one tile.

    They must share a mask, and a power of two of them must share keys.

    Args:
        units: of the pass.
        bound: with arrays that have the shapes of the data, if these stay on the device.
        place: checked.
    """
    sizes = place.sizes
    heads = sizes.heads_q // max(1, sizes.heads_kv)
    if (
        wanted.direction is Direction.backward
        or heads not in (2**power for power in range(1, _MAX_INTERLEAVED.bit_length()))
        or place.accumulates
        or place.shift is not None
        or place.spacing != 1
        or wanted.pages is not None
        or bundle.head_variant
        or bundle.selections
        or wanted.features & NOT_INTERLEAVED
        or any(place.strides[name][1] <= 0 for name in _PACKED)
        or per_head({n: x for n, x in bound.arrays.items() if n in bundle.arrays}, bundle.data)
    ):
        return (), place
    able = tuple(unit for unit in units if INTERLEAVED in dict(unit.modes))
    strides = dict(place.strides)
    for name in _PACKED:
        batch, head, token = strides[name][:3]
        strides[name] = (batch, heads * head, token)
    grouped = replace(sizes, heads_q=sizes.heads_kv)
    return able, replace(place, sizes=grouped, strides=strides, packed=heads)


def interleaved_heads(mode: str, place: Place) -> int:
    """Return the number of heads that a program interleaves in a tile; 0: none."""
    return place.packed if mode == INTERLEAVED else 0


def narrowed(unit: SourceUnit, heads: int) -> SourceUnit:
    """Return the source as one whose tile rows have the queries of a tile with so many interleaved
    heads; 0: none are."""
    if not heads:
        return unit
    return replace(unit, tile=TileShape(unit.tile.q // heads, unit.tile.k))


def _whole_only(bundle: Bundle, wanted: Pass, place: Place) -> bool:
    """Whether kernels without a work list lack a feature that this call needs."""
    scored = bundle.problem.score is not None or bundle.problem.dropout
    return scored or place.accumulates or bool(wanted.features & (BY_DISTANCE | {Feature.nan_safe}))


def _fits(unit: SourceUnit, n_q: int, heads: int) -> bool:
    """Whether all heads fit into a tile; where blocks find their work from their index, whether
    the queries of one fill less than half of it."""
    return n_q * heads <= unit.tile.q if unit.work else 2 * n_q <= unit.tile.q


def _in_line(place: Place, name: str) -> bool:
    """Whether one head's queries are followed by the next one's."""
    _, head, token = place.strides[name][:3]
    return place.sizes.n_q == 1 or head == place.sizes.n_q * token
