"""Layouts that something else decided: tokens anywhere, keys elsewhere than queries, and mistakes.

What travels and which pairs are computed is drawn in property/test_distributed_masks.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import MaskcError, NotShared
from maskc.distributed import plan, zigzag
from maskc.distributed.pieces import Lookup
from maskc.distributed.token_ranges import PlacedTokens
from maskc.dsl.nodes import structure
from maskc.dsl.slots import emptied
from tests.support import rank_threads
from tests.support.exact_attention import exact

HEADS = (4, 2, 16)
RNG = np.random.default_rng(0)


def chunks(*parts: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.arange(start, stop) for start, stop in parts])


@dataclass(frozen=True)
class Brought:
    """A mask on ranks that hold tokens which somebody else chose."""

    mask: mc.Mask
    layout: list[np.ndarray]
    keep: np.ndarray
    """bool [n, n_kv] or [heads, n, n_kv], by a definition of its own."""
    tables: bool
    """Whether one call for all rows is expected."""
    keys: list[np.ndarray] | None = None
    data: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    lists: np.ndarray | None = None
    """int [.., n, K]: keys of each query; a rank gives its rows."""


def places(n: int, n_kv: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Positions of queries and keys: the last ones coincide."""
    n_kv = n if n_kv is None else n_kv
    return np.arange(n)[:, None] + n_kv - n, np.arange(n_kv)[None]


