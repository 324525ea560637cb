"""The house rules that a machine can check: import arrows and manners."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "maskc"
FILES = sorted(PACKAGE.rglob("*.py"))

# room -> rooms it may import, besides itself and core
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "dsl": set(),
    "reference": {"dsl"},
    "ir": {"dsl"},
    "analysis": {"dsl", "ir"},
    "layout": set(),
    "dispatch": {"layout"},
    "plan": {"dsl", "ir", "analysis", "layout", "dispatch"},
    "emit": {"dsl", "ir", "analysis", "plan", "layout", "dispatch"},
    "build": set(),
    "runtime": {"build", "layout", "dispatch"},
    "integrations": {"build", "layout", "dispatch", "runtime", "portable"},
    "questions": {"dsl", "reference", "ir", "analysis", "layout", "plan"},
    "double": {"reference", "layout", "dispatch", "runtime"},
    "driver": {
        "double", "dsl", "reference", "ir", "analysis", "layout", "dispatch", "plan", "questions",
        "emit", "build", "runtime",
    },
    "portable": {"dsl", "driver"},
    "conventions": {"dsl"},
    "scores": {"dsl"},
    "api": {"dsl", "conventions", "ir", "questions", "runtime", "integrations", "driver"},
    "flex": {"dsl", "api", "integrations"},
    "sdpa": {"dsl", "scores", "api"},
    "transformers": {"dsl", "runtime", "api"},
    "jax": {"dsl", "conventions", "build", "runtime", "api"},
    "nn": {"dsl", "api", "driver"},
    "tuning": {"dispatch", "runtime", "verify"},
    "viz": {
        "dsl", "reference", "ir", "analysis", "layout", "plan", "questions", "emit", "driver",
        "runtime",
    },
    "verify": {
        "dsl", "reference", "ir", "analysis", "layout", "questions", "build", "runtime",
        "integrations", "driver",
    },
    "distributed": {
        "dsl", "reference", "ir", "analysis", "layout", "dispatch", "plan", "questions", "runtime",
        "integrations", "transformers", "api", "driver",
    },
    "patterns": {"dsl"},
    "evaluate": {"lab"},  # the public door of that part of the laboratory
    "testing": {"dsl", "reference", "ir", "build", "runtime", "driver", "verify"},
}  # fmt: skip
ALLOWED["lab"] = ALLOWED["viz"] | ALLOWED["verify"] | {"viz", "verify", "transformers", "api"}
ALLOWED["__main__"] = {"cli"}
ALLOWED["cli"] = set(ALLOWED)

# library -> (rooms that may import it, whether at module level)
HEAVY: dict[str, tuple[set[str], bool]] = {
    "islpy": ({"ir", "analysis", "plan"}, True),
    "sympy": ({"analysis", "plan"}, True),
    "jinja2": ({"emit"}, True),
    "cupy": ({"build", "runtime"}, False),
    "cuda": ({"build", "runtime"}, False),
    "torch": (
        {"integrations", "transformers", "verify", "testing", "distributed", "lab"},
        False,
    ),
    "transformers": ({"transformers", "distributed", "lab"}, False),
    "jax": ({"jax"}, True),
    "scipy": ({"lab"}, False),
    "sklearn": ({"lab"}, False),
    "click": ({"cli"}, True),
    "rich": ({"cli"}, True),
    "matplotlib": ({"viz"}, False),
    "hypothesis": ({"verify", "testing"}, True),
    "pytest": ({"testing"}, True),
}


def of_torch(path: Path) -> bool:
    """Whether a file is loaded by calls with tensors of torch alone, or when `maskc.nn` is."""
    return room(path) == "nn" or PACKAGE / "integrations" / "torch" in path.parents


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts[:2] == ("integrations", "transformers"):
        return "transformers"  # it uses the public functions, which use integrations/torch
    if parts[:2] == ("integrations", "jax"):
        return "jax"  # likewise, and only those who use JAX import it
    return parts[0].removesuffix(".py") if len(parts) == 1 else parts[0]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> list[tuple[str, int, bool]]:
    return imports(parsed(path))


def imports(tree: ast.AST) -> list[tuple[str, int, bool]]:
    """(dotted name, line, at module level or in a type-checking block's place)."""
    top = set(map(id, tree.body)) if isinstance(tree, ast.Module) else set()
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(name, node.lineno, id(node) in top) for name in names]
    return found


def test_arrows_point_one_way():
    wrong = []
    for path in FILES:
        here = room(path)
        if here in ("__init__", "__pycache__"):
            continue
        for name, line, _ in imports_of(path):
            if not name.startswith("maskc."):
                continue
            there = name.split(".")[1]
            if name.startswith("maskc.integrations.transformers"):
                there = "transformers"
            if name.startswith("maskc.integrations.jax"):
                there = "jax"
            if there not in ALLOWED and there != "core":
                continue
            if path.name == "mask.py" and here == "dsl" and there in (
                "driver", "questions", "viz",
            ):  # fmt: skip
                continue  # the public methods of Mask: the one door upwards
            if path.name == "autograd.py" and here == "runtime" and there == "integrations":
                continue  # calls that torch must see: the one door there
            if there not in (here, "core") and there not in ALLOWED[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} {here} -> {there}")
    assert not wrong, "\n".join(wrong)


