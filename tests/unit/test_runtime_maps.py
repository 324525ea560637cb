"""Tensor maps of calls to kernels for Hopper: encoding, sharing, and what no map can describe."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from maskc.core.bundle import TensorMap
from maskc.core.dtypes import DType
from maskc.core.errors import ExtraMissing, Misaligned, NotAddressable
from maskc.core.problem import Problem
from maskc.core.sizes import Sizes
from maskc.dispatch.tensor_maps import tensor
from maskc.runtime.launch import cuda as launch_cuda
from maskc.runtime.launch import tensor_maps
from tests.support.fake_cuda import Driver, Tensor
from tests.support.fake_hopper import (
    BACKWARD,
    FORWARD,
    QKVO,
    SPARE,
    backward,
    compiled,
    given,
)

# ------------------------------------------------------------------ tensor maps


def test_a_call_encodes_its_tensors_once(machine):
    mask, (q, k, v) = compiled(), given()
    out = mask(q, k, v)
    rows, tokens = (128, 128 * 150, 128 * 150 * 4), (128, 128 * 150, 128 * 150 * 2)
    assert machine.driver.encoded == [
        ("bf16", 1 << 20, (64, 150, 4, 2), rows, (64, 64, 1, 1)),
        ("bf16", 2 << 20, (64, 150, 2, 2), tokens, (64, 64, 1, 1)),
        ("bf16", 3 << 20, (64, 150, 2, 2), tokens, (64, 64, 1, 1)),
        ("bf16", out.array.pointer, (64, 150, 4, 2), rows, (64, 32, 1, 1)),
    ]
    assert machine.maps(4) == [1, 2, 3, 4]
    assert machine.driver.maps % 64 == 0
    machine.library.empty = lambda *_: (out, out.array.pointer)
    mask(q, k, v)
    assert len(machine.driver.encoded) == 4
    mask(q, v, k)  # other tensors, and the maps of known ones
    assert machine.maps(4) == [1, 3, 2, 4]
    assert len(machine.driver.encoded) == 4
    block = machine.driver.block
    assert (block.q, block.k, block.out) == (1 << 20, 3 << 20, out.array.pointer)


def test_remembered_maps_are_bounded(machine, monkeypatch):
    monkeypatch.setattr(tensor_maps, "_KEPT", 3)
    mask, (q, k, v) = compiled(), given()
    for _ in range(10):
        mask(q, k, v)
        (plan,) = mask._plans._values.values()
        assert len(plan.maps.known) <= 3


PROBLEM = Problem(64, 64, DType.float16)


def spec(name, strides, sizes=Sizes(2, 4, 2, 100, 80)):  # noqa: B008
    return tensor(TensorMap(name, 128), strides, sizes, PROBLEM, "sm_90a")


def test_dimensions_of_a_map():
    swapped = spec("q", (4 * 100 * 64, 64, 4 * 64))
    assert (swapped.dims, swapped.strides) == ((64, 100, 4, 2), (512, 128, 51200))
    for name, heads, tokens in (("dk", 2, 80), ("v", 2, 80), ("dout", 4, 100), ("dq", 4, 100)):
        assert spec(name, (1 << 16, 1 << 14, 64)).dims == (64, tokens, heads, 2)
    wide = Problem(64, 128, DType.float16)
    for name, width in (("q", 64), ("v", 128), ("dv", 128), ("out", 128), ("dk", 64)):
        sizes = Sizes(2, 4, 2, 100, 80)
        strides = (1 << 16, 1 << 14, 128)
        encoded = tensor(TensorMap(name, 64), strides, sizes, wide, "sm_90a")
        assert encoded.dims[0] == width


def test_a_shared_key_is_one_key():
    """Expanded along the batch or the heads: the kernel leaves that coordinate at 0."""
    shared = spec("k", (0, 80 * 64, 64))
    assert (shared.dims, shared.strides[:2]) == ((64, 80, 2, 1), (128, 10240))
    assert shared.strides[2] % 16 == 0 < shared.strides[2]
    assert spec("v", (80 * 64, 0, 64)).dims == (64, 80, 1, 2)
    single = spec("k", (7, 3, 1), Sizes(1, 4, 1, 100, 1))
    assert single.dims == (64, 1, 1, 1)
    assert all(stride > 0 and stride % 16 == 0 for stride in single.strides)


@pytest.mark.parametrize(
    ("strides", "text"),
    [
        ((1 << 16, 80 * 64, 68), "tokens are 136 bytes apart"),
        ((1 << 16, 80 * 64, 0), "tokens are 0 bytes apart"),
        ((1 << 16, -80 * 64, 64), "heads are -10240 bytes apart"),
        ((1 << 39, 80 * 64, 64), f"sequences are {1 << 40} bytes apart"),
    ],
)
def test_what_no_map_can_describe(strides, text):
    with pytest.raises(NotAddressable, match=text):
        spec("k", strides)


def test_tensors_without_elements_borrow_an_address(machine):
    mask, (q, k, v) = compiled(), given(n=5, n_kv=0)
    k.array = v.array = k.array._replace(pointer=0)
    mask(q, k, v)
    assert [one[1] for one in machine.driver.encoded[:2]] == [1 << 20, 1 << 20]
    assert machine.driver.encoded[1][2] == (64, 1, 1, 1)
    assert (machine.driver.block.items, machine.driver.block.empty) == (0, 8)


def test_a_forward_pass_no_map_describes_runs_elsewhere(machine):
    q, k, v = given()
    flipped = k.array._replace(strides=(k.array.strides[0], -(150 * 64), 64, 1))
    k.array = flipped
    compiled()(q, k, v)
    assert machine.launched() == [("attention_forward", 2 * 4 * 2, 128)]
    alone = compiled(units=(FORWARD, BACKWARD))
    with pytest.raises(NotAddressable, match="its heads are -19200 bytes apart"):
        alone(q, k, v)
    with pytest.raises(NotAddressable):
        backward(compiled(units=(replace(BACKWARD, maps=QKVO), FORWARD, SPARE)), q, k, v)
    assert machine.launched() == []


def test_a_result_off_the_grid_is_refused_before_a_launch(machine):
    mask, (q, k, v) = compiled(), given()
    odd = Tensor(q.array.shape, pointer=(9 << 20) + 8)
    machine.library.empty = lambda *_: (odd, odd.array.pointer)
    with pytest.raises(NotAddressable, match="does not start at a multiple of 16"):
        mask(q, k, v)
    assert machine.launched() == []
    q.array = q.array._replace(pointer=(1 << 20) + 8)
    with pytest.raises(Misaligned):
        mask(q, k, v)


def test_cupy_alone_has_no_maps(machine, monkeypatch):
    cupy = launch_cuda._CuPy(SimpleNamespace(), 0)
    cupy.load = lambda code, shared: dict.fromkeys(shared)
    cupy.multiprocessors = lambda: 1
    monkeypatch.setattr(launch_cuda, "_driver", lambda index: cupy)
    with pytest.raises(ExtraMissing, match="target sm_90a needs cuda-bindings"):
        compiled()(*given())


def test_the_real_bindings_have_what_a_map_needs():
    real = pytest.importorskip("cuda.bindings.driver")
    for kind in vars(Driver).values():
        for name in getattr(kind, "__dict__", {}):
            if name.startswith("CU_TENSOR_MAP"):
                assert any(
                    hasattr(getattr(real, kind), name)
                    for kind in dir(real)
                    if kind.startswith("CUtensorMap")
                ), name
    assert real.CUtensorMap().getPtr()
    assert int(real.cuuint64_t(1 << 39)) == 1 << 39
