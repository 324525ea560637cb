"""Compiled masks against fp64 attention over dense pairs: in C, and in NumPy without a compiler."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from maskc.reference.attention import attention, gradients
from maskc.runtime import CompiledMask, FallbackWarning
from tests.support.bundles import bundle, pairs

NO_COMPILER = "/nowhere/cc"
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(params=["c", "numpy"])
def path(request, monkeypatch) -> str:
    """The compiled kernel, and the stand-in."""
    if request.param == "numpy":
        monkeypatch.setenv("CC", NO_COMPILER)
    return request.param


@dataclass
class Case:
    """Tensors [B, H, N, D] and what a call adds to them."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    options: dict

    @property
    def qkv(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k, self.v


def case(n_q=130, n_kv=150, heads=(4, 2), batch=2, dims=(32, 48), dtype="float32", extras=False):
    """Random tensors; tokens before heads in q and v, so that strides matter."""
    rng = np.random.default_rng(n_q + 7 * n_kv)

    def made(heads, tokens, dim, swapped):
        shape = (batch, tokens, heads, dim) if swapped else (batch, heads, tokens, dim)
        array = rng.standard_normal(shape).astype(NUMPY[dtype])
        return array.swapaxes(1, 2) if swapped else array

    options = {}
    if extras:
        options = {
            "softcap": 3.0,
            "alibi_slopes": rng.uniform(0.01, 0.3, heads[0]).astype(np.float32),
            "sink_logits": rng.standard_normal(heads[0]).astype(np.float32),
            "scale": 0.3,
        }
    return Case(
        made(heads[0], n_q, dims[0], True),
        made(heads[1], n_kv, dims[0], False),
        made(heads[1], n_kv, dims[1], True),
        made(heads[0], n_q, dims[1], False),
        options,
    )


def quiet(mask: CompiledMask, path: str) -> CompiledMask:
    """Warmed up, past the stand-in's warning."""
    with warnings.catch_warnings():
        if path == "numpy":
            warnings.simplefilter("ignore", FallbackWarning)
        mask.warmup()
        mask.warmup(["softcap", "alibi", "sinks"])
    return mask


def compare(mask: CompiledMask, given: Case, keep: np.ndarray, tolerance: float, **data) -> None:
    """Forward and backward."""
    out, lse = mask(*given.qkv, return_lse=True, **given.options, **data)
    want_out, want_lse = attention(*given.qkv, keep, **given.options)
    assert out.dtype == given.q.dtype
    assert lse.dtype == np.float32
    empty = np.isneginf(want_lse)
    np.testing.assert_array_equal(np.isneginf(lse), empty)
    np.testing.assert_allclose(lse[~empty], want_lse[~empty], rtol=1e-5, atol=1e-5)
    close(out, want_out, tolerance)
    results = mask.backward(*given.qkv, out, lse, given.dout, **given.options, **data)
    want = gradients(*given.qkv, keep, given.dout, **given.options)
    names = ["dq", "dk", "dv", *(["dsink", "dalibi"] if given.options else [])]
    assert len(results) == len(names)
    for name, gradient in zip(names, results, strict=True):
        close(gradient, want[name], tolerance if gradient.ndim == 4 else 2 * tolerance)


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Largest error relative to the largest value."""
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0)
    assert error <= tolerance * max(np.abs(wanted).max(initial=0), 1e-3)


@pytest.mark.parametrize("extras", [False, True], ids=["plain", "extras"])
@pytest.mark.parametrize("name", ["band", "gaps"])
def test_fp32(path, name, extras):
    mask = quiet(CompiledMask(bundle(name), "cpu"), path)
    compare(mask, case(extras=extras), pairs(name, 130, 150), 1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype, monkeypatch):
    """Rounded inputs, fp32 arithmetic: what is left is the rounding of the results."""
    monkeypatch.setenv("CC", NO_COMPILER)
    mask = quiet(CompiledMask(bundle("band", dtype=dtype), "cpu"), "numpy")
    compare(mask, case(dtype=dtype, extras=True), pairs("band", 130, 150), 2e-2)


def test_bfloat16_in_c():
    mask = CompiledMask(bundle("band", dtype="bfloat16"), "cpu")
    compare(mask, case(dtype="bfloat16"), pairs("band", 130, 150), 2e-2)


def test_documents_per_sequence(path):
    rng = np.random.default_rng(1)
    of_q, of_k = rng.integers(0, 4, (2, 130)), rng.integers(0, 4, (2, 150))
    keep = np.stack([pairs("documents", 130, 150, doc=(of_q[b], of_k[b])) for b in range(2)])
    mask = quiet(CompiledMask(bundle("documents"), "cpu"), path)
    compare(mask, case(), keep[:, None], 1e-5, doc=(of_q, of_k))
    first = keep[:1, None].repeat(2, axis=0)
    compare(mask, case(), first, 1e-5, doc=(of_q[:1], of_k[0]))


def test_masks_per_head(path):
    """Three distinct masks among four heads, with a parameter and data in two of them."""
    of_head = (0, 2, 1, 0)
    rng = np.random.default_rng(2)
    doc = (rng.integers(0, 3, 130), rng.integers(0, 3, 150))
    blocks = rng.random((9, 10)) < 0.4
    names = ("band", "documents", "table")
    each = [pairs(name, 130, 150, w=7, doc=doc, blocks=blocks) for name in names]
    mask = quiet(CompiledMask(bundle(*names, head_variant=of_head), "cpu"), path)
    keep = np.stack([each[index] for index in of_head])
    compare(mask, case(), keep[None], 1e-5, doc=doc, blocks=blocks, w=7)


@pytest.mark.parametrize("batched", [False, True])
def test_a_table_for_every_head(path, batched):
    rng = np.random.default_rng(3)
    blocks = rng.random((2, 4, 9, 10) if batched else (4, 9, 10)) < 0.4
    doc = (np.zeros(130, int), np.zeros(150, int))
    full = np.broadcast_to(blocks, (2, 4, 9, 10))
    keep = [[pairs("table", 130, 150, blocks=full[b, h]) for h in range(4)] for b in range(2)]
    mask = quiet(CompiledMask(bundle("table"), "cpu"), path)
    compare(mask, case(), np.array(keep), 1e-5, doc=doc, blocks=blocks)


def test_a_changed_array_is_a_new_mask():
    """Data are known by content: writing into the same array must be seen."""
    mask = CompiledMask(bundle("documents"), "cpu")
    given, doc = case(n_q=100, n_kv=100), np.zeros(100, np.int32)
    before = mask(*given.qkv, doc=doc)
    doc[50:] = 1
    keep = pairs("documents", 100, 100, doc=(doc, doc))
    close(mask(*given.qkv, doc=doc), attention(*given.qkv, keep)[0], 1e-5)
    doc[50:] = 0
    np.testing.assert_array_equal(mask(*given.qkv, doc=doc), before)


def test_a_parameter_changes_the_mask_and_not_the_kernel():
    mask = CompiledMask(bundle("band"), "cpu")
    given = case()
    for w in (0, 20, 149, 5):
        close(mask(*given.qkv, w=w), attention(*given.qkv, pairs("band", 130, 150, w=w))[0], 1e-5)
    np.testing.assert_array_equal(mask(*given.qkv), mask(*given.qkv, w=20))
    assert len(mask.reports) == 1


@pytest.mark.parametrize(
    ("batch", "n_q", "n_kv"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0), (1, 1, 2)]
)
@pytest.mark.parametrize("extras", [False, True])
def test_no_sequences_queries_or_keys(path, batch, n_q, n_kv, extras):
    mask = quiet(CompiledMask(bundle("band"), "cpu"), path)
    given = case(n_q, n_kv, batch=batch, extras=extras)
    compare(mask, given, pairs("band", n_q, n_kv), 1e-5)


def test_empty_rows_are_zero_and_carry_no_gradient(path):
    mask = quiet(CompiledMask(bundle("gaps"), "cpu"), path)
    given = case(150, 150)
    out, lse = mask(*given.qkv, return_lse=True)
    dq = mask.backward(*given.qkv, out, lse, given.dout)[0]
    assert (out[:, :, 80:] == 0).all()
    assert np.isneginf(lse[:, :, 80:]).all()
    assert (dq[:, :, 80:] == 0).all()


def test_what_is_not_seen_does_not_matter(path):
    """NaN and infinity reach the queries that see them, and nobody else; here also inside tiles."""
    mask = quiet(CompiledMask(bundle("band"), "cpu"), path)
    clean, given = case(130, 130), case(130, 130)
    keep = pairs("band", 130, 130)
    bad = 40
    given.k[:, :, bad] = np.nan
    given.v[:, :, bad] = np.inf
    blind = ~keep[:, bad]
    out, lse = mask(*given.qkv, return_lse=True)
    fine, fine_lse = mask(*clean.qkv, return_lse=True)
    np.testing.assert_array_equal(out[:, :, blind], fine[:, :, blind])
    assert np.isnan(out[:, :, ~blind]).all()
    dq, dk, dv = mask.backward(*given.qkv, out, lse, given.dout)
    want = mask.backward(*clean.qkv, fine, fine_lse, clean.dout)
    np.testing.assert_allclose(dq[:, :, blind], want[0][:, :, blind], rtol=0, atol=1e-5)
    far = np.setdiff1d(np.arange(130), np.flatnonzero(keep[~blind].any(axis=0)))
    np.testing.assert_allclose(dk[:, :, far], want[1][:, :, far], rtol=0, atol=1e-5)
    np.testing.assert_allclose(dv[:, :, far], want[2][:, :, far], rtol=0, atol=1e-5)


def test_the_stand_in_says_so_once(monkeypatch):
    monkeypatch.setenv("CC", NO_COMPILER)
    mask, given = CompiledMask(bundle("band"), "cpu"), case(20, 20)
    with pytest.warns(FallbackWarning, match="this mask runs in NumPy, slower") as caught:
        mask(*given.qkv)
    assert caught[0].filename == __file__
    mask(*given.qkv)  # warnings are errors here: not a second time


def test_nan_safe_is_the_same_kernel_on_a_cpu():
    mask, given = CompiledMask(bundle("band"), "cpu"), case(40, 40)
    np.testing.assert_array_equal(mask(*given.qkv, nan_safe=True), mask(*given.qkv))
    mask.warmup(["nan_safe"])
    assert list(mask.reports) == [frozenset()]


def test_warmup_leaves_nothing_to_compile(monkeypatch):
    mask, given = CompiledMask(bundle("band"), "cpu"), case(40, 40, extras=True)
    mask.warmup(("softcap", "alibi", "sinks"))
    monkeypatch.setattr("maskc.runtime.launch.kernels.build", None)
    out, lse = mask(*given.qkv, return_lse=True, **given.options)
    mask.backward(*given.qkv, out, lse, given.dout, **given.options)
    with pytest.raises(TypeError):
        mask(*given.qkv)


def test_masks_are_checked_against_their_layouts_on_request(monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    mask, given = CompiledMask(bundle("band"), "cpu"), case()
    close(mask(*given.qkv), attention(*given.qkv, pairs("band", 130, 150))[0], 1e-5)
