"""Random masks and calls against a reference of their own: fp64, and no code of maskc's.

    python tests/gpu/fuzz.py --calls 2000 --seed 1 --target cpu
    python tests/gpu/fuzz.py --only 1:37 --target cuda

A mask is drawn as a tree of combinators together with its meaning, a NumPy function written from
the definitions of the language. It is compiled once and called at several lengths, with random
data, strides, grouped heads, options and dtypes. Judged are `dense` and `count`, out, lse and all
gradients; keys that nobody sees hold NaN at times, which may change nothing. A wrong result is
printed as one line with what repeats it, SEED:MASK. Exit codes: 0 all right, 1 something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

import maskc as mc
from maskc.core.errors import MaskcError, TooManyArrays
from maskc.core.problem import Direction
from maskc.core.target import Target

Rng = np.random.Generator
Bools = np.ndarray
CALLS_OF_A_MASK = 25
EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LENGTHS = (1, 2, 3, 17, 31, 63, 64, 65, 100, 127, 128, 129, 191, 200, 257, 300)


# ------------------------------------------------------------------ what masks mean


@dataclass(frozen=True)
class World:
    """Where a mask is evaluated: one head of one sequence."""

    n_q: int
    n_kv: int
    head: int
    batch: int
    data: Mapping[str, Any]
    scores: np.ndarray
    """Scores by which run-time selections rank, [B, H, n_q, n_kv]."""

    @property
    def q(self) -> np.ndarray:
        """Column of query indices."""
        return np.arange(self.n_q)[:, None]

    @property
    def k(self) -> np.ndarray:
        """Row of key indices."""
        return np.arange(self.n_kv)[None, :]

    def p(self, align: str) -> np.ndarray:
        """Column of the queries' positions."""
        return self.q + (self.n_kv - self.n_q) * (align == "end")

    def all_pairs(self, found: Any) -> Bools:
        """A matrix from whatever broadcasts to one."""
        return np.broadcast_to(np.asarray(found, dtype=bool), (self.n_q, self.n_kv))


Meaning = Callable[[World], Any]
Given = tuple[Any, Any]
"""Arguments of a call, and by sequence those that define its meaning."""
Maker = Callable[[Rng, int, int, int], Given]
"""(random numbers, n_q, n_kv, batch)."""


@dataclass(frozen=True)
class Term:
    """A mask and its meaning."""

    mask: mc.Mask
    keep: Meaning
    text: str
    data: Mapping[str, Maker] = field(default_factory=dict)
    ranks: bool = False


