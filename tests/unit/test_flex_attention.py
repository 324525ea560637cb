"""`mc.flex_attention` compared with torch's: results, gradients, and what it refuses."""

from __future__ import annotations

import gc
import inspect
import weakref

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as flex

import maskc as mc
from maskc import flex as module
from maskc.core.errors import BadOption, BadShape, MaskcError, NotAMask
from tests.support.exact_attention import exact
from tests.support.thorough import chiefly, more

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


def test_the_signature_is_torchs() -> None:
    ours, theirs = map(inspect.signature, (mc.flex_attention, flex.flex_attention))
    mine = {name: (p.kind, p.default) for name, p in ours.parameters.items()}
    its = {name: (p.kind, p.default) for name, p in theirs.parameters.items()}
    assert {name: mine[name] for name in its} == its
    assert set(mine) - set(its) <= {"return_aux"}  # which older releases of torch do not have


# ------------------------------------------------------------------ score_mods

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
CAP = torch.tensor(3.0)


def identity(score, b, h, q_idx, kv_idx):
    return score


def softcap(score, b, h, q_idx, kv_idx):
    return 2.5 * torch.tanh(score / 2.5)


def captured_cap(score, b, h, q_idx, kv_idx):
    return (score / CAP).tanh() * CAP


def relative(score, b, h, q_idx, kv_idx):
    """Scores as attention-gym writes ALiBi, for causal masks."""
    scale = torch.exp2(-((h + 1) * 8.0 / 4))
    bias = (kv_idx - q_idx) * scale
    return score + bias


def table(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def distance(score, b, h, q_idx, kv_idx):
    return score - SLOPES[h] * (q_idx - kv_idx).abs()


def late(score, b, h, q_idx, kv_idx):
    """ALiBi where the last of 100 queries meets the last key."""
    return score - SLOPES[h] * (q_idx + 30 - kv_idx).abs()


def everything(score, b, h, q_idx, kv_idx):
    capped = 2.5 * torch.tanh(score * 0.7 / 2.5)
    return capped - torch.abs(kv_idx - q_idx) * 0.1 + SLOPES[h] + 1


def factor(score, b, h, q_idx, kv_idx):
    return torch.rsub(torch.rsub(2 * score.to(torch.float32) / 3, 1), 3)


def no_score(score, b, h, q_idx, kv_idx):
    return (q_idx - kv_idx) * 0.1


FOR_ALL = [identity, softcap, captured_cap, distance, everything, factor, no_score]
FOR_CAUSAL = [relative, table]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "mod",
    chiefly(FOR_ALL + FOR_CAUSAL, captured_cap, distance, everything, factor, relative, table),
)
def test_score_mods_are_options(mod) -> None:
    q, k, v = tensors(4, 2)
    for block_mask in (made(causal), made(documents), *((None,) if mod in FOR_ALL else ())):
        given = (q, k, v, mod, block_mask, 0.3, True, True)
        found, wanted = mc.flex_attention(*given), flex.flex_attention(*given)
        torch.testing.assert_close(found, wanted, atol=3e-5, rtol=3e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mod", [more(softcap), table, distance, late])
def test_score_mods_where_keys_outnumber_queries(mod) -> None:
    """FlexAttention counts queries from the first one, which moves ALiBi's scores by rows."""
    q, k, v = tensors(4, 2)
    block_mask = flex.create_block_mask(causal, None, None, 100, N, device="cpu")
    given = (q[:, :, :100], k, v, mod, block_mask, None, True, True)
    found, wanted = mc.flex_attention(*given), flex.flex_attention(*given)
    torch.testing.assert_close(found, wanted, atol=3e-5, rtol=3e-5)


def test_slopes_get_their_gradient() -> None:
    slopes = SLOPES.clone().requires_grad_()
    q, k, v = tensors(4, 2)

    def mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mc.flex_attention(q, k, v, mod, made(causal), enable_gqa=True).square().sum().backward()
    other = SLOPES.clone().requires_grad_()
    mc.attention(q, k, v, mc.causal(), alibi_slopes=other).square().sum().backward()
    torch.testing.assert_close(slopes.grad, other.grad)


def test_numbers_that_a_score_mod_captured_count_anew_in_each_call() -> None:
    q, k, v = tensors()
    cap = 2.0

    def mod(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    for cap in (2.0, 0.5, 2.0):
        wanted = mc.attention(q, k, v, mc.full(), softcap=cap)
        assert torch.equal(mc.flex_attention(q, k, v, mod), wanted)


def test_score_mods_of_numpy() -> None:
    q, k, v = (x.numpy() for x in tensors())
    out = mc.flex_attention(q, k, v, lambda s, b, h, i, j: np.tanh(s / 3) * 3 - 0.5**h * abs(i - j))
    wanted = mc.attention(
        q, k, v, mc.full(), softcap=3.0, alibi_slopes=np.array([1, 0.5], np.float32)
    )
    np.testing.assert_allclose(out, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("mod", "found", "hint"),
    [
        (lambda s, b, h, q, k: None, "MC129.*returns None", "end the function"),
        (lambda s, b, h, q: s, "MC129.*takes 4 arguments", "expected"),
    ],
)
def test_what_is_no_score_mod_is_refused_at_its_line(mod, found: str, hint: str) -> None:
    """test_flex_mods.py has score_mods without a formula."""
    q, k, v = tensors(4, 4)
    with pytest.raises(MaskcError, match=found) as refused:
        mc.flex_attention(q, k, v, mod)
    assert hint in str(refused.value)
    assert "test_flex_attention.py:" in str(refused.value)


# ------------------------------------------------------------------ what else a call says


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="an older torch")
def test_aux_outputs() -> None:
    q, k, v = tensors()
    out, lse = mc.flex_attention(q, k, v, return_lse=True)
    results = mc.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True))
    assert torch.equal(results[0], out)
    assert torch.equal(results[1].lse, lse)
    assert results[1].max_scores is None
    assert mc.flex_attention(q, k, v, return_aux=flex.AuxRequest())[1] == (None, None)
    with pytest.raises(BadOption, match="computes no max_scores"):
        mc.flex_attention(q, k, v, return_aux=flex.AuxRequest(max_scores=True))
    with pytest.raises(BadOption, match="left out with return_aux"):
        mc.flex_attention(q, k, v, return_lse=True, return_aux=flex.AuxRequest(lse=True))


