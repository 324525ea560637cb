"""Typed inputs of templates: every hole of every kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from maskc.analysis.score_places import Spread
from maskc.core import abi
from maskc.core.dtypes import DType
from maskc.core.problem import Feature, TileShape
from maskc.core.score import MAX_RANK
from maskc.core.target import NARROW, SPARE, Target
from maskc.emit.boxes import BoxText
from maskc.layout.tiles.data_tiles import BlockReading
from maskc.layout.topk import sizes as choosing
from maskc.plan.types import Schedule


class Iteration(Enum):
    """The origin of a kernel's tile lists."""

    csr = "csr"
    """Index lists in memory."""
    range = "range"
    """A closed form: each tile row's live tiles are consecutive, and so are its full ones."""


@dataclass(frozen=True, slots=True)
class PredicateLine:
    """One line of the predicate's C text."""

    text: str
    comment: str = ""
    """The user's term that this line came from, as maskc prints it; never the user's own text."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A mask formula with its constants lifted out; masks that differ only there share it."""

    predicate: tuple[PredicateLine, ...]
    """Lines of one C boolean expression over q, k, n_q, n_kv and `Mask m`."""
    tile_range: tuple[str, str, str, str] | None
    """C expressions over ti, n_q, n_kv, m: first and past-last live tile, same for full ones."""
    column_range: tuple[str, str, str, str] | None
    """The range of rows per tile column, over tj; for backward passes."""
    key_bounds: tuple[tuple[str, str], ...] | None = None
    """C expressions over ti (a query), n_q, n_kv, m: first and past-last key of each interval
    that its keys are the union of; None if they are no union of a few intervals."""
    query_bounds: tuple[tuple[str, str], ...] | None = None
    """The first and past-last query of each interval of a key, over tj."""
    always_kept: tuple[PredicateLine, ...] = ()
    """The pairs that are kept whatever thresholds choose, written like `predicate`."""
    always_kept_key_bounds: tuple[tuple[str, str], ...] = ()
    """`key_bounds` of these pairs; the next field is their `query_bounds`."""
    always_kept_query_bounds: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PartRows:
    """Which tokens a part has in place of all queries, or keys."""

    tokens: str
    """The policy: common/lib/tokens_*.cuh and cpu/lib/tokens_*.h of that name."""
    place: int
    """Offset of further arguments of arrays, after the arguments of the arrays themselves."""
    list: int = 0
    """A list's place among the data arrays."""
    of_queries: bool = False
    """Whether it is of queries."""
    first: int = 0
    """The first of keys that are every `step`-th."""
    step: int = 1


@dataclass(frozen=True, slots=True)
class Lists:
    """A data array that holds lists of chosen blocks."""

    slot: int
    """The array's place among the data arrays."""
    q_block: int
    """Queries per list."""
    block: int
    """Keys per entry."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A run-time selection that intervals ask for, as bits of a table."""

    slot: int
    """The array's place among the data arrays."""
    q_block: int
    """Queries per row of the table."""
    block: int
    """Keys per bit."""
    across: int
    """Keys of a tile whose bit is the same, wherever it begins."""
    down: int
    """Queries of a tile whose bit is the same; of a backward pass those that a warpgroup has."""
    chosen: int
    """Bit i is set where interval i is of pairs that were chosen."""
    others: int
    """Bit i is set where interval i is of pairs that were not."""


@dataclass(frozen=True, slots=True)
class MaskSide:
    """One side of a mask in a pass, see templates/common/lib/mask_sides.cuh."""

    name: str
    """The policy's type."""
    row: str
    columns: str
    """Names of rows and columns for the reader."""
    variable: str
    """The variable of a row, in bounds of its columns."""
    column: str
    count: str
    """The number of intervals of a column, and of all columns, bounded by data."""
    bounds: str
    always_kept: str
    """Fields of `Shape`."""
    data: str
    """The field of `KernelSpec`."""


