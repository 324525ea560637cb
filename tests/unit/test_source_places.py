"""Places in the user's files, and formulas that are traced once for each of them."""

from __future__ import annotations

import gc
import weakref

import maskc as mc
from maskc import driver
from maskc.core.source import caller, seen_from


def called(text, name):
    """Run a text as the file `name`, and return its `made`."""
    space = {"mc": mc, "caller": caller}
    exec(compile(text, name, "exec"), space)
    return space["made"]


def test_equal_texts_of_two_files_have_their_own_places():
    """Code objects of equal texts are equal, whatever the names of their files."""
    places = [called("\nmade = caller()\n", name) for name in ("/x/one.py", "/x/two.py")]
    assert [(x.file, x.line, x.col) for x in places] == [("/x/one.py", 2, 8), ("/x/two.py", 2, 8)]


def test_places_follow_the_folder(tmp_path, monkeypatch):
    """Also when the same line runs again after the working directory changed."""
    name = str(tmp_path / "inner" / "mask.py")
    code = compile("made = caller()", name, "exec")

    def place():
        space = {"caller": caller}
        exec(code, space)
        return space["made"].file

    (tmp_path / "inner").mkdir()
    monkeypatch.chdir("/")
    assert place() == name.removeprefix("/")
    monkeypatch.chdir(tmp_path)
    assert place() == "inner/mask.py"
    with seen_from(tmp_path / "inner"):
        assert place() == "mask.py"
    assert place() == "inner/mask.py"


def test_a_line_in_a_loop_traces_its_formula_once():
    formulas = {id(mc.scores.alibi(n_heads=8)) for _ in range(5)}
    assert len(formulas) == 1
    several = [mc.scores.soft_cap(cap) for cap in (30, 30.0, 20.0)]
    assert len({id(x) for x in several}) == 3
    assert repr(several[2]) == "score(20 * tanh(s / 20))"


def test_formulas_name_the_line_that_made_them():
    first = mc.scores.bias("table")
    second = mc.scores.bias("table")
    assert first is not second
    assert first.formula.loc.line + 1 == second.formula.loc.line


def test_formulas_of_arrays_are_not_kept():
    class Cap(float):
        pass

    cap = Cap(30.0)
    alive = weakref.ref(cap)
    mc.scores.soft_cap(cap)
    del cap
    gc.collect()
    assert alive() is None


def test_equal_masks_keep_their_own_lines():
    first = mc.causal() & mc.window(77)
    second = (
        mc.causal()
        & mc.window(77)
    )  # fmt: skip
    assert first == second
    lines = [
        [origin.loc.line for _, origin in driver.analyse_heads(mask).masks[0].origins if origin.loc]
        for mask in (first, second)
    ]
    assert lines[0]
    assert lines[1]
    assert set(lines[0]).isdisjoint(lines[1])
    assert driver.analyse_heads(first) is driver.analyse_heads(first)
