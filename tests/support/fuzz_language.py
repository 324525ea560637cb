"""Random masks of the whole language against their own meaning.

    python -m tests.support.fuzz_language --seed 1 --masks 1000          # what masks say
    python -m tests.support.fuzz_language --seed 1 --masks 50 --calls 8  # kernels of the CPU
    python -m tests.support.fuzz_language --masks 50 --calls 25 --target cuda  # those of a card
    python -m tests.support.fuzz_language --seed 1 --only 37             # one mask again

Each mask is drawn with a NumPy function that says what it means, see tests/support/drawn_masks.
`dense`, `count`, `layout`, text, pickles, `equals`, `subset_of` and `diff` must agree with it, or,
with --calls, out, lse and the gradients of kernels with attention in fp64. Lengths of calls lie
around the edges of tiles, tensors have the strides of models, and dead keys hold NaN. A fault is
one line of JSON that says how to see it again, and the run goes on. Under compute-sanitizer one
call of a mask is enough.
"""

from __future__ import annotations

import argparse
import faulthandler
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
from maskc.core.errors import TooManyArrays
from maskc.core.problem import Direction
from maskc.core.target import Target
from tests.support.drawn_masks import (
    Drawer,
    Drawn,
    Given,
    Place,
    complement,
    joined,
    made_of,
    tiles,
)
from tests.support.exact_attention import DEVICE, Results, called, exact_and_rough, wrong

SHORT, LONG = 70, 140
"""Most lengths are below the first, all below the second; captured arrays have as many elements."""
LENGTHS = (1, 2, 3, 17, 31, 63, 64, 65, 100, 127, 128, 129, 191, 200, 257, 300)
"""Lengths of calls."""
PATIENCE = 300
"""Seconds for all calls of a mask on a card."""
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
    """Raise Wrong unless something holds."""
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
    of: Drawn | None = None, lengths: tuple[int, int] | None = None,
) -> Call:  # fmt: skip
    """A call that suits a mask; `of`: the mask whose meaning it shows, a part of the first."""
    n_q, n_kv = lengths or drawn_lengths(rng, drawn, longest)
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


def check_objects(run: Run, rng: np.random.Generator, drawn: Drawn, heads: int) -> None:
    """Check that pickles, and texts, are the mask."""
    call = drawn_call(rng, drawn, heads, 1)
    given = call.given | more(drawn, heads)
    with run.asking("pickle", drawn.mask):
        again = pickle.loads(pickle.dumps(drawn.mask))
        expect(again == drawn.mask, again)
        dense_mask = again.dense(call.n_q, call.n_kv, **given)
        expect(np.array_equal(dense_mask, axes_of(drawn, call)), "a pickle has another meaning")
    if not drawn.captured:
        with run.asking("text", drawn.mask):
            again = mc.parse(str(drawn.mask))
            expect(str(again) == str(drawn.mask), again)
            dense_mask = again.dense(call.n_q, call.n_kv, **given)
            expect(np.array_equal(dense_mask, axes_of(drawn, call)), again)


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


# ------------------------------------------------------------------ kernels


def chosen_keys(rng: np.random.Generator, of: Drawn, heads: int) -> Drawn:
    """The keys of highest score among those of a mask; of equal ones those that come first."""
    count = int(rng.integers(0, 10))

    def make(rng: np.random.Generator, n_q: int, n_kv: int, sequences: int) -> Given:
        scores = rng.integers(-4, 5, (sequences, heads, n_q, n_kv)).astype(np.float32)
        return Given(torch.from_numpy(scores), (scores,), sequences)

    def keep(place: Place) -> np.ndarray:
        scores = place.data["scores"][0][place.sequence, place.head]
        order = np.argsort(np.where(of.shows(place), -scores, np.inf), axis=1, kind="stable")
        ranks = np.argsort(order, axis=1)
        return of.shows(place) & (ranks < count)

    parts = made_of(of)
    parts["data"] = {**parts["data"], "scores": make}
    return Drawn(mc.topk(count, of=of.mask, score="given"), keep, **parts)


