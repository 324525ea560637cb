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
    ArgumentsByPlace,
    BadOption,
    DataRange,
    DataShape,
    DataUnknown,
    DTypesDiffer,
    LengthsNotIds,
    MaskCalled,
    MaskcError,
    MaskedValues,
    MaskIndexed,
    MixedLibraries,
    NotAMask,
    NotAnArray,
    NotAnAttnMask,
    NotAScore,
    ReservedName,
    UnknownDType,
    WrongDevice,
    WrongDType,
    WrongRank,
    with_article,
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


# ------------------------------------------------------------------ masks of other libraries


def stand_in(library: str, name: str) -> object:
    """An object of a class of another library, which need not be installed."""
    return type(name, (), {"__module__": library})()


XFORMERS = "xformers.ops.fmha.attn_bias"
SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask"
ROW, COLUMN = np.arange(5)[:, None], np.arange(8)
RULES = {
    (XFORMERS, "LowerTriangularMask"): ROW >= COLUMN,
    (XFORMERS, "LowerTriangularFromBottomRightMask"): ROW + 3 >= COLUMN,
    (SPLASH, "CausalMask"): ROW >= COLUMN,
    (SPLASH, "FullMask"): (ROW >= 0) & (COLUMN >= 0),
}
"""Objects without numbers, and what they keep of 5 queries and 8 keys."""
WORDS = {
    (XFORMERS, "BlockDiagonalMask"): "doc=mc.cu_seqlens(x.q_seqinfo.seqstart)",
    (XFORMERS, "BlockDiagonalCausalMask"): 'mc.documents("doc") & mc.causal()',
    (XFORMERS, "BlockDiagonalCausalFromBottomRightMask"): "cu_seqlens_k=x.k_seqinfo.seqstart",
    (XFORMERS, "BlockDiagonalCausalLocalAttentionMask"): "mc.window(w - 1)",
    (XFORMERS, "BlockDiagonalPaddedKeysMask"): 'mc.intervals("keys")',
    (XFORMERS, "BlockDiagonalCausalWithOffsetPaddedKeysMask"): 'mc.intervals("keys")',
    (XFORMERS, "BlockDiagonalCausalWithOffsetGappyKeysMask"): 'mc.intervals("keys")',
    (XFORMERS, "PagedBlockDiagonalPaddedKeysMask"): "a pool of pages",
    (XFORMERS, "LocalAttentionFromBottomRightMask"): "mc.window(window_left, window_right)",
    (XFORMERS, "LowerTriangularMaskWithTensorBias"): "score=mc.scores.bias()",
    (XFORMERS, "AttentionBias"): "docs/porting.md",
    (SPLASH, "LocalMask"): 'mc.window(left, right, align="start")',
    (SPLASH, "MultiHeadMask"): "mc.per_head([...])",
    (SPLASH, "NumpyMask"): "mc.from_bool(array)",
}


@pytest.mark.parametrize("kind", [*RULES, *WORDS], ids=lambda kind: kind[1])
def test_masks_of_other_libraries(kind: tuple[str, str]):
    wrong = stand_in(*kind)
    hints = []
    for call in (
        lambda: mc.attention(Q, Q, Q, wrong),
        lambda: mc.attention(Q, Q, Q, attn_bias=wrong),
        lambda: mc.causal() & wrong,
        lambda: mc.scaled_dot_product_attention(Q, Q, Q, wrong),
    ):
        with pytest.raises((NotAMask, NotAnAttnMask)) as caught:
            call()
        assert f"found {kind[1]}" in str(caught.value)
        hints.append(str(caught.value).split("hint: ")[1])
    if kind in WORDS:
        assert all(WORDS[kind] in hint for hint in hints)
    else:
        found = eval(hints[0].removeprefix("write "), {"mc": mc})
        np.testing.assert_array_equal(found.dense(5, 8), RULES[kind])


def test_intervals_are_masks_of_padded_keys():
    rng = np.random.default_rng(1)
    of_q, starts, lengths = np.array([0, 3, 7, 9]), np.array([0, 6, 12]), np.array([4, 6, 1])
    q, k = rng.standard_normal((1, 2, 9, 16), np.float32), rng.standard_normal((1, 2, 18, 16))
    k = k.astype(np.float32)
    which = np.repeat(np.arange(3), np.diff(of_q))
    out = mc.attention(
        q, k, k, mc.intervals("keys"), keys=(starts[which], (starts + lengths)[which])
    )
    for i in range(3):
        rows, keys = slice(of_q[i], of_q[i + 1]), slice(starts[i], starts[i] + lengths[i])
        alone = mc.attention(q[:, :, rows], k[:, :, keys], k[:, :, keys], mc.full())
        np.testing.assert_allclose(out[:, :, rows], alone, atol=1e-6)


