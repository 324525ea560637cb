"""sm_80 against fp64, in the emulator: backward passes in both modes and every form of tile, and
masks in parts, where each launch joins its rows with those before."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core.errors import TargetNotBuilt
from maskc.runtime.launch.sequence import PartedPlan
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import live_pairs, vectors
from tests.support.hopper import check, given, same_bits
from tests.support.residues import run_in_classes
from tests.support.thorough import alternating, chiefly, more

CAUSAL = mc.causal()
BAND = mc.window(90, 40)
SPARSE = CAUSAL & (mc.strided(7) | mc.window(20)) - mc.global_tokens([60]).rows
HEADS = mc.per_head([CAUSAL, mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)])


def run(mask, n_q, n_kv, dim=64, dtype="bfloat16", heads=2, kv_heads=1, batch=1, **options):
    """Check both passes of a call, and return the compiled mask."""
    made = given(n_q, n_kv, dim, dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    attn = mask.compile(head_dim=dim, n_heads=heads, dtype=dtype, target="sm_80")
    check(attn, made, live_pairs(mask, n_q, n_kv, heads=heads), **options)
    return attn


@pytest.mark.parametrize(
    ("dim", "deterministic"),
    alternating([32, more(64), 96, 128, more(192), more(256)], [False, True]),
)
def test_head_dimensions(dim, deterministic):
    run(BAND, 150, 130, dim, "float16", deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [more(False), True])
def test_masks_of_heads_and_shared_keys(deterministic):
    run(HEADS, 150, 150, heads=4, kv_heads=2, batch=2, deterministic=deterministic)
    run(SPARSE, 130, 200, heads=4, kv_heads=2, deterministic=deterministic)


@pytest.mark.parametrize(("dim", "deterministic"), alternating([64, more(256)], [False, True]))
def test_features(dim, deterministic):
    both = vectors(["sink_logits", "alibi_slopes"], 2)
    run(BAND, 140, 140, dim, deterministic=deterministic, softcap=3.0, **both)
    run(BAND, 140, 140, dim, deterministic=deterministic, scale=-0.2)
    run(BAND, 140, 140, dim, deterministic=deterministic, **vectors(["alibi_slopes"], 2))


def test_the_same_bits_in_any_order(hopper):
    attn = run(mc.full(), 140, 200, heads=4, deterministic=True)
    same_bits(attn, given(140, 200, heads=4), 2, hopper, deterministic=True)


def test_documents_and_flags():
    """Data give every sequence lists of its own."""
    mask = CAUSAL & mc.documents("doc") & mc.flags("pad")
    doc = torch.sort(torch.randint(0, 5, (2, 150)), dim=1).values.int()
    data = {"doc": doc, "pad": torch.rand(2, 150) > 0.2}
    attn = mask.compile(head_dim=64, n_heads=2, target="sm_80")
    live = torch.as_tensor(mask.dense(150, **{name: x.numpy() for name, x in data.items()}))
    for deterministic in (False, True):
        check(attn, given(150, 150, batch=2), live[:, None], data, deterministic)


def test_masked_values_that_are_no_numbers_are_refused():
    q, k, v, dout = given(64, 64, heads=1)
    attn = CAUSAL.compile(head_dim=64, target="sm_80")
    out, lse = attn(q, k, v, return_lse=True, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match="masked values of a tile by zero"):
        attn.backward(q, k, v, out, lse, dout, nan_safe=True)


# ------------------------------------------------------------------ parts

PARTED = {
    "bands": mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4),
    "strided": CAUSAL & (mc.window(40) | mc.where(lambda q, k: (q - k) % 16 == 0)),
    "tiles without keys in one part": CAUSAL & (mc.window(20) | mc.strided(100, 99)),
    "keys of residues": CAUSAL & (mc.window(20) | mc.strided(16, 15) | mc.strided(16, 14)),
}


@pytest.fixture
def in_parts(monkeypatch):
    """Runs a call in the residue classes of its mask."""
    run_in_classes(monkeypatch)
    return lambda name, *args, **options: run(
        PARTED[name], *args, batch=2, heads=4, kv_heads=2, **options
    )


@pytest.mark.parametrize(
    ("name", "n"), alternating(chiefly(list(PARTED), *list(PARTED)[1:]), [130, 201])
)
def test_parts(name, n, in_parts):
    assert isinstance(in_parts(name, n, n, deterministic=n == 201)._last[1], PartedPlan)


@pytest.mark.parametrize("dim", [32, more(128), more(256)])
def test_head_dimensions_of_parts(dim, in_parts):
    in_parts("bands", 150, 150, dim, "float16")


def test_other_lengths_and_features_of_parts(in_parts):
    in_parts("keys of residues", 130, 260, **vectors(["sink_logits"], 4))
    in_parts("bands", 140, 140, softcap=3.0, scale=-0.3)
    in_parts("bands", 140, 140, **vectors(["alibi_slopes", "sink_logits"], 4))


def test_values_that_are_no_numbers_stay_where_they_are_seen(monkeypatch):
    run_in_classes(monkeypatch)
    mask, n = PARTED["strided"], 200
    q, k, v, _ = given(n, n, heads=1)
    v[0, 0, 77] = torch.inf
    out = mask.compile(head_dim=64, target="sm_80")(q, k, v, nan_safe=True)
    seen = live_pairs(mask, n, n)[0, :, 77]
    assert (out[0, 0, seen] == torch.inf).all()
    assert out[0, 0, ~seen].isfinite().all()