def call_lengths(rng: np.random.Generator, drawn: Drawn) -> tuple[int, int]:
    """Lengths around the edges of tiles."""
    if drawn.fixed is not None:
        return drawn.fixed
    n_q, n_kv = rng.choice([n for n in LENGTHS if n < LONG or not drawn.captured], 2).tolist()
    n_kv = n_q if rng.random() < 0.4 else n_kv
    return (min(n_q, n_kv), max(n_q, n_kv)) if drawn.fewer_queries else (n_q, n_kv)


def drawn_options(rng: np.random.Generator, heads: int, device: str) -> dict[str, Any]:
    """A scale and what else changes scores; of all kernels a mask has two."""
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["scale"] = float(rng.choice([0.3, -0.2, 0.0, 0.01]))
    if rng.random() < 0.4:
        slopes, sinks = rng.uniform(0.01, 0.3, heads), rng.standard_normal(heads)
        options["softcap"] = 4.0
        options["alibi_slopes"] = torch.from_numpy(slopes.astype(np.float32)).to(device)
        options["sink_logits"] = torch.from_numpy(sinks.astype(np.float32)).to(device)
    return options


def laid(rng: np.random.Generator, x: torch.Tensor) -> torch.Tensor:
    """The values [B, H, N, D] with strides as models have them."""
    form = int(rng.integers(4))
    if form == 1:  # heads between tokens
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if form == 2:  # rows that are padded
        return torch.cat([x, x[..., :1].expand(*x.shape[:3], 16)], -1)[..., : x.shape[3]]
    if form == 3:  # a part of a longer buffer
        return torch.cat([x, x], 2)[:, :, x.shape[2] :]
    return x


def check_calls(
    run: Run, rng: np.random.Generator, drawn: Drawn, heads: int, calls: int, target: str
) -> None:
    """Check out, lse and the gradients of several calls of a compiled mask."""
    family = Target.named(target)
    on_cpu = family.language == "c"
    dim = dim_v = int(rng.choice(family.head_dims or (1, 3, 8, 16, 33, 64, 80, 128)))
    if on_cpu and rng.random() < 0.3:
        dim_v = int(rng.choice([1, 5, 16, 64]))
    dtype = str(rng.choice(["bfloat16", "float16"] + ["float32"] * on_cpu))
    attention = None
    with run.asking("compile", drawn.mask):
        try:
            attention = drawn.mask.compile(
                dim, dim_v, dtype=dtype, target=target, **more(drawn, heads)
            )
        except mc.MaskcError as refusal:
            # Few targets have kernels for single keys; kernels read eight arrays at most.
            if not (isinstance(refusal, TooManyArrays) or ("scores" in drawn.data and not on_cpu)):
                raise
            run.asked["refused"] += 1
    if not on_cpu:  # a kernel that waits for ever ends the process
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
    for _ in range(calls if attention else 0):
        check_call(run, rng, drawn, attention, heads, (dim, dim_v, dtype))