def test_torchs_causal_bias_is_named():
    bias = pytest.importorskip("torch.nn.attention.bias")
    for wrong, hint in (
        (bias.causal_upper_left(8, 8), 'write mc.causal(align="start")'),
        (bias.causal_lower_right(8, 8), "write mc.causal()"),
    ):
        with pytest.raises(NotAMask) as caught:
            mc.attention(Q, Q, Q, wrong)
        assert str(caught.value).endswith(hint)


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


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@pytest.mark.parametrize("name", TAKES_DATA)
def test_no_name_of_data_is_a_keyword_of_a_call(name: str):
    parameters = inspect.signature(TAKES_DATA[name]).parameters.values()
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = {parameter.name for parameter in parameters if parameter.kind not in _ANY_NUMBER}
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


MATRIX = np.tri(8, dtype=bool)
ELSEWHERE: dict[str, tuple[object, str]] = {
    "attn_mask": (MATRIX, "mc.scaled_dot_product_attention"),
    "attn_bias": (MATRIX.astype(np.float32), "mc.scaled_dot_product_attention"),
    "attention_mask": (MATRIX[0], "kept=attention_mask.bool()"),
    "key_padding_mask": (MATRIX[0], "kept=~key_padding_mask"),
    "mask_mod": (lambda b, h, q, k: q >= k, "mc.from_mask_mod"),
    "score_mod": (lambda s, b, h, q, k: s, "score=mc.from_score_mod(score_mod)"),
    "causal": (True, "is_causal=True"),
    "is_casual": (True, "did you mean 'is_causal'?"),
    "softmax_scale": (0.5, "scale="),
    "sm_scale": (0.5, "scale="),
    "max_seqlen_q": (8, "max_seqlen= bounds queries and keys together"),
    "window": (3, "window_size="),
    "logits_soft_cap": (3.0, "softcap="),
    "s_aux": (np.zeros(2), "sink_logits="),
    "dropout": (0.1, "dropout_p="),
    "block_table": (MATRIX, "mc.paged(mask, page_size=...) takes page tables"),
    "return_attn_probs": (True, "return_lse=True"),
    "segment_ids": (np.zeros(8, int), 'mc.documents("doc")'),
    "key_value_seq_lengths": (np.array([8]), "kept=arange(n) < lengths[:, None]"),
    "cache_seqlens": (np.array([8]), "mc.paged takes seq_lens_kv="),
    "leftpad_k": (np.array([8]), "kept=arange(n) >= lengths[:, None]"),
    "kernel_size": (3, "mc.patterns.natten_1d"),
    "cu_seq_q": (np.array([0, 8]), "cu_seqlens_q="),
    "num_splits": (1, "maskc chooses its kernels"),
    "output_attentions": (True, "weights are never stored"),
    "position_ids": (np.arange(8), "mc.causal(at=mc.positions("),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_keywords_of_other_libraries_are_told_what_to_write(name: str):
    value, hint = ELSEWHERE[name]
    with pytest.raises(NotAMask) as missing:
        mc.attention(Q, Q, Q, **{name: value})
    attn = mc.causal().compile(16, dtype="float32", target="cpu")
    score = {"score": mc.scores.soft_cap(3.0)}
    unknown = []
    for call in (
        attn,
        lambda *qkv, **more: mc.attention(*qkv, mc.causal(), **more),
        lambda *qkv, **more: mc.attention(*qkv, mc.causal(), **score, **more),
        lambda *qkv, **more: mc.attention(*qkv, is_causal=True, **more),
    ):
        with pytest.raises(DataUnknown) as caught:
            call(Q, Q, Q, **{name: value})
        unknown.append(str(caught.value))
    if name not in ("attn_bias",):  # of which a mask speaks by what it holds
        assert all(hint in text.split("hint: ")[1] for text in unknown)
    assert hint in str(missing.value).split("hint: ")[1]


def test_a_mask_under_another_name():
    with pytest.raises(NotAMask, match=r"mask= takes it: mc.attention\(q, k, v, mask=attn_mask\)"):
        mc.attention(Q, Q, Q, attn_mask=mc.causal())


def test_data_without_a_mask_that_reads_them():
    with pytest.raises(NotAMask, match=r'found None, and doc=[\s\S]*mc.documents\("doc"\)'):
        mc.attention(Q, Q, Q, doc=np.zeros(8, int))


@pytest.mark.parametrize("place", [(None, 0.1), (mc.causal(), 0.1, True), (MATRIX, 0.0)])
def test_arguments_behind_the_mask_go_by_name(place: tuple[object, ...]):
    with pytest.raises(ArgumentsByPlace, match="scaled_dot_product_attention") as caught:
        mc.attention(Q, Q, Q, *place)
    assert isinstance(caught.value, TypeError)


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


@pytest.mark.parametrize("name", ["k", "v"])
def test_dtypes_that_differ_speak_of_the_tensors(name: str):
    torch = pytest.importorskip("torch")
    attn = mc.causal().compile(16, dtype="float32", target="cpu")
    for x in (Q, torch.from_numpy(Q), torch.from_numpy(Q).requires_grad_()):
        half = x.astype(np.float16) if isinstance(x, np.ndarray) else x.half()
        given = {"q": x, "k": x, "v": x, name: half}
        for call in (attn, lambda q, k, v: mc.attention(q, k, v, mc.causal())):
            with pytest.raises(DTypesDiffer) as caught:
                call(**given)
            assert f"q is float32, and {name} is float16" in str(caught.value)
            assert "compile" not in str(caught.value)
        wide = {"q": x, "k": x, "v": x} | {
            other: x.astype(np.float64) if isinstance(x, np.ndarray) else x.double()
            for other in "qkv" if other != name
        }  # fmt: skip
        with pytest.raises(DTypesDiffer, match=f"q is float64, and {name} is float32"):
            mc.attention(**wide, mask=mc.causal())


def test_a_table_of_another_dtype_is_no_matter_of_compiling():
    with pytest.raises(WrongDType, match="alibi_slopes is float16, but this kernel reads float32"):
        mc.attention(Q, Q, Q, mc.causal(), alibi_slopes=np.ones(2, np.float16))


def test_a_tensor_elsewhere_is_compared_with_q():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(Q)
    with pytest.raises(WrongDevice, match="k is on meta:0, but this call runs on cpu"):
        mc.attention(x, x.to("meta"), x, mc.causal())
    with pytest.raises(WrongDevice, match="k is on cpu, but this call runs on meta"):
        mc.attention(x.to("meta"), x, x, mc.causal())
    ids = torch.zeros(x.shape[2], dtype=torch.int32, device="meta")
    with pytest.raises(WrongDevice, match="doc is on meta, but this call runs on cpu"):
        mc.attention(x, x, x, mc.documents("doc"), doc=ids)


@pytest.mark.parametrize("shape", [(8, 16), (2, 8, 16), (1, 1, 2, 8, 16)])
def test_other_numbers_of_dimensions(shape: tuple[int, ...]):
    torch = pytest.importorskip("torch")
    attn = mc.causal().compile(16, dtype="float32", target="cpu")
    score = mc.scores.soft_cap(3.0)
    for x in (np.zeros(shape, np.float32), torch.zeros(shape), torch.zeros(shape).requires_grad_()):
        for call in (
            attn,
            lambda *qkv: mc.attention(*qkv, mc.causal()),
            lambda *qkv: mc.attention(*qkv, is_causal=True),
            lambda *qkv: mc.attention(*qkv, mc.causal(), score=score),
        ):
            with pytest.raises(WrongRank, match=r"q\[None\] adds a dimension"):
                call(x, x, x)


def test_a_mask_is_called():
    for mask in (mc.causal(), mc.causal() & mc.window(3), mc.per_head([mc.causal()] * 2)):
        with pytest.raises(MaskCalled, match=r"mc.attention\(q, k, v, mask\)"):
            mask(Q, Q, Q)
        for read in (lambda: mask[0, 1], lambda: mask[:5], lambda: list(mask)):  # noqa: B023
            with pytest.raises(MaskIndexed, match=r"mask.dense\(n\) is the matrix"):
                read()
    assert np.array(mask).shape == ()


def test_a_mask_in_place_of_a_score():
    for wrong, hint in (
        (mc.causal(), "a mask is the fourth argument"),
        (mc.scores.alibi, r"call it to get a formula: mc.scores.alibi\("),
        (Q, "score=mc.scores.bias"),
        (lambda s: s, r"write mc.score\("),
    ):
        with pytest.raises(NotAScore, match=hint):
            mc.attention(Q, Q, Q, mc.full(), score=wrong)
    with pytest.raises(BadOption, match="found a mask, which block_mask= takes"):
        mc.flex_attention(Q, Q, Q, mc.causal())
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block_mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, device="cpu")
    with pytest.raises(BadOption, match="found a mask, which block_mask= takes"):
        mc.flex_attention(Q, Q, Q, block_mask)


