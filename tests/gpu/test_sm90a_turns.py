"""Deterministic backward passes on a Hopper whose columns wait for each other both ways: they end,
whatever else runs, and have the same bits on every run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import TooFewMultiprocessors
from maskc.layout.work.deterministic_order import HELD
from tests.support.exact_attention import called, live_pairs, tensors
from tests.support.hopper import check, compiled, needs_backward

MASK = mc.block_table("t", 128)
FORMS = [(64, "large"), (64, "small"), (96, "large"), (128, "large"), (128, "small"), (256, None)]


def table(share, blocks, heads=()):
    found = np.random.default_rng(0).random((*heads, blocks, blocks)) < share
    return {"t": found}  # of the host, which makes the lists whose turns these are


def both_ways(attn):
    return bool((dict(attn._last[1].tables.parts)["col_turns"] >= HELD).any())


@pytest.mark.parametrize(("dim", "mode"), FORMS)
@needs_backward
def test_right(dim, mode):
    attn, heads = compiled(MASK, dim, heads=4, mode=mode), {"heads": 4, "kv_heads": 4}
    for data in (table(0.5, 9), table(0.5, 9, (4,))):
        live = live_pairs(MASK, 1100, 1030, data, heads=4)
        made = tensors(1100, 1030, dim, torch.bfloat16, batch=2, **heads)
        results = check(attn, made, live, data, deterministic=True)
        again = called(attn, *made, data=data, deterministic=True)
        assert both_ways(attn)
        assert all(torch.equal(again[name], x) for name, x in results.items())


@pytest.fixture
def few_multiprocessors():
    """A stream that may use sixteen of them."""
    driver = pytest.importorskip("cuda.bindings.driver")

    def made(result):
        assert not result[0], result[0]
        return result[1] if len(result) > 1 else None

    torch.cuda.init()
    device = made(driver.cuDeviceGet(torch.cuda.current_device()))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    every = made(driver.cuDeviceGetDevResource(device, kind))
    some = made(driver.cuDevSmResourceSplitByCount(1, every, 0, 16))
    described = made(driver.cuDevResourceGenerateDesc(some[:1], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = made(driver.cuGreenCtxCreate(described, device, flags))
    stream = made(driver.cuGreenCtxStreamCreate(context, 1, 0))
    yield torch.cuda.ExternalStream(int(stream))
    torch.cuda.synchronize()
    made(driver.cuStreamDestroy(stream))
    made(driver.cuGreenCtxDestroy(context))


@needs_backward
def test_a_stream_with_too_few_multiprocessors_is_refused(few_multiprocessors):
    attn, data = compiled(MASK, 64, heads=4, mode="large"), table(0.5, 9)
    q, k, v, dout = tensors(1100, 1030, 64, torch.bfloat16, heads=4, kv_heads=4)
    wanted = called(attn, q, k, v, dout, data=data, deterministic=True)
    assert both_ways(attn)
    torch.cuda.synchronize()
    with torch.cuda.stream(few_multiprocessors):
        with pytest.raises(TooFewMultiprocessors, match=r"needs 128 .* may use 16\n"):
            called(attn, q, k, v, dout, data=data, deterministic=True)
        results = called(attn, q, k, v, dout, data=data)
    torch.cuda.synchronize()
    assert torch.equal(results["out"], wanted["out"])


@pytest.mark.parametrize(("dim", "mode"), FORMS)
@needs_backward
def test_the_same_bits_a_hundred_times(dim, mode):
    """More columns than blocks, among them while other work has most multiprocessors."""
    attn, data = compiled(MASK, dim, heads=24, mode=mode), table(0.25, 32)
    q, k, v, dout = tensors(4096, 4096, dim, torch.bfloat16, heads=24, kv_heads=24)
    first = called(attn, q, k, v, dout, data=data, deterministic=True)
    assert both_ways(attn)
    out, lse = first["out"], first["lse"]
    side, busy = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    for turn in range(100):
        if turn % 2:
            with torch.cuda.stream(side):
                busy = (busy @ busy).clamp(-1, 1)
        again = attn.backward(q, k, v, out, lse, dout, deterministic=True, **data)
        for name, x in zip(("dq", "dk", "dv"), again, strict=False):
            assert torch.equal(x, first[name]), name
    torch.cuda.synchronize()
