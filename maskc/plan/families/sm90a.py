"""Schedules of the wgmma templates (templates/sm90a): tiles, registers, shared memory.

A block has one producer warpgroup that copies, and two or three consumer warpgroups that compute 64
queries each. Keys and values go through a ring of stages. A forward pass has two modes. In the
default mode a block computes one tile row, which is faster if rows are long. Persistent blocks loop
over tile rows, so that the next row starts while the last products of the previous row run. This is
faster if rows are short.

If rows are so short that most of a tile is outside the mask, a second source with tiles of 64 x 64
is faster. One warpgroup computes, and two or three blocks share a multiprocessor, so that one runs
products while another computes exponentials. A call takes the source with the lower time predicted
from maskc/core/cost.toml. Four blocks at D 64 would leave 104 registers, 12 too few.

Persistent blocks may interleave the query heads of a key/value head: a tile then has fewer queries,
which see fewer tiles of a narrow mask.

In decoding, the queries of all heads of a key/value head fit one tile. With pack_gqa they are the
rows of a tile, and keys and values are read once for all of them. The only row of a list is split
along the keys. A block takes several of these parts, and the last block of a row merges them. On an
H100 (32 / 8 heads, D 128, 16k keys or more) keys and values are read about as fast as a memory copy
runs. Persistent blocks choose the next item too early for this: 2 to 8 % slower.

What was tried, and what each trial gave: benchmarks/trials.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from maskc.core.bundle import INTERLEAVED, PACK_GQA, Grid, Launch, Mode, TensorMap, WorkList
from maskc.core.dtypes import DType
from maskc.core.problem import Feature, Problem, TileShape
from maskc.core.score import pair_read
from maskc.core.target import TARGETS
from maskc.plan.families.family import BIN_BYTES, L2_BYTES, Product, of_width
from maskc.plan.families.limits import Limits
from maskc.plan.types import Schedule

SLAB = 64
"""Columns of a slab: a tile in shared memory lies as slabs of 128-byte rows."""
LONG_KEYS = 2048
"""Keys of a work item of a row far longer than the others, which must not become the last one to
finish. With 132 blocks, Longformer (16k, 12 heads, D 64) has 82 tiles per block. The last block
ends after 164 tiles if the rows of 128 tiles are whole, and after 87 if their items have 32 or 16
tiles. With fewer heads, each block has less work; therefore items have 16 tiles of 128 keys.
Writing and reading a part moves at most a fifth of the bytes of its keys and values."""
FEW_KEYS = 512
"""The least keys of a part of a packed row."""
SUM_KEYS = 1024
"""E4M3: number of keys after which sums leave the tensor cores, which accumulate with 14 bits. For
equal values the error is then 0.6 %; without a limit it is 13 % for 16,384 keys (H100)."""
MERGE_ROWS = 16
"""Queries of a block that merges the parts of a row."""

_ROW_STATE = 64
"""E4M3: bytes of each query for state of its two threads' rows that has no room in registers."""
_CONTROL_BYTES = 1024
"""Barriers, words and places of tile rows, behind the tiles."""


@dataclass(frozen=True, slots=True)
class ForwardSchedule(Schedule):
    """Numbers of the forward template."""

    warpgroups: int = 2
    """The warpgroups that compute."""
    registers: tuple[int, int] = (240, 24)
    """Per thread of a warpgroup that computes, and of the one that copies."""
    slabs: int = 1
    """The slabs of a tile."""
    keep_q: bool = False
    """Whether q stays in registers, as the left operand of the first product."""
    pv_wait: int = 1
    """The point at which a step waits for the second product: after the maxima (1), or after half
    of the exponentials (2)."""
    products: tuple[Product, ...] = ()
    one_q: bool = False
    """Whether shared memory has room for only one tile of q, also in persistent blocks."""
    sum_tiles: int = 0
    """E4M3: tiles after which accumulators are added to a sum in shared memory; 0: never."""
    list_bytes: int = 0
    """Shared memory for entmax's lists, in addition to the tiles of v; 0 without entmax."""

    @property
    def row_registers(self) -> int:
        return self.registers[0]

    @property
    def pair_bytes(self) -> int:
        return 2 * self.tile.q * self.tile.k if self.tile.k % SLAB == 0 else 0

    @property
    def shift_bytes(self) -> int:
        return 4 * self.stages * self.warpgroups * (64 + self.tile.k - 1)


