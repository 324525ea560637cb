"""Predicates in GLSL, run on the CPU: what the printer wrote is compiled as C, word for word.

A small prelude gives C the functions of GLSL and of the explorer's shader. Arithmetic that leaves
32 bits ends the process (`-ftrapv`), as does an index outside an array.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from maskc.emit.glsl_printer import LIBRARY, Shader

_PRELUDE = """\
#include <stdbool.h>
#include <stdlib.h>
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a < b ? b : a; }
"""


def run(
    shaders: Sequence[Shader], cases: Sequence[tuple[int, int, Mapping[str, object]]], folder: Path
) -> list[np.ndarray]:
    """bool [n_q, n_kv] of each shader at (n_q, n_kv, parameters and arrays)."""
    text = _PRELUDE + LIBRARY.replace("int floor", "static int floor")
    text += "".join(_unit(number, each) for number, each in enumerate(shaders))
    name = folder / sha256(text.encode()).hexdigest()[:16]
    name.with_suffix(".c").write_text(text)
    command = ["gcc", "-O0", "-w", "-ftrapv", "-shared", "-fPIC", "-o", f"{name}.so", f"{name}.c"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(f"{name}.so")
    return [
        _filled(library, number, each, *case)
        for number, (each, case) in enumerate(zip(shaders, cases, strict=True))
    ]


def _unit(number: int, shader: Shader) -> str:
    """The predicate in a function of its own, over globals with the shader's names."""
    own = f"_{number}"
    lines = []
    for i, _ in enumerate(shader.arrays):
        lines += [
            f"int *a{i}{own}, rows{i}{own}, row{i}{own};",
            f"static int a{i}{own}_1(int i) {{ if (i < 0 || i >= row{i}{own}) abort();"
            f" return a{i}{own}[i]; }}",
            f"static int a{i}{own}_2(int i, int j) {{ if (i < 0 || i >= rows{i}{own} || j < 0 ||"
            f" j >= row{i}{own}) abort(); return a{i}{own}[i * row{i}{own} + j]; }}",
            f"#define A{i}{own}(x, y, name, ...) name",
            f"#define a{i}(...) A{i}{own}(__VA_ARGS__, a{i}{own}_2, a{i}{own}_1)(__VA_ARGS__)",
        ]
    for i, ranges in enumerate(shader.lists):
        tests = " || ".join(f"({low} <= x && x <= {high})" for low, high in ranges)
        lines += [
            f"static bool in{i}{own}(int x) {{ return {tests}; }}",
            f"#define in{i} in{i}{own}",
        ]
    given = ["n_q", "n_kv", *(f"p{i}" for i in range(len(shader.params)))]
    declared = ", ".join(f"int {name}" for name in given)
    lines += [
        f"void fill{own}(unsigned char *out, {declared}) {{",
        "for (int q = 0; q < n_q; q++) for (int k = 0; k < n_kv; k++)",
        f"out[(long)q * n_kv + k] = {shader.text}; }}",
        *(f"#undef a{i}" for i in range(len(shader.arrays))),
        *(f"#undef in{i}" for i in range(len(shader.lists))),
    ]
    return "\n".join(lines) + "\n"


def _filled(
    library: ctypes.CDLL, number: int, shader: Shader, n_q: int, n_kv: int,
    values: Mapping[str, object],
) -> np.ndarray:  # fmt: skip
    kept = []
    for i, name in enumerate(shader.arrays):
        array = np.ascontiguousarray(values[name], dtype=np.int32)
        kept.append(array)
        pointer = ctypes.c_void_p.in_dll(library, f"a{i}_{number}")
        pointer.value = array.ctypes.data
        rows = array.shape[0] if array.ndim > 1 else 1
        ctypes.c_int.in_dll(library, f"rows{i}_{number}").value = rows
        ctypes.c_int.in_dll(library, f"row{i}_{number}").value = array.shape[-1]
    out = np.zeros((n_q, n_kv), dtype=np.uint8)
    numbers = [n_q, n_kv, *(int(values[name]) for name in shader.params)]
    library[f"fill_{number}"](ctypes.c_void_p(out.ctypes.data), *map(ctypes.c_int, numbers))
    return out.astype(bool)
