"""Mistakes of calls, at every way to call: what is no mask, names, libraries, numbers, dtypes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import maskc as mc
from maskc import driver, questions
from maskc.core.data import CALL, QUESTION, RESERVED, SELECTING
from maskc.core.errors import (
    BadOption,
    DataUnknown,
    MaskcError,
    MixedLibraries,
    NotAMask,
    ReservedName,
    UnknownDType,
    WrongDType,
)
from maskc.runtime import CompiledMask, GeneratedMask

RNG = np.random.default_rng(0)
Q = RNG.standard_normal((1, 2, 8, 16)).astype(np.float32)


@mc.pattern
def near(*, width: int = 4) -> mc.Mask:
    """A pattern."""
    return mc.window(width)


# ------------------------------------------------------------------ no mask

NO_MASKS: dict[str, tuple[object, str]] = {
    "bool array": (np.tri(8, dtype=bool), "mc.from_bool(array)"),
    "integer array": (np.ones(8, int), "mc.flags"),
    "additive bias": (np.zeros((8, 8)), "mc.from_bool(bias == 0)"),
    "mask_mod": (lambda b, h, q, k: q >= k, "mc.from_mask_mod(f)"),
    "formula's function": (lambda q, k: q >= k, "mc.where(f)"),
    "score_mod": (lambda score, b, h, q, k: score, "a score_mod changes scores"),
    "builtin": (len, "mc.from_mask_mod(f)"),
    "uncalled combinator": (mc.causal, "call it to get a mask: mc.causal(...)"),
    "uncalled window": (mc.window, "call it to get a mask: mc.window(...)"),
    "pattern": (near, "call it to get its mask: near()"),
    "compiled mask": (mc.full().compile(16, target="cpu"), "it is compiled: call it"),
    "None": (None, "mc.from_mask_mod(f)"),
    "True": (True, "mc.full() keeps every pair"),
    "int": (3, "mc.window(3)"),
    "float": (0.5, "masks come from maskc's combinators"),
    "text": ("causal()", "mc.parse(text)"),
    "list": ([mc.causal()], "mc.per_head([...])"),
    "formula": (mc.n_q > 3, "inside of mc.where"),
    "layout": (mc.causal().layout(8), "masks come from maskc's combinators"),
}
PLACES: dict[str, Callable[[object], object]] = {
    "attention": lambda wrong: mc.attention(Q, Q, Q, wrong),
    "&": lambda wrong: mc.causal() & wrong,
    "| from the left": lambda wrong: wrong | mc.causal(),
    "- from the left": lambda wrong: wrong - mc.causal(),
    "^": lambda wrong: mc.causal() ^ wrong,
    "of=": lambda wrong: mc.topk(2, of=wrong),
    "per_head": lambda wrong: mc.per_head([mc.causal(), wrong]),
    "equals": lambda wrong: mc.causal().equals(wrong),
    "subset_of": lambda wrong: mc.causal().subset_of(wrong),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", NO_MASKS)
def test_what_is_no_mask_is_told_what_to_write(name: str, where: str):
    wrong, hint = NO_MASKS[name]
    if name == "formula" and where.endswith("from the left"):
        return  # the operator is the formula's: MC107, which the tests of formulas have
    with pytest.raises(NotAMask) as caught:
        PLACES[where](wrong)
    assert caught.value.code == "MC106"
    assert hint in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.at is not None


@pytest.mark.parametrize("where", PLACES)
def test_tensors_and_block_masks_are_no_masks(where: str):
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block_mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, device="cpu")
    for wrong, hint in (
        (torch.ones(8, 8, dtype=torch.bool), "mc.from_bool(array)"),
        (torch.zeros(8, 8), "mc.from_bool(bias == 0)"),
        (block_mask, "mc.from_block_mask(block_mask)"),
    ):
        with pytest.raises(NotAMask) as caught:
            PLACES[where](wrong)
        assert hint in str(caught.value)


@pytest.mark.filterwarnings("ignore::maskc.DenseWarning")
def test_what_the_hints_say_works():
    live = np.tri(8, dtype=bool)
    for mask in (
        mc.from_bool(live),
        mc.from_bool(np.where(live, 0, -np.inf) == 0),
        mc.from_mask_mod(lambda b, h, q, k: q >= k),
        mc.where(lambda q, k: q >= k),
        mc.parse("causal()"),
    ):
        np.testing.assert_array_equal(mask.dense(8), live)


# ------------------------------------------------------------------ names

TAKES_DATA = {
    "attention": mc.attention, "call": CompiledMask.__call__, "backward": CompiledMask.backward,
    "compiled layout": CompiledMask.layout, "generated dense": GeneratedMask.dense,
    "generated layout": GeneratedMask.layout, "generated attention": GeneratedMask.attention,
    "dense": mc.Mask.dense, "count": mc.Mask.count, "layout": mc.Mask.layout,
    "driver dense": driver.dense, "asked count": questions.count,
    "asked layout": questions.layout,
}  # fmt: skip
"""Every callable whose keywords are data, too."""


@pytest.mark.parametrize("name", TAKES_DATA)
def test_no_name_of_data_is_a_keyword_of_a_call(name: str):
    parameters = inspect.signature(TAKES_DATA[name]).parameters.values()
    assert any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    assert named <= RESERVED


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_such_names_are_refused_where_they_are_given(name: str):
    for give in (mc.documents, mc.flags, mc.tree, lambda name: mc.window(mc.param(name, 2))):
        with pytest.raises(ReservedName) as caught:
            give(name)
        assert caught.value.code == "MC111"


@pytest.mark.parametrize("name", ["cls", "args", "kwargs", "options", "data", "d", "x", "c0"])
def test_other_names_work_everywhere(name: str):
    mask = mc.window(mc.param(name, 2))
    given = {name: 4}
    live = mc.window(4).dense(8)
    np.testing.assert_array_equal(mask.dense(8, **given), live)
    assert mask.count(8, **given) == live.sum()
    attn = mask.compile(16, dtype="float32", target="cpu")
    want = mc.attention(Q, Q, Q, mc.window(4))
    np.testing.assert_array_equal(attn(Q, Q, Q, **given), want)
    np.testing.assert_array_equal(mc.attention(Q, Q, Q, mask, **given), want)
    for layout in (mask.layout(8, block=(4, 4), **given), attn.layout(8, block=(4, 4), **given)):
        np.testing.assert_array_equal(
            layout.to_dense(), mc.window(4).layout(8, block=(4, 4)).to_dense()
        )
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(Q).requires_grad_()
    out = attn(x, x, x, **given)
    out.sum().backward()
    assert torch.equal(out, torch.from_numpy(want))


def test_an_unknown_keyword_names_all_that_there_are():
    mask = mc.documents("doc") & mc.window(mc.param("width", 2))
    attn = mask.compile(16, dtype="float32", target="cpu")
    ids = np.zeros(8, np.int32)
    for call in (attn, lambda *qkv, **data: mc.attention(*qkv, mask, **data)):
        with pytest.raises(DataUnknown) as caught:
            call(Q, Q, Q, doc=ids, sofcap=2.0)
        text = str(caught.value)
        assert "it has: doc, width" in text
        assert "did you mean 'softcap'?" in text
        assert all(name in text for name in CALL)
    for question in (mask.dense, mask.count, mask.layout):
        with pytest.raises(DataUnknown) as caught:
            question(8, dox=ids)
        assert "did you mean 'doc'?" in str(caught.value)
        assert all(name in str(caught.value) for name in QUESTION)


def test_options_in_messages_are_those_of_the_call():
    parameters = inspect.signature(CompiledMask.__call__).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {*CALL, *SELECTING}


# ------------------------------------------------------------------ numbers, dtypes, libraries

WRONG_NUMBERS = {
    "huge scale": {"scale": 10**400}, "infinite scale": {"scale": float("inf")},
    "scale nan": {"scale": float("nan")}, "scale text": {"scale": "1"},
    "denormal softcap": {"softcap": 1e-40}, "softcap nan": {"softcap": float("nan")},
    "huge softcap": {"softcap": 10**400}, "far apart": {"softcap": 1e-25, "scale": 1e10},
    "huge alpha": {"normalizer": "entmax", "alpha": 10**400},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_NUMBERS)
def test_numbers_that_do_not_fit(name: str):
    torch = pytest.importorskip("torch")
    mask, options = mc.causal(), WRONG_NUMBERS[name]
    attn = mask.compile(16, dtype="float32", target="cpu")
    plain = torch.from_numpy(Q)
    learned = plain.clone().requires_grad_()
    for x in (Q, plain, learned):
        for call in (attn, lambda *qkv, **more: mc.attention(*qkv, mask, **more)):
            with pytest.raises(BadOption):
                call(x, x, x, **options)
    with pytest.raises(BadOption):
        attn.backward(Q, Q, Q, Q, Q[..., 0], Q, **options)


def test_a_softcap_at_its_limits_is_exact():
    scores = Q[0].astype(float) @ Q[0].astype(float).swapaxes(1, 2) / 4
    live = mc.causal().dense(8)
    for cap in (1e-30, 1e30):
        capped = np.where(live, cap * np.tanh(scores / cap), -np.inf)
        weights = np.exp(capped - capped.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ Q[0]
        np.testing.assert_allclose(
            mc.attention(Q, Q, Q, mc.causal(), softcap=cap)[0], want, atol=1e-6
        )


def test_other_dtypes_say_which_there_are():
    wide, found = (
        Q.astype(np.float64),
        r"bfloat16, float16, float32, float8_e4m3fn[\s\S]*q\.float\(\)",
    )
    with pytest.raises(UnknownDType, match=found):
        mc.attention(*[Q.astype(np.complex64)] * 3, mc.causal())
    with pytest.raises(WrongDType, match=r"convert it to float32: kernels store bfloat16, float16"):
        mc.causal().compile(16, dtype="float32", target="cpu")(wide, wide, wide)
    torch = pytest.importorskip("torch")
    for grad in (False, True):
        x = torch.from_numpy(wide).requires_grad_(grad)
        with pytest.raises(UnknownDType):
            mc.attention(*[x.to(torch.complex64)] * 3, mc.causal())
        with pytest.raises(WrongDType):
            mc.causal().compile(16, dtype="float32", target="cpu")(x, x, x)


def test_merging_needs_one_library():
    torch = pytest.importorskip("torch")
    out, lse = mc.attention(Q, Q, Q, mc.causal(), return_lse=True)
    pieces = ([out, torch.from_numpy(out)], [lse, lse]), ([out], [torch.from_numpy(lse)])
    for outs, lses in pieces:
        with pytest.raises(MixedLibraries) as caught:
            mc.merge(outs, lses)
        assert isinstance(caught.value, MaskcError)
        assert "outs[0] is a numpy.ndarray" in str(caught.value)
        assert "is a torch.Tensor" in str(caught.value)
