"""Hooks of mkdocs: pages from the top of the repository, and links that leave docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from runpy import run_path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DRAWS = Path(__file__).with_name("pattern_index.py")
_PICTURED = """
Rows are 256 queries, columns 256 keys. Parameters are smaller than in the papers, and data are
synthetic. Blue tiles are full, amber tiles partial; darker means more live pairs.

"""
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the top of the repository, where people look for them."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep links between pages; of a link to another file of the repository keep its path."""
    source = page.file.src_uri
    if source == "patterns.md":
        markdown += "\n## Pictures\n\n" + _PICTURED + run_path(str(DRAWS))["drawings"]() + "\n"
    folder = "" if source in PAGES.values() else posixpath.join("docs", posixpath.dirname(source))
    here = posixpath.dirname(source)

    def followed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"\w+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in PAGES:
            return f"[{text}]({posixpath.relpath(PAGES[path], here or '.')}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(path[5:], here or '.')}{anchor})"
        plain = text.strip("`")
        return f"`{path}`" if plain in (path, posixpath.basename(path)) else f"{text} (`{path}`)"

    return _LINK.sub(followed, markdown)
