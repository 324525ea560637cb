"""Head dimensions between the widths that tensor cores' kernels have, rows that copies fill up with
zeros, and the widths that differ from others: 32, 48, 80, 112, 160, and 192 with 128 for v. In the
emulator, against fp64, in memory full of NaN."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core.dtypes import DType
from maskc.core.errors import HeadDimUnsupported
from maskc.core.problem import Direction, Problem
from maskc.core.target import TARGETS
from maskc.driver import plan_kernel
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import live_pairs, tensors, vectors
from tests.support.exact_entmax import check as check_entmax
from tests.support.hopper import BAND, check, compiled, modes
from tests.support.thorough import alternating, chiefly, more

TENSOR_CORES = ["sm_80", "sm_90a"]
DIMS = [
    (8, 8), (40, 40), (72, 72), (88, 88), (104, 104), (160, 160), (16, 8), (192, 128), (64, 128),
]  # fmt: skip
BOTH_SIDES = mc.window(5, 5) | mc.dilated(9, stride=3)
ALONE = mc.where(lambda q, k: (q // 64 == k // 64) & (k % 3 > 0) & (q >= 130))


def given(n_q, n_kv, dim, dim_v=None, dtype=torch.bfloat16, batch=1, heads=2, kv_heads=1):
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    q, k, v, dout = tensors(n_q, n_kv, dim, dtype, **sizes)
    if dim_v is not None and dim_v != dim:
        _, _, v, dout = tensors(n_q, n_kv, dim_v, dtype, seed=1, **sizes)
    return q, k, v, dout


def spaced(x):
    """Return the numbers in rows that are further apart, with NaN between them."""
    *shape, dim = x.shape
    wide = torch.full((*shape, dim + 24), torch.nan, dtype=x.dtype)
    wide[..., :dim] = x
    return wide[..., :dim]


@pytest.mark.parametrize(
    ("dims", "target"),
    alternating(
        chiefly(
            [*DIMS, (32, 32), (160, 96), (200, 200), (24, 24), (136, 136), (248, 72)],
            *((8, 8), (40, 40), (72, 72), (104, 104), (160, 160), (16, 8), (64, 128), (192, 128)),
        ),
        TENSOR_CORES,
    ),
    ids=str,
)
def test_both_passes(dims, target):
    attn = BAND.compile(dims[0], head_dim_v=dims[1], target=target)
    assert attn.target.name == target
    check(attn, given(130, 200, *dims), live_pairs(BAND, 130, 200))


@pytest.mark.parametrize(
    ("dims", "target"), alternating([(40, 40), (80, 72)], TENSOR_CORES), ids=str
)
def test_what_lies_between_rows_is_not_read(dims, target):
    attn = BAND.compile(dims[0], head_dim_v=dims[1], dtype="float16", target=target)
    made = [spaced(x) for x in given(140, 140, *dims, dtype=torch.float16)]
    check(attn, made, live_pairs(BAND, 140, 140))


@pytest.mark.parametrize(("target", "deterministic"), alternating(TENSOR_CORES, [False, True]))
def test_features(target, deterministic):
    dims, both = (80, 40), vectors(["sink_logits", "alibi_slopes"], 2)
    attn, live = BAND.compile(80, head_dim_v=40, target=target), live_pairs(BAND, 150, 150)
    made = given(150, 150, *dims)
    check(attn, made, live, deterministic=deterministic, softcap=3.0, **both)
    check(attn, made, live, deterministic=deterministic, scale=-0.2)


@pytest.mark.parametrize(
    ("dim", "mode"),
    alternating(
        [40, 80, 32],
        ["default", "persistent", more("small default"), "small persistent", "small separate_dq"],
    ),
)
def test_forms_of_hopper(dim, mode):
    attn = compiled(BAND, dim, mode=mode, most_tiles=2)
    check(attn, given(130, 200, dim, batch=2), live_pairs(BAND, 130, 200))


@pytest.mark.parametrize(
    ("dim", "mode"),
    alternating([72, more(96), 112], ["medium default", "medium persistent"]),
)
def test_medium_tiles_of_hopper(dim, mode):
    attn = compiled(BAND, dim, mode=mode)
    check(attn, given(130, 200, dim, batch=2), live_pairs(BAND, 130, 200))
    assert ("sm_90a_medium", mode.split()[1]) in modes(attn)


@pytest.mark.parametrize(
    ("mask", "dim", "row_tiles"),
    [(BAND, 200, None), more(BAND, 256, 2), (BAND, (192, 128), 2), (ALONE, 256, None)],
    ids=str,
)
def test_persistent_blocks_with_one_tile_of_q(hopper, mask, dim, row_tiles):
    attn = compiled(mask, dim, mode="persistent", row_tiles=row_tiles)
    of_qk, of_v = dim if isinstance(dim, tuple) else (dim, dim)
    made = given(700, 600, of_qk, of_v, batch=1, heads=2, kv_heads=1)
    check(attn, made, live_pairs(mask, 700, 600))
    assert ("attention_forward", 3) in hopper.launches  # three blocks compute all rows


def test_narrower_values():
    """Hopper's kernels of both passes have rows of 128 for v next to rows of 192."""
    attn = BAND.compile(192, head_dim_v=128, target="sm_90a")
    for direction in Direction:
        (unit,) = attn.bundle.choice("sm_90a", direction)
        assert "HEAD_DIM = 192;" in unit.text
        assert "HEAD_DIM_V = 128;" in unit.text
    made = given(150, 150, 192, 128, heads=4, kv_heads=2)
    both = vectors(["sink_logits", "alibi_slopes"], 4)
    check(attn, made, live_pairs(BAND, 150, 150), deterministic=True, softcap=3.0, **both)


