"""Faults that `make mutants` plants, and what finds them."""

from __future__ import annotations

import pytest

from tests.support import mutants

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
    assert all(mutants.tests_of(fault.file) for fault in faults if "templates" in fault.file)


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
    assert mutants.first_failure(tmp_path, ["tests/test_x.py"], seconds=3) == found


def test_what_is_known_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "TABLE", tmp_path / "mutants.txt")
    one, two, *_ = (fault.key for fault in mutants.planted())
    mutants.write_table({one: "none: equal for all lengths", two: "tests/a.py::b", "gone": "x"})
    assert mutants.read_table() == {one: "none: equal for all lengths", two: "tests/a.py::b"}
