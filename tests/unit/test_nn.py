"""mc.nn: modules that state_dict, torch.save, torch.compile, copies and DDP take."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from typing import Any

import pytest
import torch

import maskc as mc
from maskc.core.errors import BadOption, BadShape, DataUnknown, NotAMask, NotAScore
from tests.support.exact_attention import exact
from tests.support.exact_entmax import weights

N, H, D = 20, 4, 16
MASK = mc.causal() & (mc.sinks(2) | mc.window(5))


def operands(batch: int = 2, heads_kv: int = 2) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(torch.randn(batch, h, N, D, requires_grad=True) for h in (H, heads_kv, heads_kv))


class Model(torch.nn.Module):
    """Two layers, each with its own mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.ModuleList([torch.nn.Linear(H * D, 3 * H * D) for _ in range(2)])
        self.attend = torch.nn.ModuleList([
            mc.nn.Attention(MASK, n_heads=H, sink_logits=True), mc.nn.Attention(mc.causal())
        ])  # fmt: skip

    def forward(self, x: Any) -> Any:
        for project, attend in zip(self.project, self.attend, strict=True):
            q, k, v = project(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
            x = x + attend(q, k, v).transpose(1, 2).flatten(2)
        return x


def test_importing_maskc_does_not_import_torch() -> None:
    script = (
        "import sys, maskc; print('torch' in sys.modules); maskc.nn; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_results_and_gradients() -> None:
    q, k, v = operands()
    sinks = torch.tensor([0.5, -1.0, 0.0, 2.0])
    module = mc.nn.Attention(MASK, sink_logits=sinks)
    out = module(q, k, v)
    mine = torch.autograd.grad(out.pow(2).sum(), (q, k, v, module.sink_logits))
    given = sinks.clone().requires_grad_()
    right = exact(q, k, v, MASK.dense(N), sink_logits=given)[0].float()
    torch.testing.assert_close(out, right)
    theirs = torch.autograd.grad(right.pow(2).sum(), (q, k, v, given))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    with_lse, lse = module(q, k, v, return_lse=True)
    torch.testing.assert_close(with_lse, out)
    assert lse.shape == (2, H, N)


def test_data_and_options_reach_the_call() -> None:
    q, k, v = operands()
    ids = torch.arange(N) // 7
    module = mc.nn.Attention(mc.causal() & mc.documents("doc"), scale=0.3, softcap=5.0)
    right = mc.attention(
        q, k, v, mc.causal() & mc.documents("doc"), scale=0.3, softcap=5.0, doc=ids
    )
    assert torch.equal(module(q, k, v, doc=ids), right)
    assert repr(module) == "Attention(causal() & documents('doc'), scale=0.3, softcap=5)"
    slopes = mc.nn.Attention(MASK, n_heads=H, alibi_slopes=True)
    assert slopes.alibi_slopes.tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    right = mc.attention(q, k, v, MASK, alibi_slopes=slopes.alibi_slopes)
    assert torch.equal(slopes(q, k, v), right)
    assert mc.nn.Attention(MASK, n_heads=12, alibi_slopes=True).alibi_slopes[8] == 2**-0.5


def test_what_a_state_dict_holds() -> None:
    model = Model()
    assert [n for n in model.state_dict() if "attend" in n] == ["attend.0.sink_logits"]
    with torch.no_grad():
        model.attend[0].sink_logits.normal_()
    other = Model()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, N, H * D)
    assert torch.equal(model(x), other(x))
    assert mc.nn.Attention(MASK, n_heads=H, alibi_slopes=True).state_dict().keys() == {
        "alibi_slopes"
    }


def test_copies_and_files() -> None:
    model, x = Model(), torch.randn(2, N, H * D)
    right = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(model),
        torch.load(file, weights_only=False),
        torch.optim.swa_utils.AveragedModel(model),
    ):
        assert torch.equal(twin(x), right)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == model.state_dict().keys()


def test_half_precision_keeps_sinks_in_reach() -> None:
    q, k, v = (x.detach().bfloat16() for x in operands())
    module = mc.nn.Attention(MASK, sink_logits=torch.ones(H)).to(torch.bfloat16)
    right = mc.attention(q, k, v, MASK, sink_logits=torch.ones(H))
    assert torch.equal(module(q, k, v), right)


@pytest.mark.filterwarnings("ignore")
def test_one_graph_without_breaks() -> None:
    model, x = Model(), torch.randn(2, N, H * D)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        run(x).pow(2).mean().backward()
        grads.append([weight.grad.clone() for weight in model.parameters()])
    torch.testing.assert_close(*grads)


# ------------------------------------------------------------------ score formulas


