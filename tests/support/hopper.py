"""Helpers for tests of the sm_90a kernels: masks made to run a certain way, and the judge of both
passes.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import maskc as mc
from maskc.build import toolchain
from maskc.core.bundle import INTERLEAVED, SEPARATE_DQ
from maskc.core.cost import Cost
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.runtime import CompiledMask
from maskc.testing.emulator.machine import installed
from tests.support.exact_attention import DEVICE, called, exact_and_rough, tensors, wrong

TARGET, HEADS = "sm_90a", 4
PASSES = Target.named(TARGET).directions
BACKWARD = Direction.backward in PASSES
needs_backward = pytest.mark.skipif(
    not BACKWARD, reason=f"{TARGET} runs {', '.join(d.value for d in PASSES)} passes only"
)
GPU = torch.cuda.is_available() or bool(installed)
"""Whether there is one, or the emulator stands for one."""
HOPPER = GPU and any(gpu.capability == 90 for gpu in toolchain.gpus())
DIMS = Target.named(TARGET).head_dims
SIZES = [
    (1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (127, 130), (128, 127), (130, 128), (191, 193),
    (192, 191), (193, 192), (255, 257), (256, 255), (257, 256), (333, 777), (777, 333), (1, 300),
    (300, 1),
]  # fmt: skip
BAND = mc.causal() & (mc.sinks(5) | mc.window(70))


FORMS = ("small", "grid", "medium", "tiny")
WAYS = ["default", "persistent", "small default", "small persistent"]
"""Ways to run: a mode of the forward pass, with the usual sources or those with small tiles."""


# ------------------------------------------------------------------ helpers


@contextmanager
def no_waiting():
    """Whatever waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def compiled(
    mask, dim=64, dtype="bfloat16", heads=None, mode=None, most_tiles=None, row_tiles=None
):  # fmt: skip
    """A compiled mask, made to run in one of WAYS, to cut columns every `most_tiles` tiles in
    backward passes, or rows every `row_tiles` in forward passes, whatever the lengths. `dim`
    may be two head dimensions, of q and k, and of v. `mode` may be a form alone (`small`,
    `large`, `grid`, `medium` or `tiny`), which leaves the mode to the lengths, the last two the
    backward pass to the cost model, too; or `small separate_dq`: backward passes then make dq in a
    launch of its own. What is forced runs whole, not in parts.

    Skips where a mask or a head dimension has no such tiles.
    """
    of_qk, of_v = dim if isinstance(dim, tuple) else (dim, dim)
    attn = mask.compile(of_qk, head_dim_v=of_v, dtype=dtype, n_heads=heads, target=TARGET)
    units, parts, forward, backward = attn.bundle.units, attn.bundle.parts, {}, {}
    if mode is not None:
        parts = ()
        form = mode.split()[0] if mode.startswith(FORMS) else ""
        units = tuple(
            u for u in units
            if not u.directions or u.target != TARGET or u.form == form
            or (form in ("tiny", "medium") and _backward(u))
        )  # fmt: skip
        found = {_backward(u) for u in units if u.target == TARGET and u.directions}
        if found != {False, True}:
            pytest.skip(f"no {mode} tiles at head dimension {dim}")
        if mode.endswith(SEPARATE_DQ):
            units = tuple(_only(u, SEPARATE_DQ) if _backward(u) else u for u in units)
        else:
            units = tuple(unit.without(SEPARATE_DQ) for unit in units)
        if not mode.endswith((SEPARATE_DQ, "large", *FORMS)):
            names = ("persistent", INTERLEAVED)
            name = next((name for name in names if mode.endswith(name)), "default")
            units = tuple(u if _backward(u) else _only(u, name) for u in units)
    if row_tiles is not None:
        forward["most_tiles"] = row_tiles
    if most_tiles is not None:
        backward["most_tiles"] = most_tiles
    made = CompiledMask(replace(attn.bundle, units=units, parts=parts), TARGET, held=attn.held)
    return with_rules(made, forward, backward)


