"""Launching on a GPU: libraries, streams, threads, graphs, devices, and both ways to launch."""

from __future__ import annotations

import threading
import timeit

import cupy
import numpy as np
import pytest
import torch

from maskc.reference.attention import attention
from maskc.runtime import CompiledMask, GeneratedMask
from maskc.runtime.launch import cuda as launch_cuda
from tests.support.bundles import bundle, cuda_unit, pairs


def on_gpu(*names: str, mode: str = "", **more):
    """A bundle with the slow CUDA source."""
    units = (cuda_unit(mode=mode),)
    return bundle(*names, dtype="bfloat16", head_dim=64, head_dim_v=64, units=units, **more)


def compiled(*names: str, **more) -> CompiledMask:
    return CompiledMask(on_gpu(*names, **more), "sm_80")


@pytest.fixture(params=["bindings", "cupy"])
def driver(request, monkeypatch) -> str:
    """Both ways to launch."""
    if request.param == "cupy":
        monkeypatch.setattr(launch_cuda, "_driver", lambda i: launch_cuda._CuPy(cupy, i))
    return request.param


def tensors(n=150, batch=2, seed=0):
    torch.manual_seed(seed)
    shapes = ((batch, 4, n, 64), (batch, 2, n, 64), (batch, 2, n, 64))
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]


def expected(given, keep, **options):
    return attention(*(x.float().cpu().numpy() for x in given), keep, **options)


def agrees(found, wanted) -> None:
    found = found.get() if isinstance(found, cupy.ndarray) else found.float().cpu().numpy()
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=2e-2)


def test_torch(driver):
    mask, given = compiled("band"), tensors()
    out, lse = mask(*given, return_lse=True)
    want, want_lse = expected(given, pairs("band", 150, 150))
    agrees(out, want)
    np.testing.assert_allclose(lse.cpu().numpy(), want_lse, atol=1e-3)
    assert (out.device, out.dtype) == (given[0].device, torch.bfloat16)


def test_features_and_strides(driver):
    mask, given = compiled("gaps"), tensors()
    sinks = torch.randn(4, device="cuda")
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    out = mask(*swapped, sink_logits=sinks)
    assert out.transpose(1, 2).is_contiguous()
    want = expected(given, pairs("gaps", 150, 150), sink_logits=sinks.cpu().numpy())[0]
    agrees(out, want)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_documents(driver, place):
    mask, given = compiled("documents"), tensors()
    doc = torch.randint(0, 3, (2, 150), dtype=torch.int32)
    keep = np.stack([pairs("documents", 150, 150, doc=(d, d)) for d in doc.numpy()])
    agrees(mask(*given, doc=doc.to(place)), expected(given, keep[:, None])[0])


def test_cupy_and_dlpack(driver):
    mask, given = compiled("band"), tensors()
    arrays = [cupy.from_dlpack(x.view(torch.int16)).view("bfloat16") for x in given]

    class Exported:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    want = mask(*given).view(torch.int16).cpu().numpy()
    for kind in (lambda x: x, Exported):
        out = mask(*map(kind, arrays))
        assert isinstance(out, cupy.ndarray)
        np.testing.assert_array_equal(out.get().view(np.int16), want)
    out = mask(*map(Exported, given))
    np.testing.assert_array_equal(out.get().view(np.int16), want)


def test_a_stream_of_ones_own(driver):
    """Inputs are written on that stream, late; a launch elsewhere would read too early."""
    mask, given = compiled("band"), tensors()
    want = mask(*given)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = [torch.zeros_like(x) for x in given]
        torch.cuda._sleep(50_000_000)
        for x, y in zip(late, given, strict=True):
            x.copy_(y)
        out = mask(*late)
    stream.synchronize()
    assert torch.equal(out, want)


def test_threads_that_never_touched_cuda(driver):
    mask, given = compiled("band"), tensors()
    want, found = mask(*given), []
    threads = [threading.Thread(target=lambda: found.append(mask(*given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(out, want) for out in found)


def test_a_graph(driver):
    mask, given = compiled("documents"), tensors()
    doc = np.arange(150) // 40
    mask(*given, doc=doc)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mask(*given, doc=doc)
    fresh = tensors(seed=1)
    for x, y in zip(given, fresh, strict=True):
        x.copy_(y)
    for n in range(1, 40):  # push the captured tables out of every cache
        mask(*tensors(n), doc=np.zeros(n, int))
    mask._plans._values.clear()
    mask._planner.whole.selector.tables._values.clear()
    graph.replay()
    agrees(out, expected(fresh, pairs("documents", 150, 150, doc=(doc, doc)))[0])


def close(found, wanted) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", ["items", "stream"])
def test_work_lists(driver, mode):
    """Every item once, with heads that differ and with sequences that do, call after call."""
    heads = (0, 1, 1, 0)
    masks = [compiled("band", "gaps", head_variant=heads, mode=m) for m in ("", mode)]
    documents = [compiled("documents", mode=m) for m in ("", mode)]
    doc = np.sort(np.random.default_rng(0).integers(0, 4, (3, 700)), axis=1)
    for n in (1, 150, 700):
        given = tensors(n, 3)
        for _ in range(3):
            close(*(mask(*given) for mask in masks))
        close(*(mask(*given, doc=doc[:, :n]) for mask in documents))


def test_graphs_of_one_stream_replayed_at_the_same_time(driver):
    """Blocks fetch items from a counter: each captured launch has its own, zero after it."""
    mask, given = compiled("band", mode="stream"), tensors(3000, 1)
    want = mask(*given)
    torch.cuda.synchronize()
    graphs, outs = [], []
    capture = torch.cuda.Stream()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=capture):
            outs += [mask(*given) for _ in range(2)]
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):
        for out in outs:
            out.zero_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        again = mask(*given)
        torch.cuda.synchronize()
        assert torch.equal(again, want)
        assert all(torch.equal(out, want) for out in outs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device(driver):
    mask, given = compiled("band"), tensors()
    want = mask(*given)
    with torch.cuda.device(0):
        out = mask(*(x.to("cuda:1") for x in given))
    assert out.device.index == 1
    assert torch.equal(out.cpu(), want.cpu())


def test_a_module_finds_the_gpu():
    made, given = on_gpu("band"), tensors()
    agrees(GeneratedMask(made).attention(*given), expected(given, pairs("band", 150, 150))[0])


@pytest.mark.parametrize(("batch", "n_q", "n_kv"), [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_nothing_to_see(driver, batch, n_q, n_kv):
    mask = compiled("band")
    q = torch.randn(batch, 4, n_q, 64, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, 2, n_kv, 64, device="cuda", dtype=torch.bfloat16)
    out, lse = mask(q, k, k, return_lse=True)
    assert (out == 0).all()
    assert torch.isneginf(lse).all()


def test_host_time(capsys):
    """Printed, not judged."""
    mask, given = compiled("band"), tensors(4, 1)
    for name, arrays in (
        ("torch", given),
        ("cupy", [cupy.from_dlpack(x.view(torch.int16)).view("bfloat16") for x in given]),
    ):
        rounds = timeit.repeat(lambda x=arrays: mask(*x), number=300, repeat=9)
        torch.cuda.synchronize()
        with capsys.disabled():
            print(f"\nhost time of a call on {name}: {min(rounds) / 300 * 1e6:.1f} us")
