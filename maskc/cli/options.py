"""Options that several commands share; each means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.output import FilePath
from maskc.core.errors import UsageMistake

if TYPE_CHECKING:
    from maskc.cli.entries import Entry
    from maskc.core.problem import Problem
    from maskc.core.target import Target
    from maskc.dsl.mask import Mask

Command = Callable[..., Any]

HEADS = 8
"""Query heads where a formula computes with the head's number and nobody said how many."""


def mask_source(command: Command) -> Command:
    """FILE, --expr, --set and --pattern; the command gets `found`, a list of Entry."""

    @click.argument("file", required=False, type=FilePath())
    @click.option("--expr", metavar="E", help="A mask expression instead of a file; runs no code.")
    @click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Override a parameter."
    )
    @click.option("--pattern", metavar="NAME", help="Only this pattern of the file.")
    @wraps(command)
    def wrapped(
        file: str | None, expr: str | None, settings: tuple[str, ...], pattern: str | None,
        **rest: Any,
    ) -> Any:  # fmt: skip
        from maskc.cli.entries import entries

        return command(found=entries(file, expr, settings, pattern), **rest)

    return wrapped


@dataclass(frozen=True)
class Asked:
    """The options of the command line that describe a kernel."""

    targets: tuple[str, ...]
    head_dim: int
    dtype: str
    heads: int | None

    def problem(self, mask: Mask) -> Problem:
        """The problem of one mask."""
        from maskc import driver

        return driver.problem(self.head_dim, None, self.heads_for(mask), self.dtype)

    def heads_for(self, mask: Mask) -> int | None:
        """Query heads where they matter: as asked, as the mask is written, or 8."""
        return self.heads or written_heads(mask)

    @property
    def target(self) -> str | None:
        """The one asked for, None where none was.

        Raises:
            UsageMistake: several were asked for.
        """
        if len(self.targets) > 1:
            raise UsageMistake("this takes one target", "give --target once", at="--target")
        return next(iter(self.targets), None)

    def chosen(self, problem: Problem) -> Target:
        """The target asked for, or this machine's.

        Raises:
            UsageMistake: several were asked for.
        """
        from maskc.core.target import Target
        from maskc.runtime.device import default_target

        return Target.named(self.target or default_target(problem))


def written_heads(mask: Mask) -> int | None:
    """How many heads the mask itself names.

    The number is 8 where the mask computes with heads, and None where it names none.
    """
    from maskc.ir.heads import differs_by_head, fixed_heads, head_count

    if not differs_by_head(mask):
        return None
    return fixed_heads(mask) or max(HEADS, head_count(mask))


def problem_options(command: Command) -> Command:
    """--target, --head-dim, --dtype and --heads; the command gets `asked`."""

    @click.option(
        "--target", "targets", multiple=True, metavar="T",
        help="cpu, sm_80, ...; what this machine has, if not given.",
    )  # fmt: skip
    @wraps(command)
    def wrapped(targets: tuple[str, ...], asked: Asked, **rest: Any) -> Any:
        from maskc.core.target import Target

        named = tuple(Target.named(each).name for each in dict.fromkeys(targets))
        return command(asked=replace(asked, targets=named), **rest)

    return cost_options(wrapped)


def cost_options(command: Command) -> Command:
    """--head-dim, --dtype and --heads; the command gets `asked`, without a target."""

    @click.option(
        "--head-dim", type=click.IntRange(1), default=128, show_default=True, metavar="D",
        help="Elements per row of q, k and v.",
    )  # fmt: skip
    @click.option(
        "--dtype", default="bfloat16", show_default=True, metavar="T",
        help="bfloat16, float16 or float32.",
    )  # fmt: skip
    @click.option(
        "--heads", type=click.IntRange(1), metavar="H",
        help="Query heads; where they differ, as the mask is written, else 8.",
    )  # fmt: skip
    @wraps(command)
    def wrapped(head_dim: int, dtype: str, heads: int | None, **rest: Any) -> Any:
        from maskc.core.dtypes import DType

        asked = Asked((), head_dim, DType.parse(dtype).value, heads)
        return command(asked=asked, **rest)

    return wrapped


def length_options(default: int | None) -> Callable[[Command], Command]:
    """--n and --n-kv; the command gets `n` and `n_kv`, the second one filled in."""
    several = "several lengths" if default is None else True

    def decorate(command: Command) -> Command:
        @click.option(
            "--n",
            type=click.IntRange(0),
            default=default,
            show_default=several,
            metavar="N",
            help="Queries.",
        )
        @click.option(
            "--n-kv", type=click.IntRange(0), metavar="N",
            help="Keys; as many as queries, if not given.",
        )  # fmt: skip
        @wraps(command)
        def wrapped(n: int | None, n_kv: int | None, **rest: Any) -> Any:
            if n is None and n_kv is not None:
                raise UsageMistake("--n-kv was given without --n", "give both", at="--n-kv")
            return command(n=n, n_kv=n if n_kv is None else n_kv, **rest)

        return wrapped

    return decorate


def json_option(command: Command) -> Command:
    """--json; the command gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Results and errors as JSON.")(
        command
    )


def seed_option(command: Command) -> Command:
    """--seed; the command gets `seed`."""
    return click.option(
        "--seed", type=int, default=0, show_default=True, help="Of random inputs and made-up data."
    )(command)


def data_of(entry: Entry, n_q: int, n_kv: int, seed: int, quiet: bool = False) -> dict[str, object]:
    """Made-up arrays for the data a mask reads, and the parameters that were set."""
    from maskc.verify.samples import sample_data

    data = sample_data(entry.mask, n_q, n_kv, seed)
    if data and not quiet:
        names = ", ".join(data)
        click.echo(f"{entry.name}: {names} made up, seed {seed}", err=True)
    return {**data, **entry.params}