def test_kernel_options_say_that_they_do_nothing() -> None:
    q, k, v = tensors()
    with pytest.warns(UserWarning, match="kernel_options has no effect") as seen:
        out = mc.flex_attention(q, k, v, kernel_options={"BLOCK_M": 64})
    assert torch.equal(out, mc.flex_attention(q, k, v))
    assert seen[0].filename == __file__


def test_lists_of_blocks_count() -> None:
    """Where lists and rule disagree, torch's kernels compute listed blocks, and so does this."""
    table = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    counts, order = table.sum(-1).int(), torch.argsort(~table, dim=-1, stable=True).int()
    block_mask = flex.BlockMask.from_kv_blocks(
        counts[None, None], order[None, None], BLOCK_SIZE=64, mask_mod=causal, seq_lengths=(N, N)
    )
    kept = table.repeat_interleave(64, 0).repeat_interleave(64, 1)[:N, :N].tril()
    q, k, v = tensors()
    out = mc.flex_attention(q, k, v, block_mask=block_mask)
    torch.testing.assert_close(out.double(), exact(q, k, v, kept)[0], atol=1e-5, rtol=1e-5)


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
    out = mc.flex_attention(q, k, v, block_mask=block_mask)
    assert len(seen) == 2
    assert not torch.equal(first, out)
    assert not out.any()
    alive = weakref.ref(block_mask)
    seen.clear()
    del block_mask
    gc.collect()
    assert alive() is None


def test_masks_and_numpy_are_taken_too() -> None:
    q, k, v = tensors()
    wanted = mc.attention(q, k, v, mc.causal())
    torch.testing.assert_close(mc.flex_attention(q, k, v, block_mask=mc.causal()), wanted)
    out = mc.flex_attention(*(x.numpy() for x in (q, k, v)), block_mask=made(causal))
    torch.testing.assert_close(torch.from_numpy(out), wanted)


def test_what_is_refused() -> None:
    q, k, v = tensors(4, 2)
    with pytest.raises(BadOption, match="True, as query has 4 heads and key 2"):
        mc.flex_attention(q, k, v)
    with pytest.raises(NotAMask, match=r"mc\.from_mask_mod"):
        mc.flex_attention(q, k, v, block_mask=causal, enable_gqa=True)
    with pytest.raises(NotAMask, match=r"mc\.from_bool"):
        mc.flex_attention(q, k, v, block_mask=torch.ones(8, 8, dtype=torch.bool))
    with pytest.raises(NotAMask, match="found int 3"):
        mc.flex_attention(q, k, v, block_mask=3, enable_gqa=True)
    with pytest.raises(BadShape, match=r"\(130, 130\), expected \(100, 130\)"):
        mc.flex_attention(q[:, :, :100], k, v, block_mask=made(causal), enable_gqa=True)
    three = made(causal, 3)
    with pytest.raises(BadShape, match="sequences and heads"):
        mc.flex_attention(q, k, v, block_mask=three, enable_gqa=True)


