"""Sources of backward passes beside the usual ones, judged as those are: small tiles, and dq
that is stored once."""

from __future__ import annotations

import pytest

from maskc.core.bundle import SEPARATE_DQ
from maskc.core.problem import Feature
from tests.unit.test_sm90a_sources import (
    ALL,
    BACKWARD,
    NONE,
    SM_90A,
    SMALL,
    SMALL_DIMS,
    SMALL_EACH,
    Job,
    distinct,
    gate,
    jobs,
    unit,
)


@pytest.mark.parametrize("head_dim", SMALL_EACH)
def test_small_tiles_backward(head_dim):
    names = ("streaming", "bigbird_itc")
    found = [unit(name, BACKWARD, head_dim, form=SMALL) for name in names]
    capped = [Job(each, frozenset({Feature.softcap}), SEPARATE_DQ) for each in found]
    gate(jobs(found, NONE, ALL) + capped)


@pytest.mark.xfail(strict=True, reason="spills 8 bytes")
def test_softcap_with_alibi():
    gate(jobs([unit("causal", BACKWARD, 64)], ALL))


def test_dq_without_sums():
    found = [unit("block_diagonal", BACKWARD, dim) for dim in SM_90A.head_dims]
    found += [unit("natten_2d", BACKWARD, dim, form=SMALL) for dim in SMALL_DIMS]
    gate(jobs(found, NONE, once=True))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
def test_matrix_without_sums(head_dim):
    gate(jobs(distinct(BACKWARD, head_dim, "bfloat16"), NONE, once=True))
