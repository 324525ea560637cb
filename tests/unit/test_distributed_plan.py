"""Plans: their numbers, their choices and their text."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import maskc as mc
from maskc.cli import main
from maskc.core.errors import MaskcError
from maskc.distributed import Network, layouts, plan

HEADS = (32, 8, 128)
WINDOW = mc.causal() & mc.window(1023)


def test_a_window_sends_a_window():
    made = plan(WINDOW, 131072, 8, heads=HEADS)
    assert made.layout.name == "contiguous"
    layer = made.layer()
    assert layer.received.tolist() == [0, *[1023] * 7]
    assert layer.sent.tolist() == [*[1023] * 7, 0]
    assert made.received_bytes(3) == 1023 * 8 * 256 * 2
    (only,) = layer.receives(3)
    assert (only.sender, only.start, only.stop) == (2, 3 * 16384 - 1023, 3 * 16384)


def test_causal_is_balanced_by_two_chunks_a_rank():
    made = plan(mc.causal(), 65536, 8, heads=HEADS)
    assert made.layout.name == "zigzag"
    assert made.imbalance() < 1.01
    assert plan(mc.causal(), 65536, 8, heads=HEADS, layout="contiguous").imbalance() > 1.8
    assert plan(mc.causal(), 65536, 8, heads=HEADS, layout="balanced").imbalance() < 1.02


def test_of_equal_ranks_a_neighbour_takes_a_chunk():
    made = layouts.make("balanced", 8 * 16, 2, 16, np.ones(8))
    assert made.owner.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]


def test_chunks_that_fit_send_nothing():
    made = plan(mc.chunked(8192), 131072, 8, heads=HEADS)
    assert not made.layer().travels
    assert made.layer().received.sum() == 0


def test_one_rank_compares_nothing():
    alone = plan(mc.causal(), 4096, 1, heads=HEADS)
    assert list(alone.tried) == ["contiguous"]
    assert alone.explain().splitlines()[-1].endswith("keys: none")  # no picture of ranks


def test_calls_without_keys():
    few = mc.where(lambda q, k: k <= 5 - max(1, k))  # its loops begin with the first tile
    made = plan(few, 64, 2, heads=HEADS, n_kv=0)
    assert made.layer().received.sum() == 0


def test_one_layout_serves_masks_that_alternate():
    masks = {"full": mc.causal(), "sliding": WINDOW}
    made = plan(masks, 65536, 8, heads=HEADS)
    assert made.layer("full").layout is made.layer("sliding").layout is made.layout
    assert made.layout.name == "zigzag"  # the costlier mask decides
    with pytest.raises(MaskcError, match="MC701"):
        made.layer()


def test_16m_tokens_on_4096_ranks():
    made = plan(mc.causal() & (mc.window(4095) | mc.sinks(64)), 1 << 24, 4096, heads=HEADS)
    assert made.layer().received[1:].tolist() == [4096, *[4159] * 4094]
    assert made.layer().sent[0] == 4095 * 64 + 4032
    assert len(made.layer().reach.keys) <= 1 << 15  # few blocks, however long the sequence


def test_more_ranks_than_blocks():
    made = plan(mc.causal(), 5, 16, heads=(2, 1, 64), block=1)
    assert sorted(np.concatenate([made.indices(rank) for rank in range(16)])) == [*range(5)]
    assert sum(made.tokens(rank) == 0 for rank in range(16)) == 11
    nothing = plan(mc.causal(), 0, 4, heads=(2, 1, 64))
    assert nothing.layer().received.tolist() == [0] * 4
    assert "0 tokens on 4 ranks" in nothing.explain()


def test_predictions_follow_the_network():
    near = plan(WINDOW, 65536, 8, heads=HEADS, network="nvlink")
    far = plan(WINDOW, 65536, 8, heads=HEADS, network=Network("slow", 1.0, 100.0))
    assert far.times()[0].total > near.times()[0].total
    assert far.others()["all-gather"] > 10 * near.others()["all-gather"]
    assert plan(WINDOW, 1 << 16, 16, heads=HEADS).network.name == "400Gb/s"
    assert plan(WINDOW, 1 << 16, 16, heads=HEADS, network="50GB/s").network.gigabytes == 50


def test_a_backward_pass_costs_tiles_and_rows_of_dq():
    """The cost of a backward pass is not that of blocks of queries, as a forward pass's is."""
    made = plan(mc.causal(), 1024, 2, heads=HEADS)
    forward, backward = made.passes
    tokens = np.array([0, 128, 256])
    assert forward.of_rows(tokens, 32).tolist() == [0, 0, 0]
    nothing, few, many = backward.of_rows(tokens, 32)
    assert (nothing, many) == (0, 2 * few)
    assert few > 0
    one, two = (replace(made.layer().reach, tiles=np.full(2, 32 * x), partial=np.zeros(2))
                for x in (1, 2))  # fmt: skip
    assert np.array_equal(backward.of_blocks(two, 128), 2 * backward.of_blocks(one, 128))
    assert np.all(forward.of_blocks(two, 128) < 2 * forward.of_blocks(one, 128))


