"""Random masks of the whole language, each drawn together with its meaning in NumPy.

Nothing of maskc.reference takes part: a mask and its meaning are written down side by side, and
the meaning sees one head of one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

import maskc as mc

with suppress(ImportError):  # FORMULAS need none
    import torch

WORD = 1 << 64
FORMULAS = (
    "causal", "window", "dilated", "offsets", "strided", "first_keys", "blocks", "formula",
)  # fmt: skip
"""Methods of `Drawer` whose masks read neither data nor PyTorch."""


@dataclass(frozen=True)
class Place:
    """One head of one sequence at given lengths, with what a call gave."""

    n_q: int
    n_kv: int
    head: int
    sequence: int
    data: Mapping[str, tuple[np.ndarray, ...]]
    params: Mapping[str, int]

    @property
    def q(self) -> np.ndarray:
        return np.arange(self.n_q)[:, None]

    @property
    def k(self) -> np.ndarray:
        return np.arange(self.n_kv)[None, :]

    def position(self, start: bool) -> np.ndarray:
        """The places of the queries among the keys."""
        return self.q + (0 if start else self.n_kv - self.n_q)

    def array(self, name: str, part: int = 0) -> np.ndarray:
        """A vector of this sequence."""
        found = self.data[name][part]
        return found if found.ndim == 1 else found[self.sequence if len(found) > 1 else 0]


Keep = Callable[[Place], Any]
"""The meaning of a mask: booleans that broadcast to [n_q, n_kv]."""


class Given(NamedTuple):
    """The data of one name in one call."""

    call: object
    """Data of the call."""
    meaning: tuple[np.ndarray, ...]
    """Inputs of `Keep`."""
    sequences: int | None = None
    """Number of sequences with data of their own; None if all share them."""


MakeData = Callable[[np.random.Generator, int, int, int], Given]
"""Makes data for (queries, keys, sequences)."""


@dataclass(frozen=True)
class Drawn:
    """A mask, its meaning, and what a call of it gives."""

    mask: mc.Mask
    keep: Keep
    data: Mapping[str, MakeData] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    """Defaults by name."""
    heads: int | None = None
    """Heads, where these differ."""
    fixed: tuple[int, int] | None = None
    """The only lengths that it holds for."""
    captured: bool = False
    """Whether its text leaves arrays out."""
    fewer_queries: bool = False
    """Whether it needs at least as many keys as queries."""

    def shows(self, place: Place) -> np.ndarray:
        """bool [n_q, n_kv]."""
        return np.broadcast_to(np.asarray(self.keep(place), bool), (place.n_q, place.n_kv))


def made_of(*parts: Drawn) -> dict[str, Any]:
    """Fields that a mask inherits from its parts: the fields of `Drawn` after `keep`."""
    return {
        "data": {name: make for part in parts for name, make in part.data.items()},
        "params": {name: x for part in parts for name, x in part.params.items()},
        "heads": next((part.heads for part in parts if part.heads), None),
        "fixed": next((part.fixed for part in parts if part.fixed), None),
        "captured": any(part.captured for part in parts),
        "fewer_queries": any(part.fewer_queries for part in parts),
    }


OPERATORS: dict[str, tuple[Callable[..., mc.Mask], Callable[..., np.ndarray]]] = {
    "&": (lambda a, b: a & b, np.logical_and),
    "|": (lambda a, b: a | b, np.logical_or),
    "-": (lambda a, b: a - b, lambda a, b: a & ~b),
    "^": (lambda a, b: a ^ b, np.logical_xor),
}


def joined(operator: str, one: Drawn, other: Drawn) -> Drawn:
    """Two masks under one of the operators of sets."""
    of_masks, of_pairs = OPERATORS[operator]
    return Drawn(
        of_masks(one.mask, other.mask),
        lambda place: of_pairs(one.shows(place), other.shows(place)),
        **made_of(one, other),
    )


def complement(part: Drawn) -> Drawn:
    """All other pairs."""
    return Drawn(~part.mask, lambda place: ~part.shows(place), **made_of(part))


def tiles(pairs: np.ndarray, block: tuple[int, ...]) -> np.ndarray:
    """uint8: 0 where no pair of a tile is kept, 2 where all are, 1 elsewhere."""
    counts = [np.arange(0, n, size) for n, size in zip(pairs.shape, block, strict=True)]
    if not pairs.size:
        return np.zeros(tuple(map(len, counts)), np.uint8)
    both = [
        reduced.reduceat(reduced.reduceat(pairs, counts[0], axis=0), counts[1], axis=1)
        for reduced in (np.logical_or, np.logical_and)
    ]
    return both[0].astype(np.uint8) + both[1]


def minimum(*values: Any) -> Any:
    return reduce(np.minimum, values)


def maximum(*values: Any) -> Any:
    return reduce(np.maximum, values)


def tokens(length: int, of: int, start: bool) -> np.ndarray:
    """The tokens that queries, or keys, are: the first ones of all, or the last ones."""
    return np.arange(length) + (0 if start else of - length)


def split_mix(x: int) -> int:
    """The output of one step of SplitMix64."""
    z = (x + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def drawn_columns(seed: int, row: int, columns: int, per_row: int) -> list[int]:
    """The block columns that `random_blocks` draws for a block row."""
    inner = split_mix((split_mix(seed % WORD) + row) % WORD)
    order = sorted(range(columns), key=lambda j: (split_mix((inner + j) % WORD), j))
    return order[:per_row]


Number = tuple[Any, Callable[[Place], int], dict[str, int]]
"""Arguments of a combinator, its value at a pair, and its parameters."""


class Drawer:
    """Draws masks for a number of heads, and at given lengths only where `fixed` says so.

    `scale` makes windows and blocks larger, for lengths of several tiles. `kinds` names the methods
    that draw single combinators; by default all do.
    """

    def __init__(
        self, rng: np.random.Generator, heads: int, fixed: tuple[int, int] | None = None,
        scale: int = 1, kinds: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.rng, self.heads, self.fixed, self.scale = rng, heads, fixed, scale
        self._names = 0
        self._shared: list[Drawn] = []
        """Masks that read data: one name may stand in a mask twice."""
        self._kinds: list[Callable[[], Drawn]] = [
            self.full, self.nothing, self.causal, self.window, self.window, self.convention,
            self.dilated, self.offsets, self.strided, self.first_keys, self.global_tokens,
            self.blocks, self.random_blocks, self.formula, self.formula, self.torch_formula,
            self.documents, self.flags, self.global_flags, self.intervals, self.tree, self.table,
            self.at_positions, self.captured_formula,
        ]  # fmt: skip
        if heads > 1:
            self._kinds += [self.heads_by_name, self.formula_of_head]
        if fixed is not None:
            self._kinds += [self.matrix, self.written_table]
            if fixed[0] > fixed[1]:
                self._kinds.remove(self.global_flags)
        self._kinds = [getattr(self, name) for name in kinds] or self._kinds

    # -------------------------------------------------------------- draws

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def size(self, low: int, high: int) -> int:
        """An integer that grows with the lengths."""
        return self.integer(low, high * self.scale)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}_"

    def number(self, low: int, high: int) -> Number:
        """A literal, a parameter or a formula in the lengths."""
        kind, n = self.rng.random(), self.size(low, high)
        if kind < 0.7:
            return n, lambda place: n, {}
        if kind < 0.85:
            name = self.name("par")
            return mc.param(name, n), lambda place: place.params.get(name, n), {name: n}
        part = self.integer(2, 5)
        if kind < 0.93:
            return mc.n_kv // part + low, lambda place: place.n_kv // part + low, {}
        return mc.n_q // part + low, lambda place: place.n_q // part + low, {}

    def align(self) -> tuple[bool, dict[str, str]]:
        """Whether positions count from the start, and the keyword that says so."""
        start = self.chance(0.25)
        return start, {"align": "start"} if start else {}

    # -------------------------------------------------------------- masks of masks

    def draw(self, depth: int) -> Drawn:
        """A mask of at most so many levels of operators."""
        kind = self.rng.random()
        if depth <= 0 or kind < 0.2:
            return self.leaf()
        if kind < 0.3:
            return complement(self.draw(depth - 1))
        if kind < 0.36 and self.heads > 1:
            parts = [self.draw(depth - 2) for _ in range(self.heads)]
            if self.chance(0.4):
                parts[-1] = parts[0]
            common = made_of(*parts)
            if any(part.mask != parts[0].mask for part in parts):  # equal masks are one
                common["heads"] = self.heads
            mask = mc.per_head([part.mask for part in parts])
            return Drawn(mask, lambda place: parts[place.head].shows(place), **common)
        return joined(self.one_of("&&||-^"), self.draw(depth - 1), self.draw(depth - 1))

    def leaf(self) -> Drawn:
        """A single combinator; a mask that reads data may be one that was drawn before."""
        if self._shared and self.chance(0.1):
            return self.one_of(self._shared)
        found: Drawn = self.one_of(self._kinds)()
        if found.data:
            self._shared.append(found)
        return found

    # -------------------------------------------------------------- formulas of tokens

    def full(self) -> Drawn:
        return Drawn(mc.full(), lambda place: True)

    def nothing(self) -> Drawn:
        return Drawn(~mc.full(), lambda place: False)

    def causal(self) -> Drawn:
        start, align = self.align()
        return Drawn(mc.causal(**align), lambda place: place.k <= place.position(start))

    def window(self) -> Drawn:
        start, align = self.align()
        back, back_at, of_back = self.number(0, 40)
        ahead, ahead_at, of_ahead = self.number(0, 20)
        if self.chance(0.12):
            back, of_back = None, {}
        if self.chance(0.12):
            ahead, of_ahead = None, {}

        def keep(place: Place) -> Any:
            distance = place.position(start) - place.k
            near = True if back is None else distance <= back_at(place)
            return near & (True if ahead is None else -distance <= ahead_at(place))

        mask = mc.window(back, ahead, **align)
        return Drawn(mask, keep, params=of_back | of_ahead)

    def convention(self) -> Drawn:
        """A window as other libraries count it."""
        w, right = self.integer(1, 30), self.integer(0, 9)
        mask, back, ahead = self.one_of([
            (mc.window.hf(w), w - 1, 0), (mc.window.hf_bidirectional(w), w, w),
            (mc.window.longformer(w), w // 2, w // 2), (mc.window.gym(w), w, 0),
            (mc.window.jax(w, right), w, right), (mc.window.flash(w, right), w, right),
            (mc.window.flash(w, -1), w, WORD),
        ])  # fmt: skip

        def keep(place: Place) -> Any:
            distance = place.position(False) - place.k
            return (distance <= back) & (distance >= -ahead)

        return Drawn(mask, keep)

    def dilated(self) -> Drawn:
        start, align = self.align()
        stride, ahead, (back, back_at, params) = (
            self.integer(1, 9), self.integer(0, 4), self.number(0, 12)
        )  # fmt: skip

        def keep(place: Place) -> Any:
            distance = place.position(start) - place.k
            near = (distance <= back_at(place) * stride) & (-distance <= ahead * stride)
            return near & (distance % stride == 0)

        return Drawn(mc.dilated(back, ahead, stride=stride, **align), keep, params=params)

    def offsets(self) -> Drawn:
        start, align = self.align()
        ids = self.rng.integers(-30, 60 * self.scale, self.integer(0, 6)).tolist()
        return Drawn(
            mc.offsets(ids, **align), lambda place: np.isin(place.position(start) - place.k, ids)
        )

    def strided(self) -> Drawn:
        stride = self.size(1, 20)
        phase = self.integer(0, stride - 1)
        return Drawn(mc.strided(stride, phase), lambda place: place.k % stride == phase)

    def first_keys(self) -> Drawn:
        n, at, params = self.number(0, 50)
        mask = self.one_of([mc.sinks, mc.prefix])(n)
        return Drawn(mask, lambda place: place.k < at(place), params=params)

    def global_tokens(self) -> Drawn:
        start, align = self.align()
        side = self.one_of(["both", "rows", "columns"])
        ids: Any = self.rng.integers(0, 90 * self.scale, self.integer(0, 12)).tolist()
        at: Callable[[Place], Any] = lambda place: ids  # noqa: E731
        params: dict[str, int] = {}
        if self.chance(0.5):
            ids, count, params = self.number(0, 12)
            at = lambda place: range(count(place))  # noqa: E731
        both = mc.global_tokens(ids, **align)
        mask = both if side == "both" else getattr(both, side)

        def keep(place: Place) -> Any:
            listed = list(at(place))
            rows, columns = np.isin(place.position(start), listed), np.isin(place.k, listed)
            return {"both": rows | columns, "rows": rows, "columns": columns}[side]

        return Drawn(mask, keep, params=params)

    def blocks(self) -> Drawn:
        start, align = self.align()
        size, causal = self.size(1, 50), self.chance(0.5)
        mask = (mc.chunked if causal else mc.block_diagonal)(size, **align)

        def keep(place: Place) -> Any:
            p = place.position(start)
            return (p // size == place.k // size) & ((place.k <= p) | (not causal))

        return Drawn(mask, keep)

    def random_blocks(self) -> Drawn:
        start, align = self.align()
        block, per_row = self.size(1, 20), self.integer(0, 4)
        seed = self.one_of([0, -1, 2**63, self.integer(0, 2**50)])

        def keep(place: Place) -> Any:
            columns, row_of = -(-place.n_kv // block), (place.position(start) // block)[:, 0]
            drawn = {
                row: drawn_columns(seed, row, columns, per_row) for row in set(row_of.tolist())
            }
            rows = [np.isin(place.k[0] // block, drawn[row]) for row in row_of.tolist()]
            return np.array(rows, bool).reshape(place.n_q, place.n_kv)

        return Drawn(mc.random_blocks(block, per_row, seed, **align), keep)

    def heads_by_name(self) -> Drawn:
        ids = sorted({self.integer(0, self.heads - 1) for _ in range(self.integer(1, 2))})
        return Drawn(mc.heads(*ids), lambda place: place.head in ids, heads=self.heads)

    # -------------------------------------------------------------- traced formulas

    def formula(self) -> Drawn:
        """A condition as text, traced by maskc and evaluated by Python."""
        params: dict[str, int] = {}
        uses_head = self.heads > 1 and self.chance(0.2)
        text = self._condition(3, uses_head, params)
        known = {name: mc.param(name, default) for name, default in params.items()}
        scope = {"n_q": mc.n_q, "n_kv": mc.n_kv, **known}
        arguments = "h, q, k" if uses_head else "q, k"
        exec(f"def condition({arguments}):\n    return {text}", scope)
        code = compile(text, "condition", "eval")

        def keep(place: Place) -> Any:
            values = {name: place.params.get(name, default) for name, default in params.items()}
            names = {"q": place.q, "k": place.k, "h": place.head, "n_q": place.n_q}
            names |= {"n_kv": place.n_kv, "min": minimum, "max": maximum, "abs": np.abs}
            return eval(code, names | values)

        mask = mc.where(scope["condition"])
        by_head = str(mask).startswith("where(lambda h,")  # h may have cancelled out
        return Drawn(mask, keep, params=params, heads=self.heads if by_head else None)

    def _condition(self, depth: int, uses_head: bool, params: dict[str, int]) -> str:
        kind = self.rng.random()
        if depth > 1 and kind > 0.55:
            one, other = (self._condition(depth - 1, uses_head, params) for _ in range(2))
            return f"({one} {self.one_of('&|^')} {other})"
        if depth > 1 and kind > 0.45:
            return f"(~{self._condition(depth - 1, uses_head, params)})"
        sign = self.one_of(["<=", "<", ">=", ">", "==", "!="])
        side = self.one_of("qk")  # which makes it a condition, whatever the other side is
        other = self._integer(depth, uses_head, params)
        return f"({self._integer(depth - 1, uses_head, params)} + {side} {sign} {other})"

    def _integer(self, depth: int, uses_head: bool, params: dict[str, int]) -> str:
        if depth <= 0 or self.chance(0.35):
            if self.chance(0.1):
                name = self.name("number")
                params[name] = self.integer(0, 40)
                return name
            symbols = ["q", "k", "q", "k", "n_q", "n_kv", *(["h"] if uses_head else [])]
            return self.one_of(symbols) if self.chance(0.75) else str(self.integer(-50, 50))
        a, b = (self._integer(depth - 1, uses_head, params) for _ in range(2))
        n = self.one_of([1, 2, 3, 7, 8, 16, 37, 100, -3])
        return self.one_of([
            f"({a} + {b})", f"({a} - {b})", f"({n} * {a})", f"({a} // {n})", f"({a} % {n})",
            f"min({a}, {b})", f"max({a}, {b})", f"abs({a})", f"(-{a})",
        ])  # fmt: skip

    def torch_formula(self) -> Drawn:
        """A mask_mod in the words of torch; torch itself says what it means."""
        a, c = self.integer(1, 9), self.integer(0, 30)
        mod = self.one_of([
            lambda b, h, q, k: torch.where(q >= c, k <= q, k < c),
            lambda b, h, q, k: torch.remainder(q - k, a) == 0,
            lambda b, h, q, k: torch.logical_and(q - k <= c, (k <= q) | (torch.abs(q - k) < a)),
            lambda b, h, q, k: torch.fmod(q - k, a) == 0,
            lambda b, h, q, k: torch.div(q - k, a, rounding_mode="trunc") == q // (a + 1),
            lambda b, h, q, k: torch.clamp(q - k, -a, c) == torch.minimum(q, k) - c,
        ])  # fmt: skip

        def keep(place: Place) -> Any:
            return mod(0, 0, torch.from_numpy(place.q), torch.from_numpy(place.k)).numpy()

        return Drawn(mc.from_mask_mod(mod), keep)

    def formula_of_head(self) -> Drawn:
        if self.chance(0.5):
            step = self.integer(1, 6)
            mask = mc.where(lambda h, q, k: q - k <= h * step + 2)
            meaning = lambda place: place.q - place.k <= place.head * step + 2  # noqa: E731
            return Drawn(mask, meaning, heads=self.heads)
        widths = self.rng.integers(-3, 30, self.heads)
        mask = mc.from_mask_mod(lambda b, h, q, k: q - k <= widths[h])
        return Drawn(
            mask, lambda place: place.q - place.k <= widths[place.head], heads=self.heads,
            captured=True,
        )  # fmt: skip

    def captured_formula(self) -> Drawn:
        """Arrays that a formula indexes, with guards; NumPy's or torch's."""
        size, c = 140, self.integer(1, 9)
        x, y = self.rng.integers(0, 9, size), self.rng.integers(0, size, size)
        z = self.rng.random((size // c + 1, size // c + 1)) < 0.5
        t, u, v = map(torch.from_numpy, (x, y, z)) if self.chance(0.5) else (x, y, z)
        mod, keep = self.one_of([
            (lambda b, h, q, k: t[q] == t[k], lambda p: x[p.q] == x[p.k]),
            (lambda b, h, q, k: (q >= c) & (t[q - c] <= t[k]),
             lambda p: (p.q >= c) & (x[np.maximum(p.q - c, 0)] <= x[p.k])),
            (lambda b, h, q, k: v[q // c, k // c], lambda p: z[p.q // c, p.k // c]),
            (lambda b, h, q, k: t[u[k]] + q % 3 >= t[q] + u[k] % c,
             lambda p: x[y[p.k]] + p.q % 3 >= x[p.q] + y[p.k] % c),
            (lambda b, h, q, k: (t[k] * c - q <= k) ^ (t[q] == 4),
             lambda p: (x[p.k] * c - p.q <= p.k) ^ (x[p.q] == 4)),
        ])  # fmt: skip
        return Drawn(mc.from_mask_mod(mod), keep, captured=True)

    # -------------------------------------------------------------- data

    def _rows(self, rng: np.random.Generator, sequences: int) -> tuple[int | None, tuple[int, ...]]:
        """Sequences of an array, or None, and its first dimensions."""
        return (sequences, (sequences,)) if rng.random() < 0.4 else (None, ())

    def documents(self) -> Drawn:
        start, align = self.align()
        name, kind = self.name("doc"), self.integer(0, 4)

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            rows, front = self._rows(rng, sequences)
            count = max(n_q, n_kv)

            def ids(length: int) -> np.ndarray:
                found = rng.integers(-2, max(1, length // (8 * self.scale)) + 1, (*front, length))
                found = np.sort(found, -1) if kind in (1, 2) else found
                return found * 2**60 if kind == 2 else found

            def sides(found: np.ndarray) -> tuple[np.ndarray, ...]:
                return tuple(found[..., tokens(n, count, start)] for n in (n_q, n_kv))

            if kind == 3:
                pair = ids(n_q), ids(n_kv)
                return Given(pair, pair, rows)
            if kind == 4:
                inner = np.sort(rng.integers(0, count + 1, 4))
                ends = np.concatenate([[0], inner, [count]])
                whole = np.repeat(np.arange(5), np.diff(ends))
                return Given(mc.cu_seqlens(ends.astype("i4")), sides(whole))
            whole = ids(count)
            given = torch.from_numpy(whole) if rng.random() < 0.5 else whole
            return Given(given, sides(whole), rows)

        def keep(place: Place) -> Any:
            return place.array(name, 0)[:, None] == place.array(name, 1)[None]

        return Drawn(mc.documents(name, **align), keep, {name: make})

    def flags(self) -> Drawn:
        start, align = self.align()
        name, on = self.name("flag"), self.one_of("qk")

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            rows, front = self._rows(rng, sequences)
            of_tokens = on == "q" and n_q < n_kv and rng.random() < 0.5
            length = n_q if on == "q" and not of_tokens else n_kv
            given = rng.random((*front, length)) < rng.random()
            read = given[..., tokens(n_q, n_kv, start)] if of_tokens else given
            return Given(given.astype(rng.choice(["?", "i1", "u1", "i8"])), (read,), rows)

        def keep(place: Place) -> Any:
            flag = place.array(name)
            return flag[:, None] if on == "q" else flag[None]

        return Drawn(mc.flags(name, on, **align), keep, {name: make})

    def global_flags(self) -> Drawn:
        """Flags that queries and keys read: one array, so there are no more queries than keys."""
        start, align = self.align()
        name, side = self.name("seen"), self.one_of(["both", "rows", "columns"])
        both = mc.global_tokens(name, at_most=self.one_of([None, 9]), **align)
        mask = both if side == "both" else getattr(both, side)

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            rows, front = self._rows(rng, sequences)
            given = np.zeros((*front, n_kv), bool)
            for row in given.reshape(-1, n_kv):
                row[rng.permutation(n_kv)[: rng.integers(0, 9)]] = True
            return Given(given, (given[..., tokens(n_q, n_kv, start)], given), rows)

        def keep(place: Place) -> Any:
            of_q, of_k = place.array(name, 0)[:, None], place.array(name, 1)[None]
            return {"both": of_q | of_k, "rows": of_q, "columns": of_k}[side]

        return Drawn(mask, keep, {name: make}, fewer_queries=True)

    def intervals(self) -> Drawn:
        start, align = self.align()
        name = self.name("span")

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            rows, front = self._rows(rng, sequences)
            of_tokens = n_q < n_kv and rng.random() < 0.4
            low = rng.integers(-5, n_kv + 5, (*front, n_kv if of_tokens else n_q))
            high = low + rng.integers(-6, n_kv + 5, low.shape)
            own = tokens(n_q, n_kv, start) if of_tokens else slice(None)
            return Given((low, high), (low[..., own], high[..., own]), rows)

        def keep(place: Place) -> Any:
            low, high = (place.array(name, part)[:, None] for part in (0, 1))
            return (low <= place.k) & (place.k < high)

        return Drawn(mc.intervals(name, **align), keep, {name: make})

    def tree(self) -> Drawn:
        start, align = self.align()
        name = self.name("tree")

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            count = max(n_q, n_kv)
            order = rng.permutation(count) if rng.random() < 0.4 else np.arange(count)
            parents = np.full(count, -1)
            for i in range(1, count):
                parents[order[i]] = order[rng.integers(0, i)] if rng.random() < 0.9 else -1
            above = np.eye(count, dtype=bool)
            for i in order:  # parents come first
                if parents[i] >= 0:
                    above[i] |= above[parents[i]]
            of_q, of_k = (tokens(n, count, start) for n in (n_q, n_kv))
            return Given(mc.parents(parents), (above[np.ix_(of_q, of_k)],))

        return Drawn(mc.tree(name, **align), lambda place: place.data[name][0], {name: make})

    def table(self) -> Drawn:
        name, block = self.name("table"), self.size(1, 40)
        by_head = self.heads > 1 and self.chance(0.3)

        def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
            rows = sequences if rng.random() < 0.4 else None
            heads = self.heads if by_head else 1
            shape = (rows or 1, heads, -(-n_q // block), -(-n_kv // block))
            whole = rng.random(shape) < rng.random()
            given = whole if rows else whole[0] if by_head else whole[0, 0]
            return Given(given.astype(rng.choice(["?", "u1", "i8"])), (whole,), rows)

        def keep(place: Place) -> Any:
            found = place.data[name][0]
            own = found[place.sequence if len(found) > 1 else 0][place.head if by_head else 0]
            return own[place.q // block, place.k // block]

        heads = self.heads if by_head else None
        return Drawn(mc.block_table(name, block), keep, {name: make}, heads=heads)

    def at_positions(self) -> Drawn:
        of_q, of_k = self.name("at_q"), self.name("at_k")
        at = mc.positions(q=of_q, k=of_k)
        stride, back, ahead = self.integer(1, 9), self.integer(0, 20), self.integer(0, 9)
        unit = self.one_of([1, 1, 3, 10**6, 2**25])
        mask, rule = self.one_of([
            (mc.causal(at=at), lambda p, k: k <= p),
            (mc.window(back, ahead, at=at), lambda p, k: (p - k <= back) & (k - p <= ahead)),
            (mc.dilated(back, ahead, stride=stride, at=at),
             lambda p, k: (p - k <= back * stride) & (k - p <= ahead * stride)
             & ((p - k) % stride == 0)),
            (mc.block_diagonal(stride, at=at), lambda p, k: p // stride == k // stride),
            (mc.chunked(stride, at=at), lambda p, k: (p // stride == k // stride) & (k <= p)),
        ])  # fmt: skip

        def maker(side: int) -> MakeData:
            def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
                rows, front = self._rows(rng, sequences)
                found = rng.integers(-10, 60, (*front, (n_q, n_kv)[side])) * unit
                return Given(found, (found,), rows)

            return make

        def keep(place: Place) -> Any:
            return rule(place.array(of_q)[:, None], place.array(of_k)[None])

        return Drawn(mask, keep, {of_q: maker(0), of_k: maker(1)})

    # -------------------------------------------------------------- at fixed lengths

    def matrix(self) -> Drawn:
        assert self.fixed is not None
        n_q, n_kv = self.fixed
        heads = self.heads if self.chance(0.3) else 1
        matrix = self.rng.random((heads, n_q, n_kv)) < self.rng.random()
        if self.chance(0.4):  # runs of keys, which are kept as their ends
            low = self.rng.integers(0, n_kv + 1, (heads, n_q, 1))
            length = self.rng.integers(0, n_kv + 1, (heads, n_q, 1))
            matrix = (np.arange(n_kv) >= low) & (np.arange(n_kv) < low + length)
        given = matrix if heads > 1 else matrix[0]
        return Drawn(
            mc.from_bool(given if self.chance(0.5) else torch.from_numpy(given)),
            lambda place: matrix[place.head if heads > 1 else 0],
            heads=heads if heads > 1 else None, fixed=self.fixed, captured=True,
        )  # fmt: skip

    def written_table(self) -> Drawn:
        assert self.fixed is not None
        block, (n_q, n_kv) = self.integer(1, 40), self.fixed
        heads = self.heads if self.chance(0.4) else 1
        table = self.rng.random((heads, -(-n_q // block), -(-n_kv // block))) < 0.5

        def keep(place: Place) -> Any:
            return table[place.head if heads > 1 else 0][place.q // block, place.k // block]

        return Drawn(
            mc.block_table(table if heads > 1 else table[0], block), keep,
            heads=heads if heads > 1 else None, fixed=self.fixed,
        )  # fmt: skip
