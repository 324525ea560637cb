"""The notebooks of the docs: each runs, and prints what the committed file shows.

`pytest --update-golden tests/unit/test_notebooks.py` runs them and writes their outputs.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MODULES = ("torch", "transformers", "jax", "matplotlib")


def printed(notebook) -> list[str]:
    """Return the text that each cell of code prints, in order, without the digits of rounding."""
    texts = [
        "".join(output["text"] for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return [re.sub(r"\d\.\de-\d\d", "#", text) for text in texts]


def pictures(notebook) -> list[int]:
    """Return how many pictures each cell of code shows, in order."""
    return [
        sum("image/png" in output.get("data", ()) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    shown = printed(notebook), pictures(notebook)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    needed = [name for name in MODULES if re.search(rf"(import|from) {name}\b", code)]
    if "Image(" in code:
        needed.append("matplotlib")
    for name in needed:
        if find_spec(name) is None:
            pytest.skip(f"{path.name} needs {name}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    if request.config.getoption("--update-golden"):
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of the run, not worth a diff
        notebook.metadata["language_info"] = {"name": "python"}  # nor is the version of Python
        nbformat.write(notebook, path)
        return
    assert (printed(notebook), pictures(notebook)) == shown


def test_every_notebook_is_committed_with_its_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], path.name
        assert any(printed(notebook)), path.name
        text = path.read_text()
        assert "Traceback" not in text, path.name
        assert not re.search(r'"/(home|tmp|work|usr)/', text), path.name
