"""A report as one self-contained HTML file, without scripts, external pictures, fonts or links."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files

from maskc.lab.explorer.page import source
from maskc.lab.report.document import Block, Code, Command, Document, Figure, ReportTable, Words

_UNSHOWN = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")
"""Characters that control and show nothing; tabs and ends of lines stay."""
_TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that turn the direction of what follows: shown as what they are."""


def shown(text: str) -> str:
    """A text as a reader is to see it, escaped: nothing in it is markup."""
    return escape(text.translate(_UNSHOWN | _TURNING))


def minified(style: str) -> str:
    """A style sheet on one line, without comments: a page is read by its markup."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)).strip()


def html(report: Document) -> str:
    """The whole page. Its policy lets no script run and nothing be loaded."""
    sheets = source("style.css"), (files("maskc.lab.report") / "report.css").read_text("utf-8")
    style = minified("\n".join(sheets))
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = "; ".join((
        "default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip
    return "\n".join((
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{shown(report.title)} · maskc report</title>",
        f"<style>{style}</style>",
        "</head>",
        '<body class="maskc report">',
        *_body(report),
        "</body>",
        "</html>",
        "",
    ))  # fmt: skip


def _body(report: Document) -> Iterator[str]:
    yield "<header>"
    yield f"<h1>{shown(report.title)}</h1>"
    if report.subtitle:
        yield f"<p>{shown(report.subtitle)}</p>"
    yield f'<p class="formula">{shown(report.formula)}</p>'
    yield "</header>"
    yield '<nav aria-label="Sections"><ol>'
    for section in report.sections:
        yield f'<li><a href="#{section.key}">{shown(section.title)}</a></li>'
    yield "</ol></nav>"
    yield "<main>"
    for section in report.sections:
        yield f'<section id="{section.key}" aria-labelledby="{section.key}-title">'
        yield f'<h2 id="{section.key}-title">{shown(section.title)}</h2>'
        for block in section.blocks:
            yield from _block(block)
        yield "</section>"
    yield "</main>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Words(text):
            yield f"<p>{shown(text)}</p>"
        case Code(text, caption):
            head = f"<figcaption>{shown(caption)}</figcaption>" if caption else ""
            yield f'<figure>{head}<pre tabindex="0">{shown(text)}</pre></figure>'
        case Command(text):
            # A line may end between words, never inside of `--head-dim`.
            words = " ".join(f"<span>{shown(word)}</span>" for word in text.split(" "))
            yield f'<p class="command">Made by <code>{words}</code></p>'
        case Figure(svg, caption, twin):
            yield f"<figure>{svg}<figcaption>{shown(caption)}</figcaption>"
            yield f'<details><summary>As text</summary><pre tabindex="0">{shown(twin)}</pre>'
            yield "</details></figure>"
        case ReportTable():
            yield from _table(block)


def _table(table: ReportTable) -> Iterator[str]:
    head = "".join(
        f'<th scope="col"{_side(table, column)}>{shown(head)}</th>'
        for column, head in enumerate(table.heads)
    )
    rows = (
        "".join(f"<td{_side(table, column)}>{shown(cell)}</td>" for column, cell in enumerate(row))
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    wide = '<div class="wide" tabindex="0" role="group" aria-label="Table">'
    yield f"{wide}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _side(table: ReportTable, column: int) -> str:
    return ' class="number"' if column in table.numbers else ""
