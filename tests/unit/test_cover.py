"""The tests that tests/support chooses for `make test` and `make matrix`; its planted faults."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import CodeType
from unittest.mock import Mock

import pytest

from tests.support import cover, mutants
from tests.support.cover import (
    DEAR,
    LIST,
    NIGHTLY,
    UNTRACED,
    Measured,
    by_target,
    chosen,
    finders,
    implied,
    is_later,
    listed,
    named,
    write_list,
)

ROOT = Path(__file__).parents[2]
TESTS = {
    "a.py::cheap": Measured(0.1, {1}),
    "a.py::same[1]": Measured(2.0, {1, 2, 3}),
    "a.py::same[2]": Measured(1.0, {1, 2, 3}),
    "a.py::same[3]": Measured(9.0, {1, 4}),
    "a.py::dear": Measured(50.0, {5}),
    "a.py::again": Measured(0.2, {1}),
}


def test_what_adds_nothing_waits():
    now = chosen(TESTS, budget=100.0)
    assert now == {"a.py::cheap", "a.py::same[2]", "a.py::same[3]", "a.py::dear"}


def test_a_budget_takes_what_adds_most_for_its_cost():
    assert chosen(TESTS, budget=10.0) == {"a.py::cheap", "a.py::same[2]", "a.py::same[3]"}
    assert chosen(TESTS, budget=0.5) == {"a.py::cheap"}


def test_a_function_stands_for_its_cases():
    later = {"a.py::same[1]", "a.py::same[2]", "a.py::again"}
    lines = named(later, list(TESTS))
    assert lines == ["a.py::again", "a.py::same[1]", "a.py::same[2]"]
    assert named(later | {"a.py::same[3]"}, list(TESTS)) == ["a.py::again", "a.py::same"]
    assert is_later("a.py::same[7]", frozenset(["a.py::same"]))
    assert not is_later("a.py::same[3]", frozenset(lines))


def test_cases_that_others_cover_run_at_night():
    """Lines count, names of parameters do not; the cheaper of two cases stays."""
    line, other, target = ("maskc/plan/a.py", 1), ("maskc/plan/a.py", 2), ("cpu", "sinks")
    tests = {
        "a.py::same[1]": Measured(2.0, {line, other}),
        "a.py::same[2]": Measured(0.9, {line, other}),
        "a.py::same[3]": Measured(9.0, {line, ("a.py::same", 0, "3")}),
        "a.py::same[4]": Measured(0.1, {line}),
    }
    assert implied(tests) == {"a.py::same[1]", "a.py::same[3]"}
    assert implied(tests, frozenset({"a.py::same[1]"})) == {"a.py::same[2]", "a.py::same[3]"}
    for whole in ("a.py::same", "a.py"):  # the table of faults names no case
        assert implied(tests, frozenset({whole})) == set()
    tests["a.py::same[1]"].reaches.add(target)  # a line on one target is not that on another
    tests["a.py::other"] = Measured(0.9, {target})
    assert implied(tests) == {"a.py::same[3]"}
    alone = {f"b.py::one[{i}]": Measured(0.5 + i, {line}) for i in range(3)}
    assert implied(alone) == {"b.py::one[1]", "b.py::one[2]"}
    dear = {f"{file}.py::{file}": Measured(DEAR + i, {line}) for i, file in enumerate("cde")}
    assert implied(alone | dear) == {*dear, "b.py::one[1]", "b.py::one[2]"}
    assert implied(dear, frozenset({"e.py::e"})) == {"c.py::c", "d.py::d"}
    assert implied({f"tests/property/{name}": test for name, test in dear.items()}) == set()
    untraced = {name.replace("b.py", UNTRACED[0]): test for name, test in alone.items()}
    assert implied(untraced) == set()


def test_what_crashes_by_a_fault_finds_it():
    table = "a.py: sign: x  ->  y  |  t.py::one[a b] crashes\nb.py: z  |  t.py::two hangs\n"
    assert finders(table + "c.py: z  |  t.py::three\n") == {
        "t.py::one[a b]",
        "t.py::two",
        "t.py::three",
    }


@pytest.mark.parametrize(
    ("place", "text", "apart"),
    [
        ("maskc/runtime/a.py", 1, True),
        ("maskc/ir/a.py", 1, False),  # knows no target
        ("TARGET", "float a = b;", False),  # of all kernels, or of those of one target
        ("TARGET", "WITH_CAP", True),
        ("TARGET", "('persistent',)", True),
    ],
)
def test_what_counts_once_for_each_target(place, text, apart):
    sides = [
        by_target({(target, "sinks"), (place.replace("TARGET", target), text)})
        - {(target, "sinks")}
        for target in ("sm_80", "sm_90a")
    ]
    assert (sides[0] != sides[1]) == apart


def test_lines_that_print_a_mask_or_declare_something_do_not_count():
    idle = ("k <= q + m.c0;", "(void)m;", "[[maybe_unused]] constexpr bool PADDED = 0;",
            "__device__ __forceinline__ i0 f(i0 x) {", "template <class Side>", "i0 head;",
            "const struct Attention &p, i0) {", "if (0 && ADDS && p.dslopes) {")  # fmt: skip
    assert by_target({("simt", line) for line in (*idle, "k <= q;")}) == {"k <= q;"}


def test_functions_that_only_check_are_cases_of_one(tmp_path, monkeypatch):
    text = """
