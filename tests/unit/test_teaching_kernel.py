"""The teaching kernel is right and shown whole on its page; its exercises can be solved."""

from __future__ import annotations

import ctypes
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import maskc as mc

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "teaching"
KERNEL = (FOLDER / "flash_attention.cu").read_text()
EXERCISE = (FOLDER / "exercise_kernel.cu").read_text()
LENGTHS = (1, 31, 200)


@pytest.fixture(scope="module")
def check() -> SimpleNamespace:
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("the emulator needs g++")
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "check.py")))


def test_the_page_shows_the_whole_kernel() -> None:
    page = (ROOT / "docs" / "teaching-kernel.md").read_text()
    shown = "\n".join(re.findall(r"^```cuda\n(.*?)^```$", page, re.M | re.S))
    assert [x for x in shown.splitlines() if x] == [x for x in KERNEL.splitlines() if x]
    assert f"kernel of {KERNEL.count(chr(10))} lines" in page


@pytest.mark.parametrize("n", LENGTHS)
def test_the_kernel_equals_dense_attention(check: SimpleNamespace, n: int) -> None:
    assert check.mistake(KERNEL, mc.parse(check.MASK), n) is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("k <= q &&", "k < q &&"),
        ("q - k < WINDOW", "q - k <= WINDOW"),
        ("q1 - k0 < WINDOW;", "q0 - k0 < WINDOW;"),
        ("row_sum * rescale + weight", "row_sum + weight"),
        ("row_max + logf", "logf"),
    ],
)
def test_the_check_finds_a_wrong_kernel(check: SimpleNamespace, line: str, wrong: str) -> None:
    assert line in KERNEL
    assert check.mistake(KERNEL.replace(line, wrong), mc.parse(check.MASK), 200) is not None


CLASSES = """
extern "C" __global__ void classes(int *out, int n) {
    const int keys = (n + KEYS - 1) / KEYS, q0 = threadIdx.x * ROWS;
    for (int i = 0; i < keys; i++)
        out[threadIdx.x * keys + i] = classify(q0, min(q0 + ROWS, n) - 1, i * KEYS,
                                               min((i + 1) * KEYS, n) - 1);
}
"""


@pytest.mark.usefixtures("check")
def test_the_classes_of_tiles_are_exact() -> None:
    from maskc.testing.emulator import machine

    n, rows, keys = 400, 64, 32
    classes = np.full((-(-n // rows), -(-n // keys)), -1, np.int32)
    values = (ctypes.c_void_p(classes.ctypes.data), ctypes.c_int(n))
    addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    library = machine.loaded(KERNEL + CLASSES, ())
    machine.run(library, "classes", ctypes.addressof(addresses), 1, len(classes), 1 << 16)
    q, k = np.ogrid[:n, :n]
    live = (k <= q) & ((k < 4) | (q - k < 128))
    for (row, column), tile_class in np.ndenumerate(classes):
        tile = live[row * rows : (row + 1) * rows, column * keys : (column + 1) * keys]
        assert tile_class == tile.any() + int(tile.all())


@pytest.mark.parametrize("source", [KERNEL, EXERCISE], ids=["kernel", "exercise"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_nvrtc_compiles_it_without_spills(source: str, arch: str) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    flags = (f"--gpu-architecture={arch}", "-std=c++17", "-default-device", "--ptxas-options=-v")
    nvrtc.compileProgram(program, flags)
    assert " 0 bytes spill stores, 0 bytes spill loads" in nvrtc.getProgramLog(program)


# ---------------------------------------------------------------- the exercises

SOLUTION = {
    "return true;": "return k <= q;",
    "const int end = n;": "const int end = min(first_q + ROWS, n);",
    "const float rescale = 1;": "const float rescale = expf(row_max - new_max);",
    "+ d] = acc[d];": "+ d] = acc[d] / row_sum;",
}


def test_the_first_exercise_is_unsolved_and_can_be_solved(check: SimpleNamespace) -> None:
    causal = mc.causal()
    assert EXERCISE.count("// TODO") == len(SOLUTION)
    assert check.mistake(EXERCISE, causal, 200) is not None
    solved = EXERCISE
    for line, right in SOLUTION.items():
        assert solved.count(line) == 1
        solved = solved.replace(line, right)
    assert all(check.mistake(solved, causal, n) is None for n in LENGTHS)


def test_the_second_exercise_is_unsolved_and_can_be_solved() -> None:
    exercise = SimpleNamespace(**runpy.run_path(str(FOLDER / "exercise_mask.py")))
    assert not exercise.solved(exercise.MASK)
    assert not exercise.solved(mc.causal())  # keeps all attention, with too many pairs
    assert exercise.solved(mc.causal() & (mc.sinks(3) | mc.window(11) | mc.strided(32, 31)))
    with pytest.raises(SystemExit, match="not causal"):
        exercise.score(mc.full())