# ------------------------------------------------------------------ while torch.compile traces


def alike(function, *options, fullgraph: bool = True, **named) -> None:
    """Results and gradients of a function of q, k and v, compiled and not, bit for bit."""
    compiled = torch.compile(function, fullgraph=fullgraph, backend="aot_eager")
    for _ in range(2):
        results = []
        for run in (function, compiled):
            inputs = tensors(grad=True)
            out = run(*inputs, *options, **named)
            first = out[0] if isinstance(out, tuple) else out
            results.append((out, torch.autograd.grad(first.square().sum(), inputs)))
        torch.testing.assert_close(*results, atol=0, rtol=0)


def soft_cap(score, b, h, q, k):
    return 20 * torch.tanh(score * 2 / 20) + 0.5


class Biased(torch.nn.Module):
    """score_mods as layers have them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, 2 * N).reshape(2, N))

    def bias(self, score, b, h, q, k):
        return score + self.table[h, k]

    def forward(self, q, k, v):
        return mc.flex_attention(q, k, v, self.bias)

    def local(self, q, k, v):
        def doubled(score, b, h, q, k):
            return score * 2

        return mc.flex_attention(q, k, v, doubled)

    def reading(self, q, k, v):
        table = self.table

        def bias(score, b, h, q, k):
            return score + table[h, k]

        block_mask = made(causal)
        return mc.flex_attention(q, k, v, bias, block_mask)


@pytest.mark.parametrize("mod", [causal, documents, padded])
def test_block_masks_in_a_compiled_function(graphs, mod) -> None:
    block_mask = made(mod, 2 if mod is padded else None)
    alike(lambda q, k, v: mc.flex_attention(q, k, v, block_mask=block_mask, return_lse=True))
    assert graphs() == 1


def test_score_mods_in_a_compiled_function(graphs) -> None:
    slopes = torch.tensor([0.1, 0.2])

    def alibi(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    for score_mod in (soft_cap, alibi):
        alike(lambda q, k, v, own=score_mod: mc.flex_attention(q, k, v, own, return_lse=True))
    layer = Biased()
    alike(layer)
    alike(layer.local)
    assert graphs() == 4


def test_the_function_itself_compiled(graphs) -> None:
    alike(mc.flex_attention, soft_cap, made(documents))
    assert graphs() == 1


def test_what_a_graph_cannot_hold_runs_between_two(graphs) -> None:
    alike(Biased().reading, fullgraph=False)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="maskc makes masks and formulas outside of graphs"):
        alike(Biased().reading)


def test_writes_into_what_a_mask_mod_reads(graphs) -> None:
    """The graph reads the tensor, and again after it wrote into it."""
    lengths = torch.tensor([40, 130])
    block_mask = made(lambda b, h, q, k: k < lengths[b], 2)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v):
        lengths.sub_(7)
        return mc.flex_attention(q, k, v, block_mask=block_mask)

    inputs = tensors()
    for _ in range(2):
        found = step(*inputs)
        live = (torch.arange(N) < lengths[:, None])[:, None, None]
        want = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=live)
        torch.testing.assert_close(found, want, atol=2e-5, rtol=2e-5)


def test_mistakes_in_a_compiled_function(graphs) -> None:
    q, k, v = tensors(4, 2)
    compiled = torch.compile(mc.flex_attention, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"MC407 enable_gqa .* query has 4 heads and key 2"):
        compiled(q, k, v)
    short = flex.create_block_mask(causal, None, None, 64, N, device="cpu")
    with pytest.raises(Exception, match=r"MC401 block_mask .* has shape \(64, 130\)"):
        compiled(q, k, v, block_mask=short, enable_gqa=True)


def test_alibi_over_a_mask_whose_content_changes() -> None:
    """A distance is only the other way round where no key is behind its query."""
    ahead, slopes = torch.zeros(N, dtype=torch.int32), torch.tensor([0.5, 0.3])
    mask = mc.from_mask_mod(lambda b, h, q, k: k <= q + ahead[q])
    place, inputs = torch.arange(N), tensors()
    for size in (0, 5):
        ahead.fill_(size)
        out = mc.flex_attention(*inputs, lambda s, b, h, q, k: s + slopes[h] * (k - q), mask)
        bias = slopes[:, None, None] * (place - place[:, None])
        bias = bias.masked_fill(place > place[:, None] + size, -torch.inf)[None]
        want = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=bias)
        torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-5)
