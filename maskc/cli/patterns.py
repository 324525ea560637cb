"""maskc patterns and maskc init: the library of published masks, and a file to start from."""

from __future__ import annotations

from pathlib import Path

import click

from maskc.cli.options import json_option
from maskc.cli.output import FilePath, echo, write_file, write_json, write_table
from maskc.core.errors import UsageMistake
from maskc.dsl.pattern import check_pattern_name


@click.command(short_help="List the published masks, with their papers.")
@click.argument("words", nargs=-1)
@json_option
def patterns(words: tuple[str, ...], as_json: bool) -> None:
    """List the published masks that come with maskc, or only masks that mention all WORDS.

    Every command accepts the name instead of a file, as in `maskc visualize longformer`. It is also
    an attribute of maskc.patterns in Python.
    """
    from maskc import patterns as library

    patterns_listed = [library.about(name) for name in library.names()]
    patterns_listed = [
        about
        for about in patterns_listed
        if all(word.lower() in " ".join(about[:3]).lower() for word in words)
    ]
    if as_json:
        write_json(
            {"patterns": [about._asdict() | {"file": str(about.file)} for about in patterns_listed]}
        )
        return
    write_table(("name", "what it is", "paper"), [about[:3] for about in patterns_listed])
    if not patterns_listed:
        echo("no pattern mentions all of these words", err=True)


_START = '''\
"""What this mask is for, in one line.

Say here which paper or model it is from, and its definition. {name} is drawn by
`maskc visualize {file}`.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def {name}(*, window: int = 1024, n_sinks: int = 4) -> mc.Mask:
    """Each query sees itself, the `window - 1` keys before it, and the first `n_sinks` keys."""
    return mc.causal() & (mc.sinks(n_sinks) | mc.window(window - 1))


# Masks combine with & | - ^ ~. Others to start from:
#
#   mc.causal() & mc.documents("doc")              packed documents, ids given with each call
#   mc.window(256, 256) | mc.global_tokens(64)     both sides, and global tokens
#   mc.where(lambda q, k: (q - k) % 64 == 0)       any formula of whole numbers


if __name__ == "__main__":
    print({name}().count(100_000), "live pairs at 100,000 tokens")
'''


@click.command(short_help="Write a pattern file to start from.")
@click.argument("file", default="my_mask.py", type=FilePath())
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: str, force: bool) -> None:
    """Write an example pattern to FILE, and print what to run next. FILE is my_mask.py by default.

    The pattern has the name of the file.
    """
    path = Path(file)
    if path.suffix != ".py":
        path = path.with_name(f"{path.name}.py")
    check_pattern_name(path.stem, str(path))
    if path.exists() and not force:
        raise UsageMistake(
            f"{path} is there already", "choose another name, or replace it with --force", at="FILE"
        )
    write_file(path, _START.format(name=path.stem, file=path.name))
    echo(str(path))
    for command in ("visualize", "explain", "verify"):
        echo(f"next: maskc {command} {path}", err=True)
