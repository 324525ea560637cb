"""The shared memory that plans for Hopper reckon with is what their sources use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maskc.core.errors import BuildFailed
from maskc.core.problem import Feature
from tests.support.ledger import build
from tests.unit.test_sm90a_sources import (
    FORWARD,
    NONE,
    PASSES,
    SM_90A,
    SMALL,
    SMALL_DIMS,
    pattern,
    unit,
    units_of,
)


@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
@pytest.mark.parametrize("direction", PASSES)
def test_planned_shared_memory_is_what_the_source_uses(direction, head_dim):
    """The plan's number holds struct Shared, and with less than a kilobyte to spare."""
    mask = pattern("causal")
    sources = [each for form in ("", SMALL) for each in
               units_of(mask, direction, head_dim, "bfloat16", form)]  # fmt: skip
    assert len(sources) == 1 + (head_dim in SMALL_DIMS)
    _check_memory(sources, direction)


@pytest.mark.parametrize("direction", PASSES)
def test_planned_shared_memory_of_narrower_values(direction):
    _check_memory(units_of(pattern("causal"), direction, 192, "bfloat16", dim_v=128), direction)


def _check_memory(sources, direction):
    wanted = [(s, *each, NONE) for s in sources for each in s.modes]
    if direction is FORWARD:  # entmax's lists
        wanted.append((sources[0], "default", sources[0].mode(), frozenset({Feature.entmax})))
    for source, name, mode, features in wanted:
        rooms = {
            "by_rows::" * each.entry.endswith("_rows"): each.shared_bytes
            for each in mode.launched(features) if each.shared_bytes
        }  # fmt: skip
        asked = "".join(
            f'static_assert(sizeof(struct {where}Shared) <= {size}, "too small");\n'
            f'static_assert(sizeof(struct {where}Shared) > {size} - 1024, "too large");\n'
            for where, size in rooms.items()
        )
        extended = replace(source, text=source.source + asked)
        build(extended, features, source.directions, arch="compute_90a", mode=name)  # no ptxas
        assert max(rooms.values()) <= SM_90A.shared_memory


@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
@pytest.mark.parametrize("direction", PASSES)
def test_what_distance_adds_fits_beside_it(direction, head_dim):
    """Arrays of a kernel's own come on top of what a launch asks for, and the driver refuses a
    kernel that together would have more than there is."""
    alibi = frozenset({Feature.alibi})
    for form in ("", SMALL):
        for source in units_of(pattern("causal"), direction, head_dim, "bfloat16", form):
            name, mode = source.modes[0]
            built = build(source, alibi, source.directions, mode=name)
            own = {each.name: each.shared for each in built.report.kernels}
            for each in mode.launched(alibi):
                most = SM_90A.shared_bytes_of(each.resident or 1)
                assert own[each.entry] + each.shared_bytes <= most, each.entry


def test_the_size_check_can_fail():
    source = unit("causal", FORWARD, 64)
    size = source.mode().launches[0].shared_bytes
    wrong = f'static_assert(sizeof(struct Shared) > {size}, "");\n'
    with pytest.raises(BuildFailed):
        build(replace(source, text=source.source + wrong), NONE, (FORWARD,), arch="compute_90a")