@dataclass(frozen=True, slots=True)
class _Form:
    """Parameters that determine a schedule."""

    warpgroups: int
    """The warpgroups that compute 64 queries each."""
    keys: int
    """The keys of a tile."""
    stages: int
    registers: tuple[int, int]
    """The registers as in ForwardSchedule; together they equal the registers of a block."""
    keep_q: bool = False
    pv_wait: int = 2
    blocks: int = 1
    """The blocks that a multiprocessor runs at once."""
    roomy: bool = False
    """Whether PACK_GQA may run one block less."""


_FORMS = {
    32: _Form(3, 128, 4, (160, 32), keep_q=True, pv_wait=1),
    64: _Form(3, 128, 4, (160, 32), pv_wait=1),
    112: _Form(3, 96, 2, (160, 32), pv_wait=1),
    128: _Form(2, 128, 2, (240, 24), keep_q=True),
    192: _Form(2, 96, 2, (240, 24)),
    256: _Form(2, 64, 2, (240, 24)),
}
"""The forms of each head dimension, if rows of v are as wide as rows of q and k. Widths in between
have the form of the next one."""
_UNEQUAL_FORMS = {(192, 128): _Form(2, 128, 2, (240, 24), pv_wait=1)}
"""The forms of each pair of head dimensions, of q and k, and of v."""

_PAIR_FORM = _Form(2, 128, 4, (240, 24), keep_q=True)
"""The form at head dimension 64 if the score formula reads a table with an entry for each pair.
With three warpgroups, too few registers are left for the entries: a pair bias for each sequence at
2k takes 0.178 ms then (bf16, one H200)."""
_RING_FORMS = (
    _Form(2, 128, 3, (232, 40), keep_q=True),
    _Form(2, 64, 3, (104, 32), blocks=2),
)
"""Likewise at head dimension 32, by default and for short rows. Warps of the producer copy tiles of
the table ahead. Rows of 384 keys with a table that 384 sequences share take 0.154 ms with the
second form (4 heads, one H200). If its q stays in registers, others spill, and the rows take 0.164
ms. They take 0.180 with three blocks of 64 x 64, and 0.187 with the first form. Warps that compute
copy the tiles at other head dimensions: there, this takes less time. Rows of 2048 keys take 0.135
instead of 0.143 ms at 64, and 0.165 instead of 0.185 at 128."""
_MAX_PAIR_SLOTS = 3
_SMALL_FORMS = {
    32: _Form(1, 64, 3, (136, 24), keep_q=True, blocks=3),
    64: _Form(1, 64, 3, (136, 24), keep_q=True, blocks=3, roomy=True),
    96: _Form(1, 64, 2, (232, 24), keep_q=True, blocks=2),
    128: _Form(1, 64, 2, (232, 24), keep_q=True, blocks=2),
}
"""The forms for short rows. At D 64, decoding with three blocks takes up to 18 % more time than
with two, except where only three have room for all rows: items are then so short that their starts
and ends count (benchmarks/results/decoding-64-trial-h200.json)."""
SMALL_HEAD_DIMS = tuple(range(32, 129, 16))
"""The widths that have small tiles: above, two blocks do not fit a multiprocessor."""

_FP8_FORMS = {
    64: _Form(3, 128, 2, (160, 32), pv_wait=1),
    128: _Form(2, 128, 2, (240, 24), keep_q=True, pv_wait=1),
    256: _Form(2, 128, 2, (240, 24)),
}
"""Likewise for E4M3, where rows of v^T have the 128 keys of a tile."""

