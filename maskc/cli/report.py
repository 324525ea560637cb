"""maskc report: one page about a mask."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.measuring import How, measured, refuse_wrong
from maskc.cli.options import (
    LENGTHS_TYPE,
    KernelOptions,
    data_options,
    json_option,
    mask_source,
    problem_options,
)
from maskc.cli.output import FilePath, echo, told, write_file, write_json
from maskc.core.errors import BadEvaluation, BadNotes, MaskcError, UsageMistake
from maskc.dsl.pattern import kind_name

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.lab.evaluate import Evaluated, Evaluation
    from maskc.lab.report import Subject
    from maskc.lab.sweep import Measurement

_LENGTHS = {"cpu": (128, 256, 512, 1024)}
"""Default lengths to time, by target."""
_OTHER = (1024, 4096, 16384)
_CHECKED = 2
"""The first ones are checked where nothing is timed."""


@click.command(short_help="Write a report: meaning, cost, proofs, speed, quality.")
@mask_source
@click.option(
    "-o", "--output", type=FilePath(dir_okay=False), required=True, metavar="FILE",
    help="The page: *.html or *.md.",
)  # fmt: skip
@problem_options
@click.option(
    "--n", type=LENGTHS_TYPE, metavar="N[,N...]",
    help="Lengths to time: 512,1k,2k.  [default: short ones; that of --data]",
)  # fmt: skip
@click.option(
    "--direction", type=click.Choice(("fwd", "bwd", "both")), default="both", show_default=True,
    help="Forward pass, backward pass, or both.",
)  # fmt: skip
@click.option(
    "--repeats", type=click.IntRange(0), default=10, show_default=True, metavar="N",
    help="Rounds of timing; 0 checks results and times nothing.",
)  # fmt: skip
@click.option(
    "--evaluation", type=FilePath(dir_okay=False), metavar="JSON",
    help="Output of `maskc evaluate -o JSON`: quality, ablations, significance.",
)  # fmt: skip
@click.option(
    "--notes", type=FilePath(dir_okay=False), metavar="FILE",
    help="Markdown with the headings `# Motivation` and `# Discussion`, in your own words.",
)  # fmt: skip
@data_options(None, extra=("q", "k"))
@json_option
def report(
    entries: list[MaskEntry], output: str, asked: KernelOptions, n: tuple[int, ...] | int | None,
    n_kv: int | None, direction: str, repeats: int, evaluation: str | None, notes: str | None,
    arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Write one self-contained page about the mask of FILE.

    The page shows the definition, a picture, a heatmap of attention weights, proofs, pseudocode,
    complexity, the plan, verification, speed on this machine, quality, ablations and significance.
    The heatmap uses q and k of --data q=FILE and k=FILE, or synthetic ones.

    If a section was not run, it says so and names the command that runs it. Exits with 3 if a
    result is wrong; the page is still written.
    """
    writer = _writer(output)
    if len(entries) > 1:
        names = ", ".join(entry.name for entry in entries)
        raise UsageMistake(
            f"a report is about one mask, and there are {len(entries)}: {names}",
            "choose one with --pattern", at="FILE",
        )  # fmt: skip
    entry = entries[0]
    read = None if evaluation is None else read_evaluation(evaluation)
    row = None if read is None else _row_of(read, entry, str(evaluation))
    written = {} if notes is None else read_notes(notes)
    directions = ("fwd", "bwd") if direction == "both" else (direction,)
    how = How(asked, None, 1, directions, repeats)
    with told() as progress:
        subject = _subject(entry, how, n, arrays, read, row, _command(output), progress)
        from maskc.lab.report import document

        tensors = {name: arrays.given[name] for name in ("q", "k") if name in arrays.given}
        subject = replace(
            subject, tensors=tensors, motivation=written.get("motivation", ()),
            discussion=written.get("discussion", ()),
        )  # fmt: skip
        page = document(subject, progress)
    write_file(Path(output), writer(page))
    if as_json:
        write_json({"written": [output], "sections": [section.key for section in page.sections]})
    else:
        echo(output)
    if subject.measurement is not None:
        refuse_wrong(subject.measurement.rows)


