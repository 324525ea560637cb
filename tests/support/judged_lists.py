"""Judges lists that a device made from data: results compared with the host, and with fp64."""

from __future__ import annotations

import torch

import maskc as mc
from maskc.core.data import CuSeqlens
from maskc.runtime.device_lists.lists_launch import ListsPlan
from tests.support.cases import N
from tests.support.exact_attention import called, exact


def on_device(given, device="cpu"):
    """Arrays, or a container of them, as tensors."""
    if isinstance(given, CuSeqlens):
        return mc.cu_seqlens(on_device(given.array, device))
    if isinstance(given, tuple):
        return tuple(on_device(one, device) for one in given)
    return torch.tensor(given, device=device)


def dense(mask, data, by_head=False):
    """bool [batch or 1, heads or 1, n_q, n_kv]."""
    live = mask.dense(N, **data)
    if live.ndim == 3:
        live = live[None] if by_head else live[:, None]
    return live


def near(result, want, bound=2e-2):
    torch.testing.assert_close(result.double().cpu(), want.double().cpu(), atol=bound, rtol=bound)


def judged(case, given, seed, target="sm_90a", *, by_head=False, same_bits=(), bound=2e-2,
           plans=(ListsPlan,), **options):  # fmt: skip
    """Call with data where the tensors are, and with the same data on the host: a device made the
    lists of the first call alone, both agree, and out is near fp64's.

    Args:
        case: the mask and its data.
        given: q, k, v and dout.
        same_bits: results that must have the same bits; `all` of them, or names.
        plans: how a call with lists of the device runs.

    Returns:
        (attention, results, data where the tensors are, live pairs)
    """
    mask, data = case.drawn(seed)
    attn = mask.compile(head_dim=given[0].shape[-1], target=target)
    there = {name: on_device(value, given[0].device) for name, value in data.items()}
    results = called(attn, *given, there, **options)
    assert isinstance(attn._last[1], plans), attn.last_sources
    want = called(attn, *given, data, **options)
    assert not isinstance(attn._last[1], ListsPlan)
    for name, x in want.items():
        if same_bits == "all" or name in same_bits:
            assert torch.equal(results[name], x), name
        near(results[name], x, bound)
    live = dense(mask, data, by_head)
    near(results["out"], exact(*given[:3], live)[0])
    return attn, results, there, live
