"""maskc verify: the compiled kernel against the dense oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import Entry
from maskc.cli.options import (
    Asked,
    data_of,
    json_option,
    length_options,
    mask_source,
    problem_options,
    seed_option,
)
from maskc.cli.output import one_by_one, write_json, write_table
from maskc.core.errors import CheckFailed, DataRange, DataShape, UsageMistake

if TYPE_CHECKING:
    from maskc.cli.probes import Check, Probe
    from maskc.runtime.compiled import CompiledMask

LENGTHS = ((1, 1), (64, 64), (129, 129), (257, 257), (75, 203), (203, 75))
"""Where masks are checked when nobody says: one token, whole tiles, odd, rectangular."""

Report = dict[str, Any]


@click.command(short_help="Compare the kernel with dense attention.")
@mask_source
@problem_options
@length_options(None)
@seed_option
@json_option
def verify(
    found: list[Entry], asked: Asked, n: int | None, n_kv: int | None, seed: int, as_json: bool
) -> None:
    """Compile FILE and compare the kernel with dense attention in fp64.

    Random inputs, forward and (where the target has it) backward; then probes: zero queries read
    the mask back through one-hot values, and a NaN planted in a key stays with the queries that
    see it. Exits with 3 where something differs.
    """
    lengths = LENGTHS if n is None or n_kv is None else ((n, n_kv),)
    reports = []
    for entry in one_by_one(found, "verifying"):
        reports.append(_report(entry, asked, lengths, seed))
        if not as_json:
            _write(reports[-1])
    if as_json:
        write_json({"patterns": reports})
    rows = [(report["name"], row) for report in reports for row in report["rows"]]
    wrong = [f"{name} {row['case']} ({row['check']})" for name, row in rows if not row["ok"]]
    if wrong:
        shown = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        raise CheckFailed(f"{len(wrong)} of {len(rows)} checks failed: {shown}")


def _report(entry: Entry, asked: Asked, lengths: tuple[tuple[int, int], ...], seed: int) -> Report:
    """The checks of one pattern at all lengths that it has."""
    from maskc import driver
    from maskc.runtime import CompiledMask
    from maskc.runtime.parts import hold

    heads = asked.heads_for(entry.mask)
    problem = asked.problem(entry.mask)
    target = asked.chosen(problem)
    attn = driver.compile(
        entry.mask, head_dim=asked.head_dim, n_heads=heads, dtype=asked.dtype, target=target.name,
        name=entry.name,
    )  # fmt: skip
    ways = {"": CompiledMask(attn.bundle, target.name, in_parts=False, held=attn.held)}
    if attn.bundle.parts:  # tried at all lengths, whether or not they pay there
        ways[", in parts"] = CompiledMask(
            attn.bundle, target.name, in_parts=True, held=attn.held
        )  # fmt: skip
    rows: list[Check] = []
    skipped = []
    for n_q, n_kv in lengths:
        try:
            for note, way in ways.items():
                if not note or hold(attn.bundle, n_q, n_kv):
                    rows += _probe(entry, way, heads or 2, n_q, n_kv, seed, note).checks()
        except (DataShape, DataRange) as refusal:  # a table of its own fits some lengths only
            skipped.append({"case": f"{n_q} x {n_kv}", "reason": refusal.finding})
    if not rows:
        raise UsageMistake(
            f"{entry.name} fits none of the lengths: {skipped[0]['reason']}",
            "give lengths that fit with --n and --n-kv", at="--n",
        )  # fmt: skip
    return {
        "name": entry.name, "formula": str(entry.mask), "target": target.name,
        "dtype": asked.dtype, "head_dim": asked.head_dim, "heads": heads or 2,
        "rows": [asdict(row) for row in rows], "skipped": skipped,
    }  # fmt: skip


def _probe(
    entry: Entry, attn: CompiledMask, heads: int, n_q: int, n_kv: int, seed: int, note: str
) -> Probe:
    import numpy as np

    from maskc.bench.case import Case
    from maskc.bench.run import device_of
    from maskc.bench.sample import true_mask
    from maskc.bench.tensors import make_tensors
    from maskc.cli.probes import Probe

    data = data_of(entry, n_q, n_kv, seed, quiet=True)
    shared = heads // 2 if heads % 2 == 0 else heads
    problem = attn.bundle.problem
    case = Case(
        entry.name, entry.mask, 1, heads, shared, n_q, n_kv, problem.head_dim, problem.dtype, data
    )
    keep = true_mask(case, make_tensors(case, device_of(attn.target)))
    keep = np.broadcast_to(keep.reshape(-1, n_q, n_kv), (heads, n_q, n_kv))
    return Probe(attn, case, keep, seed, note)


def _write(report: Report) -> None:
    click.echo(
        f"{report['name']}: {report['formula']}\n{report['target']}, {report['dtype']}, "
        f"head_dim {report['head_dim']}, {report['heads']} heads"
    )
    write_table(
        ("queries x keys", "check", "error", "allowed", ""), list(_cells(report)), numbers=(2, 3)
    )
    click.echo()


def _cells(report: Report) -> Iterator[tuple[str, ...]]:
    for row in report["rows"]:
        exact = row["allowed"] == 0
        form = "{:.0f} wrong" if exact else "{:.1e}"
        allowed = "none" if exact else f"{row['allowed']:.1e}"
        yield (
            row["case"], row["check"], form.format(row["error"]), allowed,
            "ok" if row["ok"] else "FAILED",
        )  # fmt: skip
    for skip in report["skipped"]:
        yield skip["case"], f"left out: {skip['reason']}", "", "", ""
