"""The bundle that compilation gives the runtime: sources, formulas, recipes, all plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from hashlib import sha256

from maskc.core.boxes import Boxes
from maskc.core.cost import EXCLUSIVE_DQ as EXCLUSIVE_DQ
from maskc.core.cost import Cost
from maskc.core.data import DataDecl
from maskc.core.expr import Expr
from maskc.core.forms import GATHER, MOVES, PAGES, WIDE
from maskc.core.gathering import Gather
from maskc.core.library import SWITCHES, digest_of, standing_alone
from maskc.core.listed import Listed
from maskc.core.problem import (
    BY_DISTANCE,
    OF_HEADS,
    Direction,
    Feature,
    Features,
    Problem,
    TileShape,
)
from maskc.core.selection import Selection
from maskc.core.source import SourceLoc


@dataclass(frozen=True)
class TileLoop:
    """The tiles first, first + step, ..., last of every tile row where `guard` holds.

    All formulas are over ti, n_q, n_kv and parameters.
    """

    guard: Expr
    first: Expr
    last: Expr
    """The last tile, inclusive; below `first` there is none."""
    step: int
    full: bool


@dataclass(frozen=True)
class LayoutRecipe:
    """Recipe that turns lengths into tiles, without isl."""

    tile: TileShape
    keep: Expr
    """The mask over q, k, n_q, n_kv, parameters and data arrays."""
    loops: tuple[TileLoop, ...] | None
    """Disjoint and complete closed forms; None if only the numbers decide."""
    fixed: tuple[tuple[str, int], ...] = ()
    """Parameter values for which `loops` hold; with others the numbers decide."""
    square: bool = False
    """Whether `loops` hold only where n_q == n_kv."""


@dataclass(frozen=True)
class IdList:
    """Ids that a kernel reads as bits: bit i stands for the value low + i."""

    low: Expr
    high: Expr
    """The least and the greatest value that is looked up, over lengths and parameters."""
    ranges: tuple[tuple[int, int], ...]
    """The ids, as closed ranges that ascend."""


@dataclass(frozen=True)
class Variant:
    """One of the distinct masks among the heads."""

    keep: Expr
    """The mask over q, k, n_q, n_kv, parameters and data arrays."""
    shape: int
    """The number of the formula of the source that evaluates it."""
    args: tuple[Expr, ...]
    """Values of the formula's constants c0, c1, ..., over n_q, n_kv and parameters."""
    recipes: tuple[LayoutRecipe, ...]
    """Layout recipes, one for each tile shape of the units."""
    axes: tuple[Expr, ...] = ()
    """The mask as relations between coordinates of a grid, see maskc/ir/grid.py, for units with
    boxes; empty if there are none."""
    rests: tuple[Expr | None, ...] = ()
    """For each constant, a bound on |what it is added to| in its comparison, see core/widths; None
    if its value matters beyond that."""
    lists: tuple[IdList, ...] = ()
    """Ids that the formula reads as `ids:0`, `ids:1`, ..."""

    def recipe(self, tile: TileShape) -> LayoutRecipe:
        """The recipe for a tile shape; numeric when none was prepared."""
        for recipe in self.recipes:
            if recipe.tile == tile:
                return recipe
        return LayoutRecipe(tile, self.keep, None)