_POOL_FORMS = {
    32: _Form(2, 128, 3, (224, 56), keep_q=True),
    64: _Form(2, 128, 3, (224, 56), keep_q=True),
    96: _Form(2, 128, 2, (224, 56), keep_q=True),
    128: _Form(2, 128, 2, (224, 56), keep_q=True),
    192: _Form(2, 64, 2, (224, 56)),
    256: _Form(1, 64, 2, (240, 56)),
}
"""Likewise for pools of E4M3. Three warps of the warpgroup that copies convert tiles, and need
registers; bytes of tiles take half as much shared memory again."""
_SMALL_POOL_FORMS = {
    32: _Form(1, 64, 2, (104, 56), blocks=3),
    64: _Form(1, 64, 3, (200, 56), keep_q=True, blocks=2),
    96: _Form(1, 64, 2, (200, 56), keep_q=True, blocks=2),
    128: _Form(1, 64, 2, (200, 56), keep_q=True, blocks=2),
}

_INTERLEAVED = ((64, 64), (256, 256))
"""Head dimensions, of q and k, and of v, with the mode INTERLEAVED. At 64, 64 query heads over 8
take 0.295 ms for windows of 1024 keys at 8k, and 0.325 ms without it. At 256, 4 over 1 take 0.125
and 0.135 ms for windows of 512. At 128 windows take 1 to 7 % more time in this mode, and in small
tiles at 64 they take 11 % more (bf16, benchmarks/results/interleaved-trial-h200.json)."""
_INTERLEAVED_DOCUMENTS = ((64, 64), (128, 128))
"""Head dimensions with the mode for masks of documents, in small tiles too: tiles of keys begin
where the documents do, so narrow rows skip more of them. Documents of 150 to 450 tokens, 32 query
heads over 8, D 128: 0.196 ms in small tiles with the mode, and 0.208 ms without it (bf16,
benchmarks/results/documents-heads-trial-h200.json)."""

_GRID_KEYS = (96, 64)
"""The keys of a tile that is a box of a grid, if default tiles fit the windows less well."""


def forward_schedule(problem: Problem) -> ForwardSchedule:
    """The schedule of a forward pass."""
    if problem.dtype is DType.float8_e4m3fn:
        return _fp8_schedule(problem, _FP8_FORMS[problem.head_dim])
    if problem.converts:
        return _schedule(problem, _POOL_FORMS[problem.head_dim])
    default = _form(problem)
    if has_pairs(problem):
        default = _pair_form(problem, default)
    schedule = _schedule(problem, _asked(problem, default) if problem.names_tile else default)
    return _with_interleaved(schedule, problem, _INTERLEAVED)


def _with_interleaved(
    schedule: ForwardSchedule, problem: Problem, dims: tuple[tuple[int, int], ...]
) -> ForwardSchedule:
    """Return the schedule with the mode INTERLEAVED: at these head dimensions for all masks, at
    _INTERLEAVED_DOCUMENTS for documents."""
    class_of = TARGETS["sm_90a"].class_of
    problem_dims = class_of(problem.head_dim), class_of(problem.head_dim_v)
    if problem.score is not None or problem.dropout or problem.converts:
        return schedule
    interleaved = replace(dict(schedule.modes)["persistent"], macro="INTERLEAVED")
    more = ((INTERLEAVED, interleaved),)
    if problem_dims in dims:
        return replace(schedule, modes=(*schedule.modes, *more))
    if problem_dims in _INTERLEAVED_DOCUMENTS:
        return replace(schedule, document_modes=more)
    return schedule


def has_pairs(problem: Problem) -> bool:
    """Whether the score formula reads a table with an entry for each pair."""
    return problem.score is not None and pair_read(problem.score.logit) is not None


def _form(problem: Problem) -> _Form:
    dims = problem.head_dim, problem.head_dim_v
    return _UNEQUAL_FORMS.get(dims) or of_width(_FORMS, problem.head_dim)


def _pair_form(problem: Problem, default: _Form) -> _Form:
    if problem.head_dim == 32:
        return _RING_FORMS[0]
    if problem.head_dim == 64:
        return _PAIR_FORM
    return _FORMS[128] if problem.head_dim < 128 else default


