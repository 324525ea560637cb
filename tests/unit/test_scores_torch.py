"""Score formulas on torch tensors: autograd through tables, and published score_mods."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import ScoreTable
from tests.support.exact_attention import eager

B, H, N, D = 2, 4, 48, 16


def tensors(dtype=torch.float32, n=N, heads=H, batch=B, seed=0):
    """q, k and v that require grad, and dout."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn((batch, heads, n, D), generator=generator).to(dtype) for _ in range(4)]
    return [x.requires_grad_() for x in found[:3]], found[3]


def check(score_mod, *learned, mask=None, score=None, tolerance=2e-5):
    """out, and the gradients of q, k, v and of learned tensors, compared with autograd's in
    float64."""
    mask = mc.causal() if mask is None else mask
    score = mc.from_score_mod(score_mod) if score is None else score
    found = []
    for run in (
        lambda q, k, v: mc.attention(q, k, v, mask, score=score),
        lambda q, k, v: eager(
            score_mod, (mask if score.mask is None else mask & score.mask).dense(N), q, k, v
        ),
    ):
        own, dout = tensors()
        for x in learned:
            x.grad = None
        out = run(*own)
        out.backward(dout.to(out.dtype))
        found.append([out, *(x.grad for x in own), *(x.grad.clone() for x in learned)])
    for one, two in zip(*found, strict=True):
        size = max(1.0, two.abs().max().item())
        assert (one.double() - two.double()).abs().max() <= tolerance * size
    return score


# ------------------------------------------------------------------ gradients


def test_what_alpha_multiplies():
    assert repr(mc.score(lambda s, q: torch.sub(s, q, alpha=2))) == "score(s - 2 * q)"
    assert repr(mc.score(lambda s, q: torch.rsub(s, q, alpha=2))) == "score(q - s * 2)"


def test_what_values_say_of_themselves():
    found = []

    def formula(s, q, k):
        found.append([(x.dtype, x.device.type, x.shape, x.ndim) for x in (s, q, q > k)])
        return s

    mc.score(formula)
    kinds = torch.float32, torch.int64, torch.bool
    assert found == [[(kind, "cpu", (), 0) for kind in kinds]]


def test_captured_tensors_are_learned():
    bias = torch.randn(H, 2 * N, requires_grad=True)
    check(lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx - kv_idx], bias)
    gate = torch.randn(B, N, requires_grad=True)
    check(lambda score, b, h, q_idx, kv_idx: score * torch.sigmoid(gate[b, kv_idx]), gate)
    scale = torch.tensor(0.7, requires_grad=True)
    check(lambda score, b, h, q_idx, kv_idx: score * scale, scale)


def test_only_what_requires_grad_gets_one():
    bias, other = torch.randn(H, requires_grad=True), torch.randn(N)
    check(lambda score, b, h, q_idx, kv_idx: score + bias[h] * other[kv_idx], bias)
    assert other.grad is None


