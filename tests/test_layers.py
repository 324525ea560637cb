"""The house rules that a machine can check: import arrows and manners."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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
    "plan": {"ir", "analysis", "layout", "dispatch"},
    "emit": {"ir", "analysis", "plan", "layout", "dispatch"},
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
    "conventions": {"dsl", "layout"},
    "scores": {"dsl"},
    "api": {"dsl", "conventions", "ir", "questions", "runtime", "integrations", "driver"},
    "flex": {"dsl", "runtime", "api", "integrations"},
    "sdpa": {"dsl", "scores", "api", "conventions"},
    "paging": {"dsl", "ir", "layout", "dispatch", "runtime", "driver"},
    "transformers": {"dsl", "runtime", "api", "paging"},
    "jax": {"dsl", "conventions", "build", "runtime", "api"},
    "nn": {"dsl", "api", "conventions", "driver"},
    "engines": {"dsl", "runtime", "api", "sdpa", "paging", "distributed"},
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
ALLOWED["cli"] = set(ALLOWED)

ENGINES = (("megatron.py",), ("serving.py",), ("sglang.py",), ("torchtitan.py",), ("vllm.py",))
"""Plugs of engines, in maskc/integrations."""

# (file, what it imports inside functions): arrows that point up, and why each is there
DOORS: dict[tuple[str, str], str] = {
    ("maskc.dsl.mask", "maskc.driver"): "Mask.dense, explain and compile",
    ("maskc.dsl.mask", "maskc.questions"): "Mask.count, layout, equals, subset_of and cache",
    ("maskc.dsl.mask", "maskc.viz."): "Mask.show, save and weights",
    ("maskc.dsl.mask", "maskc.dsl."): "operators between masks return nodes, which are masks",
    ("maskc.dsl.traced", "maskc.dsl.functions"): "a traced value calls functions that return some",
    ("maskc.dsl.pattern", "maskc.dsl.loader"): "a pickled pattern of a file loads the file again",
    ("maskc.runtime.arrays.known", "maskc.runtime.arrays.foreign"): "arrays of unknown libraries",
    ("maskc.runtime.torch_calls", "maskc.integrations."): "calls that torch must see",
    ("maskc.integrations.torch.handles", "maskc.portable"): "programs that another process runs",
}

# library -> (rooms that may import it, whether at module level)
HEAVY: dict[str, tuple[set[str], bool]] = {
    "islpy": ({"ir", "analysis", "plan"}, True),
    "sympy": ({"analysis", "plan"}, True),
    "jinja2": ({"emit"}, True),
    "cupy": ({"build", "runtime"}, False),
    "cuda": ({"build", "runtime"}, False),
    "torch": ({"integrations", "transformers", "verify", "testing", "distributed", "lab"}, False),
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
    """Whether a file is loaded by calls with tensors of torch alone, or when `maskc.nn` or the
    plug of an engine is."""
    return room(path) in ("nn", "engines") or PACKAGE / "integrations" / "torch" in path.parents


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts[:2] == ("integrations", "transformers"):
        return "transformers"  # it uses the public functions, which use integrations/torch
    if parts[0] == "integrations" and parts[1:] in ENGINES:
        return "engines"  # likewise
    if parts == ("__main__.py",):
        return "cli"  # `python -m maskc` is the command
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
            if f"{'.'.join(name.split('.')[2:3])}.py" in {file for (file,) in ENGINES}:
                there = "engines"
            if there not in ALLOWED and there != "core":
                continue
            if any(file_of(path) == door and name.startswith(to) for door, to in DOORS):
                continue
            if there not in (here, "core") and there not in ALLOWED[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} {here} -> {there}")
    assert not wrong, "\n".join(wrong)


def file_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def arrows(doors: bool = False) -> dict[str, set[str]]:
    """File -> files that it imports, inside functions as well; `doors` too when asked for.

    What a package's __init__ re-exports is no arrow of those who import from inside it.
    """
    names = set(map(file_of, FILES))
    result = {}
    for path in FILES:
        here = file_of(path)
        needed = {
            name if name in names else name.rpartition(".")[0]
            for name, _, top in imports_of(path)
            if name.startswith("maskc")
            and (doors or top or not any(here == a and name.startswith(b) for a, b in DOORS))
        }
        result[here] = needed & names - {here}
    return result


def in_circles(needs: Mapping[str, set[str]]) -> set[str]:
    """The names from which no order leads down: those in circles, and those above them."""
    left = {name: set(below) for name, below in needs.items()}
    while free := [name for name, below in left.items() if not below & left.keys()]:
        for name in free:
            del left[name]
    while free := [name for name in left if not any(name in below for below in left.values())]:
        for name in free:
            del left[name]
    return set(left)


def test_no_circle_between_files():
    assert not in_circles(arrows()), "a circle, imports inside functions included"


def reached_from(names: set[str], needs: Mapping[str, set[str]]) -> set[str]:
    """The names, and all that they need in the end."""
    reached = below = set(names)
    while below:
        below = {name for here in below for name in needs[here]} - reached
        reached = reached | below
    return reached


def test_every_door_is_needed():
    """A door that closes no circle is an ordinary arrow."""
    needs = arrows(doors=True)
    for door, to in DOORS:
        behind = {name for name in needs[door] - arrows()[door] if name.startswith(to)}
        assert door in reached_from(behind, needs), f"{door} -> {to}"


def test_the_circles_behind_doors_do_not_grow():
    needs = arrows(doors=True)
    needed_by: dict[str, set[str]] = {name: set() for name in needs}
    for name, below in needs.items():
        for other in below:
            needed_by[other].add(name)
    sizes = {
        door: len(reached_from({door}, needs) & reached_from({door}, needed_by))
        for door, _ in DOORS
    }
    assert sizes == {
        "maskc.dsl.mask": 48, "maskc.runtime.torch_calls": 48,
        "maskc.integrations.torch.handles": 48, "maskc.dsl.traced": 3, "maskc.dsl.pattern": 2,
        "maskc.runtime.arrays.known": 2,
    }  # fmt: skip


def test_the_house_has_at_most_twelve_floors():
    """A room stands one floor above the highest room that it imports."""
    rooms = {file_of(path): room(path) for path in FILES}
    below: dict[str, set[str]] = {}
    for here, needed in arrows().items():
        below.setdefault(rooms[here], set()).update(map(rooms.get, needed))

    @cache
    def floor(name: str) -> int:
        return 1 + max((floor(other) for other in below[name] - {name}), default=0)

    floors = sorted((floor(name), name) for name in below)
    assert floors[-1][0] <= 12, floors


# Class names that stand for several classes. The first group is public or pickled with masks.
SHARED_CLASSES = {
    "Call", "Evaluated", "Evaluation", "Flags", "Formula", "Inputs", "Interval", "Product",
    "Recipe", "Score", "Slot", "Span", "Table",
} | {
    "Candidate", "Case", "Lists", "Making", "Pairs", "Source", "Step", "Tensor",
}  # fmt: skip
"""The second group belongs to the choice of programs and to device lists."""

# Folders where a file is named after something else, with the reason.
NAMED_AFTER = {
    "cli": "the command",
    "reference": "what it defines for the file that computes it",
    "core/errors": "the subject of its errors",
    "lab/evaluate": "what programs import from maskc.evaluate",
    "testing/emulator": "the part of a machine, or of pytest, that it stands for",
}
SHARED_FILES = {
    "boxes.py", "cache.py", "call.py", "captured.py", "cost.py", "cpu.py", "data.py", "dropout.py",
    "environment.py", "fp8.py", "gather.py", "listed.py", "loops.py", "lowered.py", "making.py",
    "masks.py",
    "ranges.py", "scores.py", "selecting.py", "sizes.py", "tables.py", "tensor_maps.py", "tiles.py",
    "types.py",
}  # fmt: skip
"""Files that stand for one concept in several rooms, such as its formula, plan and launch."""


def repeated(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that stand in several places, with these."""
    by_name: dict[str, list[str]] = {}
    for name, place in places:
        by_name.setdefault(name, []).append(place)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def classes() -> Iterator[tuple[str, str]]:
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def files() -> Iterator[tuple[str, str]]:
    for path in FILES:
        folder = path.parent.relative_to(PACKAGE).as_posix()
        if path.name != "__init__.py" and folder not in NAMED_AFTER:
            yield path.name, str(path.relative_to(PACKAGE))


