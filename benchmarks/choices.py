"""`python -m benchmarks.choices [--out FILE] [CASE ...]`: does a call take the fastest program?

With `--judge FILE` no GPU is needed: for every call of an earlier run, ask which program it takes
today, and compare the times of that run.

Every program that can run a call is forced and timed, next to the program that the call takes by
itself. Regret is the time of the chosen program divided by the time of the fastest one. Processes
compile the cases side by side; then one case after the other has the card for itself. The output of
every program is compared with the output of the chosen one, and that with attention in fp64 on the
last head.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from threading import BrokenBarrierError
from time import monotonic
from typing import Any

import numpy as np

import maskc as mc
from benchmarks.fitting import card, with_fits
from benchmarks.runs import save
from maskc import driver
from maskc.build.toolchain import gpus
from maskc.core.bundle import PACK_GQA, SourceUnit
from maskc.core.coefficients import priced, source_name
from maskc.core.cost import Items, Tally
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.core.tensors import Array, contiguous
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.checks import check_call
from maskc.dispatch.launch_plan import outputs_of, strides_of
from maskc.dispatch.programs import PARTS
from maskc.dispatch.stand_ins import tally_of_documents
from maskc.dsl.mask import Mask
from maskc.lab.calibrate import forced, stretch_of_program, work_of
from maskc.lab.fitting import Sample, fits
from maskc.layout import (
    build,
    extents,
    load_of,
    sequence_arrays,
    without_documents,
)
from maskc.layout.work.tile_counts import Adders, adders_of, tally_of
from maskc.plan.cost import runs_in_parts
from maskc.runtime.binding import Binder
from maskc.runtime.compiled import CompiledMask
from maskc.runtime.planner import CallPlanner

TARGET = "sm_90a"
Data = dict[str, Any]
Row = dict[str, Any]
_WORKERS, _ROUNDS, _SECONDS = 15, 10, 0.08
_TOLERANCE = 2e-2
"""Relative difference from which two outputs are called different."""
_READY = 240.0
"""Seconds until cases that still compile are left out."""


# ------------------------------------------------------------------ cases


@dataclass(frozen=True)
class Case:
    """A mask and the sizes of a call."""

    name: str
    mask: Callable[[], Mask]
    batch: int
    heads: int
    kv_heads: int
    n_q: int
    n_kv: int
    dim: int
    data: Callable[[np.random.Generator], Data] = field(default=lambda rng: {})
    """Draws the arrays that a call gives."""
    backward: bool = True


def _plain(name: str, mask: Callable[[], Mask], sizes: tuple[int, ...], *dims: int) -> list[Case]:
    """A mask without data at some head dimensions, of (sequences, heads, queries[, keys])."""
    batch, heads, n_q, *rest = sizes
    n_kv = rest[0] if rest else n_q
    return [Case(f"{name}_d{dim}", mask, batch, heads, heads, n_q, n_kv, dim) for dim in dims]


def _lengths(rng: np.random.Generator, mean: int, total: int) -> np.ndarray:
    """Document ids int32 [total], of random lengths around a mean."""
    lengths = rng.integers(mean // 2, mean * 3 // 2, 2 + 2 * total // mean)
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[:total]


def _documents(mean: int, n: int, heads: tuple[int, int], dim: int) -> Case:
    return Case(
        f"documents{mean}_d{dim}", lambda: mc.causal() & mc.documents("doc"), 1, *heads, n, n, dim,
        lambda rng: {"doc": _lengths(rng, mean, n)},
    )  # fmt: skip


def _table(block: int, share: float, by_head: bool, n: int, heads: int, dim: int) -> Case:
    def data(rng: np.random.Generator) -> Data:
        blocks = n // block
        shape = (1, heads, blocks, blocks) if by_head else (blocks, blocks)
        return {"live": (rng.random(shape) < share) | np.eye(blocks, dtype=bool)}

    name = f"table{block}_{share:g}{'_by_head' * by_head}_d{dim}"
    return Case(name, lambda: mc.block_table("live", block), 1, heads, heads, n, n, dim, data)


def _padded(rng: np.random.Generator) -> Data:
    lengths = rng.integers(64, 513, 64)
    return {"real": np.arange(512) < lengths[:, None]}


def _ragged(rng: np.random.Generator) -> Data:
    """Each query of a chunk of 512 sees its sequence's cache and its own chunk up to itself."""
    lengths = np.array([4096, 8192, 12288, 16384, 24576, 32768])
    end = lengths[:, None] - 511 + np.arange(512)
    return {"span": (np.zeros_like(end, dtype=np.int32), end.astype(np.int32))}


