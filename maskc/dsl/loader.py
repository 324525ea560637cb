"""Pattern files: ordinary Python files that define patterns or masks."""

from __future__ import annotations

import importlib.util
import keyword
import linecache
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

from maskc.core.errors import (
    FileMissing,
    FileUnreadable,
    MaskcError,
    NoPattern,
    PatternFailed,
    PatternTwice,
    SeveralErrors,
)
from maskc.core.source import SourceLoc, keep_text, raised_at, seen_from
from maskc.dsl.collect import collecting, mistake
from maskc.dsl.mask import Mask
from maskc.dsl.meant import closest, raised_text
from maskc.dsl.pattern import FILE, Pattern, check_pattern_name, noting_patterns


def load(path: str | Path) -> dict[str, Pattern[...] | Mask]:
    """Run a pattern file and return its patterns and masks by name, in file order.

    The file runs like any Python file, with everything that implies. It may import files next to
    it, unless they have the name of a module that Python or maskc imports. If it changes the
    working directory, the change is undone. Patterns defined in it are called once with their
    defaults, so that all mistakes are reported together.

    Args:
        path: the file.

    Returns:
        Patterns and masks by name.

    Raises:
        FileMissing: the file does not exist (MC207).
        FileUnreadable: it is a pipe, or may not be read (MC208).
        PatternFailed: the file itself raised (MC201).
        NoPattern: it defines neither a pattern nor a mask (MC202).
        BadPatternName: a name cannot name a module (MC203).
        PatternTwice: a name is used again (MC209).
        MaskcError: a mistake in the mask language (MC1xx), or several of them (MC001).
    """
    source, file = _read(path), Path(os.path.abspath(path))
    with undisturbed(), _running(file) as module, collecting():
        name = _shown(file)
        with noting_patterns() as made:
            _run(source, name, module)
        patterns = _found(module, name, made)
        for value in patterns.values():
            if isinstance(value, Pattern):
                _try(value, name)
    if not patterns:
        raise NoPattern("file", at=str(path))
    return patterns


def _read(path: str | Path) -> bytes:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise FileMissing(str(path))
        if not stat.S_ISREG(kind):
            raise FileUnreadable(str(path), "it is not a regular file")
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        raise FileMissing(str(path)) from None
    except OSError as error:
        raise FileUnreadable(str(path), error.strerror or type(error).__name__) from None


def _shown(file: Path) -> str:
    """Return the path for messages, relative if it is below the working directory. A link keeps its
    name, because the user knows that name.
    """
    try:
        return str(file.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)


