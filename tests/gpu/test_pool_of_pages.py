"""Decoding from a pool of pages on a card: more items than blocks, and pages smaller than tiles."""

from __future__ import annotations

import pytest
import torch

import maskc as mc

MASK = mc.documents("owner") & mc.causal(at=mc.positions(q="at", k="position"))


def pooled(lengths, page, kv_heads, dim):
    """(k, v [1, Hkv, slots, dim], owner and position [slots], the slots of each sequence)."""
    counts = [-(-length // page) for length in lengths]
    draw = torch.Generator("cuda").manual_seed(0)
    pages = torch.randperm(sum(counts) + 7, generator=draw, device="cuda")
    slots = len(pages) * page
    k, v = (
        torch.randn(1, kv_heads, slots, dim, generator=draw, device="cuda").bfloat16()
        for _ in range(2)
    )
    owner = torch.full((slots,), -1, dtype=torch.int32, device="cuda")
    position, places = torch.zeros_like(owner), []
    for sequence, own in enumerate(torch.split(pages[: sum(counts)], counts)):
        slot = (own[:, None] * page + torch.arange(page, device="cuda")).flatten()
        places.append(slot[: lengths[sequence]])
        owner[places[-1]] = sequence
        position[places[-1]] = torch.arange(lengths[sequence], device="cuda", dtype=torch.int32)
    return k, v, owner, position, places


@pytest.mark.parametrize(
    ("target", "dim", "page", "n_q"),
    [("sm_90a", 128, 64, 1), ("sm_90a", 128, 16, 1), ("sm_90a", 64, 128, 4),
     ("sm_90a", 128, 64, 20), ("sm_80", 128, 64, 1), ("simt", 64, 16, 1)],
)  # fmt: skip
def test_decoding(target, dim, page, n_q):
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(n_q, 700, (90,), generator=draw).tolist() + [5000]
    heads, kv_heads, batch = 8, 2, len(lengths)
    k, v, owner, position, places = pooled(lengths, page, kv_heads, dim)
    q = torch.randn(batch, heads, n_q, dim, device="cuda").bfloat16()
    newest = torch.tensor(lengths, dtype=torch.int32, device="cuda")[:, None] - n_q
    at = newest + torch.arange(n_q, dtype=torch.int32, device="cuda")
    sequences = torch.arange(batch, dtype=torch.int32, device="cuda")[:, None].expand(-1, n_q)
    attn = MASK.compile(head_dim=dim, target=target)
    keys, values = (x.expand(batch, -1, -1, -1) for x in (k, v))
    graph, out = torch.cuda.CUDAGraph(), None
    call = lambda: attn(q, keys, values, owner=(sequences, owner), at=at, position=position)  # noqa: E731
    call()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    for i in (0, 1, 17, 88, 89, 90):
        own_k, own_v = (x[0, :, places[i]].double().repeat_interleave(4, 0) for x in (k, v))
        scores = q[i].double() @ own_k.mT * dim**-0.5
        seen = torch.arange(lengths[i], device="cuda") <= at[i][:, None]
        want = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ own_v
        torch.testing.assert_close(out[i].double(), want, atol=2e-2, rtol=2e-2)
