"""maskc report: one page that needs nothing else, in which nothing that a user wrote is markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.cli.report import read_notes
from maskc.core.errors import BadEvaluation
from maskc.core.target import Target
from maskc.lab.report import Document, Subject, document
from maskc.lab.report.document import Code, Command, Figure, ReportTable, Section, Words
from maskc.lab.report.drawings import growth_chart
from maskc.lab.report.evidence import significance_blocks
from maskc.lab.report.html import html
from maskc.lab.report.markdown import markdown, plain
from maskc.runtime import CompiledMask
from maskc.verify.samples import sample_data
from maskc.viz import weight_drawings
from tests.support import browser
from tests.support.cli import maskc, maskc_json

QUICK = ("--repeats", 0, "--target", "cpu", "--head-dim", 16, "--dtype", "float32")
KEYS = [
    "summary", "definition", "picture", "weights", "proofs", "pseudocode", "complexity", "plan",
    "verification", "speed", "quality", "ablations", "significance", "environment",
]  # fmt: skip
HOSTILE = (
    "</pre></style><script>alert(1)</script><img src=x onerror=alert(2)>\u202e``` | [x](y) \x07"
)


def report_of(mask: mc.Mask, dim: int = 16, **more: Any) -> Document:
    heads = 4 if "head" in str(mask) else None
    problem, more = (
        driver.problem(dim, None, heads, "float32"),
        {"why_not_measured": "no time", **more},
    )
    return document(Subject(
        "mine", mask, "A title", "mine.py", "maskc report mine.py", problem, Target.named("cpu"),
        lambda n: sample_data(mask, n), **more,
    ))  # fmt: skip


def blocks(report: Document, key: str) -> list[Any]:
    return list(next(section.blocks for section in report.sections if section.key == key))


def text_of(report: Document, key: str) -> str:
    (section,) = (each for each in report.sections if each.key == key)
    return markdown(Document("", "", "", [section]))


class Tags(HTMLParser):
    """A page as a browser reads it: elements, their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "path", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "p", "nav", "ol", "li",
    "a", "main", "section", "span", "figure", "figcaption", "pre", "code", "details", "summary",
    "div", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "text", "path", "circle",
    "polyline",
}  # fmt: skip


def check_page(page: str) -> Tags:
    """Nothing runs and nothing is loaded."""
    found = Tags(page)
    assert found.open == []
    assert {tag for tag, _ in found.tags} <= ALLOWED
    for tag, attributes in found.tags:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert "href" not in attributes or (attributes["href"] or "").startswith("#"), tag
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import|@font", style)
    assert "default-src 'none'" in page
    for drawing in re.findall(r"<svg xmlns=.*?</svg>(?=<figcaption>)", page, re.DOTALL):
        ElementTree.fromstring(drawing)
    return found


MASKS = {
    "streaming": mc.causal() & (mc.sinks(3) | mc.window(40)),
    "full": mc.full(),
    "nothing": mc.causal() & mc.where(lambda q, k: k > q),
    "documents": mc.documents("doc") & mc.causal(),
    "by head": mc.per_head([mc.causal(), mc.window(5), mc.window(5), mc.full()]),
    "selection": mc.causal() & mc.window(20) | mc.topk(2, of=mc.causal(), block=16, score="given"),
    "parameter": mc.window(mc.param("w", 7), 0) | mc.strided(32),
    "table": mc.block_table("table", 32),
}


# ------------------------------------------------------------------ what it says


@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask_has_all_sections(name: str):
    report = report_of(MASKS[name])
    assert [section.key for section in report.sections] == KEYS
    assert all(section.blocks for section in report.sections)
    page = check_page(html(report))
    assert str(MASKS[name]) in page.text
    text = markdown(report)
    assert text.count("\n## ") == len(KEYS)
    said = [
        one.text for section in report.sections for one in section.blocks if isinstance(one, Words)
    ]
    assert not [text for text in said if text.startswith("Not available")]


def test_the_heatmap_of_weights_is_of_given_tensors_or_of_synthetic_ones():
    mask = MASKS["streaming"]
    drawing, command = blocks(report_of(mask), "weights")
    assert "synthetic q and k, seed 0" in drawing.caption
    assert command == Command("maskc visualize mine.py --weights --n 256")
    q = np.random.default_rng(0).standard_normal((2, 32, 4))
    drawing, command = blocks(report_of(mask, tensors={"q": q, "k": q}), "weights")
    assert "32 queries x 32 keys, head 0; given q and k" in drawing.caption
    assert command.text.endswith("--weights --n 32 --data q=q.npy --data k=k.npy")
    assert drawing.twin == "mine\n" + weight_drawings.text(mask.weights(q=q, k=q), 56)