def _bigbird(blocks: int) -> Mask:
    return mc.window(64, 64) | mc.random_blocks(64, 3, seed=1) | mc.global_tokens(64)


def _cases() -> Iterator[Case]:
    hf = mc.window.hf
    yield from _plain("causal_512", mc.causal, (32, 16, 512), 64, 96, 128)
    yield from _plain("causal_1k", mc.causal, (8, 16, 1024), 64, 96, 128)
    yield from _plain("causal_4k", mc.causal, (2, 16, 4096), 64, 96, 128, 256)
    yield from _plain("causal_16k", mc.causal, (1, 8, 16384), 64, 96, 128)
    yield from _plain("full_197", mc.full, (64, 16, 197), 64)
    yield from _plain("full_384", mc.full, (64, 8, 384), 32, 64)
    yield from _plain("full_729", mc.full, (32, 16, 729), 72, 64, 128)
    yield from _plain("full_1k", mc.full, (8, 16, 1024), 64, 96, 128)
    yield from _plain("full_4k", mc.full, (1, 16, 4096), 64, 96, 128)
    yield from _plain("cross_4k_77", mc.full, (8, 10, 4096, 77), 64, 128)
    yield from _plain("cross_1k_256", mc.full, (16, 16, 1024, 256), 64, 128)
    yield from _plain("cross_256_4k", mc.full, (8, 16, 256, 4096), 64, 128)
    for width in (64, 128, 256, 512, 1024):
        yield from _plain(f"window{width}", lambda w=width: hf(w), (1, 8, 16384), 64, 96, 128)
    yield from _plain("window2047", lambda: hf(2047), (1, 32, 8192), 96, 128)
    yield from _plain("both_256", lambda: mc.window(256, 256), (1, 8, 16384), 64, 128)
    streaming = mc.causal() & (mc.sinks(16) | hf(256))
    yield from _plain("sinks16_window256", lambda: streaming, (1, 16, 8192), 64, 128)
    longformer = mc.window(128, 128) | mc.global_tokens(64)
    yield from _plain("longformer", lambda: longformer, (1, 12, 16384), 64, 128)
    yield from _plain("bigbird", lambda: _bigbird(64), (1, 12, 8192), 64, 128)
    for size in (64, 128, 512):
        yield from _plain(f"blocks{size}", lambda s=size: mc.block_diagonal(s), (1, 16, 16384), 64)
    yield from _plain("blocks512", lambda: mc.block_diagonal(512), (1, 16, 16384), 128)
    yield from _plain("chunked2k", lambda: mc.chunked(2048), (1, 16, 16384), 96, 128)
    prefix = mc.causal() | mc.prefix(1024)
    yield from _plain("prefix1k", lambda: prefix, (1, 16, 4096), 64, 128)
    yield from _plain(
        "strided", lambda: mc.patterns.sparse_transformer_strided(), (1, 8, 16384), 128
    )
    yield from _plain("dilated8", lambda: mc.dilated(63, stride=8), (1, 8, 16384), 64, 128)
    yield from _plain("axial64", lambda: mc.patterns.axial(width=64), (1, 8, 4096), 64)
    for width in (7, 13, 25):
        natten = mc.patterns.natten_2d(width=64, kernel=(width, width))
        yield from _plain(f"natten64_{width}", lambda m=natten: m, (4, 8, 4096), 64, 128)
    yield from _plain("swin64", lambda: mc.patterns.swin(), (4, 8, 4096), 64, 128)
    for n in (512, 1024, 2048):  # too few heads to fill a card
        yield from _plain(f"few_causal_{n}", mc.causal, (1, 16, n), 64, 128)
        yield from _plain(f"few_full_{n}", mc.full, (1, 16, n), 64, 128)
        yield from _plain(f"few_window_{n}", lambda: hf(256), (1, 16, n), 64, 128)
    yield from _plain("few_cross_4k_77", mc.full, (1, 16, 4096, 77), 64, 128)
    yield from _plain("few_narrow_4k", lambda: mc.window(47), (1, 16, 4096), 64)
    yield from _plain("few_causal_4k_77", mc.causal, (1, 16, 4096, 77), 64, 128)
    for n in (512, 2048):
        yield from _plain(f"few_wide_{n}", mc.causal, (1, 16, n), 256)
        for name, mask in {
            "streaming": streaming, "longformer": longformer, "blocks128": mc.block_diagonal(128),
            "prefix": mc.causal() | mc.prefix(256), "dilated": mc.dilated(63, stride=8),
        }.items():  # fmt: skip
            yield from _plain(f"few_{name}_{n}", lambda m=mask: m, (1, 16, n), 64, 128)
    for name, mask in {"causal": mc.causal, "window": lambda: hf(256)}.items():
        yield from _plain(f"few_{name}_512_8k", mask, (1, 16, 512, 8192), 64, 128)
    yield _documents(300, 16384, (32, 8), 128)
    yield _documents(900, 16384, (32, 8), 128)
    yield _documents(400, 16384, (16, 16), 72)
    yield _documents(1500, 16384, (16, 16), 64)
    yield _documents(6000, 32768, (16, 4), 128)
    yield _table(64, 0.05, True, 16384, 16, 128)
    yield _table(64, 0.25, False, 8192, 16, 128)
    yield _table(64, 0.05, True, 8192, 16, 64)
    yield _table(128, 0.1, False, 16384, 16, 128)
    yield Case("padded_512_d64", lambda: mc.flags("real"), 64, 12, 12, 512, 512, 64, _padded)
    yield Case("ragged_prefill_d128", lambda: mc.intervals("span"), 6, 32, 8, 512, 32768, 128,
               _ragged, backward=False)  # fmt: skip


