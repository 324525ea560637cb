"""maskc compile: patterns to generated modules, to the value at one stage, or to a summary."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.generated import (
    FOLDER,
    LeftOut,
    check_files,
    check_manifest,
    generated_files,
    manifest_rows,
    manifest_text,
)
from maskc.cli.options import (
    LENGTH,
    KernelOptions,
    data_options,
    json_option,
    length_options,
    mask_source,
    source_options,
)
from maskc.cli.output import echo, one_by_one, write_file, write_json
from maskc.cli.stages import STAGES, stage_text
from maskc.core.errors import ExtraMissing, NoCompiler, UsageMistake

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.plan.types import KernelPlan


@click.command("compile", short_help="Write a module and its kernels, or print one stage.")
@mask_source
@click.option(
    "-o", "--output", metavar="DIR",
    help="Folder for each pattern's module and its sources; - prints them.",
)  # fmt: skip
@source_options
@length_options("that of --data, else 4096")
@click.option("--emit", type=click.Choice(STAGES), help="Print the value at one stage.")
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a line with digests of the compiled sources for each pattern and target.",
)
@click.option(
    "--standalone",
    is_flag=True,
    help="With -o or --emit=source: put the package's own headers into sources.",
)
@click.option(
    "--check",
    is_flag=True,
    help=f"Compare with --manifest, or with the files in -o (or {FOLDER}); exit 3 on differences.",
)
@data_options(LENGTH)
@json_option
def compile_command(
    entries: list[MaskEntry],
    output: str | None,
    asked: KernelOptions,
    n: int,
    n_kv: int,
    emit: str | None,
    manifest: Path | None,
    standalone: bool,
    check: bool,
    arrays: Arrays,
    as_json: bool,
) -> None:
    """Compile the patterns of FILE, or of every *.py in a folder.

    -o writes a module with its kernel sources for each pattern and --target. By default it takes
    all targets that have kernels for the pattern. The others are named on stderr, with the reason.
    Use --manifest to write digests of these sources. Use --emit to print the value of one stage:
    the mask, its formula, the proved facts, the plan, the loops, or the source. Without any of
    these options, the command builds the kernels and prints a summary with the costs at --n tokens.
    """
    if emit and (check or manifest or output is not None):
        raise UsageMistake("--emit prints, -o and --check compare files", "choose one", at="--emit")
    if manifest is not None:
        if output is not None:
            raise UsageMistake("-o and --manifest were both given", "choose one", at="--manifest")
        _manifest([entry.for_module() for entry in entries], manifest, asked, check, as_json)
    elif check or output is not None:
        _modules(
            [entry.for_module() for entry in entries], output, asked, standalone, check, as_json
        )
    elif emit is not None:
        texts = {
            entry.name: stage_text(entry, asked, emit, n, n_kv, standalone)
            for entry in one_by_one(entries, "compiling")
        }
        write_json({emit: texts}) if as_json else echo(_joined(texts), nl=False)
    else:
        _summaries(entries, asked, n, n_kv, arrays, as_json)


def _modules(
    entries: list[MaskEntry], output: str | None, asked: KernelOptions,
    standalone: bool, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write, print or compare what the patterns generate."""
    files: dict[str, str] = {}
    left_out: list[LeftOut] = []
    for entry in one_by_one(entries, "generating"):
        module_files, without = generated_files(entry, asked, standalone)
        files |= module_files
        left_out += without
    for omission in left_out:
        echo(str(omission), err=True)
    made: list[str] | dict[str, str]
    if check:
        folder = Path(output or FOLDER)
        check_files(files, folder, entries)
        made, text = sorted(files), f"{len(files)} files in {folder} are what the patterns give\n"
    elif output == "-":
        made, text = files, _joined(files)
    else:
        paths = {str(Path(output or FOLDER) / name): text for name, text in files.items()}
        for path, text in paths.items():
            write_file(Path(path), text)
        made, text = list(paths), "".join(f"{path}\n" for path in paths)
    what = "checked" if check else "files" if output == "-" else "written"
    if as_json:
        write_json({what: made, "left_out": [omission.as_dict() for omission in left_out]})
    else:
        echo(text, nl=False)


