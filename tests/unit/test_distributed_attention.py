"""Attention of ranks that are threads, compared with one process: both passes.

Every mask on every number of ranks is tested with gloo, in processes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.core.dtypes import DType
from maskc.core.errors import DropoutSeed, NotShared, RanksDisagree
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target
from maskc.distributed import groups
from maskc.distributed.costs import of_call
from maskc.distributed.groups import Accord, Ranks
from maskc.distributed.times import _copied
from maskc.dsl.nodes import structure
from tests.support import rank_threads, ranks, shared_cases
from tests.support.shared_cases import MORE, Case
from tests.support.thorough import alternating, more


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

    result = rank_threads.run(size, job)
    whole = []
    order = torch.from_numpy(np.argsort(made.layout.order))
    for number, parts in enumerate(zip(*result, strict=True)):
        whole.append(torch.cat(parts, 2)[:, :, order] if number < 5 else sum(parts))
    return whole


@pytest.mark.parametrize("case", [
    more(case) if case.name in ("two sequences", "sink logits and a cap", "entmax", "dropout",
                                "global rows and entmax", "global rows in two chunks",
                                "global rows and a formula") else case
    for case in MORE
], ids=lambda case: case.name)  # fmt: skip
def test_ranks_agree_with_one_process(case: Case, monkeypatch: pytest.MonkeyPatch):
    rank_threads.patch(monkeypatch)
    wanted = shared_cases.alone(case)
    wrong = shared_cases.compared(case.name, wanted, together(case, 3))
    assert not wrong, "\n".join(wrong)


def test_only_what_came_is_kept(monkeypatch: pytest.MonkeyPatch):
    """Every row sees the sinks, so that all of a rank's keys are in its buffer, too."""
    rank_threads.patch(monkeypatch)
    mask, n, heads = mc.causal() & (mc.window(63) | mc.sinks(4)), 1024, (2, 1, 16)
    made = mc.distributed.plan(mask, n, 2, heads=heads, layout="contiguous", dtype="float32")
    q, k, v = (torch.randn(1, count, n, 16) for count in (2, 1, 1))

    def job(rank: int) -> int:
        kept = []

        def keep(x: torch.Tensor) -> torch.Tensor:
            kept.append(x)
            return x

        own = made.indices(rank).tolist()
        leaves = [x[:, :, own].requires_grad_() for x in (q, k, v)]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = mc.distributed.attention(*leaves, made)
        given = {x.data_ptr() for x in (*leaves, out)}
        more = [x for x in kept if x.data_ptr() not in given and x.shape != out.shape[:3]]
        return sum(x.numel() * x.element_size() for x in more)

    assert made.work(1).size > 512
    assert rank_threads.run(2, job) == [0, made.received_bytes(1)]


def test_other_documents_build_nothing():
    """Numbers of a step are numbers of a call, whatever a rank's buffer consists of."""
    mask = mc.causal() & mc.documents("doc") & (mc.window(mc.param("w", 9)) | mc.sinks(4))
    masks, stretches = set(), set()
    for seed in range(12):
        draw = np.random.default_rng(seed)
        data = {"doc": np.sort(draw.integers(0, 5, 2048)), "w": int(draw.integers(1, 300))}
        made = mc.distributed.plan(mask, 2048, 4, heads=(2, 1, 16), layout="balanced", data=data)
        for rank in range(4):
            work = made.work(rank)
            stretches.add(len(work.copies))
            masks |= {structure(call.local.mask) for call in work.calls if call.keys}
    assert len(stretches) > 2
    assert len(masks) <= 3, masks  # one for each number of stretches


def test_dilated_masks_run_over_residue_classes():
    """They do on every rank as on one GPU, and in the same kernel."""
    mask = mc.causal() & mc.dilated(63, stride=4)
    made = mc.distributed.plan(mask, 8192, 4, heads=(2, 1, 64), layout="contiguous")
    masks = {call.local.mask for rank in range(4) for call in made.work(rank).calls}
    assert len({structure(each) for each in masks}) == 1
    problem = Problem(64, 64, DType.bfloat16)
    (part,) = driver.plan_kernel(masks.pop(), problem, Target.named("sm_90a")).parts
    assert part.stride == 4
    long = mc.causal() & mc.dilated(511, stride=4)
    made = mc.distributed.plan(long, 131072, 8, heads=(32, 8, 128))
    layer = made.layer()
    of_tiles = replace(layer, reach=replace(layer.reach, shares=(1.0, 1.0)))
    of_tiles = replace(made, layers={"mask": of_tiles})
    for ours, theirs in zip(made.times(), of_tiles.times(), strict=True):
        assert ours.tiles.max() < 0.6 * theirs.tiles.max()


