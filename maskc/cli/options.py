"""Options that several commands share; each means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from maskc.cli.output import FilePath, done, echo, now
from maskc.core.errors import UsageMistake

if TYPE_CHECKING:
    from maskc.cli.entries import MaskEntry
    from maskc.core.problem import Problem
    from maskc.core.target import Target
    from maskc.dsl.mask import Mask
    from maskc.plan.types import KernelPlan

    _Type = click.ParamType[object]
else:  # click had one class for all before 8.3
    _Type = click.ParamType

Command = Callable[..., Any]

LENGTH = 4096
"""Default number of queries and keys."""


def _names_and_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return shell completions for FILE: patterns of the library, and files."""
    from maskc import patterns

    names = [name for name in patterns.names() if name.startswith(incomplete)]
    files = CompletionItem(incomplete, type="file")
    return [*map(CompletionItem, names if incomplete else []), files]


def mask_source(command: Command) -> Command:
    """FILE, --expr, --set and --pattern; the command gets `entries`, a list of MaskEntry.

    FILE is a path, or the name of a pattern of the library.
    """

    @click.argument("file", required=False, type=FilePath(), shell_complete=_names_and_files)
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

        if rest.get("suite") and not (file or expr or settings or pattern):
            return command(entries=[], **rest)  # a suite brings masks of its own
        now(f"reading {file}" if file else "reading")
        masks = entries(file, expr, settings, pattern)
        done()
        return command(entries=masks, **rest)

    return wrapped


def tokens(text: str) -> int:
    """A number of tokens: 4096, 1_000_000, 1e6; 128k = 128 * 1024, 1M = 1024 * 1024.

    Raises:
        ValueError: the text is not a whole number of tokens.
    """
    scale = {"k": 1 << 10, "m": 1 << 20}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        return int(digits) * scale
    except ValueError:
        number = Decimal(digits) * scale if digits.isascii() else Decimal("nan")
        if not number.is_finite() or number.adjusted() > 30 or number != int(number):
            raise ValueError(text) from None
        return int(number)


class Parsed(_Type):
    """The type of an option whose text a function reads; its ValueError says what is wrong."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name, self._read = name, read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """The value; defaults that are no text stay as they are."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as why:
            self.fail(str(why), param, ctx)


def _length(text: str) -> int:
    try:
        number = tokens(text.strip())
    except (ValueError, ArithmeticError):
        fault = f"{text!r} is no number of tokens, such as 4096, 1e6, 128k or 1M"
        raise ValueError(fault) from None
    if number < 0:
        raise ValueError(f"{text} is not in the range x>=0.")
    return number


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(map(_length, text.split(",")))
    if any(low >= high for low, high in pairwise(lengths)):
        raise ValueError(f"{text} does not ascend")
    return lengths


def _tile(text: str) -> tuple[int, int]:
    sides = text.lower().replace(" ", "").split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() for side in sides):
        raise ValueError(f"{text!r} is not a tile, such as 128x64: queries x keys")
    return int(sides[0]), int(sides[1])


LENGTH_TYPE = Parsed("length", _length)
"""A number of tokens, see `tokens`."""
LENGTHS_TYPE = Parsed("lengths", _lengths)
"""One number of tokens, or several that ascend, with commas between them."""


@dataclass(frozen=True)
class KernelOptions:
    """The options of the command line that describe a kernel."""

    targets: tuple[str, ...]
    """Names of kernel families."""
    head_dim: int
    dtype: str
    heads: int | None
    tile: tuple[int, int] | None = None
    stages: int | None = None
    head_dim_v: int | None = None

    def problem(self, mask: Mask) -> Problem:
        """The problem of one mask."""
        from maskc import driver

        return driver.problem(
            self.head_dim, self.head_dim_v, self.heads_for(mask), self.dtype, None, self.tile,
            self.stages,
        )  # fmt: skip

    def heads_for(self, mask: Mask) -> int | None:
        """Return the query heads: the requested number, the number of the mask, or 8."""
        from maskc.ir.heads import written_heads

        return self.heads or written_heads(mask)

    def target_for(self, mask: Mask) -> Target:
        """Return the requested target, or the best of this machine.

        Raises:
            UsageMistake: several were asked for.
        """
        from maskc import driver
        from maskc.core.target import Target
        from maskc.runtime.device import default_target

        problem = self.problem(mask)
        named = Target.named(single(self.targets) or default_target(problem))
        return named.serving(problem, driver.selects(mask))

    def plan(self, mask: Mask) -> KernelPlan:
        """The plan of one mask; errors as of `target_for` and of the compiler."""
        from maskc import driver

        return driver.plan_kernel(mask, self.problem(mask), self.target_for(mask))


def single(targets: tuple[str, ...]) -> str | None:
    """Return the requested target, None if there is none.

    Raises:
        UsageMistake: several were asked for.
    """
    if len(targets) > 1:
        raise UsageMistake("this command takes one target", "give --target once", at="--target")
    return next(iter(targets), None)


