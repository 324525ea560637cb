"""maskc verify: the compiled kernel against the dense oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry
from maskc.cli.options import (
    KernelOptions,
    data_options,
    json_option,
    kernel_options,
    length_options,
    mask_source,
)
from maskc.cli.output import echo, now, one_by_one, write_json, write_table
from maskc.core.errors import CheckFailed, DataRange, DataShape, UsageMistake

if TYPE_CHECKING:
    from maskc.cli.given import Arrays
    from maskc.runtime.compiled import CompiledMask
    from maskc.verify.case_lengths import Lengths
    from maskc.verify.probes import Probe, ProbeResult

Report = dict[str, Any]


@click.command(short_help="Compare the kernel with dense attention.")
@mask_source
@kernel_options
@length_options("several lengths")
@click.option(
    "--cases", type=click.IntRange(0), default=20, show_default=True, metavar="N",
    help="Number of random cases, in addition to lengths that follow from the mask's constants.",
)  # fmt: skip
@data_options(None)
@json_option
def verify(
    entries: list[MaskEntry], asked: KernelOptions, n: int | None, n_kv: int | None, cases: int,
    arrays: Arrays, as_json: bool,
) -> None:  # fmt: skip
    """Compile FILE and compare the kernel with dense attention in fp64.

    Some lengths are short, and some are larger than every window, block and stride of the mask.
    Inputs are random, for the forward pass and (if the target has it) the backward pass. Probes
    follow: with q = 0 and one-hot values, the output shows which keys each query sees, and a NaN in
    one key must only reach the queries that see it. After that, without --n and --data, random
    cases: lengths around the mask's constants, batches, heads, options, strides, data and
    parameters. A wrong case is shrunk and printed as a program that reproduces it. Exits with 3 if
    something differs.
    """
    shape = None if n is None or n_kv is None else (n, n_kv)
    reports = []
    for entry in one_by_one(entries, "verifying"):
        reports.append(_report(entry, asked, shape, cases, arrays))
        if not as_json:
            _write(reports[-1])
    if as_json:
        write_json({"patterns": reports})
    rows = [(report["name"], row) for report in reports for row in report["rows"]]
    wrong = [f"{name} {row['case']} ({row['check']})" for name, row in rows if not row["ok"]]
    drawn = [report["name"] for report in reports if report["drawn"]["counterexample"]]
    if wrong or drawn:
        shown = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        told = [f"{len(wrong)} of {len(rows)} checks failed: {shown}"] if wrong else []
        told += [f"a random case of {', '.join(drawn)} is wrong"] if drawn else []
        raise CheckFailed("; ".join(told))


def _report(
    entry: MaskEntry,
    asked: KernelOptions,
    shape: tuple[int, int] | None,
    cases: int,
    arrays: Arrays,
) -> Report:
    """The checks of one pattern at all lengths that it has, and random cases."""
    from maskc import driver
    from maskc.runtime import CompiledMask
    from maskc.verify.case_lengths import Lengths, lengths_for

    heads = asked.heads_for(entry.mask)
    target = asked.target_for(entry.mask)
    attn = driver.compile(
        entry.mask, head_dim=asked.head_dim, n_heads=heads, dtype=asked.dtype, target=target.name,
        name=entry.name, tile=asked.tile, stages=asked.stages,
    )  # fmt: skip
    ways = {"": CompiledMask(attn.bundle, target.name, in_parts=False, held=attn.held)}
    if attn.bundle.parts:  # tried at all lengths, whether or not they pay there
        ways[", in parts"] = CompiledMask(attn.bundle, target.name, in_parts=True, held=attn.held)
    lengths = Lengths((shape,), ()) if shape else lengths_for(entry.mask, heads, entry.params)
    checked = _checked(entry, ways, heads or 2, lengths.shapes, arrays)
    drawn = _drawn(entry, attn, heads, lengths, 0 if shape else cases, arrays.seed)
    return {
        "name": entry.name, "formula": str(entry.mask), "target": target.name,
        "dtype": asked.dtype, "head_dim": asked.head_dim, "heads": heads or 2, **checked,
        "unreached": list(lengths.unreached), "drawn": drawn,
    }  # fmt: skip


def _checked(
    entry: MaskEntry,
    ways: dict[str, CompiledMask],
    heads: int,
    shapes: tuple[tuple[int, int], ...],
    arrays: Arrays,
) -> Report:
    """All checks at these lengths, and what the mask is there."""
    from maskc.dispatch.residue_split import hold
    from maskc.verify.case_lengths import seen

    rows: list[ProbeResult] = []
    skipped, patterns_seen = [], []
    for n_q, n_kv in shapes:
        now(f"verifying {entry.name} at {n_q} x {n_kv}")
        try:
            for note, way in ways.items():
                if not note or hold(way.bundle, n_q, n_kv):
                    probe = _probe(entry, way, heads, n_q, n_kv, arrays, note)
                    rows += probe.checks()
                    patterns_seen += [] if note else [asdict(seen(probe.keep, probe.label))]
        except (DataShape, DataRange) as refusal:  # a table of its own fits some lengths only
            skipped.append({"case": f"{n_q} x {n_kv}", "reason": refusal.finding})
    if not rows:
        why = skipped[0]["reason"] if skipped else "its tables have no lengths in common"
        raise UsageMistake(
            f"{entry.name} fits none of the lengths: {why}",
            "give lengths that fit with --n and --n-kv", at="--n",
        )  # fmt: skip
    return {"rows": [asdict(row) for row in rows], "skipped": skipped, "seen": patterns_seen}


def _drawn(
    entry: MaskEntry, attn: CompiledMask, heads: int | None, lengths: Lengths, cases: int, seed: int
) -> Report:
    """Return the report of random cases."""
    from maskc.dsl.nodes import default_parameters
    from maskc.verify.counterexample import script
    from maskc.verify.random_cases import MaskUnderTest, Outcome, try_cases

    free = {n: v for n, v in default_parameters(entry.mask).items() if n not in entry.params}
    params = tuple(sorted(free.items()))
    subject = MaskUnderTest(
        entry.name, entry.mask, {attn.bundle.problem.dtype.value: attn}, lengths, heads, params,
        tuple(entry.params.items()),
    )  # fmt: skip

    def tell(count: int) -> None:
        now(f"verifying {entry.name}: random case {count + 1} of at most {cases}")

    done = try_cases(subject, cases, seed, tell=tell) if cases else Outcome(0, 0, "", None, True)
    wrong = done.mismatch
    return {
        "cases": done.cases, "refused": done.refused, "reason": done.reason, "shrunk": done.shrunk,
        "counterexample": None if wrong is None else {
            **asdict(wrong.case), "part": wrong.part, "error": wrong.error,
            "allowed": wrong.allowed, "script": script(wrong, subject),
        },
    }  # fmt: skip


def _probe(
    entry: MaskEntry, attn: CompiledMask, heads: int, n_q: int, n_kv: int, arrays: Arrays, note: str
) -> Probe:
    import numpy as np

    from maskc.verify.case import Case
    from maskc.verify.case_tensors import device_of, make_tensors
    from maskc.verify.probes import Probe
    from maskc.verify.samples import true_mask

    data = arrays.of(entry, n_q, n_kv, quiet=True)
    shared = heads // 2 if heads % 2 == 0 else heads
    problem = attn.bundle.problem
    case = Case(
        entry.name, entry.mask, 1, heads, shared, n_q, n_kv, problem.head_dim, problem.dtype, data
    )
    keep = true_mask(case, make_tensors(case, device_of(attn.target)))
    keep = np.broadcast_to(keep.reshape(-1, n_q, n_kv), (heads, n_q, n_kv))
    return Probe(attn, case, keep, arrays.seed, note)


def _write(report: Report) -> None:
    echo(
        f"{report['name']}: {report['formula']}\n{report['target']}, {report['dtype']}, "
        f"head_dim {report['head_dim']}, {report['heads']} heads"
    )
    write_table(
        ("queries x keys", "check", "error", "allowed", ""), list(_cells(report)), numbers=(2, 3)
    )
    echo("".join(f"{line}\n" for line in (*_seen(report), *_cases(report))))


def _seen(report: Report) -> Iterator[str]:
    """Return the length that exceeds all constants of the mask, and the constants that were not
    reached."""
    rows = report["seen"]
    for plain in ("causal", "full"):
        other = [row["case"] for row in rows if row["looks"] not in (plain, "full")]
        if len(other) == len(rows):
            continue
        until = f"at {other[0]} and more" if other else "at none of these lengths"
        yield f"the mask differs from {plain}() {until}"
    tiles = {kind: sum(row[kind] for row in rows) for kind in ("full", "partial", "empty")}
    yield "tiles of 64 x 64: " + ", ".join(f"{count} {kind}" for kind, count in tiles.items())
    if report["unreached"]:
        first = report["unreached"][0]
        yield f"not reached: what changes from {first} tokens on (give --n and --n-kv)"


def _cases(report: Report) -> Iterator[str]:
    drawn = report["drawn"]
    wrong = drawn["counterexample"]
    if drawn["cases"] or drawn["refused"]:
        refused = f", {drawn['refused']} refused ({drawn['reason']})" if drawn["refused"] else ""
        how = "one is wrong" if wrong else "all right"
        yield f"random cases: {drawn['cases']} compared, {how}{refused}"
        if not drawn["shrunk"]:
            yield "cases do not shrink without Hypothesis: pip install 'maskc[test]'"
    if wrong:
        yield f"the smallest wrong case:\n\n{wrong['script']}"


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
