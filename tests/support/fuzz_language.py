"""Random masks of the whole language against their own meaning.

    python -m tests.support.fuzz_language --seed 1 --masks 1000          # what masks say
    python -m tests.support.fuzz_language --seed 1 --masks 50 --calls 8  # kernels of the CPU
    python -m tests.support.fuzz_language --seed 1 --only 37             # one mask again

Each mask is drawn with a NumPy function that says what it means, see tests/support/drawn_masks.
`dense`, `count`, `layout`, text, pickles, `equals`, `subset_of` and `diff` must agree with it, or,
with --calls, out, lse and the gradients of kernels with attention in fp64. A fault is one line of
JSON that says how to see it again, and the run goes on.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

import maskc as mc
from tests.support.drawn_masks import Drawer, Drawn, Place, complement, joined, made_of

SHORT, LONG = 70, 140
"""Most lengths are below the first, all below the second; captured arrays have as many elements."""
BLOCKS = (1, 2, 3, 5, 7, 8, 13, 16, 24, 32, 64, 100)
SAMPLES = 8
"""Lengths and data at which two masks are compared by their meaning."""
IDENTITIES = (
    lambda a, b: (joined("-", a, b), joined("&", a, complement(b))),
    lambda a, b: (joined("^", a, b), joined("-", joined("|", a, b), joined("&", a, b))),
    lambda a, b: (complement(joined("|", a, b)), joined("&", complement(a), complement(b))),
    lambda a, b: (a, joined("|", joined("&", a, b), joined("-", a, b))),
)
"""Two ways to write one set."""


class Fault(NamedTuple):
    """Something that is wrong, and how to see it again."""

    what: str
    again: str
    found: str
    mask: str


class Wrong(Exception):
    """An answer that the meaning contradicts."""


@dataclass
class Run:
    """Calls that were made, and their faults."""

    seed: int
    number: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    @contextmanager
    def asking(self, what: str, mask: object) -> Iterator[None]:
        """Count a question; a wrong answer, a refusal and a raw error are faults."""
        self.asked[what] += 1
        try:
            yield
        except Wrong as error:
            self._note(f"{what}: wrong", error, mask)
        except mc.MaskcError as error:
            self._note(f"{what}: refused", error, mask)
        except Exception:
            self._note(f"{what}: raised", traceback.format_exc()[-600:], mask)

    def _note(self, what: str, found: object, mask: object) -> None:
        again = f"--seed {self.seed} --only {self.number}"
        self.faults.append(Fault(what, again, str(found)[:600], str(mask)[:1200]))


def expect(holds: object, found: object) -> None:
    """Raise Wrong, with what was found, unless something holds."""
    if not holds:
        raise Wrong(found)


# ------------------------------------------------------------------ one call


class Call(NamedTuple):
    """Lengths and data of a question or a call."""

    n_q: int
    n_kv: int
    sequences: int
    heads: int
    given: dict[str, Any]
    """Keywords: data and parameters."""
    shows: np.ndarray
    """Pairs that the mask keeps: bool [sequences, heads, n_q, n_kv]."""
    told: int | None
    """Sequences that the data tell apart; None where none has a dimension of them."""


def drawn_lengths(rng: np.random.Generator, drawn: Drawn, longest: int) -> tuple[int, int]:
    if drawn.fixed is not None:
        return drawn.fixed
    n_q, n_kv = rng.integers(0 if rng.random() < 0.1 else 3, longest, 2).tolist()
    n_kv = n_q if rng.random() < 0.4 else n_kv
    return (min(n_q, n_kv), max(n_q, n_kv)) if drawn.fewer_queries else (n_q, n_kv)


def drawn_call(
    rng: np.random.Generator, drawn: Drawn, heads: int, sequences: int, longest: int = SHORT,
    of: Drawn | None = None,
) -> Call:  # fmt: skip
    """A call that suits a mask; `of`: the mask whose meaning it shows, a part of the first."""
    n_q, n_kv = drawn_lengths(rng, drawn, longest)
    data = {name: make(rng, n_q, n_kv, sequences) for name, make in drawn.data.items()}
    params = {name: int(rng.integers(0, 50)) for name in drawn.params if rng.random() < 0.5}
    named = str(drawn.mask)  # a formula may have lost a parameter
    params = {name: value for name, value in params.items() if name in named}
    meanings = {name: given.meaning for name, given in data.items()}
    shows = np.array([
        [
            (of or drawn).shows(Place(n_q, n_kv, head, sequence, meanings, params))
            for head in range(heads)
        ]
        for sequence in range(sequences)
    ]).reshape(sequences, heads, n_q, n_kv)  # fmt: skip
    told = [given.sequences for given in data.values() if given.sequences]
    given = {name: given.call for name, given in data.items()} | params
    return Call(n_q, n_kv, sequences, heads, given, shows, max(told, default=None))


def more(drawn: Drawn, heads: int) -> dict[str, int]:
    """The keyword that says how many heads there are, where they differ."""
    return {"n_heads": heads} if drawn.heads else {}


def axes_of(drawn: Drawn, call: Call) -> np.ndarray:
    """Shape of `dense`, with heads and sequences if the mask differs between them."""
    shown = call.shows if drawn.heads else call.shows[:, :1]
    shown = shown[: call.told] if call.told else shown[:1]
    shown = shown if drawn.heads else shown[:, 0]
    return shown if call.told else shown[0]


# ------------------------------------------------------------------ what a mask says of itself


def check_sets(run: Run, rng: np.random.Generator, drawn: Drawn, heads: int) -> None:
    """Check `dense`, `count` and `layout` of a call."""
    call = drawn_call(rng, drawn, heads, int(rng.integers(1, 3)))
    sizes, given = (call.n_q, call.n_kv), call.given | more(drawn, heads)
    shown = axes_of(drawn, call)
    with run.asking("dense", drawn.mask):
        found = drawn.mask.dense(*sizes, **given)
        expect(np.array_equal(found, shown), f"{sizes} {found.shape} for {shown.shape} {given}")
    with run.asking("count", drawn.mask):
        count = drawn.mask.count(*sizes, **given)
        expect(count == shown.sum(), f"{sizes} {count} for {shown.sum()} {given}")
    head, sequence = int(rng.integers(0, heads)), int(rng.integers(0, call.sequences))
    one = {"head": head} if drawn.heads else {}
    one |= {"batch": sequence} if call.told and call.told > 1 else {}
    block = tuple(int(size) for size in rng.choice(BLOCKS, 2))
    with run.asking("layout", drawn.mask):
        layout = drawn.mask.layout(*sizes, block=block, **one, **given)
        right = tiles(call.shows[sequence if "batch" in one else 0, head if one else 0], block)
        if "head" not in one:
            right = tiles(call.shows[sequence if "batch" in one else 0, 0], block)
        expect(np.array_equal(layout.to_dense(), right), f"{sizes} {block} {one} {given}")
        expect(np.array_equal(layout.transpose().to_dense(), right), f"transposed {sizes} {block}")
        rows = np.repeat(np.arange(len(right)), np.diff(layout.row_ptr))
        ascends = (np.diff(layout.col) > 0) | (np.diff(rows) > 0)
        expect(ascends.all(), f"columns do not ascend {sizes} {block}")


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


def check_objects(run: Run, rng: np.random.Generator, drawn: Drawn, heads: int) -> None:
    """Check that pickles, and texts, are the mask."""
    call = drawn_call(rng, drawn, heads, 1)
    given = call.given | more(drawn, heads)
    with run.asking("pickle", drawn.mask):
        again = pickle.loads(pickle.dumps(drawn.mask))
        expect(again == drawn.mask, again)
        found = again.dense(call.n_q, call.n_kv, **given)
        expect(np.array_equal(found, axes_of(drawn, call)), "a pickle has another meaning")
    if not drawn.captured:
        with run.asking("text", drawn.mask):
            again = mc.parse(str(drawn.mask))
            expect(str(again) == str(drawn.mask), again)
            found = again.dense(call.n_q, call.n_kv, **given)
            expect(np.array_equal(found, axes_of(drawn, call)), again)


# ------------------------------------------------------------------ two masks


def check_relations(
    run: Run, rng: np.random.Generator, drawer: Drawer, drawn: Drawn, heads: int
) -> None:
    """Check `equals`, `subset_of` and `diff` against samples."""
    kind, other = rng.random(), drawer.draw(1)
    same = kind < 0.3
    if same:
        one, other = IDENTITIES[rng.integers(0, len(IDENTITIES))](drawn, other)
    else:
        one, other = (
            drawn,
            joined(str(rng.choice([*"&|-^"])), drawn, other) if kind < 0.65 else other,
        )
    both = Drawn(one.mask | other.mask, lambda place: False, **made_of(one, other))
    seeds = rng.integers(0, 2**32, SAMPLES)
    samples = [
        tuple(
            drawn_call(np.random.default_rng(seed), both, heads, 1, LONG, part)
            for part in (one, other)
        )
        for seed in seeds
    ]
    equal = all(np.array_equal(a.shows, b.shows) for a, b in samples)
    inside = not any((a.shows & ~b.shows).any() for a, b in samples)
    text = f"{one.mask}   and   {other.mask}"
    said = None
    with run.asking("equals", text):
        said = one.mask.equals(other.mask)
        run.asked[f"equals is {said}"] += 1
        expect(said is not True or equal, "True, and a sample differs")
        expect(said is not False or not same, "False of one set")
    with run.asking("subset_of", text):
        subset = one.mask.subset_of(other.mask)
        expect(subset is not True or inside, "True, and a sample differs")
        expect(subset is not False or not same, "False of one set")
    if said is not None:
        with run.asking("diff", text):
            found = mc.diff(one.mask, other.mask)
            expect((found is None) is said, f"{found} after equals said {said}")
            if found is not None:
                check_witness(found, one, other, heads)
    left, right = samples[int(rng.integers(0, SAMPLES))]
    with run.asking("diff at lengths", text):
        given = left.given | more(both, heads)
        found = mc.diff(one.mask, other.mask, n=left.n_q, n_kv=left.n_kv, **given)
        expect((found is None) == np.array_equal(left.shows, right.shows), f"{found} {given}")
        if found is not None:
            expect(found.pairs >= 1, found)
            place = 0, found.head if both.heads else 0, found.q, found.k
            kept = bool(left.shows[place]), bool(right.shows[place])
            expect(kept == (found.kept_by == "a", found.kept_by == "b"), f"{found} {given}")


def check_witness(found: mc.Difference, one: Drawn, other: Drawn, heads: int) -> None:
    """Check by the dense masks that a pair is in the one that is said to keep it, and not in the
    other."""
    if max(found.n_q, found.n_kv) > 3000:
        return
    kept = []
    for part in (one, other):
        given = {name: x for name, x in found.data.items() if name in {*part.data, *part.params}}
        count = max(found.n_heads or heads, found.head + 1)
        shown = part.mask.dense(found.n_q, found.n_kv, **given, **more(part, count))
        place = [found.q, found.k]
        place = [found.head, *place] if part.heads else place
        kept.append(bool(shown[tuple([found.batch, *place][-shown.ndim :])]))
    expect(kept == [found.kept_by == "a", found.kept_by == "b"], f"{found} {kept}")


# ------------------------------------------------------------------ kernels of the CPU


def check_calls(run: Run, rng: np.random.Generator, drawn: Drawn, heads: int, calls: int) -> None:
    """Check out, lse and the gradients of several calls of a compiled mask."""
    dims = [int(size) for size in rng.choice([16, 32], 2)]
    attention = None
    with run.asking("compile", drawn.mask):
        attention = drawn.mask.compile(*dims, dtype="float32", target="cpu", **more(drawn, heads))
    for _ in range(calls if attention else 0):
        call = drawn_call(rng, drawn, heads, int(rng.integers(1, 3)), LONG)
        group = int(rng.choice([size for size in range(1, heads + 1) if heads % size == 0]))
        q, k, v, dout = (
            torch.from_numpy(rng.standard_normal((call.sequences, h, n, d)).astype(np.float32))
            for h, n, d in (
                (heads, call.n_q, dims[0]), (heads // group, call.n_kv, dims[0]),
                (heads // group, call.n_kv, dims[1]), (heads, call.n_q, dims[1]),
            )
        )  # fmt: skip
        sinks = torch.from_numpy(rng.standard_normal(heads).astype(np.float32))
        options = {"sink_logits": sinks} if rng.random() < 0.25 else {}
        right = by_definition(call.shows, q, k, v, dout, options.get("sink_logits"))
        with run.asking("call", drawn.mask):
            out, lse = attention(q, k, v, return_lse=True, **options, **call.given)
            grads = attention.backward(q, k, v, out, lse, dout, **options, **call.given)
            for name, x in zip(right, (out, lse, *grads), strict=False):
                where = f"{call.n_q} x {call.n_kv}, group {group}, {list(options)}, {call.given}"
                expect(is_close(x, right[name]), f"{name} at {where}")


def by_definition(
    keep: np.ndarray, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
    sinks: torch.Tensor | None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """out, lse and gradients in fp64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    if sinks is not None:
        leaves.append(sinks.double().requires_grad_())
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in leaves[1:3])
    scores = leaves[0] @ keys.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~torch.from_numpy(keep), -torch.inf)
    if sinks is not None:
        more_scores = leaves[3][None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, more_scores], -1)
    live = torch.isfinite(scores).any(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(live, scores, 0.0), -1, keepdim=True)
    weights = torch.where(live, torch.exp(scores - lse), 0.0)[..., : k.shape[2]]
    out = weights @ values
    grads = torch.autograd.grad(out, leaves, dout.double(), allow_unused=True)
    grads = [
        torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, grads, strict=True)
    ]
    lse = torch.where(live, lse, -torch.inf)[..., 0].detach()
    return {"out": out.detach(), "lse": lse} | dict(
        zip(("dq", "dk", "dv", "dsinks"), grads, strict=False)
    )