def mixed(x: int) -> int:
    """One step of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def drawn_blocks(seed: int, row: int, columns: int, count: int) -> list[int]:
    """The block columns that a block row of `random_blocks` sees."""
    start = mixed((mixed(seed) + row) % 2**64)
    return sorted(range(columns), key=lambda j: (mixed((start + j) % 2**64), j))[:count]


class Draw:
    """Draws the terms of one mask."""

    def __init__(self, rng: Rng, heads: int, ranks: bool) -> None:
        self.rng, self.heads, self.ranks, self.names = rng, heads, ranks, 0

    def one(self, *values: Any) -> Any:
        """One of the values."""
        return values[int(self.rng.integers(len(values)))]

    def whole(self, least: int, most: int) -> int:
        """An integer, both ends included."""
        return int(self.rng.integers(least, most + 1))

    def name(self) -> str:
        """A new name of data."""
        self.names += 1
        return f"x{self.names}"

    def align(self) -> str:
        """Mostly the default."""
        return self.one("end", "end", "end", "start")

    def term(self, depth: int) -> Term:
        """A tree of at most this depth."""
        kind = self.one("atom", "not", "join", "join", "join", "heads", "topk") if depth else "atom"
        if kind == "not":
            a = self.term(depth - 1)
            return Term(~a.mask, lambda w: ~w.all_pairs(a.keep(w)), f"~{a.text}", a.data, a.ranks)
        if kind == "join":
            return self.joined(self.term(depth - 1), self.term(depth - 1), self.one(*"&&||-^"))
        if kind == "heads" and self.heads > 1:
            parts = [self.term(depth - 1) for _ in range(self.heads)]
            text = f"per_head([{', '.join(part.text for part in parts)}])"
            data = {name: maker for part in parts for name, maker in part.data.items()}
            if not any(part.ranks for part in parts):
                masks = mc.per_head([part.mask for part in parts])
                return Term(masks, lambda w: parts[w.head].keep(w), text, data)
        if kind == "topk" and self.ranks:
            a, n = self.term(depth - 1), self.whole(0, 9)
            if not a.ranks:
                return Term(
                    mc.topk(n, of=a.mask, score="given"), lambda w: best(w, a.keep(w), n),
                    f"topk({n}, of={a.text}, score='given')", a.data, True,
                )  # fmt: skip
        return self.atom()

    def joined(self, a: Term, b: Term, by: str) -> Term:
        """Set algebra."""
        sets = {
            "&": lambda x, y: x & y, "|": lambda x, y: x | y,
            "-": lambda x, y: x - y, "^": lambda x, y: x ^ y,
        }  # fmt: skip
        pairs = {**sets, "-": lambda x, y: x & ~y}

        def keep(w: World) -> Bools:
            return pairs[by](w.all_pairs(a.keep(w)), w.all_pairs(b.keep(w)))

        mask, text = sets[by](a.mask, b.mask), f"({a.text} {by} {b.text})"
        return Term(mask, keep, text, {**a.data, **b.data}, a.ranks or b.ranks)

    def atom(self) -> Term:
        """One combinator."""
        atoms = [getattr(self, name) for name in dir(self) if name.startswith("atom_")]
        found: Term = self.one(*atoms)()
        return found

    # -------------------------------------------------------------- formulas

    def atom_full(self) -> Term:
        return Term(mc.full(), lambda w: True, "full()")

    def atom_causal(self) -> Term:
        a = self.align()
        return Term(mc.causal(align=a), lambda w: w.k <= w.p(a), f"causal(align={a!r})")

    def atom_window(self) -> Term:
        a = self.align()
        left, right = (self.one(None, 0, 1, 7, 63, 64, 130) for _ in range(2))

        def keep(w: World) -> Any:
            back = w.p(a) - w.k
            near = True if left is None else back <= left
            return near & (True if right is None else back >= -right)

        text = f"window({left}, {right}, align={a!r})"
        return Term(mc.window(left, right, align=a), keep, text)

    def atom_parameter(self) -> Term:
        name, value = self.name(), self.whole(0, 90)

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            given = int(rng.integers(0, 150))
            return given, [given] * batch

        def keep(w: World) -> Any:
            back = w.p("end") - w.k
            return (back >= 0) & (back <= w.data[name][w.batch])

        mask = mc.window(mc.param(name, value))
        return Term(mask, keep, f"window(param({name!r}, {value}))", {name: make})

    def atom_dilated(self) -> Term:
        a, left, right, s = self.align(), self.whole(0, 15), self.whole(0, 3), self.whole(1, 8)

        def keep(w: World) -> Any:
            back = w.p(a) - w.k
            return (back <= left * s) & (back >= -right * s) & (back % s == 0)

        text = f"dilated({left}, {right}, stride={s}, align={a!r})"
        return Term(mc.dilated(left, right, stride=s, align=a), keep, text)

    def atom_offsets(self) -> Term:
        a, ids = self.align(), [self.whole(-60, 200) for _ in range(self.whole(1, 5))]
        text = f"offsets({ids}, align={a!r})"
        return Term(mc.offsets(ids, align=a), lambda w: np.isin(w.p(a) - w.k, ids), text)

    def atom_strided(self) -> Term:
        s = self.whole(1, 40)
        phase = self.whole(0, s - 1)
        return Term(mc.strided(s, phase), lambda w: w.k % s == phase, f"strided({s}, {phase})")

    def atom_sinks(self) -> Term:
        n, of = self.one(0, 1, 4, 70), self.one(mc.sinks, mc.prefix)
        return Term(of(n), lambda w: w.k < n, f"{of.__name__}({n})")

    def atom_globals(self) -> Term:
        a, side = self.align(), self.one("both", "rows", "columns")
        ids = self.one(self.whole(0, 40), [self.whole(0, 300) for _ in range(3)])
        tokens = range(ids) if isinstance(ids, int) else ids
        mask = mc.global_tokens(ids, align=a)

        def keep(w: World) -> Any:
            row, column = np.isin(w.p(a), list(tokens)), np.isin(w.k, list(tokens))
            return {"both": row | column, "rows": row, "columns": column}[side]

        text = f"global_tokens({ids}, align={a!r})" + f".{side}" * (side != "both")
        return Term(mask if side == "both" else getattr(mask, side), keep, text)

    def atom_blocks(self) -> Term:
        a, size, of = self.align(), self.whole(1, 100), self.one(mc.block_diagonal, mc.chunked)

        def keep(w: World) -> Any:
            same = w.p(a) // size == w.k // size
            return same & (w.k <= w.p(a)) if of is mc.chunked else same

        return Term(of(size, align=a), keep, f"{of.__name__}({size}, align={a!r})")

    def atom_random_blocks(self) -> Term:
        a, size, count = self.align(), self.one(1, 16, 33, 64), self.whole(0, 3)
        seed = self.whole(0, 2**31)

        def keep(w: World) -> Bools:
            rows, columns = w.p(a)[:, 0] // size, -(-w.n_kv // size)
            found = np.zeros((w.n_q, w.n_kv), dtype=bool)
            for row in np.unique(rows):
                seen = drawn_blocks(seed, int(row), columns, count)
                found[np.ix_(rows == row, np.isin(np.arange(w.n_kv) // size, seen))] = True
            return found

        text = f"random_blocks({size}, {count}, {seed}, align={a!r})"
        return Term(mc.random_blocks(size, count, seed, align=a), keep, text)

    def atom_heads(self) -> Term:
        if self.heads == 1:
            return self.atom_causal()
        head = self.whole(0, self.heads - 1)
        return Term(mc.heads(head), lambda w: w.head == head, f"heads({head})")

    def atom_where(self) -> Term:
        a, b, c = self.whole(1, 9), self.whole(1, 70), self.whole(-90, 90)
        texts = [
            f"(q * {a} - k) % {b} < {a}", f"abs(q - k - {c}) <= {b}",
            f"min(q // {a}, {b}) >= k // {a} - {b}", f"(q + k) // {b} % 2 == 0",
            f"max(q - {c}, k) % {b} != {a}", f"(k * {a} < q + n_kv - {c}) | (q // {b} == k // {b})",
            f"~(k - q > {c}) ^ (k % {a} == 0)", f"(n_q // {a} <= q) & (k >= {c})",
        ]  # fmt: skip
        if self.heads > 1:
            texts.append(f"q - k < {b} * (h + 1)")
        text = self.one(*texts)
        names = "h, q, k" if "h" in text else "q, k"

        def keep(w: World) -> Any:
            known = {"q": w.q, "k": w.k, "h": w.head, "n_q": w.n_q, "n_kv": w.n_kv, "abs": abs}
            return eval(text, known | {"min": np.minimum, "max": np.maximum})

        full = f"where(lambda {names}: {text})"
        return Term(mc.parse(full), keep, full)

    # -------------------------------------------------------------- data

    def atom_table(self) -> Term:
        name, size, by_head = self.name(), self.one(16, 33, 64, 128), self.heads > 1
        by_head, batched = by_head and self.one(False, True), self.one(False, False, True)

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            shape = (-(-n_q // size), -(-n_kv // size))
            every = rng.random((batch, self.heads, *shape)) < rng.random()
            some = every[: None if batched else 1, : None if by_head else 1]
            given = some if batched else some[0] if by_head else some[0, 0]
            return given, np.broadcast_to(some, every.shape)

        def keep(w: World) -> Any:
            return w.data[name][w.batch, w.head][w.q // size, w.k // size]

        return Term(
            mc.block_table(name, size), keep, f"block_table({name!r}, {size})", {name: make}
        )

    def atom_flags(self) -> Term:
        name, on, batched = self.name(), self.one("q", "k"), self.one(False, True)

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            n = n_q if on == "q" else n_kv
            values = rng.random((batch if batched else 1, n)) < rng.random()
            return values if batched else values[0], np.broadcast_to(values, (batch, n))

        def keep(w: World) -> Any:
            return w.data[name][w.batch][w.q if on == "q" else w.k]

        return Term(mc.flags(name, on=on), keep, f"flags({name!r}, on={on!r})", {name: make})

    def atom_intervals(self) -> Term:
        name, batched = self.name(), self.one(False, True)

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            low = rng.integers(-3, n_kv + 3, (batch if batched else 1, n_q))
            ends = low, low + rng.integers(-9, n_kv + 3, low.shape)
            given = tuple(x if batched else x[0] for x in ends)
            return given, [np.broadcast_to(x, (batch, n_q)) for x in ends]

        def keep(w: World) -> Any:
            low, high = (x[w.batch][:, None] for x in w.data[name])
            return (low <= w.k) & (w.k < high)

        return Term(mc.intervals(name), keep, f"intervals({name!r})", {name: make})

    def atom_documents(self) -> Term:
        name, form = self.name(), self.one("sorted", "sorted", "any order", "lengths")

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            most = max(n_q, n_kv) // 30 + 2
            if form == "lengths" and n_q == n_kv:
                cuts = np.sort(rng.integers(0, n_q + 1, 4))
                ends = np.array([0, *cuts, n_q], dtype=np.int32)
                ids = np.repeat(np.arange(5), np.diff(ends))
                return mc.cu_seqlens(ends), [np.broadcast_to(ids, (batch, n_q))] * 2
            sides = [rng.integers(0, most, (batch, n)) for n in (n_q, n_kv)]
            if form != "any order":
                sides = [np.sort(x, axis=1) for x in sides]
            if n_q == n_kv:
                return sides[0], [sides[0], sides[0]]
            return tuple(sides), sides

        def keep(w: World) -> Any:
            of_q, of_k = w.data[name]
            return of_q[w.batch][w.q] == of_k[w.batch][w.k]

        return Term(mc.documents(name), keep, f"documents({name!r})", {name: make})

    def atom_tree(self) -> Term:
        name = self.name()

        def make(rng: Rng, n_q: int, n_kv: int, batch: int) -> Given:
            n = max(n_q, n_kv)
            parents = np.array([rng.integers(-1, i) if i else -1 for i in range(n)], dtype=np.int64)
            above = np.eye(n, dtype=bool)
            for token, parent in enumerate(parents):  # parents come before their children
                if parent >= 0:
                    above[token] |= above[parent]
            return mc.parents(parents), [above] * batch

        def keep(w: World) -> Any:
            above = w.data[name][w.batch]
            n = len(above)  # both sides end with the last token
            return above[w.q + n - w.n_q, w.k + n - w.n_kv]

        return Term(mc.tree(name), keep, f"tree({name!r})", {name: make})


def best(w: World, of: Any, n: int) -> Bools:
    """The n keys of most score among those of a mask; of equal ones those that come first."""
    allowed, found = w.all_pairs(of), np.zeros((w.n_q, w.n_kv), dtype=bool)
    for row in range(w.n_q):
        keys = np.flatnonzero(allowed[row])
        order = np.lexsort((keys, -w.scores[w.batch, w.head, row, keys]))
        found[row, keys[order[:n]]] = True
    return found


# ------------------------------------------------------------------ attention


def attended(
    x: list[torch.Tensor], keep: torch.Tensor, dout: torch.Tensor, options: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """out, lse and gradients by PyTorch's operators in the dtype of x = [q, k, v], and weights."""
    q, k, v = leaves = [each.detach().clone().requires_grad_() for each in x]
    n_q, n_kv, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    wide_k, wide_v = (each.repeat_interleave(group, 1) for each in (k, v))
    s = q @ wide_k.transpose(-1, -2) * options["scale"]
    more: dict[str, torch.Tensor] = {}
    if (cap := options.get("softcap")) is not None:
        s = torch.tanh(s / cap) * cap
    if (slopes := options.get("alibi_slopes")) is not None:
        more["dalibi_slopes"] = slopes = slopes.to(q.dtype).requires_grad_()
        rows = torch.arange(n_q, device=q.device)[:, None] + n_kv - n_q
        away = (rows - torch.arange(n_kv, device=q.device)).abs().to(q.dtype)
        s = s - slopes[:, None, None] * away
    s = torch.where(keep, s, torch.full_like(s, -torch.inf))
    if (sinks := options.get("sink_logits")) is not None:
        more["dsink_logits"] = sinks = sinks.to(q.dtype).requires_grad_()
        s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
    live = ~torch.isneginf(s).all(-1, keepdim=True)
    safe = torch.where(live, s, torch.zeros_like(s))
    lse = torch.where(live[..., 0], safe.double().logsumexp(-1), -torch.inf)
    p = torch.where(keep & live, safe.softmax(-1)[..., :n_kv], 0)
    out = p @ wide_v
    grads = torch.autograd.grad(out, [*leaves, *more.values()], dout, allow_unused=True)
    names = ("dq", "dk", "dv", *more)
    found = {"out": out.detach(), "lse": lse.detach()}
    for name, leaf, grad in zip(names, [*leaves, *more.values()], grads, strict=True):
        found[name] = torch.zeros_like(leaf) if grad is None else grad
    return found, p.detach()