def cases() -> dict[str, Brought]:
    q, k = places(90)
    causal = k <= q
    anywhere = np.split(RNG.permutation(90), [25, 70])
    ids = np.repeat([0, 1, 2], [24, 36, 30])
    odd = np.repeat([0, 1, 2], [25, 7, 58])
    many = np.arange(90) // 6
    there, of_keys = places(60, 84)
    late = causal & (q >= 30) & (k >= 30)
    lists = RNG.integers(-1, 90, (2, 1, 90, 7))
    documents = np.sort(RNG.integers(0, 4, 60)), np.sort(RNG.integers(0, 4, 84))
    coarse, on = torch.from_numpy(RNG.integers(0, 2, (6, 6), np.int32)), RNG.random(90) < 0.7
    span = tuple(np.sort(RNG.integers(0, 91, (2, 90)), 0))
    listed = (lists[..., None] == k).any(-2) & causal
    return {
        "any tokens, unequal": Brought(mc.causal(), anywhere, causal, True),
        "any tokens, sinks and a cap": Brought(
            mc.causal() & (mc.window(20) | mc.sinks(3)), anywhere,
            causal & ((q - k <= 20) | (k < 3)), True,
            options={"softcap": 3.0, "sink_logits": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        ),
        "any tokens, strided, masks of heads": Brought(
            mc.per_head([mc.causal() & mc.strided(4), mc.full()] * 2), anywhere,
            np.stack([causal & (k % 4 == 0), np.ones_like(causal)] * 2), True,
        ),
        "zigzag of three documents": Brought(
            mc.causal() & mc.documents("doc"), zigzag([0, 24, 60, 90], 3),
            causal & (ids[:, None] == ids), False, data={"doc": ids},
        ),
        "zigzag of fifteen documents": Brought(
            mc.causal() & mc.documents("doc"), zigzag(np.arange(0, 91, 6), 3),
            causal & (many[:, None] == many), True, data={"doc": many},
        ),
        "zigzag of lengths that chunks do not divide": Brought(
            mc.causal() & mc.documents("doc"), zigzag([0, 25, 32, 90], 3),
            causal & (odd[:, None] == odd), False, data={"doc": odd},
        ),
        "chunks in another order, rows that move": Brought(
            mc.window(8, 8) | mc.global_tokens([3]),
            [chunks((60, 90), (0, 8)), chunks((30, 60)), chunks((8, 30))],
            (abs(q - k) <= 8) | (q == 3) | (k == 3), False,
        ),
        "a rank that sees nothing": Brought(
            mc.where(lambda q, k: (k <= q) & (q >= 30) & (k >= 30)),
            [np.arange(30), np.arange(31, 90, 2), np.arange(30, 90, 2)], late, True,
        ),
        "other keys": Brought(
            mc.causal() & mc.window(40), [chunks((0, 30)), chunks((45, 60)), chunks((30, 45))],
            (of_keys <= there) & (there - of_keys <= 40), False,
            keys=[chunks((60, 84)), chunks((0, 20)), chunks((20, 60))],
        ),
        "other keys anywhere, some ranks without": Brought(
            mc.causal(), [chunks((30, 60)), np.arange(30), np.zeros(0, np.int64)],
            of_keys <= there, True,
            keys=[np.zeros(0, np.int64), *np.split(RNG.permutation(84), [50])],
        ),
        "documents of other keys": Brought(
            mc.documents("doc"), [np.arange(0, 60, 2), np.arange(1, 60, 4), np.arange(3, 60, 4)],
            documents[0][:, None] == documents[1], True,
            keys=[chunks((60, 84)), chunks((0, 20)), chunks((20, 60))], data={"doc": documents},
        ),
        "captured tables, flags and intervals": Brought(
            mc.from_mask_mod(lambda b, h, q, k: (q >= k) & (coarse[q // 16, k // 16] > 0))
            & mc.flags("on") | mc.intervals("span"), anywhere,
            causal & coarse.numpy()[q // 16, k // 16].astype(bool) & on
            | (span[0][:, None] <= k) & (k < span[1][:, None]), True,
            data={"on": on, "span": span},
        ),
        "listed keys, zigzag": Brought(
            mc.causal() & mc.key_lists("listed"), zigzag([0, 90], 3), listed, False, lists=lists
        ),
        "listed keys, any tokens": Brought(
            mc.key_lists("listed") & mc.causal(), anywhere, listed, True, lists=lists
        ),
    }  # fmt: skip


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_with_dense_attention(name: str, monkeypatch: pytest.MonkeyPatch):
    """out, lse and all gradients, against one process in fp64."""
    rank_threads.patch(monkeypatch)
    case = CASES[name]
    n, n_kv = case.keep.shape[-2:]
    made = plan(case.mask, n, 3, heads=HEADS, dtype="float32", layout=case.layout, n_kv=n_kv,
                key_layout=case.keys, data=case.data, move_rows=True)  # fmt: skip
    assert made.layer().by_tables == case.tables
    assert bool(made.layer().moved) == ("move" in name)
    draw = torch.Generator().manual_seed(1)
    whole = [torch.randn(2, heads, size, 16, generator=draw)
             for heads, size in zip((4, 2, 2), (n, n_kv, n_kv), strict=True)]  # fmt: skip
    dout, dlse = torch.randn(2, 4, n, 16, generator=draw), torch.randn(2, 4, n, generator=draw)
    dlse[:, :, ~case.keep.any(-1).reshape(-1, n).all(0)] = 0  # not of rows without keys
    leaves = [x.clone().requires_grad_() for x in whole]
    out, lse = exact(*leaves, case.keep, **case.options)
    torch.autograd.backward([out, torch.where(lse == -torch.inf, 0, lse)],
                            [dout.double(), dlse.double()])  # fmt: skip
    held, held_keys = case.layout, case.keys or case.layout

    def job(rank: int) -> list[torch.Tensor]:
        of_q, of_k = torch.from_numpy(held[rank]), torch.from_numpy(held_keys[rank])
        parts = [x[:, :, at] for x, at in zip(whole, (of_q, of_k, of_k), strict=True)]
        if "zigzag" in name:  # [tokens, B, H, D] in memory, as Megatron-LM has it
            parts = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in parts]
        parts = [x.requires_grad_() for x in parts]
        options = dict(case.options)
        if case.lists is not None:
            options["listed"] = torch.from_numpy(case.lists[..., held[rank], :])
        results = mc.distributed.attention(*parts, made, return_lse=True, **options)
        torch.autograd.backward(results, [dout[:, :, of_q], dlse[:, :, of_q]])
        return [*(x.detach() for x in results), *(x.grad for x in parts)]

    joined = [torch.cat(parts, 2) for parts in zip(*rank_threads.run(3, job), strict=True)]
    wanted = [out.detach(), lse.detach(), *(x.grad for x in leaves)]
    orders = [np.concatenate(x) for x in (held, held, held, held_keys, held_keys)]
    for what, got, want, order in zip(
        ("out", "lse", "dq", "dk", "dv"), joined, wanted, orders, strict=True
    ):
        torch.testing.assert_close(
            got.double(), want[:, :, order].double(), rtol=1e-4, atol=1e-5,
            msg=lambda text, what=what: f"{what}: {text}",
        )  # fmt: skip


def single(call: Any, given: list[torch.Tensor], dout: torch.Tensor) -> list[torch.Tensor]:
    """out and the gradients of q, k and v of a call."""
    leaves = [x.clone().requires_grad_() for x in given]
    out = call(*leaves)
    out.backward(dout)
    return [out.detach(), *(x.grad for x in leaves)]


def agree(
    made: Any, mask: mc.Mask, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any] | None = None,
    dims: dict[str, int] | None = None, **options: Any,
) -> None:  # fmt: skip
    """Ranks agree with one process; `whole` are tensors with tokens along `dims`."""
    rank_threads.patch(monkeypatch)
    draw = torch.Generator().manual_seed(3)
    lengths = made.n, made.n_kv, made.n_kv
    given = [torch.randn(1, heads, n, 16, generator=draw)
             for heads, n in zip((4, 2, 2), lengths, strict=True)]  # fmt: skip
    dout, whole = torch.randn(1, 4, made.n, 16, generator=draw), whole or {}
    wanted = single(lambda *x: mc.attention(*x, mask, **whole, **options), given, dout)

    def job(rank: int) -> list[torch.Tensor]:
        at, of_keys = (torch.from_numpy(made.indices(rank, of)) for of in "qk")
        parts = {name: x.index_select((dims or {})[name], at) for name, x in whole.items()}
        return single(lambda *x: mc.distributed.attention(*x, made, **parts, **options),
                      [given[0][:, :, at], *(x[:, :, of_keys] for x in given[1:])],
                      dout[:, :, at])  # fmt: skip

    orders = *[made.layout.order] * 2, *[made.key_layout.order] * 2
    results = zip(*rank_threads.run(made.ranks, job), strict=True)
    for parts, want, order in zip(results, wanted, orders, strict=True):
        torch.testing.assert_close(torch.cat(parts, 2), want[:, :, order], rtol=1e-4, atol=1e-5)


def squares(n: int, seed: int = 0) -> np.ndarray:
    """Chunks of 16 tokens in any order."""
    order = np.random.default_rng(seed).permutation(n // 16)
    return (order[:, None] * 16 + np.arange(16)).reshape(-1)


def test_dropout_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch):
    mask = mc.causal() & (mc.window(30) | mc.sinks(5))
    made = plan(mask, 320, 2, heads=HEADS, dtype="float32", layout=squares(320))
    assert made.layer().by_tables
    assert len(made.work(0, one_stretch=True).calls) > 8  # a call for each stretch
    agree(made, mask, monkeypatch, dropout_p=0.3, dropout_seed=7)
    cut = [np.arange(8), np.arange(8, 320)]
    made = plan(mask, 320, 2, heads=HEADS, dtype="float32", layout=cut, block=16)
    x = torch.zeros(1, 4, 8, 16)
    with pytest.raises(NotShared, match="squares of 16 tokens, which its chunks cut"):
        mc.distributed.attention(x, x[:, :2], x[:, :2], made, dropout_p=0.5, dropout_seed=0)


@pytest.mark.parametrize("options", [
    {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0])},
    {"dropout_p": 0.4, "dropout_seed": 3},
    {"score": mc.score(lambda s, q, k: s * 0.01 * (mc.n_kv - k + q - mc.n_q))},
], ids=lambda options: next(iter(options)))  # fmt: skip
def test_options_over_other_keys(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Positions of the last query and the last key coincide, on every rank."""
    mask = mc.causal() & mc.window(40)
    layout, keys = np.arange(96).reshape(2, 48), [np.arange(32, 160), np.arange(32)]
    made = plan(mask, 96, 2, heads=HEADS, dtype="float32", layout=layout, n_kv=160,
                key_layout=keys, block=16)  # fmt: skip
    agree(made, mask, monkeypatch, **options)


@pytest.mark.parametrize("edges", [[0, 40, 90], range(0, 91, 6)], ids=["numbers", "tables"])
def test_formulas_of_the_score(edges: Any, monkeypatch: pytest.MonkeyPatch):
    """q and k are positions in the sequence, also where they index tables and choose."""
    near = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    score = mc.score(
        lambda s, q, k, h: s * (1 + 0.01 * (mc.n_kv - k))
        + mc.scores.where(q % 2 == 0, near[h, mc.scores.minimum(abs(q - k), 15)], 0)
    )  # fmt: skip
    made = plan(mc.causal(), 90, 3, heads=HEADS, dtype="float32", layout=zigzag(list(edges), 3))
    assert made.layer().by_tables == (len(edges) > 5)
    agree(made, mc.causal(), monkeypatch, score=score)


def test_gradients_of_tables_wherever_tokens_lie(monkeypatch: pytest.MonkeyPatch):
    """A rank has its share of them, as in layouts with few stretches."""
    rank_threads.patch(monkeypatch)
    score = mc.score(lambda s, q, k, h: s + mc.table("near")[h, q - k])
    made = plan(
        mc.causal(), 60, 2, heads=HEADS, dtype="float32", layout=np.arange(60).reshape(30, 2).T
    )
    draw = torch.Generator().manual_seed(5)
    given = [torch.randn(1, heads, 60, 16, generator=draw) for heads in (4, 2, 2)]
    table, dout = torch.randn(4, 60, generator=draw), torch.randn(1, 4, 60, 16, generator=draw)

    def trained(call: Any, at: torch.Tensor) -> torch.Tensor:
        near = table.clone().requires_grad_()
        call(*(x[:, :, at] for x in given), near=near, score=score).backward(dout[:, :, at])
        return near.grad

    wanted = trained(lambda *x, **more: mc.attention(*x, mc.causal(), **more), torch.arange(60))
    shares = rank_threads.run(2, lambda rank: trained(
        lambda *x, **more: mc.distributed.attention(*x, made, **more),
        torch.from_numpy(made.indices(rank)),
    ))  # fmt: skip
    torch.testing.assert_close(sum(shares), wanted, rtol=1e-4, atol=1e-5)


def test_a_formula_with_dropout_needs_few_stretches():
    made = plan(mc.causal(), 320, 1, heads=HEADS, dtype="float32", layout=squares(320))
    x, score = torch.zeros(1, 4, 320, 16), mc.score(lambda s, q: s + q)
    with pytest.raises(NotShared, match="at most 8 stretches"):
        mc.distributed.attention(x, x[:, :2], x[:, :2], made, score=score, dropout_p=0.5,
                                 dropout_seed=0)  # fmt: skip


@pytest.mark.parametrize("edges", [[0, 96], range(0, 97, 12)], ids=["chunks", "many chunks"])
def test_an_indexer_over_zigzag_chunks(edges: Any, monkeypatch: pytest.MonkeyPatch):
    draw = torch.Generator().manual_seed(2)
    index = {"index_q": torch.randn(1, 3, 96, 8, generator=draw),
             "index_k": torch.randn(1, 96, 8, generator=draw),
             "index_w": torch.randn(1, 3, 96, generator=draw)}  # fmt: skip
    mask = mc.topk(5, of=mc.causal(), score="indexer", share="all")
    made = plan(mask, 96, 2, heads=HEADS, dtype="float32", layout=zigzag(list(edges), 2))
    monkeypatch.setattr(
        "maskc.distributed.passes.whole_of", lambda x, layout, ranks, dim: index["index_k"]
    )
    agree(made, mask, monkeypatch, index, {"index_q": 2, "index_k": 1, "index_w": 2})


def test_other_documents_and_ranks_build_nothing():
    """Tables are data of a call: all ranks and steps have one kernel."""
    mask, kernels = mc.causal() & mc.documents("doc"), set()
    for seed in range(3):
        draw = np.random.default_rng(seed)
        edges = np.sort(np.concatenate([[0, 600], draw.integers(0, 600, 20)]))
        ids = np.searchsorted(edges[1:], np.arange(600), side="right")
        made = plan(mask, 600, 4, heads=HEADS, layout=zigzag(edges, 4)).given(doc=ids)
        for rank in range(4):
            (call,) = made.work(rank).calls
            kernels.add(structure(emptied(call.local.mask)[0]))
    assert len(kernels) == 1


# ------------------------------------------------------------------ zigzag


def megatron(lengths: list[int], size: int, rank: int) -> list[int]:
    """Tokens of a rank as Megatron-LM takes them from packed documents: from each one, cut into
    2 * size slices of equal length, the slices `rank` and 2 * size - 1 - rank."""
    taken, start = [], 0
    for length in lengths:
        assert length % (2 * size) == 0
        slices = torch.arange(start, start + length).view(2 * size, -1)
        index = torch.tensor([rank, 2 * size - 1 - rank])
        taken += slices.index_select(0, index).flatten().tolist()
        start += length
    return taken


@pytest.mark.parametrize("size", [1, 2, 4])
def test_zigzag_is_that_of_megatron(size: int):
    lengths = [32, 8, 0, 64, 16]
    slots = zigzag(torch.tensor([0, *np.cumsum(lengths)]), size)
    assert [x.tolist() for x in slots] == [megatron(lengths, size, rank) for rank in range(size)]


def test_zigzag_of_other_lengths_has_every_token():
    slots = zigzag([0, 5, 5, 18], 3)
    assert [x.tolist() for x in slots] == [
        [4, 5, 6, 15, 16, 17], [0, 3, 7, 8, 13, 14], [1, 2, 9, 10, 11, 12]
    ]  # fmt: skip
    assert zigzag([0], 2)[1].tolist() == []


def test_zigzag_of_a_whole_sequence_is_the_layout_of_that_name():
    made, named = (plan(mc.causal(), 1024, 4, heads=HEADS, layout=x)
                   for x in (zigzag([0, 1024], 4), "zigzag"))  # fmt: skip
    for rank in range(4):
        assert made.indices(rank).tolist() == named.indices(rank).tolist()
    assert made.layer().received.tolist() == named.layer().received.tolist()


def test_trainers_get_the_order_that_they_gave():
    """Load balancers that trainers ask for their order, and the ones of torch."""
    lengths = [64, 32, 160]
    edges = np.concatenate([[0], np.cumsum(lengths)])

    def planned(layout: Any) -> Any:
        return plan(mc.causal(), 256, 4, heads=HEADS, layout=layout)

    def permutation(made: Any) -> torch.Tensor:
        return mc.distributed.load_balancer(made).generate_permutation()

    made = planned(zigzag(edges, 4))
    order = permutation(made)
    assert order[0].tolist() == [x for rank in range(4) for x in megatron(lengths, 4, rank)]
    assert planned(order).digest == made.digest
    back = mc.distributed.load_balancer(made).generate_permutation(restore=True)
    assert torch.equal(order[0][back[0]], torch.arange(256))
    known = pytest.importorskip(
        "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    )
    theirs = known._HeadTailLoadBalancer(256, 4, "cpu")._generate_indices()
    assert torch.equal(theirs, permutation(planned(zigzag([0, 256], 4))))
    of_documents = known._PerDocumentHeadTailLoadBalancer([lengths], 4, "cpu")._generate_indices()
    assert torch.equal(of_documents, permutation(planned(of_documents)))


# ------------------------------------------------------------------ the argument


def test_forms_of_the_argument():
    order = np.random.default_rng(1).permutation(12)
    given = {
        "rows": order.reshape(3, 4), "tensor": torch.from_numpy(order).view(3, 4).int(),
        "permutation": order, "one row": order[None], "lists": order.reshape(3, 4).tolist(),
        "arrays": [torch.from_numpy(x) for x in order.reshape(3, 4)], "plain": order.tolist(),
        "unsigned": order.astype(np.uint8),
    }  # fmt: skip
    plans = {name: plan(mc.causal(), 12, 3, heads=HEADS, layout=x) for name, x in given.items()}
    assert len({made.digest for made in plans.values()}) == 1
    made = plans["rows"]
    assert made.layout.name == "given"
    assert [made.indices(rank).tolist() for rank in range(3)] == order.reshape(3, 4).tolist()
    other = plan(mc.causal(), 12, 3, heads=HEADS, layout=np.sort(order.reshape(3, 4)))
    assert other.digest != made.digest  # the order in a rank counts, too
    one, two = ([chunks(*parts), chunks((4, 8))] for parts in
                (((0, 4), (8, 12)), ((8, 12), (0, 4))))  # fmt: skip
    one, two = (plan(mc.causal(), 12, 2, heads=HEADS, layout=x) for x in (one, two))
    assert one.digest != two.digest  # the chunks are the same
    assert plan(mc.causal(), 0, 2, heads=HEADS, layout=[[], []]).tokens(1) == 0


@pytest.mark.parametrize(("layout", "fault"), [
    ([[0, 1, 2, 3], [4, 5, 6, 6]], "token 6 lies in slot 2 of rank 1 and in slot 3 of rank 1"),
    ([[0, 1, 2], [4, 5, 6, 7]], "1 of 8 tokens lie on no rank, the first is 3"),
    ([[0, 1, 2, 3], [4, 5, 6, 8]], r"token 8 in slot 3 of rank 1 is none of 0\.\.7"),
    ([[0, 1, 2, -1], [4, 5, 6, 7]], "token -1 in slot 3 of rank 0"),
    ([[0, 1], [2, 3], [4, 5, 6, 7]], "it has tokens of 3 ranks, and the plan is for 2"),
    ([[[0, 1, 2, 3]], [[4, 5, 6, 7]]], r"the tokens of rank 0 have shape \[1, 4\]"),
    (np.arange(8).reshape(4, 2), r"it has shape \[4, 2\], for 8 tokens on 2 ranks"),
    (np.arange(8.0), "it is an array of float64"),
    (np.arange(8) > 3, "it is an array of bool"),
    (object(), "it is object"),
    (None, "it is NoneType"),
])  # fmt: skip
def test_every_token_lies_somewhere_once(layout: Any, fault: str):
    with pytest.raises(MaskcError, match=f"MC710 layout +{fault}"):
        plan(mc.causal(), 8, 2, heads=HEADS, layout=layout)
    if layout is not None:  # None is the default of keys
        with pytest.raises(MaskcError, match=f"MC710 key_layout +{fault}"):
            plan(mc.full(), 20, 2, heads=HEADS, n_kv=8, key_layout=layout)


def test_a_permutation_is_cut_into_equal_parts():
    with pytest.raises(
        MaskcError, match=r"MC710 layout +9 tokens cannot be cut into 2 equal parts"
    ):
        plan(mc.causal(), 9, 2, heads=HEADS, layout=np.arange(9))


@pytest.mark.parametrize(("edges", "ranks", "fault"), [
    ([0, 5, 3], 2, r"MC710 cu_seqlens +it is \[0, 5, 3\]"),
    ([1, 5], 2, r"MC710 cu_seqlens +it is \[1, 5\]"),
    ([[0, 5]], 2, r"MC710 cu_seqlens +it has shape \[1, 2\]"),
    ([], 2, r"MC710 cu_seqlens +it is \[\]"),
    ([0.0, 5.0], 2, "MC710 cu_seqlens +it is an array of float64"),
    ([0, 5], 0, "MC710 ranks +it is 0"),
])  # fmt: skip
def test_edges_of_documents_ascend(edges: Any, ranks: int, fault: str):
    with pytest.raises(MaskcError, match=fault):
        zigzag(edges, ranks)


def test_tensors_that_choose_keys_are_shards():
    """Whole tensors would give a rank the rows of another one."""
    made = plan(mc.causal() & mc.key_lists("listed"), 32, 1, heads=HEADS, dtype="float32")
    q, k = torch.zeros(1, 4, 32, 16), torch.zeros(1, 2, 32, 16)
    for listed, code in (
        (torch.zeros(31, 4, dtype=torch.int32), "MC704 listed  listed has 31 tokens"),
        (torch.zeros(32, 4), "MC304"),
        (torch.full((32, 4), 32), "MC305 listed  'listed': a list names key 32 of 32"),
        (None, "MC301"),
    ):
        with pytest.raises(MaskcError, match=code):
            mc.distributed.attention(q, k, k, made, listed=listed)
    indexed = plan(mc.topk(5, of=mc.causal(), score="indexer"), 32, 1, heads=HEADS, dtype="float32")
    index = {"index_q": torch.zeros(1, 3, 32, 8), "index_k": torch.zeros(1, 32, 8),
             "index_w": torch.zeros(1, 3, 32)}  # fmt: skip
    for name, dim in (("index_q", 2), ("index_k", 1), ("index_w", 2)):
        wrong = {**index, name: index[name].narrow(dim, 0, 16)}
        with pytest.raises(MaskcError, match=f"MC704 {name}  {name} has 16 tokens"):
            mc.distributed.attention(q, k, k, indexed, **wrong)
    with pytest.raises(MaskcError, match="MC702 listed  listed chooses keys: calls give it"):
        made.given(listed=np.zeros((32, 4), np.int64))


def test_lists_name_keys_of_the_sequence():
    """Keys that do not lie in a buffer are none there; keys that do not exist remain mistakes."""
    placed = PlacedTokens(np.array([2, 7]), np.array([4, 9]), np.array([5, 0]))
    places = Lookup(placed).places(torch.tensor([[2, 3, 8], [-1, 4, 9], [7, 10, 99]]), 10)
    assert places.tolist() == [[5, 6, 1], [-1, -1, -1], [0, 10, 99]]
    assert places.dtype == torch.int32


def test_blocks_of_several_ranks_are_said():
    """Where chunks are short, a plan is exact to blocks of queries that ranks share."""
    n = 8192
    layout = np.arange(n).reshape(-1, 4).T
    made = plan(mc.causal() & mc.window(64), n, 4, heads=HEADS, layout=layout)
    assert made.block == 2
    text = made.explain()
    assert "layout given by the caller, planned by blocks of 2 tokens" in text
    assert "(exact to 2 tokens)" in text
    assert "rank 0: tokens 0-0, 4-4, 8-8, 12-12, 16-16, 20-20, 24-24, 28-28 and 2040 more" in text
    (call,) = made.work(1).calls
    assert call.rows == n // 4
