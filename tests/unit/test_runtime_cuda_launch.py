"""Streams, graphs and the driver: what happens around a launch on a GPU, without one."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from maskc.core import abi
from maskc.core.abi import ATTENTION, POINTERS
from maskc.core.bundle import Grid, Launch, Mode, SourceUnit
from maskc.core.dtypes import DType
from maskc.core.errors import NoDevice
from maskc.core.problem import Direction, TileShape
from maskc.core.target import TARGETS
from maskc.core.tensors import Output, singles
from maskc.dispatch.recent import Recent
from maskc.dispatch.tables import Slot, Tables
from maskc.layout import Work
from maskc.runtime import default_target
from maskc.runtime.launch import cuda as launch_cuda
from maskc.runtime.launch import prepared as plans
from maskc.runtime.launch.cuda import Step
from maskc.runtime.launch.prepared import PreparedLaunch, Sent, filled
from tests.support.bundles import bundle
from tests.support.fake_cuda import Driver, Streams

# ------------------------------------------------------------------ plans, without a GPU


class Recorder:
    """A kernel that notes what it was launched with."""

    def __init__(self):
        self.graph, self.launched = False, []

    def capturing(self, stream):
        return self.graph

    def run(self, plan, sent, pointers, numbers, stream):
        self.launched.append((stream, filled(sent, pointers, numbers)))


CAPTURED = 3


def gpu_plan(kernel, work=None) -> PreparedLaunch:
    args = np.arange(3, dtype=np.int32)
    slot = Slot(np.zeros((1, 1, 5), np.int32))
    parts = [("mask_args", args), ("row_ptr", args)]
    if work is not None:
        parts.append(("counter", np.zeros((1 + CAPTURED, 2), np.int32)))
    made = Tables(tuple(parts), (slot,), 0, {}, work)
    block = ATTENTION(n_q=5)
    return PreparedLaunch(
        Direction.forward, kernel, ("cuda", 0), {}, made, bytes(block),
        (Output((1, 1, 5, 4)), singles(1, 1, 5)),
    )  # fmt: skip


def placed(plan, library):
    """(argument block without tensors, stream)."""
    sent, stream = plan.place(library, None)
    return ATTENTION.from_buffer_copy(sent.template), stream


def test_tables_go_to_every_stream_once():
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    for library.current in (7, 7, 9, 7, 9):
        sent, stream = plan.place(library, None)
        assert stream == library.current
        plan.run(sent, (1, 2, 3, 4, 5), (0.5, None), stream)
    assert library.sent == [7, 9]
    assert [stream for stream, _ in kernel.launched] == [7, 7, 9, 7, 9]
    blocks = [block for _, block in kernel.launched]
    for block in blocks:
        assert (block.n_q, block.row_ptr - block.mask_args) == (5, 16)
        assert block.array[0] - block.mask_args == 32
        assert (block.q, block.out, block.lse, block.scale, block.softcap) == (1, 4, 5, 0.5, 0)
    places = [block.mask_args for block in blocks]
    assert places[0] == places[1] == places[3] != places[2] == places[4]


def test_an_unread_lse_has_memory_of_its_stream():
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    places = []
    for library.current in (7, 9, 7):
        places.append(plan.place(library, None)[0].lse)
    assert places[0] == places[2] != places[1]
    assert all(places)


def test_threads_share_no_stream_that_is_each_threads_own():
    library = Streams()
    plan = gpu_plan(Recorder())
    library.current = 2
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(placed(plan, library))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    placed(plan, library)
    for thread in threads:
        thread.join()
    assert len(set(plan.sent)) == 3 == len(library.sent)
    assert all(stream == 2 for _, stream in found)


def test_plans_share_tables_on_a_stream():
    library, one = Streams(), gpu_plan(Recorder())
    two = replace(one, sent={})
    places = [placed(plan, library)[0].mask_args for plan in (one, two)]
    assert library.sent == [7]
    assert places[0] == places[1]


def test_a_capture_copies_nothing_and_keeps_what_it_reads(monkeypatch):
    monkeypatch.setattr(plans, "_captured", {})
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    plan.place(library, None)
    kernel.graph, library.current = True, 9
    block, stream = placed(plan, library)
    assert stream == 9
    assert library.sent == [7]
    assert list(plans._captured.values()) == [plan.sent[7]]
    assert block.mask_args == plan.tables.copies[("cuda", 0), 7][1]


def test_a_copy_that_is_part_of_a_graph_serves_nobody_else(monkeypatch):
    monkeypatch.setattr(plans, "_captured", {})
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel)
    kernel.graph = True
    inside, _ = placed(plan, library)
    kernel.graph = False
    outside, _ = placed(plan, library)
    assert library.sent == [7, 7]
    assert inside.mask_args != outside.mask_args
    assert len(plans._captured) == 1


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "prepared"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first"])
def test_nobody_keeps_memory_that_belongs_to_a_graph(monkeypatch, captured: bool, warm: bool):
    """torch.compile records no graph whose memory somebody else keeps."""
    monkeypatch.setattr(plans, "_captured", {})
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel, ITEMS)
    if warm:
        for _ in range(CAPTURED + 1):
            plan.place(library, None)
    outside = [*plan.sent.values()]
    library.graphs_own, library.current, kernel.graph, library.lent = True, 9, captured, True
    for _ in range(CAPTURED + 1):  # more than there are spare counters
        sent, _ = plan.place(library, None)
        assert not sent.lasting
    assert [*plan.sent.values()] == outside
    assert [*plans._captured.values()] == (outside if captured else [])
    assert len(plan.tables.copies) == warm


ITEMS = Work(np.ones((3, len(abi.WORK_FIELDS)), np.int32), 3, False)


def test_launches_of_a_stream_share_a_counter_and_captured_ones_never(monkeypatch):
    monkeypatch.setattr(plans, "_captured", {})
    library, kernel = Streams(), Recorder()
    plan = gpu_plan(kernel, ITEMS)
    two = replace(plan, sent={})
    usual = {placed(each, library)[0].counter for each in (plan, two, plan)}
    kernel.graph = True
    captured = [placed(each, library)[0].counter for each in (plan, two, plan, two, plan)]
    assert len(usual) == 1
    assert len({*usual, *captured}) == 6
    start = plan.tables.copies[("cuda", 0), 7][1] + plan.tables.packed[1]["counter"]
    assert usual == {start}
    assert captured[:3] == [start + 8, start + 16, start + 24]
    assert library.cleared == 2  # counters beyond the spare ones are cleared by the graph
    assert len(plans._captured) == 5
    kernel.graph = False
    assert {placed(plan, library)[0].counter} == usual


def test_the_default_stream_is_never_asked_whether_it_is_captured():
    library, kernel = Streams(), Recorder()
    plan, library.current, kernel.graph = gpu_plan(kernel), 0, True
    assert plan.place(library, None)[1] == 0
    assert list(plan.sent) == [0]
    assert library.sent == [0]


def test_the_pointers_of_a_call_lead_the_argument_block():
    assert tuple(field.name for field in abi.FIELDS[: len(POINTERS)]) == POINTERS
    sent = Sent(bytes(ATTENTION(n_q=3, scale=2.0)), 0, None, lambda: None)
    block = filled(sent, tuple(range(1, 15)), (0.25, 4.0))
    assert [getattr(block, name) for name in POINTERS] == list(range(1, 15))
    assert (block.n_q, block.scale, block.softcap) == (3, 0.25, 4.0)
    block = filled(sent, (1, 2, 3, 4, 5), None)
    assert (block.q, block.lse, block.dout, block.scale) == (1, 5, None, 2.0)


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


def cuda_kernel(monkeypatch, driver, shared=99 * 1024, more=()):
    monkeypatch.setattr(launch_cuda, "_driver", lambda i: launch_cuda._Bindings(driver, i))
    mode = Mode((Launch("attention_forward", Grid.rows, 128, shared), *more))
    unit = SourceUnit("sm_80", "", TileShape(64, 64), False, modes=(("default", mode),))
    return launch_cuda.CudaKernel(unit, mode, SimpleNamespace(code=b""), 2)


def launched(kernel, block, stream, blocks=12, sent=None, numbers=None, pointers=(0,) * 5):
    plan = replace(gpu_plan(kernel), steps=kernel.steps(lambda launch, _: blocks))
    sent = Sent(bytes(block), 0, None, lambda: None) if sent is None else sent
    kernel.run(plan, sent, pointers, numbers, stream)


def test_a_launch(monkeypatch):
    driver = Driver(current=102)
    kernel = cuda_kernel(monkeypatch, driver)
    assert driver.calls == [
        ("push", 102), ("attribute", "attention_forward", 8, 99 * 1024), ("pop",)
    ]  # fmt: skip
    driver.calls.clear()
    launched(kernel, ATTENTION(n_q=77), 5)
    assert driver.calls == [
        ("asked", 16, 2),
        ("launch", "attention_forward", 12, 1, 1, 128, 1, 1, 99 * 1024, 5, 77),
    ]
    assert (kernel.capturing(5), kernel.capturing(3)) == (False, True)


def test_launches_of_a_mode_run_in_order_and_empty_ones_are_left_out(monkeypatch):
    driver = Driver(current=102)
    more = (
        Launch("attention_keys", Grid.keys, 64),
        Launch("attention_forward", Grid.queries, 32, 8, overlaps=True),
    )
    kernel = cuda_kernel(monkeypatch, driver, 1024, more)
    counts = {Grid.rows: 3, Grid.keys: 0, Grid.queries: 132}
    steps = kernel.steps(lambda launch, processors: min(counts[launch.grid], processors))
    assert steps == (
        Step("attention_forward", 3, 128, 1024), Step("attention_forward", 132, 32, 8, True)
    )  # fmt: skip
    kernel.steps(lambda *_: 1)
    assert driver.calls.count(("asked", 16, 2)) == 1


def test_arguments_are_reused_and_lie_on_lines(monkeypatch):
    """A scale of one call is not the next one's."""
    driver = Driver(current=102)
    kernel = cuda_kernel(monkeypatch, driver)
    sent = Sent(bytes(ATTENTION(scale=0.5, n_q=9)), 0, None, lambda: None)
    seen, scales = set(), []
    for scale in (None, 0.25, None):
        launched(kernel, None, 0, sent=sent, numbers=scale and (scale, None))
        seen.add(driver.maps)
        scales.append(driver.block.scale)
    assert scales == [0.5, 0.25, 0.5]
    assert driver.block.n_q == 9
    assert len(seen) == len(sent.free) == 1
    assert driver.maps % 64 == 0


