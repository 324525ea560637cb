"""Threads and forks: what happens around a launch on the CPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from functools import cached_property

import numpy as np
import pytest

import maskc as mc
from maskc.core.forks import new_lock
from maskc.ir import sets
from maskc.runtime import CompiledMask
from maskc.runtime.launch import cpu as launch_cpu
from tests.support.bundles import bundle


def qkv(n=150, batch=2):
    rng = np.random.default_rng(n)
    shapes = ((batch, 4, n, 32), (batch, 2, n, 32), (batch, 2, n, 48))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_thread_count(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch_cpu.thread_count() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert launch_cpu.thread_count() == 5
    for number, text in ((4, " 4 , 2"), (7, "+7"), (8, "08"), (2, "2,"), (1, "1,x")):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert launch_cpu.thread_count() == number
    for odd in ("", "many", "0", "-1", "4 2", "²", "0x4", "1e3", "4.0", ",4", "00"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert launch_cpu.thread_count() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["100000", "100000,3", str(2**31), "9" * 5000])
def test_a_number_of_threads_has_a_bound(monkeypatch, text):
    processors = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert processors <= launch_cpu.thread_count() <= max(16, 4 * processors)


def test_no_number_of_threads_ends_the_process(monkeypatch):
    """GNU OpenMP ends the process when the system refuses to start one of its threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    program = (
        "import numpy as np, maskc as mc\n"
        "q = np.ones((1, 2, 90, 16), np.float32)\n"
        "attn = mc.window(5).compile(16, dtype='float32', target='cpu')\n"
        "out, lse = attn(q, q, q, return_lse=True)\n"
        "attn.backward(q, q, q, out, lse, q)\n"
        "ranked = mc.topk(3, of=mc.causal())\n"
        "mc.attention(q, q, q, ranked)\n"
        "print(float(out.min()), float(out.max()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1.0", "1.0"]


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


class Slow:
    """Has a property that another thread computes."""

    @cached_property
    def value(self) -> int:
        return self.compute()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_finds_all_locks_open(monkeypatch):
    """Other threads hold them during the fork, which waits for isl alone."""
    monkeypatch.setattr("maskc.core.forks.Slow", Slow, raising=False)
    lock, in_isl, begun, end = new_lock(), [], threading.Barrier(3), threading.Event()

    def compute():
        with lock:
            begun.wait()
            end.wait()
        return 3

    def use_isl():
        with sets.LOCK:
            in_isl.append(True)
            begun.wait()
            time.sleep(0.2)
            in_isl.clear()

    Slow.compute = staticmethod(compute)
    threads = [threading.Thread(target=x) for x in (lambda: Slow().value, use_isl)]
    for thread in threads:
        thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (2,)).start()
        Slow.compute = staticmethod(lambda: 3)
        opened = lock.acquire(timeout=5) and sets.LOCK.acquire(timeout=5) and not in_isl
        os._exit(0 if opened and Slow().value == 3 and mc.window(9).count(50) == 455 else 1)
    _, status = os.waitpid(child, 0)
    end.set()
    for thread in threads:
        thread.join(30)
    assert status == 0
    assert not any(thread.is_alive() for thread in threads)


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
