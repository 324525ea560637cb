"""Threads, forks, streams and graphs: what happens around a launch."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from maskc.core.bundle import SourceUnit
from maskc.core.errors import NoDevice
from maskc.core.problem import Direction, TileShape
from maskc.runtime import CompiledMask, default_target, launch_cpu, launch_cuda, plans
from maskc.runtime.plans import ATTENTION, Output, Plan, Recent
from maskc.runtime.tables import Slot, Tables
from tests.support.bundles import bundle
from tests.support.caches import binaries  # noqa: F401

pytestmark = pytest.mark.usefixtures("binaries")


def qkv(n=150, batch=2):
    rng = np.random.default_rng(n)
    shapes = ((batch, 4, n, 32), (batch, 2, n, 32), (batch, 2, n, 48))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


# ------------------------------------------------------------------ the CPU


def test_thread_count(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch_cpu.thread_count() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert launch_cpu.thread_count() == 5
    for odd in ("", "many", "0", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert launch_cpu.thread_count() == len(os.sched_getaffinity(0))


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    mask, tensors = CompiledMask(bundle("band"), "cpu"), qkv()
    found = []
    for count in ("1", "2", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        out, lse = mask(*tensors, return_lse=True)
        found.append((out, lse, *mask.backward(*tensors, out, lse, out, deterministic=True)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_sequence_does_not_depend_on_its_batch():
    mask = CompiledMask(bundle("band"), "cpu")
    q, k, v = qkv(batch=3)
    whole = mask(q, k, v)
    for b in range(3):
        alone = slice(b, b + 1)
        np.testing.assert_array_equal(mask(q[alone], k[alone], v[alone]), whole[alone])


def test_many_threads_call_one_mask():
    """Different lengths and parameters at once; every thread sees its own results."""
    mask = CompiledMask(bundle("band"), "cpu")
    cases = [(qkv(n), w) for n in (40, 70, 100, 130) for w in (3, 50)]
    want = [mask(*tensors, w=w) for tensors, w in cases]
    wrong = []

    def work(offset: int) -> None:
        for turn in range(40):
            index = (turn + offset) % len(cases)
            tensors, w = cases[index]
            if not np.array_equal(mask(*tensors, w=w), want[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    mask, tensors = CompiledMask(bundle("band"), "cpu"), qkv()
    want = mask(*tensors)
    child = os.fork()
    if child == 0:
        out, lse = mask(*tensors, return_lse=True)
        mask.backward(*tensors, out, lse, out)
        os._exit(0 if np.array_equal(out, want) and launch_cpu.thread_count() == 1 else 1)
    deadline = threading.Timer(30, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert status == 0


def test_a_library_is_loaded_from_a_folder_nobody_else_can_enter(monkeypatch):
    from maskc.build import build
    from tests.support.bundles import cpu_unit

    seen = []
    real = ctypes.CDLL

    def watch(path, *args):
        seen.append((os.stat(os.path.dirname(path)).st_mode & 0o777, path))
        return real(path, *args)

    monkeypatch.setattr(ctypes, "CDLL", watch)
    launch_cpu.load_library(build(cpu_unit()))
    ((mode, path),) = seen
    assert mode == 0o700
    assert not os.path.exists(path)


# ------------------------------------------------------------------ plans, without a GPU


class Streams:
    """A library with CUDA streams that exist in name only."""

    def __init__(self):
        self.current, self.sent = 7, []

    def stream(self, device):
        return self.current

    def empty(self, x, shape, single, tokens_first):
        made = np.empty(shape, np.float32)
        return made, made.ctypes.data

    def send(self, x, host):
        self.sent.append(self.current)
        copy = host.copy()
        return copy, copy.ctypes.data


class Recorder:
    """A kernel that notes what it was launched with."""

    def __init__(self):
        self.graph, self.launched = False, []

    def capturing(self, stream):
        return self.graph

    def launch(self, direction, block, stream, grid, tables, params):
        self.launched.append((stream, grid, block.mask_args))


def gpu_plan(kernel) -> Plan:
    args = np.arange(3, dtype=np.int32)
    slot = Slot(np.zeros((1, 1, 5), np.int32))
    tables = Tables((("mask_args", args), ("row_ptr", args)), (slot,), 0, {})
    block = ATTENTION(n_q=5)
    return Plan(
        Direction.forward, kernel, ("cuda", 0), 12, {}, tables, bytes(block),
        (Output((1, 1, 5, 4)), Output((1, 1, 5))),
    )  # fmt: skip


def test_tables_go_to_every_stream_once():
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    for library.current in (7, 7, 9, 7, 9):
        block, stream = plan.arguments(library, None)
        assert stream == library.current
        assert (block.n_q, block.row_ptr - block.mask_args) == (5, 16)
        assert block.array[0] - block.mask_args == 32
        plan.run(block, stream)
    assert library.sent == [7, 9]
    assert [stream for stream, *_ in kernel.launched] == [7, 7, 9, 7, 9]
    assert kernel.launched[0] == kernel.launched[1] != kernel.launched[2]


def test_an_unread_lse_has_memory_of_its_stream():
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    places = []
    for library.current in (7, 9, 7):
        places.append(plan.arguments(library, None)[0].lse)
    assert places[0] == places[2] != places[1]
    assert all(places)


def test_plans_share_tables_on_a_stream():
    library, one = Streams(), gpu_plan(Recorder())
    two = replace(one, sent={})
    places = [plan.arguments(library, None)[0].mask_args for plan in (one, two)]
    assert library.sent == [7]
    assert places[0] == places[1]


def test_a_capture_copies_nothing_and_keeps_what_it_reads(monkeypatch):
    monkeypatch.setattr(plans, "_captured", {})
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    plan.arguments(library, None)
    kernel.graph, library.current = True, 9
    block, stream = plan.arguments(library, None)
    assert stream == 9
    assert library.sent == [7]
    assert list(plans._captured.values()) == [plan.sent[7]]
    assert block.mask_args == plan.tables.copies[("cuda", 0), 7][1]


def test_old_plans_make_room():
    cache = Recent(most=3, most_bytes=10_000)
    made = [gpu_plan(Recorder()) for _ in range(5)]
    for number, plan in enumerate(made):
        cache.put(number, plan)
    assert [cache.get(number) for number in range(5)] == [None, None, *made[2:]]
    small = Recent(most=99, most_bytes=2 * made[0].size)
    for number, plan in enumerate(made):
        small.put(number, plan)
    assert [small.get(number) for number in range(5)] == [None, None, None, *made[3:]]
    assert Recent(most_bytes=0).get("nothing") is None


# ------------------------------------------------------------------ the driver, without one


class Driver:
    """The few calls of cuda.bindings.driver that a launch makes."""

    def __init__(self, current=0):
        self.calls, self.current = [], current

    def cuInit(self, _):
        return (0,)

    def cuDeviceGet(self, index):
        return 0, index

    def cuDevicePrimaryCtxRetain(self, device):
        return 0, 100 + device

    def cuCtxGetCurrent(self):
        return 0, self.current

    def cuCtxPushCurrent(self, context):
        self.calls.append(("push", context))
        return (0,)

    def cuCtxPopCurrent(self):
        self.calls.append(("pop",))
        return 0, 0

    def cuModuleLoadData(self, code):
        return 0, "module"

    def cuModuleGetFunction(self, module, name):
        return 0, name.decode()

    def CUfunction_attribute(self, value):
        return value

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append(("attribute", function, attribute, value))
        return (0,)

    def cuStreamIsCapturing(self, stream):
        return 0, int(stream == 3)

    def cuLaunchKernel(self, function, *rest):
        (argument,) = ctypes.cast(rest[8], ctypes.POINTER(ctypes.c_void_p))[:1]
        n_q = ATTENTION.from_address(argument).n_q
        self.calls.append(("launch", function, *rest[:8], n_q))
        return (self.status,)

    status = 0


def cuda_kernel(monkeypatch, driver, shared=99 * 1024):
    monkeypatch.setattr(launch_cuda, "_driver", lambda i: launch_cuda._Bindings(driver, i))
    unit = SourceUnit("sm_80", "", TileShape(64, 64), False, threads=128, shared_bytes=shared)
    binary = SimpleNamespace(code=b"", entries=("attention_forward",))
    return launch_cuda.CudaKernel(unit, binary, 2)


def test_a_launch(monkeypatch):
    driver = Driver(current=102)
    kernel = cuda_kernel(monkeypatch, driver)
    assert driver.calls == [
        ("push", 102), ("attribute", "attention_forward", 8, 99 * 1024), ("pop",)
    ]  # fmt: skip
    driver.calls.clear()
    kernel.launch(Direction.forward, ATTENTION(n_q=77), 5, 12)
    assert driver.calls == [
        ("launch", "attention_forward", 12, 1, 1, 128, 1, 1, 99 * 1024, 5, 77)
    ]  # fmt: skip
    assert (kernel.capturing(5), kernel.capturing(3)) == (False, True)


def test_a_launch_from_another_context_returns_to_it(monkeypatch):
    driver = Driver(current=100)
    kernel = cuda_kernel(monkeypatch, driver, shared=1024)
    driver.calls.clear()
    kernel.launch(Direction.forward, ATTENTION(), 0, 1)
    assert [call[0] for call in driver.calls] == ["push", "launch", "pop"]


def test_a_failed_launch_is_an_error_and_restores_the_context(monkeypatch):
    driver = Driver(current=0)
    kernel = cuda_kernel(monkeypatch, driver)
    driver.status = 719
    driver.calls.clear()
    with pytest.raises(RuntimeError, match="CUDA driver: 719"):
        kernel.launch(Direction.forward, ATTENTION(), 0, 1)
    assert driver.calls[-1] == ("pop",)


def test_the_real_bindings_have_what_a_launch_uses():
    driver = pytest.importorskip("cuda.bindings.driver")
    for name in ("cuInit", "cuLaunchKernel", "cuStreamIsCapturing", "cuCtxGetCurrent"):
        assert callable(getattr(driver, name))
    assert not driver.CUresult.CUDA_SUCCESS
    assert driver.CUresult.CUDA_ERROR_INVALID_VALUE
    shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver.CUfunction_attribute(launch_cuda._SHARED) == shared


GPUS = [SimpleNamespace(name="A", capability=90), SimpleNamespace(name="B", capability=75)]


def test_the_architecture_follows_the_device(monkeypatch):
    monkeypatch.setattr(launch_cuda, "gpus", lambda: GPUS)
    assert launch_cuda.device_arch("sm_80", 0) == "sm_90"
    assert launch_cuda.device_arch("sm_90a", 0) == "sm_90a"
    assert launch_cuda.device_arch("simt", 1) == "sm_75"
    with pytest.raises(NoDevice, match="device 1 is only an sm_75"):
        launch_cuda.device_arch("sm_80", 1)
    with pytest.raises(NoDevice, match="device 1 is an sm_75, not an sm_90"):
        launch_cuda.device_arch("sm_90a", 1)
    with pytest.raises(NoDevice, match="there is none with index 2"):
        launch_cuda.device_arch("sm_80", 2)


def test_the_default_target(monkeypatch):
    from maskc.runtime import device

    pytest.importorskip("cupy")
    monkeypatch.setattr(device, "gpus", lambda: ())
    assert default_target() == "cpu"
    monkeypatch.setattr(device, "gpus", lambda: GPUS)
    assert default_target() == "sm_80"
    assert default_target(bundle("band").problem) == "cpu"  # fp32
    monkeypatch.setattr(device, "gpus", lambda: GPUS[1:])
    assert default_target() == "cpu"
    monkeypatch.setattr(device, "gpus", lambda: GPUS)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert default_target() == "cpu"