class Grid(Enum):
    """Rule for the number of blocks of a CUDA launch."""

    rows = "rows"
    """One block per tile row, head and sequence."""
    items = "items"
    """One block per item of the work list."""
    stream = "stream"
    """Persistent: as many blocks as the device runs at once, at most one per item. Blocks fetch
    items from a counter, and share those without tiles."""
    stream_rows = "stream_rows"
    """Persistent: as many blocks as the device runs at once, at most one per tile row, head and
    sequence."""
    queries = "queries"
    """Enough for all tile rows, heads and sequences, `per_block` queries each."""
    sides = "sides"
    """Enough for these, and for all tile columns, key/value heads and sequences, `per_block`
    queries or keys each."""
    keys = "keys"
    """Enough for the tile columns that several items of the work list share, `per_block` keys
    each."""
    merges = "merges"
    """Enough for the tile rows that several items of the work list share, `per_block` queries
    each."""
    tiles = "tiles"
    """One block per tile of an indexer's scores, which has `per_block` keys."""
    lists = "lists"
    """One for each list that the device makes."""
    few = "few"
    """One block per tile row, head and sequence where a call has few pairs; otherwise the launch is
    left out."""
    tile_columns = "tile_columns"
    """Enough for all tile columns, key/value heads and sequences, `per_block` keys each: several
    blocks may share a column."""
    heads = "heads"
    """One block per query head."""
    parts = "parts"
    """Packed heads: so many blocks for each tile of rows as fill the card, which share its keys."""
    packed_rows = "packed_rows"
    """Enough for all rows of packed heads whose keys several blocks share, `per_block` each."""
    results = "results"
    """`resident` blocks per multiprocessor, which share the results to write."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One entry point of a CUDA source, and its launch."""

    entry: str
    grid: Grid
    threads: int
    """Per block."""
    shared_bytes: int = 0
    """Dynamic shared memory per block."""
    per_block: int = 1
    """Queries or keys that a block covers, where the grid counts them."""
    resident: int = 1
    """Blocks that a multiprocessor runs at once, for grids of what the device runs at once."""
    roomy_bytes: int = 0
    """Dynamic shared memory per block where a multiprocessor is to run one block less: it keeps
    that block away. 0: it runs as many as fit."""
    feature: Feature | None = None
    """The feature that makes a call run this launch, instead of another one of the same entry; None
    if every call runs it."""
    overlaps: bool = False
    """Whether its blocks may start while the previous launch of the stream ends (programmatic
    dependent launch). The kernel itself waits for that launch."""


DEFAULT = "default"
"""The default mode. Only sources of EXCLUSIVE_DQ alone lack it."""
PERSISTENT = "persistent"
"""The mode of a forward pass in which persistent blocks go from one tile row to the next."""
DETERMINISTIC = "deterministic"
"""The mode of a backward pass in which tile columns add to dq in a fixed order."""
PACK_GQA = "pack_gqa"
"""The mode in which the query heads of a key/value head are rows of one tile."""
BY_LENGTHS = "by_lengths"
"""The mode of a source of tile lists in which cumulative lengths alone decide them."""
BY_QUERIES = "by_queries"
"""The mode of such a source for lists of one query each, whose keys are one interval of data."""
INTERLEAVED = "interleaved"
"""The mode of persistent blocks in which the rows of a tile are all query heads of a key/value head
for one query, then those for the next: a tile has fewer queries, and they see fewer keys. PACK_GQA
has one head after another, so that all queries of a call fit one tile."""
SEPARATE_DQ = "separate_dq"
"""The mode of a backward pass in which a launch of its own, by tile rows, makes dq and another dk
and dv, so that nothing of dq is added up: seven products for five. It knows no gradients
of OF_HEADS, nor does EXCLUSIVE_DQ."""
SEPARATE_DQ_FLOATS = 4
"""fp32 workspace per query in that mode: lse and delta, and no dq."""
NOT_EXCLUSIVE_DQ = OF_HEADS | {Feature.entmax}
"""Features that the mode EXCLUSIVE_DQ does not have: entmax's means need more shared memory."""
DOCUMENT_ROWS = "document_rows"
"""The mode of a backward pass whose tile rows and tile columns begin with documents, and end with
them: its lists are made by BY_LENGTHS."""
NOT_INTERLEAVED = BY_DISTANCE | {Feature.entmax}
"""Features that the mode INTERLEAVED does not have."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a source: its launches in order, and the macro that selects the code."""

    launches: tuple[Launch, ...]
    macro: str = ""
    """Defined as 1 when the source is compiled for this mode."""

    def launched(self, features: Features) -> tuple[Launch, ...]:
        """The launches of a call with these features, in order."""
        with_feature = {launch.entry for launch in self.launches if launch.feature in features}
        return tuple(
            launch
            for launch in self.launches
            if launch.feature in features
            or (launch.feature is None and launch.entry not in with_feature)
        )

    @property
    def usual_launches(self) -> tuple[Launch, ...]:
        """Launches with softmax, without those that few pairs need, or rows or columns in parts."""
        rare = (Grid.keys, Grid.merges, Grid.few)
        return tuple(launch for launch in self.launched(frozenset()) if launch.grid not in rare)


