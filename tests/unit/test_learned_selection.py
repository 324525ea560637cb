"""Choices of run-time selections, and the loss that trains an indexer: against dense torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core import errors
from tests.support.exact_entmax import weights as entmax_weights
from tests.support.thorough import alternating

CAUSAL = mc.causal()
N, DIM = 70, 16


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(heads=4, kv_heads=2, batch=2, n_q=N, n_kv=N):
    shapes = ((heads, n_q), (kv_heads, n_kv), (kv_heads, n_kv))
    return [numbers(batch, h, n, DIM, seed=i) for i, (h, n) in enumerate(shapes)]


def indexer(batch=2, n_q=N, n_kv=N, heads=3, dim=8, grad=True):
    made = {
        "index_q": numbers(batch, heads, n_q, dim, seed=5),
        "index_k": numbers(batch, n_kv, dim, seed=6),
        "index_w": numbers(batch, heads, n_q, seed=7),
    }
    return {name: x.requires_grad_(grad) for name, x in made.items()}


# ------------------------------------------------------------------ what was chosen


def as_dense(selection, n_kv, block=1, q_block=1, n_q=N):
    """bool [B, G, n_q, n_kv] of lists."""
    lists = torch.as_tensor(np.asarray(selection)).long()
    assert ((lists.diff() > 0) | (lists[..., 1:] == -1)).all()
    columns = -(-n_kv // block)
    found = torch.zeros(*lists.shape[:3], columns + 1, dtype=torch.bool)
    found.scatter_(3, torch.where(lists < 0, columns, lists), True)
    found = found[..., :columns].repeat_interleave(block, 3)[..., :n_kv]
    return found.repeat_interleave(q_block, 2)[:, :, :n_q]


@pytest.mark.parametrize(("share", "groups"), [("head", 4), ("group", 2), ("all", 1)])
@pytest.mark.parametrize(("block", "q_block"), [(1, 1), (4, 8)])
def test_it_is_what_the_mask_keeps(share, groups, block, q_block):
    mask = mc.topk(3, CAUSAL, block=block, q_block=q_block, share=share)
    q, k, v = given()
    out, lse, selection = mask.compile(DIM, dtype="float32")(
        q, k, v, return_lse=True, return_selection=True
    )
    assert selection.dtype == torch.int32
    assert selection.shape == (2, groups, -(-N // q_block), 3)
    kept = torch.from_numpy(mask.dense(N, n_heads=4, heads_kv=2, q=q, k=k))
    kept = kept.reshape(2, -1, N, N).expand(2, 4, N, N)
    chosen = as_dense(selection, N, block, q_block).repeat_interleave(4 // groups, 1)
    assert torch.equal(chosen & torch.from_numpy(CAUSAL.dense(N)), kept)
    assert torch.equal(out, mc.attention(q, k, v, mask))
    assert lse.shape == (2, 4, N)


def test_numpy_gets_numpy_and_several_selections_a_tuple():
    near, far = mc.topk(2, mc.window(9)), mc.topk(3, CAUSAL - mc.window(9))
    q, k, v = (x.numpy() for x in given())
    out, (first, second) = mc.attention(q, k, v, near | far, return_selection=True)
    assert isinstance(out, np.ndarray)
    assert isinstance(first, np.ndarray)
    both = {x.shape[-1]: as_dense(x, N) for x in (first, second)}
    for mask, width in ((near, 2), (far, 3)):
        kept = torch.from_numpy(mask.dense(N, n_heads=4, heads_kv=2, q=q, k=k))
        assert torch.equal(both[width] & kept, kept)


def test_lists_that_simt_reads(monkeypatch):
    from maskc.testing.emulator import machine

    mask = mc.topk(5, CAUSAL)
    q, k, v = given(2, 1, 1)
    wanted, same = mask.compile(DIM, dtype="float32", target="cpu")(q, k, v, return_selection=True)
    machine.install(monkeypatch)
    attn = mask.compile(DIM, dtype="float32", target="simt")
    out, selection = attn(q, k, v, return_selection=True)
    assert torch.equal(selection, same)
    assert (out - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_blocks_that_the_host_chooses_for_other_gpus(target, monkeypatch):
    from maskc.testing.emulator import machine

    machine.install(monkeypatch)
    mask = mc.topk(2, CAUSAL, block=64, q_block=64)
    q, k, v = (numbers(1, 2, 300, 64, seed=i).bfloat16() for i in range(3))
    out, selection = mask.compile(64, target=target)(q, k, v, return_selection=True)
    kept = torch.from_numpy(mask.dense(300, n_heads=2, q=q.float(), k=k.float()))
    chosen = as_dense(selection, 300, 64, 64, 300)
    assert torch.equal(chosen[0] & torch.from_numpy(CAUSAL.dense(300)), kept.reshape(2, 300, 300))
    assert torch.equal(out, mask.compile(64, target=target)(q, k, v))


# ------------------------------------------------------------------ the loss


def dense_loss(
    q, k, live, chosen, ranks, normalizer="softmax", softcap=None, slopes=None, sinks=None
):
    """fp64 [B, n_q]: sum t log(t / s) by its definition, heads [B, H, ...] choosing together."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if slopes is not None:
        place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        s = s - slopes.double()[:, None, None] * (place - torch.arange(k.shape[2])).abs()
    s = s.masked_fill(~live, -torch.inf)
    empty = ~live.any(-1, keepdim=True)
    if normalizer == "softmax":
        lse = s.masked_fill(empty, 0).logsumexp(-1, keepdim=True)
        if sinks is not None:
            lse = torch.logaddexp(lse, sinks.double()[:, None, None])
        p = (s - lse).exp().masked_fill(~live, 0)
    else:
        p = entmax_weights(s, 1.5)[0]
    t = (p * chosen).sum(1)
    seen = (chosen & live).any(1)
    t = torch.where(seen, t, 0.0)
    t = t / t.sum(-1, keepdim=True).clamp(min=1e-30)
    ranks = ranks.double().masked_fill(~seen, -torch.inf)
    ranks = ranks.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    far = t.clamp(min=1e-300).log() - ranks.log_softmax(-1)
    return torch.where(t > 0, t * far, 0.0).sum(-1)


