"""The explorer in a real JupyterLab: a widget of anywidget, in a browser without a window."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from tests.support import browser as B

ROOT = Path(__file__).parents[2]
MASK = mc.causal() & (mc.sinks(4) | mc.window(40))
CELL = """\
import maskc as mc
mc.show(mc.causal() & (mc.sinks(4) | mc.window(40)), n=300, target="cpu", height=600)"""
OPENED = "!!(window.jupyterapp && document.querySelector('.jp-Notebook .jp-Cell'))"
IDLE = """(() => {
  const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
})()"""
SHOWN = """(() => {
  window.maskcExplorer = document.querySelector(".maskc")?.parentElement.explorer;
  return !!window.maskcExplorer?.map.complete;
})()"""


@pytest.fixture
def lab(tmp_path):
    """The address of a server of its own, whose folder has one notebook: two cells, not yet run."""
    for needed in ("jupyterlab", "ipykernel", "anywidget"):
        pytest.importorskip(needed)
    cells = [
        {"cell_type": "code", "id": f"cell{i}", "execution_count": None, "metadata": {},
         "outputs": [], "source": source}
        for i, source in enumerate((CELL, "1 + 1"))
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "mask.ipynb").write_text(json.dumps(notebook))
    token, places = secrets.token_hex(16), ("CONFIG", "DATA", "RUNTIME")
    env = os.environ | {f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in places}
    env |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    words = (
        "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", f"--notebook-dir={folder}",
        f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
    )  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words], env=env, stdout=log, stderr=log
        )
    try:
        yield f"{address(server, tmp_path)}lab/tree/mask.ipynb?token={token}"
    finally:
        server.terminate()
        server.wait(30)


def address(server, tmp_path):
    """Where the server listens, which it writes into a file of its own."""
    end = time.monotonic() + 90
    while time.monotonic() < end and server.poll() is None:
        for file in (tmp_path / "runtime").glob("jpserver-*.json"):
            try:
                return json.loads(file.read_text())["url"]
            except ValueError:
                pass  # it is being written
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start: {(tmp_path / 'log').read_text()[-2000:]}")


@pytest.mark.matrix  # a server takes long to start; test_explorer_page.py shows the same widget
def test_a_widget_in_jupyterlab(lab, tmp_path):
    """The pixels are `dense`, keys are its own and not the notebook's, and it follows the theme."""
    with B.started() as chromium:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(lab)
        B.settled(page, OPENED, 120)
        B.settled(page, IDLE, 120)
        run = (
            "void jupyterapp.commands.execute('notebook:run-all-cells').then(() => window.ran = 1)"
        )
        page.evaluate(run)
        B.settled(page, SHOWN, 120)
        B.settled(page, "!!window.ran", 120)  # it takes the focus at its end
        B.settled(page, "!JSON.stringify(maskcExplorer.colors().full).includes('null')", 60)
        found, by_shader = B.pixels(page, 0, 0, 1)
        assert by_shader
        known, dense = B.colors(page), MASK.dense(300)
        expected = np.where(dense[..., None], known["full"], known["empty"])
        assert (found[:300, :300] == expected).all()
        names = page.evaluate("maskcExplorer.model.source.files.map(({ name }) => name)")
        assert names == ["pattern", "IR", "C"]  # the cell is the pattern's source
        page.evaluate("maskcExplorer.map.point(200, 100)")
        page.focus(".maskc .map")
        for key in "ddxm":  # in command mode: delete the cell, cut it, make it Markdown
            page.keyboard.press(key)
        assert page.evaluate("maskcExplorer.map.cursor") == {"q": 200, "k": 102}
        assert page.evaluate("maskcExplorer.state.mode") == "tiles"
        assert page.evaluate("document.querySelectorAll('.jp-CodeCell').length") == 2
        dark = "document.body.setAttribute('data-jp-theme-light', 'false')"
        page.evaluate(dark)
        B.settled(page, "maskcExplorer.shell.dataset.theme === 'dark'")
        page.screenshot(path=tmp_path / "lab.png")
        print(f"a picture of it: {tmp_path / 'lab.png'}")
        assert wrong == []
