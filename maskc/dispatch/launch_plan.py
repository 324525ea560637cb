"""From checked views to a plan: sizes, strides, tables and the shapes of results."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace

from maskc.core.abi import ATTENTION
from maskc.core.bundle import (
    PACK_GQA,
    SEPARATE_DQ_FLOATS,
    Bundle,
    Grid,
    Launch,
    SourceUnit,
)
from maskc.core.problem import Direction, Features
from maskc.core.sizes import Sizes
from maskc.core.tensors import (
    Array,
    Device,
    Output,
    Shape,
    contiguous,
    order_of,
    out_strides,
    singles,
)
from maskc.dispatch.call import Pass, Place
from maskc.dispatch.packing import interleaved_heads, narrowed
from maskc.dispatch.programs import few_pairs
from maskc.dispatch.tables import Tables
from maskc.dispatch.tensor_maps import Tensor, tensors

_PART_BLOCKS = 256
"""Blocks over which rows of packed heads are split: twice the multiprocessors of a large card. This
bounds the work of merging."""
_PART_TILES = 4
"""The least tiles of keys of such a block."""
_ALIGNED = 32
"""Words of four bytes that what lies behind thresholds is aligned to."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """One pass over some tokens, as numbers: no kernel, no pointer, no device handle."""

    unit: SourceUnit
    mode: str
    features: Features
    """The compiled features."""
    direction: Direction
    device: Device
    sizes: Sizes
    """The numbers of tokens; packed heads count as one."""
    params: Mapping[str, int]
    tables: Tables
    numbers: bytes
    """The argument block with every pointer null."""
    outputs: tuple[Output, ...]
    """out and lse, then a workspace where rows are cut; or dq, dk, dv, the workspace, and gradients
    per head."""
    maps: tuple[Tensor, ...] = ()
    """Tensor maps in the order of the kernel's parameter."""
    idle: bool = False
    """Whether nothing is launched: every result is empty or zero."""
    packed: int = 1
    """Query heads that are the rows of one."""

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        """Return the number of blocks of a launch; 0 if it is left out."""
        if launch.grid in (Grid.parts, Grid.packed_rows):
            tiles, parts = packed_parts(self.unit, self.sizes, self.packed)
            if launch.grid is Grid.parts:
                return tiles * parts
            return 0 if parts == 1 else -(-tiles * self.unit.tile.q // launch.per_block)
        return _blocks(self.unit, self.sizes, self.tables, launch, multiprocessors)

    def shared_bytes(self, launch: Launch) -> int:
        """Return the dynamic shared memory of a block of a launch."""
        work = self.unit.work
        is_roomy = launch.roomy_bytes and work is not None and work.resident < launch.resident
        return launch.roomy_bytes if is_roomy else launch.shared_bytes


def launch_plan(
    bundle: Bundle,
    unit: SourceUnit,
    mode: str,
    wanted: Pass,
    place: Place,
    params: Mapping[str, int],
    tables: Tables,
    outputs: tuple[Output, ...],
    idle: bool = False,
) -> LaunchPlan:
    """Make the launch plan of a call's signature.

    Args:
        unit, mode: the source that runs, and how.
        wanted: the pass.
        place: its tokens, checked.
        params, tables: the mask's, bound to these sizes.
        outputs: of the call; the workspace is found here, except that of a C kernel, which tells.
        idle: whether nothing will be launched.

    Raises:
        NotAddressable: a stride that no tensor map can have.
    """
    sizes, strides = place.sizes, place.strides
    rows = replace(sizes, n_q=sizes.n_q * (place.packed or 1))
    interleaved = interleaved_heads(mode, place)
    block = _block(bundle, narrowed(unit, interleaved), strides, sizes, tables)
    block.n_q = rows.n_q
    block.spacing, block.accumulates = place.spacing, place.accumulates
    if place.shift is not None:
        behind = len(bundle.arrays)
        block.array_row[behind] = place.shift
        block.array_head[behind], block.array_batch[behind] = place.keys
    block.alpha_minus_1 = wanted.alpha_minus_1
    maps: tuple[Tensor, ...] = ()
    if not idle and unit.modes:
        pages = 0 if wanted.pages is None else wanted.pages.in_pool
        rest = (bundle.problem, unit.target, unit.boxes, pages, interleaved)
        maps = tensors(unit.maps, strides, sizes if interleaved else rows, *rest)
    if not idle and wanted.direction is Direction.backward and unit.modes:
        outputs = with_workspace(outputs, _workspace(unit, sizes, tables))
    elif not idle and mode == PACK_GQA and unit.work is None:
        tiles, block.items = packed_parts(unit, sizes, place.packed)
        if block.items > 1:
            outputs = (*outputs, singles(tiles * block.items * unit.tile.q * unit.row_floats))
    elif (
        not idle
        and wanted.direction is Direction.forward
        and (unit.thresholds or (tables.work and tables.work.parts))
    ):
        parts = 0 if tables.work is None else tables.work.parts
        stored = rows.n_q + rows.n_q % 2 if mode == PACK_GQA else unit.tile.q
        floats = threshold_words(unit, sizes) + parts * stored * unit.row_floats
        outputs = (*outputs, singles(floats))
    return LaunchPlan(
        unit, mode, tables.features(wanted.features), wanted.direction, wanted.device, sizes,
        params, tables, bytes(block), outputs, maps, idle, place.packed,
    )  # fmt: skip


def packed_parts(unit: SourceUnit, sizes: Sizes, packed: int) -> tuple[int, int]:
    """Tiles of rows of packed heads, and the blocks that share the keys of each.

    Args:
        unit: a source whose blocks find their work from their index.
        sizes: in which packed heads count as one.
        packed: query heads that are the rows of one.
    """
    tiles = -(-sizes.n_q * packed // unit.tile.q) * sizes.heads_q * sizes.batch
    most = unit.tiles(sizes.n_q, sizes.n_kv)[1] // _PART_TILES
    return tiles, max(1, min(-(-_PART_BLOCKS // tiles), most))


def with_workspace(outputs: tuple[Output, ...], floats: int) -> tuple[Output, ...]:
    """The results of a backward pass with a workspace of so many fp32 entries."""
    return (*outputs[:3], singles(floats), *outputs[4:])


def _padded(unit: SourceUnit, sizes: Sizes, tables: Tables | None = None) -> int:
    """Queries of all padded tile rows, heads and sequences."""
    rows = 0 if tables is None else tables.rows
    rows = rows or unit.tiles(sizes.n_q, sizes.n_kv)[0]
    return rows * unit.tile.q * sizes.heads_q * sizes.batch


def _workspace(unit: SourceUnit, sizes: Sizes, tables: Tables) -> int:
    """Return the fp32 entries of `delta`. There are entries for keys only if items of the work list
    share them, and for further tiles of dq only if columns add to several tiles of a row."""
    parts = 0 if tables.work is None else tables.work.parts
    further = sizes.batch * sizes.heads_q * tables.further * unit.tile.q
    queries = _padded(unit, sizes, tables) + further
    separate_dq = unit.work is not None and unit.work.apart
    row = SEPARATE_DQ_FLOATS if separate_dq else unit.row_floats
    floats = queries * row + parts * unit.tile.k * unit.key_floats
    return threshold_words(unit, sizes) + floats


def threshold_words(unit: SourceUnit, sizes: Sizes) -> int:
    """Return the number of 32-bit words of thresholds at the start of a workspace: two per row,
    padded so that the rest is aligned.

    A backward pass has two more for every row of a tile.
    """
    if not unit.thresholds:
        return 0
    words = -(-2 * sizes.batch * sizes.heads_q * sizes.n_q // _ALIGNED) * _ALIGNED
    backward = Direction.backward in unit.directions
    return words + (2 * _padded(unit, sizes) if backward else 0)


def _blocks(
    unit: SourceUnit, sizes: Sizes, tables: Tables, launch: Launch, multiprocessors: int
) -> int:
    queries, work = _padded(unit, sizes, tables), tables.work
    merged = 0 if work is None else len(work.merges)
    match launch.grid:
        case Grid.queries:
            return -(-queries // launch.per_block)
        case Grid.sides:
            columns = unit.tiles(sizes.n_q, sizes.n_kv)[1] * unit.tile.k
            keys = columns * sizes.heads_kv * sizes.batch
            return -(-max(queries, keys) // launch.per_block)
        case Grid.tile_columns:
            blocks = unit.tiles(sizes.n_q, sizes.n_kv)[1] * (unit.tile.k // launch.per_block)
            return blocks * sizes.heads_kv * sizes.batch
        case Grid.heads:
            return sizes.heads_q
        case Grid.few:
            return queries // unit.tile.q if few_pairs(sizes) else 0
        case Grid.keys:
            return merged * -(-unit.tile.k // launch.per_block)
        case Grid.merges:
            return merged * -(-unit.tile.q // launch.per_block)
        case Grid.items if work is not None:
            return max(1, len(work.items))
        case Grid.stream if work is not None:
            return max(1, min(len(work.items), multiprocessors * launch.resident))
        case Grid.stream_rows:
            return min(queries // unit.tile.q, multiprocessors * launch.resident)
    return queries // unit.tile.q


def launches(sizes: Sizes, direction: Direction) -> bool:
    """Whether there is anything to compute; without keys a forward still writes empty rows."""
    rows = 0 not in (sizes.batch, sizes.heads_q, sizes.n_q)
    return rows and (sizes.n_kv > 0 or direction is Direction.forward)


def outputs_of(
    bundle: Bundle, direction: Direction, views: Mapping[str, Array], sizes: Sizes, ordered: bool
) -> tuple[Output, ...]:
    """out, lse; or dq, dk, dv, the workspace, and the shape of gradients per head."""
    q = views["q"]
    if direction is Direction.forward:
        rows = singles(sizes.batch, sizes.heads_q, sizes.n_q)
        shape = (*rows.shape, bundle.problem.head_dim_v)
        out, kind = _output(shape, q, q, ordered), bundle.problem.dtype.of_out
        if kind is not bundle.problem.dtype:
            out = replace(out, like_q=False, dtype=kind.value)
        return out, rows
    gradients = (_output(tuple(views[name].shape), views[name], q, ordered) for name in "qkv")
    return (*gradients, singles(0), singles(sizes.heads_q))


def _output(shape: Shape, like: Array, q: Array, ordered: bool) -> Output:
    """A result of this shape, in the order of the input it goes with."""
    order = order_of(like.shape, like.strides) if ordered else (0, 1, 2)
    alike = shape == tuple(q.shape) and out_strides(shape, order) == tuple(q.strides)
    return Output(shape, order, alike)


def strides_of(views: Mapping[str, Array], outputs: tuple[Output, ...]) -> dict[str, Shape]:
    """Strides, in elements, of all tensors of a call and of lse."""
    strides = {name: views[name].strides for name in "qkv"}
    if "lse" not in views:
        made = zip(("out",), outputs, strict=False)
    else:
        strides |= {name: views[name].strides for name in ("out", "dout")}
        made = zip(("dq", "dk", "dv"), outputs, strict=False)
    strides |= {name: strides.strides for name, strides in made}
    return strides | {"lse": contiguous(tuple(views["q"].shape[:3]))}


def _block(
    bundle: Bundle, unit: SourceUnit, strides: Mapping[str, Shape], sizes: Sizes, tables: Tables
) -> ctypes.Structure:
    """The argument block with every pointer null."""
    block = ATTENTION()
    for name, steps in strides.items():
        setattr(block, f"{name}_stride", (block.q_stride._type_ * 3)(*steps[:3]))
    for number, slot in enumerate(tables.slots):
        block.array_batch[number] = slot.batch
        block.array_head[number] = slot.head
        block.array_row[number] = slot.row
    block.batch, block.heads_q, block.heads_kv = sizes.batch, sizes.heads_q, sizes.heads_kv
    block.n_q, block.queries, block.n_kv = sizes.n_q, sizes.n_q, sizes.n_kv
    rows, block.tile_cols = unit.tiles(sizes.n_q, sizes.n_kv)
    block.tile_rows = tables.rows or rows
    block.list_batch, block.further = tables.list_batch, tables.further
    if tables.work is not None:
        block.items, block.empty = tables.work.filled, tables.work.empty
        block.shared_items = len(tables.work.merges)
    block.scale = bundle.problem.head_dim**-0.5
    return block