@pytest.mark.parametrize("dim", [40, more(112), (192, 128), more(32)], ids=str)
def test_rows_and_columns_in_parts(hopper, dim):
    mask = mc.causal() & (mc.window(30) | mc.global_tokens([3]))
    attn = compiled(mask, dim, heads=4, mode="large", row_tiles=1, most_tiles=1)
    of_qk, of_v = dim if isinstance(dim, tuple) else (dim, dim)
    made = given(300, 300, of_qk, of_v, heads=4, kv_heads=2)
    check(attn, made, live_pairs(mask, 300, 300, heads=4))
    assert {"attention_merge", "attention_backward_finish_keys"} <= {e for e, _ in hopper.launches}


@pytest.mark.parametrize(("dim", "dim_v"), [(80, 80), (192, 128), more(32, 32)])
def test_parts_of_packed_rows_end_where_rows_end(hopper, dim, dim_v):
    """The merge writes no element of the row behind."""
    draw = torch.manual_seed(0)
    q = torch.randn(2, 8, 1, dim, generator=draw).bfloat16()
    k, v = (torch.randn(2, 2, 1300, n, generator=draw).bfloat16() for n in (dim, dim_v))
    attn = mc.flags("kept").compile(dim, head_dim_v=dim_v, target="sm_90a")
    out = attn(q, k, v, kept=torch.ones(2, 1300, dtype=torch.bool))
    assert attn.last_sources[-1].endswith("pack_gqa")
    keys, values = (x.double().repeat_interleave(4, 1) for x in (k, v))
    want = torch.softmax(q.double() @ keys.mT * dim**-0.5, -1) @ values
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("dim", "mode"),
    [(40, "large"), more(80, "small"), more(152, None), ((192, 128), None), more(32, "large")],
)
def test_tiles_of_dq_that_one_column_has(dim, mode):
    """And rows without a key, whose results are zeros that nobody else writes."""
    attn, live = compiled(ALONE, dim, mode=mode), live_pairs(ALONE, 330, 270)
    of_qk, of_v = dim if isinstance(dim, tuple) else (dim, dim)
    check(attn, given(330, 270, of_qk, of_v), live)
    assert {mode for name, mode in modes(attn) if "backward" in name} == {"exclusive_dq"}


@pytest.mark.parametrize("target", [more("sm_80"), "sm_90a"])
def test_parts_join(target):
    """Residue classes, whose results are joined where they lie."""
    attn = BOTH_SIDES.compile(72, head_dim_v=40, target=target)
    check(attn, given(210, 210, 72, 40), live_pairs(BOTH_SIDES, 210, 210))