def test_a_pattern_that_is_not_called():
    with pytest.raises(AttributeError, match=r"call it to get its mask: near\(\).count"):
        near.count(8)
    with pytest.raises(AttributeError, match=r"a pattern has no attribute 'kount'$"):
        near.kount(8)


def test_a_tensor_in_place_of_pieces():
    out, lse = mc.attention(Q, Q, Q, mc.causal(), return_lse=True)
    torch = pytest.importorskip("torch")
    for convert in (np.asarray, torch.as_tensor):
        with pytest.raises(BadOption, match="outs must be a list with an array per piece"):
            mc.merge(convert(out), convert(lse))


def test_a_dtype_that_nobody_wrote_is_that_of_q():
    for wrong in (Q.astype(np.int32), Q.astype(">f4")):
        with pytest.raises(UnknownDType) as caught:
            mc.attention(wrong, wrong, wrong, mc.causal())
        assert caught.value.at == "q"


def test_data_in_place_of_its_name():
    for wrong in (np.zeros(8, int), None, 3):
        with pytest.raises(ReservedName, match="calls pass it: doc_ids=array") as caught:
            mc.documents(wrong)
        assert with_article(type(wrong).__name__) in str(caught.value)


def test_data_in_a_dictionary():
    ids = np.zeros(8, int)
    with pytest.raises(DataUnknown, match="each array has its own name: doc=ids"):
        mc.attention(Q, Q, Q, mc.documents("doc"), data={"doc": ids})