def with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The causal mask and bias[h, clip(q - k, -8, 8) + 8], in plain PyTorch."""
    places = (torch.arange(N)[:, None] - torch.arange(N)).clip(-8, 8) + 8
    scores = q @ k.mT * q.shape[-1] ** -0.5 + bias[:, places]
    seen = torch.ones(N, N, dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def biased(kind: str) -> tuple[Any, str]:
    """(a module with a learned bias, the name of the bias)."""
    torch.manual_seed(1)
    values = torch.nn.Parameter(torch.randn(H, 17))
    if kind == "named":
        score = mc.scores.relative(furthest=8)
        return mc.nn.Attention(mc.causal(), score=score, bias=values), "bias"

    def formula(s: Any, q: Any, k: Any, h: Any) -> Any:
        return s + values[h, torch.clamp(q - k, -8, 8) + 8]

    attend = mc.nn.Attention(mc.causal(), score=mc.score(formula))
    return attend, next(iter(attend.state_dict()))


@pytest.mark.parametrize("kind", ["named", "captured"])
def test_a_bias_that_is_learned(kind: str) -> None:
    attend, name = biased(kind)
    q, k, v = operands(heads_kv=H)
    assert list(attend.state_dict()) == [name]
    (bias,) = attend.parameters()
    want = with_bias(q, k, v, bias)
    torch.testing.assert_close(attend(q, k, v), want, atol=1e-5, rtol=1e-5)
    trained = [q, k, v, bias]
    gradients = torch.autograd.grad(attend(q, k, v).square().sum(), trained)
    for gradient, its in zip(
        gradients, torch.autograd.grad(want.square().sum(), trained), strict=True
    ):
        torch.testing.assert_close(gradient, its, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["named", "captured"])
def test_copies_have_a_bias_of_their_own(kind: str) -> None:
    attend, name = biased(kind)
    q, k, v = operands(heads_kv=H)
    file = io.BytesIO()
    torch.save(attend, file)
    file.seek(0)
    for other in (copy.deepcopy(attend), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(q, k, v), attend(q, k, v))
        other.load_state_dict({name: torch.ones(H, 17)})
        (bias,) = other.parameters()
        assert bias is not next(attend.parameters())
        torch.testing.assert_close(
            other(q, k, v), with_bias(q, k, v, torch.ones(H, 17)), atol=1e-5, rtol=1e-5
        )
    assert not torch.equal(next(attend.parameters()), torch.ones(H, 17))


@pytest.mark.parametrize("kind", ["named", "captured"])
def test_a_learned_bias_in_one_graph(kind: str) -> None:
    torch._dynamo.reset()
    attend, _ = biased(kind)
    q, k, v = operands(heads_kv=H)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))


def test_a_step_of_an_optimizer_reaches_the_next_call() -> None:
    attend, _ = biased("named")
    q, k, v = (x.detach() for x in operands(heads_kv=H))
    optimizer = torch.optim.SGD(attend.parameters(), lr=1.0)
    attend(q, k, v).square().sum().backward()
    optimizer.step()
    (bias,) = attend.parameters()
    torch.testing.assert_close(attend(q, k, v), with_bias(q, k, v, bias), atol=1e-5, rtol=1e-5)


def test_tables_of_the_mask_are_buffers() -> None:
    q, k, v = operands()
    kept = torch.arange(N) % 3 != 1
    attend = mc.nn.Attention(mc.flags("kept"), kept=kept)
    assert list(attend.state_dict()) == ["kept"]
    assert not list(attend.parameters())
    want = mc.attention(q, k, v, mc.flags("kept"), kept=kept)
    torch.testing.assert_close(attend(q, k, v), want)
    other = mc.attention(q, k, v, mc.flags("kept"), kept=~kept)
    torch.testing.assert_close(attend(q, k, v, kept=~kept), other)


def test_mistakes_of_tables() -> None:
    bias = mc.scores.bias("half")
    with pytest.raises(BadOption, match="half must be named otherwise"):
        mc.nn.Attention(mc.causal(), score=bias, half=torch.zeros(N, N))
    with pytest.raises(BadOption, match="bias must be a tensor, found list"):
        mc.nn.Attention(mc.causal(), score=mc.scores.bias(), bias=[1.0])
    with pytest.raises(BadOption, match=r"num_heads must be a tensor[^?]*did you mean 'n_heads'"):
        mc.nn.Attention(mc.causal(), num_heads=4)
    with pytest.raises(NotAScore):
        mc.nn.Attention(mc.causal(), score=lambda s: s)
    unread = mc.nn.Attention(mc.causal(), biass=torch.zeros(3))
    with pytest.raises(DataUnknown, match="'biass'"):
        unread(*operands())


# ------------------------------------------------------------------ several processes


def gradients_of_two(rank: int, size: int, kind: str) -> None:
    """Gradients of half of a batch each, put together, compared with those of the whole."""
    torch.manual_seed(0)
    alone, model = Model(), Model()
    model.load_state_dict(alone.state_dict())
    x = torch.randn(4, N, H * D)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    model(x[2 * rank : 2 * rank + 2]).pow(2).mean().backward()
    alone(x).pow(2).mean().backward()
    for mine, right in zip(model.parameters(), alone.parameters(), strict=True):
        found = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
        torch.testing.assert_close(found, right.grad, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- SplashAttention


def splash(q: Any, k: Any, v: Any, keep: Any, k_keep: int | None, alpha: float) -> Any:
    """The definition: the best keys among those that are kept, then entmax."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * D**-0.5).masked_fill(~keep, -torch.inf)
    if k_keep is not None:
        best = scores.topk(k_keep, -1).values[..., -1:]
        scores = scores.masked_fill(scores < best, -torch.inf)
    entmax, *_ = weights(scores, alpha)
    return (entmax @ v.double()).float()


