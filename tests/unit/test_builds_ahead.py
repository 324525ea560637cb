"""The first call builds what lengths choose; after `warmup` nothing is built. Builds are counted
over two hundred lengths, where no GPU is.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from textwrap import dedent

import numpy as np
import pytest

import maskc as mc
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.errors import BuildFailed
from maskc.core.problem import Direction
from maskc.runtime import planner
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.launch import ahead, kernels
from tests.support.fake_cuda import Map
from tests.support.fake_hopper import Machine, Tensor, backward, given
from tests.support.thorough import chiefly, examples, more

pytestmark = pytest.mark.builds_ahead
STRIDED = mc.window.hf(128) | mc.dilated(mc.n_kv, stride=128)
MANY = examples(200)
"""Lengths, drawn at random."""
MASKS = {
    "large and small tiles": mc.causal() & (mc.sinks(5) | mc.window(70)),
    "16 x 16 tiles": mc.block_diagonal(16),
    "parts": STRIDED,
    "keys of a residue": mc.causal() & (mc.window(200) | mc.strided(64, 63)),
    "boxes": mc.where(
        lambda q, k: (q % 20 - k % 20 <= 3) & (k % 20 - q % 20 < 4) & (q // 20 >= k // 20)
    ),
    "wider than 32 bits where long": mc.where(lambda q, k: (q * 1000003 - k * 999983) % 97 < 50),
    "listed columns": mc.window.hf(8) | mc.global_tokens(range(3, 2000, 97)).columns,
    "listed rows and columns": mc.window.hf(8) | mc.global_tokens(range(3, 2000, 97)),
    "heads": mc.per_head([mc.causal(), mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)]),
}


@pytest.fixture
def machine(monkeypatch):
    made = Machine(monkeypatch)
    made.driver.cuTensorMapEncodeTiled = lambda *_: (0, Map(bytes(128)))
    monkeypatch.setattr("maskc.build.toolchain.gpus", tuple)  # else compile() loads NVRTC
    return made


@pytest.fixture
def begun(monkeypatch):
    """Everything that was begun ahead."""
    builds, start = [], ahead.start
    monkeypatch.setattr(ahead, "start", lambda *jobs: builds.append(start(*jobs)) or builds[-1])

    def over():
        for build in filter(None, builds):
            for thread in build._threads:
                thread.join(60)
        return [build for build in builds if build is not None]

    return over


def lengths(number=200):
    """Short and long ones, equal and not, few heads and many."""
    rng = np.random.default_rng(7)
    for _ in range(number):
        n = int(2 ** rng.uniform(0, 11))
        other = n if rng.random() < 0.6 else int(2 ** rng.uniform(0, 11))
        n = max(20, n // 20 * 20) if rng.random() < 0.2 else n
        yield n, other, int(rng.integers(1, 4)), (4, int(rng.choice([1, 2, 4])))


def at(n, n_kv, batch, heads):
    return given(n, n_kv, batch=batch, heads=heads)


def both(mask, tensors, deterministic):
    mask(*tensors)
    backward(mask, *tensors, deterministic=deterministic)


def all_lengths(mask, count=MANY):
    """Both passes at all lengths; the names of what ran."""
    ran = set()
    for number, each in enumerate(lengths(count)):
        tensors = at(*each)
        mask(*tensors)
        ran |= set(mask.last_sources)
        backward(mask, *tensors, deterministic=number % 5 == 0)
        ran |= set(mask.last_sources)
    return ran


@pytest.mark.parametrize(
    "name", [more(x) if x == "wider than 32 bits where long" else x for x in MASKS]
)
def test_after_the_first_call_of_each_pass_no_length_builds(machine, begun, name):
    mask = MASKS[name].compile(64, n_heads=4, target="sm_90a")
    both(mask, given(n=300), False)
    assert len(begun()) == 2
    before = len(machine.built)
    assert before == len({(text, mode, tuple(x)) for text, mode, x in machine.built})
    ran = all_lengths(mask)
    assert len(machine.built) == before
    assert len(ran) > 2


@pytest.mark.parametrize("name", chiefly(list(MASKS), "heads", "boxes", "16 x 16 tiles"))
def test_after_warmup_no_length_builds(machine, begun, name):
    mask = MASKS[name].compile(64, n_heads=4, target="sm_90a")
    mask.warmup()
    before = len(machine.built)
    all_lengths(mask, MANY if name == "parts" else 40)
    assert len(machine.built) == before
    assert not begun()


@pytest.mark.parametrize("name", ["parts", "heads"])
def test_other_features_are_other_kernels(machine, begun, name):
    mask = MASKS[name].compile(64, n_heads=4, target="sm_90a")
    both(mask, given(n=300), False)
    begun()
    built = len(machine.built)
    sinks = Tensor((4,), pointer=7 << 20, dtype="float32")
    mask(*given(n=300), sink_logits=sinks)
    assert len(begun()) == 3
    assert len(machine.built) > built
    built = len(machine.built)
    for n in (31, 700, 5000):
        mask(*given(n=n), sink_logits=sinks)
    assert len(machine.built) == built


def test_a_call_waits_for_what_is_being_built_and_builds_what_is_not(machine, begun, monkeypatch):
    """One build each, whoever begins; the first call does not wait for all of them."""
    monkeypatch.setattr(ahead, "processors", lambda: 2)  # one thread next to the call's
    hold, real = threading.Event(), machine.build

    def slow(*args):
        if threading.current_thread() is not threading.main_thread():
            assert hold.wait(30)
        return real(*args)

    monkeypatch.setattr(kernels, "build", slow)
    mask = MASKS["large and small tiles"].compile(64, target="sm_90a")
    mask(*given(n=1))
    first = len(machine.built)
    assert first >= 1, "the call's own, while the other thread waits"
    hold.set()
    for length in lengths(40):
        mask(*at(*length))
    begun()
    assert len(machine.built) == len({(text, mode) for text, mode, _ in machine.built})


def test_what_cannot_be_built_is_an_error_of_the_call_that_needs_it(machine, begun, monkeypatch):
    real = machine.build

    def broken(unit, features, directions, arch, mode):
        if threading.current_thread() is not threading.main_thread():
            raise mc.MaskcError
        return real(unit, features, directions, arch, mode)

    monkeypatch.setattr(kernels, "build", broken)
    monkeypatch.setattr(mc.MaskcError, "__init__", lambda self: None)
    mask = MASKS["16 x 16 tiles"].compile(64, target="sm_90a")
    mask(*given(n=64))
    assert len(begun()) == 1
    mask(*given(n=3000))


def test_warmup_is_one_pool_for_all_parts(machine, monkeypatch):
    pools = []

    class Pool(planner.ThreadPoolExecutor):
        def __init__(self, workers):
            pools.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(planner, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(planner, "processors", partial(int, 16))
    mask = STRIDED.compile(64, target="sm_90a")
    mask.warmup()
    assert pools == [min(32, len(machine.built))]


def ids(n=300):
    return Tensor((1, n), pointer=7 << 20, dtype="int32")


DOCUMENTS = mc.causal() & mc.documents("doc")


def test_the_kernels_of_a_call_are_built_side_by_side(machine, begun, monkeypatch):
    """Two are in progress at once: the pass and what makes its lists."""
    together, real = threading.Barrier(2), machine.build
    threads = []

    def build(*args):
        if len(threads) < 2:
            threads.append(threading.current_thread())
            together.wait(30)
        return real(*args)

    monkeypatch.setattr(kernels, "build", build)
    mask = DOCUMENTS.compile(64, target="sm_90a")
    mask(*given(n=300), doc=ids())
    assert threading.main_thread() in threads
    assert len(mask.last_sources) == 2
    assert len(machine.launched()) == 2


def test_a_call_raises_what_failed_in_another_thread(machine, begun, monkeypatch):
    """And a later call tries again."""
    real, mask = machine.build, DOCUMENTS.compile(64, target="sm_90a")

    def build(unit, *args):
        if unit.form == "documents":
            raise BuildFailed("NVRTC", "source", "line 1")
        return real(unit, *args)

    monkeypatch.setattr(kernels, "build", build)
    for _ in range(2):
        with pytest.raises(BuildFailed):
            mask(*given(n=300), doc=ids())
        assert machine.launched() == []
        begun()
    monkeypatch.setattr(kernels, "build", real)
    mask(*given(n=300), doc=ids())
    assert len(machine.launched()) == 2


def test_no_call_waits_for_other_lengths(machine, begun, monkeypatch):
    hold, real = threading.Event(), machine.build

    def build(*args):
        if machine.built:
            assert hold.wait(30)
        return real(*args)

    monkeypatch.setattr(kernels, "build", build)
    mask = MASKS["large and small tiles"].compile(64, target="sm_90a")
    mask(*given(n=300))
    assert len(machine.built) == 1
    hold.set()
    begun()
    assert len(machine.built) > 1


def test_other_lengths_wait_for_the_backward_pass_that_follows(machine, begun, monkeypatch):
    hold, real, order = threading.Event(), machine.build, []

    def build(unit, *args):
        if unit.directions == (Direction.backward,) and not hold.is_set():
            assert hold.wait(30)
        order.append(unit.directions)
        return real(unit, *args)

    monkeypatch.setattr(kernels, "build", build)
    mask = MASKS["large and small tiles"].compile(64, target="sm_90a")
    mask.run(AttentionCall(*given(n=300), backward=CallOptions()))
    assert order == [(Direction.forward,)]
    hold.set()
    begun()
    assert order[1] == (Direction.backward,)
    assert len(order) > 2


@pytest.mark.parametrize("name", ["large and small tiles", "parts", "listed columns", "documents"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_a_backward_pass_that_follows_is_built(
    machine, begun, monkeypatch, name, deterministic, follows
):
    mask = (DOCUMENTS if name == "documents" else MASKS[name]).compile(64, target="sm_90a")
    data = {"doc": ids()} if name == "documents" else {}
    options = CallOptions(deterministic=deterministic) if follows else None
    mask.run(AttentionCall(*given(n=300), data=data, backward=options))
    begun()
    before = len(machine.built)
    monkeypatch.setattr(ahead, "start", lambda *jobs: None)
    backward(mask, *given(n=300), deterministic=deterministic, **data)
    assert (len(machine.built) == before) == follows


def test_the_compiler_is_loaded_while_a_mask_is_planned(machine, begun, monkeypatch):
    loaded = []
    monkeypatch.setattr("maskc.build.nvrtc.warm_up", loaded.append)
    DOCUMENTS.compile(64, target="sm_90a")
    assert not begun(), "there is no GPU"
    monkeypatch.setattr("maskc.build.toolchain.gpus", lambda: (object(),))
    DOCUMENTS.compile(64, target="sm_90a")
    DOCUMENTS.compile(64, target="cpu", dtype="float32")
    assert len(begun()) == 1
    assert loaded == ["sm_90a"]


TRAINED = {
    "plain": (mc.causal(), {}),
    "sinks, slopes and softcap": (mc.causal(), {
        "sink_logits": (4,), "alibi_slopes": (4,), "softcap": 20.0,
    }),
    "documents": (DOCUMENTS, {"doc": None}),
    "sequences share keys": (mc.causal(), {}),
    "parts": (STRIDED, {}),
    "listed rows and columns": (MASKS["listed rows and columns"], {}),
    "entmax": (mc.causal(), {"normalizer": "entmax"}),
    "dropout": (mc.causal(), {"dropout_p": 0.25, "dropout_seed": 3}),
    "a score": (mc.causal(), {"score": mc.scores.soft_cap(20.0)}),
    "a score with a table": (mc.causal(), {"score": mc.scores.alibi(), "slopes": (4,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_tensors_that_require_grad(machine, begun, monkeypatch, name):
    """torch says that a backward pass follows."""
    torch = pytest.importorskip("torch")
    from maskc.testing.emulator import machine as emulator

    monkeypatch.setitem(LIBRARIES, torch.Tensor, emulator._Torch())
    mask, options = TRAINED[name]
    options = {
        key: torch.rand(x, requires_grad=True) if isinstance(x, tuple) else x
        for key, x in options.items()
    }
    if "doc" in options:
        options["doc"] = torch.zeros(1, 300, dtype=torch.int32)
    attn = mask.compile(64, n_heads=4, target="sm_90a", score=options.pop("score", None))
    q = torch.zeros(2, 4, 300, 64, dtype=torch.bfloat16, requires_grad=True)
    k = torch.zeros(
        1 + (name != "sequences share keys"), 2, 300, 64, dtype=torch.bfloat16, requires_grad=True
    )
    out = attn(q, k, k, **options)
    begun()
    before = len(machine.built)
    monkeypatch.setattr(ahead, "start", lambda *jobs: None)
    out.sum().backward()
    assert len(machine.built) == before


def test_a_process_ends_after_its_builds():
    """Threads of autograd are daemons to Python. Those that they start must not be: a process that
    ended while NVRTC runs would crash."""
    code = """
        import threading, time
        from maskc.runtime.launch import ahead

        def job():
            time.sleep(0.5)
            print("built")

        thread = threading.Thread(target=ahead.start, args=([job],), daemon=True)
        thread.start()
        thread.join()
    """
    ended = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "built\n"
