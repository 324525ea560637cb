"""The explorer in a browser: its pixels are `dense`, its panes follow, and nothing leaves it."""

from __future__ import annotations

import json
import threading
from urllib.parse import parse_qs, urlencode

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.cli.entries import entries
from maskc.cli.explore import Models
from maskc.cli.given import Arrays
from maskc.cli.options import KernelOptions
from maskc.core.boxes import tokens_of
from maskc.core.dtypes import DType
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.ir.heads import written_heads
from maskc.lab.explorer.model import mask_model
from maskc.lab.explorer.page import html, joined, source
from maskc.lab.explorer.page_model import Shown, page_model
from maskc.lab.explorer.server import ExplorerServer
from maskc.lab.explorer.sliders import movable, movable_mask
from maskc.verify.samples import sample_data
from tests.support import browser as B
from tests.support.patterns import FOLDER
from tests.support.thorough import THOROUGH, chiefly

STREAMING = mc.causal() & (mc.sinks(4) | mc.window(40))


def model_of(mask, n, n_kv=None, other=None, name="mask", **rest):
    """The whole model of a page."""
    made = movable_mask(mask)
    second = None
    if other is not None:
        more = movable_mask(other, frozenset(made.labels))
        second = Shown("other", more.mask, labels=more.labels, plain=other)
    shown = Shown(name, made.mask, labels=made.labels, plain=mask, **rest)
    problem = Problem(128, 128, DType.bfloat16, written_heads(mask))
    return page_model(
        shown, n, n if n_kv is None else n_kv, problem=problem, target=Target.named("sm_90a"),
        other=second,
    )  # fmt: skip


@pytest.fixture(scope="module")
def chromium():
    with B.started() as found:
        yield found


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a model's page from disk; every request and every error that it makes is kept."""
    pages = []

    def open_page(model, hash_=""):
        file = tmp_path / f"page{len(pages)}.html"
        file.write_text(html(model), encoding="utf-8")
        page = chromium.new_page(viewport={"width": 720, "height": 540})
        page.seen, page.wrong = [], []
        page.on("request", lambda request: page.seen.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda said: page.wrong.append(said.text) if said.type == "error" else 0)
        page.goto(f"{file.as_uri()}{hash_}")
        B.settled(page, "!!(window.maskcExplorer && maskcExplorer.map.complete)")
        pages.append((page, file))
        return page

    yield open_page
    for page, file in pages:
        assert page.wrong == []
        assert {url.partition("#")[0] for url in page.seen} <= {file.as_uri()}
        page.close()


# ------------------------------------------------------------------ pixels


def check_pairs(page, dense, q, k, size):
    """Every pixel of every pair in view, `size` pixels a pair."""
    found, by_shader = B.pixels(page, q, k, size)
    assert by_shader, page.evaluate("maskcExplorer.noShader")
    known = B.colors(page)
    n_q, n_kv = dense.shape
    rows, columns = q + np.arange(found.shape[0]) // size, k + np.arange(found.shape[1]) // size
    inside = (rows < n_q)[:, None] & (columns < n_kv)[None, :]
    kept = dense[np.minimum(rows, n_q - 1)[:, None], np.minimum(columns, n_kv - 1)[None, :]]
    expected = np.where(kept[..., None], known["full"], known["empty"])
    expected = np.where(inside[..., None], expected, known["outside"])
    assert (found == expected).all()