@pytest.mark.parametrize("k_keep", [None, 6])
def test_splash_attention(k_keep: int | None) -> None:
    q, k, v = operands()
    module = mc.nn.SplashAttention(D, alpha=1.5, k_keep=k_keep)
    out = module(q, k, v)
    right = splash(q, k, v, torch.ones(N, N).tril().bool(), k_keep, 1.5)
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-5)
    mine = torch.autograd.grad(out.pow(2).sum(), (q, k, v))
    assert all(bool(grad.isfinite().all()) for grad in mine)
    assert sum(bool(grad.abs().max() > 0) for grad in mine) == 3


def test_splash_attention_with_positions_of_its_own() -> None:
    """Tokens in another order: the result is the permuted one."""
    q, k, v = operands()
    module = mc.nn.SplashAttention(D, k_keep=6)
    order_q, order_k = (torch.stack([torch.randperm(N) for _ in range(2)]) for _ in range(2))

    def permuted(x: Any, order: Any) -> Any:
        return torch.stack([row[:, places] for row, places in zip(x, order, strict=True)])

    out = module(permuted(q, order_q), permuted(k, order_k), permuted(v, order_k), order_q, order_k)
    torch.testing.assert_close(out, permuted(module(q, k, v), order_q), rtol=1e-4, atol=1e-5)
    shared = module(q[:, :, order_q[0]], k, v, order_q[0], torch.arange(N))
    torch.testing.assert_close(shared, module(q, k, v)[:, :, order_q[0]], rtol=1e-4, atol=1e-5)


def test_splash_attention_with_positions_of_every_head() -> None:
    """Every head has an order of its own: that project expands Q_idx and K_idx to [B, H, N]."""
    q, k, v = operands()
    module = mc.nn.SplashAttention(D, k_keep=6)
    (batch, heads, tokens, _), kv_heads = q.shape, k.shape[1]
    order_q, order_k = (torch.rand(batch, count, tokens).argsort(-1) for count in (heads, kv_heads))

    def permuted(x: Any, order: Any) -> Any:
        return x.gather(2, order[..., None].expand(x.shape))

    own = permuted(q, order_q), permuted(k, order_k), permuted(v, order_k)
    right = permuted(module(q, k, v), order_q)
    of_queries = order_k.repeat_interleave(heads // kv_heads, 1)
    for rows in (order_k, of_queries):
        torch.testing.assert_close(module(*own, order_q, rows), right, rtol=1e-4, atol=1e-5)
    shared = torch.arange(tokens).expand(batch, heads, tokens)
    torch.testing.assert_close(module(q, k, v, shared, shared), module(q, k, v))
    with pytest.raises(BadShape, match="Q_idx"):
        module(q, k, v, shared[:, :, None], shared)


def test_splash_attention_goes_where_modules_go() -> None:
    q, k, v = operands()
    module = mc.nn.SplashAttention(D, alpha=1.5, k_keep=6, sm_scale=0.2)
    assert repr(module) == (
        "SplashAttention(head_dim=16, alpha=1.5, k_keep=6, sm_scale=0.2, causal=True)"
    )
    assert torch.equal(copy.deepcopy(module)(q, k, v), module(q, k, v))
    assert not module.state_dict()


# ---------------------------------------------------------------- mistakes


def test_mistakes() -> None:
    q, k, v = operands()
    with pytest.raises(NotAMask, match=r"mc\.nn\.Attention"):
        mc.nn.Attention(torch.ones(3, 3))
    with pytest.raises(BadOption, match="n_heads must be given together with sink_logits=True"):
        mc.nn.Attention(MASK, sink_logits=True)
    with pytest.raises(BadOption, match="sink_logits must be of 2 heads, found 4"):
        mc.nn.Attention(MASK, n_heads=2, sink_logits=torch.zeros(4))
    with pytest.raises(BadOption, match="alibi_slopes must be True, False or a tensor"):
        mc.nn.Attention(MASK, alibi_slopes=3)
    for options in ({"alpha": 3}, {"k_keep": 0}, {"head_dim": 0}):
        with pytest.raises(BadOption):
            mc.nn.SplashAttention(**{"head_dim": D} | options)
    module = mc.nn.SplashAttention(D)
    with pytest.raises(BadOption, match="K_idx must be given together with the other one"):
        module(q, k, v, torch.arange(N))
    with pytest.raises(BadShape, match="Q_idx"):
        module(q, k, v, torch.arange(N - 1), torch.arange(N))
    with pytest.raises(BadOption, match="K_idx must be a tensor of integers"):
        module(q, k, v, torch.arange(N), torch.rand(N))
    with pytest.raises(BadShape, match="head_dim=8"):
        mc.nn.SplashAttention(8)(q, k, v)
