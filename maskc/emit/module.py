"""Writes a bundle as a Python module that a stranger can read, import and call."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from maskc.core.bundle import Bundle
from maskc.core.coefficients import unpriced
from maskc.core.data import SELECTING, DataKind
from maskc.core.library import library_of
from maskc.core.plain import to_readable_text
from maskc.core.problem import Direction, Problem
from maskc.core.selection import RANKING, SHAPES
from maskc.core.target import Target
from maskc.emit.environment import environment


@dataclass(frozen=True, slots=True)
class _Keyword:
    """A keyword that the functions of a module take for the mask's sake."""

    name: str
    default: str
    """The default as Python; empty if calls must give the keyword."""
    about: str
    """The mask's lines in a docstring."""


_WIDTH = 100
"""The most columns of a generated module."""

_Mark = tuple[str, tuple[Direction, ...], str]
"""Equal for sources that are equal except for comments: target, passes, digest."""

_ABOUT = {
    DataKind.documents: "ids, integer [N]; or (ids of queries, ids of keys); or mc.cu_seqlens(x)",
    DataKind.flags: "booleans, one per key (or per query, where the mask says so)",
    DataKind.positions: "integers, one per query or per key, as the mask says",
    DataKind.intervals: "(lo, hi), integers [n_q]: query q sees keys lo[q] to hi[q] - 1",
    DataKind.tree: "(tin, tout), integers [N]; or mc.parents(x)",
    DataKind.key_lists: "integers [n_q, K], the keys of each query; -1 for none",
    DataKind.table: "booleans [query blocks, key blocks]; heads, or batch and heads, in front",
}


def module_files(bundle: Bundle, mask: str, title: str, standalone: bool = False) -> dict[str, str]:
    """Return file names and texts: the module, its plan, and its sources.

    Args:
        bundle: the bundle; its units have distinct keys.
        mask: the mask as maskc prints it.
        title: the first line of the pattern's docstring, or its name.
        standalone: sources have the text of all static files that they include.
    """
    texts: dict[str, str] = {}
    if standalone:
        bundle = _inlined(bundle)
    plan = _of_this_library(_named(unpriced(bundle), bundle.name, {}, texts), texts)
    keywords = tuple(_keywords(bundle))
    text = environment().get_template("module.py.j2").render(
        mask=_filled(f"Mask: {_in_docstring(mask)}", "      "), title=_in_docstring(title),
        files=_filled(", ".join(texts) + ",")[:-1], plan=f"{bundle.name}.plan.json",
        report=_in_docstring(bundle.report), shapes=_shapes(bundle.problem),
        dtype=bundle.problem.dtype, dim_v=bundle.problem.head_dim_v, keywords=keywords,
        asked=tuple(_of_questions(bundle, keywords)),
        selecting=SELECTING if bundle.selections else (),
    )  # fmt: skip
    return {f"{bundle.name}.py": text, f"{bundle.name}.plan.json": to_readable_text(plan), **texts}


def _named(bundle: Bundle, prefix: str, known: dict[_Mark, str], texts: dict[str, str]) -> Bundle:
    """The bundle with file names in place of sources.

    Args:
        prefix: the module's name, and which part of it this is.
        known: files by the mark of their source; sources that are equal except for comments share
            the first.
        texts: by file name; filled here.
    """
    units = []
    for unit in bundle.units:
        mark: _Mark = unit.target, unit.directions, unit.digest
        if mark not in known:
            known[mark] = f"{prefix}.{unit.key}.{Target.named(unit.target).suffix}"
            texts[known[mark]] = unit.text
        units.append(replace(unit, text=known[mark], origins=()))
    parts = tuple(
        replace(part, bundle=_named(part.bundle, f"{prefix}.part{number}", known, texts))
        for number, part in enumerate(bundle.parts)
    )
    inner = partial(_named, prefix=prefix, known=known, texts=texts)
    return replace(
        bundle, units=tuple(units), parts=parts, report="",
        chooser=None if bundle.chooser is None else inner(bundle.chooser),
        siblings=tuple(map(inner, bundle.siblings)),
    )  # fmt: skip


def _of_this_library(bundle: Bundle, texts: Mapping[str, str]) -> Bundle:
    """The plan, with what its sources include noted."""
    units = tuple(replace(unit, library=library_of(texts[unit.text])) for unit in bundle.units)
    return replace(bundle, units=units).with_inner(partial(_of_this_library, texts=texts))


def _inlined(bundle: Bundle) -> Bundle:
    """Return the bundle with all includes of its sources inlined."""
    units = tuple(unit.with_one_text() for unit in bundle.units)
    return replace(bundle, units=units).with_inner(_inlined)


def digests(bundle: Bundle) -> tuple[str, str]:
    """Return two digests that detect drift, in hexadecimal: of all sources without comments, and of
    the plan."""
    texts: dict[str, str] = {}
    known: dict[_Mark, str] = {}
    plan = to_readable_text(_named(unpriced(bundle), bundle.name, known, texts))
    sources = sorted(f"{file} {digest}" for (_, _, digest), file in known.items())
    return sha256("\n".join(sources).encode()).hexdigest(), sha256(plan.encode()).hexdigest()


# ------------------------------------------------------------------ keywords


def _keywords(bundle: Bundle) -> Iterator[_Keyword]:
    """Yield the keywords of calls: data first, then parameters, then optional ones."""
    for decl in bundle.data:
        if decl.from_caller:
            yield _keyword(decl.name, "", _ABOUT.get(decl.kind) or SHAPES[decl.name])
    for name, default in bundle.params:
        yield _keyword(name, str(default), "an integer of the mask")
    for name in bundle.unread:
        yield _keyword(name, "None", "named by the mask, which does not need it")


def _keyword(name: str, default: str, about: str) -> _Keyword:
    text = textwrap.fill(f"{name}: {about}.", _WIDTH, initial_indent=" " * 8,
                         subsequent_indent=" " * 12)  # fmt: skip
    return _Keyword(name, default, text)


def _of_questions(bundle: Bundle, keywords: tuple[_Keyword, ...]) -> Iterator[_Keyword]:
    """The keywords of questions about the mask, which have no q and k to choose keys by."""
    scoring = {decl.name for decl in bundle.data if decl.kind is DataKind.scoring}
    yield from (keyword for keyword in keywords if keyword.name not in scoring)
    if bundle.selections:
        yield from (_keyword(name, "None", "") for name in RANKING)


def _shapes(problem: Problem) -> tuple[str, str, str]:
    """The shapes of q, k and v."""
    heads = "Hq" if problem.n_heads is None else str(problem.n_heads)
    dim, dim_v = problem.head_dim, problem.head_dim_v
    return f"[B, {heads}, Nq, {dim}]", f"[B, Hkv, Nkv, {dim}]", f"[B, Hkv, Nkv, {dim_v}]"


# ------------------------------------------------------------------ text


def _filled(text: str, indent: str = "") -> str:
    """Prose in lines of at most 100 columns."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