def _command(output: str) -> str:
    """Return the command line as typed, with file names instead of paths."""
    typed = sys.argv[1:] if Path(sys.argv[0]).name in ("maskc", "__main__.py") else []
    if not typed:
        return f"maskc report ... -o {shlex.quote(Path(output).name)}"
    return shlex.join(["maskc", *map(_without_folder, typed)])


def _without_folder(word: str) -> str:
    """An argument in which an absolute path, or NAME= and one, is the file's name alone."""
    name, equals, path = word.partition("=")
    if equals and path.startswith("/"):
        return f"{name}={Path(path).name}"
    return Path(word).name if word.startswith("/") else word


def _writer(output: str) -> Any:
    """Return the function that turns a document into the text of the file.

    Raises:
        UsageMistake: another suffix.
    """
    from maskc.lab.report.html import html
    from maskc.lab.report.markdown import markdown

    writer = {".html": html, ".htm": html, ".md": markdown}.get(Path(output).suffix.lower())
    if writer is None:
        hint = "the suffix says which kind of page to write"
        raise UsageMistake(f"{output!r} is neither *.html nor *.md", hint, at="-o")
    return writer


def read_evaluation(path: str) -> Evaluation:
    """Read a file that `maskc evaluate -o` wrote.

    Raises:
        BadEvaluation: it cannot be read, or is something else (MC750).
    """
    from maskc.lab.evaluate import Evaluation

    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadEvaluation(path, reason, at="--evaluation") from None
    try:
        return Evaluation.from_json(text)
    except BadEvaluation as error:
        raise BadEvaluation(path, error.args[1], at="--evaluation") from None


_NOTES = ("motivation", "discussion")
"""The headings of a file with notes, and the sections of a report that they become."""


