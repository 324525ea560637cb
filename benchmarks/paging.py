"""Decoding and chunked prefill over pages, compared with the same lengths in caches without pages.

    python -m benchmarks.paging -o benchmarks/results/paging-h200.json

`kept` reuses a plan, as all layers of a step after the first one do; `made` changes its arrays
before each call. `contiguous` is maskc on caches of each sequence's own, `sdpa` PyTorch on them.
All outputs are checked against fp32 first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskc as mc
from maskc.verify.timing import Timed, take_turns

HEADS, KV_HEADS, DIM = 32, 8, 128
_BOUND = 2e-2
_ROUNDS = 20


def pooled(lengths: list[int], page: int) -> tuple[torch.Tensor, ...]:
    """(k pool, v pool, page table [S, W]) with shuffled pages and a quarter more than are used."""
    counts = [-(-n // page) for n in lengths]
    order = torch.randperm(int(1.25 * sum(counts)), device="cuda").int()
    shape = len(order), page, KV_HEADS, DIM
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device="cuda")
    for sequence, pages in enumerate(order[: sum(counts)].split(counts)):
        table[sequence, : len(pages)] = pages
    return k, v, table


def caches(pool: torch.Tensor, table: torch.Tensor, n: int) -> torch.Tensor:
    """[S, heads, n, D], a cache of each sequence's own."""
    rows = pool[table.long()].reshape(len(table), -1, KV_HEADS, DIM)[:, :n]
    return rows.transpose(1, 2).contiguous()


def timed(lengths: list[int], new: int, page: int) -> dict[str, float]:
    """Milliseconds by rival."""
    k_pool, v_pool, table = pooled(lengths, page)
    sequences, longest = len(lengths), max(lengths)
    q = torch.randn(sequences * new, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    attn = mc.paged(mc.causal(), page_size=page, head_dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS)
    plan = attn.plan(table, new, lens)
    k, v = (caches(pool, table, longest) for pool in (k_pool, v_pool))
    own = q.view(sequences, new, HEADS, DIM).transpose(1, 2).contiguous()
    last = torch.arange(longest, device="cuda")
    place = lens[:, None] - new + torch.arange(new, device="cuda")
    seen = (last <= place[..., None])[:, None]
    spans = torch.zeros_like(place).int(), (place + 1).int()
    ragged = mc.intervals("span").compile(head_dim=DIM)
    equal = len(set(lengths)) == 1

    def contiguous() -> Any:
        return mc.attention(own, k, v, mc.causal()) if equal else ragged(own, k, v, span=spans)

    def made() -> Any:
        plan.update(table, new, lens)
        return attn.run(q, k_pool, v_pool, plan)[0]

    rivals = {
        "kept": lambda: attn.run(q, k_pool, v_pool, plan)[0],
        "made": made,
        "contiguous": contiguous,
    }
    rows = max(1, (1 << 28) // (HEADS * longest * new * 4))
    got = rivals["kept"]().view(sequences, new, HEADS, DIM).transpose(1, 2)
    for first in range(0, sequences, rows):
        part = slice(first, first + rows)
        want = scaled_dot_product_attention(
            own[part].float(), k[part].float(), v[part].float(), seen[part], enable_gqa=True
        )
        for name, out in (("paged", got), ("contiguous", contiguous())):
            worst = float((out[part].float() - want).abs().max())
            if not worst < _BOUND:
                raise SystemExit(f"{name} is wrong by {worst}")
    if equal and new == 1:
        rivals["sdpa"] = lambda: scaled_dot_product_attention(own, k, v, enable_gqa=True)
    found = take_turns({name: Timed(run) for name, run in rivals.items()}, _ROUNDS, "cuda", 0.6)
    return {name: round(ms, 4) for name, ms in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    out, results = parser.parse_args().output, {}
    rng = np.random.default_rng(0)
    prefill = np.linspace(4096, 32768, 6).astype(int).tolist()
    ragged = rng.integers(1024, 16385, 64).tolist()
    cases = {
        "decode 32 x 8192": ([8192] * 32, 1, (16, 64, 256, 1)),
        "decode 64 x 1024 to 16384": (ragged, 1, (16, 64)),
        "6 x 512 behind 4k to 32k": (prefill, 512, (16, 256)),
    }
    for name, (lengths, new, pages) in cases.items():
        for page in pages:
            results[f"{name}, pages of {page}"] = timed(lengths, new, page)
            print(f"{name}, pages of {page}", results[f"{name}, pages of {page}"], flush=True)
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