def test_one(): check(1)
def test_two(): check(2)
def test_also(): assert check(3)
def test_refused():
    with raises(ValueError): check(4)
"""
    (tmp_path / "c.py").write_text(text)
    monkeypatch.setattr(cover, "ROOT", tmp_path)
    cover._checked.cache_clear()
    names = [f"c.py::test_{name}" for name in ("one", "two", "also", "refused")]
    tests = {name: Measured(0.2 + i / 5, {("maskc/a.py", 1)}) for i, name in enumerate(names)}
    assert implied(tests) == {names[1]}
    cover._checked.cache_clear()


def test_a_list_is_read_as_it_is_written(tmp_path):
    names, path = ["a.py::again", "a.py::same[1 :: 2]", "b.py::C::one"], tmp_path / "later.txt"
    write_list(names, path)
    assert path.read_text() == "a.py\n again\n same[1 :: 2]\nb.py\n C::one\n"
    assert listed(path) == set(names)


@pytest.mark.parametrize("path", [LIST, NIGHTLY], ids=lambda path: path.stem)
def test_a_list_names_tests_that_are_there(path):
    texts = {}
    for line in listed(path):
        file, _, rest = line.partition("::")
        text = texts.setdefault(file, (ROOT / file).read_text())
        assert f"def {rest.partition('[')[0].rpartition('::')[2]}(" in text, line


# ------------------------------------------------------------------ planted faults


KERNEL = """
// a < b stays: it is a comment
FN i32 rows(const struct Attention &p, i32 n) {  // a < b, too
    for (i32 i = 0; i < n; i++) __syncthreads();
    asm volatile("max %0, 1 - 2;");
    return max_i32(0, p.n_q - n);  // n < 0
}
"""


def test_rules_change_one_place_of_a_line():
    found = [(fault.rule, fault.new.strip()) for fault in mutants.candidates("x.cuh", KERNEL)]
    assert found == [
        ("comparison", "for (i32 i = 0; i <= n; i++) __syncthreads();"),
        ("barrier", "for (i32 i = 0; i < n; i++) ;"),
        ("tile", "for (i32 i = 1; i < n; i++) __syncthreads();"),
        ("extreme", "return min_i32(0, p.n_q - n);  // n < 0"),
        ("sign", "return max_i32(0, p.n_q + n);  // n < 0"),
        ("stride", "return max_i32(0, p.n_kv - n);  // n < 0"),
    ]


def test_texts_for_readers_stay():
    text = '"""a < b\n\nc < d\n"""\nfrom x import a\nif "a" and b < c:\n    pass\n'
    assert list(mutants.candidates("x.py", text)) == []


def test_the_choice_is_the_same_in_every_process():
    faults = mutants.planted()
    assert len(faults) == sum(mutants.COUNT.values()) == len({fault.key for fault in faults})
    assert {fault.rule for fault in faults} == set(mutants.RULES)
    assert all(mutants.tests_of(fault) for fault in faults)


@pytest.mark.parametrize(
    ("body", "found"),
    [("assert 1 + 1 == 2", ""), ("assert 1 + 1 == 3", "tests/test_x.py::test_x"),
     ("__import__('os').kill(0, 9)", "tests/test_x.py::test_x crashes"),
     ("while True: pass", "tests/test_x.py::test_x hangs")],
)  # fmt: skip
def test_the_first_failure(tmp_path, body, found):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['gpu', 'matrix']"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(f"def test_x():\n    {body}\n")
    run = partial(mutants.imported_anew, tmp_path, ["tests/test_x.py"])
    assert mutants.first_failure(tmp_path, run, seconds=3) == found


def code_of(text: str) -> CodeType:
    return compile(text, "x.py", "exec")


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("def f(x):\n    return x + 1", "def f(x):\n    return x", ["f"]),
        ("class A:\n    def f(self):\n        return [x < 1 for x in self]",
         "class A:\n    def f(self):\n        return [x <= 1 for x in self]", ["A.f"]),
        ("def f():\n    def g(x):\n        return x - 1\n    return g",
         "def f():\n    def g(x):\n        return x\n    return g", ["f"]),
        ("def f(x=1 + y):\n    return x", "def f(x=y):\n    return x", None),
        ("def f(x):\n    return x", "def f(y):\n    return y", ["f"]),
        ("class A:\n    x = y + 1", "class A:\n    x = y", None),
        ("def f():\n    return 1", "def f():\n    return 1", []),
    ],
)  # fmt: skip
def test_functions_that_take_a_fault(old, new, names):
    """None where the file is imported anew, because more than its functions differ."""
    changed = mutants.changed_functions(code_of(old), code_of(new))
    assert names == (None if changed is None else [code.co_qualname for code in changed])


def test_each_fault_gets_its_own_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "TABLE", tmp_path / "mutants.txt")
    monkeypatch.setattr(mutants, "finder", lambda suite, room, fault: f"{fault.line}")
    faults, rooms = list(mutants.planted()[:3]), [tmp_path / name for name in "ab"]
    for room in rooms:
        room.mkdir()
    mutants._in_turn(faults, rooms, time.monotonic() + 60, lambda text: None, Mock(items={}))
    assert mutants.read_table() == {fault.key: f"{fault.line}" for fault in faults}


@pytest.mark.parametrize(
    ("file", "targets"),
    [("sm80/gather.cuh", {"sm_80"}), ("sm90a/mma16.cuh", {"sm_90a", "lists"}),
     ("common/lib/keep.cuh", {"sm_90a", "sm_80", "simt", "lists"}), ("cpu/lib/scores.h", set())],
)  # fmt: skip
def test_faults_are_of_targets_that_read_their_files(file, targets):
    fault = mutants.Fault(f"templates/{file}", "sign", 20, "", "")
    places = [place for line in mutants._near(fault) for place in line]
    assert {target for target, _ in places} == targets


def test_what_is_known_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "TABLE", tmp_path / "mutants.txt")
    one, two, *_ = (fault.key for fault in mutants.planted())
    mutants.write_table({one: "none: equal for all lengths", two: "tests/a.py::b", "gone": "x"})
    assert mutants.read_table() == {one: "none: equal for all lengths", two: "tests/a.py::b"}
