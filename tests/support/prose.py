"""Rules for English prose, as checks of proselint for Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from proselint import checks as stock
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult, types
from proselint.registry.checks.engine import Fancy
from proselint.tools import LintFile

from tests.support.words import MAX_WORDS, PHRASES

ADVICE = {
    "but for": "write 'except'",
    "is to be": "write 'must be' or 'will be'",
    "that is to say": "write two sentences",
    "of which": "start a new sentence",
    "whose ... whose": "use 'whose' once in a sentence",
    "what is": "name the thing",
    "beside": "write 'compared with', 'alongside' or 'next to'",
    "asks for": "write 'needs' or 'requests'",
    "so-manieth": "write 'every s-th'",
}
"""Advice for each phrase that docstrings and comments must not have, either."""
RULES = {PHRASES[name].pattern: advice for name, advice in ADVICE.items()} | {
    r"\b(was|were|be) to be\b": "write 'must be' or 'will be'",
    r"\bof whom\b": "start a new sentence",
    r"\bthose (of|that)\b": "repeat the noun",
    r"\bask(ed)? for\b": "write 'needs' or 'requests'",
    r"\bwhat (is|are|was|has) (to|not to)\b": "name the thing",
    r"\bhas not to\b": "write 'need not'",
    r"\bin vain\b|\banew\b|\bsought\b|\bwhence\b|\bthereof\b|\bsave for\b": "use a common word",
    r"\bthe same bits\b": "write 'bitwise identical' or 'bitwise deterministic'",
    r"(?<![\w.)\]])\.\d": "write the leading zero",
}
"""A regular expression for a phrase that stops the reader, and the advice."""

STOCK = (
    "archaism",
    "cliches",
    "hedging",
    "industrial_language",
    "needless_variants",
    "nonwords",
    "oxymorons",
    "redundancy",
    "uncomparables",
)
"""Checks of proselint itself that run, too. Its typography wants curly quotes."""

QUOTED = CheckFlags(
    allow_quotes=True
)  # proselint passes over quotes, and takes any apostrophe for one
_CODE = re.compile(
    r"^( *)(```+|~~~+).*?^\1\2`*$|(?<=\n\n)(?: {4}[^\n]*\n|\n(?= {4}))+|<[^>\n]+>", re.M | re.S
)
_INLINE = re.compile(r"``[^\n]+?``|`[^`\n]*(?:\n(?![\n|])[^`\n]*)?`|\]\([^)]*\)|https?://\S+")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+|#>]|\d+\.)\s?)|\|")
_END = re.compile(r"(?<=[^\s.])(?<!et al)(?<!e\.g)(?<!i\.e)[.!?][\"')*_]*(?=\s|$)")


class Complaint(NamedTuple):
    """A phrase of a page that breaks a rule."""

    line: int
    text: str
    rule: str


def without_code(markdown: str) -> str:
    """Return a page with code as spaces and inline code as one word, on the same lines."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), markdown)
    return _INLINE.sub(lambda code: re.sub(r"[^\n]", "X", code[0]), prose)


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with its offset. Paragraphs, list items and table cells end sentences."""
    ends = [
        0,
        *(m.end() for m in re.finditer(f"{_BLOCK.pattern}|{_END.pattern}", prose)),
        len(prose),
    ]
    for first, last in pairwise(ends):
        yield first, prose[first:last]


def _long_sentences(prose: str, check: Check) -> Iterator[CheckResult]:
    for start, sentence in sentences(prose):
        count = sum(any(map(str.isalnum, word)) for word in sentence.split())
        if count > MAX_WORDS:
            first = start + len(sentence) - len(sentence.lstrip())
            yield CheckResult(check.path, check.message.format(count), (first, first + 60), None)


def register() -> None:
    """Give proselint the rules, once a process."""
    registry = CheckRegistry()
    if any(check.path.startswith("house") for check in registry.checks):
        return
    registry.register_many(
        tuple(
            Check(types.ExistenceSimple(pattern), Fancy(), f"house.{number}", message, QUOTED)
            for number, (pattern, message) in enumerate(RULES.items())
        )
    )
    registry.register(
        Check(_long_sentences, Fancy(), "house.length", "{} words: two sentences", QUOTED)
    )
    registry.register_many(
        tuple(check for check in stock.__register__ if check.path.split(".")[0] in STOCK)
    )


def complaints(markdown: str) -> list[Complaint]:
    """Return what proselint finds in a page, by line."""
    register()
    prose = without_code(markdown)
    page = LintFile("page", prose)
    results = page.lint({"max_errors": 1000, "checks": dict.fromkeys(["house", *STOCK], True)})
    return [
        Complaint(
            page.content.count("\n", 0, result.check_result.span[0]) or 1,
            " ".join(page.content[slice(*result.check_result.span)].split()),
            result.check_result.message,
        )
        for result in results
    ]
