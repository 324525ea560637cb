"""The rules for English pages find what they are for, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("proselint")

from tests.support.prose import ADVICE, RULES, complaints, without_code
from tests.support.words import MAX_WORDS, PHRASES

ROOT = Path(__file__).parents[2]
BROKEN = [
    "All masks but for one are tested.",
    "A number is to be given.",
    "It is exact, that is to say proved.",
    "Six masks, of which two are causal.",
    "A mask whose rows are read by a kernel whose tiles are small.",
    "A test compares it with what is written.",
    "It was timed beside cuDNN.",
    "A call asks for a gradient.",
    "A kernel reads every so-manieth key.",
    "A number was to be given.",
    "Six engineers, two of whom write kernels.",
    "The tiles are those of the plan.",
    "The gradient was asked for.",
    "A list says what is to move.",
    "What a policy has not to do is empty.",
    "A closed form is sought.",
    "It has the same bits on every run.",
    "It takes .27 ms.",
]
"""A sentence for each rule, in their order."""


def test_every_rule_has_a_sentence() -> None:
    assert len(BROKEN) == len(RULES)
    assert set(ADVICE) == set(PHRASES)


@pytest.mark.parametrize(("sentence", "rule"), [*zip(BROKEN, RULES.values(), strict=True)])
def test_a_sentence_that_breaks_a_rule(sentence: str, rule: str) -> None:
    assert rule in [complaint.rule for complaint in complaints(f"# Title\n\n{sentence}\n")]


@pytest.mark.parametrize(
    "text",
    [
        "It takes 0.27 ms on an H200, compared with 0.3 ms for cuDNN.",
        "Version 4.0.1 has `but for` in code, and [a link](of-which.md).",
        "```text\nall but for one, .27 ms\n```",
        "A formula:\n\n    out = those of a kernel, beside .5\n\nand more.",
        "| a table | with many cells | " + "and words | " * 40,
        "- " + "some words of a list\n- " * 20,
        "It reads q. `k` is read, too. " * 12,
    ],
)
def test_a_text_without_a_mistake(text: str) -> None:
    assert complaints(f"# Title\n\n{text}\n") == []


def test_a_long_sentence_and_its_place() -> None:
    words = " ".join(["word"] * (MAX_WORDS + 1))
    text = f"# Title\n\n```sh\nmaskc bench\n```\n\nShort. And\n{words}.\n"
    (complaint,) = complaints(text)
    assert (complaint.line, complaint.rule) == (7, f"{MAX_WORDS + 2} words: two sentences")
    assert complaints(text.replace("And\n", "And.\nA ").replace("word word", "word")) == []


def test_lines_stay_where_they_are() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text()
    prose = without_code(page)
    assert prose.count("\n") == page.count("\n")
    assert "cuda" not in without_code("a\n```cuda\nint x;\n```\nb")
