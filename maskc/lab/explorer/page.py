"""The page as one file: the modules of page/ joined, with the model in it.

The files are plain ES modules, which a browser reads as they are; joining them drops what ties
them together. Nothing else happens to them, so the page reads like its sources.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

MODULES = (
    "formula.js", "counting.js", "shader.js", "cells.js", "forms.js", "words.js", "map.js",
    "panes.js", "app.js",
)  # fmt: skip
"""The modules, in an order in which each only uses earlier ones."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:class|function|const) )", re.MULTILINE)
_LIST = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)


def html(model: dict[str, Any]) -> str:
    """The whole page; no user text in it is markup, and no script runs that is not ours.

    Args:
        model: plain values, see `maskc.lab.explorer.model`.
    """
    style, script = source("style.css"), joined("start.js")
    policy = "; ".join((
        "default-src 'none'", f"script-src '{_hash(script)}'", f"style-src '{_hash(style)}'",
        f"connect-src {chr(39)}{'self' if model.get('served') else 'none'}{chr(39)}",
        "base-uri 'none'", "form-action 'none'",
    ))  # fmt: skip
    filled = {
        "policy": policy, "title": escape(f"{model['name']} · maskc"), "style": style,
        "script": script, "model": text_of(model),
    }  # fmt: skip
    return re.sub(r"\{([a-z]+)\}", lambda match: filled[match[1]], source("index.html"))


def joined(last: str) -> str:
    """All modules and the one that starts them, as a single module without imports."""
    return "\n".join(_alone(source(name)) for name in (*MODULES, last))


def text_of(model: dict[str, Any]) -> str:
    """The model as JSON that cannot end the element that it stands in."""
    return json.dumps(model, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


@cache
def source(name: str) -> str:
    """The text of a file of page/."""
    return (files("maskc.lab.explorer") / "page" / name).read_text("utf-8")


def _alone(module: str) -> str:
    return _LIST.sub("", _EXPORTED.sub("", _IMPORT.sub("", module)))


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