def check_call(
    run: Run, rng: np.random.Generator, drawn: Drawn, attention: mc.CompiledMask, heads: int,
    kind: tuple[int, int, str],
) -> None:  # fmt: skip
    """Check both passes of a call. On CPUs keys that nobody sees are NaN at times."""
    dim, dim_v, dtype = kind
    on_cpu = attention.target.language == "c"
    device = "cpu" if on_cpu else DEVICE
    call = drawn_call(rng, drawn, heads, int(rng.integers(1, 4)), lengths=call_lengths(rng, drawn))
    group = int(rng.choice([size for size in range(1, heads + 1) if heads % size == 0]))
    q, k, v, dout = (
        torch.from_numpy(rng.standard_normal((call.sequences, h, n, d)).astype(np.float32))
        .to(device, getattr(torch, dtype))
        for h, n, d in (
            (heads, call.n_q, dim), (heads // group, call.n_kv, dim),
            (heads // group, call.n_kv, dim_v), (heads, call.n_q, dim_v),
        )
    )  # fmt: skip
    options = drawn_options(rng, heads, device)
    backward = Direction.backward in attention.target.directions
    live = torch.from_numpy(call.shows).to(device)
    exact, rough = exact_and_rough(q, k, v, dout, live, backward=backward, **options)
    how: dict[str, Any] = {"deterministic": True} if rng.random() < 0.3 else {}
    dead = ~live.unflatten(1, (-1, group)).any(2).any(2)[..., None]
    if on_cpu and rng.random() < 0.3:
        k, v = (x.masked_fill(dead, torch.nan) for x in (k, v))
        how |= {"nan_safe": True} if rng.random() < 0.5 else {}
    given = {x: y.to(device) if isinstance(y, torch.Tensor) else y for x, y in call.given.items()}
    with run.asking("call", drawn.mask):
        computed = called(
            attention, *(laid(rng, x) for x in (q, k, v)), laid(rng, dout) if backward else None,
            given, **options, **how,
        )  # fmt: skip
        where = f"{call.n_q} x {call.n_kv}, {kind}, group {group}, {options}, {how}, {call.given}"
        faults = wrong(computed, exact, rough) if dtype != "float32" else far(computed, exact)
        expect(not faults, f"{faults} at {where}")
        again = called(attention, q, k, v, None, given, **options, **how)
        same = all(torch.equal(x, computed[name]) for name, x in again.items())
        expect(same, f"other bits at {where}")


def far(computed: Results, exact: Results) -> list[str]:
    """Results in fp32 that are off by more than rounding explains."""
    faults = []
    for name, x in computed.items():
        right = exact[name]
        size = right.abs().nan_to_num(0, 0, 0) + 1
        if name != "lse":
            size = torch.maximum(exact[f"size of {name}"], right.abs().max())
        near = (x.double() - right).abs() <= 2e-5 * size
        if x.shape != right.shape or not bool((near | (x == right)).all()):
            faults.append(name)
    return faults


# ------------------------------------------------------------------ runs


def check_one(run: Run, number: int, calls: int, relations: float, target: str) -> None:
    """Draw the mask of a number, and check it."""
    run.number = number
    rng = np.random.default_rng([run.seed, number])
    heads = int(rng.choice([1, 1, 2, 3, 4]))
    fixed = tuple(rng.integers(1, 100, 2).tolist()) if rng.random() < 0.15 else None
    drawer, drawn = Drawer(rng, heads, fixed, 3 if calls else 1), None
    with run.asking("draw", ""):
        drawn = drawer.draw(int(rng.integers(0, 4)))
        if calls and rng.random() < 0.15:
            drawn = joined(
                str(rng.choice([*"&|-"])), chosen_keys(rng, drawn, heads), drawer.draw(1)
            )
    if drawn is None:
        return
    if calls:
        check_calls(run, rng, drawn, heads, calls, target)
        return
    check_sets(run, rng, drawn, heads)
    check_objects(run, rng, drawn, heads)
    if rng.random() < relations:
        check_relations(run, rng, drawer, drawn, heads)


def fuzz(
    seed: int, numbers: Iterable[int], calls: int = 0, relations: float = 0.5, target: str = "cpu"
) -> Run:
    """Check the masks of some numbers.

    Args:
        calls: of each compiled mask; 0: questions are asked instead.
        relations: the share of masks that are compared with others.
        target: whose kernels are called.
    """
    run = Run(seed)
    with warnings.catch_warnings():
        for kind in (mc.DenseWarning, mc.PackedSelectionWarning):
            warnings.simplefilter("ignore", kind)
        for number in numbers:
            shown = len(run.faults)
            check_one(run, number, calls, relations, target)
            for fault in run.faults[shown:]:
                print(json.dumps(fault._asdict()), flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--only", type=int, help="the number of one mask")
    parser.add_argument("--calls", type=int, default=0, help="calls of each mask's kernels")
    parser.add_argument("--target", default="cpu", help="cpu, cuda (what this card has), sm_80 ..")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.target == "cuda":
        hopper = torch.cuda.get_device_capability() == (9, 0)
        options.target = "sm_90a" if hopper else "sm_80"
    first = options.only or 0
    numbers = range(first, first + 1) if options.only is not None else range(options.masks)
    run = fuzz(options.seed, numbers, options.calls, target=options.target)
    print(json.dumps({"seed": run.seed, "asked": run.asked, "faults": len(run.faults)}))
    sys.exit(bool(run.faults))


if __name__ == "__main__":
    main()