def test_dropout_draws_whole_squares(monkeypatch: pytest.MonkeyPatch):
    """Chunks that are no multiples of 16 tokens cut them; and all ranks must have one seed."""
    rank_threads.patch(monkeypatch)
    made = mc.distributed.plan(mc.causal(), 96, 2, heads=(1, 1, 16), block=8, dtype="float32")
    x = torch.randn(1, 1, made.tokens(0), 16)

    def job(rank: int) -> None:
        mc.distributed.attention(x, x, x, made, dropout_p=0.5, dropout_seed=0)

    with pytest.raises(NotShared, match="squares of 16"):
        rank_threads.run(2, job)
    with pytest.raises(DropoutSeed, match="missing"):
        mc.distributed.attention(x, x, x, made, dropout_p=0.5)


@pytest.mark.parametrize(("wrong", "told"), [(3, 4), (6, 8), (2047, 2048), (None, None)])
def test_gpus_compare_their_calls_now_and_then(wrong: int | None, told: int | None):
    """Where nobody may wait in each call, a call that differs is told at the next power of two."""
    barrier, table = threading.Barrier(3), [[0]] * 3
    made = mc.distributed.plan(mc.full(), 48, 3, heads=(1, 1, 16))

    def exchanged(ranks: Ranks, device: object, own: Sequence[int]) -> list[list[int]]:
        table[ranks.rank] = list(own)
        barrier.wait(timeout=60)
        told = list(table)
        barrier.wait(timeout=60)
        return told

    def job(rank: int) -> int | None:
        ranks = Ranks(object(), rank, 3, (0, 1, 2))
        for number in range(1, 2100):
            layer = "other" if number == wrong and rank == 2 else "mask"
            accord = Accord(made, ranks, torch.device("meta"), (layer, None), (0.5, number))
            if number > 2:  # every kind was compared when it was new
                made.once(("agreed",), set).add((id(ranks.group), accord.call))
            try:
                accord.begin()
            except RanksDisagree as error:
                return number if "the calls before this one" in str(error) else -1
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "exchanged", exchanged)
        assert rank_threads.run(3, job) == [told] * 3


def test_all_ranks_refuse_slopes_where_one_must(monkeypatch: pytest.MonkeyPatch):
    """The first rank sees keys behind its rows; those of the others end where their keys do."""
    rank_threads.patch(monkeypatch)
    made = mc.distributed.plan(
        mc.causal() | mc.prefix(50), 96, 3, heads=(1, 1, 16), dtype="float32", layout="contiguous"
    )
    calls = [made.work(rank, at_home=True).calls for rank in range(3)]
    assert [all(call.positions for call in of) for of in calls] == [False, True, True]
    refused = []

    def job(rank: int) -> None:
        x = torch.randn(1, 1, made.tokens(rank), 16)
        with pytest.raises(NotShared, match="causal mask"):
            mc.distributed.attention(x, x, x, made, alibi_slopes=torch.ones(1))
        refused.append(rank)

    rank_threads.run(3, job)
    assert sorted(refused) == [0, 1, 2]


def test_predictions_are_of_the_kernels_that_run():
    """The global rows of one rank are a call of their own: what it takes is in its time."""
    mask, n = mc.window(256, 256) | mc.global_tokens(64), 65536
    made = mc.distributed.plan(mask, n, 4, heads=(32, 8, 128), move_rows=False)
    problem = Problem(128, 128, DType.bfloat16)
    copied = dict(zip(Direction, _copied(made.work(0)), strict=True))
    for direction, times in zip(Direction, made.times(), strict=True):
        calls = [of_call(call, problem, direction, 32) for call in made.work(0).calls]
        assert len(calls) == 3
        tokens, launches = copied[direction]
        rest = tokens * made.token_bytes / 1.2e9 + launches * 0.004  # GB/s, milliseconds
        assert times.compute[0] == pytest.approx(sum(calls) + rest)