OF_KEYS = ("k", "v", "dk", "dv")
"""Tensors that have a row for each key; the others have one for each query."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor that copies of whole boxes move: 128 bytes of `rows` tokens at a time."""

    tensor: str
    """Member of `struct Attention`."""
    rows: int
    box: tuple[int, ...] = ()
    """Box of a grid that the tokens of a tile form; empty if they are consecutive."""


@dataclass(frozen=True, slots=True)
class WorkList:
    """Rules for splitting the work of a pass into items and ordering them. The longest come first,
    inside groups of heads with keys and values (forward) or queries (backward) that fit the L2
    cache together."""

    group_tokens: int
    """Tokens per group of heads: groups have as many heads as fit, at least one."""
    most_tiles: int = 0
    """The most tiles of an item; longer rows or columns become several items. 0: never cut."""
    uneven_tiles: int = 0
    """The most tiles of an item of a row or column that is far longer than the others of its list,
    or some powers of two as many, see maskc/layout/work/work_list.py. 0: as of any other."""
    ordered: bool = False
    """Whether it is the list of a deterministic pass: maskc/layout/work/deterministic_order.py."""
    resident: int = 1
    """Blocks that a multiprocessor runs at once."""
    plain: bool = False
    """Whether lists are as a device would make them: nothing is cut, or taken in another order."""
    both_ways: bool = False
    """Whether columns that are under way at a time may wait for each other both ways: the device
    runs as many blocks as maskc/layout/work/deterministic_order.py reckons with."""
    apart: bool = False
    """Whether the list is for the mode SEPARATE_DQ, in which items of one column store separate
    partial sums instead of adding to one sum."""
    few_tiles: int = 0
    """The least tiles of a part of a packed row, see maskc/layout/work/work_list.py. 0: never
    cut."""
    invariant: bool = False
    """Whether the splits of a packed row depend only on its own tiles, which makes results
    batch-invariant."""
    heads_first: bool = False
    """Whether the same head of all sequences runs together: they may share a table of pairs."""
    heads: int = 0
    """Heads whose queries are the rows of a tile in the mode PACK_GQA; 0: in every other mode."""


