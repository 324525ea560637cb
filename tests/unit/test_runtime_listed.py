"""Scattered tokens over packed copies of their rows: the same attention as dense pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.cost import Tally
from maskc.core.errors import DataRange, MaskcError
from maskc.core.listed import Listed
from maskc.core.problem import Direction, TileShape
from maskc.dispatch.listed_split import ListedLines, tokens_of, whole_facts
from maskc.driver import analyse_heads
from maskc.ir.id_lists import unveiled, veiled
from maskc.layout.work.tile_counts import Adders
from maskc.runtime import CompiledMask
from maskc.runtime.launch.listed import ListedRowsPlan
from tests.support.scores import FORMULAS, judged_passes
from tests.support.thorough import alternating, chiefly, examples, more
from tests.unit.test_runtime_attention import case, compare, path, quiet  # noqa: F401

IDS = [3, 40, 41, 77, 90, 120]
MASKS = {
    "both": mc.window(8, 8) | mc.global_tokens(IDS),
    "columns": mc.causal() & (mc.window(8) | mc.global_tokens(IDS).columns),
    "rows": mc.window(8, 8) | mc.global_tokens(IDS).rows,
    "from the start": mc.window(8) | mc.global_tokens(IDS, align="start"),
    "parameter": mc.window(mc.param("w", 5)) | mc.global_tokens(IDS),
    "flags": mc.window(8, 8) | mc.flags("g"),
    "name": mc.causal() & (mc.window(8) | mc.global_tokens("g")),
    "other flags": mc.window(8, 8) | mc.flags("g", on="q") & mc.flags("f"),
}


def mask_of(mask, dtype="float32"):
    made = mask.compile(head_dim=32, head_dim_v=48, dtype=dtype, target="cpu")
    return CompiledMask(made.bundle, "cpu", in_parts=True)


def data_of(name, n_kv, seed=0):
    if name not in ("flags", "name", "other flags"):
        return {}
    rng = np.random.default_rng(seed)
    data = {"g": rng.random(n_kv) < 0.06}
    return data | {"f": rng.random(n_kv) < 0.5} if name == "other flags" else data


@pytest.mark.parametrize(
    ("name", "extras"), alternating(chiefly(list(MASKS), "columns", "rows", "flags"), [False, True])
)
def test_both_passes(path, name, extras):  # noqa: F811
    """ALiBi, which is among the extras, finds its distances by the lists."""
    attn = quiet(mask_of(MASKS[name]), path)
    for n_q, n_kv in ((130, 130), (61, 130), (130, 61), (1, 40), (30, 2)):
        if name in ("name", "other flags") and n_q > n_kv:
            continue  # queries beyond the tokens have no flags
        data = data_of(name, n_kv)
        keep = MASKS[name].dense(n_q, n_kv, **data)
        compare(attn, case(n_q, n_kv, extras=extras), keep, 2e-5, **data)
        assert isinstance(attn._last[1], ListedRowsPlan)


FORMULA_MASKS = {
    "both": MASKS["both"],
    "columns": MASKS["columns"],
    "every so-manieth": mc.causal() & (mc.window(8) | mc.strided(16)),
}


@pytest.mark.parametrize(
    ("formula", "name", "deterministic"),
    alternating(["buckets", "gate", more("bias"), more("pieces")], list(FORMULA_MASKS),
                [False, True]),
)  # fmt: skip
def test_formulas(formula, name, deterministic):
    """They are given the tokens of lists, tables get gradients from all parts, once."""
    mask = FORMULA_MASKS[name]
    for n_q, n_kv in ((130, 130), (61, 130)):
        score, data = FORMULAS[formula](n_q, n_kv, 2, 2)
        made = mask.compile(32, dtype="float32", target="cpu", score=score)
        attn = CompiledMask(
            made.bundle, "cpu", in_parts=True, held=made.held, inputs=score.inputs
        )  # fmt: skip
        rng = np.random.default_rng(0)
        q, dout = (rng.normal(size=(2, 2, n_q, 32)).astype(np.float32) for _ in range(2))
        k, v = (rng.normal(size=(2, 1, n_kv, 32)).astype(np.float32) for _ in range(2))
        judged_passes(
            attn, (q, k, v, dout), mask.dense(n_q, n_kv), score=score, data=data,
            deterministic=deterministic,
        )  # fmt: skip
        assert any(source.startswith("part1") for source, _, _ in attn.all_reports)


def test_where_formulas_run_whole():
    """Residue classes of both sides do not tell their tokens, and dropout draws for the call's."""
    score, _ = FORMULAS["gate"](8, 8, 1, 1)
    dilated = mc.window(20) | mc.dilated(400, stride=16)
    assert dilated.compile(32, target="cpu", dtype="float32").bundle.parts
    assert not dilated.compile(32, target="cpu", dtype="float32", score=score).bundle.parts
    assert MASKS["both"].compile(32, target="cpu", dtype="float32", score=score).bundle.parts
    assert not MASKS["both"].compile(32, target="cpu", dtype="float32").dropping.bundle.parts


