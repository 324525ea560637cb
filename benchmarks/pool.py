"""Decoding from a pool of pages, beside caches of each sequence's own.

    python -m benchmarks.pool -o benchmarks/results/pool-h100.json

Every sequence has one query, and its keys in the pages of a pool that all share, in any order. The
mask says where they lie: docs/programs/paged_cache.py. `own caches` reads the same keys where each
sequence has its own, one after another; `copied` takes the pages together and gives them to
PyTorch. All are checked against fp64 first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import maskc as mc
from maskc.verify.timing import Timed, take_turns

HEADS, KV_HEADS, DIM = 32, 8, 128
MASK = mc.documents("owner") & mc.causal(at=mc.positions(q="at", k="position"))
CASES = ((32, 8192, 128), (32, 8192, 64), (32, 8192, 16), (8, 32768, 128), (64, 1024, 128),
         (128, 4096, 128))  # fmt: skip
"""Sequences, tokens of each, tokens of a page."""
_SPARE = 1.25
"""Times as many pages as are in use."""
_BOUND = 2e-2
_ROUNDS = 30


@dataclass(frozen=True)
class Pool:
    """Sequences of one length; pages are shuffled."""

    sequences: int
    tokens: int
    page: int

    @cached_property
    def pages(self) -> torch.Tensor:
        """int64 [sequences, pages of each]."""
        each = self.tokens // self.page
        order = torch.randperm(int(_SPARE * self.sequences * each), device="cuda")
        return order[: self.sequences * each].view(self.sequences, each)

    @cached_property
    def keys_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [1, KV_HEADS, slots, DIM]."""
        slots = int(_SPARE * self.pages.numel()) * self.page
        k, v = (
            torch.randn(1, KV_HEADS, slots, DIM, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        return k, v

    @cached_property
    def queries(self) -> torch.Tensor:
        """bf16 [sequences, HEADS, 1, DIM]."""
        return torch.randn(self.sequences, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)

    @cached_property
    def given(self) -> dict[str, Any]:
        """The mask's data: whose each slot is, and which token of that sequence."""
        owner = torch.full(self.keys_values[0].shape[2:3], -1, dtype=torch.int32, device="cuda")
        position, tokens = torch.zeros_like(owner), torch.arange(self.page, device="cuda")
        slots = (self.pages[..., None] * self.page + tokens).view(self.sequences, -1)
        sequences = torch.arange(self.sequences, dtype=torch.int32, device="cuda")[:, None]
        owner[slots] = sequences
        position[slots] = torch.arange(self.tokens, dtype=torch.int32, device="cuda")
        newest = torch.full_like(sequences, self.tokens - 1)
        return {"owner": (sequences, owner), "at": newest, "position": position}

    def together(self) -> tuple[torch.Tensor, ...]:
        """Keys and values of each sequence, [sequences, KV_HEADS, tokens, DIM]."""
        paged = (x.view(KV_HEADS, -1, self.page, DIM)[:, self.pages] for x in self.keys_values)
        return tuple(x.reshape(KV_HEADS, self.sequences, -1, DIM).transpose(0, 1) for x in paged)

    def rivals(self) -> dict[str, Callable[[], torch.Tensor]]:
        """Calls that return out [sequences, HEADS, 1, DIM]."""
        q, given, full = self.queries, self.given, mc.full()
        own = tuple(x.contiguous() for x in self.together())
        shared = tuple(x.expand(self.sequences, -1, -1, -1) for x in self.keys_values)
        rows = {"owner": (given["owner"][0].view(-1), given["owner"][1]),
                "at": given["at"].view(-1), "position": given["position"]}  # fmt: skip

        def anew() -> torch.Tensor:
            given["at"].add_(0)  # as the next token would: lists are made again
            return mc.attention(q, *shared, MASK, **given)

        def side_by_side() -> torch.Tensor:
            rows_of_q = q.permute(2, 1, 0, 3).contiguous()  # heads become rows of one tile
            out = mc.attention(rows_of_q, *self.keys_values, MASK, **rows)
            return out.permute(2, 1, 0, 3)

        return {
            "own caches": lambda: mc.attention(q, *own, full),
            "pool": lambda: mc.attention(q, *shared, MASK, **given),
            "pool, lists made": anew,
            "pool, queries side by side": side_by_side,
            "copied": lambda: scaled_dot_product_attention(q, *self.together(), enable_gqa=True),
        }

    def check(self, out: torch.Tensor) -> float:
        """The largest distance from fp64, of a few sequences.

        Raises:
            SystemExit: it is too far.
        """
        some = slice(0, 2)
        k, v = (x[some].double().repeat_interleave(HEADS // KV_HEADS, 1) for x in self.together())
        scores = self.queries[some].double() @ k.mT * DIM**-0.5
        found = float((torch.softmax(scores, -1) @ v - out[some].double()).abs().max())
        if not found < _BOUND:
            raise SystemExit(f"{self}: {found} from fp64")
        return found


@torch.no_grad()
def measure(case: tuple[int, int, int]) -> dict[str, Any]:
    """Check and time one case; milliseconds."""
    pool = Pool(*case)
    rivals = pool.rivals()
    errors = {name: pool.check(run()) for name, run in rivals.items()}
    times = take_turns({name: Timed(run) for name, run in rivals.items()}, _ROUNDS, "cuda")
    return {"sequences": case[0], "tokens": case[1], "page": case[2],
            "ms": {name: round(ms, 4) for name, ms in times.items()},
            "errors": {name: round(error, 5) for name, error in errors.items()}}  # fmt: skip


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = []
    for case in CASES:
        rows.append(measure(case))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    if asked.output:
        asked.output.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
