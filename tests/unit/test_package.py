"""Contents of the distributions that are known without building them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import maskc as mc
from maskc.core import package
from maskc.core.source import caller

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = PROJECT["tool"]["hatch"]["build"]["targets"]


def test_one_version():
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "maskc/__init__.py"}
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert cited[1] == mc.__version__
    assert f"\n## {mc.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_sdist_is_all_of_the_repository():
    here = {path.name for path in ROOT.iterdir()} - {"pyproject.toml"}
    tracked = {name for name in BUILD["sdist"]["include"] if name != ".github"}
    assert tracked <= here
    for name in ("maskc", "templates", "patterns", "tests", "docs", ".ci", ".gitattributes"):
        assert name in tracked


def test_patterns_and_templates_are_in_the_wheel():
    assert BUILD["wheel"]["force-include"] == {
        "templates": "maskc/templates",
        "patterns": "maskc/patterns/published",
    }
    assert package.pattern_folder() == ROOT / "patterns"


def test_published_patterns_of_a_wheel_keep_their_lines():
    file = Path(package.__file__).parents[1] / "patterns" / "published" / "near.py"
    scope = {"caller": caller}
    exec(compile("\nfound = caller()\n", str(file), "exec"), scope)
    assert scope["found"].line == 2  # type: ignore[attr-defined]


def test_the_address_of_the_project_stands_in_one_file():
    home = PROJECT["project"]["urls"]["Homepage"]
    assert all(url.startswith(home) for url in PROJECT["project"]["urls"].values())
    owner = home.removeprefix("https://github.com/")
    text = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r"github(?:usercontent)?\.com/([\w.-]+/[\w.-]+)", text)) == {owner}
    for name in ("README.md", "CONTRIBUTING.md", "CITATION.cff", "mkdocs.yml", "CHANGELOG.md"):
        assert owner not in (ROOT / name).read_text(), name


def test_links_of_the_readme_become_absolute():
    text = (ROOT / "README.md").read_text()
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10
    assert all(link.startswith("https://") for link in links)
