"""Tables with an entry for each pair, such as a pair bias: Hopper's kernels read them along rows.

The emulator runs them; the definition is PyTorch's operators in float64, gradients by autograd.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.abi import SCORE
from maskc.core.attention_call import DEFAULTS, AttentionCall
from maskc.core.bundle import PERSISTENT
from maskc.core.cost import Cost
from maskc.core.problem import Direction
from maskc.core.tensors import HOST, Array
from maskc.runtime import CompiledMask
from maskc.testing.emulator import machine
from tests.support.hopper import nan_memory
from tests.support.memory_end import run_apart
from tests.support.pair_tables import ADDED, BIAS, CAPPED, FACTOR, KINDS, TURNED, TWICE, judged
from tests.support.thorough import more


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bias(kind, dtype):
    """Lengths that leave part of the last tiles empty, in both directions."""
    judged(ADDED, mc.causal(), kind, 130, 200, dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("n_kv", [128, 210, 257])
def test_whole_tiles_and_odd_rows(n_kv):
    judged(ADDED, mc.full(), "contiguous", 192, n_kv, torch.bfloat16)


@pytest.mark.usefixtures("device")
def test_tiles_of_fewer_rows_than_keys():
    """The backward pass of heads of 128 has such tiles where pairs are many."""
    made = mc.causal().compile(128, dtype="bfloat16", target="sm_90a", score=ADDED)
    units = tuple(x for x in made.bundle.units if x.form != "small")
    bundle = replace(made.bundle, units=units)
    attn = CompiledMask(bundle, "sm_90a", held=made.held, inputs=ADDED.inputs)
    judged(ADDED, mc.causal(), "contiguous", 100, 136, torch.bfloat16, 128, attn=attn)


@pytest.mark.usefixtures("device")
def test_the_same_sums():
    """Exact sums of entries that heads and sequences share, in a launch of their own."""
    judged(ADDED, mc.causal(), "shared", 130, 210, torch.bfloat16, deterministic=True)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "score", [TURNED, TWICE, CAPPED, FACTOR], ids=["turned", "twice", "capped", "factor"]
)
def test_other_formulas(score):
    """A table that is read twice, and formulas that bend what they add to."""
    n = 150
    judged(score, mc.causal(), "contiguous", n, n, torch.bfloat16)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dim", [32, 128, more(96), more(256)])
@pytest.mark.parametrize("kind", ["contiguous", "shared"])
def test_head_dimensions(dim, kind):
    judged(ADDED, mc.window(40), kind, 130, 136, torch.bfloat16, dim)


@pytest.mark.usefixtures("device")
def test_float16_tables_of_other_kernels():
    """A dtype that is not the kernels' is converted."""
    judged(ADDED, mc.causal(), "contiguous", 130, 130, torch.float16)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("kind", ["contiguous", "shared", "steps"])
@pytest.mark.parametrize("form", ["", "small"])
def test_persistent_blocks(form, kind, dim):
    """A block goes on to the next row; shared memory may still hold its entries."""
    made = mc.causal().compile(dim, dtype="bfloat16", target="sm_90a", score=ADDED)
    units = tuple(
        replace(u, costs=(Cost(PERSISTENT, 1, 0, 0),)) if PERSISTENT in dict(u.modes) else u
        for u in made.bundle.units
        if not u.directions or u.target != "sm_90a" or u.form == form
    )
    bundle = replace(made.bundle, units=units)
    attn = CompiledMask(bundle, "sm_90a", held=made.held, inputs=ADDED.inputs)
    judged(ADDED, mc.causal(), kind, 200, 328, torch.bfloat16, dim, attn=attn)
    assert any(mode == PERSISTENT for _, mode, _ in attn.all_reports)


@pytest.mark.usefixtures("device")
def test_tiles_that_begin_with_documents():
    """The first entry of such a tile is not aligned, and no copy begins there."""
    attn = (mc.documents("doc") & mc.causal()).compile(
        64, dtype="bfloat16", target="sm_90a", score=ADDED
    )
    assert any(unit.by_documents for unit in attn.bundle.units)
    n, made = 304, torch.Generator().manual_seed(0)
    doc = torch.bucketize(torch.arange(n), torch.tensor([37, 150, 211]), right=True).int()
    x = torch.randn((1, 2, n, 64), generator=made).bfloat16()
    bias = torch.randn((1, 2, n, n), generator=made).bfloat16()
    out = attn(x, x, x, doc=doc[None], bias=bias)
    live = (doc[:, None] == doc) & torch.ones(n, n).tril().bool()
    s = (x.double() @ x.double().mT / 8 + bias.double()).masked_fill(~live, -torch.inf)
    right = torch.softmax(s, -1) @ x.double()
    assert (out.double() - right).norm() <= 0.006 * right.norm()


