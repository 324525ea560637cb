"""The notebooks of the docs: each runs, and prints what the committed file shows.

`pytest --update-golden tests/unit/test_notebooks.py` runs them and writes their outputs.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.thorough import THOROUGH, compile_soon_elsewhere, more

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


def run(notebooks: list[Any], folder: Path, exact: bool) -> None:
    """Run notebooks in one kernel: importing PyTorch takes longer than most of their cells.

    Args:
        notebooks: they get their outputs.
        folder: the kernel's working directory.
        exact: compile as the cells say.
    """
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    whole = nbformat.v4.new_notebook()
    for notebook in notebooks:
        whole.cells += [nbformat.v4.new_code_cell("%reset -f"), *notebook.cells]
    if not exact:
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


@pytest.mark.slow
@pytest.mark.parametrize("paths", [NOTEBOOKS[:2], more(NOTEBOOKS[2:])], ids=["masks", "models"])
def test_notebooks_print_what_they_show(
    paths: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    update = request.config.getoption("--update-golden")
    committed = {path: nbformat.read(path, as_version=4) for path in paths}
    notebooks = {
        path: nbformat.read(path, as_version=4)
        for path, notebook in committed.items()
        if not missing(notebook)
    }
    run(list(notebooks.values()), tmp_path, THOROUGH or update)
    for path, notebook in notebooks.items():
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        assert [x.evalue for x in outputs if x.output_type == "error"] == [], path.name
        if update:
            write(notebook, path)
            continue
        shown = committed[path]
        assert printed(notebook) == printed(shown), path.name
        assert pictures(notebook) == pictures(shown), path.name
    if lacking := {path.name: missing(committed[path]) for path in paths if path not in notebooks}:
        pytest.skip(f"without modules: {lacking}")


def write(notebook: Any, path: Path) -> None:
    """Write a notebook with its outputs, without what differs from run to run."""
    nbformat = pytest.importorskip("nbformat")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the run, not worth a diff
    notebook.metadata["language_info"] = {"name": "python"}  # nor is the version of Python
    nbformat.write(notebook, path)


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