BY_QUERY = MaskSide(
    "ByQuery", "query", "keys", "ti", "k", "n_kv",
    "key_bounds", "always_kept_key_bounds", "by_query",
)  # fmt: skip
BY_KEY = MaskSide(
    "ByKey", "key", "queries", "tj", "q", "n_q",
    "query_bounds", "always_kept_query_bounds", "by_key",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataEnds:
    """C expressions for an interval of columns, over the row (ti or tj), the first column of a run
    (`run`), n_q, n_kv, m."""

    guard: str
    """Whether it has columns in the run; empty: it has."""
    first: str
    last: str
    """Past the end."""
    column: int
    """Which of the conditions on columns must hold as well; -1: none."""


@dataclass(frozen=True, slots=True)
class DataRows:
    """Rows of a mask that reads data as intervals, see maskc/plan/data_intervals.py."""

    intervals: tuple[DataEnds, ...]
    columns: tuple[str, ...]
    """C conditions over a column (k or q), n_q, n_kv, m."""
    differs: str
    """C condition over a column and the one `before`: whether a run begins; empty: a tile is one
    run."""


@dataclass(frozen=True, slots=True)
class TableText:
    """A table or a parameter, as the template prints it."""

    slot: int
    rank: int
    integer: bool


@dataclass(frozen=True, slots=True)
class EntryText:
    """An entry that gets a share of a gradient."""

    slot: int
    place: str
    """A declaration of C: where the entry lies."""
    share: str
    """A declaration of its share: dlogit times d logit / d entry."""
    spread: Spread
    """Which pairs read the same entry."""


@dataclass(frozen=True, slots=True)
class PairText:
    """The table with an entry for each pair, and the formula given a pair's entry as `pair`."""

    slot: int
    outer: tuple[str, ...]
    """Indices of the dimensions in front of queries and keys, in C."""
    logit: str
    slope_lines: tuple[str, ...]
    slope: str
    added: bool
    """Whether the formula adds the entry to s, and reads the table once."""

    @property
    def axes(self) -> tuple[int, int]:
        """Where the strides of queries and of keys lie in score_step."""
        first = MAX_RANK * self.slot + len(self.outer)
        return first, first + 1


@dataclass(frozen=True, slots=True)
class ScoreText:
    """A score formula in the language of a target."""

    comment: tuple[str, ...]
    tables: tuple[TableText, ...]
    logit: str
    slope_lines: tuple[str, ...]
    """Values that are computed once: x0, x1, ..."""
    slope: str
    entry_lines: tuple[str, ...]
    entries: tuple[EntryText, ...]
    params: str
    """The declaration of the argument block as a parameter."""
    at: str
    """The operator before a member: `.` or `->`."""
    bends: bool
    """Whether d logit / d s is not 1 everywhere."""
    far: bool
    """Whether logits may be far from 0, see core/score.FAR; GPUs bring them nearer."""
    fast: bool
    """Whether functions are tensor cores': these are also given q - k as a number, `q_minus_k`."""
    shift: str
    """The term that is added to s and depends on the distance; empty if there is none."""
    cap: tuple[str, str] | None
    """(height, rate), where the logit is height * tanh(rate * s)."""
    pair: PairText | None
    """The table with an entry for each pair, where there is one."""


@dataclass(frozen=True, slots=True)
class RowPieces:
    """Pieces of 16 bytes that rows have in memory, where kernels compute longer ones."""

    of_qk: int
    """Row pieces of q and k, and of their gradients."""
    of_v: int
    """Row pieces of v and out."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel source."""

    target: Target
    dtype: DType
    head_dim: int
    head_dim_v: int
    tile: TileShape
    iteration: Iteration
    shapes: tuple[Shape, ...]
    n_args: int
    """Constants per mask (`c0`, `c1`, ...)."""
    arg_notes: tuple[str, ...]
    """The formula that each constant holds, for the reader."""
    table_ranks: tuple[int, ...]
    """The rank of each data array of the mask: 1 (vector) or 2 (table)."""
    array_notes: tuple[str, ...]
    """Comments on the contents of each data array."""
    n_lists: int = 0
    """Lists of ids per mask (`l0`, `l1`, ...)."""
    selections: tuple[Lists, ...] = ()
    """Run-time selections among the data arrays."""
    cells: Cells | None = None
    """The selection that intervals depend on (sm_90a), if any."""
    by_query: DataRows | None = None
    """The keys of a query bounded by data, if they are intervals."""
    by_key: DataRows | None = None
    """The queries of a key, likewise."""
    distances: bool = False
    """Whether rows of a tile come as bits by k - q, from memory, instead of testing pairs."""
    document_arrays: tuple[int, ...] = ()
    """Ids of queries and of keys among the data arrays, where tiles of keys begin with documents,
    see maskc/layout/tiles/document_tiles.py. One more array follows these: where documents end."""
    key_run: int = 1
    """Length of aligned runs of keys that the mask treats alike: one test serves a run."""
    query_run: int = 1
    """Likewise for queries."""
    boxes: BoxText | None = None
    """The boxes, if tiles are boxes of a grid: partial tiles are masked by bits per coordinate."""
    gathered: bool = False
    """Whether keys are gathered, so that no pair of a tile is dead (sm_90a)."""
    thresholds: bool = False
    """Whether pairs are kept by their scores and two numbers a row (sm_90a)."""
    has_always_kept: bool = False
    """Whether some are kept whatever their scores."""
    backward: bool = False
    """Whether it is a backward pass alone."""
    chosen: int | None = None
    """The constant that says how many keys are chosen, in a kernel that finds thresholds."""
    schedule: Schedule | None = None
    """The family's own numbers: warps, stages, products, registers."""
    banner: tuple[str, ...] = ()
    """Comment lines at the top: what this is, and the command that writes it again."""
    pieces: RowPieces | None = None
    """The pieces of rows that are shorter in memory than `head_dim`."""
    score: ScoreText | None = None
    """The score formula, where there is one."""
    rows: PartRows | None = None
    """The tokens whose rows there are; None: all, or a residue class of both."""
    dropout: bool = False
    """Whether weights are dropped."""
    page_size: int = 0
    """Keys of a page, for paged keys (sm_90a); 0: keys are contiguous."""
    granule: int = 0
    """Keys of a tile that lie in one page for certain."""
    converts: bool = False
    """Whether k and v are numbers of E4M3 pools, which the kernel converts on load."""
    features: tuple[Feature, ...] = field(default=tuple(Feature))

    @property
    def switches(self) -> tuple[str, ...]:
        """The macros of core/library.SWITCHES that are 1."""
        on = {
            "WITH_SCORE": self.score is not None, "WITH_SHIFTS": self.shifts,
            "WITH_CAP": self.caps, "ADDS_DIAGONALS": self.adds_diagonals,
            "WITH_PAIR_ROWS": self.reads_pair_rows, "ADDS_PAIRS": self.adds_pairs,
            "WITH_PAIR_TILES": self.copies_pair_tiles, "WITH_PAIR_RING": self.rings_pair_tiles,
            "WITH_THRESHOLDS": self.thresholds, "WITH_DROPOUT": self.dropout,
            "WITH_FP8": self.fp8, "WITH_PAGES": self.page_size > 0, "WIDE": self.wide,
            "E4M3_POOLS": self.converts,
            "HAS_ALWAYS_KEPT": self.has_always_kept,
            "FORMULA_BENDS": self.score is not None and self.score.bends,
            "FORMULA_FAR": self.score is not None and self.score.far,
            "GRID": self.boxes is not None,
        }  # fmt: skip
        return tuple(name for name, is_on in on.items() if is_on)

    @property
    def fp8(self) -> bool:
        """Whether q, k and v have one byte an element, and factors (sm_90a)."""
        return self.dtype.itemsize == 1

    @property
    def keys_policy(self) -> str:
        """The loader of keys and values: files keys_* (sm_80)."""
        return "pools" if self.converts else "pages" if self.page_size else "rows"

    @property
    def scaled(self) -> bool:
        """Whether scores have factors that differ by head, in addition to the scale."""
        return self.fp8 or self.converts

    @property
    def tokens(self) -> str:
        """The policy that says which tokens rows are: tokens_* of common/lib and cpu/lib."""
        if self.gathered:
            return "gathered"
        return "even" if self.rows is None else self.rows.tokens

    @property
    def operands(self) -> str:
        """The policy that q, k, v and weights follow: files operands_* and values_* (sm_90a)."""
        return "bytes" if self.fp8 else "halves"

    @property
    def wide(self) -> bool:
        """Whether two warps share rows (sm_80): beyond head dimension 256."""
        return self.target.name == "sm_80" and self.head_dim > NARROW

    @property
    def looks_up(self) -> bool:
        """Whether the score formula reads entries of tables that differ from pair to pair,
        for which registers have to be at hand."""
        score = self.score
        return score is not None and (
            any(entry.spread is not Spread.one for entry in score.entries)
            or any(table.integer and table.rank for table in score.tables)
        )

    @property
    def shifts(self) -> bool:
        """Whether what is added to scores by distance is found by diagonals of a tile (sm_90a)."""
        if self.scaled:  # shifts are relative to a scale without factors
            return False
        schedule = self.schedule
        if schedule is None or not schedule.has_room(schedule.shift_bytes, self.target):
            return False
        return (
            (self.score is None or bool(self.score.shift)) and self.target.name == "sm_90a"
            and self.rows is None
            and self.tile.q >= 64 and self.boxes is None and self.chosen is None
            and not self.thresholds and not self.gathered
        )  # fmt: skip

    @property
    def caps(self) -> bool:
        """Whether the score formula is a tanh of the score (sm_90a)."""
        return (
            self.score is not None and self.score.cap is not None and self.target.name == "sm_90a"
            and self.tile.q >= 64 and not self.gathered
        )  # fmt: skip

    @property
    def reads_pair_rows(self) -> bool:
        """Whether a table with an entry for each pair is read along its rows (sm_90a)."""
        return (
            self.score is not None and self.score.pair is not None and not self.scaled
            and self.target.name == "sm_90a" and self.tile.q >= 64 and self.boxes is None
            and self.rows is None and not self.gathered and self.chosen is None
        )  # fmt: skip

    @property
    def rings_pair_tiles(self) -> bool:
        """Whether a warp of the producer copies tiles of that table to shared memory if it is in
        storage precision."""
        return (
            self.reads_pair_rows and not self.thresholds and not self.by_documents
            and self.schedule is not None and self.schedule.pair_slots > 0
        )  # fmt: skip

    @property
    def copies_pair_tiles(self) -> bool:
        """Whether warps that compute do."""
        schedule = self.schedule
        return (
            self.reads_pair_rows and not self.thresholds and not self.by_documents
            and schedule is not None and schedule.pair_bytes > 0 and schedule.pair_slots == 0
            and schedule.has_room(schedule.pair_bytes, self.target)
        )  # fmt: skip

    @property
    def adds_pairs(self) -> bool:
        """Whether the main launch of a backward pass adds the gradients of that table."""
        pair = None if self.score is None else self.score.pair
        return self.backward and self.reads_pair_rows and pair is not None and pair.added

    @property
    def adds_diagonals(self) -> bool:
        """Whether gradients of its tables are sums along these diagonals."""
        return self.shifts and self.score is not None and bool(self.score.entries)

    @property
    def by_documents(self) -> bool:
        """Whether tiles of keys begin with documents."""
        return bool(self.document_arrays)

    @property
    def intervals(self) -> int:
        """Most intervals of a row's live pairs, not counting documents if tiles begin with them; 0
        if intervals do not help."""
        if self.boxes is not None or any(shape.key_bounds is None for shape in self.shapes):
            return 0
        most = max(len(shape.key_bounds or ()) for shape in self.shapes)
        return max(most, *(len(shape.always_kept_key_bounds) for shape in self.shapes))

    @property
    def always_kept_policy(self) -> str:
        """The policy by which kernels of sm_90a know the pairs that are always kept."""
        if not self.has_always_kept:
            return "nothing"
        return "intervals" if self.intervals else "pairs"

    @property
    def data_sides(self) -> tuple[MaskSide, ...]:
        """Sides on which rows are bounded by data."""
        return tuple(s for s in self.mask_sides if getattr(self, s.data) is not None)

    @property
    def data_early(self) -> bool:
        """Whether that takes registers where rows are queries: columns have conditions of their
        own, or pairs may have to be tested."""
        return self.tests_queries or self.by_query is None or bool(self.by_query.columns)

    @property
    def always_kept_sides(self) -> tuple[MaskSide, ...]:
        """From where these come as intervals."""
        return self.mask_sides if self.always_kept_policy == "intervals" else ()

    @property
    def row_policy(self) -> str:
        """The method that finds a row's live columns in partial tiles: intervals, with bounds from
        formulas or from data, or the formula of all pairs."""
        if self.by_query is not None or self.by_key is not None:
            return "data_rows"
        return "intervals" if self.intervals else "pairs"

    @property
    def mask_policy(self) -> str:
        """The file templates/sm90a/lib/mask_*.cuh that decides in partial tiles (sm_90a)."""
        if self.boxes is not None:
            return "boxes"
        if self.distances:
            return "relative_bits"
        if self.by_documents:
            return "documents"
        return "rows" if self.cells is None else "chosen_blocks"

    @property
    def has_intervals(self) -> bool:
        """Whether rows, or the pairs that a policy adds to its own, come as intervals."""
        return self.intervals > 0 and not (self._sees_rows and self.row_policy == "data_rows")

    @property
    def has_data_rows(self) -> bool:
        """Whether rows come as data bound them."""
        return self._sees_rows and self.row_policy == "data_rows"

    @property
    def has_pairs(self) -> bool:
        """Whether the formula of pairs decides in some tile."""
        return self.mask_policy == "documents" or (self._sees_rows and not self.has_intervals)

    @property
    def _sees_rows(self) -> bool:
        """Whether the mask policy is mask_rows; only sm_90a has others."""
        return self.target.name != "sm_90a" or self.mask_policy == "rows"

    @property
    def mask_sides(self) -> tuple[MaskSide, ...]:
        """Sides from which a pass evaluates the mask: rows are queries, keys, or both in two
        launches."""
        if not self.backward:
            return (BY_QUERY,)
        both = self.target.name != "sm_90a" or getattr(self.schedule, "row_bytes", 0) > 0
        return (BY_KEY, BY_QUERY) if both else (BY_KEY,)

    @property
    def tests_pairs(self) -> bool:
        """Whether partial tiles use the predicate (sm_90a); with documents only tiles of several
        documents do."""
        return self.tests_keys if self.backward else self.tests_queries

    @property
    def tests_queries(self) -> bool:
        """Whether they use it if rows are queries."""
        return self._tests(self.by_query)

    @property
    def tests_keys(self) -> bool:
        """Whether they use it if rows are keys."""
        return self._tests(self.by_key)

    def _tests(self, data: DataRows | None) -> bool:
        if self.distances or self.boxes is not None or (data is not None and not data.differs):
            return False
        return self.by_documents or not self.intervals

    @property
    def filters_pairs(self) -> bool:
        """Whether pairs are kept by their scores in tiles that test pairs (sm_90a)."""
        return self.thresholds and self.tests_pairs

    @property
    def short_formulas(self) -> bool:
        """Whether testing a pair takes few registers."""
        return max(len(shape.predicate) for shape in self.shapes) <= 4

    @property
    def keys_at_once(self) -> int:
        """Keys that a thread tests at a time: fewer where formulas are long, which need the
        registers, and where few tiles are tested."""
        if self.target.name != "sm_90a":
            return 1 if self.target.name == SPARE else 4
        if self.thresholds or self.by_query or (self.by_documents and self.intervals):
            return 4
        return 16 if self.short_formulas else 4 if self.register_pressure else 8

    @property
    def queries_at_once(self) -> int:
        """Likewise for queries."""
        return 2 if self.target.name == "sm_90a" else self.keys_at_once

    @property
    def register_pressure(self) -> bool:
        """Whether pairs are tested by a long formula where registers are few (sm_90a)."""
        return self._registers < 160 and self.tests_pairs and not self.short_formulas

    @property
    def selection_register_pressure(self) -> bool:
        """Whether chosen blocks come with too many intervals for the registers that scores leave
        (sm_90a)."""
        return self._registers <= 160 and self.cells is not None and self.intervals > 2

    @property
    def _registers(self) -> int:
        return 255 if self.schedule is None else self.schedule.row_registers


@dataclass(frozen=True, slots=True, kw_only=True)
class ListsSpec:
    """A source that makes lists on the device, or moves rows there."""

    banner: tuple[str, ...]
    threads: int
    """Per block."""
    blocks: int = 0
    """Blocks that a multiprocessor runs at once: registers beyond what these leave are not used."""
    results: int = abi.MAX_RESULTS
    """The most results that a pass has."""
    switches: tuple[str, ...] = ()
    """The macros of core/library.SWITCHES that are 1."""


@dataclass(frozen=True, slots=True)
class TileText:
    """Bounds of a mask on a tile, as text."""

    lines: tuple[str, ...]
    """Declarations of C."""
    may: str
    must: str
    """Expressions over these."""
    static_part: bool
    """Whether the formulas only contain terms with data: static lists cover the rest."""
    comment: tuple[str, ...] = ()
    """Lines of the formula of a pair."""


class SegmentPlaces(NamedTuple):
    """Search for tiles of keys that begin with documents."""

    of_q: int
    of_k: int
    """The readings of the ids of queries and of keys."""
    stops: int
    """The kernels' slot for where documents end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataListsSpec(ListsSpec):
    """The source that makes the tile lists of a mask that reads data."""

    chunk: int
    """Elements that a block reads where no tile has them."""
    read_tiles: int = abi.READ_TILES
    length_threads: int = abi.LENGTH_THREADS
    length_blocks: int
    """Threads and blocks of the launch that makes lists from lengths alone."""
    most_lengths: int = abi.MAX_LENGTHS
    most_rows: int = abi.MAX_ROWS
    most_lists: int = abi.MAX_LISTS
    readings: tuple[BlockReading, ...]
    n_args: int
    n_lists: int
    shapes: tuple[TileText, ...]
    """The distinct formulas of the heads."""
    has_pairs: bool
    """Whether a formula reads an array with an entry per pair."""
    segments: SegmentPlaces | None = None
    """None if tiles of keys always begin where tile columns do."""

    @property
    def reads_chunks(self) -> bool:
        """Whether a reading only converts an array."""
        return any(reading.side < 0 for reading in self.readings)


@dataclass(frozen=True, slots=True)
class SelectionText:
    """A run-time selection as the device makes it."""

    index: int
    """Among all of the mask."""
    most: int
    """Blocks that are chosen."""
    block: int
    """Keys per block."""
    q_block: int
    """Queries per block."""
    score: str
    """The ranking score, as the template names it."""
    class_rows: int
    class_columns: int
    """Cells whose class is one number, see maskc/layout/topk/sizes.py."""
    ways: int
    """Bit w is set where it has chosen a pair in way w, see maskc/layout/topk/tile_codes.py."""
    allowed: tuple[str, ...]
    """Lines of one C boolean expression over q, k, n_q, n_kv and `Mask m`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectSpec(ListsSpec):
    """The source that makes the selections of a mask and its tile lists on the device."""

    dtype: DType
    head_dim: int
    n_args: int
    """Parameters of the mask."""
    selections: tuple[SelectionText, ...]
    rows: int = choosing.ROWS
