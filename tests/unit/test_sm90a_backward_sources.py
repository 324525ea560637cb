"""Sources of backward passes beside the usual ones, judged as those are: small and tall tiles, and
dq that is stored once."""

from __future__ import annotations

import pytest

from maskc.core.problem import Feature
from tests.unit.test_sm90a_sources import (
    ALL,
    BACKWARD,
    NONE,
    SINGLE,
    SM_90A,
    SMALL,
    SMALL_DIMS,
    TALL,
    distinct,
    gate,
    jobs,
    unit,
)

APART = (ALL - {Feature.softcap}, ALL - {Feature.alibi})
"""The largest sets of features that fit tall tiles."""


@pytest.mark.parametrize("head_dim", SMALL_DIMS)
def test_small_tiles_backward(head_dim):
    names = ("streaming", "bigbird_itc")
    gate(jobs([unit(name, BACKWARD, head_dim, form=SMALL) for name in names], NONE, ALL))


def test_tall_tiles():
    found = [unit(name, BACKWARD, 128, form=TALL) for name in ("causal", "sliding_window")]
    gate(jobs(found, NONE, *SINGLE, *APART))


@pytest.mark.xfail(strict=True, reason="spills 8 and 4 bytes")
@pytest.mark.parametrize(("head_dim", "form"), [(64, ""), (128, TALL)])
def test_softcap_with_alibi(head_dim, form):
    gate(jobs([unit("causal", BACKWARD, head_dim, form=form)], ALL))


def test_dq_without_sums():
    found = [unit("block_diagonal", BACKWARD, dim) for dim in SM_90A.head_dims]
    found += [unit("natten_2d", BACKWARD, dim, form=SMALL) for dim in SMALL_DIMS]
    gate(jobs(found, NONE, once=True))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_matrix_of_tall_tiles(dtype):
    gate(jobs(distinct(BACKWARD, 128, dtype, TALL), NONE, *SINGLE, *APART))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
def test_matrix_without_sums(head_dim):
    gate(jobs(distinct(BACKWARD, head_dim, "bfloat16"), NONE, once=True))