def test_lengths_in_place_of_ids():
    mask = mc.documents("doc")
    for call in (
        lambda doc: mask.dense(8, doc=doc),
        lambda doc: mc.attention(Q, Q, Q, mask, doc=doc),
    ):
        with pytest.raises(LengthsNotIds, match="add up to 8 as lengths do"):
            call(np.array([3, 5]))


def test_cumulative_lengths_without_their_mark():
    mask, lengths = mc.documents("doc"), np.array([0, 3, 8])
    for call in (
        lambda doc: mask.dense(8, doc=doc),
        lambda doc: mask.count(8, doc=doc),
        lambda doc: mc.attention(Q, Q, Q, mask, doc=doc),
        lambda doc: mc.attention(Q, Q[:, :, :4], Q[:, :, :4], mask, doc=doc),
    ):
        for doc in (lengths, lengths[None]):
            with pytest.raises(LengthsNotIds, match=r"doc=mc.cu_seqlens\("):
                call(doc)
        for ids in (np.array([0, 0, 1]), np.array([0, 5, 2]), np.zeros(7, int)):
            with pytest.raises(DataShape) as caught:
                call(ids)
            assert not isinstance(caught.value, LengthsNotIds)


# ------------------------------------------------------------------ arrays that hold no values

IDS = np.arange(8) // 3
HIDDEN = np.arange(8) > 5
BIAS = np.zeros((8, 8), np.float32)


def masked(x: np.ndarray) -> np.ma.MaskedArray:
    """The array with its last two keys masked."""
    return np.ma.masked_array(x, np.broadcast_to(HIDDEN, x.shape))


def paged_step(page_table: np.ndarray) -> np.ndarray:
    """A step of decoding from eight pages of one slot."""
    attn = mc.paged(
        mc.causal(), page_size=1, head_dim=16, n_heads=2, n_kv_heads=2, dtype="float32",
        target="cpu",
    )  # fmt: skip
    pool = Q[0].swapaxes(0, 1)[:, None]
    return attn.run(Q[0, :, :1].swapaxes(0, 1), pool, pool, attn.plan(page_table, 1, [8]))[0]


