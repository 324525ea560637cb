"""Rivals for blocks chosen at run time: FlexAttention with a table, and fla's lists of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from benchmarks import flex_table
from benchmarks.anchors import moba
from benchmarks.chosen import ChosenPairs
from benchmarks.contest import Ask
from benchmarks.run import bench_case
from benchmarks.selection import one_selection
from benchmarks.unfused import chosen_by_torch
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.lab.rivals import Unavailable
from maskc.reference.attention import attention
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, host, make_tensors
from maskc.verify.samples import sample_data, true_mask
from tests.support.thorough import without_inductor

MASKS = {
    "groups": mc.topk(3, mc.causal(), score="block_mean", block=64, q_block=64, share="group"),
    "moba": moba(128, 2),
    "all": mc.topk(2, mc.window(300), score="block_mean", block=32, q_block=64, share="all"),
    "large": mc.topk(2, mc.full(), score="block_mean", block=256, q_block=128),
}


def case_of(name: str, n: int = 500, heads: int = 4, batch: int = 2) -> Case:
    return Case(name, MASKS[name], batch, heads, 2, n, n, 16, DType.float32)


def truth_of(case: Case, tensors) -> np.ndarray:
    found = true_mask(case, tensors)
    found = found[:, None] if found.ndim == 3 and len(found) == case.batch else found
    return np.broadcast_to(found, (case.batch, case.heads, case.n_q, case.n_kv))


@pytest.mark.parametrize("name", MASKS)
def test_the_table_and_its_blocks_are_the_mask(name: str):
    case = case_of(name)
    tensors = make_tensors(case, "cpu")
    table = flex_table.Table(one_selection(case), tensors)
    table.choose(tensors.q, tensors.k)
    truth = truth_of(case, tensors).copy()
    b, h, q, k = np.ogrid[: case.batch, : case.heads, : case.n_q, : case.n_kv]
    kept = table.mask_mod(*(torch.tensor(x) for x in (b, h, q, k)))
    np.testing.assert_array_equal(np.broadcast_to(kept, truth.shape), truth)

    tall, wide = table.block
    blocks = table.block_mask()
    for counts, columns, whole in (
        (blocks.kv_num_blocks, blocks.kv_indices, False),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices, True),
    ):
        for place in np.ndindex(*counts.shape):
            listed = columns[place][: counts[place]].tolist()
            assert listed == sorted(listed)
            for column in listed:
                rows = slice(place[2] * tall, (place[2] + 1) * tall)
                tile = truth[place[:2]][rows, column * wide : (column + 1) * wide]
                assert tile.size == tall * wide or not whole
                assert tile.all() or not whole
                truth[place[:2]][rows, column * wide : (column + 1) * wide] = False
    assert not truth.any()


@pytest.mark.parametrize("name", [*MASKS, "keys", "indexer"])
def test_nothing_leaves_the_device_of_the_tensors(name: str):
    """Tensors of the device `meta` mix with no others, and have no values to copy."""
    masks = MASKS | {
        "keys": mc.topk(9, mc.causal()),
        "indexer": mc.topk(9, mc.causal(), score="indexer", share="all"),
    }
    mask = masks[name]
    heads = 1 if name == "indexer" else 2
    case = Case(name, mask, 1, 4, heads, 256, 256, 16, DType.bfloat16, sample_data(mask, 256))
    made = make_tensors(case, "cpu")
    tensors = CaseTensors(*(x.to("meta") for x in (*made.qkv, made.dout)), "cpu")
    pairs, (q, k, v) = ChosenPairs(case, tensors), tensors.qkv
    assert pairs.rows(0, 3, np.array([0, 70, 255])).device.type == "meta"
    assert chosen_by_torch(case, tensors)(q, k, v).device.type == "meta"
    if name in MASKS:
        table = flex_table.Table(one_selection(case), tensors)
        table.choose(q, k)
        assert table.block_mask().full_kv_indices.device.type == "meta"


def test_blocks_that_are_not_flexattentions():
    with pytest.raises(Unavailable, match="blocks of 24 are not made of its own"):
        flex_table.side_of(24, 500)
    mask = mc.topk(2, mc.causal(), score="block_mean", block=24)
    case = replace(case_of("all"), mask=mask)
    with pytest.raises(Unavailable):
        flex_table.flex_table_contender(case, make_tensors(case, "cpu"))


def test_other_masks_have_no_table():
    for mask in (mc.topk(20, mc.causal()), mc.topk(2, mc.causal(), score="block_mean", block=8)):
        case = replace(case_of("all"), mask=mask)
        assert flex_table.flex_table_contender(case, make_tensors(case, "cpu")) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "moba"])
def test_compiled_flexattention_reads_the_table(name: str, monkeypatch: pytest.MonkeyPatch):
    """Once compiled, it reads another choice of other tensors."""
    without_inductor(monkeypatch)
    monkeypatch.setattr("benchmarks.contest.GPU_ONLY", ())
    case = case_of(name, 256, batch=1)
    rows = bench_case(case, Ask(Target.named("cpu"), ("fwd",), ("flex_table",), 1)).rows
    assert [(row.get("variant"), row["ok"]) for row in rows] == [(None, True), ("attention", True)]

    tensors = make_tensors(case, "cpu")
    contender = flex_table.flex_table_contender(case, tensors)
    assert torch._dynamo.config.fail_on_recompile_limit_hit
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for seed in range(12):  # more than it would compile again
        generator = torch.Generator().manual_seed(seed)
        tensors.q.copy_(torch.randn(tensors.q.shape, generator=generator).mul(128).round() / 128)
        with contender.scope():
            out = host(contender.forward())
        wanted, _ = attention(*map(host, tensors.qkv), truth_of(case, tensors))
        assert np.abs(out - wanted).max() < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= compiled + 1
