"""Where mistakes of an expression are: in its own text, not in the code that reads it."""

from __future__ import annotations

import pytest

from maskc.core.errors import MaskcError
from maskc.dsl.parser import parse
from tests.support.cli import maskc


def fault(text: str) -> str:
    with pytest.raises(MaskcError) as caught:
        parse(text)
    return str(caught.value)


def test_a_caret_under_the_combinator():
    assert fault("causal() & window(-3)").splitlines()[:3] == [
        "MC101 --expr:1:12  window(-3): left must be >= 0, found -3",
        "    causal() & window(-3)",
        "               ^^^^^^^^^^",
    ]


def test_the_place_in_several_lines():
    text = "causal() & (\n  sinks(4) | sinks(-1)\n)"
    assert fault(text).splitlines()[:3] == [
        "MC101 --expr:2:14  sinks(-1): n must be >= 0, found -1",
        "      sinks(4) | sinks(-1)",
        "                 ^^^^^^^^^",
    ]


def test_columns_count_characters():
    found = fault("documents('\u00e4\u00f6') & window(-1)")
    assert found.startswith("MC101 --expr:1:19  window(-1)")


def test_what_was_meant():
    assert "'windw' is not a combinator; did you mean window? known: " in fault("windw(3)")
    assert "'open' is not a combinator; known: " in fault("open('x')")


def test_sources_name_the_line_of_the_text():
    """Not one of a library, which would change with its version."""
    result = maskc("compile", "--expr", "causal() & (sinks(4) |\n window(9))", "--emit", "source",
                 "--target", "cpu")  # fmt: skip
    notes = [line.strip() for line in result.stdout.splitlines() if line.strip()[:7] == "// line"]
    assert set(notes) == {"// line 1: sinks(4)", "// line 2: window(9)", "// line 1: causal()"}


def test_a_place_does_not_outlive_its_text():
    import maskc as mc

    parse("causal()")
    with pytest.raises(MaskcError) as caught:
        mc.window(-1)
    assert "test_expression_places.py" in str(caught.value)