def in_parts(mask, dim=64, dtype="bfloat16"):
    """A compiled mask that runs in parts over listed tokens."""
    made = mask.compile(head_dim=dim, dtype=dtype, target=TARGET)
    return CompiledMask(made.bundle, TARGET, in_parts=True)


def with_rules(attn, forward, backward):
    """Return the mask with other work lists."""
    units = tuple(
        replace(unit, work=replace(unit.work, **(backward if _backward(unit) else forward)))
        if unit.work
        else unit
        for unit in attn.bundle.units
    )
    return CompiledMask(replace(attn.bundle, units=units), TARGET, held=attn.held)


def _only(unit, mode):
    """The source as one that prefers a mode whatever its tiles are."""
    unit = unit if mode == INTERLEAVED else unit.without(INTERLEAVED)
    return replace(unit, costs=(Cost(mode, 1, 0, 0),))


def _backward(unit):
    return Direction.forward not in unit.directions


def way(mode):
    """(source, mode) as `modes` names it, of one of WAYS."""
    form, _, mode = mode.rpartition(" ")
    return f"{TARGET}_{form}" if form else TARGET, mode


def parts_of(attn):
    """Parts of rows in the work lists made so far."""
    made = (tables.work for tables in attn._planner.whole.selector.tables._values.values())
    return sum(work.parts for work in made if work is not None)


def modes(attn):
    """(source, mode) of everything built so far."""
    return {(source, mode) for source, mode, _ in attn.all_reports}


@pytest.fixture(autouse=True)
def freed():
    """Memory goes back after every test: several processes share the GPU."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def nan_memory():
    """Whatever is allocated here is full of NaN (and integers of their largest value)."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(9, device=DEVICE).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(attn, given_tensors, live, data=None, deterministic=False, **features):
    """Both passes against fp64, in memory full of NaN; on a card once more: the forward's bits are
    the same, as in the emulator test_the_same_bits_in_any_order says. Returns what was found."""
    q, k, v, dout = given_tensors
    dout = dout if BACKWARD else None
    options = {"data": data, "deterministic": deterministic, **features}
    with nan_memory():
        computed = called(attn, q, k, v, dout, **options)
    sides = exact_and_rough(q, k, v, dout, live, backward=BACKWARD, **features)
    faults = wrong(computed, *sides)
    assert not faults, (tuple(q.shape), tuple(k.shape), str(q.dtype), sorted(features), faults)
    if DEVICE == "cuda":
        again = called(attn, q, k, v, **options)
        assert all(torch.equal(again[name], computed[name]) for name in ("out", "lse"))
    return computed


def same_bits(attn, made, runs, card=None, **options):
    """Check that several runs give the same bits; an emulated card draws an order of threads for
    each. Returns the results."""
    first = called(attn, *made, **options)
    for run in range(1, runs + 1):
        if card is not None:
            card.seed = 1000 * run
        again = called(attn, *made, **options)
        assert all(torch.equal(again[name], x) for name, x in first.items())
    return first


def replayed_alike(attn, q, k, v):
    """Check that a CUDA graph of a call gives what the call gives."""
    want = attn(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attn(q, k, v)
    out.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize(DEVICE)
    assert torch.equal(out, want)


def given(n_q, n_kv, dim=64, dtype="bfloat16", seed=0, batch=1, heads=2, kv_heads=1):
    """q, k, v and dout of two query heads over one, by default."""
    return tensors(n_q, n_kv, dim, half(dtype), seed, batch=batch, heads=heads, kv_heads=kv_heads)


def needs_hopper(target=TARGET):
    """Skip a test of the target without a Hopper."""
    if target == TARGET and not HOPPER:
        pytest.skip("no Hopper GPU")


def half(dtype):
    return getattr(torch, dtype)