def summed(x: list[torch.Tensor], p: torch.Tensor, dout: torch.Tensor, scale: float) -> dict:
    """The largest sum of absolute values that an entry of a part is made of."""
    q, k, v = (each.abs() for each in x)
    b, heads_kv, n_kv = k.shape[:3]
    group = q.shape[1] // heads_kv
    wide_k, wide_v = (each.repeat_interleave(group, 1) for each in (k, v))
    dp = dout.abs() @ wide_v.transpose(-1, -2)
    mean = (p * dp).sum(-1, keepdim=True)
    ds = p * (dp + mean)

    def shared(each: torch.Tensor) -> torch.Tensor:
        return each.view(b, heads_kv, group, n_kv, -1).sum(2)

    n_q = q.shape[2]
    rows = torch.arange(n_q, device=p.device)[:, None] + n_kv - n_q
    away = (rows - torch.arange(n_kv, device=p.device)).abs()
    found = {
        "out": p @ wide_v, "dq": abs(scale) * (ds @ wide_k),
        "dk": abs(scale) * shared(ds.transpose(-1, -2) @ q),
        "dv": shared(p.transpose(-1, -2) @ dout.abs()),
        "dalibi_slopes": (ds * away).sum((0, 2, 3)), "dsink_logits": mean.sum((0, 2, 3)),
        # The same of what half precision cannot hold: by 1 in each weight, or each number of out.
        "dalibi_slopes of weights": ((p > 0) * (dp + mean) * away).sum((0, 2, 3)),
        "dsink_logits of out": (p.any(-1) * dout.abs().sum(-1)).sum((0, 2)),
    }  # fmt: skip
    return {name: float(values.max()) if values.numel() else 0.0 for name, values in found.items()}


