"""Arrays of every library in, results of the same library out, and what a call costs in copies."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from maskc.core.errors import NotAnArray, NotContiguous
from maskc.core.tensors import order_of, out_strides
from maskc.runtime import CompiledMask
from maskc.runtime.arrays import foreign
from maskc.runtime.arrays import known as arrays
from tests.support.bundles import bundle

ROOT = Path(__file__).parents[2]


class Exporter:
    """An array known by DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Standard(Exporter):
    """An array of a library that follows the array API standard."""

    @property
    def dtype(self):
        return self._array.dtype

    @property
    def device(self):
        return "cpu"

    def __array_namespace__(self):
        return Standard

    float32 = np.float32

    @staticmethod
    def zeros(shape, dtype, device):
        return Standard(np.zeros(shape, dtype))


@pytest.fixture(scope="module")
def mask() -> CompiledMask:
    made = CompiledMask(bundle("band"), "cpu")
    made.warmup()
    return made


@pytest.fixture(scope="module")
def qkv() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    shapes = ((2, 4, 70, 32), (2, 2, 90, 32), (2, 2, 90, 48))
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def test_torch(mask, qkv):
    want, want_lse = mask(*qkv, return_lse=True)
    given = [torch.from_numpy(x) for x in qkv]
    out, lse = mask(*given, return_lse=True)
    assert type(out) is torch.Tensor
    assert (out.dtype, lse.dtype) == (torch.float32, torch.float32)
    np.testing.assert_array_equal(out.numpy(), want)
    np.testing.assert_array_equal(lse.numpy(), want_lse)
    gradients = mask.backward(*given, out, lse, out)
    for found, expected in zip(gradients, mask.backward(*qkv, want, want_lse, want), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_parameters_that_require_grad(mask, qkv):
    given = [torch.nn.Parameter(torch.from_numpy(x)) for x in qkv]
    out = mask(*given)
    assert out.requires_grad
    out = mask.launch(*given)  # which has no graph
    assert not out.requires_grad
    np.testing.assert_array_equal(out.numpy(), mask(*qkv))


def test_torch_bfloat16_equals_ml_dtypes():
    mask = CompiledMask(bundle("band", dtype="bfloat16"), "cpu")
    rng = np.random.default_rng(0)
    shapes = ((1, 2, 20, 32), (1, 2, 20, 32), (1, 2, 20, 48))
    given = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in given]
    out, exported = mask(*given), mask(*map(Exporter, tensors))
    assert out.dtype == ml_dtypes.bfloat16
    assert exported.dtype == ml_dtypes.bfloat16
    found = mask(*tensors)
    assert found.dtype == torch.bfloat16
    np.testing.assert_array_equal(found.view(torch.int16).numpy(), out.view(np.int16))
    np.testing.assert_array_equal(exported.view(np.int16), out.view(np.int16))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_tokens_before_heads(mask, qkv, library):
    """[B, N, H, D] storage works, and the result is stored alike."""
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in qkv]
    if library == "torch":
        swapped = [torch.from_numpy(x) for x in swapped]
    out = mask(*swapped)
    np.testing.assert_array_equal(np.asarray(out), mask(*qkv))
    stored = out.transpose(1, 2) if library == "torch" else out.swapaxes(1, 2)
    contiguous = stored.is_contiguous() if library == "torch" else stored.flags.c_contiguous
    assert contiguous


