"""Print how calls run, in a text that shows every decision which changes; a command line, no GPU.

    python -m tests.support.decisions                 # rewrites tests/golden/decisions.txt
    python -m tests.support.decisions --check         # status 1 where a decision has changed

A line has a mask, a target and the options of a call; below it stand, length by length, the kernels
that run, with the mode and the number of blocks of each launch. The planner is the one that calls
have; only the kernels are missing, and the card is one of 132 multiprocessors.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import maskc as mc
from maskc import driver
from maskc.core.bundle import PACK_GQA, Mode
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction, Feature
from maskc.core.target import Target
from maskc.core.tensors import HOST, Array, contiguous
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.checks import check_call
from maskc.dispatch.launch_plan import LaunchPlan, outputs_of, strides_of
from maskc.ir.heads import fixed_heads
from maskc.runtime.binding import Binder
from maskc.runtime.launch.listed import HostMoves
from maskc.runtime.launch.prepared import PreparedLaunch, prepared
from maskc.runtime.planner import CallPlanner
from tests.support.patterns import FOLDER

GOLDEN = Path(__file__).parents[1] / "golden" / "decisions.txt"
PROCESSORS = 132
CUDA = ("cuda", 0)

LENGTHS = (
    (1, 4096), (16, 16), (16, 4096), (128, 128), (512, 512), (512, 8192), (1024, 1024),
    (2048, 2048), (3000, 3000), (4096, 77), (4096, 4096), (8192, 8192),
)  # fmt: skip
"""(queries, keys) of calls."""
FEW = ((1, 4096), (512, 512), (1000, 1000), (4096, 4096))

Data = Callable[[int, int], dict[str, Any]]


def _documents(n: int) -> np.ndarray:
    """Ids of documents of 37 to 676 tokens."""
    lengths = 37 + 71 * (np.arange(1 + n // 37) * 7 % 10)
    return np.repeat(np.arange(len(lengths)), lengths)[:n]


def _times(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Times at which tokens of a tree with three children a node are entered and left."""
    first = np.arange(n)
    return first, np.minimum(first + 1 + 40 * (first % 3 == 0), n)