@pytest.mark.usefixtures("device")
def test_small_gradients_in_float16():
    """Gradients of pairs below 2^-24 add up to those of entries."""
    made = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn((1, 1, 130, 64), generator=made).half() for _ in range(4))
    bias, dout = torch.randn((130, 130), generator=made), dout * 1e-5
    attn = mc.full().compile(64, dtype="float16", target="sm_90a", score=ADDED)
    out, lse = attn(q, k, v, return_lse=True, bias=bias)
    dbias = attn.backward(q, k, v, out, lse, dout, bias=bias)[-1]
    exact = bias.double().requires_grad_()
    weights = torch.softmax(q.double() @ k.double().mT / 8 + exact, -1)
    (right,) = torch.autograd.grad(weights @ v.double(), exact, dout.double())
    assert (dbias.double() - right).norm() <= 1e-3 * right.norm()


@pytest.mark.usefixtures("device")
def test_captured_arrays_of_numpy():
    """An odd number of entries of two bytes cannot be copied as words of four."""
    n = 71
    table = np.random.default_rng(0).standard_normal((n, n)).astype(np.float16)
    score = mc.score(lambda s, q, k: s + table[q, k])
    x = torch.randn(1, 2, n, 64).half()
    out = mc.full().compile(64, dtype="float16", target="sm_90a", score=score)(x, x, x)
    s = x.double() @ x.double().mT / 8 + torch.from_numpy(table).double()
    right = torch.softmax(s, -1) @ x.double()
    assert (out.double() - right).norm() <= 0.002 * right.norm()


@pytest.mark.usefixtures("device")
def test_gradients_need_one_library():
    """A table of torch that requires grad, where q is no tensor of torch."""
    attn = mc.full().compile(64, dtype="float16", target="sm_90a", score=ADDED)
    x = np.zeros((1, 1, 9, 64), np.float16)
    for dtype in (torch.float16, torch.float32):
        with pytest.raises(mc.MaskcError, match="MC411"):
            attn(x, x, x, bias=torch.zeros(9, 9, dtype=dtype, requires_grad=True))


@pytest.mark.usefixtures("device")
def test_numbers_differ_by_their_sign():
    """1 / p tells 0.0 from -0.0; arguments of calls with equal numbers are kept."""
    p = mc.param("p", 0.5)
    score = mc.score(lambda s, q, k: s + mc.scores.where(1.0 / p > 0, 0.0, 1.0 * k))
    attn = mc.full().compile(64, dtype="bfloat16", target="sm_90a", score=score)
    x = torch.randn(1, 1, 9, 64).bfloat16()
    plus, minus = attn(x, x, x, p=0.0), attn(x, x, x, p=-0.0)
    assert not torch.equal(plus, minus)
    assert torch.equal(plus, attn(x, x, x, p=0.0))


HALVES, TWOS, EIGHTS = 1, 2, 4


@pytest.mark.parametrize(
    ("dtype", "pointer", "shape", "strides", "flags"),
    [
        ("float32", 64, (4, 8, 64), (512, 64, 1), TWOS),
        ("float32", 68, (4, 8, 64), (512, 64, 1), 0),
        ("float32", 64, (4, 8, 63), (504, 63, 1), 0),
        ("float32", 64, (4, 8, 32), (512, 64, 2), 0),
        ("float32", 64, (4, 8, 1), (8, 2, 1), 0),
        ("bfloat16", 64, (4, 8, 64), (512, 64, 1), HALVES | TWOS | EIGHTS),
        ("bfloat16", 72, (4, 8, 64), (512, 64, 1), HALVES | TWOS),
        ("bfloat16", 64, (4, 8, 60), (480, 60, 1), HALVES | TWOS),
        ("bfloat16", 66, (4, 8, 64), (512, 64, 1), HALVES),
        ("bfloat16", 64, (4, 8, 63), (504, 63, 1), HALVES),
        ("bfloat16", 64, (1, 8, 64), (0, 64, 1), HALVES | TWOS | EIGHTS),
    ],
)
def test_loads_fit_the_layout(dtype, pointer, shape, strides, flags):
    """Loads of several entries are aligned in every row."""
    attn = mc.full().compile(64, dtype="bfloat16", target="sm_90a", score=ADDED)
    assert attn._score._pairs(Array(pointer, shape, strides, dtype, HOST)) == flags