def test_gradients_are_stored_like_their_inputs():
    """Check q, k and v of one shape, some stored as [B, N, H, D]."""
    mask = CompiledMask(bundle("band", head_dim_v=32), "cpu")
    rng = np.random.default_rng(0)
    plain = [torch.from_numpy(rng.standard_normal((2, 4, 70, 32), np.float32)) for _ in range(3)]
    out, lse = mask(*plain, return_lse=True)
    want = mask.backward(*plain, out, lse, out)
    for swapped in ((0,), (1,), (1, 2), (0, 1, 2)):
        given = list(plain)
        for i in swapped:
            given[i] = plain[i].transpose(1, 2).contiguous().transpose(1, 2)
        gradients = mask.backward(*given, out, lse, out)
        assert [x.stride() for x in gradients] == [x.stride() for x in given]
        for got, expected in zip(gradients, want, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_strides_of_any_kind(mask, qkv):
    """Slices, reversed tokens and expanded heads."""
    q, k, v = qkv
    wide = np.concatenate([q, q], axis=3)[..., 32:]
    np.testing.assert_array_equal(mask(wide, k, v), mask(q, k, v))
    backwards = np.ascontiguousarray(k[:, :, ::-1])[:, :, ::-1]
    np.testing.assert_array_equal(mask(q, backwards, v), mask(q, k, v))
    shared = np.broadcast_to(k[:, :1], k.shape)
    np.testing.assert_array_equal(mask(q, shared, v), mask(q, np.ascontiguousarray(shared), v))


def test_dlpack(mask, qkv):
    out, lse = mask(*map(Exporter, qkv), return_lse=True)
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, mask(*qkv))
    gradients = mask.backward(*map(Exporter, (*qkv, out, lse, out)))
    for found, expected in zip(gradients, mask.backward(*qkv, out, lse, out), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_array_api_standard(mask, qkv):
    out = mask(*map(Standard, qkv))
    assert type(out) is Standard
    np.testing.assert_array_equal(out._array, mask(*qkv))


def test_dlpack_without_cuda_core(mask, qkv, monkeypatch):
    monkeypatch.setattr(foreign, "_strided_view", lambda: None)
    np.testing.assert_array_equal(mask(*map(Exporter, qkv)), mask(*qkv))


def test_arrays_of_a_type_that_is_new_are_planned_once(qkv):
    class Own(torch.Tensor):
        """Known by its base."""

    mask = CompiledMask(bundle("band"), "cpu")
    for _ in range(2):
        mask(*(torch.from_numpy(x).as_subclass(Own) for x in qkv))
    assert len(mask._plans._values) == 1


def test_libraries_mix(mask, qkv):
    q, k, v = qkv
    out = mask(torch.from_numpy(q), k, Exporter(v))
    assert type(out) is torch.Tensor
    np.testing.assert_array_equal(out.numpy(), mask(*qkv))


def test_a_type_whose_arrays_move(mask, qkv):
    """Where the last array of a type was is a guess; pinned memory is the host's."""

    class Pinned(Exporter):
        def __dlpack_device__(self):
            return 3, 0

    for kind in (Exporter, Pinned):
        moving = type("Moving", (kind,), {})
        for last in (arrays.HOST, ("cuda", 0), ("cuda", -1)):
            foreign._PLACES[moving] = last
            given = [moving(torch.from_numpy(x)) for x in qkv]
            np.testing.assert_array_equal(mask(*given), mask(*qkv))
            assert foreign._PLACES[moving] == arrays.HOST


@pytest.mark.parametrize("thing", [None, [[1.0]], 3, "q", np.float32])
def test_not_an_array(mask, qkv, thing):
    with pytest.raises(NotAnArray, match="q is "):
        mask(thing, *qkv[1:])


def test_a_tensor_without_memory(mask, qkv):
    sparse = torch.from_numpy(qkv[0]).to_sparse()
    with pytest.raises(NotAnArray, match=r"layout torch.sparse_coo[\s\S]*to_dense\(\)"):
        mask(sparse, *qkv[1:])


def test_a_device_dlpack_numbers_but_nobody_knows(mask, qkv):
    class Elsewhere(Exporter):
        def __dlpack_device__(self):
            return 7, 0

    with pytest.raises(NotAnArray, match="DLPack device type 7"):
        mask(Elsewhere(qkv[0]), *qkv[1:])


def test_strides_that_are_no_whole_elements():
    packed = np.zeros(10, np.dtype([("x", "f4"), ("y", "i1")]))["x"]
    with pytest.raises(NotContiguous):
        arrays.LIBRARIES[np.ndarray].view(packed, "q")


def test_another_byte_order_has_another_name():
    view = arrays.LIBRARIES[np.ndarray].view(np.zeros(2, ">f4"), "q")
    assert view.dtype == ">f4"


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 0, 3, 4)])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_strides_of_results(shape, order):
    for x in (np.zeros(1, np.float32), torch.zeros(1)):
        library = arrays.LIBRARIES.get(type(x)) or arrays.LIBRARIES[type(arrays.library(x, "x"))]
        made, pointer = library.empty(x, arrays.Output(shape, order, dtype="float32"))
        view = library.view(made, "made")
        assert view.pointer == pointer or 0 in shape
        assert view.shape == shape
        if 0 not in shape:
            assert view.strides == out_strides(shape, order)
            like = library.empty(made, arrays.Output(shape, order, like_q=True))
            again = library.view(like[0], "like")
            assert (again.shape, again.strides) == (view.shape, view.strides)
            assert again.pointer != view.pointer


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_axes_in_memory(order):
    assert order_of((2, 3, 4, 5), out_strides((2, 3, 4, 5), order)) == order
    inside = torch.zeros(*((2, 3, 4)[axis] for axis in order), 2, 5)[..., 0, :]  # of packed tensors
    inside = inside.permute(*(order.index(axis) for axis in range(3)), 3)
    assert order_of(inside.shape, inside.stride()) == order


def test_axes_that_memory_does_not_place_stay_where_they_are():
    assert order_of((1, 3, 4, 5), (5, 20, 5, 1)) == (0, 1, 2)
    assert order_of((1, 3, 4, 5), (1, 5, 15, 1)) == (0, 2, 1)
    assert order_of((2, 1, 4, 5), (5, 5, 10, 1)) == (2, 0, 1)
    assert order_of((2, 3, 4, 5), (0, 20, 5, 1)) == (0, 1, 2)
    assert order_of((2, 3, 4, 5), (60, 0, 5, 1)) == (0, 1, 2)


def test_importing_the_runtime_and_calling_with_numpy_loads_no_array_library():
    script = (
        "import sys, maskc.runtime.generated\n"
        "print([n for n in ('torch', 'cupy', 'sympy', 'islpy', 'jinja2') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_pinned_memory_is_kept_until_its_copy_is_over(monkeypatch):
    """Whatever the stream: the pool would hand it out again at once. Graphs keep their own."""

    class Event:
        def __init__(self, disable_timing):
            self.done = False

        def record(self, stream):
            self.stream = stream

    def capturing(pointer):
        return pointer == 3

    runtime = SimpleNamespace(streamIsCapturing=capturing)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Event=Event))
    held = deque()
    monkeypatch.setattr(arrays, "_copying", held)
    for stream in (1, 2, 3):
        arrays._keep_until_copied(cupy, f"memory {stream}", SimpleNamespace(ptr=stream))
    assert [memory for _, memory in held] == ["memory 1", "memory 2"]
    held[0][0].done = True
    arrays._keep_until_copied(cupy, "memory 4", SimpleNamespace(ptr=1))
    assert [memory for _, memory in held] == ["memory 2", "memory 4"]