def test_arguments_stay_filled_in_while_addresses_return(monkeypatch):
    """Sets of addresses that were unused for longest make room."""
    monkeypatch.setattr(launch_cuda, "_KEPT", 3)
    filled_in, fill = [], launch_cuda.Memory.fill
    monkeypatch.setattr(launch_cuda.Memory, "fill", lambda memory, pointers, maps: (
        filled_in.append(pointers[0]), fill(memory, pointers, maps)))  # fmt: skip
    driver = Driver(current=102)
    kernel = cuda_kernel(monkeypatch, driver)
    sent = Sent(bytes(ATTENTION(scale=0.5, n_q=9)), 0, None, lambda: None)
    seen = set()
    for first in (1, 2, 1, 3, 4, 1, 2, 4):
        launched(kernel, None, 0, sent=sent, pointers=(first, 12, 13, 14, 15))
        block = driver.block
        assert (block.q, block.k, block.lse, block.scale, block.n_q) == (first, 12, 15, 0.5, 9)
        seen.add(driver.maps)
    assert filled_in == [1, 2, 3, 4, 2]
    assert len(seen) == len(sent.free) == 3


def test_threads_never_share_the_arguments_of_a_launch(monkeypatch):
    """Not even those that begin while another's is under way, with the same addresses."""
    driver = Driver(current=102)
    kernel = cuda_kernel(monkeypatch, driver)
    sent = Sent(bytes(ATTENTION()), 0, None, lambda: None)
    start, inside = driver.cuLaunchKernel, []

    def launch(*arguments):
        inside.append(arguments[9])
        if len(inside) < 3:
            launched(kernel, None, 0, sent=sent)
        return start(*arguments)

    kernel.launch.__self__._start = launch
    launched(kernel, None, 0, sent=sent)
    assert len(set(inside)) == 3
    assert len(sent.free) == 1


