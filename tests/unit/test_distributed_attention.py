"""Attention of ranks that are threads, beside one process: both passes.

Every mask on every number of ranks is tested with gloo, see test_distributed_gloo.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from tests.support import rank_threads, shared_cases  # noqa: E402
from tests.support.shared_cases import MORE, Case  # noqa: E402


def together(case: Case, size: int) -> list[torch.Tensor]:
    """out, lse and all gradients of ranks, put together."""
    made = shared_cases.planned(case, size)
    given, heads, dout = shared_cases.tensors(case)

    def job(rank: int) -> list[torch.Tensor]:
        own = torch.from_numpy(made.indices(rank))
        parts = [x.index_select(2, own) for x in given]
        if case.swapped:
            parts = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in parts]
        leaves = [x.requires_grad_() for x in parts]
        of_heads = {name: x.clone().requires_grad_() for name, x in heads.items()}
        options: dict[str, Any] = {**case.options, **of_heads}
        out, lse = mc.distributed.attention(*leaves, made, return_lse=True, **options)
        out.backward(dout.index_select(2, own))
        grads = [x.grad for x in of_heads.values()]
        return [out.detach(), lse.detach(), *(x.grad for x in leaves), *grads]

    found = rank_threads.run(size, job)
    whole = []
    order = torch.from_numpy(np.argsort(made.layout.order))
    for number, parts in enumerate(zip(*found, strict=True)):
        whole.append(torch.cat(parts, 2)[:, :, order] if number < 5 else sum(parts))
    return whole


@pytest.mark.parametrize("case", MORE, ids=lambda case: case.name)
def test_ranks_agree_with_one_process(case: Case, monkeypatch: pytest.MonkeyPatch):
    rank_threads.patch(monkeypatch)
    wanted = shared_cases.alone(case)
    wrong = shared_cases.compared(case.name, wanted, together(case, 3))
    assert not wrong, "\n".join(wrong)
