"""Pattern files: ordinary Python files that define patterns or masks."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, ModuleType

from maskc.core.errors import FileMissing, MaskcError, NoPattern, PatternFailed
from maskc.core.source import SourceLoc, raised_at
from maskc.dsl.collect import collecting, mistake
from maskc.dsl.mask import Mask
from maskc.dsl.pattern import FILE, Pattern


def load(path: str | Path) -> dict[str, Pattern | Mask]:
    """Run a pattern file and return its patterns and masks by name, in file order.

    The file runs like any Python file, with everything that implies. Patterns defined in it are
    called once with their defaults, so that all its mistakes are reported together.

    Raises:
        FileMissing: no such file. PatternFailed: the file itself raised. NoPattern: it has none.
        MaskcError: a mistake in the mask language, or SeveralErrors.
    """
    file = Path(path)
    if not file.is_file():
        raise FileMissing(str(path))
    module = ModuleType(FILE)
    module.__file__ = str(file)
    with collecting():
        _run(file, module)
        found = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and _defined_here(value, file)
        }
        for value in found.values():
            if isinstance(value, Pattern):
                _try(value, file)
    if not found:
        raise NoPattern(at=str(path))
    return found


def _run(file: Path, module: ModuleType) -> None:
    name = _shown(file)
    linecache.checkcache(name)  # excerpts in messages are of the file as it is now
    sys.path.insert(0, str(file.resolve().parent))
    try:
        exec(_compiled(file, name), vars(module))
    except MaskcError as error:
        mistake(error, None)
    except SyntaxError as error:
        at = SourceLoc(name, error.lineno or 1, error.offset or 1)
        mistake(PatternFailed("SyntaxError", error.msg, at=at), None)
    except (Exception, SystemExit) as error:
        at = raised_at(error, name) or name
        mistake(PatternFailed(type(error).__name__, error, at=at), None)
    finally:
        sys.path.remove(str(file.resolve().parent))


def _compiled(file: Path, name: str) -> CodeType:
    try:
        return compile(file.read_bytes(), name, "exec")
    except ValueError as error:  # what Python 3.11 makes of null bytes, in its first releases
        raise SyntaxError(str(error)) from error


def _try(pattern: Pattern, file: Path) -> None:
    try:
        pattern()
    except MaskcError as error:
        mistake(error, None)
    except (Exception, SystemExit) as error:
        at = raised_at(error, _shown(file)) or _shown(file)
        mistake(PatternFailed(type(error).__name__, error, at=at), None)


def _defined_here(value: object, file: Path) -> bool:
    if isinstance(value, Pattern):
        return value.loc is None or Path(value.loc.file).name == file.name
    return isinstance(value, Mask)


def _shown(file: Path) -> str:
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(file.resolve())
