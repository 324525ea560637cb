"""Head dimensions above 256 on sm_80, where two warps share rows: both passes against fp64 in the
emulator, heads packed for decoding, what NVRTC makes of the sources, what is left to simt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.bundle import PACK_GQA
from maskc.core.dtypes import DType
from maskc.core.errors import HeadDimUnsupported, TargetNotBuilt
from maskc.core.problem import Direction, Feature, Problem
from maskc.core.target import TARGETS
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, exact_and_rough, live_pairs, vectors, wrong
from tests.support.exact_entmax import check as check_entmax
from tests.support.hopper import check, nan_memory
from tests.support.ledger import build
from tests.support.thorough import chiefly, more
from tests.unit.test_padded_rows import given

BAND = mc.window(50, 20)
HEADS = mc.per_head([mc.causal(), mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)])
MASKS = {
    "full": mc.full(),
    "causal": mc.causal(),
    "gaps": mc.causal() & (mc.strided(7) | mc.window(20)),
    "empty rows": mc.where(lambda q, k: (q // 32 == k // 32) & (q >= 70)),
}


def forward(mask, n_q, n_kv, dims, heads, kv_heads, batch=1, **options):
    """A forward pass against fp64, in memory full of NaN."""
    made = given(n_q, n_kv, *dims, batch=batch, heads=heads, kv_heads=kv_heads)
    attn = mask.compile(dims[0], head_dim_v=dims[1], n_heads=heads, target="sm_80")
    live = live_pairs(mask, n_q, n_kv, heads=heads)
    q, k, v, dout = made
    sides = exact_and_rough(q, k, v, dout, live, backward=False, **options)
    with nan_memory():
        computed = called(attn, q, k, v, None, **options)
    assert not wrong(computed, *sides)


# ------------------------------------------------------------------ both passes


@pytest.mark.parametrize(
    "dims", [more((512, 512)), (264, 264), more((320, 512)), (128, 392)], ids=str
)
def test_both_passes(dims):
    attn = BAND.compile(dims[0], head_dim_v=dims[1], target="sm_80")
    assert attn.target.name == "sm_80"
    check(attn, given(70, 100, *dims), live_pairs(BAND, 70, 100))


@pytest.mark.parametrize("name", chiefly(list(MASKS), "gaps", "empty rows"))
def test_masks(name):
    mask = MASKS[name]
    attn = mask.compile(512, dtype="float16", target="sm_80")
    made = given(90, 110, 512, dtype=torch.float16)
    check(attn, made, live_pairs(mask, 90, 110))


def test_heads_that_differ_and_share_keys():
    attn = HEADS.compile(512, n_heads=4, target="sm_80")
    made = given(90, 90, 512, batch=2, heads=4, kv_heads=2)
    check(attn, made, live_pairs(HEADS, 90, 90, heads=4))


def test_features():
    attn, live = BAND.compile(512, target="sm_80"), live_pairs(BAND, 70, 90)
    both = vectors(["sink_logits", "alibi_slopes"], 2)
    check(attn, given(70, 90, 512), live, softcap=3.0, **both)
    check(attn, given(70, 90, 512), live, scale=-0.2)


def test_entmax():
    attn = mc.causal().compile(512, dtype="float16", target="sm_80")
    made = given(70, 100, 512, dtype=torch.float16)
    check_entmax(attn, made, live_pairs(mc.causal(), 70, 100), 1.5)


def test_no_ids_behind_the_last_token_are_read():
    """Rows of a tile may be no tokens; nothing lies behind what the host sends."""
    mask, ids = mc.documents("x") & mc.causal(), np.arange(72, dtype=np.int32) // 30
    attn, live = mask.compile(264, target="sm_80"), live_pairs(mask, 72, 72, {"x": ids})
    check(attn, given(72, 72, 264), live, {"x": ids})


def test_parts_join():
    mask = mc.window(5, 5) | mc.dilated(9, stride=3)
    attn = mask.compile(512, target="sm_80")
    check(attn, given(100, 100, 512), live_pairs(mask, 100, 100))


def test_values_that_are_not_finite_reach_only_their_queries():
    q, k, v, _ = given(70, 70, 512)
    v[..., 50, :] = torch.inf
    out = mc.causal().compile(512, target="sm_80")(q, k, v, nan_safe=True)
    assert out[..., :50, :].isfinite().all()
    assert not out[..., 50:, :].isfinite().any()


def test_the_same_bits_on_every_run():
    attn, made = BAND.compile(512, target="sm_80"), given(70, 90, 512)
    usual, ordered = called(attn, *made), called(attn, *made, deterministic=True)
    assert all(torch.equal(usual[name], ordered[name]) for name in ("dq", "dk", "dv"))


# ------------------------------------------------------------------ rows of 576 with 512 of v


@pytest.mark.parametrize("dims", [(576, 512), (520, 264)], ids=str)
def test_queries_longer_than_values(dims):
    forward(mc.causal(), 70, 100, dims, heads=2, kv_heads=1)


def test_they_have_no_backward_pass():
    attn, (q, k, v, dout) = mc.causal().compile(576, 512, target="sm_80"), given(40, 40, 576, 512)
    out, lse = attn(q, k, v, return_lse=True)
    with pytest.raises(TargetNotBuilt, match="the bundle has no source of it"):
        attn.backward(q, k, v, out, lse, dout)


# ------------------------------------------------------------------ heads as rows


@pytest.mark.parametrize(
    ("n_q", "n_kv", "heads", "dims"),
    [more(1, 700, 128, (576, 512)), (5, 300, 8, (576, 512)), (3, 20, 8, (512, 512)),
     (1, 130, 70, (264, 264))],
)  # fmt: skip
def test_heads_that_share_keys_are_rows_of_tiles(n_q, n_kv, heads, dims, hopper):
    forward(mc.causal(), n_q, n_kv, dims, heads, 1, batch=2)
    launches = [name for name, _ in hopper.launches]
    assert launches[0] == "attention_forward"
    assert ("attention_merge" in launches) == (n_kv > 256)
    tiles = -(-n_q * heads // 64)
    assert hopper.launches[0][1] % (2 * tiles) == 0


@pytest.mark.parametrize("mask", [mc.full(), mc.causal() & (mc.sinks(3) | mc.window(300))], ids=str)
def test_their_masks_and_sinks(mask):
    sinks = vectors(["sink_logits"], 8)
    forward(mask, 2, 500, (512, 512), 8, 2, batch=2, softcap=3.0, **sinks)


def test_long_rows_of_queries_are_not_packed(hopper):
    forward(mc.causal(), 40, 300, (512, 512), 4, 2)
    assert {name for name, _ in hopper.launches} == {"attention_forward"}
    unit = mc.causal().compile(512, target="sm_80").bundle.units[0]
    assert PACK_GQA in dict(unit.modes)


# ------------------------------------------------------------------ sources and limits


@pytest.mark.parametrize("dims", [(512, 512), (576, 512)], ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_registers(dims, arch):
    for unit in BAND.compile(dims[0], dims[1], target="sm_80").bundle.units:
        for mode in ("default", PACK_GQA) if Direction.forward in unit.directions else ("default",):
            for use in build(unit, frozenset[Feature](), arch=arch, mode=mode).report.kernels:
                assert max(use.spill_stores, use.spill_loads) <= 8, (use.name, arch)


def test_what_has_which_kernels():
    sm_80, hopper = TARGETS["sm_80"], TARGETS["sm_90a"]
    problems = [Problem(*dims, DType.bfloat16) for dims in ((512, 512), (576, 512), (520, 8))]
    assert [sm_80.passes(problem) for problem in problems] == [
        (Direction.forward, Direction.backward), (Direction.forward,), (Direction.forward,)
    ]  # fmt: skip
    assert [hopper.serving(problem).name for problem in problems] == ["sm_80"] * 3
    assert sm_80.serving(Problem(512, 520, DType.bfloat16)).name == "sm_80"  # whose error it is
    assert mc.topk(4, of=mc.causal()).compile(512, target="sm_80").target.name == "simt"
    with pytest.raises(HeadDimUnsupported, match="256 where keys are chosen at run time"):
        mc.topk(4, of=mc.causal()).compile(576, 512, target="sm_80")
    assert mc.causal().compile(512, dtype="float32", target="sm_80").target.name == "simt"
