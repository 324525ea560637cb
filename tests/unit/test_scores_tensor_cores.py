"""Score formulas on tensor cores, both passes, which the emulator runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import maskc as mc
from maskc import driver
from maskc.core import target
from maskc.core.cost import Cost
from maskc.core.problem import Direction, Feature
from maskc.reference.attention import attention
from maskc.reference.scores import ScoreOf
from maskc.runtime import CompiledMask
from maskc.testing.emulator import machine
from tests.support.hopper import nan_memory
from tests.support.scores import FORMULAS, arrays, judged_passes, random_formulas
from tests.support.thorough import alternating, chiefly, examples, more

BAND = mc.causal() & (mc.sinks(3) | mc.window(40))


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


emulated = pytest.mark.usefixtures("device")


def near(found, right, name, tolerance):
    """Within a share of the largest number; infinite where that is right."""
    found = np.asarray(found, np.float64)
    same = found == right
    found, right = (np.where(same & np.isinf(right), 0, x) for x in (found, right))
    error = np.abs(found - right).max()
    assert np.isfinite(found).all(), name
    assert error < tolerance * max(1, np.abs(right).max()), name


def compiled(mask, score, dim=64, form=None, mode=None, kind="sm_90a"):
    """A compiled mask, if need be in parts, or with the sources of one form or the backward mode
    `apart`."""
    attn = mask.compile(dim, dtype="bfloat16", target=kind, score=score)
    assert attn.target.name == kind
    units = attn.bundle.units
    if form is not None:
        units = tuple(
            u for u in units if not u.directions or u.target != "sm_90a" or u.form == form
        )
        back = [Direction.forward not in u.directions for u in units]
        if mode == "separate_dq":
            units = tuple(
                replace(u, costs=(Cost("separate_dq", 1, 0, 0),)) if own and u.directions else u
                for u, own in zip(units, back, strict=True)
            )
        else:
            units = tuple(unit.without("separate_dq") for unit in units)
    made, in_parts = replace(attn.bundle, units=units), mode == "parts" or None
    return CompiledMask(made, kind, in_parts=in_parts, held=attn.held, inputs=score.inputs)


def judged(mask, name, n, *, dim=64, form=None, mode=None, deterministic=False, n_kv=None,
           kind="sm_90a", live=None, **options):  # fmt: skip
    """Both passes against the reference in fp64: what a call gives, and where it ran."""
    n_kv = n if n_kv is None else n_kv
    score, data = FORMULAS[name](n, n_kv, 2, 2) if isinstance(name, str) else name
    generator = torch.Generator().manual_seed(0)
    q, dout = (torch.randn((2, 2, n, dim), generator=generator).bfloat16() for _ in range(2))
    k, v = (torch.randn((2, 1, n_kv, dim), generator=generator).bfloat16() for _ in range(2))
    attn = compiled(mask, score, dim, form, mode, kind)

    def compare(result, right, name):
        near(result, right, name, {"out": 0.02, "lse": 1e-3}.get(name, 0.03))

    _, results = judged_passes(
        attn, (q, k, v, dout), mask.dense(n, n_kv) if live is None else live, score=score,
        data=data, deterministic=deterministic, compare=compare, **options,
    )  # fmt: skip
    return results, {(source, mode) for source, mode, _ in attn.all_reports}


@emulated
@pytest.mark.parametrize(
    "name", chiefly(list(FORMULAS), "relative table", "buckets", "gate", "twice", "hidden")
)
def test_formulas(name):
    judged(mc.causal(), name, 130)


@emulated
def test_the_last_distance():
    """Whole warps add 97 + 64 - 1 distances; only one pair has the last distance."""
    pairs = mc.where(lambda q, k: (k == 63) | (q == 96) & (k == 0))
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, q - k + 63])
    judged(pairs, (score, {"bias": np.zeros((2, 160), np.float32)}), 97, n_kv=64)


@emulated
@settings(max_examples=examples(4) - 1, derandomize=True, database=None)
@given(random_formulas())
def test_random_formulas(made):
    function, kinds = made
    score = mc.score(function)
    data = arrays(kinds, 90, 90, 2, 2)
    judged(mc.causal(), (score, {name: data[name] for name in score.inputs.names}), 90)


@emulated
def test_documents_listed_on_the_device():
    """Where backward passes have lists by tile columns alone."""
    n = 170
    ids = np.repeat(np.arange(4), [30, 50, 70, 20]).astype(np.int32)
    mask = mc.causal() & mc.documents("doc")
    _, ran = judged(
        mask, "twice", n, live=mask.dense(n, doc=ids), doc=torch.from_numpy(ids)[None].repeat(2, 1)
    )
    assert ("sm_90a_documents", "default") in ran


@emulated
@pytest.mark.parametrize("kind", ["sm_90a", "sm_80"])
def test_few_pairs(kind):
    """Where delta is found once more, of all keys of a query."""
    judged(mc.causal(), "twice", 50, kind=kind)


@emulated
@pytest.mark.parametrize("name", ["relative table", more("bias"), "pieces", more("twice")])
def test_heads_packed_into_tiles(name):
    """Rows of a tile are of several heads: each has its query, its head and its distance."""
    for n_kv in (70, 1300):  # whole rows, and rows in parts
        ran = decoded(name, 3, n_kv)
        assert ran == {("sm_90a", "pack_gqa")}


def decoded(name, n, n_kv, heads=6, kv_heads=2):
    """A forward pass of few queries against the reference in fp64; where it ran."""
    if name == "alibi":
        score, data = mc.score(lambda s, q, k, h: s - (h + 1) * abs(q + mc.n_kv - mc.n_q - k)), {}
    else:
        score, data = FORMULAS[name](n, n_kv, heads, 2)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((2, heads, n, 64), generator=generator).bfloat16()
    k, v = (torch.randn((2, kv_heads, n_kv, 64), generator=generator).bfloat16() for _ in range(2))
    attn = compiled(mc.causal(), score, form="")
    tables = {key: torch.from_numpy(x) for key, x in data.items()}
    out, lse = attn(q, k, v, return_lse=True, **tables)
    made = ScoreOf(score.inputs, data, n, n_kv)
    given = [x.float().numpy() for x in (q, k, v)]
    right, right_lse = attention(*given, mc.causal().dense(n, n_kv), score=made)
    near(out.float(), right, "out", 0.02)
    near(lse, right_lse, "lse", 1e-3)
    return {(source, mode) for source, mode, _ in attn.all_reports}


@emulated
def test_packed_heads_have_positions_of_their_own():
    assert decoded("alibi", 4, 700) == {("sm_90a", "pack_gqa")}


@emulated
def test_few_queries_of_one_head_are_packed_too():
    assert decoded("pieces", 2, 300, heads=2) == {("sm_90a", "pack_gqa")}
    assert decoded("pieces", 9, 70, heads=2) != {("sm_90a", "pack_gqa")}


@emulated
def test_boxes_of_a_grid():
    """Tiles whose tokens do not follow each other, some of them beyond the grid."""
    width = 18

    def near(q, k):
        return (abs(q // width - k // width) <= 2) & (abs(q % width - k % width) <= 2)

    _, ran = judged(mc.where(near), "relative table", width * 17, form="grid")
    assert "sm_90a_grid_backward" in {source for source, _ in ran}


@emulated
@pytest.mark.parametrize("name", [more("pieces"), "relative table"])
def test_long_rows(name):
    judged(BAND, name, 90, dim=128, n_kv=200)


@emulated
@pytest.mark.parametrize(
    ("name", "mode"),
    alternating(["relative table", "twice", more("soft-cap")], [None, "separate_dq"]),
)
def test_small_tiles(name, mode):
    _, ran = judged(BAND, name, 150, form="small", mode=mode)
    assert ("sm_90a_small_backward", "separate_dq" if mode else "default") in ran


@emulated
@pytest.mark.parametrize("name", [more("soft-cap"), "pieces"])
def test_tiles_of_16(name):
    _, ran = judged(mc.block_diagonal(16), name, 70, form="tiny")
    assert ("sm_90a_tiny_backward", "exclusive_dq") in ran


@emulated
@pytest.mark.parametrize("name", [more("buckets"), "relative table", more("gate")])
def test_the_same_bits(name):
    """Blocks run in another order every time; exact sums do not show it."""
    one, two = (judged(mc.causal(), name, 130, deterministic=True)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@emulated
@pytest.mark.parametrize("kind", ["sm_90a", "sm_80"])
def test_entmax(kind):
    judged(mc.causal(), "relative table", 90, normalizer="entmax", kind=kind)


@emulated
@pytest.mark.parametrize(
    "name", [*map(more, ("soft-cap", "twice", "pieces")), "relative table", "gate"]
)
def test_ampere(name):
    judged(mc.causal(), name, 130, kind="sm_80")


@emulated
def test_ampere_in_order():
    judged(BAND, "relative table", 90, dim=128, n_kv=200, kind="sm_80")
    one, two = (judged(BAND, "buckets", 130, kind="sm_80", deterministic=True)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@emulated
@pytest.mark.parametrize("kind", ["sm_90a", "sm_80"])
def test_rows_of_v_that_are_no_numbers(kind):
    """With nan_safe a call runs elsewhere, or otherwise; its formula comes along."""
    score, data = FORMULAS["relative table"](70, 70, 2, 2)
    q, k, v = (torch.randn(1, 2, 70, 64).bfloat16() for _ in range(3))
    bias = torch.from_numpy(data["bias"])
    v[:, :, 50] = torch.nan
    attn = mc.causal().compile(64, target=kind, score=score)
    out = attn(q, k, v, bias=bias, nan_safe=True)
    clean = attn(q[:, :, :50], k[:, :, :50], v[:, :, :50], bias=bias)
    assert (out[:, :, :50] - clean).abs().max() < 0.02


CHOSEN = {
    "blocks": (mc.topk(2, mc.causal(), block=32, score="given") | mc.sinks(3), 32),
    "keys": (mc.topk(40, mc.causal(), score="given", share="all") | mc.window(5), 1),
}
"""Masks, and the keys that they choose together."""


@emulated
@pytest.mark.parametrize(
    ("case", "kind"),
    alternating(
        [
            ("blocks", "relative table"),
            ("keys", "slopes"),
            ("keys", "twice"),
            more(("keys", "gate")),
        ],
        ["sm_90a", "sm_80"],
    ),
)
def test_chosen_keys(case, kind):
    """Blocks, and single keys, which are gathered; tables are read by head, by query, by pair."""
    chosen, name = case
    (mask, block), n = CHOSEN[chosen], 130
    made = name
    if name == "slopes":
        made = mc.scores.alibi("slopes"), {"slopes": np.array([0.1, 0.02], np.float32)}
    scores = torch.rand((n, -(-n // block)), generator=torch.Generator().manual_seed(2))
    live = mask.dense(n, n, scores=scores.numpy())
    deterministic = name == "slopes"
    _, ran = judged(mask, made, n, live=live, kind=kind, deterministic=deterministic, scores=scores)
    assert all(source.startswith(kind) for source, _ in ran)
    assert (f"{kind}_gather", "default") in ran or chosen == "blocks"


@emulated
@pytest.mark.parametrize("kind", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", ["buckets", more("gate")])
def test_parts_over_listed_tokens(kind, name):
    mask = mc.window(8, 8) | mc.global_tokens([3, 40, 41, 77, 90, 120])
    _, ran = judged(mask, name, 140, kind=kind, mode="parts")
    assert any(source.startswith("part2") for source, _ in ran)


@emulated
def test_tables_read_by_distance_get_gradients_whole():
    """Kernels of whole tiles add up diagonals."""
    mask = mc.window(8, 8) | mc.global_tokens(list(range(7, 2048, 128)))
    score, _ = FORMULAS["buckets"](8, 8, 2, 2)
    attn = mask.compile(64, dtype="bfloat16", target="sm_90a", score=score)
    assert attn.bundle.parts
    assert not attn._in_no_parts.all_reports
    table = torch.randn(8, 2)
    q, k, v, dout = (torch.randn(1, 2, 140, 64).bfloat16() for _ in range(4))
    out, lse = attn(q, k, v, return_lse=True, bias=table)
    results = attn.backward(q, k, v, out, lse, dout, bias=table)
    assert results[3].shape == table.shape
    assert attn._in_no_parts.all_reports


@emulated
def test_keys_found_by_thresholds_run_on_cuda_cores():
    score, _ = FORMULAS["soft-cap"](8, 8, 2, 2)
    attn = mc.topk(16, of=mc.causal()).compile(64, target="sm_90a", score=score)
    assert attn.target.name == "simt"
    assert "simt alone chooses single keys by q . k" in " ".join(attn.explain().split())


@emulated
def test_dead_pairs_have_no_slope():
    """A formula that is no number where the mask hides pairs does no harm."""
    q, k, v, dout = (torch.randn(1, 1, 80, 64).bfloat16() for _ in range(4))
    for score in (
        mc.score(lambda s, q, k: s + np.sqrt(q - k) * np.tanh(s)),
        mc.score(lambda s, q, k: s - np.sqrt(q - k)),
    ):
        attn = mc.causal().compile(64, target="sm_90a", score=score)
        out, lse = attn(q, k, v, return_lse=True)
        for gradient in (out, *attn.backward(q, k, v, out, lse, dout)):
            assert torch.isfinite(gradient).all()


@emulated
@pytest.mark.parametrize(
    ("name", "scale"), alternating(["relative table", "soft-cap"], [0.0, -0.4])
)
def test_scales(name, scale):
    """The part that distance adds stays where scores turn around or vanish."""
    judged(BAND, name, 90, scale=scale)


@emulated
@pytest.mark.parametrize("size", [more(0.5), 20.0])
def test_moderate_and_large_scores(size):
    """A polynomial stands for tanh where it can, and the tanh itself where it cannot."""
    judged(mc.causal(), (mc.scores.soft_cap(mc.param("cap", 3.0)), {}), 130, scale=size / 8)


@emulated
@pytest.mark.parametrize("dim", [64, more(128), more(256)])
def test_gradients_by_distance(dim):
    """Tables that are read by distance alone get sums along diagonals."""
    n, slopes = 150, np.float32([0.3, 0.7])
    bias = np.random.default_rng(0).standard_normal((32, 2)).astype(np.float32)
    judged(mc.causal(), (mc.scores.alibi(), {"slopes": slopes}), n, dim=dim)
    judged(mc.window(90, 70), (mc.scores.t5(bidirectional=True), {"bias": bias}), n, dim=dim)


def test_sources_name_no_feature_but_in_the_logits():
    """A formula takes the place of features; without one there is no word of it."""
    score, _ = FORMULAS["bias"](8, 8, 2, 2)
    for formula in (None, score.formula):
        problem = replace(driver.problem(64, None, 4, "bfloat16"), score=formula)
        plan = driver.plan_kernel(BAND, problem, target.Target.named("sm_90a"))
        bundle = driver.emit_bundle(plan)
        (unit, *_) = bundle.choice("sm_90a", Direction.forward)
        assert "pack_gqa" in dict(unit.modes)
        assert unit.offers(frozenset({Feature.entmax}))
        for unit in bundle.units:
            if unit.directions and unit.target == "sm_90a":
                assert ("score_logit" in unit.source) == (formula is not None)
                assert ("#define WITH_SCORE 1" in unit.text) == (formula is not None)
