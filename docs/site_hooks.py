"""Hooks of mkdocs: pages from the top of the repository, and links that leave docs/."""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository, and a page for each notebook."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the pictures that it shows by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        outputs = cell["outputs"]
        text = "".join("".join(output.get("text", ())) for output in outputs)
        if text:
            parts.append(f"```text\n{text.rstrip()}\n```")
        for output in outputs:
            if "image/png" in output.get("data", {}):
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f'![Output of the cell above]({name}){{ width="640" }}')
    title, _, rest = "\n\n".join(parts).partition("\n\n")
    download = f"[Download this notebook]({path.name}){{ download }}"
    return f"{title}\n\n{download}\n\n{rest}\n", pictures


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep links between pages; of a link to another file of the repository keep its path."""
    source = page.file.src_uri
    folder = "" if source in PAGES.values() else posixpath.join("docs", posixpath.dirname(source))
    here = posixpath.dirname(source)

    def followed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"\w+:", target):
            return found[0]
        if target.endswith(".ipynb") and not text.startswith("Download"):
            target = target.removesuffix(".ipynb") + ".md"
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in PAGES:
            return f"[{text}]({posixpath.relpath(PAGES[path], here or '.')}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(path[5:], here or '.')}{anchor})"
        plain = text.strip("`")
        return f"`{path}`" if plain in (path, posixpath.basename(path)) else f"{text} (`{path}`)"

    return _LINK.sub(followed, markdown)
