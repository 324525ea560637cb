"""Pictures that a mask, a layout and a compiled mask show in Python and in notebooks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import maskc as mc
from maskc.dsl.nodes import structure

MASK = mc.causal() & (mc.sinks(4) | mc.window(63))


def svgs(html: str) -> list[ElementTree.Element]:
    """The drawings of a well-formed page."""
    page = ElementTree.fromstring(f"<body>{html}</body>")
    return page.findall(".//{http://www.w3.org/2000/svg}svg")


def painted(svg: ElementTree.Element) -> np.ndarray:
    """Which cells have a colour, and the colours, as numbers of 24 bits."""
    columns, rows = map(int, svg.attrib["viewBox"].split()[2:])
    cells = np.zeros((rows, columns), int)
    for path in svg:
        for text in path.attrib["d"].removesuffix("z").split("z"):
            x, y, width, left = map(int, re.fullmatch(r"M(\d+) (\d+)h(\d+)v1H(\d+)", text).groups())
            assert left == x
            assert not cells[y, x : x + width].any()
            cells[y, x : x + width] = int(path.attrib["fill"].removeprefix("#"), 16)
    return cells


def test_a_mask_is_its_text():
    assert repr(MASK) == str(MASK) == "causal() & (sinks(4) | window(63))"
    assert repr(mc.parse(repr(MASK))) == repr(MASK)
    assert repr([mc.full(), ~mc.causal()]) == "[full(), ~causal()]"


def test_large_captured_arrays_are_named_only():
    few, many = np.arange(5), np.arange(100_000)
    assert "table0=[0, 1, 2, 3, 4]" in repr(mc.from_mask_mod(lambda b, h, q, k: few[q] == few[k]))
    text = repr(mc.full() & ~mc.from_mask_mod(lambda b, h, q, k: many[q] == many[k]))
    assert text == "full() & ~where(lambda q, k: table0[k] == table0[q])"


def test_the_key_of_a_bundle_does_not_depend_on_the_text():
    one = structure(mc.window(3) | mc.flags("f"))
    assert one == structure(mc.window(3) | mc.flags("f"))
    assert repr(one) != repr(structure(mc.window(3) | mc.flags("f", on="q")))
    assert "SourceLoc" not in repr(one)


def test_layouts_print_counts():
    layout = MASK.layout(512)
    full, partial = ((layout.kind == kind).sum() for kind in (2, 1))
    assert repr(layout) == (
        f"BlockLayout(512 x 512, tiles of 128 x 128, {full} full, {partial} partial, "
        f"{16 - full - partial} empty)"
    )
    assert repr(layout.transpose()).endswith("empty, by columns)")


def test_a_layout_is_drawn_tile_by_tile():
    layout = MASK.layout(4096, block=(64, 64))
    (svg,) = svgs(layout._repr_html_())
    colors = dict(enumerate((0, 0xF0A830, 0x1F5F99)))
    np.testing.assert_array_equal(painted(svg), np.vectorize(colors.get)(layout.to_dense()))
    assert svgs(mc.causal().layout(1_000_000, block=(128, 128))._repr_html_()) == []


def test_a_layout_has_the_shape_of_its_pairs():
    (svg,) = svgs(mc.full().layout(100, 400, block=(64, 64))._repr_html_())
    assert (svg.attrib["width"], svg.attrib["height"]) == ("240", "60")


def test_a_mask_is_drawn_where_it_has_its_shape():
    (svg,) = svgs(MASK._repr_html_())
    cells = painted(svg)
    assert 0 < np.count_nonzero(cells) < cells.size // 2  # no plain triangle
    assert "256 queries x 256 keys" in MASK._repr_html_()
    assert len(svgs(mc.per_head([mc.causal(), mc.full()])._repr_html_())) == 2
    wanted = mc.documents("doc")._repr_html_()
    assert svgs(wanted) == []
    assert "mask.show(n, doc=...)" in wanted


@pytest.mark.parametrize("name", ["longformer", "natten_2d", "nsa_selected", "swin", "tri_shape"])
def test_published_masks_are_drawn(name: str):
    assert svgs(getattr(mc.patterns, name)()._repr_html_())


def test_hostile_names_are_text(monkeypatch: pytest.MonkeyPatch):
    from maskc.core.svg import page

    evil = '</code><script>alert("1")</script>'
    html = page(evil, [evil], [(evil, "<svg/>")])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3
    monkeypatch.setattr(type(MASK), "__str__", lambda mask: evil)
    assert "<script" not in MASK._repr_html_()
    assert "&lt;script&gt;" in MASK._repr_html_()


def test_compiled_masks_say_what_they_are():
    attn = MASK.compile(head_dim=32, dtype="float32", target="cpu")
    assert re.fullmatch(
        r"CompiledMask\(causal\(\) & \(sinks\(4\) \| window\(63\)\), cpu, float32, head_dim 32, "
        r"tiles of \d+ x \d+\)", repr(attn),
    )  # fmt: skip
    assert len(svgs(attn._repr_html_())) == 1


def test_show_prints_a_drawing(capsys: pytest.CaptureFixture[str]):
    mc.documents("doc").show(64, doc=np.arange(64) // 16)
    assert "1,024 of 4,096" in capsys.readouterr().out
    MASK.show()
    assert "256 queries x 256 keys" in capsys.readouterr().out


def test_show_displays_in_a_notebook(monkeypatch: pytest.MonkeyPatch):
    shown: list[dict[str, str]] = []

    def display(what: dict[str, str], raw: bool) -> None:
        assert raw
        shown.append(what)

    shell = SimpleNamespace(kernel=object())
    modules: dict[str, Any] = {
        "IPython": SimpleNamespace(get_ipython=lambda: shell),
        "IPython.display": SimpleNamespace(display=display),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    MASK.show(100)
    assert len(svgs(shown[0]["text/html"])) == 1
    assert "100 queries x 100 keys" in shown[0]["text/plain"]


def test_save_and_explain(tmp_path: Path):
    pytest.importorskip("matplotlib")
    MASK.save(tmp_path / "mask.svg", n=300)
    assert (tmp_path / "mask.svg").read_bytes().startswith(b"<?xml")
    text = MASK.explain(head_dim=64, target="sm_89")
    assert text.startswith("target   sm_80, bfloat16, head_dim 64\n")
    assert text == MASK.compile(head_dim=64, target="sm_80").explain()