def test_a_launch_from_another_context_returns_to_it(monkeypatch):
    driver = Driver(current=100)
    kernel = cuda_kernel(monkeypatch, driver, shared=1024)
    driver.calls.clear()
    launched(kernel, ATTENTION(), 0, 1)
    assert [call[0] for call in driver.calls] == ["asked", "push", "launch", "pop"]


def test_a_failed_launch_is_an_error_and_restores_the_context(monkeypatch):
    driver = Driver(current=0)
    kernel = cuda_kernel(monkeypatch, driver)
    driver.status = 719
    driver.calls.clear()
    with pytest.raises(RuntimeError, match="CUDA driver: 719"):
        launched(kernel, ATTENTION(), 0, 1)
    assert driver.calls[-1] == ("pop",)


def test_the_real_bindings_have_what_a_launch_uses():
    driver = pytest.importorskip("cuda.bindings.driver")
    for name in (
        "cuInit", "cuLaunchKernel", "cuLaunchKernelEx", "cuStreamIsCapturing", "cuCtxGetCurrent",
        "cuDeviceGetAttribute", "cuTensorMapEncodeTiled",
    ):  # fmt: skip
        assert callable(getattr(driver, name))
    assert not driver.CUresult.CUDA_SUCCESS
    assert driver.CUresult.CUDA_ERROR_INVALID_VALUE
    shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver.CUfunction_attribute(launch_cuda._SHARED) == shared
    count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    assert driver.CUdevice_attribute(launch_cuda._MULTIPROCESSORS) == count
    early = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert driver.CUlaunchAttributeID(launch_cuda._EARLY) == early


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
    half = replace(bundle("band").problem, head_dim=64, head_dim_v=64, dtype=DType.bfloat16)
    hopper = replace(
        TARGETS["sm_90a"], directions=(Direction.forward,), head_dims=(64,), further=()
    )
    monkeypatch.setitem(TARGETS, "sm_90a", hopper)
    monkeypatch.setattr(device, "gpus", lambda: ())
    assert default_target() == "cpu"
    monkeypatch.setattr(device, "gpus", lambda: GPUS)
    assert default_target() == default_target(half) == "sm_90a"
    assert default_target(replace(half, head_dim=96, head_dim_v=96)) == "sm_80"
    assert default_target(bundle("band").problem) == "simt"  # fp32
    assert default_target(replace(half, head_dim=513)) == "cpu"
    monkeypatch.setitem(TARGETS, "sm_90a", replace(hopper, directions=()))
    assert default_target() == default_target(half) == "sm_80"
    monkeypatch.setitem(TARGETS, "sm_90a", hopper)
    monkeypatch.setattr(device, "gpus", lambda: [SimpleNamespace(capability=100)])
    assert default_target() == "sm_80"
    monkeypatch.setattr(device, "gpus", lambda: GPUS[1:])
    assert default_target() == "simt"
    monkeypatch.setattr(device, "gpus", lambda: [SimpleNamespace(capability=61)])
    assert default_target() == "cpu"
    monkeypatch.setattr(device, "gpus", lambda: GPUS)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert default_target() == "cpu"
