"""CUDA sources to cubins with no GPU present."""

from __future__ import annotations

import sys

import pytest

from maskc.build import build
from maskc.build import nvrtc as N
from maskc.build.binary import BuildReport
from maskc.core.bundle import SourceUnit
from maskc.core.errors import BuildFailed, ExtraMissing
from maskc.core.problem import Feature, TileShape
from maskc.core.source import SourceLoc
from tests.support.bundles import cuda_unit

pytest.importorskip("cupy")

SOURCE = """\
#ifndef WITH_SINKS
#define WITH_SINKS 0
#endif
extern "C" __global__ void attention_forward(float *a) {
    __shared__ float s[99];
    s[threadIdx.x] = a[WITH_SINKS];
    __syncthreads();
    a[1] = s[3];
}
"""


def unit(text: str = SOURCE, target: str = "sm_80", **more) -> SourceUnit:
    return SourceUnit(target, text, TileShape(64, 64), ranges=False, **more)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "cache"))


def test_a_cubin_and_what_it_uses():
    found = build(unit())
    assert found.code.startswith(b"\x7fELF")
    assert found.report.flags[0] == "--gpu-architecture=sm_80"
    assert found.report.toolchain.startswith("NVRTC ")
    (kernel,) = found.report.kernels
    assert kernel.name == "attention_forward"
    assert kernel.registers > 0
    assert (kernel.stack, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert kernel.shared == 99 * 4


def test_the_cubin_is_whole():
    """CuPy drops the last byte; section headers, at the end of the file, must lie inside."""
    code = build(unit()).code
    headers = int.from_bytes(code[40:48], "little")
    size, count = (int.from_bytes(code[at : at + 2], "little") for at in (58, 60))
    assert headers + size * count <= len(code)


def test_the_cache_keeps_the_report(monkeypatch):
    first = build(unit())
    monkeypatch.setattr(N, "_compile", None)
    again = build(unit())
    assert (again.code, again.report, again.key) == (first.code, first.report, first.key)
    assert again.report.kernels == first.report.kernels


def test_another_architecture_or_feature_is_another_binary():
    keys = {
        build(unit()).key,
        build(unit(), arch="sm_90").key,
        build(unit(), frozenset({Feature.sinks})).key,
        build(unit(), frozenset({Feature.nan_safe})).key,
    }
    assert len(keys) == 4


def test_a_device_from_the_future_gets_ptx():
    found = build(unit(), arch="sm_999")
    assert found.report.flags[0].startswith("--gpu-architecture=compute_")
    assert b".visible .entry attention_forward" in found.code


def test_headers_come_from_wheels_and_only_when_asked_for(monkeypatch):
    from cuda import pathfinder

    asked = []
    real = pathfinder.find_nvidia_header_directory
    monkeypatch.setattr(
        pathfinder, "find_nvidia_header_directory", lambda name: asked.append(name) or real(name)
    )
    build(unit())
    assert asked == []
    found = build(unit("#include <cuda_bf16.h>\n" + SOURCE))
    assert asked == ["cudart"]
    assert not any("include" in flag for flag in found.report.flags)


def test_missing_headers(monkeypatch):
    from cuda import pathfinder

    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda name: None)
    with pytest.raises(ExtraMissing, match="nvidia-cuda-runtime, which is not installed"):
        build(unit("#include <cuda_bf16.h>\n" + SOURCE))


@pytest.fixture
def no_bindings(monkeypatch):
    """cuda.bindings is not installed."""
    pytest.importorskip("cuda.bindings")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    N.library.cache_clear()
    yield
    N.library.cache_clear()


def test_both_packages_compile_alike(no_bindings, monkeypatch, tmp_path):
    through_cupy = build(unit()), build(unit(), arch="sm_999")
    monkeypatch.undo()
    N.library.cache_clear()
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "other"))
    assert (build(unit()), build(unit(), arch="sm_999")) == through_cupy
    assert type(N.library("sm_80")).__name__ == "_Bindings"


def test_to_warm_up_says_nothing():
    N.warm_up("sm_90a")
    N.warm_up("simt")


def test_neither_package(no_bindings, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(ExtraMissing, match="target sm_80 needs CuPy"):
        build(unit())


def test_a_refused_source_is_placed_at_the_users_line():
    text = 'int a;\nextern "C" __global__ void f() {\n    undeclared = 1;\n}\n'
    origins = ((2, SourceLoc("mask.py", 7, 3), "causal()"),)
    with pytest.raises(BuildFailed) as caught:
        build(unit(text, origins=origins))
    shown = str(caught.value)
    assert 'line 3: identifier "undeclared" is undefined' in shown
    assert "undeclared = 1;" in shown
    assert str(caught.value.at) == "mask.py:7:3"


def test_bad_assembly():
    text = 'extern "C" __global__ void f() { asm("bogus;"); }\n'
    with pytest.raises(BuildFailed, match="Not a name of any known instruction: 'bogus'"):
        build(unit(text))


def test_the_kernel_of_the_gpu_tests():
    """It runs on GPUs only, but every machine sees that it compiles."""
    (kernel,) = build(cuda_unit(), frozenset({Feature.sinks}), arch="sm_90").report.kernels
    assert kernel.name == "attention_forward"


LOG = """\
ptxas info    : Compiling entry function 'attention_forward' for 'sm_80'
ptxas info    : Function properties for attention_forward
    48 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 648 bytes cmem[0]
ptxas info    : Compiling entry function 'attention_backward' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 360 bytes cmem[0]
"""


def test_every_kernel_of_a_log():
    one, two = BuildReport("NVRTC", (), LOG).kernels
    assert (one.name, one.registers, one.stack) == ("attention_forward", 255, 48)
    assert (one.spill_stores, one.spill_loads, one.shared) == (16, 24, 1024)
    assert (two.name, two.registers, two.spill_stores, two.shared) == (
        "attention_backward", 40, 0, 0,
    )  # fmt: skip
