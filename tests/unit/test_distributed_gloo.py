"""Ranks as processes with gloo: twelve masks, shards, models and failures."""

from __future__ import annotations

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("torch has no torch.distributed", allow_module_level=True)

from tests.support import ranks, shared_cases

pytestmark = pytest.mark.slow


def failures(found: list[object]) -> str:
    wrong = []
    for rank, each in enumerate(found):
        wrong += [f"rank {rank} {each}"] if isinstance(each, str) else (each or [])
    return "\n".join(map(str, wrong))


def test_twelve_masks_on_up_to_eight_ranks():
    """fp32 1e-5 from one process, both passes."""
    wrong = failures(ranks.run(shared_cases.all_cases, max(shared_cases.SIZES)))
    assert not wrong, wrong


def test_shards_models_and_disagreements():
    pytest.importorskip("transformers")
    from tests.support import shared_models

    wrong = failures(ranks.run(shared_models.everything, 4))
    assert not wrong, wrong


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_modules_in_two_processes(kind: str) -> None:
    from tests.unit.test_nn import gradients_of_two

    assert ranks.run(gradients_of_two, 2, kind, seconds=120) == [None, None]


def test_a_rank_that_dies_is_named():
    from tests.support import shared_models

    told = ranks.run(shared_models.dying, 3, seconds=120, dies=(0,))
    assert told[0] is None
    assert "MC705" in told[1], told[1]
    assert "rank 0" in told[1], told[1]


@pytest.mark.parametrize(
    "job",
    [
        "calls_that_end_early",
        "captured_tables",
        "data_of_a_moment",
        "index_tensors",
        "layouts_of_others",
    ],
)
def test_two_ranks(job: str):
    from tests.support import shared_faults

    wrong = failures(ranks.run(getattr(shared_faults, job), 2, seconds=60))
    assert not wrong, wrong