def laid(rng: Rng, x: torch.Tensor) -> torch.Tensor:
    """The values [B, H, N, D] with strides as models have them."""
    form = int(rng.integers(4))
    if form == 1:  # heads between tokens
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if form == 2:  # rows that are padded
        return torch.cat([x, x[..., :1].expand(*x.shape[:3], 16)], -1)[..., : x.shape[3]]
    if form == 3:  # a part of a longer buffer
        return torch.cat([x, x], 2)[:, :, x.shape[2] :]
    return x


# ------------------------------------------------------------------ runs


class Fuzz:
    """Counts what was tried and what was wrong."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.seed = target, seed
        self.device = "cpu" if target.language == "c" else "cuda"
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.worst: dict[str, float] = {}

    def fail(self, number: int, what: str, found: str) -> None:
        """Print a wrong result at once."""
        self.wrong.append(f"{self.seed}:{number} {what}: {found}")
        print(f"WRONG {self.wrong[-1]}", flush=True)

    def mask(self, number: int) -> None:
        """Draw a mask, compile it and call it some times."""
        rng = np.random.default_rng([self.seed, number])
        heads = int(rng.choice([1, 2, 4]))
        term = Draw(rng, heads, ranks=True).term(int(rng.integers(0, 4)))
        cuda = self.device == "cuda"
        dims = self.target.head_dims or (1, 3, 8, 16, 33, 64, 80, 128)
        dtype = str(rng.choice(["bfloat16", "float16"] if cuda else list(EPSILON)))
        dim = int(rng.choice(dims))
        dim_v = dim if cuda or rng.random() < 0.7 else int(rng.choice([1, 5, 16, 64]))
        try:
            attn = term.mask.compile(
                dim, dim_v, n_heads=heads, dtype=dtype, target=self.target.name
            )
        except MaskcError as refusal:
            # Single keys have kernels on some targets only; of arrays a kernel reads eight at most.
            if (cuda and term.ranks) or isinstance(refusal, TooManyArrays):
                self.counts["refused"] += 1
                return
            self.fail(number, "compile", f"{refusal} of {term.text}")
            return
        self.counts["masks"] += 1
        for _ in range(CALLS_OF_A_MASK):
            self.call(number, rng, term, attn, heads, (dim, dim_v), dtype)

    def call(
        self, number: int, rng: Rng, term: Term, attn: mc.CompiledMask, heads: int,
        dims: tuple[int, int], dtype: str,
    ) -> None:  # fmt: skip
        """One call, forward and backward, judged."""
        n_q, n_kv = (int(x) for x in rng.choice(LENGTHS, 2))
        n_kv = n_q if rng.random() < 0.4 else n_kv
        batch, heads_kv = (
            int(rng.integers(1, 4)),
            int(rng.choice([h for h in (1, 2, 4) if heads % h == 0])),
        )
        sides, (dim, dim_v) = ((batch, heads, n_q), (batch, heads_kv, n_kv)), dims
        shapes = [(*sides[0], dim), (*sides[1], dim), (*sides[1], dim_v), (*sides[0], dim_v)]
        kind = getattr(torch, dtype)
        q, k, v, dout = (
            torch.from_numpy(rng.standard_normal(shape, np.float32)).to(self.device, kind)
            for shape in shapes
        )
        made = {name: make(rng, n_q, n_kv, batch) for name, make in term.data.items()}
        given = {name: each[0] for name, each in made.items()}
        scores = rng.integers(-4, 5, (batch, heads, n_q, n_kv)).astype(np.float32)
        ranked = {"scores": scores} if term.ranks else {}
        data = {name: each[1] for name, each in made.items()}
        worlds = [
            [World(n_q, n_kv, h, b, data, scores) for h in range(heads)] for b in range(batch)
        ]
        keep = np.array([[w.all_pairs(term.keep(w)) for w in row] for row in worlds])
        keep = keep.reshape(batch, heads, n_q, n_kv)
        options = self.options(rng, heads, dim)
        used_options = sorted(name for name, value in options.items() if value is not None)
        title = f"{n_q}x{n_kv} B{batch} H{heads}/{heads_kv} D{dims} {dtype} "
        title += f"{used_options} of {term.text}"
        self.counts["calls"] += 1
        for name in ("softcap", "alibi_slopes", "sink_logits"):
            self.counts[name] += options.get(name) is not None
        try:
            self.asked(number, term, keep, given, ranked, title)
        except MaskcError as refusal:
            self.fail(number, "question refused", f"{refusal} at {title}")
        seen = torch.from_numpy(keep).to(self.device)
        used = options | {
            "scale": options["scale"] if options["scale"] is not None else dims[0] ** -0.5
        }
        expected, p = attended([x.double() for x in (q, k, v)], seen, dout.double(), used)
        theirs = None
        if dtype != "float32":
            theirs, _ = attended([q, k, v], seen, dout, used)
        terms = summed([x.double() for x in (q, k, v)], p, dout.double(), used["scale"])
        sent, safe = self.planted(rng, k, v, seen, heads // heads_kv, used)
        tensors = [laid(rng, x) for x in (q, *sent, dout)]
        extra = {"deterministic": True} if rng.random() < 0.3 else {}
        quiet = {"nan_safe": True} if safe else {}
        on_device = {name: torch.from_numpy(x).to(self.device) for name, x in ranked.items()}
        try:
            out, lse = attn(*tensors[:3], return_lse=True, **options, **quiet, **given, **on_device)
            found = {"out": out, "lse": lse}
            if Direction.backward in self.target.directions:
                parts = attn.backward(
                    *tensors[:3], out, lse, tensors[3], **options, **quiet, **extra, **given,
                    **on_device,
                )  # fmt: skip
                names = ["dq", "dk", "dv"]
                names += [
                    f"d{n}" for n in ("sink_logits", "alibi_slopes") if options[n] is not None
                ]
                found |= dict(zip(names, parts, strict=True))
        except MaskcError as refusal:
            self.fail(number, "refused", f"{refusal} at {title}")
            return
        for part, values in found.items():
            self.judge(number, part, values, expected, theirs, terms, dtype, title)

    def options(self, rng: Rng, heads: int, dim: int) -> dict[str, Any]:
        """Scale and what else changes the scores; of all kernels a mask has two."""
        scale = None if rng.random() < 0.6 else float(rng.choice([0.3, -0.2, 0.0, 1.5 / dim]))
        more = bool(rng.random() < 0.4)
        slopes = torch.from_numpy(rng.uniform(0.01, 0.3, heads).astype(np.float32))
        sinks = torch.from_numpy(rng.standard_normal(heads).astype(np.float32))
        return {
            "scale": scale, "softcap": 4.0 if more else None,
            "alibi_slopes": slopes.to(self.device) if more else None,
            "sink_logits": sinks.to(self.device) if more else None,
        }  # fmt: skip

    def planted(
        self, rng: Rng, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, group: int,
        used: Mapping[str, Any],
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], bool]:  # fmt: skip
        """k and v with NaN in keys that nobody sees, at times, and whether the call must be told:
        inside a live tile of a GPU a NaN times a weight of 0 would be NaN."""
        dead = ~seen.view(seen.shape[0], -1, group, *seen.shape[2:]).any(2).any(2)
        if rng.random() < 0.7 or self.device == "cuda" or not bool(dead.any()):
            return (k, v), False
        self.counts["planted"] += 1
        bad = torch.where(dead[..., None], torch.nan, 0.0).to(k.dtype)
        return (k + bad, v + bad), bool(rng.random() < 0.5)

    def asked(
        self, number: int, term: Term, keep: Bools, given: Mapping[str, Any],
        ranked: Mapping[str, Any], title: str,
    ) -> None:  # fmt: skip
        """Answers of `dense` and `count`."""
        batch, heads, n_q, n_kv = keep.shape
        if ranked and batch > 1:
            return  # these questions are asked of one sequence
        dense = term.mask.dense(n_q, n_kv, n_heads=heads, **given, **ranked)
        forms = [dense.reshape(-1, 1, n_q, n_kv)]  # 3 dimensions: sequences or heads
        forms = [dense] if dense.ndim == 4 else [*forms, forms[0].transpose(1, 0, 2, 3)]
        self.counts["dense"] += 1
        fitting = [
            x
            for x in forms
            if all(m in (1, n) for m, n in zip(x.shape[:-2], keep.shape[:2], strict=True))
        ]
        if not any(np.array_equal(np.broadcast_to(x, keep.shape), keep) for x in fitting):
            self.fail(number, "dense", title)

    def judge(
        self, number: int, part: str, found: torch.Tensor, expected: Mapping[str, torch.Tensor],
        theirs: Mapping[str, torch.Tensor] | None, terms: Mapping[str, float], dtype: str,
        title: str,
    ) -> None:  # fmt: skip
        """One part: 1e-5 of what is summed in fp32; in half precision twice PyTorch's error, a
        rounding of the value, and 2e-6 of what is summed."""
        right = expected[part]
        if found.shape != right.shape:
            self.fail(number, part, f"shape {tuple(found.shape)} at {title}")
            return
        if not right.numel():
            return
        got = found.double()
        if part == "lse":
            if not torch.equal(torch.isneginf(got), torch.isneginf(right)):
                self.fail(number, part, f"-inf in other rows at {title}")
                return
            live = ~torch.isneginf(right)
            got, right = got[live], right[live]
            error = (
                float(((got - right).abs() / right.abs().clamp(min=1)).max()) if got.numel() else 0
            )
            limit = 2e-5
        else:
            error = float((got - right).abs().max())
            if theirs is None or part.startswith(
                ("ds", "da")
            ):  # PyTorch has none in half precision
                limit = (1e-5 if dtype == "float32" else 4 * EPSILON[dtype]) * terms[part] + 1e-12
                if dtype == "float16":  # its numbers below 2^-14 are 2^-24 apart
                    least = "of weights" if part == "dalibi_slopes" else "of out"
                    limit += 2.0**-25 * terms[f"{part} {least}"]
            else:
                near = float((theirs[part].double() - right).abs().max())
                limit = 2 * near + EPSILON[dtype] * float(right.abs().max()) + 2e-6 * terms[part]
                limit += 2.0**-24 if dtype == "float16" else 0  # below it fp16 has no numbers
        self.counts["parts"] += 1
        key = f"{part} {dtype}"
        self.worst[key] = max(self.worst.get(key, 0.0), error / max(limit, 1e-30))
        if not error <= limit:
            self.fail(number, part, f"off by {error:.3g}, allowed {limit:.3g} at {title}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no mask starts later")
    parser.add_argument("--only", metavar="SEED:MASK", help="repeat one mask")
    parser.add_argument(
        "--target", default="cpu", help="cpu, cuda (what this card has), sm_90a, ..."
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(2)
    name = options.target
    if name == "cuda":
        major, minor = torch.cuda.get_device_capability()
        name = "sm_90a" if (major, minor) == (9, 0) else "sm_80"
    numbers: Any = range(10**9)
    if options.only:
        options.seed, number = map(int, options.only.split(":"))
        numbers = [number]
    fuzz, begin = Fuzz(Target.named(name), options.seed), time.monotonic()
    for number in numbers:
        late = time.monotonic() - begin > options.seconds
        if late or (fuzz.counts["calls"] >= options.calls and not options.only):
            break
        try:
            fuzz.mask(number)
        except Exception:
            fuzz.fail(number, "crash", traceback.format_exc()[-1500:])
    print(f"{time.monotonic() - begin:.0f} s, {dict(fuzz.counts)}, {len(fuzz.wrong)} wrong")
    print("largest share of what is allowed:", {n: round(x, 2) for n, x in fuzz.worst.items()})
    return 1 if fuzz.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
