"""Documents on a Hopper: lists made where ids are, and the same bits wherever a document lies.

Run with `make test-gpu`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DataRange, DataShape
from maskc.runtime.device_lists.lists_launch import ListsPlan
from tests.support import cases
from tests.support.documents import lengths_on_device, lengths_on_host, neighbours_change_no_bit
from tests.support.exact_attention import DEVICE, called, tensors
from tests.support.hopper import DIMS, check, compiled, nan_memory, no_waiting

MASKS = cases.masks(cases.DOCUMENTS, cases.CARD)


def packed(n: int, longest: int, rng) -> np.ndarray:
    lengths = rng.integers(1, longest + 1, n)
    return np.repeat(np.arange(n), lengths)[:n]


def ids(kind: str, batch: int, n: int, seed: int = 0) -> np.ndarray:
    """[batch, n], every sequence with documents of its own."""
    rng = np.random.default_rng(seed)
    made = {
        "packed": lambda: packed(n, min(n, 3000), rng),
        "short": lambda: packed(n, 70, rng) - 5,
        "shorter": lambda: packed(n, 6, rng),
        "runs": lambda: np.repeat(rng.integers(0, 5, n), rng.integers(1, 90, n))[:n],
        "any": lambda: rng.integers(-(2**31), 2**31, 4)[rng.integers(0, 4, n)],
    }
    return np.stack([made[kind]() for _ in range(batch)])


def on_device(values, dtype="int32"):
    return torch.as_tensor(np.asarray(values), device=DEVICE).to(getattr(torch, dtype))


def alike(found, want):
    return {name for name, x in want.items() if not torch.equal(found[name], x)}


def listed(attn) -> bool:
    """Whether the last call made its lists on the device."""
    return isinstance(attn._last[1], ListsPlan)


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("kind", ["packed", "short", "shorter", "runs", "any"])
@pytest.mark.parametrize("name", MASKS)
def test_the_host_gives_the_same_bits(name, kind):
    """All results of the forward and the deterministic backward pass."""
    attn = compiled(MASKS[name], 128)
    for number, (batch, n) in enumerate([(1, 1), (2, 130), (3, 777), (1, 2999)]):
        made, doc = tensors(n, n, 128, torch.bfloat16, number, batch=batch), ids(kind, batch, n)
        want = called(attn, *made, {"doc": doc}, deterministic=True)
        assert not listed(attn)
        dtype = ["int32", "int64"][number % 2]
        with nan_memory():
            results = called(attn, *made, {"doc": on_device(doc, dtype)}, deterministic=True)
        assert listed(attn)
        assert not alike(results, want), (batch, n)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_against_fp64(dim, deterministic):
    mask = MASKS["causal"]
    for kind in ("packed", "short", "runs"):
        doc = ids(kind, 2, 1000)
        live = torch.tensor(np.stack([mask.dense(1000, doc=own) for own in doc]), device=DEVICE)
        made, attn = tensors(1000, 1000, dim, torch.bfloat16, 3), compiled(mask, dim)
        check(attn, made, live[:, None], {"doc": on_device(doc)}, deterministic)
        assert listed(attn)


def test_features():
    doc = ids("packed", 2, 900)
    features = {
        "softcap": 20.0, "scale": -0.1,
        "alibi_slopes": torch.rand(4, device=DEVICE), "sink_logits": torch.rand(4, device=DEVICE),
    }  # fmt: skip
    made = tensors(900, 900, 64, torch.float16, 5)
    attn = compiled(MASKS["causal"], 64, "float16")
    want = called(attn, *made, {"doc": doc}, deterministic=True, **features)
    results = called(attn, *made, {"doc": on_device(doc)}, deterministic=True, **features)
    assert listed(attn)
    assert not alike(results, want)


def test_queries_and_keys_of_their_own():
    """Different lengths; ids of queries for all sequences, of keys for each."""
    rng, attn = np.random.default_rng(0), compiled(MASKS["causal"], 128)
    for n_q, n_kv in ((300, 1000), (1000, 300), (1, 500)):
        made = tensors(n_q, n_kv, 128, torch.bfloat16)
        of_q, of_k = rng.integers(0, 3, n_q), np.sort(rng.integers(0, 3, (2, n_kv)))
        want = called(attn, *made, {"doc": (of_q, of_k)}, deterministic=True)
        pair = on_device(of_q), on_device(of_k, "int64")
        results = called(attn, *made, {"doc": pair}, deterministic=True)
        assert listed(attn)
        assert not alike(results, want)


def test_cumulative_lengths():
    attn = compiled(MASKS["causal"], 128)
    ends = np.array([[0, 5, 5, 300, 700], [0, 0, 128, 256, 700]])
    made = tensors(700, 700, 128, torch.bfloat16)
    want = called(attn, *made, {"doc": mc.cu_seqlens(ends)}, deterministic=True)
    for dtype in ("int32", "int64"):
        given = {"doc": mc.cu_seqlens(on_device(ends, dtype))}
        assert not alike(called(attn, *made, given, deterministic=True), want)
        assert listed(attn)


def test_strided_ids():
    attn, doc = compiled(MASKS["causal"], 64), on_device(ids("packed", 2, 500))
    wide = torch.stack([doc, doc + 7], -1)
    made = tensors(500, 500, 64, torch.bfloat16)
    want = called(attn, *made, {"doc": doc}, deterministic=True)
    assert not alike(called(attn, *made, {"doc": wide[..., 0]}, deterministic=True), want)
    assert listed(attn)


# ------------------------------------------------------------------ wherever a document lies


@pytest.mark.parametrize(
    ("name", "dim"), [("full", 128), ("window", 128), *(("causal", dim) for dim in DIMS)]
)
def test_neighbours_change_no_bit(name, dim):
    neighbours_change_no_bit(
        compiled(MASKS[name], dim), dim, (1, 37, 128, 200, 1500), lambda own: on_device([7] * own),
        [([300], [5, 600]), ([64, 65, 66], []), ([129, 64, 700], [333])], [lengths_on_device],
    )  # fmt: skip


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", ["full", "causal", "window", "sinks"])
def test_neighbours_change_no_bit_of_short_documents(name, dim):
    """In the smaller tiles that the promised length needs, on the device and on the host."""
    on_both = [partial(where, most=80) for where in (lengths_on_device, lengths_on_host)]
    neighbours_change_no_bit(
        compiled(MASKS[name], dim), dim, (1, 37, 64, 80), lambda own: on_both[0]([own]),
        [([30], [5, 60]), ([64, 65, 66], []), ([79, 64, 70] * 20, [33] * 9)], on_both,
    )  # fmt: skip


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["full", "causal", "sinks"])
def test_short_documents_against_fp64(name, dim, deterministic):
    """With lists that leave out what is further away than a document is long."""
    rng, attn = np.random.default_rng(dim), compiled(MASKS[name], dim)
    for most in (20, 80, 300):
        lengths = rng.integers(0, most + 1, 4000 // most)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        n, doc = int(ends[-1]), np.repeat(np.arange(len(lengths)), lengths)
        live = torch.tensor(MASKS[name].dense(n, doc=doc), device=DEVICE)
        made = tensors(n, n, dim, torch.bfloat16, 3)
        given = {"doc": mc.cu_seqlens(on_device(ends), max_seqlen=most)}
        with nan_memory():
            check(attn, made, live, given, deterministic)
        assert listed(attn)


# ------------------------------------------------------------------ calls


def test_nothing_waits():
    attn, made = compiled(MASKS["causal"], 128), tensors(1024, 1024, 128, torch.bfloat16)
    documents = [on_device(ids("packed", 2, 1024, seed), "int64") for seed in range(4)]
    called(attn, *made, {"doc": documents[0]})
    torch.cuda.synchronize()
    with no_waiting():
        found = [called(attn, *made, {"doc": doc}) for doc in documents]
        with pytest.raises(RuntimeError, match="synchronizing"):
            documents[0].cpu()
    for doc, each in zip(documents, found, strict=True):
        want = called(attn, *made, {"doc": doc.cpu().numpy()})
        assert torch.equal(each["out"], want["out"])


def test_a_graph_reads_new_documents():
    attn, made = compiled(MASKS["causal"], 128), tensors(900, 900, 128, torch.bfloat16)
    doc = on_device(ids("packed", 2, 900))
    called(attn, *made, {"doc": doc}, deterministic=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = called(attn, *made, {"doc": doc}, deterministic=True)
    for seed, kind in enumerate(["short", "packed", "any", "packed"], start=1):
        other = ids(kind, 2, 900, seed)
        doc.copy_(on_device(other))
        graph.replay()
        want = called(attn, *made, {"doc": other}, deterministic=True)
        torch.cuda.synchronize()
        assert not alike(results, want), kind


def test_streams_at_the_same_time():
    attn = compiled(MASKS["causal"], 64)
    made = [tensors(900, 900, 64, torch.bfloat16, i) for i in range(4)]
    documents = [on_device(ids("packed", 2, 900, i)) for i in range(4)]
    want = [
        called(attn, *each, {"doc": doc}, deterministic=True)
        for each, doc in zip(made, documents, strict=True)
    ]
    streams = [torch.cuda.Stream() for _ in made]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for stream, each, doc in zip(streams, made, documents, strict=True):
            with torch.cuda.stream(stream):
                found.append(called(attn, *each, {"doc": doc}, deterministic=True))
    torch.cuda.synchronize()
    assert not any(alike(x, want[i % 4]) for i, x in enumerate(found))


def test_cupy():
    cupy = pytest.importorskip("cupy")
    attn, doc = compiled(MASKS["causal"], 64, "float16"), ids("packed", 2, 400)
    made = tensors(400, 400, 64, torch.float16)
    given = [cupy.from_dlpack(x) for x in made]
    want = called(attn, *made, {"doc": doc}, deterministic=True)
    for other in (cupy.asarray(doc.astype("i8")), on_device(doc)):
        results = called(attn, *given, {"doc": other}, deterministic=True)
        assert listed(attn)
        assert all(cupy.array_equal(cupy.from_dlpack(x), results[name]) for name, x in want.items())


def test_autograd():
    made, doc = tensors(500, 500, 64, torch.bfloat16), ids("packed", 2, 500)
    gradients = []
    for given in (doc, on_device(doc)):
        leaves = [x.clone().requires_grad_() for x in made[:3]]
        out = mc.attention(*leaves, MASKS["causal"], deterministic=True, doc=given)
        out.backward(made[3])
        gradients.append([out.detach(), *(x.grad for x in leaves)])
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


@pytest.mark.parametrize("case", ["id", "order", "start", "longer"])
def test_what_is_wrong_is_spoilt_and_said(case):
    attn, made = compiled(MASKS["causal"], 64), tensors(600, 600, 64, torch.bfloat16)
    good = torch.zeros(600, dtype=torch.int64, device=DEVICE)
    if case == "id":
        bad = good.clone()
        bad[333] = 1 << 40
    else:
        ends = {
            "order": [0, 400, 300, 600], "start": [1, 600],
            "longer": [0, 80, 161, 220, 300, 370, 450, 530, 600],
        }[case]  # fmt: skip
        bad = mc.cu_seqlens(on_device(ends), max_seqlen=80 if case == "longer" else None)
    want = called(attn, *made, {"doc": good}, deterministic=True)
    results = attn(*made[:3], return_lse=True, doc=bad)
    torch.cuda.synchronize()
    assert all(x.isnan().all() for x in results)
    with pytest.raises(DataRange, match="an earlier call"):
        called(attn, *made, {"doc": good})
    gradients = attn.backward(*made[:3], want["out"], want["lse"], made[3], doc=bad)
    torch.cuda.synchronize()
    assert all(x.isnan().all() for x in gradients)
    with pytest.raises(DataRange, match="an earlier call"):
        called(attn, *made, {"doc": good})
    assert not alike(called(attn, *made, {"doc": good}, deterministic=True), want)


def test_the_host_refuses_what_does_not_fit():
    attn, made = compiled(MASKS["causal"], 64), tensors(600, 600, 64, torch.bfloat16)
    for shape in ((599,), (3, 600), (1, 2, 600)):
        with pytest.raises(DataShape):
            attn(*made[:3], doc=torch.zeros(shape, dtype=torch.int32, device=DEVICE))


def test_other_views_run_through_the_host():
    """No tensor map can have these strides: other kernels run, whose lists the host makes."""
    attn, doc = compiled(MASKS["causal"], 64), ids("packed", 2, 300)
    q, k, v, _ = tensors(300, 300, 64, torch.bfloat16)
    one = k[:, :, :1].expand(k.shape)
    want = attn(q, one, v, doc=doc)
    assert torch.equal(attn(q, one, v, doc=on_device(doc)), want)
    assert not listed(attn)


def test_checked_lists_are_the_same(monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    attn, doc = compiled(MASKS["sinks"], 64), ids("packed", 2, 300)
    made = tensors(300, 300, 64, torch.bfloat16)
    results = called(attn, *made, {"doc": on_device(doc)}, deterministic=True)
    assert listed(attn)
    monkeypatch.delenv("MASKC_CHECK")
    assert not alike(called(attn, *made, {"doc": on_device(doc)}, deterministic=True), results)
