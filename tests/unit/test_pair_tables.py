"""Tables with an entry for each pair, such as a pair bias: Hopper's kernels read them along rows.

The emulator runs them; the definition is PyTorch's operators in float64, gradients by autograd.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import maskc as mc  # noqa: E402
from maskc.core import expr as E  # noqa: E402
from maskc.core import score as S  # noqa: E402
from maskc.core.problem import Direction  # noqa: E402
from maskc.testing.emulator import machine  # noqa: E402
from tests.support.hopper import nan_memory  # noqa: E402
from tests.support.thorough import more  # noqa: E402

BIAS = mc.table("bias")
ADDED = mc.score(lambda s, q, k, h, b: s + BIAS[b, h, q, k])
TURNED = mc.score(lambda s, q, k, h, b: s + BIAS[b, h, q, k] + 0.5 * BIAS[b, h, k, q])
CAPPED = mc.score(lambda s, q, k, h, b: 4 * mc.scores.tanh((s + BIAS[b, h, q, k]) / 4))
FACTOR = mc.score(lambda s, q, k, h, b: s * BIAS[b, h, q, k])
B, H, HKV = 2, 2, 1


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


def logits(score, s, bias):
    """Logits in float64."""
    if score is TURNED:
        return s + bias + 0.5 * bias.mT
    if score is CAPPED:
        return 4 * torch.tanh((s + bias) / 4)
    return s * bias if score is FACTOR else s + bias


def table(kind, n_q, n_kv, dtype):
    """A bias [B, H, n_q, n_kv] that lies in memory in one of several ways."""
    made = torch.Generator().manual_seed(5)
    shape = {
        "padded rows": (B, H, n_q, n_kv + 3),
        "off by one": (B, H, n_q, n_kv + 1),
        "turned": (B, H, n_kv, n_q),
        "shared": (1, 1, n_q, n_kv),
        "one query": (B, H, 1, n_kv),
        "one key": (B, H, n_q, 1),
    }.get(kind, (B, H, n_q, n_kv))
    x = torch.randn(shape, generator=made).to(dtype)
    if kind == "turned":
        return x.mT
    return x[..., 1:] if kind == "off by one" else x[..., :n_kv] if kind == "padded rows" else x


def judged(
    score, mask, kind, n_q, n_kv, dtype=torch.float32, dim=64, deterministic=False, **options
):
    """Compare both passes with the definition."""
    made = torch.Generator().manual_seed(3)
    q, dout = (torch.randn((B, H, n_q, dim), generator=made).bfloat16() for _ in range(2))
    k, v = (torch.randn((B, HKV, n_kv, dim), generator=made).bfloat16() for _ in range(2))
    bias = table(kind, n_q, n_kv, dtype)
    attn = mask.compile(dim, dtype="bfloat16", target="sm_90a", score=score, **options)
    out, lse = attn(q, k, v, return_lse=True, bias=bias)
    results = attn.backward(q, k, v, out, lse, dout, bias=bias, deterministic=deterministic)

    exact = [x.double().requires_grad_() for x in (q, k, v, bias)]
    s = exact[0] @ exact[1].repeat_interleave(H // HKV, 1).mT / dim**0.5
    live = torch.from_numpy(mask.dense(n_q, n_kv))
    logged = logits(score, s, exact[3])
    x = logged.masked_fill(~live, -1e30)
    right = (torch.softmax(x, -1) * live) @ exact[2].repeat_interleave(H // HKV, 1)
    slope, *rest = torch.autograd.grad(right, [logged, *exact], dout.double(), retain_graph=True)
    wanted = right, *rest
    slopes = torch.autograd.grad(logged, exact[3], slope.abs())[0]  # where shares may cancel
    scales = *(y.norm() for y in wanted[:-1]), slopes.abs().norm()
    names = ("out", "dq", "dk", "dv", "dbias")
    for name, x, y, size in zip(names, (out, *results), wanted, scales, strict=True):
        assert x.shape == y.shape, name
        assert (x.double() - y).norm() <= 0.006 * size, name
    return attn


KINDS = ["contiguous", "padded rows", "turned", "shared", "one query", "one key", "off by one"]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bias(kind, dtype):
    """Lengths that leave part of the last tiles empty, in both directions."""
    judged(ADDED, mc.causal(), kind, 130, 210, dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("n_kv", [128, 257])
def test_whole_tiles_and_odd_rows(n_kv):
    judged(ADDED, mc.full(), "contiguous", 192, n_kv, torch.bfloat16)


@pytest.mark.usefixtures("device")
def test_the_same_sums():
    """Exact sums of entries that heads and sequences share, in a launch of their own."""
    judged(ADDED, mc.causal(), "shared", 130, 210, torch.bfloat16, deterministic=True)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("score", [TURNED, CAPPED, FACTOR], ids=["turned", "capped", "factor"])
def test_other_formulas(score):
    """A table that is read twice, and formulas that bend what they add to."""
    n = 150
    judged(score, mc.causal(), "contiguous", n, n, torch.bfloat16)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dim", [128, more(96), more(256)])
def test_head_dimensions(dim):
    judged(ADDED, mc.window(40), "contiguous", 130, 130, torch.bfloat16, dim)


@pytest.mark.usefixtures("device")
def test_float16_tables_of_other_kernels():
    """A dtype that is not the kernels' is converted."""
    judged(ADDED, mc.causal(), "contiguous", 130, 130, torch.float16)


def test_sources_name_the_table():
    """The main launch adds gradients where an entry is added to the score, and only there."""

    def texts(score, direction):
        bundle = mc.causal().compile(64, dtype="bfloat16", target="sm_90a", score=score).bundle
        return [u.source for u in bundle.choice("sm_90a", direction) if u.tile.q >= 64]

    for score, adds in ((ADDED, True), (TURNED, False), (CAPPED, False), (FACTOR, False)):
        for text in texts(score, Direction.backward):
            assert ("define ADDS_PAIRS 1" in text) == adds
        assert all("define WITH_PAIR_ROWS 1" in x for x in texts(score, Direction.forward))
    by_distance = mc.score(lambda s, q, k: s + BIAS[q - k])
    assert not any("PAIR_ROWS 1" in x for x in texts(by_distance, Direction.forward))


def test_pair_read():
    """The table is the first one with an index of its own for the query and for the key."""

    def read(index):
        return S.Call("add", (S.Score(), S.Read("t", index)))

    for index in ((E.Q, E.K), (E.H, E.Q, E.K), (S.B, E.H, E.Q, E.K), (E.H, S.B, E.Q, E.K)):
        assert S.pair_read(read(index)) == S.Read("t", index)
    for index in ((E.K, E.Q), (E.Q,), (E.H, E.K), (E.Q, E.Q, E.K), (E.H, E.H, E.Q, E.K),
                  (E.Q, E.add(E.K, E.const(1)))):  # fmt: skip
        assert S.pair_read(read(index)) is None


def test_added():
    """Terms next to s; nothing once s is bent."""
    one, two = S.Read("t", (E.Q, E.K)), S.Number(2.0)
    assert S.added(S.Call("add", (S.Call("add", (S.Score(), one)), two))) == (one, two)
    assert S.added(S.Call("add", (one, S.Score()))) == (one,)
    assert S.added(S.Score()) == ()
    assert S.added(S.Call("add", (S.Call("mul", (S.Score(), two)), one))) == ()
    assert S.added(S.Call("add", (S.Score(), S.Score()))) == ()
