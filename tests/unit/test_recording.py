"""Calls on paper: what was written down, run afterwards, is what the call computes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import NotRecorded
from maskc.core.tensors import PAPER, contiguous
from maskc.runtime.launch import cuda
from maskc.runtime.launch.recording import MADE, Blank, Clear, HostStep, PaperDriver, recording
from maskc.testing.emulator import machine

MASK = mc.causal() & (mc.sinks(4) | mc.window(16))
NAMES = {"float32": np.float32, "bfloat16": np.uint16}


def blank(number, x, device):
    strides = tuple(step // x.itemsize for step in x.strides)
    dtype = {np.dtype(np.uint16): "bfloat16"}.get(x.dtype, x.dtype.name)
    return Blank(number, x.shape, strides, dtype, (device, PAPER))


class Replay:
    """Runs a recording over NumPy's memory."""

    def __init__(self, found, given):
        self.found = found
        self.buffers = dict(enumerate(given))
        for number, (output, dtype) in enumerate(found.made, MADE):
            self.buffers[number] = np.full(output.in_memory[0], 77, NAMES[dtype])
        self.tables = [table.values.copy() for table in found.tables]

    def address(self, place):
        own = self.tables[-1 - place.buffer] if place.buffer < 0 else self.buffers[place.buffer]
        return own.ctypes.data + place.shift

    def run(self):
        for step in self.found.steps:
            if isinstance(step, Clear):
                self.buffers[step.number].fill(0)
                continue
            block = bytearray(step.block)
            for place in step.places:
                block[place.at : place.at + 8] = self.address(place).to_bytes(8, "little")
            held = ctypes.create_string_buffer(bytes(block), len(block))
            if isinstance(step, HostStep):
                step.entry(held, step.threads)
                continue
            kinds = {9: "bfloat16", 6: "float16"}
            maps = b"".join(
                machine.encode(self.address(x.place), x.dims, x.strides, x.box, kinds[x.kind])
                for x in step.maps
            )
            aligned = np.zeros(len(maps) + 64, np.uint8)
            first = -aligned.ctypes.data % 64
            aligned[first : first + len(maps)] = np.frombuffer(maps, np.uint8)
            places = (ctypes.c_void_p * 2)(ctypes.addressof(held), aligned.ctypes.data + first)
            machine.run(
                machine.loaded(*step.function.code), step.function.entry,
                ctypes.addressof(places), step.blocks, step.threads, step.shared,
            )  # fmt: skip

    def result(self, x):
        """An array of the recording, in memory."""
        output, _ = self.found.made[x.number - MADE]
        made, axes = self.buffers[x.number], output.in_memory[1]
        return made.transpose(axes) if axes else made


def inputs(dtype, n=90, dim=64):
    """q, k, v and dout as [B, H, N, D] over memory [B, N, H, D]; bf16 as its bits."""
    draws = np.random.default_rng(0)
    made = [draws.standard_normal((2, n, heads, dim)).astype(np.float32) for heads in (4, 2, 2, 4)]
    if dtype == "bfloat16":
        made = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in made]
    return [x.transpose(0, 2, 1, 3) for x in made]


def replayed(attn, device, given, run):
    with recording() as found:
        results = run([blank(number, x, device) for number, x in enumerate(given)])
    replay = Replay(found, given)
    for _ in range(2):  # tables serve again
        replay.run()
    return [replay.result(x) for x in results]


@pytest.mark.parametrize("mask", [MASK, mc.causal() & (mc.window(8) | mc.dilated(64, stride=4))])
def test_a_recorded_call_on_the_host_is_the_call(mask):
    attn = mask.compile(head_dim=64, dtype="float32", target="cpu")
    q, k, v, dout = inputs("float32")
    out, lse = attn(q, k, v, return_lse=True)
    outputs = replayed(attn, "cpu", [q, k, v], lambda x: attn.launch(*x, return_lse=True))
    np.testing.assert_array_equal(outputs[0], out)
    np.testing.assert_array_equal(outputs[1], lse)
    back = attn.backward(q, k, v, out, lse, dout, deterministic=True)
    outputs = replayed(
        attn, "cpu", [q, k, v, out, lse, dout], lambda x: attn.backward(*x)
    )  # fmt: skip
    for one, other in zip(outputs, back, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def card(monkeypatch):
    """An emulated Hopper, and paper that stands for it."""
    torch = pytest.importorskip("torch")
    driver = machine.install(monkeypatch)
    paper = PaperDriver(driver)
    monkeypatch.setattr(cuda, "_driver", lambda device: paper if device >= PAPER else driver)
    yield torch
    machine.installed.clear()


@pytest.mark.parametrize("name", ["closed forms", "documents"])
def test_a_recorded_call_of_a_card_is_the_call(card, name):
    torch, mask, data = card, MASK, []
    if name == "documents":
        mask, data = mc.causal() & mc.documents("doc"), [np.arange(90, dtype=np.int32) // 25]
    attn = mask.compile(head_dim=64, dtype="bfloat16", target="sm_90a")
    given = inputs("bfloat16")
    q, k, v, dout = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in given)

    def own(arrays):
        return {"doc": arrays[0]} if arrays else {}

    kept = own([torch.from_numpy(x) for x in data])
    out, lse = attn(q, k, v, return_lse=True, **kept)
    outputs = replayed(
        attn, "cuda", [*given[:3], *data],
        lambda x: attn.launch(*x[:3], return_lse=True, data=own(x[3:])),
    )  # fmt: skip
    np.testing.assert_array_equal(outputs[0].view(np.int16), out.view(torch.int16).numpy())
    np.testing.assert_array_equal(outputs[1], lse.numpy())
    back = attn.backward(q, k, v, out, lse, dout, **kept)
    bits = out.view(torch.int16).numpy().view(np.uint16)
    outputs = replayed(
        attn, "cuda", [*given[:3], bits, lse.numpy(), given[3], *data],
        lambda x: attn.backward(*x[:6], **own(x[6:])),
    )  # fmt: skip
    for one, other in zip(outputs, back, strict=True):
        values = (np.ascontiguousarray(one).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(values, other.float().numpy(), rtol=2e-2, atol=2e-3)


def test_results_in_the_order_of_their_inputs_and_workspaces_are_buffers():
    attn = MASK.compile(head_dim=64, dtype="float32", target="cpu")
    q, k, v, _ = inputs("float32")
    with recording() as found:
        out, lse = attn.launch(
            *(blank(i, x, "cpu") for i, x in enumerate((q, k, v))), return_lse=True
        )
    assert out.array.strides == tuple(step // 4 for step in q.strides)
    assert lse.array.strides == contiguous((2, 4, 90))
    assert [x.number for x in (out, lse)] == [MADE, MADE + 1]
    assert all(place.buffer in (0, 1, 2, MADE, MADE + 1) for place in found.steps[0].places)


def test_arrays_without_memory_outside_of_a_recording():
    attn = MASK.compile(head_dim=64, dtype="float32", target="cpu")
    q, k, v, _ = inputs("float32")
    with pytest.raises(NotRecorded, match="outside of a recording"):
        attn.launch(*(blank(i, x, "cpu") for i, x in enumerate((q, k, v))))


def test_rows_that_the_host_moves_are_not_written_down():
    mask = mc.window(64, 64) | mc.global_tokens("g", at_most=8)
    attn = mask.compile(head_dim=64, dtype="float32", target="cpu")
    with pytest.raises(NotRecorded, match="moves rows"):
        attn._planner.listed.mover(PAPER)