MASKED: dict[str, Callable[[Callable[[np.ndarray], object]], object]] = {
    "k": lambda of: mc.attention(Q, of(Q.swapaxes(2, 3)).swapaxes(2, 3), Q, mc.causal()),
    "k of a compiled mask": lambda of: (
        mc.causal().compile(16, dtype="float32", target="cpu")(
            *3 * [of(Q.swapaxes(2, 3)).swapaxes(2, 3)]
        )
    ),
    "doc": lambda of: mc.attention(Q, Q, Q, mc.documents("doc"), doc=of(IDS)),
    "doc of a question": lambda of: mc.documents("doc").dense(8, doc=of(IDS)),
    "doc of a count": lambda of: np.array(mc.documents("doc").count(8, doc=of(IDS))),
    "kept": lambda of: mc.attention(Q, Q, Q, mc.flags("kept"), kept=of(~HIDDEN)),
    "attn_mask": lambda of: mc.scaled_dot_product_attention(Q, Q, Q, of(np.tri(8, dtype=bool))),
    "float attn_mask": lambda of: mc.scaled_dot_product_attention(Q, Q, Q, of(BIAS)),
    "bias": lambda of: mc.attention(Q, Q, Q, mc.full(), score=mc.scores.bias(), bias=of(BIAS)),
    "alpha": lambda of: mc.attention(
        Q, Q, Q, mc.full(), normalizer="entmax", alpha=of(np.full((2, 8), 1.5, np.float32))[:, -1]
    ),
    "from_bool": lambda of: mc.from_bool(of(~HIDDEN[None])).dense(8),
    "block_table": lambda of: mc.block_table(of(np.ones((8, 8), bool)), 2).dense(16),
    "captured": lambda of: (
        lambda ids: mc.from_mask_mod(lambda b, h, q, k: ids[q] == ids[k]).dense(8)
    )(of(IDS)),
    "captured by a score": lambda of: (
        lambda bias: mc.attention(
            Q, Q, Q, mc.full(), score=mc.from_score_mod(lambda s, b, h, q, k: s + bias[q, k])
        )
    )(of(BIAS)),
    "cu_seqlens": lambda of: mc.attention(
        *3 * [Q[0].swapaxes(0, 1)], cu_seqlens_q=of(np.array([0, 2, 3, 4, 5, 6, 7, 8])),
        cu_seqlens_k=of(np.array([0, 1, 3, 4, 5, 6, 7, 8])),
    ),
    "page_table": lambda of: paged_step(of(np.arange(8)[None])),
    "startend_row_indices": lambda of: mc.from_flashmask(
        of(np.full((1, 1, 1, 8), 8, np.int32)).swapaxes(2, 3), causal=True
    ).dense(8),
}  # fmt: skip


@pytest.mark.parametrize("place", MASKED)
def test_masked_arrays_are_read_only_if_nothing_is_masked(place: str):
    """NumPy's other functions drop the mask of a masked array silently."""
    call = MASKED[place]
    with pytest.raises(MaskedValues, match=r"is a masked array; masked entries: [0-9]"):
        call(masked)
    np.testing.assert_array_equal(call(np.ma.masked_array), call(np.asarray))


def sparse(x: np.ndarray) -> object:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x).to_sparse()


UNREADABLE: dict[str, tuple[Callable[[], object], str]] = {
    "sparse q": (lambda: mc.attention(*3 * [sparse(Q)], mc.full()), r"to_dense\(\)"),
    "sparse doc": (lambda: documents(sparse(IDS)), r"to_dense\(\)"),
    "sparse doc of a question": (
        lambda: mc.documents("doc").dense(8, doc=sparse(IDS)), r"to_dense\(\)",
    ),
    "SciPy": (
        lambda: documents(pytest.importorskip("scipy.sparse").csr_matrix(IDS[None])),
        r"csr_matrix, not an array[\s\S]*toarray\(\)",
    ),
    "pandas": (
        lambda: documents(pytest.importorskip("pandas").Series(["a"] * 8, dtype=object)),
        r"Series of object, not an array[\s\S]*to_numpy\(\)",
    ),
    "ragged": (lambda: documents([[0] * 8, [1] * 7]), "rows of a list need one length"),
    "nothing in a list": (lambda: documents([None] + [1] * 7), "its entries must be numbers"),
    "generator": (lambda: documents(iter([0] * 8)), "list_iterator, not an array"),
}  # fmt: skip


def documents(ids: object) -> object:
    return mc.attention(Q, Q, Q, mc.documents("doc"), doc=ids)


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_says_how_it_can(name: str):
    call, hint = UNREADABLE[name]
    with pytest.raises(NotAnArray, match=hint):
        call()


@pytest.mark.parametrize("place", ["attention", "dense", "layout", "block_table"])
def test_integers_that_were_negated_are_no_flags(place: str):
    """~x of integers is -1 or -2, and a bias is 0 where a pair is kept."""
    kept = np.array([0, 1, 1, 1, 1, 1, 0, 0])
    calls = {
        "attention": lambda x: mc.attention(Q, Q, Q, mc.flags("kept"), kept=x),
        "dense": lambda x: mc.flags("kept").dense(8, kept=x),
        "layout": lambda x: mc.flags("kept").layout(8, kept=x),
        "block_table": lambda x: mc.block_table("kept", 8).count(8, kept=x[:1, None]),
    }
    for wrong in (~kept, (kept - 1) * 10000, (kept - 1).astype(np.int8)):
        with pytest.raises(DataRange, match="all except 0 are true"):
            calls[place](wrong)


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
