"""`mc.flex_attention` beside torch's: results, gradients, and what it refuses."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest

import maskc as mc
from maskc import flex as module
from maskc.core.errors import BadOption, BadShape, NotAMask, ScoreModUnsupported

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

N, DOC = 130, torch.arange(130) // 50
LENGTHS = torch.tensor([40, 130])


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    return (DOC[q] == DOC[k]) & (q >= k)


def padded(b, h, q, k):
    return (k < LENGTHS[b]) & (q >= k)


def tensors(heads: int = 2, heads_kv: int = 2, grad: bool = False) -> list[object]:
    torch.manual_seed(0)
    sizes = heads, heads_kv, heads_kv
    return [torch.randn(2, h, N, 16, requires_grad=grad) for h in sizes]


def made(mod, batch=None, **options):
    return flex.create_block_mask(mod, batch, None, N, N, device="cpu", **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mod", [None, causal, documents, padded])
def test_results_are_torchs(mod) -> None:
    block_mask = None if mod is None else made(mod, 2 if mod is padded else None)
    given = (*tensors(4, 2), None, block_mask, 0.3, True, True)
    found, wanted = mc.flex_attention(*given), flex.flex_attention(*given)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_gradients() -> None:
    """torch's FlexAttention has none on a CPU, so a dense softmax judges."""
    kept = flex.create_mask(padded, 2, 1, N, N, device="cpu")

    def dense(q, k, v):
        scores = (q @ k.mT * 0.3).masked_fill(~kept, -torch.inf)
        return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

    def ours(q, k, v):
        return mc.flex_attention(q, k, v, block_mask=made(padded, 2), scale=0.3, return_lse=True)

    found, wanted = [], []
    for attend, results in ((ours, found), (dense, wanted)):
        q, k, v = tensors(grad=True)
        out, lse = attend(q, k, v)
        (out.square().sum() + lse.sin().sum()).backward()
        results += [out, lse, q.grad, k.grad, v.grad]
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


def test_the_signature_is_torchs() -> None:
    ours, theirs = map(inspect.signature, (mc.flex_attention, flex.flex_attention))
    mine = {name: p.default for name, p in ours.parameters.items()}
    its = {name: p.default for name, p in theirs.parameters.items()}
    assert list(mine) == [name for name in its if name in mine]
    assert set(its) - set(mine) <= {"return_aux"}
    assert all(mine[name] == its[name] for name in mine)


def test_lists_of_blocks_count() -> None:
    """Where lists and rule disagree, torch's kernels compute listed blocks, and so does this."""
    table = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    counts, order = table.sum(-1).int(), torch.argsort(~table, dim=-1, stable=True).int()
    block_mask = flex.BlockMask.from_kv_blocks(
        counts[None, None], order[None, None], BLOCK_SIZE=64, mask_mod=causal, seq_lengths=(N, N)
    )
    kept = table.repeat_interleave(64, 0).repeat_interleave(64, 1)[:N, :N].tril()
    q, k, v = tensors()
    scores = (q @ k.mT / 4).masked_fill(~kept, -torch.inf)
    wanted = torch.softmax(scores, -1) @ v
    found = mc.flex_attention(q, k, v, block_mask=block_mask)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_mask_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def counted(given):
        seen.append(given)
        return mc.from_block_mask(given)

    monkeypatch.setattr(module, "from_block_mask", counted)
    block_mask, (q, k, v) = made(causal), tensors()
    first = mc.flex_attention(q, k, v, block_mask=block_mask)
    mc.flex_attention(q, k, v, block_mask=block_mask)
    assert len(seen) == 1
    block_mask.kv_num_blocks.zero_()  # somebody writes into the lists
    block_mask.full_kv_num_blocks.zero_()
    found = mc.flex_attention(q, k, v, block_mask=block_mask)
    assert len(seen) == 2
    assert not torch.equal(first, found)
    assert not found.any()
    alive = weakref.ref(block_mask)
    seen.clear()
    del block_mask
    gc.collect()
    assert alive() is None


def test_masks_and_numpy_are_taken_too() -> None:
    q, k, v = tensors()
    wanted = mc.attention(q, k, v, mc.causal())
    torch.testing.assert_close(mc.flex_attention(q, k, v, block_mask=mc.causal()), wanted)
    found = mc.flex_attention(*(x.numpy() for x in (q, k, v)), block_mask=made(causal))
    torch.testing.assert_close(torch.from_numpy(found), wanted)


def test_what_is_refused() -> None:
    q, k, v = tensors(4, 2)
    with pytest.raises(ScoreModUnsupported, match="found causal"):
        mc.flex_attention(q, k, v, causal)
    with pytest.raises(BadOption, match="True, as query has 4 heads and key 2"):
        mc.flex_attention(q, k, v)
    with pytest.raises(NotAMask, match=r"mc\.from_mask_mod"):
        mc.flex_attention(q, k, v, block_mask=causal, enable_gqa=True)
    with pytest.raises(NotAMask, match="found int 3"):
        mc.flex_attention(q, k, v, block_mask=3, enable_gqa=True)
    with pytest.raises(BadShape, match=r"\(130, 130\), expected \(100, 130\)"):
        mc.flex_attention(q[:, :, :100], k, v, block_mask=made(causal), enable_gqa=True)
    three = made(causal, 3)
    with pytest.raises(BadShape, match="sequences and heads"):
        mc.flex_attention(q, k, v, block_mask=three, enable_gqa=True)
