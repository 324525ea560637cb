"""A browser for tests of the explorer: Debian's chromium with WebGL in software."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]

# Colours of what is on the map, pixel by pixel below and right of the axes, as one number each, and
# what they are: whole colours would be most of what the browser and the tests have to do.
READ = """() => {
  const { map } = maskcExplorer;
  const shown = map.pairCanvas.style.visibility === "visible" ? map.pairCanvas : map.cellCanvas;
  const copy = document.createElement("canvas");
  copy.width = shown.width; copy.height = shown.height;
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(shown, 0, 0);
  const left = 62, top = 30, width = copy.width - left, height = copy.height - top;
  const { data } = context.getImageData(left, top, width, height);
  const words = new Uint32Array(data.buffer), bytes = new Uint8Array(words.length);
  const numbers = new Map();
  for (let i = 0, last, number; i < words.length; i++) {
    if (words[i] !== last) {
      last = words[i];
      if (!numbers.has(last)) numbers.set(last, numbers.size);
      number = numbers.get(last);
    }
    bytes[i] = number;
  }
  if (numbers.size > 256) throw new Error(`${numbers.size} colours`);
  const part = (i) => String.fromCharCode(...bytes.subarray(i, i + 8192));
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += part(i);
  const palette = [...numbers.keys()].map((x) => [x & 255, x >> 8 & 255, x >> 16 & 255]);
  return { width, height, palette, data: btoa(text), shader: shown === map.pairCanvas };
}"""
VIEW = """([q, k, scale]) => {
  const { map } = maskcExplorer;
  map.fitted = false;
  map.view = { q, k, scale };
  for (let i = 0; i < 400; i++) { map.draw(); if (map.complete) break; }
  return map.complete;
}"""
SHOW = """(model) => {
  const root = document.getElementById("explorer");
  root.replaceChildren();
  window.maskcExplorer = new maskcExplorer.constructor(root, { ...model, embedded: true });
}"""


@contextmanager
def started() -> Iterator[Any]:
    """The browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


def settled(page: Any, expression: str, seconds: float = 60) -> Any:
    """Ask again until it is true: the page's policy forbids what Playwright would do instead."""
    end = time.monotonic() + seconds
    while not (found := page.evaluate(expression)):
        if time.monotonic() > end:
            pytest.fail(f"never true: {expression}")
        time.sleep(0.02)
    return found


def pixels(page: Any, q: int, k: int, scale: float) -> tuple[np.ndarray, bool]:
    """(uint8 [rows, columns, 3], whether the shader drew them), pair (q, k) in the corner."""
    from base64 import b64decode

    assert page.evaluate(VIEW, [q, k, scale]), "the map was not finished"
    found = page.evaluate(READ)
    numbers = np.frombuffer(b64decode(found["data"]), dtype=np.uint8)
    raw = np.array(found["palette"], dtype=np.uint8)[numbers]
    return raw.reshape(found["height"], found["width"], 3), found["shader"]


def shown_text(page: Any, text: str, seconds: float = 60) -> None:
    """Wait until the page says something."""
    settled(page, f"document.body.textContent.includes({json.dumps(text)})", seconds)


def colors(page: Any) -> dict[str, np.ndarray]:
    """The colours that the map draws with."""
    text = page.evaluate("JSON.stringify(maskcExplorer.colors())")
    found = {name: color for name, color in json.loads(text).items() if name != "ink"}
    return {name: np.array(color) for name, color in found.items()}