def test_global_rows_go_to_their_keys():
    """A few rows move, and the keys of a window's edge; else one rank receives every key."""
    mask = mc.window(256, 256) | mc.global_tokens(64)
    made = mc.distributed.plan(mask, 131072, 8, heads=(32, 8, 128))
    (visit,) = made.layer().visits
    assert (visit.home, visit.start, visit.stop) == (0, 0, 128)
    rows = 128 * 32
    assert made.received_bytes(0) == made.token_bytes * 256 + 7 * rows * 129 * 4
    assert made.received_bytes(3) == made.token_bytes * (64 + 512) + rows * 128 * 2
    stay = mc.distributed.plan(mask, 131072, 8, heads=(32, 8, 128), move_rows=False)
    assert stay.received_bytes(0) == made.token_bytes * 7 * 16384
    shares = [a.total / b.total for a, b in zip(made.times(), stay.times(), strict=True)]
    assert shares == pytest.approx([0.34, 0.57], abs=0.03)
    assert "queries 0-127 of rank 0 are sent to their keys" in made.explain()
    inside = mc.distributed.plan(mask & mc.documents("doc"), 4096, 2, heads=(2, 1, 64))
    alone = inside.given(doc=np.arange(4096) // 512)
    whole = inside.given(doc=np.zeros(4096, np.int64))
    assert (alone.layer().moved, whole.layer().moved) == ((), ())  # few bytes, and launches
    whole = replace(inside, move_rows=True).given(doc=np.zeros(4096, np.int64))
    assert whole.layer().moved == (0,)
    assert not mc.distributed.plan(mc.causal(), 131072, 8, heads=(32, 8, 128)).layer().moved


def test_strided_keys_alone_travel():
    """One key of each 128, and the window at a chunk's edge."""
    mask = mc.causal() & (mc.window(127) | mc.strided(128, 127))
    made = mc.distributed.plan(mask, 131072, 8, heads=(32, 8, 128), layout="contiguous")
    assert made.layer().received.tolist() == [127 + 128 * rank - 1 if rank else 0
                                              for rank in range(8)]  # fmt: skip


@pytest.mark.parametrize(("mask", "drops"), alternating(
    [mc.causal() & (mc.window(40) | mc.sinks(3)), mc.window(40, 40) | mc.global_tokens(3)],
    [{}, {"dropout_p": 0.3, "dropout_seed": 5}],
))  # fmt: skip
def test_tables_of_a_score_and_lse_have_their_gradients(
    mask: mc.Mask, drops: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Indices are places in the sequence; a rank has its share of a table's gradient."""
    rank_threads.patch(monkeypatch)
    n, size = 400, 3
    score = mc.score(
        lambda s, q, k, h: s + mc.table("near")[h, mc.scores.minimum(abs(q - k), 15)]
        + mc.param("slope", 1.5) * mc.table("key")[k]
    )  # fmt: skip
    made = mc.distributed.plan(
        mask, n, size, heads=(2, 1, 32), dtype="float32", layout="zigzag", move_rows=True
    )
    draw = torch.Generator().manual_seed(1)
    given = [torch.randn(1, heads, n, 32, generator=draw) for heads in (2, 1, 1)]
    dout, dlse = torch.randn(1, 2, n, 32, generator=draw), torch.randn(1, 2, n, generator=draw)
    tables = {"near": torch.randn(2, 16, generator=draw), "key": torch.randn(n, generator=draw)}

    def run(call: Any, own: list[int]) -> list[torch.Tensor]:
        leaves = [x[:, :, own].clone().requires_grad_() for x in given]
        learnt = {name: x.clone().requires_grad_() for name, x in tables.items()}
        out, lse = call(*leaves, return_lse=True, score=score, slope=0.5, **learnt, **drops)
        torch.autograd.backward([out, lse], [dout[:, :, own], dlse[:, :, own]])
        return [out.detach(), lse.detach(), *(x.grad for x in (*leaves, *learnt.values()))]

    wanted = run(lambda q, k, v, **more: mc.attention(q, k, v, mask, **more), list(range(n)))
    result = rank_threads.run(size, lambda rank: run(
        lambda q, k, v, **more: mc.distributed.attention(q, k, v, made, **more),
        made.indices(rank).tolist(),
    ))  # fmt: skip
    order = torch.from_numpy(np.argsort(made.layout.order))
    for number, parts in enumerate(zip(*result, strict=True)):
        whole = torch.cat(parts, 2)[:, :, order] if number < 5 else sum(parts)
        torch.testing.assert_close(whole, wanted[number], rtol=1e-4, atol=1e-4)


def test_a_score_that_hides_pairs_is_refused():
    with pytest.warns(mc.ScoreMaskWarning):
        score = mc.score(lambda s, q, k: mc.scores.where(k <= q, s, -float("inf")))
    made = mc.distributed.plan(mc.full(), 64, 2, heads=(1, 1, 16), dtype="float32")
    x = torch.randn(1, 1, made.tokens(0), 16)
    with pytest.raises(NotShared, match="hides pairs"):
        mc.distributed.attention(x, x, x, made, score=score)


# ------------------------------------------------------------------ processes with gloo


if not torch.distributed.is_available():
    pytest.skip("torch has no torch.distributed", allow_module_level=True)


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
