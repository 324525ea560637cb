"""Which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from pathlib import Path

from tests.support import cover
from tests.support.cover import Measured, chosen, is_later, listed, named

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


def test_the_list_is_read_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cover, "LIST", tmp_path / "later.txt")
    names = ["a.py::again", "a.py::same[1 :: 2]", "b.py::C::one"]
    cover.write_list(names)
    assert cover.LIST.read_text() == "a.py\n again\n same[1 :: 2]\nb.py\n C::one\n"
    assert listed() == set(names)


def test_the_list_names_tests_that_are_there():
    texts = {}
    for line in listed():
        file, _, rest = line.partition("::")
        text = texts.setdefault(file, (ROOT / file).read_text())
        assert f"def {rest.partition('[')[0].rpartition('::')[2]}(" in text, line