# ------------------------------------------------------------------ surroundings


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the working directory after a file ran; messages show paths relative to the original
    one.
    """
    try:
        before = Path.cwd()
    except OSError:  # it was removed
        yield
        return
    try:
        with seen_from(before):
            yield
    finally:
        with suppress(OSError):
            os.chdir(before)


@contextmanager
def _running(file: Path) -> Iterator[ModuleType]:
    """The module of a file, known to Python while it runs, with neighbours it can import."""
    module = ModuleType(FILE)
    module.__file__ = str(file)
    finder = _Neighbours(file.resolve().parent)
    before = sys.modules.get(FILE)
    sys.modules[FILE] = module  # dataclasses look here for the types of fields
    sys.meta_path.insert(0, finder)
    try:
        yield module
    finally:
        with suppress(ValueError):  # the file took it out itself
            sys.meta_path.remove(finder)
        del sys.modules[FILE]
        if before is not None:
            sys.modules[FILE] = before


_THEIRS = frozenset(sys.stdlib_module_names) | {
    "click", "cuda", "cupy", "hypothesis", "islpy", "jinja2", "markupsafe", "maskc", "matplotlib",
    "ml_dtypes", "mpmath", "numpy", "rich", "sympy", "torch", "transformers",
}  # fmt: skip
"""Modules that a file next to the pattern must not shadow."""


class _Neighbours:
    """Finds modules in the folder of a pattern file, before all other places."""

    _from: dict[str, Path] = {}
    """Name -> folder, of modules imported from next to a pattern file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, place in list(self._from.items()):
            if place != folder:  # another file's helper of the same name would be used
                del self._from[name]
                for known in [k for k in sys.modules if k.partition(".")[0] == name]:
                    del sys.modules[known]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of a neighbour. Python calls this for every module that is not loaded yet."""
        if path is not None or name in _THEIRS:
            return None
        spec = PathFinder.find_spec(name, [str(self._folder)])
        if spec is not None:
            self._from[name] = self._folder
        return spec


# ------------------------------------------------------------------ running


def _run(source: bytes, name: str, module: ModuleType) -> None:
    linecache.cache.pop(name, None)
    with suppress(SyntaxError, UnicodeDecodeError):  # excerpts are of the text that runs
        keep_text(name, importlib.util.decode_source(source))
    with _noting(name):
        exec(_compiled(source, name), vars(module))


def _compiled(source: bytes, name: str) -> CodeType:
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        at = SourceLoc(name, error.lineno or 1, max(error.offset or 1, 1))
        raise PatternFailed("SyntaxError", f"{error.msg}{_keyword_meant(error)}", at=at) from None
    except ValueError as error:  # what Python 3.11 makes of null bytes, in its first releases
        raise PatternFailed("SyntaxError", error, at=SourceLoc(name, 1, 1)) from None


_ATTRIBUTE = re.compile(r"\b(?:mc|maskc)\.([a-z]+)\b")


def _keyword_meant(error: SyntaxError) -> str:
    """Return the name that a Python keyword after `mc.` was meant to be, as in mc.global(4)."""
    words = filter(keyword.iskeyword, _ATTRIBUTE.findall(error.text or ""))
    for word in words:
        if ours := closest(word, _WORDS):
            return f"; `{word}` is a word of Python, did you mean {ours!r}?"
    return ""


_WORDS = ("global_tokens", "window", "from_mask_mod")
"""Names that a Python keyword may stand for."""


def _try(pattern: Pattern[...], name: str) -> None:
    with _noting(name):
        pattern()


@contextmanager
def _noting(name: str) -> Iterator[None]:
    """Turn every exception of a file, except KeyboardInterrupt, into an error about the file."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except SeveralErrors as several:
        for error in several.errors:
            mistake(error, None)
    except BaseException as error:
        mistake(failed(error, name), None)


def failed(error: BaseException, file: str, at: SourceLoc | str | None = None) -> MaskcError:
    """Return the maskc error, with its place, for an exception that a pattern's own code raised.

    Args:
        error: what was raised.
        file: as messages show it.
        at: the place to show if the traceback has no better one; the file when None.
    """
    if isinstance(error, MaskcError):
        return error
    try:
        text = raised_text(error)
    except Exception as worse:
        text = f"(its text raised {type(worse).__name__})"
    return PatternFailed(type(error).__name__, text, at=raised_at(error, file) or at or file)


# ------------------------------------------------------------------ what a file has


def _found(
    module: ModuleType, file: str, made: list[Pattern[...]]
) -> dict[str, Pattern[...] | Mask]:
    """Return the public masks and patterns of a file by name; invalid names are errors."""
    patterns: dict[str, Pattern[...] | Mask] = {}
    for name, value in list(vars(module).items()):
        if str(name).startswith("_") or not _defined_here(value, file):
            continue
        try:
            check_pattern_name(name, getattr(value, "loc", None) or file)
        except MaskcError as error:
            mistake(error, None)
        else:
            patterns[name] = value
    kept = {id(value) for value in vars(module).values()}
    for pattern in made:
        last = patterns.get(pattern.name)
        if id(pattern) not in kept and isinstance(last, Pattern) and last.loc and pattern.loc:
            mistake(PatternTwice(pattern.name, pattern.loc.line, at=last.loc), None)
    return patterns


def _defined_here(value: object, file: str) -> bool:
    if isinstance(value, Pattern):
        code = getattr(value.function, "__code__", None)
        is_own = value.loc is None or value.loc.file == file
        return is_own or (code is not None and code.co_filename == file)
    return isinstance(value, Mask)
