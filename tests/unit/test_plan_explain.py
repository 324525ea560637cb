"""Reports of masks in parts: each part, when they are taken, and the same choice as calls make."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.plan.cost import choice, runs_in_parts
from maskc.plan.explain import choice_lines, explain, narrowed
from maskc.plan.loops import loop_nest
from tests.support.cli import maskc, maskc_json
from tests.support.decisions import Call, Decider

WHEN = "parts    used if their tiles take less time than those of the whole mask"
TARGET_NAMES = ["cpu", "sm_90a"]
TAKEN = {
    "dilated": mc.dilated(511, stride=4),
    "short": mc.dilated(9, stride=7),
    "wide": mc.dilated(63, stride=16),
    "with a window": mc.window(300) | mc.dilated(200, stride=8),
    "with global tokens": mc.dilated(256, 256, stride=2) | mc.global_tokens(64),
    "scattered": mc.window(64, 64) | mc.global_tokens(list(range(0, 4096, 300))),
    "slashes": mc.causal() & mc.where(lambda q, k: (q - k) % 64 == 0),
    "width": mc.dilated(mc.param("w", 63), stride=4),
}


def planned(mask: mc.Mask, target: str = "sm_90a"):
    return driver.plan_kernel(mask, driver.problem(128, None, None, "bfloat16"), TARGETS[target])


def lines(text: str, *labels: str) -> list[str]:
    """The text of each entry under one of the labels, unwrapped; the label stays."""
    found: list[str] = []
    for line in text.splitlines():
        if line[:9].strip():
            found.append(line)
        else:
            found[-1] += line[8:]
    return [entry for entry in found if entry.split()[0] in labels]


def test_one_line_a_part():
    assert lines(explain(planned(TAKEN["dilated"])), "part", "parts") == [
        "part     residue classes modulo 4: (k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - 511); "
        "tiles of 128 x 128, closed-form tile ranges",
        WHEN,
    ]


def test_tokens_as_they_are():
    """A long formula, which stands above piece by piece, is not repeated."""
    first, second, _ = lines(explain(planned(TAKEN["with global tokens"], "cpu")), "part", "parts")
    assert first == (
        "part     tokens as they are: columns, rows; tiles of 64 x 64, tile lists in memory"
    )
    assert second.startswith("part     residue classes modulo 2: (k >= ")
    window = lines(explain(planned(TAKEN["with a window"])), "part")[0]
    assert window.startswith("part     tokens as they are: (k <= q + n_kv - n_q) & (k >= ")


def test_lengths_at_which_parts_hold():
    made = planned(TAKEN["slashes"])
    (when,) = lines(explain(made), "parts")
    assert when == f"{WHEN}; only where 64 divides n_kv - n_q"
    first, *_ = choice_lines(made, 8192, 8193)
    assert first.startswith("choice   8192 x 8193: 128 x 128")
    row = f"         {'in parts':<28} not: n_kv - n_q is no multiple of 64"
    assert list(choice_lines(made, 8192, 8193)).count(row) == 2
    assert next(choice_lines(made, 8192, 8256)).startswith("choice   8192 x 8256: in parts; ")


def test_a_mask_that_runs_whole_says_nothing_of_parts():
    for mask in (mc.window(77), mc.causal()):
        text = explain(planned(mask), 4096)
        assert not lines(text, "part", "parts")
        assert "in parts" not in text
    text = " ".join(choice_lines(planned(mc.causal()), 4096, 4096))
    assert "128 x 128 persistent" in text
    assert "in parts" not in text


def test_data_decide_at_the_call():
    made = planned((mc.documents("doc") & mc.window(2)) | mc.dilated(200, stride=5))
    assert lines(explain(made, 4096), "part", "parts")
    assert not lines(explain(made, 4096), "choice")
    assert not list(choice_lines(made, 4096, 4096))


@pytest.mark.parametrize(("dim", "dim_v", "times"), [(128, 128, "2.5"), (192, 128, "2.6")])
def test_backward_passes_multiply_rows_of_q_three_times_and_rows_of_v_twice(dim, dim_v, times):
    problem = driver.problem(dim, dim_v, None, "bfloat16")
    plan = driver.plan_kernel(mc.causal(), problem, TARGETS["sm_90a"])
    (flops,) = lines(explain(plan), "flops")
    assert flops.endswith(f"backward {times} x")


def test_numbers():
    """Two classes of 64 queries each: 2 rows and 2 partial tiles; whole: 2 rows, 3 tiles."""
    made = planned(mc.dilated(127, stride=2), "cpu")
    parts = 128 * 64 + round(2 * 64 * 64 * 1.3)
    whole = 128 * 64 + round(3 * 64 * 64 * 1.3)
    for direction in Direction:
        taken, programs = choice(made, 128, 128, direction)
        assert {program.name: round(program.cycles) for program in programs} == {
            "64 x 64": pytest.approx(whole, abs=3), "in parts": pytest.approx(parts, abs=3)
        }  # fmt: skip
        assert taken is programs[-1]
    assert list(choice_lines(made, 128, 128))[::3] == [
        f"choice   {which}128 x 128: in parts; cycles of one head by program:"
        for which in ("", "backward, ")
    ]


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("name", TAKEN)
def test_the_choice_is_that_of_calls(name, target):
    decider = Decider(TAKEN[name], Call(target, 128))
    problem = driver.problem(128, None, 16, decider.call.dtype)
    made = driver.plan_kernel(TAKEN[name], problem, TARGETS[target])
    assert made.parts
    for n_q, n_kv in ((1, 1), (40, 700), (700, 40), (1024, 1024), (1024, 1088), (4096, 4097),
                      (16384, 16384)):  # fmt: skip
        taken = [
            "part 0 " in decider.decision(direction, False, n_q, n_kv, {})[0]
            for direction in Direction
        ]
        assert [runs_in_parts(made, n_q, n_kv, direction) for direction in Direction] == taken
        tables = [
            line for line in lines(explain(made, n_q, n_kv), "choice") if "of one head" in line
        ]
        assert [": in parts;" in table for table in tables] == taken


def test_the_command_prints_every_program_of_both_passes():
    result = maskc(
        "explain", "--expr", "causal() & window(255)", "--n", "4096", "--target", "sm_90a"
    )
    for title in ("choice   4096 x 4096: ", "choice   backward, 4096 x 4096: "):
        assert title in result.stdout
    assert "128 x 128 persistent" in result.stdout
    assert "not: only with deterministic=True" in result.stdout


# ------------------------------------------------------------------ loop nests in words


SHOWN = {
    "streaming": (mc.causal() & (mc.sinks(4) | mc.window.hf(1024)), "sm_90a"),
    "band": (mc.window(255), "cpu"),
    "lattice": (mc.dilated(63, stride=4) | mc.strided(128) & mc.causal(), "cpu"),
    "documents": (mc.documents("doc") & mc.causal(), "sm_90a"),
    "per_head": (mc.per_head([mc.causal(), mc.window(8), mc.causal()]), "sm_80"),
    "chosen": (mc.topk(64, of=mc.causal()) | mc.window(15), "sm_90a"),
    "gathered": (mc.topk(64, of=mc.causal(), score="indexer") | mc.window(15), "sm_90a"),
    "grid": (
        mc.where(lambda q, k: (abs(q // 64 - k // 64) <= 3) & (abs(q % 64 - k % 64) <= 3)),
        "sm_90a",
    ),
    "blocks": (mc.block_diagonal(64), "sm_90a"),
}  # fmt: skip


def nest(mask: mc.Mask, target: str, n_q: int = 4096, n_kv: int | None = None) -> str:
    heads = len(mask.children) if isinstance(mask, type(SHOWN["per_head"][0])) else None
    problem = driver.problem(64, None, heads, "bfloat16")
    return loop_nest(driver.plan_kernel(mask, problem, TARGETS[target]), n_q, n_kv or n_q)


@pytest.mark.parametrize("name", SHOWN)
def test_texts(name: str, golden):
    text = nest(*SHOWN[name])
    golden(f"loops/{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 100
    for one in text.split(" pass, ")[1:]:
        assert 10 <= len(one.splitlines()) <= 30


def test_who_makes_a_list():
    for mask, what in (
        (mc.causal() & mc.random_blocks(64, 3, seed=0), "the mask's own tables"),
        (mc.causal() & mc.documents("doc"), "the data of the call"),
        (mc.random_blocks(64, 3, seed=0) & mc.documents("doc"), "the data of the call"),
    ):
        assert f"tiles(ti) = a list in memory from {what}, made on the" in nest(mask, "cpu")


FORM = re.compile(
    r"^ +(live|full|partial) +(t[ij]) = (.+?)(?:\.\.(.+?))?"
    r"(?: in steps of (\d+))?(?:, for t[ij] = (\d+)(?:\.\.(\d+))?|, where (.+))?$", re.M
)  # fmt: skip


def tiles_of(text: str, rows: int, columns: int) -> np.ndarray:
    """Return the tiles that the closed forms of a pass describe: 0, 1 partial, 2 full."""
    array = np.zeros((rows, columns), int)
    forms = FORM.findall(text)
    if not forms:
        assert re.search(r"a list in memory of \d+ full and \d+ partial tiles", text)
        pytest.skip("no closed forms at these lengths")
    order = {"live": 1, "partial": 1, "full": 2}
    for kind, inner, first, last, step, low, high, where in forms:
        size = rows if inner == "tj" else columns
        only = range(int(low), int(high or low) + 1) if low else range(size)
        for outer in only:
            at = {"ti" if inner == "tj" else "tj": outer, "min": min, "max": max}
            if where and not eval(where, at):
                continue
            start = eval(first, at)
            end = eval(last, at) if last else start
            for one in range(start, end + 1, int(step or 1)):
                at_tile = (outer, one) if inner == "tj" else (one, outer)
                array[at_tile] = max(array[at_tile], order[kind])
    return array


@pytest.mark.parametrize("lengths", [(640, 640), (1000, 1000), (300, 1000)], ids=str)
@pytest.mark.parametrize(
    "mask",
    [mc.window(255), mc.causal(), mc.causal() & (mc.sinks(4) | mc.window(100)), mc.chunked(128),
     mc.window(100, 30), mc.prefix(70) | mc.causal()],
    ids=str,
)  # fmt: skip
def test_closed_forms_are_the_tiles(mask: mc.Mask, lengths: tuple[int, int]):
    n_q, n_kv = lengths
    dense = mask.dense(n_q, n_kv)
    rows, columns = -(-n_q // 64), -(-n_kv // 64)
    right = np.zeros((rows, columns), int)
    for ti, tj in np.ndindex(rows, columns):
        part = dense[64 * ti : 64 * ti + 64, 64 * tj : 64 * tj + 64]
        right[ti, tj] = 2 if part.all() else int(part.any())
    forward, backward = nest(mask, "cpu", n_q, n_kv).split("\n\n")
    for text in (forward, backward):
        found = tiles_of(text, rows, columns)
        assert np.array_equal(found > 0, right > 0)
        assert ((found == 2) <= (right == 2)).all()  # where a kernel computes them, certain ones


def test_lengths_decide_between_a_whole_and_parts():
    """Both of them: with fewer queries, both passes run in parts."""
    for n_q, passes in ((1024, 1), (64, 2)):
        assert nest(*SHOWN["lattice"], n_q, 1024).count("# part 1 of 2") == passes


def test_lengths_without_tokens_and_the_command():
    assert "no tiles" in nest(mc.causal(), "cpu", 0, 5)
    asked = ("compile", "--expr", "window(5)", "--target", "cpu", "--emit", "loops", "--n", 100)
    text = maskc(*asked).stdout
    assert text.startswith("# forward pass, 100 x 100, on cpu; tiles of 64 queries x 64 keys\n")
    assert maskc_json(*asked) == {"loops": {"mask": text}}


@pytest.mark.parametrize("name", ["short", "with global tokens"])
def test_a_narrow_terminal_wraps_the_same_words(name: str):
    plan = planned(TAKEN[name])
    wide = [*explain(plan).splitlines(), *choice_lines(plan, 4096, 4096)]
    narrow = narrowed(wide, 80)
    assert max(map(len, wide)) > 80 >= max(map(len, narrow))
    assert " ".join(narrow).split() == " ".join(wide).split()
    for line, then in pairwise(narrow):  # no line ends early, except at a row of a table
        if then.startswith(" " * 9) and "  " not in then.strip() and "program:" not in line:
            assert len(line) + 1 + len(then.split()[0]) > 80, line
    assert narrowed(wide, 100) == wide
