"""Tile lists of data on a Hopper: results, CUDA graphs whose data change, streams, dead keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.listed_parts import ListedRowsPlan
from tests.support.cases import LISTS, LISTS_BY_HEAD, LISTS_OF_TARGETS, N
from tests.support.exact_attention import called, tensors
from tests.support.hopper import no_waiting
from tests.support.judged_lists import judged, near, on_device


def drawn(name, seed):
    """(mask, data on the host, data on the card)."""
    mask, data = LISTS[name].drawn(seed)
    return mask, data, {key: on_device(value, "cuda") for key, value in data.items()}


def made(dim=64, kv_heads=2):
    return tensors(N, N, dim, torch.bfloat16, 3, batch=2, heads=4, kv_heads=kv_heads)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(("dim", "kv_heads"), [(64, 2), (128, 4)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_results(name, dim, kv_heads, deterministic):
    """Lists of the device give what the host's give; tiles that nobody sees are never read."""
    given, plans = made(dim, kv_heads), (ListsPlan, ListedRowsPlan)
    attn, found, held, live = judged(
        LISTS[name], given, dim, plans=plans, deterministic=deterministic
    )
    dead = torch.tensor(~live.any((1, 2)))  # [batch or 1, keys]
    whole = dead[:, : N // 128 * 128].unflatten(1, (-1, 128)).all(-1)  # in tiles of any size
    dead[:, : N // 128 * 128] = whole.repeat_interleave(128, 1)
    dead[:, N // 128 * 128 :] = False
    for x in given[1:3]:
        x[dead[:, None].expand(2, kv_heads, N)] = torch.nan
    near(attn(*given[:3], **held), found["out"])


@pytest.mark.parametrize("name", LISTS_OF_TARGETS)
@pytest.mark.parametrize("target", ["sm_80", "simt"])
def test_other_targets(name, target):
    """The bits of lists that the host made, and nothing waits."""
    case, given = LISTS_OF_TARGETS[name], made()
    attn, _, held, _ = judged(case, given, 1, target, same_bits=("out",))
    with no_waiting():
        called(attn, *given, held)
    assert isinstance(attn._last[1], ListsPlan)


@pytest.mark.parametrize("name", LISTS_BY_HEAD)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "simt"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_heads_with_lists_of_their_own(name, target, deterministic):
    judged(LISTS_BY_HEAD[name], made(), 3, target, by_head=True, bound=3e-2,
           deterministic=deterministic)  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_graphs_follow_their_data(name):
    mask, _, held = drawn(name, 0)
    attn = mask.compile(head_dim=128, target="sm_90a")
    q, k, v, dout = made(128)

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
        _, fresh, values = drawn(name, seed)
        for key, value in values.items():
            pairs = zip(
                *(x if isinstance(x, tuple) else (x,) for x in (held[key], value)), strict=True
            )
            for x, y in pairs:
                x.copy_(y)
        graph.replay()
        torch.cuda.synchronize()
        results = called(attn, q, k, v, dout, fresh)
        for x, key in zip((out, *gradients), ("out", "dq", "dk", "dv"), strict=True):
            near(x, results[key])


def test_lists_belong_to_their_stream():
    mask, _, held = drawn("prefix", 0)
    attn, given = mask.compile(head_dim=64, target="sm_90a"), made()[:3]
    want = attn(*given, **held)
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for turn in range(20):
        stream = streams[turn % 2]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(attn(*given, **held))
    torch.cuda.synchronize()
    assert all(torch.equal(x, want) for x in found)


def test_arrays_written_into_between_calls():
    attn = (mc.flags("x") & mc.causal()).compile(head_dim=64, target="sm_90a")
    given = made()[:3]
    flags = torch.zeros(2, N, dtype=torch.bool, device="cuda")
    for keys in range(20, N, 31):
        flags[:, :keys] = True
        out = attn(*given, x=flags)
        near(out, attn(*given, x=flags.cpu().numpy()))


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