_ROWS = {2: (240, 24), 3: (160, 32)}
"""The registers, as in ForwardSchedule, for each number of warpgroups that a user may request."""
_SPARE_REGISTERS = 32
"""Registers of a consumer thread in addition to out, scores and weights."""


def limits(problem: Problem) -> Limits:
    """Return the tiles and stages that a user may request."""
    return Limits(
        "sm_90a", tuple(64 * groups for groups in _ROWS), (64, 96, 128), tuple(range(2, 9))
    )


def _asked(problem: Problem, default: _Form) -> _Form:
    """Return the form that a user requests; without a number of stages, as many as the default form
    has room for.

    Raises:
        TileUnsupported: registers or shared memory do not suffice.
    """
    tile = problem.tile or TileShape(64 * default.warpgroups, default.keys)
    groups, dim, most = tile.q // 64, problem.head_dim, TARGETS["sm_90a"].shared_memory
    registers, refused = _ROWS[groups], limits(problem).refused
    needed = problem.head_dim_v // 2 + tile.k // 2 + tile.k // 4 + _SPARE_REGISTERS
    if needed > registers[0]:
        why = f"at head_dim {dim} a thread needs about {needed} registers and has {registers[0]}"
        raise refused(problem, why)
    alike = (groups, tile.k) == (default.warpgroups, default.keys)
    form = replace(
        default, warpgroups=groups, keys=tile.k, registers=registers,
        keep_q=default.keep_q and alike,
        pv_wait=default.pv_wait if alike else 1 if groups > 2 else 2,
        stages=problem.stages or max(2, default.stages * default.keys // tile.k),
    )  # fmt: skip
    while (room := _shared(tile, _slabs(problem), form.stages, 1)) > most:
        if problem.stages or form.stages == 2:
            have = f"{room / 1024:g} KiB of shared memory, of {most / 1024:g} that there are"
            raise refused(problem, f"at head_dim {dim} {form.stages} stages need {have}")
        form = replace(form, stages=form.stages - 1)
    return form


def grid_schedules(problem: Problem) -> tuple[ForwardSchedule, ...]:
    """Return schedules of a forward pass over boxes of a grid: the default one, then one with fewer
    keys."""
    default = _form(problem)
    sizes = (default.keys, *(keys for keys in _GRID_KEYS if keys < default.keys))
    stages = (round(default.stages * default.keys / keys) for keys in sizes)
    forms = (replace(default, keys=n, stages=m) for n, m in zip(sizes, stages, strict=True))
    return tuple(_schedule(problem, form) for form in forms)


def small_schedule(problem: Problem) -> ForwardSchedule:
    """The schedule of a forward pass with small tiles, for one of SMALL_HEAD_DIMS."""
    forms = _SMALL_POOL_FORMS if problem.converts else _SMALL_FORMS
    if has_pairs(problem) and problem.head_dim == 32:
        return _schedule(problem, _RING_FORMS[1])
    return _with_interleaved(_schedule(problem, of_width(forms, problem.head_dim)), problem, ())


def pair_slots(problem: Problem, tile: TileShape, room: int) -> int:
    """Return how many tiles of a table with an entry for each pair fit `room` bytes, if the score
    formula reads one in storage precision."""
    if not has_pairs(problem) or tile.k % SLAB:
        return 0
    if problem.converts or problem.dtype.itemsize != 2:
        return 0
    return max(0, min(_MAX_PAIR_SLOTS, room // (2 * tile.q * tile.k)))


def _schedule(problem: Problem, form: _Form) -> ForwardSchedule:
    dim, keys, warpgroups = problem.head_dim, form.keys, form.warpgroups
    tile, slabs = TileShape(64 * warpgroups, keys), _slabs(problem)
    threads = 128 * (warpgroups + 1)
    fp8 = problem.dtype is DType.float8_e4m3fn
    sums = (4 * dim + _ROW_STATE) * tile.q if fp8 and dim <= 128 else 0
    more = sums + (_pool_bytes(problem, form) if problem.converts else 0)
    room = {q: _shared(tile, slabs, form.stages, q) + more for q in (1, 2)}
    most = TARGETS["sm_90a"].shared_bytes_of(form.blocks)
    values = 2 * SLAB * -(-problem.head_dim_v // SLAB) * form.stages * keys
    lists = min(most - room[1], values) if warpgroups > 1 and not problem.converts else 0
    one_q = room[2] > most
    spare = most - room[1 if one_q else 2] if dim == 32 else 0
    slots = pair_slots(problem, tile, spare)
    pairs = slots * 2 * tile.q * tile.k
    default_mode = _mode(Grid.items, threads, room[1] + pairs, form.blocks, "")
    if lists:
        entmax = replace(
            default_mode.launches[0], grid=Grid.stream, shared_bytes=room[1] + lists,
            feature=Feature.entmax,
        )  # fmt: skip
        default_mode = Mode((*default_mode.launches, entmax))
    pv = Product("multiply_pv", problem.head_dim_v, from_registers=True, b_along_tokens=1)
    if problem.converts:  # fp16 holds all numbers of E4M3, and converting to bf16 takes longer
        pv = replace(pv, elements="f16")
    per_row = room[1 if one_q else 2] + pairs
    persistent = _mode(Grid.stream, threads, per_row, form.blocks, "PERSISTENT")
    modes = [("default", default_mode), ("persistent", persistent)]
    if not problem.dropout:  # it needs the head of each row, and is not used for decoding
        roomy = TARGETS["sm_90a"].shared_bytes_of(form.blocks - 1) if form.roomy else 0
        packed = replace(default_mode.launches[0], roomy_bytes=roomy)
        modes.append((PACK_GQA, Mode((packed,), "PACK_GQA")))
    return ForwardSchedule(
        tile,
        _reason(tile, form, room[1] + pairs),
        warps=4 * (warpgroups + 1),
        stages=form.stages,
        min_blocks=form.blocks,
        shared_bytes=room[1] + pairs,
        pair_slots=slots,
        warpgroups=warpgroups,
        registers=form.registers,
        slabs=slabs.q,
        keep_q=form.keep_q,
        pv_wait=form.pv_wait,
        one_q=one_q,
        products=(
            Product("multiply_qk", keys),
            Product("multiply_kept_qk", keys, from_registers=True),
            pv,
        ),
        modes=tuple(modes),
        maps=(
            TensorMap("q", tile.q),
            TensorMap("k", keys),
            TensorMap("v", keys),
            TensorMap("out", 64),
        ),
        work=WorkList(
            L2_BYTES // (2 * (dim + problem.head_dim_v)),
            uneven_tiles=LONG_KEYS // keys,
            few_tiles=1 << (FEW_KEYS // keys).bit_length() - 1,
            most_tiles=0 if sums or not fp8 else SUM_KEYS // keys,
            resident=form.blocks,
            heads_first=slots > 0,
        ),
        sum_tiles=SUM_KEYS // keys if sums else 0,
        row_floats=problem.head_dim_v
        + 2,  # out, the level of its sums and the sum of its exponentials
        list_bytes=lists,
    )


def _fp8_schedule(problem: Problem, form: _Form) -> ForwardSchedule:
    """Return the schedule of a pass in E4M3: v is transposed first, and features that one byte
    cannot hold are left out.

    Raises:
        TileUnsupported: a user requests another tile.
    """
    if problem.names_tile:
        raise limits(problem).refused(problem, "in E4M3 there is one tile for each head dimension")
    default = _schedule(problem, form)
    dim, keys = problem.head_dim, form.keys
    room = dim * keys + keys * (dim + 4)  # before and after
    turn = Launch("attention_transpose_v", Grid.tile_columns, 256, room, per_block=keys)
    # With one tile of q, persistent blocks store rows from registers, which then spill.
    omitted = (PACK_GQA, "persistent") if default.one_q else (PACK_GQA,)
    modes = tuple(
        (name, replace(mode, launches=(turn, *(x for x in mode.launches if x.feature is None))))
        for name, mode in default.modes
        if name not in omitted
    )
    products = tuple(replace(x, elements="e4m3", b_along_tokens=0) for x in default.products)
    maps = tuple(tensor_map for tensor_map in default.maps if tensor_map.tensor != "v")
    return replace(default, products=products, modes=modes, maps=maps, list_bytes=0)


# ------------------------------------------------------------------ keys chosen by their scores

_CHOOSE_FORMS = {
    32: _Form(2, 128, 4, (240, 24), keep_q=True),
    64: _Form(2, 128, 4, (240, 24), keep_q=True),
    96: _Form(2, 128, 2, (240, 24), keep_q=True),
    128: _Form(2, 128, 2, (240, 24), keep_q=True),
    192: _Form(1, 96, 2, (240, 24)),
    256: _Form(1, 64, 2, (240, 24)),
}


def choose_schedule(problem: Problem) -> ForwardSchedule:
    """The schedule of templates/sm90a/choose.cu.j2, which finds thresholds."""
    dim = problem.head_dim
    form = _CHOOSE_FORMS[dim]
    tile, slabs = TileShape(64 * form.warpgroups, form.keys), -(-dim // SLAB)
    threads = 128 * (form.warpgroups + 1)
    room = 2 * SLAB * slabs * (tile.q + form.stages * tile.k) + BIN_BYTES * tile.q + _CONTROL_BYTES
    launch = Launch("attention_choose", Grid.items, threads, room)
    return ForwardSchedule(
        tile,
        f"thresholds by {form.warpgroups} x 64 rows of {form.keys} keys, "
        f"{room / 1024:g} KiB of shared memory",
        warps=threads // 32,
        stages=form.stages,
        shared_bytes=room,
        warpgroups=form.warpgroups,
        registers=form.registers,
        slabs=slabs,
        keep_q=form.keep_q,
        products=(
            Product("multiply_qk", form.keys),
            Product("multiply_kept_qk", form.keys, from_registers=True),
        ),
        modes=(("default", Mode((launch,))),),
        maps=(TensorMap("q", tile.q), TensorMap("k", form.keys)),
        work=WorkList(L2_BYTES // (2 * dim)),
    )


def _reason(tile: TileShape, form: _Form, shared: int) -> str:
    several = f"{form.warpgroups} consumer warpgroups of 64 rows"
    consumers = several if form.warpgroups > 1 else "a consumer warpgroup"
    return (
        f"tiles of {tile.q} x {tile.k}, {consumers} and a producer, {form.stages} stages, "
        f"{shared / 1024:g} KiB of shared memory"
        + (f", {form.blocks} blocks per multiprocessor" if form.blocks > 1 else "")
    )


def _mode(grid: Grid, threads: int, shared: int, blocks: int, macro: str) -> Mode:
    main = Launch("attention_forward", grid, threads, shared, resident=blocks)
    merge = Launch("attention_merge", Grid.merges, 128, per_block=MERGE_ROWS)
    return Mode((main, merge), macro)


class _Slabs(NamedTuple):
    """Slabs of a tile of each tensor. Out is stored through the tile of q."""

    q: int
    k: int
    v: int


def _slabs(problem: Problem) -> _Slabs:
    of_qk, of_v = -(-problem.head_dim // SLAB), -(-problem.head_dim_v // SLAB)
    if problem.dtype is DType.float8_e4m3fn:  # elements of one byte, except in out
        return _Slabs(of_qk, -(-of_qk // 2), -(-of_qk // 2))
    return _Slabs(of_qk, of_qk, of_v)


def _pool_bytes(problem: Problem, form: _Form) -> int:
    """Bytes of tiles of a pool before they are converted, in slabs of 128 columns."""
    slabs = sum(-(-dim // (2 * SLAB)) for dim in (problem.head_dim, problem.head_dim_v))
    return 2 * SLAB * slabs * form.stages * form.keys


def _shared(tile: TileShape, slabs: _Slabs, stages: int, q_tiles: int) -> int:
    """Bytes of struct Shared: tiles of q, k and v, and the control part."""
    of_keys = stages * tile.k * (slabs.k + slabs.v)
    return 2 * SLAB * (slabs.q * q_tiles * tile.q + of_keys) + _CONTROL_BYTES
