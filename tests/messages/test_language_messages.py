"""The full text of every mistake in the mask language and in pattern files.

language.txt holds, case by case, what a pattern file says after `import maskc as mc` and what maskc
answers.
"""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

import maskc as mc
from maskc.core.errors import MaskcError, language
from maskc.dsl.parser import parse
from tests.support import message_texts
from tests.support.cli import maskc


def cases() -> dict[str, tuple[str, str]]:
    """name -> (body of the file, the message)."""
    parts = {
        name: text.partition("\n----\n") for name, text in message_texts.read("language").items()
    }
    return {name: (body, said) for name, (body, _, said) in parts.items()}


def answer(body: str) -> str:
    """Load a file bad.py of this body in the working directory, and return the error's text."""
    Path("bad.py").write_text(f"import maskc as mc\n\n{body}\n")
    linecache.clearcache()
    try:
        mc.load("bad.py")
    except mc.MaskcError as error:
        return str(error)
    return "no mistake"


@pytest.mark.parametrize("name", cases())
def test_the_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message) -> None:
    monkeypatch.chdir(tmp_path)
    body, _ = cases()[name]
    if "import torch" in body:
        pytest.importorskip("torch")
    message("language", name, f"{body}\n----\n{answer(body)}")


def test_every_class_has_a_text() -> None:
    classes = [
        item
        for item in vars(language).values()
        if isinstance(item, type) and issubclass(item, mc.MaskcError) and item is not mc.MaskcError
    ]
    codes = {item.code for item in classes}
    assert len(codes) == len(classes)
    assert {name.split()[0] for name in cases()} == codes | {"MC001"}
    for name, (_, message) in cases().items():
        assert name.startswith(("MC001", message.split()[0]))


# ------------------------------------------------------------------ places in expressions


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
    assert "test_language_messages.py" in str(caught.value)