def read_notes(path: str) -> dict[str, list[str]]:
    """Read the paragraphs under `# Motivation` and `# Discussion` of a Markdown file.

    A blank line ends a paragraph, and an item of a list is one. Marks inside of a paragraph stay
    as they are: a report shows text.

    Raises:
        BadNotes: it cannot be read, or has neither heading, or nothing below one (MC755).
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadNotes(path, reason, at="--notes") from None
    parts = re.split(r"^#+[ \t]+(.+?)[ \t]*#*[ \t]*$", text, flags=re.M)
    notes: dict[str, list[str]] = {}
    for title, below in zip(parts[1::2], parts[2::2], strict=True):
        key = title.strip().lower()
        if key not in _NOTES:
            raise BadNotes(path, f"it has the heading {title!r}", at="--notes")
        paragraphs = re.split(r"\n[ \t]*\n|\n(?=[ \t]*[-*+] )", below)
        notes[key] = [" ".join(text.split()) for text in paragraphs if text.strip()]
        if not notes[key]:
            raise BadNotes(path, f"nothing stands below {title!r}", at="--notes")
    if not notes or parts[0].strip():
        raise BadNotes(path, "it does not begin with one of the headings", at="--notes")
    return notes


def _row_of(evaluation: Evaluation, entry: MaskEntry, path: str) -> Evaluated:
    """The row of an evaluation that is about a mask.

    Raises:
        BadEvaluation: none is of a mask that is proved equal (MC750).
    """
    from maskc.lab.evaluate.evaluating import digest_of

    digest = digest_of(entry.mask, entry.params)
    rows = [pattern for pattern in evaluation.patterns if pattern.role != "ablation"]
    same = [pattern for pattern in rows if pattern.digest == digest]
    for pattern in same or (pattern for pattern in rows if _equal(pattern.mask, entry)):
        return pattern
    settings = {row.name: f" (--set {row.setting})" for row in rows if row.setting}
    held = "; ".join(f"{row.name} = {row.mask}{settings.get(row.name, '')}" for row in rows)
    what = f"no mask in it is proved equal to {entry.name} = {entry.mask}"
    what += f"; it holds {held or 'nothing'}"
    raise BadEvaluation(path, what, at="--evaluation")


def _equal(text: str, entry: MaskEntry) -> bool:
    """Whether a mask as text is proved equal to that of an entry.

    Text shows neither the values of parameters nor captured arrays: nothing is proved of those.
    """
    from maskc.dsl.nodes import default_parameters
    from maskc.dsl.parser import parse

    try:
        mask = parse(text)
        return not default_parameters(mask) and mask.equals(entry.mask) is True
    except MaskcError:
        return False


def _subject(
    entry: MaskEntry, how: How, n: tuple[int, ...] | int | None, arrays: Arrays,
    evaluation: Evaluation | None, row: Evaluated | None, command: str,
    progress: Callable[[str], object],
) -> Subject:  # fmt: skip
    """The mask with all that was measured of it."""
    from maskc.cli.given import names
    from maskc.lab.report import Subject

    problem = how.asked.problem(entry.mask)
    target = how.asked.target_for(entry.mask)
    asked = (n,) if isinstance(n, int) else n
    default_lengths = _LENGTHS.get(target.name, _OTHER)
    lengths = asked if asked else default_lengths if how.repeats else default_lengths[:_CHECKED]
    words = _words(entry)
    measurement, why = _measurement(entry, how, lengths, arrays, words, progress)
    made_up = [name for name in names(entry) if name not in arrays.given]

    def data_at(length: int) -> Mapping[str, object]:
        return arrays.of(entry, length, length, quiet=True)

    return Subject(
        entry.name, entry.mask, entry.title, words, command, problem, target, data_at,
        _parameters(entry), measurement, why, evaluation, row, made_up,
    )  # fmt: skip


def _measurement(
    entry: MaskEntry, how: How, lengths: tuple[int, ...], arrays: Arrays, words: str,
    progress: Callable[[str], object],
) -> tuple[Measurement | None, str]:  # fmt: skip
    """(what was measured, why nothing was)."""
    from maskc.ir.heads import HEADS

    try:
        result = measured([entry], how, lengths, None, arrays.of, progress)
    except MaskcError as refusal:
        return None, f"{refusal.finding} ({refusal.code})"
    if not how.repeats:
        return result, "--repeats 0 was asked for"
    rest = f"--n {','.join(map(str, lengths))} --target {how.asked.target_for(entry.mask).name}"
    asked = how.asked
    kernel = f"--head-dim {asked.head_dim} --dtype {asked.dtype}"
    heads = f"--heads {asked.heads_for(entry.mask) or HEADS}"
    which = how.directions[0] if len(how.directions) == 1 else "both"
    command = (
        f"maskc bench {words} {rest} {kernel} {heads} --direction {which} --repeats {how.repeats}"
    )
    return replace(result, command=command), ""


def _words(entry: MaskEntry) -> str:
    """Return the mask as a command line names it, with its settings."""
    settings = [f"--set {shlex.quote(f'{name}={text}')}" for name, text in entry.settings.items()]
    settings += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in entry.params.items()]
    named = entry.source in (entry.name, f"{entry.name}.py") or entry.source.startswith("--expr")
    if not named and Path(shlex.split(entry.source)[0]).stem != entry.name:
        settings.append(f"--pattern {shlex.quote(entry.name)}")
    return " ".join([entry.source, *(setting for setting in settings if setting)])


def _parameters(entry: MaskEntry) -> list[tuple[str, str, str]]:
    if entry.pattern is None:
        return [(name, "int", str(value)) for name, value in entry.params.items()]
    return [
        (name, kind_name(kind), entry.settings.get(name, repr(default)))
        for name, kind, default in entry.pattern.parameters
    ]