CASES = tuple(_cases())


# ------------------------------------------------------------------ programs


def variants(attn: CompiledMask, direction: Direction) -> dict[str, CompiledMask]:
    """Every program of a pass by name: source and mode; `parts` where the mask has parts."""
    made = {
        f"{'boxes' if unit.boxes else source_name(direction, unit.form)} {mode}": forced(
            attn, unit, mode
        )
        for unit in attn.bundle.choice(TARGET, direction)
        for mode, _ in unit.modes
        if mode != PACK_GQA
    }
    if attn.bundle.parts:
        made["parts"] = CompiledMask(attn.bundle, TARGET, in_parts=True, held=attn.held)
    return made


def _name_of(attn: CompiledMask, direction: Direction) -> str:
    """The program of the last call: `parts`, or source and mode."""
    units = {unit.key: unit for unit in attn.bundle.choice(TARGET, direction)}
    ran = [source.rpartition(" ") for source in attn.last_sources]
    own = [(units[key], mode) for key, _, mode in ran if key in units]
    if len(own) != 1:
        return "parts"
    ((unit, mode),) = own
    return f"{'boxes' if unit.boxes else source_name(direction, unit.form)} {mode}"


# ------------------------------------------------------------------ one case


class Prepared:
    """A case with all of its programs compiled."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.attn = case.mask().compile(case.dim, n_heads=case.heads, target=TARGET)
        self.directions = (Direction.forward, Direction.backward)[: 1 + case.backward]
        self.programs = {each: variants(self.attn, each) for each in self.directions}
        self.attn.warmup()

    def times(self) -> Row:
        """Milliseconds of every program, after a check."""
        import torch

        from maskc.verify.timing import Timed, take_turns

        case, torch_data = self.case, {}
        rng = np.random.default_rng(0)
        for name, value in case.data(rng).items():
            several = isinstance(value, tuple)
            torch_data[name] = (
                tuple(torch.tensor(x, device="cuda") for x in value) if several
                else torch.tensor(value, device="cuda")
            )  # fmt: skip
        torch.manual_seed(0)
        shapes = [(case.heads, case.n_q), (case.kv_heads, case.n_kv), (case.kv_heads, case.n_kv)]
        q, k, v = (
            torch.randn(case.batch, h, n, case.dim, device="cuda", dtype=torch.bfloat16)
            for h, n in shapes
        )
        dout = torch.randn_like(q)
        row: Row = {"case": case.name}

        def call(attn: CompiledMask, direction: Direction) -> Callable[[], Any]:
            if direction is Direction.forward:
                return lambda: attn(q, k, v, return_lse=True, **torch_data)
            return lambda: attn.backward(q, k, v, out, lse, dout, **torch_data)

        out, lse = call(self.attn, Direction.forward)()
        for direction in self.directions:
            run = call(self.attn, direction)
            self.attn._repeats.clear()  # or a repeated call would name the other pass's plan
            want = run()
            found: Row = {"chosen": _name_of(self.attn, direction), "errors": {}}
            timed = {"chosen": Timed(run)}
            for name, program in self.programs[direction].items():
                run = call(program, direction)
                try:
                    got = run()
                except Exception as error:  # a program that cannot run this call
                    found.setdefault("refused", {})[name] = f"{type(error).__name__}: {error}"[:160]
                    continue
                ran = _name_of(program, direction)
                if name != "parts" and ran != name:
                    found.setdefault("other", {})[name] = ran
                    continue
                error = max(_difference(a, b) for a, b in zip(got, want, strict=True))
                found["errors"][name] = round(error, 5)
                if error < _TOLERANCE:
                    timed[name] = Timed(run)
            torch.cuda.synchronize()
            ms = take_turns(timed, _ROUNDS, "cuda", _SECONDS)
            found["ms"] = {name: round(x, 5) for name, x in ms.items()}
            row[direction.value] = found
        return row


def _difference(a: Any, b: Any) -> float:
    """Relative difference of two results; rows without keys have an lse of -inf in both."""
    a, b = a.double().nan_to_num(neginf=0.0), b.double().nan_to_num(neginf=0.0)
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def _work(numbers: list[int], ready: Any, lock: Any, pipe: Any) -> None:
    """Prepare some cases; when all have been, time them one by one."""
    os.environ["OMP_NUM_THREADS"] = "1"
    prepared: list[Prepared] = []
    for number in numbers:
        try:
            prepared.append(Prepared(CASES[number]))
        except Exception as error:  # also a defect of maskc is a result here
            pipe.send({"case": CASES[number].name, "raised": repr(error)[:300]})
    with suppress(BrokenBarrierError):  # others are late: go on without them
        ready.wait(_READY)
    for one in prepared:
        with lock:
            try:
                pipe.send(one.times())
            except Exception as error:
                pipe.send({"case": one.case.name, "raised": repr(error)[:300]})
    pipe.send(None)


def measure(names: list[str], path: Path) -> None:
    """Time every case whose name starts with one of the prefixes, and save the rows."""
    import torch

    numbers = [i for i, case in enumerate(CASES) if not names or case.name.startswith(tuple(names))]
    context = multiprocessing.get_context("spawn")
    count = min(_WORKERS, len(set(map(_kernels, numbers))))
    ready, lock, (mine, its) = context.Barrier(count), context.Lock(), context.Pipe(False)
    send_lock = context.Lock()
    workers = []
    for share in _shares(numbers, count):
        args = (share, ready, lock, _Sender(its, send_lock))
        workers.append(context.Process(target=_work, args=args, daemon=True))
        workers[-1].start()
    gpu = gpus()[0]
    report: Row = {
        "card": gpu.name, "torch": torch.__version__, "command": "python -m benchmarks.choices",
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "bytes_per_cycle": round(gpu.bytes_per_cycle, 1), "rows": [],
    }  # fmt: skip
    ended = 0
    while ended < count:
        row = mine.recv()
        if row is None:
            ended += 1
            continue
        report["rows"].append(row)
        save(path, report)
        print(f"{monotonic():.0f} {_line(row)}", flush=True)
    print(summary(report["rows"]))


def _kernels(number: int) -> tuple[str, int]:
    """Return the key of a case's kernels; masks that differ in numbers only share kernels."""
    case = CASES[number]
    return re.sub(r"(?<=[a-z])\d+", "", case.name), case.dim