NOTES = """\
# Motivation

Why **this** mask:
it is cheap.

- first
- second

## Discussion
No <b>surprise</b>.
"""


def test_motivation_and_discussion_stand_where_they_were_given(tmp_path: Path):
    notes = tmp_path / "notes.md"
    notes.write_text(NOTES)
    page = tmp_path / "page.html"
    found = maskc_json(
        "report", "--expr", "causal()", "--notes", notes, *QUICK, "--n", 32, "-o", page
    )["sections"]
    assert found == ["motivation", *KEYS[:-1], "discussion", "environment"]
    written = check_page(page.read_text())
    assert "Why **this** mask: it is cheap." in written.text
    assert re.findall("- first|- second", written.text) == ["- first", "- second"]
    assert "No <b>surprise</b>." in written.text
    only = report_of(MASKS["full"], discussion=["One thing."])
    assert [section.key for section in only.sections] == [*KEYS[:-1], "discussion", "environment"]
    assert "\n## Discussion\n\nOne thing.\n" in markdown(only)


def test_committed_reports_have_the_notes_that_lie_beside_them():
    folder = Path(__file__).parents[2] / "docs" / "reports"
    pages = sorted(folder.glob("*.md"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        written = read_notes(str(page.with_suffix(".notes.txt")))
        for key in ("motivation", "discussion"):
            (section,) = re.findall(rf"^## {key.title()}\n\n(.*?)\n\n## ", text, re.M | re.S)
            assert section == "\n\n".join(map(plain, written[key])), (page.name, key)


@pytest.mark.parametrize(
    "text", ["", "no heading", "# Motivation\n", "# Method\n\ntext", "before\n# Motivation\n\nx"]
)
def test_notes_without_motivation_or_discussion(tmp_path: Path, text: str):
    notes = tmp_path / "notes.md"
    notes.write_text(text)
    words = ("report", "--expr", "causal()", "--notes", notes, *QUICK, "-o", tmp_path / "x.md")
    assert "MC755 --notes" in maskc(*words, code=2).stderr
    assert not (tmp_path / "x.md").exists()


def test_numbers_are_the_masks():
    mask = MASKS["streaming"]
    report = report_of(mask)
    table = next(block for block in blocks(report, "complexity") if isinstance(block, ReportTable))
    counts = {int(row[0].replace(",", "")): int(row[2].replace(",", "")) for row in table.rows}
    assert counts == {n: mask.count(n) for n in counts}
    assert 131072 in counts
    ablated = next(block for block in blocks(report, "ablations") if isinstance(block, ReportTable))
    left = {row[0]: int(row[1].replace(",", "")) for row in ablated.rows}
    assert left["without sinks(3)"] == (mc.causal() & mc.window(40)).count(4096)
    assert left["without window(40)"] == (mc.causal() & mc.sinks(3)).count(4096)
    summary = text_of(report, "summary")
    assert "44 keys at any length" in summary
    assert "for tj in tiles(ti)" in text_of(report, "pseudocode")
    for dim, said in ((64, True), (20, False)):  # the card's costs are those of tensor cores
        found = " ".join(text_of(report_of(mask, dim), "complexity").split())
        assert ("faster than dense causal attention from about N = " in found) == said


def test_a_section_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch):
    from maskc.core.errors import NoDevice

    def refuse(*given: Any, **more: Any) -> Any:
        raise NoDevice("target cpu", "it is away")

    monkeypatch.setattr("maskc.plan.loops.loop_nest", refuse)
    text = text_of(report_of(MASKS["streaming"]), "pseudocode")
    assert "Not available for this mask: " in text
    assert "it is away" in text


def test_sections_that_were_not_run_say_what_would_run_them():
    report = report_of(MASKS["streaming"])
    assert "Not run: no time" in text_of(report, "speed")
    assert "maskc evaluate mine.py --ablate -o quality.json" in text_of(report, "quality")


# ------------------------------------------------------------------ texts are texts


def test_hostile_texts_are_shown(tmp_path: Path):
    file = tmp_path / "evil.py"
    file.write_text(
        f"{HOSTILE!r}\nimport maskc as mc\n\n\n@mc.pattern\ndef evil(*, w: int = 5) -> mc.Mask:\n"
        f"    {HOSTILE!r}\n    return mc.causal() & (mc.window(w) | mc.flags('onload_x'))\n"
    )
    page_file, text_file = tmp_path / "evil.html", tmp_path / "evil.md"
    maskc("report", file, *QUICK, "-o", page_file)
    page = page_file.read_text()
    faults = check_page(page)
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in faults.text
    assert "\u202e" not in page
    assert "\x07" not in page
    assert "\\u202e" in faults.text
    assert "made up with a fixed seed: onload_x" in faults.text
    maskc("report", file, *QUICK, "-o", text_file)
    text = text_file.read_text()
    assert "\u202e" not in text
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "\\<script\\>" in outside
    assert not re.search(r"(?<!\\)<(?:script|img)", outside)


HARD = [
    "a|b", "`", "``x`", "# no", "1. no", "- no", "&lt;", "*x*", "[a](b)", "<b>", "\\", "a\nb", "",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_texts_of_all_blocks(text: str):
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" role="img"></svg>'
    every = [
        Words(text),
        Code(text, text),
        Command(text),
        ReportTable((text,), [(text,)], frozenset({0})),
        Figure(drawing, text, text),
    ]
    report = Document(text, text, text, [Section("only", text, every)])
    page = html(report)
    check_page(page)
    assert unescape(page).count(text) >= 9
    text_ = markdown(report)
    fence = max(re.findall(r"^`{3,}", text_, re.MULTILINE), key=len)
    assert f"{fence}text\n{text}\n{fence}" in text_
    rows = [line for line in text_.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {2}


def test_charts_are_well_formed():
    series = {"maskc": {128: 1.0, 256: 2.0}, "<x>": {128: 0.5, 256: 9.0}, "none": {}}
    chart = growth_chart(series, list(series), "a & b", "<label>", lambda v: f"<{v:g}>")
    tree = ElementTree.fromstring(chart)
    words = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"maskc", "<x>", "a & b", "<0.1>", "<1>", "<10>", "128", "256"} <= set(words)
    assert growth_chart({"maskc": {128: 1.0}}, ["maskc"], "ms", "", str) == ""


# ------------------------------------------------------------------ measured and evaluated


@pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
def test_speed_and_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*given: Any) -> Any:
        raise RuntimeError("not now")

    monkeypatch.setattr("maskc.lab.rivals.flex", refuse)
    words = ("report", "--expr", "causal() & window(9)", "--target", "cpu", "--head-dim", 8,
             "--dtype", "float32", "--heads", 1, "--n", "32,64", "--repeats", 1, "--direction",
             "fwd", "-o")  # fmt: skip
    page = tmp_path / "right.html"
    report = maskc_json(*words, page)
    assert report == {"written": [str(page)], "sections": KEYS}
    faults = check_page(page.read_text())
    assert "time grows as N^" in faults.text
    assert "WRONG" not in faults.text
    assert "--n 32,64 --target cpu --head-dim 8 --dtype float32 --heads 1" in faults.text
    right = CompiledMask.__call__
    monkeypatch.setattr(
        CompiledMask, "__call__", lambda self, *a, **b: (right(self, *a, **b)[0] * 1.01, None)
    )
    page = tmp_path / "wrong.html"
    done = maskc(*words, page, code=3)
    assert "results of maskc are wrong" in done.stderr
    assert "WRONG" in check_page(page.read_text()).text


def evaluation() -> Any:
    from maskc import evaluate as ev

    def interval(x: float) -> Any:
        return ev.Interval(x, x - 0.01, x + 0.01)

    def one(name: str, role: str, of: str, kept: float) -> Any:
        layer = ev.LayerLoss(0, (kept, kept), (0.25, 0.35), (0.9, 0.9), (0.1, 0.1))
        loss = ev.InformationLoss(
            (layer,), interval(kept), interval(0.3), interval(0.9), 0.123, 0.25, 0.99, 0.5, 80, 0
        )
        ppl = ev.Perplexity(
            100, 2, 9.5, 8.25, interval(0.14), interval(1.15), 0.001, 0.004, 0.05, 0.02, False
        )
        found = ev.Retrieval(20, 7, interval(0.35), 19, 12, 0, 0.0005, 0.0015, ((0.5, 20, 7),))
        text = "causal() & (window(9) | sinks(4))" if "mine" in name else "causal() & window(12)"
        return ev.Evaluated(name, text, role, of, 1000, 0.125, 0.125, loss, ppl, found)

    many = (one("window", "pattern", "", 0.75), one("mine <b>", "pattern", "", 0.871),
            one("without sinks(4)", "ablation", "mine <b>", 0.61))  # fmt: skip
    limits = ("It <i>cannot</i> show this.",)
    return ev.Evaluation("some text", 512, 2, "causal()", many, limits, "maskc evaluate mine")


def test_an_evaluation_is_shown(tmp_path: Path):
    file = tmp_path / "quality.json"
    file.write_text(evaluation().to_json())
    page = tmp_path / "page.html"
    maskc("report", "--expr", "causal() & (sinks(4) | window(9))", *QUICK, "--evaluation", file,
          "-o", page)  # fmt: skip
    faults = check_page(page.read_text())
    for text in (
        "0.871 [0.861, 0.881]", "9.5", "8.25", "7 of 20", "It <i>cannot</i> show this.",
        "without sinks(4)", "0.0015", "0.004", "not shown", "0.05", "maskc evaluate mine",
        "at N = 512", "mine <b>, layer by layer",
    ):  # fmt: skip
        assert text in faults.text, text
    said = re.search(r"Attention retained at N = 512[^0]*(\S+)", page.read_text())
    assert said is not None
    assert said[1] == "0.871"  # this mask's row is the second one
    assert "dense attention. Evaluate it" not in faults.text


def test_without_timing_results_are_checked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ("report", "--expr", "causal() & window(9)", *QUICK, "--n", 40, "-o", tmp_path / "a.md")
    maskc(*words)
    text = (tmp_path / "a.md").read_text()
    verification = text.partition("## Verification")[2].partition("## Speed")[0]
    assert verification.count("| right |") == 2, verification
    assert "Not run: --repeats 0 was asked for." in text.partition("## Speed")[2]
    right = CompiledMask.__call__
    monkeypatch.setattr(
        CompiledMask, "__call__", lambda self, *a, **b: (right(self, *a, **b)[0] * 1.01, None)
    )
    assert "are wrong" in maskc(*words, "--direction", "fwd", code=3).stderr


def test_an_evaluation_of_another_mask_is_refused(tmp_path: Path):
    """Also where a mask of the same name, or one that keeps fewer pairs, is in it."""
    file = tmp_path / "quality.json"
    file.write_text(evaluation().to_json())
    words = ("report", *QUICK, "--evaluation", file, "-o", tmp_path / "x.html")
    done = maskc(*words, "--expr", "causal() & window(9)", code=2)
    assert "no mask in it is proved equal to mask = causal() & window(9)" in done.stderr
    assert "it holds window = causal() & window(12); mine <b> = causal()" in done.stderr
    assert not (tmp_path / "x.html").exists()


def test_captured_arrays_and_parameters_belong_to_the_mask():
    """Text shows neither: rows are found by a digest, and nothing is proved without one."""
    from maskc.cli.entries import MaskEntry
    from maskc.cli.report import _row_of
    from maskc.lab.evaluate.evaluating import digest_of

    def captured(ids: list[int]) -> mc.Mask:
        doc = np.array(ids, np.int32)
        return mc.from_mask_mod(lambda b, h, q, k: doc[q] == doc[k])

    def row(mask: mc.Mask, data: dict[str, int] | None = None) -> Any:
        return replace(
            evaluation().patterns[0], mask=repr(mask), digest=digest_of(mask, data or {})
        )

    def found(mask: mc.Mask, one: Any, **params: int) -> bool:
        entry = MaskEntry("mine", mask, "", params=params)
        try:
            return _row_of(replace(evaluation(), patterns=(one,)), entry, "x.json") is one
        except BadEvaluation:
            return False

    assert found(captured([0, 0, 1]), row(captured([0, 0, 1])))
    assert not found(captured([0, 1, 1]), row(captured([0, 0, 1])))
    sliding = mc.causal() & mc.window(mc.param("w", 5))
    assert found(sliding, row(sliding))
    assert found(sliding, row(sliding, {"w": 7}), w=7)
    assert not found(sliding, row(sliding, {"w": 7}))
    assert not found(sliding, row(sliding), w=7)
    assert not found(sliding, replace(row(sliding), digest=""))
    assert found(mc.causal() & mc.window(12), replace(evaluation().patterns[0], digest=""))


def test_a_mask_that_kept_everything_says_so(tmp_path: Path):
    """At a length within its window a mask is dense attention: numbers of that prove nothing."""
    file, page = tmp_path / "quality.json", tmp_path / "x.md"
    all_pairs = [replace(pattern, share=1.0) for pattern in evaluation().patterns]
    file.write_text(replace(evaluation(), patterns=tuple(all_pairs)).to_json())
    maskc("report", "--expr", "causal() & window(12)", *QUICK, "--evaluation", file, "-o", page)
    assert "window keeps every pair of causal() at N = 512" in page.read_text()


def test_parts_of_an_evaluation_that_were_not_asked_have_no_table():
    def tables(**less: Any) -> list[int]:
        patterns = [replace(pattern, **less) for pattern in evaluation().patterns]
        found = replace(evaluation(), patterns=(*patterns, evaluation().patterns[0]))
        return [len(x.rows) for x in significance_blocks(found) if isinstance(x, ReportTable)]

    assert tables() == [4, 4]
    assert tables(retrieval=None) == [4, 1]
    assert tables(retrieval=None, perplexity=None) == [1, 1]
    nothing = replace(evaluation(), patterns=())
    (words,) = significance_blocks(nothing)
    assert "nothing was tested" in words.text


def _with(change: dict[str, Any]) -> str:
    return json.dumps({**evaluation().to_dict(), **change})


_ROW = evaluation().to_dict()["patterns"][0]


@pytest.mark.parametrize(("text", "said"), [
    (_with({"n": "abc"}), 'n is "abc", expected a whole number'),
    (_with({"n": True}), "n is true, expected a whole number"),
    (_with({"n": None}), "n is null, expected a whole number"),
    (_with({"patterns": ["x"]}), 'patterns[0] is "x", expected an object'),
    (_with({"patterns": "x"}), 'patterns is "x", expected a list'),
    (_with({"patterns": [{**_ROW, "information": [1, 2]}]}),
     "patterns[0].information is [1, 2], expected an object"),
    (_with({"patterns": [{**_ROW, "share": "0.5"}]}),
     'patterns[0].share is "0.5", expected a number'),
    (_with({"environment": [["a"]]}), 'environment[0] is ["a"], expected a list of 2'),
    ("{}", "source is missing"),
    ("[" * 100_000, "it is not JSON"),
])  # fmt: skip
def test_fields_of_other_types_are_named(text: str, said: str):
    with pytest.raises(BadEvaluation, match="MC750") as raised:
        mc.evaluate.Evaluation.from_json(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"source": 3}', "null", '{"patterns": [{}]}'])
def test_what_is_no_evaluation(tmp_path: Path, text: str):
    file = tmp_path / "other.json"
    file.write_text(text)
    done = maskc("report", "--expr", "causal()", *QUICK, "--evaluation", file, "-o",
                 tmp_path / "x.html", code=2)  # fmt: skip
    assert done.stderr.startswith("MC750 --evaluation  cannot read quality results from")
    assert not (tmp_path / "x.html").exists()
    assert BadEvaluation.code == "MC750"


# ------------------------------------------------------------------ the command


def test_mistakes(tmp_path: Path):
    two = tmp_path / "two.py"
    two.write_text("import maskc as mc\n\na = mc.causal()\nb = mc.full()\n")
    done = maskc("report", two, *QUICK, "-o", tmp_path / "x.html", code=2)
    assert "a report is about one mask, and there are 2: a, b" in done.stderr
    maskc("report", two, "--pattern", "b", *QUICK, "-o", tmp_path / "b.md")
    assert "--pattern b" in (tmp_path / "b.md").read_text()
    done = maskc("report", "causal", *QUICK, "-o", tmp_path / "x.pdf", code=2)
    assert "is neither *.html nor *.md" in done.stderr
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = maskc("report", "causal", *QUICK, "-o", blocked / "x.html", code=2)
    assert "cannot write" in done.stderr
    assert "-o" in maskc("report", "causal", code=2).stderr


def test_parameters_and_settings(tmp_path: Path):
    page = tmp_path / "page.md"
    maskc("report", "streaming", "--set", "window=33", *QUICK, "-o", page)
    text = page.read_text()
    assert "| window | int | 33 |" in text
    assert "| n\\_sinks | int | 4 |" in text
    assert "maskc explain streaming --set window=33" in text
    assert "Guangxuan Xiao" in text


# ------------------------------------------------------------------ in a browser


def test_in_a_browser_light_and_dark(tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text(html(report_of(MASKS["streaming"])), encoding="utf-8")
    grounds = {}
    with browser.started() as chromium:
        for scheme in ("light", "dark"):
            page = chromium.new_page(viewport={"width": 420, "height": 700}, color_scheme=scheme)
            wrong: list[str] = []
            seen: list[str] = []
            page.on("console", lambda said, wrong=wrong: wrong.append(said.text))
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page.on("request", lambda request, seen=seen: seen.append(request.url))
            page.goto(file.as_uri())
            grounds[scheme] = json.loads(page.evaluate(
                """JSON.stringify(["body", "svg .ground", "svg .partial"].map((name) => {
                  const style = getComputedStyle(document.querySelector(name));
                  return name === "body" ? style.backgroundColor : style.fill;
                }))"""
            ))  # fmt: skip
            assert page.evaluate("document.documentElement.scrollWidth") <= 420
            assert wrong == []
            assert seen == [file.as_uri()]
            page.close()
    assert all(one != other for one, other in zip(*grounds.values(), strict=True))