@dataclass(frozen=True)
class SourceUnit:
    """One kernel source and everything that launching it needs."""

    target: str
    text: str
    """A config header, see core/library, or a source without includes."""
    tile: TileShape
    ranges: bool
    """Whether tile lists are closed forms, so that the kernel reads no list of tiles."""
    directions: tuple[Direction, ...] = (Direction.forward,)
    """The passes that it computes; empty if it builds lists for other sources."""
    modes: tuple[tuple[str, Mode], ...] = ()
    """CUDA: ways to launch by name; a unit has DEFAULT and perhaps more, or EXCLUSIVE_DQ alone."""
    maps: tuple[TensorMap, ...] = ()
    """Tensor maps in the order of the kernel's second parameter; none: it has one parameter."""
    work: WorkList | None = None
    """The work list it reads; None if blocks find their work from their index."""
    row_floats: int = 0
    """fp32 workspace per query: backward, of a padded tile row, head and sequence; forward, of a
    tile row for each of the items that share it."""
    key_floats: int = 0
    """Workspace per key of every tile column that several items of the work list share, in
    floats."""
    distances: bool = False
    """Whether it reads bits by k - q instead of testing pairs."""
    tests: int = 0
    """Operations of a condition on the axes of a grid that partial tiles test for every pair; 0
    where bits of whole rows tell."""
    by_documents: bool = False
    """Whether its tiles of keys begin with documents, see maskc/layout/tiles/document_tiles.py."""
    form: str = ""
    """The form; it distinguishes sources of one target and pass between which calls choose."""
    costs: tuple[Cost, ...] = ()
    """The cost of each mode, where there is a choice of sources."""
    boxes: Boxes | None = None
    """The boxes, where tiles are boxes of a grid; the source then serves only calls that have a
    grid."""
    gather: Gather | None = None
    """Recipe of the lists of single keys."""
    thresholds: bool = False
    """Whether its workspace begins with the thresholds of single chosen keys. A chooser writes
    them, other sources read them."""
    reach: tuple[Expr, ...] = ()
    """A bound on |everything that the source computes| of each formula, see core/widths."""
    library: str = ""
    """In the plan of a generated module, the digest of the static files that its text includes;
    empty if it includes none."""
    origins: tuple[tuple[int, SourceLoc, str], ...] = field(default=(), compare=False)
    """(line of text, the user's position, the term there), for compiler messages."""

    def mode(self, name: str = "default") -> Mode:
        """Return the mode of a name, or the default one if the unit has none of that name."""
        modes = dict(self.modes)
        return modes.get(name) or modes["default"]

    def without(self, name: str) -> SourceUnit:
        """The source as one that never runs in a mode."""
        modes = tuple(mode for mode in self.modes if mode[0] != name)
        return replace(self, modes=modes, costs=tuple(x for x in self.costs if x.mode != name))

    def in_mode(self, name: str) -> SourceUnit:
        """The source with the text that is compiled for a mode.

        Modes share a text, except one whose macro is in SWITCHES.
        """
        macro = self.mode(name).macro if self.modes else ""
        if macro not in SWITCHES:
            return self
        return replace(self, text=standing_alone(self.text, (macro,)))

    def with_one_text(self) -> SourceUnit:
        """The source with the text of all includes, and without modes that have another text."""
        for name, mode in self.modes:
            if mode.macro in SWITCHES:
                return self.without(name).with_one_text()
        return replace(self, text=self.source, origins=())

    @property
    def only_once(self) -> bool:
        """Whether it only serves backward passes that store dq."""
        return [name for name, _ in self.modes] == [EXCLUSIVE_DQ]

    @property
    def gathers(self) -> bool:
        """Whether it reads lists of single keys: then every key of a tile is seen by all rows."""
        return self.form in (GATHER, WIDE)

    def offers(self, features: Features) -> bool:
        """Whether the source and mode support these features. Grids have no linear positions, only
        the source with the largest tiles has entmax, and EXCLUSIVE_DQ has no gradients per head."""
        if self.only_once and features & OF_HEADS:
            return False
        grid = self.boxes is not None and bool(features & BY_DISTANCE)
        return not grid and not (self.form and Feature.entmax in features)

    def serves(self, features: Features, n_q: int, n_kv: int) -> bool:
        """Whether it can run such a call."""
        return self.offers(features) and (self.boxes is None or self.boxes.hold(n_q, n_kv))

    def tiles(self, n_q: int, n_kv: int) -> tuple[int, int]:
        """The numbers of tile rows and of tile columns."""
        if self.boxes is not None:
            return self.boxes.counts(n_q)
        return -(-n_q // self.tile.q), -(-n_kv // self.tile.k)

    @property
    def key(self) -> str:
        """The name of the source, unique in a bundle.

        It consists of the target, the form, and the pass if the source is backward only.
        """
        passes = Direction.backward.value if self.directions == (Direction.backward,) else ""
        return "_".join(filter(None, (self.target, self.form, passes)))

    @property
    def source(self) -> str:
        """Return the text that compilers get, with the static files that it includes."""
        return standing_alone(self.text)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the source without its comments, hexadecimal; it decides the binary."""
        return digest_of(self.source)


N_KV_OF_ALL, N_Q_OF_ALL = "n_kv_of_all", "n_q_of_all"
"""The parameters for the total number of keys, or queries, in masks over a part of them."""


@dataclass(frozen=True)
class PartBundle:
    """A bundle of pieces of a mask that run together."""

    stride: int
    """1: over all tokens; s >= 2: over each residue class modulo s, as a separate sequence."""
    bundle: Bundle
    aligned: bool = False
    """Whether it is so only where the stride divides n_kv - n_q."""
    keys: int | None = None
    """Over all queries and the keys of this residue modulo the stride, as one sequence; its mask
    has N_KV_OF_ALL as a parameter."""
    listed: Listed | None = None
    """The tokens whose rows, packed side by side, it runs over in place of all queries, or keys."""


@dataclass(frozen=True)
class Bundle:
    """A compiled mask before it is built."""

    name: str
    problem: Problem
    variants: tuple[Variant, ...]
    head_variant: tuple[int, ...]
    """The variant of each query head; empty when all share variant 0."""
    arrays: tuple[str, ...]
    """Data arrays in the order of the kernel's `array` slots."""
    data: tuple[DataDecl, ...]
    params: tuple[tuple[str, int], ...]
    """Names and defaults, sorted."""
    units: tuple[SourceUnit, ...]
    """The sources, one or more per target. Passes may share a source or have one each. If a pass
    has several, the source with the largest tiles comes first."""
    unread: tuple[str, ...] = ()
    """Keywords the mask declares but does not need; calls may pass them."""
    parts: tuple[PartBundle, ...] = ()
    """The mask in parts, for the targets that have them; empty if it runs whole."""
    selections: tuple[Selection, ...] = ()
    """The selections that every call makes before a launch, in the order of their dependencies."""
    chooser: Bundle | None = None
    """For single chosen keys: the mask of the candidates, with the source that finds the
    thresholds. The bundle's own mask then keeps all candidates."""
    siblings: tuple[Bundle, ...] = ()
    """Bundles of the same mask for targets that need other formulas, for example because they find
    chosen keys by thresholds. Generated modules contain them too."""
    report: str = field(default="", compare=False)
    """The text that explain() prints."""

    @cached_property
    def digest(self) -> str:
        """The sha256 of the bundle's content, hexadecimal, independent of where the mask was
        written."""
        content: tuple[object, ...] = (
            self.problem, self.variants, self.head_variant, self.data, self.params, self.unread,
            self.selections, [(unit.key, unit.digest) for unit in self.units],
            [
                (part.stride, part.aligned, part.keys, part.listed, part.bundle.digest)
                for part in self.parts
            ],
            self.chooser and self.chooser.digest,
        )  # fmt: skip
        if self.siblings:
            content = (*content, *(sibling.digest for sibling in self.siblings))
        return sha256(repr(content).encode()).hexdigest()

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of all targets that it, or a sibling, has sources for."""
        targets = [unit.target for unit in self.units]
        targets += [name for sibling in self.siblings for name in sibling.targets]
        return tuple(dict.fromkeys(targets))

    def serving(self, target: str) -> Bundle:
        """The sibling that has the sources of a target, or itself."""
        return next((sibling for sibling in self.siblings if target in sibling.targets), self)

    def with_inner(self, change: Callable[[Bundle], Bundle]) -> Bundle:
        """Return the bundle with other inner bundles: parts, chooser, siblings."""
        return replace(
            self,
            parts=tuple(replace(part, bundle=change(part.bundle)) for part in self.parts),
            chooser=None if self.chooser is None else change(self.chooser),
            siblings=tuple(map(change, self.siblings)),
        )

    def unit(self, target: str, direction: Direction = Direction.forward) -> SourceUnit | None:
        """Return the source of one pass, the first if there are several; None if there is none."""
        return next(iter(self.choice(target, direction)), None)

    def list_source(self, target: str) -> SourceUnit | None:
        """The source that makes tile lists on the device, None if there is none."""
        return next(
            (
                u
                for u in self.units
                if u.target == target and not u.directions and u.form not in (MOVES, PAGES)
            ),
            None,
        )

    def moving_source(self, target: str) -> SourceUnit | None:
        """The source that packs the rows of listed tokens, None if there is none."""
        return next((u for u in self.units if u.target == target and u.form == MOVES), None)

    def pages_source(self, target: str) -> SourceUnit | None:
        """The source that makes the arrays of a step over pages, None if there is none."""
        return next((u for u in self.units if u.target == target and u.form == PAGES), None)

    def choice(self, target: str, direction: Direction) -> tuple[SourceUnit, ...]:
        """All sources of one pass."""
        return tuple(u for u in self.units if u.target == target and direction in u.directions)