def test_a_class_name_stands_for_one_class():
    shared = repeated(classes())
    assert not shared.keys() - SHARED_CLASSES, shared


def test_a_file_name_stands_for_one_file():
    shared = repeated(files())
    assert not shared.keys() - SHARED_FILES, shared


def test_repeated_names_are_seen():
    places = [("Span", "a"), ("Row", "a"), ("Span", "b")]
    assert repeated(places) == {"Span": ["a", "b"]}
    assert {"Full", "Causal"} <= {name for name, _ in classes()}
    assert {"driver.py", "nodes.py"} <= {name for name, _ in files()}


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
        assert text.removeprefix("#pragma once\n").startswith("//"), (
            f"{path.name} does not say what it is"
        )
        assert not any(mark in text for mark in ("{%", "{{ ", "{#")), path.name


def test_static_files_come_after_what_they_need():
    """A header comment names the files that a file takes from; the sources have them before it."""
    folder, wrong = ROOT / "templates", []
    inclusion = re.compile(
        r'^(?:#include|{%-? include) "([^"]*{{.*}}[^"]*|[^"]*(?:" ~ .* ~ "[^"]*)?)"', re.MULTILINE
    )

    policy = re.compile(r'^#define (\w+_POLICY) "(.*)"$', re.MULTILINE)

    def follow(path: Path, before: set[str]) -> None:
        before.add(path.name)
        policies.update(policy.findall(path.read_text()))
        text = re.sub(r"^#include (\w+)$", lambda m: f'#include "{policies[m[1]]}"',
                      path.read_text(), flags=re.MULTILINE)  # fmt: skip
        for name in inclusion.findall(text):
            for each in sorted(folder.glob(re.sub('{{.*?}}|" ~ .*? ~ "', "*", name))):
                if each == path:
                    continue
                follow(each, before)
                said = each.read_text().removeprefix("#pragma once\n").splitlines()
                lines = takewhile(lambda x: x.startswith("//"), said)
                head = " ".join(line[3:] for line in lines)
                for needs in re.findall(r"Needs: (.*?)(?:\. |;|\.$)", head):
                    for need in needs.split(", "):
                        files = [Path(either).name for either in need.split(" or ")]
                        here = any(fnmatch.filter(before, file) for file in files)
                        if "." in need and not here:
                            wrong.append(f"{each.name} needs {need}, in {path.name}")
                before.add(each.name)

    for entry in sorted(folder.glob("*/*.j2")):
        policies: dict[str, str] = {}
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


def test_properties_run_on_slow_machines():
    """One profile for all of them: `tests/conftest.py` loads it."""
    assert settings.default.deadline is None
    assert set(settings.default.suppress_health_check) == set(HealthCheck)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "settings":
                own = {keyword.arg for keyword in node.keywords}
                assert not own & {"deadline", "suppress_health_check"}, f"{file}:{node.lineno}"