def _manifest(
    entries: list[MaskEntry], file: Path, asked: KernelOptions, check: bool, as_json: bool
) -> None:
    """Write or compare what the patterns compile to, as digests."""
    rows = [row for entry in one_by_one(entries, "planning") for row in manifest_rows(entry, asked)]
    if check:
        check_manifest(rows, file, entries)
    else:
        write_file(file, manifest_text(rows))
    what = "are as in" if check else "written to"
    if as_json:
        write_json({"checked" if check else "written": rows})
    else:
        echo(f"{len(rows)} patterns and targets {what} {file}")


def _joined(texts: dict[str, str]) -> str:
    """The texts, each below its name where there are several."""
    parts = [text if text.endswith("\n") else f"{text}\n" for text in texts.values()]
    if len(texts) == 1:
        return parts[0]
    return "\n".join(f"==> {name} <==\n{text}" for name, text in zip(texts, parts, strict=True))


# ------------------------------------------------------------------ summaries


def _summaries(
    entries: list[MaskEntry], asked: KernelOptions, n: int, n_kv: int, arrays: Arrays, as_json: bool
) -> None:
    summaries = []
    for entry in one_by_one(entries, "compiling"):
        data = arrays.of(entry, n, n_kv)
        summaries.append(_summary(entry, asked, n, n_kv, data))
        if not as_json:
            echo(_as_text(summaries[-1]))
    if as_json:
        write_json({"patterns": summaries})


def _summary(
    entry: MaskEntry, asked: KernelOptions, n: int, n_kv: int, data: dict[str, object]
) -> dict[str, Any]:
    """Return what was built for one pattern, and its cost."""
    from maskc.cli.costs import costs

    plan = asked.plan(entry.mask)
    return {
        "name": entry.name,
        "formula": str(entry.mask),
        "target": plan.target.name,
        "dtype": plan.problem.dtype.value,
        "head_dim": plan.problem.head_dim,
        "head_dim_v": plan.problem.head_dim_v,
        "tile": [plan.tile.q, plan.tile.k],
        **_built(plan, entry.name),
        "costs": costs(entry.mask, plan, n, n_kv, data),
    }


def _built(plan: KernelPlan, name: str) -> dict[str, Any]:
    """The source and its build; why not, where the toolchain is not here."""
    from maskc import driver
    from maskc.build import build

    unit = driver.emit_bundle(plan, name).units[0]
    source = {"lines": unit.source.count("\n"), "digest": unit.digest}
    start = perf_counter()
    try:
        binary = build(unit, directions=plan.target.directions)
    except (NoCompiler, ExtraMissing) as missing:
        return {"source": source, "built": None, "reason": missing.finding}
    built = {
        "toolchain": binary.report.toolchain,
        "bytes": len(binary.code),
        "seconds": round(perf_counter() - start, 3),
    }
    return {"source": source, "built": built, "reason": None}


def _as_text(summary: dict[str, Any]) -> str:
    from maskc.cli.costs import cost_lines

    built, source = summary["built"], summary["source"]
    tile = " x ".join(map(str, summary["tile"]))
    of_qk, of_v = summary["head_dim"], summary["head_dim_v"]
    dims = of_qk if of_qk == of_v else f"{of_qk}/{of_v}"
    if built:
        how = f"{built['toolchain']}, {built['bytes'] / 1024:.0f} KiB, {built['seconds']:.2f} s"
    else:
        how = f"no, {summary['reason']}"
    return "\n".join((
        f"{summary['name']}: {summary['formula']}",
        f"  kernel   {summary['target']}, {summary['dtype']}, head_dim {dims}, "
        f"tiles of {tile}",
        f"  source   {source['lines']} lines, sha256 {source['digest'][:12]}",
        f"  built    {how}",
        *(f"  {line}" for line in cost_lines(summary["costs"])),
    ))  # fmt: skip
