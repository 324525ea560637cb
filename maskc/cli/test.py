"""maskc test: property tests of patterns, with the smallest wrong case as a program."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.options import json_option, mask_source, single, target_option
from maskc.cli.output import echo, now, one_by_one, write_json
from maskc.core.errors import Counterexample, NothingCompared

if TYPE_CHECKING:
    from maskc.testing.checking import Examined, Wanted


@click.command(short_help="Property test: print the smallest failing random case.")
@mask_source
@target_option
@click.option(
    "--head-dim", type=click.IntRange(1), default=64, show_default=True, metavar="D",
    help="Elements per row of q, k and v.",
)  # fmt: skip
@click.option("--dtype", metavar="T", help="One dtype.  [default: all of the target]")
@click.option(
    "--heads", type=click.IntRange(1), metavar="H",
    help="Query heads.  [default: the number that the mask is written for, else drawn]",
)  # fmt: skip
@click.option(
    "--examples", type=click.IntRange(1), default=100, show_default=True, metavar="N",
    help="Most cases to draw for each pattern.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed draws the same cases."
)
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), metavar="S",
    help="Time limit for drawing cases, for each pattern.",
)  # fmt: skip
@json_option
def test(
    entries: list[MaskEntry], targets: tuple[str, ...], head_dim: int, dtype: str | None,
    heads: int | None, examples: int, seed: int, seconds: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the kernels of FILE with dense attention in fp64, in random cases and both passes.

    A random case has a length around the mask's constants, a batch, grouped heads, a dtype,
    strides, options, data, parameters, and sometimes a NaN in a key. If a case fails, the smallest
    failing case is printed as a program, and the exit code is 1. Without a GPU for --target the
    kernels run in an emulator, which needs g++ and PyTorch. --set keeps a parameter at one value.
    """
    from maskc.testing.checking import Wanted

    wanted = Wanted(single(targets), head_dim, None, dtype, heads, examples, seed, seconds)
    done = []
    for entry in one_by_one(entries, "testing"):
        done.append((entry, _examined(entry, wanted)))
        if not as_json:
            _write(*done[-1])
    if as_json:
        write_json({"patterns": [_plain(*result) for result in done]})
    wrong = [tested.finding() for _, tested in done if tested.outcome.mismatch is not None]
    if wrong:
        raise Counterexample("; ".join(wrong))
    for _, tested in done:
        tested.right()
        if not tested.outcome.cases:
            raise NothingCompared(0, tested.subject.mask, "none was drawn in the time given")


def _examined(entry: MaskEntry, wanted: Wanted) -> Examined:
    from maskc.testing.checking import examine

    def tell(count: int) -> None:
        now(f"testing {entry.name}: case {count + 1} of at most {wanted.examples}")

    now(f"testing {entry.name}: compiling")
    return examine(entry.name, entry.mask, wanted, dict(entry.params), tell)


def _write(entry: MaskEntry, done: Examined) -> None:
    outcome = done.outcome
    dtypes = ", ".join(done.subject.kernels)
    refused = f", {outcome.refused} refused ({outcome.reason})" if outcome.refused else ""
    how = "one is wrong" if outcome.mismatch else "all right"
    echo(
        f"{entry.name}: {entry.mask}\n{done.where}, {dtypes}: {outcome.cases} cases compared, "
        f"{how}{refused}"
    )
    if not outcome.shrunk:
        echo("cases do not shrink without Hypothesis: pip install 'maskc[test]'", err=True)
    if done.program is not None:
        echo(f"\n{done.program}")


def _plain(entry: MaskEntry, done: Examined) -> dict[str, Any]:
    outcome, wrong = done.outcome, done.outcome.mismatch
    return {
        "name": entry.name, "formula": str(entry.mask), "target": done.target.name,
        "emulated": done.subject.emulated, "dtypes": list(done.subject.kernels),
        "cases": outcome.cases, "refused": outcome.refused, "reason": outcome.reason,
        "shrunk": outcome.shrunk,
        "counterexample": None if wrong is None else {
            **asdict(wrong.case), "part": wrong.part, "error": wrong.error,
            "allowed": wrong.allowed, "raised": wrong.raised, "script": done.program,
        },
    }  # fmt: skip
