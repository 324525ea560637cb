"""Tile lists of data on a Hopper: results, CUDA graphs whose data change, streams, dead keys."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.data import CuSeqlens
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.listed_parts import ListedRowsPlan

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper",
    ),
]

from tests.support.exact_attention import called, tensors  # noqa: E402
from tests.support.hopper import no_waiting  # noqa: E402
from tests.unit.test_emulated_data_lists import (  # noqa: E402
    BY_HEAD,
    MASKS,
    OF_TARGETS,
    N,
    dense,
    exact,
)


def there(given):
    if isinstance(given, CuSeqlens):
        return mc.cu_seqlens(there(given.array))
    return tuple(map(there, given)) if isinstance(given, tuple) else torch.tensor(given).cuda()


def drawn(name, seed):
    mask, makers = MASKS[name]
    rng = np.random.default_rng(seed)
    return mask, {key: maker(rng) for key, maker in makers.items()}


def live_of(mask, data):
    found = mask.dense(N, **data)
    return found if found.ndim == 4 else found[:, None] if found.ndim == 3 else found


def close(found, want):
    torch.testing.assert_close(found.double().cpu(), want.double().cpu(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("dim", "kv_heads"), [(64, 2), (128, 4)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_results(name, dim, kv_heads, deterministic):
    """Lists of the device give what the host's give; tiles that nobody sees are never read."""
    mask, data = drawn(name, dim)
    attn = mask.compile(head_dim=dim, target="sm_90a")
    given = tensors(N, N, dim, torch.bfloat16, 3, batch=2, heads=4, kv_heads=kv_heads)
    live = live_of(mask, data)
    found = called(
        attn, *given, {k: there(v) for k, v in data.items()}, deterministic=deterministic
    )
    assert isinstance(attn._last[1], (ListsPlan, ListedRowsPlan))
    close(found["out"], exact(*(x.cpu() for x in given[:3]), live))
    want = called(attn, *given, data, deterministic=deterministic)
    for key, x in want.items():
        close(found[key], x)
    dead = torch.tensor(~live.any((1, 2)))  # [batch or 1, keys]
    whole = dead[:, : N // 128 * 128].unflatten(1, (-1, 128)).all(-1)  # in tiles of any size
    dead[:, : N // 128 * 128] = whole.repeat_interleave(128, 1)
    dead[:, N // 128 * 128 :] = False
    for x in given[1:3]:
        x[dead[:, None].expand(2, kv_heads, N)] = torch.nan
    again = attn(*given[:3], **{k: there(v) for k, v in data.items()})
    close(again, found["out"])


@pytest.mark.parametrize("name", [*MASKS, *OF_TARGETS])
@pytest.mark.parametrize("target", ["sm_80", "simt"])
def test_other_targets(name, target):
    """The bits of lists that the host made, and nothing waits."""
    mask, makers = {**MASKS, **OF_TARGETS}[name]
    rng = np.random.default_rng(1)
    data = {key: maker(rng) for key, maker in makers.items()}
    attn = mask.compile(head_dim=64, target=target)
    given = tensors(N, N, 64, torch.bfloat16, 3, batch=2, heads=4, kv_heads=2)
    held = {key: there(value) for key, value in data.items()}
    called(attn, *given, held)  # builds
    with no_waiting():
        found = called(attn, *given, held)
    assert isinstance(attn._last[1], ListsPlan)
    want = called(attn, *given, data)
    assert torch.equal(found["out"], want["out"])
    for key, x in want.items():
        close(found[key], x)
    close(found["out"], exact(*(x.cpu() for x in given[:3]), dense(mask, data)))


@pytest.mark.parametrize("name", BY_HEAD)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "simt"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_heads_with_lists_of_their_own(name, target, deterministic):
    mask, makers = BY_HEAD[name]
    rng = np.random.default_rng(3)
    data = {key: maker(rng) for key, maker in makers.items()}
    attn = mask.compile(head_dim=64, target=target)
    given = tensors(N, N, 64, torch.bfloat16, 3, batch=2, heads=4, kv_heads=2)
    held = {key: there(value) for key, value in data.items()}
    found = called(attn, *given, held, deterministic=deterministic)
    assert isinstance(attn._last[1], ListsPlan)
    want = called(attn, *given, data, deterministic=deterministic)
    for key, x in want.items():
        torch.testing.assert_close(found[key], x, atol=3e-2, rtol=3e-2)
    live = dense(mask, data, by_head=True)
    close(found["out"], exact(*(x.cpu() for x in given[:3]), live))


@pytest.mark.parametrize("name", MASKS)
def test_graphs_follow_their_data(name):
    mask, data = drawn(name, 0)
    attn = mask.compile(head_dim=128, target="sm_90a")
    q, k, v, dout = tensors(N, N, 128, torch.bfloat16, 3, batch=2, heads=4, kv_heads=2)
    held = {key: there(value) for key, value in data.items()}

    def both():
        out, lse = attn(q, k, v, return_lse=True, **held)
        return out, attn.backward(q, k, v, out, lse, dout, **held)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, gradients = both()
    for seed in (1, 2):
        _, fresh = drawn(name, seed)
        for key, value in fresh.items():
            pairs = zip(
                *(x if isinstance(x, tuple) else (x,) for x in (held[key], there(value))),
                strict=True,
            )
            for x, y in pairs:
                x.copy_(y)
        graph.replay()
        torch.cuda.synchronize()
        found = called(attn, q, k, v, dout, fresh)
        for x, key in zip((out, *gradients), ("out", "dq", "dk", "dv"), strict=True):
            close(x, found[key])


def test_lists_belong_to_their_stream():
    mask, data = drawn("prefix", 0)
    attn, held = mask.compile(head_dim=64, target="sm_90a"), there(data["x"])
    given = tensors(N, N, 64, torch.bfloat16, 3, batch=2, heads=4, kv_heads=2)[:3]
    want = attn(*given, x=held)
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for turn in range(20):
        stream = streams[turn % 2]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(attn(*given, x=held))
    torch.cuda.synchronize()
    assert all(torch.equal(x, want) for x in found)


def test_arrays_written_into_between_calls():
    attn = (mc.flags("x") & mc.causal()).compile(head_dim=64, target="sm_90a")
    given = tensors(N, N, 64, torch.bfloat16, 3, batch=2, heads=4, kv_heads=2)[:3]
    flags = torch.zeros(2, N, dtype=torch.bool, device="cuda")
    for keys in range(20, N, 31):
        flags[:, :keys] = True
        found = attn(*given, x=flags)
        close(found, attn(*given, x=flags.cpu().numpy()))


def test_cupy_arrays_are_read_every_time():
    cupy = pytest.importorskip("cupy")
    attn = (mc.flags("x") & mc.causal()).compile(head_dim=64, dtype="float16", target="sm_90a")
    rng = np.random.default_rng(0)
    q, k, v = (cupy.asarray(rng.standard_normal((1, 2, N, 64)).astype("f2")) for _ in range(3))
    flags = cupy.ones(N, bool)
    for keys in (250, 100, 299):
        flags[...] = cupy.arange(N) < keys
        found, want = (attn(q, k, v, x=x) for x in (flags, flags.get()))
        cupy.testing.assert_allclose(found, want, atol=2e-2)
