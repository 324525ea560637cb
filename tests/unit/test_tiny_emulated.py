"""Tiles of 16 x 16 in registers, whole, in emulation: both passes against fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import maskc as mc
from maskc.runtime import CompiledMask
from maskc.testing.emulator import machine
from tests.support import cases
from tests.support.exact_attention import called, exact_and_rough, live_pairs, vectors, wrong
from tests.support.hopper import check, compiled, given, modes
from tests.support.residues import run_in_classes
from tests.support.thorough import alternating, more

FORWARD, BACKWARD = ("sm_90a_tiny", "default"), ("sm_90a_tiny_backward", "exclusive_dq")
MASKS = cases.masks(cases.TINY, cases.EMULATOR)
EMPTY, GAPS, SHORT = (MASKS[name] for name in ("empty rows", "gaps", "both sides"))
HEADS = mc.per_head([mc.block_diagonal(16), GAPS, mc.window(3), EMPTY])
ALONE = mc.per_head([mc.block_diagonal(16), GAPS, mc.block_diagonal(4) & mc.causal(), EMPTY])


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    return machine.install(monkeypatch)


@pytest.mark.parametrize(("size", "dtype"), alternating([4, 8, more(16)], ["bfloat16", "float16"]))
def test_blocks_of_any_length(size, dtype):
    mask = mc.block_diagonal(size)
    attn = compiled(mask, 64, dtype, mode="tiny")
    for n in (1, 15, 16, 17, 33, 64, 70):
        check(attn, given(n, n, 64, dtype), live_pairs(mask, n, n))
    assert modes(attn) == {FORWARD, BACKWARD}


@pytest.mark.parametrize(
    ("mask", "lengths"),
    alternating(
        [
            EMPTY,
            GAPS,
            SHORT,
            *(more(MASKS[name]) for name in ("three keys", "blocks of 32", "blocks across tiles")),
        ],
        [(70, 70), (50, 83), more((83, 50)), (1, 40), more((40, 1))],
    ),
    ids=str,
)
def test_other_masks_and_lengths(mask, lengths):
    attn = compiled(mask, 64, mode="tiny")
    check(attn, given(*lengths, 64, batch=2, heads=4, kv_heads=2), live_pairs(mask, *lengths))
    assert FORWARD in modes(attn)


def test_no_queries_or_keys():
    attn = compiled(mc.block_diagonal(16), 64, mode="tiny")
    for lengths in ((0, 20), (20, 0)):
        check(attn, given(*lengths, 64), live_pairs(mc.block_diagonal(16), *lengths))


@pytest.mark.parametrize("dim", [64])
def test_heads_of_their_own(dim):
    made = given(70, 70, dim, heads=4, kv_heads=2)
    check(compiled(HEADS, dim, heads=4, mode="tiny"), made, live_pairs(HEADS, 70, 70, heads=4))
    attn = compiled(ALONE, dim, heads=4, mode="tiny")
    check(attn, made, live_pairs(ALONE, 70, 70, heads=4), deterministic=True)
    assert modes(attn) == {FORWARD, BACKWARD}


@pytest.mark.parametrize("mask", [more(mc.block_diagonal(16)), EMPTY, more(SHORT)], ids=str)
@pytest.mark.parametrize("dim", [64])
def test_features(mask, dim):
    attn, made = compiled(mask, dim, mode="tiny"), given(52, 52, dim)
    live = live_pairs(mask, 52, 52)
    check(attn, made, live, softcap=3.0)
    for names in (["alibi_slopes"], ["sink_logits"], ["alibi_slopes", "sink_logits"]):
        check(attn, made, live, softcap=2.0, **vectors(names, 2))
    assert FORWARD in modes(attn)


@pytest.mark.parametrize("scale", [0.0, 1e-12, -3.0, 40.0])
@pytest.mark.parametrize("mask", [more(mc.block_diagonal(16)), more(EMPTY), SHORT], ids=str)
def test_scales(mask, scale):
    attn, live = compiled(mask, 64, "float16", mode="tiny"), live_pairs(mask, 60, 60)
    check(attn, given(60, 60, 64, "float16"), live, scale=scale)


@pytest.mark.parametrize("names", [["alibi_slopes"], ["sink_logits"]])
def test_gradients_of_heads_take_another_source(names):
    mask = mc.block_diagonal(16)
    attn = compiled(mask, 64)
    check(attn, given(40, 40, 64), live_pairs(mask, 40, 40), **vectors(names, 2))
    assert modes(attn) >= {("sm_90a_small_backward", "default")}
    assert BACKWARD not in modes(attn)


def test_any_strides():
    """Tokens first, views of wider tensors, and heads that all share their keys."""
    mask, dim = GAPS, 64
    attn, live = compiled(mask, dim, mode="tiny"), live_pairs(mask, 45, 45)
    q, k, v, dout = given(45, 45, dim, batch=2, heads=4, kv_heads=2)
    wide = torch.randn(2, 45, 4, 3 * dim).to(q.dtype).transpose(1, 2)
    made = [wide[..., dim : 2 * dim], k.transpose(1, 2).contiguous().transpose(1, 2),
            v[:, :1].expand(2, 2, 45, dim), dout]  # fmt: skip
    check(attn, made, live)


@pytest.mark.parametrize("n", [more(50), 90])
def test_a_part_of_few_keys_joins_the_others(monkeypatch, n):
    """A window, and in residue classes a shorter one."""
    run_in_classes(monkeypatch)
    mask = mc.window(20) | mc.dilated(20, stride=4)
    attn = mask.compile(head_dim=64, target="sm_90a")
    tiny = tuple(
        replace(part, bundle=replace(part.bundle, units=tuple(
            u for u in part.bundle.units if u.form == "tiny" or "backward" in u.key
        ))) for part in attn.bundle.parts
    )  # fmt: skip
    assert len(tiny) == 2
    attn = CompiledMask(replace(attn.bundle, parts=tiny), "sm_90a")
    made, live = given(n, n, 64, batch=2), live_pairs(mask, n, n)
    check(attn, made, live)
    check(attn, made, live, **vectors(["sink_logits", "alibi_slopes"], 2))
    assert {"part0.sm_90a_tiny", "part1.sm_90a_tiny"} <= {name for name, _ in modes(attn)}


def test_rows_past_the_end_count_for_nothing():
    """Whatever lies there."""
    mask, n, dim = mc.block_diagonal(16), 37, 64
    attn = compiled(mask, dim, mode="tiny")
    given_ = given(n, n, dim, heads=1)
    padded = [torch.full((1, 1, n + 16, dim), torch.nan, dtype=x.dtype) for x in given_]
    for x, own in zip(padded, given_, strict=True):
        x[:, :, :n] = own
    views = [x[:, :, :n] for x in padded]
    live = live_pairs(mask, n, n)
    sides = exact_and_rough(*given_, live)
    assert not wrong(called(attn, *views), *sides)


FAULTS = {
    "halves change places": ("transposed(w[2])", "transposed(w[1])"),
    "a row's top is not raised": ("> RESCALE_THRESHOLD", "> 1e30f"),
    "a pair past the end counts": ("const bool inside = row < n_q && column < n_kv;",
                                   "const bool inside = true;"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_these_tests_would_find(monkeypatch, name):
    whole, (text, instead) = machine.loaded, FAULTS[name]

    def faulty(source, macros, only=()):
        return whole(source.replace(text, instead), macros, only)

    monkeypatch.setattr(machine, "loaded", faulty)
    q, k, v, dout = given(70, 70, 64)
    mask = SHORT if "top" in name else mc.window(2, 2) & mc.block_diagonal(16)
    made = (q, 30 * k, v, dout)
    sides = exact_and_rough(*made, live_pairs(mask, 70, 70))
    assert wrong(called(compiled(mask, 64, mode="tiny"), *made), *sides)