def is_close(found: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether nothing is off by more than rounding in fp32 explains."""
    if found.shape != right.shape:
        return False
    finite = right[torch.isfinite(right)].abs()
    size = max(1.0, float(finite.max())) if finite.numel() else 1.0
    far = (found.double() - right).abs() > 8e-5 * size
    return not bool((far & (found.double() != right)).any())


# ------------------------------------------------------------------ runs


def check_one(run: Run, number: int, calls: int, relations: float) -> None:
    """Draw the mask of a number, and check it."""
    run.number = number
    rng = np.random.default_rng([run.seed, number])
    heads = int(rng.choice([1, 1, 2, 3, 4]))
    fixed = tuple(rng.integers(1, 100, 2).tolist()) if rng.random() < 0.15 else None
    drawer, drawn = Drawer(rng, heads, fixed), None
    with run.asking("draw", ""):
        drawn = drawer.draw(int(rng.integers(0, 4)))
    if drawn is None:
        return
    if calls:
        check_calls(run, rng, drawn, heads, calls)
        return
    check_sets(run, rng, drawn, heads)
    check_objects(run, rng, drawn, heads)
    if rng.random() < relations:
        check_relations(run, rng, drawer, drawn, heads)


def fuzz(seed: int, numbers: Iterable[int], calls: int = 0, relations: float = 0.5) -> Run:
    """Check the masks of some numbers.

    Args:
        calls: of each compiled mask; 0: questions are asked instead.
        relations: the share of masks that are compared with others.
    """
    run = Run(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.DenseWarning)
        for number in numbers:
            shown = len(run.faults)
            check_one(run, number, calls, relations)
            for fault in run.faults[shown:]:
                print(json.dumps(fault._asdict()), flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--only", type=int, help="the number of one mask")
    parser.add_argument("--calls", type=int, default=0, help="calls of each mask's kernels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first = options.only or 0
    numbers = range(first, first + 1) if options.only is not None else range(options.masks)
    run = fuzz(options.seed, numbers, options.calls)
    print(json.dumps({"seed": run.seed, "asked": run.asked, "faults": len(run.faults)}))
    sys.exit(bool(run.faults))


if __name__ == "__main__":
    main()