def check_cells(page, dense, size):
    """The whole mask, `size` x `size` pairs a pixel: full, empty, or partial by its share."""
    found, by_shader = B.pixels(page, 0, 0, 1 / size)
    assert not by_shader
    known = B.colors(page)
    n_q, n_kv = dense.shape
    rows, columns = -(-n_q // size), -(-n_kv // size)
    live, area = np.zeros((rows, columns)), np.zeros((rows, columns))
    cell = np.arange(n_q)[:, None] // size, np.arange(n_kv)[None, :] // size
    np.add.at(live, np.broadcast_arrays(*cell), dense)
    np.add.at(area, np.broadcast_arrays(*cell), 1)
    expected = np.floor(shaded(known, live / area) + 0.5)
    rows, columns = min(rows, found.shape[0]), min(columns, found.shape[1])
    assert (found[:rows, :columns] == expected[:rows, :columns]).all()


def shaded(known, share):
    """The colours of cells by their live share."""
    share = share[..., None]
    partial = known["empty"] + (0.45 + 0.55 * share) * (known["partial"] - known["empty"])
    return np.where(share == 1, known["full"], np.where(share == 0, known["empty"], partial))


def patterns():
    for file in sorted(FOLDER.glob("*.py")):
        mask = mc.load(file)[file.stem]()
        heads = 2 if file.stem == "longnet" else written_heads(mask)
        n = {"natten_3d": 512, "natten_2d": 512, "swin": 512, "axial": 512}.get(file.stem, 260)
        data = sample_data(mask, n, n)
        for name in ("scores", "index_q", "index_k", "index_w"):
            data.pop(name, None)
        yield file.stem, mask, n, heads, data


SHOWN = (
    "bigbird_etc", "block_diffusion", "causal", "dilated_longformer", "documents", "longnet",
    "natten_3d", "nsa_selected", "speculative_tree", "vertical_slash",
)  # fmt: skip
"""On the page in CI: the formulas of the others are the same text of the shader as the one that
test_glsl_printer.py compares with `dense` for every pattern."""
LIVE = """maskcExplorer.counter().pairs(
  0, maskcExplorer.state.n_q, 0, maskcExplorer.state.n_kv)"""


def test_pixels_are_dense_for_every_pattern_at_three_zooms(opened):
    """Pairs of 1 pixel and of 5, and 4 x 4 of them a pixel; of a selection, all it may choose."""
    page = opened(model_of(mc.full(), 8))
    seen = 0
    for name, mask, n, heads, data in patterns():
        if name == "sta":  # made for one size of canvas, whose dense mask takes too long here
            continue
        if not THOROUGH and name not in SHOWN:
            continue
        model = {"name": name, "mask": mask_model(mask, n, n_heads=heads, data=data)}
        page.evaluate(B.SHOW, json.loads(json.dumps(model)))
        if driver.selects(mask):
            dense = hull_of(mask, n, heads, data)
        else:
            dense = mask.dense(n, n_heads=heads, **data)
            dense = dense[0] if dense.ndim == 3 else dense
        check_pairs(page, dense, 0, 0, 1)
        check_pairs(page, dense, n // 3, n // 4, 5)
        check_cells(page, dense, 4)
        assert page.evaluate(LIVE) == model["mask"]["sets"][0]["live"] == dense.sum(), name
        seen += 1
    assert seen == len(SHOWN) or seen >= 38


def hull_of(mask, n, heads, data):
    """Return what a selection may choose, by the formula: no array of scores says it in one go."""
    from maskc.core.evaluator import evaluate
    from maskc.viz.view import hull_asked

    asked = hull_asked(mask, n, n, heads, data)
    env = {**asked.params, **asked.arrays, "n_q": n, "n_kv": n}
    env |= {"q": np.arange(n)[:, None], "k": np.arange(n)[None, :]}
    return np.broadcast_to(evaluate(asked.irs[0].keep, env), (n, n))


def test_counts_at_a_million(opened):
    """Nothing of that size is looked at, by the compiler or by the page."""
    n = 1 << 20
    page = opened(model_of(STREAMING, n))
    found = page.evaluate("maskcExplorer.price()")
    layout = STREAMING.layout(n, block=tuple(found["tile"]))
    kinds = np.bincount(layout.kind, minlength=3)
    assert (found["partial"], found["full"]) == (kinds[1], kinds[2])
    assert found["live"] == STREAMING.count(n)
    B.shown_text(page, "own count is the same")
    page.evaluate("for (let i = 20; i--; maskcExplorer.map.draw()) maskcExplorer.map.pan(9, 7)")
    frames = page.evaluate("maskcExplorer.map.frames")
    print(f"milliseconds of frames at {n}: {[round(x, 1) for x in frames]}")
    again = opened(model_of(STREAMING, n), "#theme=dark")
    first = again.evaluate("maskcExplorer.map.firstAt")
    print(f"milliseconds from opening the file to its first whole picture at {n}: {first:.0f}")
    natten = mc.load(FOLDER / "natten_2d.py")["natten_2d"]()
    page.evaluate(B.SHOW, {"name": "natten", "mask": mask_model(natten, n)})
    assert page.evaluate(LIVE) == 49 * n


def test_wide_numbers_are_drawn_without_the_shader(opened):
    """Products beyond 32 bits: the same picture, from exact numbers in the page."""
    mask = mc.where(lambda q, k: (3_000_000_000 * q) // 7 >= 400_000_000 * k)
    page = opened({"name": "wide", "mask": mask_model(mask, 100)})
    found, by_shader = B.pixels(page, 0, 0, 2)
    assert not by_shader
    known, dense = B.colors(page), mask.dense(100)
    shown = found[: 2 * 100 : 2, : 2 * 100 : 2]
    assert (shown == np.where(dense[..., None], known["full"], known["empty"])).all()
    beyond = mc.where(lambda q, k: (1 << 54) * q >= k)
    page = opened({"name": "beyond", "mask": mask_model(beyond, 100)})
    assert "leave 53 bits" in page.inner_text("footer")


# ------------------------------------------------------------------ panes


def test_sliders_move_map_and_price_without_a_rebuild(opened):
    page = opened(model_of(STREAMING, 300))
    labels = page.evaluate("maskcExplorer.parameters.map(({ label }) => label)")
    assert labels == ["sinks", "window"]
    page.focus("input[type=range][aria-label=window]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("maskcExplorer.state.params.window") == 43
    moved = mc.causal() & (mc.sinks(4) | mc.window(43))
    check_pairs(page, moved.dense(300), 0, 0, 1)
    assert page.evaluate("maskcExplorer.price().live") == moved.count(300)
    page.evaluate("maskcExplorer.setLengths(500, 500)")
    assert page.evaluate("maskcExplorer.price().live") == moved.count(500)
    check_cells(page, moved.dense(500), 4)


def shown_in(page, pane, text):
    """Wait until a pane says something."""
    where = f"document.querySelector('section[aria-label={pane}]')"
    B.settled(page, f"{where}.textContent.includes({json.dumps(text)})")


@pytest.mark.parametrize("text", [
    "causal() | window(7)", "topk(16, of=causal()) | window(7)",
    "topk(512, of=causal()) | window(127)",
])  # fmt: skip
def test_terms_that_others_absorb_are_drawn(opened, text):
    """Their parameters stand in no formula of the whole mask, and in the terms of Why."""
    mask = mc.parse(text)
    page = opened(model_of(mask, 300))
    assert page.evaluate("maskcExplorer.drawable")
    assert "53 bits" not in page.inner_text("footer")
    # the hull of both selections is causal(), which window() exceeds nowhere
    check_pairs(page, mc.causal().dense(300), 0, 0, 1)
    page.evaluate("maskcExplorer.map.point(20, 14)")
    shown_in(page, "Why", "window(window)")


def test_statements_follow_the_parameters(opened):
    """Proofs, plans and predictions describe the mask as it was written."""
    page = opened(model_of(STREAMING, 4096, other=mc.causal() & mc.window(40)))
    compare, price = "section[aria-label=Compare]", "section[aria-label=Price]"
    assert "at all lengths" in page.inner_text(compare)
    assert "By the cost model, a call of these lengths runs" in page.inner_text(price)
    taken = page.evaluate("maskcExplorer.model.taken")
    assert f"tiles of {taken['tile'][0]} x {taken['tile'][1]}" in taken["said"]
    assert page.evaluate("maskcExplorer.tile") == taken["tile"]
    assert "The mask pays from N = " in page.inner_text(price)
    assert "one head" in page.inner_text(price).lower()
    assert "roofline of 16 heads" in page.inner_text(price).lower()
    page.evaluate("maskcExplorer.map.point(200, 160)")
    shown_in(page, "Why", "no test per pair")
    page.evaluate("maskcExplorer.setParam('window', 43)")
    shown_in(page, "Compare", "nothing is proved")
    for text in ("Proved", "at all lengths", "At other lengths"):
        assert text not in page.inner_text(compare)
    for text in ("a call of these lengths runs", "The mask pays", "predicted, 16 heads"):
        assert text not in page.inner_text(price)
    assert "as it was written" in page.inner_text("section[aria-label=Source]")
    page.evaluate("maskcExplorer.setParam('window', maskcExplorer.parameters[1].value)")
    shown_in(page, "Compare", "at all lengths")


def test_made_up_data_are_called_so(opened):
    (entry,) = entries(None, "documents('doc') & causal()", (), None)
    made = Models(entry, None, KernelOptions(("cpu",), 64, "float32", None), Arrays(0), 300, 300)
    page = opened(made({}))
    assert "Made up, not yours: doc." in page.inner_text("footer")
    assert "Made up, not yours: doc." in page.inner_text("section[aria-label=Price]")


def test_keys_and_text_twin(opened):
    page = opened(model_of(STREAMING, 300))
    page.keyboard.press("?")  # nothing has the focus yet
    assert page.evaluate("document.querySelector('dialog').open")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('dialog').open")
    page.focus(".map")
    before = page.evaluate("maskcExplorer.map.view.scale")
    page.keyboard.press("+")
    assert page.evaluate("maskcExplorer.map.view.scale") == 2 * before
    page.evaluate("maskcExplorer.map.point(200, 100)")
    for key in "dds":
        page.keyboard.press(key)
    assert page.evaluate("maskcExplorer.map.cursor") == {"q": 201, "k": 102}
    B.settled(
        page,
        "document.querySelector('footer').textContent.includes('query 201 does not see key 102')",
    )
    page.keyboard.press("m")
    assert page.evaluate("maskcExplorer.state.mode") == "tiles"
    page.keyboard.press("0")
    page.keyboard.press("t")
    lines = page.inner_text(".twin").splitlines()
    assert f"{STREAMING.count(300):,} of 90,000 pairs are live" in "\n".join(lines)
    page.keyboard.press("?")
    assert page.evaluate("document.querySelector('dialog').open")
    page.keyboard.press("m")
    assert page.evaluate("maskcExplorer.state.mode") == "tiles"
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('dialog').open")


def test_sources_by_keys(opened, tmp_path):
    """From linked line to linked line, and from generated code to the pattern."""
    file = tmp_path / "own.py"
    file.write_text(
        "import maskc as mc\n\n@mc.pattern\ndef own(*, n: int = 9):\n"
        "    return mc.causal() & (\n        mc.window(n) | mc.sinks(4)\n    )\n"
    )
    page = opened(model_of(mc.load(file)["own"](), 300))
    names = page.evaluate("maskcExplorer.model.source.files.map(({ name }) => name)")
    assert names == ["pattern", "IR", "C", "CUDA sm_90a"]
    page.focus("button[role=tab]:nth-child(2)")
    page.keyboard.press("Enter")
    page.focus(".code")
    page.keyboard.press("n")
    marked = page.evaluate("maskcExplorer.source.marked")
    assert page.locator(".code .marked").count() >= 1
    page.keyboard.press("n")
    page.keyboard.press("p")
    assert page.evaluate("maskcExplorer.source.marked") == marked
    page.keyboard.press("Enter")
    assert page.evaluate("maskcExplorer.source.shown") == 0
    lines = file.read_text().split("\n")
    assert lines[marked - 1].strip() in page.inner_text(".code .marked")


def test_a_lost_graphics_context_costs_no_pixel(opened):
    """A browser grants a page few of them; a notebook may hold many maps."""
    page = opened(model_of(STREAMING, 100))
    check_pairs(page, STREAMING.dense(100), 0, 0, 2)
    page.evaluate("maskcExplorer.shader.gl.getExtension('WEBGL_lose_context').loseContext()")
    B.settled(page, "!!maskcExplorer.noShader")
    found, by_shader = B.pixels(page, 0, 0, 2)
    assert not by_shader
    known, dense = B.colors(page), STREAMING.dense(100).repeat(2, 0).repeat(2, 1)
    assert (found[:200, :200] == np.where(dense[..., None], known["full"], known["empty"])).all()


def test_why_says_each_term_and_the_proof(opened):
    page = opened(model_of(STREAMING, 300))
    page.evaluate("maskcExplorer.map.flyTo(200, 190, 20)")
    B.settled(page, "document.querySelector('.pane').textContent.includes('query 200, key 190')")
    text = page.inner_text("section[aria-label=Why]")
    assert "✓ yes" in text
    assert "✗ no" in text  # no sink
    assert "k <= q" in text
    full = page.evaluate("maskcExplorer.proof({ q0: 100, q1: 110, k0: 80, k1: 90, open: [] })")
    assert full["said"].startswith("Full")
    assert full["steps"]
    empty = page.evaluate("maskcExplorer.proof({ q0: 0, q1: 10, k0: 80, k1: 90, open: [] })")
    assert empty["said"].startswith("Empty")


def test_permalink_restores_everything(opened):
    model = model_of(STREAMING, 300, other=mc.causal() & mc.window(40))
    page = opened(model)
    page.evaluate("maskcExplorer.setParam('window', 17); maskcExplorer.setMode('difference')")
    page.evaluate("maskcExplorer.map.flyTo(120, 60, 8)")
    link = page.evaluate("maskcExplorer.permalink()")
    assert parse_qs(link)["p.window"] == ["17"]
    again = opened(model, f"#{link}")
    state = (
        "JSON.stringify([maskcExplorer.state, maskcExplorer.map.view, maskcExplorer.map.cursor])"
    )
    assert again.evaluate(state) == page.evaluate(state)
    assert again.inner_text(".alarm") == ""
    other = opened(model, "#mask=prefix(3)&set.stride=2&with=full()&text=1")
    B.shown_text(
        other, "the address is of mask prefix(3), stride = 2, with full(), which this page"
    )
    assert other.is_visible(".twin")
    wrong = opened(model, "#n=-3&view=a,b,c&set=99&show=<b>&p.window=1e99")
    assert wrong.evaluate("maskcExplorer.state.n_q") == 300


def test_compare_flies_to_the_witness(opened):
    other = mc.causal() & mc.window(40)
    page = opened(model_of(STREAMING, 300, other=other))
    assert "subset" in page.inner_text("section[aria-label=Compare]")
    parts = page.evaluate("maskcExplorer.differences()")
    assert parts["first"] == (STREAMING - other).count(300)
    assert parts["second"] == 0
    page.evaluate("maskcExplorer.setMode('difference'); maskcExplorer.map.fit()")
    twin = page.evaluate("maskcExplorer.text()").splitlines()
    assert twin[2] == f"a only in mask: {parts['first']:,} pairs"
    assert twin[3:5] == ["b only in other: 0 pairs", f"= in both: {parts['both']:,} pairs"]
    assert {sign for line in twin[7:] for sign in line} == {"a", "=", "."}
    page.evaluate("maskcExplorer.flyToWitness()")
    cursor = page.evaluate("maskcExplorer.map.cursor")
    difference = mc.diff(STREAMING, other, n=300)
    assert (cursor["q"], cursor["k"]) == (difference.q, difference.k)
    found, by_shader = B.pixels(page, 0, 0, 1)
    assert by_shader
    known, one, two = B.colors(page), STREAMING.dense(300), other.dense(300)
    expected = np.where((one & two)[..., None], known["both"], known["empty"])
    expected = np.where((one & ~two)[..., None], known["only-a"], expected)
    assert (found[:300, :300] == expected).all()


@pytest.mark.parametrize("width", [390, 830, 1280, 1500, 1920])
def test_all_panes_are_on_the_screen(opened, width):
    """Long lines of sources scroll inside of their box."""
    page = opened(model_of(STREAMING, 300, other=mc.causal() & mc.window(40)))
    page.set_viewport_size({"width": width, "height": 800})
    outside = page.evaluate(
        """[...document.querySelectorAll('.pane, header, footer, .code, td, .slider')]
        .map((part) => part.getBoundingClientRect().right).filter((right) => right > innerWidth)"""
    )
    assert outside == []
    assert page.evaluate("document.querySelectorAll('.pane').length") == 4
    lines = "document.querySelector('.code')"
    page.evaluate("maskcExplorer.source.show(3)")
    assert page.evaluate(f"{lines}.scrollWidth") >= page.evaluate(f"{lines}.clientWidth")


def test_numbers_say_which_head_they_are_of(opened):
    by_head = mc.per_head([mc.causal(), mc.causal(), mc.window(9)])
    price, compare = "section[aria-label=Price] caption", "section[aria-label=Compare] caption"

    def said(page):
        return [page.locator(each).first.text_content() for each in (price, compare)]

    page = opened(model_of(by_head, 100, other=mc.per_head([mc.causal(), *2 * [mc.window(9)]])))
    assert said(page) == ["Each of heads 0-1", "Head 0 at these lengths"]
    page.click(".strip button:last-child")
    B.settled(page, f"document.querySelector('{price}').textContent === 'Head 2'")
    assert said(page)[1] == "Head 2 at these lengths"
    page = opened(model_of(STREAMING, 100, other=by_head))
    assert said(page) == ["One head", "Each of heads 0-1 at these lengths"]
    page = opened(model_of(STREAMING, 100, other=mc.causal()))
    assert said(page) == ["One head", "One head at these lengths"]


HURRIED = """(() => {
  const counter = maskcExplorer.counter();
  counter.most = 1;
  counter.known.clear();
  maskcExplorer.kept.delete(`${maskcExplorer.state.set} price`);
  maskcExplorer.pricing.update();
  maskcExplorer.why.update();
})()"""


def test_what_takes_too_long_is_not_counted(opened):
    """Nothing is said of pairs and tiles that nobody counted, except what the compiler knows."""
    page = opened(model_of(STREAMING, 300))
    page.evaluate("maskcExplorer.map.point(200, 160)")
    page.evaluate(HURRIED)
    price, why = (page.inner_text(f"section[aria-label={name}]") for name in ("Price", "Why"))
    assert f"{STREAMING.count(300):,} of 90,000" in price
    assert "The live pairs are the compiler's count." in price
    assert "its pairs take too long to count" in why
    page.evaluate("maskcExplorer.setParam('window', 43)")
    shown_in(page, "Price", "Counted exactly, here in the page.")
    page.evaluate(HURRIED)
    moved = page.inner_text("section[aria-label=Price]")
    assert "not counted of 90,000" in moved
    for text in (price, why, moved):
        for wrong in ("NaN", "nothing runs", "Counted exactly", "never loads", "roofline"):
            assert wrong not in text


STRIP = """(i => {
  const canvas = document.querySelectorAll(".strip canvas")[i];
  return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
})"""


def test_heads_have_their_own_sets(opened):
    mask = mc.per_head([mc.causal(), mc.causal(), mc.window(9)])
    page = opened(model_of(mask, 100))
    check_pairs(page, mask.dense(100)[0], 0, 0, 2)
    page.focus(".map")
    page.keyboard.press("h")
    check_pairs(page, mask.dense(100)[2], 0, 0, 2)
    assert page.locator(".strip button").all_inner_texts() == ["heads 0-1", "head 2"]
    B.settled(page, f"{STRIP}(1).length && {STRIP}(1)[3] === 255")
    known, side = B.colors(page), 40
    for i, head in enumerate((0, 2)):
        picture = np.array(page.evaluate(f"{STRIP}({i})")).reshape(side, side, 4)[..., :3]
        edges = 100 * np.arange(side + 1) // side
        dense = np.add.reduceat(mask.dense(100)[head].astype(int), edges[:-1], 0)
        live = np.add.reduceat(dense, edges[:-1], 1)
        share = live / np.outer(np.diff(edges), np.diff(edges))
        assert np.abs(picture - shaded(known, share)).max() <= 1
    page.click(".strip button:first-child")
    assert page.evaluate("maskcExplorer.state.set") == 0


def test_ranks_show_which_keys_travel(opened):
    """Tokens are held in stretches; a pair whose query and key lie apart needs the key sent."""
    edges, owner = [0, 100, 180, 300], [0, 1, 0]
    model = model_of(STREAMING, 300)
    model["ranks"] = {"n": 300, "ranks": 2, "edges": edges, "owner": owner, "halo": [80, 40]}
    page = opened(model, "#show=ranks")
    holder = np.repeat(owner, np.diff(edges))
    together = holder[:, None] == holder[None, :]
    dense = STREAMING.dense(300)
    found, by_shader = B.pixels(page, 0, 0, 1)
    assert not by_shader
    known = B.colors(page)
    expected = np.where((dense & together)[..., None], known["full"], known["empty"])
    expected = np.where((dense & ~together)[..., None], known["waste"], expected)
    assert (found[:300, :300] == expected).all()
    page.evaluate("maskcExplorer.map.point(190, 170)")
    B.shown_text(
        page, "Rank 0 runs the query, to which the key travels from rank 1. 80 keys travel"
    )
    read = 'maskcExplorer.map.overCanvas.getContext("2d").getImageData(59, {}, 1, 1).data'
    owners = [page.evaluate(f"[...{read.format(30 + token)}]") for token in (50, 150, 250)]
    assert owners[0] == owners[2] != owners[1]


# ------------------------------------------------------------------ other tiles


def run_by_boxes(dense, form):
    """Which pairs lie in a box of queries times a box of keys with a live pair; their numbers."""
    grid = (len(dense) // int(np.prod(form["extents"])), *form["extents"])
    run, full, partial = np.zeros_like(dense), 0, 0
    for q in tokens_of(grid, tuple(form["q"])):
        rows = q[q >= 0]
        for k in tokens_of(grid, tuple(form["k"])):
            pair = np.ix_(rows, k[k >= 0])
            full, partial = full + dense[pair].all(), partial + (0 < dense[pair].mean() < 1)
            run[pair] = dense[pair].any()
    return run, int(full), int(partial)


def runs_by_classes(owners, form):
    """Tiles of residue classes, part by part: queries and keys a stride apart."""
    n_q, n_kv = owners[0].shape
    runs, numbers = [], [0, 0]
    for part, own in zip(form["parts"], owners, strict=True):
        run, stride, (height, width) = np.zeros_like(own), part["stride"], part["tile"]
        alone = part["keys"] is not None
        for c in range(1 if alone else stride):
            position = np.arange(n_q) + n_kv - n_q
            rows = np.arange(n_q) if alone else np.flatnonzero(position % stride == c)
            columns = np.arange(part["keys"] if alone else c, n_kv, stride)
            for i in range(0, len(rows), height):
                for j in range(0, len(columns), width):
                    pair = np.ix_(rows[i : i + height], columns[j : j + width])
                    run[pair] = own[pair].any()
                    numbers[0] += own[pair].all()
                    numbers[1] += 0 < own[pair].mean() < 1
        runs.append(run)
    return runs, *map(int, numbers)


def parts_of(dense, form, window):
    """The pairs of each part: of a window and a dilated one, or of blocks and summaries."""
    n_q, n_kv = dense.shape
    p, k = np.arange(n_q)[:, None] + n_kv - n_q, np.arange(n_kv)[None, :]
    if form["parts"][-1]["keys"] is None:
        last = dense & ((p - k) % form["parts"][-1]["stride"] == 0) & (p - k > window)
        return [dense & ~last, last]
    lanes = [dense & (k % 32 == part["keys"]) & (k < 32 * (p // 32)) for part in form["parts"][1:]]
    return [dense & ~np.any(lanes, axis=0), *lanes]


def check_form(page, dense, runs, layers, size):
    """Cells of size x size pairs: live pairs in their parts' colours, then what runs in vain."""
    found, by_shader = B.pixels(page, 0, 0, 1 / size)
    assert not by_shader
    known = B.colors(page)
    n_q, n_kv = dense.shape
    rows, columns = -(-n_q // size), -(-n_kv // size)
    cell = np.broadcast_arrays(np.arange(n_q)[:, None] // size, np.arange(n_kv)[None, :] // size)

    def share(pairs):
        total, area = np.zeros((rows, columns)), np.zeros((rows, columns))
        np.add.at(total, tuple(cell), pairs)
        np.add.at(area, tuple(cell), 1)
        return (total / area)[..., None]

    live = [share(each) for each, _ in layers]
    run = sum(share(each) for each in runs)
    vain = np.maximum(0, np.minimum(run - sum(live), 1 - sum(live)))
    mixed = known["empty"] + vain * (known["waste"] - known["empty"])
    for own, (_, color) in zip(live, layers, strict=True):
        mixed = mixed + own * (color - known["empty"])
    rows, columns = min(rows, found.shape[0]), min(columns, found.shape[1])
    difference = np.abs(found[:rows, :columns] - np.floor(mixed + 0.5)[:rows, :columns])
    assert difference.max() <= 1  # sums of shares in another order
    assert difference.mean() < 0.01


def test_boxes_of_a_grid_on_the_map(opened):
    """Swin's tiles are boxes: every pixel says which pairs they run."""
    mask = mc.load(FOLDER / "swin.py")["swin"]()
    n = 64 * 9  # the last boxes reach beyond the grid
    model = model_of(mask, n)
    (form,) = model["forms"]
    dense = mask.dense(n)
    run, full, partial = run_by_boxes(dense, form)
    page = opened(model, "#show=boxes")
    for size in (1, 8):
        check_form(page, dense, [run], [(dense, B.colors(page)["full"])], size)
    totals = page.evaluate("maskcExplorer.formTotals()[0].totals")
    assert totals == {
        "full": full, "partial": partial, "tiles": totals["tiles"], "area": int(run.sum())
    }  # fmt: skip
    twin = page.evaluate("maskcExplorer.map.fit(), maskcExplorer.text()")
    assert f"x run, but not live: {int(run.sum() - dense.sum()):,} pairs" in twin
    assert f": {full} full, {partial} partial; they run" in twin
    page.evaluate("maskcExplorer.map.point(70, 5)")
    runs = ", ".join(f"{64 * row} to {64 * row + 31}" for row in (0, 1))
    B.shown_text(page, f"The tile of queries {runs}, ... 192 to 223")
    page.evaluate("maskcExplorer.setLengths(600, 600)")  # no whole rows of the grid
    B.shown_text(page, "none at these lengths")
    check_cells(page, mask.dense(600), 4)


CLASSES = {
    "strided": (mc.window(9) | mc.dilated(200, stride=7), 500, 533),  # no stride divides these
    "fixed": (
        mc.load(FOLDER / "sparse_transformer_fixed.py")["sparse_transformer_fixed"](
            length=32, summary=2
        ), 500, 512,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", chiefly(list(CLASSES), "strided"))
def test_tiles_of_residue_classes_on_the_map(opened, name):
    """Parts in their own colours; where they have parameters, sliders move them."""
    mask, n_q, n_kv = CLASSES[name]
    model = model_of(mask, n_q, n_kv)
    (form,) = model["forms"]
    page = opened(model, "#show=classes")
    assert form["as_built"] is False

    def check(dense, window):
        owners = parts_of(dense, form, window)
        runs, full, partial = runs_by_classes(owners, form)
        colors = page.evaluate("maskcExplorer.painted().map(([color]) => color)")
        layers = [(own, np.array(color)) for own, color in zip(owners, colors, strict=False)]
        for size in (1, 4):
            check_form(page, dense, runs, layers, size)
        totals = page.evaluate("maskcExplorer.formTotals()[0].totals")
        assert (totals["full"], totals["partial"]) == (full, partial)
        assert totals["area"] == sum(int(run.sum()) for run in runs)

    check(mask.dense(n_q, n_kv), 9)
    if name == "strided":
        page.evaluate("maskcExplorer.setParam('window', 30)")
        check((mc.window(30) | mc.dilated(200, stride=7)).dense(n_q, n_kv), 30)
        page.evaluate("maskcExplorer.map.point(450, 60)")
        B.shown_text(page, "classes modulo 7: the tile of queries")


# ------------------------------------------------------------------ text is text

HOSTILE = '</script><script>window.stolen = 1</script><img src=x onerror="window.stolen = 2">'


def test_hostile_text_is_shown_as_text(opened, tmp_path):
    file = tmp_path / "hostile.py"
    file.write_text(
        f"import maskc as mc\n\n@mc.pattern\ndef hostile(*, window: int = 9):\n"
        f"    '''{HOSTILE}'''\n    return mc.causal() & mc.window(window)  # {HOSTILE} --> ]]>\n"
    )
    pattern = mc.load(file)["hostile"]
    made = movable(pattern, {})
    shown = Shown(
        HOSTILE, made.mask, HOSTILE, HOSTILE, labels={"window": HOSTILE}, plain=pattern(),
        stuck=((HOSTILE, HOSTILE),),
    )  # fmt: skip
    problem = Problem(128, 128, DType.bfloat16, None)
    model = page_model(shown, 64, 64, problem=problem, target=Target.named("cpu"))
    page = opened(model)
    assert page.inner_text("h1") == HOSTILE
    assert HOSTILE in page.inner_text("footer")
    assert HOSTILE in page.inner_text(".code")
    assert page.evaluate("window.stolen") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    page = opened(model, f"#{urlencode({'mask': f'another {HOSTILE}'})}")
    assert HOSTILE in page.inner_text(".alarm")
    assert page.evaluate("window.stolen") is None


def test_served_page_gets_the_rest_and_other_settings(chromium):
    """The first picture needs no plan; what shapes the formula is compiled anew, at once."""
    entry = entries("dilated_longformer", None, (), None)[0]
    asked = KernelOptions(("cpu",), 128, "bfloat16", None)
    make = Models(entry, None, asked, Arrays(0), 400, 400)
    server = ExplorerServer(lambda query: make(query, served=True))
    thread = threading.Thread(target=server.serve)
    thread.start()
    page = chromium.new_page(viewport={"width": 720, "height": 540})
    try:
        asks = []
        page.on("request", lambda request: asks.append(request.url))
        page.goto(server.url)
        B.settled(page, "!!window.maskcExplorer && !maskcExplorer.model.pending")
        B.shown_text(page, "own count is the same")
        assert page.evaluate("maskcExplorer.model.source.files.map(({ name }) => name)") == [
            "pattern", "IR", "C",
        ]  # fmt: skip
        page.evaluate("maskcExplorer.rebuild({ dilation: 3 })")
        B.settled(page, "maskcExplorer.model.settings.dilation === '3'")
        wider = mc.load(FOLDER / "dilated_longformer.py")["dilated_longformer"](dilation=3)
        check_cells(page, wider.dense(400), 4)
        page.evaluate("maskcExplorer.compareWith('causal()')")
        B.settled(page, "maskcExplorer.state.mode === 'difference'")
        page.evaluate("maskcExplorer.setParam('window', 100)")
        link = page.evaluate("maskcExplorer.permalink()")
        assert parse_qs(link)["set.dilation"] == ["3"]
        assert parse_qs(link)["with"] == ["causal()"]
        state = "JSON.stringify([maskcExplorer.state, maskcExplorer.model.settings])"
        was = page.evaluate(state)
        page.goto("about:blank")
        page.goto(f"{server.url}#{link}")  # the first model knows nothing of all this
        B.settled(page, "window.maskcExplorer?.model.other?.expression === 'causal()'")
        assert page.evaluate(state) == was
        refusal = "maskcExplorer.compareWith('import os').catch(({ message }) => message)"
        refused = page.evaluate(refusal)
        assert refused.startswith("MC")
        assert {url.rpartition("/")[0] + "/" for url in asks} == {server.url}
    finally:
        page.close()
        server.stop()
        thread.join(10)


def test_widget_shows_the_same_page(chromium):
    page = chromium.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_content("<div id=cell></div>")
    page.add_style_tag(content=source("style.css"))
    page.evaluate(
        """async ([text, model]) => {
          const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
          const { default: widget } = await import(url);
          const traits = new Map([["page", model], ["height", 500]]);
          widget.render({ model: traits, el: document.getElementById("cell") });
        }""",
        [joined("widget.js"), json.dumps(model_of(STREAMING, 300) | {"embedded": True})],
    )
    B.settled(page, "document.querySelector('#cell').textContent.includes('live pairs')")
    assert wrong == []
    page.close()
