"""Decoding, chunked prefill and token trees over pages, compared with other paged kernels.

    python -m benchmarks.paging -o benchmarks/results/paged-rivals-h200.json

`kept` reuses a plan, as all layers of a step after the first one do; `made` changes its arrays
before each call. `contiguous` is maskc, and `sdpa` PyTorch, on caches of each sequence's own. Other
libraries read the same pages, see `paged_rivals`. A library that is not installed, or does not run
a row, is listed with the reason. All outputs are checked against fp32 first, and the file is
written after each row.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskc as mc
from benchmarks.paged_rivals import RIVALS, Call
from maskc.lab.environment import environment
from maskc.verify.timing import Timed, take_turns

_BOUND = 2e-2
_ROUNDS, _SECONDS = 20, 0.6
_SPARE = 1.25
"""Times as many pages as are used."""
_CHECKED = 4
"""Sequences whose outputs are checked: the shortest, the longest, and some between."""


@dataclass(frozen=True)
class Row:
    """A step: sequences with as many new tokens each, over pages of one size."""

    name: str
    lengths: tuple[int, ...]
    """Keys of each sequence, including its new tokens."""
    new: int
    page: int
    heads: tuple[int, int] = (32, 8)
    is_tree: bool = False
    """Whether the new tokens are a tree: each sees the context and its ancestors."""
    dim: int = 128
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        return f"{self.name}, pages of {self.page}"


def rows() -> list[Row]:
    """Return all rows."""
    rng = np.random.default_rng(0)
    ragged = tuple(rng.integers(1024, 16385, 64).tolist())
    prompts = tuple((np.linspace(4096, 32768, 6).astype(int) + 512).tolist())
    trees = tuple((rng.integers(1024, 8193, 16) + 64).tolist())
    return [
        *(Row("decode 32 x 8192", (8192,) * 32, 1, page) for page in (16, 64, 256, 128)),
        *(Row("decode 1 x 8192, 28 / 4 heads", (8192,), 1, page, (28, 4)) for page in (16, 256)),
        *(Row("decode 64 x 1024 to 16384", ragged, 1, page) for page in (16, 64)),
        *(Row("6 x 512 behind 4k to 32k", prompts, 512, page) for page in (16, 256)),
        Row("decode 32 x 8192", (8192,) * 32, 1, 1),
        Row("16 trees of 64 behind 1k to 8k", trees, 64, 16, is_tree=True),
    ]


class Step:
    """The tensors of a row. Pages are shuffled; all slots are finite, as some rivals require."""

    def __init__(self, row: Row) -> None:
        """Draw keys, values, queries and page tables."""
        self.row = row
        self.sequences, self.longest = len(row.lengths), max(row.lengths)
        counts = [-(-n // row.page) for n in row.lengths]
        here = {"device": row.device}
        order = torch.randperm(int(_SPARE * sum(counts)) + 1, **here).int()
        shape = len(order), row.page, row.heads[1], row.dim
        self.k_pool, self.v_pool = (torch.randn(shape, dtype=row.dtype, **here) for _ in range(2))
        self.table = torch.zeros(self.sequences, max(counts), dtype=torch.int32, **here)
        for sequence, pages in enumerate(order[: sum(counts)].split(counts)):
            self.table[sequence, : len(pages)] = pages
        self.pages = order[: sum(counts)]
        """The pages of all sequences, one after another."""
        self.starts = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32, **here)
        self.lens = torch.tensor(row.lengths, dtype=torch.int32, **here)
        tokens = self.sequences * row.new
        self.q = torch.randn(tokens, row.heads[0], row.dim, dtype=row.dtype, **here)
        self.q_starts = torch.arange(0, tokens + 1, row.new, dtype=torch.int32, **here)

    @property
    def queries(self) -> torch.Tensor:
        """q as [S, new, heads, D]."""
        return self.q.unflatten(0, (self.sequences, self.row.new))

    @cached_property
    def place(self) -> torch.Tensor:
        """Positions of the queries, [S, new]."""
        new = torch.arange(self.row.new, device=self.row.device)
        return self.lens[:, None] - self.row.new + new

    @cached_property
    def times(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Entry and exit times of each token's tree [S, longest]: the context is a chain, and each
        new token is a child of one of the 4 tokens before it."""
        row, rng = self.row, np.random.default_rng(1)
        enter = np.tile(np.arange(self.longest), (self.sequences, 1))
        leave = np.full_like(enter, self.longest)
        for sequence, n in enumerate(row.lengths):
            first = n - row.new
            parent = [max(i - int(rng.integers(1, 5)), -1) for i in range(row.new)]
            size = np.ones(row.new, int)
            for i in range(row.new - 1, 0, -1):
                if parent[i] >= 0:
                    size[parent[i]] += size[i]
            after = {-1: first}
            for i, above in enumerate(parent):  # children follow their parent in the walk
                enter[sequence, first + i] = after[above]
                leave[sequence, first + i] = after[above] + size[i]
                after[i] = after[above] + 1
                after[above] += size[i]
        return tuple(torch.tensor(x, dtype=torch.int32, device=row.device) for x in (enter, leave))

    def kept(self, sequence: int) -> torch.Tensor:
        """Return which keys the queries of a sequence see, booleans [new, n]."""
        n, place = self.row.lengths[sequence], self.place[sequence][:, None]
        if not self.row.is_tree:
            return torch.arange(n, device=self.row.device) <= place
        enter, leave = (x[sequence, :n] for x in self.times)
        of_query = enter[place.long()]
        return (enter <= of_query) & (of_query < leave)

    def caches(self, sequences: slice | list[int], n: int) -> list[torch.Tensor]:
        """Return the first n keys and values of sequences, [S, heads, n, D], without pages."""
        table = self.table[sequences].long()
        whole = (pool[table].flatten(1, 2)[:, :n] for pool in (self.k_pool, self.v_pool))
        return [x.transpose(1, 2).contiguous() for x in whole]

    def error(self, out: torch.Tensor) -> float:
        """Return the largest distance of an output [tokens, heads, D] from fp32."""
        order = np.argsort(self.row.lengths)
        some = order[np.linspace(0, len(order) - 1, min(_CHECKED, len(order))).astype(int)]
        out, worst = out.reshape(self.queries.shape), 0.0
        for sequence in some.tolist():
            k, v = self.caches([sequence], self.row.lengths[sequence])
            q = self.queries[sequence].transpose(0, 1)[None].float()
            want = scaled_dot_product_attention(
                q, k.float(), v.float(), self.kept(sequence), enable_gqa=True
            )
            apart = (out[sequence].transpose(0, 1).float() - want[0]).abs().max()
            worst = max(worst, float(apart.nan_to_num(torch.inf)))
        return worst