def _shares(numbers: list[int], count: int) -> list[list[int]]:
    """The cases of each worker; those with the same kernels stay together."""
    shares: list[list[int]] = [[] for _ in range(count)]
    for place, kernels in enumerate(dict.fromkeys(map(_kernels, numbers))):
        shares[place % count] += [number for number in numbers if _kernels(number) == kernels]
    return shares


class _Sender:
    """One end of a pipe that several processes share."""

    def __init__(self, pipe: Any, lock: Any) -> None:
        self._pipe, self._lock = pipe, lock

    def send(self, value: Any) -> None:
        with self._lock:
            self._pipe.send(value)


# ------------------------------------------------------------------ coefficients


def samples(rows: list[Row]) -> list[Sample]:
    """The work of every program that was timed, for the fit of the cost model."""
    times = {row["case"]: row for row in rows}
    found: list[Sample] = []
    for case in CASES:
        row = times.get(case.name, {})
        passes = [each for each in Direction if each.value in row]
        if passes:
            attn = case.mask().compile(case.dim, n_heads=case.heads, target=TARGET)
            for direction in passes:
                found += _samples(case, attn, direction, row[direction.value]["ms"])
    return found


def _samples(
    case: Case, attn: CompiledMask, direction: Direction, ms: dict[str, float]
) -> Iterator[Sample]:
    backward = direction is Direction.backward
    dim = attn.target.padded(attn.bundle.problem).head_dim
    for unit in attn.bundle.choice(TARGET, direction):
        if unit.boxes is not None or not unit.costs:
            continue
        tallies, items, adders = _counted(case, attn, unit, direction)
        heads = case.batch * case.heads / len(tallies)
        columns = case.batch * (case.kv_heads if backward else case.heads) / len(tallies)
        total = Tally(
            round(columns * sum(x.rows for x in tallies)),
            round(heads * sum(x.tiles for x in tallies)),
            round(heads * sum(x.masked for x in tallies)),
            round(columns * sum(x.lone for x in tallies)),
            round(heads * sum(x.queries for x in tallies)),
        )
        source = source_name(direction, unit.form)
        for mode, _ in unit.modes:
            if f"{source} {mode}" in ms:
                rest = (items, adders, case.batch * case.heads / len(tallies))
                stretch = stretch_of_program(unit, mode, *rest) if backward else 1.0
                sample = work_of(unit, mode, dim, total, 1.0, stretch)
                yield replace(sample, ms=ms[f"{source} {mode}"])