DATA: dict[str, Data] = {
    "adaptive_local_global": lambda q, k: {"landmarks": np.arange(k) % 61 == 5},
    "ast_tree": lambda q, k: {"tree": _times(k), "below": _times(k), "parent": np.arange(k) // 3},
    "documents": lambda q, k: {"doc": (_documents(q), _documents(k))},
    "flamingo": lambda q, k: {"image": (np.arange(q) // 50, np.arange(k) // 64)},
    "shared_prefix": lambda q, k: {"doc": (_documents(q), _documents(k))},
    "speculative_tree": lambda q, k: {"tree": _times(k)},
}
"""Data of calls of patterns."""


@dataclass(frozen=True)
class Call:
    """Everything about a call except its lengths."""

    target: str
    dim: int
    heads: tuple[int, int] = (16, 16)
    batch: int = 1
    features: tuple[Feature, ...] = ()
    lengths: Sequence[tuple[int, int]] = LENGTHS
    """(queries, keys) of the calls."""
    directions: Sequence[tuple[Direction, bool]] = (
        (Direction.forward, False), (Direction.backward, False),
    )  # fmt: skip
    """Passes, and whether they are deterministic."""

    @property
    def dtype(self) -> str:
        return "float32" if self.target == "cpu" else "bfloat16"

    def __str__(self) -> str:
        named = [feature.name for feature in self.features]
        named += ["deterministic"] if all(fixed for _, fixed in self.directions) else []
        heads = f"{self.batch} x {self.heads[0]}/{self.heads[1]} heads"
        return ", ".join([f"{self.target}: {heads}", f"D {self.dim}", *named])


@dataclass
class _Recorder:
    """Stands in for the binaries of a bundle: remembers what was planned."""

    name: str
    plans: list[tuple[str, LaunchPlan]]

    def get(self, unit: object, mode: str, features: object, device: int) -> _Recorder:
        return self

    def prepare(self, plan: LaunchPlan) -> PreparedLaunch:
        self.plans.append((self.name, plan))
        return prepared(plan, None, plan.outputs)


@dataclass
class Decider:
    """The planner of a mask on a target, without kernels."""

    mask: mc.Mask
    call: Call
    planner: CallPlanner = field(init=False)
    plans: list[tuple[str, LaunchPlan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        call = self.call
        heads = fixed_heads(self.mask) or call.heads[0]
        problem = driver.problem(call.dim, None, heads, call.dtype)
        target = Target.named(call.target)
        bundle = driver.emit_bundle(driver.plan_kernel(self.mask, problem, target))
        self.binder = Binder(bundle)
        self.planner = CallPlanner(bundle, target, self.binder, None)
        self.planner.whole.selector.tuned.clear()
        built = {"": self.planner.whole}
        built |= {f"part {i} ": part for i, part in enumerate(self.planner.parts)}
        if self.planner.chooser is not None:
            built["chooser "] = self.planner.chooser
        for name, each in built.items():
            each.kernels = _Recorder(name, self.plans)  # type: ignore[assignment]
            each.selector._multiprocessors = lambda device: PROCESSORS
        self.planner.listed.mover = lambda device: HostMoves()  # type: ignore[method-assign]
        self.heads = (heads, call.heads[1] * heads // call.heads[0])

    def decision(
        self, direction: Direction, deterministic: bool, n_q: int, n_kv: int, data: dict[str, Any]
    ) -> tuple[str, str]:
        """(sources with their modes, launch by launch; the blocks of each launch)."""
        planner, call = self.planner, self.call
        device = HOST if call.target == "cpu" else CUDA
        alpha = 0.5 if Feature.entmax in call.features else 0.0
        wanted = Pass(direction, frozenset(call.features), deterministic, device, alpha)
        views = self._views(direction, n_q, n_kv, device)
        self.plans.clear()
        try:
            unit = planner.whole.selector.source(direction, wanted.features)
            sizes = check_call(views, planner.bundle, unit)
            on_device = ""
            if planner.bundle.selections or (data and device == CUDA):
                bound = Bound(dict(planner.bundle.params), {}, (), given=object())
                outputs = outputs_of(planner.bundle, direction, views, sizes, True)
                place = Place(sizes, strides_of(views, outputs))
                selector = planner.whole.selector
                program = selector.choose(unit, wanted, bound, place)
                program, _ = selector.interleave(unit, wanted, bound, place, program)
                on_device = f"{program.unit.key} {program.mode} with lists of the device"
            if planner.bundle.selections:
                return on_device, ""
            planner._planned(unit, wanted, views, sizes, self.binder.bind(data, n_q, n_kv), True)
        except MaskcError as error:
            return f"{error.code} {type(error).__name__}", ""
        sources = _counted(_source(name, plan) for name, plan in self.plans)
        blocks = _counted(f"[{_blocks(plan)}]" for _, plan in self.plans)
        return f"{on_device}; of the host: {sources}" if on_device else sources, blocks

    def _views(
        self, direction: Direction, n_q: int, n_kv: int, device: tuple[str, int]
    ) -> dict[str, Array]:
        batch, (heads_q, heads_kv), dim = self.call.batch, self.heads, self.call.dim
        q, k = (batch, heads_q, n_q, dim), (batch, heads_kv, n_kv, dim)
        shapes: dict[str, tuple[int, ...]] = {"q": q, "k": k, "v": k}
        if direction is Direction.backward:
            shapes |= {"out": q, "lse": q[:3], "dout": q}
        return {
            name: Array(1 << 20, shape, contiguous(shape),
                        "float32" if name == "lse" else self.call.dtype, device)
            for name, shape in shapes.items()
        }  # fmt: skip


def _source(name: str, plan: LaunchPlan) -> str:
    """The source of a launch plan and its mode."""
    packed = f" of {plan.packed} heads" if plan.mode == PACK_GQA else ""
    return f"{name}{plan.unit.key} {plan.mode}{packed}"


def _blocks(plan: LaunchPlan) -> str:
    """The blocks of each launch of a plan."""
    mode = dict(plan.unit.modes).get(plan.mode, Mode(()))
    counts = (plan.blocks(launch, PROCESSORS) for launch in mode.launched(plan.features))
    return " ".join(str(count) for count in counts if count)


def _counted(texts: Iterable[str]) -> str:
    """Texts in order; of equal neighbours their number."""
    groups = ((text, len(list(same))) for text, same in groupby(texts))
    return " + ".join(f"{count} x {text}" if count > 1 else text for text, count in groups)


# ------------------------------------------------------------------ what is asked


_FORWARD = ((Direction.forward, False),)
_ORDERED = ((Direction.backward, True),)
CALLS = Call("sm_90a", 64), Call("sm_90a", 128)
"""Calls of all patterns."""
SHOWN = ("causal", "streaming", "longformer", "documents", "landmark", "natten_2d")
OPTIONS = (
    Call("sm_90a", 64, directions=_ORDERED), Call("sm_90a", 128, directions=_ORDERED),
    Call("sm_90a", 64, batch=8, lengths=FEW), Call("sm_90a", 96, lengths=FEW),
    Call("sm_90a", 256, lengths=FEW), Call("sm_90a", 128, (32, 8), 4, lengths=FEW),
    Call("sm_90a", 256, (4, 1), 4, lengths=FEW, directions=_FORWARD),
    *(
        Call("sm_90a", 64, features=(feature,), lengths=FEW)
        for feature in (Feature.alibi, Feature.sinks, Feature.softcap, Feature.entmax)
    ),
    Call("sm_90a", 64, features=(Feature.nan_safe,), lengths=FEW, directions=_FORWARD),
    Call("sm_80", 64, lengths=FEW), Call("cpu", 64, lengths=FEW[:3], directions=_FORWARD),
)  # fmt: skip
"""Further calls of the patterns of `SHOWN`."""


def patterns() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.py"))


def entries(
    names: Iterable[str], calls: Sequence[Call] = CALLS, options: Sequence[Call] = OPTIONS
) -> Iterator[str]:
    """The paragraphs of some patterns; `options` are asked of those in `SHOWN`."""
    for name in names:
        mask = mc.load(FOLDER / f"{name}.py")[name]()
        for call in (*calls, *(options if name in SHOWN else ())):
            yield _paragraph(name, mask, call)


def _paragraph(name: str, mask: mc.Mask, call: Call) -> str:
    head = f"{name}, {call}\n"
    try:
        decider = Decider(mask, call)
    except MaskcError as error:
        return f"{head}  {error.code} {type(error).__name__}\n"
    lines = []
    for direction, deterministic in call.directions:
        lines.append(f"  {direction.value}\n")
        found: list[tuple[str, list[str]]] = []
        for n_q, n_kv in call.lengths:
            data = DATA[name](n_q, n_kv) if name in DATA else {}
            runs, blocks = decider.decision(direction, deterministic, n_q, n_kv, data)
            if not found or found[-1][0] != runs:
                found.append((runs, []))
            found[-1][1].append(f"{n_q} x {n_kv} {blocks}".strip())
        lines += (f"    {runs}: {', '.join(lengths)}\n" for runs, lengths in found)
    return head + "".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args(words)
    text = "\n".join(entries(asked.names or patterns()))
    if asked.names:
        print(text)
        return 0
    if asked.check:
        before = GOLDEN.read_text()
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(True), text.splitlines(True), "golden", "now")
        )
        return int(before != text)
    GOLDEN.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