def over_pages(step: Step) -> dict[str, Call]:
    """Return maskc's calls over pages: with a plan that is kept, and with a new one."""
    row = step.row
    heads, kv_heads = row.heads
    mask = mc.tree("tree") if row.is_tree else mc.causal()
    attn = mc.paged(
        mask, page_size=row.page, head_dim=row.dim, n_heads=heads, n_kv_heads=kv_heads,
        dtype=row.dtype, target=None if row.device == "cuda" else row.device,
    )  # fmt: skip
    data: dict[str, Any] = {"tree": step.times} if row.is_tree else {}
    plan = attn.plan(step.table, row.new, step.lens, max_seqlen_kv=step.longest, **data)

    def kept() -> torch.Tensor:
        out: torch.Tensor = attn.run(step.q, step.k_pool, step.v_pool, plan)[0]
        return out

    def made() -> torch.Tensor:
        plan.update(step.table, row.new, step.lens, **data)
        return kept()

    return {"kept": kept, "made": made}


def in_caches(step: Step) -> dict[str, Call]:
    """Return calls of maskc and PyTorch on a cache of each sequence's own; none for trees."""
    row = step.row
    if row.is_tree:
        return {}
    k, v = step.caches(slice(None), step.longest)
    q = step.queries.transpose(1, 2).contiguous()
    if len(set(row.lengths)) > 1:
        spans = torch.zeros_like(step.place).int(), (step.place + 1).int()
        ragged = mc.intervals("span")
        return {"contiguous": lambda: mc.attention(q, k, v, ragged, span=spans).transpose(1, 2)}
    calls: dict[str, Call] = {
        "contiguous": lambda: mc.attention(q, k, v, mc.causal()).transpose(1, 2)
    }
    if row.new == 1:
        dense = scaled_dot_product_attention
        calls["sdpa"] = lambda: dense(q, k, v, enable_gqa=True).transpose(1, 2)
    return calls


def measure(row: Row, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Check and time a row.

    Returns:
        `ms` and `error` by name, `skipped` with the reasons, and `ratio`: time of the fastest rival
        that reads pages over that of `kept`; None if none ran.

    Raises:
        SystemExit: a result of maskc is wrong.
    """
    torch.manual_seed(0)
    step = Step(row)
    calls, errors, skipped = over_pages(step), dict[str, float](), dict[str, str]()
    calls |= in_caches(step)
    own = set(calls)
    for name, make in RIVALS.items():
        try:
            calls[name] = make(step)
        except Exception as error:  # of libraries that are not the subject here
            skipped[name] = f"{type(error).__name__}: {error}"[:300]
    for name, call in list(calls.items()):
        try:
            errors[name] = step.error(call())
        except Exception as error:
            if name in own:
                raise
            skipped[name] = f"{type(error).__name__}: {error}"[:300]
            del calls[name]
            continue
        if errors[name] < _BOUND:
            continue
        if name in own:
            raise SystemExit(f"{row.label}: {name} is wrong by {errors[name]}")
        skipped[name] = f"wrong by {errors[name]:.3g}"
        del calls[name]
    timed = {name: Timed(call) for name, call in calls.items()}
    times = take_turns(timed, rounds, row.device, _SECONDS)
    paged = [ms for name, ms in times.items() if name in RIVALS]
    return {
        "ms": {name: round(ms, 4) for name, ms in times.items()},
        "error": {name: round(errors[name], 5) for name in times},
        "skipped": skipped,
        "ratio": round(min(paged) / times["kept"], 3) if paged else None,
    }


def main() -> None:
    """Measure all rows, or those whose label contains a text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rows", default="", metavar="TEXT", help="only labels with this text")
    given = parser.parse_args()
    results: dict[str, Any] = {"environment": environment("cuda"), "rows": {}}
    with torch.inference_mode():
        for row in rows():
            if given.rows not in row.label:
                continue
            results["rows"][row.label] = measure(row)
            print(row.label, json.dumps(results["rows"][row.label]), flush=True)
            if given.output is not None:
                given.output.write_text(json.dumps(results, indent=1) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