def ranks_of(index):
    hits = torch.einsum("bjcd,bkd->bjck", index["index_q"], index["index_k"]).relu()
    return torch.einsum("bjck,bjc->bck", hits, index["index_w"])


MASKS = {
    "chosen": (mc.topk(9, CAUSAL, score="indexer", share="all"), None),
    "beside others": (mc.topk(9, CAUSAL, score="indexer", share="all") | mc.window(2), None),
    "some of the chosen": (
        mc.topk(20, CAUSAL, score="indexer", share="all") & mc.strided(2),
        mc.strided(2),
    ),
    "rows without keys": (mc.topk(9, CAUSAL - mc.prefix(5), score="indexer", share="all"), None),
}


@pytest.mark.parametrize(("name", "options"), alternating(list(MASKS), [
    {}, {"softcap": 2.0}, {"alibi_slopes": torch.rand(4)}, {"normalizer": "entmax"},
    {"sink_logits": torch.rand(4)},
]))  # fmt: skip
def test_values_and_gradients(name, options):
    mask, filtered = MASKS[name]
    q, k, v = given()
    index = indexer()
    out, selection, loss = mc.attention(
        q, k, v, mask, **index, return_selection=True, indexer_loss=True, **options
    )
    plain = {each: x.detach() for each, x in index.items()}
    assert torch.equal(out, mc.attention(q, k, v, mask, **plain, **options))
    live = torch.from_numpy(mask.dense(N, **plain))[:, None]
    chosen = as_dense(selection, N)
    if filtered is not None:
        chosen &= torch.from_numpy(filtered.dense(N))
    rest = {"normalizer": options.get("normalizer", "softmax"), "softcap": options.get("softcap"),
            "slopes": options.get("alibi_slopes"), "sinks": options.get("sink_logits")}  # fmt: skip
    wanted = dense_loss(q, k, live, chosen, ranks_of(index), **rest)
    assert loss.shape == (2, N)
    assert loss.dtype == torch.float32
    assert (loss - wanted).abs().max() < 1e-5
    share = numbers(2, N, seed=9)
    gradients = torch.autograd.grad((loss * share).sum(), index.values())
    exact = torch.autograd.grad((wanted * share).sum(), index.values())
    for x, y in zip(gradients, exact, strict=True):
        assert (x - y).abs().max() < 1e-5 * y.abs().max().clamp(min=1)


