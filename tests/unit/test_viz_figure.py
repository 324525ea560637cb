"""PNG and SVG: every cell where it belongs, the same bytes twice, mistakes refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import UsageMistake
from maskc.viz.canvas import EMPTY, FULL, PARTIAL
from maskc.viz.figure import gallery, save, write
from maskc.viz.picture import picture

pytest.importorskip("matplotlib")

STREAMING = mc.causal() & (mc.sinks(4) | mc.window(1023))


def pixels(path: Path) -> np.ndarray:
    """uint8 [rows, columns, 3]."""
    from matplotlib.image import imread

    return np.round(imread(path)[..., :3] * 255).astype(np.uint8)


def rgb(name: str) -> np.ndarray:
    return np.array([int(name[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.uint8)


def boxes(image: np.ndarray) -> list[tuple[slice, slice]]:
    """Where panels are: maximal runs of rows and columns whose frame colour is unbroken."""
    frame = (image == rgb("#b9c0ca")).all(axis=2)
    rows = np.flatnonzero(frame.sum(axis=1) > 90)
    found = []
    for top, bottom in zip(rows[0::2], rows[1::2], strict=True):
        columns = np.flatnonzero(frame[top + 1 : bottom].all(axis=0))
        for left, right in zip(columns[0::2], columns[1::2], strict=True):
            found.append((slice(top + 1, bottom), slice(left + 1, right)))
    return found


def test_a_gallery_shows_every_element(tmp_path: Path):
    masks = {
        "causal": mc.causal(),
        "strided": mc.causal() & (mc.window(15) | mc.strided(16, 15)),
        "thin": mc.offsets([0, 5, 77]),
        "longformer": mc.window(16, 16) | mc.global_tokens(8),
    }
    gallery(masks, tmp_path / "all.png", columns=3)
    image = pixels(tmp_path / "all.png")
    panels = boxes(image)
    assert len(panels) == len(masks)
    for mask, box in zip(masks.values(), panels, strict=True):
        blue = (image[box] == rgb(FULL)).all(axis=2)
        np.testing.assert_array_equal(blue, mask.dense(256))


def test_tiles_have_the_colours_of_their_classes(tmp_path: Path):
    save(STREAMING, tmp_path / "mask.png", n_q=8192, name="streaming")
    image = pixels(tmp_path / "mask.png")
    (box,) = boxes(image)
    inside = image[box]
    side = inside.shape[0] // 64
    middles = inside[side // 2 :: side, side // 2 :: side]
    classes = STREAMING.layout(8192).to_dense()
    for value, name in ((0, EMPTY), (2, FULL)):
        np.testing.assert_array_equal((middles == rgb(name)).all(axis=2), classes == value)
    live = STREAMING.dense(8192).reshape(64, 128, 64, 128).mean(axis=(1, 3))[..., None]
    empty, partial = (np.array(rgb(name), float) for name in (EMPTY, PARTIAL))
    shaded = empty + (0.45 + 0.55 * live) * (partial - empty)
    amber = classes == 1
    np.testing.assert_allclose(middles[amber], shaded[amber], atol=1)


def test_a_million_tokens(tmp_path: Path):
    save(STREAMING, tmp_path / "mask.png", n_q=1_000_000)
    image = pixels(tmp_path / "mask.png")
    (box,) = boxes(image)
    inside = image[box].astype(int)
    assert inside.shape == (489, 489, 3)  # 1954 tiles, four to a cell
    drawn = (inside != rgb(EMPTY)).any(axis=2)
    assert drawn.diagonal().all()
    assert drawn[:, 0].all()  # the four sinks
    assert drawn.sum() < 3 * 489


def test_a_panel_per_distinct_head(tmp_path: Path):
    mask = mc.per_head([mc.causal(), mc.full(), mc.causal(), mc.window(3), mc.sinks(9)])
    save(mask, tmp_path / "mask.png", n_q=512, n_heads=5)
    assert len(boxes(pixels(tmp_path / "mask.png"))) == 4


@pytest.mark.parametrize("shape", [(16, 4096), (4096, 16), (1, 1), (3, 700), (0, 5)])
def test_odd_shapes_fit_on_the_page(tmp_path: Path, shape: tuple[int, int]):
    save(mc.causal(), tmp_path / "mask.png", n_q=shape[0], n_kv=shape[1])
    image = pixels(tmp_path / "mask.png")
    assert max(image.shape) < 1100
    margin = np.concatenate([image[:5].ravel(), image[-5:].ravel(), image[:, :5].ravel(),
                             image[:, -5:].ravel()])  # fmt: skip
    assert (margin == 255).all()


def test_nothing_touches_the_margin_of_a_long_title(tmp_path: Path):
    mask = mc.causal() & mc.offsets(range(0, 4000, 7))
    save(mask, tmp_path / "mask.png", n_q=4096, name="a" * 40)
    image = pixels(tmp_path / "mask.png")
    assert (image[:, -20:] == 255).all()


def test_svg_is_text_of_the_same_bytes(tmp_path: Path):
    shown = picture(STREAMING, 2048, name="streaming")
    write(shown, tmp_path / "one.svg")
    write(shown, tmp_path / "two.svg")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert text.startswith("<?xml")
    assert text.count("<image") == 1
    assert "pixelated" in text
    assert not re.search(r"<dc:date>|/home/|/root/|/tmp/", text)
    script = (
        "import maskc as mc; from maskc.viz.figure import save; "
        "save(mc.causal() & (mc.sinks(4) | mc.window(1023)), 'three.svg', n_q=2048, "
        "name='streaming')"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, env={"PYTHONPATH": str(root)}
    )
    assert text == (tmp_path / "three.svg").read_text()


def test_png_is_the_same_bytes(tmp_path: Path):
    for name in ("one.png", "two.png"):
        save(mc.causal(), tmp_path / name, n_q=300)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_dollars_and_braces_in_names_are_plain_text(tmp_path: Path):
    gallery({"$x_{1}$ \\frac": mc.causal()}, tmp_path / "all.png", n_q=32)
    assert (tmp_path / "all.png").stat().st_size > 1000


def test_another_suffix_is_refused(tmp_path: Path):
    with pytest.raises(UsageMistake) as caught:
        save(mc.causal(), "mask.gif", n_q=16)
    assert str(caught.value) == (
        "MC603 path  'mask.gif' is neither *.png nor *.svg\n"
        "    hint: the suffix says which kind of picture to write"
    )


def test_no_pattern_gives_an_empty_gallery(tmp_path: Path):
    gallery({}, tmp_path / "none.svg")
    assert (tmp_path / "none.svg").exists()


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_narrow_galleries_keep_their_margins(tmp_path: Path, columns: int):
    masks = {f"mask_{number}": mc.window(number) for number in range(columns)}
    gallery(masks, tmp_path / "all.png", n_q=300, columns=columns)
    image = pixels(tmp_path / "all.png")
    assert (image[:, -10:] == 255).all()
    assert (image[-5:] == 255).all()
    assert len(boxes(image)) == columns