_Options = dict[str, Callable[[Command], Command]]
"""Options by the name of their value."""
_COSTS: _Options = {
    "head_dim": click.option(
        "--head-dim", type=click.IntRange(1), default=128, show_default=True, metavar="D",
        help="Elements per row of q, k and v.",
    ),
    "dtype": click.option(
        "--dtype", default="bfloat16", show_default=True, metavar="T",
        help="bfloat16, float16 or float32.",
    ),
    "heads": click.option(
        "--heads", type=click.IntRange(1), metavar="H",
        help="Query heads.  [default: the number that the mask is written for, else 8]",
    ),
}  # fmt: skip
_VALUES: _Options = {
    "head_dim_v": click.option(
        "--head-dim-v", type=click.IntRange(1), metavar="D",
        help="Elements per row of v and the output.  [default: as --head-dim]",
    ),
}  # fmt: skip
_TARGETS: _Options = {
    "targets": click.option(
        "--target", "targets", multiple=True, metavar="T",
        help="cpu, simt, sm_80, sm_90a, or the architecture of a GPU, such as sm_89.  "
        "[default: the best of this machine]",
    ),
}  # fmt: skip
_TILES: _Options = {
    "tile": click.option(
        "--tile", type=Parsed("tile", _tile), metavar="QxK",
        help="Queries and keys of the forward pass's tile, such as 128x64.  "
        "[default: the planner's choice]",
    ),
    "stages": click.option(
        "--stages", type=click.IntRange(1), metavar="S",
        help="Tiles of keys in flight, on Hopper.  [default: the planner's choice]",
    ),
}  # fmt: skip


def _families(targets: tuple[str, ...]) -> tuple[str, ...]:
    """Names of kernel families, each once; a GPU that runs another's kernels is said on stderr."""
    from maskc.core.target import Target

    served = {name: Target.named(name).name for name in targets}
    for name, serving in served.items():
        if serving != name:
            echo(f"{name} runs the kernels of {serving}", err=True)
    return tuple(dict.fromkeys(served.values()))


def _asking(options: _Options) -> Callable[[Command], Command]:
    """A decorator that adds these options; the command gets `asked`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapped(**given: Any) -> Any:
            from maskc.core.dtypes import DType

            values = {name: given.pop(name) for name in options}
            values["dtype"] = DType.parse(values["dtype"]).value
            values["targets"] = _families(values.get("targets", ()))
            return command(asked=KernelOptions(**values), **given)

        made: Command = wrapped
        for option in reversed(options.values()):
            made = option(made)
        return made

    return decorate


cost_options = _asking(_COSTS)
"""The options --head-dim, --dtype and --heads."""
problem_options = _asking(_COSTS | _TARGETS)
"""The options --head-dim, --dtype, --heads and --target."""
kernel_options = _asking(_COSTS | _TARGETS | _TILES)
"""The options of a problem, --tile and --stages."""
source_options = _asking(_COSTS | _VALUES | _TARGETS | _TILES)
"""The options of a kernel, and --head-dim-v."""


def target_option(command: Command) -> Command:
    """--target alone; the command gets `targets`, names of kernel families."""

    @_TARGETS["targets"]
    @wraps(command)
    def wrapped(targets: tuple[str, ...], **rest: Any) -> Any:
        return command(targets=_families(targets), **rest)

    return wrapped


def length_options(default: str) -> Callable[[Command], Command]:
    """--n and --n-kv; the command gets `n` and `n_kv`, both None if neither was given.

    Args:
        default: what help says happens without --n.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--n", type=LENGTH_TYPE, metavar="N",
            help=f"Queries: 4096, 1e6, 128k (k = 1024), 1M.  [default: {default}]",
        )  # fmt: skip
        @click.option("--n-kv", type=LENGTH_TYPE, metavar="N", help="Keys.  [default: --n]")
        @wraps(command)
        def wrapped(n: int | None, n_kv: int | None, **rest: Any) -> Any:
            if n is None and n_kv is not None:
                raise UsageMistake("--n-kv was given without --n", "give both", at="--n-kv")
            return command(n=n, n_kv=n if n_kv is None else n_kv, **rest)

        return wrapped

    return decorate


def json_option(command: Command) -> Command:
    """--json; the command gets `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print results and errors as JSON."
    )(command)


def data_options(fallback: int | None, extra: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """--data and --seed; the command gets `arrays`, and lengths that fit those of --data.

    Args:
        fallback: default number of queries and keys; None leaves the choice to the command.
        extra: names of arrays that the command reads besides those of the mask.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--data", "files", multiple=True, metavar="NAME=FILE",
            help="Data of the mask: *.npy, *.npz, *.json, cu_seqlens:FILE or parents:FILE.  "
            "[default: random data]",
        )  # fmt: skip
        @click.option(
            "--seed", type=int, default=0, show_default=True,
            help="Seed of random inputs and random data.",
        )  # fmt: skip
        @wraps(command)
        def wrapped(
            files: tuple[str, ...], seed: int, entries: list[MaskEntry], n: int | None,
            n_kv: int | None = None, **rest: Any,
        ) -> Any:  # fmt: skip
            from maskc.cli.given import Arrays, read_all

            arrays = Arrays(seed, read_all(files, entries, extra))
            if n is None and (shape := arrays.shape(entries)) is not None:
                n, n_kv = shape
            if n is None:
                n = n_kv = fallback
            return command(arrays=arrays, entries=entries, n=n, n_kv=n_kv, **rest)

        return wrapped

    return decorate
