"""Decisions of calls: each one that changes shows as a difference of tests/golden/decisions.txt."""

from __future__ import annotations

import pytest

from tests.support import decisions
from tests.support.decisions import CALLS, GOLDEN, SHOWN, Call


def _paragraphs() -> dict[str, str]:
    """The golden text by the first line of each paragraph."""
    return {text.split("\n", 1)[0]: text.rstrip() for text in GOLDEN.read_text().split("\n\n")}


@pytest.mark.parametrize("call", [CALLS[1]], ids=str)
@pytest.mark.parametrize("name", SHOWN)
def test_calls_run_as_they_did(name: str, call: Call) -> None:
    """CI compares all of them: `make check`; `make decisions` writes what is decided now."""
    (text,) = decisions.entries([name], [call], ())
    first = text.split("\n", 1)[0]
    assert text.rstrip() == _paragraphs()[first], "make decisions, if that is meant"


def test_every_pattern_and_option_is_there() -> None:
    found = set(_paragraphs())
    assert {f"{name}, {call}" for name in decisions.patterns() for call in CALLS} <= found
    assert {f"{name}, {call}" for name in SHOWN for call in decisions.OPTIONS} <= found


def test_another_decision_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that costs more is taken less."""
    from maskc.core.cost import Cost

    usual = "\n".join(decisions.entries(["causal"], [CALLS[1]], ()))
    cycles = Cost.cycles
    monkeypatch.setattr(Cost, "cycles", lambda self, tally: -cycles(self, tally))
    assert "\n".join(decisions.entries(["causal"], [CALLS[1]], ())) != usual