def _counted(
    case: Case, attn: CompiledMask, unit: SourceUnit, direction: Direction
) -> tuple[list[Tally], Items | None, Adders | None]:
    """Tile counts of every distinct list of a case, with the data that were timed; the work items
    and the tile rows of a backward pass where the host makes its lists."""
    bundle, binder = attn.bundle, Binder(attn.bundle)
    data = case.data(np.random.default_rng(0))
    bound = binder.completed(binder.bind(data, case.n_q, case.n_kv), case.n_q, case.n_kv)
    recipe = bundle.variants[0].recipe(unit.tile)
    if unit.by_documents:
        beside, ids = without_documents(recipe.keep, bundle.data), data["doc"]
        if beside is None:
            raise TypeError(f"{case.name}: not a mask of documents")
        return [tally_of_documents(unit.tile, beside, bound.params, ids, direction)], None, None
    batches, heads = extents(recipe, bound.arrays)
    layouts = [
        build(recipe, case.n_q, case.n_kv, bound.params,
              sequence_arrays(recipe, bound.arrays, sequence, head))
        for sequence in range(batches) for head in range(heads)
    ]  # fmt: skip
    items = None
    if unit.work is not None and direction is Direction.backward:
        heads = case.batch * case.heads
        items = load_of(layouts, direction, unit.work, heads, case.n_q, case.n_kv)
    return [tally_of([layout], direction) for layout in layouts], items, adders_of(layouts)


def calibrate(report: Row, path: Path) -> str:
    """Fit the cost model to measured programs, write it to a file, and return a line per fit."""
    found = fits(samples(report["rows"]), report["multiprocessors"])
    measured = card(report["card"], report["multiprocessors"], found, report["bytes_per_cycle"])
    before = path if path.is_file() else files("maskc.core") / "cost.toml"
    path.write_text(with_fits(before.read_text("utf-8"), TARGET, found, measured))
    return "".join(f"{fit}\n" for fit in found)


# ------------------------------------------------------------------ regret


