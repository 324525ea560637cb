"""The notebooks of the docs: each runs, and prints what the committed file shows.

`pytest --update-golden tests/unit/test_notebooks.py` runs them and writes their outputs.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.thorough import THOROUGH, compile_soon_elsewhere

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
FLEX = "torch.compile(flex_attention)"
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


def missing(notebook) -> list[str]:
    """Return the modules that a notebook imports and this environment lacks."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    imported = [name for name in MODULES if re.search(rf"(import|from) {name}\b", code)]
    if "Image(" in code:
        imported.append("matplotlib")
    return [name for name in imported if find_spec(name) is None]


@pytest.fixture(scope="module")
def executed(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[Path, Any]:
    """Run all notebooks in one kernel: importing PyTorch takes longer than most of their cells."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebooks = {path: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
    notebooks = {path: notebook for path, notebook in notebooks.items() if not missing(notebook)}
    whole, folder = nbformat.v4.new_notebook(), tmp_path_factory.mktemp("notebooks")
    for notebook in notebooks.values():
        whole.cells += [nbformat.v4.new_code_cell("%reset -f"), *notebook.cells]
    if not THOROUGH and not request.config.getoption("--update-golden"):
        for cell in whole.cells:  # Inductor takes as long for it as all cells together
            cell.source = cell.source.replace(FLEX, f'{FLEX[:-1]}, backend="eager")')
    with pytest.MonkeyPatch.context() as patch:
        compile_soon_elsewhere(patch)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        nbclient.NotebookClient(
            whole,
            timeout=300,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    return notebooks


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    path: Path, executed: dict[Path, Any], request: pytest.FixtureRequest
) -> None:
    nbformat = pytest.importorskip("nbformat")
    committed = nbformat.read(path, as_version=4)
    if path not in executed:
        pytest.skip(f"{path.name} needs {', '.join(missing(committed))}")
    notebook = executed[path]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    errors = [
        output.evalue for cell in cells for output in cell.outputs if output.output_type == "error"
    ]
    assert errors == []
    if request.config.getoption("--update-golden"):
        for number, cell in enumerate(cells, 1):
            cell.execution_count = number
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = number
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of the run, not worth a diff
        notebook.metadata["language_info"] = {"name": "python"}  # nor is the version of Python
        nbformat.write(notebook, path)
        return
    assert (printed(notebook), pictures(notebook)) == (printed(committed), pictures(committed))


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