@pytest.mark.parametrize("dtype", ["bfloat16", more("float16")])
def test_half_precision(dtype):
    compare(mask_of(MASKS["both"], dtype), case(dtype=dtype), MASKS["both"].dense(130, 150), 3e-2)


def test_sequences_with_flags_of_their_own():
    """One has none, and the others do not decide how a sequence runs."""
    mask, rng = MASKS["name"], np.random.default_rng(0)
    attn, made = mask_of(mask), case(130, 130)
    batch = made.qkv[0].shape[0]
    flags = rng.random((batch, 130)) < np.linspace(0, 0.1, batch)[:, None]
    keep = np.stack([mask.dense(130, g=flag) for flag in flags])[:, None]
    compare(attn, made, keep, 2e-5, g=flags)
    usual = mask.compile(head_dim=32, head_dim_v=48, dtype="float32", target="cpu")
    others = flags.copy()
    others[:-1] = True
    np.testing.assert_array_equal(usual(*made.qkv, g=flags)[-1], usual(*made.qkv, g=others)[-1])


@settings(max_examples=examples(12) // 2 + 1)
@given(
    st.lists(st.integers(0, 139), min_size=3, max_size=30, unique=True),
    st.sampled_from(["both", "rows", "columns"]), st.booleans(), st.integers(0, 9),
    st.integers(1, 140), st.integers(2, 140),
)  # fmt: skip
@example([0, 1, 2], "both", False, 5, 3, 70)
def test_any_list(ids, side, causal, window, n_q, n_kv):
    tokens = mc.global_tokens(ids)
    tokens = tokens if side == "both" else getattr(tokens, side)
    mask = mc.window(window, window) | tokens
    mask = mc.causal() & mask if causal else mask
    keep = mask.dense(n_q, n_kv)
    assume(keep.sum(-1).max() > 1)  # else dq is 0, to which no error is relative
    compare(mask_of(mask), case(n_q, n_kv), keep, 2e-5)


def test_flags_of_one_sequence_are_those_of_all():
    (flagged,) = analyse_heads(mc.flags("one") & mc.flags("each")).masks
    arrays = {"one": np.array([[1, 1, 0, 1]]), "each": np.array([[1, 0, 1, 1], [0, 1, 1, 0]])}
    tokens = tokens_of(Listed("k", flagged.keep), 4, 4, {}, arrays)
    assert tokens.tolist() == [[0, 3], [1, -1]]


def test_they_run_where_they_pay():
    def runs(mask, n=2048, **data):
        attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
        attn(*case(n, n, (1, 1), 1, (16, 16)).qkv, **data)
        return isinstance(attn._last[1], ListedRowsPlan)

    spread = list(range(7, 2048, 128))
    assert runs(mc.window(16, 16) | mc.global_tokens(spread))
    assert runs(mc.causal() & (mc.window(16) | mc.global_tokens(spread).columns))
    assert not runs(mc.window(16, 16) | mc.global_tokens([3, 5, 9, 11]).columns)
    assert not runs(mc.window(16, 16) | mc.global_tokens([3, 5, 9, 11]))
    flags = {"g": np.isin(np.arange(2048), spread), "f": np.ones(2048, bool)}
    assert runs(MASKS["other flags"], **flags)
    assert not runs(MASKS["other flags"], **flags | {"f": np.arange(2048) < 32})
    assert runs(MASKS["other flags"], **flags | {"f": flags["f"][None]})


def test_what_a_list_adds_is_told_apart():
    """Parts share no pair but those of listed queries, which the last one has whole."""
    (base, keys, rows) = analyse_heads(MASKS["both"]).parts
    assert base.listed is None
    assert (keys.listed.side, rows.listed.side) == ("k", "q")
    assert rows.inner.masks[0].keep == E.ALWAYS
    no_lists = (
        mc.causal() & mc.flags("g"),  # nothing without them
        mc.window(5) - mc.flags("g"),  # fewer pairs with them
        mc.documents("doc") & (mc.window(5) | mc.global_tokens(IDS)),  # other data decide, too
        mc.window(5) | mc.global_tokens(9),  # neighbours
    )
    assert not any(analyse_heads(mask).parts for mask in no_lists)


def test_a_promise_is_kept():
    mask = mc.window(8, 8) | mc.global_tokens("g", at_most=2)
    attn, made = mask_of(mask), case(50, 50)
    keep = mask.dense(50, g=np.arange(50) < 2)
    compare(attn, made, keep, 2e-5, g=np.arange(50) < 2)
    with pytest.raises(DataRange, match="3 tokens of a sequence are flagged"):
        attn(*made.qkv, g=np.arange(50) < 3)
    with pytest.raises(MaskcError, match="at_most"):
        mc.global_tokens([3], at_most=3)
    with pytest.raises(MaskcError, match="at_most"):
        mc.flags("g", at_most=0)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "simt"])
