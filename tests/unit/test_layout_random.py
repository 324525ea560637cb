"""The draw of random_blocks is fixed for ever: known numbers, and its definition in integers."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import IntegerTooWide
from maskc.layout.inputs.random_draw import draw, first_row, splitmix64, step, table_rows
from tests.support.drawn_masks import WORD, split_mix


def plain_hash(seed: int, row: int, column: int) -> int:
    return split_mix((split_mix((split_mix(seed % WORD) + row) % WORD) + column) % WORD)


def test_known_numbers() -> None:
    assert int(step(np.uint64(0))) == 0xE220A8397B1DCDAF
    assert int(splitmix64(0, 0, 0)) == split_mix(split_mix(0xE220A8397B1DCDAF))


@pytest.mark.parametrize("seed", [0, 7, 2**63, 2**64 + 3])
def test_the_hash_is_its_definition(seed: int) -> None:
    rows, columns = np.arange(-5, 6)[:, None], np.arange(9)
    expected = [[plain_hash(seed, int(i), int(j)) for j in columns] for i in rows[:, 0]]
    assert splitmix64(seed, rows, columns).tolist() == expected


@pytest.mark.parametrize("per_row", [0, 1, 3, 12, 13, 40])
def test_each_row_draws_the_least_hashes(per_row: int) -> None:
    table = draw(11, per_row, -4, 9, 13)
    for r, row in enumerate(table):
        order = sorted(range(13), key=lambda j: (plain_hash(11, r - 4, j), j))
        assert sorted(order[:per_row]) == np.flatnonzero(row).tolist()


def test_equal_hashes_go_to_the_lower_column(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = np.array([[5, 1, 5, 5, 9]], dtype=np.uint64)
    monkeypatch.setattr(
        "maskc.layout.inputs.random_draw.splitmix64", lambda seed, rows, columns: hashes
    )
    assert draw(0, 3, 0, 1, 5).tolist() == [[1, 1, 1, 0, 0]]


@pytest.mark.parametrize("offset", [-9, -8, -1, 0, 1, 7, 8, 30])
@pytest.mark.parametrize("n_q", [0, 1, 8, 9, 21])
def test_rows_cover_the_positions_of_the_queries(offset: int, n_q: int) -> None:
    reached = {(q + offset) // 8 - first_row(offset, 8) for q in range(n_q)}
    assert reached == set(range(table_rows(n_q, offset, 8)))


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63, 2**64 - 1])
def test_seeds_are_integers_of_64_bits(seed: int) -> None:
    mask = mc.random_blocks(2, 1, seed)
    for row, live in enumerate(mask.dense(12)[::2, ::2]):
        assert live.argmax() == min(range(6), key=lambda j: plain_hash(seed, row, j))
    assert mask.count(12) == 24
    assert np.array_equal(mask.layout(12, block=(2, 2)).to_dense() > 0, mask.dense(12)[::2, ::2])
    assert mc.parse(str(mask)) == mask
    assert mask.equals(mc.random_blocks(2, 1, seed % 2**64)) is True


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64])
def test_other_seeds_are_refused(seed: int) -> None:
    with pytest.raises(IntegerTooWide, match="random_blocks"):
        mc.random_blocks(2, 1, seed)