def test_work_is_made_once_for_what_is_asked():
    mask = mc.causal() & (mc.window(30) | mc.sinks(5))
    made = plan(mask, 2048, 2, heads=(2, 1, 64), layout="contiguous")
    work = made.work(1)
    assert made.work(1) is work
    assert made.work(1, one_stretch=True).size > work.size
    assert made.work(1, at_home=True) is work  # nothing moves
    assert made.work(0) is not work
    copy = pickle.loads(pickle.dumps(made))
    assert copy.digest == made.digest
    assert copy.work(1) is not work


def test_equal_arguments_give_equal_plans():
    one, two = (plan(WINDOW, 5000, 3, heads=HEADS) for _ in range(2))
    assert one.digest == two.digest
    others = plan(WINDOW, 5000, 3, heads=HEADS, layout="zigzag"), plan(WINDOW, 5001, 3, heads=HEADS)
    assert len({one.digest, *(other.digest for other in others)}) == 3


def test_selections_count_their_candidates():
    made = plan(mc.topk(2, mc.chunked(256), "block_mean", block=64), 2048, 4, heads=(4, 2, 64))
    assert made.block % 64 == 0
    assert not made.layer().travels


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"n": -1}, "MC700"),
        ({"ranks": 0}, "MC700"),
        ({"heads": (3, 2, 64)}, "MC700"),
        ({"heads": (4, 2)}, "MC700"),
        ({"layout": "diagonal"}, "MC700"),
        ({"network": "pigeons"}, "MC708"),
        ({"data": {"doc": [1]}}, "MC702"),
        ({"masks": "causal"}, "MC106"),
        ({"masks": {}}, "MC106"),
    ],
)
def test_mistakes(options: dict[str, object], code: str):
    asked = {"masks": mc.causal(), "n": 1024, "ranks": 2, "heads": (4, 2, 64), **options}
    with pytest.raises(MaskcError, match=code):
        plan(asked.pop("masks"), asked.pop("n"), asked.pop("ranks"), **asked)


def test_explain_says_who_sends_what_to_whom():
    text = plan(WINDOW, 8192, 4, heads=HEADS).explain()
    assert "16.7% of all-gather" in text  # 1023 of 3 * 2048 keys
    assert "rank 2: tokens 4096-6143" in text
    assert "1023 from 1" in text
    assert "  |▓█  |" in text or "  |▒█  |" in text


def test_the_command():
    asked = ["plan", "--expr", "causal() & window(1023)", "--n", "64k", "--ranks", "8"]
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 0, told.output
    assert "layout contiguous" in told.output
    plain = CliRunner().invoke(main, [*asked, "--json", "--network", "400Gb/s"])
    (made,) = json.loads(plain.stdout)["plans"]
    assert made["layers"][0]["received_bytes"][1] == 1023 * 8 * 256 * 2
    assert CliRunner().invoke(main, [*asked, "--network", "string"]).exit_code == 2
