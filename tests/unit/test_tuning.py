"""Measured choices of programs: what is tried, taken, stored and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.programs import PARTS
from maskc.dispatch.selector import SourceSelector, tuning_key
from maskc.reference.attention import attention

DILATED = mc.dilated(7, stride=4)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))


def tensors(n=64):
    return [RNG.standard_normal((1, 2, n, 16)).astype(np.float32) for _ in range(3)]


def compiled():
    return DILATED.compile(16, dtype="float32", n_heads=2, target="cpu")


def test_every_program_of_both_passes_is_timed():
    attn, (q, k, v) = compiled(), tensors()
    forward, backward = mc.tune(attn, q, k, v, backward=True)
    for each in (forward, backward):
        assert set(each.milliseconds) == {"cpu default", PARTS}
        assert each.fastest == min(each.milliseconds, key=each.milliseconds.get)
        assert each.chosen in each.milliseconds
        assert f"{each.fastest:<36}" in str(each)
    want = attention(q, k, v, DILATED.dense(64))
    np.testing.assert_allclose(attn(q, k, v), want[0], atol=1e-5)


@pytest.mark.parametrize("name", ["cpu default", PARTS])
def test_calls_take_what_was_measured(name):
    attn, (q, k, v) = compiled(), tensors()
    attn.tuned[tuning_key(Direction.forward, False, 64, 64)] = name
    attn(q, k, v)
    assert attn.ran_in_parts == (name == PARTS)
    attn(*tensors(40))  # other lengths follow the cost model
    model = compiled()
    model(*tensors(40))
    assert attn.ran_in_parts == model.ran_in_parts


def test_choices_are_stored_for_the_mask_until_they_are_cleared():
    attn, (q, k, v) = compiled(), tensors()
    (forward,) = mc.tune(attn, q, k, v)
    key = tuning_key(Direction.forward, False, 64, 64)
    assert compiled().tuned == {key: forward.fastest}
    other = mc.dilated(3, stride=4).compile(16, dtype="float32", n_heads=2, target="cpu")
    assert not other.tuned
    mc.clear_tuned(attn)
    assert not attn.tuned
    assert not compiled().tuned


def test_a_measured_program_that_cannot_run_is_not_taken():
    """A name of another version, or a mode that these tiles do not have."""
    bundle = mc.causal().compile(64, n_heads=2, target="sm_90a").bundle
    selector = SourceSelector(bundle, Target.named("sm_90a"), lambda device: 132)
    call = Bound({}, {}, ()), Place(Sizes(1, 2, 2, 4096, 4096), {})
    for direction in Direction:
        wanted = Pass(direction, frozenset(), False, ("cuda", 0))
        key = tuning_key(direction, False, 4096, 4096)
        source = selector.source(direction)
        model = selector.choose(source, wanted, *call)
        for name in ("sm_90a_other default", "sm_90a_backward exclusive_dq", "sm_90a pack_gqa", ""):
            selector.tuned[key] = name
            assert selector.choose(source, wanted, *call) == model
    key = tuning_key(Direction.forward, False, 4096, 4096)
    selector.tuned[key] = "sm_90a_small default"
    wanted = Pass(Direction.forward, frozenset(), False, ("cuda", 0))
    taken = selector.choose(selector.source(Direction.forward), wanted, *call)
    assert (taken.unit.form, taken.mode) == ("small", "default")


def test_deterministic_passes_are_measured_apart():
    assert tuning_key(Direction.backward, True, 8, 9) != tuning_key(Direction.backward, False, 8, 9)
    assert tuning_key(Direction.forward, True, 8, 9) == tuning_key(Direction.forward, False, 8, 9)