def test_no_circle_between_files():
    """Imports at module level, inside rooms as well."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    arrows: dict[str, set[str]] = {}
    for here, path in names.items():
        found = {
            name if name in names else name.rpartition(".")[0]
            for name, _, top in imports_of(path)
            if top and name.startswith("maskc")
        }
        # What a package's __init__ re-exports is not an arrow of those who import from inside it.
        arrows[here] = {name for name in found if name in names and name != here}
    left = dict(arrows)
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        assert free, "a circle among " + ", ".join(sorted(left))
        for name in free:
            del left[name]


def test_heavy_libraries_stay_in_their_rooms():
    wrong = []
    for path in FILES:
        for name, line, top in imports_of(path):
            library = name.split(".")[0]
            if library not in HEAVY or (library == "torch" and of_torch(path)):
                continue
            if library == "torch" and path == PACKAGE / "core" / "tensors.py" and not top:
                continue  # `torch_of`, which compilers trace
            rooms, at_top = HEAVY[library]
            if room(path) not in rooms or (top and not at_top):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {library}")
    assert not wrong, "\n".join(wrong)


def test_mistakes_have_classes_of_their_own():
    wrong = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            raised = node.exc if isinstance(node, ast.Raise) else None
            unfinished = raised is not None and "NotImplementedError" in ast.unparse(raised)
            if isinstance(node, ast.Assert) or unfinished:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_public_functions_have_docstrings():
    missing = []
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                overload = any(ast.unparse(x) == "overload" for x in node.decorator_list)
                if path.parent.name == "errors" or ast.get_docstring(node) or overload:
                    continue
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)


def test_templates_fit_the_page():
    suffixes = (".j2", ".cuh", ".h")
    for path in sorted(p for p in (ROOT / "templates").rglob("*") if p.suffix in suffixes):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert len(line) <= 100, f"{path.name}:{number} has {len(line)} columns"


def test_static_files_have_no_holes():
    """Jinja does not read them, so that a hole would reach the compiler."""
    for path in sorted((ROOT / "templates").glob("*/lib/*")):
        text = path.read_text()
        assert text.startswith("//"), f"{path.name} does not say what it is"
        assert not any(mark in text for mark in ("{%", "{{ ", "{#")), path.name


def test_static_files_come_after_what_they_need():
    """A header comment names the files that a file takes from; the sources have them before it."""
    folder, wrong = ROOT / "templates", []
    inclusion = re.compile(
        r'^(?:#include|{%-? include) "([^"]*{{.*}}[^"]*|[^"]*(?:" ~ .* ~ "[^"]*)?)"', re.MULTILINE
    )

    def follow(path: Path, before: set[str]) -> None:
        for name in inclusion.findall(path.read_text()):
            for each in sorted(folder.glob(re.sub('{{.*?}}|" ~ .*? ~ "', "*", name))):
                if each == path:
                    continue
                follow(each, before)
                lines = takewhile(lambda x: x.startswith("//"), each.read_text().splitlines())
                head = " ".join(line[3:] for line in lines)
                for needs in re.findall(r"Needs: (.*?)(?:\. |;|\.$)", head):
                    for need in needs.split(", "):
                        files = [Path(either).name for either in need.split(" or ")]
                        here = any(fnmatch.filter(before, file) for file in files)
                        if "." in need and not here:
                            wrong.append(f"{each.name} needs {need}, in {path.name}")
                before.add(each.name)

    for entry in sorted(folder.glob("*/*.j2")):
        follow(entry, set())
    assert not wrong, "\n".join(wrong)


FRESH = """
import sys, {module}
loaded = [name for name in {names!r} if name in sys.modules]
print(",".join(loaded))
"""


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "maskc",
            [
                "torch",
                "jax",
                "cupy",
                "jinja2",
                "matplotlib",
                "islpy",
                "sympy",
                "click",
                "rich",
                "maskc.lab",
            ],
        ),
        (
            "maskc.runtime.generated",
            ["sympy", "islpy", "jinja2", "torch", "cupy", "matplotlib", "maskc.lab"],
        ),
        ("maskc.cli", ["torch", "cupy", "matplotlib", "jinja2"]),
        ("maskc.testing", ["torch", "hypothesis", "pytest", "islpy"]),
        ("maskc.testing.plugin", ["torch", "hypothesis", "islpy", "sympy", "jinja2"]),
        (
            "maskc.lab.evaluate",
            ["torch", "transformers", "scipy", "cupy", "islpy", "sympy", "jinja2"],
        ),
        ("maskc.distributed", ["torch", "transformers", "cupy", "jinja2"]),
        ("maskc.integrations.transformers", ["torch", "transformers", "cupy", "islpy"]),
    ],
)
def test_what_an_import_loads(module: str, absent: list[str]):
    script = FRESH.format(module=module, names=absent)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == ""


def test_the_import_test_can_fail():
    script = FRESH.format(module="jinja2", names=["jinja2"])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "jinja2"


def test_nothing_speaks_of_one_machine():
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split("\n")
    rooted = re.compile(r"(?<![\w.])/(?:home|root|" + "wo" + r"rk)/")
    for name in (f for f in files if f and not f.startswith("tests/")):
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        assert not rooted.search(text), name
