"""The emulator itself: what it computes, and that it finds what a kernel does wrong."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from maskc.build.cache import CacheWarning
from maskc.testing.emulator import machine
from maskc.testing.emulator import shared_object as built
from maskc.testing.emulator.translate import Unknown, translated
from tests.support import ledger

SHARED = """
typedef unsigned int u32;
typedef unsigned long long u64;
extern __shared__ __align__(1024) unsigned char memory[];
static u32 address(const void *at) { return (u32)__cvta_generic_to_shared(at); }
static void init(u64 &barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(&barrier)),
                 "r"(arrivals) : "memory");
}
static void arrive(u64 &barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(&barrier)) : "memory");
}
static void expect(u64 &barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(&barrier)), "r"(bytes) : "memory");
}
static void wait(u64 &barrier, u32 parity) {
    asm volatile("mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;"
                 :: "r"(address(&barrier)), "r"(parity) : "memory");
}
static void load(u32 to, const void *from, u32 bytes, u64 &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(address(&barrier)) : "memory");
}
struct Given {
    float *x, *y;
    int n;
};
"""


def run(body: str, x: np.ndarray, blocks=1, threads=128, shared=4096, seed=0, before=""):
    """Return what a kernel's body makes of x (p.x, p.n), as many floats in p.y."""
    source = (
        f'{SHARED}{before}\nextern "C" __global__ void __launch_bounds__({threads})\n'
        f"kernel(const __grid_constant__ struct Given p) {{\n{body}\n}}\n"
    )

    class Given(ctypes.Structure):
        _fields_ = [("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("n", ctypes.c_int)]

    x = np.ascontiguousarray(x, np.float32)
    y = np.full_like(x, np.nan)
    given = Given(x.ctypes.data, y.ctypes.data, len(x))
    places = (ctypes.c_void_p * 1)(ctypes.addressof(given))
    library = machine.loaded(source, ())
    machine.run(library, "kernel", ctypes.addressof(places), blocks, threads, shared, seed)
    return y


X = np.arange(1, 257, dtype=np.float32)
LOAD = """
    u64 &barrier = *(u64 *)memory;
    if (threadIdx.x == 0) init(barrier, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(barrier, 512);
        load(1024, p.x, 512, barrier);
    }
    %s
    p.y[threadIdx.x] = ((float *)(memory + 1024))[threadIdx.x];
    wait(barrier, 0);
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_that_is_waited_for(seed):
    assert np.array_equal(run(LOAD % "wait(barrier, 0);", X, seed=seed)[:128], X[:128])


def test_a_copy_that_nobody_waits_for():
    """Then some order shows what lay there before: NaN."""
    found = [run(LOAD % "", X, seed=seed)[:128] for seed in range(10)]
    assert any(np.isnan(x).any() for x in found)


@pytest.mark.parametrize("rows", [2, 3])
def test_elements_behind_an_array(rows):
    body = """
    float x[2][1] = {};
    for (int r = 0; r < %d; r++) x[r][0] = p.x[r + threadIdx.x];
    p.y[threadIdx.x] = x[0][0] + x[1][0];
    """
    if rows == 2:
        assert np.array_equal(run(body % rows, X)[:128], X[:128] + X[1:129])
    else:
        with pytest.raises(machine.Fault, match=r"element 2 of an array 'float \[2\]\[1\]'"):
            run(body % rows, X)


def test_lanes():
    y = run(
        """
        const int i = threadIdx.x;
        const float sum = p.x[i] + __shfl_xor_sync(0xffffffff, p.x[i], 1);
        const float up = __shfl_up_sync(0xffffffff, p.x[i], 3);
        const unsigned odd = __ballot_sync(0xffffffff, i % 2);
        p.y[i] = sum + 1000.0f * up + (odd == 0xaaaaaaaau) * 0.5f
            + 1e6f * __reduce_max_sync(0xffffffff, i);
        """,
        X, threads=64,
    )[:64]  # fmt: skip
    i = np.arange(64)
    up = np.where(i % 32 < 3, X[:64], np.roll(X[:64], 3))
    wanted = X[i] + X[i ^ 1] + 1000 * up + 0.5 + 1e6 * (i // 32 * 32 + 31)
    assert np.array_equal(y, wanted.astype(np.float32))


def test_variables_of_blocks_are_their_own():
    y = run(
        """
        __shared__ float part[2];
        if (threadIdx.x == 0) part[0] = p.x[blockIdx.x];
        __syncthreads();
        if (threadIdx.x == 33) p.y[blockIdx.x] = part[0] + gridDim.x;
        """,
        X, blocks=40, threads=64,
    )  # fmt: skip
    assert np.array_equal(y[:40], X[:40] + 40)


FAULTS = {
    "nobody arrives": ("init(b, 2); __syncthreads(); wait(b, 0);", "no thread can go on"),
    "nobody made it": ("if (threadIdx.x == 40) arrive(*(u64 *)(memory + 64));", "nobody made"),
    "spins": (
        "unsigned now; do asm volatile(\"ld.acquire.gpu.global.b32 %0, [%1];\""
        ' : "=r"(now) : "l"((unsigned *)p.x) : "memory"); while (now != 7);',
        "polls",
    ),
    "diverges": (
        "if (threadIdx.x < 5) __syncwarp(); else wait(b, 0);",
        "threads from 0 on: its warp",
    ),
    "beyond": ("if (threadIdx.x == 0) load(1 << 20, p.x, 16, b);", "a bulk copy at 1048576"),
    "crooked": ("if (threadIdx.x == 0) load(1024, (char *)p.x + 4, 16, b);", "a bulk copy of 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    body, message = FAULTS[name]
    begin = "u64 &b = *(u64 *)memory;\nif (threadIdx.x == 0) init(b, 1);\n__syncthreads();\n"
    with pytest.raises(machine.Fault, match=message):
        run(begin + body, X, threads=64)


def test_instructions_nobody_knows():
    with pytest.raises(Unknown, match="brkpt"):
        translated('FN void stop() { asm volatile("brkpt;"); }')


def test_what_nvrtc_refuses_is_refused_here():
    """g++ leaves a function that nobody defines to the linker, which leaves it to the loader."""
    pytest.importorskip("cupy")
    with pytest.raises(ledger.Refused, match='"missing" was referenced but not defined'):
        run("p.y[0] = missing(p.x[0]);", X, before="static float missing(float x);")


# ------------------------------------------------------------------ the folder of what is built


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder that is chosen for a place named `there`, and for the temporary directory."""

    def chosen(there=None):
        if there is None:
            monkeypatch.delenv("MASKC_EMULATOR_DIR", raising=False)
        else:
            monkeypatch.setenv("MASKC_EMULATOR_DIR", str(there))
        return built._folder.__wrapped__()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return chosen


def test_folders_of_ones_own_are_made_and_used(folder, tmp_path):
    found = folder(tmp_path / "mine")
    assert found == tmp_path / "mine" / "maskc-emulator"
    assert found.stat().st_mode & 0o777 == 0o700
    assert folder(tmp_path / "mine") == found
    assert folder() == tmp_path / f"maskc-emulator-{os.geteuid()}"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_code_is_not_loaded_from_folders_that_others_may_write_to(folder, tmp_path, mode):
    shared = tmp_path / "shared" / "maskc-emulator"
    shared.mkdir(parents=True)
    shared.chmod(mode)
    with pytest.warns(CacheWarning, match="others may write to it"):
        found = folder(tmp_path / "shared")
    assert found != shared
    assert found.stat().st_mode & 0o777 == 0o700
    assert shared.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent / "gone")])
def test_what_others_put_in_place_of_the_folder(folder, tmp_path, make, monkeypatch):
    place = tmp_path / f"maskc-emulator-{os.geteuid()}"
    make(place)
    if place.is_symlink():  # of another user: this one's own are followed
        monkeypatch.setattr(os, "geteuid", lambda: 1 + os.stat(tmp_path).st_uid)
        place.rename(tmp_path / f"maskc-emulator-{os.geteuid()}")
    with pytest.warns(CacheWarning, match="unusable"):
        found = folder()
    assert found.is_dir()
    assert not found.is_symlink()


def test_a_macro_that_nothing_defines_is_refused():
    """A `#if` whose macro was renamed elsewhere would leave its code out, silently."""
    assert "int a;" in machine.preprocessed("#if WITH_A\nint a;\n#endif\n", ["-DWITH_A=1"])
    with pytest.raises(machine.Refused, match='"WITH_A" is not defined'):
        machine.preprocessed("#if WITH_A\nint a;\n#endif\n", [])