@pytest.mark.parametrize(
    ("dims", "target"),
    [
        ((40, 40), "sm_80"),
        *(((dim, dim_v), "sm_90a") for dim, dim_v in ((104, 72), (192, 128), (160, 160))),
        more((32, 32), "sm_90a"),
    ],
    ids=str,
)
def test_entmax(dims, target):
    attn = mc.causal().compile(dims[0], head_dim_v=dims[1], dtype="float16", target=target)
    made = given(150, 200, *dims, dtype=torch.float16)
    check_entmax(attn, made, live_pairs(mc.causal(), 150, 200), 1.5)


@pytest.mark.parametrize("target", TENSOR_CORES)
def test_values_that_are_not_finite_reach_only_their_queries(target):
    q, k, v, _ = given(100, 100, 40)
    v[..., 90, :] = torch.inf
    attn = mc.causal().compile(40, target=target)
    out = attn(q, k, v, nan_safe=True)
    assert out[..., :90, :].isfinite().all()
    assert not out[..., 90:, :].isfinite().any()


@pytest.mark.parametrize("name", TENSOR_CORES)
def test_every_multiple_of_eight_has_a_kernel(name):
    target = TARGETS[name]
    problems = {dim: Problem(dim, dim, DType.bfloat16) for dim in range(1, 513)}
    found = {dim for dim, problem in problems.items() if not target.lacks(problem)}
    assert found == set(range(8, target.head_dims[-1] + 1, 8))
    own = {x.of_qk for x in target.further if x.of_qk == x.of_v} | set(target.head_dims)
    assert {target.padded(problems[dim]).head_dim for dim in found} == own
    assert all(target.padded(problems[dim]) == problems[dim] for dim in own)
    assert {target.padded(problems[dim], form="gather").head_dim for dim in found} == set(
        target.head_dims
    )


@pytest.mark.parametrize("name", TENSOR_CORES)
def test_runtime_selections_have_simt_instead(name):
    """Kernels that choose blocks compute with rows as they are in memory, and has few head
    dimensions; what chooses single keys fills them up."""
    mask = mc.topk(4, of=mc.causal(), score="qk", block=16)
    assert mask.compile(64, target=name).target.name == name
    assert mask.compile(80, target=name).target.name == "simt"
    with pytest.raises(HeadDimUnsupported, match="where blocks of keys are chosen"):
        plan_kernel(mask, Problem(80, 80, DType.bfloat16), TARGETS[name])
    single = mc.topk(4, of=mc.causal(), score="qk")
    assert single.compile(80, target=name).target.name == name
    shared = mc.topk(4, of=mc.causal(), score="given", share="all")
    assert shared.compile(80, target=name).target.name == name


def test_explain_says_how_rows_are_padded():
    assert "rows are filled up to 96 elements" in mc.causal().compile(80, target="sm_80").explain()
    assert "filled up" not in mc.causal().compile(96, target="sm_80").explain()


@pytest.mark.parametrize("target", [more("sm_80"), "sm_90a"])
def test_formulas_of_the_score_and_dropout(target):
    """Their own launches read rows from memory too, and what drops weights stores dv elsewhere: the
    same numbers in wider tensors, whose rows end with zeros, give the same results."""
    table, made = torch.rand(2, 60), given(60, 60, 40, 24, torch.float16)
    wide = [torch.nn.functional.pad(x, (0, 64 - x.shape[-1])) for x in made]
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, q])
    found = []
    for (q, k, v, dout), dims in ((made, (40, 24)), (wide, (64, 64))):
        attn = mc.causal().compile(dims[0], head_dim_v=dims[1], dtype="float16", target=target)
        options = {"scale": 40**-0.5, "dropout_p": 0.3, "dropout_seed": 5}
        out, lse = attn(q, k, v, return_lse=True, **options)
        found.append((out, lse, *attn.backward(q, k, v, out, lse, dout, **options)))
        attn = mc.causal().compile(
            dims[0], head_dim_v=dims[1], dtype="float16", target=target, score=score
        )
        out, lse = attn(q, k, v, return_lse=True, scale=40**-0.5, bias=table)
        found[-1] += (out, lse, *attn.backward(q, k, v, out, lse, dout, scale=40**-0.5, bias=table))
    for narrow, padded in zip(*found, strict=True):
        same = padded[..., : narrow.shape[-1]]
        assert torch.allclose(narrow.float(), same.float(), rtol=1e-2, atol=2e-3)
