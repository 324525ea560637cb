"""The report behind `maskc doctor`: plain data, whatever is missing or broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maskc.build import nvrtc, toolchain

ROOT = Path(__file__).parents[2]

NAMES = [
    "C compiler", "cache", "CUDA driver", "GPUs", "NVRTC", "CUDA headers", "CuPy", "cuda.core",
    "cuda.bindings", "torch", "ml_dtypes", "numpy",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "cache"))


def by_name() -> dict[str, toolchain.ToolchainCheck]:
    return {probe.name: probe for probe in toolchain.probes()}


def test_every_probe_answers():
    found = toolchain.probes()
    assert [probe.name for probe in found] == NAMES
    assert all(probe.finding and "\n" not in probe.finding for probe in found)
    assert by_name()["numpy"].ok


def test_a_missing_compiler_is_a_line_of_the_report(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    probe = by_name()["C compiler"]
    assert not probe.ok
    assert probe.finding == "no working C compiler: tried CC=no-such-compiler (not found)"


def test_an_unusable_cache_is_a_line_of_the_report(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="unusable"):
        probe = by_name()["cache"]
    assert not probe.ok
    assert "kernels are kept in memory" in probe.finding


def test_no_probe_raises(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("as broken\nas it gets")

    for name in ("host_compiler", "open_cache", "_cuda"):
        monkeypatch.setattr(toolchain, name, broken)
    monkeypatch.setattr("importlib.metadata.version", broken)
    for name in ("cuda.bindings", "cupy.cuda", "cuda.pathfinder"):
        monkeypatch.setitem(sys.modules, name, None)
    nvrtc.library.cache_clear()
    found = toolchain.probes()
    assert [probe.name for probe in found] == NAMES
    assert not any(probe.ok for probe in found)
    assert found[0].finding == "ZeroDivisionError: as broken"


def test_no_gpu_without_a_driver(monkeypatch):
    def missing(_):
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert toolchain.gpus() == ()
    assert by_name()["GPUs"].finding == "none"


def test_torch_is_looked_up_and_not_imported(tmp_path):
    script = "import sys; from maskc.build.toolchain import probes; probes(); "
    script += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr
