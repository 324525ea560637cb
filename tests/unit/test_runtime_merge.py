"""Joining disjoint pieces by their log-sum-exp."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadOption, BadShape, PiecesDiffer
from maskc.reference.attention import attention
from maskc.runtime import merge


def pieces(seed=0, dtype=np.float32):
    """q, k, v and three disjoint masks; row 3 sees nothing, row 5 one piece only."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, 3, 9, 8)) for _ in range(3))
    owner = rng.integers(0, 4, (9, 9))
    owner[3], owner[5] = 3, 1
    return q, k, v, [owner == i for i in range(3)]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_union(library):
    q, k, v, masks = pieces()
    parts = [attention(q, k, v, mask) for mask in masks]
    outs = [out.astype(np.float32) for out, _ in parts]
    lses = [lse.astype(np.float32) for _, lse in parts]
    if library == "torch":
        torch = pytest.importorskip("torch")
        outs, lses = [torch.from_numpy(x) for x in outs], [torch.from_numpy(x) for x in lses]
    out, lse = merge(outs, lses)
    assert type(out) is type(outs[0])
    want_out, want_lse = attention(q, k, v, np.logical_or.reduce(masks))
    np.testing.assert_allclose(np.asarray(out), want_out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(lse), want_lse, rtol=1e-5)
    assert (np.asarray(out)[:, :, 3] == 0).all()
    assert np.isneginf(np.asarray(lse)[:, :, 3]).all()


def test_order_does_not_matter_much_and_one_piece_is_itself():
    q, k, v, masks = pieces(1)
    parts = [attention(q, k, v, mask) for mask in masks]
    outs, lses = (list(side) for side in zip(*parts, strict=True))
    out, lse = merge(outs, lses)
    turned = merge(outs[::-1], lses[::-1])
    np.testing.assert_allclose(out, turned[0], atol=1e-6)
    np.testing.assert_allclose(lse, turned[1], atol=1e-12)
    alone = merge(outs[:1], lses[:1])
    np.testing.assert_allclose(alone[0], outs[0], atol=1e-7)
    np.testing.assert_array_equal(alone[1], lses[0])


def test_the_result_has_the_dtype_of_the_pieces():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    out = np.ones((1, 1, 2, 4), ml_dtypes.bfloat16)
    lse = np.zeros((1, 1, 2), np.float32)
    merged, total = merge([out, out], [lse, lse])
    assert (merged.dtype, total.dtype) == (ml_dtypes.bfloat16, np.float32)
    assert (merged == 1).all()
    torch = pytest.importorskip("torch")
    merged, _ = merge([torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)], [torch.zeros(1, 1, 2)])
    assert merged.dtype == torch.bfloat16


def test_extreme_logarithms():
    out = [np.full((1, 1, 1, 2), x, np.float32) for x in (1, 2)]
    for far in (500.0, -500.0, 1e30):
        lse = [np.full((1, 1, 1), x, np.float32) for x in (far, far)]
        merged, total = merge(out, lse)
        np.testing.assert_allclose(merged, 1.5)
        np.testing.assert_allclose(total, np.float32(far + np.log(2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("outs", "lses"),
    [
        ([], []),
        ([np.zeros((1, 1, 2, 4))], []),
        ([np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 3, 4))], [np.zeros((1, 1, 2))] * 2),
        ([np.zeros((1, 1, 2, 4))], [np.zeros((1, 1, 3))]),
    ],
)
def test_pieces_that_do_not_fit(outs, lses):
    with pytest.raises(BadShape):
        merge(outs, lses)


# ------------------------------------------------------------------ what attention returned


def copied(x):
    """A contiguous copy: its strides tell nothing."""
    return x.contiguous().clone() if hasattr(x, "contiguous") else x.copy(order="C")


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("tokens", [4, 6])
@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "packed"])
def test_results_of_calls(layout, sequences, tokens, library):
    """Also where there are as many tokens as heads, 4, or as sequences."""
    rng = np.random.default_rng(tokens)
    sizes = (1 if layout == "packed" else sequences, 4, tokens, 8)
    q, k, v = (rng.standard_normal(sizes).astype(np.float32) for _ in range(3))
    want, want_lse = attention(q, k, v, np.ones((tokens, tokens), bool))
    axes = {"bhsd": (0, 1, 2, 3), "sbhd": (2, 0, 1, 3)}.get(layout, (0, 2, 1, 3))
    inputs = [np.ascontiguousarray(x.transpose(axes)) for x in (q, k, v)]
    ends = np.array([0, tokens])
    if layout == "packed":
        inputs = [x[0] for x in inputs]
    if library == "torch":
        torch = pytest.importorskip("torch")
        inputs, ends = [torch.from_numpy(x) for x in inputs], torch.from_numpy(ends)
    keys = (slice(0, 2), slice(2, 3), slice(3, tokens))
    parts = []
    for part in keys:
        if layout == "packed":
            own = ends.clip(0, part.stop - part.start)
            parts.append(mc.attention(
                inputs[0], *(x[part] for x in inputs[1:]), cu_seqlens_q=ends, cu_seqlens_k=own,
                return_lse=True,
            ))  # fmt: skip
        else:
            of_keys = tuple(part if axis == 2 else slice(None) for axis in axes)
            own = [x[of_keys] for x in inputs[1:]]
            parts.append(mc.attention(
                inputs[0], *own, mc.full(), layout=layout, return_lse=True
            ))  # fmt: skip
    want = want.transpose(axes)
    if layout == "packed":
        want, want_lse = want[0], want_lse[0]
    first = merge(*zip(*parts[:2], strict=True))  # results are pieces again
    copies = [tuple(copied(x) for x in part) for part in parts]
    for merged, lse in (
        merge(*zip(*parts, strict=True)),
        merge(*zip(first, parts[2], strict=True)),
        mc.merge(*zip(*copies, strict=True), layout="bshd" if layout == "packed" else layout),
    ):
        np.testing.assert_allclose(np.asarray(merged), want, atol=1e-6)
        np.testing.assert_allclose(np.asarray(lse), want_lse, atol=1e-6)


def test_layouts_that_differ_are_refused():
    q, k, v, masks = pieces()
    outs, lses = zip(*(attention(q[:, :, :3], k, v, m[:3]) for m in masks[:2]), strict=True)
    turned = np.ascontiguousarray(lses[1].swapaxes(1, 2)).swapaxes(1, 2)
    with pytest.raises(BadOption, match="layout must be given"):
        merge(outs, [lses[0], turned])
    with pytest.raises(BadOption, match="'bhsd', 'bshd' or 'sbhd'"):
        mc.merge(outs, lses, layout="hbsd")
    with pytest.raises(PiecesDiffer, match=r"expected \(3, 3, 2\)"):
        merge(outs, lses, layout="sbhd")
    with pytest.raises(PiecesDiffer, match=r"expected \(2, 3, 3\)"):
        merge(outs, [lses[0], lses[1][:1]])


def test_copies_that_tell_no_layout_are_refused():
    """[4, 4, 3, 8] with tokens first may be four sequences of four tokens in two layouts."""
    out, lse = np.ones((4, 4, 3, 8), np.float32), np.zeros((4, 3, 4), np.float32)
    with pytest.raises(BadOption, match="do not tell whether tokens, heads or sequences"):
        mc.merge([out, out], [lse, lse])
    for layout in ("bshd", "sbhd"):
        merged, _ = mc.merge([out, 3 * out], [lse, lse], layout=layout)
        np.testing.assert_allclose(merged, 2)