@pytest.mark.usefixtures("device")
def test_a_later_call_has_another_alignment():
    """Rows begin elsewhere, with equal shapes and strides."""
    attn = mc.full().compile(64, dtype="bfloat16", target="sm_90a", score=ADDED)
    x, room = torch.randn(1, 2, 64, 64).bfloat16(), torch.randn(2 * 64 * 64 + 8).bfloat16()
    seen = []
    for start in (0, 4, 1, 0):
        bias = room[start : start + 2 * 64 * 64].view(2, 64, 64)
        out = attn(x, x, x, bias=bias)
        call = AttentionCall(x, x, x, DEFAULTS, {"bias": bias})
        seen.append(SCORE.from_buffer_copy(attn._score.opened(call).block).score_pairs)
        s = x.double() @ x.double().mT / 8 + bias.double()
        right = torch.softmax(s, -1) @ x.double()
        assert (out.double() - right).norm() <= 0.006 * right.norm()
    assert seen == [HALVES | TWOS | EIGHTS, HALVES | TWOS, HALVES, HALVES | TWOS | EIGHTS]


_AT_THE_END = """
from tests.support.pair_tables import ADDED

for n_q, n_kv in ((130, 200), (70, 133), (192, 128)):
    for dtype in (torch.float32, torch.bfloat16):
        bias = at_the_end(torch.randn(1, 2, n_q, n_kv).to(dtype))
        q, k = torch.randn(1, 2, n_q, 64).bfloat16(), torch.randn(1, 2, n_kv, 64).bfloat16()
        attn = mc.full().compile(64, dtype="bfloat16", target="sm_90a", score=ADDED)
        out, lse = attn(q, k, k, return_lse=True, bias=bias)
        attn.backward(q, k, k, out, lse, out, bias=bias)
        assert torch.isfinite(out).all()
x = at_the_end(torch.randn(1, 1, 150, 72).bfloat16())
attn = mc.causal().compile(72, dtype="bfloat16", target="sm_90a")
assert torch.isfinite(attn(x, x, x, normalizer="entmax")).all()
"""


@pytest.mark.usefixtures("device")
def test_nothing_is_read_past_the_end():
    """Tables, and values whose rows are no whole slabs."""
    run_apart(_AT_THE_END)


def test_sources_name_the_table():
    """The main launch adds gradients where an entry is added to the score, and only there."""

    def texts(score, direction):
        bundle = mc.causal().compile(64, dtype="bfloat16", target="sm_90a", score=score).bundle
        return [u.source for u in bundle.choice("sm_90a", direction) if u.tile.q >= 64]

    others = ((score, False) for score in (TURNED, TWICE, CAPPED, FACTOR))
    for score, adds in ((ADDED, True), *others):
        for text in texts(score, Direction.backward):
            assert ("define ADDS_PAIRS 1" in text) == adds
        for text in texts(score, Direction.forward):
            assert "define WITH_PAIR_ROWS 1" in text
            assert "define WITH_PAIR_TILES 1" in text  # shared memory has room for them
    by_distance = mc.score(lambda s, q, k: s + BIAS[q - k])
    assert not any("PAIR_ROWS 1" in x for x in texts(by_distance, Direction.forward))


def test_pair_read():
    """The table is the first one with an index of its own for the query and for the key."""

    def read(index):
        return S.Call("add", (S.Score(), S.Read("t", index)))

    for index in ((E.Q, E.K), (E.H, E.Q, E.K), (S.B, E.H, E.Q, E.K), (E.H, S.B, E.Q, E.K)):
        assert S.pair_read(read(index)) == S.Read("t", index)
    for index in (
        (E.K, E.Q),
        (E.Q,),
        (E.H, E.K),
        (E.Q, E.Q, E.K),
        (E.H, E.H, E.Q, E.K),
        (E.Q, E.add(E.K, E.const(1))),
    ):
        assert S.pair_read(read(index)) is None


def test_added():
    """Terms next to s; nothing once s is bent."""
    one, two = S.Read("t", (E.Q, E.K)), S.Number(2.0)
    assert S.added(S.Call("add", (S.Call("add", (S.Score(), one)), two))) == (one, two)
    assert S.added(S.Call("add", (one, S.Score()))) == (one,)
    assert S.added(S.Score()) == ()
    assert S.added(S.Call("add", (S.Call("mul", (S.Score(), two)), one))) == ()
    assert S.added(S.Call("add", (S.Score(), S.Score()))) == ()