def planned(case: Case, direction: Direction) -> str:
    """Return the program that a call takes on an H200, planned without a card."""
    mask, target = case.mask(), Target.named(TARGET)
    attn = mask.compile(case.dim, n_heads=case.heads, target=TARGET)
    bundle = priced(attn.bundle)
    binder, shapes = Binder(bundle), _shapes(case, direction)
    planner = CallPlanner(bundle, target, binder, None)
    views = {
        name: Array(1 << 20, shape, contiguous(shape),
                    "float32" if name == "lse" else "bfloat16", ("cuda", 0))
        for name, shape in shapes.items()
    }  # fmt: skip
    selector, wanted = planner.whole.selector, Pass(direction, frozenset(), False, ("cuda", 0))
    selector.tuned.clear()
    unit = selector.source(direction)
    sizes = check_call(views, bundle, unit)
    place = Place(sizes, strides_of(views, outputs_of(bundle, direction, views, sizes, True)))
    if case.data(np.random.default_rng(0)):  # on the device
        bound = Bound(dict(bundle.params), {}, (), given=object())
    else:
        bound = binder.completed(binder.bind({}, case.n_q, case.n_kv), case.n_q, case.n_kv)
        plan = driver.plan_kernel(mask, bundle.problem, target)
        heads = case.batch * case.heads
        if bundle.parts and runs_in_parts(plan, case.n_q, case.n_kv, direction, heads):
            return PARTS
    program = selector.choose(unit, wanted, bound, place)
    boxes = program.unit.boxes is not None
    return f"{'boxes' if boxes else source_name(direction, program.unit.form)} {program.mode}"


def _shapes(case: Case, direction: Direction) -> dict[str, tuple[int, ...]]:
    q = case.batch, case.heads, case.n_q, case.dim
    k = case.batch, case.kv_heads, case.n_kv, case.dim
    shapes: dict[str, tuple[int, ...]] = {"q": q, "k": k, "v": k}
    if direction is Direction.backward:
        shapes |= {"out": q, "lse": q[:3], "dout": q}
    return shapes


def judged(rows: list[Row]) -> Iterator[Row]:
    """The rows of an earlier run, as if its calls had taken the programs that they take today.

    Passes that would run what was not timed keep the program of that run.
    """
    cases = {case.name: case for case in CASES}
    for row in rows:
        passes = {each.value: dict(row[each.value]) for each in Direction if each.value in row}
        for direction, one in passes.items():
            name = planned(cases[row["case"]], Direction(direction))
            if name in one["ms"]:
                one |= {"chosen": name, "ms": one["ms"] | {"chosen": one["ms"][name]}}
        yield row | passes


def regrets(rows: list[Row]) -> Iterator[tuple[str, str, float, str, str]]:
    """(case, pass, regret, the chosen program, the fastest one) of every measured pass."""
    for row in rows:
        for direction in ("forward", "backward"):
            ms = row.get(direction, {}).get("ms", {})
            if len(ms) > 1:
                fastest = min((name for name in ms if name != "chosen"), key=lambda n: ms[n])
                regret = max(1.0, ms["chosen"] / ms[fastest])
                yield row["case"], direction, regret, row[direction]["chosen"], fastest


def summary(rows: list[Row]) -> str:
    """Geometric mean and worst regret of each pass."""
    lines = []
    for direction in ("forward", "backward"):
        own = [(r[2], r) for r in regrets(rows) if r[1] == direction]
        if own:
            mean = math.exp(sum(math.log(regret) for regret, _ in own) / len(own))
            worst, (case, _, _, chosen, fastest) = max(own)
            lines.append(
                f"{direction}: regret {mean:.3f} (geometric mean of {len(own)}), worst {worst:.2f} "
                f"({case}: {chosen}, fastest {fastest})"
            )
    return "\n".join(lines)


def _line(row: Row) -> str:
    if "raised" in row:
        return f"{row['case']}: {row['raised']}"
    parts = [f"{one[1]} {one[2]:.2f} ({one[3]}, fastest {one[4]})" for one in regrets([row])]
    return f"{row['case']}: {'; '.join(parts)}"


def main() -> None:
    """Measure, or summarise a file."""
    parser = argparse.ArgumentParser(prog="benchmarks.choices")
    parser.add_argument("--out", type=Path, default=Path("choices.json"))
    parser.add_argument("--summary", type=Path, metavar="FILE", help="print the regrets of a file")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="with today's choices")
    parser.add_argument("--calibrate", type=Path, metavar="TOML", help="fit a file's times")
    parser.add_argument("names", nargs="*", metavar="CASE")
    asked = parser.parse_args()
    earlier = asked.summary or asked.judge
    if earlier is None:
        measure(asked.names, asked.out)
        return
    report = json.loads(earlier.read_text())
    if asked.calibrate is not None:
        print(calibrate(report, asked.calibrate))
        return
    rows = list(judged(report["rows"])) if asked.judge else report["rows"]
    for row in rows:
        print(_line(row))
    print(summary(rows))


if __name__ == "__main__":
    main()