def test_tables_by_name():
    table, decay = torch.randn(H, 2 * N, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    score = mc.score(
        lambda s, q, k, h: s + mc.table("bias")[h, q - k] - mc.param("decay", 0.5) * abs(q - k)
    )
    attn = mc.causal().compile(D, dtype="float32", target="cpu", score=score)
    (q, k, v), dout = tensors()
    out, lse = attn(q, k, v, bias=table, decay=decay, return_lse=True)
    (out * dout).sum().add(lse.sum()).backward()
    found = [x.grad.clone() for x in (q, k, v, table, decay)]

    def mod(s, b, h, i, j):
        return s + table.double()[h, i - j] - decay * (i - j).abs()

    for x in (q, k, v, table, decay):
        x.grad = None
    exact = eager(mod, mc.causal().dense(q.shape[2]), q, k, v)
    i = torch.arange(N)
    s = mod((q.double() @ k.double().mT) / D**0.5, 0, torch.arange(H)[:, None, None],
            i[:, None], i)  # fmt: skip
    s = s.masked_fill(i > i[:, None], -torch.inf)
    ((exact * dout).sum() + torch.logsumexp(s, -1).sum()).backward()
    for x, own in zip((q, k, v, table, decay), found, strict=True):
        size = max(1.0, x.grad.abs().max().item())
        assert (x.grad.double() - own.double()).abs().max() <= 3e-5 * size


def test_half_precision_tables():
    bias = torch.randn(H, 2 * N).bfloat16().requires_grad_()
    (q, k, v), dout = tensors(torch.bfloat16)
    score = mc.from_score_mod(lambda score, b, h, i, j: score + bias[h, i - j])
    out = mc.attention(q, k, v, mc.causal(), score=score)
    out.backward(dout)
    assert bias.grad.dtype == torch.bfloat16
    assert bias.grad.abs().sum() > 0
    assert out.dtype == torch.bfloat16


LEARNING = {
    "a table": lambda p: lambda s, b, h, q, k: s + p[h, q - k],
    "a computed table": lambda p: lambda s, b, h, q, k: s + (p + 1).exp()[h, q - k],
    "a computed number": lambda p: lambda s, b, h, q, k: s * (2 + p.mean()),
    "one of several": lambda p: lambda s, b, h, q, k: s + p.sort().values[h, q - k],
    "a list": lambda p: lambda s, b, h, q, k: s + torch.stack([p, p * p])[k % 2, h, q - k],
    "many steps": lambda p: lambda s, b, h, q, k: s + _doubled(p)[h, q - k],
}


def _doubled(x):
    for _ in range(40):  # takes for ever if each use of a tensor computes it again
        x = (x + x) / 2
    return x


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("learned", [True, False])
def test_an_optimizer_step_needs_no_plan(name, learned):
    """Every call reads captured tensors again, and computes from them again."""
    if name == "a computed number" and not learned:
        return  # a number without a gradient is read once
    p = torch.linspace(-1, 1, H * 2 * N).reshape(H, 2 * N).requires_grad_(learned)
    score_mod = LEARNING[name](p)
    score = mc.from_score_mod(score_mod)
    attn = mc.causal().compile(D, dtype="float32", target="cpu", score=score)
    for _ in range(3):
        check(score_mod, *([p] if learned else []), score=score)
        (q, k, v), _ = tensors()
        wanted = eager(score_mod, mc.causal().dense(q.shape[2]), q, k, v).float()
        assert (attn(q, k, v) - wanted).abs().max() < 1e-4
        with torch.no_grad():
            p += 0.3 * torch.cos(p)


def test_a_graph_computes_again_what_a_formula_computed():
    p = torch.rand(H)
    mask = mc.from_mask_mod(lambda b, h, q, k: (p.argsort() + 1)[h] * 9 >= q - k)
    score = mc.from_score_mod(lambda s, b, h, q, k: s - (p + 1)[h] * (q - k))
    (q, k, v), _ = tensors()
    graph = torch.compile(
        lambda q, k, v: mc.attention(q, k, v, mask, score=score), fullgraph=True, backend="eager"
    )
    for _ in range(2):
        torch.testing.assert_close(graph(q, k, v), mc.attention(q, k, v, mask, score=score))
        p.copy_(p.flip(0) + torch.arange(H))


def _without_gradient(s, b, h, q, k):
    with torch.no_grad():
        return 2 * s


CUT = {
    "no_grad": _without_gradient,
    "a decorated function": torch.no_grad()(lambda s, b, h, q, k: s * 2),
    "inference mode": torch.inference_mode()(lambda s, b, h, q, k: s * 2),
    "detach": lambda s, b, h, q, k: s + s.detach(),
    "random numbers": lambda s, b, h, q, k: s + torch.randn(()),
}


@pytest.mark.parametrize("name", CUT)
def test_what_has_another_gradient_or_value_in_torch_is_refused(name):
    with pytest.raises(mc.MaskcError, match="MC129"):
        mc.from_score_mod(CUT[name])


def test_a_formula_without_gradients_may_say_so():
    with torch.no_grad():
        mc.from_score_mod(_without_gradient)


# ------------------------------------------------------------------ published score_mods


def t5_bucket(distance, buckets=32, furthest=128):
    """T5's buckets of non-negative distances, as its code has them."""
    exact = buckets // 2
    large = exact + (
        torch.log(distance.float() / exact) / torch.log(torch.tensor(furthest / exact))
        * (buckets - exact)
    ).to(torch.long)  # fmt: skip
    large = torch.min(large, torch.full_like(large, buckets - 1))
    return torch.where(distance < exact, distance, large)


def documented():
    """score_mods of PyTorch's documentation and of its blog on FlexAttention, and the like."""
    slopes = torch.exp2(-torch.arange(1, H + 1) * 8.0 / H)
    table, head_bias = torch.randn(2 * N), torch.randn(H)
    documents = torch.arange(N) // 16
    relative = torch.randn(32, H)

    def noop(score, b, h, q_idx, kv_idx):
        return score

    def relative_positional(score, b, h, q_idx, kv_idx):
        return score + (q_idx - kv_idx)

    def relative_bias(score, b, h, q_idx, kv_idx):
        return score + table[q_idx - kv_idx + N]

    def alibi(score, b, h, q_idx, kv_idx):
        bias = slopes[h] * (kv_idx - q_idx)
        return score + bias

    def alibi_of_gym(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / H))
        bias = (kv_idx - q_idx) * scale
        return score + bias

    def soft_cap(score, b, h, q_idx, kv_idx):
        score = score / 20
        score = torch.tanh(score)
        return score * 20

    def causal(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    def head_bias_mod(score, b, h, q_idx, kv_idx):
        return score + 2 * head_bias[h]

    def checkerboard(score, b, h, q_idx, kv_idx):
        score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
        return torch.where(torch.abs(kv_idx - q_idx) % 2 == 0, score * 2.0, score)

    def same_document(score, b, h, q_idx, kv_idx):
        return torch.where(documents[q_idx] == documents[kv_idx], score + 1.0, score * 0.5)

    def squared(score, b, h, q_idx, kv_idx):
        return score * score

    def offset(score, b, h, q_idx, kv_idx):
        return score + (b * 0.1) - h

    def t5(score, b, h, q_idx, kv_idx):
        return score + relative[t5_bucket(torch.clamp(q_idx - kv_idx, min=0)), h]

    mods = (
        noop, relative_positional, relative_bias, alibi, alibi_of_gym, soft_cap, causal,
        head_bias_mod, checkerboard, same_document, squared, offset, t5,
    )  # fmt: skip
    return {mod.__name__: mod for mod in mods}


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", documented())
def test_documented(name):
    check(documented()[name])


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", ["alibi", "softcap"])
def test_attention_gym(name):
    mods = pytest.importorskip("attn_gym.mods")
    made = mods.generate_alibi_bias(H) if name == "alibi" else mods.generate_tanh_softcap(20)
    check(made)


SCALES, NEAR = [0.5, 1.0, 1.5, 2.0], [3, 9]
BITS = {
    "conditions": lambda s, b, h, q, k: torch.where((q > k) ^ (h == 0), s, 0.5 * s),
    "of a literal": lambda s, b, h, q, k: torch.where(((q ^ k) & 5) == 0, s, 0.5 * s),
    "of two": lambda s, b, h, q, k: s + 0.01 * ((q | 3) - (k & q)) + ((q >> 2) ^ (k << 1)) / 480,
    "turned": lambda s, b, h, q, k: s + 0.1 * (~k & 7),
    "beyond 31 bits": lambda s, b, h, q, k: s + ((q * 2654435761) ^ (k * 40503 * 2048)) % 7,
}


@pytest.mark.parametrize("name", BITS)
def test_bits(name):
    check(BITS[name])


def test_lists_of_numbers():
    """Heads and sequences index a list like a tensor of the same numbers."""
    found, wanted = (
        mc.attention(*tensors()[0], mc.causal(), score=mc.from_score_mod(score_mod))
        for score_mod in (
            lambda s, b, h, q, k: torch.where(q - k <= NEAR[b], s * SCALES[h], s - 1),
            lambda s, b, h, q, k: torch.where(
                q - k <= torch.tensor(NEAR)[b], s * torch.tensor(SCALES)[h], s - 1
            ),
        )
    )
    torch.testing.assert_close(found, wanted)


def test_a_dot_product_of_rows_is_refused():
    """attention-gym's latent attention adds a second dot product: that belongs into q and k."""
    rope = torch.randn(B, H, N, 8)

    def second(s, b, h, i, j):
        return s + torch.dot(rope[b, h, i], rope[b, h // 2, j])

    with pytest.raises(mc.MaskcError, match="side by side"):
        mc.from_score_mod(second, exact=True)
    with pytest.warns(mc.EvaluatedScoreWarning, match="side by side"):
        mc.from_score_mod(second)
    rope.requires_grad_()
    with pytest.raises(mc.MaskcError, match="side by side"):
        mc.from_score_mod(second)


# ------------------------------------------------------------------ torch.compile


def calls():
    """(function of q, k and v, the tensor that it learns): formulas by all doors."""
    bias = torch.randn(H, 2 * N, requires_grad=True)
    held = mc.from_score_mod(lambda score, b, h, i, j: score + bias[h, i - j])
    named = mc.score(lambda s, q, k, h: s * mc.param("rate", 0.5) + mc.table("bias")[h, q - k])
    mask, half = mc.causal(), bias.detach().bfloat16().requires_grad_()
    attn = mask.compile(D, dtype="float32", target="cpu", score=held)
    drops = {"dropout_p": 0.2, "dropout_seed": 3}
    return {
        "compiled mask": (lambda *x: attn(*x), bias),
        "held": (lambda *x: mc.attention(*x, mask, score=held), bias),
        "given": (lambda *x: mc.attention(*x, mask, score=named, bias=bias, rate=0.25), bias),
        "half": (lambda *x: mc.attention(*x, mask, score=named, bias=half), half),
        "lse": (
            lambda *x: sum(y.sum() for y in mc.attention(*x, mask, score=held, return_lse=True)),
            bias,
        ),
        "flags": (lambda *x: mc.attention(*x, score=held, is_causal=True, **drops), bias),
    }


@pytest.mark.parametrize("name", calls())
def test_in_one_graph(name):
    """An operator, with gradients of tables, of the bits of an eager call."""
    torch._dynamo.reset()
    call, learned = calls()[name]
    graph, found = torch.compile(call, fullgraph=True, backend="aot_eager"), []
    for run in (call, graph):
        (q, k, v), dout = tensors()
        learned.grad = None
        out = run(q, k, v)
        (out * (dout if out.shape else 1)).sum().backward()
        found.append([out, q.grad, k.grad, v.grad, learned.grad.clone()])
    assert all(map(torch.equal, *found))
    assert found[0][-1].abs().sum() > 0
    with torch.no_grad():
        assert torch.equal(graph(q, k, v), call(q, k, v))


def test_graphs_tell_formulas_apart():
    """Equal formulas share kernels, not what they hold."""
    torch._dynamo.reset()
    tables = [np.random.default_rng(seed).normal(size=(H, 2 * N)) for seed in range(2)]
    (q, k, v), _ = tensors()

    def made(table):
        score, mask = mc.score(lambda s, q, k, h: s + table[h, q - k]), mc.causal()
        return lambda q, k, v: mc.attention(q, k, v, mask, score=score)

    with torch.no_grad():
        for call in map(made, tables):
            run = torch.compile(call, fullgraph=True, backend="aot_eager")
            assert torch.equal(run(q, k, v), call(q, k, v))
        tables[1] *= 2  # what a formula holds is read anew by every call
        assert torch.equal(run(q, k, v), call(q, k, v))


def test_shapes_of_the_meta_device():
    bias = torch.zeros(H, 2 * N, device="meta", requires_grad=True)
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, q - k])
    q, k, v = (torch.zeros(B, H, N, D, device="meta", requires_grad=True) for _ in range(3))
    attn = mc.causal().compile(D, dtype="float32", target="cpu", score=score)
    attn(q, k, v, bias=bias).sum().backward()
    assert bias.grad.shape == bias.shape


@pytest.mark.parametrize(("n_q", "n_kv"), [(0, 5), (5, 0), (0, 0)])
def test_lengths_of_0_with_a_bias(n_q, n_kv):
    q, k, v = (torch.ones(1, 2, n, 16, requires_grad=True) for n in (n_q, n_kv, n_kv))
    bias = torch.zeros(1, 2, n_q, n_kv, requires_grad=True)
    out, lse = mc.attention(
        q, k, v, mc.causal(), score=mc.scores.bias(), bias=bias, return_lse=True
    )  # fmt: skip
    assert out.shape == q.shape
    assert not out.any()
    assert lse.isneginf().all()
    for x, gradient in zip((q, k, v, bias), torch.autograd.grad(out.sum(), (q, k, v, bias)),
                           strict=True):  # fmt: skip
        assert gradient.shape == x.shape
        assert not gradient.any()


def test_an_empty_bias_beside_tokens_is_refused():
    q = torch.ones(1, 2, 5, 16)
    with pytest.raises(ScoreTable, match="expected entries"):
        mc.attention(q, q, q, mc.causal(), score=mc.scores.bias(), bias=torch.zeros(5, 0))
