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
from tests.support.pair_tables import (  # noqa: E402
    ADDED,
    BIAS,
    CAPPED,
    FACTOR,
    KINDS,
    TURNED,
    judged,
)
from tests.support.thorough import more  # noqa: E402


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