def test_what_moves_rows_goes_along(target):
    """Compare with tile lists from the same flags, where there are any."""
    for tokens in (mc.global_tokens(IDS), mc.global_tokens("g"), mc.global_tokens("g", at_most=9)):
        attn = (mc.window(8, 8) | tokens).compile(head_dim=64, target=target)
        assert attn.bundle.moving_source(target) is not None
        assert attn._planner.listed.active
        assert attn._planner.listed.on_device is ("at_most" in str(tokens))


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_data_may_be_named_like_lists_of_the_runtime(target):
    """Kernels are the same whatever a mask calls its data."""

    def digests(name):
        mask = mc.causal() & (mc.documents(name) | mc.global_tokens(range(0, 99, 7)).columns)
        return [unit.digest for unit in mask.compile(64, target=target).bundle.units]

    assert digests("ids") == digests("token") == digests("z")


def test_long_lists_are_data_to_isl():
    """They come back as they were, and no part of the formula spells them for isl."""
    ids = list(range(0, 400, 3))
    keep = E.conj(E.le(E.K, E.Q), E.disj(E.member(E.K, ids), E.negate(E.member(E.Q, ids))))
    assert unveiled(veiled(keep)) == keep
    assert not any(isinstance(node, E.Member) for node in E.walk(veiled(keep)))
    distances = E.member(E.sub(E.Q, E.K), ids)  # bits over k - q know these
    assert veiled(distances) == distances
    mask = mc.causal() & (mc.window(20) | mc.global_tokens(ids).columns)
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    assert str(ids[-1]) not in attn.unit.source
    assert mask.count(500) == mask.dense(500).sum()


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 299), min_size=1, max_size=8, unique=True), st.sampled_from("qk"),
    st.integers(0, 40), st.integers(1, 300), st.sampled_from([(64, 64), (32, 128)]),
)  # fmt: skip
def test_tiles_of_the_whole_mask_follow_from_its_lists(ids, side, window, n, tile):
    """Counted by the dense mask: base tiles, and every tile with a pair of a listed token."""
    listed = mc.global_tokens(sorted(ids))
    both = mc.window(window, window) | (listed.rows if side == "q" else listed.columns)
    base, mask = mc.window(window, window).dense(n), both.dense(n)
    tokens = np.array(sorted(i for i in ids if i < n), np.int32)
    among = Listed(side, E.ALWAYS)
    rows, columns = -(-n // tile[0]), -(-n // tile[1])

    def tiles(pairs):
        padded = np.zeros((rows * tile[0], columns * tile[1]), bool)
        padded[:n, :n] = pairs
        return padded.reshape(rows, tile[0], columns, tile[1]).sum((1, 3))

    sizes = tiles(np.ones((n, n), bool))
    live, full = tiles(mask) > 0, tiles(base) == sizes
    (ir,) = analyse_heads(mc.window(window, window)).masks
    recipe = LayoutRecipe(TileShape(*tile), ir.keep, None)
    for direction in Direction:
        line = ListedLines(among, E.ALWAYS, tokens)
        facts = whole_facts(recipe, [line] if len(tokens) else [], {}, n, n, direction)
        axis = 0 if direction is Direction.backward else 1
        counts = live.sum(axis)
        queries = rows if direction is Direction.backward else 0
        assert facts.tally == Tally(
            (counts > 0).sum(), live.sum(), (live & ~full).sum(), (counts == 1).sum(), queries
        )
        assert facts.adders == Adders(live.sum(1).max(), (live.sum(1) > 0).sum())
