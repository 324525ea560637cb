import pytest, torch, numpy as np
import maskc as mc
from tests.support.emulated import emulated_card  # noqa
from tests.support.exact_attention import called, live_pairs, vectors
from tests.support.hopper import BAND, check, compiled, given, modes

@pytest.mark.parametrize("dim,heads", [(256,4),(64,8)])
def test_inter(dim, heads):
    attn = compiled(BAND, dim, mode="interleaved")
    check(attn, given(130, 200, dim, batch=2, heads=2*heads, kv_heads=2), live_pairs(BAND, 130, 200))
    assert {m for _, m in modes(attn) if _ == "sm_90a"} == {"interleaved"}, modes(attn)

def test_opts():
    attn = compiled(BAND, 256, mode="interleaved")
    check(attn, given(200, 70, 256, heads=4, kv_heads=1), live_pairs(BAND, 200, 70), softcap=3.0, **vectors(["sink_logits"], 4))
    assert "interleaved" in {m for _, m in modes(attn)}

def test_choice():
    mask = mc.causal() & mc.window(70)
    attn = compiled(mask, 256)
    check(attn, given(400, 400, 256, heads=4, kv_heads=1), live_pairs(mask, 400, 400))
    assert "interleaved" in {m for _, m in modes(attn)}
