"""Draws the pictures of docs/explorer.md: pages of `maskc explore` in a browser without a window.

Needs `pip install 'maskc[browser]'` and Debian's chromium. Look at what it writes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).with_name("explorer")
PAGES = {
    "streaming": (
        ["streaming", "--with", "causal() & window(1000)"],
        "view=930,-8,5.5&show=difference&at=1001,0",
    ),
    "longformer": (["longformer", "--n", "2048"], "at=900,700"),
    "documents": (["documents"], "theme=dark&show=tiles&at=2000,1800"),
    "swin": (["swin", "--n", "1024"], "show=boxes&at=582,540"),
    "bigbird_etc": (["bigbird_etc", "--n", "2048"], "show=parts&at=1200,1000"),
    "dilated_longformer": (
        ["dilated_longformer", "--set", "n_global=16", "--n", "2048"],
        "view=440,-6,1.2&show=classes&at=700,300",
    ),
    "streaming_1m": (["streaming", "--n", "1M"], "at=900000,899000"),
}  # fmt: skip
ARGS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
READY = "!!(window.maskcExplorer && maskcExplorer.map.complete && maskcExplorer.map.cursor)"


def main() -> None:
    """Write the pictures that were named, or all."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for name in sys.argv[1:] or PAGES:
            words, link = PAGES[name]
            file = Path(folder) / f"{name}.html"
            subprocess.run(
                [sys.executable, "-m", "maskc", "explore", *words, "-o", file], check=True
            )
            page.goto("about:blank")
            page.goto(f"{file.as_uri()}#{link}")
            while not page.evaluate(READY):
                time.sleep(0.1)
            page.wait_for_timeout(3000)  # panes follow the map
            page.screenshot(path=FOLDER / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