@pytest.mark.parametrize("share", ["head", "group", "all"])
def test_scores_of_the_call_train_too(share):
    mask = mc.topk(7, CAUSAL, score="given", share=share)
    q, k, v = given()
    scores = numbers(2, 4, N, N).requires_grad_()
    _, selection, loss = mc.attention(
        q, k, v, mask, scores=scores, return_selection=True, indexer_loss=True
    )
    groups = selection.shape[1]
    ranks = scores.unflatten(1, (groups, -1)).mean(2)
    live = torch.from_numpy(mask.dense(N, n_heads=4, heads_kv=2, scores=scores.detach()))
    live = live.reshape(2, -1, N, N).expand(2, 4, N, N)
    wanted, chosen = 0.0, as_dense(selection, N)
    for group, heads in enumerate(torch.arange(4).reshape(groups, -1)):
        own_k = k.repeat_interleave(2, 1)[:, heads]
        wanted = wanted + dense_loss(
            q[:, heads], own_k, live[:, heads], chosen[:, group, None], ranks[:, group]
        ) / groups  # fmt: skip
    assert (loss - wanted).abs().max() < 1e-5
    (found,), (exact,) = (torch.autograd.grad(x.sum(), scores) for x in (loss, wanted))
    assert (found - exact).abs().max() < 1e-5


def test_in_steps_and_without_gradient(monkeypatch):
    from maskc.integrations.torch import indexer_loss

    mask, _ = MASKS["chosen"]
    q, k, v = given(n_q=30)
    index = indexer(n_q=30)
    call = (q, k, v, mask)
    _, whole = mc.attention(*call, **index, indexer_loss=True)
    with torch.no_grad():
        _, plain = mc.attention(*call, **index, indexer_loss=True)
    assert not plain.requires_grad
    monkeypatch.setattr(indexer_loss, "_MAX", 1)
    _, steps = mc.attention(*call, **index, indexer_loss=True)
    assert (steps - whole).abs().max() < 1e-6
    assert (plain - whole).abs().max() < 1e-6
    made = [torch.autograd.grad(x.sum(), index.values()) for x in (whole, steps)]
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(*made, strict=True))


def test_gathered_keys_of_gpus_are_ranked_again(monkeypatch):
    """Their kernels keep no lists; the loss is that of the CPU."""
    from maskc.testing.emulator import machine

    mask, n = mc.topk(9, CAUSAL, score="indexer", share="all"), 90
    q, k, v = (numbers(1, 2, n, 64, seed=i).bfloat16() for i in range(3))
    index = indexer(1, n, n, 4, 64, grad=False)
    index = {name: x.round().bfloat16().requires_grad_() for name, x in index.items()}
    found = [mask.compile(64, target="cpu")(q, k, v, **index, indexer_loss=True)]
    machine.install(monkeypatch)
    found += [mask.compile(64, target="sm_90a")(q, k, v, **index, indexer_loss=True)]
    assert (found[0][0].float() - found[1][0].float()).abs().max() < 2e-2
    losses = [loss for _, loss in found]
    assert (losses[0] - losses[1]).abs().max() < 1e-2
    for x, y in zip(*(torch.autograd.grad(x.sum(), index.values()) for x in losses), strict=True):
        assert (x - y).abs().max() < 2e-2 * x.abs().max()


# ------------------------------------------------------------------ refused


def test_a_ranking_that_requires_grad_needs_the_loss():
    mask, _ = MASKS["chosen"]
    with pytest.raises(errors.NoGradient, match=r"index_q[\s\S]*indexer_loss=True"):
        mc.attention(*given(), mask, **indexer())


