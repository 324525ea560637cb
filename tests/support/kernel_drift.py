"""Whether an edit of templates left every kernel as it was; a command line, no GPU.

    python -m tests.support.kernel_drift record before.json     # before the edit
    python -m tests.support.kernel_drift compare before.json    # after it; status 1 on a change

Each source is held against its earlier text by four tests, the cheapest first, until one finds
them equal: tokens without comments; tokens behind the preprocessor, for every mode and a set of
features; declarations in any order; SASS without names. SASS needs NVRTC (cuda13 extra) and
nvdisasm (nvidia-cuda-nvdisasm); it takes some seconds a kernel. C sources are compared as gcc's
assembly instead.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import maskc as mc
from maskc import driver
from maskc.build.hostcc import FLAGS
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.errors import MaskcError
from maskc.core.problem import Feature
from maskc.core.target import TARGETS
from maskc.ir.heads import fixed_heads
from tests.support import sass
from tests.support.patterns import FOLDER

CAUSAL = mc.causal()
MASKS: dict[str, Callable[[], mc.Mask]] = {
    **{path.stem: (lambda path=path: mc.load(path)[path.stem]()) for path in FOLDER.glob("*.py")},
    "threshold": lambda: mc.topk(9, CAUSAL, score="qk"),
    "threshold_spared": lambda: mc.topk(9, CAUSAL - mc.window(5), score="qk") | mc.window(5),
    "gathered": lambda: (
        mc.topk(9, CAUSAL - mc.sinks(3), score="given", share="all") | (mc.sinks(3) & CAUSAL)
    ),
    "indexed": lambda: mc.topk(9, CAUSAL, score="indexer", share="all"),
    "few_keys": lambda: mc.window(3) & CAUSAL,
    "blocks_of_16": lambda: mc.block_diagonal(16),
}
OF_SPECIAL = ("causal", "streaming", "documents", "threshold", "gathered", "nsa_selected")
"""All patterns, and masks whose kernels no pattern has."""

PROBLEMS = ((64, "bfloat16"), (128, "bfloat16"), (256, "bfloat16"), (128, "float16"))
C_PROBLEMS = ((64, "float32"), (64, "bfloat16"), (128, "float16"))
"""Head dimensions and dtypes."""
EXTRAS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": True},
    "soft_cap": {"score": mc.scores.soft_cap(mc.param("cap", 3.0)).formula},
    "alibi": {"score": mc.scores.alibi().formula},
    "t5": {"score": mc.scores.t5(bidirectional=True).formula},
}
"""Options of a problem by name."""
SPECIAL = (
    ("sm_80", 512, "bfloat16", ""),
    ("sm_90a", 96, "bfloat16", ""),
    ("sm_90a", 80, "float16", ""),
    ("sm_90a", 192, "bfloat16", ""),
    ("sm_90a", 128, "float8_e4m3fn", ""),
    ("sm_90a", 256, "float8_e4m3fn", ""),
    *(
        (target, 128, "float32" if target == "cpu" else "bfloat16", extra)
        for target in ("cpu", "simt", "sm_80", "sm_90a")
        for extra in EXTRAS
    ),
)
"""Calls that few masks are compiled for: target, head dimension, dtype, one of EXTRAS."""

FEATURES = [
    frozenset(Feature(name) for name in names.split())
    for names in ("", "softcap", "alibi", "sinks", "entmax", "nan_safe", "wide",
                  "softcap alibi sinks", "softcap alibi sinks entmax", "softcap nan_safe")
]  # fmt: skip
"""Targets that sources are preprocessed for."""
PLAIN, ALL, ENTMAX, NAN_SAFE = (FEATURES[i] for i in (0, 7, 4, 5))


def is_compiled(target: str, macro: str, features: frozenset[Feature]) -> bool:
    """Whether they are compiled for, where tokens differ, unless all sets are asked for."""
    if features == NAN_SAFE:
        return target == "sm_80"
    return features == PLAIN or (not macro and features in (ALL, ENTMAX))


@dataclass(frozen=True)
class Source:
    """One kernel source, and the macros that its modes define."""

    target: str
    text: str
    macros: tuple[str, ...]


# ------------------------------------------------------------------ sources


def sources(names: Iterable[str]) -> Iterator[tuple[str, Source]]:
    """Every source of masks, by its mask and call."""
    for name in names:
        usual = (
            (target, dim, dtype, "")
            for target in ("cpu", "simt", "sm_80", "sm_90a")
            for dim, dtype in (C_PROBLEMS if target == "cpu" else PROBLEMS)
        )
        for target, dim, dtype, extra in (*usual, *(SPECIAL if name in OF_SPECIAL else ())):
            mask, options = MASKS[name](), EXTRAS.get(extra, {})
            heads = fixed_heads(mask) or 4
            try:
                problem = driver.problem(dim, None, heads, dtype, **options)
                bundle = driver.emit_bundle(driver.plan_kernel(mask, problem, TARGETS[target]))
            except MaskcError:
                continue
            yield from _units(" ".join(filter(None, (name, str(dim), dtype, extra))), bundle)


def _units(label: str, bundle: Bundle) -> Iterator[tuple[str, Source]]:
    for unit in bundle.units:
        yield f"{label} {unit.key}", source(unit)
    for number, part in enumerate(bundle.parts):
        yield from _units(f"{label} part{number}", part.bundle)
    if bundle.chooser is not None:
        yield from _units(f"{label} chooser", bundle.chooser)


def source(unit: SourceUnit) -> Source:
    """Inputs of compiling a unit."""
    macros = dict.fromkeys(mode.macro for _, mode in unit.modes) or {"": None}
    return Source(unit.target, unit.source, tuple(macros))


# ------------------------------------------------------------------ equal?

_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]')


def tokens(text: str) -> str:
    """The text without comments and indentation; lines of the preprocessor stay lines."""
    bare = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " ", text)
    lines = (" ".join(_TOKEN.findall(line)) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def defines(features: Iterable[Feature], macro: str) -> list[str]:
    """Macros as NVRTC is given them, see maskc/build/nvrtc.py."""
    names = [each.macro for each in Feature if each in set(features)]
    return [f"-D{name}=1" for name in (*names, *([macro] if macro else []))]


def preprocessed(text: str, options: list[str]) -> str:
    """Tokens that a compiler sees. Headers are named, not read."""
    text = re.sub(r"^\s*#\s*include\s*(<.*>)", r"included \1", text, flags=re.MULTILINE)
    done = subprocess.run(
        ["cpp", "-P", "-undef", "-nostdinc", "-D__CUDACC_RTC__", "-D__CUDA_ARCH__=900", *options],
        input=text, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return " ".join(_TOKEN.findall(done.stdout))


def declarations(tokens: str) -> Counter[str]:
    """The declarations of a preprocessed text, in no order: headers and kernels may name them in
    another one. Neighbouring literals are one, in which spaces do not count."""
    found: Counter[str] = Counter()
    own: list[str] = []
    depth, is_function = 0, False
    for token in _TOKEN.findall(tokens):
        if token[0] == '"' and own and own[-1][0] == '"':
            token = own.pop()[:-1] + token[1:]
        if token[0] == '"':
            token = re.sub(r"\s+", "", token.replace("\\n", ""))
        own.append(token)
        depth += (token in "{(") - (token in "})")
        is_function |= token == "(" and depth == 1
        if depth == 0 and (token == ";" or (token == "}" and is_function and "=" not in own[:4])):
            found[" ".join(own)] += 1
            own, is_function = [], False
    return found + Counter([" ".join(own)] if own else [])


def compiled(text: str, arch: str, options: list[str]) -> bytes:
    """A cubin."""
    from cupy.cuda import nvrtc

    from maskc.build import nvrtc as build

    includes = re.search(r"^\s*#\s*include", text, re.MULTILINE)
    headers = [f"-I{build._headers()}"] if includes else []
    program = nvrtc.createProgram(text, "kernel.cu", [], [])
    try:
        all_options = (f"--gpu-architecture={arch}", *build.FLAGS, *options, *headers, "--no-cache")
        nvrtc.compileProgram(program, all_options)
        return nvrtc.getCUBIN(program) + b"\0"
    except nvrtc.NVRTCError:
        raise RuntimeError(nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)


def assembly(text: str, options: list[str]) -> str:
    """Return gcc's machine code of a C source, without names."""
    done = subprocess.run(
        ["gcc", "-S", *FLAGS, "-march=x86-64-v3", "-w", *options, "-x", "c", "-", "-o", "-"],
        input=text, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return re.sub(
        r"\b[a-z_]+\w*\.(?:part|isra|constprop)[\w.]*", "part", without_names(done.stdout)
    )


_MANGLED = re.compile(r"_Z\w+|\$_\w+|__local_depot\d+|[.$]L_?\w+")


def without_names(text: str) -> str:
    """Code with names numbered in order of appearance, without comments."""
    seen: dict[str, int] = {}
    text = re.sub(r"//.*|/\*.*?\*/", "", text)
    return _MANGLED.sub(lambda m: f"N{seen.setdefault(m[0], len(seen))}", text)


def machine_code(text: str, arch: str, options: list[str]) -> dict[str, str]:
    """SASS by kernel."""
    found = sass.functions(sass.disassemble(compiled(text, arch, options)))
    return {name: without_names(each) for name, each in found.items()}


class Judge:
    """Compares sources; remembers what it compiled, by digest, in a file."""

    def __init__(self, memory: Path, show: bool = False) -> None:
        """`show`: compile nothing, print declarations that differ."""
        self._file = memory
        self.show = show
        self._known = json.loads(memory.read_text()) if memory.is_file() else {}

    def differences(self, old: Source, new: Source, compile_all: bool) -> Iterator[str]:
        """In which modes and features machine code differs, of those that are compiled."""
        if tokens(old.text) == tokens(new.text) and old.macros == new.macros:
            return
        for macro in dict.fromkeys((*old.macros, *new.macros)):
            for features in FEATURES:
                if not compile_all and not is_compiled(old.target, macro, features):
                    continue
                options = defines(features, macro)
                both = [preprocessed(each.text, options) for each in (old, new)]
                if both[0] == both[1]:
                    continue
                declared = [declarations(each) for each in both]
                if declared[0] == declared[1]:
                    continue
                if self.show:
                    for sign, less in (("-", 0), ("+", 1)):
                        for each in declared[less] - declared[1 - less]:
                            print(f"  {sign} {each[:300]}")
                    yield " ".join(options) or "plain"
                    return
                if self._same(old, new, both, options):
                    continue
                yield " ".join(options) or "plain"

    def _same(self, old: Source, new: Source, both: list[str], options: list[str]) -> bool:
        try:
            before = self._digest(both[0], old, options)
        except RuntimeError:
            return True  # nobody compiles it so
        return before == self._digest(both[1], new, options)

    def _digest(self, seen: str, one: Source, options: list[str]) -> str:
        key = sha256(f"{one.target} {options} {seen}".encode()).hexdigest()[:24]
        if key not in self._known:
            made = (
                assembly(one.text, options)
                if one.target == "cpu"
                else json.dumps(machine_code(one.text, one.target, options))
            )
            self._known[key] = sha256(made.encode()).hexdigest()[:24]
            self._file.write_text(json.dumps(self._known))
        return self._known[key]


# ------------------------------------------------------------------ the command


def record(file: Path, names: Iterable[str]) -> None:
    """Write all sources."""
    found = dict(sources(names))
    texts = {sha256(each.text.encode()).hexdigest()[:16]: each.text for each in found.values()}
    rows = {
        label: (each.target, sha256(each.text.encode()).hexdigest()[:16], each.macros)
        for label, each in found.items()
    }
    file.write_text(json.dumps({"texts": texts, "sources": rows}))
    print(f"{len(rows)} sources, {len(texts)} texts")


def read(file: Path) -> dict[str, Source]:
    """Return what `record` wrote."""
    held = json.loads(file.read_text())
    return {
        label: Source(target, held["texts"][digest], tuple(macros))
        for label, (target, digest, macros) in held["sources"].items()
    }


def compare(before: dict[str, Source], after: dict[str, Source], judge: Judge, compile_all: bool,
            only: str = "") -> int:  # fmt: skip
    """Print what differs; how many sources do."""
    done: dict[tuple[str, str], list[str]] = {}
    wrong = 0
    for label, old in before.items():
        if not re.search(only, label):
            continue
        new = after.get(label)
        if new is None:
            print(f"{label}: gone")
            wrong += 1
            continue
        key = (tokens(old.text), tokens(new.text))
        if key not in done:
            try:
                done[key] = list(judge.differences(old, new, compile_all))
            except RuntimeError as error:
                done[key] = [str(error)[:300]]
            if done[key]:
                print(f"{label}: {'; '.join(done[key])}", flush=True)
        wrong += bool(done[key])
    fresh = [label for label in after if label not in before and re.search(only, label)]
    for label in fresh:
        print(f"{label}: new")
    print(f"{wrong} of {len(before)} sources differ, {len(fresh)} are new")
    return wrong + len(fresh)


def main() -> int:
    """Status 1 where a kernel changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--masks", nargs="*", default=sorted(MASKS), help="Names, else all.")
    parser.add_argument("--only", default="", help="Regular expression for sources to compile.")
    parser.add_argument("--all-features", action="store_true", help="Compile every set, not 4.")
    parser.add_argument("--show", action="store_true", help="Print what differs, compile nothing.")
    asked = parser.parse_args()
    if asked.action == "record":
        record(asked.file, asked.masks)
        return 0
    judge = Judge(asked.file.with_suffix(".compiled.json"), asked.show)
    before = {label: each for label, each in read(asked.file).items()
              if label.split()[0] in asked.masks}  # fmt: skip
    after = dict(sources(asked.masks))
    return bool(compare(before, after, judge, asked.all_features, asked.only))


if __name__ == "__main__":
    sys.exit(main())
