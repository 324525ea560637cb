"""Short rows on a Hopper: the source with small tiles, and when a call takes it.

Run with `make test-gpu`. The bound is the contract's, see tests/support/exact_attention.py; what
all sources share is in test_sm90a.py, parametrised over WAYS.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from tests.support.exact_attention import called, live_pairs, tensors
from tests.support.hopper import WAYS, check, compiled, modes

SHORT = {
    "blocks of 16": mc.block_diagonal(16),
    "sinks and a window": mc.causal() & (mc.sinks(16) | mc.window(63)),
    "every other row is empty": mc.block_diagonal(64) & mc.where(lambda q, k: q // 64 % 2 == 0),
    "one long row": mc.block_diagonal(64) | mc.global_tokens(1),
}


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", SHORT)
def test_more_short_rows_than_blocks(name, dim, mode):
    """Rows of one tile and of a few, several for every block that runs at once."""
    attn, mask, n = compiled(SHORT[name], dim, mode=mode), SHORT[name], 1024
    made = tensors(n, n, dim, torch.bfloat16, batch=2, heads=48, kv_heads=24)
    check(attn, made, live_pairs(mask, n, n))


@pytest.mark.parametrize("dim", [64, 128])
def test_short_rows_take_small_tiles(dim):
    mask, n = SHORT["sinks and a window"], 4096
    attn = compiled(mask, dim)
    check(attn, tensors(n, n, dim, torch.bfloat16, batch=1, heads=2, kv_heads=1),
          live_pairs(mask, n, n))  # fmt: skip
    assert ("sm_90a_small", "persistent") in modes(attn)
    assert "sm_90a" not in {source for source, _ in modes(attn)}


def test_data_of_each_sequence_do_not_choose_for_others():
    """Alone or in a batch, a sequence with data of its own has the same bits."""
    n, mask = 640, (mc.causal() & mc.documents("doc")) | mc.window(0)  # has both sources
    attn = compiled(mask, 64)
    doc = np.stack([np.arange(n) // 16, np.zeros(n, int)]).astype(np.int32)
    made = tensors(n, n, 64, torch.bfloat16)
    whole = called(attn, *made[:3], data={"doc": doc})
    for number in range(2):
        rows = slice(number, number + 1)
        alone = called(attn, *(x[rows] for x in made[:3]), data={"doc": doc[rows]})
        assert all(torch.equal(x, whole[name][rows]) for name, x in alone.items())
    shared = called(attn, *made[:3], data={"doc": doc[0]})
    assert ("sm_90a_small", "default") in modes(attn)
    assert torch.allclose(shared["out"][:1].float(), whole["out"][:1].float(), atol=2**-6)