def test_what_is_not_there_is_refused():
    q, k, v = given()
    for keyword in ("return_selection", "indexer_loss"):
        with pytest.raises(errors.NothingSelected, match=keyword):
            mc.attention(q, k, v, CAUSAL, **{keyword: True})
    with pytest.raises(errors.NoIndexerLoss, match="ranked by qk"):
        mc.attention(q, k, v, mc.topk(3, CAUSAL), indexer_loss=True)
    blocks, scores = mc.topk(3, CAUSAL, score="given", block=4), numbers(N, N // 4 + 1)
    with pytest.raises(errors.NoIndexerLoss, match="blocks of 1 x 4"):
        mc.attention(q, k, v, blocks, scores=scores, indexer_loss=True)
    two = mc.topk(3, CAUSAL, score="given") | mc.topk(4, mc.full(), score="given")
    with pytest.raises(errors.NoIndexerLoss, match="2 selections"):
        mc.attention(q, k, v, two, scores=numbers(N, N), indexer_loss=True)
    own = {name: x.detach().numpy() for name, x in indexer().items()}
    arrays = [x.numpy() for x in (q, k, v)]
    with pytest.raises(errors.MixedLibraries, match="numpy"):
        mc.attention(*arrays, MASKS["chosen"][0], **own, indexer_loss=True)
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    with pytest.raises(errors.BadOption, match=r"\[B, N, H, D\]"):
        mc.attention(*swapped, mc.topk(3, CAUSAL), layout="bshd", return_selection=True)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_kernels_that_keep_no_lists_say_so(target, monkeypatch):
    from maskc.testing.emulator import machine

    machine.install(monkeypatch)
    q, k, v = (numbers(1, 1, 20, 64).bfloat16() for _ in range(3))
    with pytest.raises(errors.SelectionNotListed, match=rf"{target}[\s\S]*target='simt'"):
        mc.topk(3, CAUSAL).compile(64, target=target)(q, k, v, return_selection=True)


# ------------------------------------------------------------------ learning


@pytest.fixture
def one_thread():
    """Steps are small: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_an_indexer_learns_which_16_of_256_keys_to_keep(one_thread):
    """Every key has one of 16 topics, and a query looks at the 16 keys of its own. The indexer
    begins at random; it learns among all keys first, then among those that it chose."""
    torch.manual_seed(0)
    topics, n_q, n, top, heads = 16, 64, 256, 16, 8
    of_key, of_query = torch.randperm(n) % topics, torch.randint(topics, (n_q,))
    keys, queries = (torch.eye(topics)[x] + 0.2 * torch.randn(len(x), topics)
                     for x in (of_key, of_query))  # fmt: skip
    q, k, v = 16 * queries[None, None], keys[None, None], torch.randn(1, 1, n, topics)
    q, k, v = (x.contiguous().requires_grad_() for x in (q, k, v))
    made = [torch.nn.Parameter(torch.randn(*shape) / 4)
            for shape in ((heads, topics, 16), (topics, 16), (topics, heads))]  # fmt: skip
    training = torch.optim.Adam(made, lr=0.1)

    def step(kept, trained=True):
        """(share of the keys that the query looks at among the chosen ones, loss, out)."""
        index = {
            "index_q": torch.einsum("nw,jwd->jnd", queries, made[0])[None],
            "index_k": (keys @ made[1])[None],
            "index_w": (queries @ made[2]).T[None].contiguous(),
        }
        mask = mc.topk(kept, mc.full(), score="indexer", share="all")
        out, chosen, loss = mc.attention(
            q, k, v, mask, **index, return_selection=True, indexer_loss=True
        )
        if trained:
            training.zero_grad()
            loss.mean().backward()
            training.step()
        hits = of_key[chosen[0, 0].long()] == of_query[:, None]
        return hits.float().mean().item(), loss.mean().item(), out

    before, first, _ = step(top, False)
    for kept in [n] * 20 + [top] * 20:
        step(kept)
    after, last, out = step(top, False)
    assert before < 0.1
    assert after > 0.75
    assert last < first / 10
    assert q.grad is None  # where attention looks is not trained by it
    whole = mc.attention(q, k, v, mc.full())
    assert (out - whole).norm() < 0.5 * whole.norm()
